//! [`Machines`]: a number of machines, as far as it is known.

use std::fmt::{self, Display, Formatter};

use capacity::Count;
use serde::Serialize;

/// A number of machines: at least and at most so many.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Machines {
    /// The number, if both bounds are the same; else null.
    machines: Option<u64>,
    machines_at_least: u64,
    /// Null if there is no upper bound.
    machines_at_most: Option<u64>,
}

impl Machines {
    pub(super) const UNKNOWN: Machines = Machines::between(1, None);

    pub(super) fn exactly(count: u64) -> Machines {
        Machines::between(count, Some(count))
    }

    pub(super) fn at_least(count: u64) -> Machines {
        Machines::between(count, None)
    }

    pub(super) fn at_most(count: u64) -> Machines {
        Machines::between(1, Some(count))
    }

    const fn between(least: u64, most: Option<u64>) -> Machines {
        let machines = match most {
            Some(most) if most == least => Some(most),
            _ => None,
        };
        Machines { machines, machines_at_least: least, machines_at_most: most }
    }

    /// The number that is enough for all; unknown for none.
    pub(super) fn largest(parts: impl Iterator<Item = Machines>) -> Machines {
        let larger = |one: Machines, other: Machines| {
            let most = one.machines_at_most.zip(other.machines_at_most);
            let least = one.machines_at_least.max(other.machines_at_least);
            Machines::between(least, most.map(|(one, other)| one.max(other)))
        };
        parts.reduce(larger).unwrap_or(Machines::UNKNOWN)
    }

    /// The number without a unit.
    pub(super) fn count(self) -> String {
        match (self.machines_at_least, self.machines_at_most) {
            (least, Some(most)) if least == most => Count(most).to_string(),
            (1, Some(most)) => format!("at most {}", Count(most)),
            (least, Some(most)) => format!("{} to {}", Count(least), Count(most)),
            (least, None) => format!("at least {}", Count(least)),
        }
    }
}

impl Display for Machines {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let last = self.machines_at_most.unwrap_or(self.machines_at_least);
        write!(f, "{} {}", self.count(), if last == 1 { "machine" } else { "machines" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_of_two_ranges() {
        let (three, most, least) =
            (Machines::exactly(3), Machines::at_most(70), Machines::at_least(5));
        for (parts, text) in [
            (&[three][..], "3 machines"),
            (&[Machines::exactly(1)], "1 machine"),
            (&[Machines::at_most(1)], "1 machine"),
            (&[most], "at most 70 machines"),
            (&[least], "at least 5 machines"),
            (&[three, most], "3 to 70 machines"),
            (&[three, least], "at least 5 machines"),
            (&[most, least], "at least 5 machines"),
            (&[three, Machines::at_most(2)], "3 machines"),
            (&[most, Machines::UNKNOWN], "at least 1 machine"),
            (&[], "at least 1 machine"),
        ] {
            assert_eq!(Machines::largest(parts.iter().copied()).to_string(), text);
        }
    }
}
