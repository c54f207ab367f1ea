//! HTTP/2 (RFC 9113): so far the compression of header blocks.

pub mod hpack;
