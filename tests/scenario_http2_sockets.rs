//! Scenarios whose sockets and requests are streams of HTTP/2 connections: through HAProxy to `standfast serve`, and
//! against a server that logs and treats each tenth socket in a wrong way, to the unit.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::forward::Forward;
use crate::harness::haproxy::Haproxy;
use crate::harness::http2;
use crate::harness::http2_sockets::{Conduct, SocketServer};
use crate::harness::server::Server;
use crate::harness::tls::Authority;

/// So many users with 5 passes each, of which 5 share a connection.
fn run(target: &str, users: u32, connect: &str, steps: &str) -> Finished {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let text = format!(
        "version = 1\ntarget = '{target}'\nusers = {users}\npasses = 5\ntimeout = '5s'\n[connect]\n\
         http2 = true\nstreams = 5\n{connect}\n[[flows]]\n{steps}"
    );
    let file = Scratch::new(&format!("http2-sockets-{number}.toml"), &text);
    executable::run(&["load", file.path(), "--json", "-"])
}

fn count(said: &Value, pointer: &str) -> u64 {
    said.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

const ECHO: &str = "[[flows.steps]]\nconnect = '/echo'\n\
                    [[flows.steps]]\nsend = 'a {{user}} {{pass}}'\nreceive = { text = 'a {{user}} {{pass}}' }\n\
                    [[flows.steps]]\nclose = true\n";

#[test]
fn sockets_and_requests_share_connections_through_haproxy() {
    let server = Server::start(&["--compression", "shared", "--public-streams"]);
    let authority = Authority::new();
    let Some((plain, tls)) = Haproxy::both(&authority, server.listen) else { return };
    let ca = authority.path("ca.pem");
    let steps = format!(
        "[[flows.steps]]\nurl = '/health'\nchecks = [{{ status = 200 }}]\n{ECHO}\
         [[flows.steps]]\nurl = '/no'\nmethod = 'POST'\nbody = '{}'\nchecks = [{{ status = '400-499' }}]\n\
         [[flows.steps]]\ncable = '/cable'\nsocket = 'cable'\n\
         [[flows.steps]]\nsubscribe = {{ channel = '$pubsub', stream_name = 'news' }}\nsocket = 'cable'\n\
         [[flows.steps]]\nclose = true\nsocket = 'cable'\n",
        "x".repeat(100_000)
    );
    let taken = || server.metrics()["standfast_messages_in_total"];
    let proxy = Forward::start(None);
    for (target, connect) in [
        (format!("http://{}", plain.listen), String::new()),
        (format!("https://{}", tls.listen), format!("ca = '{ca}'")),
        (
            format!("http://{}", plain.listen),
            "compression = 'shared'\ncompress_above = '1'".to_owned(),
        ),
        (format!("https://{}", tls.listen), format!("ca = '{ca}'\nproxy = '{}'", proxy.address)),
        (format!("http://{}", plain.listen), format!("proxy = '{}'", proxy.address)),
    ] {
        let before = taken();
        let finished = run(&target, 10, &connect, &steps);
        let said = finished.json();
        assert_eq!(
            (finished.code, &said["errors"]),
            (Some(0), &json!({})),
            "{connect}: {finished:?}"
        );
        let done = said["flows"][0]["steps"].as_array().unwrap();
        let each: Vec<u64> = done.iter().filter_map(|step| step["requests"].as_u64()).collect();
        assert_eq!(each, [50; 8], "{said}");
        assert_eq!(taken() - before, 50.0 + 50.0, "echoes and subscriptions");
        // Two requests and two sockets of each pass, of 10 users that share two connections.
        assert_eq!(count(&said, "/connections/opened"), 4 * 50, "{said}");
        let opened = count(&said, "/connections/http2_opened");
        assert!((1..=4).contains(&opened), "{said}");
        assert_eq!(count(&said, "/connections/http2_failed"), 0, "{said}");
    }
    assert!((2..=8).contains(&proxy.asked().len()), "{:?}", proxy.asked());
}

#[test]
fn sockets_fail_by_kind_and_counts_agree_with_the_server() {
    for (conduct, kind) in [
        (Conduct::Echoes, None),
        (Conduct::Refuses, Some("status")),
        (Conduct::ResetsHandshake(7), Some("stream_refused")),
        (Conduct::ResetsHandshake(2), Some("stream_internal_error")),
        (Conduct::Allows(1), None),
        (Conduct::NarrowWindow(16), None),
        (Conduct::Leaves(3), Some("goaway")),
        (Conduct::SettingsLate(200), None),
    ] {
        let server = SocketServer::start(conduct);
        let finished = run(&format!("http://{}", server.address), 20, "", ECHO);
        let said = finished.json();
        let log = server.log();
        // GOAWAY fails the streams that it leaves out.
        let failed = if kind == Some("goaway") { log.unprocessed } else { 10 };
        let errors = kind.map_or_else(|| json!({}), |kind| json!({kind: failed}));
        assert_eq!(said["errors"], errors, "{conduct:?} {said} {log:?}");
        let good = if kind.is_some() { 100 - failed } else { 100 };
        assert_eq!(
            (log.handshakes + log.unprocessed, log.sockets),
            (100, good),
            "{conduct:?} {log:?}"
        );
        assert_eq!((log.messages, log.echoed), (log.sockets, log.sockets), "{conduct:?} {log:?}");
        assert_eq!(count(&said, "/sockets/received"), log.echoed, "{conduct:?} {said}");
        assert_eq!(
            count(&said, "/connections/http2_opened"),
            log.connections,
            "{conduct:?} {said}"
        );
        assert_eq!(log.unmasked, 0, "{log:?}");
    }
}

#[test]
fn held_sockets_end_by_what_the_server_did() {
    let held = "[[flows.steps]]\nconnect = '/'\nhold = true\n\
                [[flows.steps]]\nsend = 'a'\nreceive = { text = 'a' }\n";
    for (conduct, kind) in [
        (Conduct::Resets(2), "stream_internal_error"),
        (Conduct::Resets(8), "stream_cancelled"),
        (Conduct::Ends, "closed"),
        (Conduct::Closes(1011), "closed"),
    ] {
        let server = SocketServer::start(conduct);
        let finished = run(&format!("http://{}", server.address), 20, "", held);
        let (said, log) = (finished.json(), server.log());
        let failed = count(&said, &format!("/errors/{kind}"));
        // The tenth and the twentieth socket, and the second of their users if it is a tenth.
        assert!(failed >= 2, "{conduct:?} {said} {log:?}");
        assert_eq!(said["errors"].as_object().unwrap().len(), 1, "{conduct:?} {said}");
        assert_eq!(log.messages - log.echoed, failed, "{conduct:?} {said} {log:?}");
        assert_eq!(count(&said, "/sockets/received"), log.echoed, "{conduct:?} {said}");
        assert_eq!(log.handshakes, 20 + failed, "each is opened again: {conduct:?} {log:?}");
    }
}

#[test]
fn servers_without_websockets_answer_requests() {
    let server = http2::Http2Server::start(http2::Conduct::Answers);
    let steps = format!("[[flows.steps]]\nurl = '/'\nchecks = [{{ regex = 'hello' }}]\n{ECHO}");
    let finished = run(&format!("http://{}", server.address), 4, "", &steps);
    let said = finished.json();
    assert_eq!(said["errors"], json!({"no_extended_connect": 20}), "{finished:?}");
    let log = server.log.lock().unwrap();
    assert_eq!((log.requests, log.answered), (20, 20), "{said} {log:?}");
    assert_eq!(said["requests"]["ok"], 20, "{said}");
}
