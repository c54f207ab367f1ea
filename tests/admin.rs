//! Authorization at the admin listener: its key, its UNIX socket, origins of browser pages.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use crate::harness::executable::{Running, standfast};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::{eventually, http};

#[test]
fn with_an_admin_key_every_path_but_health_needs_it() {
    let server = Server::start(&["--admin-key", "correct-horse"]);
    let ask = |path: &str, authorization: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{authorization}\r\n");
        http::ask(server.admin, &request).status
    };
    assert_eq!(ask("/health", ""), 200);
    for path in ["/api/stats", "/api/connections", "/metrics"] {
        assert_eq!(ask(path, ""), 401, "{path}");
        assert_eq!(ask(path, "Authorization: Bearer correct-horsf\r\n"), 401, "{path}");
        assert_eq!(ask(path, "Authorization: Basic correct-horse\r\n"), 401, "{path}");
        assert_eq!(ask(path, "Authorization: Bearer correct-horse\r\n"), 200, "{path}");
    }
    let publication = r#"{"topic":"x","data":"x"}"#;
    assert_eq!(http::post(server.admin, "/api/publish", publication).status, 401);
}

#[test]
fn without_an_admin_key_pages_of_other_sites_are_refused() {
    let server = Server::start(&[]);
    let ask = |host: &str, origin: &str| {
        let request =
            format!("GET /api/stats HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{origin}\r\n");
        http::ask(server.admin, &request).status
    };
    assert_eq!(ask("localhost:8090", ""), 200);
    assert_eq!(ask("127.0.0.1", "Origin: http://localhost:3000\r\n"), 200);
    assert_eq!(ask("rebound.example", ""), 403, "DNS rebinding");
    assert_eq!(ask("127.0.0.1", "Origin: https://elsewhere.example\r\n"), 403);
    assert_eq!(server.metrics()["standfast_admin_refused_total"], 2.0);
    assert_eq!(server.metrics()["standfast_invariant_broken_total"], 0.0);
}

#[test]
fn on_loopback_host_must_be_this_machine_or_an_allowed_site() {
    let asks = |server: &Server, host: &str, target: &str| {
        let mut socket = Socket::connect(server.listen);
        socket.send(upgrade(target, &[("Host", host)]).as_bytes());
        socket.response()
    };
    let server = Server::start(&["--allow-origin", "https://*.site.example"]);
    assert_eq!(asks(&server, "localhost:8080", "/echo").status, 101);
    assert_eq!(asks(&server, "chat.site.example", "/echo").status, 101, "the site of a proxy");
    let refused = asks(&server, "rebound.example", "/echo");
    assert_eq!(refused.status, 421, "DNS rebinding");
    assert!(refused.body.contains("--allow-origin"), "{refused:?}");
    // The target's own authority counts, not Host (RFC 9112 section 3.2.2).
    assert_eq!(asks(&server, "localhost", "http://rebound.example/echo").status, 421);
    assert_eq!(server.metrics()["standfast_host_refused_total"], 2.0);
    eventually("the log names the host", || server.log().contains("rebound.example"));
    let open = Server::start(&["--allow-origin", "*"]);
    assert_eq!(asks(&open, "anything.example", "/echo").status, 101);
}

#[test]
fn the_unix_socket_has_mode_0600() {
    let path = std::env::temp_dir().join(format!("standfast-test-{}.sock", std::process::id()));
    let admin = format!("unix:{}", path.display());
    let serve = standfast(&["serve", "--listen", "127.0.0.1:0", "--admin", &admin]).spawn();
    let _running = Running(serve.unwrap());
    let mut stream = None;
    eventually("the socket answers", || {
        stream = UnixStream::connect(&path).ok();
        stream.is_some()
    });
    let mut stream = stream.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    stream.write_all(b"GET /api/stats HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let response = http::read_response(&mut stream, &mut Vec::new());
    assert_eq!(response.status, 200, "{response:?}");
    fs::remove_file(&path).unwrap();
}

#[test]
fn connections_are_listed_page_by_page() {
    let server = Server::start(&[]);
    let sockets: Vec<Socket> = (0..7).map(|_| Socket::open(server.listen, "/topics/x")).collect();
    let mut peers = Vec::new();
    let mut after = "0".to_owned();
    loop {
        let path = format!("/api/connections?limit=3&after={after}");
        let page = http::get(server.admin, &path).json();
        for connection in page["connections"].as_array().unwrap() {
            assert_eq!(connection["topic"], "x", "{page}");
            peers.push(connection["peer"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    peers.sort();
    let mut expected: Vec<String> = sockets.iter().map(Socket::local_address).collect();
    expected.sort();
    assert_eq!(peers, expected);
}

#[test]
fn a_page_of_another_origin_is_refused_and_the_log_names_the_flag() {
    let asks = |server: &Server, origin: &str| {
        let mut socket = Socket::connect(server.listen);
        socket.send(upgrade("/topics/x", &[("Origin", origin)]).as_bytes());
        socket.response().status
    };
    let server = Server::start(&[]);
    assert_eq!(asks(&server, "http://localhost:3000"), 101, "this machine's own page");
    assert_eq!(asks(&server, &format!("http://{}", server.listen)), 101, "the same origin");
    assert_eq!(asks(&server, "https://app.example"), 403);
    eventually("the log names the flag", || {
        server.log().contains("--allow-origin https://app.example")
    });
    assert_eq!(server.metrics()["standfast_origin_refused_total"], 1.0);
    let open = Server::start(&["--allow-origin", "https://app.example"]);
    assert_eq!(asks(&open, "https://app.example"), 101);
    assert_eq!(asks(&open, "https://other.example"), 403);
    assert_eq!(asks(&open, "null"), 403, "a sandboxed frame of any site");
}
