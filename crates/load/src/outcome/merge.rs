//! [`Outcome::merge`]: the outcome of several generators that ran at the same time against one target.
//!
//! Counts and histograms are added, and percentiles computed from the sum. What cannot be known is null and
//! stays so, whatever is merged with it: percentiles of a missing histogram, rates and rows of runs that do
//! not say when they began. Runs of different settings are refused. The order does not matter.

mod config;

use std::collections::{BTreeMap, BTreeSet};

use crate::delivery::checker::keep_worst;
use crate::outcome::histograms::Histograms;
use crate::outcome::judge::{ThresholdResult, judge};
use crate::outcome::messages::MessageSummary;
use crate::outcome::samples::SampleSeries;
use crate::outcome::sections::{
    BroadcastSummary, Connections, EchoSummary, FanoutSummary, HeartbeatSummary, Receiver,
    RequestCounts,
};
use crate::outcome::tally::{CheckSummary, StepSummary};
use crate::outcome::{NO_ANSWER, NO_RECEIVER, OUTCOME_VERSION, Outcome, goaways, merged_samples};
use crate::scenario::{FlowSummary, GroupSummary};
use crate::{CableSummary, ChurnSummary, Generator, StageSummary, Times, Watched};

/// Adds two structs of counts. Every field is named, so a new one cannot be forgotten: those that are added,
/// those that are unknown if one is, maps that are added by key, and others with their value.
macro_rules! add {
    (
        $type:ident, $one:ident, $other:ident,
        sum [$($sum:ident)*], known [$($known:ident)*], maps [$($map:ident)*]
        $(, $field:ident: $value:expr)*
    ) => {
        $type {
            $($sum: $one.$sum.saturating_add($other.$sum),)*
            $($known: known($one.$known, $other.$known),)*
            $($map: maps($one.$map, $other.$map),)*
            $($field: $value,)*
        }
    };
}

impl Outcome {
    /// The outcome of both runs together, judged without thresholds: those of both are listed as missed until
    /// they are judged again.
    ///
    /// # Errors
    /// What differs between the runs, so that they are not parts of one.
    pub fn merge(mut self, other: Outcome) -> Result<Outcome, String> {
        self.merge_in(other)?;
        Ok(self)
    }

    /// As [`Outcome::merge`], into this one.
    ///
    /// # Errors
    /// What differs between the runs; then this one is as before.
    pub fn merge_in(&mut self, mut other: Outcome) -> Result<(), String> {
        if let Some(why) = self.differs_from(&other) {
            return Err(why);
        }
        let of_other = other.checked_histograms()?;
        let mut histograms = self.checked_histograms()?;
        histograms.merge(&of_other);
        for part in [&mut *self, &mut other] {
            if part.seconds.is_some() && part.measured_unix_us.is_none() {
                part.began_unix_us = None;
            }
        }
        let thresholds = unjudged(self, &other);
        let carried: Vec<String> = self.reasons.iter().chain(&other.reasons).cloned().collect();
        let mut merged = add(std::mem::take(self), other);
        merged.set_percentiles(histograms);
        merged.finish_watched();
        judge(&mut merged, &[]);
        merged.machine_short = not_judged_again(&merged, carried);
        judge(&mut merged, &[]);
        merged.thresholds = thresholds;
        *self = merged;
        Ok(())
    }

    /// The names of latencies whose percentiles are unknown because a histogram is missing.
    pub fn unknown_latencies(&self) -> Vec<&str> {
        self.histograms.iter().flat_map(Histograms::unknown).collect()
    }

