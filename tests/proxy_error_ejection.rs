//! Ejection of upstreams of `standfast proxy` by the share of their 5xx answers.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::server::Server;
use crate::harness::upstream::Leg;
use crate::harness::{Scratch, eventually, http};

/// A server that answers 200, or 500 while it is told to.
struct Node {
    address: SocketAddr,
    fails: Arc<AtomicBool>,
}

impl Node {
    fn start(fails: bool) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let fails = Arc::new(AtomicBool::new(fails));
        let told = Arc::clone(&fails);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let told = Arc::clone(&told);
                thread::spawn(move || {
                    let mut leg = Leg::of(stream);
                    while leg.head_if_any().is_some() {
                        let failed = told.load(Ordering::Relaxed);
                        let status = if failed { "500 Internal" } else { "200 OK" };
                        leg.say(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"));
                    }
                });
            }
        });
        Node { address, fails }
    }

    fn field(&self, proxy: &Server, field: &str) -> Value {
        let listed = http::get(proxy.admin, "/api/upstreams").json();
        let all = listed["pools"][0]["upstreams"].as_array().unwrap().clone();
        let own = json!(self.address.to_string());
        all.into_iter().find(|one| one["address"] == own).unwrap()[field].clone()
    }

    fn ejections(&self, proxy: &Server) -> f64 {
        let own = self.address;
        let labels = format!("pool=\"a\",upstream=\"{own}\",address=\"{own}\"");
        proxy.metrics()[&format!("standfast_upstream_ejections_5xx_total{{{labels}}}")]
    }
}

fn pool(nodes: [&Node; 2], more: &str) -> String {
    let [first, second] = nodes.map(|node| node.address);
    let balance = "balance = 'round_robin'";
    format!("[pool.a]\nupstreams = ['{first}', '{second}']\n{balance}\n{more}\n")
}

fn reload(proxy: &Server, config: &Scratch, text: &str) {
    let reloads = || proxy.log().matches("configuration reloaded").count();
    let before = reloads();
    config.write(text);
    proxy.signal(Signal::HUP);
    eventually("it is reloaded", || reloads() > before);
}

fn status(proxy: &Server) -> u16 {
    http::get(proxy.listen, "/").status
}

#[test]
fn an_upstream_that_answers_5xx_too_often_is_ejected_for_a_time_that_doubles() {
    let (good, bad) = (Node::start(false), Node::start(true));
    let nodes = [&good, &bad];
    let config = Scratch::new("errors.toml", &pool(nodes, ""));
    let proxy = Server::start_proxy(&["--config", config.path()]);
    for _ in 0..60 {
        status(&proxy);
    }
    assert_eq!(bad.ejections(&proxy), 0.0, "it is off by default");
    let long = "eject_5xx = 50\neject_5xx_answers = 10\neject_5xx_for = '1h'";
    reload(&proxy, &config, &pool(nodes, long));
    eventually("it is ejected", || {
        status(&proxy);
        bad.field(&proxy, "state") == "ejected"
    });
    assert_eq!(bad.field(&proxy, "ejected_by"), "5xx");
    assert!(bad.field(&proxy, "ejected_seconds").as_f64().unwrap() > 3_000.0);
    assert_eq!(bad.ejections(&proxy), 1.0);
    for _ in 0..20 {
        assert_eq!(status(&proxy), 200);
    }
    assert_eq!(good.field(&proxy, "state"), "unchecked");
    // A reload with it off brings it back.
    reload(&proxy, &config, &pool(nodes, "eject_5xx = 0"));
    assert_eq!(bad.field(&proxy, "state"), "unchecked");
    let short = "eject_5xx = 50\neject_5xx_answers = 10\neject_5xx_window = '60s'\neject_5xx_for = \
                 '100ms'\neject_5xx_for_max = '350ms'";
    reload(&proxy, &config, &pool(nodes, short));
    eventually("it is ejected again and again", || {
        status(&proxy);
        bad.ejections(&proxy) >= 5.0
    });
    for time in ["100ms", "200ms", "350ms"] {
        assert!(proxy.log().contains(&format!("answers were 5xx; for {time}\n")), "{time}");
    }
    bad.fails.store(false, Ordering::Relaxed);
    eventually("it is back", || {
        status(&proxy);
        bad.field(&proxy, "state") == "unchecked" && status(&proxy) == 200
    });
}

#[test]
fn the_last_upstreams_are_not_ejected() {
    let (first, second) = (Node::start(true), Node::start(true));
    let errors = "eject_5xx = 50\neject_5xx_answers = 5\neject_5xx_for = '1h'\n";
    let config = Scratch::new("last.toml", &pool([&first, &second], errors));
    let proxy = Server::start_proxy(&["--config", config.path()]);
    let withheld = "standfast_pool_ejections_withheld_total{pool=\"a\"}";
    eventually("one is ejected and the other one is not", || {
        status(&proxy);
        proxy.metrics()[withheld] > 0.0
    });
    assert_eq!(first.ejections(&proxy) + second.ejections(&proxy), 1.0);
    assert!(proxy.log().contains("upstream not ejected: "), "{}", proxy.log());
    assert_eq!(status(&proxy), 500, "it is passed on");
}
