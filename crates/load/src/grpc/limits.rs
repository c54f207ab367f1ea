//! Limits of gRPC messages and of their types.

/// Longest message that is received by default, in bytes: as in gRPC's libraries.
pub const MESSAGE_BYTES: usize = 4 << 20;
/// Longest message of a call that stays open over steps, in bytes: as on WebSockets.
pub const OPEN_CALL_MESSAGE_BYTES: usize = 1 << 20;
/// Largest buffer that a stream keeps between two messages, in bytes.
pub(crate) const KEPT_BYTES: usize = 64 << 10;
/// Messages that are sent on a stream before others get their turn.
pub(crate) const BURST: u32 = 32;
/// Bytes that wait on a connection for the kernel before no further messages are sent on it.
pub(crate) const WAITING_BYTES: usize = 256 << 10;
/// Messages of a stream that may be unanswered before no further ones are sent on it.
pub(crate) const UNANSWERED: usize = 4_096;
/// Longest `grpc-message` that is read, in bytes: it is shown to people.
pub(crate) const STATUS_MESSAGE_BYTES: usize = 4 << 10;
/// Largest `.proto` file, in bytes: generated ones have some 100 KB.
pub const PROTO_BYTES: u64 = 16 << 20;
/// Largest descriptor set, in bytes: that of all of Google's public APIs has 30 MB.
pub const PROTOSET_BYTES: u64 = 128 << 20;
/// Files that reflection may return.
pub const REFLECTED_FILES: usize = 4_096;
/// Services that reflection may list.
pub const REFLECTED_SERVICES: usize = 4_096;
/// Bytes of all files that reflection returns.
pub const REFLECTED_BYTES: usize = 32 << 20;
/// Depth of messages within messages in an example.
pub(crate) const EXAMPLE_DEPTH: usize = 4;
/// Fields of an example.
pub(crate) const EXAMPLE_FIELDS: usize = 64;
/// Fields, methods or names that an error lists.
pub(crate) const LISTED_NAMES: usize = 12;
/// Bytes of a value that an error shows.
pub(crate) const SHOWN_BYTES: usize = 40;
/// Messages in a status' details that are shown.
pub(crate) const STATUS_DETAILS: usize = 16;
/// Bytes of an answer as JSON that checks and captures read.
pub(crate) const ANSWER_JSON_BYTES: usize = 16 << 20;
/// Bytes of the trailers of a gRPC-Web answer: as of a head.
pub(crate) const TRAILER_BYTES: usize = 16 << 10;
/// Bytes of the text that is kept of the first failed call of each status.
pub(crate) const CALL_ERROR_BYTES: usize = 512;
