//! The client's half: the request, and whether the response makes the connection a WebSocket (RFC
//! 6455 4.1).

use alloc::vec::Vec;

use super::{Deflate, accept_key, base64_array};
use crate::Violation;
use crate::http::{Response, list_items, push_clean, push_field, push_headers, push_request_line};

/// Sec-WebSocket-Key from 16 random bytes, fresh for each connection.
pub fn encode_key(nonce: [u8; 16]) -> [u8; 24] {
    base64_array(&nonce)
}

/// Appends the request for a WebSocket. `protocols` are offered in this order; `deflate` offers
/// [`Deflate::OFFER`]; `headers` follow and are not checked against those written here. Allocates
/// only in `out`.
pub fn encode_upgrade_request<'a>(
    out: &mut Vec<u8>,
    host: &str,
    target: &str,
    key: &[u8; 24],
    protocols: &[&str],
    deflate: bool,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    push_request_line(out, "GET", target);
    push_field(out, "Host", host);
    out.extend_from_slice(
        b"Upgrade: websocket\r\n\
          Connection: Upgrade\r\n\
          Sec-WebSocket-Version: 13\r\n\
          Sec-WebSocket-Key: ",
    );
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
    if let Some((first, others)) = protocols.split_first() {
        out.extend_from_slice(b"Sec-WebSocket-Protocol: ");
        push_clean(out, first);
        for other in others {
            out.extend_from_slice(b", ");
            push_clean(out, other);
        }
        out.extend_from_slice(b"\r\n");
    }
    if deflate {
        push_field(out, "Sec-WebSocket-Extensions", Deflate::OFFER);
    }
    push_headers(out, headers);
}

/// What a server accepted.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct UpgradeAccepted<'b> {
    /// The subprotocol it chose.
    pub protocol: Option<&'b str>,
    /// The negotiated compression.
    pub deflate: Option<Deflate>,
}

/// Checks whether a response makes the connection a WebSocket, and with which of the offered
/// subprotocols. The request must have been sent with this key; `deflate` says whether it offered
/// compression.
///
/// # Errors
/// `NotSwitched` for any status but 101, or what is wrong with the 101.
pub fn check_upgrade_response<'b>(
    response: &Response<'_, 'b>,
    key: &[u8; 24],
    offered: &[&str],
    deflate: bool,
) -> Result<UpgradeAccepted<'b>, Violation> {
    if response.status != 101 {
        return Err(Violation::NotSwitched);
    }
    if !response.header_list_contains("upgrade", "websocket") {
        return Err(Violation::SwitchedWithoutUpgrade);
    }
    if !response.header_list_contains("connection", "upgrade") {
        return Err(Violation::SwitchedWithoutConnection);
    }
    let mut switched = UpgradeAccepted::default();
    let mut accepts = 0;
    for header in response.headers {
        let is = |name| header.name.eq_ignore_ascii_case(name);
        if is("sec-websocket-accept") {
            accepts += 1;
            if header.value != accept_key(key) {
                return Err(Violation::WrongAccept);
            }
        } else if is("sec-websocket-extensions") {
            if !deflate && list_items(header.value).next().is_some() {
                return Err(Violation::UnofferedExtension);
            }
            let agreed = Deflate::check_answer(header.value)?;
            if agreed.is_some() && switched.deflate.is_some() {
                return Err(Violation::UnofferedExtension);
            }
            switched.deflate = switched.deflate.or(agreed);
        } else if is("sec-websocket-protocol") {
            let chosen = core::str::from_utf8(header.value).unwrap_or_default();
            if switched.protocol.is_some() || !offered.contains(&chosen) {
                return Err(Violation::UnofferedProtocol);
            }
            switched.protocol = Some(chosen);
        }
    }
    if accepts == 1 { Ok(switched) } else { Err(Violation::WrongAccept) }
}
