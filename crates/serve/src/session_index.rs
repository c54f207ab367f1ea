//! [`SessionIndex`]: finds this worker's connections by the identifiers of their tokens, and those whose
//! token has expired. Connections without a token take no memory here.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use engine::ConnId;

use crate::auth::Holder;

/// Connections by slot, by identifiers and by expiry.
#[derive(Default)]
pub(crate) struct Known {
    by_slot: HashMap<u32, Entry>,
    by_identifiers: HashMap<Arc<str>, BTreeSet<ConnId>>,
    /// Those whose time ends, the first one first.
    ends: BTreeSet<(u64, ConnId)>,
}

struct Entry {
    identifiers: Arc<str>,
    until_unix_s: Option<u64>,
}

impl Known {
    /// Whose connection this is, as its token has it.
    pub(crate) fn add(&mut self, id: ConnId, holder: &Holder) {
        let identifiers = match self.by_identifiers.get_key_value(&*holder.identifiers) {
            Some((shared, _)) => Arc::clone(shared),
            None => (&*holder.identifiers).into(),
        };
        let until_unix_s = holder.until_unix_s;
        self.by_identifiers.entry(Arc::clone(&identifiers)).or_default().insert(id);
        self.by_slot.insert(id.slot(), Entry { identifiers, until_unix_s });
        self.ends.extend(until_unix_s.map(|until| (until, id)));
    }

    /// Removes a connection that has closed.
    pub(crate) fn remove(&mut self, id: ConnId) {
        if self.by_slot.is_empty() {
            return;
        }
        let Some(Entry { identifiers, until_unix_s }) = self.by_slot.remove(&id.slot()) else {
            return;
        };
        if let Some(until) = until_unix_s {
            self.ends.remove(&(until, id));
        }
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

    /// A connection whose token has expired; each is returned once.
    pub(crate) fn take_expired(&mut self, now_unix_s: u64) -> Option<ConnId> {
        let (until, id) = *self.ends.first()?;
        (now_unix_s > until).then(|| self.ends.remove(&(until, id)))?;
        Some(id)
    }

    /// When the next one's time ends, if ever.
    pub(crate) fn next_end_unix_s(&self) -> Option<u64> {
        self.ends.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u64) -> ConnId {
        ConnId::from_u64(slot << 32 | 1)
    }

    fn holder(identifiers: &str, until_unix_s: Option<u64>) -> Holder {
        Holder { identifiers: identifiers.into(), until_unix_s }
    }

    #[test]
    fn whose_time_is_over_is_told_once_and_in_order() {
        let mut known = Known::default();
        for (slot, until) in [(0, Some(30)), (1, None), (2, Some(10)), (3, Some(10)), (4, Some(20))]
        {
            known.add(id(slot), &holder("a", until));
        }
        known.remove(id(3));
        assert_eq!((known.next_end_unix_s(), known.take_expired(10)), (Some(10), None));
        let over: Vec<ConnId> = std::iter::from_fn(|| known.take_expired(21)).collect();
        assert_eq!((over, known.next_end_unix_s()), (vec![id(2), id(4)], Some(30)));
        assert_eq!(known.find("a").len(), 4, "they are known until they have ended");
        (0..5).for_each(|slot| known.remove(id(slot)));
        assert!(known.ends.is_empty() && known.by_slot.is_empty());
    }

    #[test]
    fn all_connections_of_somebody_are_found_until_they_end() {
        let mut known = Known::default();
        for slot in 0..3 {
            known.add(id(slot), &holder(r#"{"user":1}"#, None));
        }
        known.add(id(3), &holder(r#"{"user":2}"#, None));
        known.remove(id(1));
        known.remove(id(9));
        assert_eq!(known.find(r#"{"user":1}"#), [id(0), id(2)]);
        assert_eq!(known.find(r#"{"user":2}"#), [id(3)]);
        (0..4).for_each(|slot| known.remove(id(slot)));
        assert!(known.by_slot.is_empty() && known.by_identifiers.is_empty());
    }
}
