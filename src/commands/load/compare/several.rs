//! Several figures at once: with many, one of them differs by chance more often than a single one does.
//!
//! Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6
//! (1979) 65–70. It assumes nothing of how the figures depend on each other.

/// Returns which of the probabilities are so small that all of these are established together: that any of
/// them is chance has probability `level` or less.
pub(super) fn established(probabilities: &[f64], level: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    let mut established = vec![false; probabilities.len()];
    for (place, at) in order.into_iter().enumerate() {
        let left = (probabilities.len() - place) as f64;
        if probabilities[at] > level / left {
            break;
        }
        established[at] = true;
    }
    established
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_has_to_be_smallest_and_ends_the_others() {
        let all = |probabilities: &[f64]| established(probabilities, 0.05);
        assert_eq!(all(&[0.05]), [true]);
        assert_eq!(all(&[0.03, 0.5]), [false, false], "half of the level for the first of two");
        assert_eq!(all(&[0.04, 0.01]), [true, true], "and all of it for the second");
        assert_eq!(all(&[0.02, 0.011, 0.9]), [true, true, false]);
        assert_eq!(all(&[0.001, 0.04, 0.04, 0.04]), [true, false, false, false]);
        assert_eq!(all(&[]), [false; 0]);
    }
}
