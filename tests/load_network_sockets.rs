//! Connect options of sockets in runs and scenarios of `load`: tunnels, UNIX sockets, --resolve, and
//! errors of unreachable targets. Each option is checked at the proxy or server, so that an ignored
//! option is noticed. Requests: `load_network`.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::forward::Forward;
use crate::harness::http::read_more;
use crate::harness::server::Server;
use crate::harness::tls::Authority;

const SECRET: &str = "Proxy-Authorization: Basic dTpwQA==\r\n";

/// Twenty connections, with JSON on standard output.
fn load(url: &str, more: &[&str]) -> (Finished, Value) {
    let flags = ["load", url, "--connections", "20", "--json", "-"];
    executable::run(&[&flags[..], more].concat()).with_json()
}

/// Sends three messages on each connection and expects all answers.
#[track_caller]
fn echoes(url: &str, more: &[&str]) -> Value {
    let (finished, document) = load(url, &[&["--messages", "3"], more].concat());
    assert_eq!(finished.code, Some(0), "{more:?}: {finished:?}");
    assert_eq!(document["connections"]["open"], 20, "{more:?}: {document}");
    assert_eq!(document["echo"]["received"], 60, "{more:?}: {document}");
    document
}

/// Expects all twenty connections to fail with this cause.
#[track_caller]
fn fails_by(cause: &str, url: &str, more: &[&str]) -> Finished {
    let (finished, document) = load(url, more);
    assert_eq!(finished.code, Some(1), "{more:?}: {finished:?}");
    assert_eq!(document["connect_errors"], json!({cause: 20}), "{more:?}: {finished:?}");
    assert!(finished.stderr.contains("20 connections failed"), "{finished:?}");
    finished
}

/// A server that answers to any name.
fn server(more: &[&str]) -> Server {
    Server::start(&[&["--allow-origin", "*"], more].concat())
}

/// A TLS server with the name `localhost`, and its authority's file.
fn secure() -> (Authority, Server, String) {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|file| authority.path(file));
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &key]);
    (authority, server, ca)
}

