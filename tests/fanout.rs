//! `standfast load --fanout`: publishes by HTTP or through sockets, checks every receipt, and reports
//! failed and late publications. Exact counts against a faulty server:
//! `crates/load/tests/fanout.rs`.

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::eventually;
use crate::harness::executable::{self, Running, standfast};
use crate::harness::http;
use crate::harness::server::Server;
use crate::harness::tls_front::Front;
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
    // All three arrive before any is answered. The first is accepted late and delivered to no one, the
    // second is refused, the third is not answered.
    let endpoint = std::thread::spawn(move || {
        let (mut one, _) = listener.accept().unwrap();
        let mut requests = Vec::new();
        while requests.windows(5).filter(|five| five == b"POST ").count() < 3
            || !requests.ends_with(b"}")
        {
            assert!(http::read_more(&mut one, &mut requests));
        }
        std::thread::sleep(Duration::from_millis(300));
        one.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        one.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").unwrap();
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
    assert_eq!(broadcast["publish_failed"], json!({"HTTP 503": 1, "closed": 1}), "{broadcast}");
    let fields = ["rejected", "unanswered", "unknown", "unsent"];
    let said = fields.map(|field| broadcast[format!("publish_{field}")].as_u64().unwrap());
    assert_eq!(said, [1, 1, 0, 0], "{broadcast}");
    let reasons = summary["reasons"].to_string();
    assert!(reasons.contains("2 publications were rejected or not answered"), "{reasons}");
    assert!(!reasons.contains("the requested rate"), "all were sent when due: {reasons}");
    let worst = broadcast["worst"].as_array().unwrap();
    assert!(worst.iter().all(|worst| worst["lost"] == 2) && worst.len() == 2, "{broadcast}");
}

/// A publish endpoint that answers nothing for a while: publications leave when they are due all the
/// same, the receipts show the stall, and the generator is not blamed for it.
#[test]
fn stalling_publish_endpoint_delays_receipts_and_no_publication() {
    const STALL: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(1_400));
    let server = Server::start(&[]);
    let admin = server.admin;
    let first = OnceLock::new();
    let door = Web::start(move |got| {
        let elapsed = first.get_or_init(Instant::now).elapsed();
        if (STALL.0..STALL.1).contains(&elapsed) {
            std::thread::sleep(STALL.1 - elapsed);
        }
        (http::post(admin, "/api/publish", &got.body).status, Vec::new(), String::new())
    });
    let url = format!("ws://{}/topics/fan", server.listen);
    let publish = format!("http://{}/in", door.address);
    let few = ["--connections", "5", "--fanout", "100", "--duration", "3s", "--late-after", "20s"];
    let (finished, summary) = executable::run(
        &[&["load", &url], &few[..], &["--publish-url", &publish, "--json", "-"]].concat(),
    )
    .with_json();
    let broadcast = &summary["broadcast"];
    let fields = ["published", "received", "lost", "duplicated", "reordered", "publish_unsent"];
    let said = fields.map(|field| broadcast[field].as_u64().unwrap_or(u64::MAX));
    assert_eq!(said, [300, 1_500, 0, 0, 0, 0], "{broadcast}");
    let ms = |times: &str, percentile: &str| broadcast[times][percentile].as_f64().unwrap();
    assert!(ms("latency", "p99_ms") > 500.0, "from the due time: {broadcast}");
    assert!(ms("publish", "p99_ms") > 500.0, "the endpoint is slow: {broadcast}");
    let late = ms("publish_lag", "p99_ms") / ms("latency", "p99_ms");
    assert!(late < 0.25, "sent when due: {broadcast}");
    assert_eq!(broadcast["from_send"]["count"], 1_500, "{broadcast}");
    assert_eq!(summary["generator"]["rate_missed"], false, "{summary}");
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

/// Over the bound of unanswered publications a due one is not sent, and counted.
#[test]
fn publications_over_the_bound_are_unsent_and_counted() {
    let server = Server::start(&[]);
    let (admin, first) = (server.admin, OnceLock::new());
    let door = Web::start(move |got| {
        let elapsed = first.get_or_init(Instant::now).elapsed();
        std::thread::sleep(Duration::from_millis(500).saturating_sub(elapsed));
        (http::post(admin, "/api/publish", &got.body).status, Vec::new(), String::new())
    });
    let url = format!("ws://{}/topics/fan", server.listen);
    let publish = format!("http://{}/in", door.address);
    let few = ["--connections", "5", "--fanout", "100", "--duration", "1s", "--late-after", "20s"];
    let bound = ["--publish-in-flight", "5", "--publishers", "2", "--json", "-"];
    let (finished, summary) = executable::run(
        &[&["load", &url, "--publish-url", &publish], &few[..], &bound[..]].concat(),
    )
    .with_json();
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let broadcast = &summary["broadcast"];
    let of = |field: &str| broadcast[field].as_u64().unwrap_or(u64::MAX);
    assert_eq!(of("published") + of("publish_unsent"), 100, "{broadcast}");
    assert!(of("publish_unsent") >= 20, "two times five at half a second: {broadcast}");
    assert_eq!((of("received"), of("lost")), (5 * of("published"), 0), "{broadcast}");
    assert!(summary["reasons"].to_string().contains("due and not sent"), "{summary}");
}

/// A server that ends each connection with its answer: publications sent behind a request are not
/// processed there, and are sent again.
#[test]
fn publications_behind_a_closing_answer_are_sent_again() {
    let server = Server::start(&[]);
    let admin = server.admin;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let publish = format!("http://{}/in", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut one in listener.incoming().map(Result::unwrap) {
            let mut bytes = Vec::new();
            let body = loop {
                // The end of the run.
                if !http::read_more(&mut one, &mut bytes) {
                    break None;
                }
                let text = String::from_utf8_lossy(&bytes);
                let Some((_, rest)) = text.split_once("\r\n\r\n") else { continue };
                if let Some(end) = rest.find('}') {
                    break Some(rest[..=end].to_owned());
                }
            };
            let Some(body) = body else { continue };
            // The next publication is due meanwhile.
            std::thread::sleep(Duration::from_millis(15));
            let status = http::post(admin, "/api/publish", &body).status;
            let text =
                format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            // Reading on until the client disconnects keeps the answer from being reset.
            if one.write_all(text.as_bytes()).is_ok() && one.shutdown(Shutdown::Write).is_ok() {
                while http::read_more(&mut one, &mut bytes) {}
            }
        }
    });
    let url = format!("ws://{}/topics/fan", server.listen);
    let few = ["--connections", "3", "--fanout", "100", "--messages", "40", "--late-after", "20s"];
    let (finished, summary) = executable::run(
        &[&["load", &url, "--publish-url", &publish], &few[..], &["--json", "-"]].concat(),
    )
    .with_json();
    let broadcast = &summary["broadcast"];
    let fields = ["published", "received", "lost", "duplicated", "reordered", "publish_unsent"];
    let said = fields.map(|field| broadcast[field].as_u64().unwrap_or(u64::MAX));
    assert_eq!(said, [40, 120, 0, 0, 0, 0], "{broadcast}");
    assert_eq!((&broadcast["publish_failed"], finished.code), (&json!({}), Some(0)), "{broadcast}");
}

