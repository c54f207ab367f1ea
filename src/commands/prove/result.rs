//! The measurements of a proof, the verdict, and both as JSON (`docs/protocol/prove-json.md`).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use capacity::limits::KERNEL_BYTES_PLAUSIBLE;
use capacity::{Count, Decimal, Machine};
use serde::Serialize;

use super::churn::{ChurnMemory, ChurnResult};
use super::link::LinkResult;
use super::plan::Plan;
use crate::commands::fleet::servers::RemoteServer;
use crate::commands::fleet::whole::Fleet;
use crate::output;
use crate::report::Timings;
use load::{BroadcastSummary, Latency, Outcome, SampleSeries, Usage};

/// Server and client at one moment; `None` where a process could not be read.
pub(super) type ProcessFigures = (Option<Usage>, Option<Usage>);

/// One process over the proof.
#[derive(Default)]
pub(super) struct Samples {
    pub(super) start: Option<Usage>,
    /// When the hold began, and at its end.
    pub(super) hold_began: Option<Usage>,
    pub(super) held: Option<Usage>,
    pub(super) end: Option<Usage>,
}

/// All measurements before they are judged.
pub(super) struct Measured {
    pub(super) requested: u64,
    pub(super) open: u64,
    pub(super) failed: u64,
    /// Sockets that answered no heartbeat; `None` without heartbeats.
    pub(super) unanswered: Option<u64>,
    /// Sockets that no heartbeat was due for yet; `None` without heartbeats.
    pub(super) not_due: Option<u64>,
    /// From each target to the last connection that opened, of all targets.
    pub(super) connect_seconds: f64,
    pub(super) hold_seconds: f64,
    pub(super) seconds: f64,
    pub(super) server: Samples,
    pub(super) client: Samples,
    /// Growth of the kernel's own memory while the sockets opened, in bytes, and how many had opened.
    pub(super) kernel_ramp: Option<(i64, u64)>,
    pub(super) system_growth: Option<u64>,
    pub(super) marks: Vec<Mark>,
    pub(super) publish_seconds: Vec<f64>,
    pub(super) link: Option<LinkResult>,
    pub(super) churn: Option<ChurnMemory>,
    pub(super) series: SampleSeries,
    /// The outcome of the load process, or of all agents together.
    pub(super) load: Option<Outcome>,
    /// `None` without agents.
    pub(super) fleet: Option<Fleet>,
    pub(super) interrupted: bool,
    /// Failures of the proof itself.
    pub(super) broken: Vec<String>,
    /// Those of agents, at the end of the hold.
    pub(super) servers: Vec<RemoteServer>,
}

impl Measured {
    /// Connections that opened, without replacements; those open at the end if no more is known.
    fn opened(&self) -> u64 {
        let connections = self.load.as_ref().map(|load| &load.connections);
        let opened = connections.and_then(|of| Some(of.opened?.saturating_sub(of.replaced?)));
        opened.unwrap_or(self.open)
    }

    pub(super) fn new(requested: u64) -> Self {
        Measured {
            requested,
            open: 0,
            failed: 0,
            unanswered: None,
            not_due: None,
            connect_seconds: 0.0,
            hold_seconds: 0.0,
            seconds: 0.0,
            server: Samples::default(),
            client: Samples::default(),
            kernel_ramp: None,
            system_growth: None,
            marks: Vec::new(),
            publish_seconds: Vec::new(),
            link: None,
            churn: None,
            series: SampleSeries::new(),
            load: None,
            fleet: None,
            interrupted: false,
            broken: Vec::new(),
            servers: Vec::new(),
        }
    }
}

/// Memory at a number of open sockets.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Mark {
    pub(super) connections: u64,
    /// `None` if unknown.
    pub(super) server_rss_bytes: Option<u64>,
    pub(super) client_rss_bytes: Option<u64>,
    /// Growth of the kernel's own memory since before the first socket, for both ends of each; `None` if
    /// it is unknown, or negative because other programs freed more.
    pub(super) kernel_bytes: Option<u64>,
}

