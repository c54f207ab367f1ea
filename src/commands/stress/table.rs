//! The table of a run: go-stress-testing's columns in its own definitions, the measured rate, and the
//! summary at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use capacity::{Count, Decimal, Milliseconds};
use load::{Latency, Recorder, Series};
use serde::Serialize;

use super::live_stats::{LiveStats, Tally};
use crate::output;

const TITLES: &str = "\
─────────┬────────┬──────────┬──────────┬──────────┬─────────┬─────────┬─────────┬────────────┬────────────┬───────────┬──────────
 elapsed │  users │       ok │   failed │      qps │ longest │shortest │ average │      bytes │    bytes/s │measured/s │ codes
─────────┼────────┼──────────┼──────────┼──────────┼─────────┼─────────┼─────────┼────────────┼────────────┼───────────┼──────────
";
/// Number of rows after which the titles are repeated.
const TITLES_EVERY: u32 = 30;
/// Shortest interval of a row, in seconds; a shorter rest is written at the end.
const SECOND: f64 = 0.9;

/// Writes a row per second during a run.
pub(super) struct Table {
    users: u64,
    stats: LiveStats,
    rows: u32,
    /// Totals and time of the last row.
    before: Tally,
    then: f64,
    quiet: bool,
}

/// The results as JSON: go-stress-testing's figures, and beside them the measured rates.
#[derive(Serialize, Debug)]
pub(super) struct Stress {
    pub(super) users: u64,
    pub(super) ok: u64,
    pub(super) failed: u64,
    pub(super) seconds: f64,
    /// Successes × users ÷ the time of all requests.
    pub(super) qps: f64,
    /// The time of all requests ÷ successes.
    pub(super) average_ms: Option<f64>,
    pub(super) longest_ms: Option<f64>,
    pub(super) shortest_ms: Option<f64>,
    /// Over all requests, failed ones included.
    pub(super) tp90_ms: Option<f64>,
    pub(super) tp95_ms: Option<f64>,
    pub(super) tp99_ms: Option<f64>,
    pub(super) codes: BTreeMap<u16, u64>,
    /// Answers ÷ seconds.
    pub(super) measured_per_second: f64,
    /// Successes ÷ seconds.
    pub(super) ok_per_second: f64,
    /// The time of all requests ÷ their number.
    pub(super) mean_ms: Option<f64>,
}

impl Table {
    /// `quiet`: the table goes to standard error, because JSON goes to standard output.
    pub(super) fn new(users: u64, stats: LiveStats, quiet: bool) -> Table {
        Table { users, stats, rows: 0, before: Tally::default(), then: 0.0, quiet }
    }

    /// Writes a row if a second has passed; [`Table::end`] writes the rest.
    pub(super) fn second(&mut self, elapsed: Duration) {
        if elapsed.as_secs_f64() - self.then >= SECOND {
            self.row(elapsed);
        }
    }

    fn row(&mut self, elapsed: Duration) {
        let sum = self.stats.sum();
        let seconds = elapsed.as_secs_f64();
        let then = std::mem::replace(&mut self.then, seconds);
        // Answers after the measured time are averaged over the whole time.
        let (since, before) = match seconds > then {
            true => (seconds - then, self.before.answers()),
            false => (seconds, 0),
        };
        let measured = (sum.answers() - before) as f64 / since.max(1e-6);
        let titles = if self.rows.is_multiple_of(TITLES_EVERY) { TITLES } else { "" };
        self.rows += 1;
        self.print(&format!("{titles}{}\n", row(&sum, self.users, seconds, measured)));
        self.before = sum;
    }

    /// Writes the last row, the summary and the lines on failures. `latency` is that of the run.
    pub(super) fn end(
        &mut self,
        elapsed: Duration,
        latency: Option<&Latency>,
        why: &[String],
    ) -> Stress {
        let sum = self.stats.sum();
        if self.before.all() != sum.all() || self.rows == 0 {
            self.row(elapsed);
        }
        let stress = Stress::new(self.users, sum, &self.stats.times(), elapsed.as_secs_f64());
        let why: String = why.iter().map(|line| format!("{line}\n")).collect();
        self.print(&format!("{}{why}\n", stress.text(latency)));
        stress
    }

    /// Prints text between the rows.
    pub(super) fn print(&self, text: &str) {
        if self.quiet {
            output::print_to_stderr(text);
        } else {
            // A closed stdout does not stop the run; the final output reports it.
            let _ = output::print(text);
        }
    }
}

/// Returns a line of causes with their counts; `None` without any.
pub(super) fn causes(title: &str, causes: &BTreeMap<String, u64>) -> Option<String> {
    let named: Vec<String> =
        causes.iter().map(|(cause, count)| format!("{cause} {}", Count(*count))).collect();
    (!named.is_empty()).then(|| format!("{title}: {}", named.join(", ")))
}

impl Stress {
    fn new(users: u64, sum: Tally, times: &Recorder, seconds: f64) -> Stress {
        // Go-stress-testing takes this element of the sorted times, counted from 0.
        let tp = |share| times.nth_ms(Series::Latency, |count| (count as f64 * share) as u64);
        let per_second = |count: u64| count as f64 / seconds.max(1e-6);
        Stress {
            users,
            ok: sum.ok,
            failed: sum.failed,
            seconds,
            qps: sum.qps(users),
            average_ms: sum.average_ms(),
            longest_ms: sum.longest_ms(),
            shortest_ms: sum.shortest_ms(),
            tp90_ms: tp(0.90),
            tp95_ms: tp(0.95),
            tp99_ms: tp(0.99),
            measured_per_second: per_second(sum.answers()),
            ok_per_second: per_second(sum.ok),
            mean_ms: sum.mean_ms(),
            codes: sum.codes,
        }
    }

