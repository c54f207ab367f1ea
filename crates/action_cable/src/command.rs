//! [`Command`]: a client's message.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json::{Object, Raw, object, present, text};
use crate::{History, Malformed, Presence};

/// A client's message. `identifier` is the identifier of its subscription.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Command<'a> {
    /// Subscribes; the server confirms or rejects it.
    Subscribe {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// The request for missed messages.
        history: Option<History<'a>>,
        /// The presence record to join with.
        presence: Option<Presence<'a>>,
    },
    /// Unsubscribes, without an answer.
    Unsubscribe {
        /// The subscription.
        identifier: Cow<'a, str>,
    },
    /// A message to the application's channel.
    Message {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// JSON in a string, by convention an object with `action`.
        data: Cow<'a, str>,
    },
    /// Requests missed messages.
    History {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// Which messages.
        history: History<'a>,
    },
    /// A message to the other subscribers, bypassing the application.
    Whisper {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// Any JSON.
        data: &'a str,
    },
    /// Joins the presence set.
    Join {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// The record.
        presence: Presence<'a>,
    },
    /// Leaves the presence set.
    Leave {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// The id that leaves; by default the one that joined on this connection.
        id: Option<Cow<'a, str>>,
    },
    /// Requests the presence set.
    Presence {
        /// The subscription.
        identifier: Cow<'a, str>,
        /// Whether to list the members, or only count them.
        records: bool,
    },
    /// Requests a pong.
    Ping,
    /// The answer to a ping.
    Pong,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    command: Option<Raw<'a>>,
    #[serde(borrow)]
    identifier: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<Raw<'a>>,
    #[serde(borrow)]
    history: Option<Raw<'a>>,
    #[serde(borrow)]
    presence: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct PresenceData {
    return_records: Option<bool>,
}

impl<'a> Command<'a> {
    /// Parses a client's message.
    ///
    /// # Errors
    /// Why it is malformed.
    pub fn decode(json: &'a str) -> Result<Self, Malformed> {
        let fields: Fields = object(json)?;
        let identifier = || text(fields.identifier, "identifier");
        let data = fields.data.ok_or(Malformed::Missing("data"));
        Ok(match &*text(fields.command, "command")? {
            "subscribe" => Command::Subscribe {
                identifier: identifier()?,
                history: History::decode(fields.history)?,
                presence: Presence::decode(fields.presence)?,
            },
            "unsubscribe" => Command::Unsubscribe { identifier: identifier()? },
            "message" => {
                Command::Message { identifier: identifier()?, data: text(Some(data?), "data")? }
            }
            "history" => {
                let history = History::decode(fields.history)?;
                // AnyCable's client leaves it out if it has received nothing yet.
                Command::History { identifier: identifier()?, history: history.unwrap_or_default() }
            }
            "whisper" => Command::Whisper { identifier: identifier()?, data: data?.get() },
            "join" => {
                let presence = Presence::decode(fields.presence)?;
                let presence = presence.ok_or(Malformed::Missing("presence"))?;
                Command::Join { identifier: identifier()?, presence }
            }
            "leave" => {
                let id = Presence::decode_id(fields.presence)?;
                Command::Leave { identifier: identifier()?, id }
            }
            "presence" => Command::Presence {
                identifier: identifier()?,
                records: wants_records(fields.data)?,
            },
            "ping" => Command::Ping,
            "pong" => Command::Pong,
            _ => return Err(Malformed::UnknownCommand),
        })
    }

    /// The value of `command`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Command::Subscribe { .. } => "subscribe",
            Command::Unsubscribe { .. } => "unsubscribe",
            Command::Message { .. } => "message",
            Command::History { .. } => "history",
            Command::Whisper { .. } => "whisper",
            Command::Join { .. } => "join",
            Command::Leave { .. } => "leave",
            Command::Presence { .. } => "presence",
            Command::Ping => "ping",
            Command::Pong => "pong",
        }
    }

    /// Appends it as JSON. `data` and `info` must be JSON; they are not validated.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut object = Object::begin(out);
        object.text("command", self.name());
        match self {
            Command::Subscribe { identifier, history, presence } => {
                object.text("identifier", identifier);
                history.iter().for_each(|history| history.put(&mut object));
                presence.iter().for_each(|presence| presence.put(&mut object));
            }
            Command::Unsubscribe { identifier } => {
                object.text("identifier", identifier);
            }
            Command::Message { identifier, data } => {
                object.text("identifier", identifier).text("data", data);
            }
            Command::History { identifier, history } => {
                history.put(object.text("identifier", identifier));
            }
            Command::Whisper { identifier, data } => {
                object.text("identifier", identifier).raw("data", data);
            }
            Command::Join { identifier, presence } => {
                presence.put(object.text("identifier", identifier));
            }
            Command::Leave { identifier, id } => {
                object.text("identifier", identifier);
                if let Some(id) = id {
                    Object::begin(object.key("presence")).text("id", id).end();
                }
            }
            Command::Presence { identifier, records } => {
                object.text("identifier", identifier);
                if !records {
                    object.raw("data", r#"{"return_records":false}"#);
                }
            }
            Command::Ping | Command::Pong => {}
        }
        object.end();
    }
}

