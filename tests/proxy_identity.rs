//! Upstreams of `standfast proxy` are known by pool, name and address: two names of one address are two
//! upstreams, and a reload that renames one keeps its tunnels and its drain. The name server belongs to
//! the test, in a network namespace of its own.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::http::Response;
use crate::harness::lowered::Namespace;
use crate::harness::names::{Lookup, Names};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::tls::Authority;
use crate::harness::upstream::Upstream;
use crate::harness::{Scratch, eventually};

/// A namespace in which these names resolve to 127.0.0.1; `None` if this machine allows none.
fn namespace(names: &[&str]) -> Option<(Namespace, Names)> {
    let namespace = Namespace::create()?;
    let server = Names::start(&namespace);
    for name in names {
        server.set(name, Some(Lookup::Address(Ipv4Addr::LOCALHOST)));
    }
    Some((namespace, server))
}

/// A proxy with one pool, and its file.
struct Proxy {
    server: Server,
    config: Scratch,
}

impl Proxy {
    fn start(namespace: &Namespace, file: &str, pool: &str) -> Proxy {
        let config = Scratch::new(file, &format!("[pool.a]\n{pool}\n"));
        let flags = ["--config", config.path(), "--admin-key", "key"];
        let server = Server::start_proxy_in(namespace, &flags);
        Proxy { server, config }
    }

    fn reload(&self, pool: &str) {
        let reloads = || self.server.log().matches("configuration reloaded").count();
        let before = reloads();
        self.config.write(&format!("[pool.a]\n{pool}\n"));
        self.server.signal(Signal::HUP);
        eventually("it is reloaded", || reloads() > before);
    }

    /// Opens a socket; the status if that fails.
    fn open(&self) -> Result<Socket, u16> {
        let port = self.server.listen.port();
        let mut socket = Socket::connect((Ipv4Addr::LOCALHOST, port).into());
        socket.send(upgrade("/echo", &[]).as_bytes());
        let status = socket.response().status;
        if status == 101 { Ok(socket) } else { Err(status) }
    }

    fn post(&self, body: &Value) -> Response {
        self.server.admin_post("/api/upstreams", &body.to_string())
    }

    /// The upstreams with this name.
    fn named(&self, name: &str) -> Vec<Value> {
        let listed = self.server.admin_get("/api/upstreams").json();
        let all = listed["pools"][0]["upstreams"].as_array().unwrap().clone();
        all.into_iter().filter(|one| one["upstream"] == name).collect()
    }

    /// A field of the only upstream with this name.
    fn field(&self, name: &str, field: &str) -> Value {
        let found = self.named(name);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found[0][field].clone()
    }

    fn metric(&self, metric: &str, name: &str, address: &str) -> Option<f64> {
        let labels = format!("pool=\"a\",upstream=\"{name}\",address=\"{address}\"");
        self.server.metrics().get(&format!("standfast_{metric}{{{labels}}}")).copied()
    }
}

fn echoes(socket: &mut Socket) -> bool {
    socket.send_frame(TEXT, b"there?");
    socket.frame().is_some_and(|frame| frame.payload == b"there?")
}

