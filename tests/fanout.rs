//! `standfast load --fanout`: publishes by HTTP or through sockets, checks every receipt, and reports
//! failed and late publications. Exact counts against a faulty server:
//! `crates/load/tests/fanout.rs`.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use serde_json::json;

use crate::harness::executable;
use crate::harness::http;
use crate::harness::server::Server;
use crate::harness::web::{ReceivedRequest, Web};

#[test]
fn fan_out_over_http_or_a_socket_checks_every_receipt() {
    let server = Server::start(&["--admin-key", "secret"]);
    let url = format!("ws://{}/topics/fan", server.listen);
    let publish = format!("http://{}/api/publish", server.admin);
    let few = ["--connections", "50", "--fanout", "100", "--messages", "40", "--size", "300"];
    let http = ["--publish-url", &publish, "--publish-key", "secret"];
    let envelope = r#"{"topic":"fan","data":"{\"message\":\"$DATA\"}"}"#;
    for door in [
        &http[..],
        &["--publish-by-socket"],
        &["--publish-by-socket", "--publishers", "7"],
        &[&http[..], &["--publishers", "3", "--topic", "fan"]].concat(),
        &[&http[..], &["--publish-body", envelope]].concat(),
    ] {
        let finished =
            executable::run(&[&["load", &url], &few[..], door, &["--json", "-"]].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let summary = finished.json();
        let broadcast = &summary["broadcast"];
        let publishers = door.iter().position(|&word| word == "--publishers");
        let publishers = publishers.map_or(1, |at| door[at + 1].parse().unwrap());
        assert_eq!(broadcast["publishers"].as_u64(), Some(publishers), "{broadcast}");
        let fields = ["published", "receivers", "expected", "received", "lost", "duplicated"];
        let said = fields.map(|field| broadcast[field].as_u64().unwrap_or(u64::MAX));
        assert_eq!(said, [40, 50, 2_000, 2_000, 0, 0], "{broadcast}");
        for times in ["latency", "to_first", "to_last", "first_to_last", "publish_lag"] {
            assert!(broadcast[times]["p99_ms"].is_number(), "no {times} in {broadcast}");
        }
    }
}

#[test]
fn refused_publications_are_reported_by_cause() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/topics/fan", server.listen);
    let nowhere = format!("http://{}/api/no-such-door", server.admin);
    let few = ["--connections", "2", "--fanout", "100", "--messages", "5"];
    let refused = [&["load", &url], &few[..], &["--publish-url", &nowhere]].concat();
    let refused = executable::run(&refused);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stdout.contains("5: HTTP 404"), "{}", refused.stdout);
    let how = executable::run(&[&["load", &url], &few[..]].concat());
    assert_eq!(how.code, Some(2), "{how:?}");
    assert!(how.stderr.contains("--publish-url"), "{}", how.stderr);
}

