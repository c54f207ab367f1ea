//! Backup upstreams of `standfast proxy`: they get requests only while no other upstream of their pool can
//! take them.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::{Scratch, eventually};

const POOL_PICKED: &str = "standfast_pool_backup_picked_total{pool=\"a\"}";

/// A pool of one upstream and one backup.
fn pool(first: SocketAddr, backup: SocketAddr, more: &str) -> String {
    format!(
        "[pool.a]\nupstreams = ['{first}', {{ address = '{backup}', backup = true }}]\ncheck = \
         'http:/health'\ncheck_interval = '100ms'\ncheck_timeout = '20s'\nrise = 1\n{more}\n"
    )
}

fn start(config: &Scratch) -> Server {
    Server::start_proxy(&["--config", config.path(), "--admin-key", "key"])
}

fn field(proxy: &Server, upstream: SocketAddr, field: &str) -> Value {
    let listed = proxy.admin_get("/api/upstreams").json();
    let all = listed["pools"][0]["upstreams"].as_array().unwrap().clone();
    let found = all.into_iter().find(|one| one["address"] == json!(upstream.to_string()));
    found.unwrap_or_else(|| panic!("no {upstream} in {listed}"))[field].clone()
}

fn tunnels(proxy: &Server, upstreams: [SocketAddr; 2]) -> [u64; 2] {
    upstreams.map(|upstream| field(proxy, upstream, "tunnels").as_u64().unwrap())
}

fn echoes(socket: &mut Socket) -> bool {
    socket.send_frame(TEXT, b"there?");
    socket.frame().is_some_and(|frame| frame.payload == b"there?")
}

#[test]
fn a_backup_serves_while_the_others_are_down_and_keeps_its_tunnels() {
    let (mut first, backup) = (Server::start(&[]), Server::start(&[]));
    let both = [first.listen, backup.listen];
    let config = Scratch::new("backup.toml", &pool(first.listen, backup.listen, ""));
    let proxy = start(&config);
    assert_eq!(both.map(|one| field(&proxy, one, "backup")), [json!(false), json!(true)]);
    let open: Vec<Socket> = (0..20).map(|_| Socket::open(proxy.listen, "/echo")).collect();
    assert_eq!(tunnels(&proxy, both), [20, 0]);
    first.signal(Signal::KILL);
    first.wait();
    drop(open);
    eventually("it is down", || field(&proxy, both[0], "state") == "down");
    let mut kept = Socket::open(proxy.listen, "/echo");
    assert!(echoes(&mut kept));
    eventually("the old tunnels have ended", || tunnels(&proxy, both) == [0, 1]);
    assert_eq!(proxy.metrics()[POOL_PICKED], 1.0);
    let serves = "pool a: only backups are up: requests go to 1 of 1 backups";
    eventually("the log says so", || proxy.log().contains(serves));
    let _again = Server::start(&["--listen", &both[0].to_string()]);
    eventually("it is up again", || field(&proxy, both[0], "state") == "up");
    eventually("the log says so", || proxy.log().contains("pool a: 1 of 1 upstreams are up"));
    let _open: Vec<Socket> = (0..5).map(|_| Socket::open(proxy.listen, "/echo")).collect();
    assert_eq!(tunnels(&proxy, both), [5, 1]);
    assert!(echoes(&mut kept), "the backup's tunnel stays");
    // A reload makes it an upstream as any other.
    config.write(&pool(both[0], both[1], "").replace("backup = true", "backup = false"));
    proxy.signal(Signal::HUP);
    eventually("it is none any more", || field(&proxy, both[1], "backup") == json!(false));
    let _more: Vec<Socket> = (0..4).map(|_| Socket::open(proxy.listen, "/echo")).collect();
    assert_eq!(tunnels(&proxy, both), [5, 5]);
    assert!(echoes(&mut kept));
}

#[test]
fn a_backup_takes_what_the_others_cannot() {
    let (first, backup) = (Server::start(&[]), Server::start(&[]));
    let both = [first.listen, backup.listen];
    let more = "max = 2\nqueue = 5\nqueue_timeout = '1ms'";
    let config = Scratch::new("backup-max.toml", &pool(first.listen, backup.listen, more));
    let proxy = start(&config);
    let act = |body: Value| {
        let answer = proxy.admin_post("/api/upstreams", &body.to_string());
        (answer.status, answer.body)
    };
    let mut open = Vec::new();
    for expected in [[1, 0], [2, 0], [2, 1], [2, 2]] {
        open.push(Socket::open(proxy.listen, "/echo"));
        assert_eq!(tunnels(&proxy, both), expected);
    }
    assert_eq!(proxy.metrics()["standfast_pool_queued_total{pool=\"a\"}"], 0.0);
    drop(open);
    eventually("they have ended", || tunnels(&proxy, both) == [0, 0]);
    // Also while the other one is drained.
    let drain = |action: &str| json!({ "action": action, "upstream": first.listen.to_string() });
    assert_eq!(act(drain("drain")).0, 200);
    let _on_backup = Socket::open(proxy.listen, "/echo");
    assert_eq!(tunnels(&proxy, both), [0, 1]);
    assert_eq!(act(drain("resume")).0, 200);
    let _on_first = Socket::open(proxy.listen, "/echo");
    assert_eq!(tunnels(&proxy, both), [1, 1]);
    // A pool has an upstream that is no backup.
    let (status, body) = act(drain("remove"));
    assert_eq!(status, 400);
    assert!(body.contains("has backup upstreams only"), "{body}");
    let set = json!({ "action": "set", "upstream": backup.listen.to_string(), "backup": false });
    assert_eq!(act(set).0, 200);
    assert_eq!(field(&proxy, backup.listen, "backup"), json!(false));
    assert_eq!(act(drain("remove")).0, 200);
}