impl Mark {
    /// Of the server, the client and the kernel.
    pub(super) fn memory(&self) -> [Option<u64>; 3] {
        [self.server_rss_bytes, self.client_rss_bytes, self.kernel_bytes]
    }
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

/// Each is `None` if a process could not be read.
#[derive(Serialize)]
pub(super) struct ProcessResult {
    /// Whole process, at the end of the hold.
    pub(super) rss_bytes: Option<u64>,
    /// Growth since the process was ready, divided by the open sockets.
    pub(super) rss_bytes_per_connection: Option<f64>,
    /// Over the whole proof, without closing.
    pub(super) cpu_seconds: Option<f64>,
    /// Over `hold_seconds`.
    pub(super) hold_cpu_seconds: Option<f64>,
}

/// A server of an agent. What is unknown is `None`.
#[derive(Serialize)]
pub(super) struct ServerResult {
    pub(super) name: String,
    /// The name of its machine; empty: unknown.
    pub(super) host: String,
    pub(super) address: Option<SocketAddr>,
    /// That it had at the end of the hold, by its own count.
    pub(super) connections: Option<u64>,
    pub(super) rss_bytes: Option<u64>,
    /// Growth since it was ready, divided by its connections.
    pub(super) rss_bytes_per_connection: Option<f64>,
    /// Until the end of the hold.
    pub(super) cpu_seconds: Option<f64>,
}

impl ServerResult {
    fn of(server: &RemoteServer) -> ServerResult {
        let RemoteServer { name, host, address, start, usage, open, .. } = server.clone();
        let growth =
            usage.zip(start).map(|(now, start)| now.rss_bytes.saturating_sub(start.rss_bytes));
        let connections = open.filter(|open| *open > 0);
        ServerResult {
            name,
            host,
            address,
            connections: open,
            rss_bytes: usage.map(|usage| usage.rss_bytes),
            rss_bytes_per_connection: growth
                .zip(connections)
                .map(|(bytes, connections)| bytes as f64 / connections as f64),
            cpu_seconds: usage.map(|usage| usage.cpu_seconds),
        }
    }
}

#[derive(Serialize)]
pub(super) struct Heartbeats {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Sockets that never answered one; `None` without heartbeats.
    pub(super) unanswered_sockets: Option<u64>,
    /// Sockets that none was due for yet; `None` without heartbeats.
    pub(super) not_due_sockets: Option<u64>,
}

/// Echo messages over all sockets.
#[derive(Serialize)]
pub(super) struct MessageCounts {
    pub(super) sent: u64,
    /// Requested and never sent.
    pub(super) unsent: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) corrupted: u64,
    /// From the time the message was due.
    pub(super) p50_ms: Option<f64>,
    pub(super) p95_ms: Option<f64>,
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
    pub(super) p95_ms: Option<f64>,
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
    /// Those of agents; empty without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) servers: Vec<ServerResult>,
    /// Growth of the kernel's memory per socket while they opened; each connection has two sockets on
    /// this machine. `None` if it is unknown or implausible.
    pub(super) kernel_bytes_per_socket: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel_bytes_unknown: Option<&'static str>,
    /// What was measured, if it cannot be of the sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel_bytes_implausible: Option<f64>,
    /// Growth of the memory in use on the whole machine.
    pub(super) system_bytes: Option<u64>,
    pub(super) marks: Vec<Mark>,
    /// `None` if the load process reported nothing.
    pub(super) heartbeats: Option<Heartbeats>,
    /// `None` without messages.
    pub(super) messages: Option<MessageCounts>,
    /// `None` without a broadcast.
    pub(super) broadcast: Option<Broadcast>,
    /// `None` on loopback.
    pub(super) link: Option<LinkResult>,
    /// `None` without churn.
    pub(super) churn: Option<ChurnResult>,
    /// `None` without agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fleet: Option<Fleet>,
    pub(super) closed: BTreeMap<String, u64>,
    pub(super) connect_errors: BTreeMap<String, u64>,
    pub(super) verdict: &'static str,
    pub(super) reasons: Vec<String>,
    /// Samples over time, at most some thousand.
    #[serde(rename = "samples")]
    pub(super) series: SampleSeries,
    /// For the report.
    #[serde(skip)]
    pub(super) timings: Timings,
    #[serde(skip)]
    pub(super) interrupted: bool,
}

/// Lateness of the last percent of messages from which the requested rate counts as missed: in seconds,
/// and as a share of the hold if that is more.
const LATE_SECONDS: f64 = 1.0;
const LATE_SHARE: f64 = 0.02;
/// Every socket stayed open, answered, and received each message once.
const HELD: &str = "HELD";
const FELL_SHORT: &str = "FELL SHORT";
const INTERRUPTED: &str = "INTERRUPTED";
/// The sockets of an agent are missing, whatever else is known.
const INCOMPLETE: &str = "INCOMPLETE";

