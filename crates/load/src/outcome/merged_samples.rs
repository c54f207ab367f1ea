//! Samples of several runs as one series: aligned by the time of day, and added.
//!
//! A row of the merged series is a whole second of Unix time, and contains what each run had counted in its
//! last sample up to then. So the sum of any number of series does not depend on their order. The rows of a
//! run longer than [`ROWS_MAX`] seconds are 2, 4, 8 … seconds apart.
//!
//! Percentiles of single rows cannot be merged and are left out, as is the memory of the kernel: two
//! generators on one machine measure the same growth.

use crate::outcome::samples::{Sample, SampleSeries, Usage};

/// The most rows of a merged series.
const ROWS_MAX: u64 = 1_024;
const SECOND_US: u64 = 1_000_000;
/// Phases of a run in their order. Of two runs the later one is shown.
const PHASES: [&str; 9] =
    ["", "connect", "stages", "hold", "warm-up", "echo", "fanout", "churn", "requests"];

/// A series and the Unix time in microseconds when it began.
pub(crate) type Timed<'a> = (&'a SampleSeries, u64);

/// The sum of two series; it begins when the first of them did.
pub(crate) fn merge(one: Timed, other: Timed) -> SampleSeries {
    let began_us = one.1.min(other.1);
    let both = [one, other].map(|(series, began_us)| (series.samples(), began_us));
    let times_us = both
        .iter()
        .flat_map(|(samples, began_us)| samples.iter().map(|sample| time_us(sample, *began_us)));
    let Some(last_us) = times_us.clone().max() else { return SampleSeries::new() };
    let mut row_us = SECOND_US;
    while (row_end(last_us, row_us) - began_us) / row_us > ROWS_MAX {
        row_us = row_us.saturating_mul(2);
    }
    let mut ends: Vec<u64> = times_us.map(|time_us| row_end(time_us, row_us)).collect();
    ends.sort_unstable();
    ends.dedup();
    let rows = ends.into_iter().map(|end_us| {
        let last = both.map(|(samples, began_us)| {
            samples.iter().rev().find(|sample| time_us(sample, began_us) <= end_us)
        });
        let elapsed_seconds = (end_us - began_us) as f64 / SECOND_US as f64;
        Sample { elapsed_seconds, ..add(last) }
    });
    SampleSeries::from(rows.collect::<Vec<_>>())
}

fn time_us(sample: &Sample, began_us: u64) -> u64 {
    let elapsed_us = (sample.elapsed_seconds * SECOND_US as f64).round();
    began_us.saturating_add(if elapsed_us > 0.0 { elapsed_us as u64 } else { 0 })
}

/// The end of the row that contains a time.
fn row_end(time_us: u64, row_us: u64) -> u64 {
    time_us.div_ceil(row_us).saturating_mul(row_us)
}

fn add(last: [Option<&Sample>; 2]) -> Sample {
    let mut sum = Sample::default();
    for sample in last.into_iter().flatten() {
        let counts = [
            (&mut sum.open, sample.open),
            (&mut sum.failed, sample.failed),
            (&mut sum.closed, sample.closed),
            (&mut sum.sent, sample.sent),
            (&mut sum.received, sample.received),
        ];
        for (sum, count) in counts {
            *sum = sum.saturating_add(count);
        }
        if order(&sample.phase) >= order(&sum.phase) {
            sum.phase.clone_from(&sample.phase);
        }
        // The same process as seen by several generators, and several generators.
        sum.server = both(sum.server, sample.server, |one, other| Usage {
            rss_bytes: one.rss_bytes.max(other.rss_bytes),
            cpu_seconds: one.cpu_seconds.max(other.cpu_seconds),
        });
        sum.client = both(sum.client, sample.client, |one, other| Usage {
            rss_bytes: one.rss_bytes.saturating_add(other.rss_bytes),
            cpu_seconds: one.cpu_seconds + other.cpu_seconds,
        });
    }
    sum
}

/// The place and the name of a phase that is known.
pub(crate) fn phase_order(phase: &str) -> Option<(usize, &'static str)> {
    PHASES.iter().copied().enumerate().find(|(_, known)| *known == phase)
}

/// The place of a phase; unknown ones by name behind those that are known.
fn order(phase: &str) -> (usize, &str) {
    (PHASES.iter().position(|known| *known == phase).unwrap_or(PHASES.len()), phase)
}

fn both<T>(one: Option<T>, other: Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(add(one, other)),
        (one, other) => one.or(other),
    }
}
