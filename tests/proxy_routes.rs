//! What a route of `standfast proxy` does differently: headers, clients, limits. Each beside nginx with the
//! same rules.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::forward::answers;
use crate::harness::http::{Response, read_response};
use crate::harness::nginx::Nginx;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::{Upstream, switching};
use crate::harness::{PATIENCE, Scratch, eventually, executable};

const OK: &str = "HTTP/1.1 200 OK\r\nServer: app\r\nX-Powered-By: app\r\nContent-Length: 2\r\n\
                  Connection: close\r\n\r\nok";

/// A proxy with these keys and routes, in front of one upstream.
struct Setup {
    proxy: Server,
    upstream: Upstream,
    config: Scratch,
}

impl Setup {
    fn new(keys: &str, routes: &str) -> Setup {
        let upstream = Upstream::new();
        let name = format!("routes-{}.toml", upstream.address().port());
        let config = Scratch::new(&name, &text(&upstream, keys, routes));
        let proxy = Server::start_proxy(&["--config", config.path()]);
        Setup { proxy, upstream, config }
    }

    /// nginx in front of the same upstream.
    fn nginx(&self, http: &str, server: &str) -> Option<Nginx> {
        let upstream = format!("upstream app {{ server {}; }}", self.upstream.address());
        Nginx::start(&format!("{upstream}\n{http}"), server)
    }

    /// Sends a request that the upstream answers; returns the head that it got, and the response.
    fn passed(&self, to: SocketAddr, request: &str) -> (String, Response) {
        let mut socket = Socket::connect(to);
        socket.send(request.as_bytes());
        let mut leg = self.upstream.accept();
        let head = leg.head();
        leg.say(OK);
        (head, socket.response())
    }

    fn reload(&self, keys: &str, routes: &str) {
        let reloaded = || self.proxy.log().matches("upstreams changed").count();
        let before = reloaded();
        self.config.write(&text(&self.upstream, keys, routes));
        self.proxy.signal(Signal::HUP);
        eventually("the configuration is reloaded", || reloaded() > before);
    }

    fn refused(&self, reason: &str) -> f64 {
        let name = format!("standfast_requests_refused_total{{reason=\"{reason}\"}}");
        self.proxy.metrics().get(&name).copied().unwrap_or_default()
    }
}

fn text(upstream: &Upstream, keys: &str, routes: &str) -> String {
    let address = upstream.address();
    format!("[proxy]\nworkers = 1\n{keys}\n{routes}\n[pool.a]\nupstreams = ['{address}']\n")
}

/// The headers of a head with these names, in lower case; several of one name are joined.
fn chosen(head: &str, names: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::<String, String>::new();
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        let name = name.to_ascii_lowercase();
        if names.contains(&name.as_str()) {
            let all = found.entry(name).or_default();
            *all += &format!("[{value}]");
        }
    }
    found
}

fn status(to: SocketAddr, request: &str) -> u16 {
    let mut socket = Socket::connect(to);
    socket.send(request.as_bytes());
    socket.response().status
}

