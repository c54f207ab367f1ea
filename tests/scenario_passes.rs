//! Passes of `standfast load FILE.toml`: what ends them, what runs before and after them, when they begin,
//! and which of their steps are made.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::executable;
use crate::harness::web::{Answer, ReceivedRequest, Web};
use crate::harness::{Scratch, eventually};
use crate::interrupted;
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

#[test]
fn setup_and_teardown_run_once_around_the_users_and_are_in_no_figure() {
    let web = Web::start(|got| match got.target.as_str() {
        "/fill" => (201, vec![("X-Key", "k-9".to_owned())], "{}".to_owned()),
        _ => ok("{}"),
    });
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 5\npasses = 4
[setup]
timeout = '20s'
[[setup.steps]]
url = '/fill'
method = 'POST'
capture = {{ key = {{ header = 'X-Key' }} }}
[[setup.steps]]
url = '/check?key={{{{key}}}}'
repeat = 2
[teardown]
[[teardown.steps]]
url = '/empty?key={{{{key}}}}'
method = 'DELETE'
[[flows]]
[[flows.steps]]
url = '/use?key={{{{key}}}}'
[[rounds]]
[[rounds]]
users = 1
",
        web.address
    );
    let (_, document) = run(&text, 0);
    let got = web.got();
    let targets: Vec<&str> = got.iter().map(|got| got.target.as_str()).collect();
    assert_eq!(targets[..3], ["/fill", "/check?key=k-9", "/check?key=k-9"], "{targets:?}");
    assert_eq!(targets.last(), Some(&"/empty?key=k-9"), "{targets:?}");
    assert!(targets[3..27].iter().all(|target| *target == "/use?key=k-9"), "{targets:?}");
    assert_eq!(targets.len(), 3 + 20 + 4 + 1, "once around all rounds: {targets:?}");
    for (round, passes) in [(0, 20), (1, 4)] {
        let round = &document["rounds"][round];
        assert_eq!(round["requests"]["ok"], passes, "{round}");
        assert_eq!(round["flows"].as_array().unwrap().len(), 1, "{round}");
    }
}

#[test]
fn a_failed_setup_ends_the_run_and_a_failed_teardown_fails_it() {
    let web = Web::start(|got| match got.target.as_str() {
        "/fill" => (503, Vec::new(), String::new()),
        _ => ok("{}"),
    });
    let flow = "[[flows]]\n[[flows.steps]]\nurl = '/use'\n";
    let text = |name: &str| {
        let address = web.address;
        format!(
            "version = 1\ntarget = 'http://{address}'\npasses = 2\n[{name}]\n[[{name}.steps]]\n\
             name = 'fill it'\nurl = '/fill'\n{flow}"
        )
    };
    let file = Scratch::new("setup.toml", &text("setup"));
    let finished = executable::run(&["load", file.path(), "--json", "-"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{finished:?}");
    let said = "[setup] failed, nothing was measured: step \"fill it\" failed: status 503\n";
    assert!(finished.stderr.contains(said), "{finished:?}");
    assert_eq!(count(&web.got(), "/use"), 0);
    let (finished, document) = run(&text("teardown"), 1);
    assert!(finished.stderr.contains("[teardown] failed: step \"fill it\""), "{finished:?}");
    assert_eq!((count(&web.got(), "/use"), &document["held"]), (2, &json!(true)), "{document}");
    let bad = text("setup").replace("url = '/fill'", "stay = true");
    let file = Scratch::new("setup-stay.toml", &bad);
    let finished = executable::run(&["load", file.path()]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("[setup] has one user"), "{finished:?}");
}

#[test]
fn teardown_runs_after_an_interruption() {
    let web = Web::start(|_| ok("{}"));
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nduration = '60s'\nthink = '5ms'
[teardown]
[[teardown.steps]]
url = '/empty'
[[flows]]
[[flows.steps]]
url = '/use'
",
        web.address
    );
    let file = Scratch::new("interrupted.toml", &text);
    let running = interrupted::start(&["load", file.path()]);
    eventually("the users send", || count(&web.got(), "/use") > 3);
    let (document, _) = interrupted::interrupt(running);
    assert_eq!((&document["interrupted"], count(&web.got(), "/empty")), (&json!(true), 1));
}

#[test]
fn passes_begin_at_an_arrival_rate_and_are_dropped_when_no_user_is_free() {
    // Two users whose passes take at least 300 ms, 50 passes per second: most are dropped.
    let web = Web::start(|got| {
        std::thread::sleep(Duration::from_millis(if got.target == "/slow" { 300 } else { 0 }));
        ok("{}")
    });
    let text = |users: u32, url: &str| {
        format!(
            "version = 1\ntarget = 'http://{}'\nusers = {users}\nduration = '1s'\narrival_rate = 50
[[flows]]
[[flows.steps]]
url = '{url}'
[[flows.steps]]
url = '/then'
",
            web.address
        )
    };
    let (finished, document) = run(&text(2, "/slow"), 1);
    let flow = &document["flows"][0];
    let [begun, dropped] = [&flow["begun"], &document["dropped"]].map(|n| n.as_u64().unwrap());
    assert_eq!(begun + dropped, 50, "each pass that was due: {document}");
    assert!((2..=8).contains(&begun), "{document}");
    assert!(document["reasons"].to_string().contains("passes were dropped"), "{document}");
    assert!(finished.stderr.contains("passes were dropped: no user was free"), "{finished:?}");
    assert_eq!(document["pace"]["arrival_rate"], 50.0, "{document}");
    let unknown = document["latency_of_all"]["p90_ms"].is_null();
    assert!(unknown, "most passes never began: {document}");
    // A threshold on the count tolerates it.
    let tolerant = text(2, "/slow").replace("users", "thresholds = ['dropped<50']\nusers");
    run(&tolerant, 0);
    // Enough users: all begin, both steps of each pass are made, none waits for its turn.
    let (_, document) = run(&text(40, "/quick"), 0);
    let flow = &document["flows"][0];
    assert_eq!((&flow["begun"], &document["dropped"]), (&json!(50), &json!(0)), "{document}");
    let [first, then] = requests(flow)[..] else { panic!("{flow}") };
    assert!(first == 50 && (49..=50).contains(&then), "{flow}");
}

#[test]
fn a_server_that_stalls_drops_passes_and_delays_none() {
    // One user; the server stops for 400 ms once. The passes due meanwhile are dropped, not late.
    let web = Web::start(|got| {
        std::thread::sleep(Duration::from_millis(if got.number == 5 { 400 } else { 0 }));
        ok("{}")
    });
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nstages = ['0s:20', '1s:20']\narrival_rate = 1
[[flows]]\n[[flows.steps]]\nurl = '/it'\n",
        web.address
    );
    let (_, document) = run(&text, 1);
    let [begun, dropped] =
        [&document["flows"][0]["begun"], &document["dropped"]].map(|n| n.as_u64().unwrap());
    assert_eq!(begun + dropped, 20, "{document}");
    assert!((5..=9).contains(&dropped), "{document}");
}

