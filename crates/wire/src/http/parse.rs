//! Complete heads to requests and responses: httparse splits the lines, and what it accepts too
//! leniently is checked here, because two readers of one head must not disagree (RFC 9112).

use super::head::{Framing, Request, Response};
use super::scan::{check_lines, is_tchar};
use super::{Header, list_items};
use crate::Violation;

/// Parses the head that [`HeadScanner`](super::HeadScanner) found. The length of `headers` is the
/// most header lines allowed.
///
/// # Errors
/// The first [`Violation`] of RFC 9112 found: in the request line, a header line, Host, or the
/// headers about the body's length.
pub fn parse_request<'h, 'b>(
    head: &'b [u8],
    headers: &'h mut [Header<'b>],
) -> Result<Request<'h, 'b>, Violation> {
    check_lines(head)?;
    let mut parsed = httparse::Request::new(headers);
    require_complete(parsed.parse(head), head, Violation::BadRequestLine)?;
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(Violation::BadRequestLine);
    };
    if !is_target(method, target) {
        return Err(Violation::BadTarget);
    }
    let headers: &'h [Header<'b>] = parsed.headers;
    let Fields { framing, hosts } = Fields::read(version, headers)?;
    match hosts {
        0 if version >= 1 => return Err(Violation::MissingHost),
        0 | 1 => {}
        _ => return Err(Violation::DuplicateHost),
    }
    Ok(Request { method, target, version, headers, framing, head })
}

/// Parses the head that [`HeadScanner`](super::HeadScanner) found. The length of `headers` is the
/// most header lines allowed.
///
/// # Errors
/// The first [`Violation`] of RFC 9112 found: in the status line, a header line, or the headers
/// about the body's length.
pub fn parse_response<'h, 'b>(
    head: &'b [u8],
    headers: &'h mut [Header<'b>],
) -> Result<Response<'h, 'b>, Violation> {
    check_lines(head)?;
    let mut parsed = httparse::Response::new(headers);
    require_complete(parsed.parse(head), head, Violation::BadStatusLine)?;
    let (Some(status @ 100..=999), Some(version)) = (parsed.code, parsed.version) else {
        return Err(Violation::BadStatusLine);
    };
    let headers: &'h [Header<'b>] = parsed.headers;
    let Fields { framing, .. } = Fields::read(version, headers)?;
    let reason = parsed.reason.unwrap_or("");
    Ok(Response { status, reason, version, headers, framing })
}

/// What is checked of a head's headers before the head is used, collected in one pass.
struct Fields {
    framing: Framing,
    hosts: u32,
}

impl Fields {
    fn read(version: u8, headers: &[Header<'_>]) -> Result<Fields, Violation> {
        let mut hosts = 0;
        let mut length = None;
        let mut encodings = 0;
        for header in headers {
            match header.name.len() {
                4 if header.name.eq_ignore_ascii_case("host") => {
                    hosts += 1;
                    if !is_host(header.value) {
                        return Err(Violation::BadHost);
                    }
                }
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    let bytes = decimal(header.value).ok_or(Violation::BadContentLength)?;
                    if *length.get_or_insert(bytes) != bytes {
                        return Err(Violation::ConflictingContentLength);
                    }
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    for coding in list_items(header.value) {
                        encodings += 1;
                        if encodings > 1 || !coding.eq_ignore_ascii_case(b"chunked") {
                            return Err(Violation::UnsupportedTransferEncoding);
                        }
                    }
                    if encodings == 0 {
                        return Err(Violation::UnsupportedTransferEncoding);
                    }
                }
                _ => {}
            }
        }
        let framing = match (encodings, length) {
            (0, None) => Framing::Unsaid,
            (0, Some(bytes)) => Framing::Length(bytes),
            (_, Some(_)) => return Err(Violation::LengthAndTransferEncoding),
            (_, None) if version == 0 => return Err(Violation::TransferEncodingInHttp10),
            (_, None) => Framing::Chunked,
        };
        Ok(Fields { framing, hosts })
    }
}

/// Digits only: no sign, no blanks, no list (RFC 9110 8.6).
pub(crate) fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// The characters of a host and port (RFC 3986 3.2.2); empty is allowed (RFC 9110 7.2).
pub(crate) fn is_host(value: &[u8]) -> bool {
    value.iter().all(|byte| {
        matches!(byte,
            b'!' | b'$'..=b'+' | b'-' | b'.' | b'0'..=b';' | b'=' | b'A'..=b'[' | b']' | b'_'
            | b'a'..=b'z' | b'~')
    })
}

/// One of the four forms of RFC 9112 3.2: a path, an absolute URI, `*`, or CONNECT's authority.
fn is_target(method: &str, target: &str) -> bool {
    let form = match target.as_bytes() {
        [b'/', ..] => true,
        b"*" => method == "OPTIONS",
        _ if method == "CONNECT" => is_host(target.as_bytes()),
        _ => target.split_once("://").is_some_and(|(scheme, rest)| {
            // It takes the place of Host, so the same rules apply; and it must name a host (RFC
            // 9110 4.2).
            let authority = rest.split(['/', '?']).next().unwrap_or_default();
            !authority.is_empty()
                && is_host(authority.as_bytes())
                && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
        }),
    };
    form && target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

/// Whether httparse used all of `head` for one head.
#[inline]
fn require_complete(
    parsed: httparse::Result<usize>,
    head: &[u8],
    bad_first_line: Violation,
) -> Result<(), Violation> {
    match parsed {
        Ok(httparse::Status::Complete(len)) if len == head.len() => Ok(()),
        Ok(_) => Err(Violation::NotHttp),
        Err(error) => Err(explain(error, head, bad_first_line)),
    }
}

/// The violation for an error of httparse, which does not distinguish bad header lines.
#[cold]
fn explain(error: httparse::Error, head: &[u8], bad_first_line: Violation) -> Violation {
    match error {
        httparse::Error::TooManyHeaders => Violation::TooManyHeaders,
        httparse::Error::Version if mentions_http(head) => Violation::UnsupportedVersion,
        httparse::Error::HeaderName => explain_header(head),
        httparse::Error::HeaderValue => Violation::ControlCharacter,
        _ => bad_first_line,
    }
}

/// Whether the first line contains a version, even if not a supported one.
fn mentions_http(head: &[u8]) -> bool {
    let line = head.trim_ascii_start().split(|byte| *byte == b'\r').next().unwrap_or(&[]);
    let version = line.split(|byte| *byte == b' ').find(|word| word.starts_with(b"HTTP/"));
    matches!(version, Some([.., major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit())
}

fn explain_header(head: &[u8]) -> Violation {
    let lines = head.trim_ascii_start().split(|byte| *byte == b'\n').skip(1);
    for line in lines {
        let name = line.iter().take_while(|byte| is_tchar(**byte)).count();
        match (name, line.get(name)) {
            (0, Some(b' ' | b'\t')) => return Violation::FoldedHeader,
            (1.., Some(b' ' | b'\t')) => return Violation::SpaceBeforeColon,
            (1.., Some(b':')) => {}
            _ => return Violation::BadHeaderName,
        }
    }
    Violation::BadHeaderName
}
