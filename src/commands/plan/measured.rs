//! The capacity of one machine as measured by a run, from the JSON that `prove` and `load` write
//! (`docs/protocol/prove-json.md`, `docs/protocol/load-json.md`).

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Size limit of a result file, in bytes; results have some kilobytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The measured capacity of one machine, and the cost of connections and messages.
#[derive(Default, Debug)]
pub(super) struct Measured {
    pub(super) file: String,
    /// Successful requests per second.
    pub(super) requests_per_second: Option<f64>,
    /// Memory of the server's process per connection, in bytes.
    pub(super) process_bytes: Option<f64>,
    /// Kernel memory per socket, in bytes; the server has one socket per connection.
    pub(super) kernel_bytes: Option<f64>,
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
        } else if value["requests"].is_object() || value["connections"].is_object() {
            from_load(&value)
        } else if value["rounds"].is_array() {
            bail!("{file} has several rounds: expected the results of one round");
        } else {
            bail!(
                "{file} is not a result of `standfast prove` or `standfast load`: expected a file \
                 written by --json FILE"
            );
        };
        Ok(Measured { file, ..measured })
    }

    /// Checks that the figures needed for a target are present.
    pub(super) fn check_has(
        &self,
        requests: bool,
        connections: Option<u64>,
        messages: Option<u64>,
    ) -> Result<(), &'static str> {
        if requests && self.requests_per_second.is_none() && connections.or(messages).is_none() {
            return Err("the run made no requests: give --per-machine RATE, or the JSON of \
                        `standfast load http://…`");
        }
        if self.is_watched && connections.is_some() && self.process_bytes.is_none() {
            return Err(
                "no connection of that run opened, so the memory per connection was not measured",
            );
        }
        if self.is_watched && messages.is_some() && self.message_seconds.is_none() {
            return Err(
                "nothing was answered in that run, so the CPU time per message was not measured",
            );
        }
        if connections.is_some() && self.process_bytes.is_none() {
            return Err(
                "memory per connection is missing: use the JSON of `standfast prove` or of \
                        `standfast load … --watch-pid PID`",
            );
        }
        if messages.is_some() && self.message_seconds.is_none() {
            return Err(
                "CPU time per message is missing: use a run with messages, `standfast prove \
                        --message-every TIME` or `standfast load … --watch-pid PID`",
            );
        }
        Ok(())
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
    serde_json::from_str(&text).with_context(|| format!("{file} is not JSON"))
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
    let kernel_bytes = value["kernel_bytes_per_socket"].as_f64();
    if kernel_bytes.is_none() {
        notes.push("kernel memory was not measured and is not included".to_owned());
    }
    Measured {
        process_bytes: value["server"]["rss_bytes_per_connection"].as_f64(),
        kernel_bytes,
        message_seconds,
        notes,
        ..Measured::default()
    }
}

fn from_load(value: &Value) -> Measured {
    let watched = &value["watched"];
    let requests = &value["requests"];
    let (ok, failed) = (requests["ok"].as_f64(), requests["failed"].as_f64().unwrap_or(0.0));
    let well = ok.zip(value["seconds"].as_f64()).filter(|(_, seconds)| *seconds > 0.0);
    let mut notes = Vec::new();
    if failed > 0.0 {
        let all = ok.unwrap_or(0.0) + failed;
        notes.push(format!("{failed} of {all} requests failed and are not counted"));
    }
    if let Some(unsent) = requests["unsent"].as_u64().filter(|unsent| *unsent > 0) {
        notes.push(format!(
            "{unsent} requests of the requested rate were not sent: this was the maximum"
        ));
    }
    let (rate, unsent) = (value["pace"]["rate"].as_f64(), requests["unsent"].as_u64().unwrap_or(0));
    let is_open = value["pace"]["model"] == "open" || value["scheduling_error"].is_object();
    if is_open && unsent == 0 && failed == 0.0 && ok.is_some() {
        let rate = rate.map(|rate| format!(" of {rate} requests per second")).unwrap_or_default();
        notes.push(format!(
            "the run used an open model{rate} and all requests were answered: the machine may serve \
             more, so measure without --rate or with a higher one"
        ));
    }
    if let Some(why) = load::saturated(value) {
        notes.push(format!(
            "the generator was the bottleneck of that run ({why}): the machine may serve more"
        ));
    }
    let process_bytes = watched["rss_bytes_per_connection"].as_f64();
    if process_bytes.is_some() {
        notes.push(
            "kernel memory is not included in a run of load: add about 4,400 B per socket"
                .to_owned(),
        );
    }
    Measured {
        requests_per_second: well.map(|(ok, seconds)| ok / seconds),
        process_bytes,
        is_watched: watched.is_object(),
        message_seconds: watched["cpu_ms_per_1000_messages"].as_f64().map(|ms| ms / 1e6),
        notes,
        ..Measured::default()
    }
}

fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
