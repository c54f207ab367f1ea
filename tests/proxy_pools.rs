//! `standfast proxy` with several `standfast serve` nodes: balancing, health checks, queues, and changes
//! while tunnels are open. Every delivery is checked meanwhile, so that a change that affects other
//! tunnels fails the test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::executable::{self, Running, standfast};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::upstream::Upstream;
use crate::harness::{Scratch, eventually, http};

/// One upstream in the admin API.
fn upstream(proxy: &Server, address: SocketAddr) -> Value {
    let told = proxy.admin_get("/api/upstreams").json();
    let pools = told["pools"].as_array().unwrap().clone();
    let all = pools.iter().flat_map(|pool| pool["upstreams"].as_array().unwrap().clone());
    let mut found = all.filter(|one| one["address"] == json!(address.to_string()));
    found.next().unwrap_or_else(|| panic!("no {address} in {told}"))
}

fn tunnels(proxy: &Server, address: SocketAddr) -> u64 {
    upstream(proxy, address)["tunnels"].as_u64().unwrap()
}

fn change(proxy: &Server, path: &str, body: &Value) -> Value {
    let response = proxy.admin_post(path, &body.to_string());
    assert!(response.status < 300, "{response:?}");
    response.json()
}

/// Publishes numbers to a topic, from 0 on, until it is stopped.
struct Publisher {
    stop: Arc<AtomicBool>,
    published: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Publisher {
    fn start(admin: SocketAddr, topic: &'static str) -> Publisher {
        let (stop, published) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&published));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let number = count.load(Ordering::Relaxed).to_string();
                let body = json!({ "topic": topic, "data": number }).to_string();
                eventually("it is accepted", || {
                    let response = http::post(admin, "/api/publish", &body);
                    // A worker that is late refuses a topic for a while.
                    assert!([200, 429].contains(&response.status), "{response:?}");
                    response.status == 200
                });
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
        });
        let publisher = Publisher { stop, published, thread };
        publisher.goes_on();
        publisher
    }

    fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    fn goes_on(&self) {
        let before = self.published();
        eventually("more is published", || self.published() > before);
    }

    /// Stops after a further message; returns how many there were.
    fn stop(self) -> u64 {
        self.goes_on();
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.published.load(Ordering::Relaxed)
    }
}

fn interrupt(load: &Running) {
    let pid = Pid::from_raw(load.0.id().try_into().unwrap());
    kill_process(pid.unwrap(), Signal::INT).unwrap();
}

fn proxy_to(nodes: &[&Server], more: &[&str]) -> Server {
    let upstreams: Vec<String> = nodes.iter().map(|node| node.listen.to_string()).collect();
    Server::start_proxy(
        &[&["--upstream", &upstreams.join(","), "--admin-key", "key"], more].concat(),
    )
}

fn echoes(socket: &mut Socket) -> bool {
    socket.send_frame(TEXT, b"there?");
    socket.frame().is_some_and(|frame| frame.payload == b"there?")
}

