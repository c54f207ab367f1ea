//! The text of an [`Outcome`]: its figures, and the result in the last line.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use capacity::{Count, Decimal, Milliseconds};

use crate::Latency;
use crate::outcome::goaways::GoAwaySummary;
use crate::outcome::judge::last_line;
use crate::outcome::latency_text::{Bars, write_latencies};
use crate::outcome::sections::{
    BroadcastSummary, Connections, EchoSummary, FanoutSummary, HeartbeatSummary, Receiver,
    RequestCounts,
};
use crate::outcome::{Outcome, stages};
use crate::scenario::{CheckSummary, FlowSummary, SocketSummary, StepSummary};

/// An outcome as text.
struct Text<'a> {
    outcome: &'a Outcome,
    bars: Bars,
}

impl Display for Outcome {
    /// As [`Outcome::text`], in files and pipes.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.text(Bars::Ascii).fmt(f)
    }
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Text { outcome, bars } = *self;
        outcome.write_headline(f)?;
        match &outcome.requests {
            Some(requests) => outcome.write_requests(f, requests, bars)?,
            None => outcome.write_sockets(f, bars)?,
        }
        stages::write(f, &outcome.stages, outcome.requests.is_some())?;
        for flow in &outcome.flows {
            let FlowSummary { name, begun, completed, steps } = flow;
            if outcome.config.scenario.is_none() {
                let checks = steps.iter().flat_map(|step| &step.checks);
                checks.into_iter().try_for_each(|check| write_check(f, "check         ", check))?;
                continue;
            }
            let [begun, completed] = [begun, completed].map(|count| Count(*count));
            writeln!(f, "flow          {name}: {begun} passes begun, {completed} completed")?;
            steps.iter().try_for_each(|step| write_step(f, step))?;
        }
        outcome.messages.iter().try_for_each(|messages| write!(f, "{messages}"))?;
        outcome.sockets.iter().try_for_each(|of| write_scenario_sockets(f, of, outcome.seconds))?;
        outcome.groups.iter().try_for_each(|groups| write!(f, "{groups}"))?;
        f.write_str(&outcome.config.text())?;
        outcome.generator.iter().try_for_each(|generator| write!(f, "{generator}"))?;
        outcome.watched.iter().try_for_each(|watched| write!(f, "{watched}"))?;
        outcome.thresholds.iter().try_for_each(|result| write!(f, "{result}"))?;
        let well = if outcome.requests.is_some() { "all answered" } else { "all held" };
        f.write_str(&last_line(outcome, well))
    }
}