impl Proof {
    /// Computes the result and the verdict with its reasons.
    pub(super) fn judge(mut measured: Measured, machine: &Machine, plan: &Plan) -> Proof {
        let series = std::mem::take(&mut measured.series);
        let fleet = measured.fleet.take();
        let missing = fleet.as_ref().map_or(&[][..], |fleet| fleet.missing.as_slice());
        let m = &measured;
        let load = m.load.as_ref();
        let broadcast = load.and_then(|load| load.broadcast.as_ref()).map(Broadcast::of);
        let messages = plan.messages.and(load).and_then(MessageCounts::of);
        let closed = load.map(|load| without_zeros(&load.closed)).unwrap_or_default();
        let churn = load.and_then(|load| ChurnResult::new(load, m.churn));
        let has_all = missing.is_empty();
        let of = (messages.as_ref(), broadcast.as_ref());
        let mut reasons = reasons(m, plan, has_all, of, &closed);
        reasons.extend(churn.iter().flat_map(ChurnResult::reasons));
        reasons.splice(0..0, missing.iter().map(|what| format!("INCOMPLETE: {what}")));
        let verdict = match (m.interrupted, reasons.is_empty()) {
            (true, _) => INTERRUPTED,
            _ if !missing.is_empty() => INCOMPLETE,
            (false, true) => HELD,
            (false, false) => FELL_SHORT,
        };
        let opened = m.kernel_ramp.filter(|(_, connections)| *connections > 0);
        let kernel = opened.map(|(bytes, connections)| bytes as f64 / (2 * connections) as f64);
        let is_plausible = |bytes: &f64| KERNEL_BYTES_PLAUSIBLE.contains(bytes);
        let kernel_bytes_per_socket = kernel.filter(is_plausible);
        let kernel_bytes_implausible = kernel.filter(|bytes| !is_plausible(bytes));
        let kernel_bytes_unknown = match (kernel, m.kernel_ramp) {
            (Some(bytes), _) if is_plausible(&bytes) => None,
            (Some(_), _) => Some("other programs allocated or freed kernel memory meanwhile"),
            (None, Some(_)) => Some("no socket was opened"),
            (None, None) if plan.ends_here() == 0 => {
                Some("the servers and the agents may be on other machines")
            }
            (None, None) if plan.ends_here() < 2 => Some("the agents may be on other machines"),
            (None, None) => Some("the kernel's memory could not be read from /proc/meminfo"),
        };
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
                per_second: ratio(m.opened() as f64, m.connect_seconds),
            },
            hold_seconds: m.hold_seconds,
            seconds: m.seconds,
            server: process(&m.server, m.open),
            client: process(&m.client, m.open),
            servers: m.servers.iter().map(ServerResult::of).collect(),
            kernel_bytes_per_socket,
            kernel_bytes_unknown,
            kernel_bytes_implausible,
            system_bytes: m.system_growth,
            marks: m.marks.clone(),
            heartbeats: load.and_then(|load| load.heartbeats.as_ref()).map(|of| Heartbeats {
                sent: of.sent,
                received: of.received,
                unanswered_sockets: m.unanswered,
                not_due_sockets: m.not_due,
            }),
            messages,
            broadcast,
            link: m.link.clone(),
            churn,
            fleet,
            closed,
            connect_errors: load
                .map(|load| without_zeros(&load.connect_errors))
                .unwrap_or_default(),
            verdict,
            reasons,
            series,
            timings: load.map(Timings::of).unwrap_or_default(),
            interrupted: m.interrupted,
        }
    }

    pub(super) fn held(&self) -> bool {
        self.verdict == HELD
    }
}

