//! Bodies that applications post to `/_broadcast`, in AnyCable's format: one publication, an array of
//! them in order, or a command. The whole body is checked before any of it takes effect.
//!
//! The format is AnyCable's, so unknown fields are ignored. `/api/publish` has our own format and is
//! stricter (`publish.rs`).

use serde::Deserialize;

use crate::path::check_topic;
use crate::publish::BodyError;

/// Longest `meta.broadcast_type`, in bytes: it is a word.
const KIND_BYTES_MAX: usize = 64;
/// What errors show. `data` is text, also where it is JSON.
const PUBLICATION: &str = r#"{"stream":"NAME","data":"TEXT"}"#;

/// What a body requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BroadcastRequest {
    /// Publish these, in this order.
    Publications(Vec<Broadcast>),
    /// End sessions.
    Disconnect(Disconnect),
}

/// One publication.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broadcast {
    pub(crate) stream: String,
    /// JSON, or text that is sent as a JSON string.
    pub(crate) data: String,
    /// Id of the session that does not receive it.
    pub(crate) exclude: Option<String>,
    /// The message type that receivers see.
    pub(crate) kind: Option<String>,
    /// The history does not keep it.
    pub(crate) transient: bool,
}

/// A request to end sessions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disconnect {
    /// The identifiers of the sessions' tokens, byte for byte.
    pub(crate) identifiers: String,
    /// They are what Rails names the connection instead.
    pub(crate) rails_name: bool,
    /// Whether the clients may reconnect.
    pub(crate) reconnect: bool,
}

/// The session id in `{"sid":"…"}`, which names a connection without a token.
pub(crate) fn sid_of(identifiers: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(identifiers).ok()?;
    Some(value.get("sid")?.as_str()?.to_owned())
}

#[derive(Deserialize)]
struct Item {
    stream: Option<String>,
    data: Option<String>,
    meta: Option<Meta>,
    command: Option<String>,
    payload: Option<Payload>,
}

#[derive(Default, Deserialize)]
struct Meta {
    exclude_socket: Option<String>,
    broadcast_type: Option<String>,
    transient: Option<bool>,
}

#[derive(Deserialize)]
struct Payload {
    identifier: Option<String>,
    reconnect: Option<bool>,
}

#[derive(Deserialize)]
struct RailsMessage {
    #[serde(rename = "type")]
    kind: Option<String>,
    reconnect: Option<bool>,
}

/// Parses a body posted to `/_broadcast`.
pub(crate) fn parse(body: &[u8], message_bytes_max: usize) -> Result<BroadcastRequest, BodyError> {
    let publication = |(at, item)| publication(item, at, message_bytes_max);
    if body.trim_ascii_start().starts_with(b"[") {
        let items: Vec<Item> = read(body, PUBLICATION)?;
        let items = items.into_iter().enumerate().map(publication);
        return items.collect::<Result<_, _>>().map(BroadcastRequest::Publications);
    }
    let item: Item = read(body, PUBLICATION)?;
    match (&item.stream, &item.command) {
        (None, Some(command)) if command == "disconnect" => {
            let payload = item.payload.ok_or_else(|| malformed("payload is missing"))?;
            disconnect(payload, "payload.identifier").map(BroadcastRequest::Disconnect)
        }
        (None, Some(_)) => Err(malformed("unknown command: expected disconnect")),
        _ => publication((0, item))
            .map(|publication| BroadcastRequest::Publications(vec![publication])),
    }
}