impl Outcome {
    /// The summary for people, with bars of these characters.
    #[must_use]
    pub fn text(&self, bars: Bars) -> impl Display + '_ {
        Text { outcome: self, bars }
    }

    /// Writes what makes all further figures void, the cause first: a target that was never reached, or
    /// never answered, and then a saturated generator. One that only tried to connect is none of it.
    fn write_headline(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.unreached {
            return writeln!(f, "NOT REACHED   {why}");
        }
        let causes = |causes: &BTreeMap<String, u64>| match named(causes).as_str() {
            "" => String::new(),
            named => format!(": {named}"),
        };
        match self.requests {
            _ if self.interrupted => {}
            Some(of) if of.answered == 0 && of.failed > 0 => {
                writeln!(f, "NO ANSWER     no request was answered{}", causes(&self.errors))?;
            }
            None if self.connections.opened == Some(0) && self.connections.failed > 0 => {
                let causes = causes(&self.connect_errors);
                writeln!(f, "NO CONNECTION no connection opened{causes}")?;
            }
            _ => {}
        }
        self.generator.iter().try_for_each(|generator| f.write_str(&generator.headline()))
    }

    fn write_sockets(&self, f: &mut Formatter<'_>, bars: Bars) -> fmt::Result {
        let c = &self.connections;
        let of = |count: Option<u64>| Count(count.unwrap_or(0));
        let [requested, failed] = [c.requested, c.failed].map(Count);
        let what = if c.http2_opened.is_some() { "sockets       " } else { "connections   " };
        write!(f, "{what}{} open of {requested}, {failed} failed", of(c.open))?;
        match c.seconds {
            Some(seconds) => {
                let per_second = Decimal(c.per_second.unwrap_or(0.0), 0);
                writeln!(f, "; {seconds:.2} s, {per_second} per second")?;
            }
            None => writeln!(f, "; rate unknown")?,
        }
        if let Some(opened) = c.http2_opened {
            write_carriers(f, c, opened, Some(self.config.streams.unwrap_or(1)))?;
        }
        for (count, title, what) in [
            (c.retired, "  retired       ", "closed to reach a lower target"),
            (c.replaced, "  replaced      ", "closed after their messages and replaced"),
        ] {
            if let Some(count) = count.filter(|count| *count > 0) {
                writeln!(f, "{title}{} {what}", Count(count))?;
            }
        }
        let (retries, reconnects, late) = (of(c.retries), of(c.reconnects), of(c.opened_late));
        if retries.0 + reconnects.0 > 0 {
            write!(f, "  retried       {retries} times, {late} opened on a later attempt")?;
            writeln!(f, "; {reconnects} reopened after they ended")?;
        }
        write_causes(f, "  retried for ", &self.retried_by)?;
        write_causes(f, "  failed by   ", &self.connect_errors)?;
        write_causes(f, "  ended by    ", &self.closed)?;
        write_goaways(f, &self.goaways)?;
        if let Some(count) = self.warm_up_messages {
            writeln!(f, "warm-up       {} messages, not counted otherwise", Count(count))?;
        }
        self.heartbeats.iter().try_for_each(|heartbeats| self.write_heartbeats(f, heartbeats))?;
        self.echo.iter().try_for_each(|echo| self.write_echo(f, echo, bars))?;
        self.cable.iter().try_for_each(|cable| write!(f, "{cable}"))?;
        if let Some(broadcast) = &self.broadcast {
            write!(f, "{broadcast}")?;
            self.write_distribution(f, "from due", bars)?;
        }
        if let Some(churn) = &self.churn {
            write!(f, "{churn}")?;
            self.write_distribution(f, "from due", bars)?;
        }
        Ok(())
    }

    fn write_heartbeats(&self, f: &mut Formatter<'_>, of: &HeartbeatSummary) -> fmt::Result {
        let not_due = of.not_due_sockets.filter(|count| *count > 0).map(Count);
        if of.sent == 0 {
            // Runs that exchange messages rarely last as long as the time between two pings.
            let is_held = self.echo.is_none() && self.broadcast.is_none() && self.churn.is_none();
            return match not_due.filter(|_| is_held) {
                Some(sockets) => writeln!(f, "heartbeats    not yet due on {sockets} sockets"),
                None => Ok(()),
            };
        }
        let [sent, received, silent] = [of.sent, of.received, of.unanswered_sockets].map(Count);
        write!(f, "heartbeats    {sent} sent, {received} answered; {silent} sockets got no pong")?;
        match not_due {
            Some(sockets) => writeln!(f, ", not yet due on {sockets}")?,
            None => writeln!(f)?,
        }
        write_latencies(f, &[("ping to pong", of.latency.as_ref())])
    }

    fn write_echo(&self, f: &mut Formatter<'_>, echo: &EchoSummary, bars: Bars) -> fmt::Result {
        write!(f, "echo          {} sent, {} received; ", Count(echo.sent), Count(echo.received))?;
        if echo.unsent > 0 {
            write!(f, "{} never sent, ", Count(echo.unsent))?;
        }
        if echo.unknown > 0 {
            write!(f, "{} in flight at the end, ", Count(echo.unknown))?;
        }
        let [lost, duplicated, reordered] = [echo.lost, echo.duplicated, echo.reordered].map(Count);
        writeln!(f, "{lost} lost,")?;
        write!(f, "              {duplicated} duplicated, {reordered} reordered, ")?;
        writeln!(f, "{} corrupted, {} late", Count(echo.corrupted), Count(echo.late))?;
        if let Some((seconds, answered)) = self.seconds.zip(self.per_second) {
            let (sent, answered) = (Decimal(echo.sent as f64 / seconds, 1), Decimal(answered, 1));
            write!(f, "messages      {sent} per second sent, {answered} answered")?;
            writeln!(f, " over {seconds:.2} s")?;
        }
        write_latencies(
            f,
            &[
                ("from due", self.latency.as_ref()),
                ("from send", self.service_time.as_ref()),
                ("send lag", self.send_lag.as_ref()),
            ],
        )?;
        self.write_distribution(f, "distribution", bars)
    }

    fn write_requests(
        &self,
        f: &mut Formatter<'_>,
        requests: &RequestCounts,
        bars: Bars,
    ) -> fmt::Result {
        let RequestCounts { ok, failed, sent, unsent, warm_up, redirects, .. } = *requests;
        let repeated = requests.repeated.unwrap_or(0);
        // A request whose connect failed was begun but not sent.
        match ok + failed {
            begun if begun > sent => {
                let [begun, sent] = [begun, sent].map(Count);
                write!(f, "requests      {begun}, of which {sent} were sent")?;
            }
            _ => write!(f, "requests      {} sent", Count(sent))?,
        }
        writeln!(f, ": {} ok, {} failed", Count(ok), Count(failed))?;
        for (count, what) in [
            (
                requests.stragglers,
                match self.messages {
                    None => "answered after the end, not counted in the rate",
                    Some(_) => "lasted until the end, not counted in the rate",
                },
            ),
            (requests.unknown, "in flight at the end: their result is unknown"),
            (unsent, "were due and never sent: no connection was free"),
            (self.dropped.unwrap_or(0), "passes were dropped: no user was free"),
            (warm_up, "in the warm-up, not counted otherwise"),
            (redirects, "more to follow redirects"),
            (repeated, "sent again: the server had not processed them"),
        ] {
            if count > 0 {
                writeln!(f, "              {} {what}", Count(count))?;
            }
        }
        match self.seconds {
            _ if self.all_calls_lasted() => write!(f, "answers       at the end")?,
            Some(seconds) => {
                let per_second = Decimal(self.per_second.unwrap_or(0.0), 1);
                write!(f, "answers       {per_second} per second over {seconds:.2} s")?;
            }
            None => write!(f, "answers       {}, rate unknown", Count(requests.answered))?,
        }
        match self.good_per_second.filter(|_| failed + unsent > 0) {
            Some(good) => writeln!(f, ", {} of them good", Decimal(good, 1))?,
            None => writeln!(f)?,
        }
        let status = self.status.iter().map(|(status, n)| (format!("{status}:"), *n)).collect();
        write_causes(f, "  status      ", &status)?;
        write_causes(f, "  failed by   ", &self.errors)?;
        for (kind, text) in &self.call_errors {
            writeln!(f, "              {kind}, first: {text}")?;
        }
        write_goaways(f, &self.goaways)?;
        write_latencies(
            f,
            &[
                ("latency", self.latency.as_ref()),
                ("service time", self.service_time.as_ref()),
                ("first byte", self.time_to_first_byte.as_ref()),
                ("send lag", self.send_lag.as_ref()),
                ("sent late by", self.scheduling_error.as_ref()),
            ],
        )?;
        self.write_distribution(f, "distribution", bars)?;
        let c = &self.connections;
        let of = |count: Option<u64>| count.unwrap_or(0);
        let what = if c.http2_opened.is_some() { "streams       " } else { "connections   " };
        writeln!(f, "{what}{} opened, {} failed", Count(of(c.opened)), Count(c.failed))?;
        if let Some(opened) = c.http2_opened {
            write_carriers(f, c, opened, None)?;
        }
        let config = &self.config;
        let opens_when_due = config.pace.is_open()
            && config.scenario.is_none()
            && config.keep_alive == Some(true)
            && c.http2_opened.is_none();
        let begun = of(c.opened).saturating_add(c.failed);
        if let Some(most) = config.users.filter(|most| opens_when_due && begun < *most) {
            let most = Count(most);
            writeln!(
                f,
                "              of up to {most}: one opens when a request is due and none is free"
            )?;
        }
        for (count, what) in [
            (of(c.closed_idle), "closed by the server while idle"),
            (of(c.unasked), "closed: the server sent unsolicited data"),
            (of(c.closed_surplus), "closed: a user had connections to too many hosts"),
        ] {
            if count > 0 {
                writeln!(f, "              {} {what}", Count(count))?;
            }
        }
        if let Some(count) = c.time_wait_most {
            let count = Count(count);
            writeln!(f, "              at most {count} sockets in TIME_WAIT on this machine")?;
        }
        write!(f, "bodies        {} bytes", Count(of(self.body_bytes)))?;
        match of(self.decoded_bytes) {
            0 => writeln!(f),
            decoded => writeln!(f, "; {} bytes after decoding", Count(decoded)),
        }
    }
}

