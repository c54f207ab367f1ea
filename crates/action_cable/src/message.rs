//! [`Message`]: a server's message.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use serde::Deserialize;

use crate::json::{Object, Raw, Text, object, optional_text, present, put_string, scalar, text};
use crate::{DisconnectReason, Malformed, Position, PresenceEvent};

/// A server's message. `identifier` is the identifier of the subscription.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Message<'a> {
    /// The first message.
    Welcome {
        /// The session id, by which the connection can be resumed in the extended protocol.
        sid: Option<Cow<'a, str>>,
        /// The restored subscriptions of a resumed session.
        restored: Option<Vec<Cow<'a, str>>>,
    },
    /// The server's heartbeat.
    Ping {
        /// The server's time, by convention Unix seconds; 0 if it sends none or another value.
        message: u64,
    },
    /// The answer to a client's ping.
    Pong,
    /// Subscribed.
    Confirm {
        /// The subscription.
        identifier: Cow<'a, str>,
    },
    /// Not subscribed.
    Reject {
        /// The subscription.
        identifier: Cow<'a, str>,
    },
    /// All requested messages have been sent.
    ConfirmHistory {
        /// The subscription.
        identifier: Cow<'a, str>,
    },
    /// Not all requested messages are available; none were sent.
    RejectHistory {
        /// The subscription.
        identifier: Cow<'a, str>,
    },
    /// The last message.
    Disconnect {
        /// The reason.
        reason: DisconnectReason<'a>,
        /// Whether the client should reconnect.
        reconnect: bool,
    },
    /// A publication.
    Data {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// Any JSON.
        message: &'a str,
        /// Its position, if the stream has offsets.
        position: Option<Position<'a>>,
    },
    /// A presence message.
    Presence {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// The event.
        event: PresenceEvent<'a>,
    },
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Raw<'a>>,
    #[serde(borrow)]
    identifier: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    message: Option<Raw<'a>>,
    #[serde(borrow)]
    sid: Option<Raw<'a>>,
    #[serde(borrow)]
    restored: Option<Raw<'a>>,
    #[serde(borrow)]
    restored_ids: Option<Raw<'a>>,
    #[serde(borrow)]
    reason: Option<Raw<'a>>,
    #[serde(borrow)]
    reconnect: Option<Raw<'a>>,
    #[serde(borrow)]
    stream_id: Option<Raw<'a>>,
    #[serde(borrow)]
    epoch: Option<Raw<'a>>,
    #[serde(borrow)]
    offset: Option<Raw<'a>>,
}

impl<'a> Message<'a> {
    /// Parses a server's message.
    ///
    /// # Errors
    /// Why it is malformed.
    pub fn decode(json: &'a str) -> Result<Self, Malformed> {
        let fields: Fields = object(json)?;
        let identifier = || text(fields.identifier, "identifier");
        let message = fields.message.ok_or(Malformed::Missing("message"));
        let Some(kind) = optional_text(fields.kind, "type")? else {
            let (identifier, position) = (identifier()?, fields.position()?);
            return Ok(Message::Data { identifier, message: message?.get(), position });
        };
        Ok(match &*kind {
            "welcome" => Message::Welcome {
                sid: optional_text(fields.sid, "sid")?,
                restored: fields.restored()?,
            },
            "ping" => {
                let time = scalar(fields.message, "message").ok().flatten();
                Message::Ping { message: time.unwrap_or(0) }
            }
            "pong" => Message::Pong,
            "confirm_subscription" => Message::Confirm { identifier: identifier()? },
            "reject_subscription" => Message::Reject { identifier: identifier()? },
            "confirm_history" => Message::ConfirmHistory { identifier: identifier()? },
            "reject_history" => Message::RejectHistory { identifier: identifier()? },
            "disconnect" => {
                let reason = optional_text(fields.reason, "reason")?.unwrap_or_default();
                let reason = DisconnectReason::from(reason);
                let reconnect = scalar(fields.reconnect, "reconnect")?;
                Message::Disconnect { reconnect: reconnect.unwrap_or(reason.reconnect()), reason }
            }
            "presence" => {
                let event = PresenceEvent::decode(message?)?;
                Message::Presence { identifier: identifier()?, event }
            }
            _ => return Err(Malformed::UnknownType),
        })
    }

