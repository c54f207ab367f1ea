//! Users without a network: the tests answer their requests.

use super::*;
use crate::Endpoint;
use crate::workload::requests::answer::Times;
use crate::workload::scenario::check::{Check, Rule};
use crate::workload::scenario::extract::{Source, Take};
use crate::workload::scenario::feed::{Feed, Order};
use crate::workload::scenario::template::{Names, Template, TemplateContext};
use crate::workload::scenario::{Capture, Flow, Step};

const CLOCK: Clock = Clock { now_ns: 0, now_ms: 1_000 };

/// The parts of a step that a test sets.
struct Wanted<'a> {
    target: &'a str,
    method: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: Option<&'a str>,
}

const GET: Wanted<'static> = Wanted { target: "/", method: "GET", headers: &[], body: None };

fn step(wanted: &Wanted<'_>, names: &Names) -> Step {
    let text = |text, place| Template::compile(text, place, names).unwrap();
    let headers = wanted.headers.iter();
    let target = text(wanted.target, TemplateContext::Target);
    Step {
        method: wanted.method.to_owned(),
        headers: headers
            .map(|(n, v)| ((*n).to_owned(), text(v, TemplateContext::Header)))
            .collect(),
        body: wanted.body.map(|body| text(body, TemplateContext::Body)),
        ..Step::new(wanted.target.to_owned(), 0, Action::Request, target)
    }
}

fn scenario(steps: Vec<Step>) -> Scenario {
    let endpoint = |url| Endpoint::parse_web(url).unwrap();
    Scenario {
        endpoints: vec![endpoint("http://127.0.0.1:81/"), endpoint("http://127.0.0.2:82/")],
        flows: vec![Flow {
            name: "one".to_owned(),
            weight: 1,
            steps: 0..steps.len(),
            ..Flow::default()
        }],
        captures: 1,
        steps,
        passes: Some(1),
        cookies: true,
        redirects: 2,
        ..Scenario::default()
    }
}

struct Play {
    users: Users,
    scenario: Arc<Scenario>,
    tallies: Tallies,
    is_warm_up: bool,
}

fn play(scenario: Scenario) -> Play {
    part_of(scenario, Part::new(0, 1, 1, 100))
}

fn part_of(scenario: Scenario, part: Part) -> Play {
    let (scenario, tallies) = (Arc::new(scenario), Tallies::default());
    let users = Users::new(Arc::clone(&scenario), part, tallies.clone(), 7, CLOCK);
    Play { users, scenario, tallies, is_warm_up: false }
}

impl Play {
    fn asked(&mut self, user: u32) -> String {
        assert_eq!(self.users.next(user, 0), Next::Send);
        self.asked_now(user)
    }

    /// The request after a follow-up, without a call of `next`.
    fn asked_now(&mut self, user: u32) -> String {
        String::from_utf8(self.users.request(user).bytes().to_vec()).unwrap()
    }

    fn answer(&mut self, user: u32, head: &str, body: &str) -> Option<Failure> {
        let head = format!("HTTP/1.1 {head}\r\n\r\n");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let wants = self.users.wants(user);
        let body = if matches!(wants, Wants::Body(_)) { body.as_bytes() } else { b"" };
        let head = if wants == Wants::Nothing { b"" } else { head.as_bytes() };
        let times =
            Times { due_ns: 0, begun_ns: 1_000_000, done_ns: 9_000_000, ..Times::default() };
        let body_bytes = body.len() as u64;
        let (outcome, is_cut) = (Ok(status), false);
        let is_warm_up = self.is_warm_up;
        let answer = Answer { outcome, head, body, is_cut, body_bytes, is_warm_up, times };
        let follows_up = self.users.follows_up(user, &answer);
        if follows_up { None } else { self.users.answered(user, &answer) }
    }

    fn flows(self) -> Vec<crate::outcome::tally::FlowSummary> {
        drop(self.users);
        self.tallies.summary(&self.scenario)
    }
}

