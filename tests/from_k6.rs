//! `standfast load from-k6`: the plain subset of scripts is sent as written, and the rest is listed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::executable::{self, Finished, standfast};
use crate::harness::web::Web;
use crate::harness::{Scratch, eventually};

fn convert(name: &str, script: &str) -> Finished {
    let file = Scratch::new(name, script);
    executable::run(&["load", "from-k6", file.path()])
}

const SCRIPT: &str = r#"
import http from 'k6/http';
import { check, group, sleep } from "k6";
import { Trend } from 'k6/metrics';

const waiting = new Trend('waiting_time');   // a custom metric
const BASE = __ENV.BASE_URL || 'http://HOST';
const json = { headers: { 'Content-Type': 'application/json', 'X-User': `vu-${__VU}` } };

export const options = {
  vus: 2,
  iterations: 4,
  noConnectionReuse: true,
  thresholds: {
    http_req_duration: ['p(95)<60000', 'avg<200', { threshold: 'max<90000', abortOnFail: true }],
    'http_req_duration{name:log in}': ['p(99)<60000'],
    'http_req_duration{name:nobody}': ['p(99)<1'],
    http_req_failed: ['rate<0.07'],
    checks: ['rate>0.9'],
    'checks{check:status is 200}': 'rate==1',
  },
};

export function setup() {
  http.get(`${BASE}/setup`);
}

function logout() {
  http.del(`${BASE}/session`, null, { headers: { 'X-Reason': 'done' } });
}

export default function (data) {
  const credentials = JSON.stringify({ name: "Ann \"A\"", id: __ITER, tags: ['{{a}}', null, true, 2.5], now: Date.now() });
  const res = http.post(BASE + '/login?x={1}', credentials, Object.assign({}, json));
  let login = http.post(BASE + '/login?x={1}', credentials, { headers: json.headers, tags: { name: 'log in', type: 'api' }, timeout: '10s' });
  check(login, {
    'status is 200': (r) => r.status === 200,
    'says welcome': (r) => r.body.includes('wel(come)'),
    'is quick': r => r.timings.duration < 60000,
    'is odd': (r) => r.status % 2 === 1 || /x}/.test(r.body),
  });
  const token = login.json('auth.tokens.0');
  sleep(0.02);
  group('shop', () => {
    http.put(`${BASE}/items/${token}`, { a: '1 &', b: 'ü' }, { headers: { Authorization: `Bearer ${token}` } });
    check(http.get(`${BASE}/items`), { 'listed': (r) => r.status == 200 });
  });
  for (const item of [1, 2]) {
    http.get(`${BASE}/${item}`);
  }
  if (Math.random() > 0.5) {
    sleep(1)
  } else { http.get('http://HOST/never') }
  logout();
  waiting.add(res.timings.waiting);
  sleep(Math.random() * 3);
}
"#;

