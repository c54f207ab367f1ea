//! [`Addresses`]: connections and connection rate of each address, for all workers. Sharded,
//! bounded, and held in ordered trees, so that no choice of addresses makes a lookup slow.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{AdmissionLimits, Prefix, Refusal, SECOND_NS, spend};
use crate::invariant::broken;
use crate::limits::ADDRESSES_MAX;

const SHARDS: usize = 64;

/// An address reduced to its prefix. IPv4 is stored as IPv4-mapped IPv6 (RFC 4291 section 2.5.5.2).
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key(u128);

impl Key {
    pub(crate) fn new(address: IpAddr, prefix: Prefix) -> Key {
        let keep = |width: u32, bits: u8| {
            let dropped_bits = width.saturating_sub(u32::from(bits));
            u128::MAX.checked_shl(dropped_bits).unwrap_or(0)
        };
        match address.to_canonical() {
            IpAddr::V4(v4) => Key(bits_of(v4.to_ipv6_mapped()) & keep(32, prefix.v4)),
            IpAddr::V6(v6) => Key(bits_of(v6) & keep(128, prefix.v6)),
        }
    }

    fn shard(self) -> usize {
        // The low bits of IPv4, the last ones of an IPv6 prefix: mixed, as adjacent addresses
        // differ there.
        let folded = (self.0 >> 64) as u64 ^ self.0 as u64;
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS
    }
}

fn bits_of(address: Ipv6Addr) -> u128 {
    u128::from(address)
}

struct Entry {
    sockets: u32,
    /// As in [`spend`].
    paid_ns: u64,
}

impl Entry {
    fn is_idle(&self, now_ns: u64) -> bool {
        self.sockets == 0 && self.paid_ns <= now_ns
    }
}

#[derive(Default)]
struct Shard {
    entries: BTreeMap<Key, Entry>,
    /// Entries without connections are removed once a second.
    swept_ns: u64,
}

/// The result of counting a new connection of an address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CountResult {
    /// It counts until [`Addresses::release`].
    Counted,
    /// The table of addresses is full; the connection is admitted and not counted.
    Uncounted,
    Refused(Refusal),
}

/// All addresses that have connections, or had one within the last second.
pub(crate) struct Addresses {
    shards: Box<[Mutex<Shard>]>,
    shard_max: usize,
}

impl Default for Addresses {
    fn default() -> Self {
        Addresses::new(ADDRESSES_MAX)
    }
}

impl Addresses {
    fn new(max: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Addresses { shards, shard_max: max / SHARDS }
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        self.shards[key.shard()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acquire(&self, key: Key, limits: &AdmissionLimits, now_ns: u64) -> CountResult {
        let mut shard = self.shard(key);
        if now_ns.saturating_sub(shard.swept_ns) >= SECOND_NS {
            shard.swept_ns = now_ns;
            shard.entries.retain(|_, entry| !entry.is_idle(now_ns));
        }
        let full = shard.entries.len() >= self.shard_max;
        if full && !shard.entries.contains_key(&key) {
            return CountResult::Uncounted;
        }
        let (sockets, paid_ns) =
            shard.entries.get(&key).map_or((0, 0), |entry| (entry.sockets, entry.paid_ns));
        if limits.per_address.is_some_and(|most| sockets >= most) {
            return CountResult::Refused(Refusal::PerAddress);
        }
        let paid_ns = match limits.per_address_rate {
            None => paid_ns,
            Some(rate) => match spend(paid_ns, rate, now_ns) {
                Some(paid_ns) => paid_ns,
                None => return CountResult::Refused(Refusal::PerAddressRate),
            },
        };
        shard.entries.insert(key, Entry { sockets: sockets + 1, paid_ns });
        CountResult::Counted
    }

    pub(crate) fn release(&self, key: Key, now_ns: u64) {
        let mut shard = self.shard(key);
        let Some(entry) = shard.entries.get_mut(&key) else {
            return broken("a counted connection has an entry for its address");
        };
        entry.sockets = entry.sockets.saturating_sub(1);
        if entry.is_idle(now_ns) {
            shard.entries.remove(&key);
        }
    }

    /// Addresses held now.
    pub(crate) fn len(&self) -> usize {
        let each = self
            .shards
            .iter()
            .map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).entries.len());
        each.sum()
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = Ipv6Addr::from(self.0);
        match address.to_ipv4_mapped() {
            Some(v4) => Ipv4Addr::fmt(&v4, f),
            None => Ipv6Addr::fmt(&address, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text.parse().unwrap(), Prefix::default())
    }

    #[test]
    fn addresses_with_the_same_prefix_are_one_key() {
        assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
        assert_ne!(key("10.0.0.1"), key("10.0.0.2"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:0:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        let wide = |text: &str| Key::new(text.parse().unwrap(), Prefix { v4: 24, v6: 128 });
        assert_eq!(wide("10.0.0.1").to_string(), "10.0.0.0");
        assert_ne!(wide("2001:db8::1"), wide("2001:db8::2"));
        let all = Prefix { v4: 0, v6: 0 };
        assert_eq!(Key::new([1, 2, 3, 4].into(), all), Key::new([9, 9, 9, 9].into(), all));
        assert_ne!(Key::new([0, 0, 0, 0].into(), all), Key::new("::1".parse().unwrap(), all));
    }

    #[test]
    fn connections_and_rate_are_counted_per_address() {
        let limits = AdmissionLimits {
            per_address: Some(3),
            per_address_rate: Some(2),
            ..Default::default()
        };
        let addresses = Addresses::default();
        let (one, other) = (key("10.0.0.1"), key("10.0.0.2"));
        let enter = |key, now_ns| addresses.acquire(key, &limits, now_ns);
        assert_eq!([enter(one, 0), enter(one, 0)], [CountResult::Counted; 2]);
        assert_eq!(enter(one, 0), CountResult::Refused(Refusal::PerAddressRate));
        assert_eq!(enter(other, 0), CountResult::Counted);
        assert_eq!(enter(one, SECOND_NS), CountResult::Counted);
        assert_eq!(enter(one, 5 * SECOND_NS), CountResult::Refused(Refusal::PerAddress));
        addresses.release(one, 5 * SECOND_NS);
        assert_eq!(enter(one, 5 * SECOND_NS), CountResult::Counted);
        assert_eq!(addresses.len(), 2);
        for _ in 0..3 {
            addresses.release(one, 9 * SECOND_NS);
        }
        addresses.release(other, 9 * SECOND_NS);
        assert_eq!(addresses.len(), 0, "no entry outlives its connections");
    }

    #[test]
    fn the_table_is_bounded_and_idle_addresses_make_room() {
        let limits = AdmissionLimits { per_address_rate: Some(1), ..Default::default() };
        const MOST: usize = 1024;
        let addresses = Addresses::new(MOST);
        let mut uncounted = 0;
        for n in 0..2 * MOST as u32 {
            let key = Key::new(Ipv4Addr::from(n).into(), Prefix::default());
            match addresses.acquire(key, &limits, 1) {
                CountResult::Counted => addresses.release(key, 1),
                CountResult::Uncounted => uncounted += 1,
                CountResult::Refused(why) => panic!("{why:?}"),
            }
        }
        assert!(uncounted > 0 && addresses.len() <= MOST, "{uncounted}");
        let late = key("192.0.2.1");
        assert_eq!(addresses.acquire(late, &limits, 5 * SECOND_NS), CountResult::Counted);
    }
}
