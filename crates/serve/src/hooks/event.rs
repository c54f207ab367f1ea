//! [`Event`]: something that is reported, and its JSON.

use std::net::IpAddr;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A client has connected.
    Connect,
    /// Its connection has ended.
    Disconnect,
    /// It has subscribed to a topic.
    Subscribe,
    /// It is not subscribed any more.
    Unsubscribe,
    /// A topic has its first subscriber in this process.
    Occupied,
    /// It has lost the last one.
    Vacant,
}

impl EventKind {
    pub(crate) const ALL: [EventKind; 6] = [
        EventKind::Connect,
        EventKind::Disconnect,
        EventKind::Subscribe,
        EventKind::Unsubscribe,
        EventKind::Occupied,
        EventKind::Vacant,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            EventKind::Connect => "connect",
            EventKind::Disconnect => "disconnect",
            EventKind::Subscribe => "subscribe",
            EventKind::Unsubscribe => "unsubscribe",
            EventKind::Occupied => "occupied",
            EventKind::Vacant => "vacant",
        }
    }
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event<'e> {
    pub(crate) kind: EventKind,
    /// The session id.
    pub(crate) sid: Option<&'e str>,
    pub(crate) protocol: Option<&'static str>,
    /// The identifiers of the connection.
    pub(crate) identity: Option<&'e str>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) topic: Option<&'e str>,
}

impl<'e> Event<'e> {
    pub(crate) fn new(kind: EventKind) -> Self {
        Event { kind, sid: None, protocol: None, identity: None, address: None, topic: None }
    }

    /// The fields of its JSON, without the id and the braces.
    pub(super) fn fields(&self, unix_ms: u64) -> String {
        let json = serde_json::to_string(&Json(self, unix_ms)).unwrap_or_default();
        let fields = json.strip_prefix('{').and_then(|json| json.strip_suffix('}'));
        fields.unwrap_or_default().to_owned()
    }
}

struct Json<'j>(&'j Event<'j>, u64);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Json(event, unix_ms) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("event", event.kind.name())?;
        map.serialize_entry("time_ms", unix_ms)?;
        let texts = [
            ("sid", event.sid),
            ("protocol", event.protocol),
            ("identity", event.identity),
            ("topic", event.topic),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                map.serialize_entry(name, text)?;
            }
        }
        if let Some(address) = event.address {
            map.serialize_entry("address", &address)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_fields_that_are_known() {
        let event = Event { topic: Some("a\"}"), ..Event::new(EventKind::Vacant) };
        assert_eq!(event.fields(7), r#""event":"vacant","time_ms":7,"topic":"a\"}""#);
        let event = Event {
            sid: Some("s"),
            protocol: Some("cable"),
            identity: Some(r#"{"user":1}"#),
            address: Some([127, 0, 0, 1].into()),
            ..Event::new(EventKind::Connect)
        };
        let fields = event.fields(7);
        let json: serde_json::Value = serde_json::from_str(&format!("{{{fields}}}")).unwrap();
        let expected = serde_json::json!({
            "event": "connect", "time_ms": 7, "sid": "s", "protocol": "cable",
            "identity": "{\"user\":1}", "address": "127.0.0.1",
        });
        assert_eq!(json, expected);
    }
}
