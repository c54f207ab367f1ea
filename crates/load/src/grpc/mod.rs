//! gRPC without its transport: messages in bodies (`frame.rs`), statuses, metadata and deadlines as text; types
//! of messages from `.proto` files, descriptor sets or reflection (`schema.rs`, `reflection.rs`), and messages of these
//! types from and to JSON (`json.rs`), with examples of them (`example.rs`)
//! and templates whose messages differ (`template.rs`).
//!
//! There are no sockets here: `reflection.rs` says what to ask a server and reads what it answered. Source: "gRPC
//! over HTTP2" (`doc/PROTOCOL-HTTP2.md` of gRPC).

mod answer;
mod deadline;
mod details;
mod example;
mod frame;
mod health;
mod imports;
mod json;
pub mod limits;
mod metadata;
mod method;
mod reflection;
mod reply;
mod schema;
mod status;
mod template;
mod variant;
mod web;
mod web_text;

pub use self::answer::{accepted_code, answer_status, code_of};
pub(crate) use self::answer::{answer_json, message_json};
pub use self::deadline::{encode_timeout, parse_timeout};
pub(crate) use self::details::detail_types;
pub use self::details::status_details;
pub use self::frame::{
    Encoding, FrameError, MessageDecoder, PREFIX_BYTES, ReceivedMessage, encode, encode_gzip,
};
pub use self::health::HEALTH_SERVICE;
pub use self::json::JsonError;
pub use self::metadata::{decode_binary, encode_binary, is_reserved, metadata};
pub use self::method::{Method, MethodKind};
pub use self::reflection::{REFLECTION_PATHS, Reflection, ReflectionError};
pub use self::reply::ReplyType;
pub use self::schema::{Schema, SchemaError, Service};
pub use self::status::{Code, decode_message};
pub use self::template::{MessageTemplate, MessageTemplateError};
pub use self::variant::Variant;
pub(crate) use self::web::{TRAILERS, WebDecoder, trailer};
pub(crate) use self::web_text::{TextDecoder, encode_text};
