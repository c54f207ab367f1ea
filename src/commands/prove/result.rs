//! The measurements of a proof, the verdict, and both as JSON (`docs/protocol/prove-json.md`).

use std::collections::BTreeMap;

use capacity::{Machine, ProcessMemory};
use serde::Serialize;
use serde_json::Value;

use super::churn::{ChurnMemory, ChurnResult};
use super::link::LinkResult;
use super::plan::Plan;
use crate::output;
use crate::progress::Series;

/// Server and client at one moment; `None` where a process could not be read.
pub(super) type ProcessFigures = (Option<ProcessMemory>, Option<ProcessMemory>);

/// One process over the proof.
#[derive(Default)]
pub(super) struct Samples {
    pub(super) start: Option<ProcessMemory>,
    pub(super) held: Option<ProcessMemory>,
    pub(super) end: Option<ProcessMemory>,
}

/// All measurements before they are judged.
pub(super) struct Measured {
    pub(super) requested: u64,
    pub(super) open: u64,
    pub(super) failed: u64,
    /// Sockets that answered no heartbeat; `None` without heartbeats.
    pub(super) unanswered: Option<u64>,
    pub(super) connect_seconds: f64,
    pub(super) hold_seconds: f64,
    pub(super) seconds: f64,
    pub(super) server: Samples,
    pub(super) client: Samples,
    pub(super) kernel_growth: Option<u64>,
    pub(super) system_growth: Option<u64>,
    pub(super) marks: Vec<Mark>,
    pub(super) publish_seconds: Vec<f64>,
    pub(super) link: Option<LinkResult>,
    pub(super) churn: Option<ChurnMemory>,
    pub(super) series: Series,
    /// The summary of the load process.
    pub(super) load: Option<Value>,
    pub(super) interrupted: bool,
    /// Failures of the proof itself.
    pub(super) broken: Vec<String>,
}

impl Measured {
    pub(super) fn new(requested: u64) -> Self {
        Measured {
            requested,
            open: 0,
            failed: 0,
            unanswered: None,
            connect_seconds: 0.0,
            hold_seconds: 0.0,
            seconds: 0.0,
            server: Samples::default(),
            client: Samples::default(),
            kernel_growth: None,
            system_growth: None,
            marks: Vec::new(),
            publish_seconds: Vec::new(),
            link: None,
            churn: None,
            series: Series::new(),
            load: None,
            interrupted: false,
            broken: Vec::new(),
        }
    }

    /// Returns a count of the load process's summary.
    fn count(&self, section: &str, key: &str) -> u64 {
        self.load.as_ref().and_then(|load| load[section][key].as_u64()).unwrap_or(0)
    }

    fn milliseconds(&self, section: &str, key: &str) -> Option<f64> {
        self.load.as_ref().and_then(|load| load[section][key].as_f64())
    }

    fn spread(&self, key: &str) -> Option<Spread> {
        let latency = &self.load.as_ref()?["broadcast"][key];
        Some(Spread { p50_ms: latency["p50_ms"].as_f64()?, max_ms: latency["max_ms"].as_f64()? })
    }
}

/// Memory at a number of open sockets.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Mark {
    pub(super) connections: u64,
    pub(super) server_rss_bytes: u64,
    pub(super) client_rss_bytes: u64,
    /// Growth of the kernel's own memory since before the proof, for both ends of each socket.
    pub(super) kernel_bytes: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct Connections {
    pub(super) requested: u64,
    /// At the end of the hold.
    pub(super) open: u64,
    pub(super) failed: u64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
}

#[derive(Serialize)]
pub(super) struct ProcessResult {
    /// Whole process, at the end of the hold.
    pub(super) rss_bytes: u64,
    /// Growth since the process was ready, divided by the open sockets.
    pub(super) rss_bytes_per_connection: f64,
    /// Over the whole proof, without closing.
    pub(super) cpu_seconds: f64,
}

#[derive(Serialize)]
pub(super) struct Heartbeats {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Sockets that never answered one.
    pub(super) unanswered_sockets: u64,
}

