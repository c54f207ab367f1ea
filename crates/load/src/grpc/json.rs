//! Messages from and to JSON (the canonical mapping of proto3, by `prost-reflect`), with errors that name the
//! field, what it is, and line and column.

use std::fmt;

use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions};
use serde_json::Value;
use serde_path_to_error::{Deserializer as Tracked, Segment, Track};

use super::limits::SHOWN_BYTES;
use super::schema::listed;

/// Why JSON is no message, or a message cannot be JSON: text for people.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonError(String);

impl JsonError {
    pub(crate) fn new(why: impl Into<String>) -> JsonError {
        JsonError(why.into())
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JsonError {}

/// The bytes of a message from its JSON; empty text is a message without fields.
pub(crate) fn to_bytes(kind: &MessageDescriptor, text: &str) -> Result<Vec<u8>, JsonError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let mut track = Track::new();
    let tracked = Tracked::new(&mut deserializer, &mut track);
    let message = DynamicMessage::deserialize(kind.clone(), tracked)
        .map_err(|error| explained(kind, text, &error, track))?;
    deserializer.end().map_err(|error| syntax(&error))?;
    Ok(message.encode_to_vec())
}

/// A message as JSON.
pub(crate) fn of_bytes(kind: &MessageDescriptor, bytes: &[u8]) -> Result<String, JsonError> {
    let name = kind.full_name();
    let message = DynamicMessage::decode(kind.clone(), bytes)
        .map_err(|why| JsonError(format!("{} bytes are no {name}: {why}", bytes.len())))?;
    serde_json::to_string(&message).map_err(|why| JsonError(format!("{name} as JSON: {why}")))
}

/// A message as JSON, with fields that have their default value.
pub(crate) fn of_bytes_whole(kind: &MessageDescriptor, bytes: &[u8]) -> Result<String, JsonError> {
    let name = kind.full_name();
    let message = DynamicMessage::decode(kind.clone(), bytes)
        .map_err(|why| JsonError(format!("{} bytes are no {name}: {why}", bytes.len())))?;
    let options = SerializeOptions::new().skip_default_fields(false);
    let mut serializer = serde_json::Serializer::new(Vec::new());
    let written = message.serialize_with_options(&mut serializer, &options);
    written.map_err(|why| JsonError(format!("{name} as JSON: {why}")))?;
    String::from_utf8(serializer.into_inner()).map_err(|why| JsonError(format!("{name}: {why}")))
}

fn syntax(error: &serde_json::Error) -> JsonError {
    let (what, place) = split(error);
    JsonError(format!("invalid JSON: {what}{place}"))
}

/// The text of an error, and its place.
fn split(error: &serde_json::Error) -> (String, String) {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    let place = match error.line() {
        0 => String::new(),
        // Columns count from 1, those of an error in the first character from 0.
        line => format!(", line {line} column {}", error.column().max(1)),
    };
    (what.to_owned(), place)
}

fn explained(
    kind: &MessageDescriptor,
    text: &str,
    error: &serde_json::Error,
    track: Track,
) -> JsonError {
    if !error.is_data() {
        return syntax(error);
    }
    let (what, place) = split(error);
    let path = track.path();
    let place_in_type = Place::find(kind, path.iter());
    let mut named = path.to_string();
    if named == "." || named == "?" {
        named.clear();
    }
    let unknown =
        what.strip_prefix("unrecognized field name '").and_then(|rest| rest.strip_suffix('\''));
    let what = if let Some(field) = unknown {
        named = if named.is_empty() { field.to_owned() } else { format!("{named}.{field}") };
        "no such field".to_owned()
    } else if is_about_several(&what) {
        what
    } else {
        let root = serde_json::from_str::<Value>(text).ok();
        let found = root.as_ref().and_then(|root| found(root, path.iter()));
        match (place_in_type.expected(), found) {
            (Some(expected), Some(found)) => format!("expected {expected}, found {found}"),
            (Some(expected), None) => format!("expected {expected}: {what}"),
            _ => what,
        }
    };
    let named = if named.is_empty() { String::new() } else { format!("{named}: ") };
    JsonError(format!("{named}{what}{place}; {}", fields(&place_in_type.message)))
}

/// Errors that are not about the value of one field.
fn is_about_several(what: &str) -> bool {
    let parts = ["oneof", "duplicate", "type_url", "@type", "type url", "' not found", "in map"];
    parts.iter().any(|part| what.contains(part))
}

/// What a place of the JSON is in the type.
struct Place {
    /// The message that has the place.
    message: MessageDescriptor,
    /// The field, if the place is within one.
    field: Option<FieldDescriptor>,
    /// Within a list or a map.
    is_element: bool,
}

impl Place {
    fn find<'s>(kind: &MessageDescriptor, path: impl Iterator<Item = &'s Segment>) -> Place {
        let mut place = Place { message: kind.clone(), field: None, is_element: false };
        for segment in path {
            match (segment, &place.field) {
                (Segment::Map { key }, None) => match field(&place.message, key) {
                    Some(field) => place.field = Some(field),
                    None => break,
                },
                (Segment::Map { key }, Some(at)) if !at.is_map() || place.is_element => {
                    let Kind::Message(message) = element(at) else { break };
                    let Some(next) = field(&message, key) else {
                        // Inside a well-known type, whose JSON is another.
                        break;
                    };
                    place = Place { message, field: Some(next), is_element: false };
                }
                (Segment::Map { .. } | Segment::Seq { .. }, Some(_)) => place.is_element = true,
                _ => break,
            }
        }
        // The place of an unknown field is its message.
        if let Some(field) =
            place.field.as_ref().filter(|field| place.is_element || is_single(field))
            && let Kind::Message(message) = element(field)
            && special(message.full_name()).is_none()
        {
            place.message = message;
        }
        place
    }

