//! [`Failure`]: why a request did not come to what it was to come to. Counters, JSON, logs and tests
//! use this one list; each failed request has exactly one.

use std::fmt;

use engine::Closed;
use wire::Violation;

macro_rules! failures {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a request failed.
        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Failure {
            $($(#[$doc])* $variant,)*
            /// The answer broke a rule of its protocol; it is counted under the rule's name.
            Protocol(Violation),
        }

        /// Those that are not [`Failure::Protocol`], in order of their number.
        const PLAIN: &[Failure] = &[$(Failure::$variant,)*];

        impl Failure {
            /// The name in JSON, thresholds and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Failure::$variant => $name,)*
                    Failure::Protocol(violation) => violation.name(),
                }
            }
        }
    };
}

failures! {
    /// The name leads to no address.
    Dns = "dns",
    /// Nobody listens there.
    ConnectRefused = "connect_refused",
    /// The connect was not answered in time.
    ConnectTimeout = "connect_timeout",
    /// No port is left on any source address (`EADDRNOTAVAIL`).
    NoAddress = "no_address",
    /// This process or machine has no descriptors left.
    NoDescriptors = "no_descriptors",
    /// The kernel has no memory for another socket.
    NoMemory = "no_memory",
    /// The connect failed for another reason.
    ConnectFailed = "connect_failed",
    /// The proxy did not open a tunnel.
    ProxyRefused = "proxy_refused",
    /// What the server speaks is no TLS, or one refused the other's certificate.
    Tls = "tls",
    /// The answer was not whole in time.
    Timeout = "timeout",
    /// The run was over, and the time it waits for answers then, and it had none.
    Unfinished = "unfinished",
    /// The server reset the connection.
    Reset = "reset",
    /// The server ended the connection before the answer began.
    Closed = "closed",
    /// The server ended the connection in the middle of the answer.
    ClosedMidway = "closed_midway",
    /// The answer's status is none of those that are accepted.
    Status = "status",
    /// The answer is not what was expected.
    Unexpected = "unexpected",
    /// The answer grew beyond what is kept of it.
    TooLarge = "too_large",
    /// The body is wanted, and its content coding is none that is read here, or broken.
    ContentCoding = "content_coding",
    /// Redirected more often than allowed.
    TooManyRedirects = "too_many_redirects",
    /// Redirected to no host that can be asked, or to one more than are followed.
    RedirectElsewhere = "redirect_elsewhere",
    /// A check of the scenario failed.
    Check = "check",
    /// There was no socket to send on, or it was lost before.
    NotConnected = "not_connected",
    /// The server rejected a subscription.
    Rejected = "rejected",
}

impl Failure {
    /// How many there are, each violation counted.
    pub const COUNT: usize = PLAIN.len() + Violation::ALL.len();

    /// All, in order of [`Failure::index`].
    pub fn all() -> impl Iterator<Item = Failure> {
        PLAIN.iter().copied().chain(Violation::ALL.iter().copied().map(Failure::Protocol))
    }

    /// Its place in a table of [`Failure::COUNT`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Failure::Protocol(violation) => PLAIN.len() + violation as usize,
            plain => PLAIN.iter().position(|one| *one == plain).unwrap_or_default(),
        }
    }

    /// There was no connection to ask on.
    #[must_use]
    pub fn is_of_connect(self) -> bool {
        matches!(
            self,
            Failure::Dns
                | Failure::ConnectRefused
                | Failure::ConnectTimeout
                | Failure::NoAddress
                | Failure::NoDescriptors
                | Failure::NoMemory
                | Failure::ConnectFailed
                | Failure::ProxyRefused
                | Failure::Tls
                | Failure::NotConnected
        )
    }

    /// What the end of a connection means for the request that waits on it. `opened`: the connect
    /// had succeeded.
    pub(crate) fn of_closed(why: Closed, opened: bool) -> Failure {
        match why {
            Closed::ConnectRefused => Failure::ConnectRefused,
            Closed::ConnectTimeout | Closed::HandshakeTimeout => Failure::ConnectTimeout,
            Closed::NoAddress => Failure::NoAddress,
            Closed::NoDescriptors => Failure::NoDescriptors,
            Closed::NoMemory => Failure::NoMemory,
            Closed::TlsFailed => Failure::Tls,
            Closed::Gone if opened => Failure::Closed,
            Closed::Reset | Closed::GivenUp => Failure::Reset,
            _ if opened => Failure::Closed,
            _ => Failure::ConnectFailed,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_stands_at_its_number_under_its_own_name() {
        let mut names = Vec::new();
        for (number, failure) in Failure::all().enumerate() {
            assert_eq!(failure.index(), number, "{failure:?}");
            names.push(failure.name());
        }
        assert_eq!(names.len(), Failure::COUNT);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Failure::COUNT, "no name twice");
    }
}