#[test]
fn flows_with_their_own_users_run_beside_each_other() {
    let web = Web::start(|_| ok("{}"));
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 2\nduration = '1s'\nwarm_up = '200ms'
[[flows]]
name = 'shared'
[[flows.steps]]
url = '/shared?user={{{{user}}}}'
think = '20ms'
[[flows]]
name = 'own'
users = 3
[[flows.steps]]
url = '/own?user={{{{user}}}}'
think = '20ms'
[[flows]]
name = 'paced'
users = 20
arrival_rate = 40
start = '500ms'
[[flows.steps]]
url = '/paced?user={{{{user}}}}'
[[flows]]
name = 'later'
users = 1
start = '400ms'
[[flows.steps]]
url = '/later?user={{{{user}}}}'
think = '100ms'
",
        web.address
    );
    let (_, document) = run(&text, 0);
    let users = |path: &str| -> BTreeSet<u32> {
        let got = web.got().into_iter().filter(|got| got.target.starts_with(path));
        got.map(|got| got.target.rsplit_once('=').unwrap().1.parse().unwrap()).collect()
    };
    assert_eq!(users("/shared"), BTreeSet::from([0, 1]), "{document}");
    assert_eq!(users("/own"), BTreeSet::from([2, 3, 4]), "{document}");
    assert!(users("/paced").iter().all(|user| (5..25).contains(user)), "{document}");
    assert_eq!(users("/later"), BTreeSet::from([25]), "{document}");
    let begun = |at: usize| document["flows"][at]["begun"].as_u64().unwrap();
    assert_eq!(begun(2), 20, "40 per second in the second half: {document}");
    assert!((1..=6).contains(&begun(3)) && begun(0) > begun(3), "{document}");
    assert_eq!(document["users"], 26, "{document}");
    for (from, to, said) in [
        ("users = 3", "arrival_rate = 3", "arrival_rate of a flow needs users"),
        ("users = 3", "users = 3\nweight = 2", "cannot have weight"),
        ("users = 2", "users = 2\nrate = 5", "rate and arrival_rate exclude each other"),
        ("users = 2", "users = 2\npasses = 5", "passes and arrival_rate exclude each other"),
    ] {
        let file = Scratch::new("parallel.toml", &text.replacen(from, to, 1));
        let finished = executable::run(&["load", file.path()]);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(said), "{to}: {finished:?}");
    }
}

