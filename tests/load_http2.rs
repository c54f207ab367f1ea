//! `standfast load http://… --http2` and `https://…`: against a server that logs, in twelve ways wrong, to
//! the unit; and against nghttpd, nginx and Node.js.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::executable::{self, Finished, Running};
use crate::harness::http2::{Conduct, Http2Server, Log};
use crate::harness::nginx::Nginx;
use crate::harness::tls::Authority;
use crate::harness::{Deserted, Scratch, eventually, skip};

/// So many requests over 2 connections with 5 streams each, to a server of this conduct: how the run
/// finished, its JSON, and what the server received.
fn meet(conduct: Conduct, requests: u64, more: &[&str]) -> (Finished, Value, Log) {
    let server = Http2Server::start(conduct);
    let (url, requests) = (server.url(), requests.to_string());
    let flags = ["load", &url, "--http2", "--connections", "2", "--streams", "5", "--json", "-"];
    let finished = executable::run(&[&flags[..], &["--requests", &requests], more].concat());
    let said = finished.json();
    let log = std::mem::take(&mut *server.log.lock().unwrap());
    (finished, said, log)
}

fn count(said: &Value, pointer: &str) -> u64 {
    said.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

#[test]
fn requests_share_connections_and_counts_agree_with_the_server() {
    let (finished, said, log) = meet(Conduct::Gathers(5), 200, &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((count(&said, "/requests/ok"), &said["errors"]), (200, &json!({})), "{said}");
    assert_eq!((log.requests, log.answered, log.connections), (200, 200, 2), "{log:?}");
    assert_eq!(log.streams_most, 5, "{log:?}");
    assert_eq!(count(&said, "/body_bytes"), 1_000, "{said}");
    assert_eq!(
        (&said["streams"], &said["connections"]["opened"], &said["users"]),
        (&json!(5), &json!(2), &json!(10)),
        "{said}"
    );
    assert!(log.resets == 0 && log.left.iter().all(|code| *code == 0), "{log:?}");
}

#[test]
fn bodies_are_sent_within_windows_and_counted_by_the_server() {
    for (bytes, requests) in [(5, 200), (100_000, 20)] {
        let body = "x".repeat(bytes);
        let (finished, said, log) = meet(Conduct::Answers, requests, &["--data", &body]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let sent = bytes as u64 * requests;
        assert_eq!((log.requests, log.body_bytes), (requests, sent), "{said} {log:?}");
    }
}

#[test]
fn streams_that_are_reset_fail_alone_and_by_code() {
    for (code, name) in [
        (2, "stream_internal_error"),
        (7, "stream_refused"),
        (11, "stream_enhance_your_calm"),
        (99, "stream_reset"),
    ] {
        let (finished, said, log) = meet(Conduct::Resets(code), 200, &[]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(
            (&said["errors"], count(&said, "/requests/ok")),
            (&json!({name: 20}), 180),
            "{said}"
        );
        assert_eq!((log.requests, log.answered, log.connections), (200, 180, 2), "{log:?}");
    }
}

#[test]
fn goaway_fails_nothing_that_another_connection_can_take() {
    let (finished, said, log) = meet(Conduct::Leaves(20), 200, &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((count(&said, "/requests/ok"), &said["errors"]), (200, &json!({})), "{said}");
    assert_eq!((log.requests, log.answered), (200, 200), "{log:?}");
    assert!(log.connections >= 10, "each connection takes 20 requests: {log:?}");
    assert_eq!(count(&said, "/connections/opened"), log.connections, "{said}");
}

#[test]
fn lost_connections_fail_the_streams_that_they_had() {
    for conduct in [Conduct::Cuts, Conduct::Closes] {
        let (finished, said, log) = meet(conduct, 200, &[]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(count(&said, "/requests/ok"), log.answered, "{conduct:?} {said} {log:?}");
        let failed = count(&said, "/requests/failed");
        assert_eq!(failed + log.answered, 200, "{conduct:?} {said} {log:?}");
        let errors = said["errors"].as_object().unwrap();
        assert!(errors.keys().all(|kind| kind.starts_with("closed") || kind == "reset"), "{said}");
    }
}

#[test]
fn answers_that_break_the_protocol_fail_by_its_rules() {
    for (conduct, kept) in [(Conduct::Short, true), (Conduct::Headless, true)] {
        let (finished, said, log) = meet(conduct, 200, &[]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!((count(&said, "/requests/ok"), log.answered), (180, 180), "{conduct:?} {said}");
        assert_eq!(log.connections == 2, kept, "{conduct:?} {said} {log:?}");
    }
    let (finished, said, log) = meet(Conduct::Pushes, 5, &[]);
    assert_eq!(finished.code, Some(1), "{said}");
    assert_eq!(count(&said, "/requests/ok"), 0, "{said}");
    assert!(count(&said, "/errors/http2_push") > 0, "{said} {log:?}");
    for conduct in [Conduct::Garbage, Conduct::Http11] {
        let (finished, said, _) = meet(conduct, 200, &["--duration", "300ms"]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(count(&said, "/requests/ok"), 0, "{conduct:?} {said}");
    }
}

#[test]
fn a_server_of_http_1_is_recognised() {
    let web = crate::harness::server::Server::start(&[]);
    let url = format!("http://{}/health", web.listen);
    let finished = executable::run(&["load", &url, "--http2", "--requests", "5"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stdout.contains("speaks HTTP/1.1"), "{finished:?}");
    assert!(finished.stdout.contains("leave out --http2"), "{finished:?}");
}

#[test]
fn requests_that_are_not_answered_in_time_are_cancelled_alone() {
    for conduct in [Conduct::Silent, Conduct::Stalls] {
        let (finished, said, log) = meet(conduct, 20, &["--timeout", "200ms"]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(said["errors"], json!({"timeout": 20}), "{conduct:?} {said}");
        assert_eq!((log.requests, log.resets, log.connections), (20, 20, 2), "{conduct:?} {log:?}");
    }
    let (finished, said, log) =
        meet(Conduct::ClosesWindow, 20, &["--timeout", "200ms", "--data", "hello"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    // What is sent before the server's SETTINGS arrive needs no window of it.
    assert_eq!(count(&said, "/requests/ok") + count(&said, "/errors/timeout"), 20, "{said}");
    assert_eq!(count(&said, "/requests/ok"), log.answered, "{said} {log:?}");
}

#[test]
fn streams_wait_for_the_limit_of_the_server() {
    let (finished, said, log) = meet(Conduct::Allows(2), 200, &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((count(&said, "/requests/ok"), log.answered), (200, 200), "{said}");
    assert_eq!(log.connections, 2, "{log:?}");
}

/// Statuses of `line`, which is split at spaces, and opened connections.
fn statuses(line: &str) -> (Value, u64) {
    let finished = executable::run(&line.split(' ').collect::<Vec<_>>());
    let said = finished.json();
    assert_eq!(said["errors"], json!({}), "{finished:?}");
    (said["status"].clone(), count(&said, "/connections/opened"))
}

#[test]
fn nginx_is_loaded_in_the_clear_and_over_tls() {
    let server = "keepalive_requests 50; location / { return 200 hello; }\n\
                  location /post { return 204; }";
    let Some(nginx) = Nginx::listening("http2", "", server) else { return };
    let line = format!("load http://{} --http2 --connections 3 --streams 8", nginx.listen);
    let (status, opened) = statuses(&format!("{line} --requests 600 --json -"));
    assert_eq!(status, json!({"200": 600}), "a connection takes 50 requests");
    assert!(opened >= 12, "{opened}");
    let post = format!("{line} --requests 60 -X POST --data {} --json -", "x".repeat(70_000));
    assert_eq!(statuses(&post.replacen(" --http2", "/post --http2", 1)).0, json!({"204": 60}));
    let authority = Authority::new();
    authority.sign("server", &["localhost", "127.0.0.1"]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|file| authority.path(file));
    let files = format!("ssl_certificate {cert}; ssl_certificate_key {key};");
    let server = format!("{files} location / {{ return 200 $server_protocol; }}");
    let nginx = Nginx::listening("ssl http2", "", &server).expect("nginx is installed");
    let line = format!("load https://{} --http2 --streams 4 --connections 2", nginx.listen);
    let (status, opened) = statuses(&format!("{line} --ca {ca} --requests 100 --json -"));
    assert_eq!((status, opened), (json!({"200": 100}), 2));
    let old = Nginx::listening("ssl", "", &server).expect("nginx is installed");
    let finished = executable::run(&[
        "load",
        &format!("https://{}", old.listen),
        "--http2",
        "--ca",
        &ca,
        "--requests",
        "1",
    ]);
    assert!(finished.stdout.contains("leave out --http2"), "it says what to try: {finished:?}");
}

#[test]
fn scenarios_use_streams_with_checks_captures_cookies_redirects_and_parallel_requests() {
    let server = "location /login { add_header Set-Cookie 'id=7'; return 302 /home; }\n\
                  location /home { return 200 '{\"cookie\": \"$cookie_id\", \"at\": \"$request_uri\"}'; }\n\
                  location /item { return 200 $http_x_at; }";
    let Some(nginx) = Nginx::listening("http2", "", server) else { return };
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 6\npasses = 5\n[connect]\nhttp2 = true\n\
         streams = 3\n[[flows]]\n[[flows.steps]]\nname = 'login'\nurl = '/login'\n\
         checks = [{{ json = '$.cookie', is = '7' }}]\n\
         capture = {{ at = {{ json = '$.at' }} }}\n[[flows.steps]]\nparallel = [\n\
         {{ name = 'one', url = '/item', headers = {{ X-At = '{{{{at}}}}' }}, checks = [{{ regex = \
         '^/home$' }}] }},\n{{ name = 'two', url = '/item?2' }}]\n",
        nginx.listen
    );
    let file = Scratch::new("http2-scenario.toml", &text);
    let finished = executable::run(&["load", file.path(), "--json", "-"]);
    let said = finished.json();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((count(&said, "/requests/ok"), &said["errors"]), (90, &json!({})), "{said}");
    assert_eq!((count(&said, "/connections/opened"), &said["streams"]), (2, &json!(3)), "{said}");
}

/// nghttpd on a free port.
fn nghttpd(folder: &str, tls: Option<(&str, &str)>) -> Option<(Running, SocketAddr)> {
    let port = Deserted::port().address;
    let mut command = Command::new("nghttpd");
    command.args(["-d", folder, "-a", "127.0.0.1", "-n", "1"]);
    match tls {
        None => command.args(["--no-tls", &port.port().to_string()]),
        Some((cert, key)) => command.args([&port.port().to_string(), key, cert]),
    };
    let Ok(child) = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() else {
        skip::missing("nghttpd is not installed: try cargo xtask test --install");
        return None;
    };
    let mut running = Running(child);
    eventually("nghttpd accepts", || {
        assert_eq!(running.0.try_wait().unwrap(), None, "nghttpd has ended");
        TcpStream::connect(port).is_ok()
    });
    Some((running, port))
}

#[test]
fn nghttpd_is_loaded_in_the_clear_and_over_tls() {
    let file = Scratch::new("nghttpd.txt", &"x".repeat(200_000));
    let path = Path::new(file.path());
    let (folder, name) = (path.parent().unwrap(), path.file_name().unwrap());
    let (folder, name) = (folder.to_str().unwrap(), name.to_str().unwrap());
    let Some((_plain, at)) = nghttpd(folder, None) else { return };
    // Longer than the window that a client has before it says otherwise.
    let line = format!("load http://{at}/{name} --http2 --connections 2 --streams 20");
    let finished =
        executable::run(&format!("{line} --requests 200 --json -").split(' ').collect::<Vec<_>>());
    let said = finished.json();
    assert_eq!((&said["errors"], count(&said, "/body_bytes")), (&json!({}), 40_000_000), "{said}");
    let authority = Authority::new();
    authority.sign("server", &["localhost", "127.0.0.1"]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|file| authority.path(file));
    let Some((_secure, at)) = nghttpd(folder, Some((&cert, &key))) else { return };
    let line = format!("load https://{at}/{name} --http2 --connections 2 --streams 20 --ca {ca}");
    let (status, opened) = statuses(&format!("{line} --requests 200 --json -"));
    assert_eq!((status, opened), (json!({"200": 200}), 2));
}

#[test]
fn connections_outlive_any_number_of_pings_that_are_answered() {
    let server = Http2Server::start(Conduct::Pings);
    let (url, flags) = (server.url(), ["--http2", "--connections", "1", "--requests", "2"]);
    let finished = executable::run(&[&["load", &url, "--json", "-"], &flags[..]].concat());
    let said = finished.json();
    assert_eq!((&said["errors"], count(&said, "/requests/ok")), (&json!({}), 2), "{said}");
    assert_eq!(server.log.lock().unwrap().connections, 1);
}

#[test]
fn a_connect_that_takes_too_long_is_counted_once_for_all_of_its_streams() {
    // It accepts, and never answers the handshake of TLS.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", deaf.local_addr().unwrap());
    let flags = ["--http2", "--connections", "2", "--streams", "3", "--requests", "6"];
    let more = ["--connect-timeout", "300ms", "--insecure", "--json", "-"];
    let finished = executable::run(&[&["load", &url], &flags[..], &more].concat());
    let said = finished.json();
    assert_eq!(said["errors"], json!({"connect_timeout": 6}), "{said}");
    assert_eq!(count(&said, "/connections/failed"), 2, "{said}");
}

#[test]
fn a_connection_for_each_request_is_closed_by_the_client() {
    let server = Http2Server::start(Conduct::Answers);
    let (url, flags) = (server.url(), ["--http2", "--connections", "3", "--requests", "30"]);
    let run = ["load", &url, "--new-connections", "--json", "-"];
    let finished = executable::run(&[&run[..], &flags].concat());
    let said = finished.json();
    assert_eq!((&said["errors"], count(&said, "/requests/ok")), (&json!({}), 30), "{said}");
    assert_eq!(server.log.lock().unwrap().connections, 30);
}
