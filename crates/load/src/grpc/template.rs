//! [`MessageTemplate`]: a message whose JSON has `{{…}}` placeholders, compiled once. What does not change is
//! encoded then; a request appends bytes and the values of its placeholders, without JSON and, once its buffers
//! have grown, without an allocation.
//!
//! Where a placeholder is in something whose JSON is special (a well-known type, bytes, a group), the JSON is
//! rendered and encoded anew for each request.

use std::sync::{Arc, OnceLock};

use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::frame::{FrameError, PREFIX_BYTES, encode, encode_gzip};
use super::json::{JsonError, expected, field, shown, special, to_bytes};
use super::method::Method;
use crate::delivery::publication::Publication;
use crate::workload::scenario::template::Values;
use crate::workload::scenario::{BadTemplate, Names, Template, TemplateContext};

/// A message with placeholders.
#[derive(Clone, Debug)]
pub struct MessageTemplate {
    form: Form,
    /// For texts of numbers, JSON, or what is to be compressed.
    scratch: Vec<u8>,
    is_compressed: bool,
    /// Why one of its messages did not fit, the first time; shared by copies.
    misfit: Arc<OnceLock<String>>,
}

#[derive(Clone, Debug)]
enum Form {
    Pieces(Vec<Piece>),
    Json { kind: MessageDescriptor, text: Template },
}

#[derive(Clone, Debug)]
enum Piece {
    Bytes(Box<[u8]>),
    Text { key: Box<[u8]>, name: Box<str>, value: Template },
    Scalar { key: Box<[u8]>, name: Box<str>, kind: Kind, value: Template },
    Message { key: Box<[u8]>, pieces: Vec<Piece> },
}

/// Why there is no template.
#[derive(Debug)]
pub enum MessageTemplateError {
    /// A placeholder is malformed or unknown.
    Template(BadTemplate),
    /// The JSON does not fit the type.
    Json(JsonError),
}

impl MessageTemplate {
    /// Compiles the JSON of a method's requests. Placeholders are in strings, as in `{"name":"user {{seq}}"}`, or
    /// stand for a whole value, as in `{"number":{{seq}}}`.
    ///
    /// # Errors
    /// A placeholder that does not exist, or JSON that does not fit the type. If it has values of earlier answers,
    /// which are not known yet, only their requests can tell.
    pub fn compile(
        method: &Method,
        text: &str,
        names: &Names,
    ) -> Result<MessageTemplate, MessageTemplateError> {
        let kind = method.request();
        let whole = Template::compile(text, TemplateContext::Body, names)
            .map_err(MessageTemplateError::Template)?;
        let sample = sample(&whole, names);
        let encoded = to_bytes(&kind, &sample);
        if whole.is_constant() {
            let bytes = encoded.map_err(MessageTemplateError::Json)?;
            return Ok(MessageTemplate::of(Form::Pieces(vec![Piece::Bytes(bytes.into())])));
        }
        let depends = !names.captures.is_empty() || text.contains("item");
        if let Err(why) = encoded
            && !depends
        {
            return Err(MessageTemplateError::Json(why));
        }
        let pieces = serde_json::from_str::<Value>(&quoted(text)).ok().and_then(|value| {
            let mut compiler = PieceCompiler { names, parts: 0 };
            compiler.message(&kind, value.as_object()?, "")
        });
        Ok(MessageTemplate::of(match pieces {
            Some(pieces) => Form::Pieces(pieces),
            None => Form::Json { kind, text: whole },
        }))
    }

    fn of(form: Form) -> MessageTemplate {
        let misfit = Arc::default();
        MessageTemplate { form, scratch: Vec::new(), is_compressed: false, misfit }
    }

    /// Compresses its messages by gzip.
    #[must_use]
    pub fn compressed(self) -> MessageTemplate {
        MessageTemplate { is_compressed: true, ..self }
    }

    /// Why the first message that did not fit its type did not, over all copies of the template.
    #[must_use]
    pub fn misfit(&self) -> Option<&str> {
        self.misfit.get().map(String::as_str)
    }

