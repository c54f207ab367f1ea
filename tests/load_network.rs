//! Connect options of requests in `load`, scenarios and `stress`: proxies, tunnels, UNIX sockets,
//! --resolve, client certificates, source addresses, and errors of unreachable targets. Each option is
//! checked at the proxy or server, so that an ignored option is noticed.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::forward::Forward;
use crate::harness::http::read_more;
use crate::harness::server::Server;
use crate::harness::tls::Authority;
use crate::harness::web::{ReceivedRequest, Web};

/// Twenty requests over two connections, with JSON on standard output.
fn load(url: &str, more: &[&str]) -> (Finished, Value) {
    let flags = ["load", url, "--connections", "2", "--requests", "20", "--json", "-"];
    executable::run(&[&flags[..], more].concat()).with_json()
}

#[track_caller]
fn well(url: &str, more: &[&str]) -> Value {
    let (finished, document) = load(url, more);
    assert_eq!(finished.code, Some(0), "{more:?}: {finished:?}");
    assert_eq!(document["requests"]["ok"], 20, "{more:?}: {document}");
    document
}

/// All twenty fail by this kind, and the summary is there.
#[track_caller]
fn fails_by(kind: &str, url: &str, more: &[&str]) -> Finished {
    let (finished, document) = load(url, more);
    assert_eq!(finished.code, Some(1), "{more:?}: {finished:?}");
    assert_eq!(document["errors"], json!({kind: 20}), "{more:?}: {finished:?}");
    assert!(finished.stderr.contains("20 requests failed"), "{finished:?}");
    finished
}

/// Tests run beside each other, and files are named.
fn unique(kind: &str) -> String {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    format!("reaching-{}.{kind}", MADE.fetch_add(1, Ordering::Relaxed))
}

fn scenario(connect: &str, url: &str) -> (Finished, Value) {
    let text = format!(
        "version = 1\npasses = 20\n[connect]\n{connect}\n[[flows]]\n[[flows.steps]]\nurl = '{url}'\n"
    );
    let file = Scratch::new(&unique("toml"), &text);
    executable::run(&["load", file.path(), "--json", "-"]).with_json()
}

/// One request by a curl command.
fn stress(command: &str) -> (Finished, Value) {
    let file = Scratch::new(&unique("curl"), command);
    executable::run(&["stress", "-p", file.path(), "--json", "-"]).with_json()
}

/// A TLS server with the name `localhost`.
struct Shop {
    authority: Authority,
    server: Server,
    ca: String,
    port: u16,
}

fn shop(more: &[&str]) -> Shop {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    authority.sign("client", &["client"]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|file| authority.path(file));
    let of_clients = ["--tls-client-ca", &ca];
    let more = if more.is_empty() { &[][..] } else { &of_clients };
    let flags = ["--tls-cert", &cert, "--tls-key", &key];
    let server = Server::start(&[&flags[..], more].concat());
    let port = server.listen.port();
    Shop { authority, server, ca, port }
}

#[test]
fn https_uses_a_tunnel_and_only_the_proxy_gets_its_credentials() {
    let shop = shop(&[]);
    let proxy = Forward::start(None);
    let url = format!("https://localhost:{}/health", shop.port);
    let by = format!("http://u:p%40@{}", proxy.address);
    let kept = well(&url, &["--proxy", &by, "--ca", &shop.ca]);
    assert_eq!(kept["connections"]["opened"], 2, "{kept}");
    let asked = proxy.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    let line = format!("CONNECT localhost:{0} HTTP/1.1\r\nHost: localhost:{0}\r\n", shop.port);
    let secret = "Proxy-Authorization: Basic dTpwQA==\r\n";
    assert!(asked.iter().all(|head| head.starts_with(&line) && head.contains(secret)), "{asked:?}");
    let new = well(&url, &["--proxy", &by, "--ca", &shop.ca, "--new-connections"]);
    assert_eq!((&new["connections"]["opened"], proxy.asked().len()), (&json!(20), 22));
    assert_eq!(shop.server.metrics()["standfast_requests_total"], 40.0, "and no more");
    // A certificate of another is found out in a tunnel as well.
    let other = Authority::new();
    fails_by("tls", &url, &["--proxy", &by, "--ca", &other.path("ca.pem")]);
    let connect = format!("proxy = '{by}'\nca = '{}'", shop.ca);
    let (finished, document) = scenario(&connect, &url);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(document["requests"]["ok"], 20, "{document}");
    let before = proxy.asked().len();
    let curl = format!("curl -x {} -U u:p@ --cacert {} {url}", proxy.address, shop.ca);
    let (finished, document) = stress(&curl);
    assert_eq!((finished.code, &document["stress"]["ok"]), (Some(0), &json!(1)), "{finished:?}");
    let asked = proxy.asked();
    assert!(asked.len() == before + 1 && asked[before].contains(secret), "{asked:?}");
}

