//! TLS and PROXY headers from `standfast proxy` to upstreams: per pool, for tunnels and health checks,
//! and changed by a reload.

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::tls::Authority;
use crate::harness::{Scratch, eventually, http};

/// `serve` with a certificate for a name and further flags.
fn secure(authority: &Authority, name: &str, more: &[&str]) -> Server {
    authority.sign(name, &[name]);
    let (pem, key) =
        (authority.path(&format!("{name}.pem")), authority.path(&format!("{name}.key")));
    Server::start(&[&["--tls-cert", &pem, "--tls-key", &key], more].concat())
}

/// Sends a handshake for a host; returns the status and the socket.
fn asks(proxy: &Server, host: &str) -> (u16, Socket) {
    let mut socket = Socket::connect(proxy.listen);
    socket.send(upgrade("/echo", &[("Host", host)]).as_bytes());
    (socket.response().status, socket)
}

fn echoes(proxy: &Server, host: &str) -> bool {
    let (status, mut socket) = asks(proxy, host);
    assert_eq!(status, 101, "{host}");
    socket.send_frame(TEXT, b"there?");
    socket.frame().is_some_and(|frame| frame.payload == b"there?")
}

fn upstream(proxy: &Server, pool: &str) -> Value {
    let told = http::get(proxy.admin, "/api/upstreams").json();
    let pools = told["pools"].as_array().unwrap();
    pools.iter().find(|one| one["pool"] == pool).unwrap()["upstreams"][0].clone()
}

#[test]
fn each_pool_and_its_health_checks_use_the_pools_tls() {
    let (one, other) = (Authority::new(), Authority::new());
    one.sign("proxy", &["proxy.test"]);
    let strict = secure(&one, "strict.test", &["--tls-client-ca", &one.path("ca.pem")]);
    let (named, plain) = (secure(&other, "named.test", &[]), Server::start(&[]));
    let route = |name: &str| format!("[[route]]\nhost = '{name}.localhost'\npool = '{name}'\n");
    let routes: String = ["strict", "named", "plain"].map(route).concat();
    let text = |name: &str| {
        let check = "check_interval = '100ms'\nrise = 1\nfall = 1\neject_after = 0\n\
                     panic_threshold = 0";
        format!(
            "{routes}[pool.strict]\nupstreams = ['{}']\ntls = true\ntls_ca = '{}'\ntls_cert = '{}'\n\
             tls_key = '{}'\ntls_name = 'strict.test'\ncheck = 'websocket:/echo'\n{check}\n\
             [pool.named]\nupstreams = ['{}']\ntls = true\ntls_ca = '{}'\ntls_name = '{name}'\n\
             check = 'http:/health'\n{check}\n[pool.plain]\nupstreams = ['{}']\ntls = false\n\
             check = 'http:/health'\n{check}\n",
            strict.listen,
            one.path("ca.pem"),
            one.path("proxy.pem"),
            one.path("proxy.key"),
            named.listen,
            other.path("ca.pem"),
            plain.listen,
        )
    };
    let config = Scratch::new("tls-pools.toml", &text("someone-else.test"));
    // Flags apply to pools without own settings.
    let proxy = Server::start_proxy(&["--config", config.path(), "--upstream-tls"]);
    let state = |pool: &str| upstream(&proxy, pool)["state"].as_str().unwrap().to_owned();
    eventually("it shows the wrong name", || state("named") == "down");
    assert_eq!(asks(&proxy, "named.localhost").0, 503);
    // An upstream that passes its checks over TLS was never down.
    eventually("both are checked", || {
        let checked = |node: &Server| node.metrics()["standfast_upgrades_total"] >= 2.0;
        let asked = |node: &Server| node.metrics()["standfast_requests_total"] >= 2.0;
        checked(&strict) && asked(&plain)
    });
    for pool in ["strict", "plain"] {
        assert_eq!((state(pool).as_str(), &upstream(&proxy, pool)["flips"]), ("up", &0.into()));
        assert!(echoes(&proxy, &format!("{pool}.localhost")), "{pool}");
    }
    config.write(&text("named.test"));
    proxy.signal(Signal::HUP);
    eventually("its name is the right one now", || state("named") == "up");
    assert!(echoes(&proxy, "named.localhost"));
    config.write(&text("named.test").replace("ca.pem", "none.pem"));
    proxy.signal(Signal::HUP);
    eventually("a file that is not there is named", || {
        proxy.log().contains("[pool.named]: tls: cannot read")
            || proxy.log().contains("[pool.strict]: tls: cannot read")
    });
    assert!(echoes(&proxy, "named.localhost"), "and nothing was changed");
}

#[test]
fn a_proxy_header_precedes_tls_and_health_checks() {
    let authority = Authority::new();
    let believes = ["--trusted-proxy", "127.0.0.1", "--proxy-protocol"];
    let node = secure(&authority, "node.test", &believes);
    for version in ["v1", "v2"] {
        let config = format!(
            "[pool.a]\nupstreams = ['{}']\ntls = true\ntls_insecure = true\nproxy_protocol = \
             '{version}'\ncheck = 'http:/health'\ncheck_interval = '100ms'\nfall = 1\n",
            node.listen
        );
        let config = Scratch::new(&format!("header-{version}.toml"), &config);
        let proxy = Server::start_proxy(&[&["--config", config.path()], &believes[..]].concat());
        let mut socket = Socket::connect(proxy.listen);
        socket.send(b"PROXY TCP4 192.0.2.7 192.0.2.9 4711 443\r\n");
        socket.send(upgrade("/echo", &[]).as_bytes());
        assert_eq!(socket.response().status, 101, "{version}");
        let told = http::get(node.admin, "/api/connections").body;
        assert!(told.contains("192.0.2.7"), "{version}: {told}");
        let answered = node.metrics()["standfast_requests_total"];
        eventually("its checks are answered", || {
            node.metrics()["standfast_requests_total"] >= answered + 2.0
        });
        let told = upstream(&proxy, "a");
        assert_eq!((&told["state"], &told["flips"]), (&"up".into(), &0.into()), "{told}");
    }
    let broken = "standfast_violations_total{violation=\"bad_proxy_header\"}";
    assert_eq!(node.metrics()[broken], 0.0);
}