/// Writes how servers left HTTP/2 connections.
fn write_goaways(f: &mut Formatter<'_>, goaways: &BTreeMap<String, GoAwaySummary>) -> fmt::Result {
    for (code, of) in goaways {
        write!(f, "  GOAWAY      {code} {}", Count(of.count))?;
        match &of.debug {
            Some(debug) => writeln!(f, ", first: {debug}")?,
            None => writeln!(f)?,
        }
    }
    Ok(())
}

/// Writes the HTTP/2 connections of sockets, which share them.
fn write_carriers(
    f: &mut Formatter<'_>,
    c: &Connections,
    opened: u64,
    sockets_each: Option<u32>,
) -> fmt::Result {
    let of = |count: Option<u64>| Count(count.unwrap_or(0));
    let (failed, ended) = (of(c.http2_failed), of(c.http2_ended));
    write!(f, "  HTTP/2        {} connections opened, {failed} failed, ", Count(opened))?;
    write!(f, "{ended} ended")?;
    match sockets_each {
        Some(each) => writeln!(f, "; at most {} sockets on each", Count(each.into()))?,
        None => writeln!(f)?,
    }
    if let Some(goaways) = c.http2_goaways.filter(|count| *count > 0) {
        writeln!(f, "                {} left by the server (GOAWAY)", Count(goaways))?;
    }
    match c.http2_streams_allowed {
        Some(allowed) => writeln!(
            f,
            "                the server allows {} sockets on a connection, fewer than --streams",
            Count(allowed)
        ),
        None => Ok(()),
    }
}

