//! Upstreams that authenticate a connection (NTLM, Negotiate) behind `standfast proxy`: such a connection
//! serves the client that authenticated on it and nobody else.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::harness::http::Response;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::{Leg, Upstream, switching};
use crate::harness::{Scratch, eventually};

/// A server that authenticates connections, as IIS does: a request without credentials is answered as
/// the user of its connection.
struct Windows {
    address: SocketAddr,
    /// Connections that are open now.
    open: Arc<AtomicUsize>,
}

impl Windows {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&open);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                let count = Arc::clone(&count);
                count.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    serve_connection(Leg::of(stream), number);
                    count.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Windows { address, open }
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// Answers with the number of the connection and the user who authenticated on it.
fn serve_connection(mut leg: Leg, number: usize) {
    let mut user = None;
    while let Some(head) = leg.head_if_any() {
        if head.contains("Content-Length: 2\r\n") {
            leg.bytes(2);
        }
        let credentials = head.lines().find_map(|line| line.strip_prefix("Authorization: "));
        let mut challenge = "WWW-Authenticate: Basic realm=\"x\", NTLM\r\n";
        match credentials {
            Some("NTLM first") => challenge = "WWW-Authenticate: NTLM challenge\r\n",
            Some(other) => {
                let name = other.strip_prefix("NTLM ").or_else(|| other.strip_prefix("negotiate "));
                user = name.map(str::to_owned).or(user);
            }
            None => {}
        }
        if head.contains("Upgrade: websocket") {
            leg.say(switching() + &format!("{number} {user:?}\n"));
            return while leg.head_if_any().is_some() {};
        }
        let body = format!("{number} {}", user.as_deref().unwrap_or_default());
        let length = body.len();
        match &user {
            Some(_) => {
                leg.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"))
            }
            None => leg.say(format!("HTTP/1.1 401 No\r\n{challenge}Content-Length: 0\r\n\r\n")),
        }
    }
}

fn ask(socket: &mut Socket, method: &str, headers: &str) -> Response {
    socket.send(format!("{method} / HTTP/1.1\r\nHost: h\r\n{headers}\r\n").as_bytes());
    socket.response()
}

/// Authenticates by NTLM in three requests; returns the number of the upstream connection.
fn authenticate(proxy: &Server, user: &str) -> (Socket, String) {
    let mut socket = Socket::connect(proxy.listen);
    let challenge = ask(&mut socket, "GET", "");
    assert_eq!(challenge.status, 401);
    assert_eq!(challenge.header("www-authenticate"), Some("Basic realm=\"x\", NTLM"));
    let challenge = ask(&mut socket, "GET", "Authorization: NTLM first\r\n");
    assert_eq!(challenge.header("www-authenticate"), Some("NTLM challenge"));
    let answer = ask(&mut socket, "GET", &format!("Authorization: NTLM {user}\r\n"));
    let (number, name) = answer.body.split_once(' ').unwrap();
    assert_eq!((answer.status, name), (200, user), "{answer:?}");
    (socket, number.to_owned())
}

fn proxy_to(windows: &Windows, more: &[&str]) -> Server {
    let upstream = windows.address.to_string();
    Server::start_proxy(&[&["--upstream", &upstream, "--workers", "1"], more].concat())
}

#[test]
fn no_other_client_gets_an_authenticated_connection() {
    let windows = Windows::start();
    let proxy = proxy_to(&windows, &[]);
    let (mut alice, first) = authenticate(&proxy, "alice");
    let mut stranger = Socket::connect(proxy.listen);
    let answer = ask(&mut stranger, "GET", "");
    assert_eq!((answer.status, answer.body.as_str()), (401, ""), "{answer:?}");
    let (mut bob, second) = authenticate(&proxy, "bob");
    assert_ne!(first, second);
    for _ in 0..3 {
        // With a body, too: these take no idle connection but the client's own.
        let body = "Content-Length: 2\r\n\r\nhi";
        for (socket, expected) in
            [(&mut alice, format!("{first} alice")), (&mut bob, format!("{second} bob"))]
        {
            assert_eq!(ask(socket, "GET", "").body, expected);
            socket.send(format!("POST / HTTP/1.1\r\nHost: h\r\n{body}").as_bytes());
            assert_eq!(socket.response().body, expected);
        }
    }
    let bound = || proxy.metrics()["standfast_bound_connections"];
    eventually("each client has one connection", || bound() == 3.0);
    drop((alice, bob, stranger));
    eventually("they end with their clients", || windows.open() == 0);
    eventually("and are no longer counted", || bound() == 0.0);
    let mut next = Socket::connect(proxy.listen);
    assert_eq!(ask(&mut next, "GET", "").status, 401);
}