#[test]
fn steps_are_made_if_their_condition_is_true_and_for_each_item_of_a_list() {
    let web = Web::start(|got| {
        let is_admin = got.target.ends_with(['0', '2']);
        let role = if is_admin { "admin" } else { "guest" };
        ok(&format!("{{\"role\":\"{role}\",\"ids\":[3,\"a b\"],\"none\":[]}}"))
    });
    let feed = Scratch::new("codes.csv", "code,about\nx1,one\nx2,two\n");
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 4\npasses = 2
[[feeds]]
name = 'codes'
file = '{}'
[[flows]]
[[flows.steps]]
url = '/me?user={{{{user}}}}'
capture = {{ role = {{ json = '$.role' }}, ids = {{ json = '$.ids' }}, none = {{ json = '$.none' }}, all = {{ json = '$.ids[*]', take = 'all' }} }}
[[flows.steps]]
url = '/admin'
when = \"{{{{role}}}} == 'admin'\"
[[flows.steps]]
url = '/second'
when = '{{{{pass}}}} > 0'
[[flows.steps]]
url = '/captured?{{{{url item}}}}'
for_each = 'ids'
[[flows.steps]]
url = '/all?{{{{url item}}}}'
for_each = 'all'
[[flows.steps]]
url = '/never'
for_each = 'none'
[[flows.steps]]
url = '/listed?{{{{item}}}}'
for_each = ['a', 7]
when = '{{{{item}}}} != 7'
[[flows.steps]]
url = '/codes?{{{{item}}}}'
for_each = 'codes.code'
[[flows.steps]]
url = '/last'
when = '{{{{role}}}} contains x'
",
        web.address,
        feed.path()
    );
    let (_, document) = run(&text, 0);
    let flow = &document["flows"][0];
    assert_eq!(requests(flow), [8, 4, 4, 16, 16, 0, 8, 16, 0], "{flow}");
    assert_eq!((&flow["begun"], &flow["completed"]), (&json!(8), &json!(8)), "{flow}");
    let got = web.got();
    let targets: BTreeSet<&str> =
        got.iter().map(|got| got.target.as_str()).filter(|target| !target.contains("me")).collect();
    let wanted = [
        "/admin",
        "/all?3",
        "/all?a%20b",
        "/captured?3",
        "/captured?a%20b",
        "/codes?x1",
        "/codes?x2",
    ];
    let wanted = wanted.into_iter().chain(["/listed?a", "/second"]);
    assert_eq!(targets, wanted.collect::<BTreeSet<_>>());
    for (from, to, line, said) in [
        ("> 0", "= 0", 17, "no operator"),
        ("'{{pass}} > 0'", "'{{pas}} > 0'", 17, "did you mean {{pass}}"),
        ("['a', 7]", "[]", 29, "the list is empty"),
        ("'codes.code'", "'codes.cod'", 33, "did you mean {{codes.code}}"),
        ("for_each = 'ids'", "for_each = 'ids'\nrepeat = 2", 20, "for_each and repeat exclude"),
    ] {
        let file = Scratch::new("when.toml", &text.replacen(from, to, 1));
        let finished = executable::run(&["load", file.path()]);
        assert_eq!(finished.code, Some(2), "{to}: {finished:?}");
        let at = format!("line {line}: ");
        assert!(finished.stderr.contains(said) && finished.stderr.contains(&at), "{finished:?}");
    }
}

#[test]
fn a_pass_without_a_step_to_make_ends_and_the_run_does_too() {
    let web = Web::start(|_| ok("{}"));
    for pace in ["", "arrival_rate = 100\n"] {
        let text = format!(
            "version = 1\ntarget = 'http://{}'\nduration = '300ms'\n{pace}[[flows]]
[[flows.steps]]\nurl = '/'\nwhen = '{{{{user}}}} == 99'\n",
            web.address
        );
        let (_, document) = run(&text, 1);
        let flow = &document["flows"][0];
        let begun = flow["begun"].as_u64().unwrap();
        assert!((1..=301).contains(&begun), "at most one per millisecond: {flow}");
        assert_eq!((&flow["completed"], requests(flow)), (&json!(begun), vec![0]), "{flow}");
    }
}

#[test]
fn an_interrupted_run_drops_only_passes_that_were_due_by_then() {
    let web = Web::start(|_| {
        std::thread::sleep(Duration::from_millis(300));
        ok("{}")
    });
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 1\nduration = '60s'\narrival_rate = 100
[[flows]]\n[[flows.steps]]\nurl = '/slow'\n",
        web.address
    );
    let file = Scratch::new("dropping.toml", &text);
    let running = interrupted::start(&["load", file.path()]);
    eventually("three passes", || count(&web.got(), "/slow") >= 3);
    let (document, _) = interrupted::interrupt(running);
    let [begun, dropped] =
        [&document["flows"][0]["begun"], &document["dropped"]].map(|n| n.as_u64().unwrap());
    let due = document["seconds"].as_f64().unwrap() * 100.0;
    assert!(((begun + dropped) as f64 - due).abs() < 3.0, "{begun} + {dropped} of {due}");
}

#[test]
fn a_request_has_the_time_limit_of_its_step() {
    let web = Web::start(|got| {
        if got.target == "/slow" {
            std::thread::sleep(crate::harness::PATIENCE);
        }
        ok("")
    });
    let (_, document) = run(
        &format!(
            "version = 1\ntarget = 'http://{}'\npasses = 1\ntimeout = '1h'\n\
             on_failure = 'continue'\n[[flows]]\n[[flows.steps]]\nurl = '/slow'\n\
             within = '300ms'\n[[flows.steps]]\nurl = '/'\n",
            web.address
        ),
        1,
    );
    let flow = &document["flows"][0];
    assert_eq!(flow["steps"][0]["errors"], json!({ "timeout": 1 }), "{document}");
    assert_eq!(requests(flow), [1, 1], "{document}");
}
