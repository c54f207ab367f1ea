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
pub(crate) struct Teller {
    /// Of upstreams that have failed, by number.
    told: BTreeMap<u32, Told>,
    /// Requests for which there was no address to connect from.
    unsourced: u64,
    unsourced_quiet_ns: u64,
}

/// What was logged for one upstream.
#[derive(Copy, Clone, Default)]
struct Told {
    state: State,
    failed: u64,
    ejections: u64,
    quiet_until_ns: u64,
}

#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
enum State {
    #[default]
    Well,
    Failing,
    Ejected,
}

/// A change that is logged.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum News {
    Fails,
    Ejected,
    Back,
}

impl Teller {
    pub(crate) fn look(&mut self, shared: &Shared, now_ns: u64) {
        let routes = shared.table.routes();
        let mut before = std::mem::take(&mut self.told);
        let members = routes.pools().iter().flat_map(|pool| pool.members());
        for upstream in members.map(|member| &member.upstream) {
            let number = upstream.number();
            if upstream.failed_times() == 0 || self.told.contains_key(&number) {
                continue;
            }
            let mut told = before.remove(&number).unwrap_or_default();
            if let Some(news) = told.look(upstream, now_ns) {
                tell(upstream, news);
            }
            self.told.insert(number, told);
        }
        self.look_at_sources(shared, now_ns);
    }

    fn look_at_sources(&mut self, shared: &Shared, now_ns: u64) {
        let unsourced = shared.counters.iter().map(|c| c.refused(Refusal::NoSource)).sum();
        if unsourced <= self.unsourced || now_ns < self.unsourced_quiet_ns {
            return;
        }
        warn!(
            "{} requests were refused, as no address to connect from has a free port for their \
             upstreams: give more by --source",
            unsourced - self.unsourced
        );
        self.unsourced = unsourced;
        self.unsourced_quiet_ns = now_ns + QUIET_NS;
    }
}

impl Told {
    fn look(&mut self, upstream: &Upstream, now_ns: u64) -> Option<News> {
        let failed = upstream.failed_times();
        let fails = upstream.is_failing() || failed > self.failed;
        self.failed = failed;
        let ejected = upstream.ejections() > self.ejections;
        let news = match self.state {
            State::Well if fails && now_ns >= self.quiet_until_ns => {
                self.quiet_until_ns = now_ns + QUIET_NS;
                if ejected { News::Ejected } else { News::Fails }
            }
            State::Failing if ejected => News::Ejected,
            State::Failing | State::Ejected if !upstream.is_failing() => News::Back,
            _ => return None,
        };
        self.state = match news {
            News::Fails => State::Failing,
            News::Ejected => State::Ejected,
            News::Back => State::Well,
        };
        self.ejections = upstream.ejections();
        Some(news)
    }
}

fn tell(upstream: &Upstream, news: News) {
    let (name, address) = (upstream.name(), upstream.address().to_string());
    // Behind a name there may be several.
    let shown = if *name == *address { address } else { format!("{name} ({address})") };
    let why = upstream.fault().map(|fault| fault.to_string()).unwrap_or_default();
    let ejection = upstream.ejection();
    let (after, time) = (ejection.after, Duration::from_nanos(ejection.for_ns));
    match news {
        News::Fails => warn!("upstream {shown} fails: {why}"),
        News::Ejected => warn!(
            "upstream {shown} is ejected for {time:?}, and again while that goes on, after \
             {after} failures in a row: {why}; its tunnels are left alone"
        ),
        News::Back => info!("upstream {shown} answers again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{Ejection, Fault, UpstreamAddress};

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_first_failure_an_ejection_and_the_return_are_told_once() {
        let address = UpstreamAddress::Tcp(([127, 0, 0, 1], 80).into());
        let upstream = Upstream::new(1, "127.0.0.1:80", address, 0);
        upstream.set_ejection(Ejection { after: 3, for_ns: S });
        let mut told = Told::default();
        upstream.failed(0, Fault::Tls);
        assert_eq!(told.look(&upstream, S), Some(News::Fails));
        upstream.failed(S, Fault::Tls);
        assert_eq!(told.look(&upstream, 2 * S), None);
        upstream.failed(2 * S, Fault::Tls);
        assert_eq!(told.look(&upstream, 3 * S), Some(News::Ejected));
        (4..20).for_each(|at| upstream.failed(at * S, Fault::Tls));
        assert_eq!(told.look(&upstream, 20 * S), None, "ejected again and again");
        upstream.succeeded();
        assert_eq!(told.look(&upstream, 21 * S), Some(News::Back));
        // Who comes and goes is told of now and then.
        upstream.failed(22 * S, Fault::Broken);
        assert_eq!(told.look(&upstream, 22 * S), None);
        assert_eq!(told.look(&upstream, 31 * S), Some(News::Fails));
    }
}
