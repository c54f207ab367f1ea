//! `standfast load ws://… --http2` and `wss://…`: WebSockets on streams of HTTP/2 connections (RFC 8441),
//! against a server that logs, in fifteen ways wrong, to the unit; and through HAProxy and with Node.js.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::executable::{self, Finished};
use crate::harness::forward::Forward;
use crate::harness::haproxy::Haproxy;
use crate::harness::http2_sockets::{Conduct, Log, SocketServer};
use crate::harness::peer::{self, Program};
use crate::harness::server::Server;
use crate::harness::tls::Authority;
use crate::harness::{eventually, http2};

/// Messages of a socket in [`meet`].
const MESSAGES: u64 = 6;

/// 2 connections with 10 sockets each to a server of this conduct: how the run finished, its JSON, and what
/// the server received.
fn meet(conduct: Conduct, more: &[&str]) -> (Finished, Value, Log) {
    let server = SocketServer::start(conduct);
    let url = server.url();
    let flags = ["load", &url, "--http2", "-c", "2", "--streams", "10", "--json", "-"];
    let finished = executable::run(&[&flags[..], more].concat());
    let said = finished.json();
    (finished, said, server.log())
}

/// The same with an echo, in which an answer is awaited for a short time.
fn echo(conduct: Conduct, more: &[&str]) -> (Finished, Value, Log) {
    let messages = MESSAGES.to_string();
    let timeout: &[&str] = if more.contains(&"--timeout") { &[] } else { &["--timeout", "300ms"] };
    meet(conduct, &[&["--messages", &messages], timeout, more].concat())
}

