//! [`SharedRow`]: a row of one of several generators that share a run, as it is sent to the leader of the
//! run; [`SharedRows`] adds up the latest of each. Counters and histograms are since the run began, so a row
//! that is lost or comes twice changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::drive::{Counts, Progress, Row};
use crate::outcome::histograms::Timed;
use crate::outcome::merged_samples::phase_order;
use crate::outcome::metrics::Snapshot;
use crate::outcome::request_metrics::RequestSnapshot;
use crate::outcome::samples::Usage;
use crate::{Recorder, Series};

/// The series that rows, screens and metrics show.
const SERIES: [Series; 6] = [
    Series::Latency,
    Series::ServiceTime,
    Series::FirstByte,
    Series::SendLag,
    Series::Heartbeat,
    Series::Broadcast,
];

/// The row of a generator.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct SharedRow {
    /// Since the run began.
    pub elapsed_seconds: f64,
    phase: String,
    /// Open connections.
    pub open: u64,
    failed: u64,
    closed: u64,
    /// Messages or requests sent.
    pub sent: u64,
    /// Messages or answers received.
    pub received: u64,
    /// Errors so far.
    pub errors: u64,
    requests: Option<Box<RequestSnapshot>>,
    sockets: Option<Box<Snapshot>>,
    /// By place in [`SERIES`].
    times: BTreeMap<usize, Timed>,
    /// Of the generator's process.
    pub usage: Option<Usage>,
}

impl SharedRow {
    /// A row as it is sent.
    #[must_use]
    pub fn of(row: &Row, usage: Option<Usage>) -> SharedRow {
        let timed = &row.progress.timed;
        let (requests, sockets) = match &row.progress.counts {
            Counts::Requests(counts) => (Some(counts.clone()), None),
            Counts::Sockets(counts) => (None, Some(counts.clone())),
        };
        let times = SERIES.iter().enumerate();
        SharedRow {
            elapsed_seconds: row.elapsed.as_secs_f64(),
            phase: row.phase.to_owned(),
            open: row.open,
            failed: row.failed,
            closed: row.closed,
            sent: row.sent,
            received: row.received,
            errors: row.errors,
            requests,
            sockets,
            times: times.filter_map(|(at, of)| Some((at, Timed::of(timed, *of)?))).collect(),
            usage,
        }
    }

    /// The same without times of receipts, as the publisher had another clock.
    #[must_use]
    pub fn without_receipts(mut self) -> SharedRow {
        self.times.retain(|at, _| SERIES.get(*at) != Some(&Series::Broadcast));
        self
    }

    /// The 99th percentile of the latency so far, in milliseconds; `None` if nothing was timed.
    #[must_use]
    pub fn p99_ms(&self) -> Option<f64> {
        let latency = |at: &usize| self.times.get(at)?.latency();
        [5, 0, 4].iter().find_map(latency).map(|latency| latency.p99_ms)
    }
}

/// Adds up rows. Rates and percentiles of a second are differences to the row before.
#[derive(Default, Debug)]
pub struct SharedRows {
    elapsed: Duration,
    received: u64,
    timed: Arc<Recorder>,
}

impl SharedRows {
    /// The row of the whole, from the latest of each generator.
    pub fn add<'a>(&mut self, rows: impl IntoIterator<Item = &'a SharedRow>) -> Row {
        let (mut whole, mut timed) = (Row::default(), Recorder::default());
        let mut requests: Option<Box<RequestSnapshot>> = None;
        let mut sockets = Box::<Snapshot>::default();
        let mut phase: Option<(usize, &'static str)> = None;
        for row in rows {
            let elapsed = Duration::try_from_secs_f64(row.elapsed_seconds).unwrap_or_default();
            whole.elapsed = whole.elapsed.max(elapsed);
            let counts = [
                (&mut whole.open, row.open),
                (&mut whole.failed, row.failed),
                (&mut whole.closed, row.closed),
                (&mut whole.sent, row.sent),
                (&mut whole.received, row.received),
                (&mut whole.errors, row.errors),
            ];
            for (sum, count) in counts {
                *sum = sum.saturating_add(count);
            }
            // The whole is in a phase until all have left it.
            let own = phase_order(&row.phase);
            phase = [phase, own].into_iter().flatten().min();
            if let Some(of) = &row.requests {
                requests.get_or_insert_default().merge(of);
            }
            row.sockets.iter().for_each(|of| sockets.merge(of));
            for (at, series) in SERIES.iter().enumerate() {
                row.times.get(&at).into_iter().for_each(|of| of.add_to(&mut timed, *series));
            }
        }
        whole.phase = phase.map_or("", |(_, name)| name);
        let seconds = whole.elapsed.saturating_sub(self.elapsed).as_secs_f64();
        let received = whole.received.saturating_sub(self.received);
        whole.messages_per_second = if seconds > 0.0 { received as f64 / seconds } else { 0.0 };
        let mut second = timed.clone();
        second.subtract(&self.timed);
        let all = match requests.is_some() {
            true => [Series::Broadcast, Series::Latency, Series::Heartbeat],
            false => [Series::Latency, Series::Broadcast, Series::Heartbeat],
        };
        whole.latency = all.into_iter().find_map(|series| second.latency(series));
        let timed = Arc::new(timed);
        (whole.causes, whole.progress.counts) = match requests {
            Some(counts) => (counts.errors(), Counts::Requests(counts)),
            None => (sockets.errors(), Counts::Sockets(sockets)),
        };
        whole.progress = Progress { timed: Arc::clone(&timed), ..whole.progress };
        *self = SharedRows { elapsed: whole.elapsed, received: whole.received, timed };
        whole
    }
}