fn write_scenario_sockets(
    f: &mut Formatter<'_>,
    sockets: &SocketSummary,
    seconds: Option<f64>,
) -> fmt::Result {
    write!(f, "sockets       {} messages received", Count(sockets.received))?;
    match seconds.filter(|seconds| *seconds > 0.0) {
        Some(seconds) => {
            let rate = Decimal(sockets.received as f64 / seconds, 1);
            writeln!(f, ", {rate} per second over {seconds:.2} s")?;
        }
        None => writeln!(f)?,
    }
    for (code, count) in &sockets.closed_by {
        writeln!(f, "              {} closed by the server with {code}", Count(*count))?;
    }
    for (status, count) in &sockets.ended_by {
        writeln!(
            f,
            "              {} calls ended early by the server with {status}",
            Count(*count)
        )?;
    }
    for (kind, count) in &sockets.broken {
        writeln!(f, "              {} broken by the server: {kind}", Count(*count))?;
    }
    for (count, what) in [
        (sockets.gone, "ended without a close frame or status"),
        (sockets.reopened, "held over passes were opened again"),
        (sockets.unread_dropped, "messages dropped because no step waited for them"),
    ] {
        if count > 0 {
            writeln!(f, "              {} {what}", Count(count))?;
        }
    }
    Ok(())
}

fn write_step(f: &mut Formatter<'_>, step: &StepSummary) -> fmt::Result {
    let StepSummary { name, requests, failed, errors, redirects, latency, checks, .. } = step;
    let [requests, failed] = [requests, failed].map(|count| Count(*count));
    write!(f, "  step        {name}: {requests} requests, {failed} failed")?;
    if !errors.is_empty() {
        write!(f, " ({})", named(errors))?;
    }
    if *redirects > 0 {
        write!(f, ", {} redirects followed", Count(*redirects))?;
    }
    if let Some(Latency { p50_ms, p95_ms, p99_ms, max_ms, .. }) = latency {
        let [p50, p95, p99, max] = [p50_ms, p95_ms, p99_ms, max_ms].map(|ms| Milliseconds(*ms));
        write!(f, "; p50 {p50}, p95 {p95}, p99 {p99}, max {max}")?;
    }
    writeln!(f)?;
    for check in checks {
        write_check(f, "    check     ", check)?;
    }
    Ok(())
}

