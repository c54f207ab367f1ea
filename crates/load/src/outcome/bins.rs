//! [`Bin`]: the bars of a latency histogram, for people. Edges are round numbers, spaced evenly on a
//! logarithmic scale, or at equal distances where all values are alike.

use hdrhistogram::Histogram;

/// The round numbers of a decade, from few to many.
const STEPS: [&[u64]; 5] = [
    &[10],
    &[10, 20, 50],
    &[10, 15, 20, 30, 50, 70],
    &[10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68, 82],
    &[
        10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82,
        91,
    ],
];
/// Values within this factor have edges at equal distances.
const EVEN: f64 = 4.0;
/// Factors between the steps and tenths of a microsecond, up to a million seconds.
const DECADES: u32 = 12;

/// A bar: how many values are at least `from_ms` and less than `to_ms`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Bin {
    /// The lower edge; 0 if the bar contains everything that is shorter.
    pub from_ms: f64,
    /// The upper edge; infinite if the bar contains everything that is longer.
    pub to_ms: f64,
    /// The number of values.
    pub count: u64,
}

/// At most `most` bars, as fine as that allows; none if nothing was recorded. The share `tail` of the values
/// at each end gets no bars of its own. `most` is at least 3.
pub(crate) fn bins_of(histogram: &Histogram<u64>, most: usize, tail: f64) -> Vec<Bin> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let (low, high) = match tail > 0.0 {
        true => (histogram.value_at_quantile(tail), histogram.value_at_quantile(1.0 - tail)),
        false => (histogram.min(), histogram.max()),
    };
    // The histogram rounds up; values are counted as rounded down.
    let [low, high] = [low, high].map(|us| histogram.lowest_equivalent(us) as f64);
    let fits = |edges: &Vec<f64>| edges.len() <= most + 1;
    let scales = STEPS.iter().rev().map(|steps| edges(steps, low, high));
    let mut scales = even_edges(low, high, most).into_iter().chain(scales);
    let edges = scales.find(fits).unwrap_or_else(|| edges(&[10], low, high));
    let mut bins: Vec<Bin> = edges
        .windows(2)
        .filter_map(|pair| Some((*pair.first()?, *pair.last()?)))
        .map(|(from, to)| Bin { from_ms: from / 1e3, to_ms: to / 1e3, count: 0 })
        .collect();
    let last = bins.len().saturating_sub(1);
    let mut at = 0;
    for value in histogram.iter_recorded() {
        let us = histogram.lowest_equivalent(value.value_iterated_to());
        let ms = us as f64 / 1e3;
        while at < last && bins.get(at).is_some_and(|bin| ms >= bin.to_ms) {
            at += 1;
        }
        let Some(bin) = bins.get_mut(at) else { break };
        bin.count += value.count_at_value();
        if ms < bin.from_ms {
            bin.from_ms = 0.0;
        }
        if ms >= bin.to_ms {
            bin.to_ms = f64::INFINITY;
        }
    }
    bins
}

/// The edges in microseconds around `low` and `high`: at least two.
fn edges(steps: &[u64], low: f64, high: f64) -> Vec<f64> {
    let decades = (0..DECADES).map(|decade| 10_f64.powi(decade as i32 - 1));
    let all = decades.flat_map(|decade| steps.iter().map(move |step| *step as f64 * decade));
    let mut edges: Vec<f64> = Vec::new();
    for edge in all {
        match edges.as_mut_slice() {
            [only] if edge <= low => *only = edge,
            _ => edges.push(edge),
        }
        if edge > high && edges.len() > 1 {
            break;
        }
    }
    edges
}

/// The edges in microseconds at equal, round distances; `None` if the values are too far apart for
/// these, or too alike for the three digits of a histogram.
fn even_edges(low: f64, high: f64, most: usize) -> Option<Vec<f64>> {
    if high >= low * EVEN {
        return None;
    }
    let steps =
        (0..DECADES).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power as i32)));
    let mut coarse = steps.filter(|step| *step >= high / 1024.0);
    let bins = |step: f64| (high / step).floor() - (low / step).floor() + 1.0;
    let step = coarse.find(|step| bins(*step) <= most as f64)?;
    let (first, count) = ((low / step).floor(), bins(step) as u32);
    Some((0..=count).map(|number| (first + f64::from(number)) * step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::recorder::Recorder;

    fn histogram(times_us: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Recorder::empty().unwrap();
        times_us.into_iter().for_each(|us| Recorder::record_in(&mut histogram, us * 1_000));
        histogram
    }

    #[test]
    fn every_value_is_in_one_bar() {
        let wide = (0..22).map(|power| 1 << power);
        for times in [vec![1], vec![999, 1_000, 1_001], (1..5_000).collect(), wide.collect()] {
            let histogram = histogram(times.iter().copied());
            for most in [3, 10, 48] {
                for tail in [0.0, 0.001, 0.1] {
                    let bins = bins_of(&histogram, most, tail);
                    let all: u64 = bins.iter().map(|bin| bin.count).sum();
                    assert_eq!(all, times.len() as u64, "{times:?} {most} {tail}: {bins:?}");
                    assert!(bins.windows(2).all(|two| two[0].to_ms == two[1].from_ms), "{bins:?}");
                    assert!((1..=most.max(8)).contains(&bins.len()), "{most}: {bins:?}");
                }
            }
        }
        assert_eq!(bins_of(&histogram([]), 10, 0.0), []);
    }

    #[test]
    fn edges_are_round_and_as_fine_as_there_is_room() {
        let bins = bins_of(&histogram(1_000..50_000), 6, 0.0);
        let edges: Vec<_> = bins.iter().map(|bin| (bin.from_ms, bin.to_ms)).collect();
        assert_eq!(edges, [(1.0, 2.0), (2.0, 5.0), (5.0, 10.0), (10.0, 20.0), (20.0, 50.0)]);
        assert_eq!(bins[1].count, 3_000);
        let narrow = bins_of(&histogram(200..300), 10, 0.0);
        assert!(narrow.len() >= 4, "{narrow:?}");
        let alike = bins_of(&histogram((0..1_000).map(|n| 100_000 + 10 * n)), 12, 0.0);
        let is_even = |bin: &Bin| bin.to_ms - bin.from_ms == 1.0;
        assert!(alike.len() >= 10 && alike.iter().all(is_even), "{alike:?}");
    }

    #[test]
    fn tails_have_no_bars_of_their_own() {
        let histogram = histogram((0..10_000).map(|_| 3_000).chain([1, 900_000]));
        let bins = bins_of(&histogram, 10, 0.001);
        assert_eq!(bins.len(), 1, "{bins:?}");
        assert_eq!((bins[0].from_ms, bins[0].to_ms), (0.0, f64::INFINITY));
        assert_eq!(bins[0].count, 10_002);
    }
}
