//! `standfast load FILE.toml` over real sockets: requests are checked at a recording server, and results
//! against its answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::server::Server;
use crate::harness::tls::Authority;
use crate::harness::web::{Answer, ReceivedRequest, Web};

fn run(scenario: &Scratch, more: &[&str]) -> (Finished, Value) {
    executable::run(&[&["load", scenario.path(), "--json", "-"], more].concat()).with_json()
}

fn fine(body: &str) -> Answer {
    (200, Vec::new(), body.to_owned())
}

/// A shop whose login sets a cookie and a token, which later requests must carry.
fn shop(got: &ReceivedRequest) -> Answer {
    let path = got.target.split('?').next().unwrap();
    match (got.method.as_str(), path) {
        ("POST", "/login") => {
            let form: Value = serde_json::from_str(&got.body).unwrap();
            let name = form["name"].as_str().unwrap();
            let cookie = ("Set-Cookie", format!("who={}; Path=/; HttpOnly", name.len()));
            let elsewhere = ("Set-Cookie", "other=1; Path=/elsewhere".to_owned());
            let to = ("Location", "/welcome".to_owned());
            (302, vec![cookie, elsewhere, to], String::new())
        }
        ("GET", "/welcome") => fine(r#"{"token":"t-1","items":[{"id":7},{"id":8}]}"#),
        ("GET", "/items/8") => fine("<input name=\"csrf\" value=\"x&y\">"),
        ("POST", "/orders") => (201, vec![("X-Order", "9".to_owned())], "{}".to_owned()),
        ("GET", "/orders/9") => fine("short"),
        _ => (404, Vec::new(), String::new()),
    }
}

const SHOP: &str = r#"
version = 1
users = 4
passes = 5
timeout = "20s"
seed = 11

[variables]
agent = "standfast"

[headers]
User-Agent = "{{agent}}/1"

[[feeds]]
name = "people"
file = "PEOPLE"

[[flows]]
name = "buy"

[[flows.steps]]
name = "log in"
url = "/login"
json = { name = "{{people.name}}", deep = { n = 5, again = ["{{people.name}}"] } }
capture = { token = { json = "$.token" }, item = { json = "$.items[?@.id > 7].id" } }

[[flows.steps]]
name = "look"
url = "/items/{{item}}?q={{url people.name}}"
bearer = "{{token}}"
capture = { csrf = { regex = 'value="([^"]+)"' } }

[[flows.steps]]
name = "order"
url = "/orders"
form = { csrf = "{{csrf}}", "a b" = "c d", seq = "{{seq}}" }
headers = { X-Request = "{{uuid}}", X-Dice = "{{random_int 1 6}}", X-At = "{{now_ms}}" }
basic = "{{people.name}}:secret"
capture = { order = { header = "X-Order" } }
[[flows.steps.checks]]
status = "201"
[[flows.steps.checks]]
name = "has an order"
header = "X-Order"
is = 9

[[flows.steps]]
name = "see"
url = "/orders/{{order}}"
think = "1ms..3ms"
[[flows.steps.checks]]
name = "is long"
size = ">1KiB"
[[flows.steps.checks]]
name = "is quick"
latency = "<20s"
[[flows.steps.checks]]
name = "says so"
regex = "^sh"
"#;

#[test]
fn users_send_the_steps_in_order() {
    let web = Web::start(shop);
    let people = Scratch::new("people.csv", "name,age\nAnn \"A\",31\n\"Bo\nB\",32\nCy/?&,33\n");
    let scenario = Scratch::new("shop.toml", &SHOP.replace("PEOPLE", people.path()));
    let target = format!("http://{}", web.address);
    let (finished, document) = run(&scenario, &["--target", &target]);
    assert_eq!(finished.code, Some(1), "checks failed: {finished:?}");
    let got = web.got();
    let of = |path: &str| -> Vec<&ReceivedRequest> {
        got.iter().filter(|got| got.target.split('?').next() == Some(path)).collect()
    };
    let logins = of("/login");
    assert_eq!((logins.len(), got.len()), (20, 100), "four users, five passes, five requests");
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    for login in &logins {
        let body: Value = serde_json::from_str(&login.body).unwrap();
        assert_eq!(body["deep"], json!({"n": 5, "again": [body["name"]]}));
        *names.entry(body["name"].as_str().unwrap().to_owned()).or_default() += 1;
        assert_eq!(login.header("content-type"), Some("application/json"));
        assert_eq!(login.header("user-agent"), Some("standfast/1"));
    }
    let dealt: Vec<(&str, u32)> = names.iter().map(|(name, count)| (&**name, *count)).collect();
    assert_eq!(
        dealt,
        [("Ann \"A\"", 7), ("Bo\nB", 7), ("Cy/?&", 6)],
        "rows in turn over all users"
    );
    // A redirect carries the cookie it set, but not one of another path.
    assert!(
        of("/welcome")
            .iter()
            .all(|got| got.header("cookie").is_some_and(|c| c.starts_with("who=")))
    );
    for look in of("/items/8") {
        assert_eq!(look.header("authorization"), Some("Bearer t-1"));
        let asked = look.target.split_once("?q=").unwrap().1;
        assert!(["Ann%20%22A%22", "Bo%0AB", "Cy%2F%3F%26"].contains(&asked), "{asked}");
    }
    let orders = of("/orders");
    let distinct = |of: &dyn Fn(&ReceivedRequest) -> String| {
        orders.iter().map(|got| of(got)).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(distinct(&|got| got.header("x-request").unwrap().to_owned()), 20);
    assert_eq!(distinct(&|got| got.body.clone()), 20, "seq is another each time");
    for order in &orders {
        assert!(order.body.starts_with("csrf=x%26y&a%20b=c%20d&seq="), "{}", order.body);
        let dice: u32 = order.header("x-dice").unwrap().parse().unwrap();
        let at: u64 = order.header("x-at").unwrap().parse().unwrap();
        assert!((1..=6).contains(&dice) && at > 1_700_000_000_000);
        assert!(order.header("authorization").unwrap().starts_with("Basic "), "{order:?}");
    }
    let of = &document["requests"];
    assert_eq!((&of["answered"], &of["redirects"]), (&json!(80), &json!(20)), "{document}");
    assert_eq!(document["connections"]["opened"], 4, "kept: {document}");
    let flow = &document["flows"][0];
    assert_eq!(
        (&flow["begun"], &flow["completed"]),
        (&json!(20), &json!(0)),
        "the last fails: {flow}"
    );
    let step = |at: usize| &flow["steps"][at];
    assert_eq!((&step(0)["requests"], &step(0)["redirects"]), (&json!(20), &json!(20)));
    assert_eq!(step(3)["errors"], json!({"check": 20}), "{flow}");
    let checks = json!([
        {"name": "is long", "passed": 0, "failed": 20},
        {"name": "is quick", "passed": 20, "failed": 0},
        {"name": "says so", "passed": 20, "failed": 0},
    ]);
    assert_eq!(step(3)["checks"], checks);
    assert_eq!(step(2)["checks"][2]["name"], "capture order");
    assert!(step(3)["latency"]["p99_ms"].as_f64().unwrap() > 0.0, "{flow}");
    for said in [
        "flow          buy: 20 passes",
        "step        see: 20 requests, 20 failed",
        "is long: 0 passed, 20 failed",
    ] {
        assert!(finished.stderr.contains(said), "{said}: {}", finished.stderr);
    }
}

#[test]
fn step_that_cannot_be_sent_counts_as_failed() {
    let web = Web::start(|_| fine(r#"{"next":"http://127.0.0.1:1/x"}"#));
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 2\npasses = 3\n[[flows]]\n\
         [[flows.steps]]\nurl = '/'\ncapture = {{ next = {{ json = '$.next' }} }}\n\
         [[flows.steps]]\nurl = '{{{{next}}}}'\n",
        web.address
    );
    let (finished, document) = run(&Scratch::new("away.toml", &text), &[]);
    let of = &document["requests"];
    let counts = ["ok", "failed", "sent", "answered"].map(|name| of[name].as_u64().unwrap());
    assert_eq!((finished.code, counts), (Some(1), [6, 6, 6, 6]), "{document}");
    assert_eq!(document["errors"], json!({"redirect_elsewhere": 6}), "{document}");
    assert_eq!(document["flows"][0]["steps"][1]["failed"], 6, "{document}");
    assert!(finished.stderr.contains("6 requests failed"), "{finished:?}");
}

#[test]
fn redirects_do_not_count_towards_the_rate() {
    let web = Web::start(|got| match got.target.as_str() {
        "/to" => (302, vec![("Location", "/there".to_owned())], String::new()),
        _ => fine(""),
    });
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 20\nrate = 20\nduration = '1s'\n\
         [[flows]]\n[[flows.steps]]\nurl = '/to'\n",
        web.address
    );
    let (finished, document) = run(&Scratch::new("hops.toml", &text), &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let of = &document["requests"];
    let counts = ["sent", "ok", "redirects"].map(|name| of[name].as_u64().unwrap());
    assert_eq!((counts, web.got().len()), ([20, 20, 20], 40), "{document}");
    assert_eq!(document["status"], json!({"200": 20}), "{document}");
    let step = &document["flows"][0]["steps"][0];
    assert_eq!((&step["requests"], &step["redirects"]), (&json!(20), &json!(20)), "{step}");
}

#[test]
fn feeds_restart_in_each_round() {
    let web = Web::start(|_| fine(""));
    let rows = Scratch::new("rows.csv", "id\n1\n2\n3\n");
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 1\n[[feeds]]\nname = 'row'\nfile = '{}'\n\
         at_end = 'stop'\n[[rounds]]\n[[rounds]]\n[[flows]]\n[[flows.steps]]\n\
         url = '/{{{{row.id}}}}'\n",
        web.address,
        rows.path()
    );
    let (finished, document) = run(&Scratch::new("rounds.toml", &text), &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let ok = |round: usize| &document["rounds"][round]["requests"]["ok"];
    assert_eq!((ok(0), ok(1)), (&json!(3), &json!(3)), "{document}");
    let got: Vec<String> = web.got().into_iter().map(|got| got.target).collect();
    assert_eq!(got, ["/1", "/2", "/3", "/1", "/2", "/3"]);
}

#[test]
fn flows_are_weighted_and_steps_have_their_own_servers() {
    let (one, other) = (Web::start(|_| fine("")), Web::start(|_| fine("")));
    let text = format!(
        "version = 1\ntarget = 'http://{}/base'\nusers = 8\npasses = 100\nseed = 3\n\
         [connect]\nresolve = ['shop.example:{}:127.0.0.1']\nsources = ['127.0.0.7']\n\
         [[flows]]\nweight = 3\n[[flows.steps]]\nurl = '/often'\n\
         [[flows]]\n[[flows.steps]]\nurl = 'http://shop.example:{}/seldom'\n",
        one.address,
        other.address.port(),
        other.address.port(),
    );
    let (finished, document) = run(&Scratch::new("two.toml", &text), &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let (often, seldom) = (one.got(), other.got());
    assert_eq!(often.len() + seldom.len(), 800);
    // 800 draws at three quarters: five standard deviations are 61.
    assert!((539..=661).contains(&often.len()), "{}", often.len());
    assert_eq!(document["flows"][0]["begun"], often.len());
    assert!(often.iter().all(|got| got.target == "/base/often"));
    let name = format!("shop.example:{}", other.address.port());
    assert!(seldom.iter().all(|got| got.target == "/seldom" && got.header("host") == Some(&name)));
    let from = |got: &ReceivedRequest| got.peer.ip().to_string();
    assert!(often.iter().chain(&seldom).all(|got| from(got) == "127.0.0.7"));
}

#[test]
fn requests_of_scenarios_are_sent_to_the_proxy() {
    let proxy = Web::start(|_| fine("from afar"));
    let text = format!(
        "version = 1\ntarget = 'http://nowhere.invalid:81'\npasses = 2\nkeep_alive = false\n\
         [connect]\nproxy = 'http://u:p@{}'\n[[flows]]\n[[flows.steps]]\nurl = '/a?b'\n\
         [[flows.steps.checks]]\nregex = 'afar$'\n",
        proxy.address
    );
    let (finished, _) = run(&Scratch::new("proxy.toml", &text), &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let got = proxy.got();
    assert_eq!(got.len(), 2);
    for got in &got {
        assert_eq!(got.target, "http://nowhere.invalid:81/a?b");
        assert_eq!(got.header("host"), Some("nowhere.invalid:81"));
        assert_eq!(got.header("proxy-authorization"), Some("Basic dTpw"));
        assert_eq!((got.header("connection"), got.number), (Some("close"), 0));
    }
}

#[test]
fn client_certificate_of_a_scenario_is_sent() {
    let authority = Authority::new();
    authority.sign("server", &["127.0.0.1"]);
    authority.sign("client", &["client"]);
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|file| authority.path(file));
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca]);
    for (shown, code) in [("cert = 'client.pem'\nkey = 'client.key'\n", 0), ("", 1)] {
        let text = format!(
            "version = 1\ntarget = 'https://{}'\npasses = 3\n[connect]\nca = '{ca}'\n{}\
             [[flows]]\n[[flows.steps]]\nurl = '/health'\n",
            server.listen,
            shown.replace("client.", &authority.path("client.")),
        );
        let (finished, document) = run(&Scratch::new("mtls.toml", &text), &[]);
        assert_eq!(finished.code, Some(code), "{finished:?}");
        let ok = if code == 0 { 3 } else { 0 };
        assert_eq!(document["requests"]["ok"], ok, "{document}");
    }
}

#[test]
fn example_scenario_runs_unchanged() {
    let server = Server::start(&[]);
    let file = Scratch::new("init.toml", "");
    let finished = executable::run(&["load", "init", file.path()]);
    assert_eq!(finished.code, Some(2), "an existing file is not overwritten: {finished:?}");
    std::fs::remove_file(file.path()).unwrap();
    let finished = executable::run(&["load", "init", file.path()]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let target = format!("http://{}", server.listen);
    let (finished, document) = run(&file, &["--target", &target, "--duration", "500ms"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let (look, wait) = (&document["flows"][0], &document["flows"][1]);
    assert!(look["completed"].as_u64() > Some(0) && wait["completed"].as_u64() > Some(0));
    assert_eq!(look["steps"][0]["checks"][0]["name"], "is healthy");
    assert_eq!(document["thresholds"][0]["met"], true, "{document}");
}

#[test]
fn reference_figures_are_printed_beside_the_results() {
    let web = Web::start(|_| fine("Hello, World!"));
    let text = include_str!("../scenarios/go-stress-http.toml");
    let text = text.replace("10_000\ncookies", "5\ncookies").replace("= 1_000", "= 2");
    let file = Scratch::new("table.toml", &text);
    let (finished, document) = run(&file, &["--target", &format!("http://{}", web.address)]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let rounds = document["rounds"].as_array().unwrap();
    let users: Vec<u64> = rounds.iter().map(|round| round["users"].as_u64().unwrap()).collect();
    assert_eq!(users, [1, 4, 10, 20, 30, 50, 80, 100, 100]);
    for round in &rounds[..8] {
        assert_eq!(round["requests"]["ok"], round["users"].as_u64().unwrap() * 5, "{round}");
        assert_eq!(round["connections"]["opened"], round["users"], "{round}");
    }
    assert_eq!(rounds[8]["connections"]["opened"], 200, "a new one for each");
    assert_eq!(web.got().len(), 295 * 5 + 200);
    for beside in ["6,395", "19,947", "18,336"] {
        assert!(finished.stderr.contains(beside), "{beside}: {}", finished.stderr);
    }
}

#[test]
fn thor_echo_scenario_runs_sockets() {
    let server = Server::start(&[]);
    let target = format!("ws://{}/echo", server.listen);
    let args = ["load", "thor-echo", "--target", &target, "--connections", "50", "--json", "-"];
    let finished = executable::run(&args);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let document = finished.json();
    assert_eq!(document["connections"]["open"], 50, "{document}");
    assert_eq!(document["echo"]["received"], 50, "{document}");
    assert_eq!(document["thresholds"].as_array().map(Vec::len), Some(3), "{document}");
}

#[test]
fn a_threshold_and_a_dead_server_fail_the_run() {
    let web = Web::start(|_| (500, Vec::new(), String::new()));
    let text = |target: String, threshold: &str| {
        format!(
            "version = 1\ntarget = '{target}'\npasses = 3\nthresholds = ['{threshold}']\n\
             [[flows]]\n[[flows.steps]]\nurl = '/'\n"
        )
    };
    let at = |threshold| text(format!("http://{}", web.address), threshold);
    let (finished, document) = run(&Scratch::new("bad.toml", &at("errors<3")), &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(document["errors"], json!({"status": 3}), "{document}");
    let (finished, _) = run(&Scratch::new("good.toml", &at("errors<4")), &[]);
    assert_eq!(finished.code, Some(0), "the threshold decides: {finished:?}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dead = Scratch::new("dead.toml", &text(format!("http://{free}"), "errors<1"));
    let (finished, document) = run(&dead, &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(document["flows"][0]["steps"][0]["errors"], json!({"connect_refused": 3}));
}

#[test]
fn invalid_scenarios_are_rejected_before_sending() {
    let wrong =
        Scratch::new("wrong.toml", "version = 1\ntarget = 'http://127.0.0.1:1'\nusres = 2\n");
    let right =
        "version = 1\ntarget = 'http://127.0.0.1:1'\n[[flows]]\n[[flows.steps]]\nurl = '/'\n";
    let right = Scratch::new("right.toml", right);
    for (args, parts) in [
        (&["load", wrong.path()][..], &["wrong.toml, line 3", "usres", "users"][..]),
        (&["load", "no-such-file.toml"], &["no-such-file.toml"]),
        (&["load", right.path(), "--rate", "5"], &["--rate", "scenario"]),
        (&["load", right.path(), "--insecure"], &["--insecure", "scenario"]),
        (
            &["load", "http://127.0.0.1:1", "--target", "http://127.0.0.1:2"],
            &["--target", "FILE.toml"],
        ),
        (&["load", "scenarios/storm.toml"], &["standfast prove"]),
    ] {
        let finished = executable::run(args);
        assert_eq!(finished.code, Some(2), "{args:?}: {finished:?}");
        let complete = parts.iter().all(|part| finished.stderr.contains(part));
        assert!(complete, "{args:?}: {finished:?}");
    }
}
