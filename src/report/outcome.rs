//! The report of [`Outcome`]s: of a run, or of the rounds of a scenario.

use std::collections::BTreeMap;

use capacity::{Count, Machine, Milliseconds};
use load::scenario::StepSummary;
use load::{
    BroadcastSummary, CableSummary, Latency, MessageSummary, Outcome, RequestCounts, SampleSeries,
    ThresholdResult, Verdict,
};

use super::{Bars, Report, Rows, Table, Tile, Timings};
use crate::output;

impl<'a> Report<'a> {
    /// The report of a run, or of several rounds: then a table compares them, and the rest shows the
    /// first round that is not as expected, else the last.
    pub(crate) fn of_outcomes(
        outcomes: &'a [Outcome],
        series: &'a SampleSeries,
        machine: &'a Machine,
    ) -> Report<'a> {
        let worst = outcomes.iter().position(|outcome| !Verdict::of(outcome).is_good());
        let at = worst.unwrap_or(outcomes.len().saturating_sub(1));
        let shown = outcomes.get(at);
        let why = if worst.is_some() { "the first that is not as expected" } else { "the last" };
        let scope = format!("Figures of round {} of {}, {why}", at + 1, outcomes.len());
        let mut tables = Vec::new();
        if outcomes.len() > 1 {
            tables.push(rounds(outcomes));
        }
        if let Some(outcome) = shown {
            let own = [thresholds(&outcome.thresholds), steps(outcome), checks(outcome)];
            tables.extend(own.into_iter().flatten());
        }
        Report {
            title: shown.map(title).unwrap_or_default(),
            verdict: shown.map_or(("NOTHING RAN", false), verdict),
            result: result(outcomes),
            reasons: shown.map_or(&[], |outcome| &outcome.reasons),
            scope: (outcomes.len() > 1).then_some(scope),
            tiles: shown.map(tiles).unwrap_or_default(),
            timings: shown.map(Timings::of).unwrap_or_default(),
            figures: shown.map(figures).unwrap_or_default(),
            tables,
            timeline: None,
            bars: compared(outcomes).into_iter().chain(shown.and_then(statuses)).collect(),
            configuration: shown.map(|outcome| outcome.config.settings.clone()).unwrap_or_default(),
            series,
            machine,
            command: output::command_line(),
        }
    }
}

fn title(outcome: &Outcome) -> String {
    let config = &outcome.config;
    let about = config.about.as_ref().map(|about| format!(": {about}")).unwrap_or_default();
    match &config.scenario {
        Some(scenario) => format!("{scenario}{about}"),
        None => format!("Load on {}", config.target.join(", ")),
    }
}

/// Returns the verdict and whether it is a success.
fn verdict(outcome: &Outcome) -> (&'static str, bool) {
    let verdict = Verdict::of(outcome);
    let text = match verdict {
        Verdict::Interrupted => "INTERRUPTED",
        Verdict::ThresholdMissed => "THRESHOLD MISSED",
        Verdict::FellShort => "FELL SHORT",
        Verdict::ThresholdsMet => "THRESHOLDS MET",
        Verdict::Held if outcome.requests.is_some() => "ALL ANSWERED",
        Verdict::Held => "HELD",
    };
    (text, verdict.is_good())
}

/// Returns the result in one sentence.
fn result(outcomes: &[Outcome]) -> String {
    let requests: Vec<RequestCounts> = outcomes.iter().filter_map(|one| one.requests).collect();
    if let [outcome] = outcomes
        && requests.is_empty()
    {
        let c = &outcome.connections;
        let open = Count(c.open.unwrap_or(0));
        return format!("{open} of {} WebSockets open at the end", Count(c.requested));
    }
    let all = |pick: fn(&RequestCounts) -> u64| Count(requests.iter().map(pick).sum());
    format!("{} of {} requests answered", all(|of| of.answered), all(|of| of.sent))
}

fn figures(outcome: &Outcome) -> Rows {
    match &outcome.requests {
        Some(requests) => of_requests(outcome, requests),
        None => of_sockets(outcome),
    }
}

fn count(count: Option<u64>) -> String {
    count.map_or("unknown".to_owned(), |count| Count(count).to_string())
}

/// Returns the table of thresholds, if there are any.
fn thresholds(results: &[ThresholdResult]) -> Option<Table> {
    let row = |result: &ThresholdResult| {
        let [value, verdict] = result.texts();
        vec![result.threshold.clone(), value, verdict]
    };
    (!results.is_empty()).then(|| Table {
        title: "Thresholds",
        heads: vec!["condition", "measured", ""],
        rows: results.iter().map(row).collect(),
        texts: &[2],
    })
}

