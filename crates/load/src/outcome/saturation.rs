//! Whether a run measured its target or its own generator.
//!
//! A generator without enough CPU sends late and reads late, and both appear as latency of the target.
//! In a closed loop nothing else shows it: nothing is due at a time, so nothing is late. So once a second
//! the scheduler is asked what each worker did in the measured time: how long it ran, and how long it was
//! ready to run while others had the core.
//!
//! A target beside its generator takes cores from it too, and at full speed that is normal: both run in
//! slices below a millisecond and wait as long for each other. So only waits count that are longer, which
//! the workers find themselves ([`super::stalls`]): answers that arrived meanwhile are as much too late,
//! and the rate of a closed loop is lower by their share of the time.

use capacity::{Milliseconds, ThreadTimes};
use serde::{Deserialize, Serialize};

/// Share of the measured time from which a worker that ran was busy: it had work whenever it looked, so
/// messages waited for it, and the rate is its own limit.
const BUSY_SHARE: f64 = 0.9;
/// Share of the measured time that a worker may spend in long waits for a core. A closed loop that shares
/// its core with one busy program spends 0.3 to 0.5 in them, one that shares it with its target only 0.00 to
/// 0.17 (debug build, 1 to 100 connections, two cores).
const STALLED_SHARE: f64 = 0.2;
/// Share of the CPU time of the machine that the host may have given to others.
const STOLEN_SHARE: f64 = 0.05;
/// The 99th percentile of the send lag that is normal, in milliseconds: one time slice ...
const LAG_MS: f64 = 3.0;
/// ... or as a share of the median latency: on a slow target it makes no difference.
const LAG_SHARE: f64 = 0.1;
/// A shorter measured time says nothing about its workers, in seconds.
const SECONDS_LEAST: f64 = 0.2;
/// By how much a threshold must be met to be met although the generator was saturated.
pub(crate) const MARGIN: f64 = 10.0;

/// What one worker did in the measured time.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct WorkerLoad {
    /// Share of the time on a core.
    pub(crate) busy: f64,
    /// Share of the time ready to run, while others had the cores.
    pub(crate) waited: f64,
    /// Mean wait for a core, in milliseconds.
    pub(crate) wait_ms: f64,
}

/// A sample of the scheduler's figures.
#[derive(Clone, Default, Debug)]
struct Sample {
    elapsed_seconds: f64,
    threads: Vec<ThreadTimes>,
    stalled_ns: Vec<u64>,
    stolen_seconds: Option<f64>,
}

/// Sums over the measured time.
#[derive(Clone, Default, Debug)]
pub(crate) struct Scheduling {
    last: Option<(&'static str, Sample)>,
    /// Of the phases in which messages are sent, and of those in which connections are held.
    sending: Measured,
    holding: Measured,
}

#[derive(Clone, Default, Debug)]
struct Measured {
    seconds: f64,
    workers: Vec<ThreadTimes>,
    /// Of each worker.
    stalled_ns: Vec<u64>,
    stolen_seconds: Option<f64>,
}

/// Whether messages are sent and measured in a phase.
pub(crate) fn is_measured(phase: &str) -> bool {
    matches!(phase, "echo" | "fanout" | "churn" | "requests")
}

impl Scheduling {
    /// Adds a row of this process's run; `stalled_ns` of each worker since it began.
    pub(crate) fn row(&mut self, phase: &'static str, elapsed_seconds: f64, stalled_ns: &[u64]) {
        let threads = ThreadTimes::named(std::process::id(), "worker-");
        let stolen_seconds = capacity::stolen_seconds();
        let stalled_ns = stalled_ns.to_vec();
        self.add(phase, Sample { elapsed_seconds, threads, stalled_ns, stolen_seconds });
    }

    fn add(&mut self, phase: &'static str, now: Sample) {
        if let Some((before_phase, before)) = &self.last
            && *before_phase == phase
        {
            let measured = match phase {
                "hold" | "stages" => &mut self.holding,
                phase if is_measured(phase) => &mut self.sending,
                _ => return self.last = Some((phase, now)),
            };
            measured.add(before, &now);
        }
        self.last = Some((phase, now));
    }

    fn measured(&self) -> &Measured {
        if self.sending.seconds > 0.0 { &self.sending } else { &self.holding }
    }

