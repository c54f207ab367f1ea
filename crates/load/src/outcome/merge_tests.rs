//! Outcomes of parts of one stream, merged, against the outcome of the whole stream.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::outcome::failure::Failure;
use crate::outcome::runs::{Expected, RequestRun, SocketRun};
use crate::outcome::samples::Sample;
use crate::outcome::selection::Selector;
use crate::requests::RequestSnapshot;
use crate::{DeliveryCounts, Metric, Recorder, Series, Sign, Snapshot, Threshold, Verdict};

const BEGAN_US: u64 = 1_700_000_000_000_000;
const SECONDS: u64 = 20;
/// The kind of events that were due and not sent.
const UNSENT: u64 = 9;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One request or message.
#[derive(Clone, Debug)]
struct Event {
    second: u64,
    us: u64,
    kind: u64,
    part: usize,
}

/// A stream that is shared out to `parts` generators.
fn stream(seed: u64, parts: usize) -> Vec<Event> {
    let mut random = Random(seed);
    let number = 30 + random.below(400);
    let mut events: Vec<Event> = (0..number)
        .map(|_| {
            let magnitude = random.below(8) as u32;
            let us = 1 + random.below(10_u64.pow(magnitude + 1));
            Event {
                second: random.below(SECONDS),
                us: if random.below(50) == 0 { 4_000_000_000 } else { us },
                kind: random.below(10),
                part: random.below(parts as u64) as usize,
            }
        })
        .collect();
    events.sort_by_key(|event| event.second);
    events
}

/// Rows at the end of each second.
fn samples(events: &[Event], connections: u64) -> SampleSeries {
    let rows = (0..SECONDS).map(|second| {
        let until = events.iter().filter(|event| event.second <= second).count() as u64;
        Sample {
            elapsed_seconds: (second + 1) as f64,
            phase: Cow::Borrowed("requests"),
            open: connections,
            sent: until,
            received: until,
            ..Sample::default()
        }
    });
    SampleSeries::from(rows.collect::<Vec<_>>())
}

fn requests(events: &[Event], users: u64) -> Outcome {
    let (mut counts, mut timed) = (RequestSnapshot::default(), Recorder::default());
    for event in events.iter().filter(|event| event.kind != UNSENT) {
        counts.sent += 1;
        let mut answered = |counts: &mut RequestSnapshot, status: usize| {
            counts.answered += 1;
            counts.status[status] += 1;
            for (series, us) in [
                (Series::Latency, event.us),
                (Series::ServiceTime, event.us / 2),
                (Series::FirstByte, event.us / 3),
            ] {
                timed.record(series, us * 1_000);
            }
        };
        match event.kind {
            0 => counts.failed[Failure::Timeout.index()] += 1,
            1 => {
                answered(&mut counts, 503);
                counts.failed[Failure::Status.index()] += 1;
            }
            2 => {
                answered(&mut counts, 200);
                counts.ok += 1;
                counts.stragglers += 1;
                counts.stragglers_ok += 1;
            }
            _ => {
                answered(&mut counts, 200);
                counts.ok += 1;
            }
        }
    }
    counts.opened = users;
    let run = RequestRun {
        requested: users,
        interrupted: false,
        counts: &counts,
        timed: &timed,
        measured: Duration::from_secs(SECONDS),
        unsent: number(events, |kind| kind == UNSENT),
        dropped: None,
        messages: None,
        time_wait_most: 3,
        began_unix_us: Some(BEGAN_US),
        measured_unix_us: Some(BEGAN_US),
    };
    let mut outcome = run.outcome();
    outcome.config.users = Some(users);
    outcome.config.target = vec!["http://a:1/x".to_owned()];
    outcome.flows = vec![flow_of(events, outcome.histograms.as_mut().unwrap())];
    outcome.samples = samples(events, users);
    judge(&mut outcome, &[]);
    outcome
}