    /// Whether a message carries a stamp by which its answer is matched.
    #[must_use]
    pub fn is_stamped(&self) -> bool {
        fn has_stamp(pieces: &[Piece]) -> bool {
            pieces.iter().any(|piece| match piece {
                Piece::Text { value, .. } => value.is_stamped(),
                Piece::Message { pieces, .. } => has_stamp(pieces),
                Piece::Bytes(_) | Piece::Scalar { .. } => false,
            })
        }
        match &self.form {
            Form::Pieces(pieces) => has_stamp(pieces),
            Form::Json { text, .. } => text.is_stamped(),
        }
    }

    /// The message with its prefix, if it is always the same.
    #[must_use]
    pub fn framed(&self) -> Option<Vec<u8>> {
        let message = self.constant()?;
        let mut framed = Vec::new();
        let encode = if self.is_compressed { encode_gzip } else { encode };
        encode(message, &mut framed).ok()?;
        Some(framed)
    }

    /// The message, without prefix, if it is always the same.
    #[must_use]
    pub fn constant(&self) -> Option<&[u8]> {
        match &self.form {
            Form::Pieces(pieces) => match pieces.as_slice() {
                [Piece::Bytes(bytes)] => Some(bytes),
                _ => None,
            },
            Form::Json { .. } => None,
        }
    }

    /// Appends the message with its prefix.
    ///
    /// # Errors
    /// A value that does not fit its field; nothing was appended then.
    pub fn render(&mut self, values: &Values<'_>, out: &mut Vec<u8>) -> Result<(), JsonError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let rendered = self.render_with(values, &mut scratch, out);
        self.scratch = scratch;
        rendered
    }

    /// As [`MessageTemplate::render`], with a reused buffer of the caller.
    ///
    /// # Errors
    /// As [`MessageTemplate::render`].
    pub(crate) fn render_with(
        &self,
        values: &Values<'_>,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), JsonError> {
        let begin = out.len();
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        let rendered = match &self.form {
            Form::Pieces(pieces) => {
                pieces.iter().try_for_each(|piece| piece.render(values, scratch, out))
            }
            Form::Json { kind, text } => {
                scratch.clear();
                text.render(scratch, values);
                let text = String::from_utf8_lossy(scratch);
                to_bytes(kind, &text).map(|bytes| out.extend_from_slice(&bytes))
            }
        };
        let bytes = out.len() - begin - PREFIX_BYTES;
        let length = u32::try_from(bytes).map_err(|_| {
            let bytes_max = u32::MAX as usize;
            JsonError::new(FrameError::TooLong { bytes: bytes as u64, bytes_max }.to_string())
        });
        match rendered.and(length) {
            Ok(length) => {
                let place = out.get_mut(begin + 1..begin + PREFIX_BYTES).unwrap_or_default();
                place.copy_from_slice(&length.to_be_bytes());
                if self.is_compressed {
                    scratch.clear();
                    scratch.extend_from_slice(out.get(begin + PREFIX_BYTES..).unwrap_or_default());
                    out.truncate(begin);
                    let encoded = encode_gzip(scratch, out);
                    return encoded.map_err(|why| JsonError::new(why.to_string()));
                }
                Ok(())
            }
            Err(why) => {
                out.truncate(begin);
                self.misfit.get_or_init(|| why.to_string());
                Err(why)
            }
        }
    }
}

impl Piece {
    fn render(
        &self,
        values: &Values<'_>,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), JsonError> {
        match self {
            Piece::Bytes(bytes) => out.extend_from_slice(bytes),
            Piece::Text { key, name, value } => {
                out.extend_from_slice(key);
                let begin = out.len();
                value.render(out, values);
                let text = out.get(begin..).unwrap_or_default();
                if std::str::from_utf8(text).is_err() {
                    return Err(JsonError::new(format!("{name}: expected a string, found bytes")));
                }
                insert_length(out, begin);
            }
            Piece::Scalar { key, name, kind, value } => {
                out.extend_from_slice(key);
                scratch.clear();
                value.render(scratch, values);
                let text = std::str::from_utf8(scratch).unwrap_or_default();
                if scalar(kind, text, out).is_none() {
                    let (expected, found) = (expected(kind), shown(text));
                    return Err(JsonError::new(format!(
                        "{name}: expected {expected}, found {found}"
                    )));
                }
            }
            Piece::Message { key, pieces } => {
                out.extend_from_slice(key);
                let begin = out.len();
                pieces.iter().try_for_each(|piece| piece.render(values, scratch, out))?;
                insert_length(out, begin);
            }
        }
        Ok(())
    }
}

