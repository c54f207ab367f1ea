//! Health checks of `standfast proxy`: what they send, what passes, and what happens when all fail.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;

use base64::Engine;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::{Leg, Upstream};
use crate::harness::{Scratch, eventually, http};

const QUICK: &str = "check_interval = '100ms'\nrise = 1\nfall = 1\n";

/// The value of a header in a head.
fn value<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// The Sec-WebSocket-Accept of a key (RFC 6455 section 4.2.2).
fn accept(key: &str) -> String {
    let digest = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    base64::engine::general_purpose::STANDARD.encode(digest)
}

/// A server that answers as Action Cable does in a new Rails application in production: only hosts of
/// its list (if any), only over HTTPS, and only pages of its own origin.
fn rails(hosts: &'static [&'static str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut leg = Leg::of(stream);
                let Some(head) = leg.head_if_any() else { return };
                let host = value(&head, "Host").unwrap();
                let same = value(&head, "Origin") == Some(&format!("https://{host}"));
                let status = match value(&head, "Sec-WebSocket-Key") {
                    _ if !hosts.is_empty() && !hosts.contains(&host) => "403 Blocked host",
                    _ if value(&head, "X-Forwarded-Proto") != Some("https") => "301 To HTTPS",
                    None => "200 OK",
                    Some(key) if same => {
                        return leg.say(format!(
                            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: \
                             Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n",
                            accept(key)
                        ));
                    }
                    Some(_) => "404 Not Found",
                };
                leg.say(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"));
            });
        }
    });
    address
}

fn upstream(proxy: &Server) -> Value {
    let listed = http::get(proxy.admin, "/api/upstreams").json();
    listed["pools"][0]["upstreams"][0].clone()
}

fn proxy(name: &str, pool: &str) -> Server {
    let config = Scratch::new(&format!("{name}.toml"), &format!("[pool.a]\n{pool}\n{QUICK}"));
    Server::start_proxy(&["--config", config.path()])
}

#[test]
fn a_new_rails_application_passes_every_check() {
    let app = rails(&[]);
    for check in ["websocket:/cable", "http:/up"] {
        let extra = if check.starts_with("http") { "check_expect = '200'\n" } else { "" };
        let proxy = proxy("rails", &format!("upstreams = ['{app}']\ncheck = '{check}'\n{extra}"));
        eventually("it was checked several times", || {
            let shown = upstream(&proxy);
            shown["checks"].as_u64().unwrap() >= 3
        });
        let shown = upstream(&proxy);
        assert_eq!(
            (&shown["state"], &shown["flips"]),
            (&"up".into(), &0.into()),
            "{check} {shown}"
        );
    }
}

#[test]
fn checks_send_the_configured_host_and_headers_and_expect_the_configured_statuses() {
    let app = rails(&["example.com"]);
    let config = format!("upstreams = ['{app}']\ncheck = 'websocket:/cable'\n");
    let blocked = proxy("blocked", &config);
    eventually("its host is unknown", || upstream(&blocked)["state"] == "down");
    let expected = proxy("expected", &format!("{config}check_expect = '101,400-403'\n"));
    let named = proxy("named", &format!("{config}check_host = 'example.com'\n"));
    for proxy in [&expected, &named] {
        eventually("it is checked", || upstream(proxy)["checks"].as_u64().unwrap() >= 3);
        assert_eq!(upstream(proxy)["flips"], 0);
    }
    let listener = Upstream::new();
    let _proxy = proxy(
        "headers",
        &format!(
            "upstreams = ['{}']\ncheck = 'http:/up'\ncheck_host = 'b.test:81'\ncheck_headers = \
             ['X-Key: a b', 'User-Agent: probe/1', 'X-Forwarded-Proto:']\n",
            listener.address()
        ),
    );
    let head = listener.accept().head();
    assert!(head.starts_with("GET /up HTTP/1.1\r\nHost: b.test:81\r\n"), "{head}");
    assert!(head.contains("\r\nX-Key: a b\r\n"), "{head}");
    assert_eq!(value(&head, "User-Agent"), Some("probe/1"), "{head}");
    assert_eq!(value(&head, "X-Forwarded-Proto"), None, "an empty value removes a header: {head}");
}

