//! Tests of routes and pools from files.

use super::*;

fn from_text(text: &str, shown: &str) -> Result<Option<RoutesConfig>> {
    Ok(parse(text, shown)?.map(|(routes, _)| routes))
}

const COMPLETE: &str = r#"
[proxy]
listen = "127.0.0.1:8080"

[[route]]
host = "*.example.com"
path = "/cable"
pool = "chat"

[[route]]
pool = "app"

[pool.chat]
upstreams = ["10.0.0.1:80", { address = "app.internal:80", weight = 3, max = "10k" }]
hash = "header:X-User"
sticky = "lb"
sticky_max_age = "1h"
slow_start = "30s"
max = 50_000
queue = 100
queue_timeout = "2s"
check = "websocket:/cable"
check_interval = "1s"
rise = 1
eject_after = 0
resolve = "10s"

[pool.app]
upstreams = ["unix:/run/app.sock"]
balance = "round_robin"
tls = true
tls_ca = "ca.pem"
tls_name = "app.internal"
proxy_protocol = "v2"
"#;

#[test]
fn a_complete_file_is_parsed() {
    let routes = from_text(COMPLETE, "f").unwrap().unwrap();
    assert_eq!(routes.routes.len(), 2);
    assert_eq!(routes.routes[0].host.to_string(), "*.example.com");
    let [app, chat] = routes.pools.as_slice() else { panic!("{routes:?}") };
    assert_eq!((&*app.name, &app.balance), ("app", &Balance::RoundRobin));
    assert_eq!(chat.balance, Balance::Hash(HashBy::Header("x-user".into())));
    assert_eq!((chat.members[1].weight, chat.members[1].max), (3, Some(10_000)));
    assert_eq!((chat.max, chat.limits.queue), (Some(50_000), 100));
    assert_eq!(chat.check.kind, CheckKind::WebSocket("/cable".into()));
    assert_eq!((chat.check.rise, chat.check.fall, chat.eject_after), (1, 3, 0));
    assert_eq!(chat.sticky.as_ref().unwrap().max_age, Some(Duration::from_secs(3_600)));
    let (_, transport) = parse(COMPLETE, "f").unwrap().unwrap();
    let name = Some("app.internal".to_owned());
    let files = TlsFiles { ca: Some("ca.pem".into()), name, ..TlsFiles::default() };
    let app =
        PoolTransport { tls: Some(Some(files)), proxy_protocol: Some(Some(ProxyVersion::V2)) };
    assert_eq!(transport, [app, PoolTransport::default()], "in the order of the pools");
}

#[test]
fn the_operators_page_documents_every_pool_key() {
    let page = include_str!("../../docs/operate/proxy.md");
    for key in POOL_KEYS {
        assert!(page.contains(&format!("`{key}`")), "docs/operate/proxy.md lacks {key}");
    }
    let whole = page.split("```toml").nth(1).and_then(|rest| rest.split("```").next());
    let routes = from_text(whole.unwrap(), "proxy.md").unwrap().unwrap();
    assert_eq!((routes.routes.len(), routes.pools.len()), (2, 2), "its example is valid");
}

#[test]
fn a_single_pool_needs_no_route() {
    assert_eq!(from_text("[proxy]\nlisten = 'x'", "f").unwrap(), None);
    let one = from_text("[pool.a]\nupstreams = ['b:1']", "f").unwrap().unwrap();
    assert_eq!((&*one.routes[0].path, &*one.routes[0].pool), ("/", "a"));
}

