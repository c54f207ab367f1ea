//! Upstreams of `standfast proxy` that are names: reloads and lookups that fail or take long. The name
//! server belongs to the test, in a network namespace of its own.

use std::net::Ipv4Addr;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::executable::standfast;
use crate::harness::lowered::Namespace;
use crate::harness::names::{Lookup, Names};
use crate::harness::server::Server;
use crate::harness::{Scratch, eventually, http};

/// Another address than the one in the first configuration, of the same server.
const HERE: Option<Lookup> = Some(Lookup::Address(Ipv4Addr::new(127, 0, 0, 2)));

/// A configuration with one pool.
fn pool(upstreams: &str) -> String {
    format!("[pool.a]\nupstreams = [{upstreams}]\nresolve = '1s'\n")
}

fn status(proxy: &Server) -> u16 {
    http::get((Ipv4Addr::LOCALHOST, proxy.listen.port()).into(), "/health").status
}

/// The upstreams as configured, with their states.
fn upstreams(proxy: &Server) -> Vec<(String, String)> {
    let listed = http::get(proxy.admin, "/api/upstreams").json();
    let upstreams = listed["pools"][0]["upstreams"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    upstreams.iter().map(|one| (text(&one["upstream"]), text(&one["state"]))).collect()
}

fn unchecked(name: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), "unchecked".to_owned())]
}

/// `proxy check` inside a namespace: its exit code and standard error.
fn check(namespace: &Namespace, file: &Scratch) -> (Option<i32>, String) {
    let mut command: Command = namespace.inside(&standfast(&["proxy", "check", file.path()]));
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_reload_with_a_name_that_does_not_resolve_changes_nothing() {
    let Some(namespace) = Namespace::create() else { return };
    let names = Names::start(&namespace);
    namespace.within(|| {
        let node = Server::start(&["--listen", "0.0.0.0:0"]);
        let port = node.listen.port();
        let address = format!("127.0.0.1:{port}");
        let config = Scratch::new("unresolved.toml", &pool(&format!("'{address}'")));
        let proxy = Server::start_proxy_in(&namespace, &["--config", config.path()]);
        assert_eq!(check(&namespace, &config).0, Some(0));
        config.write(&pool(&format!("'nowhere.test:{port}', '{address}'")));
        let (code, error) = check(&namespace, &config);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains("cannot resolve nowhere.test: "), "{error}");
        config.write(&pool(&format!("'nowhere.test:{port}'")));
        proxy.signal(Signal::HUP);
        let refused = "reload failed, configuration unchanged: cannot resolve nowhere.test: ";
        eventually("the log says so", || {
            assert_eq!(status(&proxy), 200);
            proxy.log().contains(refused)
        });
        assert_eq!(upstreams(&proxy), unchecked(&address));
        names.set("nowhere.test", HERE);
        proxy.signal(Signal::HUP);
        eventually("it exists now", || {
            assert_eq!(status(&proxy), 200);
            upstreams(&proxy) == unchecked(&format!("nowhere.test:{port}"))
        });
        // It stops resolving: lookups and reloads keep its last address.
        names.set("nowhere.test", None);
        eventually("a lookup has failed", || proxy.log().contains("the last addresses are kept"));
        config.write(&(pool(&format!("'nowhere.test:{port}'")) + "eject_after = 9\n"));
        proxy.signal(Signal::HUP);
        eventually("the reload is done", || {
            proxy.log().matches("configuration reloaded").count() == 2
        });
        assert_eq!(status(&proxy), 200);
        assert_eq!(upstreams(&proxy), unchecked(&format!("nowhere.test:{port}")));
    });
}

#[test]
fn a_slow_resolver_delays_the_reload_and_no_request() {
    let Some(namespace) = Namespace::create() else { return };
    let names = Names::start(&namespace);
    names.set("slow.test", Some(Lookup::Held));
    namespace.within(|| {
        let node = Server::start(&["--listen", "0.0.0.0:0"]);
        let port = node.listen.port();
        let address = format!("127.0.0.1:{port}");
        let config = Scratch::new("slow.toml", &pool(&format!("'{address}'")));
        let mut proxy = Server::start_proxy_in(&namespace, &["--config", config.path()]);
        config.write(&pool(&format!("'slow.test:{port}'")));
        proxy.signal(Signal::HUP);
        eventually("the reload waits", || names.held() > 0);
        for _ in 0..20 {
            assert_eq!(status(&proxy), 200);
        }
        assert_eq!(upstreams(&proxy), unchecked(&address));
        names.set("slow.test", HERE);
        eventually("the resolver has answered", || {
            assert_eq!(status(&proxy), 200);
            upstreams(&proxy) == unchecked(&format!("slow.test:{port}"))
        });
        // A later reload replaces one that waits.
        names.set("held.test", Some(Lookup::Held));
        config.write(&pool(&format!("'held.test:{port}'")));
        proxy.signal(Signal::HUP);
        eventually("the next one waits", || names.held() > 0);
        config.write(&pool(&format!("'{address}'")));
        proxy.signal(Signal::HUP);
        eventually("the last file counts", || upstreams(&proxy) == unchecked(&address));
        // And one that waits delays no shutdown.
        config.write(&pool(&format!("'held.test:{port}'")));
        let before = names.asked();
        proxy.signal(Signal::HUP);
        eventually("it waits", || names.asked() > before);
        proxy.signal(Signal::TERM);
        assert!(proxy.wait().success());
    });
}
