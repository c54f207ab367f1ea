//! Requests to JetStream: streams created, changed and described, and how many answers are asked for at a time.

use std::cell::Cell;
use std::time::Duration;

use serde_json::{Value, json};

use super::connection::{Connection, Requests};
use super::protocol;
use super::stored::{ApiError, answer, invalid, time_ms};
use crate::limits::{BATCH_CHANNELS, FETCH_BYTES, FETCH_CHANNELS_FIRST, STREAM_ATTEMPTS};
use crate::transport::{Fault, FaultKind};

/// `stream name already in use`: another node has created it meanwhile.
const NAME_IN_USE: &str = "10058";

/// What a stream says of itself.
pub(super) struct State {
    pub(super) created: String,
    pub(super) first: u64,
    pub(super) last: u64,
    /// Times of these, in milliseconds since 1970.
    pub(super) first_ms: u64,
    pub(super) last_ms: u64,
    pub(super) config: Value,
}

impl State {
    fn of(answer: Value) -> Result<Self, Fault> {
        let state = &answer["state"];
        let ms = |name: &str| state[name].as_str().and_then(time_ms).unwrap_or_default();
        let found = (answer["created"].as_str(), state["first_seq"].as_u64());
        let (Some(created), Some(first)) = found else { return Err(invalid("STREAM.INFO")) };
        Ok(State {
            created: created.to_owned(),
            first,
            last: state["last_seq"].as_u64().ok_or_else(|| invalid("STREAM.INFO"))?,
            first_ms: ms("first_ts"),
            last_ms: ms("last_ts"),
            config: answer.get("config").cloned().unwrap_or_default(),
        })
    }
}

/// How many messages are asked for at a time, by the bytes of the last answers.
pub(super) struct Width(Cell<usize>);

impl Default for Width {
    fn default() -> Self {
        Width(Cell::new(FETCH_CHANNELS_FIRST))
    }
}

impl Width {
    pub(super) fn get(&self) -> usize {
        self.0.get()
    }

    /// So many bytes answered so many requests.
    pub(super) fn adapt(&self, bytes: usize, many: usize) {
        let width = self.0.get();
        if bytes > FETCH_BYTES {
            self.0.set((width / 2).max(1));
        } else if bytes < FETCH_BYTES / 4 && many >= width {
            self.0.set((width * 2).min(BATCH_CHANNELS));
        }
    }
}

/// A name without what names of streams may not have, with this at its end.
pub(super) fn stream_name(prefix: &str, what: &str) -> String {
    let mut name = String::with_capacity(prefix.len() + 1 + what.len());
    for byte in prefix.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => name.push(char::from(byte)),
            other => name.push_str(&format!("_{other:02X}")),
        }
    }
    name + "_" + what
}

/// As settings of streams have it.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(i64::MAX as u64)
}

/// The settings of a new stream that are the same for all.
pub(super) fn new_stream(name: &str) -> Value {
    json!({
        "name": name,
        "retention": "limits",
        "storage": "file",
        "num_replicas": 1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_consumers": -1,
    })
}

pub(super) fn refused(why: String) -> Fault {
    Fault::new(FaultKind::Refused, why)
}

/// Why a stream does not do what it is asked for.
pub(super) fn fault(name: &str, error: ApiError) -> Fault {
    match error {
        ApiError::Other(fault) => fault,
        ApiError::NoStream => {
            Fault::new(FaultKind::Closed, format!("JetStream: the stream {name} is gone"))
        }
        ApiError::NoRoom => refused(format!("JetStream: no room for the stream {name}")),
        ApiError::NoMessage | ApiError::TooLong | ApiError::Conflict => invalid(name),
    }
}

/// The subject of requests to a stream.
pub(super) fn subject(operation: &str, name: &str) -> String {
    format!("$JS.API.{operation}.{name}")
}

pub(super) fn request(requests: &mut Requests<'_>, subject: &str, body: &str) {
    let reply = requests.reply();
    protocol::request(&mut requests.bytes, subject, &reply, body.as_bytes());
}

async fn ask(
    connection: &Connection,
    operation: &str,
    name: &str,
    body: Option<Value>,
) -> Result<Value, ApiError> {
    let mut requests = connection.requests();
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    request(&mut requests, &subject(operation, name), &body);
    let answers = requests.send().await.map_err(ApiError::Other)?;
    let first = answers.first().ok_or_else(|| ApiError::Other(invalid(operation)))?;
    answer(first)
}

/// Creates a stream with these settings, or changes the one that is there: `changed` returns all settings that it
/// is to have instead.
pub(super) async fn open_stream(
    connection: &Connection,
    name: &str,
    config: &Value,
    changed: impl Fn(&State) -> Option<Value>,
) -> Result<State, Fault> {
    for _ in 0..STREAM_ATTEMPTS {
        let found = match ask(connection, "STREAM.INFO", name, None).await {
            Ok(answer) => State::of(answer)?,
            Err(ApiError::NoStream) => {
                // Another node may have created it meanwhile.
                match ask(connection, "STREAM.CREATE", name, Some(config.clone())).await {
                    Ok(_) | Err(ApiError::NoStream) => continue,
                    Err(ApiError::Other(fault)) if fault.why.contains(NAME_IN_USE) => continue,
                    Err(error) => return Err(fault(name, error)),
                }
            }
            Err(error) => return Err(fault(name, error)),
        };
        if found.config["retention"] != "limits" {
            return Err(refused(format!("JetStream: the retention of {name} must be limits")));
        }
        let Some(config) = changed(&found) else { return Ok(found) };
        if let Err(error) = ask(connection, "STREAM.UPDATE", name, Some(config)).await {
            return Err(fault(name, error));
        }
    }
    Err(refused(format!("JetStream: the stream {name} does not take its settings")))
}

/// The state of a stream, unless it was created anew since this time.
pub(super) async fn state(
    connection: &Connection,
    name: &str,
    created: &str,
) -> Result<State, Fault> {
    let answer = ask(connection, "STREAM.INFO", name, None).await;
    let state = State::of(answer.map_err(|error| fault(name, error))?)?;
    if state.created != created {
        let why = format!("JetStream: the stream {name} was created anew");
        return Err(Fault::new(FaultKind::Closed, why));
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_streams_differ_and_have_no_other_signs() {
        assert_eq!(stream_name("standfast-1", "history"), "standfast-1_history");
        assert_eq!(stream_name("a.b_c>", "history"), "a_2Eb_5Fc_3E_history");
    }
}