#[test]
fn two_names_of_one_address_have_their_own_limits_and_drains() {
    let Some((namespace, _names)) = namespace(&["a.test", "b.test"]) else { return };
    namespace.within(|| {
        let node = Server::start(&[]);
        let port = node.listen.port();
        let (a, b) = (format!("a.test:{port}"), format!("b.test:{port}"));
        let address = node.listen.to_string();
        let pool =
            format!("upstreams = [{{ address = '{a}', max = 1 }}, {{ address = '{b}', max = 2 }}]");
        let proxy = Proxy::start(&namespace, "two-names.toml", &pool);
        let open: Vec<_> = (0..3).map(|_| proxy.open()).collect();
        let mut open: Vec<Socket> = open.into_iter().map(Result::unwrap).collect();
        assert_eq!(proxy.open().err(), Some(503), "both are at their limits");
        assert!(open.iter_mut().all(echoes));
        for (name, tunnels) in [(&a, 1), (&b, 2)] {
            assert_eq!(proxy.field(name, "tunnels"), tunnels, "{name}");
            assert_eq!(proxy.field(name, "max"), tunnels, "{name}");
            let counted = proxy.metric("upstream_tunnels", name, &address);
            assert_eq!(counted, Some(f64::from(tunnels)), "{name}");
            let of_one = proxy.server.admin_get(&format!("/api/tunnels?upstream={name}")).json();
            let listed = of_one["tunnels"].as_array().unwrap().clone();
            assert_eq!(listed.len(), tunnels as usize, "{of_one}");
            let shown = |one: &Value| one["upstream"] == **name && one["address"] == *address;
            assert!(listed.iter().all(shown), "{of_one}");
        }
        drop(open);
        eventually("the tunnels have ended", || proxy.field(&b, "tunnels") == 0);
        let drained = proxy.post(&json!({ "action": "drain", "upstream": b }));
        assert_eq!(drained.status, 200, "{drained:?}");
        assert_eq!(
            (proxy.field(&a, "state"), proxy.field(&b, "state")),
            state("unchecked", "draining")
        );
        // An address means all its names, and with a name that upstream only.
        let action = |action: &str| json!({ "action": action, "upstream": address });
        assert_eq!(proxy.post(&action("resume")).status, 200);
        assert_eq!(
            (proxy.field(&a, "state"), proxy.field(&b, "state")),
            state("unchecked", "unchecked")
        );
        let of_one = json!({ "action": "drain", "upstream": a, "address": address });
        assert_eq!(proxy.post(&of_one).status, 200);
        assert_eq!(
            (proxy.field(&a, "state"), proxy.field(&b, "state")),
            state("draining", "unchecked")
        );
        let elsewhere = json!({ "action": "drain", "upstream": b, "address": "127.0.0.9:1" });
        let refused = proxy.post(&elsewhere);
        assert_eq!(refused.status, 400);
        assert!(refused.body.contains("has no address 127.0.0.9:1"), "{refused:?}");
        let removed = proxy.post(&json!({ "action": "remove", "upstream": a }));
        assert_eq!(removed.json()["removed"], 1, "{removed:?}");
        assert!(echoes(&mut proxy.open().unwrap()), "the other name stays");
    });
}

fn state(a: &str, b: &str) -> (Value, Value) {
    (a.into(), b.into())
}

#[test]
fn server_name_and_verification_follow_the_name() {
    let names = ["a.test", "b.test", "c.test"];
    let Some((namespace, _names)) = namespace(&names) else { return };
    let (trusted, other) = (Authority::new(), Authority::new());
    trusted.sign("a", &["a.test"]);
    other.sign("b", &["b.test"]);
    trusted.sign("c", &["c.test"]);
    let file = |authority: &Authority, file: &str| {
        [
            "--tls-cert".to_owned(),
            authority.path(&format!("{file}.pem")),
            "--tls-key".to_owned(),
            authority.path(&format!("{file}.key")),
        ]
    };
    let flags = [file(&trusted, "a"), file(&other, "b"), file(&trusted, "c")].concat();
    namespace.within(|| {
        let node = Server::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let port = node.listen.port();
        let name = |name: &str| format!("{name}.test:{port}");
        let pool = |second: &str| {
            format!(
                "upstreams = ['{}', '{second}']\ntls = true\ntls_ca = '{}'\neject_after = 0\ncheck = \
                 'http:/health'\ncheck_host = 'localhost'\ncheck_interval = '100ms'\ncheck_timeout = '20s'\nrise = 1\nfall = 1",
                name("a"),
                trusted.path("ca.pem")
            )
        };
        let proxy = Proxy::start(&namespace, "names-tls.toml", &pool(&name("b")));
        eventually("the certificate of one name is refused", || {
            proxy.field(&name("b"), "state") == "down"
        });
        assert_eq!(proxy.field(&name("a"), "state"), "up");
        let mut first = proxy.open().unwrap();
        assert_eq!(proxy.field(&name("a"), "tunnels"), 1);
        // The trusted certificate of another name.
        proxy.reload(&pool(&name("c")));
        eventually("the new name is verified", || proxy.field(&name("c"), "state") == "up");
        assert_eq!(proxy.field(&name("c"), "flips"), 2, "it was renamed");
        let mut more: Vec<Socket> = (0..9).map(|_| proxy.open().unwrap()).collect();
        assert_eq!(proxy.field(&name("c"), "tunnels"), 5, "the tunnels are shared evenly");
        assert!(echoes(&mut first) && more.iter_mut().all(echoes));
    });
}

