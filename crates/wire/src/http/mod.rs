//! HTTP/1.1 and 1.0: heads are located, then parsed; bodies are streamed (RFC 9110, RFC 9112). Not
//! here: routing, policy, and anything that needs a socket or a clock (timeouts, the Date header).

mod body;
mod coding;
mod encode;
mod forwarded;
mod head;
mod parse;
mod redirect;
mod scan;
#[cfg(test)]
mod tests;

pub use body::{BodyDecoder, BodyEvent};
pub use coding::Coding;
pub use encode::{
    CONTINUE, LAST_CHUNK, encode_chunk, encode_request_head, encode_response, encode_response_head,
    is_bodiless, reason_phrase,
};
pub use forwarded::ForwardedBy;
pub use head::{Head, Request, Response, expects_continue, is_token, keep_alive};
pub use httparse::{EMPTY_HEADER, Header};
pub use parse::{parse_request, parse_response};
pub use redirect::PlainPath;
pub use scan::HeadScanner;

pub(crate) use encode::{push_clean, push_field, push_headers, push_request_line};
pub(crate) use head::{Framing, list_items};
pub(crate) use parse::{decimal, is_host};
pub(crate) use scan::is_tchar;

/// Most header lines that are ever parsed; the array passed to the parsers need not be longer.
/// Clearing an array of this length costs as much as parsing five lines: a caller that cares tries
/// a third of it first.
pub const MAX_HEADERS: usize = 100;