/// Parses a body posted to `/api/disconnect`.
pub(crate) fn parse_disconnect(body: &[u8]) -> Result<Disconnect, BodyError> {
    disconnect(read(body, r#"{"identifier":"…"}"#)?, "identifier")
}

/// Parses what Rails publishes to end the sessions of a connection that it names so.
pub(crate) fn parse_rails_disconnect(body: &[u8], name: &str) -> Result<Disconnect, BodyError> {
    let message: RailsMessage = read(body, "a message to sessions")?;
    match message.kind.as_deref() {
        Some("disconnect") => Ok(Disconnect {
            identifiers: name.to_owned(),
            rails_name: true,
            reconnect: message.reconnect.unwrap_or(true),
        }),
        _ => Err(malformed("unknown type of a message to sessions: expected disconnect")),
    }
}

fn disconnect(payload: Payload, field: &str) -> Result<Disconnect, BodyError> {
    match payload.identifier {
        Some(identifiers) if !identifiers.is_empty() => {
            let reconnect = payload.reconnect.unwrap_or(true);
            Ok(Disconnect { identifiers, rails_name: false, reconnect })
        }
        _ => Err(malformed(&format!(
            "{field} is missing: expected the identifiers of the sessions to end"
        ))),
    }
}

fn publication(item: Item, at: usize, max: usize) -> Result<Broadcast, BodyError> {
    let wrong = |what: &str| malformed(&format!("publication {at}: {what}"));
    let stream = item.stream.ok_or_else(|| wrong("stream is missing"))?;
    check_topic(&stream).map_err(|why| wrong(&format!("stream: {why}")))?;
    let data = item.data.ok_or_else(|| wrong("data is missing"))?;
    if data.len() > max {
        let bytes = data.len();
        let what = format!("publication {at}: data has {bytes} bytes; --max-message allows {max}");
        return Err(BodyError::TooLarge(what));
    }
    let meta = item.meta.unwrap_or_default();
    let (exclude, kind) = (meta.exclude_socket, meta.broadcast_type);
    let transient = meta.transient.unwrap_or(false);
    let is_set = |text: &String| !text.is_empty();
    if kind.as_ref().is_some_and(|kind| kind.len() > KIND_BYTES_MAX) {
        return Err(wrong(&format!("meta.broadcast_type has more than {KIND_BYTES_MAX} bytes")));
    }
    let (exclude, kind) = (exclude.filter(is_set), kind.filter(is_set));
    Ok(Broadcast { stream, data, exclude, kind, transient })
}

fn read<'b, T: Deserialize<'b>>(body: &'b [u8], expected: &str) -> Result<T, BodyError> {
    serde_json::from_slice(body)
        .map_err(|error| malformed(&format!("{error}; expected {expected}")))
}

fn malformed(what: &str) -> BodyError {
    BodyError::Malformed(what.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(body: &Value) -> Result<BroadcastRequest, BodyError> {
        parse(body.to_string().as_bytes(), 10)
    }

    fn broadcast(stream: &str, data: &str) -> Broadcast {
        let (stream, data) = (stream.into(), data.into());
        Broadcast { stream, data, exclude: None, kind: None, transient: false }
    }

    #[test]
    fn one_publication_and_arrays_are_parsed_in_order() {
        let one = json!({"stream": "a", "data": "{}"});
        assert_eq!(parsed(&one), Ok(BroadcastRequest::Publications(vec![broadcast("a", "{}")])));
        let many = json!([
            {"stream": "a", "data": "1", "meta": {"transient": true, "later": 1}},
            {"stream": "b", "data": "two", "meta": {"exclude_socket": "sid", "broadcast_type": ""}},
            {"stream": "a", "data": "3", "meta": null, "offset": 7},
        ]);
        let two = Broadcast { exclude: Some("sid".into()), ..broadcast("b", "two") };
        let one = Broadcast { transient: true, ..broadcast("a", "1") };
        let expected = vec![one, two, broadcast("a", "3")];
        assert_eq!(parsed(&many), Ok(BroadcastRequest::Publications(expected)));
        assert_eq!(parsed(&json!([])), Ok(BroadcastRequest::Publications(Vec::new())));
        assert_eq!(parse(b" \n[]", 10), Ok(BroadcastRequest::Publications(Vec::new())));
    }

    #[test]
    fn sessions_are_ended_by_identifier() {
        let request =
            |payload: Value| parsed(&json!({"command": "disconnect", "payload": payload}));
        let ends = |reconnect| Disconnect {
            identifiers: r#"{"user":1}"#.into(),
            rails_name: false,
            reconnect,
        };
        let user = r#"{"user":1}"#;
        let parsed = request(json!({"identifier": user, "reconnect": false}));
        assert_eq!(parsed, Ok(BroadcastRequest::Disconnect(ends(false))));
        // The default of Action Cable.
        assert_eq!(
            request(json!({ "identifier": user })),
            Ok(BroadcastRequest::Disconnect(ends(true)))
        );
        let body = json!({"identifier": user, "reconnect": false}).to_string();
        assert_eq!(parse_disconnect(body.as_bytes()), Ok(ends(false)));
        for invalid in [json!({}), json!({"identifier": ""}), json!(null)] {
            assert!(request(invalid.clone()).is_err(), "{invalid}");
        }
        assert!(parse_disconnect(b"{}").is_err());
    }

    #[test]
    fn rails_ends_sessions_by_its_own_name_for_them() {
        let ends =
            |reconnect| Ok(Disconnect { identifiers: "7:ann".into(), rails_name: true, reconnect });
        let parsed = |body: &[u8]| parse_rails_disconnect(body, "7:ann");
        assert_eq!(parsed(br#"{"type":"disconnect"}"#), ends(true), "before Rails 7.1");
        assert_eq!(parsed(br#"{"type":"disconnect","reconnect":false}"#), ends(false));
        for other in [&br#"{"type":"dance"}"#[..], b"{}", b"7", b"{"] {
            assert!(parsed(other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn errors_name_the_publication_and_the_field() {
        let cases = [
            (json!({"data": "x"}), "publication 0: stream is missing"),
            (json!({"stream": "a"}), "publication 0: data is missing"),
            (json!({"stream": "", "data": "x"}), "the topic name is empty"),
            (json!([{"stream": "a", "data": "x"}, {"stream": "a"}]), "publication 1: data"),
            (json!({"stream": "a", "data": {"not": "a string"}}), "expected a string"),
            (json!({"command": "dance"}), "expected disconnect"),
            (json!({"command": "disconnect"}), "payload is missing"),
            (json!("text"), "expected"),
            (json!([7]), "expected"),
        ];
        for (body, named) in cases {
            match parsed(&body) {
                Err(BodyError::Malformed(what)) => assert!(what.contains(named), "{body}: {what}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        assert!(matches!(parse(b"{", 10), Err(BodyError::Malformed(_))));
        let long = parsed(&json!({"stream": "a", "data": "12345678901"}));
        let Err(BodyError::TooLarge(what)) = long else { panic!("taken: {long:?}") };
        assert!(what.contains("data has 11 bytes"), "{what}");
    }
}
