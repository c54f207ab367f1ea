//! The table of a run: go-stress-testing's columns plus the measured rate, and the summary at the
//! end.

use std::collections::BTreeMap;
use std::time::Duration;

use load::Latency;
use serde::Serialize;

use super::live_stats::{LiveStats, Sum};
use crate::output;

const TITLES: &str = "\
─────────┬────────┬──────────┬──────────┬──────────┬─────────┬─────────┬─────────┬────────────┬────────────┬───────────┬──────────
 elapsed │  users │       ok │   failed │ qps est. │ longest │shortest │ average │      bytes │    bytes/s │measured/s │ codes
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
    before: Sum,
    then: f64,
    quiet: bool,
}

/// The results in go-stress-testing's terms, as JSON.
#[derive(Serialize, Debug)]
pub(super) struct Stress {
    pub(super) users: u64,
    pub(super) ok: u64,
    pub(super) failed: u64,
    pub(super) seconds: f64,
    /// Answers ÷ seconds.
    pub(super) measured_per_second: f64,
    /// Users ÷ mean time.
    pub(super) estimated_qps: f64,
    pub(super) tp90_ms: Option<f64>,
    pub(super) tp95_ms: Option<f64>,
    pub(super) tp99_ms: Option<f64>,
    pub(super) codes: BTreeMap<u16, u64>,
}

impl Table {
    /// `quiet`: the table goes to standard error, because JSON goes to standard output.
    pub(super) fn new(users: u64, stats: LiveStats, quiet: bool) -> Table {
        Table { users, stats, rows: 0, before: Sum::default(), then: 0.0, quiet }
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

    /// Writes the last row, the summary and the lines on failures.
    pub(super) fn end(
        &mut self,
        elapsed: Duration,
        latency: Option<&Latency>,
        why: &[String],
    ) -> Stress {
        let sum = self.stats.sum();
        let seconds = elapsed.as_secs_f64();
        if self.before.all() != sum.all() || self.rows == 0 {
            self.row(elapsed);
        }
        let of = |pick: fn(&Latency) -> f64| latency.map(pick);
        let stress = Stress {
            users: self.users,
            ok: sum.ok,
            failed: sum.failed,
            seconds,
            measured_per_second: sum.answers() as f64 / seconds.max(1e-6),
            estimated_qps: sum.estimated(self.users),
            tp90_ms: of(|latency| latency.p90_ms),
            tp95_ms: of(|latency| latency.p95_ms),
            tp99_ms: of(|latency| latency.p99_ms),
            codes: sum.codes,
        };
        let why: String = why.iter().map(|line| format!("{line}\n")).collect();
        self.print(&format!("{}{why}\n", stress.text()));
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
        causes.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    (!named.is_empty()).then(|| format!("{title}: {}", named.join(", ")))
}

impl Stress {
    fn text(&self) -> String {
        let Stress { users, ok, failed, seconds, measured_per_second, estimated_qps, .. } = self;
        let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"));
        let (tp90, tp95, tp99) = (ms(self.tp90_ms), ms(self.tp95_ms), ms(self.tp99_ms));
        format!(
            "\n*************************  result stat  ****************************\n\
             users: {users}\n\
             requests: {} in {seconds:.3} s successNum: {ok} failureNum: {failed}\n\
             tp90: {tp90} ms\n\
             tp95: {tp95} ms\n\
             tp99: {tp99} ms\n\
             measured: {measured_per_second:.2} answers/s (all answers ÷ the time that passed)\n\
             estimated: {estimated_qps:.2} qps (users ÷ mean time: what the column \"qps est.\" and \
             go-stress-testing's qps say)\n\
             *************************  result end   ****************************\n",
            ok + failed,
        )
    }
}

fn row(sum: &Sum, users: u64, seconds: f64, measured: f64) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let mean = sum.mean_ns();
    let rate = sum.bytes as f64 / seconds.max(1e-3);
    let codes: Vec<String> =
        sum.codes.iter().map(|(code, count)| format!("{code}:{count}")).collect();
    format!(
        "{:>7.0}s │{:>7} │{:>9} │{:>9} │{:>9.2} │{:>8.2} │{:>8.2} │{:>8.2} │{:>11} │{:>11.0} │{:>10.1} │ {}",
        seconds,
        sum.users,
        sum.ok,
        sum.failed,
        sum.estimated(users),
        ms(sum.longest_ns),
        ms(sum.shortest_ns()),
        ms(mean),
        sum.bytes,
        rate,
        measured,
        codes.join(";"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_go_stress_testings_columns_and_the_measured_rate() {
        let stats = LiveStats::default();
        let (one, other) = (stats.add(), stats.add());
        one.user();
        one.answer(true, 200, 10, 100_000_000);
        other.user();
        other.answer(true, 200, 10, 300_000_000);
        other.answer(false, 509, 0, 500_000_000);
        // Requests without a connection have no latency.
        other.unanswered(7);
        let sum = stats.sum();
        let text = row(&sum, 2, 2.0, 1.5);
        let cells: Vec<&str> = text.split('│').map(str::trim).collect();
        // 2 users ÷ 0.2 s, the mean of the successful requests.
        let expected = [
            "2s",
            "2",
            "2",
            "8",
            "10.00",
            "500.00",
            "100.00",
            "300.00",
            "20",
            "10",
            "1.5",
            "200:2;509:8",
        ];
        assert_eq!(cells, expected);
        assert_eq!(TITLES.lines().nth(1).map(|line| line.split('│').count()), Some(expected.len()));
    }
}
