//! Scenarios of `standfast load` whose steps send several requests at the same time, and to several hosts:
//! against servers that record what they were asked, on which connection, and how much at once.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::executable;
use crate::harness::recorder::{RecordedRequest, Recorder};
use crate::harness::server::Server;
use crate::harness::{PATIENCE, Scratch, eventually};
use crate::interrupted::{interrupt, start};
use crate::scenario_flows::run;

/// A step of the summary: requests, failed requests, and the kinds of failures.
fn step(document: &Value, at: usize) -> (u64, u64, Value) {
    let step = &document["flows"][0]["steps"][at];
    let number = |key: &str| step[key].as_u64().unwrap_or_else(|| panic!("no {key}: {document}"));
    (number("requests"), number("failed"), step["errors"].clone())
}

/// The connections that a server accepted requests on.
fn connections(server: &Recorder) -> usize {
    let mut all: Vec<u64> = server.asked().iter().map(|asked| asked.connection).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

fn parameter<'a>(asked: &'a RecordedRequest, name: &str) -> Option<&'a str> {
    let (_, query) = asked.target.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// A server that answers its last request only when `together` requests are in flight.
fn gathering(together: usize) -> (Recorder, Arc<AtomicUsize>) {
    let most = Arc::new(AtomicUsize::new(0));
    let (own, in_flight) = (Arc::clone(&most), AtomicUsize::new(0));
    let server = Recorder::start(move |_| {
        let now = in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        own.fetch_max(now, Ordering::SeqCst);
        eventually("as many requests are in flight as may be", || {
            own.load(Ordering::SeqCst) >= together
        });
        in_flight.fetch_sub(1, Ordering::SeqCst);
        (200, Vec::new(), "ok".to_owned())
    });
    (server, most)
}

#[test]
fn a_flow_that_alternates_between_hosts_keeps_a_connection_to_each() {
    let servers = [Recorder::hello(), Recorder::hello()];
    let [one, other] = [servers[0].address, servers[1].address];
    let (_, document) = run(
        &format!(
            "version = 1\nusers = 3\npasses = 10\n[[flows]]\n[[flows.steps]]\nurl = 'http://{one}/a'\n\
             [[flows.steps]]\nurl = 'http://{other}/b'\n[[flows.steps]]\nurl = 'http://{one}/c'\n"
        ),
        0,
    );
    assert_eq!(document["requests"]["ok"], 90, "{document}");
    assert_eq!((servers[0].count(), servers[1].count()), (60, 30));
    assert_eq!((connections(&servers[0]), connections(&servers[1])), (3, 3), "{document}");
    assert_eq!(document["connections"]["opened"], 6, "{document}");
    assert_eq!(document["connections"]["closed_surplus"], 0, "{document}");
}

