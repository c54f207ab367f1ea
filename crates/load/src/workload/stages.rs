//! [`Stage`]s: a number of connections that varies over time, linearly within each stage.

use std::time::Duration;

/// One stage.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Its duration; 0 is a step.
    pub time: Duration,
    /// Connections at its end.
    pub connections: u64,
}

/// Connections that should be open at a time after the start, beginning at 0; `None` after the last
/// stage.
#[must_use]
pub fn connections_at(stages: &[Stage], elapsed: Duration) -> Option<u64> {
    let (mut left, mut from) = (elapsed, 0_u64);
    for &Stage { time, connections } in stages {
        if left < time {
            let done = left.as_secs_f64() / time.as_secs_f64();
            let change = connections as f64 - from as f64;
            return Some((from as f64 + change * done).round() as u64);
        }
        left -= time;
        from = connections;
    }
    None
}

/// The end of each stage, and the connections at that time.
pub fn ends(stages: &[Stage]) -> impl Iterator<Item = (Duration, u64)> {
    stages.iter().scan(Duration::ZERO, |end, stage| {
        *end += stage.time;
        Some((*end, stage.connections))
    })
}

/// Connections begun in total if none fails: the sum of all increases.
#[must_use]
pub fn begun(stages: &[Stage]) -> u64 {
    let from = std::iter::once(0).chain(stages.iter().map(|stage| stage.connections));
    from.zip(stages).map(|(from, stage)| stage.connections.saturating_sub(from)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(seconds: u64, connections: u64) -> Stage {
        Stage { time: Duration::from_secs(seconds), connections }
    }

    #[test]
    fn stages_are_linear() {
        let stages = [stage(10, 100), stage(5, 100), stage(0, 40), stage(10, 20)];
        let at = |seconds: f64| connections_at(&stages, Duration::from_secs_f64(seconds));
        for (seconds, connections) in
            [(0.0, 0), (5.0, 50), (10.0, 100), (12.0, 100), (15.0, 40), (20.0, 30)]
        {
            assert_eq!(at(seconds), Some(connections), "{seconds} s");
        }
        assert_eq!((at(25.0), begun(&stages)), (None, 100));
        let seconds: Vec<_> = ends(&stages).map(|(end, n)| (end.as_secs(), n)).collect();
        assert_eq!(seconds, [(10, 100), (15, 100), (15, 40), (25, 20)]);
        assert_eq!(begun(&[stage(1, 10), stage(1, 0), stage(1, 10)]), 20);
        assert_eq!(connections_at(&[], Duration::ZERO), None);
    }
}