#[test]
fn errors_name_the_line() {
    for (text, complaint) in [
        (
            "\n[pool.a]\nupstream = ['b:1']",
            "f:3: [pool.a] has no key upstream; did you mean upstreams?",
        ),
        (
            "[[route]]\npool = 'a'\nhosts = 'x'",
            "f:3: [[route]] has no key hosts; did you mean host?",
        ),
        ("[pool.a]\nupstreams = ['b']", "f:2: invalid upstream \"b\""),
        (
            "[pool.a]\nupstreams = [{ address = 'b:1', wieght = 2 }]",
            "f:2: an upstream has no key wieght; did you mean weight?",
        ),
        (
            "[pool.a]\nupstreams = ['b:1']\nslow_start = '30'",
            "f:3: slow_start: invalid value \"30\": expected a duration",
        ),
        ("[pool.a]\nupstreams = ['b:1']\nbalance = 'fair'", "f:3: invalid balance \"fair\""),
        (
            "[pool.a]\nupstreams = ['b:1']\nhash = 'ip'",
            "f:3: hash: invalid key \"ip\": expected address",
        ),
        ("[pool.a]\nupstreams = ['b:1']\nbalance = 'random'\nhash = 'path'", "hash needs balance"),
        ("[pool.a]\nupstreams = ['b:1']\ncheck = 'ping'", "f:3: check: invalid check \"ping\""),
        ("[pool.a]\nupstreams = ['b:1']\ncheck_interval = '1ms'", "at least 100ms"),
        ("[pool.a]\nupstreams = ['b:1']\ncheck_host = 'a b'", "f:3: check_host: invalid host"),
        ("[pool.a]\nupstreams = ['b:1']\ncheck_host = 'a'", "need a check that sends"),
        ("[pool.a]\nupstreams = ['b:1']\ncheck_headers = ['a']", "f:3: check_headers: invalid"),
        ("[pool.a]\nupstreams = ['b:1']\ncheck_headers = ['Host: a']", "check_host"),
        ("[pool.a]\nupstreams = ['b:1']\ncheck_headers = [\"A: b\\u0000\"]", "invalid header"),
        ("[pool.a]\nupstreams = ['b:1']\ncheck_headers = 'A: b'", "must be an array"),
        ("[pool.a]\nupstreams = ['b:1']\ncheck_expect = '2xx'", "f:3: check_expect: invalid"),
        ("[pool.a]\nupstreams = ['b:1']\npanic_threshold = 101", "expected 0 to 100"),
        ("[pool.a]\nupstreams = ['b:1']\nsticky_secure = true", "need sticky"),
        (
            "[pool.a]\nupstreams = ['b:1']\nsticky = 'lb'\n[pool.c]\nupstreams = ['b:1']\n\
             sticky = 'lb'\n[[route]]\npool = 'a'\n[[route]]\npath = '/c'\npool = 'c'",
            "f: pools a and c have the same sticky cookie, lb, and requests for host * reach both",
        ),
        ("[pool.a]\nupstreams = ['b:1']\nmax = 1.5", "f:3: max must be a string"),
        ("[pool.a]\nupstreams = ['b:1']\ntls_name = 'x'", "f:1: tls_ca, tls_cert"),
        ("[pool.a]\nupstreams = ['b:1']\ntls = true\ntls_key = 'x'", "must be set together"),
        (
            "[pool.a]\nupstreams = ['b:1']\nproxy_protocol = true",
            "f:3: proxy_protocol: invalid version \"true\"",
        ),
        ("[pool.a]\nupstreams = [{ address = 'b:1', backup = 1 }]", "f:2: backup: invalid value"),
        ("[pool.a]\nupstreams = [{ address = 'b:1', backup = true }]", "backup upstreams only"),
        ("[pool.a]\nupstreams = ['b:1']\neject_5xx = '101'", "f:3: eject_5xx: invalid percentage"),
        ("[pool.a]\nupstreams = ['b:1']\neject_5xx_for = '1s'", "need eject_5xx, a percentage"),
        (
            "[pool.a]\nupstreams = ['b:1']\neject_5xx = 50\neject_5xx_for_max = '1s'",
            "must not be shorter than eject_5xx_for",
        ),
        ("[pool.a]", "f:1: [pool.a] needs upstreams"),
        ("[[route]]\npath = '/'", "f:1: a route needs a pool"),
        ("[[route]]\npath = 'x'\npool = 'a'", "f:2: path: invalid path \"x\""),
        ("[route]\npool = 'a'", "as a [[route]] table"),
        ("[[route]]\npool = 'a'", "there is no [pool.a]"),
        ("[pool.a\n", "f is not TOML"),
    ] {
        let error = format!("{:#}", from_text(text, "f").unwrap_err());
        assert!(error.contains(complaint), "{text:?}: {error}");
    }
}
