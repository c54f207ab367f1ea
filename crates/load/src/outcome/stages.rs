//! What was reached in each stage of `--stages`. [`StageWatch`] follows the rows of a run; drivers make one
//! at the end of each stage.

use std::fmt::{self, Formatter};
use std::sync::Arc;
use std::time::Duration;

use capacity::{Count, Decimal, Milliseconds};
use serde::{Deserialize, Serialize};

use crate::workload::stages::{self, Stage};
use crate::{Counts, Latency, Recorder, Row, Series};

/// The shortest time between two rows that says something about a rate.
const RATE_TIME: Duration = Duration::from_millis(500);
/// The phase before the stages of runs of requests.
const WARM_UP: &str = "warm-up";

/// What was reached in a stage. Stages that are steps, without a duration, are left out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageSummary {
    /// How long it lasted, in seconds, to the row at its end; less than configured if the run ended in it.
    pub seconds: f64,
    /// Configured for its end: users, requests per second, or WebSockets.
    pub target: u64,
    /// The most WebSockets open at any row; null for requests.
    pub open_most: Option<u64>,
    /// Connections opened.
    pub opened: u64,
    /// Answers received, or pongs on WebSockets.
    pub answered: u64,
    /// Answers or pongs ÷ `seconds`.
    pub per_second: f64,
    /// The most in any second; null if it was shorter than half a second, or merged.
    pub per_second_most: Option<f64>,
    /// Failed requests, or connections that failed or ended.
    pub errors: u64,
    /// Of the answers from when they were due, or of the pongs; null if there were none, or if merged.
    pub latency: Option<Latency>,
}

/// Totals of a run at a moment.
#[derive(Clone, Default, Debug)]
struct Totals {
    elapsed: Duration,
    answered: u64,
    opened: u64,
    errors: u64,
    timed: Arc<Recorder>,
}

/// Follows the rows of a run with stages.
#[derive(Debug, Default)]
pub(crate) struct StageWatch {
    /// The end of each stage after the begin of the first, and what it leads to, in reverse.
    left: Vec<(Duration, u64)>,
    began: Duration,
    /// At the begin of the current stage, and at the last row.
    from: Totals,
    last: Totals,
    open_most: Option<u64>,
    per_second_most: Option<f64>,
    done: Vec<StageSummary>,
}

impl Totals {
    fn of(row: &Row) -> Totals {
        let opened = match &row.progress.counts {
            Counts::Sockets(counts) => counts.opened,
            Counts::Requests(counts) => counts.opened,
        };
        Totals {
            elapsed: row.elapsed,
            answered: row.received,
            opened,
            errors: row.errors,
            timed: Arc::clone(&row.progress.timed),
        }
    }
}

impl StageWatch {
    pub(crate) fn new(stages: &[Stage]) -> StageWatch {
        let lasting = stages.iter().map(|stage| !stage.time.is_zero());
        let ends = stages::ends(stages).zip(lasting);
        let mut left: Vec<_> = ends.filter(|(_, lasts)| *lasts).map(|(end, _)| end).collect();
        left.reverse();
        StageWatch { left, ..StageWatch::default() }
    }

    /// When the first stage begins, if that is not at the last row of the warm-up.
    pub(crate) fn begin(&mut self, elapsed: Duration) {
        self.began = elapsed;
        self.from.elapsed = elapsed;
    }

    /// Whether a stage has ended, so that a row is to be made.
    pub(crate) fn is_due(&self, elapsed: Duration) -> bool {
        self.left.last().is_some_and(|(end, _)| elapsed >= self.began + *end)
    }

    pub(crate) fn row(&mut self, row: &Row) {
        if row.is_mark || self.left.is_empty() {
            return;
        }
        let now = Totals::of(row);
        if row.phase == WARM_UP {
            (self.from, self.last) = (now.clone(), now);
            return;
        }
        if matches!(row.progress.counts, Counts::Sockets(_)) {
            self.open_most = self.open_most.max(Some(row.open));
        }
        if now.elapsed.saturating_sub(self.last.elapsed) >= RATE_TIME {
            let most = self.per_second_most.unwrap_or(0.0);
            self.per_second_most = Some(most.max(row.messages_per_second));
        }
        self.last = now;
        while self.is_due(self.last.elapsed) {
            if let Some((_, target)) = self.left.pop() {
                self.end(target);
            }
        }
    }

    /// What was reached in all stages, the last of which the run may have left early.
    pub(crate) fn finish(mut self) -> Vec<StageSummary> {
        if let Some((_, target)) = self.left.pop()
            && self.last.elapsed > self.from.elapsed
        {
            self.end(target);
        }
        self.done
    }

    /// Ends the current stage at the last row.
    fn end(&mut self, target: u64) {
        let (from, now) = (&self.from, &self.last);
        let seconds = now.elapsed.saturating_sub(from.elapsed).as_secs_f64();
        let answered = now.answered.saturating_sub(from.answered);
        let mut timed = Recorder::clone(&now.timed);
        timed.subtract(&from.timed);
        let series = [Series::Latency, Series::Heartbeat];
        self.done.push(StageSummary {
            seconds,
            target,
            open_most: self.open_most.take(),
            opened: now.opened.saturating_sub(from.opened),
            answered,
            per_second: if seconds > 0.0 { answered as f64 / seconds } else { 0.0 },
            per_second_most: self.per_second_most.take(),
            errors: now.errors.saturating_sub(from.errors),
            latency: series.into_iter().find_map(|series| timed.latency(series)),
        });
        self.from = self.last.clone();
    }
}

