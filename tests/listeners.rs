//! Listeners with and without TLS in one process, and the redirect of plain HTTP to https, beside
//! nginx's.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::executable::{self, Running};
use crate::harness::http::{self, Response};
use crate::harness::server::Server;
use crate::harness::skip;
use crate::harness::socket::{Socket, TEXT, masked, upgrade};
use crate::harness::tls::{Authority, Secure};
use crate::harness::upstream::Upstream;
use crate::harness::{PATIENCE, Scratch, eventually};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Flags for a plain and a TLS listener, with a certificate for this machine's names.
fn flags(authority: &Authority) -> Vec<String> {
    authority.sign("server", &["localhost", "127.0.0.1"]);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let flags = ["--listen-tls", "127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
    flags.map(str::to_owned).to_vec()
}

fn with<'a>(flags: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    flags.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

/// `standfast serve` with a plain and a TLS listener.
fn serve(authority: &Authority, more: &[&str]) -> Server {
    Server::start(&with(&flags(authority), more))
}

/// `standfast proxy` with a plain and a TLS listener.
fn proxy(authority: &Authority, more: &[&str]) -> Server {
    Server::start_proxy(&with(&flags(authority), more))
}

/// The address of the TLS listener, the last one.
fn tls_address(server: &Server) -> SocketAddr {
    server.listeners.last().unwrap().parse().unwrap()
}

/// `GET path` of `host` without TLS.
fn get(server: &Server, host: &str, path: &str) -> Response {
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    http::ask(server.listen, &head)
}

fn location(response: &Response) -> Option<&str> {
    assert_eq!(response.status, 308, "{response:?}");
    response.header("location")
}

#[test]
fn one_process_serves_with_and_without_tls() {
    let authority = Authority::new();
    let server = serve(&authority, &[]);
    assert_eq!(server.listeners.len(), 2, "{:?}", server.listeners);
    assert_eq!(http::get(server.listen, "/health").status, 200);
    let mut socket = Socket::open(server.listen, "/echo");
    socket.send_frame(TEXT, b"plain");
    assert_eq!(socket.frame().unwrap().payload, b"plain");
    let mut secure = Secure::open(tls_address(&server), &authority.client(None), "/echo");
    secure.send(&masked(TEXT, b"secret")).unwrap();
    assert_eq!(secure.frame().unwrap().payload, b"secret");
    let mut mistaken = Socket::connect(tls_address(&server));
    mistaken.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut reply = Vec::new();
    while mistaken.take(&mut reply) {}
    assert!(!reply.starts_with(b"HTTP/"), "{}", reply.escape_ascii());
    server.until_closed("tls_failed", 1);
    for line in [
        format!("listening on {}\n", server.listen),
        format!("listening on {} (TLS)\n", tls_address(&server)),
    ] {
        eventually("the log names the listener", || server.log().contains(&line));
    }
}

#[test]
fn many_connections_spread_over_workers_keep_to_their_listener() {
    let authority = Authority::new();
    let server = serve(&authority, &["--workers", "2"]);
    let config = authority.client(None);
    for _ in 0..40 {
        assert_eq!(http::get(server.listen, "/health").status, 200);
        let mut secure = Secure::connect(tls_address(&server), &config, "localhost", usize::MAX);
        secure.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(secure.response().status, 200);
    }
    assert_eq!(server.metrics()["standfast_tls_handshakes_total"], 40.0);
}

#[test]
fn upstreams_learn_which_listener_a_request_came_by() {
    let authority = Authority::new();
    let upstream = Upstream::new();
    let to = upstream.address().to_string();
    let proxy = proxy(&authority, &["--upstream", &to]);
    let mut plain = Socket::connect(proxy.listen);
    plain.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Proto: https\r\n\r\n");
    let mut leg = upstream.accept();
    let head = leg.head();
    assert!(head.contains("X-Forwarded-Proto: http\r\n"), "{head}");
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    assert_eq!(plain.response().body, "ok");
    let address = tls_address(&proxy);
    let mut secure = Secure::connect(address, &authority.client(None), "localhost", usize::MAX);
    secure.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Proto: http\r\n\r\n").unwrap();
    let mut leg = upstream.accept();
    let head = leg.head();
    assert!(head.contains("X-Forwarded-Proto: https\r\n"), "{head}");
    leg.say(OK);
    assert_eq!(secure.response().body, "ok");
}

#[test]
fn refused_connections_are_answered_on_plain_listeners_only() {
    let authority = Authority::new();
    let server = serve(&authority, &["--max-per-address", "1"]);
    let _first = Socket::open(server.listen, "/echo");
    assert_eq!(http::get(server.listen, "/health").status, 503);
    let mut secure = Socket::connect(tls_address(&server));
    assert!(secure.ends(), "no plain answer to a client that expects TLS");
}

#[test]
fn a_proxy_header_comes_before_the_tls_of_its_listener() {
    let authority = Authority::new();
    let flags_of_proxies = ["--trusted-proxy", "127.0.0.1", "--proxy-protocol"];
    let server = serve(&authority, &flags_of_proxies);
    let header = b"PROXY TCP4 192.0.2.9 192.0.2.1 4000 80\r\n";
    let mut plain = Socket::connect(server.listen);
    plain.send(&[&header[..], b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"].concat());
    assert_eq!(plain.response().status, 200);
    let (address, config) = (tls_address(&server), authority.client(None));
    let mut secure = Secure::connect_behind(header, address, &config, "localhost", usize::MAX);
    secure.upgrade("/echo");
}

#[test]
fn plain_requests_of_every_kind_are_redirected() {
    let authority = Authority::new();
    let upstream = Upstream::new();
    let to = upstream.address().to_string();
    let log = Scratch::new("redirects.log", "");
    let more = ["--upstream", &to, "--redirect-https", "--access-log", log.path()];
    let proxy = proxy(&authority, &more);
    let port = tls_address(&proxy).port();
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let head = format!("{method} /a?b=c HTTP/1.1\r\nHost: example.com:81\r\n");
        let mut client = Socket::connect(proxy.listen);
        client.send(format!("{head}Content-Length: 4\r\n\r\nbody").as_bytes());
        let response = match method {
            "HEAD" => {
                let text = client.text_until("\r\n\r\n");
                assert!(text.starts_with("HTTP/1.1 308 "), "{text}");
                let url = format!("Location: https://example.com:{port}/a?b=c\r\n");
                assert!(text.contains(&url), "{text}");
                continue;
            }
            _ => client.response(),
        };
        let url = format!("https://example.com:{port}/a?b=c");
        assert_eq!(location(&response), Some(&*url), "{method}");
        assert_eq!(response.header("connection"), Some("close"));
    }
    let mut handshake = Socket::connect(proxy.listen);
    handshake.send(upgrade("/cable", &[("Host", "example.com")]).as_bytes());
    let url = format!("https://example.com:{port}/cable");
    assert_eq!(location(&handshake.response()), Some(&*url));
    assert!(upstream.is_alone(), "nothing reached the upstream");
    let redirects = proxy.metrics()["standfast_https_redirects_total"];
    assert_eq!(redirects, 8.0);
    eventually("the access log has a line", || {
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.contains("\"status\":308") && text.contains("https_redirect")
    });
}

#[test]
fn requests_over_tls_and_excepted_paths_are_not_redirected() {
    let authority = Authority::new();
    let upstream = Upstream::new();
    let to = upstream.address().to_string();
    let more = ["--redirect-https", "--redirect-except", "/up,/static/", "--upstream", &to];
    let proxy = proxy(&authority, &more);
    for path in ["/up", "/up?a=b", "/static/", "/static/a/b"] {
        let mut client = Socket::connect(proxy.listen);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        let mut leg = upstream.accept();
        let head = leg.head();
        assert!(head.starts_with(&format!("GET {path} ")), "{head}");
        leg.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        assert_eq!(client.response().status, 200);
    }
    for path in ["/upload", "/up/", "/static", "/static/../admin", "/static/%2e%2e/admin"] {
        let url = format!("https://localhost:{}{path}", tls_address(&proxy).port());
        assert_eq!(location(&get(&proxy, "localhost", path)), Some(&*url));
    }
    let address = tls_address(&proxy);
    let mut secure = Secure::connect(address, &authority.client(None), "localhost", usize::MAX);
    secure.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut leg = upstream.accept();
    leg.head();
    leg.say(OK);
    assert_eq!(secure.response().status, 200);
}

#[test]
fn serve_redirects_all_but_its_checks_and_certificate_challenges() {
    let authority = Authority::new();
    let server = serve(&authority, &["--redirect-https=443"]);
    for path in ["/health", "/ready"] {
        assert_eq!(get(&server, "localhost", path).status, 200);
    }
    let challenge = "/.well-known/acme-challenge/token";
    assert_eq!(get(&server, "localhost", challenge).status, 404, "not redirected");
    assert_eq!(location(&get(&server, "localhost", "/x")), Some("https://localhost/x"));
    let mut handshake = Socket::connect(server.listen);
    handshake.send(upgrade("/echo", &[("Host", "localhost")]).as_bytes());
    assert_eq!(location(&handshake.response()), Some("https://localhost/echo"));
    let response = get(&server, "evil.example", "/x");
    assert_eq!(response.status, 421, "a host that is not served is not redirected to");
    Secure::open(tls_address(&server), &authority.client(None), "/echo");
    assert_eq!(server.metrics()["standfast_https_redirects_total"], 2.0);
}

#[test]
fn hosts_without_a_route_or_that_are_no_names_get_no_url() {
    let authority = Authority::new();
    let text = "[pool.a]\nupstreams = ['127.0.0.1:9']\n\
                [[route]]\nhost = 'known.example'\npool = 'a'\n";
    let config = Scratch::new("redirect-hosts.toml", text);
    let only = proxy(&authority, &["--redirect-https=443", "--config", config.path()]);
    assert_eq!(location(&get(&only, "known.example:8080", "/")), Some("https://known.example/"));
    assert_eq!(get(&only, "other.example", "/").status, 404);
    let any = proxy(&authority, &["--redirect-https=443", "--upstream", "127.0.0.1:9"]);
    let refused = ["a.test@evil.test", "a.test%2f.evil.test", "a.test:80:90", "[::1", ""];
    for host in refused {
        let response = get(&any, host, "/");
        assert_eq!((response.status, response.header("location")), (400, None), "{host}");
    }
    let old = http::ask(any.listen, "GET / HTTP/1.0\r\n\r\n");
    assert_eq!(old.status, 400, "HTTP/1.0 without Host");
    for header in ["Host: a\r\nHost: b", "Host: a b", "Host: a/b", "Host: a\tb"] {
        let head = format!("GET / HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n");
        assert_eq!(http::ask(any.listen, &head).status, 400, "{header}");
    }
}

#[test]
fn a_trusted_proxy_that_reports_https_is_not_redirected() {
    let authority = Authority::new();
    let request = |by: &Server, line: &str| {
        let head = format!("GET /x HTTP/1.1\r\nHost: localhost\r\n{line}Connection: close\r\n\r\n");
        http::ask(by.listen, &head).status
    };
    let trusting = serve(&authority, &["--redirect-https", "--trusted-proxy", "127.0.0.1"]);
    assert_eq!(request(&trusting, "X-Forwarded-Proto: https\r\n"), 404);
    assert_eq!(request(&trusting, "X-Forwarded-Proto: http\r\n"), 308);
    assert_eq!(request(&trusting, ""), 308);
    assert_eq!(request(&trusting, "Forwarded: proto=https\r\n"), 308, "the header of others");
    let wary = serve(&authority, &["--redirect-https"]);
    assert_eq!(request(&wary, "X-Forwarded-Proto: https\r\n"), 308);
}

#[test]
fn programs_on_a_unix_socket_are_not_redirected() {
    let authority = Authority::new();
    let path = std::env::temp_dir().join(format!("standfast-plain-{}", std::process::id()));
    let unix = format!("unix:{}", path.display());
    let more = ["--listen", "127.0.0.1:0", "--listen", &*unix, "--redirect-https"];
    let server = serve(&authority, &more);
    let mut client = UnixStream::connect(&path).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(http::read_response(&mut client, &mut Vec::new()).status, 404);
    assert_eq!(get(&server, "localhost", "/x").status, 308);
}

#[test]
fn a_reload_turns_the_redirect_on_and_off() {
    let authority = Authority::new();
    let pool = "[pool.a]\nupstreams = ['127.0.0.1:9']\n";
    let config = Scratch::new("redirect-reload.toml", pool);
    let proxy = proxy(&authority, &["--config", config.path()]);
    assert_eq!(get(&proxy, "a.test", "/").status, 502);
    let reload = |settings: &str, count: usize| {
        config.write(&format!("[proxy]\n{settings}{pool}"));
        proxy.signal(Signal::HUP);
        let reloads = || proxy.log().matches("configuration reloaded").count();
        eventually("the configuration is reloaded", || reloads() == count);
    };
    reload("redirect_https = true\n", 1);
    let url = format!("https://a.test:{}/", tls_address(&proxy).port());
    eventually("redirected", || get(&proxy, "a.test", "/").status == 308);
    assert_eq!(location(&get(&proxy, "a.test", "/")), Some(&*url));
    reload("redirect_https = 8443\nredirect_except = ['/status/']\n", 2);
    let moved = || get(&proxy, "a.test", "/").header("location").map(str::to_owned);
    eventually("to the port", || moved().as_deref() == Some("https://a.test:8443/"));
    assert_eq!(get(&proxy, "a.test", "/status/a").status, 502);
    reload("", 3);
    eventually("off again", || get(&proxy, "a.test", "/").status == 502);
    config.write(&format!("[proxy]\nlisten_tls = '127.0.0.1:1'\n{pool}"));
    proxy.signal(Signal::HUP);
    // The flag overrides the file, so this changes nothing.
    eventually("reloaded", || proxy.log().matches("configuration reloaded").count() == 4);
}

#[test]
fn combinations_that_cannot_work_are_refused() {
    let authority = Authority::new();
    let flags = flags(&authority);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let refused = |more: &[&str], expected: &str| {
        for command in ["serve", "proxy"] {
            let fixed: &[&str] = match command {
                "serve" => &["serve", "--admin", "off"],
                _ => &["proxy", "--admin", "off", "--upstream", "127.0.0.1:9"],
            };
            let finished = executable::run(&[fixed, more].concat());
            assert_eq!(finished.code, Some(2), "{finished:?}");
            assert!(finished.stderr.contains(expected), "{finished:?}");
        }
    };
    refused(&["--listen-tls", "127.0.0.1:0"], "--listen-tls needs a certificate");
    refused(&["--redirect-https"], "no port to redirect to");
    let all = ["--tls-cert", &certificate, "--tls-key", &key, "--redirect-https"];
    refused(&all, "all listeners have TLS");
    refused(&with(&flags, &["--redirect-https"]), "all listeners have TLS");
    refused(&["--redirect-https=0"], "expected a port, true or false");
    refused(&["--redirect-except", "health"], "expected a path");
}

#[test]
fn without_listen_only_the_tls_listener_is_opened() {
    let authority = Authority::new();
    let flags = flags(&authority);
    let fixed = ["serve", "--admin", "127.0.0.1:0", "--ready-json"];
    let flags: Vec<&str> = fixed.into_iter().chain(flags.iter().map(String::as_str)).collect();
    let server = Server::run(executable::standfast(&flags));
    assert_eq!(server.listeners.len(), 1);
    let mut secure = Secure::connect(server.listen, &authority.client(None), "localhost", 7);
    secure.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(secure.response().status, 200);
}

/// nginx with `return 308` to https, on a UNIX socket.
struct Nginx {
    _running: Running,
    folder: PathBuf,
}

impl Nginx {
    fn start(port: u16) -> Option<Nginx> {
        let found = Command::new("nginx").arg("-v").stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            skip::missing("nginx");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("standfast-nginx-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let shown = folder.display();
        let config = format!(
            "daemon off; master_process off; pid {shown}/pid; error_log {shown}/error.log;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {shown}/a; proxy_temp_path {shown}/b;\n\
             fastcgi_temp_path {shown}/c; uwsgi_temp_path {shown}/d; scgi_temp_path {shown}/e;\n\
             server {{ listen unix:{shown}/socket;\n\
             location = /health {{ return 200; }}\n\
             location /.well-known/acme-challenge/ {{ return 200; }}\n\
             location / {{ return 308 https://$host:{port}$request_uri; }} }} }}\n"
        );
        std::fs::write(folder.join("nginx.conf"), config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&folder).arg("-c").arg(folder.join("nginx.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let running = Running(command.spawn().unwrap());
        let nginx = Nginx { _running: running, folder };
        eventually("nginx listens", || nginx.connect().is_some());
        Some(nginx)
    }

    fn connect(&self) -> Option<UnixStream> {
        let stream = UnixStream::connect(self.folder.join("socket")).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(stream)
    }

    fn ask(&self, request: &str) -> Response {
        let mut stream = self.connect().unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        http::read_response(&mut stream, &mut Vec::new())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn redirects_are_those_of_nginx() {
    let authority = Authority::new();
    let proxy = proxy(&authority, &["--redirect-https", "--upstream", "127.0.0.1:9"]);
    let Some(nginx) = Nginx::start(tls_address(&proxy).port()) else { return };
    let ask = |head: &str| {
        let request = format!("{head}\r\nConnection: close\r\n\r\n");
        let of =
            |response: Response| (response.status, response.header("location").map(str::to_owned));
        (of(http::ask(proxy.listen, &request)), of(nginx.ask(&request)))
    };
    for head in [
        "GET / HTTP/1.1\r\nHost: example.com",
        "GET /a/b?c=d&e=%20 HTTP/1.1\r\nHost: example.com:8080",
        "GET //x/../y HTTP/1.1\r\nHost: example.com",
        "POST /form HTTP/1.1\r\nHost: example.com\r\nContent-Length: 0",
        "DELETE /a HTTP/1.1\r\nHost: 192.0.2.1",
        "GET / HTTP/1.1\r\nHost: [2001:db8::1]:80",
        "GET /a HTTP/1.0\r\nHost: example.com",
        "GET /echo HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ] {
        let (ours, theirs) = ask(head);
        assert_eq!(ours, theirs, "{head}");
        assert_eq!(ours.0, 308, "{head}");
    }
    // Where the two differ: a Host that is no name leads nowhere here.
    let (ours, theirs) = ask("GET / HTTP/1.1\r\nHost: example.com@evil.example");
    assert_eq!((ours.0, ours.1, theirs.0), (400, None, 308), "{:?}", theirs.1);
}
