//! Latencies as text: a table of percentiles, and [`Outcome::latency_rows`] with bars, the distribution
//! behind them.

use std::fmt::{self, Formatter};

use crate::Latency;
use crate::outcome::Outcome;
use crate::outcome::bins::{Bin, bins_of};
use capacity::{Count, Milliseconds};

/// The characters of bars.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Bars {
    /// `#`, for files, pipes and terminals that may not have others.
    #[default]
    Ascii,
    /// Blocks in eighths, as of terminals with UTF-8.
    Blocks,
}

/// The most rows of a distribution.
const ROWS_MAX: usize = 13;
/// The share of times at each end that have no rows of their own: those above the 99.9th percentile, and
/// as many at the other end.
const TAIL: f64 = 0.001;
/// The fewest times that have a distribution to speak of.
const TIMES_MIN: u64 = 10;
/// Columns of the longest bar.
const BAR_COLUMNS: usize = 24;
impl Outcome {
    /// The distribution of the latency of a run, from when messages were due: of answers, or of receipts of
    /// publications. Empty if fewer than ten were timed.
    #[must_use]
    pub fn latency_rows(&self) -> Vec<Bin> {
        let names = ["latency", "broadcast.latency", "churn.latency", "groups.latency"];
        let named = |name: &&str| self.histograms.as_ref()?.get(name)?.histogram();
        let histogram = names.iter().find_map(named).filter(|times| times.len() >= TIMES_MIN);
        histogram.map(|times| bins_of(&times, ROWS_MAX, TAIL)).unwrap_or_default()
    }

    /// Writes the distribution, if there is one.
    pub(crate) fn write_distribution(
        &self,
        f: &mut Formatter<'_>,
        title: &str,
        bars: Bars,
    ) -> fmt::Result {
        let rows = self.latency_rows();
        let all: u64 = rows.iter().map(|row| row.count).sum();
        let most = rows.iter().map(|row| row.count).max().unwrap_or(0);
        for (number, row) in rows.iter().enumerate() {
            let title = if number == 0 { title } else { "" };
            let (side, bound) = match row.to_ms.is_finite() {
                true => ("below", row.to_ms),
                false => ("above", row.from_ms),
            };
            let (count, share) =
                (Count(row.count).to_string(), 100.0 * row.count as f64 / all as f64);
            let line = format!(
                "  {title:<14}{side}{:>10}{count:>12}{share:>8.2} %  {}",
                bound_text(bound),
                bar(row.count, most, bars)
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Writes a table of percentiles; nothing if nothing was timed. A title has at most 13 characters.
pub(crate) fn write_latencies(
    f: &mut Formatter<'_>,
    rows: &[(&str, Option<&Latency>)],
) -> fmt::Result {
    let mut timed =
        rows.iter().filter_map(|(title, latency)| Some((title, (*latency)?))).peekable();
    if timed.peek().is_some() {
        let [p50, p90, p95, p99, p999, max] = ["p50", "p90", "p95", "p99", "p99.9", "max"];
        writeln!(f, "{:16}{p50:>10}{p90:>10}{p95:>10}{p99:>10}{p999:>10}{max:>10}", "")?;
    }
    for (title, latency) in timed {
        let Latency { p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms, .. } = *latency;
        write!(f, "  {title:<14}")?;
        for ms in [p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms] {
            write!(f, "{:>10}", Milliseconds(ms))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// A bound with all of its digits, of which it has few.
fn bound_text(ms: f64) -> String {
    let (value, unit) = if ms < 1e3 { (ms, "ms") } else { (ms / 1e3, "s") };
    let text = capacity::Decimal(value, 6).to_string();
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A bar; what is not zero has at least a mark.
fn bar(count: u64, most: u64, bars: Bars) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if count == 0 {
        return String::new();
    }
    let columns = BAR_COLUMNS as f64 * count as f64 / most as f64;
    match bars {
        Bars::Ascii => match columns.round() as usize {
            0 => ".".to_owned(),
            columns => "#".repeat(columns),
        },
        Bars::Blocks => {
            let eighths = ((columns * 8.0).round() as usize).max(1);
            let rest = EIGHTHS.get(eighths % 8).copied().unwrap_or_default();
            format!("{}{rest}", "█".repeat(eighths / 8))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::histograms::Histograms;
    use crate::{Recorder, Series};

    fn outcome(times_us: impl IntoIterator<Item = u64>) -> Outcome {
        let (mut recorder, mut histograms) = (Recorder::default(), Histograms::default());
        times_us.into_iter().for_each(|us| recorder.record(Series::Latency, us * 1_000));
        histograms.latency("latency", &recorder, Series::Latency);
        Outcome { histograms: Some(histograms), ..Outcome::default() }
    }

    #[test]
    fn median_is_in_the_row_with_the_middle_of_all_times() {
        let spread = |decades: u32| {
            (0..5_000).map(move |n| 10_u64.pow(n % decades) * (1 + u64::from(n) % 9))
        };
        for times in [
            (0..5_000).collect::<Vec<u64>>(),
            (0..5_000).map(|n| 100_000 + n).collect(),
            vec![25_000; 20],
            (1..=10).map(|n| n * 360_000_000).collect(),
            spread(2).collect(),
            spread(9).collect(),
        ] {
            let rows = outcome(times.iter().copied()).latency_rows();
            assert!((1..=ROWS_MAX).contains(&rows.len()), "{rows:?}");
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let median = (sorted[sorted.len() / 2].max(1) as f64 / 1e3).min(3_600_000.0);
            let earlier = rows.iter().filter(|row| row.to_ms <= median * 0.999);
            let below: u64 = earlier.map(|row| row.count).sum();
            assert!(below <= times.len() as u64 / 2, "{median}: {rows:?}");
        }
        assert!(outcome(1..10).latency_rows().is_empty(), "nine times have no distribution");
    }

    #[test]
    fn one_time_far_above_the_rest_has_one_row() {
        let outlier = outcome((0..5_000).map(|n| if n == 7 { 3_000_000 } else { 200 + n % 300 }));
        let rows = outlier.latency_rows();
        let last = rows.last().unwrap();
        assert!(last.to_ms.is_infinite() && last.from_ms <= 0.6, "{rows:?}");
        assert!(rows.len() >= 4, "{rows:?}");
    }

    #[test]
    fn bars_are_blocks_or_ascii() {
        let bar = |count, bars| bar(count, 1_000, bars);
        assert_eq!(bar(1_000, Bars::Ascii), "#".repeat(24));
        assert_eq!(bar(1_000, Bars::Blocks), "█".repeat(24));
        assert_eq!((bar(1, Bars::Ascii).as_str(), bar(1, Bars::Blocks).as_str()), (".", "▏"));
        assert_eq!(bar(50, Bars::Blocks), "█▎");
        assert_eq!((bar(0, Bars::Ascii).as_str(), bar(0, Bars::Blocks).as_str()), ("", ""));
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let times = (1..=9).map(|n| 10_u64.pow(n));
        let echo = Some(crate::EchoSummary::default());
        let outcome = Outcome { echo, ..outcome((0..100).flat_map(|_| times.clone())) };
        for bars in [Bars::Ascii, Bars::Blocks] {
            let text = outcome.text(bars).to_string();
            assert!(text.contains("  distribution  below"), "{text}");
            let lines = text.lines().filter(|line| line.contains(" %  "));
            assert!(lines.clone().count() > 3, "{text}");
            for line in lines {
                assert!(line.chars().count() <= 80, "{line}");
            }
            assert_eq!(text.is_ascii(), bars == Bars::Ascii, "{text}");
        }
    }
}
