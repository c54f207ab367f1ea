//! What a run measured of one machine, from the JSON that `prove` and `load` write
//! (`docs/protocol/prove-json.md`, `docs/protocol/load-json.md`).

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use capacity::limits::KERNEL_BYTES_PLAUSIBLE;
use capacity::{Count, Decimal};
use load::{Outcome, Sample, Usage};
use serde_json::Value;

use super::request_rate::{Capacity, RequestRun, Second};

/// Size limit of a result file, in bytes; results have some kilobytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What one machine served, and what connections and messages cost it. `None`: not measured.
#[derive(Default, Debug)]
pub(super) struct Measured {
    pub(super) file: String,
    pub(super) capacity: Option<Capacity>,
    /// Memory of the server's process per connection, in bytes.
    pub(super) process_bytes: Option<f64>,
    /// Kernel memory per socket, in bytes; the server has one socket per connection.
    pub(super) kernel_bytes: Option<f64>,
    /// What was measured instead, if it cannot be of the sockets.
    kernel_implausible: Option<f64>,
    /// CPU time of the server per message, in seconds.
    pub(super) message_seconds: Option<f64>,
    /// Whether the run was one of load with --watch-pid.
    is_watched: bool,
    /// Limitations of the figures.
    pub(super) notes: Vec<String>,
}

impl Measured {
    /// Reads a result file.
    ///
    /// # Errors
    /// A file that cannot be read or is not a result of `prove` or `load`.
    pub(super) fn read(path: &Path) -> Result<Measured> {
        let file = path.display().to_string();
        let value = read_json(path)?;
        let measured = if value["verdict"].is_string() && value["server"].is_object() {
            from_proof(&value)
        } else if value["rounds"].is_array() {
            bail!("{file} has several rounds: expected the results of one round");
        } else {
            let outcome = Outcome::read(value).map_err(|why| {
                anyhow!(
                    "{file} is not a result of `standfast prove` or `standfast load`, written by \
                     --json FILE: {why}"
                )
            })?;
            from_load(&outcome)
        };
        Ok(Measured { file, ..measured })
    }

    /// Checks that the figures needed for a target are present.
    pub(super) fn check_has(
        &self,
        requests: bool,
        connections: Option<u64>,
        messages: Option<u64>,
    ) -> Result<(), String> {
        if let Some(bytes) = self.kernel_implausible.filter(|_| connections.is_some()) {
            let (least, most) = (KERNEL_BYTES_PLAUSIBLE.start(), KERNEL_BYTES_PLAUSIBLE.end());
            return Err(format!(
                "{} B of kernel memory per socket are implausible (expected {} to {}): other programs \
                 allocated or freed memory during that proof. Run it again on a machine without them",
                Decimal(bytes, 0),
                Decimal(*least, 0),
                Decimal(*most, 0),
            ));
        }
        self.missing(requests, connections, messages).map_or(Ok(()), |why| Err(why.to_owned()))
    }

    fn missing(
        &self,
        requests: bool,
        connections: Option<u64>,
        messages: Option<u64>,
    ) -> Option<&'static str> {
        if requests && self.capacity.is_none() && connections.or(messages).is_none() {
            return Some(
                "the run made no requests: give --per-machine RATE, or the JSON of \
                        `standfast load http://…`",
            );
        }
        if self.is_watched && connections.is_some() && self.process_bytes.is_none() {
            return Some(
                "no connection of that run opened, so the memory per connection was not measured",
            );
        }
        if self.is_watched && messages.is_some() && self.message_seconds.is_none() {
            return Some(
                "nothing was answered in that run, or it was too short, so the CPU time per message \
                        was not measured",
            );
        }
        if connections.is_some() && self.process_bytes.is_none() {
            return Some(
                "memory per connection is missing: use the JSON of `standfast prove` or of \
                        `standfast load … --watch-pid PID`",
            );
        }
        if messages.is_some() && self.message_seconds.is_none() {
            return Some(
                "CPU time per message is missing: use a run with messages, `standfast prove \
                        --message-every TIME` or `standfast load … --watch-pid PID`",
            );
        }
        None
    }
}

/// Reads a JSON result file.
///
/// # Errors
/// A file that cannot be read, is too large or is not JSON.
pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let file = path.display();
    let length = path.metadata().with_context(|| format!("cannot read {file}"))?.len();
    if length > FILE_BYTES_MAX {
        bail!("{file} has {length} bytes: expected at most {FILE_BYTES_MAX}");
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{file} is not JSON: expected a result written by --json FILE"))
}

