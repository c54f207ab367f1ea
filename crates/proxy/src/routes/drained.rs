//! [`DrainedNames`]: which upstreams an operator has drained, by pool, name and address. It outlasts the
//! upstreams: a name that loses an address and gets it back, or gets another one, stays drained as it was.

use std::collections::{BTreeMap, BTreeSet};

use crate::balance::UpstreamAddress;

/// The drained names of all pools.
#[derive(Debug, Default)]
pub(super) struct DrainedNames(BTreeMap<(Box<str>, Box<str>), DrainedName>);

/// What is drained of one name.
#[derive(Debug, Default)]
struct DrainedName {
    /// All addresses, those that it gets later included.
    all: bool,
    /// Addresses for which the opposite is true.
    except: BTreeSet<UpstreamAddress>,
}

impl DrainedNames {
    /// Drains a name at all addresses, or at none.
    pub(super) fn set_name(&mut self, pool: &str, name: &str, draining: bool) {
        let key = (pool.into(), name.into());
        if draining {
            self.0.insert(key, DrainedName { all: true, except: BTreeSet::new() });
        } else {
            self.0.remove(&key);
        }
    }

    /// Drains a name at one address, or no longer; the others stay as they are.
    pub(super) fn set_address(
        &mut self,
        (pool, name): (&str, &str),
        address: &UpstreamAddress,
        draining: bool,
    ) {
        let key = (pool.into(), name.into());
        let drained = self.0.entry(key.clone()).or_default();
        if draining == drained.all {
            drained.except.remove(address);
        } else {
            drained.except.insert(address.clone());
        }
        if !drained.all && drained.except.is_empty() {
            self.0.remove(&key);
        }
    }

    /// Whether all addresses of a name are drained, apart from exceptions.
    pub(super) fn has_name(&self, pool: &str, name: &str) -> bool {
        self.0.get(&(pool.into(), name.into())).is_some_and(|drained| drained.all)
    }

    /// Whether a name is drained at this address.
    pub(super) fn has(&self, pool: &str, name: &str, address: &UpstreamAddress) -> bool {
        let drained = self.0.get(&(pool.into(), name.into()));
        drained.is_some_and(|drained| drained.all != drained.except.contains(address))
    }

    /// Forgets names that are no longer configured.
    pub(super) fn retain(&mut self, is_configured: impl Fn(&str, &str) -> bool) {
        self.0.retain(|(pool, name), _| is_configured(pool, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_drained_with_its_name_or_alone() {
        let mut drained = DrainedNames::default();
        let addresses = [1, 2].map(|n| UpstreamAddress::Tcp(([10, 0, 0, n], 80).into()));
        let of = |drained: &DrainedNames| {
            [&addresses[0], &addresses[1]].map(|address| drained.has("p", "a", address))
        };
        let one = |drained: &mut DrainedNames, draining| {
            drained.set_address(("p", "a"), &addresses[0], draining);
        };
        one(&mut drained, true);
        assert_eq!((of(&drained), drained.has_name("p", "a")), ([true, false], false));
        one(&mut drained, false);
        assert!(drained.0.is_empty());
        drained.set_name("p", "a", true);
        one(&mut drained, false);
        assert_eq!((of(&drained), drained.has_name("p", "a")), ([false, true], true));
        one(&mut drained, true);
        assert_eq!(of(&drained), [true, true]);
        one(&mut drained, false);
        drained.set_name("p", "a", true);
        assert_eq!(of(&drained), [true, true], "the name as a whole");
        assert!(!drained.has("q", "a", &addresses[0]));
        drained.set_name("p", "a", false);
        assert!(drained.0.is_empty());
    }
}
