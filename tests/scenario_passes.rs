//! Passes of `standfast load FILE.toml`: what ends them, what runs before and after them, when they begin,
//! and which of their steps are made.

use serde_json::{Value, json};

use crate::harness::web::{Answer, ReceivedRequest, Web};
use crate::scenario_flows::run;

fn ok(body: &str) -> Answer {
    (200, Vec::new(), body.to_owned())
}

/// The requests of each step of a flow.
fn requests(flow: &Value) -> Vec<u64> {
    let steps = flow["steps"].as_array().unwrap_or_else(|| panic!("no steps: {flow}"));
    steps.iter().map(|step| step["requests"].as_u64().unwrap()).collect()
}

/// How many requests came for a path, without its query.
fn count(got: &[ReceivedRequest], path: &str) -> usize {
    got.iter().filter(|got| got.target.split('?').next() == Some(path)).count()
}

#[test]
fn a_failed_step_ends_the_pass_and_does_not_change_the_mix() {
    let text = |address, key: &str| {
        format!(
            "version = 1\ntarget = 'http://{address}'\nusers = 3\npasses = 60\nseed = 5\n{key}
[[flows]]
weight = 1
[[flows.steps]]
url = '/first'
[[flows.steps]]
url = '/second'
checks = [{{ regex = 'good' }}]
[[flows.steps]]
url = '/third'
[[flows]]
weight = 2
[[flows.steps]]
url = '/other'
"
        )
    };
    let good = Web::start(|_| ok("good"));
    let bad = Web::start(|got| match got.target.as_str() {
        "/second" => ok("bad"),
        _ => ok("good"),
    });
    let (_, whole) = run(&text(good.address, ""), 0);
    let (_, failed) = run(&text(bad.address, ""), 1);
    let (_, went_on) = run(&text(bad.address, "on_failure = 'continue'"), 1);
    let begun = |document: &Value, flow: usize| document["flows"][flow]["begun"].as_u64().unwrap();
    let passes = begun(&whole, 0);
    assert!((30..90).contains(&passes), "a third of 180: {whole}");
    for document in [&failed, &went_on] {
        assert_eq!([begun(document, 0), begun(document, 1)], [passes, 180 - passes], "{document}");
    }
    assert_eq!(requests(&whole["flows"][0]), [passes; 3]);
    let flow = &failed["flows"][0];
    assert_eq!((requests(flow), &flow["completed"]), (vec![passes, passes, 0], &json!(0)));
    assert_eq!(flow["steps"][1]["errors"], json!({"check": passes}), "{flow}");
    let flow = &went_on["flows"][0];
    assert_eq!((requests(flow), &flow["completed"]), (vec![passes; 3], &json!(passes)));
    assert_eq!(went_on["requests"]["failed"], passes, "{went_on}");
    // Every kind of failure ends the pass: a status, and a capture that finds nothing.
    let text = text(bad.address, "");
    for step in ["capture = { it = { regex = 'good' } }", "checks = [{ status = 201 }]"] {
        let text = text.replace("checks = [{ regex = 'good' }]", step);
        let (_, document) = run(&text, 1);
        assert_eq!(requests(&document["flows"][0]), [passes, passes, 0], "{step}");
        let text = text.replace(step, &format!("{step}\non_failure = 'continue'"));
        let (_, document) = run(&text, 1);
        assert_eq!(requests(&document["flows"][0]), [passes; 3], "{step}");
    }
    assert!(count(&bad.got(), "/third") > 0);
}
