//! The opening handshake, both roles (RFC 6455 4). The only extension that is offered or accepted
//! is permessage-deflate; others are declined by not answering them. Not here: who may connect; the
//! origin is passed to the caller.

mod client;
mod deflate;
mod server;
#[cfg(test)]
mod tests;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha1::{Digest, Sha1};

pub use client::{UpgradeAccepted, check_upgrade_response, encode_key, encode_upgrade_request};
pub use deflate::Deflate;
pub use server::{
    Protocols, Upgrade, check_upgrade, encode_refusal, encode_upgrade_response,
    encode_upgrade_response_with,
};

/// Joined to the key before hashing (RFC 6455 1.3).
const GUID: &[u8; 36] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The Sec-WebSocket-Accept for a Sec-WebSocket-Key.
pub fn accept_key(key: &[u8]) -> [u8; 28] {
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    base64_array(&digest)
}

/// Base64 into an array of exactly the length it needs.
fn base64_array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let written = BASE64.encode_slice(bytes, &mut out);
    debug_assert_eq!(written.ok(), Some(N));
    out
}
