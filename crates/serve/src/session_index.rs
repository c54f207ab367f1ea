//! [`SessionIndex`]: finds this worker's connections by the identifiers of their tokens, and those whose
//! token has expired. Connections without a token take no memory here.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use engine::{ConnId, invariant};

use crate::auth::TokenIdentity;
use crate::rails_identity::rails_name;

/// Connections by slot, by identifiers and by expiry.
#[derive(Default)]
pub(crate) struct SessionIndex {
    by_slot: HashMap<u32, Entry>,
    by_identifiers: HashMap<Arc<str>, Connections>,
    /// The identifiers of each name that Rails has for them, where Rails ends sessions.
    by_rails_name: Option<HashMap<String, Vec<Arc<str>>>>,
    /// Connections whose token expires, the first to expire first.
    expiries: BTreeSet<(u64, ConnId)>,
}

/// The connections with the same identifiers: mostly one, which needs no allocation.
enum Connections {
    One(ConnId),
    // The few keep the many small.
    #[expect(clippy::box_collection)]
    Many(Box<BTreeSet<ConnId>>),
}

impl Connections {
    fn insert(&mut self, id: ConnId) {
        match self {
            Connections::One(first) => {
                *self = Connections::Many(Box::new(BTreeSet::from([*first, id])));
            }
            Connections::Many(all) => drop(all.insert(id)),
        }
    }

    /// Removes one, and returns whether none is left.
    fn remove(&mut self, id: ConnId) -> bool {
        match self {
            Connections::One(only) => *only == id,
            Connections::Many(all) => all.remove(&id) && all.is_empty(),
        }
    }

    fn all(&self) -> Vec<ConnId> {
        match self {
            Connections::One(only) => vec![*only],
            Connections::Many(all) => all.iter().copied().collect(),
        }
    }
}

struct Entry {
    identifiers: Arc<str>,
    /// [`NEVER`] if the token does not expire; an `Option` would take 8 bytes of each entry.
    expires_unix_s: u64,
}

const NEVER: u64 = u64::MAX;

impl SessionIndex {
    /// An index without connections; with `rails_names` they are also found by what Rails names them.
    pub(crate) fn new(rails_names: bool) -> Self {
        SessionIndex { by_rails_name: rails_names.then(HashMap::new), ..SessionIndex::default() }
    }

    /// Adds a connection with the identity of its token.
    pub(crate) fn add(&mut self, id: ConnId, holder: &TokenIdentity) {
        let identifiers = match self.by_identifiers.get_key_value(&*holder.identifiers) {
            Some((shared, _)) => Arc::clone(shared),
            None => {
                let identifiers: Arc<str> = (&*holder.identifiers).into();
                self.name(&identifiers);
                identifiers
            }
        };
        let expires_unix_s = holder.expires_unix_s.unwrap_or(NEVER);
        let connections = self.by_identifiers.entry(Arc::clone(&identifiers));
        connections
            .and_modify(|connections| connections.insert(id))
            .or_insert(Connections::One(id));
        self.by_slot.insert(id.slot(), Entry { identifiers, expires_unix_s });
        if expires_unix_s != NEVER {
            self.expiries.insert((expires_unix_s, id));
        }
    }

    /// Removes a connection that has closed.
    pub(crate) fn remove(&mut self, id: ConnId) {
        if self.by_slot.is_empty() {
            return;
        }
        // Sessions without a token have no entry.
        let Some(Entry { identifiers, expires_unix_s }) = self.by_slot.remove(&id.slot()) else {
            return;
        };
        if self.by_slot.capacity() > 64 && self.by_slot.len() < self.by_slot.capacity() / 8 {
            self.by_slot.shrink_to(2 * self.by_slot.len());
        }
        self.expiries.remove(&(expires_unix_s, id));
        let Some(ids) = self.by_identifiers.get_mut(&identifiers) else {
            return invariant::broken("a session with identifiers is found by them");
        };
        if ids.remove(id) {
            self.by_identifiers.remove(&identifiers);
            self.forget_name(&identifiers);
            let (sessions, room) = (self.by_identifiers.len(), self.by_identifiers.capacity());
            if room > 64 && sessions < room / 8 {
                self.by_identifiers.shrink_to(2 * sessions);
            }
        }
    }

    fn name(&mut self, identifiers: &Arc<str>) {
        if let Some(names) = &mut self.by_rails_name
            && let Some(name) = rails_name(identifiers)
        {
            names.entry(name).or_default().push(Arc::clone(identifiers));
        }
    }

