//! Intervals of 95 %: Welch's for the difference of two means, Newcombe's for the difference of
//! two shares. Plain arithmetic; no data is read here.

/// Values from a number of runs, or of batches of seconds.
#[derive(Copy, Clone, Debug)]
pub(super) struct Means {
    pub(super) mean: f64,
    variance: f64,
    count: f64,
}

/// Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom; from there on the next
/// lower of 40, 60, 120 and infinity is used, which errs to the wider interval.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
const Z: f64 = 1.959_964;
/// Most batches that seconds are gathered in, and the fewest seconds that say anything.
const BATCHES_MAX: usize = 20;
const SECONDS_MIN: usize = 8;

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

    /// The same of means of batches; `None` where there are too few seconds.
    pub(super) fn of_seconds(seconds: &[f64]) -> Option<Means> {
        if seconds.len() < SECONDS_MIN {
            return None;
        }
        let size = seconds.len().div_ceil(BATCHES_MAX);
        let batches = seconds.chunks_exact(size);
        let means: Vec<f64> =
            batches.map(|batch| batch.iter().sum::<f64>() / batch.len() as f64).collect();
        Means::of(&means)
    }
}

/// Welch's interval of `after − before`.
pub(super) fn difference(before: Means, after: Means) -> (f64, f64) {
    let (a, b) = (before.variance / before.count, after.variance / after.count);
    let between = after.mean - before.mean;
    let spread = a + b;
    if spread <= 0.0 {
        return (between, between);
    }
    let freedom =
        spread.powi(2) / (a.powi(2) / (before.count - 1.0) + b.powi(2) / (after.count - 1.0));
    let half = t(freedom) * spread.sqrt();
    (between - half, between + half)
}

fn t(freedom: f64) -> f64 {
    match freedom as usize {
        of @ 0..=30 => T.get(of.max(1) - 1).copied().unwrap_or(Z),
        31..=39 => 2.042,
        40..=59 => 2.021,
        60..=119 => 2.000,
        _ => 1.980,
    }
}

/// Newcombe's interval of the difference of shares, `bad ÷ all` after less that before.
pub(super) fn of_shares(before: (u64, u64), after: (u64, u64)) -> Option<(f64, f64)> {
    let (a, b) = (Share::of(before)?, Share::of(after)?);
    let between = b.share - a.share;
    let low = ((b.share - b.low).powi(2) + (a.high - a.share).powi(2)).sqrt();
    let high = ((b.high - b.share).powi(2) + (a.share - a.low).powi(2)).sqrt();
    Some((between - low, between + high))
}

/// A share with Wilson's interval.
struct Share {
    share: f64,
    low: f64,
    high: f64,
}

impl Share {
    fn of((bad, all): (u64, u64)) -> Option<Share> {
        let count = all as f64;
        if all == 0 {
            return None;
        }
        let share = bad as f64 / count;
        let middle = share + Z * Z / (2.0 * count);
        let half = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
        let below = 1.0 + Z * Z / count;
        Some(Share { share, low: (middle - half) / below, high: (middle + half) / below })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn welch_as_in_a_textbook() {
        // Worked by hand: means 5 and 8, variances 2.5 each, 5 values each, 8 degrees of freedom.
        let before = Means::of(&[3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        let after = Means::of(&[6.0, 7.0, 8.0, 9.0, 10.0]).unwrap();
        let (low, high) = difference(before, after);
        assert!((low - (3.0 - 2.306)).abs() < 1e-9 && (high - (3.0 + 2.306)).abs() < 1e-9);
        assert!(Means::of(&[1.0]).is_none());
    }

    #[test]
    fn correlated_seconds_do_not_narrow_the_interval() {
        // Blocks of ten equal seconds: as single seconds their spread would look five times surer.
        let seconds: Vec<f64> = (0..200).map(|at| f64::from((at / 10) % 2)).collect();
        let batched = Means::of_seconds(&seconds).unwrap();
        let single = Means::of(&seconds).unwrap();
        assert!((batched.count, single.count) == (20.0, 200.0));
        assert!(batched.variance / batched.count > 9.0 * single.variance / single.count);
        assert!(Means::of_seconds(&seconds[..7]).is_none());
    }

    #[test]
    fn newcombe_as_he_published_it() {
        // His example (a): 56 of 70 and 48 of 80, difference 0.2000, interval 0.0524 to 0.3339.
        let (low, high) = of_shares((48, 80), (56, 70)).unwrap();
        assert!((low - 0.0524).abs() < 5e-5 && (high - 0.3339).abs() < 5e-5, "{low} {high}");
        assert!(of_shares((0, 0), (1, 2)).is_none());
    }
}
