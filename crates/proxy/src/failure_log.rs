//! [`FailureLog`]: logs why upstreams fail: at the first failure, at an ejection and at the recovery,
//! not per request. It polls counters on the control plane; workers only record the last
//! [`Fault`](crate::balance::Fault). Results of health checks are logged by [`crate::health`].

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{info, warn};

use crate::balance::Upstream;
use crate::counters::Refusal;
use crate::shared::Shared;

/// How long failures of an upstream that has recovered since are not logged again.
const QUIET_NS: u64 = 30_000_000_000;

/// What was logged so far.
#[derive(Default)]
pub(crate) struct FailureLog {
    /// Of upstreams that have failed, by upstream number.
    logged: BTreeMap<u32, LoggedState>,
    /// Requests refused for want of a local address or port, as of the last message.
    unsourced: u64,
    unsourced_quiet_ns: u64,
}

/// What was logged for one upstream.
#[derive(Copy, Clone, Default)]
struct LoggedState {
    state: State,
    failed: u64,
    ejections: u64,
    quiet_until_ns: u64,
}

#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
enum State {
    #[default]
    Healthy,
    Failing,
    Ejected,
}

/// A change that is logged.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Transition {
    Failing,
    Ejected,
    Recovered,
}

impl FailureLog {
    pub(crate) fn poll(&mut self, shared: &Shared, now_ns: u64) {
        let routes = shared.table.routes();
        let mut before = std::mem::take(&mut self.logged);
        let members = routes.pools().iter().flat_map(|pool| pool.members());
        for upstream in members.map(|member| &member.upstream) {
            let number = upstream.number();
            if upstream.failed_times() == 0 || self.logged.contains_key(&number) {
                continue;
            }
            let mut logged = before.remove(&number).unwrap_or_default();
            if let Some(transition) = logged.poll(upstream, now_ns) {
                log_transition(upstream, transition);
            }
            self.logged.insert(number, logged);
        }
        self.poll_sources(shared, now_ns);
    }

    fn poll_sources(&mut self, shared: &Shared, now_ns: u64) {
        let unsourced = shared.counters.iter().map(|c| c.refused(Refusal::NoSource)).sum();
        if unsourced <= self.unsourced || now_ns < self.unsourced_quiet_ns {
            return;
        }
        warn!(
            "no free source port: {} requests refused; add addresses with --source",
            unsourced - self.unsourced
        );
        self.unsourced = unsourced;
        self.unsourced_quiet_ns = now_ns + QUIET_NS;
    }
}

impl LoggedState {
    fn poll(&mut self, upstream: &Upstream, now_ns: u64) -> Option<Transition> {
        let failed = upstream.failed_times();
        let fails = upstream.is_failing() || failed > self.failed;
        self.failed = failed;
        let ejected = upstream.ejections() > self.ejections;
        let transition = match self.state {
            State::Healthy if fails && now_ns >= self.quiet_until_ns => {
                self.quiet_until_ns = now_ns + QUIET_NS;
                if ejected { Transition::Ejected } else { Transition::Failing }
            }
            State::Failing if ejected => Transition::Ejected,
            State::Failing | State::Ejected if !upstream.is_failing() => Transition::Recovered,
            _ => return None,
        };
        self.state = match transition {
            Transition::Failing => State::Failing,
            Transition::Ejected => State::Ejected,
            Transition::Recovered => State::Healthy,
        };
        self.ejections = upstream.ejections();
        Some(transition)
    }
}

fn log_transition(upstream: &Upstream, transition: Transition) {
    let shown = upstream.label();
    let why = upstream.fault().map(|fault| fault.to_string()).unwrap_or_default();
    let ejection = upstream.ejection();
    let (after, time) = (ejection.after, Duration::from_nanos(ejection.for_ns));
    match transition {
        Transition::Failing => warn!("upstream failing: {shown}: {why}"),
        Transition::Ejected => warn!(
            "upstream ejected: {shown}: {why}; no new requests for {time:?} at a time after \
             {after} consecutive failures; open tunnels are kept"
        ),
        Transition::Recovered => info!("upstream recovered: {shown}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{Ejection, Fault, UpstreamAddress};

    const S: u64 = 1_000_000_000;

    #[test]
    fn first_failure_ejection_and_recovery_are_logged_once() {
        let address = UpstreamAddress::Tcp(([127, 0, 0, 1], 80).into());
        let upstream = Upstream::new(1, "127.0.0.1:80", address, 0);
        upstream.set_ejection(Ejection { after: 3, for_ns: S });
        let mut logged = LoggedState::default();
        upstream.failed(0, Fault::Tls);
        assert_eq!(logged.poll(&upstream, S), Some(Transition::Failing));
        upstream.failed(S, Fault::Tls);
        assert_eq!(logged.poll(&upstream, 2 * S), None);
        upstream.failed(2 * S, Fault::Tls);
        assert_eq!(logged.poll(&upstream, 3 * S), Some(Transition::Ejected));
        (4..20).for_each(|at| upstream.failed(at * S, Fault::Tls));
        assert_eq!(logged.poll(&upstream, 20 * S), None, "ejected repeatedly");
        upstream.succeeded();
        assert_eq!(logged.poll(&upstream, 21 * S), Some(Transition::Recovered));
        // A flapping upstream is logged once per quiet period.
        upstream.failed(22 * S, Fault::Broken);
        assert_eq!(logged.poll(&upstream, 22 * S), None);
        assert_eq!(logged.poll(&upstream, 31 * S), Some(Transition::Failing));
    }
}
