//! [`Cause`]: why a connection failed or ended: the engine's reason, the violated protocol rule, the
//! status of a rejected handshake, or a failure of DNS or of a proxy. Counters, JSON and rows use this
//! list.

use engine::{Closed, ConnId, Core, ServerFault, Sys};
use wire::Violation;
use wire::http2::ErrorCode;

use crate::outcome::failure::Failure;
use crate::transport::http2::of_reset;
use crate::workload::client::Client;

/// Why a connection failed or ended.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cause {
    /// The reason given by the engine.
    End(Closed),
    /// The server violated this protocol rule.
    Rule(Violation),
    /// The server answered the handshake with this status.
    Status(u16),
    /// The name did not resolve.
    Dns,
    /// The proxy did not open a tunnel, or its answer is invalid.
    ProxyRefused,
    /// The server reset the HTTP/2 stream with this code; those without a name are one.
    Stream(u32),
    /// The server does not process the HTTP/2 stream, as it leaves the connection (GOAWAY).
    GoAway,
    /// The server speaks HTTP/2 without WebSockets (RFC 8441).
    NoExtendedConnect,
}

impl Cause {
    /// The cause of the end of a connection.
    pub(crate) fn of<S: Sys>(core: &Core<S, Client>, id: ConnId, why: Closed) -> Cause {
        let is_explained = matches!(
            why,
            Closed::HandshakeRejected | Closed::Violation | Closed::Reset | Closed::ConnectFailed
        );
        match core.server_fault(id).filter(|_| is_explained) {
            Some(ServerFault::Violation(violation)) => Cause::Rule(violation),
            Some(ServerFault::Status(status)) => Cause::Status(status),
            Some(ServerFault::StreamReset(code)) => Cause::of_stream(code),
            Some(ServerFault::GoAway) => Cause::GoAway,
            Some(ServerFault::NoExtendedConnect) => Cause::NoExtendedConnect,
            Some(ServerFault::ProxyRefused) => Cause::ProxyRefused,
            Some(ServerFault::Carrier(why)) => Cause::End(why),
            None => Cause::End(why),
        }
    }

    fn of_stream(code: ErrorCode) -> Cause {
        Cause::Stream(if RESETS.contains(&code) { code.0 } else { u32::MAX })
    }

    /// All causes except statuses.
    pub(crate) fn all() -> impl Iterator<Item = Cause> {
        let own = [Cause::Dns, Cause::ProxyRefused, Cause::GoAway, Cause::NoExtendedConnect];
        let rules = Violation::ALL.iter().copied().map(Cause::Rule);
        let named = RESETS.iter().map(|code| Cause::Stream(code.0));
        Closed::ALL.into_iter().map(Cause::End).chain(own).chain(rules).chain(named)
    }

    /// The cause of a name; `None` if there is none.
    pub(crate) fn of_name(name: &str) -> Option<Cause> {
        let statuses = (100..1_000).map(Cause::Status);
        Cause::all().chain(statuses).find(|cause| cause.name() == name)
    }

    /// The name in JSON, rows and logs, the same as that of [`crate::outcome::failure::Failure`] if it has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cause::End(closed) => closed.name(),
            Cause::Rule(violation) => violation.name(),
            Cause::Dns => "dns",
            Cause::ProxyRefused => "proxy_refused",
            Cause::Stream(code) => of_reset(ErrorCode(code)).name(),
            Cause::GoAway => Failure::GoAway.name(),
            Cause::NoExtendedConnect => "no_extended_connect",
            Cause::Status(status) => {
                let at = usize::from(status).checked_sub(LEAST);
                let name = at.and_then(|at| STATUSES.get(at));
                name.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or("status")
            }
        }
    }
}

/// Codes of resets with a name of their own; the last stands for all others.
const RESETS: [ErrorCode; 12] = [
    ErrorCode::NO_ERROR,
    ErrorCode::PROTOCOL_ERROR,
    ErrorCode::INTERNAL_ERROR,
    ErrorCode::FLOW_CONTROL_ERROR,
    ErrorCode::STREAM_CLOSED,
    ErrorCode::FRAME_SIZE_ERROR,
    ErrorCode::REFUSED_STREAM,
    ErrorCode::CANCEL,
    ErrorCode::ENHANCE_YOUR_CALM,
    ErrorCode::INADEQUATE_SECURITY,
    ErrorCode::HTTP_1_1_REQUIRED,
    ErrorCode(u32::MAX),
];

/// A status has three digits (RFC 9110 section 15).
const LEAST: usize = 100;
static STATUSES: [[u8; 10]; 900] = statuses();

const fn statuses() -> [[u8; 10]; 900] {
    let mut names = [*b"status_000"; 900];
    let mut at = 0;
    while at < names.len() {
        let status = LEAST + at;
        names[at][7] += (status / 100) as u8;
        names[at][8] += (status / 10 % 10) as u8;
        names[at][9] += (status % 10) as u8;
        at += 1;
    }
    names
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cause_names_are_unique() {
        let all: Vec<Cause> = Cause::all().chain((100..1_000).map(Cause::Status)).collect();
        let names: BTreeSet<&str> = all.iter().map(|cause| cause.name()).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|cause| Cause::of_name(cause.name()) == Some(*cause)));
        assert_eq!(Cause::Dns.name(), Failure::Dns.name());
        assert_eq!(Cause::ProxyRefused.name(), Failure::ProxyRefused.name());
        assert_eq!(Cause::Stream(7).name(), "stream_refused");
        assert_eq!(Cause::Stream(3).name(), "stream_flow_control_error");
        assert_eq!(Cause::of_stream(ErrorCode(99)), Cause::of_stream(ErrorCode(98)));
        assert_eq!(Cause::of_stream(ErrorCode(99)).name(), "stream_reset");
        assert_eq!(Cause::Status(100).name(), "status_100");
        assert_eq!(Cause::Status(503).name(), "status_503");
        assert_eq!(Cause::Status(999).name(), "status_999");
        assert_eq!(Cause::Status(7).name(), "status", "not a valid status");
    }
}