fn reasons(
    m: &Measured,
    plan: &Plan,
    has_all: bool,
    (messages, broadcast): (Option<&MessageCounts>, Option<&Broadcast>),
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
    if m.load.is_none() && has_all {
        add(1, "the load process reported no outcome".into());
    }
    add(m.failed, format!("{} connections failed to open", Count(m.failed)));
    let missing = m.requested.saturating_sub(m.open + m.failed);
    // Of a proof that stopped early, by Ctrl-C or as an agent was lost, nobody knows what would have opened and answered.
    let is_whole = !m.interrupted && has_all;
    let missing = if is_whole { missing } else { 0 };
    add(missing, format!("{} requested sockets are not open", Count(missing)));
    let lost: u64 = closed.values().sum();
    let named = list(closed);
    add(lost, format!("{} sockets were closed before the end: {named}", Count(lost)));
    let unanswered = m.unanswered.filter(|_| is_whole).unwrap_or(0);
    add(unanswered, format!("{} sockets answered no heartbeat", Count(unanswered)));
    if !is_whole {
        return reasons;
    }
    if m.unanswered.is_none() && messages.is_none() {
        add(1, "the sockets were not verified: there were no heartbeats and no messages".into());
    }
    match (messages, plan.messages) {
        (None, Some(_)) => add(1, "the load process reported no messages".into()),
        (Some(messages), Some(asked)) => {
            let MessageCounts { unsent, lost, duplicated, reordered, corrupted, .. } = *messages;
            add(unsent, format!("{} messages were never sent", Count(unsent)));
            add(lost, format!("{} messages were not answered", Count(lost)));
            add(duplicated, format!("{} answers were duplicated", Count(duplicated)));
            add(reordered, format!("{} answers arrived out of order", Count(reordered)));
            add(
                corrupted,
                format!("{} answers did not match a message that was sent", Count(corrupted)),
            );
            let hold = plan.hold.as_secs_f64();
            match m.load.as_ref().and_then(send_lag) {
                None => add(1, "it is unknown whether messages were sent on time".into()),
                Some(lag) if lag > LATE_SECONDS.max(hold * LATE_SHARE) => {
                    let requested = asked.rate(m.open) as f64;
                    let reached = requested * hold / (hold + lag);
                    add(
                        1,
                        format!(
                            "sent {} of {} requested messages per second, 1 % of them more than \
                             {lag:.1} s late",
                            Decimal(reached, 0),
                            Decimal(requested, 0),
                        ),
                    );
                }
                Some(_) => {}
            }
        }
        _ => {}
    }
    for (count, what) in m.load.iter().filter_map(|load| load.cable.as_ref()).flat_map(|cable| {
        [
            (cable.rejected, "subscriptions were rejected"),
            (cable.waiting, "sockets are open but not subscribed"),
            (cable.unexpected, "messages were not valid Action Cable or unexpected"),
        ]
    }) {
        add(count, format!("{} {what}", Count(count)));
    }
    if plan.broadcasts > 0 && broadcast.is_none() {
        add(1, "the load process reported no broadcast".into());
    }
    if let Some(broadcast) = broadcast {
        add(broadcast.lost, format!("{} broadcast deliveries were lost", Count(broadcast.lost)));
        add(
            broadcast.duplicated,
            format!("{} broadcast deliveries were duplicated", Count(broadcast.duplicated)),
        );
    }
    if plan.churn.is_some() && m.load.as_ref().is_none_or(|load| load.churn.is_none()) {
        add(1, "the load process reported no churn results".into());
    }
    reasons
}

impl MessageCounts {
    /// The messages of an outcome.
    fn of(load: &Outcome) -> Option<MessageCounts> {
        let echo = load.echo.as_ref()?;
        Some(MessageCounts {
            sent: echo.sent,
            unsent: echo.unsent,
            received: echo.received,
            lost: echo.lost,
            duplicated: echo.duplicated,
            reordered: echo.reordered,
            corrupted: echo.corrupted,
            p50_ms: load.latency.map(|latency| latency.p50_ms),
            p95_ms: load.latency.map(|latency| latency.p95_ms),
            p99_ms: load.latency.map(|latency| latency.p99_ms),
            max_ms: load.latency.map(|latency| latency.max_ms),
        })
    }
}

impl Broadcast {
    fn of(broadcast: &BroadcastSummary) -> Broadcast {
        let spread = |latency: Option<Latency>| {
            latency.map(|latency| Spread { p50_ms: latency.p50_ms, max_ms: latency.max_ms })
        };
        Broadcast {
            expected: broadcast.expected,
            received: broadcast.received,
            lost: broadcast.lost,
            duplicated: broadcast.duplicated,
            p50_ms: broadcast.p50_ms,
            p95_ms: broadcast.latency.map(|latency| latency.p95_ms),
            p99_ms: broadcast.p99_ms,
            last_ms: broadcast.last_ms,
            to_last: spread(broadcast.times.to_last),
            first_to_last: spread(broadcast.times.first_to_last),
        }
    }
}

/// Returns how late the last percent of messages was sent, in seconds.
fn send_lag(load: &Outcome) -> Option<f64> {
    let (due, sent) = (load.latency?, load.service_time?);
    Some((due.p99_ms - sent.p99_ms).max(0.0) / 1e3)
}

fn list(causes: &BTreeMap<String, u64>) -> String {
    causes.iter().map(|(cause, n)| format!("{cause} {}", Count(*n))).collect::<Vec<_>>().join(", ")
}

fn without_zeros(causes: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let some = causes.iter().filter(|(_, count)| **count > 0);
    some.map(|(cause, count)| (cause.clone(), *count)).collect()
}

fn process(samples: &Samples, open: u64) -> ProcessResult {
    let growth = samples.held.zip(samples.start);
    let growth = growth.map(|(held, start)| held.rss_bytes.saturating_sub(start.rss_bytes));
    ProcessResult {
        rss_bytes: samples.held.map(|memory| memory.rss_bytes),
        rss_bytes_per_connection: growth.map(|bytes| ratio(bytes as f64, open as f64)),
        cpu_seconds: samples.end.or(samples.held).map(|memory| memory.cpu_seconds),
        hold_cpu_seconds: samples
            .held
            .zip(samples.hold_began)
            .map(|(held, began)| held.cpu_seconds - began.cpu_seconds),
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests;