#[test]
fn requests_checks_and_thresholds_of_a_script_are_kept() {
    let web = Web::start(|got| match got.target.as_str() {
        "/login?x=%7B1%7D" => {
            (200, vec![], r#"{"auth":{"tokens":["t/1"]},"text":"wel(come)"}"#.to_owned())
        }
        _ => (200, vec![], String::new()),
    });
    let host = web.address.to_string();
    let converted = convert("whole.js", &SCRIPT.replace("HOST", &host));
    assert_eq!(converted.code, Some(0), "{converted:?}");
    for note in [
        "line 7: the default of __ENV.BASE_URL is used",
        "line 6: left out: const waiting=new Trend",
        "line 13: left out: option noConnectionReuse",
        "line 15: left out: threshold http_req_duration avg<200",
        "line 15: a threshold is judged at the end",
        "line 17: left out: threshold http_req_duration{name:nobody}",
        "line 24: left out: function setup",
        "line 32: data of setup() is unknown",
        "line 34: left out: parameters of a request",
        "line 35: left out: parameter timeout",
        "line 40: left out: check \"is odd\"",
        "line 48: left out: for(",
        "line 51: left out: if(",
        "line 55: left out: waiting.add",
        "line 56: left out: sleep",
        "__VU becomes {{user}}",
    ] {
        assert!(converted.stderr.contains(note), "{note}: {}", converted.stderr);
    }
    let scenario = Scratch::new("from-k6.toml", &converted.stdout);
    let (finished, document) =
        executable::run_command(standfast(&["load", scenario.path(), "--json", "-"])).with_json();
    assert_eq!(finished.code, Some(0), "{finished:?}\n{}", converted.stdout);
    assert_eq!(document["flows"][0]["completed"], 4, "{document}");
    let thresholds: Vec<&str> = document["thresholds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["threshold"].as_str().unwrap())
        .collect();
    let expected = [
        "p95<1m",
        "max<90s",
        "p99{step:log in}<1m",
        "errors<7%",
        "checks>90%",
        "checks{check:status is 200}==100%",
    ];
    assert_eq!(thresholds, expected);
    let got = web.got();
    let lines: Vec<String> = got
        .iter()
        .filter(|got| got.header("x-user") != Some("vu-1"))
        .map(|got| format!("{} {}", got.method, got.target))
        .collect();
    let pass = [
        "POST /login?x=%7B1%7D",
        "POST /login?x=%7B1%7D",
        "PUT /items/t/1",
        "GET /items",
        "DELETE /session",
    ];
    let count = |line: &str| lines.iter().filter(|one| *one == line).count();
    assert_eq!(pass.map(count).map(|count| count > 0), [true; 5], "{lines:?}");
    assert_eq!(got.len(), 20, "{lines:?}");
    let login = got.iter().find(|got| got.header("x-user").is_some()).unwrap();
    assert_eq!(login.header("content-type"), Some("application/json"));
    let body: Value = serde_json::from_str(&login.body).unwrap();
    assert_eq!(
        (&body["name"], &body["tags"]),
        (&json!("Ann \"A\""), &json!(["{{a}}", null, true, 2.5]))
    );
    assert!(body["id"].is_number() && body["now"].as_u64() > Some(1_700_000_000_000), "{body}");
    let put = got.iter().find(|got| got.method == "PUT").unwrap();
    assert_eq!(put.header("authorization"), Some("Bearer t/1"));
    assert_eq!(put.body, "a=1%20%26&b=%C3%BC");
    let delete = got.iter().find(|got| got.method == "DELETE").unwrap();
    assert_eq!((delete.header("x-reason"), delete.body.as_str()), (Some("done"), ""));
    let steps = document["flows"][0]["steps"].as_array().unwrap();
    assert_eq!(steps[1]["name"], "log in");
    assert_eq!(steps[1]["checks"].as_array().unwrap().len(), 4, "three checks and a capture");
    assert_eq!(steps[2]["tags"], json!({"group": "shop"}));
    assert_eq!(steps[3]["checks"][0], json!({"name": "listed", "passed": 4, "failed": 0}));
}

#[test]
fn stages_and_times_are_converted() {
    let converted = convert(
        "stages.js",
        "import http from 'k6/http'\nexport let options = {\n  stages: [\n    { duration: '1m30s', target: 20 },\n\
         { target: 0, duration: '500ms' },\n  ],\n}\nexport default () => { http.get('https://a.example') }\n",
    );
    assert_eq!((converted.code, converted.stderr.as_str()), (Some(0), ""), "{converted:?}");
    for line in [
        "stages = [\"90s:20\", \"500ms:0\"]",
        "url = \"https://a.example\"",
        "target = \"https://a.example\"",
    ] {
        assert!(converted.stdout.contains(line), "{line}: {}", converted.stdout);
    }
    let converted = convert(
        "stages.js",
        "import http from 'k6/http'\nexport const options = { vus: 3, duration: '90s' }\n\
         export default function () { const r = http.get(`${__ENV.HOST}/a`)\nif (r) { http.get('/b') } }\n",
    );
    assert_eq!(converted.code, Some(0), "{converted:?}");
    for line in
        ["users = 3", "duration = \"90s\"", "url = \"/a\"", "target = \"http://127.0.0.1:8080\""]
    {
        assert!(converted.stdout.contains(line), "{line}: {}", converted.stdout);
    }
    for note in ["base URL env HOST is not known", "line 4: left out: if("] {
        assert!(converted.stderr.contains(note), "{note}: {}", converted.stderr);
    }
}

#[test]
fn scripts_without_requests_are_refused() {
    let get = |argument: &str| format!("export default function () {{ http.get({argument}) }}");
    for (script, parts) in [
        (String::new(), &["no request to convert"][..]),
        (
            "export default function () { ws.connect('ws://a') }".to_owned(),
            &["line 1: left out: ws.connect"],
        ),
        (get("url()"), &["http.get: the URL is not known"]),
        (get("`http://${host}/`"), &["http.get: the URL is not known"]),
        (get("'ftp://a/'"), &["http.get: the URL is not known"]),
        ("const a = 'x\n".to_owned(), &["line 1", "is not closed"]),
        (
            "export default function () { http.get('http://a/'".to_owned(),
            &["no request to convert"],
        ),
        ("(".repeat(100_000), &["no request to convert"]),
    ] {
        let refused = convert("refused.js", &script);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{refused:?}");
        let complete = parts.iter().all(|part| refused.stderr.contains(part));
        assert!(complete, "{parts:?}: {}", refused.stderr);
    }
}

#[test]
fn batches_become_steps_with_requests_at_the_same_time() {
    // The first batch is answered when all of it was requested.
    let asked = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&asked);
    let web = Web::start(move |got| {
        if got.target.starts_with("/part") {
            own.fetch_add(1, Ordering::SeqCst);
            eventually("the batch is sent at once", || own.load(Ordering::SeqCst) >= 3);
        }
        (200, vec![], r#"{"id":"a7"}"#.to_owned())
    });
    let script = r#"
import http from 'k6/http';
import { check, sleep } from 'k6';
export default function () {
  const responses = http.batch([
    `http://HOST/part1`,
    ['GET', 'http://HOST/part2', null, { tags: { name: 'second' } }],
    { method: 'POST', url: 'http://HOST/part3', body: { a: 'b' }, params: { headers: { 'X-A': '1' } } },
    ['GET', somewhere()],
  ]);
  check(responses[1], { 'is ok': (r) => r.status === 200 });
  const third = responses[2];
  check(third, { 'is also ok': (r) => r.status === 200 });
  check(responses[3], { 'is never': (r) => r.status === 200 });
  sleep(0.01);
  const id = responses[0].json('id');
  const named = http.batch({ one: 'http://HOST/one/' + id, two: 'http://HOST/two' });
  check(named.two, { 'two is ok': (r) => r.status === 200 });
  http.batch(responses.map((r) => r.url));
  http.get('http://HOST/last');
}
"#;
    let converted = convert("batch.js", &script.replace("HOST", &web.address.to_string()));
    assert_eq!(converted.code, Some(0), "{converted:?}");
    let notes: Vec<&str> = converted.stderr.lines().collect();
    assert_eq!(
        notes,
        [
            "line 9: left out: http.batch: the URL is not known",
            "line 14: left out: check of something else than a response",
            "line 19: left out: http.batch of requests that are not known",
        ]
    );
    let scenario = Scratch::new("from-k6-batch.toml", &converted.stdout);
    let (finished, document) =
        executable::run_command(standfast(&["load", scenario.path(), "--json", "-"])).with_json();
    assert_eq!(finished.code, Some(0), "{finished:?}\n{}", converted.stdout);
    let mut lines: Vec<String> =
        web.got().iter().map(|got| format!("{} {}", got.method, got.target)).collect();
    assert_eq!(lines.pop().as_deref(), Some("GET /last"));
    lines.sort();
    let expected = ["GET /one/a7", "GET /part1", "GET /part2", "GET /two", "POST /part3"];
    assert_eq!(lines, expected, "{}", converted.stdout);
    let steps = document["flows"][0]["steps"].as_array().unwrap();
    let names: Vec<&str> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    let expected =
        ["GET /part1", "second", "POST /part3", "GET /one/{{id}}", "GET /two", "GET /last"];
    assert_eq!(names, expected);
    let checks = |at: usize| steps[at]["checks"][0]["name"].as_str();
    assert_eq!(
        [checks(1), checks(2), checks(4)],
        [Some("is ok"), Some("is also ok"), Some("two is ok")]
    );
}