#[test]
fn tcp_uses_a_tunnel() {
    let server = Server::start(&[]);
    let proxy = Forward::start(None);
    let url = format!("tcp://nowhere.invalid:{}", server.listen.port());
    let data = r"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let by = format!("http://{}", proxy.address);
    let flags = ["--proxy", &by, "--data", data, "--expect-regex", "^HTTP/1.1 200 (?s:.)*ok"];
    let opened = well(&url, &flags)["connections"]["opened"].as_u64().unwrap();
    let asked = proxy.asked();
    assert_eq!(asked.len() as u64, opened, "{asked:?}");
    assert!(asked[0].starts_with("CONNECT nowhere.invalid:"), "{asked:?}");
}

#[test]
fn failed_tunnels_are_counted_by_kind() {
    for (refusal, kind) in [
        (
            "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            "proxy_refused",
        ),
        ("HTTP/1.1 200 OK\r\n\r\nmore than was asked for", "proxy_refused"),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", "bad_status_line"),
        ("HTTP/1.1 200", "connect_failed"),
        ("", "connect_timeout"),
    ] {
        let proxy = Forward::start(Some(refusal));
        let by = format!("http://{}", proxy.address);
        let flags = ["--proxy", &by, "--insecure", "--connect-timeout", "100ms"];
        let flags = if kind == "connect_timeout" { &flags[..] } else { &flags[..3] };
        fails_by(kind, "https://shop.test/", flags);
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    fails_by("connect_refused", "https://shop.test/", &["--proxy", &free, "--insecure"]);
    let lost = fails_by("dns", "http://shop.test/", &["--proxy", "nowhere.invalid:81"]);
    assert!(lost.stderr.contains("proxy: "), "{}", lost.stderr);
}

#[test]
fn plain_http_requests_are_sent_to_the_proxy() {
    let proxy = Web::start(|_| (200, Vec::new(), "from afar".to_owned()));
    let by = format!("http://u:p@{}", proxy.address);
    well("http://nowhere.invalid:81/a?b", &["--proxy", &by]);
    let (finished, _) = stress(&format!(
        "curl -x {} --proxy-user u:p 'http://nowhere.invalid:81/a?b'",
        proxy.address
    ));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let got = proxy.got();
    assert_eq!(got.len(), 21);
    for got in got {
        assert_eq!(got.target, "http://nowhere.invalid:81/a?b");
        assert_eq!(got.header("host"), Some("nowhere.invalid:81"));
        assert_eq!(got.header("proxy-authorization"), Some("Basic dTpw"));
    }
}

/// A server on a UNIX socket, and the heads it was sent.
fn on_a_file() -> (PathBuf, Arc<Mutex<Vec<String>>>) {
    let path = std::env::temp_dir().join(format!("standfast-reaching-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let book = Arc::clone(&heads);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let book = Arc::clone(&book);
            thread::spawn(move || {
                let mut pending = Vec::new();
                while read_more(&mut stream, &mut pending) {
                    if !pending.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let head = String::from_utf8(std::mem::take(&mut pending)).unwrap();
                    let is_old = head.contains("HTTP/1.0");
                    book.lock().unwrap().push(head);
                    let ended = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n");
                    let more = if is_old { "Connection: close\r\n\r\nok" } else { "\r\nok" };
                    if ended.and_then(|()| stream.write_all(more.as_bytes())).is_err() || is_old {
                        return;
                    }
                }
            });
        }
    });
    (path, heads)
}