#[test]
fn credentials_alone_bind_no_connection_and_share_none() {
    let windows = Windows::start();
    let proxy = proxy_to(&windows, &[]);
    let mut carol = Socket::connect(proxy.listen);
    // No 401 was seen before: curl and browsers may send the first message unasked.
    let answer = ask(&mut carol, "GET", "Authorization: negotiate carol\r\n");
    assert_eq!(answer.body, "0 carol");
    eventually("her connection is closed", || windows.open() == 0);
    let mut stranger = Socket::connect(proxy.listen);
    assert_eq!(ask(&mut stranger, "GET", "").status, 401);
    // Challenged, she authenticates a connection that is kept. A WebSocket of hers is hers; it ends with
    // her connection.
    assert_eq!(ask(&mut carol, "GET", "").status, 401);
    let answer = ask(&mut carol, "GET", "Authorization: negotiate carol\r\n");
    assert_eq!(answer.body, "2 carol");
    carol.send(upgrade("/any", &[]).as_bytes());
    assert_eq!(carol.response().status, 101);
    assert_eq!(carol.text_until("\n"), "2 Some(\"carol\")\n");
    drop((carol, stranger));
    eventually("all are closed", || windows.open() == 0);
}

#[test]
fn a_bound_connection_keeps_to_its_client_under_a_proxy_header_and_ends_with_a_reload() {
    let windows = Windows::start();
    let text = |max: u32| {
        format!(
            "[pool.a]\nupstreams = ['{}']\nproxy_protocol = 'v1'\nmax = {max}\n",
            windows.address
        )
    };
    let config = Scratch::new("bound.toml", &text(9));
    let proxy = Server::start_proxy(&["--config", config.path(), "--workers", "1"]);
    let (mut alice, first) = authenticate(&proxy, "alice");
    assert_eq!(ask(&mut alice, "GET", "").body, format!("{first} alice"));
    config.write(&text(8));
    proxy.signal(Signal::HUP);
    eventually("a reload ends it", || windows.open() == 0);
    assert_eq!(ask(&mut alice, "GET", "").status, 401, "she has to authenticate again");
}

#[test]
fn a_drain_lets_a_login_end_and_then_moves_the_client() {
    let both = [Windows::start(), Windows::start()];
    let names = both.each_ref().map(|windows| windows.address.to_string());
    let proxy = Server::start_proxy(&[
        "--upstream",
        &names.join(","),
        "--workers",
        "1",
        "--admin-key",
        "secret",
    ]);
    let change = |action: &str, name: &str, more: &str| {
        let body = format!(r#"{{"action":"{action}","upstream":"{name}"{more}}}"#);
        assert_eq!(proxy.admin_post("/api/upstreams", &body).status, 200, "{body}");
    };
    let open = |at: usize| both[at].open();
    let mut alice = Socket::connect(proxy.listen);
    assert_eq!(ask(&mut alice, "GET", "").status, 401);
    let first = usize::from(open(0) == 0);
    let second = 1 - first;
    let challenge = ask(&mut alice, "GET", "Authorization: NTLM first\r\n");
    assert_eq!(challenge.header("www-authenticate"), Some("NTLM challenge"));
    change("drain", &names[first], "");
    // Another upstream has not sent this challenge and would refuse the answer to it.
    let answer = ask(&mut alice, "GET", "Authorization: NTLM alice\r\n");
    assert_eq!((answer.status, answer.body.as_str()), (200, "0 alice"), "{answer:?}");
    assert_eq!(open(second), 0);
    assert_eq!(ask(&mut alice, "GET", "").status, 401, "she has to authenticate elsewhere");
    eventually("the drained one loses her", || open(first) == 0 && open(second) == 1);
    assert_eq!(ask(&mut alice, "GET", "Authorization: NTLM alice\r\n").body, "0 alice");
    assert_eq!(ask(&mut alice, "GET", "").body, "0 alice");
    // A drain that closes tunnels waits for no login.
    change("resume", &names[first], "");
    change("drain", &names[second], "");
    assert_eq!(ask(&mut alice, "GET", "").status, 401);
    eventually("she is back", || open(first) == 1 && open(second) == 0);
    change("resume", &names[second], "");
    change("drain", &names[first], r#","over_seconds":0"#);
    ask(&mut alice, "GET", "Authorization: NTLM alice\r\n");
    eventually("she has moved", || open(first) == 0);
}

#[test]
fn a_bound_connection_that_the_upstream_closes_is_replaced() {
    let upstream = Upstream::new();
    let proxy =
        Server::start_proxy(&["--upstream", &upstream.address().to_string(), "--workers", "1"]);
    let mut client = Socket::connect(proxy.listen);
    let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    for _ in 0..2 {
        client.send(request);
        let mut leg = upstream.accept();
        leg.head();
        leg.say("HTTP/1.1 401 No\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.response().status, 401);
        drop(leg);
        eventually("it is forgotten", || proxy.metrics()["standfast_bound_connections"] == 0.0);
    }
    // Other schemes authenticate requests: their connections are shared.
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Basic eDp5\r\n\r\n");
    let mut leg = upstream.accept();
    leg.head();
    leg.say("HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=\"a\"\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response().status, 401);
    let mut other = Socket::connect(proxy.listen);
    other.send(request);
    leg.head();
    leg.say("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(other.response().status, 204);
}
