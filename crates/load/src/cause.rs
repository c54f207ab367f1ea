//! [`Cause`]: why a connection of a run came to nothing, or ended: what the engine says, and what there
//! is before it and beside it. Counters, JSON and rows use this one list.

use engine::Closed;

/// Why there is no connection, or no more.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// What became of it in the engine.
    End(Closed),
    /// The name leads to no address.
    Dns,
    /// The proxy did not open a tunnel, or said what is no answer.
    ProxyRefused,
}

impl Cause {
    /// How many there are.
    pub const COUNT: usize = Closed::ALL.len() + 2;

    /// All, in the order of [`Cause::index`].
    pub fn all() -> impl Iterator<Item = Cause> {
        let own = [Cause::Dns, Cause::ProxyRefused];
        Closed::ALL.into_iter().map(Cause::End).chain(own)
    }

    /// Its place in a table of [`Cause::COUNT`]; those of the engine have the engine's.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Cause::End(closed) => closed as usize,
            Cause::Dns => Closed::ALL.len(),
            Cause::ProxyRefused => Closed::ALL.len() + 1,
        }
    }

    /// The name in JSON, rows and logs; that of requests where they have the same.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::End(closed) => closed.name(),
            Cause::Dns => "dns",
            Cause::ProxyRefused => "proxy_refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::Failure;

    #[test]
    fn each_cause_stands_at_its_number_under_its_own_name() {
        let mut names = Vec::new();
        for (number, cause) in Cause::all().enumerate() {
            assert_eq!(cause.index(), number, "{cause:?}");
            names.push(cause.name());
        }
        assert_eq!(names.len(), Cause::COUNT);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::COUNT, "no name twice");
        assert_eq!(Cause::Dns.name(), Failure::Dns.name());
        assert_eq!(Cause::ProxyRefused.name(), Failure::ProxyRefused.name());
    }
}
