//! [`Reply`]: what the application answers, by AnyCable's contract (`etc/rpc.proto`), whatever the transport. Its
//! JSON is that of HTTP RPC.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::decision::{Decision, Verdict};

/// The application's verdict.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Status {
    /// It failed.
    #[default]
    Error,
    Success,
    /// It refused.
    Failure,
}

impl Status {
    /// By its number in the protocol.
    pub(crate) fn of_number(number: i64) -> Option<Status> {
        [Status::Error, Status::Success, Status::Failure]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Name(String),
        }
        let status = match Form::deserialize(deserializer)? {
            Form::Number(number) => Status::of_number(number),
            Form::Name(name) => match &*name {
                "SUCCESS" => Some(Status::Success),
                "FAILURE" => Some(Status::Failure),
                "ERROR" => Some(Status::Error),
                _ => None,
            },
        };
        status.ok_or_else(|| serde::de::Error::custom("status: expected 0, 1 or 2"))
    }
}

/// An answer of the application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    /// To be sent to the client, in order.
    #[serde(deserialize_with = "or_default")]
    pub(crate) transmissions: Vec<String>,
    /// What went wrong, for the log.
    #[serde(deserialize_with = "or_default")]
    pub(crate) error_msg: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) env: States,
    /// The identifiers of a connection.
    #[serde(deserialize_with = "or_default")]
    pub(crate) identifiers: String,
    /// Ends the connection.
    #[serde(deserialize_with = "or_default")]
    pub(crate) disconnect: bool,
    /// Ends all streams of the subscription, before others begin.
    #[serde(deserialize_with = "or_default")]
    pub(crate) stop_streams: bool,
    #[serde(deserialize_with = "or_default")]
    pub(crate) streams: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) stopped_streams: Vec<String>,
    /// A presence event of the subscription.
    pub(crate) presence: Option<PresenceReply>,
    /// The answer of `--auth-url`.
    #[serde(skip)]
    pub(crate) decision: Option<Arc<Decision>>,
}

/// Changes of states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct States {
    #[serde(deserialize_with = "or_default")]
    pub(crate) cstate: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) istate: BTreeMap<String, String>,
}

/// A presence event that the application requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct PresenceReply {
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub(crate) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    /// JSON, in a string as in the protocol, or as it is.
    #[serde(deserialize_with = "json_text")]
    pub(crate) info: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) ttl: u32,
}

impl PresenceReply {
    /// Its info as JSON: text that is not JSON is a string.
    pub(crate) fn info_json(&self) -> Cow<'_, str> {
        match serde_json::from_str::<IgnoredAny>(&self.info) {
            Ok(_) => Cow::Borrowed(&self.info),
            Err(_) => Cow::Owned(Value::from(&*self.info).to_string()),
        }
    }
}

/// The text of a string, or the JSON of another value; empty for null.
fn json_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => other.to_string(),
    })
}

/// A value, or the default for null.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl From<Decision> for Reply {
    fn from(decision: Decision) -> Reply {
        let status = match decision.verdict {
            Verdict::Allowed(_) => Status::Success,
            Verdict::Denied(_) => Status::Failure,
        };
        Reply { status, decision: Some(Arc::new(decision)), ..Reply::default() }
    }
}

impl Reply {
    /// Parses a body of HTTP RPC.
    pub(crate) fn from_json(body: &[u8]) -> Result<Reply, String> {
        // An array would be read as the fields in order.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err("expected an object".to_owned());
        }
        serde_json::from_slice(body).map_err(|error| error.to_string())
    }

    /// The memory that it holds, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = [&self.transmissions, &self.streams, &self.stopped_streams];
        let texts = texts.into_iter().flatten().map(|text| 24 + text.len()).sum::<usize>();
        let pairs = self.env.cstate.iter().chain(&self.env.istate);
        let states = pairs.map(|(key, value)| 48 + key.len() + value.len()).sum::<usize>();
        let presence = self.presence.as_ref().map_or(0, |own| own.id.len() + own.info.len());
        let decision = self.decision.as_ref().map_or(0, |decision| decision.bytes());
        let own = size_of::<Reply>() + self.error_msg.len() + self.identifiers.len();
        own + texts + states + presence + decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn replies_are_read_and_null_is_as_absent() {
        let reply = Reply::from_json(
            br#"{"status":1,"identifiers":"me","transmissions":["{}"],"error_msg":null,"env":{"cstate":
            {"a":"1"},"istate":null},"disconnect":true,"stop_streams":false,"streams":null,
            "stopped_streams":["x"],"presence":{"type":"join","id":"7"},"unknown":[1]}"#,
        );
        let reply = reply.unwrap();
        assert_eq!((reply.status, &*reply.identifiers), (Status::Success, "me"));
        assert_eq!((reply.transmissions.len(), reply.stopped_streams.len()), (1, 1));
        assert_eq!(reply.env, States { cstate: map(&[("a", "1")]), istate: map(&[]) });
        assert!(reply.disconnect && !reply.stop_streams && reply.presence.is_some());
        let least = Reply::from_json(br#"{"env":null}"#).unwrap();
        assert_eq!(least, Reply::default(), "an error, as without a status in the protocol");
        assert_eq!(Reply::from_json(br#"{"status":"FAILURE"}"#).unwrap().status, Status::Failure);
        for wrong in [
            "",
            "{",
            "[]",
            "7",
            r#"{"status":3}"#,
            r#"{"status":-1}"#,
            r#"{"streams":"a"}"#,
            r#"{"status":1}{}"#,
            r#"{"status":"yes"}"#,
            r#"{"env":{"cstate":{"a":1}}}"#,
        ] {
            assert!(Reply::from_json(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