/// Counts by cause, by name.
pub(crate) mod named {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::Cause;

    type Causes = BTreeMap<Cause, u64>;

    pub(crate) fn serialize<S: Serializer>(counts: &Causes, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(counts.iter().map(|(cause, count)| (cause.name(), count)))
    }

    /// Unknown names are left out.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Causes, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(from)?;
        let known = |(name, count): (String, u64)| Some((Cause::of_name(&name)?, count));
        Ok(counts.into_iter().filter_map(known).collect())
    }
}

/// Tables of counters by number, without zeros.
pub(crate) mod sparse {
    use std::collections::BTreeMap;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    /// The highest number.
    const NUMBER_MAX: usize = 999;

    pub(crate) fn serialize<S: Serializer>(counts: &[u64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(counts.iter().enumerate().filter(|(_, count)| **count > 0))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
        let counts = BTreeMap::<usize, u64>::deserialize(from)?;
        let most = counts.last_key_value().map_or(0, |(number, _)| *number);
        if most > NUMBER_MAX {
            return Err(D::Error::custom("expected numbers below 1,000"));
        }
        Ok((0..=most).map(|number| counts.get(&number).copied().unwrap_or(0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;

    fn row(second: u64, worker: u64, recorder: &mut Recorder) -> Row {
        for n in 0..1_000 {
            recorder.record(Series::Latency, (n * 37 + worker * 11 + second) % 900 * 1_000_000);
        }
        let mut counts = RequestSnapshot::default();
        (counts.sent, counts.status[200], counts.failed[3]) = (1_000 * second, 900 * second, 7);
        Row {
            elapsed: Duration::from_secs(second),
            phase: "requests",
            sent: 1_000 * second,
            received: 1_000 * second,
            progress: Progress {
                counts: Counts::Requests(Box::new(counts)),
                timed: Arc::new(recorder.clone()),
                ..Progress::default()
            },
            ..Row::default()
        }
    }

    fn sent(row: &Row) -> SharedRow {
        let text = serde_json::to_string(&SharedRow::of(row, None)).unwrap();
        assert!(text.len() < 20_000, "{} bytes a second", text.len());
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_sum_is_the_row_of_one_generator_with_all_values() {
        let (mut each, mut whole) = ([const { None::<Recorder> }; 3], Recorder::default());
        let (mut rows, mut before) = (SharedRows::default(), Recorder::default());
        for second in 1..4 {
            let latest: Vec<SharedRow> = (0..3)
                .map(|worker| {
                    row(second, worker, &mut whole);
                    let own = each[worker as usize].get_or_insert_default();
                    sent(&row(second, worker, own))
                })
                .collect();
            let sum = rows.add(&latest);
            let mut of_second = whole.clone();
            of_second.subtract(&before);
            before = whole.clone();
            assert_eq!(sum.latency, of_second.latency(Series::Latency));
            assert_eq!(sum.progress.timed.latency(Series::Latency), whole.latency(Series::Latency));
            assert_eq!((sum.sent, sum.messages_per_second), (3_000 * second, 3_000.0));
            let Counts::Requests(counts) = &sum.progress.counts else { panic!("{sum:?}") };
            assert_eq!(counts.statuses().collect::<Vec<_>>(), [(200, 2_700 * second)]);
            assert_eq!((counts.failed_total(), sum.phase), (21, "requests"));
            // A row that comes twice changes nothing.
            assert_eq!(rows.add(&latest).sent, sum.sent);
        }
    }

    #[test]
    fn counters_of_websockets_are_added_by_cause() {
        let mut counts = Snapshot { opened: 5, echo_sent: 9, ..Snapshot::default() };
        counts.ends.failed.insert(Cause::Dns, 3);
        counts.ends.closed.insert(Cause::Status(503), 2);
        let counts = Counts::Sockets(Box::new(counts));
        let progress = Progress { counts, ..Progress::default() };
        let of_one = sent(&Row { phase: "echo", progress, ..Row::default() });
        let sum = SharedRows::default().add([&of_one, &of_one]);
        let Counts::Sockets(sockets) = &sum.progress.counts else { panic!("{sum:?}") };
        assert_eq!((sockets.opened, sockets.echo_sent, sockets.failed_total()), (10, 18, 6));
        let causes: BTreeMap<_, _> = sum.causes.iter().copied().collect();
        assert_eq!((sum.phase, causes), ("echo", BTreeMap::from([("dns", 6), ("status_503", 4)])));
    }

    #[test]
    fn numbers_that_are_too_high_are_refused() {
        let mut value =
            serde_json::to_value(SharedRow::of(&row(1, 0, &mut Recorder::default()), None))
                .unwrap();
        value["requests"]["status"] = serde_json::json!({ "4000000000": 1 });
        assert!(serde_json::from_value::<SharedRow>(value).is_err());
    }
}