fn number(events: &[Event], is: fn(u64) -> bool) -> u64 {
    events.iter().filter(|event| is(event.kind)).count() as u64
}

/// A flow whose step times some events, of which kind 6 are wrong and kind 5 have no answer.
fn flow_of(events: &[Event], histograms: &mut Histograms) -> FlowSummary {
    let mut recorder = Recorder::default();
    let timed = events.iter().filter(|event| event.kind > 5);
    timed.for_each(|event| recorder.record(Series::Latency, event.us * 1_000));
    let name = "flows[0].steps[0].latency";
    let latency = histograms.latency(name, &recorder, Series::Latency);
    let (wrong, never) = (number(events, |kind| kind == 6), number(events, |kind| kind == 5));
    histograms.of_all(name, wrong, never);
    let errors = [("timeout", never), ("check", wrong)];
    let errors = errors.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect();
    let passed = number(events, |kind| kind > 6);
    let check = CheckSummary { name: "is in".to_owned(), passed, failed: wrong };
    let step = StepSummary {
        name: "login".to_owned(),
        tags: BTreeMap::default(),
        requests: number(events, |kind| kind > 4),
        failed: wrong + never,
        errors,
        redirects: never,
        latency,
        service_time: None,
        checks: vec![check],
    };
    let (name, begun) = ("users".to_owned(), events.len() as u64);
    FlowSummary { name, begun, completed: passed, steps: vec![step] }
}

fn sockets(events: &[Event], connections: u64) -> Outcome {
    let mut recorder = Recorder::default();
    let mut counts = Snapshot { opened: connections, open: connections, ..Snapshot::default() };
    let mut delivery = DeliveryCounts::default();
    for event in events {
        counts.echo_sent += 1;
        counts.heartbeats_sent += 1;
        if event.kind > 0 {
            counts.echo_received += 1;
            counts.echo_answered += 1;
            recorder.record(Series::Latency, event.us * 1_000);
            recorder.record(Series::ServiceTime, event.us * 900);
        }
        if event.kind > 1 {
            counts.heartbeats_received += 1;
            recorder.record(Series::Heartbeat, event.us * 500);
            delivery.received += 1;
            recorder.record(Series::Broadcast, event.us * 700);
            recorder.record(Series::FromSend, event.us * 600);
        }
    }
    counts.delivery = delivery;
    let run = SocketRun {
        requested: connections,
        connecting: Duration::from_millis(1_500),
        in_flight_max: 0,
        counts: &counts,
        recorder: &recorder,
        messages: Some(events.len() as u64),
        awaits_pongs: true,
        http2: false,
        pings: true,
        wrong: 0,
        sending: Some(Duration::from_secs(SECONDS)),
        interrupted: false,
        warm_up: None,
        expected: Some(Expected { publisher: 0, receivers: 1, messages: events.len() as u64 }),
        fanout: None,
        unknown: None,
        times: Times::default(),
        histograms: Histograms::default(),
        began_unix_us: Some(BEGAN_US),
        measured_unix_us: Some(BEGAN_US + 2_000_000),
    };
    let mut outcome = run.outcome();
    outcome.samples = samples(events, connections);
    judge(&mut outcome, &[]);
    outcome
}

/// The outcomes of all parts, and that of the whole.
fn parts(of: fn(&[Event], u64) -> Outcome, seed: u64) -> (Vec<Outcome>, Outcome) {
    parts_of(of, seed, 2 + (seed % 4) as usize)
}

fn parts_of(of: fn(&[Event], u64) -> Outcome, seed: u64, number: usize) -> (Vec<Outcome>, Outcome) {
    let events = stream(seed, number);
    let part = |part: usize| -> Vec<Event> {
        events.iter().filter(|event| event.part == part).cloned().collect()
    };
    let parts = (0..number).map(|at| of(&part(at), 10 + at as u64)).collect();
    let connections = (0..number).map(|at| 10 + at as u64).sum();
    (parts, of(&events, connections))
}