#[test]
fn requests_of_a_step_are_sent_at_the_same_time_and_later_ones_after_all_of_them() {
    // Each request of a page waits for the others of its user and pass.
    let in_flight: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let reply = move |asked: &RecordedRequest| {
        if asked.target.starts_with("/part") {
            let of = format!("{:?}/{:?}", parameter(asked, "u"), parameter(asked, "p"));
            in_flight.lock().unwrap().push(of.clone());
            eventually("the page is requested at once", || {
                in_flight.lock().unwrap().iter().filter(|one| **one == of).count() == 3
            });
        }
        let body = json!({ "id": parameter(asked, "id") });
        (200, Vec::new(), body.to_string())
    };
    let reply = Arc::new(reply);
    let server = || {
        let reply = Arc::clone(&reply);
        Recorder::start(move |asked| reply(asked))
    };
    let [one, other] = [server(), server()];
    let (users, passes) = (3, 5);
    let (_, document) = run(
        &format!(
            r#"version = 1
target = 'http://{}'
users = {users}
passes = {passes}
thresholds = ["errors{{step:second}}<1", "errors{{page:home}}<1", "checks{{check:has an id}}>99%"]

[[flows]]
[[flows.steps]]
url = '/page?u={{{{user}}}}&p={{{{pass}}}}'

[[flows.steps]]
tags = {{ page = "home" }}
[[flows.steps.parallel]]
name = "first"
url = '/part?u={{{{user}}}}&p={{{{pass}}}}&id={{{{uuid}}}}'
capture = {{ first = {{ json = "$.id" }} }}
[[flows.steps.parallel]]
name = "second"
url = '/part?u={{{{user}}}}&p={{{{pass}}}}&id={{{{uuid}}}}'
capture = {{ second = {{ json = "$.id" }} }}
[[flows.steps.parallel.checks]]
name = "has an id"
json = "$.id"
[[flows.steps.parallel]]
name = "third"
tags = {{ host = "other" }}
url = 'http://{}/part?u={{{{user}}}}&p={{{{pass}}}}&id={{{{seq}}}}'

[[flows.steps]]
url = '/after?u={{{{user}}}}&p={{{{pass}}}}&one={{{{first}}}}&two={{{{second}}}}'
"#,
            one.address, other.address
        ),
        0,
    );
    let all = users * passes;
    assert_eq!(document["requests"]["ok"], 5 * all, "{document}");
    assert_eq!((one.count(), other.count()), (4 * all, all));
    for at in 0..5 {
        assert_eq!(step(&document, at), (all as u64, 0, json!({})), "{at}: {document}");
    }
    let steps = &document["flows"][0]["steps"];
    assert_eq!(
        (&steps[2]["tags"], &steps[3]["tags"]["host"]),
        (&json!({ "page": "home" }), &json!("other"))
    );
    assert_eq!(steps[2]["checks"][0], json!({ "name": "has an id", "passed": all, "failed": 0 }));
    assert_eq!(document["flows"][0]["completed"], all, "{document}");
    // The connection of the page is one of the two.
    assert_eq!((connections(&one), connections(&other)), (2 * users, users), "{document}");
    assert_eq!(document["connections"]["opened"], 3 * users, "{document}");
    let asked = one.asked();
    for user in 0..users {
        let own: Vec<_> = asked
            .iter()
            .filter(|asked| parameter(asked, "u") == Some(user.to_string().as_str()))
            .collect();
        for pass in own.chunks(4) {
            let paths: Vec<_> = pass.iter().map(|one| one.target.split('?').next()).collect();
            assert_eq!(paths, [Some("/page"), Some("/part"), Some("/part"), Some("/after")]);
            let mut ids = [parameter(pass[1], "id"), parameter(pass[2], "id")];
            let mut taken = [parameter(pass[3], "one"), parameter(pass[3], "two")];
            ids.sort_unstable();
            taken.sort_unstable();
            assert_eq!(ids, taken);
            assert!(ids[0] != ids[1] && ids[0].is_some_and(|id| id.len() == 36), "{ids:?}");
        }
    }
}

#[test]
fn requests_beyond_the_connections_per_host_wait() {
    let list: String = (0..10).map(|n| format!("{{ url = '/{n}' }},\n")).collect();
    let flow = format!("[[flows]]\n[[flows.steps]]\nparallel = [\n{list}]\n");
    for (limit, most) in [("", 6), ("[connect]\nconnections_per_host = 3\n", 3)] {
        let (server, seen) = gathering(most);
        let (_, document) = run(
            &format!(
                "version = 1\ntarget = 'http://{}'\npasses = 4\n{limit}{flow}",
                server.address
            ),
            0,
        );
        assert_eq!((document["requests"]["ok"].as_u64(), server.count()), (Some(40), 40));
        assert_eq!((seen.load(Ordering::SeqCst), connections(&server)), (most, most), "{document}");
        assert_eq!(document["connections"]["opened"], most, "{document}");
    }
}

#[test]
fn one_failed_request_fails_the_step() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (on_failure, goes_on) in [("end_pass", 0), ("continue", 7)] {
        let server = Recorder::start(|asked| {
            let status = if asked.target == "/bad" { 500 } else { 200 };
            (status, Vec::new(), "ok".to_owned())
        });
        let (_, document) = run(
            &format!(
                "version = 1\ntarget = 'http://{}'\npasses = 7\n[[flows]]\n[[flows.steps]]\n\
                 on_failure = '{on_failure}'\nparallel = [\n{{ url = '/good' }},\n\
                 {{ url = 'http://{nobody}/' }},\n{{ url = '/bad' }},\n]\n\
                 [[flows.steps]]\nurl = '/after'\n",
                server.address
            ),
            1,
        );
        assert_eq!(step(&document, 0), (7, 0, json!({})), "{document}");
        assert_eq!(step(&document, 1), (7, 7, json!({ "connect_refused": 7 })), "{document}");
        assert_eq!(step(&document, 2), (7, 7, json!({ "status": 7 })), "{document}");
        assert_eq!(step(&document, 3), (goes_on, 0, json!({})), "{document}");
        let of = &document["requests"];
        assert_eq!((&of["ok"], &of["failed"]), (&json!(7 + goes_on), &json!(14)), "{document}");
        assert_eq!(server.count() as u64, 14 + goes_on);
        assert_eq!(of["sent"], 14 + goes_on, "{document}");
        let flow = &document["flows"][0];
        assert_eq!((&flow["begun"], &flow["completed"]), (&json!(7), &json!(goes_on)));
    }
}