#[test]
fn adding_draining_and_killing_a_node_affects_only_its_own_tunnels() {
    let (steady, drained, mut killed) =
        (Server::start(&[]), Server::start(&[]), Server::start(&[]));
    let proxy = proxy_to(&[&steady], &[]);
    let fans: Vec<Socket> = (0..50).map(|_| Socket::open(proxy.listen, "/topics/fan")).collect();
    assert_eq!(tunnels(&proxy, steady.listen), 50);
    let publisher = Publisher::start(steady.admin, "fan");
    for node in [&drained, &killed] {
        let set = json!({ "action": "set", "upstream": node.listen.to_string() });
        assert_eq!(change(&proxy, "/api/upstreams", &set)["added"], 1);
    }
    let mut others: Vec<Socket> = (0..20).map(|_| Socket::open(proxy.listen, "/echo")).collect();
    let (of_drained, of_killed) = (tunnels(&proxy, drained.listen), tunnels(&proxy, killed.listen));
    assert_eq!(of_drained + of_killed, 20, "the two that are empty take them all");
    assert!(of_drained > 0 && of_killed > 0, "{of_drained} and {of_killed}");
    assert!(others.iter_mut().all(echoes));
    // As clients do: each closes when it sees the close.
    let until_end = |mut socket: Socket| thread::spawn(move || socket.ends());
    let others: Vec<_> = others.into_iter().map(until_end).collect();
    let drain =
        json!({ "action": "drain", "upstream": drained.listen.to_string(), "over_seconds": 0.5 });
    change(&proxy, "/api/upstreams", &drain);
    eventually("the drained one is empty", || tunnels(&proxy, drained.listen) == 0);
    assert_eq!(tunnels(&proxy, killed.listen), of_killed, "the other one is not");
    killed.signal(Signal::KILL);
    killed.wait();
    eventually("the killed one is empty", || tunnels(&proxy, killed.listen) == 0);
    assert!(others.into_iter().all(|other| other.join().unwrap()), "all twenty have ended");
    let mut again = Socket::open(proxy.listen, "/echo");
    assert!(echoes(&mut again), "whoever comes is sent to who is left");
    let published = publisher.stop();
    for (nth, mut fan) in fans.into_iter().enumerate() {
        for number in 0..published {
            let frame = fan.frame().expect("its tunnel stays open");
            assert_eq!(frame.payload, number.to_string().into_bytes(), "message of fan {nth}");
        }
    }
}

#[test]
fn clients_of_killed_nodes_reconnect_to_the_others() {
    let mut nodes = [Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let proxy = proxy_to(&[&nodes[0], &nodes[1], &nodes[2]], &[]);
    let url = format!("ws://{}/echo", proxy.listen);
    let args = ["load", &url, "--connections", "60", "--hold", "10m", "--json", "-"];
    let again = ["--reconnect", "--retry", "forever", "--backoff", "10ms..100ms"];
    let mut load = standfast(&[&args[..], &again].concat());
    let load = Running(load.stdin(Stdio::null()).spawn().unwrap());
    let addresses = [nodes[0].listen, nodes[1].listen, nodes[2].listen];
    // All are open, and none is still connecting: those count as tunnels of their node, too.
    let all_open = |from: usize| {
        let tunnels: u64 = addresses[from..].iter().map(|node| tunnels(&proxy, *node)).sum();
        let metrics = proxy.metrics();
        let (tunnels, open) = (tunnels as f64, metrics["standfast_tunnels"]);
        (tunnels, open, metrics["standfast_exchanges"]) == (60.0, 60.0, 0.0)
    };
    eventually("all are open", || all_open(0));
    // How they spread over the nodes depends on which node passed its first check when.
    let mut killed = 0;
    for (dead, node) in nodes.iter_mut().take(2).enumerate() {
        killed += tunnels(&proxy, node.listen);
        node.signal(Signal::KILL);
        node.wait();
        eventually("those who are left have them all", || all_open(dead + 1));
    }
    eventually("the last node has them all", || nodes[2].metrics()["standfast_websockets"] == 60.0);
    interrupt(&load);
    let finished = executable::finish(load);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    let summary = finished.json();
    assert_eq!(summary["connections"]["failed"], 0, "{summary}");
    assert!(killed >= 20, "the second node has half of what is left by then: {killed}");
    assert!(summary["connections"]["reconnects"].as_u64() >= Some(killed), "{summary}");
    let metrics = proxy.metrics();
    let (ended, opened) = (killed as f64, (60 + killed) as f64);
    assert!(metrics["standfast_tunnel_seconds_count"] >= ended, "{metrics:?}");
    assert!(metrics["standfast_connect_seconds_count"] >= opened, "{metrics:?}");
    assert!(metrics["standfast_switching_seconds_bucket{le=\"+Inf\"}"] >= opened, "{metrics:?}");
}

#[test]
fn an_upstream_can_be_a_name_or_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("standfast-pool-{}.sock", std::process::id()));
    let unix = format!("unix:{}", path.display());
    let (by_name, by_path) =
        (Server::start(&[]), Server::start(&["--listen", "127.0.0.1:0", "--listen", &unix]));
    // The name may also resolve to ::1, where connections are refused.
    let name = format!("localhost:{}", by_name.listen.port());
    let config = format!("[pool.a]\nupstreams = ['{name}', '{unix}']\ncheck = 'websocket:/echo'\n");
    let config = Scratch::new("places.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "key"]);
    let mut sockets: Vec<Socket> = (0..20).map(|_| Socket::open(proxy.listen, "/echo")).collect();
    assert!(sockets.iter_mut().all(echoes));
    let at = |node: &Server| node.metrics()["standfast_websockets"];
    assert!(at(&by_name) >= 5.0 && at(&by_path) >= 5.0, "{} {}", at(&by_name), at(&by_path));
}