    /// Appends it as JSON. `message` and `info` must be JSON; they are not validated.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Message::Data { identifier, message, position } = self {
            data_prefix(identifier, out);
            out.extend_from_slice(message.as_bytes());
            return data_suffix(position.as_ref(), out);
        }
        let mut object = Object::begin(out);
        object.text("type", self.kind());
        match self {
            Message::Welcome { sid, restored } => {
                object.optional_text("sid", sid.as_deref());
                if let Some(ids) = restored {
                    put_texts(ids, object.flag("restored", true).key("restored_ids"));
                }
            }
            Message::Ping { message } => {
                object.number("message", *message);
            }
            Message::Confirm { identifier }
            | Message::Reject { identifier }
            | Message::ConfirmHistory { identifier }
            | Message::RejectHistory { identifier } => {
                object.text("identifier", identifier);
            }
            Message::Disconnect { reason, reconnect } => {
                object.text("reason", reason.as_str()).flag("reconnect", *reconnect);
            }
            Message::Presence { identifier, event } => {
                event.put("message", object.text("identifier", identifier));
            }
            Message::Pong | Message::Data { .. } => {}
        }
        object.end();
    }

    /// The value of `type`; data messages have none.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Message::Welcome { .. } => "welcome",
            Message::Ping { .. } => "ping",
            Message::Pong => "pong",
            Message::Confirm { .. } => "confirm_subscription",
            Message::Reject { .. } => "reject_subscription",
            Message::ConfirmHistory { .. } => "confirm_history",
            Message::RejectHistory { .. } => "reject_history",
            Message::Disconnect { .. } => "disconnect",
            Message::Presence { .. } => "presence",
            Message::Data { .. } => "",
        }
    }
}

impl<'a> Fields<'a> {
    fn restored(&self) -> Result<Option<Vec<Cow<'a, str>>>, Malformed> {
        if scalar(self.restored, "restored")? != Some(true) {
            return Ok(None);
        }
        let ids: Option<Vec<Text>> = scalar(self.restored_ids, "restored_ids")?;
        Ok(Some(ids.unwrap_or_default().into_iter().map(|id| id.0).collect()))
    }

    /// All three fields, or none.
    fn position(&self) -> Result<Option<Position<'a>>, Malformed> {
        let stream_id = optional_text(self.stream_id, "stream_id")?;
        let epoch = optional_text(self.epoch, "epoch")?;
        let offset = scalar(self.offset, "offset")?;
        match (stream_id, epoch, offset) {
            (Some(stream_id), Some(epoch), Some(offset)) => {
                Ok(Some(Position { stream_id, epoch, offset }))
            }
            (_, None, None) => Ok(None),
            (None, ..) => Err(Malformed::Missing("stream_id")),
            (_, None, _) => Err(Malformed::Missing("epoch")),
            (.., None) => Err(Malformed::Missing("offset")),
        }
    }
}