#[test]
fn a_request_that_is_never_answered_ends_the_step_at_its_time_limit() {
    for limit in ["timeout = '400ms'\n", "timeout = '1h'\n"] {
        let within = if limit.contains("1h") { ", within = '400ms'" } else { "" };
        let server = Recorder::start(|asked| {
            if asked.target == "/silent" {
                std::thread::sleep(PATIENCE);
            }
            (200, Vec::new(), "ok".to_owned())
        });
        let (_, document) = run(
            &format!(
                "version = 1\ntarget = 'http://{}'\nusers = 2\npasses = 2\n{limit}[[flows]]\n\
                 [[flows.steps]]\non_failure = 'continue'\nparallel = [{{ url = '/a' }}, \
                 {{ url = '/silent'{within} }}, {{ url = '/b' }}]\n[[flows.steps]]\nurl = '/after'\n",
                server.address
            ),
            1,
        );
        assert_eq!(step(&document, 1), (4, 4, json!({ "timeout": 4 })), "{document}");
        for at in [0, 2, 3] {
            assert_eq!(step(&document, at), (4, 0, json!({})), "{document}");
        }
        assert_eq!(server.count(), 16);
        // The step lasts as long as its slowest request.
        assert!(document["seconds"].as_f64() >= Some(0.8), "{document}");
    }
}

#[test]
fn requests_in_flight_at_an_interrupt_are_unknown() {
    let server = Recorder::start(|asked| {
        if asked.target == "/silent" {
            std::thread::sleep(PATIENCE);
        }
        (200, Vec::new(), "ok".to_owned())
    });
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 3\nduration = '1h'\n[connect]\n\
         connections_per_host = 3\n[[flows]]\n[[flows.steps]]\nurl = '/page'\n[[flows.steps]]\n\
         parallel = [{{ url = '/a' }}, {{ url = '/silent' }}, {{ url = '/b' }}, \
         {{ url = '/silent' }}, {{ url = '/silent' }}, {{ url = '/never' }}]\n",
        server.address
    );
    let file = Scratch::new("parallel-interrupted.toml", &text);
    let load = start(&["load", file.path()]);
    // Each user: the page, two answered and three silent requests; the last one has no connection.
    eventually("all that may be sent was", || server.count() == 18);
    let (document, _) = interrupt(load);
    let of = &document["requests"];
    assert_eq!((&of["ok"], &of["failed"], &of["unknown"]), (&json!(9), &json!(0), &json!(9)));
    assert_eq!((&of["sent"], server.count()), (&json!(18), 18), "{document}");
    assert_eq!(document["errors"], json!({}), "{document}");
    let flow = &document["flows"][0];
    assert_eq!((&flow["begun"], &flow["completed"]), (&json!(3), &json!(0)), "{document}");
}

#[test]
fn requests_that_wait_at_the_end_of_the_run_are_not_sent() {
    let server = Recorder::start(|_| {
        std::thread::sleep(Duration::from_millis(1_500));
        (200, Vec::new(), "ok".to_owned())
    });
    let (_, document) = run(
        &format!(
            "version = 1\ntarget = 'http://{}'\nduration = '1s'\n[connect]\n\
             connections_per_host = 2\n[[flows]]\n[[flows.steps]]\n\
             parallel = [{{ url = '/a' }}, {{ url = '/b' }}, {{ url = '/c' }}]\n",
            server.address
        ),
        0,
    );
    let of = &document["requests"];
    assert_eq!((&of["ok"], &of["failed"], server.count()), (&json!(2), &json!(0), 2), "{document}");
    let flow = &document["flows"][0];
    assert_eq!((&flow["begun"], &flow["completed"]), (&json!(1), &json!(0)), "{document}");
}

