//! Tests of the API: its responses, its changes and its orders to the workers.

use std::sync::atomic::{AtomicU32, Ordering};

use admin::Exposition;

use super::*;
use crate::health::CheckKind;
use crate::routes::RoutesConfig;

/// Workers that only record the orders they get.
#[derive(Default)]
struct FakeWorkers(Mutex<Vec<Arc<DrainOrder>>>, AtomicU32);

impl Workers for FakeWorkers {
    fn drain(&self, order: &Arc<DrainOrder>) -> u32 {
        self.0.lock().unwrap().push(Arc::clone(order));
        2
    }
    fn wake_waiters(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
    fn tunnels(&self, page: &Page, upstreams: Option<&[u32]>) -> Reply {
        Reply::json(&json!({ "limit": page.limit, "of": upstreams }))
    }
}

fn api() -> Api {
    let table = Arc::new(Table::default());
    let mut registry = Registry::new(Arc::clone(&table));
    let endpoints = ["10.0.0.1:80", "10.0.0.2:80"].map(|endpoint| endpoint.parse().unwrap());
    registry.apply(RoutesConfig::to(endpoints), 1).unwrap();
    Api { table, registry: Arc::new(Mutex::new(registry)), active_drains: Mutex::default() }
}

fn ask(api: &Api, workers: &FakeWorkers, method: &str, target: &str, body: &str) -> (u16, Value) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let pairs: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let (body, parameters) = (body.as_bytes(), pairs.as_slice());
    let asked = ApiRequest { method, path, parameters, body, may_change: true };
    let reply = api.answer(workers, &asked).unwrap();
    (reply.status, serde_json::from_slice(&reply.body).unwrap())
}

