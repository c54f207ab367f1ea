//! Means over runs and the 95 % confidence intervals of what changed between them. Plain arithmetic; no
//! data is read here. A run is one value: the samples inside a run are correlated, and their spread says
//! nothing about how much runs differ.
//!
//! Sources: B. L. Welch, The generalization of "Student's" problem when several different population
//! variances are involved, Biometrika 34 (1947) 28–35; F. E. Satterthwaite, An approximate distribution of
//! estimates of variance components, Biometrics Bulletin 2 (1946) 110–114; E. C. Fieller, Some problems in
//! interval estimation, Journal of the Royal Statistical Society B 16 (1954) 175–185.

use std::f64::consts::FRAC_PI_2;

/// Mean and spread of one value per run.
#[derive(Copy, Clone, Debug)]
pub(super) struct Means {
    pub(super) mean: f64,
    variance: f64,
    count: f64,
}

/// One-sided probability beyond either end of a 95 % interval.
pub(super) const BEYOND: f64 = 0.025;

impl Means {
    /// `None` with fewer than two values: one has no spread.
    pub(super) fn of(values: &[f64]) -> Option<Means> {
        if values.len() < 2 {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Means { mean, variance: squares / (count - 1.0), count })
    }

    /// The mean of each run's share, bad ÷ all. Shares vary at least as much as independent trials do,
    /// `p (1 − p) ÷ n`, even if the few runs happen to be equal. `None` with fewer than two runs, or if one
    /// has no trials.
    pub(super) fn of_shares(runs: &[(u64, u64)]) -> Option<Means> {
        if runs.iter().any(|(_, all)| *all == 0) {
            return None;
        }
        let shares: Vec<f64> = runs.iter().map(|(bad, all)| *bad as f64 / *all as f64).collect();
        let means = Means::of(&shares)?;
        let trials = runs.iter().map(|(_, all)| *all as f64).sum::<f64>() / means.count;
        let least = means.mean * (1.0 - means.mean).max(0.0) / trials;
        Some(Means { variance: means.variance.max(least), ..means })
    }

    /// The squared standard error of the mean.
    fn error(&self) -> f64 {
        self.variance / self.count
    }
}

/// Welch's interval of `after − before`.
pub(super) fn difference(before: Means, after: Means) -> (f64, f64) {
    let (a, b) = (before.error(), after.error());
    let between = after.mean - before.mean;
    let half = t(freedom((a, before.count), (b, after.count))) * (a + b).sqrt();
    (between - half, between + half)
}

/// The interval of `after ÷ before − 1`: Fieller's, with Welch's degrees of freedom, so that the error of
/// the mean that is divided by counts as well. `None` if that mean is not clearly above zero.
pub(super) fn change(before: Means, after: Means) -> Option<(f64, f64)> {
    if before.mean <= 0.0 {
        return None;
    }
    let ratio = after.mean / before.mean;
    let (a, b) = (before.error(), after.error());
    let t = t(freedom((ratio * ratio * a, before.count), (b, after.count)));
    let g = t * t * a / (before.mean * before.mean);
    if g >= 1.0 {
        return None;
    }
    let half = t / before.mean * (b * (1.0 - g) + ratio * ratio * a).sqrt();
    let of = |end: f64| end / (1.0 - g) - 1.0;
    Some((of(ratio - half), of(ratio + half)))
}

/// The degrees of freedom of a sum of two squared standard errors (Welch, Satterthwaite), each with
/// its number of values.
fn freedom((a, of_a): (f64, f64), (b, of_b): (f64, f64)) -> f64 {
    let parts = a.powi(2) / (of_a - 1.0) + b.powi(2) / (of_b - 1.0);
    // Without any spread the interval is a point, whatever t is.
    if parts > 0.0 { (a + b).powi(2) / parts } else { 1.0 }
}

/// The one-sided probability of `after` as far from `ratio × before` as it is or farther, if the true ratio is
/// `ratio`: above it with `above`, else below. Welch's test; Fieller's interval has the ratios that it does
/// not reject.
pub(super) fn probability(before: Means, after: Means, ratio: f64, above: bool) -> f64 {
    let (a, b) = (ratio * ratio * before.error(), after.error());
    let beyond = after.mean - ratio * before.mean;
    let beyond = if above { beyond } else { -beyond };
    match (a + b).sqrt() {
        error if error > 0.0 => {
            beyond_t(beyond / error, freedom((a, before.count), (b, after.count)))
        }
        _ if beyond > 0.0 => 0.0,
        _ => 1.0,
    }
}