    /// Why two outcomes are not of parts of one run.
    fn differs_from(&self, other: &Outcome) -> Option<String> {
        let versions = [self.version, other.version];
        if let Some(version) = versions.into_iter().find(|version| *version != OUTCOME_VERSION) {
            return Some(format!(
                "version {version} of the schema has no histograms: expected {OUTCOME_VERSION}"
            ));
        }
        let (one, of) = (&self.standfast, &other.standfast);
        if one != of {
            return Some(format!("they are of different versions of standfast: {one} and {of}"));
        }
        if self.requests.is_some() != other.requests.is_some() {
            return Some("one run is of requests, the other of WebSockets".to_owned());
        }
        if let Some(what) = self.config.differs_from(&other.config) {
            return Some(format!("they had different settings: {what}"));
        }
        let (one, of) = (self.time_us(), other.time_us());
        if let (Some(one), Some(of)) = (one, of)
            && (one.1 < of.0 || of.1 < one.0)
        {
            return Some(
                "they did not run at the same time: compare them with `standfast load compare`"
                    .to_owned(),
            );
        }
        let names = |of: &Outcome| -> Vec<(String, Vec<_>)> {
            let steps = |flow: &FlowSummary| {
                flow.steps
                    .iter()
                    .map(|step| {
                        let checks: Vec<_> =
                            step.checks.iter().map(|check| check.name.clone()).collect();
                        (step.name.clone(), step.tags.clone(), checks)
                    })
                    .collect()
            };
            of.flows.iter().map(|flow| (flow.name.clone(), steps(flow))).collect()
        };
        if names(self) != names(other) {
            return Some("they had different flows, steps or checks".to_owned());
        }
        let groups = |of: &Outcome| of.groups.as_ref().map(|of| (of.kind.clone(), of.size));
        if let (Some(one), Some(of)) = (groups(self), groups(other))
            && one != of
        {
            return Some("they had different groups".to_owned());
        }
        let pids = [self, other].map(|of| of.watched.as_ref().map(Watched::pid));
        if let [Some(one), Some(of)] = pids
            && one != of
        {
            return Some(format!("they watched different processes: {one} and {of}"));
        }
        None
    }

    /// When it began and ended; `None` if unknown.
    fn time_us(&self) -> Option<(u64, u64)> {
        let began_us = self.began_unix_us?;
        let last = self.samples.samples().last().map_or(0.0, |last| last.elapsed_seconds);
        let measured = self.measured_unix_us.zip(self.seconds);
        let end_us = measured.map_or(0, |(from_us, seconds)| from_us.saturating_add(us(seconds)));
        Some((began_us, end_us.max(began_us.saturating_add(us(last)))))
    }

    /// Computes the figures of the watched process that depend on all connections.
    fn finish_watched(&mut self) {
        let open = self.connections.open.unwrap_or_else(|| self.samples.most_open());
        self.watched.iter_mut().for_each(|watched| watched.finish(open));
    }
}

/// The thresholds of both, none of which is met before it is judged again.
fn unjudged(one: &Outcome, other: &Outcome) -> Vec<ThresholdResult> {
    let texts = one.thresholds.iter().chain(&other.thresholds);
    let texts: BTreeSet<&str> = texts.map(|result| result.threshold.as_str()).collect();
    let why = "not judged on the merged result";
    let result = |threshold: &str| ThresholdResult {
        threshold: threshold.to_owned(),
        value: None,
        met: false,
        why: Some(why.to_owned()),
        of: None,
    };
    texts.into_iter().map(result).collect()
}

/// The reasons of the parts that the whole has not, such as what a machine lacked from the start.
fn not_judged_again(merged: &Outcome, reasons: Vec<String>) -> Vec<String> {
    let what = |reason: &str| {
        let what = reason.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',');
        if what.len() < reason.len() { what.trim_start().to_owned() } else { reason.to_owned() }
    };
    let judged: BTreeSet<String> = merged.reasons.iter().map(|reason| what(reason)).collect();
    // One generator without answers is no fault of the whole, which was judged for these reasons itself.
    let is_of_whole = |reason: &str| [NO_ANSWER, NO_RECEIVER].contains(&reason);
    let is_new = |reason: &String| !judged.contains(&what(reason)) && !is_of_whole(reason);
    let rest: BTreeSet<String> = reasons.into_iter().filter(is_new).collect();
    rest.into_iter().collect()
}