/// Echo messages over all sockets.
#[derive(Serialize)]
pub(super) struct MessageCounts {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) corrupted: u64,
    /// From the time the message was due.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) max_ms: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct Broadcast {
    pub(super) expected: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// The last receipt of the slowest broadcast, from its publish.
    pub(super) last_ms: Option<f64>,
    /// Time from publishing a broadcast to its last receipt: median and maximum over the broadcasts.
    pub(super) to_last: Option<Spread>,
    /// Time from the first receipt of a broadcast to its last, likewise.
    pub(super) first_to_last: Option<Spread>,
}

/// Median and maximum over several broadcasts.
#[derive(Copy, Clone, Serialize)]
pub(super) struct Spread {
    pub(super) p50_ms: f64,
    pub(super) max_ms: f64,
}

/// The result of a proof, as stored and shown.
#[derive(Serialize)]
pub(super) struct Proof {
    pub(super) version: u32,
    pub(super) standfast: &'static str,
    pub(super) command: String,
    /// The scenario, if there was one.
    pub(super) scenario: Option<String>,
    pub(super) machine: Machine,
    pub(super) connections: Connections,
    pub(super) hold_seconds: f64,
    pub(super) seconds: f64,
    pub(super) server: ProcessResult,
    pub(super) client: ProcessResult,
    /// Growth of the kernel's memory per socket; each connection has two sockets on this machine.
    pub(super) kernel_bytes_per_socket: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel_bytes_unknown: Option<&'static str>,
    /// Growth of the memory in use on the whole machine.
    pub(super) system_bytes: Option<u64>,
    pub(super) marks: Vec<Mark>,
    pub(super) heartbeats: Heartbeats,
    /// `None` without messages.
    pub(super) messages: Option<MessageCounts>,
    pub(super) broadcast: Broadcast,
    /// `None` on loopback.
    pub(super) link: Option<LinkResult>,
    /// `None` without churn.
    pub(super) churn: Option<ChurnResult>,
    pub(super) closed: BTreeMap<String, u64>,
    pub(super) connect_errors: BTreeMap<String, u64>,
    pub(super) verdict: &'static str,
    pub(super) reasons: Vec<String>,
    /// Samples over time, at most some thousand.
    #[serde(rename = "samples")]
    pub(super) series: Series,
    #[serde(skip)]
    pub(super) interrupted: bool,
}

/// Every socket stayed open, answered, and received each message once.
const HELD: &str = "HELD";
const FELL_SHORT: &str = "FELL SHORT";
const INTERRUPTED: &str = "INTERRUPTED";

