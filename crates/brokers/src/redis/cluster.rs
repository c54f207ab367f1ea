//! Redis Cluster as a [`Transport`]: publish and subscribe of shard channels, which needs Redis 7 or Valkey.
//!
//! A process has a connection for each master that the cluster had when it started: its *part*, the hash slots that the
//! master had then. A part keeps its slots, so all that is known of a topic stays where it is. When slots move, its
//! link follows them (`cluster/route.rs`), with a connection to each of their masters; when one of these is lost, the
//! link ends, and the next attempt to connect asks for the slots again.

mod link;
mod master;
mod route;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::PushInfo;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tracing::warn;

pub use self::link::ClusterLink;
use super::RedisTransport;
use super::sharded::ShardSubscriber;
use super::slots::{Address, SlotMap};
use crate::broker::Settings;
use crate::limits::{CONNECT_TIMEOUT, PARTS_MAX, PARTS_UNKNOWN, SEED_TIMEOUT};
use crate::placement::{Placement, SLOTS};
use crate::settings::{RedisUrl, ServerAddress};
use crate::transport::{Fault, FaultKind, Inbox, Transport};

/// A part of a Redis Cluster.
#[derive(Clone, Debug)]
pub struct ClusterTransport {
    /// The nodes to ask first.
    seeds: Arc<[RedisTransport]>,
    /// The number of the part.
    at: u8,
    parts: usize,
    placement: Arc<[u8; SLOTS]>,
    nodes: Arc<Mutex<Nodes>>,
}

/// Nodes that can be asked, and which one is next.
#[derive(Debug, Default)]
struct Nodes {
    masters: Vec<Address>,
    next: usize,
}

impl ClusterTransport {
    /// The whole cluster that these nodes belong to, as one part.
    #[must_use]
    pub fn new(seeds: Vec<RedisTransport>) -> Self {
        let placement = Arc::new([0; SLOTS]);
        ClusterTransport { seeds: seeds.into(), at: 0, parts: 1, placement, nodes: Arc::default() }
    }

    /// A part for each master, which one of the nodes is asked for. If none of them answers, the slots are divided evenly:
    /// that takes some connections more.
    ///
    /// # Errors
    /// The first node that answers is not of a cluster, has no shard channels, or refuses the credentials; or there is
    /// no runtime.
    pub fn discover(&self) -> Result<Vec<Self>, Fault> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime =
            runtime.map_err(|error| Fault::new(FaultKind::Unreachable, error.to_string()))?;
        let (placement, parts) = match LocalSet::new().block_on(&runtime, self.slots(true)) {
            Ok(map) if !map.masters().is_empty() => by_master(&map),
            Err(fault) if fault.kind == FaultKind::Refused => return Err(fault),
            unknown => {
                let why = unknown.err().map_or("no node has slots".to_owned(), |fault| fault.why);
                warn!("the masters of the Redis Cluster are not known yet: {why}");
                let part = |slot: usize| (slot * PARTS_UNKNOWN / SLOTS) as u8;
                (std::array::from_fn(part), PARTS_UNKNOWN)
            }
        };
        let placement = Arc::new(placement);
        let part = |at: usize| ClusterTransport {
            at: at as u8,
            parts,
            placement: Arc::clone(&placement),
            ..self.clone()
        };
        Ok((0..parts).map(part).collect())
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node, reached as the first seed is.
    fn node(&self, (host, port): &Address) -> Option<RedisTransport> {
        let RedisTransport { url, tls, .. } = self.seeds.first()?;
        let address = ServerAddress::Tcp(host.clone(), *port);
        let url = RedisUrl { address, ..url.clone() };
        Some(RedisTransport { url, tls: tls.clone(), sentinels: Vec::new() })
    }

    /// The slots as some node knows them. Each call begins with another one, as one may be cut off from the others.
    async fn slots(&self, verify: bool) -> Result<SlotMap, Fault> {
        let candidates: Vec<RedisTransport> = {
            let mut nodes = self.nodes();
            let masters = nodes.masters.iter().filter_map(|address| self.node(address));
            let mut all: Vec<RedisTransport> = masters.chain(self.seeds.iter().cloned()).collect();
            let first = nodes.next % all.len().max(1);
            all.rotate_left(first);
            nodes.next = nodes.next.wrapping_add(1);
            all
        };
        let mut last = Fault::new(FaultKind::Unreachable, "no node is known");
        for node in &candidates {
            let time = if verify { CONNECT_TIMEOUT } else { SEED_TIMEOUT };
            let asking = tokio::time::timeout(time, ask(node, verify)).await;
            let silent = |_| Err(Fault::new(FaultKind::Silent, "no answer"));
            match asking.unwrap_or_else(silent) {
                Ok(map) => {
                    self.nodes().masters = map.masters().to_vec();
                    return Ok(map);
                }
                Err(Fault { kind, why }) => {
                    last = Fault::new(kind, format!("{}: {why}", node.url));
                    if verify && kind == FaultKind::Refused {
                        break;
                    }
                }
            }
        }
        Err(last)
    }
}

/// The slots as a node knows them.
async fn ask(node: &RedisTransport, verify: bool) -> Result<SlotMap, Fault> {
    let ServerAddress::Tcp(host, _) = &node.url.address else {
        return Err(Fault::new(FaultKind::Refused, "a node of a cluster is reached by TCP"));
    };
    let connection = node.open(&node.url.address, None::<fn(PushInfo)>).await?;
    let map = link::slots_of(&connection, host).await?;
    if verify {
        let stream = node.stream(&node.url.address).await?;
        let (inbox, _) = Inbox::new(0, Arc::default());
        ShardSubscriber::new(&node.url, stream, inbox).await?.require_shard_channels().await?;
    }
    Ok(map)
}

/// A part for each master.
fn by_master(map: &SlotMap) -> ([u8; SLOTS], usize) {
    let parts = map.masters().len().clamp(1, PARTS_MAX);
    let part = |slot: usize| (map.owner(slot as u16).unwrap_or_default() % parts) as u8;
    (std::array::from_fn(part), parts)
}

impl Transport for ClusterTransport {
    type Link = ClusterLink;

    fn placement(&self) -> Placement {
        Placement::Slots(Arc::clone(&self.placement))
    }

    fn server(&self) -> String {
        let seed = self.seeds.first().map(|seed| seed.url.to_string()).unwrap_or_default();
        format!("{seed} part {} of {}", usize::from(self.at) + 1, self.parts)
    }

    async fn connect(&self, inbox: Inbox, settings: &Settings) -> Result<ClusterLink, Fault> {
        let map = self.slots(false).await?;
        let link = ClusterLink::new(self.clone(), inbox, settings);
        link.open(map).await?;
        Ok(link)
    }
}