/// All but percentiles and the verdict.
fn add(one: Outcome, other: Outcome) -> Outcome {
    let began_unix_us = one.began_unix_us.zip(other.began_unix_us).map(|(one, of)| one.min(of));
    let samples = match one.began_unix_us.zip(other.began_unix_us) {
        Some((began_us, of_us)) => {
            merged_samples::merge((&one.samples, began_us), (&other.samples, of_us))
        }
        None => SampleSeries::EMPTY,
    };
    // Of a run whose beginning is unknown nothing is known by time.
    let is_timed = began_unix_us.is_some();
    let parts = [&one, &other].map(|of| Measured {
        from_us: of.measured_unix_us,
        seconds: of.seconds,
        counts: [of.per_second, of.good_per_second].map(|rate| {
            // One that answered nothing in no time has no rate, but a count.
            let is_silent = of.requests.is_some_and(|of| of.answered == 0);
            rate.or(is_silent.then_some(0.0))
        }),
    });
    let (measured_unix_us, seconds, [per_second, good_per_second]) = match is_timed {
        true => measured(parts),
        false => (None, None, [None, None]),
    };
    let connections = connections(
        one.connections,
        other.connections,
        one.began_unix_us.zip(other.began_unix_us).filter(|_| is_timed),
    );
    let [of_one, of_other] = [one.broadcast, other.broadcast];
    Outcome {
        version: one.version,
        standfast: one.standfast,
        held: false,
        interrupted: one.interrupted || other.interrupted,
        reasons: Vec::new(),
        tolerated: false,
        unreached: one.unreached.or(other.unreached),
        config: one.config.merge(other.config),
        began_unix_us,
        measured_unix_us,
        connections,
        requests: both(one.requests, other.requests, requests),
        dropped: known(one.dropped, other.dropped),
        seconds,
        per_second,
        good_per_second,
        latency: None,
        service_time: None,
        latency_of_all: None,
        time_to_first_byte: None,
        send_lag: None,
        scheduling_error: None,
        status: maps(one.status, other.status),
        errors: maps(one.errors, other.errors),
        call_errors: texts(one.call_errors, other.call_errors),
        goaways: goaways::merge(one.goaways, other.goaways),
        body_bytes: known(one.body_bytes, other.body_bytes),
        decoded_bytes: known(one.decoded_bytes, other.decoded_bytes),
        connect_errors: maps(one.connect_errors, other.connect_errors),
        retried_by: maps(one.retried_by, other.retried_by),
        closed: maps(one.closed, other.closed),
        warm_up_messages: known(one.warm_up_messages, other.warm_up_messages),
        heartbeats: both(one.heartbeats, other.heartbeats, heartbeats),
        echo: both(one.echo, other.echo, echo),
        messages: both(one.messages, other.messages, messages),
        broadcast: both(of_one, of_other, broadcast),
        cable: both(one.cable, other.cable, cable),
        churn: both(one.churn, other.churn, churn),
        stages: stages(one.stages, other.stages),
        flows: one.flows.into_iter().zip(other.flows).map(flow).collect(),
        selections: Vec::new(),
        sockets: both(one.sockets, other.sockets, |mut one, of| {
            one.merge(&of);
            one
        }),
        groups: both(one.groups, other.groups, groups),
        generator: both(one.generator, other.generator, Generator::merge),
        watched: both(one.watched, other.watched, Watched::merge),
        thresholds: Vec::new(),
        machine_short: Vec::new(),
        samples,
        histograms: None,
    }
}

/// A time and the rates in it.
struct Measured {
    from_us: Option<u64>,
    seconds: Option<f64>,
    counts: [Option<f64>; 2],
}

/// From the first beginning to the last end, and what was counted in all parts ÷ that. A part without
/// seconds measured nothing.
fn measured(parts: [Measured; 2]) -> (Option<u64>, Option<f64>, [Option<f64>; 2]) {
    let some: Vec<&Measured> = parts.iter().filter(|part| part.seconds.is_some()).collect();
    if some.is_empty() {
        return (None, None, [None, None]);
    }
    let span = |part: &&Measured| {
        let (from_us, seconds) = (part.from_us?, part.seconds?);
        Some((from_us, from_us.saturating_add(us(seconds))))
    };
    let spans: Option<Vec<(u64, u64)>> = some.iter().map(span).collect();
    let spans = spans.unwrap_or_default();
    let from_us = spans.iter().map(|(from_us, _)| *from_us).min();
    let end_us = spans.iter().map(|(_, end_us)| *end_us).max();
    let Some((from_us, end_us)) = from_us.zip(end_us) else { return (None, None, [None, None]) };
    let seconds = (end_us - from_us) as f64 / 1e6;
    let rate = |at: usize| {
        let count = |part: &&Measured| {
            let rate = part.counts.get(at).copied().flatten()?;
            // A rate is a count ÷ these seconds.
            Some((rate * part.seconds?).round())
        };
        let counts: Option<Vec<f64>> = some.iter().map(count).collect();
        counts.map(|counts| counts.iter().sum::<f64>() / seconds).filter(|_| seconds > 0.0)
    };
    (Some(from_us), Some(seconds), [rate(0), rate(1)])
}

