//! The distribution of connections over workers. Few busy workers are faster than many, so one group
//! of `lanes` workers is filled at a time, evenly within the group.

/// The connections of each worker. More `connections` never lower a share. Those beyond the
/// `capacity` of all workers are left out.
pub(crate) fn shares(connections: u64, workers: usize, lanes: usize, capacity: u32) -> Vec<u32> {
    let mut left = connections;
    let mut shares = Vec::with_capacity(workers);
    while shares.len() < workers {
        let group = lanes.clamp(1, workers - shares.len()) as u64;
        let part = left.min(group * u64::from(capacity));
        left -= part;
        let one_more = part % group;
        shares.extend((0..group).map(|at| (part / group + u64::from(at < one_more)) as u32));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_fill_one_after_another() {
        assert_eq!(shares(5, 4, 2, 10), [3, 2, 0, 0]);
        assert_eq!(shares(25, 4, 2, 10), [10, 10, 3, 2]);
        assert_eq!(shares(25, 3, 2, 10), [10, 10, 5], "a partial group");
        assert_eq!(shares(12, 3, 1, 10), [10, 2, 0]);
        assert_eq!(shares(99, 3, 2, 10), [10, 10, 10], "no room for more");
    }

    #[test]
    fn higher_target_lowers_no_share() {
        let mut before = shares(0, 7, 3, 100);
        for connections in 0..=700 {
            let now = shares(connections, 7, 3, 100);
            assert_eq!(now.iter().map(|&n| u64::from(n)).sum::<u64>(), connections);
            assert!(before.iter().zip(&now).all(|(before, now)| before <= now));
            before = now;
        }
    }
}