#[test]
fn checks_leave_from_the_source_addresses_of_traffic() {
    let listener = Upstream::new();
    let sources: BTreeSet<IpAddr> = [[127, 0, 0, 8].into(), [127, 0, 0, 9].into()].into();
    for check in ["tcp", "http:/up", "websocket:/cable"] {
        let pool = format!("upstreams = ['{}']\ncheck = '{check}'\n{QUICK}", listener.address());
        let config = Scratch::new("sources.toml", &format!("[pool.a]\n{pool}"));
        let _proxy =
            Server::start_proxy(&["--config", config.path(), "--source", "127.0.0.8,127.0.0.9"]);
        let mut seen = BTreeSet::new();
        eventually("each address was used", || {
            listener.each_waiting(|leg| {
                seen.insert(leg.stream.peer_addr().unwrap().ip());
            });
            seen.len() >= sources.len()
        });
        assert_eq!(seen, sources, "{check}");
    }
}

#[test]
fn if_no_upstream_is_up_requests_go_to_all_of_them() {
    let node = Server::start(&[]);
    let config = format!("upstreams = ['{}']\ncheck = 'http:/missing'\n", node.listen);
    let status = |proxy: &Server| {
        let mut socket = Socket::connect(proxy.listen);
        socket.send(upgrade("/echo", &[]).as_bytes());
        socket.response().status
    };
    let panics = proxy("panics", &config);
    eventually("its checks fail", || upstream(&panics)["state"] == "down");
    assert_eq!(status(&panics), 101);
    assert_eq!(panics.metrics()["standfast_pool_panicked_total{pool=\"a\"}"], 1.0);
    eventually("the log says so", || {
        panics.log().contains("pool a: no upstream is up: requests go to all of them")
    });
    let refuses = proxy("refuses", &format!("{config}panic_threshold = 0\n"));
    eventually("its checks fail", || upstream(&refuses)["state"] == "down");
    assert_eq!(status(&refuses), 503);
    eventually("the log says so", || {
        refuses.log().contains("pool a: no upstream is up: requests are answered 503")
    });
}

#[test]
fn an_upstream_without_checks_is_unchecked() {
    let node = Server::start(&[]);
    let proxy = proxy("unchecked", &format!("upstreams = ['{}']", node.listen));
    assert_eq!(upstream(&proxy)["state"], "unchecked");
    assert_eq!(http::get(proxy.listen, "/health").status, 200);
}

#[test]
fn many_silent_upstreams_do_not_stop_the_checks_of_others() {
    // It accepts in the kernel and never answers. More than two times as many checks as run at a time.
    let silent = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut upstreams: Vec<String> =
        (1..=160).map(|host| format!("'127.0.1.{host}:{port}'")).collect();
    let absent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    upstreams.push(format!("'{absent}'"));
    let proxy = proxy(
        "silent",
        &format!(
            "upstreams = [{}]\ncheck = 'http:/'\ncheck_timeout = '500ms'",
            upstreams.join(", ")
        ),
    );
    eventually("the last one is down", || {
        let listed = http::get(proxy.admin, "/api/upstreams").json();
        let all = listed["pools"][0]["upstreams"].as_array().unwrap().clone();
        all.last().unwrap()["state"] == "down"
    });
}

#[test]
fn an_upstream_is_unchecked_until_its_first_check_has_finished() {
    // It accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let config = format!("upstreams = ['{address}']\ncheck = 'http:/up'\ncheck_timeout = '30s'\n");
    let proxy = proxy("first-check", &config);
    let (probe, _) = silent.accept().unwrap();
    let listed = upstream(&proxy);
    assert_eq!((&listed["state"], &listed["checks"]), (&json!("unchecked"), &json!(0)), "{listed}");
    drop(probe);
    eventually("the check has failed", || upstream(&proxy)["state"] == "down");
}
