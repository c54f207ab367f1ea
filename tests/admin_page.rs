//! The admin page at `/`: who may read what, its stream of samples, and the page in a browser.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::executable::run;
use crate::harness::http;
use crate::harness::peer::{self, works};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, token};
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::{PATIENCE, cable::Cable, eventually};

/// An open stream of samples.
struct Live {
    stream: TcpStream,
    read: String,
}

impl Live {
    fn open(server: &Server, more: &str) -> Live {
        let mut stream = TcpStream::connect(server.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /api/live HTTP/1.1\r\nHost: {}\r\n{more}\r\n", server.admin).unwrap();
        let mut live = Live { stream, read: String::new() };
        live.until("\r\n\r\n");
        live
    }

    fn until(&mut self, part: &str) -> String {
        loop {
            if let Some(at) = self.read.find(part) {
                let found = self.read[..at + part.len()].to_owned();
                self.read.drain(..at + part.len());
                return found;
            }
            let mut buffer = [0; 16 * 1024];
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the stream ended after {:?}", self.read);
            self.read.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
    }

    /// The data of the next event with this name.
    fn event(&mut self, name: &str) -> Value {
        self.until(&format!("event: {name}\ndata: "));
        let data = self.until("\n\n");
        serde_json::from_str(data.trim_end()).unwrap_or_else(|error| panic!("{error}: {data}"))
    }
}

#[test]
fn the_page_is_for_everyone_and_its_figures_are_for_the_key() {
    let server = Server::start(&["--admin-key", "correct-horse"]);
    let page = http::get(server.admin, "/");
    assert_eq!(page.status, 200, "{page:?}");
    let policy = page.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "frame-ancestors 'none'", "connect-src 'self'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(http::get(server.admin, "/api/live").status, 401);
    let mut live = Live::open(&server, "Authorization: Bearer correct-horse\r\n");
    let first = live.event("page");
    assert_eq!((&first["may_change"], &first["may_publish"]), (&json!(true), &json!(true)));
    let _socket = Socket::open(server.listen, "/topics/news");
    while live.event("sample")["values"]["now"]["connections"] != 1 {}
}

#[test]
fn without_a_key_the_page_is_for_this_machine_and_changes_nothing() {
    let server = Server::start(&[]);
    let mut live = Live::open(&server, "");
    let first = live.event("page");
    assert_eq!((&first["may_change"], &first["may_publish"]), (&json!(false), &json!(true)));
    drop(live);
    let secret = Server::start_with(&[], &[("STANDFAST_SERVE_SECRET", SECRET)]);
    let first = Live::open(&secret, "").event("page");
    assert_eq!(first["may_publish"], false, "publishing needs the application's key there");
    for field in ["Host: rebind.example", "Host: 127.0.0.1\r\nOrigin: https://evil.example"] {
        for path in ["/", "/api/live"] {
            let ask = format!("GET {path} HTTP/1.1\r\n{field}\r\nConnection: close\r\n\r\n");
            assert_eq!(http::ask(server.admin, &ask).status, 403, "{path} {field}");
        }
    }
    assert_eq!(server.metrics()["standfast_admin_refused_total"], 4.0);
}

#[test]
fn samples_are_taken_while_pages_are_open_and_their_number_is_limited() {
    let server = Server::start(&[]);
    assert_eq!(server.metrics()["standfast_admin_samples_total"], 0.0);
    let mut open: Vec<Live> = (0..16).map(|_| Live::open(&server, "")).collect();
    for live in &mut open {
        live.event("sample");
    }
    assert_eq!(server.metrics()["standfast_admin_pages"], 16.0);
    let refused = http::get(server.admin, "/api/live");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("16 pages"), "{refused:?}");
    assert_eq!(server.metrics()["standfast_admin_pages_refused_total"], 1.0);
    // One sampler for all: each stream has had every sample so far, not a sixteenth.
    let mut last = open.pop().unwrap();
    let before = server.metrics()["standfast_admin_samples_total"];
    (0..2).for_each(|_| drop(last.event("sample")));
    let after = server.metrics()["standfast_admin_samples_total"];
    assert!(after - before <= 4.0, "{before} {after}");
    drop((open, last));
    eventually("no page is open", || server.metrics()["standfast_admin_pages"] == 0.0);
}

#[test]
fn a_stream_shows_topics_and_refusals() {
    let server = Server::start(&["--public"]);
    let evil = "<img src=x onerror=alert(1)>";
    let _subscriber = Socket::open(server.listen, "/topics/%3Cimg%20src=x%20onerror=alert(1)%3E");
    let mut foreign = Socket::connect(server.listen);
    foreign.send(upgrade("/topics/x", &[("Origin", "https://evil.example")]).as_bytes());
    assert_eq!(foreign.response().status, 403);
    let mut live = Live::open(&server, "");
    let sample = live.event("sample");
    let topics = &sample["values"]["topics"];
    assert_eq!(topics[0]["topic"], evil, "{sample}");
    assert_eq!(topics[0]["subscribers"], 1, "{sample}");
    let refusals = sample["values"]["refusals"].as_array().unwrap();
    let origin = refusals.iter().find(|row| row["cause"] == "origin").unwrap();
    assert_eq!(origin["count"], 1);
    assert!(origin["hint"].as_str().unwrap().contains("--allow-origin"), "{origin}");
    let one = server.admin_get("/api/topics?topic=%3Cimg%20src=x%20onerror=alert(1)%3E").json();
    assert_eq!((&one["topic"], &one["subscribers"]), (&json!(evil), &json!(1)), "{one}");
    assert_eq!(server.admin_get("/api/topics?topic=none").json()["subscribers"], 0);
    assert_eq!(server.admin_get("/api/topics?topic=").status, 400);
}

#[test]
fn parts_that_are_on_have_sections_and_others_have_none() {
    let ids = |page: &Value| -> Vec<String> {
        let sections = page["page"]["sections"].as_array().unwrap();
        sections.iter().map(|section| section["id"].as_str().unwrap().to_owned()).collect()
    };
    let parts = ["application", "history", "presence", "webhooks"];
    let plain = Server::start(&[]);
    let page = ids(&Live::open(&plain, "").event("page"));
    assert!(page.iter().all(|id| !parts.contains(&id.as_str())), "{page:?}");

    let away = crate::harness::Deserted::port();
    let application = away.address.to_string();
    let hooks = format!("http://{application}/");
    let server = Server::start(&[
        "--history=memory",
        "--presence=memory",
        "--rpc-host",
        &application,
        "--webhook-url",
        &hooks,
    ]);
    assert_eq!(server.publish(&json!({"topic": "a", "data": "kept"})).status, 200);
    // Its call waits, as the application is away.
    let _client = Socket::open(server.listen, "/cable");
    let _subscriber = Socket::open(server.listen, "/topics/a");
    let mut live = Live::open(&server, "");
    let page = ids(&live.event("page"));
    assert!(parts.iter().all(|id| page.iter().any(|one| one == id)), "{page:?}");
    eventually("the sample shows all parts", || {
        let values = live.event("sample")["values"].take();
        let call = &values["application"];
        values["history"]["messages"] == 1
            && values["presence"]["members"] == 0
            && call["waiting"]
                .as_u64()
                .zip(call["running"].as_u64())
                .is_some_and(|(a, b)| a + b == 1)
            && values["webhooks"][0]["waiting"].as_u64().is_some_and(|waiting| waiting >= 1)
    });
}

#[test]
fn topics_that_are_not_public_are_counted_with_the_flag() {
    let server = Server::start_with(&[], &[("STANDFAST_SERVE_SECRET", SECRET)]);
    let mut refused = Socket::connect(server.listen);
    refused.send(upgrade("/topics/news", &[]).as_bytes());
    assert_eq!(refused.response().status, 403);
    assert_eq!(server.metrics()["standfast_public_refused_total"], 1.0);
    let sample = Live::open(&server, "").event("sample");
    let refusals = sample["values"]["refusals"].as_array().unwrap();
    assert!(refusals.iter().any(|row| row["hint"] == "--public"), "{sample}");
}

/// Each hint names only flags that the program has.
#[test]
fn hints_name_flags_that_exist() {
    let flags = |text: &str| -> BTreeSet<String> {
        let words = text.split(|sign: char| !(sign.is_ascii_lowercase() || sign == '-'));
        words.filter(|word| word.len() > 3 && word.starts_with("--")).map(str::to_owned).collect()
    };
    let shared = include_str!("../crates/admin/src/causes.rs");
    for (program, source) in [
        ("serve", include_str!("../crates/serve/src/control/page.rs")),
        ("proxy", include_str!("../crates/proxy/src/page.rs")),
    ] {
        let help = run(&["help", program, "all"]);
        let known = flags(&help.stdout);
        let named = flags(&[source, shared].concat());
        assert!(named.len() > 8, "{named:?}");
        let unknown: Vec<&String> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{program} has no {unknown:?}");
    }
}

#[test]
fn the_page_of_serve_in_a_browser() {
    let flags = ["--admin-key", "correct-horse", "--public", "--public-streams", "--workers", "2"];
    let server = Server::start_with(&flags, &[("STANDFAST_SERVE_SECRET", SECRET)]);
    let mut evil = Socket::open(server.listen, "/topics/%3Cimg%20src=x%20onerror=alert(1)%3E");
    let mut told = Socket::open(server.listen, "/topics/told");
    let mut alice = Cable::join(server.listen, Some(&token(1))).welcomed();
    let stream = json!({"channel": "$pubsub", "stream_name": "news"});
    assert_eq!(alice.subscribe(&stream), "confirm_subscription");
    let mut foreign = Socket::connect(server.listen);
    foreign.send(upgrade("/topics/x", &[("Origin", "https://evil.example")]).as_bytes());
    assert_eq!(foreign.response().status, 403);
    for _ in 0..1200 {
        evil.send_frame(TEXT, b"hello");
    }
    let url = format!("http://{}/", server.admin);
    let expected = [
        "locked",
        "wrong key",
        "live",
        "separators",
        "escaped",
        "refusals",
        "find a topic",
        "find topics by how they begin",
        "find an identity",
        "details",
        "published",
        "ended",
        "steady",
        "keyboard",
        "phone",
        "dark",
        "print",
        "same origin",
        "key forgotten",
    ];
    works(&peer::BROWSER, "admin_page.js", &[&url, "correct-horse"], &expected);
    if server.metrics()["standfast_admin_samples_total"] > 0.0 {
        let heard = told.frame().unwrap().payload;
        assert_eq!(heard, "<b>t\u{eb}st</b>".as_bytes());
        assert_eq!(alice.disconnect_reason(), ("remote".to_owned(), false));
    }
}

#[test]
fn the_page_without_a_key_is_read_only() {
    let server = Server::start(&[]);
    let _socket = Socket::open(server.listen, "/topics/news");
    let url = format!("http://{}/", server.admin);
    works(&peer::BROWSER, "admin_page_read_only.js", &[&url], &["live", "read-only", "published"]);
}

#[test]
fn the_page_of_a_proxy_in_a_browser() {
    let node = Server::start(&[]);
    let dead = crate::harness::Deserted::port();
    let upstreams = format!("{},{}", node.listen, dead.address);
    let proxy = Server::start_proxy(&["--upstream", &upstreams, "--admin-key", "correct-horse"]);
    let mut tunnel = Socket::open(proxy.listen, "/echo");
    let url = format!("http://{}/", proxy.admin);
    let (node, dead) = (node.listen.to_string(), dead.address.to_string());
    let expected = ["state", "weight", "drained", "resumed", "tunnel", "closed"];
    let args = [&*url, "correct-horse", &*node, &*dead];
    works(&peer::BROWSER, "admin_page_proxy.js", &args, &expected);
    if proxy.metrics()["standfast_admin_samples_total"] > 0.0 {
        while tunnel.take(&mut Vec::new()) {}
        assert_eq!(proxy.metrics()["standfast_tunnels_ended_total{reason=\"ordered\"}"], 1.0);
    }
}
