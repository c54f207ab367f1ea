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

/// As [`shares`], of sockets that share connections, so many each: no connection is on two workers. The
/// `capacity` is one of connections.
pub(crate) fn shares_of_streams(
    sockets: u64,
    streams: u32,
    workers: usize,
    lanes: usize,
    capacity: u32,
) -> Vec<u32> {
    let each = u64::from(streams.max(1));
    let whole = shares(sockets / each, workers, lanes, capacity);
    let all = shares(sockets.div_ceil(each), workers, lanes, capacity);
    let rest = u32::try_from(sockets % each).unwrap_or(0);
    let share = |(whole, all): (u32, u32)| {
        let rest = if all > whole { rest } else { 0 };
        whole.saturating_mul(streams.max(1)).saturating_add(rest)
    };
    whole.into_iter().zip(all).map(share).collect()
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
    fn sockets_of_a_connection_are_on_one_worker() {
        assert_eq!(shares_of_streams(100, 100, 4, 2, 10), [100, 0, 0, 0]);
        assert_eq!(shares_of_streams(250, 100, 4, 2, 10), [150, 100, 0, 0]);
        assert_eq!(shares_of_streams(2_550, 100, 4, 2, 10), [1_000, 1_000, 300, 250]);
        let mut before = vec![0; 4];
        for sockets in 0..=4_000 {
            let now = shares_of_streams(sockets, 100, 4, 2, 10);
            assert_eq!(now.iter().map(|&n| u64::from(n)).sum::<u64>(), sockets);
            assert!(before.iter().zip(&now).all(|(before, now)| before <= now), "{sockets}");
            before = now;
        }
        assert_eq!(shares_of_streams(7, 1, 4, 2, 10), shares(7, 4, 2, 10));
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
