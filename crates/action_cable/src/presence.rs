//! Presence: a client's record, and a server's presence messages. Part of the extended protocol only.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Malformed;
use crate::json::{Object, Raw, object, scalar, text};

/// A presence record.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Presence<'a> {
    /// The id of the user; several connections may share it.
    pub id: Cow<'a, str>,
    /// JSON for the other members.
    pub info: Option<&'a str>,
}

/// A server's presence message.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum PresenceEvent<'a> {
    /// A member joined.
    Join(Presence<'a>),
    /// A member left.
    Leave {
        /// Its id.
        id: Cow<'a, str>,
    },
    /// The answer to `presence`.
    Info {
        /// Number of members.
        total: u64,
        /// The members, if requested.
        records: Vec<Presence<'a>>,
    },
    /// Very many members have changed: their number now. AnyCable has no such event.
    Changed {
        /// Number of members.
        total: u64,
    },
    /// The request failed.
    Error,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Raw<'a>>,
    #[serde(borrow)]
    id: Option<Raw<'a>>,
    #[serde(borrow)]
    info: Option<Raw<'a>>,
    #[serde(borrow)]
    total: Option<Raw<'a>>,
    #[serde(borrow)]
    records: Option<Raw<'a>>,
}

const KEY: &str = "presence";

impl<'a> Presence<'a> {
    pub(crate) fn decode(value: Option<Raw<'a>>) -> Result<Option<Presence<'a>>, Malformed> {
        let Some(value) = value else { return Ok(None) };
        let fields: Fields = object(value.get()).map_err(|_| Malformed::Invalid(KEY))?;
        Self::of(&fields).map(Some)
    }

    /// Only the id; a leave command may have none.
    pub(crate) fn decode_id(value: Option<Raw<'a>>) -> Result<Option<Cow<'a, str>>, Malformed> {
        let Some(value) = value else { return Ok(None) };
        let fields: Fields = object(value.get()).map_err(|_| Malformed::Invalid(KEY))?;
        crate::json::optional_text(fields.id, "presence.id")
    }

    fn of(fields: &Fields<'a>) -> Result<Presence<'a>, Malformed> {
        let id = text(fields.id, "presence.id")?;
        Ok(Presence { id, info: fields.info.map(RawValue::get) })
    }

    pub(crate) fn put(&self, object: &mut Object) {
        let mut presence = Object::begin(object.key(KEY));
        self.put_fields(&mut presence);
        presence.end();
    }

    fn put_fields(&self, object: &mut Object) {
        object.text("id", &self.id);
        if let Some(info) = self.info {
            object.raw("info", info);
        }
    }
}

impl<'a> PresenceEvent<'a> {
    pub(crate) fn decode(value: Raw<'a>) -> Result<PresenceEvent<'a>, Malformed> {
        let fields: Fields = object(value.get()).map_err(|_| Malformed::Invalid("message"))?;
        Ok(match &*text(fields.kind, "message.type")? {
            "join" => PresenceEvent::Join(Presence::of(&fields)?),
            "leave" => PresenceEvent::Leave { id: text(fields.id, "presence.id")? },
            "info" => {
                let total = scalar(fields.total, "total")?.ok_or(Malformed::Missing("total"))?;
                let raw: Vec<Raw> = scalar(fields.records, "records")?.unwrap_or_default();
                let records =
                    raw.into_iter().filter_map(|raw| Presence::decode(Some(raw)).transpose());
                PresenceEvent::Info { total, records: records.collect::<Result<_, _>>()? }
            }
            "changed" => {
                let total = scalar(fields.total, "total")?.ok_or(Malformed::Missing("total"))?;
                PresenceEvent::Changed { total }
            }
            "error" => PresenceEvent::Error,
            _ => return Err(Malformed::Invalid("message.type")),
        })
    }

    /// Appends it as JSON, without the message around it. `info` must be JSON; it is not validated.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write(Object::begin(out));
    }

    pub(crate) fn put(&self, key: &str, object: &mut Object) {
        self.write(Object::begin(object.key(key)));
    }

    fn write(&self, mut event: Object) {
        match self {
            PresenceEvent::Join(presence) => presence.put_fields(event.text("type", "join")),
            PresenceEvent::Leave { id } => {
                event.text("type", "leave").text("id", id);
            }
            PresenceEvent::Info { total, records } => {
                let out = event.text("type", "info").number("total", *total).key("records");
                out.push(b'[');
                for (at, record) in records.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    let mut one = Object::begin(out);
                    record.put_fields(&mut one);
                    one.end();
                }
                out.push(b']');
            }
            PresenceEvent::Changed { total } => {
                event.text("type", "changed").number("total", *total);
            }
            PresenceEvent::Error => {
                event.text("type", "error");
            }
        }
        event.end();
    }
}