impl Proof {
    /// Computes the result and the verdict with its reasons.
    pub(super) fn judge(mut measured: Measured, machine: &Machine, plan: &Plan) -> Proof {
        let series = std::mem::take(&mut measured.series);
        let m = &measured;
        let expected = m.count("broadcast", "expected");
        let broadcast = Broadcast {
            expected,
            received: m.count("broadcast", "received"),
            lost: m.count("broadcast", "lost"),
            duplicated: m.count("broadcast", "duplicated"),
            p50_ms: m.milliseconds("broadcast", "p50_ms"),
            p99_ms: m.milliseconds("broadcast", "p99_ms"),
            last_ms: m.milliseconds("broadcast", "last_ms"),
            to_last: m.spread("to_last"),
            first_to_last: m.spread("first_to_last"),
        };
        let messages = plan.messages.map(|_| MessageCounts {
            sent: m.count("echo", "sent"),
            received: m.count("echo", "received"),
            lost: m.count("echo", "lost"),
            duplicated: m.count("echo", "duplicated"),
            reordered: m.count("echo", "reordered"),
            corrupted: m.count("echo", "corrupted"),
            p50_ms: m.milliseconds("latency", "p50_ms"),
            p99_ms: m.milliseconds("latency", "p99_ms"),
            max_ms: m.milliseconds("latency", "max_ms"),
        });
        let closed = causes(m.load.as_ref(), "closed");
        let mut reasons = reasons(m, messages.as_ref(), &broadcast, &closed);
        let churn = ChurnResult::new(m.load.as_ref(), m.churn);
        reasons.extend(churn.iter().flat_map(ChurnResult::reasons));
        if plan.churn.is_some() && churn.is_none() {
            reasons.push("the load process reported no churn results".to_owned());
        }
        let verdict = match (m.interrupted, reasons.is_empty()) {
            (true, _) => INTERRUPTED,
            (false, true) => HELD,
            (false, false) => FELL_SHORT,
        };
        let kernel_bytes_per_socket =
            m.kernel_growth.filter(|_| m.open > 0).map(|bytes| bytes as f64 / (2 * m.open) as f64);
        let unknown = "the kernel's memory could not be read from /proc/meminfo";
        Proof {
            version: 1,
            standfast: env!("CARGO_PKG_VERSION"),
            command: output::command_line(),
            scenario: plan.scenario.clone(),
            machine: machine.clone(),
            connections: Connections {
                requested: m.requested,
                open: m.open,
                failed: m.failed,
                seconds: m.connect_seconds,
                per_second: ratio(m.requested.saturating_sub(m.failed) as f64, m.connect_seconds),
            },
            hold_seconds: m.hold_seconds,
            seconds: m.seconds,
            server: process(&m.server, m.open),
            client: process(&m.client, m.open),
            kernel_bytes_unknown: kernel_bytes_per_socket.is_none().then_some(unknown),
            kernel_bytes_per_socket,
            system_bytes: m.system_growth,
            marks: m.marks.clone(),
            heartbeats: Heartbeats {
                sent: m.count("heartbeats", "sent"),
                received: m.count("heartbeats", "received"),
                unanswered_sockets: m.unanswered.unwrap_or(0),
            },
            messages,
            broadcast,
            link: m.link.clone(),
            churn,
            closed,
            connect_errors: causes(m.load.as_ref(), "connect_errors"),
            verdict,
            reasons,
            series,
            interrupted: m.interrupted,
        }
    }

    pub(super) fn held(&self) -> bool {
        self.verdict == HELD
    }
}

fn reasons(
    m: &Measured,
    messages: Option<&MessageCounts>,
    broadcast: &Broadcast,
    closed: &BTreeMap<String, u64>,
) -> Vec<String> {
    let mut reasons = m.broken.clone();
    let mut add = |count: u64, text: String| {
        if count > 0 {
            reasons.push(text);
        }
    };
    if m.interrupted {
        add(1, "interrupted before the end".into());
    }
    add(m.failed, format!("{} connections failed to open", m.failed));
    let missing = m.requested.saturating_sub(m.open + m.failed);
    add(missing, format!("{missing} requested sockets are not open"));
    let lost: u64 = closed.values().sum();
    add(lost, format!("{lost} sockets were closed before the end: {}", list(closed)));
    let unanswered = m.unanswered.unwrap_or(0);
    add(unanswered, format!("{unanswered} sockets answered no heartbeat"));
    if m.unanswered.is_none() && messages.is_none() {
        add(1, "the sockets were not verified: there were no heartbeats and no messages".into());
    }
    if let Some(&MessageCounts { lost, duplicated, reordered, corrupted, .. }) = messages {
        add(lost, format!("{lost} messages were not answered"));
        add(duplicated, format!("{duplicated} answers were duplicated"));
        add(reordered, format!("{reordered} answers arrived out of order"));
        add(corrupted, format!("{corrupted} answers did not match a message that was sent"));
    }
    for (key, what) in [
        ("rejected", "subscriptions were rejected"),
        ("waiting", "sockets are open but not subscribed"),
        ("unexpected", "messages were not valid Action Cable or unexpected"),
    ] {
        let count = m.count("cable", key);
        add(count, format!("{count} {what}"));
    }
    add(broadcast.lost, format!("{} broadcast deliveries were lost", broadcast.lost));
    add(
        broadcast.duplicated,
        format!("{} broadcast deliveries were duplicated", broadcast.duplicated),
    );
    reasons
}

fn list(causes: &BTreeMap<String, u64>) -> String {
    causes.iter().map(|(cause, n)| format!("{cause} {n}")).collect::<Vec<_>>().join(", ")
}

