//! Whether a run measured its target or its own generator.
//!
//! A generator without enough CPU sends late and reads late, and both appear as latency of the target.
//! In a closed loop nothing else shows it: nothing is due at a time, so nothing is late. So once a second
//! the scheduler is asked what each worker did in the measured time: how long it ran, and how long it was
//! ready to run while others had the core.
//!
//! A target beside its generator takes cores from it too, and at full speed that is normal: both run in
//! slices far below a millisecond and wait as long for each other. So waiting counts by the length of a
//! wait and not by its share alone.

use capacity::{Milliseconds, ThreadTimes};
use serde::{Deserialize, Serialize};

/// Share of the measured time from which a worker that ran was busy: it had work whenever it looked, so
/// messages waited for it, and the rate is its own limit.
const BUSY_SHARE: f64 = 0.9;
/// Share of the measured time that a worker may have waited for a core ...
const WAITED_SHARE: f64 = 0.2;
/// ... if its waits are as long as this on average, in milliseconds: another program used up its time
/// slices (1 to 3 ms) meanwhile. A closed loop with a quarter of a core waits 1.3 to 5 ms, one that shares
/// the cores with its target 0.02 to 0.2 ms.
const WAIT_MS: f64 = 0.5;
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
    stolen_seconds: Option<f64>,
}

/// Whether messages are sent and measured in a phase.
pub(crate) fn is_measured(phase: &str) -> bool {
    matches!(phase, "echo" | "fanout" | "churn" | "requests")
}

impl Scheduling {
    /// Adds a row of this process's run.
    pub(crate) fn row(&mut self, phase: &'static str, elapsed_seconds: f64) {
        let threads = ThreadTimes::named(std::process::id(), "worker-");
        let stolen_seconds = capacity::stolen_seconds();
        self.add(phase, Sample { elapsed_seconds, threads, stolen_seconds });
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
pub(crate) fn reasons(workers: &[WorkerLoad], stolen: Option<f64>) -> Vec<String> {
    let per_cent = |share: f64| (share * 100.0).min(100.0);
    let busy = workers.iter().filter(|worker| worker.busy > BUSY_SHARE);
    let busiest = busy.clone().map(|worker| worker.busy).fold(0.0, f64::max);
    let busy = (busy.count(), busiest);
    let is_waiting =
        |worker: &&WorkerLoad| worker.waited > WAITED_SHARE && worker.wait_ms > WAIT_MS;
    let waited = workers.iter().filter(is_waiting).max_by(|a, b| a.waited.total_cmp(&b.waited));
    let count = workers.iter().filter(is_waiting).count();
    let all = workers.len();
    let mut reasons = Vec::new();
    if let (number @ 1.., busiest) = busy {
        let share = per_cent(busiest);
        reasons
            .push(format!("{number} of {all} workers were busy, up to {share:.0} % of the time"));
    }
    if let Some(WorkerLoad { waited, wait_ms, .. }) = waited {
        reasons.push(format!(
            "{count} of {all} workers waited for a core, up to {:.0} % of the time, {wait_ms:.1} ms \
             at a time",
            per_cent(*waited)
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
        Sample { elapsed_seconds, threads, stolen_seconds: Some(elapsed_seconds / 100.0) }
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
        assert_eq!(reasons(&workers, None).len(), 1);
    }

    #[test]
    fn held_connections_are_measured_if_nothing_is_sent() {
        let mut scheduling = Scheduling::default();
        assert!(scheduling.workers().is_empty() && scheduling.stolen(2).is_none());
        scheduling.add("hold", sample(1.0, 0, 0, 0));
        scheduling.add("hold", sample(2.0, 950, 0, 1));
        assert!(scheduling.workers()[0].busy > 0.9);
    }

    /// The figures of a machine with two cores: a quarter of a core, and a target beside its generator.
    #[test]
    fn a_shared_core_is_told_from_a_target_beside_its_generator() {
        let load = |busy, waited, wait_ms| WorkerLoad { busy, waited, wait_ms };
        for saturated in [
            load(0.22, 0.69, 2.64),
            load(0.22, 0.66, 5.05),
            load(0.95, 0.0, 0.0),
            load(0.37, 0.47, 2.64),
        ] {
            assert_eq!(reasons(&[saturated], None).len(), 1, "{saturated:?}");
        }
        for normal in [
            load(0.36, 0.53, 0.04),
            load(0.33, 0.57, 0.16),
            load(0.37, 0.58, 0.21),
            load(0.05, 0.02, 0.01),
            load(0.01, 0.01, 4.0),
        ] {
            assert!(reasons(&[normal], Some(0.01)).is_empty(), "{normal:?}");
        }
        assert!(reasons(&[], Some(0.3))[0].contains("30 %"));
        assert!(late(10.6, 0.14).is_some() && late(2.9, 0.13).is_none());
        assert!(late(40.0, 2_000.0).is_none(), "it makes no difference");
    }
}