    fn text(&self, latency: Option<&Latency>) -> String {
        let Stress { users, ok, failed, seconds, qps, .. } = self;
        // The block of results is read by scripts: its numbers are as in go-stress-testing.
        let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"));
        let time = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| Milliseconds(ms).to_string());
        let of = |pick: fn(&Latency) -> f64| time(latency.map(pick));
        let qps = Decimal(*qps, 2);
        format!(
            "\n*************************  result stat  ****************************\n\
             users: {users}\n\
             requests: {} in {seconds:.3} s successNum: {ok} failureNum: {failed}\n\
             tp90: {} ms\n\
             tp95: {} ms\n\
             tp99: {} ms\n\
             *************************  result end   ****************************\n\
             above, as in go-stress-testing, with the time of failed requests:\n\
             \x20 qps      {qps}: successes × users ÷ the sum of all times\n\
             \x20 average  {}: the sum of all times ÷ successes\n\
             measured: {} answers/s, {} of them successful (÷ the time that passed)\n\
             \x20 requests mean {}, failed ones included\n\
             \x20 answers  p50 {}, p90 {}, p95 {}, p99 {}, max {}, complete\n",
            ok + failed,
            ms(self.tp90_ms),
            ms(self.tp95_ms),
            ms(self.tp99_ms),
            time(self.average_ms),
            Decimal(self.measured_per_second, 2),
            Decimal(self.ok_per_second, 2),
            time(self.mean_ms),
            of(|latency| latency.p50_ms),
            of(|latency| latency.p90_ms),
            of(|latency| latency.p95_ms),
            of(|latency| latency.p99_ms),
            of(|latency| latency.max_ms),
        )
    }
}

fn row(sum: &Tally, users: u64, seconds: f64, measured: f64) -> String {
    let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| Decimal(ms, 2).to_string());
    let codes: Vec<String> =
        sum.codes.iter().map(|(code, count)| format!("{code}:{}", Count(*count))).collect();
    format!(
        "{:>7.0}s │{:>7} │{:>9} │{:>9} │{:>9} │{:>8} │{:>8} │{:>8} │{:>11} │{:>11} │{:>10} │ {}",
        seconds,
        Count(sum.users),
        Count(sum.ok),
        Count(sum.failed),
        Decimal(sum.qps(users), 2),
        ms(sum.longest_ms()),
        ms(sum.shortest_ms()),
        ms(sum.average_ms()),
        Count(sum.bytes),
        Decimal(sum.bytes as f64 / seconds.max(1e-3), 0),
        Decimal(measured, 1),
        codes.join(";"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two users: answers after 100 and 300 ms, a failure after 500 ms, and 7 requests never sent.
    fn stats() -> LiveStats {
        let stats = LiveStats::default();
        let (one, other) = (stats.worker(), stats.worker());
        one.add(true, 200, 10, 100_000_000, true);
        other.add(true, 200, 10, 300_000_000, true);
        other.add(false, 509, 0, 500_000_000, false);
        other.unsent(7);
        stats
    }

    #[test]
    fn row_has_the_columns_of_go_stress_testing_and_the_measured_rate() {
        let text = row(&stats().sum(), 2, 2.0, 1.5);
        let cells: Vec<&str> = text.split('│').map(str::trim).collect();
        // 2 successes × 2 users ÷ 0.9 s, and 900 ms ÷ 2 successes.
        let expected = [
            "2s",
            "2",
            "2",
            "8",
            "4.44",
            "500.00",
            "100.00",
            "450.00",
            "20",
            "10",
            "1.5",
            "200:2;509:8",
        ];
        assert_eq!(cells, expected);
        assert_eq!(TITLES.lines().nth(1).map(|line| line.split('│').count()), Some(expected.len()));
        let none = row(&Tally::default(), 2, 2.0, 0.0);
        let cells: Vec<&str> = none.split('│').map(str::trim).collect();
        assert_eq!(cells[4..8], ["0.00", "-", "-", "-"], "what was not measured is unknown");
    }

    #[test]
    fn results_have_the_definitions_of_go_stress_testing() {
        let stats = stats();
        let stress = Stress::new(2, stats.sum(), &stats.times(), 2.0);
        let near = |value: Option<f64>, ms: f64| (value.unwrap() - ms).abs() < ms / 500.0;
        assert!((stress.qps - 4.0 / 0.9).abs() < 1e-9);
        assert!(near(stress.average_ms, 450.0) && near(stress.mean_ms, 300.0), "{stress:?}");
        // The third of three: element 2 = ⌊3 × 0.9⌋.
        assert!(near(stress.tp90_ms, 500.0) && near(stress.tp99_ms, 500.0), "{stress:?}");
        assert_eq!((stress.measured_per_second, stress.ok_per_second), (1.0, 1.0));
        // Of ten times, element 9: the slowest, where other definitions take the ninth.
        let stats = LiveStats::default();
        let worker = stats.worker();
        (1..=10).for_each(|ms| worker.add(true, 200, 0, ms * 1_000_000, false));
        assert!(near(Stress::new(1, stats.sum(), &stats.times(), 1.0).tp90_ms, 10.0));
    }
}