fn connections(one: Connections, other: Connections, began_us: Option<(u64, u64)>) -> Connections {
    let seconds =
        began_us.zip(one.seconds.zip(other.seconds)).map(|((from, of_from), (s, of_s))| {
            let end_us = from.saturating_add(us(s)).max(of_from.saturating_add(us(of_s)));
            end_us.saturating_sub(from.min(of_from)) as f64 / 1e6
        });
    let mut all = add!(Connections, one, other,
        sum [requested failed],
        known [opened open retired replaced opened_late retries reconnects sources_changed
            closed_idle unasked closed_surplus http2_opened http2_failed http2_ended http2_goaways],
        maps [],
        http2_streams_allowed: [one.http2_streams_allowed, other.http2_streams_allowed]
            .into_iter().flatten().min(),
        seconds: seconds,
        per_second: None,
        // The highest moments of several generators need not be the same.
        in_flight_max: None,
        // Of one machine.
        time_wait_most: one.time_wait_most.max(other.time_wait_most)
    );
    let at_first = all.opened.zip(all.replaced).map(|(opened, again)| opened.saturating_sub(again));
    all.per_second = at_first
        .zip(all.seconds.filter(|seconds| *seconds > 0.0))
        .map(|(count, seconds)| count as f64 / seconds);
    all
}

fn requests(one: RequestCounts, other: RequestCounts) -> RequestCounts {
    add!(RequestCounts, one, other,
        sum [ok failed sent answered stragglers unfinished unknown unsent warm_up redirects],
        known [repeated], maps [])
}

fn heartbeats(one: HeartbeatSummary, other: HeartbeatSummary) -> HeartbeatSummary {
    add!(HeartbeatSummary, one, other,
        sum [sent received unanswered_sockets], known [not_due_sockets], maps [],
        awaited: one.awaited || other.awaited,
        latency: None)
}

fn echo(one: EchoSummary, other: EchoSummary) -> EchoSummary {
    add!(EchoSummary, one, other,
        sum [sent unsent received lost unknown duplicated reordered corrupted late],
        known [], maps [])
}

fn broadcast(one: BroadcastSummary, other: BroadcastSummary) -> BroadcastSummary {
    let (times, of) = (one.times, other.times);
    let times = add!(Times, times, of, sum [untimed], known [], maps [],
        to_first: None, to_last: None, first_to_last: None);
    add!(BroadcastSummary, one, other,
        sum [published receivers expected received refused lost unknown duplicated reordered corrupted
            late stale foreign],
        known [], maps [],
        p50_ms: None, p99_ms: None, last_ms: None, latency: None, from_send: None,
        latency_of_all: None,
        times: times,
        fanout: both(one.fanout, other.fanout, fanout))
}

fn fanout(one: FanoutSummary, other: FanoutSummary) -> FanoutSummary {
    add!(FanoutSummary, one, other,
        sum [publishers receivers_short],
        known [publish_rejected publish_unanswered publish_unknown publish_unsent],
        maps [publish_failed],
        rate: one.rate + other.rate,
        reached_rate: one.reached_rate + other.reached_rate,
        accepted_rate: sum(one.accepted_rate, other.accepted_rate),
        publish_lag: None, publish: None,
        worst: worst(one.worst, other.worst))
}

fn cable(one: CableSummary, other: CableSummary) -> CableSummary {
    add!(CableSummary, one, other,
        sum [subscribed rejected waiting subscribes repeated confirmed_again pings stale unexpected],
        known [], maps [disconnects],
        to_welcome: None, to_confirm: None, to_subscribed: None)
}

