//! Thresholds of steps, checks and tags: they judge what they select, and fail closed.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::web::Web;

/// One order in ten fails, and one look in four has no price, which ends the pass before the order.
const SHOP: &str = "
version = 1
target = 'TARGET'
passes = 100
[[flows]]
name = 'buy'
[[flows.steps]]
name = 'log in'
url = '/login'
tags = { type = 'page' }
[[flows.steps]]
name = 'look'
url = '/look'
tags = { type = 'api', team = 'shop' }
[[flows.steps.checks]]
name = 'has a price, in euros'
regex = 'EUR'
[[flows.steps.checks]]
name = 'status is 200'
status = 200
[[flows.steps]]
name = 'order'
url = '/order'
tags = { type = 'api' }
[[flows]]
name = 'idle'
weight = 0
[[flows.steps]]
name = 'never'
url = '/never'
[[flows.steps.checks]]
name = 'never checked'
status = 200
";

fn shop() -> Web {
    let (looks, orders) = (AtomicU64::new(0), AtomicU64::new(0));
    Web::start(move |got| match got.target.as_str() {
        "/look" if looks.fetch_add(1, Ordering::Relaxed) % 4 == 0 => (200, vec![], String::new()),
        "/look" => (200, vec![], "5 EUR".to_owned()),
        "/order" if orders.fetch_add(1, Ordering::Relaxed) % 10 == 0 => {
            (500, vec![], String::new())
        }
        _ => (200, vec![], String::new()),
    })
}

fn run(thresholds: &[&str]) -> (Finished, Value) {
    let web = shop();
    let text = SHOP.replace("TARGET", &format!("http://{}", web.address));
    let name = format!("thresholds-{}.toml", web.address.port());
    let scenario = Scratch::new(&name, &text);
    let mut args = vec!["load", scenario.path(), "--json", "-"];
    args.extend(thresholds.iter().flat_map(|threshold| ["--threshold", threshold]));
    let finished = executable::run(&args);
    let document = if finished.code == Some(2) { Value::Null } else { finished.json() };
    (finished, document)
}

#[test]
fn steps_checks_and_tags_are_judged_apart() {
    let conditions = [
        ("errors{step:log in}<1", true, Some(0.0)),
        ("errors{step:order}<5%", false, Some(800.0 / 75.0)),
        ("errors{step:order}<11%", true, Some(800.0 / 75.0)),
        ("failed{step:look}==25", true, Some(25.0)),
        ("errors{type:api}<18%", false, Some(3300.0 / 175.0)),
        ("errors{type:api}<19%", true, Some(3300.0 / 175.0)),
        ("errors{type:api,team:shop}==25", true, Some(25.0)),
        ("errors{flow:buy,type:page}==0", true, Some(0.0)),
        ("checks{check:\"has a price, in euros\"}>99%", false, Some(75.0)),
        ("checks{check:status is 200}>99%", true, Some(100.0)),
        ("checks{step:look}>87%", true, Some(87.5)),
        ("checks>88%", false, Some(87.5)),
    ];
    let (finished, document) = run(&conditions.map(|(text, ..)| text));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let results = document["thresholds"].as_array().unwrap();
    for ((text, met, value), result) in conditions.iter().zip(results) {
        let expected = (&json!(text), &json!(met), &json!(value));
        assert_eq!((&result["threshold"], &result["met"], &result["value"]), expected);
    }
    assert_eq!(document["flows"][0]["steps"][1]["tags"], json!({"type": "api", "team": "shop"}));
    let selection = &document["selections"][1];
    let counts = ["requests", "failed", "answered"].map(|key| selection[key].as_u64().unwrap());
    assert_eq!((&selection["selector"], counts), (&json!("{step:order}"), [75, 8, 75]));
}

#[test]
fn failed_requests_of_a_step_took_forever() {
    let (finished, document) =
        run(&["p50{step:order}<1h", "p95{step:order}<1h", "p99{step:log in}<1h"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let met = |at: usize| document["thresholds"][at]["met"].as_bool().unwrap();
    assert_eq!([met(0), met(1), met(2)], [true, false, true], "{document}");
    assert_eq!(document["thresholds"][1]["value"], Value::Null);
}

#[test]
fn what_was_not_requested_or_checked_meets_no_threshold() {
    let conditions = [
        "errors{step:never}<1",
        "errors{flow:idle}<99%",
        "p50{step:never}<1h",
        "rate{step:never}<9",
        "checks{check:never checked}>0%",
        "checks{check:never checked}<100%",
    ];
    for condition in conditions {
        let (finished, document) = run(&[condition, "errors<99%"]);
        assert_eq!(finished.code, Some(1), "{condition}: {finished:?}");
        assert_eq!(document["thresholds"][0]["met"], false, "{condition}");
    }
}

#[test]
fn thresholds_of_steps_tolerate_the_failures_of_those_steps_only() {
    let price = "checks{check:\"has a price, in euros\"}>70%";
    for (thresholds, code) in [
        (&["errors{step:order}<11%", price][..], 0),
        (&["errors{step:order}<11%"], 1),
        (&[price], 1),
        (&["errors{type:api}<20%"], 0),
        (&["errors{step:log in}<1", "p99{type:api}<1h"], 1),
        (&["checks{check:status is 200}>99%", "errors{step:order}<11%"], 1),
        (&["checks>80%", "errors{step:order}<11%"], 0),
        (&["p50{type:api}<1h"], 1),
    ] {
        let (finished, _) = run(thresholds);
        assert_eq!(finished.code, Some(code), "{thresholds:?}: {finished:?}");
    }
}

#[test]
fn unknown_names_are_refused_before_anything_is_sent() {
    for (threshold, parts) in [
        ("p99{step:login}<1s", &["no step is \"login\"", "\"log in\"", "\"order\""][..]),
        ("checks{check:status is 201}>1%", &["no check is", "\"status is 200\""]),
        ("errors{type:web}<1", &["no type is \"web\"", "\"api\""]),
        ("errors{typ:api}<1", &["no step has a tag typ"]),
        ("errors{type:page,step:order}<1", &["no step has all of {type:page,step:order}"]),
        ("errors{flow:by}<1", &["no flow is \"by\"", "\"buy\""]),
        ("lost{step:order}<1", &["lost cannot be selected"]),
    ] {
        let (finished, _) = run(&[threshold]);
        assert_eq!(finished.code, Some(2), "{threshold}: {finished:?}");
        let complete = parts.iter().all(|part| finished.stderr.contains(part));
        assert!(complete, "{threshold}: {}", finished.stderr);
    }
    for target in ["http://127.0.0.1:1", "ws://127.0.0.1:1"] {
        let finished = executable::run(&["load", target, "--threshold", "errors{step:a}<1"]);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains("only scenarios have steps"), "{finished:?}");
    }
}