fn count(said: &Value, pointer: &str) -> u64 {
    said.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// What the run and the server agree on in any case.
fn agree(said: &Value, log: &Log) {
    assert_eq!(count(said, "/echo/received"), log.echoed, "{said} {log:?}");
    assert_eq!(count(said, "/connections/opened"), log.sockets, "{said} {log:?}");
    assert_eq!(log.unmasked, 0, "{log:?}");
    let lost = log.messages - log.echoed;
    assert_eq!(count(said, "/echo/lost"), lost, "{said} {log:?}");
    assert_eq!(count(said, "/echo/duplicated") + count(said, "/echo/corrupted"), 0, "{said}");
}

#[test]
fn sockets_share_connections_and_counts_agree_with_the_server() {
    for size in ["1", "20", "1000", "100KiB"] {
        let (finished, said, log) = echo(Conduct::Echoes, &["--size", size, "--timeout", "10s"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert_eq!((log.connections, log.sockets, log.sockets_most), (2, 20, 10), "{log:?}");
        assert_eq!((log.messages, log.echoed), (20 * MESSAGES, 20 * MESSAGES), "{log:?}");
        assert_eq!(log.closes, BTreeMap::from([(1000, 20)]), "{log:?}");
        assert!(log.resets.is_empty() && log.left.iter().all(|code| *code == 0), "{log:?}");
        let connections = &said["connections"];
        assert_eq!(
            [&connections["open"], &connections["http2_opened"], &connections["http2_failed"]],
            [&json!(20), &json!(2), &json!(0)],
            "{said}"
        );
        assert_eq!((&said["streams"], count(&said, "/latency/count")), (&json!(10), 120), "{said}");
        agree(&said, &log);
    }
}

#[test]
fn pings_are_counted_and_answered() {
    let (finished, said, log) = meet(Conduct::Echoes, &["--hold", "700ms", "--heartbeat", "200ms"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(log.pings >= 20, "{log:?}");
    let heartbeats = &said["heartbeats"];
    assert_eq!(
        [&heartbeats["sent"], &heartbeats["received"], &heartbeats["unanswered_sockets"]],
        [&json!(log.pings), &json!(log.pings), &json!(0)],
        "{said}"
    );
}

#[test]
fn sockets_that_have_sent_their_messages_are_replaced_on_the_same_connections() {
    let more = ["--messages-per-connection", "5", "--duration", "1s"];
    let (finished, said, log) = meet(Conduct::Echoes, &more);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.connections, log.sockets_most), (2, 10), "{log:?}");
    let replaced = count(&said, "/connections/replaced");
    assert!(replaced > 20, "{said}");
    assert_eq!(log.sockets, 20 + replaced, "{said} {log:?}");
    assert_eq!(log.closes, BTreeMap::from([(1000, log.sockets)]), "{log:?}");
    agree(&said, &log);
}

#[test]
fn settings_are_awaited() {
    let (finished, said, log) = echo(Conduct::SettingsLate(300), &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.too_early, log.sockets), (0, 20), "{log:?}");
    agree(&said, &log);
}

#[test]
fn servers_without_websockets_over_http2_are_named_with_what_to_try() {
    let (finished, said, log) = echo(Conduct::NoExtendedConnect, &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(said["connect_errors"], json!({"no_extended_connect": 20}), "{said}");
    assert_eq!((log.handshakes, count(&said, "/connections/http2_failed")), (0, 2), "{said}");
    let reasons = said["reasons"].to_string();
    assert!(reasons.contains("RFC 8441") && reasons.contains("leave out --http2"), "{reasons}");
    let (finished, said, _) = echo(Conduct::Http11, &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let reasons = said["reasons"].to_string();
    assert!(reasons.contains("speaks HTTP/1.1") && reasons.contains("wss://"), "{reasons}");
    // A server of HTTP/2 that was not made for WebSockets.
    let web = http2::Http2Server::start(http2::Conduct::Answers);
    let finished = executable::run(&["load", &format!("ws://{}/", web.address), "--http2"]);
    assert!(finished.stdout.contains("speaks HTTP/2 without WebSockets"), "{finished:?}");
}

#[test]
fn handshakes_that_are_not_answered_in_time_are_cancelled() {
    let (finished, said, log) = echo(Conduct::Silent, &["--connect-timeout", "300ms"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(said["connect_errors"], json!({"handshake_timeout": 20}), "{said}");
    assert_eq!((log.handshakes, log.resets.get(&8)), (20, Some(&20)), "{log:?}");
    assert_eq!(count(&said, "/connections/http2_opened"), 2, "{said}");
}

#[test]
fn more_connections_are_opened_if_the_server_allows_fewer_streams() {
    let (finished, said, log) = echo(Conduct::Allows(4), &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.sockets, log.sockets_most), (20, 4), "{log:?}");
    assert_eq!(log.connections, count(&said, "/connections/http2_opened"), "{said}");
    assert!((5..=6).contains(&log.connections), "{log:?}");
    assert_eq!(said["connections"]["http2_streams_allowed"], 4, "{said}");
    agree(&said, &log);
    let server = SocketServer::start(Conduct::Allows(4));
    let run = ["load", &server.url(), "--http2", "-c", "1", "--streams", "10", "--messages", "1"];
    let finished = executable::run(&run);
    let line = "the server allows 4 sockets on a connection";
    assert!(finished.stdout.contains(line), "{finished:?}");
}

#[test]
fn handshakes_are_refused_by_status_and_reset_by_code() {
    let (finished, said, log) = echo(Conduct::Refuses, &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(said["connect_errors"], json!({"status_400": 2}), "{said}");
    assert_eq!((log.handshakes, log.sockets, log.connections), (20, 18, 2), "{log:?}");
    agree(&said, &log);
    for (code, name) in [(2, "stream_internal_error"), (7, "stream_refused"), (99, "stream_reset")]
    {
        let (finished, said, log) = echo(Conduct::ResetsHandshake(code), &[]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(said["connect_errors"], json!({name: 2}), "{said}");
        assert_eq!((log.sockets, log.connections), (18, 2), "{log:?}");
        agree(&said, &log);
    }
}

#[test]
fn sockets_end_alone_and_by_what_the_server_did() {
    for (conduct, name) in [
        (Conduct::Resets(8), "stream_cancelled"),
        (Conduct::Resets(11), "stream_enhance_your_calm"),
        (Conduct::Ends, "gone"),
        (Conduct::EndsMidway, "gone"),
        (Conduct::Closes(1001), "by_peer"),
        (Conduct::MasksFrames, "masked_frame"),
    ] {
        let (finished, said, log) = echo(conduct, &[]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(said["closed"], json!({name: 2}), "{conduct:?} {said}");
        assert_eq!((log.sockets, log.connections), (20, 2), "{conduct:?} {log:?}");
        assert_eq!(log.messages, 18 * MESSAGES + 2 * 4, "{conduct:?} {log:?}");
        agree(&said, &log);
        let code = if conduct == Conduct::MasksFrames { 1002 } else { 1001 };
        let answered = log.closes.get(&code).copied().unwrap_or_default();
        let is_answered = matches!(conduct, Conduct::Closes(_) | Conduct::MasksFrames);
        assert_eq!(answered, if is_answered { 2 } else { 0 }, "{conduct:?} {log:?}");
    }
}

#[test]
fn lost_connections_end_the_sockets_that_they_had() {
    for conduct in [Conduct::Garbage, Conduct::Cuts] {
        let (finished, said, log) = echo(conduct, &[]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let lost = count(&said, "/connections/http2_ended");
        assert!((1..=2).contains(&lost), "{conduct:?} {said}");
        let closed = said["closed"].as_object().unwrap();
        let total: u64 = closed.values().filter_map(Value::as_u64).sum();
        assert_eq!(total, 10 * lost, "{conduct:?} {said}");
        assert_eq!(count(&said, "/connections/open"), 20 - total, "{conduct:?} {said}");
        let kinds = |name: &String| name == "gone" || name.starts_with("http2_");
        assert!(closed.keys().all(kinds), "{conduct:?} {said}");
        assert_eq!(count(&said, "/echo/received"), log.echoed, "{conduct:?} {said} {log:?}");
    }
}

#[test]
fn goaway_fails_only_what_it_names() {
    let (finished, said, log) = echo(Conduct::Leaves(5), &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let (opened, failed) = (count(&said, "/connections/opened"), log.unprocessed);
    assert_eq!(said["connect_errors"], json!({"goaway": failed}), "{said} {log:?}");
    assert_eq!((opened + failed, said["closed"].clone()), (20, json!({})), "{said}");
    assert!(count(&said, "/connections/http2_goaways") >= 2, "{said}");
    agree(&said, &log);
    // A failed attempt is tried again, on another connection.
    let more = ["--retry", "5", "--backoff", "1ms..10ms"];
    let (finished, said, log) = echo(Conduct::Leaves(5), &more);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.sockets, log.messages), (20, 20 * MESSAGES), "{log:?}");
    assert_eq!(count(&said, "/connections/retries"), log.unprocessed, "{said} {log:?}");
    agree(&said, &log);
}

#[test]
fn messages_wait_for_windows_and_nothing_grows_meanwhile() {
    let (finished, said, log) =
        echo(Conduct::NarrowWindow(1000), &["--size", "5000", "--timeout", "10s"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(log.messages, 20 * MESSAGES, "{log:?}");
    agree(&said, &log);
    // 5 GB would be due. A socket whose queue is full is closed, as over HTTP/1.1.
    let more = ["--rate", "50k", "--size", "100KiB", "--duration", "1s", "--timeout", "100ms"];
    let (finished, said, log) = meet(Conduct::ClosesWindow, &more);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!((log.sockets, log.messages), (20, 0), "{log:?}");
    assert_eq!(count(&said, "/echo/received"), 0, "{said}");
    assert_eq!(said["closed"], json!({"slow_consumer": 20}), "{said}");
}

#[test]
fn what_does_not_go_with_http2_is_refused() {
    let refused = |more: &[&str], what: &str| {
        let finished = executable::run(&[&["load", "ws://127.0.0.1:1/"], more].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(what), "{finished:?}");
    };
    refused(&["--streams", "5"], "add --http2");
}

#[test]
fn connections_are_opened_through_a_proxy() {
    let proxy = Forward::start(None);
    let by = format!("http://u:p@{}", proxy.address);
    let (finished, said, log) = echo(Conduct::Echoes, &["--proxy", &by, "--timeout", "10s"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.connections, log.sockets), (2, 20), "{log:?}");
    agree(&said, &log);
    let asked = proxy.asked();
    let is_right = |head: &String| {
        head.starts_with("CONNECT 127.0.0.1:") && head.contains("Proxy-Authorization: Basic ")
    };
    assert_eq!((asked.len(), asked.iter().all(is_right)), (2, true), "{asked:?}");
    for (refusal, cause) in [
        ("HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", "proxy_refused"),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", "proxy_refused"),
        ("", "connect_timeout"),
    ] {
        let proxy = Forward::start(Some(refusal));
        let by = proxy.address.to_string();
        let flags = ["--proxy", &by, "--connect-timeout", "200ms"];
        let (finished, said, log) = echo(Conduct::Echoes, &flags);
        assert_eq!(finished.code, Some(1), "{refusal:?} {finished:?}");
        assert_eq!(said["connect_errors"], json!({cause: 20}), "{refusal:?} {said}");
        assert_eq!((log.connections, proxy.asked().len()), (0, 2), "{refusal:?} {log:?}");
        assert_eq!(count(&said, "/connections/http2_failed"), 2, "{refusal:?} {said}");
    }
}

/// Runs a line of flags against a WebSocket URL; its JSON.
fn load(url: &str, line: &str) -> Value {
    let flags: Vec<&str> = line.split(' ').collect();
    let run = [&["load", url, "--http2", "--json", "-"], &flags[..]].concat();
    let finished = executable::run(&run);
    let said = finished.json();
    finished.assert_held_at_any_rate();
    said
}

#[test]
fn haproxy_is_loaded_in_the_clear_and_over_tls() {
    let server = Server::start(&["--max-message", "2MiB", "--compression", "shared"]);
    let authority = Authority::new();
    let Some((plain, tls)) = Haproxy::both(&authority, server.listen) else { return };
    let ca = authority.path("ca.pem");
    let taken = || server.metrics()["standfast_messages_in_total"];
    for (url, more) in [
        (format!("ws://{}", plain.listen), String::new()),
        (format!("wss://{}", tls.listen), format!(" --ca {ca}")),
    ] {
        let echo = format!("{url}/echo");
        let (before, closed) = (taken(), server.closed("by_peer"));
        for (line, sockets, messages) in [
            ("-c 2 --streams 25 --messages 20 --timeout 20s", 50, 1_000),
            ("-c 1 --streams 3 --size 1MiB --messages 4 --timeout 30s", 3, 12),
            (
                "-c 2 --streams 10 --messages 25 --size 3000 --compression shared --timeout 20s",
                20,
                500,
            ),
        ] {
            let said = load(&echo, &format!("{line}{more}"));
            assert_eq!(count(&said, "/connections/opened"), sockets, "{said}");
            let echo = [&said["echo"]["received"], &said["echo"]["lost"]];
            assert_eq!(echo, [&json!(messages), &json!(0)], "{said}");
        }
        assert_eq!(taken() - before, 1_512.0, "as many as the server counts");
        server.until_closed("by_peer", closed + 73);
        let proxy = Forward::start(None);
        let through = format!("-c 2 --streams 25 --messages 20 --proxy {}{more}", proxy.address);
        let said = load(&echo, &format!("{through} --timeout 20s"));
        assert_eq!((count(&said, "/echo/received"), proxy.asked().len()), (1_000, 2), "{said}");
        // HAProxy allows 100 streams.
        let said = load(&echo, &format!("-c 1 --streams 150 --messages 2 --timeout 20s{more}"));
        assert_eq!(said["connections"]["http2_streams_allowed"], 100, "{said}");
        assert_eq!(count(&said, "/connections/http2_opened"), 2, "{said}");
        let said = load(&echo, &format!("-c 2 --streams 5 --hold 500ms --heartbeat 100ms{more}"));
        assert_eq!(said["heartbeats"]["sent"], said["heartbeats"]["received"], "{said}");
        let stages = format!("{url}/echo");
        let line = format!("--streams 8 --stages 200ms:30,200ms:30,300ms:4{more}");
        let said = load(&stages, &line);
        let of = |name: &str| count(&said, &format!("/connections/{name}"));
        assert!(of("retired") > 0 && of("retired") + of("open") == 30, "{said}");
        assert_eq!(count(&said, "/connections/http2_opened"), 4, "{said}");
    }
    // The deliveries of other workloads are checked as over HTTP/1.1.
    let publish = format!("http://{}/api/publish", server.admin);
    let topic = format!("ws://{}/topics/news", plain.listen);
    let said = load(
        &topic,
        &format!("-c 2 --streams 20 --fanout 50 --messages 50 --publish-url {publish}"),
    );
    assert_eq!(said["broadcast"]["received"], 50 * 40, "{said}");
    let said = load(&topic, "-c 1 --streams 10 --fanout 50 --messages 50 --publish-by-socket");
    assert_eq!(said["broadcast"]["received"], 50 * 10, "{said}");
}

#[test]
fn clients_of_action_cable_share_connections() {
    let server = Server::start(&["--public-streams"]);
    let Some(haproxy) = Haproxy::start("proto h2", "", server.listen) else { return };
    let (url, publish) =
        (format!("cable://{}", haproxy.listen), format!("http://{}/api/publish", server.admin));
    let fanout = format!("-c 2 --streams 20 --fanout 50 --messages 50 --publish-url {publish}");
    let said = load(&url, &fanout);
    assert_eq!(
        (&said["cable"]["subscribed"], &said["streams"]),
        (&json!(40), &json!(20)),
        "{said}"
    );
    assert_eq!(said["broadcast"]["received"], 50 * 40, "{said}");
    assert_eq!(count(&said, "/connections/http2_opened"), 2, "{said}");
    let channels = r#"--channel {"channel":"$pubsub","stream_name":"{1..4}"}"#;
    let churn =
        format!("{fanout} --churn 100 {channels}").replace("--messages 50", "--duration 1s");
    let flags: Vec<&str> = churn.split(' ').collect();
    let run = [&["load", &url, "--http2", "--json", "-"], &flags[..]].concat();
    // A machine that is busy may not send all that is due.
    let said = executable::run(&run).json();
    assert!(count(&said, "/churn/received") > 0, "{said}");
    assert_eq!(said["churn"]["lost"], 0, "{said}");
}

#[test]
fn sockets_of_node_are_loaded_in_the_clear_and_over_tls() {
    let authority = Authority::new();
    authority.sign("server", &["localhost", "127.0.0.1"]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|file| authority.path(file));
    for (args, scheme, more) in
        [(vec![], "ws", String::new()), (vec![cert.as_str(), &key], "wss", format!(" --ca {ca}"))]
    {
        let Some(node) = Program::start(&peer::NODE_ALONE, "http2_sockets.js", &args) else {
            return;
        };
        let url = format!("{scheme}://127.0.0.1:{}/", node.first_line());
        let large = "-c 1 --streams 2 --size 500KiB --messages 3 --subprotocol chat --timeout 30s";
        let mut pings = 0;
        for (line, messages) in [
            ("-c 2 --streams 25 --messages 20 --timeout 20s", 1_000),
            (large, 6),
            ("-c 2 --streams 5 --hold 500ms --heartbeat 100ms", 0),
        ] {
            let said = load(&url, &format!("{line}{more}"));
            assert_eq!(count(&said, "/echo/received"), messages, "{said}");
            assert_eq!(said["heartbeats"]["sent"], said["heartbeats"]["received"], "{said}");
            pings += count(&said, "/heartbeats/sent");
        }
        let seen = || node.lines().last().and_then(|line| serde_json::from_str(line).ok());
        let wanted = json!({
            "sessions": 5, "sockets": 62, "messages": 1_006, "pings": pings,
            "closes": { "1000": 62 }, "unmasked": 0, "refused": 0,
        });
        eventually("all sockets have closed", || seen().is_some_and(|seen: Value| seen == wanted));
        let none = format!("{url}none");
        let run = ["load", &none, "--http2", "-c", "2", "--json", "-", "--insecure"];
        let flags = if args.is_empty() { &run[..7] } else { &run[..] };
        let said = executable::run(flags).json();
        assert_eq!(said["connect_errors"], json!({"status_404": 2}), "{said}");
    }
}