fn churn(one: ChurnSummary, other: ChurnSummary) -> ChurnSummary {
    add!(ChurnSummary, one, other,
        sum [streams published begun judged owed received refused lost duplicated reordered late
            stale corrupted unexpected unconfirmed],
        known [publish_unsent],
        maps [publish_failed],
        rate: one.rate + other.rate,
        reached_rate: one.reached_rate + other.reached_rate,
        accepted_rate: sum(one.accepted_rate, other.accepted_rate),
        latency: None, from_send: None, latency_of_all: None, publish_lag: None, publish: None)
}

fn groups(one: GroupSummary, other: GroupSummary) -> GroupSummary {
    add!(GroupSummary, one, other,
        sum [groups met senders sent not_sent warm_up receivers expected received refused lost
            duplicated reordered late stale corrupted foreign early receivers_short],
        known [], maps [],
        kind: one.kind, size: one.size,
        sent_per_second: one.sent_per_second + other.sent_per_second,
        received_per_second: one.received_per_second + other.received_per_second,
        send_lag: None, latency: None, latency_of_all: None,
        worst: worst(one.worst, other.worst))
}

fn messages(one: MessageSummary, other: MessageSummary) -> MessageSummary {
    add!(MessageSummary, one, other,
        sum [sent unsent warm_up received calls_answered_early calls_ended_by_client],
        known [answered lost unknown duplicated reordered corrupted late stale unexpected],
        maps [],
        sent_per_second: sum(one.sent_per_second, other.sent_per_second),
        received_per_second: sum(one.received_per_second, other.received_per_second),
        matched_by: one.matched_by.filter(|by| Some(by) == other.matched_by.as_ref()),
        latency: None, from_send: None, latency_of_all: None, first: None, interval: None,
        send_lag: None)
}

/// Stages by number; a run that was interrupted has fewer.
fn stages(one: Vec<StageSummary>, other: Vec<StageSummary>) -> Vec<StageSummary> {
    let mut other = other.into_iter();
    let mut both: Vec<StageSummary> = one
        .into_iter()
        .map(|one| match other.next() {
            Some(of) => one.merge(of),
            None => one,
        })
        .collect();
    both.extend(other);
    both
}

fn flow((one, other): (FlowSummary, FlowSummary)) -> FlowSummary {
    let steps = one.steps.into_iter().zip(other.steps).map(step).collect();
    add!(FlowSummary, one, other, sum [begun completed], known [], maps [],
        name: one.name, steps: steps)
}

fn step((one, other): (StepSummary, StepSummary)) -> StepSummary {
    let checks = one.checks.into_iter().zip(other.checks).map(|(one, other)| {
        add!(CheckSummary, one, other, sum [passed failed], known [], maps [], name: one.name)
    });
    let checks = checks.collect();
    add!(StepSummary, one, other,
        sum [requests failed redirects], known [], maps [errors],
        name: one.name, tags: one.tags, latency: None, service_time: None, checks: checks)
}

/// Those that lost most. Their numbers are of their generator.
fn worst(one: Vec<Receiver>, other: Vec<Receiver>) -> Vec<Receiver> {
    let mut worst: Vec<Receiver> = one.into_iter().chain(other).collect();
    worst.sort_by_key(|receiver| receiver.received);
    keep_worst(&mut worst);
    worst
}

fn us(seconds: f64) -> u64 {
    if seconds > 0.0 { (seconds * 1e6).round() as u64 } else { 0 }
}

/// Of a section that one of them does not have, that of the other.
pub(crate) fn both<T>(one: Option<T>, other: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(add(one, other)),
        (one, other) => one.or(other),
    }
}

/// The sum of two counts, unknown if one is.
fn known(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.saturating_add(other?))
}

fn sum(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    Some(one? + other?)
}

fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    both(one, other, T::min)
}

/// A text of each kind: the least, so that the order of merging makes no difference.
fn texts(
    mut one: BTreeMap<String, String>,
    other: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    for (kind, text) in other {
        let kept = one.remove(&kind);
        one.insert(kind, least(kept, Some(text.clone())).unwrap_or(text));
    }
    one
}

fn maps<K: Ord>(mut one: BTreeMap<K, u64>, other: BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    for (key, count) in other {
        let sum = one.entry(key).or_default();
        *sum = sum.saturating_add(count);
    }
    one
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