fn from_proof(value: &Value) -> Measured {
    let received = value["messages"]["received"].as_f64().filter(|count| *count > 0.0);
    let cpu = value["server"]["cpu_seconds"].as_f64();
    let mut notes = Vec::new();
    if value["verdict"] != "HELD" {
        notes.push(format!("the proof failed: {}", as_text(&value["verdict"])));
    }
    let message_seconds = received.zip(cpu).map(|(count, seconds)| seconds / count);
    if message_seconds.is_some() {
        notes.push("CPU per message includes connects and heartbeats".to_owned());
    }
    // Results of earlier versions have what was measured, whatever it is.
    let kernel = value["kernel_bytes_per_socket"].as_f64();
    let is_plausible = |bytes: &f64| KERNEL_BYTES_PLAUSIBLE.contains(bytes);
    let implausible = value["kernel_bytes_implausible"].as_f64();
    Measured {
        process_bytes: value["server"]["rss_bytes_per_connection"].as_f64(),
        kernel_bytes: kernel.filter(is_plausible),
        kernel_implausible: implausible.or(kernel.filter(|bytes| !is_plausible(bytes))),
        message_seconds,
        notes,
        ..Measured::default()
    }
}

fn from_load(outcome: &Outcome) -> Measured {
    let mut notes = Vec::new();
    if let Some(of) = &outcome.requests {
        if of.failed > 0 {
            let all = of.ok.saturating_add(of.failed);
            let [failed, all] = [of.failed, all].map(Count);
            notes.push(format!("{failed} of {all} requests failed and are not counted"));
        }
        if of.unsent > 0 {
            let unsent = Count(of.unsent);
            notes.push(format!("{unsent} requests of the requested rate were not sent"));
        }
    }
    let watched = outcome.watched.as_ref();
    let message_ms = watched.and_then(|watched| watched.cpu_ms_per_1000_messages());
    Measured {
        capacity: request_run(outcome).as_ref().and_then(Capacity::of),
        process_bytes: watched.and_then(|watched| watched.rss_bytes_per_connection()),
        is_watched: watched.is_some(),
        message_seconds: message_ms.map(|ms| ms / 1e6),
        notes,
        ..Measured::default()
    }
}

/// `None` if it was no run of requests.
fn request_run(outcome: &Outcome) -> Option<RequestRun> {
    let of = outcome.requests.as_ref()?;
    let seconds = outcome.seconds.filter(|seconds| *seconds > 0.0)?;
    let due = of.ok as f64 + of.failed as f64 + of.unsent as f64;
    let pace = &outcome.config.pace;
    let generator = outcome.generator.as_ref();
    Some(RequestRun {
        good_rate: of.ok as f64 / seconds,
        error_share: if due > 0.0 { 1.0 - of.ok as f64 / due } else { 0.0 },
        unsent: of.unsent,
        users: outcome.config.users,
        is_open: (!pace.model.is_empty()).then(|| pace.is_open()),
        asked_rate: pace.rate,
        interrupted: outcome.interrupted,
        saturated: generator.map(|generator| generator.saturated()),
        cores: generator.map(|generator| generator.cores() as f64),
        seconds: seconds_of(outcome),
    })
}

/// The time between each two samples after the warm-up, with the users that the stages had then.
fn seconds_of(outcome: &Outcome) -> Vec<Second> {
    let samples = outcome.samples.samples();
    let of = |phase: &'static str| samples.iter().filter(move |sample| sample.phase == phase);
    let measured: Vec<&Sample> = of("requests").collect();
    // Stages begin when the warm-up is over, at its last sample or less than a second later.
    let begin = of("warm-up").next_back().map_or(0.0, |sample| sample.elapsed_seconds);
    let stages = outcome.config.pace.stages.as_deref();
    let users = outcome.config.users.map(|users| users as f64);
    let pairs = measured.windows(2).filter_map(|pair| {
        let [before, after] = pair else { return None };
        let elapsed = after.elapsed_seconds - before.elapsed_seconds;
        let received = after.received.checked_sub(before.received).filter(|_| elapsed > 0.0)?;
        let middle = after.elapsed_seconds - elapsed / 2.0 - begin;
        let cores = |of: fn(&Sample) -> Option<Usage>| {
            Some((of(after)?.cpu_seconds - of(before)?.cpu_seconds) / elapsed)
        };
        Some(Second {
            users: stages.map_or(users, |stages| at(stages, middle))?,
            rate: received as f64 / elapsed,
            server_cores: cores(|sample| sample.server),
            generator_cores: cores(|sample| sample.client),
        })
    });
    pairs.collect()
}

/// The value of stages at a time after their begin: linear within each, from 0. `None` after the last.
fn at(stages: &[(f64, u64)], seconds: f64) -> Option<f64> {
    let (mut left, mut from) = (seconds.max(0.0), 0.0);
    for (time, to) in stages {
        let to = *to as f64;
        if left < *time {
            return Some(from + (to - from) * left / time);
        }
        left -= time;
        from = to;
    }
    None
}

fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