fn login() -> Vec<Step> {
    let mut names = Names::default();
    let mut login =
        step(&Wanted { method: "POST", body: Some("u={{user}}"), target: "/login", ..GET }, &names);
    let source = Source::json("$.token").unwrap();
    login.captures =
        vec![Capture { name: "token".to_owned(), slot: 0, source, take: Take::First, least: 0 }];
    names.captures = vec!["token".to_owned()];
    let headers = &[("Authorization", "Bearer {{token}}")];
    let mut use_it = step(&Wanted { target: "/me?p={{pass}}", headers, ..GET }, &names);
    use_it.checks = vec![Check { name: "ok".to_owned(), rule: Rule::status("200").unwrap() }];
    vec![login, use_it]
}

#[test]
fn captures_are_used_by_later_steps() {
    let mut play = play(scenario(login()));
    let login = play.asked(3);
    assert!(login.starts_with("POST /login HTTP/1.1\r\nHost: 127.0.0.1:81\r\n"), "{login}");
    assert!(login.ends_with("Content-Length: 3\r\n\r\nu=3"), "{login}");
    assert_eq!(play.answer(3, "200 OK\r\nSet-Cookie: s=9", r#"{"token":"abc"}"#), None);
    let use_it = play.asked(3);
    assert!(use_it.starts_with("GET /me?p=0 ") && use_it.contains("Authorization: Bearer abc\r\n"));
    assert!(use_it.contains("Cookie: s=9\r\n") && !use_it.contains("Content-Length"), "{use_it}");
    assert_eq!(use_it.as_bytes(), play.users.request(3).bytes(), "the same when rendered again");
    assert_eq!(
        play.answer(3, "500 Oh", ""),
        Some(Failure::Check),
        "a check of the status judges it"
    );
    assert_eq!(play.users.next(3, 0), Next::End, "one pass each");
    let flows = play.flows();
    assert_eq!((flows[0].begun, flows[0].completed), (1, 0), "a failed check ends the pass");
    let [login, use_it] = &flows[0].steps[..] else { panic!("{flows:?}") };
    assert_eq!((login.checks[0].name.as_str(), login.checks[0].passed), ("capture token", 1));
    assert_eq!((use_it.checks[0].failed, use_it.failed, use_it.errors["check"]), (1, 1, 1));
    let (latency, service) = (login.latency.unwrap(), login.service_time.unwrap());
    assert!((latency.max_ms - 9.0).abs() < 0.1 && (service.max_ms - 8.0).abs() < 0.1);
}

#[test]
fn a_step_that_fails_ends_the_pass() {
    for (head, body, failure) in
        [("200 OK", "{}", Failure::Check), ("503 Busy", r#"{"token":"abc"}"#, Failure::Status)]
    {
        let mut play = play(Scenario { passes: Some(2), ..scenario(login()) });
        play.asked(0);
        assert_eq!(play.answer(0, head, body), Some(failure), "{head}");
        assert!(play.asked(0).starts_with("POST /login"), "the next pass begins");
        let flows = play.flows();
        assert_eq!((flows[0].begun, flows[0].completed), (2, 0));
        assert_eq!(flows[0].steps[0].errors[failure.name()], 1);
    }
}

#[test]
fn a_pass_begins_when_it_is_due_and_only_its_first_step_is_timed_from_then() {
    let mut play = play(Scenario { passes: None, arrives: true, ..scenario(login()) });
    let targets = TargetTable::new(&play.scenario.endpoints);
    play.users.start(&targets, 10);
    for (due_ns, body) in [(5, r#"{"token":"abc"}"#), (20, "{}"), (30, r#"{"token":"abc"}"#)] {
        assert_eq!(play.users.next(0, 40), Next::Arrive, "{due_ns}");
        play.users.arrived(0, due_ns);
        assert_eq!(play.users.next(0, 40), Next::SendDue(due_ns));
        play.answer(0, "200 OK", body);
        if body != "{}" {
            assert_eq!(play.users.next(0, 40), Next::Send, "the second step follows");
            play.answer(0, "200 OK", "");
        }
    }
    let flows = play.flows();
    assert_eq!((flows[0].begun, flows[0].completed), (2, 1), "the first was due in the warm-up");
}

#[test]
fn a_step_once_is_done_until_it_succeeds() {
    let mut steps = login();
    steps[0].once = true;
    let mut play = play(Scenario { passes: None, ..scenario(steps) });
    let mut asked = Vec::new();
    for body in ["{}", r#"{"token":"abc"}"#, "", "", ""] {
        asked.push(play.asked(0).split(' ').nth(1).unwrap().to_owned());
        play.answer(0, "200 OK", body);
    }
    assert_eq!(asked, ["/login", "/login", "/me?p=1", "/me?p=2", "/me?p=3"]);
}

#[test]
fn redirects_are_followed_with_cookies_and_without_secrets_elsewhere() {
    let headers = &[("Authorization", "Bearer x"), ("Content-Type", "text/plain")];
    let post = Wanted { method: "POST", target: "/in?a", body: Some("{{seq}}"), headers };
    let mut play = play(scenario(vec![step(&post, &Names::default())]));
    assert!(play.asked(0).ends_with("\r\n\r\n0"));
    assert_eq!(play.answer(0, "307 T\r\nLocation: /there\r\nSet-Cookie: a=1; Path=/", ""), None);
    let there = play.asked_now(0);
    assert!(there.starts_with("POST /there ") && there.ends_with("\r\n\r\n0"), "{there}");
    assert!(there.contains("Cookie: a=1\r\n") && there.contains("Bearer x"), "{there}");
    assert_eq!(play.answer(0, "302 F\r\nLocation: http://127.0.0.2:82/out", ""), None);
    let out = play.asked_now(0);
    assert!(out.starts_with("GET /out HTTP/1.1\r\nHost: 127.0.0.2:82\r\n"), "{out}");
    assert!(
        !out.contains("Bearer") && !out.contains("Cookie") && !out.contains("Content"),
        "{out}"
    );
    assert_eq!(play.answer(0, "302 F\r\nLocation: /again", ""), Some(Failure::TooManyRedirects));
    let flows = play.flows();
    let one = &flows[0].steps[0];
    assert_eq!((one.requests, one.redirects, one.failed), (1, 2, 1), "two were followed");
}

#[test]
fn redirects_to_other_servers_carry_no_secrets() {
    let headers = &[("Authorization", "Bearer x"), ("X-A", "b")];
    let wanted = Wanted { headers, ..GET };
    let mut play = play(scenario(vec![step(&wanted, &Names::default())]));
    play.asked(0);
    let found = "302 F\r\nSet-Cookie: s=1\r\nLocation: http://127.0.0.9/there?x";
    assert_eq!(play.answer(0, found, ""), None);
    let there = play.asked(0);
    assert!(there.starts_with("GET /there?x HTTP/1.1\r\nHost: 127.0.0.9\r\nX-A: b\r\n"), "{there}");
    assert!(!there.contains("Bearer") && !there.contains("Cookie"), "{there}");
    assert_eq!(play.users.request(0).endpoint(), 2, "a new target");
    let back = "302 F\r\nSet-Cookie: t=2\r\nLocation: http://127.0.0.1:81/back";
    assert_eq!(play.answer(0, back, ""), None);
    let back = play.asked(0);
    assert!(back.contains("Cookie: s=1\r\n") && !back.contains("Bearer"), "its own: {back}");
    let failure = play.answer(0, "301 M\r\nLocation: gopher://127.0.0.9/", "");
    assert_eq!(failure, Some(Failure::TooManyRedirects));
    play.users.scenario = Arc::new(Scenario { passes: Some(9), ..(*play.scenario).clone() });
    play.asked(0);
    let failure = play.answer(0, "301 M\r\nLocation: gopher://127.0.0.9/", "");
    assert_eq!(failure, Some(Failure::RedirectElsewhere));
}

#[test]
fn the_warm_up_is_in_no_tally_and_no_pass_of_it_is_counted() {
    let mut play = play(Scenario { passes: Some(2), ..scenario(login()) });
    let targets = TargetTable::new(&play.scenario.endpoints);
    play.users.start(&targets, 10);
    let token = r#"{"token":"abc"}"#;
    for now_ns in [0, 9, 10, 20] {
        play.is_warm_up = now_ns < 10;
        for body in [token, ""] {
            assert_eq!(play.users.next(0, now_ns), Next::Send, "{now_ns}");
            play.answer(0, "200 OK", body);
        }
    }
    assert_eq!(play.users.next(0, 30), Next::End, "two passes beside the warm-up");
    let flows = play.flows();
    assert_eq!((flows[0].begun, flows[0].completed), (2, 2));
    for step in &flows[0].steps {
        assert_eq!((step.requests, step.checks[0].passed), (2, 2), "{step:?}");
    }
}

#[test]
fn flows_are_taken_by_weight_within_sampling_error() {
    let steps = vec![
        step(&GET, &Names::default()),
        step(&GET, &Names::default()),
        step(&GET, &Names::default()),
    ];
    let flow = |number: usize, weight| Flow {
        name: number.to_string(),
        weight,
        steps: number..number + 1,
        ..Flow::default()
    };
    let flows = vec![flow(0, 1), flow(1, 0), flow(2, 3)];
    let mut play = play(Scenario { flows, passes: None, ..scenario(steps) });
    const PASSES: u64 = 20_000;
    for pass in 0..PASSES {
        play.asked((pass % 100) as u32);
        play.answer((pass % 100) as u32, "200 OK", "");
    }
    let begun: Vec<u64> = play.flows().iter().map(|flow| flow.begun).collect();
    // Of a share p, five standard deviations: 5·√(n·p·(1−p)).
    let margin = 5.0 * (PASSES as f64 * 0.25 * 0.75).sqrt();
    assert!((begun[0] as f64 - PASSES as f64 * 0.25).abs() < margin, "{begun:?}");
    assert_eq!((begun[1], begun[0] + begun[2]), (0, PASSES));
}

#[test]
fn numbers_are_given_once_over_all_workers() {
    let mut all = Vec::new();
    for worker in 0..3 {
        let step = step(&Wanted { target: "/{{seq}}", ..GET }, &Names::default());
        let part = Part::new(worker, 3, 1, 6);
        let mut play = part_of(Scenario { passes: None, ..scenario(vec![step]) }, part);
        for turn in 0..6 {
            let text = play.asked(turn % 2);
            all.push(text.split(' ').nth(1).unwrap()[1..].parse::<u64>().unwrap());
            play.answer(turn % 2, "200 OK", "");
        }
    }
    all.sort_unstable();
    assert_eq!(all, (0..18).collect::<Vec<_>>());
}

#[test]
fn users_think_and_end_with_their_feed() {
    let mut feed = Feed::from_csv("f", b"id\n5\n6\n").unwrap();
    (feed.once, feed.order) = (true, Order::Sequential);
    let names = Names { feeds: vec![Arc::new(feed)], ..Names::default() };
    let mut one = step(&Wanted { target: "/{{f.id}}", ..GET }, &names);
    let (least, most) = (Duration::from_millis(100), Duration::from_millis(300));
    one.think = Some((least, most));
    let mut play = play(Scenario { feeds: names.feeds, passes: None, ..scenario(vec![one]) });
    for id in ["/5", "/6"] {
        assert!(play.asked(0).contains(id));
        play.answer(0, "200 OK", "");
        let Next::Wait(time) = play.users.next(0, 0) else { panic!("it thinks") };
        assert!((least..=most).contains(&time), "{time:?}");
    }
    assert_eq!(play.users.next(0, 0), Next::End, "no row is left");
}

#[test]
fn constant_requests_are_rendered_once() {
    let plain = Scenario {
        cookies: false,
        redirects: 0,
        passes: None,
        ..scenario(vec![step(&GET, &Names::default())])
    };
    let mut play = play(plain);
    play.asked(0);
    assert_eq!(play.users.wants(0), Wants::Nothing);
    let first = play.users.request(0).bytes().as_ptr();
    play.answer(0, "200 OK", "");
    play.asked(1);
    assert_eq!(play.users.request(1).bytes().as_ptr(), first, "the same bytes for all users");
}

#[test]
fn forward_proxy_gets_absolute_urls() {
    let proxy = crate::Proxy::parse("http://u:p@127.0.0.1:3128").unwrap();
    let options =
        crate::ConnectOptions { proxy: Some(Arc::new(proxy)), ..crate::ConnectOptions::default() };
    let endpoints = vec![Arc::new(options).web("http://127.0.0.1:81/").unwrap()];
    let mut play = play(Scenario { endpoints, ..scenario(vec![step(&GET, &Names::default())]) });
    let asked = play.asked(0);
    assert!(
        asked.starts_with("GET http://127.0.0.1:81/ HTTP/1.1\r\nHost: 127.0.0.1:81\r\n"),
        "{asked}"
    );
    assert!(asked.contains("Proxy-Authorization: Basic dTpw\r\n"), "{asked}");
}

#[test]
fn a_captured_link_is_followed_at_its_own_server_only() {
    let names = Names { captures: vec!["link".to_owned()], ..Names::default() };
    let mut first = step(&GET, &names);
    let source = Source::Header("X-Next".to_owned());
    first.captures =
        vec![Capture { name: "link".to_owned(), slot: 0, source, take: Take::First, least: 0 }];
    let steps = vec![first, step(&Wanted { target: "{{link}}", ..GET }, &names)];
    let mut play = play(Scenario { passes: None, ..scenario(steps) });
    play.asked(0);
    play.answer(0, "200 OK\r\nX-Next: http://127.0.0.1:81/a?b", "");
    assert!(play.asked(0).starts_with("GET /a?b HTTP/1.1"));
    play.answer(0, "200 OK", "");
    play.asked(0);
    play.answer(0, "200 OK\r\nX-Next: http://127.0.0.9/a", "");
    let elsewhere = Failure::RedirectElsewhere;
    assert_eq!(play.users.next(0, 0), Next::Fail(elsewhere), "not sent");
    let (outcome, times) = (Err(elsewhere), Times::default());
    let (is_cut, is_warm_up, body_bytes) = (false, false, 0);
    let answer = Answer { outcome, head: b"", body: b"", is_cut, body_bytes, is_warm_up, times };
    assert_eq!(play.users.answered(0, &answer), None, "the run has counted it");
    assert_eq!(play.flows()[0].steps[1].errors["redirect_elsewhere"], 1);
}

#[test]
fn random_values_of_requests_at_the_same_time_do_not_depend_on_their_order() {
    let asked = |order: [u8; 2]| {
        let mut steps = ["/a?{{uuid}}", "/b?{{uuid}}"]
            .map(|target| step(&Wanted { target, ..GET }, &Names::default()));
        steps[0].parallel = 2;
        let mut play = play(scenario(steps.to_vec()));
        assert_eq!((play.users.next(0, 0), play.users.parallel(0)), (Next::Send, 2));
        let mut requests = Vec::new();
        for (at, nth) in (100..).zip(order) {
            assert_eq!(play.users.fork(0, at, nth, 0), None);
            let one = play.asked_now(at);
            assert_eq!(play.asked_now(at), one, "rendered again");
            requests.push(one);
        }
        requests.sort();
        // The branch that is answered last ends the pass.
        assert_eq!((play.answer(101, "200 OK", ""), play.answer(100, "200 OK", "")), (None, None));
        play.users.join(0, true);
        assert_eq!(play.users.next(0, 0), Next::End);
        let flows = play.flows();
        assert_eq!((flows[0].completed, flows[0].steps[0].requests), (1, 1));
        requests
    };
    let first = asked([0, 1]);
    assert_eq!(first, asked([1, 0]));
    assert_ne!(first[0].replace("/a?", "/b?"), first[1]);
}
