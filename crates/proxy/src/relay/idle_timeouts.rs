//! [`IdleTimeouts`]: the idle timeouts that routes set for their tunnels. A tunnel keeps that of its route
//! as a number, because it has no room for a duration.

use std::time::Duration;

use engine::invariant;

/// Refers to an idle timeout in use. The default is the one for all routes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IdleTimeout(u16);

/// The distinct idle timeouts of a worker's tunnels.
#[derive(Default)]
pub(super) struct IdleTimeouts {
    /// Each with the number of tunnels that use it. Those without are replaced.
    entries: Vec<(Option<Duration>, u32)>,
    /// The shortest of the configuration and of tunnels when that was applied.
    shortest: Option<Duration>,
}

impl IdleTimeouts {
    /// Adds a tunnel with the idle timeout of its route, if it sets one. More of them than fit are as for all
    /// routes.
    pub(super) fn add(&mut self, of_route: Option<Option<Duration>>) -> IdleTimeout {
        let Some(timeout) = of_route else { return IdleTimeout::default() };
        let known = self.entries.iter().position(|(known, _)| *known == timeout);
        let unused = || self.entries.iter().position(|(_, tunnels)| *tunnels == 0);
        let at = known.or_else(unused).unwrap_or(self.entries.len());
        let Some(number) = u16::try_from(at + 1).ok() else { return IdleTimeout::default() };
        match self.entries.get_mut(at) {
            Some(entry) => *entry = (timeout, entry.1 + 1),
            None => self.entries.push((timeout, 1)),
        }
        IdleTimeout(number)
    }

    /// Removes a tunnel.
    pub(super) fn remove(&mut self, timeout: IdleTimeout) {
        let Some(at) = usize::from(timeout.0).checked_sub(1) else { return };
        match self.entries.get_mut(at) {
            Some((_, tunnels)) if *tunnels > 0 => *tunnels -= 1,
            _ => invariant::broken("an idle timeout in use is known"),
        }
    }

    /// The duration, if idle tunnels are closed. `all` is the one for all routes.
    pub(super) fn get(&self, timeout: IdleTimeout, all: Option<Duration>) -> Option<Duration> {
        let own = usize::from(timeout.0).checked_sub(1).and_then(|at| self.entries.get(at));
        own.map_or(all, |(timeout, _)| *timeout)
    }

    /// Applies a configuration with these idle timeouts of routes; returns the longest of them and of tunnels.
    pub(super) fn apply(&mut self, of_routes: impl Iterator<Item = Duration>) -> Option<Duration> {
        let used = self.entries.iter().filter(|(_, tunnels)| *tunnels > 0);
        let (mut shortest, mut longest) = (None::<Duration>, None::<Duration>);
        for timeout in used.filter_map(|(timeout, _)| *timeout).chain(of_routes) {
            shortest = Some(shortest.map_or(timeout, |other| other.min(timeout)));
            longest = longest.max(Some(timeout));
        }
        self.shortest = shortest;
        longest
    }

    /// The shortest one that may be in use.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.shortest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

    #[test]
    fn each_timeout_is_kept_once_while_it_is_used() {
        let seconds = Duration::from_secs;
        let mut timeouts = IdleTimeouts::default();
        let all = timeouts.add(None);
        let [short, again] = [(); 2].map(|()| timeouts.add(Some(Some(seconds(5)))));
        let off = timeouts.add(Some(None));
        assert_eq!((all, short), (IdleTimeout::default(), again));
        let get = |timeouts: &IdleTimeouts, of| timeouts.get(of, HOUR);
        assert_eq!(get(&timeouts, all), HOUR);
        assert_eq!((get(&timeouts, short), get(&timeouts, off)), (Some(seconds(5)), None));
        timeouts.remove(short);
        assert_eq!(get(&timeouts, again), Some(seconds(5)), "one tunnel still uses it");
        timeouts.remove(again);
        timeouts.remove(all);
        for round in 0..1_000 {
            let next = timeouts.add(Some(Some(seconds(round))));
            assert_eq!(get(&timeouts, next), Some(seconds(round)));
            assert_eq!(get(&timeouts, off), None);
            timeouts.remove(next);
        }
        assert_eq!(timeouts.entries.len(), 2, "unused ones are replaced");
    }

    #[test]
    fn those_of_tunnels_count_after_their_routes_are_gone() {
        let seconds = Duration::from_secs;
        let mut timeouts = IdleTimeouts::default();
        assert_eq!(timeouts.apply([].into_iter()), None);
        let long = timeouts.add(Some(Some(seconds(90))));
        timeouts.add(Some(None));
        assert_eq!(timeouts.apply([seconds(7), seconds(40)].into_iter()), Some(seconds(90)));
        assert_eq!(timeouts.shortest(), Some(seconds(7)));
        timeouts.remove(long);
        assert_eq!(timeouts.apply([seconds(40)].into_iter()), Some(seconds(40)));
        assert_eq!(timeouts.shortest(), Some(seconds(40)));
    }

    #[test]
    fn too_many_are_as_for_all_routes() {
        let mut timeouts = IdleTimeouts {
            entries: vec![(None, 1); usize::from(u16::MAX)],
            ..IdleTimeouts::default()
        };
        let more = timeouts.add(Some(Some(Duration::ZERO)));
        assert_eq!((more, timeouts.get(more, HOUR)), (IdleTimeout::default(), HOUR));
    }
}
