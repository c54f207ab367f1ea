//! The text of an [`Outcome`]: its figures, and the result in the last line.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::Latency;
use crate::outcome::Outcome;
use crate::outcome::judge::last_line;
use crate::outcome::sections::{
    BroadcastSummary, Connections, EchoSummary, FanoutSummary, HeartbeatSummary, Receiver,
    RequestCounts,
};
use crate::scenario::{FlowSummary, SocketSummary, StepSummary};

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(generator) = &self.generator {
            f.write_str(&generator.headline())?;
        }
        match &self.requests {
            Some(requests) => self.write_requests(f, requests)?,
            None => self.write_sockets(f)?,
        }
        for flow in &self.flows {
            let FlowSummary { name, begun, completed, steps } = flow;
            writeln!(f, "flow          {name}: {begun} passes begun, {completed} completed")?;
            steps.iter().try_for_each(|step| write_step(f, step))?;
        }
        self.sockets.iter().try_for_each(|sockets| write_scenario_sockets(f, sockets))?;
        self.groups.iter().try_for_each(|groups| write!(f, "{groups}"))?;
        f.write_str(&self.config.text())?;
        self.generator.iter().try_for_each(|generator| write!(f, "{generator}"))?;
        self.watched.iter().try_for_each(|watched| write!(f, "{watched}"))?;
        self.thresholds.iter().try_for_each(|result| write!(f, "{result}"))?;
        let well = if self.requests.is_some() { "all answered" } else { "all held" };
        f.write_str(&last_line(self, well))
    }
}

impl Outcome {
    fn write_sockets(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Connections { requested, failed, .. } = self.connections;
        let c = &self.connections;
        let open = c.open.unwrap_or(0);
        let (seconds, per_second) = (c.seconds.unwrap_or(0.0), c.per_second.unwrap_or(0.0));
        write!(f, "connections   {open} open of {requested}, {failed} failed")?;
        writeln!(f, "; {seconds:.2} s, {per_second:.0} per second")?;
        for (count, what) in [
            (c.retired, "retired       {} closed to reach a lower target"),
            (c.replaced, "replaced      {} closed after their messages and replaced"),
        ] {
            if let Some(count) = count.filter(|count| *count > 0) {
                writeln!(f, "  {}", what.replace("{}", &count.to_string()))?;
            }
        }
        let of = |count: Option<u64>| count.unwrap_or(0);
        let (retries, reconnects) = (of(c.retries), of(c.reconnects));
        if retries + reconnects > 0 {
            let late = of(c.opened_late);
            write!(f, "  retried       {retries} times, {late} opened on a later attempt")?;
            writeln!(f, "; {reconnects} reopened after they ended")?;
        }
        write_causes(f, "  retried for ", &self.retried_by)?;
        write_causes(f, "  failed by   ", &self.connect_errors)?;
        write_causes(f, "  ended by    ", &self.closed)?;
        if let Some(count) = self.warm_up_messages {
            writeln!(f, "warm-up       {count} messages, not counted otherwise")?;
        }
        if let Some(heartbeats) = &self.heartbeats {
            let HeartbeatSummary { sent, received, unanswered_sockets, latency, .. } = heartbeats;
            if *sent > 0 {
                write!(f, "heartbeats    {sent} sent, {received} answered")?;
                writeln!(f, "; {unanswered_sockets} sockets got no pong")?;
                write_latency(f, "  ping to pong", latency.as_ref())?;
            }
        }
        if let Some(echo) = &self.echo {
            let EchoSummary { sent, unsent, received, lost, duplicated, .. } = echo;
            write!(f, "echo          {sent} sent, {received} received; ")?;
            if *unsent > 0 {
                write!(f, "{unsent} never sent, ")?;
            }
            if echo.unknown > 0 {
                write!(f, "{} in flight at the end, ", echo.unknown)?;
            }
            write!(f, "{lost} lost, {duplicated} duplicated, {} reordered, ", echo.reordered)?;
            writeln!(f, "{} corrupted, {} late", echo.corrupted, echo.late)?;
            if let Some((seconds, answered)) = self.seconds.zip(self.per_second) {
                let sent = *sent as f64 / seconds;
                write!(f, "messages      {sent:.1} per second sent, {answered:.1} answered")?;
                writeln!(f, " over {seconds:.2} s")?;
            }
            write_latency(f, "  from due    ", self.latency.as_ref())?;
            write_latency(f, "  from send   ", self.service_time.as_ref())?;
            write_latency(f, "  send lag    ", self.send_lag.as_ref())?;
        }
        self.cable.iter().try_for_each(|cable| write!(f, "{cable}"))?;
        self.broadcast.iter().try_for_each(|broadcast| write!(f, "{broadcast}"))?;
        self.churn.iter().try_for_each(|churn| write!(f, "{churn}"))
    }