#[test]
fn headers_are_set_and_removed_as_nginx_does() {
    let setup = Setup::new(
        "",
        "[[route]]\npool = 'a'\n\
         request_headers = ['X-User: u-$remote_addr', 'X-Scheme: $scheme', 'X-Host: $host', 'X-Full: ${http_host}', \
         'Cookie:']\n\
         response_headers = ['X-Frame-Options: DENY', 'X-Powered-By:', 'X-From: $scheme://$host']\n",
    );
    let request = "GET /x HTTP/1.1\r\nHost: App.test:81\r\nX-User: root\r\nx-scheme: https\r\nCookie: a=b\r\n\
                   Cookie: c=d\r\nX-Other: kept\r\nConnection: close, X-User, X-Host\r\n\r\n";
    let names = ["x-user", "x-scheme", "x-host", "x-full", "cookie", "x-other"];
    let (head, answer) = setup.passed(setup.proxy.listen, request);
    let ours = chosen(&head, &names);
    let expected = [
        ("x-full", "[App.test:81]"),
        ("x-host", "[app.test]"),
        ("x-other", "[kept]"),
        ("x-scheme", "[http]"),
        ("x-user", "[u-127.0.0.1]"),
    ];
    assert_eq!(ours, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    let shown = |answer: &Response| {
        ["x-frame-options", "x-powered-by", "x-from"]
            .map(|name| answer.header(name).map(str::to_owned))
    };
    let expected = [Some("DENY".to_owned()), None, Some("http://app.test".to_owned())];
    assert_eq!((shown(&answer), answer.header("server")), (expected, Some("app")));
    let Some(nginx) = setup.nginx(
        "",
        "location / {\nproxy_pass http://app;\n\
         proxy_set_header X-User u-$remote_addr;\nproxy_set_header X-Scheme $scheme;\n\
         proxy_set_header X-Host $host;\nproxy_set_header X-Full ${http_host};\n\
         proxy_set_header Cookie '';\n\
         add_header X-Frame-Options DENY;\nproxy_hide_header X-Powered-By;\n\
         add_header X-From $scheme://$host;\n}",
    ) else {
        return;
    };
    let (head, answer_of_nginx) = setup.passed(nginx.listen, request);
    assert_eq!(chosen(&head, &names), ours);
    assert_eq!(shown(&answer_of_nginx), shown(&answer));
}

#[test]
fn rules_of_a_route_apply_to_handshakes_and_to_errors_and_change_by_a_reload() {
    let routes = |value: &str| {
        format!(
            "[[route]]\npool = 'a'\nrequest_headers = ['X-A: {value}']\nresponse_headers = ['X-B: {value}']\n\
             [[route]]\npath = '/plain'\npool = 'a'\n"
        )
    };
    let setup = Setup::new("", &routes("one"));
    let mut socket = Socket::connect(setup.proxy.listen);
    socket.send(upgrade("/any", &[("X-A", "forged")]).as_bytes());
    let mut leg = setup.upstream.accept();
    assert_eq!(chosen(&leg.head(), &["x-a"])["x-a"], "[one]");
    leg.say(switching().replace("\r\n\r\n", "\r\nX-B: app\r\n\r\n"));
    let answer = socket.response();
    let added: Vec<&str> = answer
        .headers
        .iter()
        .filter(|(name, _)| name == "x-b")
        .map(|(_, value)| &**value)
        .collect();
    assert_eq!((answer.status, added), (101, vec!["one"]));
    // Another route has no rules.
    let request = "GET /plain HTTP/1.1\r\nHost: h\r\nX-A: mine\r\n\r\n";
    let (head, answer) = setup.passed(setup.proxy.listen, request);
    assert_eq!(chosen(&head, &["x-a"])["x-a"], "[mine]");
    assert_eq!(answer.header("x-b"), None);
    setup.reload("", &routes("two"));
    let (head, answer) = setup.passed(setup.proxy.listen, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(chosen(&head, &["x-a"])["x-a"], "[two]");
    assert_eq!(answer.header("x-b"), Some("two"));
    // The proxy's own responses have the headers, too.
    let mut socket = Socket::connect(setup.proxy.listen);
    socket.send(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut leg = setup.upstream.accept();
    leg.head();
    leg.say("no response\r\n\r\n");
    let answer = socket.response();
    assert_eq!((answer.status, answer.header("x-b")), (502, Some("two")));
}

#[test]
fn headers_that_delimit_messages_cannot_be_changed() {
    for (rule, complaint) in [
        ("Transfer-Encoding: chunked", "Transfer-Encoding belongs to the connection"),
        ("Content-Length:", "Content-Length belongs to the connection"),
        ("content_length: 5", "content_length belongs to the connection"),
        ("Host: other", "Host belongs to the connection"),
        ("Connection: upgrade", "Connection belongs to the connection"),
        ("Upgrade: h2c", "Upgrade belongs to the connection"),
        ("Sec-WebSocket-Key: x", "Sec-WebSocket-Key belongs to the connection"),
        ("X-A: b\\r\\nX-B: c", "invalid header"),
        ("X-A: b\\u0000", "invalid header"),
        ("X-A: $remote_user", "unknown variable $remote_user"),
    ] {
        for key in ["request_headers", "response_headers"] {
            let text = format!(
                "[[route]]\npool = 'a'\n{key} = [\"{rule}\"]\n[pool.a]\nupstreams = ['127.0.0.1:9']\n"
            );
            let file = Scratch::new(&format!("{key}.toml"), &text);
            let finished = executable::run(&["proxy", "check", file.path()]);
            assert_eq!(finished.code, Some(2), "{rule}: {finished:?}");
            let line = format!(":3: {key}: ");
            let named = finished.stderr.contains(&line) && finished.stderr.contains(complaint);
            assert!(named, "{rule}: {finished:?}");
        }
    }
}

#[test]
fn x_real_ip_is_the_address_that_nginx_sends() {
    let plain = Setup::new("x_real_ip = true", "");
    let trusting = Setup::new("x_real_ip = true\ntrusted_proxy = ['127.0.0.1']", "");
    let real_ip = "real_ip_header X-Forwarded-For;\nreal_ip_recursive on;\n";
    let server =
        "location / {\nproxy_pass http://app;\nproxy_set_header X-Real-IP $remote_addr;\n}";
    for (setup, real_ip) in
        [(&plain, ""), (&trusting, &*format!("{real_ip}set_real_ip_from 127.0.0.1;"))]
    {
        let nginx = setup.nginx(real_ip, server);
        for (sent, expected) in [
            ("", "127.0.0.1"),
            ("X-Real-IP: 6.6.6.6\r\n", "127.0.0.1"),
            ("X-Real-IP: 6.6.6.6\r\nx-real-ip: 7.7.7.7\r\nConnection: X-Real-IP\r\n", "127.0.0.1"),
            ("X-Forwarded-For: 192.0.2.7\r\n", "192.0.2.7"),
            ("X-Forwarded-For: 6.6.6.6, 192.0.2.7\r\nX-Real-IP: 6.6.6.6\r\n", "192.0.2.7"),
            ("X-Forwarded-For: 192.0.2.7, 127.0.0.1\r\n", "192.0.2.7"),
            ("X-Forwarded-For: 2001:db8::7\r\n", "2001:db8::7"),
        ] {
            let expected = if std::ptr::eq(setup, &plain) { "127.0.0.1" } else { expected };
            let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{sent}\r\n");
            let all = [Some(setup.proxy.listen), nginx.as_ref().map(|nginx| nginx.listen)];
            for to in all.into_iter().flatten() {
                let (head, _) = setup.passed(to, &request);
                let found = chosen(&head, &["x-real-ip"]);
                assert_eq!(found["x-real-ip"], format!("[{expected}]"), "{sent}: {head}");
            }
        }
    }
    // A reload turns it off; a client's is still not passed on.
    plain.reload("", "");
    let request = "GET / HTTP/1.1\r\nHost: h\r\nX-Real-IP: 6.6.6.6\r\n\r\n";
    eventually("the worker has the new settings", || {
        let (head, _) = plain.passed(plain.proxy.listen, request);
        assert!(!head.contains("6.6.6.6"), "{head}");
        chosen(&head, &["x-real-ip"]).is_empty()
    });
}

#[test]
fn request_ids_go_to_upstreams_clients_and_the_log() {
    let log = Scratch::new("request-ids.log", "");
    let keys = |ids: &str, more: &str| {
        format!("access_log = '{}'\nrequest_id = '{ids}'\n{more}", log.path())
    };
    let setup = Setup::new(&keys("all", ""), "");
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let id_of = |head: &str| {
        let found = chosen(head, &["x-request-id"]);
        let id = found.get("x-request-id").cloned().unwrap_or_default();
        id.trim_matches(['[', ']']).to_owned()
    };
    let is_new = |id: &str| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    let request =
        "GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: theirs\r\nX_Request_Id: theirs\r\n\r\n";
    let (head, answer) = setup.passed(setup.proxy.listen, request);
    let first = id_of(&head);
    assert!(is_new(&first) && !head.contains("theirs"), "{head}");
    assert_eq!(answer.header("x-request-id"), Some(&*first));
    // As nginx's.
    let server = "location / {\nproxy_pass http://app;\nproxy_set_header X-Request-Id $request_id;\n\
                  add_header X-Request-Id $request_id;\n}";
    if let Some(nginx) = setup.nginx("", server) {
        let (head, answer) = setup.passed(nginx.listen, request);
        let id = id_of(&head);
        assert!(is_new(&id) && !head.contains(": theirs\r\nX-Request"), "{head}");
        assert_eq!(answer.header("x-request-id"), Some(&*id));
    }
    // What a WebSocket and a refused request get.
    let mut socket = Socket::connect(setup.proxy.listen);
    socket.send(upgrade("/any", &[]).as_bytes());
    let mut leg = setup.upstream.accept();
    let second = id_of(&leg.head());
    leg.say(switching());
    let answer = socket.response();
    assert_eq!((answer.status, answer.header("x-request-id")), (101, Some(&*second)));
    drop((socket, leg));
    let mut socket = Socket::connect(setup.proxy.listen);
    socket.send(b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n");
    let answer = socket.response();
    let third = answer.header("x-request-id").unwrap().to_owned();
    assert!(answer.status == 405 && is_new(&second) && is_new(&third) && second != first);
    eventually("all three are logged", || lines().len() == 3);
    let logged: Vec<Value> = lines().iter().map(|line| line["request_id"].clone()).collect();
    for id in [first, second, third] {
        assert!(logged.contains(&Value::from(id)), "{logged:?}");
    }
    // A trusted proxy's id is kept, unless it is malformed; clients do not get it.
    setup.reload(&keys("upstream", "trusted_proxy = ['127.0.0.1']\n"), "");
    let with = |id: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: {id}\r\n\r\n");
        let (head, answer) = setup.passed(setup.proxy.listen, &request);
        (id_of(&head), answer.header("x-request-id").map(str::to_owned))
    };
    eventually("the worker has the new settings", || with("edge").0 == "edge");
    assert_eq!(with("edge-1:2/3=@"), ("edge-1:2/3=@".to_owned(), None));
    for malformed in ["a b", "a\"b", ""] {
        let (id, answered) = with(malformed);
        assert!(is_new(&id) && answered.is_none(), "{malformed}: {id}");
    }
    // Without them the header is passed on like any other.
    setup.reload(&keys("off", ""), "");
    eventually("the worker has the new settings", || with("a b").0 == "a b");
    eventually("it is logged without an id", || {
        lines().last().is_some_and(|line| line["request_id"].is_null())
    });
}

#[test]
fn clients_are_allowed_and_denied_as_by_nginx() {
    let setup = Setup::new(
        "trusted_proxy = ['127.0.0.1']",
        "[[route]]\npool = 'a'\n\
         [[route]]\npath = '/admin'\npool = 'a'\nallow = ['10.0.0.0/8', '2001:db8::/32']\ndeny = ['10.6.0.0/16']\n\
         [[route]]\npath = '/open'\npool = 'a'\ndeny = ['10.6.0.0/16', '::1']\n",
    );
    let nginx = setup.nginx(
        "real_ip_header X-Forwarded-For;\nreal_ip_recursive on;\nset_real_ip_from 127.0.0.1;",
        "location / { proxy_pass http://app; }\n\
         location /admin { deny 10.6.0.0/16; allow 10.0.0.0/8; allow 2001:db8::/32; deny all; proxy_pass http://app; }\n\
         location /open { deny 10.6.0.0/16; deny ::1; proxy_pass http://app; }",
    );
    let mut denied = 0.0;
    for (path, client, allowed) in [
        ("/admin", "10.0.0.1", true),
        ("/admin", "10.6.0.1", false),
        ("/admin", "192.0.2.1", false),
        ("/admin", "127.0.0.1", false),
        ("/admin", "2001:db8::1", true),
        ("/admin", "2001:db9::1", false),
        ("/admin/x?y", "192.0.2.1", false),
        ("/%61dmin", "192.0.2.1", false),
        ("//admin", "192.0.2.1", false),
        ("/x/../admin", "192.0.2.1", false),
        ("/x/%2e%2e/%61dmin/y", "192.0.2.1", false),
        ("/%61dmin", "10.0.0.1", true),
        ("/open", "10.6.0.1", false),
        ("/open", "10.0.0.1", true),
        ("/open", "::1", false),
        ("/open", "2001:db8::1", true),
        ("/", "10.6.0.1", true),
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\n\r\n");
        let all = [Some(setup.proxy.listen), nginx.as_ref().map(|nginx| nginx.listen)];
        for to in all.into_iter().flatten() {
            let found = match allowed {
                true => setup.passed(to, &request).1.status,
                false => status(to, &request),
            };
            assert_eq!(found, if allowed { 200 } else { 403 }, "{path} {client} at {to}");
        }
        denied += if allowed { 0.0 } else { 1.0 };
    }
    // nginx treats this as another address.
    let mapped = "GET /admin HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ::ffff:10.0.0.1\r\n\r\n";
    assert_eq!(setup.passed(setup.proxy.listen, mapped).1.status, 200);
    let mut handshake = Socket::connect(setup.proxy.listen);
    handshake.send(upgrade("/admin", &[("X-Forwarded-For", "192.0.2.1")]).as_bytes());
    assert_eq!(handshake.response().status, 403);
    assert!(handshake.ends() && setup.upstream.is_alone());
    assert_eq!(setup.refused("denied"), denied + 1.0);
    // A reload changes the lists.
    setup.reload("trusted_proxy = ['127.0.0.1']", "[[route]]\npool = 'a'\ndeny = ['10.0.0.0/8']\n");
    let of = |client: &str| {
        format!("GET /admin HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\n\r\n")
    };
    assert_eq!(setup.passed(setup.proxy.listen, &of("192.0.2.1")).1.status, 200);
    assert_eq!(status(setup.proxy.listen, &of("10.0.0.1")), 403);
}

#[test]
fn a_client_cannot_claim_an_allowed_address() {
    let setup = Setup::new("", "[[route]]\npool = 'a'\nallow = ['10.0.0.0/8']\n");
    let claims = "X-Forwarded-For: 10.0.0.1\r\nX-Real-IP: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\n";
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{claims}\r\n");
    assert_eq!(status(setup.proxy.listen, &request), 403);
    // Nor on a connection that a trusted proxy keeps for several clients.
    let setup = Setup::new(
        "trusted_proxy = ['127.0.0.1']",
        "[[route]]\npool = 'a'\nallow = ['10.0.0.0/8']\n",
    );
    let mut socket = Socket::connect(setup.proxy.listen);
    socket.send(b"GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n");
    let mut leg = setup.upstream.accept();
    leg.head();
    leg.say(OK.replace("Connection: close\r\n", ""));
    assert_eq!(socket.response().status, 200);
    socket.send(b"GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 10.0.0.1, 192.0.2.1\r\n\r\n");
    assert_eq!(socket.response().status, 403);
    socket.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(socket.response().status, 403);
    assert_eq!(setup.refused("denied"), 2.0);
}

#[test]
fn clients_of_unix_sockets_are_allowed_and_denied_as_by_nginx() {
    let routes = [
        ("/own", "allow unix:; deny all;", "allow = ['unix:']", (200, 403)),
        ("/tcp", "deny unix:;", "deny = ['unix:']", (403, 200)),
        ("/net", "allow 0.0.0.0/0; deny all;", "allow = ['0.0.0.0/0']", (403, 200)),
        (
            "/both",
            "allow unix:; allow 127.0.0.1; deny all;",
            "allow = ['127.0.0.1', 'unix:']",
            (200, 200),
        ),
    ];
    let upstream = answers(OK.into());
    let ours = routes
        .map(|(path, _, keys, _)| format!("[[route]]\npath = '{path}'\npool = 'a'\n{keys}\n"));
    let text = format!("{}[pool.a]\nupstreams = ['{upstream}']\n", ours.concat());
    let config = Scratch::new("unix-clients.toml", &text);
    let sockets = ["ours", "nginx"].map(|name| format!("{}.{name}", config.path()));
    let listen = format!("unix:{}", sockets[0]);
    let proxy = Server::start_proxy(&["--config", config.path(), "--listen", &listen]);
    let locations = routes.map(|(path, rules, ..)| {
        format!("location {path} {{ {rules} proxy_pass http://{upstream}; }}\n")
    });
    let nginx = Nginx::start("", &format!("listen unix:{};\n{}", sockets[1], locations.concat()));
    let all = [
        Some((proxy.listen, &sockets[0])),
        nginx.as_ref().map(|nginx| (nginx.listen, &sockets[1])),
    ];
    for (tcp, unix) in all.into_iter().flatten() {
        for (path, _, _, statuses) in routes {
            let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            let mut stream = UnixStream::connect(unix).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let of_unix = read_response(&mut stream, &mut Vec::new()).status;
            assert_eq!((of_unix, status(tcp, &request)), statuses, "{path} at {tcp}");
        }
    }
    for socket in sockets {
        let _ = std::fs::remove_file(socket);
    }
}

#[test]
fn limits_of_a_route_hold_there_as_in_nginx() {
    let setup = Setup::new(
        "max_body = '10B'",
        "[[route]]\npool = 'a'\n[[route]]\npath = '/up'\npool = 'a'\nmax_body = '100B'\n\
         [[route]]\npath = '/any'\npool = 'a'\nmax_body = 'off'\n\
         [[route]]\npath = '/quick'\npool = 'a'\nanswer_timeout = '300ms'\nupstream_timeout = '300ms'\n",
    );
    let nginx = setup.nginx(
        "client_max_body_size 10;",
        "location / { proxy_pass http://app; }\n\
         location /up { client_max_body_size 100; proxy_pass http://app; }\n\
         location /any { client_max_body_size 0; proxy_pass http://app; }\n\
         location /quick { proxy_read_timeout 300ms; proxy_pass http://app; }",
    );
    let all = [Some(setup.proxy.listen), nginx.as_ref().map(|nginx| nginx.listen)];
    for to in all.into_iter().flatten() {
        for (path, bytes, fits) in [
            ("/", 10, true),
            ("/", 11, false),
            ("/up", 100, true),
            ("/up", 101, false),
            ("/any", 5_000, true),
        ] {
            let body = "b".repeat(bytes);
            let request =
                format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {bytes}\r\n\r\n{body}");
            let found = match fits {
                true => setup.passed(to, &request).1.status,
                false => status(to, &request),
            };
            assert_eq!(found, if fits { 200 } else { 413 }, "{path} {bytes} at {to}");
        }
        let mut socket = Socket::connect(to);
        socket.send(b"GET /quick HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut leg = setup.upstream.accept();
        leg.head();
        assert_eq!(socket.response().status, 504, "at {to}");
    }
    let mut socket = Socket::connect(setup.proxy.listen);
    socket.send(upgrade("/quick", &[]).as_bytes());
    let mut leg = setup.upstream.accept();
    leg.head();
    assert_eq!(socket.response().status, 504);
    assert_eq!((setup.refused("no_answer"), setup.refused("body_too_large")), (2.0, 2.0));
}

#[test]
fn body_times_and_buffers_of_a_route_hold_there() {
    let setup = Setup::new(
        "",
        "[[route]]\npool = 'a'\n[[route]]\npath = '/slow'\npool = 'a'\nbody_min_rate = '1KiB/200ms'\n\
         [[route]]\npath = '/late'\npool = 'a'\nbody_timeout = '200ms'\n\
         [[route]]\npath = '/whole'\npool = 'a'\nbody_buffer = '1KiB'\nanswer_timeout = '10m'\n",
    );
    for (path, reason) in [("/slow", "slow_body"), ("/late", "late_body")] {
        let mut socket = Socket::connect(setup.proxy.listen);
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
        socket.send(head.as_bytes());
        let mut leg = setup.upstream.accept();
        leg.head();
        assert_eq!(socket.response().status, 408, "{path}");
        assert_eq!(setup.refused(reason), 1.0);
    }
    let mut socket = Socket::connect(setup.proxy.listen);
    socket.send(b"POST /whole HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
    eventually("it is being received", || {
        setup.proxy.metrics()["standfast_buffered_body_bytes"] == 3.0
    });
    assert!(setup.upstream.is_alone());
    socket.send(b"defghi");
    let mut leg = setup.upstream.accept();
    leg.head();
    assert_eq!(leg.bytes(9), b"abcdefghi");
    leg.say(OK);
    assert_eq!(socket.response().status, 200);
}

#[test]
fn the_access_log_has_what_nginx_logs() {
    let log = Scratch::new("beside-nginx.log", "");
    let setup = Setup::new(&format!("access_log = '{}'\nrequest_id = 'upstream'", log.path()), "");
    let form = "log_format all escape=json '{\"method\":\"$request_method\",\"host\":\"$http_host\",\
                \"target\":\"$request_uri\",\"user_agent\":\"$http_user_agent\",\"referer\":\"$http_referer\",\
                \"client\":\"$remote_addr\",\"status\":$status,\"bytes_out\":$body_bytes_sent}';";
    let server = "access_log access.log all;\nlocation / { proxy_pass http://app; }";
    let nginx = setup.nginx(form, server);
    let requests = [
        "GET /a?b=c%20d HTTP/1.1\r\nHost: h\r\nUser-Agent: plain\r\nReferer: http://r/\r\n\r\n",
        "POST /\"x\\y HTTP/1.1\r\nHost: H.test:81\r\nUser-Agent: a\"b\\c\td\u{fc}\r\nReferer: \"}\r\n\
         Content-Length: 0\r\n\r\n",
    ];
    for request in requests {
        for to in [Some(setup.proxy.listen), nginx.as_ref().map(|nginx| nginx.listen)]
            .into_iter()
            .flatten()
        {
            setup.passed(to, request);
        }
    }
    let parsed = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let ours = || parsed(&std::fs::read_to_string(log.path()).unwrap());
    eventually("both are logged", || ours().len() == 2);
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operate/proxy.md"))
            .unwrap();
    for key in ours()[0].as_object().unwrap().keys() {
        assert!(page.contains(&format!("`{key}`")), "docs/operate/proxy.md lacks the field {key}");
    }
    let Some(nginx) = nginx else { return };
    eventually("nginx has logged both", || nginx.file("access.log").lines().count() == 2);
    for (ours, theirs) in ours().iter().zip(parsed(&nginx.file("access.log"))) {
        for (key, value) in theirs.as_object().unwrap() {
            assert_eq!(&ours[key], value, "{key}: {ours} {theirs}");
        }
    }
}
