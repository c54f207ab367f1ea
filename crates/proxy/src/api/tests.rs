//! Tests of the API: its responses, its changes and its orders to the workers.

use std::sync::atomic::AtomicU32;

use super::*;
use crate::routes::RoutesConfig;

/// Workers that only record the orders they get.
#[derive(Default)]
struct Told(Mutex<Vec<Arc<Order>>>, AtomicU32);

impl Crew for Told {
    fn end(&self, order: &Arc<Order>) -> u32 {
        self.0.lock().unwrap().push(Arc::clone(order));
        2
    }
    fn look_again(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
    fn tunnels(&self, page: &Page, upstreams: Option<&[u32]>) -> Reply {
        Reply::json(&json!({ "limit": page.limit, "of": upstreams }))
    }
}

fn api() -> Api {
    let table = Arc::new(Table::default());
    let mut fleet = Fleet::new(Arc::clone(&table));
    let places = ["10.0.0.1:80", "10.0.0.2:80"].map(|place| place.parse().unwrap());
    fleet.say(RoutesConfig::to(places), 1).unwrap();
    Api { table, fleet: Arc::new(Mutex::new(fleet)), under_way: Mutex::default() }
}

fn ask(api: &Api, crew: &Told, method: &str, target: &str, body: &str) -> (u16, Value) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let asked = Asked { method, path, query, body: body.as_bytes() };
    let reply = api.answer(crew, &asked).unwrap();
    (reply.status, serde_json::from_slice(&reply.body).unwrap())
}

#[test]
fn upstreams_are_set_drained_and_removed() {
    let (api, crew) = (api(), Told::default());
    let post = |body: &str| ask(&api, &crew, "POST", "/api/upstreams", body);
    let states = || {
        let told = api.upstreams();
        let each = told["pools"][0]["upstreams"].as_array().unwrap().clone();
        each.iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let set = r#"{"action":"set","upstream":"10.0.0.3:80","weight":5,"max":9}"#;
    assert_eq!(post(set).1["added"], 1);
    let told = api.upstreams();
    let third = &told["pools"][0]["upstreams"][2];
    assert_eq!((&third["weight"], &third["max"]), (&json!(5), &json!(9)));
    let drain = r#"{"action":"drain","upstream":"10.0.0.2:80","over_seconds":2}"#;
    assert_eq!(post(drain).0, 200);
    assert_eq!(states(), ["up", "draining", "up"]);
    assert_eq!(crew.0.lock().unwrap().len(), 1, "its tunnels are to end");
    assert_eq!(post(r#"{"action":"resume","upstream":"10.0.0.2:80"}"#).0, 200);
    assert_eq!(post(r#"{"action":"remove","upstream":"10.0.0.1:80"}"#).1["removed"], 1);
    assert_eq!(states(), ["up", "up"]);
    assert_eq!(crew.1.load(Ordering::Relaxed), 4, "who waits looks again after each change");
    assert_eq!(post(r#"{"action":"remove","upstream":"10.0.0.1:80"}"#).0, 400);
    assert_eq!(crew.1.load(Ordering::Relaxed), 4, "and after no other");
    assert_eq!(crew.0.lock().unwrap().len(), 1, "tunnels of who is removed stay");
}

#[test]
fn an_order_too_many_is_refused_and_changes_nothing() {
    let (api, crew) = (api(), Told::default());
    let close = r#"{"percent":1}"#;
    for _ in 0..ORDERS_MAX {
        assert_eq!(ask(&api, &crew, "POST", "/api/close", close).0, 202);
    }
    let drain = r#"{"action":"drain","upstream":"10.0.0.2:80","over_seconds":2}"#;
    let (status, answer) = ask(&api, &crew, "POST", "/api/upstreams", drain);
    assert_eq!(status, 503, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("wait until one is over"), "{answer}");
    assert_eq!(api.upstreams()["pools"][0]["upstreams"][1]["state"], "up");
    // The workers are done with one.
    crew.0.lock().unwrap().pop();
    assert_eq!(ask(&api, &crew, "POST", "/api/upstreams", drain).0, 200);
    assert_eq!(ask(&api, &crew, "POST", "/api/close", close).0, 503);
}

#[test]
fn a_limit_can_be_lifted_and_a_name_without_an_address_is_shown() {
    let (api, crew) = (api(), Told::default());
    let post = |body: &str| ask(&api, &crew, "POST", "/api/upstreams", body).1;
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
fn what_cannot_be_done_is_refused_with_a_reason() {
    let (api, crew) = (api(), Told::default());
    for (target, body, why) in [
        ("/api/upstreams", "{}", "missing field"),
        ("/api/upstreams", r#"{"action":"stop","upstream":"a:1"}"#, "set, remove, drain"),
        ("/api/upstreams", r#"{"action":"set","upstream":"a"}"#, "is no upstream"),
        ("/api/upstreams", r#"{"action":"drain","upstream":"a:1"}"#, "10.0.0.1:80"),
        ("/api/upstreams", r#"{"action":"set","upstream":"a:1","weigth":1}"#, "weigth"),
        ("/api/upstreams", r#"{"action":"set","upstream":"a:1","weight":0}"#, "1 to 256"),
        ("/api/upstreams", r#"{"action":"set","upstream":"a:1","max":0}"#, "1 or more"),
        ("/api/upstreams", r#"{"action":"set","pool":"x","upstream":"a:1"}"#, "no pool x"),
        ("/api/close", "{}", "count or percent"),
        ("/api/close", r#"{"percent":101}"#, "0 to 100"),
        ("/api/close", r#"{"count":1,"over_seconds":-1}"#, "86400"),
        ("/api/close", r#"{"count":1,"upstream":"10.9.9.9:80"}"#, "no such upstream"),
        ("/api/routes", r#"{"action":"set","path":"x"}"#, "begins with /"),
        ("/api/routes", r#"{"action":"remove","path":"/"}"#, "no route"),
    ] {
        let (status, answer) = ask(&api, &crew, "POST", target, body);
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(why), "{body}: {answer}");
    }
    assert!(crew.0.lock().unwrap().is_empty());
    assert_eq!(ask(&api, &crew, "DELETE", "/api/close", "").0, 405);
}

#[test]
fn tunnels_are_listed_by_page_and_closed_by_part() {
    let (api, crew) = (api(), Told::default());
    let get = |target: &str| ask(&api, &crew, "GET", target, "");
    assert_eq!(get("/api/tunnels").1, json!({ "limit": 100, "of": null }));
    let one = get("/api/tunnels?limit=5&upstream=10.0.0.2:80").1;
    assert_eq!(one, json!({ "limit": 5, "of": [2] }));
    assert_eq!(get("/api/tunnels?limit=5000").0, 400);
    let close = r#"{"percent":12.5,"pool":"default","over_seconds":1}"#;
    assert_eq!(ask(&api, &crew, "POST", "/api/close", close).0, 202);
    assert_eq!(crew.0.lock().unwrap().len(), 1);
}

#[test]
fn metrics_name_pool_and_upstream() {
    let mut exposition = Exposition::default();
    api().metrics(&mut exposition);
    let text = exposition.text();
    for line in [
        "standfast_upstream_tunnels{pool=\"default\",upstream=\"10.0.0.1:80\"} 0",
        "standfast_upstream_up{pool=\"default\",upstream=\"10.0.0.2:80\"} 1",
        "standfast_pool_waiting{pool=\"default\"} 0",
        "standfast_upstream_picked_total{pool=\"default\",upstream=\"10.0.0.1:80\"} 0",
    ] {
        assert!(text.lines().any(|written| written == line), "{line} in {text}");
    }
}
