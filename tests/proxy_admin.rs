//! Who may change a running `standfast proxy`: over TCP only holders of the admin key, and whoever may
//! open its UNIX socket.

use std::io::Write;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::executable::{Running, run, standfast};
use crate::harness::http::{self, Response};
use crate::harness::server::Server;
use crate::harness::socket::Socket;
use crate::harness::{Scratch, eventually};

const CHANGES: [(&str, &str); 3] = [
    ("/api/upstreams", r#"{"action":"set","upstream":"127.0.0.1:9"}"#),
    ("/api/routes", r#"{"action":"set","path":"/x","pool":"default"}"#),
    ("/api/close", r#"{"percent":100}"#),
];

fn upstreams(proxy: &Server) -> usize {
    let listed = proxy.admin_get("/api/upstreams").json();
    listed["pools"][0]["upstreams"].as_array().unwrap().len()
}

#[test]
fn without_a_key_the_admin_api_is_read_only_over_tcp() {
    let node = Server::start(&[]);
    let proxy = Server::start_proxy(&["--upstream", &node.listen.to_string()]);
    let mut tunnel = Socket::open(proxy.listen, "/echo");
    for (path, body) in CHANGES {
        let answer = http::post(proxy.admin, path, body);
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("--admin-key") && message.contains("unix:"), "{message}");
    }
    assert_eq!(upstreams(&proxy), 1);
    for path in ["/api/routes", "/api/tunnels", "/api/stats", "/metrics", "/health"] {
        assert_eq!(http::get(proxy.admin, path).status, 200, "{path}");
    }
    let routes = http::get(proxy.admin, "/api/routes").json();
    assert_eq!(routes["routes"].as_array().unwrap().len(), 1, "{routes}");
    tunnel.send_frame(crate::harness::socket::TEXT, b"open");
    assert_eq!(tunnel.frame().unwrap().payload, b"open");
    eventually("the log says so", || proxy.log().contains("read-only over TCP"));
}

#[test]
fn the_admin_key_allows_changes() {
    let node = Server::start(&[]);
    let proxy =
        Server::start_proxy(&["--upstream", &node.listen.to_string(), "--admin-key", "secret"]);
    for (path, body) in CHANGES {
        assert_eq!(http::post(proxy.admin, path, body).status, 401, "{path}");
        let answer = proxy.admin_post(path, body);
        assert!(matches!(answer.status, 200 | 202), "{path}: {answer:?}");
    }
    assert_eq!(upstreams(&proxy), 2);
    // What the start says is above what the end says.
    proxy.signal(Signal::TERM);
    eventually("the log tells the end", || proxy.log().contains("draining"));
    assert!(!proxy.log().contains("read-only"));
}

/// A request over a UNIX socket.
fn ask(path: &str, method: &str, target: &str, body: &str) -> Response {
    let mut stream = None;
    eventually("the admin socket is open", || {
        stream = UnixStream::connect(path).ok();
        stream.is_some()
    });
    let mut stream = stream.unwrap();
    let length = body.len();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").unwrap();
    http::read_response(&mut stream, &mut Vec::new())
}

#[test]
fn the_unix_socket_allows_changes() {
    let path = std::env::temp_dir().join(format!("standfast-changes-{}.sock", std::process::id()));
    let admin = format!("unix:{}", path.display());
    let listen = ["proxy", "--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:9"];
    let mut command = standfast(&[&listen[..], &["--admin", &admin]].concat());
    let _proxy = Running(command.spawn().unwrap());
    let path = path.to_str().unwrap();
    for (target, body) in CHANGES {
        let answer = ask(path, "POST", target, body);
        assert!(matches!(answer.status, 200 | 202), "{target}: {answer:?}");
    }
    assert_eq!(ask(path, "GET", "/api/upstreams", "").status, 200);
}

#[test]
fn invalid_addresses_are_refused_everywhere_and_unix_upstreams_by_the_api() {
    let long = format!("unix:/{}", "x".repeat(300));
    let known = std::env::temp_dir().join("standfast-never-there.sock");
    let known = format!("unix:{}", known.display());
    let config = format!("[pool.a]\nupstreams = ['127.0.0.1:9', '{known}']\n");
    let config = Scratch::new("addresses.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--admin-key", "secret"]);
    let set = |upstream: &str| {
        let body = json!({ "action": "set", "upstream": upstream, "weight": 2 }).to_string();
        let answer = proxy.admin_post("/api/upstreams", &body);
        (answer.status, answer.json()["message"].as_str().unwrap_or_default().to_owned())
    };
    for (upstream, why) in [
        ("127.0.0.1:0", "port"),
        ("[::1]:0", "port"),
        ("unix:/run/a\0b.sock", "NUL"),
        (&long, "107 bytes"),
        ("unix:/var/run/docker.sock", "configuration file"),
        ("a\u{0}b:80", "invalid upstream"),
    ] {
        let (status, message) = set(upstream);
        assert_eq!(status, 400, "{upstream:?}");
        assert!(message.contains(why), "{upstream:?}: {message}");
    }
    assert_eq!(set(&known).0, 200, "one of the file can be changed");
    assert_eq!(upstreams(&proxy), 2);
    for upstream in ["127.0.0.1:0", &long] {
        let refused = run(&["proxy", "--upstream", upstream]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
    }
}