#[test]
fn a_percentage_of_tunnels_is_closed_and_a_page_lists_the_rest() {
    let nodes = [Server::start(&[]), Server::start(&[])];
    let proxy = proxy_to(&[&nodes[0], &nodes[1]], &[]);
    let mut sockets: Vec<Socket> = (0..40).map(|_| Socket::open(proxy.listen, "/echo")).collect();
    assert_eq!(tunnels(&proxy, nodes[0].listen), 20, "least connections keep them level");
    change(&proxy, "/api/close", &json!({ "percent": 25, "over_seconds": 0.2 }));
    let open = || nodes.iter().map(|node| tunnels(&proxy, node.listen)).sum::<u64>();
    eventually("a quarter has ended", || open() == 30);
    let one = nodes[1].listen.to_string();
    let left = tunnels(&proxy, nodes[1].listen);
    change(&proxy, "/api/close", &json!({ "count": 5, "upstream": one }));
    eventually("five more have ended, all of one node", || {
        tunnels(&proxy, nodes[1].listen) == left - 5
    });
    assert_eq!(sockets.iter_mut().filter_map(|s| echoes(s).then_some(())).count(), 25);
    let (mut listed, mut after) = (BTreeMap::new(), "0".to_owned());
    loop {
        let page = proxy.admin_get(&format!("/api/tunnels?limit=10&after={after}")).json();
        let tunnels = page["tunnels"].as_array().unwrap();
        assert!(tunnels.len() <= 10, "{page}");
        for tunnel in tunnels {
            listed.insert(tunnel["id"].as_str().unwrap().to_owned(), tunnel["upstream"].clone());
        }
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    assert_eq!(listed.len(), 25, "{listed:?}");
    let of_one = format!("/api/tunnels?limit=100&upstream={one}");
    let of_one = proxy.admin_get(&of_one).json();
    assert_eq!(of_one["tunnels"].as_array().unwrap().len() as u64, left - 5);
}

/// From the second worker on a tunnel's id exceeds what a JavaScript number holds.
#[test]
fn pages_of_tunnels_continue_by_string_ids_over_all_workers() {
    let node = Server::start(&[]);
    let proxy = proxy_to(&[&node], &["--workers", "2", "--max-connections", "6"]);
    let _sockets: Vec<Socket> = (0..6).map(|_| Socket::open(proxy.listen, "/echo")).collect();
    let (mut names, mut after) = (Vec::new(), "0".to_owned());
    for _ in 0..=6 {
        let page = proxy.admin_get(&format!("/api/tunnels?limit=1&after={after}")).json();
        let tunnels = page["tunnels"].as_array().unwrap();
        names.extend(tunnels.iter().map(|tunnel| tunnel["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        assert_eq!(next, tunnels[0]["id"], "{page}");
        next.clone_into(&mut after);
    }
    let numbers: Vec<u64> = names.iter().map(|name| name.parse().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.len() == 6, "each once: {numbers:?}");
    assert!(numbers.iter().any(|number| *number > 1 << 53), "some of the second worker");
}

#[test]
fn a_sticky_cookie_on_the_101_returns_the_client() {
    let nodes = [Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let addresses: Vec<String> = nodes.iter().map(|node| node.listen.to_string()).collect();
    let config =
        format!("[pool.a]\nupstreams = {addresses:?}\nbalance = 'random'\nsticky = 'lb'\n");
    let config = Scratch::new("sticky.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "key"]);
    let open = |cookie: Option<&str>| {
        let cookie = cookie.map(|cookie| format!("Cookie: {cookie}\r\n")).unwrap_or_default();
        let mut socket = Socket::connect(proxy.listen);
        socket.send(
            format!(
                "GET /echo HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n{cookie}\r\n",
                proxy.listen,
                crate::harness::socket::KEY
            )
            .as_bytes(),
        );
        let response = socket.response();
        assert_eq!(response.status, 101, "{response:?}");
        (socket, response.header("set-cookie").map(str::to_owned))
    };
    let (first, set) = open(None);
    let set = set.expect("a cookie comes with the 101");
    let cookie = set.split(';').next().unwrap();
    let home = nodes.iter().find(|node| tunnels(&proxy, node.listen) == 1).unwrap();
    let again: Vec<_> = (0..20).map(|_| open(Some(cookie))).collect();
    assert!(again.iter().all(|(_, set)| set.is_none()), "it has the right one");
    assert_eq!(tunnels(&proxy, home.listen), 21);
    drop((first, again));
    let drain = json!({ "action": "drain", "upstream": home.listen.to_string() });
    change(&proxy, "/api/upstreams", &drain);
    let (_elsewhere, anew) = open(Some(cookie));
    assert!(anew.is_some_and(|anew| !anew.starts_with(cookie)), "and a new one where it must");
}

#[test]
fn sticky_cookies_are_honoured_by_proxies_with_the_same_secret() {
    let upstreams: Vec<Upstream> = (0..3).map(|_| Upstream::new()).collect();
    let addresses: Vec<String> = upstreams.iter().map(|u| u.address().to_string()).collect();
    let text = |secret: &str| {
        format!(
            "[proxy]\n{secret}\nworkers = 1\n[pool.a]\nupstreams = {addresses:?}\n\
             balance = 'round_robin'\nsticky = 'lb'\n"
        )
    };
    let shared = Scratch::new("sticky-secret", "of the fleet\n");
    let by_file = format!("sticky_secret = 'file:{}'", shared.path());
    let secrets = [&*by_file, "sticky_secret = 'of the fleet'", "sticky_secret = 'x'", ""];
    let files: Vec<Scratch> = secrets
        .iter()
        .enumerate()
        .map(|(nth, secret)| Scratch::new(&format!("sticky-{nth}.toml"), &text(secret)))
        .collect();
    let proxies: Vec<Server> =
        files.iter().map(|file| Server::start_proxy(&["--config", file.path()])).collect();
    // Returns which upstream got the request, and the cookie that was set.
    let ask = |proxy: &Server, cookie: &str| {
        let mut socket = Socket::connect(proxy.listen);
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: {cookie}\r\n\r\n");
        socket.send(request.as_bytes());
        let mut got = None;
        eventually("an upstream gets it", || {
            for (nth, upstream) in upstreams.iter().enumerate() {
                upstream.each_waiting(|mut leg| {
                    leg.head();
                    leg.say("HTTP/1.1 204 None\r\nConnection: close\r\n\r\n");
                    got = Some(nth);
                });
            }
            got.is_some()
        });
        let set = socket.response().header("set-cookie").map(str::to_owned);
        (got.unwrap(), set.map(|set| set.split(';').next().unwrap().to_owned()))
    };
    let (home, set) = ask(&proxies[0], "a=b");
    let cookie = set.expect("a cookie is set");
    for _ in 0..4 {
        assert_eq!(ask(&proxies[0], &cookie), (home, None));
        assert_eq!(ask(&proxies[1], &cookie), (home, None));
    }
    for (stranger, told) in [(&proxies[2], false), (&proxies[3], true)] {
        let anew = ask(stranger, &cookie).1.expect("a cookie of its own");
        assert_ne!(anew, cookie);
        assert_eq!(stranger.log().contains("--sticky-secret"), told, "{}", stranger.log());
    }
    // A reload with another secret replaces the cookies of the old one.
    files[1].write(&text("sticky_secret = 'new'"));
    proxies[1].signal(Signal::HUP);
    eventually("it is reloaded", || ask(&proxies[1], &cookie).1.is_some());
}

#[test]
fn a_silent_upstream_is_skipped_until_it_recovers() {
    let (node, mut dying) = (Server::start(&[]), Server::start(&[]));
    let address = dying.listen;
    let config = format!(
        "[pool.a]\nupstreams = ['{}', '{address}']\ncheck = 'http:/health'\ncheck_interval = \
         '100ms'\neject_after = 0\n",
        node.listen
    );
    let config = Scratch::new("health.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "key"]);
    let state = || upstream(&proxy, address)["state"].as_str().unwrap().to_owned();
    eventually("it was checked", || state() == "up");
    dying.signal(Signal::KILL);
    dying.wait();
    let mut socket = Socket::open(proxy.listen, "/echo");
    assert!(echoes(&mut socket), "a connect that is refused is tried elsewhere");
    eventually("the health check finds it", || state() == "down");
    eventually("it is logged", || proxy.log().contains("upstream down: "));
    let picked = |of: SocketAddr| upstream(&proxy, of)["picked"].as_u64().unwrap();
    let before = picked(address);
    drop((0..10).map(|_| Socket::open(proxy.listen, "/echo")).collect::<Vec<_>>());
    assert_eq!(picked(address), before, "no request goes there");
    let text = address.to_string();
    let _back = Server::start(&["--listen", &text]);
    eventually("it is up again", || state() == "up");
    assert_eq!(upstream(&proxy, address)["flips"], 2);
}

#[test]
fn a_reload_changes_routes_and_keeps_tunnels() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let text = |node: &Server, more: &str| {
        format!("[proxy]\nbacklog = 128\n[pool.a]\nupstreams = ['{}']\n{more}", node.listen)
    };
    let config = Scratch::new("routes.toml", &text(&old, ""));
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "key"]);
    let mut before = Socket::open(proxy.listen, "/echo");
    config.write(&text(&new, "wieght = 1\n"));
    proxy.signal(Signal::HUP);
    eventually("what is wrong is said", || proxy.log().contains(":5: [pool.a] has no key wieght"));
    drop(Socket::open(proxy.listen, "/echo"));
    assert_eq!(upstream(&proxy, old.listen)["picked"], 2, "nothing was changed");
    config.write(&text(&new, ""));
    proxy.signal(Signal::HUP);
    eventually("the other upstream is there", || {
        proxy.admin_get("/api/upstreams").body.contains(&new.listen.to_string())
    });
    let mut after = Socket::open(proxy.listen, "/echo");
    assert!(echoes(&mut before) && echoes(&mut after));
    assert_eq!(tunnels(&proxy, new.listen), 1);
    let left = upstream(&proxy, old.listen);
    assert_eq!((&left["state"], &left["tunnels"]), (&json!("removed"), &json!(1)));
    drop(before);
    eventually("it is forgotten", || {
        !proxy.admin_get("/api/upstreams").body.contains(&old.listen.to_string())
    });
}

#[test]
fn requests_queue_in_order_while_every_node_is_at_its_max() {
    let node = Server::start(&[]);
    let config = format!(
        "[pool.a]\nupstreams = ['{}']\nmax = 2\nqueue = 1\nqueue_timeout = '60s'\n",
        node.listen
    );
    let config = Scratch::new("queue.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "key"]);
    let first = Socket::open(proxy.listen, "/echo");
    let _second = Socket::open(proxy.listen, "/echo");
    let upgrade = crate::harness::socket::upgrade("/echo", &[]);
    let mut waiting = Socket::connect(proxy.listen);
    waiting.send(upgrade.as_bytes());
    eventually("it waits", || proxy.admin_get("/api/upstreams").json()["pools"][0]["waiting"] == 1);
    let mut refused = Socket::connect(proxy.listen);
    refused.send(upgrade.as_bytes());
    assert_eq!(refused.response().status, 503, "one may wait, not two");
    drop(first);
    assert_eq!(waiting.response().status, 101);
    assert!(echoes(&mut waiting));
}

#[test]
fn a_queued_request_uses_added_upstreams_and_not_removed_ones() {
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    let config = format!(
        "[pool.a]\nupstreams = [{{ address = '{}', max = 1 }}]\nqueue = 5\nqueue_timeout = '10m'\n",
        first.listen
    );
    let config = Scratch::new("changes.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "key"]);
    let of_first = Socket::open(proxy.listen, "/echo");
    let waits = || {
        let mut socket = Socket::connect(proxy.listen);
        socket.send(crate::harness::socket::upgrade("/echo", &[]).as_bytes());
        eventually("it waits", || {
            proxy.admin_get("/api/upstreams").json()["pools"][0]["waiting"] == 1
        });
        socket
    };
    let of = |node: &Server, action: &str| json!({ "action": action, "upstream": node.listen.to_string() });
    let mut waiting = waits();
    let mut set = of(&second, "set");
    set["max"] = json!(1);
    change(&proxy, "/api/upstreams", &set);
    assert_eq!(waiting.response().status, 101, "one that came has room");
    let mut again = waits();
    set["max"] = json!(2);
    change(&proxy, "/api/upstreams", &set);
    assert_eq!(again.response().status, 101, "and takes more now");
    let mut third = waits();
    change(&proxy, "/api/upstreams", &of(&first, "remove"));
    drop(of_first);
    eventually("one that went gets nothing more", || {
        !proxy.admin_get("/api/upstreams").body.contains(&first.listen.to_string())
    });
    drop(again);
    assert_eq!(third.response().status, 101);
    assert!(echoes(&mut third) && echoes(&mut waiting));
    assert_eq!(tunnels(&proxy, second.listen), 2);
}

#[test]
fn tunnels_of_a_removed_pool_are_shown_until_they_end() {
    let (here, there) = (Server::start(&[]), Server::start(&[]));
    let rest = format!("[[route]]\npool = 'rest'\n[pool.rest]\nupstreams = ['{}']\n", here.listen);
    let gone = format!(
        "[[route]]\npath = '/echo'\npool = 'r'\n[pool.r]\nupstreams = ['{}']\nmax = 1\nqueue = 1\n\
         queue_timeout = '10m'\n",
        there.listen
    );
    let config = Scratch::new("gone.toml", &format!("{rest}{gone}"));
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "key"]);
    let mut socket = Socket::open(proxy.listen, "/echo");
    let mut waiting = Socket::connect(proxy.listen);
    waiting.send(crate::harness::socket::upgrade("/echo", &[]).as_bytes());
    let shown = || proxy.admin_get("/api/upstreams").json()["pools"].clone();
    let pool = || shown().as_array().unwrap().iter().find(|pool| pool["pool"] == "r").cloned();
    eventually("it waits", || pool().is_some_and(|pool| pool["waiting"] == 1));
    config.write(&rest);
    proxy.signal(Signal::HUP);
    assert_eq!(waiting.response().status, 503, "nobody can ever take it");
    assert!(echoes(&mut socket));
    let left = pool().unwrap()["upstreams"][0].clone();
    assert_eq!((&left["state"], &left["tunnels"]), (&json!("removed"), &json!(1)));
    let metrics = proxy.metrics();
    let of_upstreams =
        metrics.iter().filter(|(name, _)| name.starts_with("standfast_upstream_tunnels{"));
    let sum: f64 = of_upstreams.map(|(_, tunnels)| tunnels).sum();
    assert_eq!((sum, metrics["standfast_tunnels"]), (1.0, 1.0), "{metrics:?}");
    drop(socket);
    eventually("it is forgotten", || pool().is_none());
}

#[test]
fn declined_handshakes_leak_no_permit() {
    let node = Server::start(&[]);
    let config = format!(
        "[pool.a]\nupstreams = ['{}']\nmax = 50\nqueue = 2000\nqueue_timeout = '60s'\n",
        node.listen
    );
    let config = Scratch::new("refused.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "key"]);
    let url = format!("ws://{}/nowhere", proxy.listen);
    let refused = executable::run(&["load", &url, "--connections", "2000", "--json", "-"]);
    let summary: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(summary["connect_errors"], json!({ "status_404": 2_000 }), "{summary}");
    eventually("every place has come back", || tunnels(&proxy, node.listen) == 0);
    let metrics = proxy.metrics();
    assert_eq!(metrics["standfast_declined_total"], 2_000.0, "{metrics:?}");
    assert_eq!(upstream(&proxy, node.listen)["picked"], 2_000);
    assert!(echoes(&mut Socket::open(proxy.listen, "/echo")), "and may be taken again");
}

#[test]
fn doctor_shows_how_many_tunnels_fit() {
    let doctor = executable::run(&["doctor", "--role", "proxy", "--connections", "100M"]);
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    assert!(doctor.stdout.contains(": standfast proxy --max-connections "), "{doctor:?}");
}

#[test]
fn each_tunnel_is_logged() {
    let node = Server::start(&[]);
    let log = Scratch::new("access.log", "");
    let proxy = proxy_to(&[&node], &["--access-log", log.path()]);
    let mut socket = Socket::open(proxy.listen, "/echo?token=x");
    assert!(echoes(&mut socket));
    drop(socket);
    let mut line = Value::Null;
    eventually("the line is written", || {
        let text = std::fs::read_to_string(log.path()).unwrap();
        line = text.lines().next().map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
        !line.is_null()
    });
    assert_eq!(line["target"], "/echo?token=x", "{line}");
    assert_eq!(line["upstream"], json!(node.listen.to_string()), "{line}");
    assert_eq!((&line["status"], &line["closed_by"]), (&json!(101), &json!("client")), "{line}");
    // A masked frame of 6 bytes in, the same unmasked out.
    assert_eq!((&line["bytes_in"], &line["bytes_out"]), (&json!(12), &json!(8)), "{line}");
    assert_eq!(line["client"], "127.0.0.1", "{line}");
}

#[test]
fn check_validates_a_configuration_file() {
    let check = |text: &str| {
        let file = Scratch::new("checked.toml", text);
        executable::run(&["proxy", "check", file.path()])
    };
    let good = check("[proxy]\nworkers = 1\n[pool.a]\nupstreams = ['10.0.0.1:80', 'unix:/x']\n");
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.stdout.contains("1 route, 1 pool, 2 upstreams"), "{good:?}");
    for (text, complaint) in [
        (
            "[proxy]\nworker = 1\n[pool.a]\nupstreams = ['a:1']",
            ":2: [proxy] has no key worker; did you mean workers?",
        ),
        (
            "[pool.a]\nupstreams = ['a:1']\nbalanse = 'random'",
            ":3: [pool.a] has no key balanse; did you mean balance?",
        ),
        ("[pools.a]\nupstreams = ['a:1']", "did you mean [pool]?"),
        ("[[route]]\npool = 'b'\n[pool.a]\nupstreams = ['a:1']", "no [pool.b]"),
        (
            "[[route]]\nhost = 'chat.test:8080'\npool = 'a'\n[pool.a]\nupstreams = ['a:1']",
            "invalid host \"chat.test:8080\"",
        ),
    ] {
        let bad = check(text);
        assert_eq!(bad.code, Some(2), "{bad:?}");
        assert!(bad.stderr.contains(complaint), "{bad:?}");
    }
}