/// Inserts the length of what begins there.
fn insert_length(out: &mut Vec<u8>, begin: usize) {
    let end = out.len();
    encode_varint((end - begin) as u64, out);
    let bytes = out.len() - end;
    if let Some(field) = out.get_mut(begin..) {
        field.rotate_right(bytes);
    }
}

/// Appends a number, a bool or an enum without its key. `None` if the text is none.
fn scalar(kind: &Kind, text: &str, out: &mut Vec<u8>) -> Option<()> {
    match kind {
        Kind::Bool => encode_varint(u64::from(text.parse::<bool>().ok()?), out),
        Kind::Int32 => encode_varint(i64::from(text.parse::<i32>().ok()?) as u64, out),
        Kind::Int64 => encode_varint(text.parse::<i64>().ok()? as u64, out),
        Kind::Uint32 => encode_varint(u64::from(text.parse::<u32>().ok()?), out),
        Kind::Uint64 => encode_varint(text.parse().ok()?, out),
        Kind::Sint32 => encode_varint(zigzag(text.parse::<i32>().ok()?.into()), out),
        Kind::Sint64 => encode_varint(zigzag(text.parse().ok()?), out),
        Kind::Fixed32 => out.extend_from_slice(&text.parse::<u32>().ok()?.to_le_bytes()),
        Kind::Sfixed32 => out.extend_from_slice(&text.parse::<i32>().ok()?.to_le_bytes()),
        Kind::Float => out.extend_from_slice(&text.parse::<f32>().ok()?.to_le_bytes()),
        Kind::Fixed64 => out.extend_from_slice(&text.parse::<u64>().ok()?.to_le_bytes()),
        Kind::Sfixed64 => out.extend_from_slice(&text.parse::<i64>().ok()?.to_le_bytes()),
        Kind::Double => out.extend_from_slice(&text.parse::<f64>().ok()?.to_le_bytes()),
        Kind::Enum(kind) => {
            let value = kind.get_value_by_name(text)?;
            encode_varint(i64::from(value.number()) as u64, out);
        }
        Kind::String | Kind::Bytes | Kind::Message(_) => return None,
    }
    Some(())
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Makes pieces of JSON; `None` where it has to stay JSON.
struct PieceCompiler<'a> {
    names: &'a Names,
    /// Parts of templates so far: two random values of a message differ.
    parts: usize,
}