#[test]
fn unix_socket_replaces_every_host_also_with_http_1_0() {
    let (path, heads) = on_a_file();
    let file = path.to_str().unwrap();
    let url = "http://nowhere.invalid/x";
    let kept = well(url, &["--unix-socket", file]);
    assert_eq!(kept["connections"]["opened"], 2, "{kept}");
    let old = well(url, &["--unix-socket", file, "--http1.0"]);
    assert_eq!(old["connections"]["opened"], 20, "{old}");
    let (finished, _) = scenario(&format!("unix_socket = '{file}'"), url);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let (finished, _) = stress(&format!("curl -0 --unix-socket {file} {url}"));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let heads = heads.lock().unwrap().clone();
    assert_eq!(heads.len(), 61);
    let of = |version: &str| {
        let line = format!("GET /x HTTP/{version}\r\nHost: nowhere.invalid\r\n");
        heads.iter().filter(|head| head.starts_with(&line)).count()
    };
    assert_eq!((of("1.1"), of("1.0")), (40, 21), "{heads:?}");
    std::fs::remove_file(&path).unwrap();
    fails_by("connect_failed", url, &["--unix-socket", file]);
}

#[test]
fn connections_wait_for_a_full_unix_socket_queue() {
    let path = std::env::temp_dir().join(format!("standfast-queue-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let listener = UnixListener::from(listener);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut pending = Vec::new();
            while !pending.ends_with(b"\r\n\r\n") && read_more(&mut stream, &mut pending) {}
            let _ = stream.write_all(b"HTTP/1.1 204 No\r\nConnection: close\r\n\r\n");
        }
    });
    let file = path.to_str().unwrap();
    let flags = ["load", "http://a/", "--unix-socket", file, "--connections", "20"];
    let more = ["--requests", "60", "--json", "-"];
    let (finished, document) = executable::run(&[&flags[..], &more].concat()).with_json();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(document["status"], json!({"204": 60}), "{document}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn resolve_and_source_addresses_are_used() {
    let web = Web::start(|_| (200, Vec::new(), String::new()));
    let port = web.address.port();
    let url = format!("http://shop.test:{port}/");
    let entry = format!("shop.test:{port}:127.0.0.1");
    well(&url, &["--resolve", &entry, "--source", "127.0.0.9"]);
    let (finished, _) = stress(&format!("curl --resolve {entry} --interface 127.0.0.9 {url}"));
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let got = web.got();
    let host = format!("shop.test:{port}");
    let right = |got: &ReceivedRequest| {
        got.header("host") == Some(&host) && got.peer.ip().to_string() == "127.0.0.9"
    };
    assert!(got.len() == 21 && got.iter().all(right), "{got:?}");
}

#[test]
fn client_certificate_is_sent_on_request() {
    let shop = shop(&["mutual"]);
    let url = format!("https://localhost:{}/health", shop.port);
    let entry = format!("localhost:{}:127.0.0.1", shop.port);
    let [cert, key] = ["client.pem", "client.key"].map(|file| shop.authority.path(file));
    let known = ["--resolve", &entry, "--ca", &shop.ca, "--cert", &cert, "--key", &key];
    well(&url, &known);
    let (finished, document) = load(&url, &known[..4]);
    assert_eq!((finished.code, &document["requests"]["ok"]), (Some(1), &json!(0)), "{finished:?}");
    // Certificate and key in one file, as curl accepts them.
    let both = [&cert, &key].map(|file| std::fs::read_to_string(file).unwrap()).concat();
    let both = Scratch::new("both.pem", &both);
    let curl = format!("curl --resolve {entry} --cacert {} -E {} {url}", shop.ca, both.path());
    let (finished, _) = stress(&curl);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(!finished.stderr.contains("not checked"), "{finished:?}");
    let other = Authority::new();
    for (options, code) in [
        (format!("--cacert {} --cert {cert} --key {key}", shop.ca), 0),
        (format!("--cacert {}", shop.ca), 1),
        (format!("--cacert {} --cert {cert} --key {key}", other.path("ca.pem")), 1),
    ] {
        let (finished, _) = stress(&format!("curl --resolve {entry} {options} {url}"));
        assert_eq!(finished.code, Some(code), "{options}: {finished:?}");
    }
}

#[test]
fn connect_timeout_is_separate() {
    // The kernel accepts the connection, but nothing answers the TLS handshake.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", deaf.local_addr().unwrap());
    fails_by("connect_timeout", &url, &["--insecure", "--connect-timeout", "100ms"]);
    let (finished, document) = scenario("insecure = true\nconnect_timeout = '50ms'", &url);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(document["errors"], json!({"connect_timeout": 20}), "{document}");
    let (_, document) = stress(&format!("curl --connect-timeout 0.1 {url}"));
    assert_eq!(document["errors"], json!({"connect_timeout": 1}), "{document}");
}