    fn forget_name(&mut self, identifiers: &str) {
        let Some(names) = &mut self.by_rails_name else { return };
        let Some(name) = rails_name(identifiers) else { return };
        if let Some(all) = names.get_mut(&name) {
            all.retain(|other| **other != *identifiers);
            if all.is_empty() {
                names.remove(&name);
            }
        }
        if names.capacity() > 64 && names.len() < names.capacity() / 8 {
            names.shrink_to(2 * names.len());
        }
    }

    /// The identifiers that Rails names so.
    pub(crate) fn named_by_rails(&self, name: &str) -> Vec<Arc<str>> {
        let names = self.by_rails_name.as_ref();
        names.and_then(|names| names.get(name)).cloned().unwrap_or_default()
    }

    /// The identifiers of a connection's token.
    pub(crate) fn identifiers(&self, id: ConnId) -> Option<&Arc<str>> {
        self.by_slot.get(&id.slot()).map(|entry| &entry.identifiers)
    }

    /// All connections with these identifiers, byte for byte.
    pub(crate) fn find(&self, identifiers: &str) -> Vec<ConnId> {
        self.by_identifiers.get(identifiers).map(Connections::all).unwrap_or_default()
    }

    /// A connection whose token has expired; each is returned once.
    pub(crate) fn take_expired(&mut self, now_unix_s: u64) -> Option<ConnId> {
        let (until, id) = *self.expiries.first()?;
        (now_unix_s > until).then(|| self.expiries.remove(&(until, id)))?;
        Some(id)
    }

    /// When the next token expires, if any.
    pub(crate) fn next_expiry_unix_s(&self) -> Option<u64> {
        self.expiries.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u64) -> ConnId {
        ConnId::from_u64(slot << 32 | 1)
    }

    fn holder(identifiers: &str, expires_unix_s: Option<u64>) -> TokenIdentity {
        TokenIdentity { identifiers: identifiers.into(), expires_unix_s }
    }

    #[test]
    fn expired_sessions_are_returned_once_and_in_order() {
        let mut index = SessionIndex::default();
        for (slot, until) in [(0, Some(30)), (1, None), (2, Some(10)), (3, Some(10)), (4, Some(20))]
        {
            index.add(id(slot), &holder("a", until));
        }
        index.remove(id(3));
        assert_eq!((index.next_expiry_unix_s(), index.take_expired(10)), (Some(10), None));
        let over: Vec<ConnId> = std::iter::from_fn(|| index.take_expired(21)).collect();
        assert_eq!((over, index.next_expiry_unix_s()), (vec![id(2), id(4)], Some(30)));
        assert_eq!(index.find("a").len(), 4, "they stay in the index until they close");
        (0..5).for_each(|slot| index.remove(id(slot)));
        assert!(index.expiries.is_empty() && index.by_slot.is_empty());
    }

    #[test]
    fn identifiers_are_found_by_what_rails_names_them_until_their_last_connection_has_closed() {
        let mut index = SessionIndex::new(true);
        let (one, other) = (r#"{"user":"a","n":1}"#, r#"{"n":1,"user":"a"}"#);
        index.add(id(0), &holder(one, None));
        index.add(id(1), &holder(one, None));
        index.add(id(2), &holder(other, None));
        index.add(id(3), &holder("no JSON", None));
        let found = |index: &SessionIndex| -> Vec<String> {
            index.named_by_rails("1:a").iter().map(|text| (**text).to_owned()).collect()
        };
        assert_eq!(found(&index), [one, other]);
        index.remove(id(0));
        index.remove(id(2));
        assert_eq!(found(&index), [one]);
        index.remove(id(1));
        index.remove(id(3));
        assert!(found(&index).is_empty() && index.by_rails_name.is_some_and(|all| all.is_empty()));
        let mut without = SessionIndex::default();
        without.add(id(0), &holder(one, None));
        assert!(found(&without).is_empty());
    }

    #[test]
    fn all_connections_with_the_same_identifiers_are_found_until_they_close() {
        let mut index = SessionIndex::default();
        for slot in 0..3 {
            index.add(id(slot), &holder(r#"{"user":1}"#, None));
        }
        index.add(id(3), &holder(r#"{"user":2}"#, None));
        index.remove(id(1));
        index.remove(id(9));
        assert_eq!(index.find(r#"{"user":1}"#), [id(0), id(2)]);
        assert_eq!(index.find(r#"{"user":2}"#), [id(3)]);
        assert_eq!(index.identifiers(id(3)).map(|text| &**text), Some(r#"{"user":2}"#));
        assert_eq!(index.identifiers(id(1)), None);
        (0..4).for_each(|slot| index.remove(id(slot)));
        assert!(index.by_slot.is_empty() && index.by_identifiers.is_empty());
    }
}