fn of_sockets(outcome: &Outcome) -> Rows {
    let mut rows = Vec::new();
    let mut add = |name: &str, value: String| rows.push((name.to_owned(), value));
    let c = &outcome.connections;
    let (seconds, rate) = (c.seconds.unwrap_or(0.0), c.per_second.unwrap_or(0.0));
    add("opened in", format!("{seconds:.2} s, {} per second", Count(rate as u64)));
    add("failed to open", causes(&outcome.connect_errors));
    add("closed before the end", causes(&outcome.closed));
    if let Some(replaced) = c.replaced.filter(|replaced| *replaced > 0) {
        add("replaced after their messages", Count(replaced).to_string());
    }
    if let Some(h) = outcome.heartbeats.as_ref().filter(|h| h.sent > 0) {
        add("heartbeats", format!("{} of {} answered", Count(h.received), Count(h.sent)));
    }
    if let Some(cable) = &outcome.cable {
        subscribed(cable, &mut add);
    }
    if let Some(echo) = &outcome.echo {
        add("messages", format!("{} sent, {} received", Count(echo.sent), Count(echo.received)));
        if echo.unsent > 0 {
            add("not sent", Count(echo.unsent).to_string());
        }
        add("lost, duplicated", format!("{}, {}", Count(echo.lost), Count(echo.duplicated)));
        let rest = [echo.reordered, echo.corrupted, echo.late].map(|n| Count(n).to_string());
        add("reordered, corrupted, late", rest.join(", "));
    }
    if let Some(broadcast) = &outcome.broadcast {
        fan_out(broadcast, &mut add);
    }
    generated(outcome, add);
    rows
}

/// Returns the figures of the generator and of the watched process.
fn generated(outcome: &Outcome, mut add: impl FnMut(&str, String)) {
    if let Some(generator) = &outcome.generator {
        add("generator", generator.figures());
        if let Some(why) = generator.saturated() {
            add("generator or machine saturated", why.to_owned());
        }
    }
    if let Some(watched) = &outcome.watched {
        let [memory, cpu, descriptors] = watched.figures();
        add("watched process, memory", memory);
        add("watched process, CPU", cpu);
        add("watched process, descriptors", descriptors);
    }
}

fn subscribed(cable: &CableSummary, mut add: impl FnMut(&str, String)) {
    let CableSummary { subscribed, rejected, waiting, repeated, stale, .. } = cable;
    let waits = rejected + waiting;
    add("subscribed, not subscribed", format!("{}, {}", Count(*subscribed), Count(waits)));
    add("repeated subscribes", Count(*repeated).to_string());
    add("stale, without pings", Count(*stale).to_string());
}

fn fan_out(broadcast: &BroadcastSummary, mut add: impl FnMut(&str, String)) {
    let b = broadcast;
    add("published", format!("{} to {} receivers", Count(b.published), Count(b.receivers)));
    add("deliveries", format!("{} of {}", Count(b.received), Count(b.expected)));
    add("lost, duplicated", format!("{}, {}", Count(b.lost), Count(b.duplicated)));
    let rest = [b.reordered, b.corrupted, b.late].map(|n| Count(n).to_string());
    add("reordered, corrupted, late", rest.join(", "));
    if let Some(fanout) = &b.fanout {
        add(
            "rate reached, requested",
            format!("{:.1}, {:.1} per second", fanout.reached_rate, fanout.rate),
        );
    }
}

fn causes(by_cause: &BTreeMap<String, u64>) -> String {
    let all: u64 = by_cause.values().sum();
    if all == 0 {
        return "0".to_owned();
    }
    let named: Vec<_> =
        by_cause.iter().map(|(cause, count)| format!("{cause} {}", Count(*count))).collect();
    format!("{} ({})", Count(all), named.join(", "))
}

fn of_requests(outcome: &Outcome, of: &RequestCounts) -> Rows {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("requests", format!("{} ok, {} failed", Count(of.ok), Count(of.failed)));
    row("due but not sent", Count(of.unsent).to_string());
    for (kind, text) in &outcome.call_errors {
        row(&format!("first {}", kind.replace('_', " ")), text.clone());
    }
    if let Some(repeated) = of.repeated.filter(|count| *count > 0) {
        row("sent again, as not processed", Count(repeated).to_string());
    }
    for (code, of) in &outcome.goaways {
        let debug = of.debug.as_ref().map_or_else(String::new, |debug| format!(": {debug}"));
        row(&format!("GOAWAY {code}"), format!("{}{debug}", Count(of.count)));
    }
    if let Some(messages) = &outcome.messages {
        of_messages(messages, &mut row);
    }
    let (per_second, seconds) = (outcome.per_second.unwrap_or(0.0), outcome.seconds.unwrap_or(0.0));
    let rate = match outcome.all_calls_lasted() {
        true => "answers at the end".to_owned(),
        false => format!("{} over {seconds:.2} s", self::per_second(per_second)),
    };
    row("answer rate", rate);
    let c = &outcome.connections;
    row("connections", format!("{} opened, {} failed", count(c.opened), Count(c.failed)));
    row("maximum in TIME_WAIT on this machine", count(c.time_wait_most));
    row("body bytes", count(outcome.body_bytes));
    if let Some(decoded) = outcome.decoded_bytes.filter(|decoded| *decoded > 0) {
        row("body bytes after decoding", Count(decoded).to_string());
    }
    generated(outcome, row);
    rows
}