fn wants_records(data: Option<&RawValue>) -> Result<bool, Malformed> {
    let Some(data) = data.map(RawValue::get).filter(|data| *data != "null") else {
        return Ok(true);
    };
    let invalid = |_| Malformed::Invalid("data");
    let PresenceData { return_records } = object(data).map_err(invalid)?;
    Ok(return_records.unwrap_or(true))
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::{format, vec};

    use super::*;
    use crate::Position;

    const ID: &str = r#"{"channel":"ChatChannel","id":1}"#;
    const QUOTED: &str = r#""{\"channel\":\"ChatChannel\",\"id\":1}""#;

    fn identifier() -> Cow<'static, str> {
        Cow::Borrowed(ID)
    }

    fn encoded(command: &Command) -> String {
        let mut out = Vec::new();
        command.encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    /// Messages as real clients send them.
    #[test]
    fn commands_are_parsed_and_encoded_as_clients_send_them() {
        let position = Position { stream_id: "a b".into(), epoch: "e1".into(), offset: u64::MAX };
        let presence = Presence { id: "42".into(), info: Some(r#"{"name":"K"}"#) };
        let history = History { since: Some(1_700_000_000), streams: vec![position] };
        let history_json = r#"{"since":1700000000,"streams":{"a b":{"offset":18446744073709551615,"epoch":"e1"}}}"#;
        let presence_json = r#"{"id":"42","info":{"name":"K"}}"#;
        let none = (None, None);
        let subscribe = |(history, presence)| Command::Subscribe {
            identifier: identifier(),
            history,
            presence,
        };
        for (text, command) in [
            (format!(r#"{{"command":"subscribe","identifier":{QUOTED}}}"#), subscribe(none)),
            (
                format!(
                    r#"{{"command":"subscribe","identifier":{QUOTED},"history":{history_json},"presence":{presence_json}}}"#
                ),
                subscribe((Some(history.clone()), Some(presence.clone()))),
            ),
            (
                format!(r#"{{"command":"unsubscribe","identifier":{QUOTED}}}"#),
                Command::Unsubscribe { identifier: identifier() },
            ),
            (
                format!(
                    r#"{{"command":"message","identifier":{QUOTED},"data":"{{\"action\":\"speak\"}}"}}"#
                ),
                Command::Message { identifier: identifier(), data: r#"{"action":"speak"}"#.into() },
            ),
            (
                format!(
                    r#"{{"command":"history","identifier":{QUOTED},"history":{history_json}}}"#
                ),
                Command::History { identifier: identifier(), history },
            ),
            (
                format!(r#"{{"command":"whisper","identifier":{QUOTED},"data":[null, 1e999]}}"#),
                Command::Whisper { identifier: identifier(), data: "[null, 1e999]" },
            ),
            (
                format!(r#"{{"command":"whisper","identifier":{QUOTED},"data":null}}"#),
                Command::Whisper { identifier: identifier(), data: "null" },
            ),
            (
                format!(r#"{{"command":"join","identifier":{QUOTED},"presence":{presence_json}}}"#),
                Command::Join { identifier: identifier(), presence },
            ),
            (
                format!(r#"{{"command":"leave","identifier":{QUOTED}}}"#),
                Command::Leave { identifier: identifier(), id: None },
            ),
            (
                format!(r#"{{"command":"leave","identifier":{QUOTED},"presence":{{"id":"42"}}}}"#),
                Command::Leave { identifier: identifier(), id: Some("42".into()) },
            ),
            (
                format!(r#"{{"command":"presence","identifier":{QUOTED}}}"#),
                Command::Presence { identifier: identifier(), records: true },
            ),
            (
                format!(
                    r#"{{"command":"presence","identifier":{QUOTED},"data":{{"return_records":false}}}}"#
                ),
                Command::Presence { identifier: identifier(), records: false },
            ),
            (r#"{"command":"ping"}"#.into(), Command::Ping),
            (r#"{"command":"pong"}"#.into(), Command::Pong),
        ] {
            assert_eq!(Command::decode(&text).as_ref(), Ok(&command), "{text}");
            assert_eq!(encoded(&command), text);
        }
    }

    #[test]
    fn identifiers_are_kept_byte_for_byte() {
        // Spaces, the order of keys and escapes are kept.
        for id in
            [r#"{ "id":1.0,"channel" :"A"}"#, r#"{"channel":"\u00e9\/\ud800"}"#, "", "no json\0"]
        {
            let text = encoded(&Command::Unsubscribe { identifier: id.into() });
            assert_eq!(
                Command::decode(&text),
                Ok(Command::Unsubscribe { identifier: id.into() }),
                "{text}"
            );
        }
    }

    #[test]
    fn strings_without_escapes_are_borrowed() {
        let text = r#"{"command":"unsubscribe","identifier":"plain"}"#;
        let Ok(Command::Unsubscribe { identifier: Cow::Borrowed(it) }) = Command::decode(text)
        else {
            panic!("not borrowed");
        };
        assert!(text.as_bytes().as_ptr_range().contains(&it.as_ptr()));
    }

    #[test]
    fn keys_can_be_in_any_order_with_unknown_ones_between() {
        let text = " \n{\"x\":{\"command\":1},\"identifier\":\"i\",\"x\":2,\"history\":null,\
                    \"presence\":null,\"command\":\"subscribe\",\"data\":9}\r\n\t ";
        let plain = Command::Subscribe { identifier: "i".into(), history: None, presence: None };
        assert_eq!(Command::decode(text), Ok(plain));
    }

    #[test]
    fn malformed_commands_are_errors() {
        use Malformed::{Invalid, Missing, NotAnObject, NotJson, Repeated, UnknownCommand};
        for (text, why) in [
            ("", NotJson { line: 1, column: 0 }),
            ("{", NotJson { line: 1, column: 1 }),
            ("hello", NotJson { line: 1, column: 1 }),
            (r#"{"command":"ping"} {"#, NotJson { line: 1, column: 20 }),
            ("{\"command\":\"ping\",\"a\":\"\0\"}", NotJson { line: 1, column: 23 }),
            (r#"{"command":"ping","a":"\x"}"#, NotJson { line: 1, column: 25 }),
            ("17", NotAnObject),
            ("null", NotAnObject),
            (r#"["subscribe","i"]"#, NotAnObject),
            (r#""subscribe""#, NotAnObject),
            ("{}", Missing("command")),
            (r#"{"command":null}"#, Missing("command")),
            (r#"{"command":1}"#, Invalid("command")),
            (r#"{"command":["subscribe"]}"#, Invalid("command")),
            (r#"{"command":"Subscribe","identifier":"i"}"#, UnknownCommand),
            (r#"{"command":""}"#, UnknownCommand),
            (r#"{"command":"subscribe"}"#, Missing("identifier")),
            (r#"{"command":"subscribe","identifier":{"channel":"A"}}"#, Invalid("identifier")),
            (r#"{"command":"subscribe","identifier":1e999}"#, Invalid("identifier")),
            (r#"{"command":"subscribe","identifier":"\udc00"}"#, Invalid("identifier")),
            (r#"{"command":"subscribe","identifier":"a","identifier":"b"}"#, Repeated),
            (r#"{"command":"message","identifier":"i"}"#, Missing("data")),
            (r#"{"command":"message","identifier":"i","data":{}}"#, Invalid("data")),
            (r#"{"command":"message","identifier":"i","data":null}"#, Invalid("data")),
            (r#"{"command":"whisper","identifier":"i"}"#, Missing("data")),
            (r#"{"command":"history","identifier":"i","history":[1]}"#, Invalid("history")),
            (r#"{"command":"subscribe","identifier":"i","history":7}"#, Invalid("history")),
            (r#"{"command":"join","identifier":"i"}"#, Missing("presence")),
            (r#"{"command":"join","identifier":"i","presence":{}}"#, Missing("presence.id")),
            (r#"{"command":"join","identifier":"i","presence":{"id":7}}"#, Invalid("presence.id")),
            (r#"{"command":"leave","identifier":"i","presence":[]}"#, Invalid("presence")),
            (r#"{"command":"presence","identifier":"i","data":[]}"#, Invalid("data")),
        ] {
            assert_eq!(Command::decode(text), Err(why), "{text}");
        }
    }

    #[test]
    fn offsets_and_times_must_be_integers_in_range() {
        for place in [
            r#"{"offset":-1,"epoch":"e"}"#,
            r#"{"offset":1.5,"epoch":"e"}"#,
            r#"{"offset":18446744073709551616,"epoch":"e"}"#,
            r#"{"offset":1}"#,
            r#"{"epoch":"e"}"#,
            r#"[1,"e"]"#,
        ] {
            let text = format!(
                r#"{{"command":"history","identifier":"i","history":{{"streams":{{"s":{place}}}}}}}"#
            );
            assert_eq!(Command::decode(&text), Err(Malformed::Invalid("history")), "{text}");
        }
        for since in ["9223372036854775808", "1e999", "\"1\"", "1.5"] {
            let text = format!(
                r#"{{"command":"history","identifier":"i","history":{{"since":{since}}}}}"#
            );
            assert_eq!(Command::decode(&text), Err(Malformed::Invalid("history")), "{text}");
        }
    }

    #[test]
    fn nesting_depth_uses_no_stack() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        let text = format!(r#"{{"command":"whisper","identifier":"i","data":{deep}}}"#);
        let Ok(Command::Whisper { data, .. }) = Command::decode(&text) else { panic!("error") };
        assert_eq!(data, deep);
        assert!(matches!(Command::decode(&deep), Err(Malformed::NotAnObject)));
        let open = r#"{"a":"#.repeat(200_000);
        assert!(matches!(Command::decode(&open), Err(Malformed::NotJson { .. })));
    }
}