impl StageSummary {
    /// The same stage of two generators that ran at the same time.
    pub(crate) fn merge(self, other: StageSummary) -> StageSummary {
        StageSummary {
            seconds: self.seconds.max(other.seconds),
            target: self.target.saturating_add(other.target),
            open_most: self
                .open_most
                .zip(other.open_most)
                .map(|(one, other)| one.saturating_add(other)),
            opened: self.opened.saturating_add(other.opened),
            answered: self.answered.saturating_add(other.answered),
            per_second: self.per_second + other.per_second,
            per_second_most: None,
            errors: self.errors.saturating_add(other.errors),
            latency: None,
        }
    }
}

/// Writes a row for each stage; `has_requests`: it was a run of requests.
pub(crate) fn write(
    f: &mut Formatter<'_>,
    stages: &[StageSummary],
    has_requests: bool,
) -> fmt::Result {
    if stages.is_empty() {
        return Ok(());
    }
    let (rate, most) = match has_requests {
        true => ("answers/s", "at most"),
        false => ("opened/s", "most open"),
    };
    let heads = ["target", rate, most, "p50", "p95", "p99", "errors"].map(str::to_owned);
    write_row(f, "stages", &heads)?;
    for (number, stage) in (1_u64..).zip(stages) {
        let text = Decimal(stage.seconds, 1).to_string();
        let name = format!("{number:>3} {:>6} s", text.trim_end_matches(".0"));
        let opened = if stage.seconds > 0.0 { stage.opened as f64 / stage.seconds } else { 0.0 };
        let (rate, most) = match has_requests {
            true => {
                (stage.per_second, stage.per_second_most.map(|most| Decimal(most, 1).to_string()))
            }
            false => (opened, stage.open_most.map(|most| Count(most).to_string())),
        };
        let none = || "-".to_owned();
        let times = stage.latency.map(|of| [of.p50_ms, of.p95_ms, of.p99_ms]);
        let [p50, p95, p99] = times
            .map_or([none(), none(), none()], |times| times.map(|ms| Milliseconds(ms).to_string()));
        let (target, errors) = (Count(stage.target).to_string(), Count(stage.errors).to_string());
        let rate = Decimal(rate, 1).to_string();
        write_row(f, &name, &[target, rate, most.unwrap_or_else(none), p50, p95, p99, errors])?;
    }
    Ok(())
}

fn write_row(f: &mut Formatter<'_>, name: &str, cells: &[String; 7]) -> fmt::Result {
    let [target, rate, most, p50, p95, p99, errors] = cells;
    writeln!(f, "{name:<12}{target:>10}{rate:>11}{most:>11}{p50:>9}{p95:>9}{p99:>9}{errors:>9}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::outcome::request_metrics::RequestSnapshot;

    /// A row of a run with so many answers so far, all within `ms`.
    fn row(seconds: f64, phase: &'static str, received: u64, ms: u64, before: &Row) -> Row {
        let mut timed = Recorder::clone(&before.progress.timed);
        (before.received..received).for_each(|_| timed.record(Series::Latency, ms * 1_000_000));
        let elapsed = Duration::from_secs_f64(seconds);
        let passed = elapsed.saturating_sub(before.elapsed).as_secs_f64();
        let opened = RequestSnapshot { opened: received / 10, ..RequestSnapshot::default() };
        let progress = Progress {
            counts: Counts::Requests(Box::new(opened)),
            timed: Arc::new(timed),
            ..Progress::default()
        };
        let messages_per_second = (received - before.received) as f64 / passed;
        Row { elapsed, phase, received, open: 5, messages_per_second, progress, ..Row::default() }
    }

    fn watch(rows: &[(f64, &'static str, u64, u64)]) -> Vec<StageSummary> {
        let stage =
            |seconds, connections| Stage { time: Duration::from_secs(seconds), connections };
        let mut watch = StageWatch::new(&[stage(0, 10), stage(2, 10), stage(2, 20)]);
        let mut before = Row::default();
        for (seconds, phase, received, ms) in rows {
            before = row(*seconds, phase, *received, *ms, &before);
            watch.row(&before);
            if *phase == WARM_UP {
                watch.begin(before.elapsed);
            }
        }
        watch.finish()
    }

    #[test]
    fn each_stage_has_its_own_figures() {
        let stages = watch(&[
            (1.0, WARM_UP, 500, 500),
            (2.0, "requests", 600, 1),
            (3.0, "requests", 900, 1),
            (4.0, "requests", 1_000, 9),
            (5.0, "requests", 1_100, 9),
            (5.1, "requests", 1_101, 9),
        ]);
        let [one, two] = &stages[..] else { panic!("{stages:?}") };
        assert_eq!((one.target, one.answered, one.per_second), (10, 400, 200.0));
        assert_eq!((one.per_second_most, one.opened), (Some(300.0), 40));
        assert_eq!((two.target, two.answered, two.per_second), (20, 200, 100.0));
        let p99 = |stage: &StageSummary| stage.latency.unwrap().p99_ms;
        assert!(p99(one) < 1.1 && p99(two) > 8.9, "{stages:?}");
    }

    #[test]
    fn a_run_that_ends_in_a_stage_has_the_part_of_it() {
        let stages = watch(&[(2.0, "requests", 100, 1), (3.0, "requests", 150, 1)]);
        let [one, two] = &stages[..] else { panic!("{stages:?}") };
        assert_eq!((one.seconds, one.answered), (2.0, 100));
        assert_eq!((two.seconds, two.answered, two.per_second), (1.0, 50, 50.0));
        assert!(watch(&[]).is_empty());
    }

    #[test]
    fn merged_stages_add_up_without_percentiles() {
        let stages = watch(&[(2.0, "requests", 100, 1)]);
        let merged = stages[0].clone().merge(stages[0].clone());
        assert_eq!((merged.target, merged.answered, merged.per_second), (20, 200, 100.0));
        assert_eq!((merged.latency, merged.per_second_most), (None, None));
    }
}
