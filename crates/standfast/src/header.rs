//! Which headers a program may add to an answer.

/// A header that cannot be part of an answer. Refuses the client with status 500 where `?` is used on it in
/// [`Handler::upgrade`](crate::Handler::upgrade).
#[non_exhaustive]
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum InvalidHeader {
    /// The name is no token (RFC 9110 section 5.6.2).
    Name,
    /// The value contains a line break or another control character.
    Value,
    /// The server sets this header itself, or it concerns the connection only: Connection, Upgrade,
    /// Content-Length, Transfer-Encoding, Keep-Alive, TE, Trailer, those of `Proxy-`, and those of
    /// `Sec-WebSocket-`.
    Reserved,
}

impl std::fmt::Display for InvalidHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InvalidHeader::Name => "invalid name of a header: expected letters, digits and hyphens",
            InvalidHeader::Value => {
                "invalid value of a header: expected no line break and no other control character"
            }
            InvalidHeader::Reserved => "the library sets this header itself",
        })
    }
}

impl std::error::Error for InvalidHeader {}

impl From<InvalidHeader> for crate::Response {
    fn from(_: InvalidHeader) -> Self {
        crate::Response::text(500, "The server made an invalid header.\n")
    }
}

/// Headers of a connection, not of a message (RFC 9110 section 7.6.1), and those that say where it ends.
const RESERVED: [&str; 8] = [
    "connection",
    "upgrade",
    "content-length",
    "transfer-encoding",
    "keep-alive",
    "te",
    "trailer",
    "trailers",
];
const RESERVED_PREFIXES: [&str; 2] = ["proxy-", "sec-websocket-"];

/// # Errors
/// Why a program may not send this header.
pub(crate) fn check(name: &str, value: &str) -> Result<(), InvalidHeader> {
    let is_tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_tchar) {
        return Err(InvalidHeader::Name);
    }
    let prefixed = |prefix: &&str| {
        name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    if RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
        || RESERVED_PREFIXES.iter().any(prefixed)
    {
        return Err(InvalidHeader::Reserved);
    }
    if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(InvalidHeader::Value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_end_a_message_or_a_line_are_refused() {
        for (name, value, expected) in [
            ("X-Node", "a b\tc é", Ok(())),
            ("Set-Cookie", "a=1; HttpOnly", Ok(())),
            ("", "x", Err(InvalidHeader::Name)),
            ("X Node", "x", Err(InvalidHeader::Name)),
            ("X-Node\r\nA", "x", Err(InvalidHeader::Name)),
            ("Ä", "x", Err(InvalidHeader::Name)),
            ("X-Node", "a\r\nSet-Cookie: b", Err(InvalidHeader::Value)),
            ("X-Node", "a\0", Err(InvalidHeader::Value)),
            ("X-Node", "\x7f", Err(InvalidHeader::Value)),
            ("content-length", "0", Err(InvalidHeader::Reserved)),
            ("Transfer-Encoding", "chunked", Err(InvalidHeader::Reserved)),
            ("CONNECTION", "close", Err(InvalidHeader::Reserved)),
            ("Sec-WebSocket-Accept", "x", Err(InvalidHeader::Reserved)),
            ("Proxy-Authenticate", "x", Err(InvalidHeader::Reserved)),
        ] {
            assert_eq!(check(name, value), expected, "{name}: {value}");
        }
    }
}