fn value(outcome: &Outcome) -> Value {
    serde_json::to_value(outcome).unwrap()
}

/// Panics unless two documents have the same fields, and numbers that differ by rounding only.
fn assert_alike(one: &Value, other: &Value, path: &str) {
    match (one, other) {
        (Value::Object(fields), Value::Object(of)) => {
            let names: BTreeSet<&String> = fields.keys().chain(of.keys()).collect();
            for name in names {
                // The same values may be compressed in another way.
                if name != "hdr" {
                    assert_alike(&one[name], &other[name], &format!("{path}/{name}"));
                }
            }
        }
        (Value::Array(values), Value::Array(of)) => {
            assert_eq!(values.len(), of.len(), "{path}");
            values.iter().zip(of).for_each(|(one, other)| assert_alike(one, other, path));
        }
        (Value::Number(one), Value::Number(other)) if one.is_f64() => {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
            assert!((one - other).abs() <= 1e-9 * one.abs(), "{path}: {one} and {other}");
        }
        _ => assert_eq!(one, other, "{path}"),
    }
}

fn all(parts: &[Outcome]) -> Outcome {
    parts.iter().cloned().reduce(|one, other| one.merge(other).unwrap()).unwrap()
}

#[test]
fn merged_parts_are_the_outcome_of_the_whole_stream() {
    for of in [requests, sockets] {
        for seed in 0..10 {
            let (parts, mut whole) = parts(of, seed);
            // Not known of several.
            whole.connections.in_flight_max = None;
            if let Some(broadcast) = &mut whole.broadcast {
                // Each generator has its own.
                broadcast.receivers = parts.len() as u64;
            }
            let (merged, whole) = (value(&all(&parts)), value(&whole));
            assert_alike(&merged, &whole, &format!("seed {seed} "));
        }
    }
}

/// As a leader gets them of its agents.
#[test]
fn sixteen_parts_that_were_sent_have_the_percentiles_of_one_recorder() {
    for of in [requests, sockets] {
        for seed in 0..5 {
            let (parts, whole) = parts_of(of, seed, 16);
            let sent: Vec<Outcome> =
                parts.iter().map(|part| Outcome::read(value(part)).unwrap()).collect();
            let merged = all(&sent);
            assert_eq!(merged.histograms, whole.histograms, "every bucket");
            assert_eq!(merged.latency, whole.latency);
            assert_eq!(merged.latency_of_all, whole.latency_of_all);
        }
    }
}

#[test]
fn merging_is_commutative_and_associative_and_survives_json() {
    for of in [requests, sockets] {
        for seed in 0..5 {
            let (mut parts, _) = parts(of, 4 * seed + 1);
            for (at, part) in parts.iter_mut().enumerate() {
                // They begin and end at different times, some so much later that rows get longer.
                let late =
                    [0, 1_234_567, 900_000, 2_345_678_901][at % 4] * u64::from(seed % 3 == 0);
                part.began_unix_us = Some(BEGAN_US + late);
                part.measured_unix_us = part.began_unix_us;
                // All of them are still running then.
                part.seconds = Some(3_000.0);
                part.per_second = Some(100.0 / 3_000.0);
                part.good_per_second = Some(99.0 / 3_000.0);
            }
            let [a, b, c] = [0, 1, 2].map(|at| parts[at % parts.len()].clone());
            let merge = |one: &Outcome, other: &Outcome| one.clone().merge(other.clone()).unwrap();
            let ab = merge(&a, &b);
            assert_alike(&value(&ab), &value(&merge(&b, &a)), "commutative ");
            let (left, right) = (merge(&ab, &c), merge(&a, &merge(&b, &c)));
            assert_alike(&value(&left), &value(&right), "associative ");
            let again = |of: &Outcome| Outcome::read(value(of)).unwrap();
            assert_alike(&value(&again(&ab)), &value(&ab), "read ");
            let read = again(&again(&a).merge(again(&b)).unwrap()).merge(again(&c)).unwrap();
            assert_alike(&value(&read), &value(&left), "merged after reading ");
        }
    }
}