#[test]
fn publications_use_https() {
    let server = Server::start(&[]);
    let front = Front::of(server.admin);
    let url = format!("ws://{}/topics/fan", server.listen);
    let publish = format!("https://{}/api/publish", front.address);
    let few = ["--connections", "3", "--fanout", "100", "--messages", "20", "--json", "-"];
    let run = |more: &[&str]| {
        let args = [&["load", &url, "--publish-url", &publish], &few[..], more].concat();
        executable::run(&args).with_json()
    };
    let (finished, summary) = run(&["--insecure"]);
    // In a debug build the first handshake delays the first publications.
    finished.assert_held_at_any_rate();
    assert_eq!(summary["broadcast"]["received"], 60, "{summary}");
    // The certificate signs itself.
    let (finished, summary) = run(&[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(summary["broadcast"]["publish_failed"], json!({"tls": 20}), "{summary}");
    assert_eq!(summary["broadcast"]["publish_rejected"], 20, "{summary}");
}

/// What was unanswered when a run is interrupted may have been accepted or not: it is unknown.
#[test]
fn unanswered_publications_of_an_interrupted_run_are_unknown() {
    let server = Server::start(&[]);
    let (admin, number) = (server.admin, Arc::new(AtomicU64::new(0)));
    let arrived = Arc::clone(&number);
    let door = Web::start(move |got| {
        if arrived.fetch_add(1, Ordering::SeqCst) >= 20 {
            std::thread::park_timeout(Duration::from_secs(30));
        }
        (http::post(admin, "/api/publish", &got.body).status, Vec::new(), String::new())
    });
    let url = format!("ws://{}/topics/fan", server.listen);
    let publish = format!("http://{}/in", door.address);
    let few = ["--connections", "5", "--fanout", "100", "--duration", "1h", "--json", "-"];
    let mut load = standfast(&[&["load", &url, "--publish-url", &publish], &few[..]].concat());
    let load = Running(load.stdin(Stdio::null()).spawn().unwrap());
    eventually("one is not answered", || number.load(Ordering::SeqCst) > 20);
    let pid = Pid::from_raw(load.0.id().try_into().unwrap());
    kill_process(pid.unwrap(), Signal::INT).unwrap();
    let finished = executable::finish(load);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    let broadcast = &finished.json()["broadcast"];
    let fields = ["published", "received", "lost", "unknown", "publish_unanswered"];
    let said = fields.map(|field| broadcast[field].as_u64().unwrap_or(u64::MAX));
    assert_eq!(said, [20, 100, 0, 0, 0], "{broadcast}");
    assert!(broadcast["publish_unknown"].as_u64() > Some(0), "{broadcast}");
}