/// The point of Student's t that is exceeded with probability [`BEYOND`], by bisection.
fn t(freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 16.0);
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if beyond_t(middle, freedom) > BEYOND { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The probability of Student's t beyond `t`, by its definition: with `t = √freedom × tan θ` its density is that of
/// `cos θ` to the power `freedom − 1`, up to a factor.
fn beyond_t(t: f64, freedom: f64) -> f64 {
    // Also where it is no number.
    let freedom = freedom.max(1.0).clamp(1.0, FREEDOM_MAX);
    let angle = (t / freedom.sqrt()).atan();
    let power = (freedom - 1.0) / 2.0;
    // The square of the cosine, from 0 to a quarter turn.
    let density = |angle: f64| angle.cos().powi(2).powf(power);
    let beyond =
        integral(density, angle.abs(), FRAC_PI_2) / (2.0 * integral(density, 0.0, FRAC_PI_2));
    if t < 0.0 { 1.0 - beyond } else { beyond }
}

/// Simpson's rule.
fn integral(of: impl Fn(f64) -> f64, from: f64, to: f64) -> f64 {
    let step = (to - from) / STEPS as f64;
    let at = |half: u32| of(from + f64::from(half) * step / 2.0);
    let sum: f64 = (0..STEPS).map(|n| at(2 * n) + 4.0 * at(2 * n + 1) + at(2 * n + 2)).sum();
    sum * step / 6.0
}

/// Degrees of freedom beyond which t is a normal distribution, to the fourth digit.
const FREEDOM_MAX: f64 = 10_000.0;
const STEPS: u32 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    fn near((low, high): (f64, f64), (least, most): (f64, f64), error: f64) {
        assert!((low - least).abs() < error && (high - most).abs() < error, "{low} … {high}");
    }

    #[test]
    fn welch_as_in_a_textbook() {
        // Worked by hand: means 5 and 8, variances 2.5 each, 5 values each, 8 degrees of freedom.
        let before = Means::of(&[3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        let after = Means::of(&[6.0, 7.0, 8.0, 9.0, 10.0]).unwrap();
        near(difference(before, after), (3.0 - 2.306, 3.0 + 2.306), 1e-4);
        assert!(Means::of(&[1.0]).is_none());
        // Unequal spreads: variances 1 and 100, so 2.04 degrees of freedom and not 4.
        let (before, after) = (Means::of(&[9.0, 10.0, 11.0]), Means::of(&[10.0, 20.0, 30.0]));
        let half = 4.2228 * (101.0_f64 / 3.0).sqrt();
        near(difference(before.unwrap(), after.unwrap()), (10.0 - half, 10.0 + half), 0.1);
    }

    #[test]
    fn t_and_its_tail_are_those_of_tables() {
        for (freedom, exact) in [
            (0.5, 12.7062),
            (1.0, 12.7062),
            (1.5, 6.0167),
            (2.0, 4.3027),
            (2.5, 3.5747),
            (4.0, 2.7764),
            (25.0, 2.0595),
            (120.0, 1.9799),
            (1e9, 1.9600),
            (f64::NAN, 12.7062),
        ] {
            let t = t(freedom);
            assert!((t - exact).abs() < 1e-3 * exact, "{freedom}: {t}");
        }
        // Exact: 1/2 − atan(t) ÷ π with one degree of freedom, (1 − t ÷ √(2 + t²)) ÷ 2 with two.
        for t in [0.0_f64, 0.3, 1.0, 5.0, 40.0] {
            let one = 0.5 - t.atan() / std::f64::consts::PI;
            let two = (1.0 - t / (2.0 + t * t).sqrt()) / 2.0;
            for (freedom, exact) in [(1.0, one), (2.0, two)] {
                assert!((beyond_t(t, freedom) - exact).abs() < 1e-6, "{t} {freedom}");
                assert!((beyond_t(-t, freedom) - (1.0 - exact)).abs() < 1e-6, "{t} {freedom}");
            }
        }
    }

    #[test]
    fn probabilities_are_those_of_the_ends_of_intervals() {
        let before = Means::of(&[98.0, 100.0, 102.0]).unwrap();
        let after = Means::of(&[118.0, 120.0, 122.0]).unwrap();
        // Equal spreads of the ratio's parts: the degrees of freedom hardly depend on the ratio.
        let (low, high) = change(before, after).unwrap();
        for (end, above) in [(low, true), (high, false)] {
            let chance = probability(before, after, 1.0 + end, above);
            assert!((chance - BEYOND).abs() < 1e-3, "{end}: {chance}");
        }
        let point = Means::of(&[2.0, 2.0]).unwrap();
        assert_eq!(probability(point, point, 1.0, true), 1.0);
        assert_eq!(probability(point, Means::of(&[3.0, 3.0]).unwrap(), 1.0, true), 0.0);
    }

    #[test]
    fn fieller_holds_where_the_scaled_difference_is_just_significant() {
        // By its definition: at each end r of the interval, after − r × before is exactly t standard
        // errors from zero. Equal numbers and spreads keep the degrees of freedom the same.
        let before = Means::of(&[98.0, 100.0, 102.0]).unwrap();
        let after = Means::of(&[118.0, 120.0, 122.0]).unwrap();
        let t = t(freedom((1.44 * 4.0 / 3.0, 3.0), (4.0 / 3.0, 3.0)));
        let (low, high) = change(before, after).unwrap();
        for end in [low, high] {
            let ratio = 1.0 + end;
            let error = (4.0 / 3.0 + ratio * ratio * 4.0 / 3.0_f64).sqrt();
            assert!(((120.0 - ratio * 100.0).abs() - t * error).abs() < 1e-9, "{end}");
        }
        assert!(low < 0.2 && 0.2 < high);
        // A divisor that may be zero has no interval.
        let wild = Means::of(&[1.0, 100.0]).unwrap();
        assert!(change(wild, after).is_none());
        assert!(change(Means::of(&[0.0, 0.0]).unwrap(), after).is_none());
        assert_eq!(change(Means::of(&[2.0, 2.0]).unwrap(), Means::of(&[3.0, 3.0]).unwrap()), {
            Some((0.5, 0.5))
        });
    }

    #[test]
    fn shares_vary_at_least_as_trials_do() {
        let million = |bad: u64| (bad, 1_000_000);
        let none = Means::of_shares(&[million(0), million(0)]).unwrap();
        let some = Means::of_shares(&[million(10), million(10)]).unwrap();
        let (low, high) = difference(none, some);
        assert!(low < 0.0 && high > 1e-5, "two equal counts are no certainty: {low} … {high}");
        let half = Means::of_shares(&[million(500_000), million(500_000)]).unwrap();
        assert!(difference(none, half).0 > 0.49);
        assert!(Means::of_shares(&[million(1)]).is_none());
        assert!(Means::of_shares(&[million(1), (0, 0)]).is_none());
    }
}