#[test]
fn checks_send_the_name_of_each_upstream() {
    let Some((namespace, _names)) = namespace(&["a.test", "b.test"]) else { return };
    namespace.within(|| {
        let upstream = Upstream::new();
        let port = upstream.address().port();
        let pool = format!(
            "upstreams = ['a.test:{port}', 'b.test:{port}', '127.0.0.1:{port}']\ncheck = 'http:/up'\n\
             check_interval = '100ms'"
        );
        let _proxy = Proxy::start(&namespace, "hosts.toml", &pool);
        let mut hosts = BTreeSet::new();
        eventually("each was checked by its name", || {
            upstream.each_waiting(|mut leg| {
                let Some(head) = leg.head_if_any() else { return };
                let host = head.lines().find_map(|line| line.strip_prefix("Host: "));
                hosts.extend(host.map(str::to_owned));
                leg.say("HTTP/1.1 204 No Content\r\n\r\n");
            });
            hosts.len() == 3
        });
        let expected = ["127.0.0.1", "a.test", "b.test"].map(|host| format!("{host}:{port}"));
        assert_eq!(hosts, BTreeSet::from(expected));
    });
}

#[test]
fn a_reload_that_renames_an_upstream_keeps_its_tunnels_and_its_drain() {
    let names = ["a.test", "b.test", "c.test"];
    let Some((namespace, _names)) = namespace(&names) else { return };
    namespace.within(|| {
        let node = Server::start(&[]);
        let (port, address) = (node.listen.port(), node.listen.to_string());
        let [a, b, c] = ["a", "b", "c"].map(|name| format!("{name}.test:{port}"));
        let pool = |upstreams: &[&String]| format!("upstreams = {upstreams:?}\nmax = 2");
        let proxy = Proxy::start(&namespace, "renamed.toml", &pool(&[&a, &b]));
        let mut open: Vec<Socket> = (0..4).map(|_| proxy.open().unwrap()).collect();
        assert_eq!(proxy.post(&json!({ "action": "drain", "upstream": a })).status, 200);
        // In another order, and with another limit.
        proxy.reload(&pool(&[&b, &c]));
        assert!(proxy.named(&a).is_empty(), "{:?}", proxy.named(&a));
        assert_eq!(
            (proxy.field(&b, "state"), proxy.field(&c, "state")),
            state("unchecked", "draining")
        );
        assert_eq!((proxy.field(&b, "tunnels"), proxy.field(&c, "tunnels")), (json!(2), json!(2)));
        assert_eq!(proxy.metric("upstream_picked_total", &c, &address), Some(2.0));
        assert_eq!(proxy.metric("upstream_tunnels", &a, &address), None);
        let listed = proxy.server.admin_get(&format!("/api/tunnels?upstream={c}")).json();
        assert_eq!(listed["tunnels"].as_array().map(Vec::len), Some(2), "{listed}");
        assert!(open.iter_mut().all(echoes), "no tunnel has ended");
        assert_eq!(proxy.open().err(), Some(503), "it is still drained, and the other is full");
        assert_eq!(proxy.post(&json!({ "action": "resume", "upstream": c })).status, 200);
        // Its tunnels are closed under its new name.
        let close = json!({ "percent": 100, "upstream": c }).to_string();
        assert_eq!(proxy.server.admin_post("/api/close", &close).status, 202);
        eventually("they have ended", || proxy.field(&c, "tunnels") == 0);
        assert_eq!(proxy.field(&b, "tunnels"), 2);
        // A name becomes the address itself.
        proxy.reload(&pool(&[&b, &address]));
        assert_eq!(proxy.field(&address, "picked"), 2);
        assert!(proxy.server.log().contains("1 renamed"), "{}", proxy.server.log());
    });
}