/// Appends the part of a [`Message::Data`] before its message.
pub fn data_prefix(identifier: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"identifier":"#);
    put_string(identifier, out);
    out.extend_from_slice(br#","message":"#);
}

/// Appends `prefix` of [`data_prefix`] with a `type`, so that clients do not treat it as plain data.
pub fn typed_prefix(kind: &str, prefix: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"type":"#);
    put_string(kind, out);
    out.push(b',');
    out.extend_from_slice(prefix.strip_prefix(b"{").unwrap_or(prefix));
}

/// Appends the part after the message.
pub fn data_suffix(position: Option<&Position<'_>>, out: &mut Vec<u8>) {
    let Some(position) = position else { return out.push(b'}') };
    let mut rest = Object::after(out);
    position.put(&mut rest);
    rest.end();
}

fn put_texts(texts: &[Cow<'_, str>], out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        put_string(text, out);
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec;

    use super::*;
    use crate::Presence;

    const ID: &str = r#"{"channel":"A"}"#;

    fn identifier() -> Cow<'static, str> {
        Cow::Borrowed(ID)
    }

    fn encoded(message: &Message) -> String {
        let mut out = Vec::new();
        message.encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    /// Messages as real servers send them.
    #[test]
    fn messages_are_parsed_and_encoded_as_servers_send_them() {
        let data =
            |message, position| Message::Data { identifier: identifier(), message, position };
        let presence = |event| Message::Presence { identifier: identifier(), event };
        let position = Position { stream_id: "s/1".into(), epoch: "e".into(), offset: 7 };
        let (ann, bob) = (
            Presence { id: "ann".into(), info: Some(r#"{"x":1}"#) },
            Presence { id: "bob".into(), info: None },
        );
        for (text, message) in [
            (r#"{"type":"welcome"}"#, Message::Welcome { sid: None, restored: None }),
            (
                r#"{"type":"welcome","sid":"s1"}"#,
                Message::Welcome { sid: Some("s1".into()), restored: None },
            ),
            (
                r#"{"type":"welcome","sid":"s2","restored":true,"restored_ids":["{\"channel\":\"A\"}","b"]}"#,
                Message::Welcome {
                    sid: Some("s2".into()),
                    restored: Some(vec![identifier(), "b".into()]),
                },
            ),
            (r#"{"type":"ping","message":1700000000}"#, Message::Ping { message: 1_700_000_000 }),
            (r#"{"type":"pong"}"#, Message::Pong),
            (
                r#"{"type":"confirm_subscription","identifier":"{\"channel\":\"A\"}"}"#,
                Message::Confirm { identifier: identifier() },
            ),
            (
                r#"{"type":"reject_subscription","identifier":"{\"channel\":\"A\"}"}"#,
                Message::Reject { identifier: identifier() },
            ),
            (
                r#"{"type":"confirm_history","identifier":"{\"channel\":\"A\"}"}"#,
                Message::ConfirmHistory { identifier: identifier() },
            ),
            (
                r#"{"type":"reject_history","identifier":"{\"channel\":\"A\"}"}"#,
                Message::RejectHistory { identifier: identifier() },
            ),
            (
                r#"{"type":"disconnect","reason":"unauthorized","reconnect":false}"#,
                Message::Disconnect { reason: DisconnectReason::Unauthorized, reconnect: false },
            ),
            (
                r#"{"identifier":"{\"channel\":\"A\"}","message":{"a":[1, 2]}}"#,
                data(r#"{"a":[1, 2]}"#, None),
            ),
            (r#"{"identifier":"{\"channel\":\"A\"}","message":null}"#, data("null", None)),
            (
                r#"{"identifier":"{\"channel\":\"A\"}","message":"hi","stream_id":"s/1","epoch":"e","offset":7}"#,
                data(r#""hi""#, Some(position)),
            ),
            (
                r#"{"type":"presence","identifier":"{\"channel\":\"A\"}","message":{"type":"join","id":"ann","info":{"x":1}}}"#,
                presence(PresenceEvent::Join(ann.clone())),
            ),
            (
                r#"{"type":"presence","identifier":"{\"channel\":\"A\"}","message":{"type":"leave","id":"ann"}}"#,
                presence(PresenceEvent::Leave { id: "ann".into() }),
            ),
            (
                r#"{"type":"presence","identifier":"{\"channel\":\"A\"}","message":{"type":"info","total":2,"records":[{"id":"ann","info":{"x":1}},{"id":"bob"}]}}"#,
                presence(PresenceEvent::Info { total: 2, records: vec![ann, bob] }),
            ),
            (
                r#"{"type":"presence","identifier":"{\"channel\":\"A\"}","message":{"type":"error"}}"#,
                presence(PresenceEvent::Error),
            ),
        ] {
            assert_eq!(Message::decode(text).as_ref(), Ok(&message), "{text}");
            assert_eq!(encoded(&message), text);
        }
    }

    #[test]
    fn optional_fields_can_be_missing() {
        for (text, message) in [
            (r#"{"type":"ping"}"#, Message::Ping { message: 0 }),
            (r#"{"type":"ping","message":"now"}"#, Message::Ping { message: 0 }),
            (
                r#"{"type":"disconnect"}"#,
                Message::Disconnect { reason: DisconnectReason::Other("".into()), reconnect: true },
            ),
            (
                r#"{"type":"disconnect","reason":"token_expired"}"#,
                Message::Disconnect { reason: DisconnectReason::TokenExpired, reconnect: false },
            ),
            (
                r#"{"type":"welcome","restored":false,"restored_ids":["a"]}"#,
                Message::Welcome { sid: None, restored: None },
            ),
            (
                r#"{"identifier":"i","message":1,"stream_id":"s"}"#,
                Message::Data { identifier: "i".into(), message: "1", position: None },
            ),
        ] {
            assert_eq!(Message::decode(text), Ok(message), "{text}");
        }
    }

    #[test]
    fn malformed_messages_are_errors() {
        use Malformed::{Invalid, Missing, NotAnObject, NotJson, Repeated, UnknownType};
        for (text, why) in [
            ("\u{feff}{}", NotJson { line: 1, column: 1 }),
            ("[]", NotAnObject),
            ("{}", Missing("identifier")),
            (r#"{"identifier":"i"}"#, Missing("message")),
            (r#"{"type":"pang"}"#, UnknownType),
            (r#"{"type":7}"#, Invalid("type")),
            (r#"{"type":"pong","type":"ping"}"#, Repeated),
            (r#"{"type":"confirm_subscription"}"#, Missing("identifier")),
            (r#"{"type":"disconnect","reason":1}"#, Invalid("reason")),
            (r#"{"type":"disconnect","reconnect":"no"}"#, Invalid("reconnect")),
            (r#"{"type":"welcome","restored":true,"restored_ids":[1]}"#, Invalid("restored_ids")),
            (r#"{"identifier":"i","message":1,"epoch":"e","offset":1}"#, Missing("stream_id")),
            (r#"{"identifier":"i","message":1,"stream_id":"s","offset":1}"#, Missing("epoch")),
            (r#"{"identifier":"i","message":1,"stream_id":"s","epoch":"e"}"#, Missing("offset")),
            (
                r#"{"identifier":"i","message":1,"stream_id":"s","epoch":"e","offset":-1}"#,
                Invalid("offset"),
            ),
            (r#"{"type":"presence","identifier":"i"}"#, Missing("message")),
            (r#"{"type":"presence","identifier":"i","message":[]}"#, Invalid("message")),
            (r#"{"type":"presence","identifier":"i","message":{"type":"info"}}"#, Missing("total")),
            (
                r#"{"type":"presence","identifier":"i","message":{"type":"dance"}}"#,
                Invalid("message.type"),
            ),
        ] {
            assert_eq!(Message::decode(text), Err(why), "{text}");
        }
    }
}