impl PieceCompiler<'_> {
    fn message(
        &mut self,
        kind: &MessageDescriptor,
        object: &Map<String, Value>,
        within: &str,
    ) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        // Fields of one message may be encoded apart: what is concatenated is merged.
        let mut constant = Map::new();
        for (key, value) in object {
            if !has_placeholder(value) && !key.contains("{{") {
                constant.insert(key.clone(), value.clone());
                continue;
            }
            let field = field(kind, key).filter(|field| !field.is_group())?;
            let name = if within.is_empty() { key.clone() } else { format!("{within}.{key}") };
            match value {
                Value::Array(elements) if field.is_list() => {
                    for (at, element) in elements.iter().enumerate() {
                        pieces.push(self.value(&field, element, &format!("{name}[{at}]"))?);
                    }
                }
                Value::Object(entries) if field.is_map() => {
                    for (key, value) in entries {
                        let entry = json!({ "key": key, "value": value });
                        pieces.push(self.entry(&field, &entry, &format!("{name}.{key}"))?);
                    }
                }
                _ if field.is_list() || field.is_map() => return None,
                value => pieces.push(self.value(&field, value, &name)?),
            }
        }
        if !constant.is_empty() {
            let bytes = to_bytes(kind, &Value::Object(constant).to_string()).ok()?;
            pieces.insert(0, Piece::Bytes(bytes.into()));
        }
        Some(pieces)
    }

    /// An entry of a map is a message.
    fn entry(&mut self, field: &FieldDescriptor, entry: &Value, name: &str) -> Option<Piece> {
        let kind = field.kind();
        let kind = kind.as_message()?;
        let key = key(field, WireType::LengthDelimited);
        Some(Piece::Message { key, pieces: self.message(kind, entry.as_object()?, name)? })
    }

    /// The value of a field, or an element of a list.
    fn value(&mut self, field: &FieldDescriptor, value: &Value, name: &str) -> Option<Piece> {
        match (field.kind(), value) {
            (Kind::Message(kind), Value::Object(object)) if special(kind.full_name()).is_none() => {
                let key = key(field, WireType::LengthDelimited);
                Some(Piece::Message { key, pieces: self.message(&kind, object, name)? })
            }
            (Kind::Message(_) | Kind::Bytes, _) => None,
            (Kind::String, Value::String(text)) => {
                let key = key(field, WireType::LengthDelimited);
                Some(Piece::Text { key, name: name.into(), value: self.template(text)? })
            }
            // Elements without a placeholder, too: a list may be encoded element by element.
            (kind, Value::String(text)) => self.scalar(field, kind, text, name),
            (kind, Value::Number(_) | Value::Bool(_)) => {
                self.scalar(field, kind, &value.to_string(), name)
            }
            _ => None,
        }
    }

    fn scalar(
        &mut self,
        field: &FieldDescriptor,
        kind: Kind,
        text: &str,
        name: &str,
    ) -> Option<Piece> {
        let wire_type = match kind {
            Kind::Fixed32 | Kind::Sfixed32 | Kind::Float => WireType::ThirtyTwoBit,
            Kind::Fixed64 | Kind::Sfixed64 | Kind::Double => WireType::SixtyFourBit,
            Kind::String => return None,
            _ => WireType::Varint,
        };
        let key = key(field, wire_type);
        Some(Piece::Scalar { key, name: name.into(), kind, value: self.template(text)? })
    }

    fn template(&mut self, text: &str) -> Option<Template> {
        // The value is not inside JSON any more.
        let text = text.replace("{{json ", "{{");
        let template = Template::compile(&text, TemplateContext::Body, self.names).ok()?;
        let template = template.numbered_from(self.parts);
        self.parts += template.parts();
        Some(template)
    }
}

fn key(field: &FieldDescriptor, wire_type: WireType) -> Box<[u8]> {
    let mut bytes = Vec::new();
    encode_key(field.number(), wire_type, &mut bytes);
    bytes.into()
}

fn has_placeholder(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("{{"),
        Value::Array(elements) => elements.iter().any(has_placeholder),
        Value::Object(members) => {
            members.iter().any(|(key, value)| key.contains("{{") || has_placeholder(value))
        }
        _ => false,
    }
}

/// Puts placeholders that stand for a whole value into quotes: numbers may be strings in this JSON.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    let mut in_string = false;
    while let Some(next) = rest.chars().next() {
        let inside = rest.strip_prefix("{{").and_then(|inside| inside.split_once("}}"));
        if let Some((name, after)) = inside {
            let quote = if in_string { "" } else { "\"" };
            out.extend([quote, "{{", name, "}}", quote]);
            rest = after;
            continue;
        }
        let bytes = match next {
            '\\' if in_string => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            _ => next.len_utf8(),
        };
        in_string ^= next == '"';
        let (taken, after) = rest.split_at(bytes);
        out.push_str(taken);
        rest = after;
    }
    out
}

/// The text with values of a first request.
fn sample(template: &Template, names: &Names) -> String {
    let one = || Some(std::sync::Arc::from(&b"1"[..]));
    let captures: Vec<_> = names.captures.iter().map(|_| one()).collect();
    let values = Values {
        seq: 1,
        user: 1,
        pass: 1,
        now_ms: 1_700_000_000_000,
        random: 1,
        feeds: &names.feeds,
        rows: &vec![0; names.feeds.len()],
        captures: &captures,
        item: b"1",
        stamp: Publication::new(0, 0, 0),
        group: (0, 0),
        to: 0,
    };
    let mut out = Vec::new();
    template.render(&mut out, &values);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