#[test]
fn missing_histogram_makes_percentiles_unknown_for_good() {
    let (parts, _) = parts(requests, 7);
    let mut without = value(&parts[0]);
    without["histograms"].as_object_mut().unwrap().remove("latency");
    let without = Outcome::read(without).unwrap();
    let none = Outcome { histograms: None, ..parts[0].clone() };
    for (missing, unknown) in [(without, 1), (none, 4)] {
        for (one, other) in [(&missing, &parts[1]), (&parts[1], &missing)] {
            let merged = one.clone().merge(other.clone()).unwrap();
            assert_eq!((merged.latency, merged.latency_of_all), (None, None));
            assert!(
                merged.unknown_latencies().len() >= unknown,
                "{:?}",
                merged.unknown_latencies()
            );
            assert_eq!(merged.service_time.is_some(), unknown == 1);
            let mut merged = merged.merge(parts[2].clone()).unwrap();
            assert_eq!(merged.latency, None, "whatever is merged with it");
            let threshold = Threshold {
                text: "p99<1h".to_owned(),
                metric: Metric::P99,
                selector: None,
                sign: Sign::Below,
                bound: 3_600_000.0,
            };
            judge(&mut merged, &[&threshold]);
            assert!(!merged.thresholds[0].met);
        }
    }
    let mut foreign = value(&parts[0]);
    foreign["histograms"]["latency"] = value(&parts[1])["histograms"]["latency"].clone();
    let foreign = Outcome::read(foreign).unwrap();
    let error = foreign.merge(parts[1].clone()).unwrap_err();
    assert!(error.contains("histogram latency"), "{error}");
}

#[test]
fn rates_are_unknown_without_the_time_of_day() {
    let (parts, _) = parts(requests, 3);
    let timeless = Outcome { began_unix_us: None, ..parts[0].clone() };
    let merged = timeless.merge(parts[1].clone()).unwrap().merge(parts[2].clone()).unwrap();
    assert_eq!((merged.seconds, merged.per_second, merged.good_rate()), (None, None, None));
    assert!(merged.samples.samples().is_empty() && merged.latency.is_some());
    assert!(merged.to_string().contains("rate unknown"), "{merged}");
}

#[test]
fn unlike_runs_are_refused() {
    let (parts, _) = parts(requests, 3);
    let with = |change: &dyn Fn(&mut Outcome)| {
        let mut other = parts[1].clone();
        change(&mut other);
        parts[0].clone().merge(other)
    };
    with(&|_| {}).unwrap();
    with(&|of| of.config.target = vec!["http://b:2/x".to_owned()]).unwrap();
    with(&|of| of.config.seed = Some(9)).unwrap();
    let (of_sockets, _) = super::tests::parts(sockets, 3);
    for (change, named) in [
        (&(|of: &mut Outcome| of.version = 1) as &dyn Fn(&mut Outcome), "version 1"),
        (&|of| of.standfast = "0.0.9".to_owned(), "0.0.9"),
        (&|of| of.config.target = vec!["http://a:1/y".to_owned()], "target"),
        (&|of| of.config.keep_alive = Some(false), "keep-alive"),
        (&|of| of.config.pace.model = "open".to_owned(), "pace"),
        (&|of| of.config.duration_seconds = Some(1.0), "duration"),
        (&|of| of.config.settings = vec![("headers".to_owned(), "A".to_owned())], "settings"),
        (&|of| of.flows.clear(), "flows"),
        (&|of| of.began_unix_us = Some(BEGAN_US + 60_000_000), "same time"),
        (&|of| of.requests = of_sockets[0].requests, "WebSockets"),
    ] {
        let change = |of: &mut Outcome| {
            change(of);
            if named == "same time" {
                of.measured_unix_us = of.began_unix_us;
            }
        };
        let error = with(&change).unwrap_err();
        assert!(error.contains(named), "{named}: {error}");
    }
}