#[test]
fn upstreams_are_set_drained_and_removed() {
    let (api, workers) = (api(), FakeWorkers::default());
    let post = |body: &str| ask(&api, &workers, "POST", "/api/upstreams", body);
    let states = || {
        let shown = api.upstreams();
        let each = shown["pools"][0]["upstreams"].as_array().unwrap().clone();
        each.iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let set = r#"{"action":"set","upstream":"10.0.0.3:80","weight":5,"max":9}"#;
    assert_eq!(post(set).1["added"], 1);
    let shown = api.upstreams();
    let third = &shown["pools"][0]["upstreams"][2];
    assert_eq!((&third["weight"], &third["max"]), (&json!(5), &json!(9)));
    let drain = r#"{"action":"drain","upstream":"10.0.0.2:80","over_seconds":2}"#;
    assert_eq!(post(drain).0, 200);
    assert_eq!(states(), ["unchecked", "draining", "unchecked"]);
    assert_eq!(workers.0.lock().unwrap().len(), 1, "its tunnels are drained");
    assert_eq!(post(r#"{"action":"resume","upstream":"10.0.0.2:80"}"#).0, 200);
    assert_eq!(post(r#"{"action":"remove","upstream":"10.0.0.1:80"}"#).1["removed"], 1);
    assert_eq!(states(), ["unchecked", "unchecked"]);
    assert_eq!(
        workers.1.load(Ordering::Relaxed),
        4,
        "waiting requests look again after each change"
    );
    assert_eq!(post(r#"{"action":"remove","upstream":"10.0.0.1:80"}"#).0, 400);
    assert_eq!(workers.1.load(Ordering::Relaxed), 4, "a refused change wakes no request");
    assert_eq!(workers.0.lock().unwrap().len(), 1, "removing an upstream keeps its tunnels");
}

#[test]
fn an_excess_drain_is_refused_and_changes_nothing() {
    let (api, workers) = (api(), FakeWorkers::default());
    let close = r#"{"percent":1}"#;
    for _ in 0..ORDERS_MAX {
        assert_eq!(ask(&api, &workers, "POST", "/api/close", close).0, 202);
    }
    let drain = r#"{"action":"drain","upstream":"10.0.0.2:80","over_seconds":2}"#;
    let (status, answer) = ask(&api, &workers, "POST", "/api/upstreams", drain);
    assert_eq!(status, 503, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("wait until one ends"), "{answer}");
    assert_eq!(api.upstreams()["pools"][0]["upstreams"][1]["state"], "unchecked");
    // The workers have finished one.
    workers.0.lock().unwrap().pop();
    assert_eq!(ask(&api, &workers, "POST", "/api/upstreams", drain).0, 200);
    assert_eq!(ask(&api, &workers, "POST", "/api/close", close).0, 503);
}

/// Upstream 2, by a drain or a removal that closes its tunnels.
#[test]
fn tunnels_are_closed_until_the_upstream_is_back_or_the_next_order() {
    let (api, workers) = (api(), FakeWorkers::default());
    let post = |action: &str, more: &str| {
        let body = format!(r#"{{"action":"{action}","upstream":"10.0.0.2:80"{more}}}"#);
        assert_eq!(ask(&api, &workers, "POST", "/api/upstreams", &body).0, 200, "{body}");
    };
    let permit = api.table.routes().pools()[0].members()[1].upstream.acquire(1).unwrap();
    let closes = |expected: &[bool]| {
        let orders = workers.0.lock().unwrap();
        let closes: Vec<bool> = orders.iter().map(|order| order.matches(2)).collect();
        assert_eq!(closes, expected);
    };
    let over = r#","over_seconds":600"#;
    post("drain", over);
    post("set", r#","weight":2"#);
    closes(&[true]);
    post("resume", "");
    closes(&[false]);
    post("drain", over);
    closes(&[false, true]);
    post("drain", r#","over_seconds":1"#);
    closes(&[false, false, true]);
    post("resume", "");
    post("remove", over);
    closes(&[false, false, false, true]);
    post("set", "");
    closes(&[false; 4]);
    let close = r#"{"percent":100,"upstream":"10.0.0.2:80"}"#;
    assert_eq!(ask(&api, &workers, "POST", "/api/close", close).0, 202);
    post("resume", "");
    closes(&[false, false, false, false, true]);
    drop(permit);
}

#[test]
fn max_can_be_removed_and_an_unresolved_name_is_shown() {
    let (api, workers) = (api(), FakeWorkers::default());
    let post = |body: &str| ask(&api, &workers, "POST", "/api/upstreams", body).1;
    let second = || api.upstreams()["pools"][0]["upstreams"][1].clone();
    post(r#"{"action":"set","upstream":"10.0.0.2:80","max":9}"#);
    post(r#"{"action":"set","upstream":"10.0.0.2:80","weight":3}"#);
    assert_eq!((&second()["weight"], &second()["max"]), (&json!(3), &json!(9)));
    post(r#"{"action":"set","upstream":"10.0.0.2:80","max":null}"#);
    assert_eq!((&second()["weight"], &second()["max"]), (&json!(3), &Value::Null));
    let set = post(r#"{"action":"set","upstream":"nowhere.internal:80","max":7}"#);
    assert_eq!((&set["added"], &set["unresolved"]), (&json!(0), &json!(true)));
    let third = api.upstreams()["pools"][0]["upstreams"][2].clone();
    assert_eq!(third["upstream"], "nowhere.internal:80", "{third}");
    assert_eq!((&third["state"], &third["max"]), (&json!("unresolved"), &json!(7)));
}

#[test]
fn only_authorized_clients_change_anything() {
    let (api, workers) = (api(), FakeWorkers::default());
    let status = |method, path| {
        let body = br#"{"percent":100}"#;
        let asked = ApiRequest { method, path, parameters: &[], body, may_change: false };
        api.answer(&workers, &asked).unwrap().status
    };
    for path in ["/api/upstreams", "/api/routes", "/api/close"] {
        assert_eq!(status("POST", path), 403, "{path}");
    }
    assert_eq!((status("GET", "/api/upstreams"), status("GET", "/api/tunnels")), (200, 200));
    assert!(workers.0.lock().unwrap().is_empty());
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    let (api, workers) = (api(), FakeWorkers::default());
    for (target, body, why) in [
        ("/api/upstreams", "{}", "missing field"),
        ("/api/upstreams", r#"{"action":"stop","upstream":"a:1"}"#, "set, remove, drain"),
        ("/api/upstreams", r#"{"action":"set","upstream":"a"}"#, "invalid upstream"),
        ("/api/upstreams", r#"{"action":"drain","upstream":"a:1"}"#, "10.0.0.1:80"),
        ("/api/upstreams", r#"{"action":"set","upstream":"a:1","weigth":1}"#, "weigth"),
        ("/api/upstreams", r#"{"action":"set","upstream":"a:1","weight":0}"#, "1 to 256"),
        ("/api/upstreams", r#"{"action":"set","upstream":"a:1","max":0}"#, "1 or more"),
        ("/api/upstreams", r#"{"action":"set","pool":"x","upstream":"a:1"}"#, "no pool x"),
        ("/api/upstreams", r#"{"action":"set","upstream":"10.0.0.1:0"}"#, "port"),
        ("/api/upstreams", r#"{"action":"set","upstream":"unix:/a.sock"}"#, "configuration file"),
        ("/api/upstreams", r#"{"action":"drain","upstream":"unix:/a.sock"}"#, "no upstream unix"),
        ("/api/close", "{}", "count or percent"),
        ("/api/close", r#"{"percent":101}"#, "0 to 100"),
        ("/api/close", r#"{"count":1,"over_seconds":-1}"#, "86400"),
        ("/api/close", r#"{"count":1,"upstream":"10.9.9.9:80"}"#, "no such upstream"),
        ("/api/routes", r#"{"action":"set","path":"x"}"#, "a path such as /cable"),
        ("/api/routes", r#"{"action":"set","path":"/a?b"}"#, "a path such as /cable"),
        ("/api/routes", r#"{"action":"set","path":"/a b"}"#, "a path such as /cable"),
        ("/api/routes", r#"{"action":"remove","path":"/"}"#, "no route"),
    ] {
        let (status, answer) = ask(&api, &workers, "POST", target, body);
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(why), "{body}: {answer}");
    }
    assert!(workers.0.lock().unwrap().is_empty());
    assert_eq!(ask(&api, &workers, "DELETE", "/api/close", "").0, 405);
}

#[test]
fn tunnels_are_listed_by_page_and_closed_by_percentage() {
    let (api, workers) = (api(), FakeWorkers::default());
    let get = |target: &str| ask(&api, &workers, "GET", target, "");
    assert_eq!(get("/api/tunnels").1, json!({ "limit": 100, "of": null }));
    let one = get("/api/tunnels?limit=5&upstream=10.0.0.2:80").1;
    assert_eq!(one, json!({ "limit": 5, "of": [2] }));
    assert_eq!(get("/api/tunnels?limit=5000").0, 400);
    let close = r#"{"percent":12.5,"pool":"default","over_seconds":1}"#;
    assert_eq!(ask(&api, &workers, "POST", "/api/close", close).0, 202);
    assert_eq!(workers.0.lock().unwrap().len(), 1);
}

#[test]
fn an_upstream_that_no_check_has_found_up_is_unchecked() {
    let api = api();
    let metric = |name: &str, upstream: &str| {
        let mut exposition = Exposition::default();
        api.metrics(&mut exposition);
        let text = exposition.text();
        let begin = format!("standfast_{name}{{pool=\"default\",upstream=\"{upstream}\"");
        let line = text.lines().find(|line| line.starts_with(&begin));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<u8>().ok())
    };
    let both = |upstream| [metric("upstream_up", upstream), metric("upstream_unchecked", upstream)];
    assert_eq!(both("10.0.0.1:80"), [Some(1), Some(1)], "there are no checks");
    let workers = FakeWorkers::default();
    let post = |body: &str| assert_eq!(ask(&api, &workers, "POST", "/api/upstreams", body).0, 200);
    post(r#"{"action":"drain","upstream":"10.0.0.2:80"}"#);
    assert_eq!(both("10.0.0.2:80"), [Some(0), Some(0)], "its state is known");
    post(r#"{"action":"set","upstream":"nowhere.internal:80"}"#);
    assert_eq!(both("nowhere.internal:80"), [Some(0), None], "it has no address");
    let mut config = api.registry().config().clone();
    config.pools[0].check.kind = CheckKind::Tcp;
    api.registry().apply(config, 2).unwrap();
    assert_eq!(both("10.0.0.1:80"), [Some(1), Some(1)], "no check has finished");
    api.registry().health_checks()[0].0.count_check();
    assert_eq!(both("10.0.0.1:80"), [Some(1), Some(0)]);
}

#[test]
fn metrics_name_pool_and_upstream() {
    let mut exposition = Exposition::default();
    api().metrics(&mut exposition);
    let text = exposition.text();
    for line in [
        "standfast_upstream_tunnels{pool=\"default\",upstream=\"10.0.0.1:80\",address=\"10.0.0.1:80\"} 0",
        "standfast_upstream_up{pool=\"default\",upstream=\"10.0.0.2:80\",address=\"10.0.0.2:80\"} 1",
        "standfast_upstream_unchecked{pool=\"default\",upstream=\"10.0.0.2:80\",address=\"10.0.0.2:80\"} 1",
        "standfast_pool_waiting{pool=\"default\"} 0",
        "standfast_upstream_picked_total{pool=\"default\",upstream=\"10.0.0.1:80\",address=\"10.0.0.1:80\"} 0",
    ] {
        assert!(text.lines().any(|written| written == line), "{line} in {text}");
    }
}