/// Adds the figures of messages of gRPC streams. What was not matched is unknown.
fn of_messages(of: &MessageSummary, mut add: impl FnMut(&str, String)) {
    add("messages", format!("{} sent, {} received", Count(of.sent), Count(of.received)));
    if let Some((sent, received)) = of.sent_per_second.zip(of.received_per_second) {
        let [sent, received] = [sent, received].map(per_second);
        add("messages sent, received per second", format!("{sent}, {received}"));
    }
    if of.unsent > 0 {
        add("messages due and not sent", Count(of.unsent).to_string());
    }
    if of.matched_by.is_none() {
        return add(
            "messages lost, duplicated",
            "not checked: nothing to match them by".to_owned(),
        );
    }
    let counts = |all: &[Option<u64>]| all.iter().map(|n| count(*n)).collect::<Vec<_>>().join(", ");
    add("messages answered", count(of.answered));
    add("messages lost, duplicated", counts(&[of.lost, of.duplicated]));
    let rest = counts(&[of.reordered, of.corrupted, of.late]);
    add("messages reordered, corrupted, late", rest);
    for (count, what) in [
        (of.unknown, "messages in flight at the end"),
        (of.stale, "messages far behind the newest of their call"),
        (of.unexpected, "messages that answered none of their call"),
    ] {
        if let Some(count) = count.filter(|count| *count > 0) {
            add(what, Count(count).to_string());
        }
    }
}

/// Returns answers by status, and failures without one by kind.
fn statuses(outcome: &Outcome) -> Option<Bars> {
    let requests = outcome.requests?;
    let all = (requests.ok + requests.failed).max(1);
    let bar = |name: String, count: u64, is_bad| {
        let share = 100.0 * count as f64 / all as f64;
        (name, count as f64, format!("{} · {share:.2}%", Count(count)), is_bad)
    };
    let statuses =
        outcome.status.iter().map(|(&status, &n)| bar(status.to_string(), n, status >= 400));
    // Wrong statuses are among the answers.
    let errors = outcome.errors.iter().filter(|(kind, _)| *kind != "status");
    let errors = errors.map(|(kind, &n)| bar(kind.replace('_', " "), n, true));
    Bars::new("Answers and failures", statuses.chain(errors))
}

/// Returns the rounds next to each other: their rates, and their latencies.
fn compared(outcomes: &[Outcome]) -> Vec<Bars> {
    if outcomes.len() < 2 {
        return Vec::new();
    }
    let named = |outcome: &Outcome| {
        let kind = if outcome.config.keep_alive == Some(true) { "" } else { ", new connections" };
        format!("{} users{kind}", count(outcome.config.users))
    };
    let rates = outcomes.iter().filter_map(|outcome| {
        let rate = outcome.per_second?;
        Some((named(outcome), rate, format!("{}/s", Count(rate.round() as u64)), false))
    });
    let of = |pick: fn(&Latency) -> f64| {
        outcomes.iter().filter_map(move |outcome| {
            let ms = pick(outcome.latency.as_ref()?);
            Some((named(outcome), ms, Milliseconds(ms).to_string(), false))
        })
    };
    let p50 = Bars::new("p50 by round", of(|latency| latency.p50_ms));
    let p99 = Bars::new("p99 by round", of(|latency| latency.p99_ms));
    [Bars::new("Answers per second by round", rates), p50, p99].into_iter().flatten().collect()
}

