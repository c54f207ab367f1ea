//! Means over runs and the 95 % confidence intervals of what changed between them. Plain arithmetic; no
//! data is read here. A run is one value: the samples inside a run are correlated, and their spread says
//! nothing about how much runs differ.
//!
//! Sources: B. L. Welch, The generalization of "Student's" problem when several different population
//! variances are involved, Biometrika 34 (1947) 28–35; F. E. Satterthwaite, An approximate distribution of
//! estimates of variance components, Biometrics Bulletin 2 (1946) 110–114; E. C. Fieller, Some problems in
//! interval estimation, Journal of the Royal Statistical Society B 16 (1954) 175–185.

/// Mean and spread of one value per run.
#[derive(Copy, Clone, Debug)]
pub(super) struct Means {
    pub(super) mean: f64,
    variance: f64,
    count: f64,
}

/// Two-sided 95 % points of Student's t by degrees of freedom.
const T: [(f64, f64); 16] = [
    (1.0, 12.706),
    (2.0, 4.303),
    (3.0, 3.182),
    (4.0, 2.776),
    (5.0, 2.571),
    (6.0, 2.447),
    (7.0, 2.365),
    (8.0, 2.306),
    (9.0, 2.262),
    (10.0, 2.228),
    (12.0, 2.179),
    (15.0, 2.131),
    (20.0, 2.086),
    (30.0, 2.042),
    (60.0, 2.000),
    (f64::INFINITY, 1.960),
];

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

/// Linear in the reciprocal of the degrees of freedom between two rows. The function is convex there, so
/// this errs to the wider interval.
fn t(freedom: f64) -> f64 {
    let freedom = freedom.max(1.0);
    let rows = T.windows(2).find_map(|pair| match pair {
        [low, high] if freedom <= high.0 => Some((low, high)),
        _ => None,
    });
    let Some(((from, at_from), (to, at_to))) = rows else { return T[0].1 };
    let along = (1.0 / from - 1.0 / freedom) / (1.0 / from - 1.0 / to);
    at_from + (at_to - at_from) * along
}

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
        near(difference(before, after), (3.0 - 2.306, 3.0 + 2.306), 1e-9);
        assert!(Means::of(&[1.0]).is_none());
        // Unequal spreads: variances 1 and 100, so 2.04 degrees of freedom and not 4.
        let (before, after) = (Means::of(&[9.0, 10.0, 11.0]), Means::of(&[10.0, 20.0, 30.0]));
        let half = 4.2228 * (101.0_f64 / 3.0).sqrt();
        near(difference(before.unwrap(), after.unwrap()), (10.0 - half, 10.0 + half), 0.1);
    }

    #[test]
    fn t_lies_just_above_its_exact_values() {
        for (freedom, exact) in [
            (0.5, 12.706),
            (1.0, 12.706),
            (1.5, 6.0167),
            (2.5, 3.5747),
            (4.5, 2.6589),
            (25.0, 2.0595),
            (40.0, 2.0211),
            (120.0, 1.9799),
            (1e9, 1.9600),
        ] {
            let t = t(freedom);
            assert!(t > exact - 5e-4 && t < exact * 1.19, "{freedom}: {t}");
        }
        assert!(t(f64::NAN) > 12.0);
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
