//! [`SlotMap`]: which master of a Redis Cluster has which hash slots, as `CLUSTER SLOTS` tells; and the answers that send
//! a command elsewhere. No I/O.

use redis::Value;

use crate::placement::SLOTS;

/// The host and port of a node.
pub(super) type Address = (String, u16);

/// The masters and their slots.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SlotMap {
    masters: Vec<Address>,
    /// The number of a slot's master, from 1 on; 0 without one.
    owners: Vec<u16>,
}

impl SlotMap {
    /// The answer to `CLUSTER SLOTS` of a node at this host, which is that of nodes without one.
    pub(super) fn parse(answer: &Value, host: &str) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut map = SlotMap { masters: Vec::new(), owners: vec![0; SLOTS] };
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &**range else {
                return None;
            };
            let [name, Value::Int(port), ..] = &**master else { return None };
            let name = match name {
                Value::BulkString(name) => std::str::from_utf8(name).ok()?,
                Value::SimpleString(name) => name,
                Value::Nil => "",
                _ => return None,
            };
            let name = if matches!(name, "" | "?") { host } else { name };
            let address = (name.to_owned(), u16::try_from(*port).ok()?);
            let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
            let number = map.number(address)?;
            map.owners.get_mut(first..=last.max(first))?.fill(number);
        }
        // So that all nodes have the same masters in the same order.
        let first_slot =
            |master: usize| map.owners.iter().position(|one| usize::from(*one) == master + 1);
        let mut order: Vec<usize> = (0..map.masters.len()).collect();
        order.sort_by_key(|master| first_slot(*master).unwrap_or(SLOTS));
        let masters = order.iter().filter_map(|at| map.masters.get(*at).cloned()).collect();
        let place = |number: u16| order.iter().position(|at| at + 1 == usize::from(number));
        let renumbered = |number: &u16| place(*number).map_or(0, |place| place as u16 + 1);
        let owners = map.owners.iter().map(renumbered).collect();
        Some(SlotMap { masters, owners })
    }

    fn number(&mut self, address: Address) -> Option<u16> {
        let at = match self.masters.iter().position(|master| *master == address) {
            Some(at) => at,
            None => {
                self.masters.push(address);
                self.masters.len() - 1
            }
        };
        u16::try_from(at + 1).ok()
    }

    /// All masters, by their first slot.
    pub(super) fn masters(&self) -> &[Address] {
        &self.masters
    }

    /// The place of a slot's master in [`SlotMap::masters`].
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        usize::from(*self.owners.get(usize::from(slot))?).checked_sub(1)
    }

    /// A slot's master.
    pub(super) fn master(&self, slot: u16) -> Option<&Address> {
        self.masters.get(self.owner(slot)?)
    }
}

/// Where a command has to be sent that was not executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Redirect {
    /// The slot is another node's.
    Moved(Address),
    /// The slot is being moved, and the key is there already: after `ASKING`.
    Ask(Address),
    /// The slot is being moved, and one of the keys is: to the same node, in a moment.
    TryAgain,
}

impl Redirect {
    /// From the error of a node at this host.
    pub(super) fn parse(code: &str, details: &str, host: &str) -> Option<Self> {
        match code {
            "TRYAGAIN" => Some(Redirect::TryAgain),
            "MOVED" => address(details, host).map(Redirect::Moved),
            "ASK" => address(details, host).map(Redirect::Ask),
            _ => None,
        }
    }
}

/// `SLOT HOST:PORT`
fn address(details: &str, host: &str) -> Option<Address> {
    let (_, place) = details.trim().split_once(' ')?;
    let (name, port) = place.rsplit_once(':')?;
    let name = name.trim_matches(['[', ']']);
    let name = if matches!(name, "" | "?") { host } else { name };
    Some((name.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let master = Value::Array(vec![host, Value::Int(port), Value::Nil]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master.clone(), master])
    }

    fn host(name: &str) -> Value {
        Value::BulkString(name.into())
    }

    #[test]
    fn slots_have_the_master_of_their_range() {
        let answer = Value::Array(vec![
            range(8192, 16383, host("b"), 2),
            range(0, 100, host(""), 1),
            range(102, 200, Value::Nil, 1),
            range(101, 101, host("b"), 2),
        ]);
        let map = SlotMap::parse(&answer, "a").unwrap();
        assert_eq!(map.masters(), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let owners = [0, 100, 101, 102, 200, 201, 8191, 8192, 16383].map(|slot| map.owner(slot));
        let (a, b) = (Some(0), Some(1));
        assert_eq!(owners, [a, a, b, a, a, None, None, b, b]);
        assert_eq!((map.master(101).unwrap().1, map.master(300)), (2, None));
        for wrong in [
            Value::Nil,
            Value::Array(vec![range(0, 16384, host("a"), 1)]),
            Value::Array(vec![range(-1, 2, host("a"), 1)]),
            Value::Array(vec![range(0, 2, host("a"), 70_000)]),
            Value::Array(vec![Value::Array(vec![Value::Int(1)])]),
        ] {
            assert_eq!(SlotMap::parse(&wrong, "a"), None, "{wrong:?}");
        }
    }

    #[test]
    fn redirects_name_a_node() {
        let moved = |details| Redirect::parse("MOVED", details, "here");
        let to = |name: &str, port| Some(Redirect::Moved((name.to_owned(), port)));
        assert_eq!(moved("3999 127.0.0.1:6381"), to("127.0.0.1", 6381));
        assert_eq!(moved("3999 ::1:6381"), to("::1", 6381));
        assert_eq!(moved("3999 :6381"), to("here", 6381));
        assert_eq!((moved("3999"), moved("3999 a:b")), (None, None));
        let ask = Redirect::parse("ASK", "1 b:2", "here");
        assert_eq!(ask, Some(Redirect::Ask(("b".to_owned(), 2))));
        assert_eq!(Redirect::parse("TRYAGAIN", "", "here"), Some(Redirect::TryAgain));
        assert_eq!(Redirect::parse("ERR", "1 b:2", "here"), None);
    }

    proptest! {
        #[test]
        fn any_details_are_a_redirect_or_none(details in ".{0,40}") {
            let _ = Redirect::parse("MOVED", &details, "a");
        }
    }
}
