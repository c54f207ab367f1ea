//! [`Known`]: the connections of this worker whose tokens said who they are, to be found by that.
//! Others cost nothing here.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use engine::ConnId;

/// Who is who, both ways.
#[derive(Default)]
pub(crate) struct Known {
    by_slot: HashMap<u32, Arc<str>>,
    by_identifiers: HashMap<Arc<str>, BTreeSet<ConnId>>,
}

impl Known {
    /// A connection's identifiers, as its token has them.
    pub(crate) fn add(&mut self, id: ConnId, identifiers: &str) {
        let shared = match self.by_identifiers.get_key_value(identifiers) {
            Some((shared, _)) => Arc::clone(shared),
            None => identifiers.into(),
        };
        self.by_slot.insert(id.slot(), Arc::clone(&shared));
        self.by_identifiers.entry(shared).or_default().insert(id);
    }

    /// A connection has ended.
    pub(crate) fn remove(&mut self, id: ConnId) {
        if self.by_slot.is_empty() {
            return;
        }
        let Some(identifiers) = self.by_slot.remove(&id.slot()) else { return };
        let Some(ids) = self.by_identifiers.get_mut(&identifiers) else { return };
        ids.remove(&id);
        if ids.is_empty() {
            self.by_identifiers.remove(&identifiers);
        }
    }

    /// All connections with these identifiers, byte for byte.
    pub(crate) fn find(&self, identifiers: &str) -> Vec<ConnId> {
        self.by_identifiers.get(identifiers).into_iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_of_somebody_are_found_until_they_end() {
        let id = |slot: u64| ConnId::from_u64(slot << 32 | 1);
        let mut known = Known::default();
        for slot in 0..3 {
            known.add(id(slot), r#"{"user":1}"#);
        }
        known.add(id(3), r#"{"user":2}"#);
        known.remove(id(1));
        known.remove(id(9));
        assert_eq!(known.find(r#"{"user":1}"#), [id(0), id(2)]);
        assert_eq!(known.find(r#"{"user":2}"#), [id(3)]);
        (0..4).for_each(|slot| known.remove(id(slot)));
        assert!(known.by_slot.is_empty() && known.by_identifiers.is_empty());
    }
}
