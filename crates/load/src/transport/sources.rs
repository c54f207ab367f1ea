//! [`Sources`]: the source address and destination of each connection, chosen so that no pair uses more
//! than half the ephemeral ports. Beyond that each connect scans thousands (ip-sysctl,
//! `ip_local_port_range`), and in the end the kernel returns `EADDRNOTAVAIL`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::Endpoint;

/// Assumed number of ports if it cannot be read: the kernel's default range.
const USABLE_PORTS_DEFAULT: u64 = 28_232;

/// The most other addresses tried when a planned one has no port left.
const CHANGES_MAX: u32 = 64;

/// The plan for a whole run, shared by its workers.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    addresses: Addresses,
    destinations: u64,
    /// Destinations with separate port ranges.
    distinct_destinations: u64,
    /// Connections per source and destination.
    per_source: u64,
    /// The number of planned sources.
    planned: u32,
}

#[derive(Clone, Debug)]
enum Addresses {
    /// The kernel chooses.
    Kernel,
    /// 127.0.0.0/8 from this address on; the kernel chooses while one source is enough.
    Loopback(u32),
    List(Arc<[IpAddr]>),
}

/// The available source addresses.
pub(crate) fn host_sources(endpoints: &[Endpoint], listed: &[IpAddr]) -> capacity::Sources {
    if !listed.is_empty() {
        capacity::Sources::Addresses(listed.len() as u64)
    } else if endpoints.iter().all(Endpoint::is_ipv4_loopback) {
        capacity::Sources::Loopback
    } else {
        capacity::Sources::Addresses(1)
    }
}

/// How many times the ports of one source can be used: once per distinct address of the endpoints.
/// Through a proxy all share its address. With uneven sharing, the most shared address decides.
pub(crate) fn distinct_destinations(endpoints: &[Endpoint]) -> u64 {
    let mut crowds: HashMap<SocketAddr, u64> = HashMap::new();
    endpoints.iter().for_each(|one| *crowds.entry(one.address).or_default() += 1);
    let crowded = crowds.into_values().max().unwrap_or(1);
    (endpoints.len() as u64 / crowded).max(1)
}

impl Sources {
    /// A plan for `connections` to `endpoints`, with `usable_ports` ephemeral ports. With too
    /// few addresses each uses more ports. `seed` sets the start in 127.0.0.0/8, so that a run avoids
    /// ports left in TIME_WAIT by the last one.
    pub(crate) fn plan(
        connections: u64,
        endpoints: &[Endpoint],
        listed: &[IpAddr],
        usable_ports: Option<u64>,
        seed: u32,
    ) -> Sources {
        let (destinations, distinct_destinations) =
            (endpoints.len().max(1) as u64, distinct_destinations(endpoints));
        let usable = usable_ports.unwrap_or(USABLE_PORTS_DEFAULT);
        let needed = capacity::sources_needed(connections, usable, distinct_destinations)
            .unwrap_or(u64::MAX);
        let (addresses, available) = match host_sources(endpoints, listed) {
            capacity::Sources::Loopback => {
                // 127.0.1.2 to 127.127.255.2, in steps of 256.
                let first = u32::from(Ipv4Addr::new(127, 0, 0, 2)) + (1 + seed % 0x7fff) * 256;
                (Addresses::Loopback(first), capacity::limits::LOOPBACK_SOURCES / 2)
            }
            capacity::Sources::Addresses(_) if listed.is_empty() => (Addresses::Kernel, 1),
            capacity::Sources::Addresses(available) => (Addresses::List(listed.into()), available),
        };
        let planned = needed.clamp(1, available.max(1));
        let per_source = connections.div_ceil(planned * distinct_destinations).max(1);
        let per_source = if planned < needed {
            per_source
        } else {
            capacity::limits::ports_per_source(usable).max(1)
        };
        Sources {
            addresses,
            destinations,
            distinct_destinations,
            per_source,
            planned: planned as u32,
        }
    }

    /// Destination and source of connection `position` of the run, after `changes` addresses had
    /// no port left; `None` when none is left to try.
    pub(crate) fn pair(&self, position: u64, changes: u32) -> Option<(u8, Option<IpAddr>)> {
        let destination = (position % self.destinations) as u8;
        Some((destination, self.source(position, changes)?))
    }

