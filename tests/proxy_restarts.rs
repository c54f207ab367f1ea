//! Three `standfast serve` nodes behind `standfast proxy`, each killed and restarted in turn, while
//! clients stay connected and publications go to the topics of the other two: a kill affects only the
//! tunnels of its own node. `load` checks every delivery meanwhile.

use std::net::SocketAddr;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::executable::{self, Running, standfast};
use crate::harness::server::Server;
use crate::harness::socket::Socket;
use crate::harness::{Scratch, eventually, http};

/// Clients that stay connected, and subscribers of each topic.
const CROWD: u64 = 60;
const SUBSCRIBERS: u64 = 20;
const MESSAGES: u64 = 600;

/// The nodes and the proxy in front of them.
struct Cluster {
    nodes: Vec<Server>,
    addresses: Vec<SocketAddr>,
    proxy: Server,
    _config: Scratch,
}

impl Cluster {
    /// `/echo` is balanced by least connections; all clients of a topic go to one node.
    fn start() -> Cluster {
        let nodes: Vec<Server> = (0..3).map(|_| Server::start(&[])).collect();
        let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.listen).collect();
        let names: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let pool = format!(
            "upstreams = {names:?}\ncheck = 'http:/health'\ncheck_interval = '100ms'\neject_after = 0\n"
        );
        let config = format!(
            "[[route]]\npath = '/echo'\npool = 'crowd'\n[[route]]\npool = 'topics'\n\
             [pool.crowd]\n{pool}[pool.topics]\nhash = 'path'\n{pool}"
        );
        let config = Scratch::new("row.toml", &config);
        let proxy = Server::start_proxy(&["--config", config.path()]);
        Cluster { nodes, addresses, proxy, _config: config }
    }

    /// Tunnels of a pool to a node.
    fn tunnels(&self, pool: &str, node: usize) -> u64 {
        let upstream = self.addresses[node];
        let labels = format!("pool=\"{pool}\",upstream=\"{upstream}\",address=\"{upstream}\"");
        let name = format!("standfast_upstream_tunnels{{{labels}}}");
        self.proxy.metrics().get(&name).copied().unwrap_or_default() as u64
    }

    fn all(&self, pool: &str) -> u64 {
        (0..self.nodes.len()).map(|node| self.tunnels(pool, node)).sum()
    }

    fn is_up(&self, node: usize) -> bool {
        let told = http::get(self.proxy.admin, "/api/upstreams").json();
        let pools = told["pools"].as_array().unwrap().clone();
        let mut all = pools.iter().flat_map(|pool| pool["upstreams"].as_array().unwrap().clone());
        let address = json!(self.addresses[node].to_string());
        all.all(|one| one["address"] != address || one["state"] == "up")
    }

    /// For each node a topic that is hashed to it.
    fn topics(&self) -> Vec<String> {
        let mut topics = vec![None; self.nodes.len()];
        for number in 0.. {
            let topic = format!("t{number}");
            let socket = Socket::open(self.proxy.listen, &format!("/topics/{topic}"));
            let at = |node: &usize| self.tunnels("topics", *node) == 1;
            let node = (0..self.nodes.len()).find(at).expect("a tunnel is somewhere");
            topics[node].get_or_insert(topic);
            drop(socket);
            eventually("it is gone", || self.all("topics") == 0);
            if topics.iter().all(Option::is_some) {
                break;
            }
        }
        topics.into_iter().flatten().collect()
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node].signal(Signal::KILL);
        self.nodes[node].wait();
    }

    fn start_again(&mut self, node: usize) {
        self.nodes[node] = Server::start(&["--listen", &self.addresses[node].to_string()]);
        eventually("it is up again", || self.is_up(node));
    }

    fn load(&self, path: &str, more: &[&str]) -> Running {
        let url = format!("ws://{}{path}", self.proxy.listen);
        let mut load = standfast(&[&["load", &url, "--json", "-"], more].concat());
        Running(load.stdin(Stdio::null()).spawn().unwrap())
    }
}

#[test]
fn restarting_three_nodes_affects_only_their_own_tunnels() {
    let mut cluster = Cluster::start();
    let topics = cluster.topics();
    let (crowd, subscribers, messages) =
        (CROWD.to_string(), SUBSCRIBERS.to_string(), MESSAGES.to_string());
    let stay = ["--connections", &crowd, "--hold", "10m", "--reconnect", "--retry", "forever"];
    let stay = cluster.load("/echo", &[&stay[..], &["--backoff", "10ms..100ms"]].concat());
    let judged = ["--connections", &subscribers, "--fanout", "100", "--messages", &messages];
    let judged = [&judged[..], &["--publish-by-socket"]].concat();
    eventually("the crowd is there", || cluster.all("crowd") == CROWD);
    let mut ended = 0;
    for dead in 0..3 {
        let others = (0..3).filter(|node| *node != dead);
        let mut fans: Vec<(usize, Running)> =
            others.map(|n| (n, cluster.load(&format!("/topics/{}", topics[n]), &judged))).collect();
        eventually("both topics are published to", || {
            fans.iter().all(|(node, _)| {
                cluster.nodes[*node].metrics()["standfast_published_total{source=\"socket\"}"] > 5.0
            })
        });
        let its_own = cluster.tunnels("crowd", dead);
        assert!(its_own > 0, "node {dead} has nobody to lose");
        ended += its_own;
        cluster.kill(dead);
        eventually("the proxy has seen it", || cluster.tunnels("crowd", dead) == 0);
        let goes_on = |fan: &mut (usize, Running)| fan.1.0.try_wait().unwrap().is_none();
        assert!(fans.iter_mut().all(goes_on), "it was published meanwhile");
        eventually("the others have them all", || cluster.all("crowd") == CROWD);
        cluster.start_again(dead);
        for (node, fan) in fans {
            let finished = executable::finish(fan);
            finished.assert_held_at_any_rate();
            let summary = finished.json();
            let fields = ["published", "received", "lost", "duplicated", "reordered"];
            let said = fields.map(|field| summary["broadcast"][field].as_u64());
            let all = [MESSAGES, MESSAGES * SUBSCRIBERS, 0, 0, 0].map(Some);
            assert_eq!(said, all, "on node {node} while {dead} was killed: {summary}");
            assert_eq!(summary["closed"], json!({}), "{summary}");
        }
    }
    let pid = Pid::from_raw(stay.0.id().try_into().unwrap());
    kill_process(pid.unwrap(), Signal::INT).unwrap();
    let finished = executable::finish(stay);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    let summary = finished.json();
    assert_eq!(summary["connections"]["failed"], 0, "{summary}");
    assert_eq!(summary["connections"]["reconnects"], json!(ended), "only their own: {summary}");
}