#[test]
fn steps_with_parallel_requests_are_repeated_looped_skipped_and_made_once() {
    let server = Recorder::hello();
    let (_, document) = run(
        &format!(
            "version = 1\ntarget = 'http://{}'\npasses = 2\n[[flows]]\n\
             [[flows.steps]]\nonce = true\nparallel = [{{ url = '/once1' }}, {{ url = '/once2' }}]\n\
             [[flows.steps]]\nfor_each = ['x', 'y']\n\
             parallel = [{{ url = '/item/{{{{item}}}}/1' }}, {{ url = '/item/{{{{item}}}}/2' }}]\n\
             [[flows.steps]]\nwhen = '{{{{user}}}} > 5'\n\
             parallel = [{{ url = '/never1' }}, {{ url = '/never2' }}]\n\
             [[flows.steps]]\nrepeat = 3\nparallel = [{{ url = '/thrice' }}, {{ url = '/thrice' }}]\n\
             [[flows.steps]]\nurl = '/end'\n",
            server.address
        ),
        0,
    );
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for asked in server.asked() {
        *counts.entry(asked.target).or_default() += 1;
    }
    let expected = [
        ("/end", 2),
        ("/item/x/1", 2),
        ("/item/x/2", 2),
        ("/item/y/1", 2),
        ("/item/y/2", 2),
        ("/once1", 1),
        ("/once2", 1),
        ("/thrice", 12),
    ];
    let expected = expected.map(|(target, count)| (target.to_owned(), count)).into();
    assert_eq!(counts, expected, "{document}");
    assert_eq!(document["flows"][0]["completed"], 2, "{document}");
}

#[test]
fn parallel_requests_follow_redirects_to_other_hosts_and_share_cookies() {
    let other = Recorder::hello();
    let location = format!("http://{}/landed", other.address);
    let server = Recorder::start(move |asked| match asked.target.as_str() {
        "/go" => (302, vec![("Location", location.clone())], String::new()),
        _ => (200, vec![("Set-Cookie", "seen=yes".to_owned())], "ok".to_owned()),
    });
    let (_, document) = run(
        &format!(
            "version = 1\ntarget = 'http://{}'\nusers = 2\npasses = 6\n[[flows]]\n\
             [[flows.steps]]\nparallel = [{{ url = '/go' }}, {{ url = '/cookie' }}]\n\
             [[flows.steps]]\nurl = '/after'\n",
            server.address
        ),
        0,
    );
    let of = &document["requests"];
    assert_eq!((&of["ok"], &of["redirects"]), (&json!(36), &json!(12)), "{document}");
    assert_eq!((server.count(), other.count()), (36, 12));
    assert_eq!((connections(&server), connections(&other)), (4, 2), "{document}");
    let after = server.asked().into_iter().filter(|asked| asked.target == "/after");
    assert!(after.into_iter().all(|asked| asked.header("cookie") == Some("seen=yes")));
}

#[test]
fn users_with_sockets_send_parallel_requests_too() {
    let server = Recorder::hello();
    let address = server.address;
    let (_, document) = run(
        &format!(
            "version = 1\ntarget = 'http://{address}'\nusers = 3\npasses = 4\n[[flows]]\n\
             [[flows.steps]]\nconnect = '/socket'\nonce = true\n[[flows.steps]]\n\
             parallel = [{{ url = '/a' }}, {{ url = '/b' }}]\n[[flows.steps]]\n\
             send = '{{\"cmd\":\"x\",\"seq\":\"{{{{seq}}}}\"}}'\nreceive = {{ contains = '{{{{seq}}}}' }}\n\
             [[flows.steps]]\nurl = '/c'\n"
        ),
        0,
    );
    assert_eq!((server.count(), server.pings()), (3 + 3 * 4 * 3, 12), "{document}");
    assert_eq!(document["requests"]["ok"], 3 + 4 * 3 * 4, "{document}");
    // Two for requests at the same time and one socket each.
    assert_eq!(document["connections"]["opened"], 9, "{document}");
}

#[test]
fn a_step_with_parallel_requests_is_one_of_a_rate() {
    let server = Recorder::hello();
    let (_, document) = run(
        &format!(
            "version = 1\ntarget = 'http://{}'\nusers = 10\nrate = 50\nduration = '1s'\n[[flows]]\n\
             [[flows.steps]]\nparallel = [{{ url = '/a' }}, {{ url = '/b' }}]\n",
            server.address
        ),
        0,
    );
    let of = &document["requests"];
    let unsent = of["unsent"].as_u64().unwrap();
    assert_eq!(of["ok"].as_u64().unwrap(), 2 * (50 - unsent), "{document}");
    assert_eq!(server.count() as u64, 2 * (50 - unsent), "{document}");
}

#[test]
fn example_of_a_page_runs_against_serve() {
    let server = Server::start(&["--public"]);
    let target = format!("http://{}", server.listen);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/page.toml");
    let args = ["load", file, "--target", &target, "--duration", "2s", "--json", "-"];
    let finished = executable::run(&args);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let document = finished.json();
    let [page, parts] = [0, 1].map(|at| step(&document, at).0);
    assert!(page > 0 && parts > page, "{document}");
    assert_eq!(document["connections"]["opened"], 30, "{document}");
}