fn write_check(f: &mut Formatter<'_>, title: &str, check: &CheckSummary) -> fmt::Result {
    let [passed, failed] = [check.passed, check.failed].map(Count);
    writeln!(f, "{title}{}: {passed} passed, {failed} failed", check.name)
}

impl Display for BroadcastSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let counts = [self.published, self.receivers, self.received, self.expected].map(Count);
        let [published, receivers, received, expected] = counts;
        writeln!(
            f,
            "publications  {published} to {receivers} receivers, {received} of {expected} received"
        )?;
        write!(f, "              {} lost, ", Count(self.lost))?;
        if self.unknown > 0 {
            write!(f, "{} not received yet at the end, ", Count(self.unknown))?;
        }
        let [duplicated, reordered, corrupted] =
            [self.duplicated, self.reordered, self.corrupted].map(Count);
        writeln!(f, "{duplicated} duplicated, {reordered} reordered, {corrupted} corrupted,")?;
        let [late, stale, foreign] = [self.late, self.stale, self.foreign].map(Count);
        writeln!(f, "              {late} late, {stale} stale, {foreign} foreign")?;
        if self.refused > 0 {
            writeln!(f, "              {} delivered although refused", Count(self.refused))?;
        }
        if let Some(rate) = self.received_per_second() {
            writeln!(f, "messages      {} per second received", Decimal(rate, 1))?;
        }
        write_latencies(
            f,
            &[
                ("from due", self.latency.as_ref()),
                ("from send", self.from_send.as_ref()),
                ("to the first", self.times.to_first.as_ref()),
                ("to the last", self.times.to_last.as_ref()),
                ("first to last", self.times.first_to_last.as_ref()),
            ],
        )?;
        let Some(fanout) = &self.fanout else { return Ok(()) };
        let FanoutSummary { receivers_short, worst, .. } = fanout;
        let [reached, rate] = [fanout.reached_rate, fanout.rate].map(|rate| Decimal(rate, 1));
        write!(f, "  published     {reached} per second of {rate} requested, by ")?;
        match fanout.publishers {
            1 => writeln!(f, "1 publisher")?,
            publishers => writeln!(f, "{} publishers in turn", Count(publishers.into()))?,
        }
        write_latencies(
            f,
            &[
                ("sent late by", fanout.publish_lag.as_ref()),
                ("answered in", fanout.publish.as_ref()),
            ],
        )?;
        for (cause, count) in &fanout.publish_failed {
            writeln!(f, "  failed        {}: {cause}", Count(*count))?;
        }
        for (count, what) in [
            (fanout.publish_unsent, "due and not sent"),
            (fanout.publish_unknown, "not answered before the interruption"),
        ] {
            if let Some(count) = count.filter(|count| *count > 0) {
                writeln!(f, "                {} {what}", Count(count))?;
            }
        }
        if *receivers_short > 0 {
            writeln!(f, "  {} receivers lost some; the worst:", Count(*receivers_short))?;
        }
        for Receiver { connection, received, lost } in worst {
            let [lost, received] = [lost, received].map(|count| Count(*count));
            writeln!(f, "    connection {connection}: {lost} lost, {received} received")?;
        }
        Ok(())
    }
}

fn write_causes(f: &mut Formatter<'_>, title: &str, causes: &BTreeMap<String, u64>) -> fmt::Result {
    match causes.is_empty() {
        true => Ok(()),
        false => writeln!(f, "{title}{}", named(causes)),
    }
}

/// Causes with their counts: `timeout 3, reset 2`.
fn named(causes: &BTreeMap<String, u64>) -> String {
    let causes = causes.iter().map(|(name, count)| format!("{name} {}", Count(*count)));
    causes.collect::<Vec<_>>().join(", ")
}
