//! A Redis Cluster of `redis-server`s on loopback: masters that share the hash slots, with replicas or without.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::redis::Redis;
use super::{Deserted, eventually};

const SLOTS: usize = 16384;

/// A cluster that is complete.
pub(crate) struct Cluster {
    pub(crate) masters: Vec<Redis>,
    /// The replica of each master, or none at all.
    pub(crate) replicas: Vec<Redis>,
    folder: PathBuf,
    _buses: Vec<Deserted>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.masters.iter_mut().chain(&mut self.replicas).for_each(Redis::kill);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Cluster {
    /// Three masters, each with a replica if there are to be some; `None` without redis-server.
    pub(crate) fn start(with_replicas: bool) -> Option<Self> {
        Self::start_with(3, with_replicas, &[])
    }

    pub(crate) fn start_with(masters: usize, with_replicas: bool, flags: &[&str]) -> Option<Self> {
        let marker = Deserted::port();
        let name = format!("cluster-{}-{}", std::process::id(), marker.address.port());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder can be made");
        let (mut nodes, mut buses) = (Vec::new(), vec![marker]);
        let all = if with_replicas { 2 * masters } else { masters };
        for number in 0..all {
            let (bus, file) = (Deserted::port(), format!("nodes-{number}.conf"));
            let (port, dir) = (bus.address.port().to_string(), folder.display().to_string());
            let own = ["--cluster-enabled", "yes", "--cluster-port", &port, "--dir", &dir];
            let more = ["--cluster-config-file", &file, "--cluster-node-timeout", "1500"];
            nodes.push(Redis::start(&[&own[..], &more, flags].concat())?);
            buses.push(bus);
        }
        let replicas = nodes.split_off(masters);
        let cluster = Cluster { masters: nodes, replicas, folder, _buses: buses };
        cluster.join(all);
        Some(cluster)
    }

    fn nodes(&self) -> impl Iterator<Item = &Redis> {
        self.masters.iter().chain(&self.replicas)
    }

    fn join(&self, all: usize) {
        let count = self.masters.len();
        for (at, master) in self.masters.iter().enumerate() {
            let (first, after) = (at * SLOTS / count, (at + 1) * SLOTS / count);
            let answer = master.ask(&format!("CLUSTER ADDSLOTSRANGE {first} {}", after - 1));
            assert_eq!(answer, "+OK");
            // So that no two of them have the same number.
            master.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1));
        }
        let first = &self.masters[0];
        for (node, bus) in self.nodes().zip(&self._buses[1..]).skip(1) {
            let (at, bus) = (node.address(), bus.address.port());
            assert_eq!(first.ask(&format!("CLUSTER MEET {} {} {bus}", at.ip(), at.port())), "+OK");
        }
        for node in self.nodes() {
            eventually("the nodes know each other", || {
                let nodes = node.text("CLUSTER NODES");
                let is_linked = |line: &&str| line.split(' ').nth(7) == Some("connected");
                nodes.lines().filter(is_linked).count() == all
            });
        }
        for (master, replica) in self.masters.iter().zip(&self.replicas) {
            let replicate = format!("CLUSTER REPLICATE {}", master.text("CLUSTER MYID"));
            eventually("a replica knows its master", || replica.ask(&replicate) == "+OK");
            eventually("a replica has its master", || {
                replica.text("INFO replication").contains("master_link_status:up")
            });
        }
        self.until_complete();
    }

    /// Waits until all nodes that run agree that the cluster is complete.
    pub(crate) fn until_complete(&self) {
        for node in self.nodes().filter(|node| node.runs()) {
            eventually("the cluster is complete", || {
                node.text("CLUSTER INFO").contains("cluster_state:ok")
            });
        }
    }

    /// The first node, for --redis-url.
    pub(crate) fn url(&self) -> String {
        self.masters[0].url()
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: &str) -> usize {
        self.masters[0].ask(&format!("CLUSTER KEYSLOT {key}"))[1..].parse().expect("a number")
    }

    /// The number of the master that has a slot, as it was at the start.
    pub(crate) fn owner(&self, slot: usize) -> usize {
        let count = self.masters.len();
        (0..count).find(|at| slot < (at + 1) * SLOTS / count).expect("slots are below 16384")
    }

    /// Topics of each master, `many` of each.
    pub(crate) fn topics(&self, many: usize) -> Vec<Vec<String>> {
        let mut topics = vec![Vec::new(); self.masters.len()];
        for number in 0.. {
            let topic = format!("room{number}");
            let of = &mut topics[self.owner(self.slot(&channel(&topic)))];
            if of.len() < many {
                of.push(topic);
            }
            if topics.iter().all(|of| of.len() == many) {
                break;
            }
        }
        topics
    }

    /// Begins to move a slot.
    pub(crate) fn begin_move(&self, slot: usize, from: &Redis, to: &Redis) {
        let (source, target) = (from.text("CLUSTER MYID"), to.text("CLUSTER MYID"));
        assert_eq!(to.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}")), "+OK");
        assert_eq!(from.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}")), "+OK");
    }

    /// Moves the keys of a slot, one at a time; returns how many there were.
    pub(crate) fn move_keys(&self, slot: usize, from: &Redis, to: &Redis) -> usize {
        let at: SocketAddr = to.address();
        let mut moved = 0;
        while let Some(key) = from.list(&format!("CLUSTER GETKEYSINSLOT {slot} 1")).first() {
            let answer = from.ask(&format!("MIGRATE {} {} {key} 0 5000", at.ip(), at.port()));
            assert!(matches!(&*answer, "+OK" | "+NOKEY"), "{answer}");
            moved += 1;
        }
        moved
    }

    /// Ends a move: the slot is the target's.
    pub(crate) fn end_move(&self, slot: usize, to: &Redis) {
        let target = to.text("CLUSTER MYID");
        assert_eq!(to.ask(&format!("CLUSTER SETSLOT {slot} NODE {target}")), "+OK");
        for master in self.masters.iter().filter(|master| master.address() != to.address()) {
            assert_eq!(master.ask(&format!("CLUSTER SETSLOT {slot} NODE {target}")), "+OK");
        }
    }
}

/// The channel of a topic.
pub(crate) fn channel(topic: &str) -> String {
    format!("{{standfast:t:{topic}}}")
}