    /// What each worker did; empty if that is unknown or the time was too short.
    pub(crate) fn workers(&self) -> Vec<WorkerLoad> {
        let Measured { seconds, workers, .. } = self.measured();
        if *seconds < SECONDS_LEAST {
            return Vec::new();
        }
        let share = |nanoseconds: u64| nanoseconds as f64 / 1e9 / seconds;
        let load = |worker: &ThreadTimes| WorkerLoad {
            busy: share(worker.ran_ns),
            waited: share(worker.waited_ns),
            wait_ms: worker.waited_ns as f64 / 1e6 / worker.slices.max(1) as f64,
        };
        workers.iter().map(load).collect()
    }

    /// The share of the time that the worker with most of it spent in long waits; `None` if that is
    /// unknown or the time was too short.
    pub(crate) fn stalled(&self) -> Option<f64> {
        let Measured { seconds, workers, stalled_ns, .. } = self.measured();
        let is_known = *seconds >= SECONDS_LEAST && !workers.is_empty();
        let most_ns = stalled_ns.iter().max().filter(|_| is_known)?;
        Some(*most_ns as f64 / 1e9 / seconds)
    }

    /// The share of the CPU time of `cores` that the host gave to others; `None` if unknown.
    pub(crate) fn stolen(&self, cores: usize) -> Option<f64> {
        let Measured { seconds, stolen_seconds, .. } = self.measured();
        let enough = *seconds >= SECONDS_LEAST;
        stolen_seconds.filter(|_| enough).map(|stolen| stolen / (seconds * cores.max(1) as f64))
    }
}

impl Measured {
    fn add(&mut self, before: &Sample, now: &Sample) {
        self.seconds += (now.elapsed_seconds - before.elapsed_seconds).max(0.0);
        if let (Some(before), Some(now)) = (before.stolen_seconds, now.stolen_seconds) {
            *self.stolen_seconds.get_or_insert(0.0) += (now - before).max(0.0);
        }
        self.stalled_ns.resize(self.stalled_ns.len().max(now.stalled_ns.len()), 0);
        let stalled = now.stalled_ns.iter().zip(&before.stalled_ns);
        for (sum, (now_ns, before_ns)) in self.stalled_ns.iter_mut().zip(stalled) {
            *sum += now_ns.saturating_sub(*before_ns);
        }
        for now in &now.threads {
            let Some(before) = before.threads.iter().find(|before| before.id == now.id) else {
                continue;
            };
            let sum = match self.workers.iter_mut().position(|sum| sum.id == now.id) {
                Some(at) => self.workers.get_mut(at),
                None => {
                    let none = ThreadTimes { id: now.id, ran_ns: 0, waited_ns: 0, slices: 0 };
                    self.workers.push(none);
                    self.workers.last_mut()
                }
            };
            let Some(sum) = sum else { continue };
            sum.ran_ns += now.ran_ns.saturating_sub(before.ran_ns);
            sum.waited_ns += now.waited_ns.saturating_sub(before.waited_ns);
            sum.slices += now.slices.saturating_sub(before.slices);
        }
    }
}

/// Why the workers or the machine were too slow, as clauses.
pub(crate) fn reasons(
    workers: &[WorkerLoad],
    stalled: Option<f64>,
    stolen: Option<f64>,
) -> Vec<String> {
    let per_cent = |share: f64| (share * 100.0).min(100.0);
    let busy = workers.iter().filter(|worker| worker.busy > BUSY_SHARE);
    let busiest = busy.clone().map(|worker| worker.busy).fold(0.0, f64::max);
    let busy = (busy.count(), busiest);
    let all = workers.len();
    let mut reasons = Vec::new();
    if let (number @ 1.., busiest) = busy {
        let share = per_cent(busiest);
        reasons
            .push(format!("{number} of {all} workers were busy, up to {share:.0} % of the time"));
    }
    if let Some(stalled) = stalled.filter(|stalled| *stalled > STALLED_SHARE) {
        reasons.push(format!(
            "a worker waited for a core {:.0} % of the time, 1 ms or longer at a time",
            per_cent(stalled)
        ));
    }
    if let Some(stolen) = stolen.filter(|stolen| *stolen > STOLEN_SHARE) {
        reasons.push(format!("the host took {:.0} % of the CPU time", per_cent(stolen)));
    }
    reasons
}

/// Why messages were sent too late; `lag_ms` is the 99th percentile of the send lag, `median_ms` that of the
/// latency.
pub(crate) fn late(lag_ms: f64, median_ms: f64) -> Option<String> {
    let is_late = lag_ms > LAG_MS.max(LAG_SHARE * median_ms);
    is_late
        .then(|| format!("1 % of the messages were sent more than {} late", Milliseconds(lag_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(elapsed_seconds: f64, ran_ms: u64, waited_ms: u64, slices: u64) -> Sample {
        let (ran_ns, waited_ns) = (ran_ms * 1_000_000, waited_ms * 1_000_000);
        let threads = vec![ThreadTimes { id: 7, ran_ns, waited_ns, slices }];
        let stalled_ns = vec![waited_ns / 2, 0];
        let stolen_seconds = Some(elapsed_seconds / 100.0);
        Sample { elapsed_seconds, threads, stalled_ns, stolen_seconds }
    }

    #[test]
    fn only_the_measured_time_counts() {
        let mut scheduling = Scheduling::default();
        for (phase, at) in [
            ("connect", sample(0.0, 0, 0, 0)),
            ("connect", sample(1.0, 990, 0, 9)),
            ("hold", sample(1.0, 990, 0, 9)),
            ("hold", sample(2.0, 1_000, 0, 9)),
            ("warm-up", sample(2.0, 1_000, 0, 9)),
            ("warm-up", sample(3.0, 2_000, 0, 9)),
            ("echo", sample(3.0, 2_000, 0, 9)),
            ("echo", sample(4.0, 2_200, 700, 109)),
            ("echo", sample(5.0, 2_400, 1_400, 209)),
        ] {
            scheduling.add(phase, at);
        }
        let workers = scheduling.workers();
        let [WorkerLoad { busy, waited, wait_ms }] = workers[..] else { panic!("{workers:?}") };
        assert!((busy - 0.2).abs() < 1e-9 && (waited - 0.7).abs() < 1e-9, "{workers:?}");
        assert!((wait_ms - 7.0).abs() < 1e-9, "{workers:?}");
        assert!((scheduling.stolen(2).unwrap() - 0.005).abs() < 1e-9);
        assert!((scheduling.stalled().unwrap() - 0.35).abs() < 1e-9);
        assert_eq!(reasons(&workers, scheduling.stalled(), None).len(), 1);
    }

    #[test]
    fn held_connections_are_measured_if_nothing_is_sent() {
        let mut scheduling = Scheduling::default();
        assert!(scheduling.workers().is_empty() && scheduling.stolen(2).is_none());
        assert!(scheduling.stalled().is_none());
        scheduling.add("hold", sample(1.0, 0, 0, 0));
        scheduling.add("hold", sample(2.0, 950, 0, 1));
        assert!(scheduling.workers()[0].busy > 0.9);
    }

    /// Figures of a machine with two cores: the worker's, and its share of long waits.
    #[test]
    fn a_shared_core_is_told_from_a_target_beside_its_generator() {
        let load = |busy, waited, wait_ms| WorkerLoad { busy, waited, wait_ms };
        for (saturated, stalled) in [
            // A core shared with one busy program, 1, 4, 10 and 100 connections; the mean wait is short.
            (load(0.35, 0.34, 0.028), 0.30),
            (load(0.45, 0.45, 0.042), 0.38),
            (load(0.47, 0.48, 0.045), 0.42),
            (load(0.48, 0.48, 0.14), 0.35),
            // A quarter of a core.
            (load(0.22, 0.69, 2.64), 0.69),
            (load(0.95, 0.0, 0.0), 0.0),
        ] {
            assert_eq!(reasons(&[saturated], Some(stalled), None).len(), 1, "{saturated:?}");
        }
        for (normal, stalled) in [
            // The target on the same core, or both on two cores.
            (load(0.54, 0.44, 0.061), 0.01),
            (load(0.42, 0.39, 0.041), 0.10),
            (load(0.49, 0.28, 0.036), 0.17),
            // Ten other programs, of lower priority.
            (load(0.72, 0.17, 0.261), 0.15),
            (load(0.01, 0.01, 4.0), 0.01),
        ] {
            let found = reasons(&[normal], Some(stalled), Some(0.01));
            assert!(found.is_empty(), "{normal:?}");
        }
        assert!(reasons(&[], None, Some(0.3))[0].contains("30 %"));
        assert!(late(10.6, 0.14).is_some() && late(2.9, 0.13).is_none());
        assert!(late(40.0, 2_000.0).is_none(), "it makes no difference");
    }
}