    fn expected(&self) -> Option<String> {
        let Some(field) = &self.field else { return Some("an object".to_owned()) };
        Some(match () {
            () if field.is_map() && !self.is_element => "an object".to_owned(),
            () if field.is_list() && !self.is_element => "an array".to_owned(),
            () => expected(&element(field)),
        })
    }
}

fn is_single(field: &FieldDescriptor) -> bool {
    !field.is_list() && !field.is_map()
}

/// A field by its name in JSON or in the file.
pub(crate) fn field(message: &MessageDescriptor, key: &str) -> Option<FieldDescriptor> {
    message.get_field_by_json_name(key).or_else(|| message.get_field_by_name(key))
}

/// The type of a field, or of its elements.
fn element(field: &FieldDescriptor) -> Kind {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
        kind => kind,
    }
}

/// What a value of this type is.
pub(crate) fn expected(kind: &Kind) -> String {
    match kind {
        Kind::String => "a string".to_owned(),
        Kind::Bytes => "Base64 in a string".to_owned(),
        Kind::Bool => "true or false".to_owned(),
        Kind::Float | Kind::Double => format!("a {}", name(kind)),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            format!("an integer of {} to {}", i32::MIN, i32::MAX)
        }
        Kind::Uint32 | Kind::Fixed32 => format!("an integer of 0 to {}", u32::MAX),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            format!("an integer of {} to {}", i64::MIN, i64::MAX)
        }
        Kind::Uint64 | Kind::Fixed64 => format!("an integer of 0 to {}", u64::MAX),
        Kind::Enum(kind) => {
            let names: Vec<String> = kind.values().map(|value| value.name().to_owned()).collect();
            format!("one of {}", listed(&names))
        }
        Kind::Message(message) => match special(message.full_name()) {
            Some(expected) => expected.to_owned(),
            None => format!("an object ({})", message.name()),
        },
    }
}

/// The JSON of types that is not an object with their fields.
pub(crate) fn special(name: &str) -> Option<&'static str> {
    Some(match name.strip_prefix("google.protobuf.")? {
        "Timestamp" => "a time as \"2026-01-31T18:05:00Z\"",
        "Duration" => "a duration as \"1.5s\"",
        "FieldMask" => "names of fields as \"user.name,mail\"",
        "Struct" => "an object",
        "ListValue" => "an array",
        "Value" => "any JSON",
        "Any" => "an object with @type",
        "BoolValue" => "true or false",
        "StringValue" => "a string",
        "BytesValue" => "Base64 in a string",
        "FloatValue" | "DoubleValue" => "a number",
        "Int32Value" | "UInt32Value" | "Int64Value" | "UInt64Value" => "an integer",
        _ => return None,
    })
}

/// The value at a place of JSON, as text.
fn found<'s>(root: &Value, path: impl Iterator<Item = &'s Segment>) -> Option<String> {
    let mut at = root;
    for segment in path {
        at = match segment {
            Segment::Map { key } => at.get(key)?,
            Segment::Seq { index } => at.get(index)?,
            _ => return None,
        };
    }
    Some(match at {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => shown(text),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    })
}

/// The beginning of a text, in quotes.
pub(crate) fn shown(text: &str) -> String {
    let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
    let end = ends.take_while(|end| *end <= SHOWN_BYTES).last().unwrap_or(0);
    let (shown, rest) = text.split_at(end);
    format!("{shown:?}{}", if rest.is_empty() { "" } else { "…" })
}

/// The fields of a message with their types.
fn fields(message: &MessageDescriptor) -> String {
    let named = |field: FieldDescriptor| format!("{} ({})", field.json_name(), declared(&field));
    let fields: Vec<String> = message.fields().map(named).collect();
    match fields.as_slice() {
        [] => format!("message {} has no fields", message.name()),
        fields => format!("message {} has fields {}", message.name(), listed(fields)),
    }
}

/// The type of a field as it is declared.
fn declared(field: &FieldDescriptor) -> String {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let (key, value) =
                (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
            format!("map<{}, {}>", name(&key), name(&value))
        }
        kind if field.is_list() => format!("repeated {}", name(&kind)),
        kind => name(&kind),
    }
}

fn name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.name().to_owned(),
        Kind::Enum(kind) => kind.name().to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
