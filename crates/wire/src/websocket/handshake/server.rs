//! The server's half: whether a request is a WebSocket handshake and a valid one, and the response
//! (RFC 6455 4.2).

use alloc::vec::Vec;
use core::fmt::Write as _;

use super::Deflate;
use crate::Violation;
use crate::http::{Framing, Request, encode_response, is_token, list_items, push_field};

/// A valid request to become a WebSocket.
#[derive(Copy, Clone, Debug)]
pub struct Upgrade<'b> {
    /// Sec-WebSocket-Key: 24 characters, to be answered with [`accept_key`](super::accept_key).
    pub key: &'b [u8],
    /// Origin, as sent: browsers always send it; the caller checks it.
    pub origin: Option<&'b [u8]>,
    /// The lines of the head in which subprotocols are looked up on request; none if it has none.
    protocols: &'b [u8],
    /// The same for extensions.
    extensions: &'b [u8],
}

impl<'b> Upgrade<'b> {
    /// The offered subprotocols, in order of preference, over all lines of Sec-WebSocket-Protocol.
    pub fn protocols(&self) -> Protocols<'b> {
        Protocols { lines: self.protocols, items: &[] }
    }

    /// The answer to the offers of permessage-deflate; `None` declines them. See
    /// [`Deflate::accept`].
    ///
    /// # Errors
    /// A Sec-WebSocket-Extensions that is not a list of extensions.
    pub fn deflate(&self, takeover: bool) -> Result<Option<Deflate>, Violation> {
        Deflate::accept(values(self.extensions, b"sec-websocket-extensions"), takeover)
    }

    /// Whether this subprotocol is offered; names are case-sensitive.
    pub fn offers(&self, protocol: &str) -> bool {
        self.protocols().any(|offered| offered == protocol)
    }
}

/// The subprotocols that a client offers, in order of preference. Made by [`Upgrade::protocols`].
#[derive(Clone, Debug)]
pub struct Protocols<'b> {
    /// Lines not yet looked at.
    lines: &'b [u8],
    /// Items of the current line not yet returned.
    items: &'b [u8],
}

impl<'b> Iterator for Protocols<'b> {
    type Item = &'b str;

    fn next(&mut self) -> Option<&'b str> {
        loop {
            while !self.items.is_empty() {
                let (item, rest) = split_at_byte(self.items, b',');
                self.items = rest;
                match core::str::from_utf8(item.trim_ascii()) {
                    Ok(item) if !item.is_empty() => return Some(item),
                    _ => {}
                }
            }
            let (value, rest) = next_value(self.lines, b"sec-websocket-protocol")?;
            (self.items, self.lines) = (value, rest);
        }
    }
}

/// Checks whether a request is a valid WebSocket handshake. `None` for an ordinary request.
///
/// # Errors
/// What is wrong with the handshake; [`encode_refusal`] reports it to the client.
pub fn check_upgrade<'b>(request: &Request<'_, 'b>) -> Result<Option<Upgrade<'b>>, Violation> {
    let offer = Offer::read(request);
    if !offer.websocket {
        return Ok(None);
    }
    if request.version == 0 {
        return Err(Violation::UpgradeHttp10);
    }
    if request.method != "GET" {
        return Err(Violation::UpgradeMethod);
    }
    if !offer.connection {
        return Err(Violation::UpgradeConnection);
    }
    if offer.version != Some(b"13") {
        return Err(Violation::UpgradeVersion);
    }
    let key = match (offer.key, offer.keys) {
        (None, _) => return Err(Violation::UpgradeMissingKey),
        (Some(key), 1) if is_key(key) => key,
        (Some(_), 1) => return Err(Violation::UpgradeBadKey),
        _ => return Err(Violation::UpgradeDuplicateKey),
    };
    if offer.bad_protocol {
        return Err(Violation::UpgradeBadProtocol);
    }
    if !matches!(request.framing, Framing::Unsaid | Framing::Length(0)) {
        return Err(Violation::UpgradeBody);
    }
    // Most clients offer neither.
    let lines = |any: bool| if any { request.head } else { &[] };
    let (protocols, extensions) = (lines(offer.protocols), lines(offer.extensions));
    Ok(Some(Upgrade { key, origin: offer.origin, protocols, extensions }))
}

/// Appends the response that makes the connection a WebSocket. `protocol` must be one the client
/// offered, and `deflate` the answer to an offer of it.
pub fn encode_upgrade_response(
    out: &mut Vec<u8>,
    accept: &[u8; 28],
    protocol: Option<&str>,
    deflate: Option<&Deflate>,
) {
    encode_upgrade_response_with(out, accept, protocol, deflate, []);
}