    fn write_requests(&self, f: &mut Formatter<'_>, requests: &RequestCounts) -> fmt::Result {
        let RequestCounts { ok, failed, sent, unsent, warm_up, redirects, .. } = *requests;
        // A request whose connect failed was begun but not sent.
        match ok + failed {
            begun if begun > sent => write!(f, "requests      {begun}, of which {sent} were sent")?,
            _ => write!(f, "requests      {sent} sent")?,
        }
        writeln!(f, ": {ok} ok, {failed} failed")?;
        for (count, what) in [
            (requests.stragglers, "answered after the end, not counted in the rate"),
            (requests.unknown, "in flight at the end: their result is unknown"),
            (unsent, "were due and never sent: no connection was free"),
            (self.dropped.unwrap_or(0), "passes were dropped: no user was free"),
            (warm_up, "in the warm-up, not counted otherwise"),
            (redirects, "more to follow redirects"),
        ] {
            if count > 0 {
                writeln!(f, "              {count} {what}")?;
            }
        }
        let (seconds, per_second) = (self.seconds.unwrap_or(0.0), self.per_second.unwrap_or(0.0));
        write!(f, "answers       {per_second:.1} per second over {seconds:.2} s")?;
        match self.good_per_second.filter(|_| failed + unsent > 0) {
            Some(good) => writeln!(f, ", {good:.1} of them good")?,
            None => writeln!(f)?,
        }
        let status = self.status.iter().map(|(status, n)| (format!("{status}:"), *n)).collect();
        write_causes(f, "  status      ", &status)?;
        write_causes(f, "  failed by   ", &self.errors)?;
        write_latency(f, "  latency     ", self.latency.as_ref())?;
        write_latency(f, "  service time", self.service_time.as_ref())?;
        write_latency(f, "  first byte  ", self.time_to_first_byte.as_ref())?;
        write_latency(f, "  send lag    ", self.send_lag.as_ref())?;
        write_latency(f, "  sent late by", self.scheduling_error.as_ref())?;
        let c = &self.connections;
        let of = |count: Option<u64>| count.unwrap_or(0);
        write!(f, "connections   {} opened, {} failed", of(c.opened), c.failed)?;
        let time_wait = of(c.time_wait_most);
        writeln!(f, "; at most {time_wait} sockets in TIME_WAIT on this machine")?;
        for (count, what) in [
            (of(c.closed_idle), "closed by the server while idle"),
            (of(c.unasked), "closed: the server sent unsolicited data"),
        ] {
            if count > 0 {
                writeln!(f, "              {count} {what}")?;
            }
        }
        write!(f, "bodies        {} bytes", of(self.body_bytes))?;
        match of(self.decoded_bytes) {
            0 => writeln!(f),
            decoded => writeln!(f, "; {decoded} bytes after decoding"),
        }
    }
}

fn write_scenario_sockets(f: &mut Formatter<'_>, sockets: &SocketSummary) -> fmt::Result {
    writeln!(f, "sockets       {} messages received", sockets.received)?;
    for (code, count) in &sockets.closed_by {
        writeln!(f, "              {count} closed by the server with {code}")?;
    }
    for (kind, count) in &sockets.broken {
        writeln!(f, "              {count} broken by the server: {kind}")?;
    }
    for (count, what) in [
        (sockets.gone, "ended without a close frame"),
        (sockets.reopened, "held over passes were opened again"),
        (sockets.unread_dropped, "messages dropped because no step waited for them"),
    ] {
        if count > 0 {
            writeln!(f, "              {count} {what}")?;
        }
    }
    Ok(())
}