#[test]
fn unresolved_host_is_counted_for_each_request() {
    let lost = fails_by("dns", "http://nowhere.invalid/", &[]);
    assert!(lost.stderr.contains("cannot resolve nowhere.invalid"), "{}", lost.stderr);
    fails_by("dns", "https://nowhere.invalid/", &["--insecure"]);
    fails_by("dns", "tcp://nowhere.invalid:9", &["--data", "x"]);
    let (finished, document) = load("http://nowhere.invalid/", &["--fail", "errors<21"]);
    assert_eq!(finished.code, Some(1), "no threshold is met without answers: {finished:?}");
    for (name, count) in [("opened", 0), ("failed", 20), ("closed_idle", 0), ("unasked", 0)] {
        assert_eq!(document["connections"][name], json!(count), "{name}");
    }
    let (finished, document) = scenario("", "http://nowhere.invalid/x");
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(document["flows"][0]["steps"][0]["errors"], json!({"dns": 20}), "{document}");
    let (finished, document) = stress("curl http://nowhere.invalid/");
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(document["stress"]["codes"], json!({"509": 1}), "{document}");
    // One of two hosts resolves: only requests to the other fail.
    let web = Web::start(|_| (200, Vec::new(), String::new()));
    let found = format!("http://{}/", web.address);
    let (_, document) = load(&found, &["http://nowhere.invalid/"]);
    let (ok, dns) = (&document["requests"]["ok"], &document["errors"]["dns"]);
    assert!(ok.as_u64() > Some(0) && dns.as_u64() > Some(0), "{document}");
    assert_eq!(ok.as_u64().unwrap() + dns.as_u64().unwrap(), 20, "{document}");
}

#[test]
fn invalid_connect_options_are_errors_with_their_line() {
    for (command, named) in [
        ("curl\ncurl -x socks5://a:1 http://a/", "socks5"),
        ("\n\ncurl --interface eth0 http://127.0.0.1:1/", "line 3"),
        ("curl --resolve a:1 http://a/", "HOST:PORT:ADDRESS"),
        ("curl --cacert /no/such.pem https://127.0.0.1/", "/no/such.pem"),
        ("curl -x a:1 --unix-socket b http://a/", "exclude each other"),
    ] {
        let file = Scratch::new(&unique("wrong"), command.trim_start_matches("curl\n"));
        let finished = executable::run(&["stress", "-p", file.path()]);
        assert_eq!(finished.code, Some(2), "{command}: {finished:?}");
        assert!(finished.stderr.contains(named), "{command}: {finished:?}");
    }
}

/// A server of plain HTTP that ends connections which begin with TLS: it answers in plain text, closes them, or resets
/// them, in turn.
fn plain_server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, mut stream) in listener.incoming().map_while(Result::ok).enumerate() {
            thread::spawn(move || {
                let mut first = [0];
                if stream.peek(&mut first).is_err() || first == [0x16] && number % 3 == 0 {
                    // What was not read resets it.
                    return;
                }
                let mut read = Vec::new();
                read_more(&mut stream, &mut read);
                if first != [0x16] || number % 3 == 1 {
                    let _ =
                        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    address
}

#[test]
fn plain_text_where_tls_is_expected_has_one_kind_and_one_hint() {
    let proto = Scratch::new(
        "plain.proto",
        "syntax = \"proto3\";\npackage a;\nmessage T {}\nservice B { rpc One(T) returns (T); }\n",
    );
    let address = plain_server();
    for (url, plain, more) in [
        (format!("https://{address}/"), "http", &["--insecure"][..]),
        (format!("https://{address}/"), "http", &["--insecure", "--http2"]),
        (format!("grpcs://{address}/a.B/One"), "grpc", &["--insecure", "--proto", proto.path()]),
    ] {
        let (finished, document) = load(&url, more);
        // On a slow machine the run stops early, once the cause is known, so only the kind is compared.
        let kinds = document["errors"].as_object().unwrap();
        let kinds: Vec<&str> = kinds.keys().map(String::as_str).collect();
        assert_eq!((finished.code, kinds), (Some(1), vec!["tls"]), "{url} {more:?}: {finished:?}");
        let hint = format!("does not speak TLS: use {plain}://");
        assert!(finished.stderr.contains(&hint), "{url} {more:?}: {finished:?}");
    }
}