fn causes(load: Option<&Value>, key: &str) -> BTreeMap<String, u64> {
    let object = load.and_then(|load| load[key].as_object());
    let pairs = object.into_iter().flatten();
    pairs.filter_map(|(cause, n)| Some((cause.clone(), n.as_u64().filter(|&n| n > 0)?))).collect()
}

fn process(samples: &Samples, open: u64) -> ProcessResult {
    let rss = |sample: Option<ProcessMemory>| sample.map_or(0, |memory| memory.rss_bytes);
    let held = rss(samples.held);
    ProcessResult {
        rss_bytes: held,
        rss_bytes_per_connection: ratio(
            held.saturating_sub(rss(samples.start)) as f64,
            open as f64,
        ),
        cpu_seconds: samples.end.or(samples.held).map_or(0.0, |memory| memory.cpu_seconds),
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::commands::prove::plan::Messages;

    fn measured() -> Measured {
        let mut m = Measured::new(10);
        m.open = 10;
        m.unanswered = Some(0);
        m.load = Some(json!({
            "heartbeats": { "sent": 10, "received": 10 },
            "broadcast": { "expected": 10, "received": 10, "lost": 0, "duplicated": 0 },
            "closed": { "gone": 0 },
            "connect_errors": {},
        }));
        m
    }

    fn plan(messages: Option<Messages>) -> Plan {
        let second = Duration::from_secs(1);
        Plan {
            scenario: None,
            about: None,
            connections: Some(10),
            connect: load::Connect::Windowed,
            hold: second,
            heartbeat: second,
            broadcasts: 1,
            messages,
            link: None,
            cable: false,
            stale_after: None,
            churn: None,
            rounds: Vec::new(),
            cells: Vec::new(),
            proxies: Vec::new(),
            serve: Vec::new(),
        }
    }

    fn verdict(m: Measured) -> (&'static str, String) {
        let proof = Proof::judge(m, &Machine::read(), &plan(None));
        (proof.verdict, proof.reasons.join("; "))
    }

    #[test]
    fn any_failure_prevents_held() {
        assert_eq!(verdict(measured()), (HELD, String::new()));
        type Spoil = fn(&mut Measured);
        let spoilt: [(Spoil, &str); 8] = [
            (|m| m.load.as_mut().unwrap()["cable"] = json!({ "waiting": 6 }), "6 sockets are open"),
            (|m| m.failed = 1, "1 connections failed"),
            (|m| m.open = 9, "1 requested sockets"),
            (|m| m.unanswered = Some(2), "2 sockets answered no heartbeat"),
            (|m| m.unanswered = None, "no heartbeats and no messages"),
            (
                |m| m.load.as_mut().unwrap()["broadcast"]["lost"] = 3.into(),
                "3 broadcast deliveries",
            ),
            (|m| m.load.as_mut().unwrap()["broadcast"]["duplicated"] = 4.into(), "were duplicated"),
            (|m| m.load.as_mut().unwrap()["closed"]["gone"] = 5.into(), "gone 5"),
        ];
        for (spoil, why) in spoilt {
            let mut m = measured();
            spoil(&mut m);
            let (verdict, reasons) = verdict(m);
            assert_eq!(verdict, FELL_SHORT, "{why}");
            assert!(reasons.contains(why), "{reasons}");
        }
        let mut m = measured();
        m.interrupted = true;
        assert_eq!(verdict(m).0, INTERRUPTED);
    }

    #[test]
    fn every_message_must_be_echoed() {
        let every = Duration::from_millis(100);
        let plan = plan(Some(Messages { every, size: 20 }));
        for (lost, verdict) in [(0, HELD), (1, FELL_SHORT)] {
            let mut m = measured();
            m.unanswered = None;
            m.load.as_mut().unwrap()["echo"] =
                json!({ "sent": 100, "received": 100, "lost": lost });
            let proof = Proof::judge(m, &Machine::read(), &plan);
            assert_eq!(proof.verdict, verdict, "{:?}", proof.reasons);
            assert_eq!(proof.messages.unwrap().sent, 100);
        }
    }
}