#[test]
fn publications_use_the_given_headers_and_resolve_address() {
    let server = Server::start(&[]);
    let admin = server.admin;
    // A foreign server that only forwards the bodies.
    let door = Web::start(move |got| {
        (http::post(admin, "/api/publish", &got.body).status, Vec::new(), String::new())
    });
    let url = format!("ws://{}/topics/fan", server.listen);
    let host = format!("news.test:{}", door.address.port());
    let (publish, entry) = (format!("http://{host}/in"), format!("{host}:127.0.0.1"));
    let few = ["--connections", "2", "--fanout", "100", "--messages", "5", "--json", "-"];
    let lines =
        ["--publish-header", "Authorization: Token of-news", "--publish-header", "X-Room:7"];
    let way = ["--publish-url", &publish, "--resolve", &entry];
    let finished = executable::run(&[&["load", &url], &few[..], &lines, &way].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(finished.json()["broadcast"]["received"], 10, "{finished:?}");
    let got = door.got();
    let said = |got: &ReceivedRequest| {
        let headers = ["authorization", "x-room", "host"].map(|name| got.header(name));
        headers == [Some("Token of-news"), Some("7"), Some(&host)]
    };
    assert!(got.len() == 5 && got.iter().all(said), "{got:?}");
}

#[test]
fn publications_to_an_unresolved_host_fail_one_by_one() {
    let server = Server::start(&["--public-streams"]);
    let nowhere = ["--publish-url", "http://nowhere.invalid/in", "--topic", "fan", "--json", "-"];
    let few = ["--connections", "2", "--fanout", "100", "--messages", "5"];
    let url = format!("ws://{}/topics/fan", server.listen);
    for more in [&[][..], &["--fail", "lost<1"]] {
        let (finished, summary) =
            executable::run(&[&["load", &url], &few[..], &nowhere, more].concat()).with_json();
        assert_eq!(finished.code, Some(1), "{more:?}: {finished:?}");
        let broadcast = &summary["broadcast"];
        assert_eq!(broadcast["publish_failed"], json!({"dns": 5}), "{broadcast}");
        let fields = ["published", "receivers", "expected", "received", "lost"];
        let said = fields.map(|field| broadcast[field].as_u64().unwrap_or(u64::MAX));
        assert_eq!(said, [0, 2, 0, 0, 0], "{broadcast}");
        let note =
            "warning: cannot resolve nowhere.invalid, its publications will fail (cause dns)";
        assert!(finished.stderr.contains(note), "{finished:?}");
    }
    // The churn test publishes to the same URL.
    let cable = format!("cable://{}", server.listen);
    let channel = r#"{"channel":"$pubsub","stream_name":"s{1..4}"}"#;
    let churn =
        ["--churn", "50", "--channel", channel, "--duration", "300ms", "--connections", "2"];
    let (finished, summary) = executable::run(
        &[&["load", &cable, "--fanout", "100"], &churn[..], &nowhere[..2], &nowhere[4..]].concat(),
    )
    .with_json();
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let failed = summary["churn"]["publish_failed"].as_object().expect("a map");
    assert!(failed.len() == 1 && failed["dns"].as_u64() > Some(0), "{summary}");
}

#[test]
fn slow_and_failing_publish_endpoints_are_reported() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/topics/fan", server.listen);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let publish = format!("http://{}/publish", listener.local_addr().unwrap());
    // The first publication is answered late and delivered to no one; the second is not answered; the
    // third is refused.
    let endpoint = std::thread::spawn(move || {
        let mut request = [0; 4_096];
        let (mut first, _) = listener.accept().unwrap();
        assert!(first.read(&mut request).unwrap() > 0);
        std::thread::sleep(Duration::from_millis(900));
        first.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        assert!(first.read(&mut request).unwrap() > 0);
        drop(first);
        let (mut third, _) = listener.accept().unwrap();
        assert!(third.read(&mut request).unwrap() > 0);
        third.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let few = ["--connections", "2", "--fanout", "100", "--messages", "3", "--json", "-"];
    let finished =
        executable::run(&[&["load", &url, "--publish-url", &publish], &few[..]].concat());
    endpoint.join().unwrap();
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let summary = finished.json();
    let broadcast = &summary["broadcast"];
    let fields = ["published", "expected", "received", "lost"];
    let said = fields.map(|field| broadcast[field].as_u64().unwrap_or(u64::MAX));
    assert_eq!(
        said,
        [2, 4, 0, 4],
        "publications that may have been accepted are expected: {broadcast}"
    );
    let failed = broadcast["publish_failed"].as_object().unwrap();
    assert_eq!((failed.len(), &failed["HTTP 503"]), (2, &json!(1)), "{broadcast}");
    let reasons = summary["reasons"].to_string();
    assert!(reasons.contains("the requested rate was not reached"), "{reasons}");
    let worst = broadcast["worst"].as_array().unwrap();
    assert!(worst.iter().all(|worst| worst["lost"] == 2) && worst.len() == 2, "{broadcast}");
}