/// Returns the figures to look at first.
fn tiles(outcome: &Outcome) -> Vec<Tile> {
    let mut tiles = Vec::new();
    let c = &outcome.connections;
    if let Some(of) = &outcome.requests {
        let over = outcome.seconds.map(|seconds| format!("over {seconds:.1} s"));
        let over = over.unwrap_or_default();
        let shown = |rate: Option<f64>| rate.map_or("unknown".to_owned(), per_second);
        if !outcome.all_calls_lasted() {
            tiles.push(Tile::new("Answer rate", shown(outcome.per_second), over.clone()));
        }
        if let Some(messages) = &outcome.messages {
            let rate = shown(messages.received_per_second);
            tiles.push(Tile::new("Messages received", rate, over));
            if let Some(lost) = messages.lost {
                let of = format!("of {} messages", Count(messages.sent));
                tiles.push(Tile::bad("Lost", lost, of));
            }
        }
        let all = of.ok + of.failed;
        tiles.push(Tile::new("Requests", Count(all).to_string(), ""));
        let share = 100.0 * of.failed as f64 / all.max(1) as f64;
        tiles.push(Tile::bad("Failed", of.failed, format!("{share:.2}% of all")));
    } else {
        let open = Count(c.open.unwrap_or(0)).to_string();
        tiles.push(Tile::new("Open at the end", open, format!("of {}", Count(c.requested))));
        if let Some(rate) = c.per_second {
            let over = c.seconds.map(|seconds| format!("in {seconds:.2} s"));
            tiles.push(Tile::new("Connect rate", per_second(rate), over.unwrap_or_default()));
        }
        let ended: u64 = outcome.closed.values().sum();
        tiles.push(Tile::bad("Failed or closed", c.failed + ended, "connections"));
        if let Some(echo) = &outcome.echo {
            tiles.push(Tile::bad("Lost", echo.lost, format!("of {} messages", Count(echo.sent))));
        }
        if let Some(b) = &outcome.broadcast {
            tiles.push(Tile::bad("Lost", b.lost, format!("of {} deliveries", Count(b.expected))));
        }
    }
    let broadcast = outcome.broadcast.as_ref().and_then(|broadcast| broadcast.latency);
    let messages = outcome.messages.as_ref().and_then(|messages| messages.latency);
    let calls = outcome.latency.filter(|_| !outcome.all_calls_lasted());
    if let Some(l) = calls.or(messages).or(broadcast) {
        tiles.extend(Tile::percentiles(l.p50_ms, l.p99_ms, l.max_ms));
    }
    tiles
}

fn per_second(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}/s") } else { format!("{}/s", Count(rate.round() as u64)) }
}

fn rounds(outcomes: &[Outcome]) -> Table {
    let row = |outcome: &Outcome| {
        let of = outcome.requests.unwrap_or_default();
        let beside = outcome
            .config
            .beside
            .map_or("-".to_owned(), |beside| Count(beside.round() as u64).to_string());
        let [p50, p99] = percentiles(outcome.latency.as_ref());
        let kind = if outcome.config.keep_alive == Some(true) { "kept" } else { "new each" };
        vec![
            count(outcome.config.users),
            kind.to_owned(),
            Count(of.ok + of.failed).to_string(),
            Count(of.failed).to_string(),
            Count(outcome.per_second.unwrap_or(0.0).round() as u64).to_string(),
            beside,
            p50,
            p99,
        ]
    };
    Table {
        title: "Rounds",
        heads: vec![
            "users",
            "connections",
            "requests",
            "failed",
            "per second",
            "beside",
            "p50",
            "p99",
        ],
        rows: outcomes.iter().map(row).collect(),
        texts: &[1],
    }
}

fn steps(outcome: &Outcome) -> Option<Table> {
    let row = |flow: &str, step: &StepSummary| {
        let [p50, p99] = percentiles(step.latency.as_ref());
        let errors = step.errors.iter().map(|(kind, n)| format!("{kind} {n}"));
        vec![
            format!("{flow}: {}", step.name),
            Count(step.requests).to_string(),
            Count(step.failed).to_string(),
            errors.collect::<Vec<_>>().join(", "),
            Count(step.redirects).to_string(),
            p50,
            p99,
        ]
    };
    let each = outcome.flows.iter().flat_map(|flow| flow.steps.iter().map(|s| row(&flow.name, s)));
    let heads = vec!["", "requests", "failed", "by", "redirects", "p50", "p99"];
    let rows: Vec<Vec<String>> = each.collect();
    (!rows.is_empty()).then_some(Table { title: "Steps", heads, rows, texts: &[3] })
}

fn checks(outcome: &Outcome) -> Option<Table> {
    let steps = outcome.flows.iter().flat_map(|flow| &flow.steps);
    let each = steps.flat_map(|step| {
        step.checks.iter().map(|check| {
            let name = format!("{}: {}", step.name, check.name);
            vec![name, Count(check.passed).to_string(), Count(check.failed).to_string()]
        })
    });
    let rows: Vec<Vec<String>> = each.collect();
    let heads = vec!["", "passed", "failed"];
    (!rows.is_empty()).then_some(Table { title: "Checks and captures", heads, rows, texts: &[] })
}

fn percentiles(latency: Option<&Latency>) -> [String; 2] {
    let none = || "-".to_owned();
    latency
        .map_or([none(), none()], |l| [l.p50_ms, l.p99_ms].map(|ms| Milliseconds(ms).to_string()))
}