/// As [`encode_upgrade_response`], with further headers. They must not be those of the handshake.
pub fn encode_upgrade_response_with<'a>(
    out: &mut Vec<u8>,
    accept: &[u8; 28],
    protocol: Option<&str>,
    deflate: Option<&Deflate>,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\n\
          Upgrade: websocket\r\n\
          Connection: Upgrade\r\n\
          Sec-WebSocket-Accept: ",
    );
    out.extend_from_slice(accept);
    out.extend_from_slice(b"\r\n");
    if let Some(protocol) = protocol {
        push_field(out, "Sec-WebSocket-Protocol", protocol);
    }
    if let Some(deflate) = deflate {
        out.extend_from_slice(b"Sec-WebSocket-Extensions: ");
        deflate.encode(out);
        out.extend_from_slice(b"\r\n");
    }
    for (name, value) in headers {
        push_field(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a complete response that refuses a request and gives the reason; the connection is to be
/// closed after it.
#[cold]
pub fn encode_refusal(out: &mut Vec<u8>, violation: Violation) {
    let mut body = alloc::string::String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(body, "Refused: {violation}.");
    let hint = match violation {
        Violation::UpgradeVersion => Some(("Sec-WebSocket-Version", "13")),
        Violation::UpgradeMethod => Some(("Allow", "GET")),
        _ => None,
    };
    let upgrade = (violation == Violation::UpgradeVersion).then_some(("Upgrade", "websocket"));
    let connection = if upgrade.is_some() { "Upgrade, close" } else { "close" };
    let fixed = [("Content-Type", "text/plain; charset=utf-8"), ("Connection", connection)];
    let headers = fixed.into_iter().chain(upgrade).chain(hint);
    encode_response(out, violation.http_status(), headers, body.as_bytes());
}

/// The headers of a handshake, collected in one pass.
#[derive(Default)]
struct Offer<'b> {
    websocket: bool,
    connection: bool,
    version: Option<&'b [u8]>,
    key: Option<&'b [u8]>,
    keys: u32,
    protocols: bool,
    bad_protocol: bool,
    extensions: bool,
    origin: Option<&'b [u8]>,
}

impl<'b> Offer<'b> {
    fn read(request: &Request<'_, 'b>) -> Offer<'b> {
        let mut offer = Offer::default();
        for header in request.headers {
            let is = |name| header.name.eq_ignore_ascii_case(name);
            let has = |token: &[u8]| {
                list_items(header.value).any(|item| item.eq_ignore_ascii_case(token))
            };
            match header.name.len() {
                6 if is("origin") => offer.origin = offer.origin.or(Some(header.value)),
                7 if is("upgrade") => offer.websocket |= has(b"websocket"),
                10 if is("connection") => offer.connection |= has(b"upgrade"),
                17 if is("sec-websocket-key") => {
                    offer.key = Some(header.value);
                    offer.keys += 1;
                }
                21 if is("sec-websocket-version") => {
                    // A second line must not contradict the first.
                    offer.version = match offer.version {
                        Some(version) if version != header.value => Some(b""),
                        _ => Some(header.value),
                    };
                }
                22 if is("sec-websocket-protocol") => {
                    offer.protocols = true;
                    offer.bad_protocol |= !list_items(header.value).all(is_token);
                }
                24 if is("sec-websocket-extensions") => offer.extensions = true,
                _ => {}
            }
        }
        offer
    }
}

/// The values of all lines of this name.
fn values<'b>(head: &'b [u8], name: &'static [u8]) -> impl Iterator<Item = &'b [u8]> {
    let mut lines = head;
    core::iter::from_fn(move || {
        let (value, rest) = next_value(lines, name)?;
        lines = rest;
        Some(value)
    })
}

/// The value of the first line of this name, in lower case, and the lines after it.
fn next_value<'b>(mut lines: &'b [u8], name: &[u8]) -> Option<(&'b [u8], &'b [u8])> {
    while !lines.is_empty() {
        let (line, rest) = split_at_byte(lines, b'\n');
        let (found, value) = split_at_byte(line, b':');
        if found.eq_ignore_ascii_case(name) {
            return Some((value.trim_ascii(), rest));
        }
        lines = rest;
    }
    None
}

/// Sixteen bytes in base64: 22 characters and two of padding.
fn is_key(key: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    matches!(key.split_last_chunk(), Some((digits, b"=="))
        if digits.len() == 22 && digits.iter().all(is_digit))
}

/// The parts before and after the first `byte`; everything and nothing without one.
fn split_at_byte(bytes: &[u8], byte: u8) -> (&[u8], &[u8]) {
    match bytes.iter().position(|found| *found == byte).and_then(|at| bytes.split_at_checked(at)) {
        Some((before, [_, after @ ..])) => (before, after),
        _ => (bytes, &[]),
    }
}
