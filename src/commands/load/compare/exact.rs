//! An exact test of two counts of failures. Plain arithmetic; no data is read here.
//!
//! Source: J. Przyborowski and H. Wilenski, Homogeneity of results in testing samples from Poisson series,
//! Biometrika 31 (1940) 313–323: given `k` failures in both together, those of the second are binomial with
//! `k` trials of probability `n₂ ÷ (n₁ + n₂)` if both fail equally often. For rare failures this is Fisher's
//! exact test; for frequent ones it errs to no difference.

/// The failures up to which the test is exact; beyond, a normal distribution differs by less than 0.001.
const EXACT_MAX: u64 = 1_000_000;

/// Returns the probability of as many failures or more in the second, given those in both together, if both
/// fail equally often: `bad` and `all` of each. 1 if the share did not rise.
///
/// It assumes that failures are independent. Those of one run rarely are: a server that stalls once fails
/// all requests in flight.
pub(super) fn probability(before: (u64, u64), after: (u64, u64)) -> f64 {
    let (failures, trials) = (before.0.saturating_add(after.0), before.1 as f64 + after.1 as f64);
    let share = after.1 as f64 / trials;
    let expected = failures as f64 * share;
    if !(trials > 0.0 && after.0 as f64 > expected) {
        return 1.0;
    }
    if before.1 == 0 {
        // All trials belong to the second.
        return 1.0;
    }
    if failures > EXACT_MAX {
        return beyond((after.0 as f64 - 0.5 - expected) / (expected * (1.0 - share)).sqrt());
    }
    // The term of exactly that many by logarithms, since its factors overflow; each next one by its ratio to
    // the one before. Above the mean they only fall.
    let (least, rest) = (after.0, before.0);
    let choose: f64 = (1..=rest).map(|i| ((least + i) as f64 / i as f64).ln()).sum();
    let mut term = (choose + least as f64 * share.ln() + rest as f64 * (1.0 - share).ln()).exp();
    let odds = share / (1.0 - share);
    let mut sum = term;
    for count in least..failures {
        term *= (failures - count) as f64 / (count + 1) as f64 * odds;
        sum += term;
        if term <= sum * 1e-17 {
            break;
        }
    }
    sum.min(1.0)
}

/// The probability of a standard normal value beyond `z` of 0 or more: formula 7.1.26 of Abramowitz and
/// Stegun, Handbook of Mathematical Functions (1964), with an error below 1e-7.
fn beyond(z: f64) -> f64 {
    let x = z.max(0.0) / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let factors = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let polynomial = factors.iter().fold(0.0, |sum, factor| (sum + factor) * t);
    0.5 * polynomial * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worked_by_hand() {
        let million = |bad: u64| (bad, 1_000_000);
        for (before, after, expected) in [
            // 2^-10: all of ten coins.
            (million(0), million(10), 1.0 / 1024.0),
            (million(0), million(1), 0.5),
            // (1 + 5) ÷ 2^5: four or five of five.
            (million(1), million(4), 6.0 / 32.0),
            // A third of the trials: three of three.
            ((0, 2_000), (3, 1_000), 1.0 / 27.0),
            (million(10), million(10), 1.0),
            (million(5), million(4), 1.0),
            ((0, 0), (5, 10), 1.0),
            ((0, 10), (0, 0), 1.0),
        ] {
            let found = probability(before, after);
            assert!((found - expected).abs() < 1e-12, "{before:?} {after:?}: {found}");
        }
    }

    #[test]
    fn many_failures_do_not_overflow_and_agree_on_both_sides_of_the_bound() {
        let of = |more: u64| probability((500_000, 1 << 40), (500_000 + more, 1 << 40));
        let (below, above) = (of(0), of(1_000));
        assert!((below - 1.0).abs() < 1e-12 && above > 0.1 && above < 0.2, "{below} {above}");
        let exact = probability((498_900, 1 << 40), (501_000, 1 << 40));
        let normal = probability((499_000, 1 << 40), (501_100, 1 << 40));
        assert!((exact - normal).abs() < 1e-3 && exact > 0.0, "{exact} {normal}");
        assert!(probability((0, 1 << 60), (1 << 59, 1 << 60)) < 1e-12);
        for (z, expected) in [(0.0, 0.5), (1.96, 0.024_998), (3.0, 0.001_349_9)] {
            assert!((beyond(z) - expected).abs() < 1e-6, "{z}");
        }
    }
}