    /// The source alone.
    pub(crate) fn source(&self, position: u64, changes: u32) -> Option<Option<IpAddr>> {
        let planned = (position / self.distinct_destinations / self.per_source) as u32;
        Some(match &self.addresses {
            Addresses::Kernel if changes > 0 => return None,
            Addresses::Kernel => None,
            Addresses::Loopback(_) if changes == 0 && self.planned <= 1 => None,
            Addresses::Loopback(_) if changes > CHANGES_MAX => return None,
            Addresses::Loopback(first) => {
                // No other worker uses addresses beyond the planned ones.
                let at = first + planned + changes * self.planned;
                Some(IpAddr::V4(Ipv4Addr::from(at)))
            }
            Addresses::List(list) if changes as usize >= list.len() => return None,
            Addresses::List(list) => {
                list.get((planned as usize + changes as usize) % list.len()).copied()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(urls: &[&str]) -> Vec<Endpoint> {
        urls.iter().map(|url| Endpoint::parse(url).unwrap()).collect()
    }

    #[test]
    fn no_pair_gets_more_than_half_the_ports() {
        for urls in [&["ws://127.0.0.1:1/"][..], &["ws://127.0.0.1:1/", "ws://127.0.0.1:2/"]] {
            let sources = Sources::plan(2_000, &endpoints(urls), &[], Some(200), 7);
            let mut pairs: HashMap<_, u64> = HashMap::new();
            for position in 0..2_000 {
                let (destination, source) = sources.pair(position, 0).unwrap();
                assert!(source.unwrap().is_loopback());
                *pairs.entry((destination, source)).or_default() += 1;
            }
            assert_eq!(pairs.len(), 20);
            assert!(pairs.values().all(|&n| n == 100));
        }
    }

    #[test]
    fn endpoints_of_one_address_share_its_ports() {
        let one = endpoints(&["ws://127.0.0.1:1/a", "ws://127.0.0.1:1/b"]);
        let sources = Sources::plan(2_000, &one, &[], Some(200), 7);
        let mut taken: HashMap<_, u64> = HashMap::new();
        for position in 0..2_000 {
            *taken.entry(sources.pair(position, 0).unwrap().1).or_default() += 1;
        }
        assert!(taken.len() == 20 && taken.values().all(|&n| n == 100), "{taken:?}");
        assert_eq!(
            distinct_destinations(&endpoints(&["ws://127.0.0.1:1/", "ws://127.0.0.1:2/"])),
            2
        );
    }

    #[test]
    fn single_source_is_left_to_the_kernel() {
        let local = endpoints(&["ws://127.0.0.1:1/"]);
        let sources = Sources::plan(100, &local, &[], Some(200), 0);
        assert_eq!(sources.pair(99, 0), Some((0, None)));
        let (_, next) = sources.pair(99, 1).unwrap();
        assert!(next.unwrap().is_loopback(), "as its ports may be in use by others");
        assert_eq!(sources.pair(99, CHANGES_MAX + 1), None);
    }

    #[test]
    fn changes_leave_the_planned_addresses() {
        let local = endpoints(&["ws://127.0.0.1:1/"]);
        let sources = Sources::plan(1_000, &local, &[], Some(200), u32::MAX);
        let planned: Vec<_> = (0..10).map(|n| sources.pair(n * 100, 0).unwrap()).collect();
        for changes in 1..=CHANGES_MAX {
            let next = sources.pair(950, changes).unwrap();
            assert!(next.1.unwrap().is_loopback() && !planned.contains(&next));
        }
    }

    #[test]
    fn with_too_few_addresses_each_uses_more_ports() {
        let far = endpoints(&["ws://192.0.2.1:80/"]);
        let sources = Sources::plan(1_000, &far, &[], Some(200), 0);
        assert_eq!((sources.pair(999, 0), sources.pair(999, 1)), (Some((0, None)), None));
        let list: Vec<IpAddr> = (1..=10).map(|n| IpAddr::from([192, 0, 2, n])).collect();
        let sources = Sources::plan(1_000, &far, &list, Some(200), 0);
        assert_eq!(sources.pair(0, 0), Some((0, Some(list[0]))));
        assert_eq!(sources.pair(999, 0), Some((0, Some(list[9]))));
        assert_eq!(sources.pair(999, 1), Some((0, Some(list[0]))));
        assert_eq!(sources.pair(999, 10), None);
        let sources = Sources::plan(1_000, &far, &list[..4], Some(200), 0);
        assert_eq!(sources.pair(249, 0), Some((0, Some(list[0]))));
        assert_eq!(sources.pair(999, 0), Some((0, Some(list[3]))));
    }
}