#[test]
fn verdict_is_of_the_whole() {
    let (parts, _) = parts(requests, 11);
    let threshold = ThresholdResult {
        threshold: "failed<1".to_owned(),
        value: Some(0.0),
        met: true,
        why: None,
        of: None,
    };
    let mut one = Outcome { thresholds: vec![threshold], ..parts[0].clone() };
    one.reasons.push("2 ports are missing".to_owned());
    one.reasons.push("too few descriptors".to_owned());
    let generator = json!({"cores": 2, "cpu_seconds": 1.0, "cpu_cores_most": 1.0, "workers": [],
        "saturated": true, "reasons": ["it had no core"], "rate_missed": true});
    one.generator = serde_json::from_value(generator.clone()).unwrap();
    let mut other = parts[1].clone();
    let mut fine = generator;
    (fine["saturated"], fine["reasons"], fine["rate_missed"]) =
        (json!(false), json!([]), json!(false));
    other.generator = serde_json::from_value(fine).unwrap();
    other.interrupted = true;
    let failed = one.requests.unwrap().failed + other.requests.unwrap().failed;
    let merged = one.merge(other).unwrap();
    assert_eq!(Verdict::of(&merged), Verdict::Interrupted);
    assert!(merged.is_saturated() && !merged.held);
    assert_eq!((merged.thresholds.len(), merged.thresholds[0].met), (1, false), "not judged yet");
    for reason in [
        format!("{failed} requests failed"),
        "2 ports are missing".to_owned(),
        "too few descriptors".to_owned(),
        "the requested rate was not reached on time".to_owned(),
    ] {
        let times = merged.reasons.iter().filter(|known| **known == reason).count();
        assert_eq!(times, 1, "{reason}: {:?}", merged.reasons);
    }
    assert_eq!(merged.reasons.iter().filter(|of| of.ends_with("requests failed")).count(), 1);
}

#[test]
fn selections_are_of_the_merged_steps() {
    let (parts, _) = parts(requests, 5);
    let mut merged = all(&parts);
    let step = Selector { labels: vec![("step".to_owned(), "login".to_owned())] };
    merged.select(&[&step, &step]);
    let [selection] = &merged.selections[..] else { panic!("{:?}", merged.selections) };
    let steps = || parts.iter().map(|part| &part.flows[0].steps[0]);
    assert_eq!(selection.requests, steps().map(|step| step.requests).sum::<u64>());
    assert_eq!(selection.failed, steps().map(|step| step.failed).sum::<u64>());
    let timed: u64 = steps().filter_map(|step| step.latency).map(|of| of.count).sum();
    let all = selection.latency_of_all.unwrap();
    assert_eq!((all.count, selection.answered), (selection.requests, timed));
    assert!(all.max_ms.is_none(), "some had no answer");
}

#[test]
fn rows_of_long_runs_are_bounded() {
    let long = |every: f64, offset: f64| {
        let at = |n: u32| Sample {
            elapsed_seconds: f64::from(n) * every + offset,
            sent: u64::from(n),
            ..Sample::default()
        };
        SampleSeries::from((1..=1_000).map(at).collect::<Vec<_>>())
    };
    let (one, other) = (long(7.0, 0.25), long(5.0, 0.0));
    let merged = merged_samples::merge((&one, BEGAN_US), (&other, BEGAN_US + 300_000));
    let rows = merged.samples();
    assert!((400..=1_024).contains(&rows.len()), "{}", rows.len());
    assert_eq!(rows.last().unwrap().sent, 2_000);
    assert!(
        rows.windows(2).all(|pair| pair[0].sent <= pair[1].sent
            && pair[0].elapsed_seconds < pair[1].elapsed_seconds)
    );
}