fn unique(kind: &str) -> String {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    format!("sockets-{}.{kind}", MADE.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn sockets_use_a_tunnel_also_without_tls() {
    let server = server(&["--public-streams"]);
    let proxy = Forward::start(None);
    let by = format!("http://u:p%40@{}", proxy.address);
    let port = server.listen.port();
    let url = format!("ws://nowhere.invalid:{port}/echo");
    for connect in ["windowed", "storm", "one-by-one"] {
        echoes(&url, &["--proxy", &by, "--connect", connect]);
    }
    let asked = proxy.asked();
    let line = format!("CONNECT nowhere.invalid:{port} HTTP/1.1\r\nHost: nowhere.invalid:{port}");
    let right = |head: &String| head.starts_with(&line) && head.contains(SECRET);
    assert!(asked.len() == 60 && asked.iter().all(right), "{asked:?}");
    // Short-lived connections, each through its own tunnel.
    let each = ["--proxy", &by, "--messages-per-connection", "2", "--duration", "300ms"];
    let (finished, document) = load(&url, &each);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let replaced = document["connections"]["replaced"].as_u64().unwrap();
    assert!(replaced > 0, "{document}");
    assert_eq!(proxy.asked().len() as u64, 80 + replaced, "{document}");
    let before = proxy.asked().len();
    let cable = format!("cable://nowhere.invalid:{port}");
    let (finished, document) = load(&cable, &["--proxy", &by, "--hold", "100ms"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(document["cable"]["subscribed"], 20, "{document}");
    assert_eq!(proxy.asked().len(), before + 20);
}

#[test]
fn tls_ends_at_the_server_behind_a_tunnel() {
    let (authority, server, ca) = secure();
    let proxy = Forward::start(None);
    let by = proxy.address.to_string();
    let url = format!("wss://localhost:{}/echo", server.listen.port());
    echoes(&url, &["--proxy", &by, "--ca", &ca]);
    assert_eq!(proxy.asked().len(), 20);
    assert_eq!(server.metrics()["standfast_tls_handshakes_total"], 20.0);
    let other = Authority::new();
    fails_by("tls_failed", &url, &["--proxy", &by, "--ca", &other.path("ca.pem")]);
    drop(authority);
    // Several endpoints share the proxy, each with its own CONNECT target.
    let plain = self::server(&[]);
    let urls = [
        format!("ws://127.0.0.1:{}/echo", plain.listen.port()),
        format!("ws://b.invalid:{}/echo", plain.listen.port()),
    ];
    echoes(&urls[0], &[&urls[1], "--proxy", &by]);
    let asked = proxy.asked();
    let of = |host: &str| {
        let line = format!("CONNECT {host}:{} ", plain.listen.port());
        asked.iter().filter(|head| head.starts_with(&line)).count()
    };
    assert_eq!((of("127.0.0.1"), of("b.invalid")), (10, 10), "{asked:?}");
}

#[test]
fn failed_tunnels_are_counted_by_cause() {
    for (refusal, cause) in [
        (
            "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "proxy_refused",
        ),
        ("HTTP/1.1 200 OK\r\n\r\nmore than was asked for", "proxy_refused"),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", "proxy_refused"),
        ("HTTP/1.1 200", "gone"),
        ("", "handshake_timeout"),
    ] {
        let proxy = Forward::start(Some(refusal));
        let by = proxy.address.to_string();
        let flags = ["--proxy", &by, "--connect-timeout", "200ms"];
        let flags = if refusal.is_empty() { &flags[..] } else { &flags[..2] };
        fails_by(cause, "ws://shop.test/", flags);
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    fails_by("connect_refused", "ws://shop.test/", &["--proxy", &free]);
    let lost = fails_by("dns", "ws://shop.test/", &["--proxy", "nowhere.invalid:81"]);
    assert!(lost.stderr.contains("proxy: "), "{}", lost.stderr);
    // Each retry sends its own CONNECT.
    let proxy = Forward::start(Some("HTTP/1.1 503 Later\r\n\r\n"));
    let by = proxy.address.to_string();
    let again = ["--proxy", &by, "--retry", "2", "--backoff", "1ms..2ms"];
    let (finished, document) = load("ws://shop.test/", &again);
    assert_eq!(document["retried_by"], json!({"proxy_refused": 40}), "{finished:?}");
    assert_eq!(proxy.asked().len(), 60);
}

fn socket_file() -> PathBuf {
    let name = format!("standfast-{}-{}", std::process::id(), unique("sock"));
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn unix_socket_replaces_every_host() {
    let path = socket_file();
    let file = path.to_str().unwrap();
    let unix = format!("unix:{file}");
    let server = server(&["--listen", "127.0.0.1:0", "--listen", &unix]);
    for connect in ["windowed", "storm"] {
        echoes("ws://nowhere.invalid/echo", &["--unix-socket", file, "--connect", connect]);
    }
    assert_eq!(server.metrics()["standfast_upgrades_total"], 40.0);
    drop(server);
    let _ = std::fs::remove_file(&path);
    fails_by("connect_failed", "ws://nowhere.invalid/echo", &["--unix-socket", file]);
}

/// A UNIX socket whose queue has room for two.
fn narrow(path: &PathBuf) -> UnixListener {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    UnixListener::from(listener)
}

#[test]
fn full_unix_socket_queue_counts_against_the_connect_timeout() {
    let path = socket_file();
    let deaf = narrow(&path);
    let file = path.to_str().unwrap();
    let flags = ["--unix-socket", file, "--connect", "storm", "--connect-timeout", "300ms"];
    let (finished, document) = load("ws://a/", &flags);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(
        document["connect_errors"],
        json!({"connect_timeout": 18, "handshake_timeout": 2}),
        "{document}"
    );
    thread::spawn(move || {
        for mut stream in deaf.incoming().map_while(Result::ok) {
            let mut pending = Vec::new();
            while !pending.ends_with(b"\r\n\r\n") && read_more(&mut stream, &mut pending) {}
            let _ = stream.write_all(b"HTTP/1.1 404 No\r\nConnection: close\r\n\r\n");
        }
    });
    fails_by("status_404", "ws://a/", &flags[..4]);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn resolve_addresses_are_used() {
    let server = server(&[]);
    let port = server.listen.port();
    let url = format!("ws://shop.test:{port}/echo");
    let entry = format!("shop.test:{port}:127.0.0.1");
    echoes(&url, &["--resolve", &entry]);
    // The same through a scenario file with [load].
    let text = format!(
        "version = 1\n[load]\nurls = ['{url}']\nresolve = ['{entry}']\nconnections = 20\nmessages = 3\n"
    );
    let file = Scratch::new(&unique("toml"), &text);
    let (finished, document) = executable::run(&["load", file.path(), "--json", "-"]).with_json();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(document["echo"]["received"], 60, "{document}");
}

#[test]
fn unresolved_host_is_counted_for_each_connection() {
    let lost = fails_by("dns", "ws://nowhere.invalid/", &[]);
    assert!(lost.stderr.contains("cannot resolve nowhere.invalid"), "{}", lost.stderr);
    assert!(lost.stderr.contains("its connections will fail (cause dns)"), "{}", lost.stderr);
    fails_by("dns", "wss://nowhere.invalid/", &["--insecure", "--messages", "3"]);
    fails_by("dns", "cable://nowhere.invalid/", &["--retry", "forever"]);
    let staged = ["load", "ws://nowhere.invalid/", "--stages", "0:20,100ms:20", "--json", "-"];
    let (finished, document) = executable::run(&staged).with_json();
    assert_eq!(document["connect_errors"], json!({"dns": 20}), "{finished:?}");
    let by_socket = ["--fanout", "10", "--messages", "5", "--publish-by-socket"];
    fails_by("dns", "ws://nowhere.invalid/", &by_socket);
    // One of two hosts resolves: only connections to the other fail.
    let server = Server::start(&[]);
    let found = format!("ws://{}/echo", server.listen);
    let (finished, document) = load(&found, &["ws://nowhere.invalid/", "--messages", "3"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(document["connect_errors"], json!({"dns": 10}), "{document}");
    assert_eq!(document["echo"]["received"], 30, "{document}");
    let stress = ["stress", "-c", "2", "-n", "3", "-u", "ws://nowhere.invalid/", "--json", "-"];
    let (finished, document) = executable::run(&stress).with_json();
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(document["connect_errors"], json!({"dns": 2}), "{document}");
}

/// A flow of a user who opens a socket and asks three times, each answered by the same.
fn chatty(top: &str, connect: &str, url: &str, message: &str) -> (Finished, Value) {
    let text = format!(
        "version = 1\nusers = 2\npasses = 3\n{top}\n[connect]\n{connect}\n[[flows]]\n\
         [[flows.steps]]\nconnect = '{url}'\nonce = true\n\
         [[flows.steps]]\nsend = '{message}'\nreceive = {{ text = '{message}' }}\n"
    );
    let file = Scratch::new(&unique("toml"), &text);
    executable::run(&["load", file.path(), "--json", "-"]).with_json()
}

#[track_caller]
fn chats(top: &str, connect: &str, url: &str, message: &str) -> Value {
    let (finished, document) = chatty(top, connect, url, message);
    assert_eq!(finished.code, Some(0), "{connect}: {finished:?}");
    assert_eq!(document["requests"]["ok"], 8, "{connect}: {document}");
    assert_eq!(document["sockets"]["received"], 6, "{connect}: {document}");
    document
}

#[test]
fn sockets_of_scenarios_use_the_connect_options() {
    let path = socket_file();
    let unix = format!("unix:{}", path.display());
    let server = server(&["--listen", "127.0.0.1:0", "--listen", &unix, "--public-streams"]);
    let port = server.listen.port();
    let proxy = Forward::start(None);
    let by = format!("proxy = 'http://u:p%40@{}'", proxy.address);
    let url = format!("ws://nowhere.invalid:{port}/echo");
    chats("", &by, &url, "hello");
    // A relative URL uses the target of requests, for which the proxy gets no CONNECT.
    chats(&format!("target = 'http://nowhere.invalid:{port}'"), &by, "/echo", "hello");
    let asked = proxy.asked();
    let line = format!("CONNECT nowhere.invalid:{port} HTTP/1.1\r\n");
    let right = |head: &String| head.starts_with(&line) && head.contains(SECRET);
    assert!(asked.len() == 4 && asked.iter().all(right), "{asked:?}");
    let cable = format!(
        "version = 1\npasses = 1\n[connect]\n{by}\n[[flows]]\n[[flows.steps]]\n\
         cable = 'ws://nowhere.invalid:{port}/cable'\n"
    );
    let file = Scratch::new(&unique("toml"), &cable);
    let (finished, document) = executable::run(&["load", file.path(), "--json", "-"]).with_json();
    assert_eq!((finished.code, proxy.asked().len()), (Some(0), 5), "{finished:?}");
    assert_eq!(document["requests"]["ok"], 1, "{document}");
    chats("", &format!("unix_socket = '{}'", path.display()), "ws://nowhere.invalid/echo", "hello");
    let led = format!("resolve = ['shop.test:{port}:127.0.0.1']");
    chats("", &led, &format!("ws://shop.test:{port}/echo"), "hello");
    let _ = std::fs::remove_file(&path);
    let (authority, secure, ca) = secure();
    let by = format!("proxy = '{}'\nca = '{ca}'", proxy.address);
    chats("", &by, &format!("wss://localhost:{}/echo", secure.listen.port()), "hello");
    assert_eq!(proxy.asked().len(), 7);
    drop(authority);
    let refusing = Forward::start(Some("HTTP/1.1 403 No\r\n\r\n"));
    let (finished, document) =
        chatty("", &format!("proxy = '{}'", refusing.address), &url, "hello");
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(document["errors"]["proxy_refused"].as_u64() > Some(0), "{document}");
}

#[test]
fn messages_of_scenarios_are_compressed_if_configured() {
    let server = Server::start(&["--compression", "shared"]);
    let url = format!("ws://{}/echo", server.listen);
    let long = "again and ".repeat(200);
    let count = |of: &str| server.metrics()[&format!("standfast_{of}_bytes_total")];
    for off in ["", "compression = 'off'"] {
        chats("", off, &url, &long);
        assert_eq!((count("inflate_in"), count("deflate_out")), (0.0, 0.0), "{off}");
    }
    // Messages below the size stay uncompressed.
    chats("", "compression = 'shared'\ncompress_above = '4KiB'", &url, &long);
    assert_eq!(count("inflate_out"), 0.0);
    chats("", "compression = 'shared'", &url, &long);
    assert_eq!(count("inflate_out"), 6.0 * 2_000.0, "six messages");
    assert!(count("inflate_in") < 600.0 && count("deflate_out") > 0.0);
    for (connect, named) in
        [("compression = 'takeover'", "off or shared"), ("compress_above = '1KiB'", "compression")]
    {
        let text = format!(
            "version = 1\n[connect]\n{connect}\n[[flows]]\n[[flows.steps]]\nconnect = '{url}'\n"
        );
        let file = Scratch::new(&unique("toml"), &text);
        let finished = executable::run(&["load", file.path()]);
        assert_eq!(finished.code, Some(2), "{connect}: {finished:?}");
        assert!(finished.stderr.contains(named), "{connect}: {finished:?}");
    }
}
