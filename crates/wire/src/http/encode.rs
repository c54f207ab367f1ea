//! Heads, chunks and complete responses to bytes, appended to the caller's buffer (RFC 9112). Line
//! breaks and other control characters in a header's value are written as blanks, so that no caller
//! can be tricked into sending an unintended header or response.

use alloc::vec::Vec;

/// The interim response that [`expects_continue`](super::expects_continue) calls for.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Ends a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends a response's head. Headers about the body's length are up to the caller.
pub fn encode_response_head<'a>(
    out: &mut Vec<u8>,
    status: u16,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    push_status_line(out, status);
    push_headers(out, headers);
}

/// Whether a response with this status has no body, and no Content-Length or Transfer-Encoding: 1xx, 204 and
/// 304 (RFC 9110 6.4.1, 8.6). The length in a 304 would be that of the 200 that it stands for.
pub const fn is_bodiless(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

/// Appends a complete response with a body and its Content-Length, or without both where the status has none
/// ([`is_bodiless`]).
pub fn encode_response<'a>(
    out: &mut Vec<u8>,
    status: u16,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: &[u8],
) {
    push_status_line(out, status);
    if is_bodiless(status) {
        return push_headers(out, headers);
    }
    out.extend_from_slice(b"Content-Length: ");
    push_decimal(out, body.len() as u64);
    out.extend_from_slice(b"\r\n");
    push_headers(out, headers);
    out.extend_from_slice(body);
}

/// Appends a request's head. Host is among the caller's headers.
pub fn encode_request_head<'a>(
    out: &mut Vec<u8>,
    method: &str,
    target: &str,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    push_request_line(out, method, target);
    push_headers(out, headers);
}

/// Appends one chunk of a chunked body; nothing for no data, as an empty chunk would end the body.
pub fn encode_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let mut shift = usize::BITS - data.len().leading_zeros();
    while shift > 0 {
        shift = (shift - 1) / 4 * 4;
        let digit = (data.len() >> shift & 0xF) as u32;
        out.extend(char::from_digit(digit, 16).map(|digit| digit as u8));
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// The usual text for a status (RFC 9110 15), empty for one not listed.
pub const fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

/// Appends one header line.
pub(crate) fn push_field(out: &mut Vec<u8>, name: &str, value: &str) {
    push_clean(out, name);
    out.extend_from_slice(b": ");
    push_clean(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a request line.
pub(crate) fn push_request_line(out: &mut Vec<u8>, method: &str, target: &str) {
    push_clean(out, method);
    out.push(b' ');
    let start = out.len();
    push_clean(out, target);
    for byte in out.iter_mut().skip(start).filter(|byte| **byte == b' ') {
        *byte = b'+';
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

fn push_status_line(out: &mut Vec<u8>, status: u16) {
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason_phrase(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends header lines and the blank line after them.
pub(crate) fn push_headers<'a>(
    out: &mut Vec<u8>,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    for (name, value) in headers {
        push_field(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends text, with line breaks and other control characters as blanks.
pub(crate) fn push_clean(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    out.extend_from_slice(text.as_bytes());
    for byte in out.iter_mut().skip(start).filter(|byte| byte.is_ascii_control()) {
        *byte = b' ';
    }
}

fn push_decimal(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut rest = number;
    let mut used = 0;
    for place in digits.iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
        used += 1;
        if rest == 0 {
            break;
        }
    }
    out.extend(digits.iter().skip(digits.len() - used));
}