fn write_step(f: &mut Formatter<'_>, step: &StepSummary) -> fmt::Result {
    let StepSummary { name, requests, failed, errors, redirects, latency, checks, .. } = step;
    write!(f, "  step        {name}: {requests} requests, {failed} failed")?;
    if !errors.is_empty() {
        let named: Vec<String> = errors.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
        write!(f, " ({})", named.join(", "))?;
    }
    if *redirects > 0 {
        write!(f, ", {redirects} redirects followed")?;
    }
    if let Some(Latency { p50_ms, p99_ms, max_ms, .. }) = latency {
        write!(f, "; p50 {p50_ms:.3}, p99 {p99_ms:.3}, max {max_ms:.3} ms")?;
    }
    writeln!(f)?;
    for check in checks {
        writeln!(
            f,
            "    check     {}: {} passed, {} failed",
            check.name, check.passed, check.failed
        )?;
    }
    Ok(())
}

impl Display for BroadcastSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let BroadcastSummary { published, receivers, expected, received, lost, .. } = self;
        writeln!(
            f,
            "publications  {published} to {receivers} receivers, {received} of {expected} received"
        )?;
        write!(f, "              {lost} lost, ")?;
        if self.unknown > 0 {
            write!(f, "{} not received yet at the end, ", self.unknown)?;
        }
        write!(f, "{} duplicated, ", self.duplicated)?;
        write!(f, "{} reordered, {} corrupted, ", self.reordered, self.corrupted)?;
        writeln!(f, "{} late, {} stale, {} foreign", self.late, self.stale, self.foreign)?;
        write_latency(f, "  from due    ", self.latency.as_ref())?;
        write_latency(f, "  from send   ", self.from_send.as_ref())?;
        write_latency(f, "  to the first", self.times.to_first.as_ref())?;
        write_latency(f, "  to the last ", self.times.to_last.as_ref())?;
        write_latency(f, "  first–last  ", self.times.first_to_last.as_ref())?;
        let Some(fanout) = &self.fanout else { return Ok(()) };
        let FanoutSummary { rate, reached_rate, receivers_short, worst, .. } = fanout;
        write!(f, "  published     {reached_rate:.1} per second of {rate:.1} requested, by ")?;
        match fanout.publishers {
            1 => writeln!(f, "1 publisher")?,
            publishers => writeln!(f, "{publishers} publishers in turn")?,
        }
        write_latency(f, "  sent late by", fanout.publish_lag.as_ref())?;
        write_latency(f, "  answered in ", fanout.publish.as_ref())?;
        for (cause, count) in &fanout.publish_failed {
            writeln!(f, "  failed        {count}: {cause}")?;
        }
        for (count, what) in [
            (fanout.publish_unsent, "due and not sent"),
            (fanout.publish_unknown, "not answered before the interruption"),
        ] {
            if let Some(count) = count.filter(|count| *count > 0) {
                writeln!(f, "                {count} {what}")?;
            }
        }
        if *receivers_short > 0 {
            writeln!(f, "  {receivers_short} receivers lost some; the worst:")?;
        }
        for Receiver { connection, received, lost } in worst {
            writeln!(f, "    connection {connection}: {lost} lost, {received} received")?;
        }
        Ok(())
    }
}

fn write_causes(f: &mut Formatter<'_>, title: &str, causes: &BTreeMap<String, u64>) -> fmt::Result {
    if causes.is_empty() {
        return Ok(());
    }
    let causes: Vec<String> =
        causes.iter().map(|(name, count)| format!("{name} {count}")).collect();
    writeln!(f, "{title}{}", causes.join(", "))
}

/// Writes a line of percentiles; none if nothing was timed.
pub(crate) fn write_latency(
    f: &mut Formatter<'_>,
    title: &str,
    latency: Option<&Latency>,
) -> fmt::Result {
    let Some(Latency { p50_ms, p90_ms, p99_ms, p999_ms, max_ms, .. }) = latency else {
        return Ok(());
    };
    write!(f, "{title}  p50 {p50_ms:.3} ms, p90 {p90_ms:.3} ms, p99 {p99_ms:.3} ms, ")?;
    writeln!(f, "p99.9 {p999_ms:.3} ms, max {max_ms:.3} ms")
}
