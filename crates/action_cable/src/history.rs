//! [`Position`]: an offset in a stream, and [`History`]: a client's request for missed messages. Both
//! are part of the extended protocol only.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::Deserialize;

use crate::Malformed;
use crate::json::{Object, Raw, Text, object, scalar};

/// An offset in a stream.
#[derive(Clone, Eq, PartialEq, Hash, Debug)]
pub struct Position<'a> {
    /// The stream's name.
    pub stream_id: Cow<'a, str>,
    /// The epoch of offsets: offsets of different epochs are not comparable.
    pub epoch: Cow<'a, str>,
    /// The number of a message in its stream.
    pub offset: u64,
}

/// A request for missed messages.
#[derive(Clone, Eq, PartialEq, Default, Debug)]
pub struct History<'a> {
    /// Unix seconds, for streams that are not listed.
    pub since: Option<i64>,
    /// The last received message of each stream; later ones are requested.
    pub streams: Vec<Position<'a>>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    since: Option<Raw<'a>>,
    #[serde(borrow)]
    streams: Option<Raw<'a>>,
}

#[derive(Deserialize)]
struct RawPosition<'a> {
    offset: u64,
    #[serde(borrow)]
    epoch: Text<'a>,
}

const KEY: &str = "history";

impl<'a> History<'a> {
    pub(crate) fn decode(value: Option<Raw<'a>>) -> Result<Option<History<'a>>, Malformed> {
        let Some(value) = value else { return Ok(None) };
        let invalid = |_| Malformed::Invalid(KEY);
        let fields: Fields = object(value.get()).map_err(invalid)?;
        let mut streams = Vec::new();
        if let Some(value) = fields.streams {
            let positions: BTreeMap<Text, Raw> = object(value.get()).map_err(invalid)?;
            for (stream, position) in positions {
                let RawPosition { offset, epoch } = object(position.get()).map_err(invalid)?;
                streams.push(Position { stream_id: stream.0, epoch: epoch.0, offset });
            }
        }
        Ok(Some(History { since: scalar(fields.since, KEY)?, streams }))
    }

    pub(crate) fn put(&self, object: &mut Object) {
        let mut history = Object::begin(object.key(KEY));
        if let Some(since) = self.since {
            let out = history.key("since");
            if since < 0 {
                out.push(b'-');
            }
            crate::json::put_number(since.unsigned_abs(), out);
        }
        if !self.streams.is_empty() {
            let mut streams = Object::begin(history.key("streams"));
            for Position { stream_id, epoch, offset } in &self.streams {
                let mut position = Object::begin(streams.key(stream_id));
                position.number("offset", *offset).text("epoch", epoch).end();
            }
            streams.end();
        }
        history.end();
    }
}

impl Position<'_> {
    pub(crate) fn put(&self, object: &mut Object) {
        object.text("stream_id", &self.stream_id).text("epoch", &self.epoch);
        object.number("offset", self.offset);
    }
}
