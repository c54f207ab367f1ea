//! [`RequestSummary`]: the summary of a run of requests, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use crate::outcome::failure::Failure;
use crate::outcome::request_metrics::RequestSnapshot;
use crate::outcome::summary::write_latency;
use crate::{Latency, Recorder, Series};

/// The summary of a run. Requests due in the warm-up are only in the figures that name it.
#[derive(Clone, Debug, Serialize)]
pub struct RequestSummary {
    /// Requests.
    pub requests: RequestCounts,
    /// From the end of the warm-up to the end of the configured time or of the last request, whichever
    /// is later; to the end of the last request if users or a number of requests ended the run.
    pub seconds: f64,
    /// Answers per second in that time.
    pub per_second: f64,
    /// From the due time of a request to the end of its answer; null without answers.
    pub latency: Option<Latency>,
    /// From the send to the end of the answer.
    pub service_time: Option<Latency>,
    /// Delay from the due time to the send although a user was free (open model): the error of the
    /// generator.
    pub scheduling_error: Option<Latency>,
    /// Answers by status.
    pub status: BTreeMap<u16, u64>,
    /// Failed requests by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// Connections.
    pub connections: RequestConnections,
    /// Bytes of bodies received, without framing, before decoding.
    pub body_bytes: u64,
    /// Decoded bytes of bodies with a content coding that were used.
    pub decoded_bytes: u64,
}

/// Requests by result.
#[derive(Copy, Clone, Default, Debug, Serialize)]
pub struct RequestCounts {
    /// Answered as expected.
    pub ok: u64,
    /// Not answered, or not as expected; together with `ok` all that were begun.
    pub failed: u64,
    /// Passed to the kernel; other failed requests had no connection.
    pub sent: u64,
    /// Answered completely with any status.
    pub answered: u64,
    /// Failed because there was no answer when the run ended.
    pub unfinished: u64,
    /// Due in the open model but never sent, as no user was free.
    pub unsent: u64,
    /// Sent in the warm-up.
    pub warm_up: u64,
    /// Sent to follow redirects.
    pub redirects: u64,
}

/// The connections of a run.
#[derive(Copy, Clone, Default, Debug, Serialize)]
pub struct RequestConnections {
    /// Opened.
    pub opened: u64,
    /// Connects that failed.
    pub failed: u64,
    /// Closed by the server while idle.
    pub closed_idle: u64,
    /// Closed because the server sent unsolicited data.
    pub unasked: u64,
    /// The most sockets of this machine in `TIME_WAIT` at any sample.
    pub time_wait_most: u64,
}

impl RequestSummary {
    pub(crate) fn new(
        counts: &RequestSnapshot,
        timed: &Recorder,
        measured: Duration,
        unsent: u64,
        time_wait_most: u64,
    ) -> RequestSummary {
        let seconds = measured.as_secs_f64();
        let RequestSnapshot { ok, sent, answered, redirects, .. } = *counts;
        let unfinished = counts.failed.get(Failure::Unfinished.index()).copied();
        RequestSummary {
            requests: RequestCounts {
                ok,
                failed: counts.failed_total(),
                sent,
                answered,
                unfinished: unfinished.unwrap_or_default(),
                unsent,
                warm_up: counts.warm_up_sent,
                redirects,
            },
            seconds,
            per_second: if seconds > 0.0 { answered as f64 / seconds } else { 0.0 },
            latency: timed.latency(Series::Latency),
            service_time: timed.latency(Series::ServiceTime),
            scheduling_error: timed.latency(Series::SendLag),
            status: counts.statuses().collect(),
            errors: counts.errors().into_iter().collect(),
            connections: RequestConnections {
                opened: counts.opened,
                failed: counts.connects_failed,
                closed_idle: counts.closed_idle,
                unasked: counts.unasked,
                time_wait_most,
            },
            body_bytes: counts.body_bytes,
            decoded_bytes: counts.decoded_bytes,
        }
    }

    /// Requests that failed or were due and never sent.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.requests.failed + self.requests.unsent
    }

    /// The share of errors in all due requests, from 0 to 1; `None` if none was due.
    #[must_use]
    pub fn error_share(&self) -> Option<f64> {
        let due = self.requests.ok + self.errors();
        (due > 0).then(|| self.errors() as f64 / due as f64)
    }

    /// The shortfalls as clauses; empty if all requests were answered as expected.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let RequestCounts { failed, unsent, answered, .. } = self.requests;
        let shortfalls =
            [(failed, "requests failed"), (unsent, "requests were due and never sent")];
        let some = shortfalls.into_iter().filter(|(count, _)| *count > 0);
        let nothing = (answered == 0).then(|| "nothing was answered".to_owned());
        some.map(|(count, what)| format!("{count} {what}")).chain(nothing).collect()
    }
}

impl Display for RequestSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RequestCounts { ok, failed, sent, unsent, warm_up, redirects, .. } = self.requests;
        // A request whose connect failed was begun but not sent.
        match ok + failed {
            begun if begun > sent => write!(f, "requests      {begun}, of which {sent} were sent")?,
            _ => write!(f, "requests      {sent} sent")?,
        }
        writeln!(f, ": {ok} ok, {failed} failed")?;
        for (count, what) in [
            (unsent, "were due and never sent: no connection was free"),
            (warm_up, "in the warm-up, not counted otherwise"),
            (redirects, "more to follow redirects"),
        ] {
            if count > 0 {
                writeln!(f, "              {count} {what}")?;
            }
        }
        let (seconds, per_second) = (self.seconds, self.per_second);
        writeln!(f, "answers       {per_second:.1} per second over {seconds:.2} s")?;
        if !self.status.is_empty() {
            let named: Vec<String> =
                self.status.iter().map(|(status, count)| format!("{status}: {count}")).collect();
            writeln!(f, "  status        {}", named.join(", "))?;
        }
        if !self.errors.is_empty() {
            let named: Vec<String> =
                self.errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
            writeln!(f, "  failed by     {}", named.join(", "))?;
        }
        write_latency(f, "  latency     ", self.latency.as_ref())?;
        write_latency(f, "  service time", self.service_time.as_ref())?;
        write_latency(f, "  sent late by", self.scheduling_error.as_ref())?;
        let RequestConnections { opened, failed, closed_idle, unasked, time_wait_most } =
            self.connections;
        write!(f, "connections   {opened} opened, {failed} failed")?;
        writeln!(f, "; at most {time_wait_most} sockets in TIME_WAIT on this machine")?;
        for (count, what) in [
            (closed_idle, "closed by the server while idle"),
            (unasked, "closed: the server sent unsolicited data"),
        ] {
            if count > 0 {
                writeln!(f, "              {count} {what}")?;
            }
        }
        write!(f, "bodies        {} bytes", self.body_bytes)?;
        match self.decoded_bytes {
            0 => writeln!(f),
            decoded => writeln!(f, "; {decoded} bytes after decoding"),
        }
    }
}
