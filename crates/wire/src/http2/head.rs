//! Checks of heads and trailers (RFC 9113 8.2 and 8.3, RFC 8441 4). A field that breaks a rule makes
//! the message malformed, which is an error of its stream (RFC 9113 8.1.1).

use crate::Violation;
use crate::http::{decimal, is_host, is_tchar, is_token};

/// What a connection needs to know of a request.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct RequestHead {
    /// The value of Content-Length.
    pub(super) length: Option<u64>,
    pub(super) is_connect: bool,
}

/// What a connection needs to know of a response.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct ResponseHead {
    /// The value of Content-Length.
    pub(super) length: Option<u64>,
    pub(super) status: u16,
}

/// Checks a request. `extended_connect` says whether `:protocol` is allowed.
pub(super) fn check_request<'f>(
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
    extended_connect: bool,
) -> Result<RequestHead, Violation> {
    let (mut method, mut scheme, mut path, mut authority, mut protocol) =
        (None, None, None, None, None);
    let mut regular = Regular::default();
    let mut host = None;
    for (name, value) in fields {
        let [b':', pseudo @ ..] = name else {
            regular.check(name, value)?;
            if name == b"host" {
                if host.is_some_and(|host: &[u8]| !host.eq_ignore_ascii_case(value)) {
                    return Err(Violation::Http2BadAuthority);
                }
                host = Some(value);
            }
            continue;
        };
        let place = match pseudo {
            b"method" => &mut method,
            b"scheme" => &mut scheme,
            b"path" => &mut path,
            b"authority" => &mut authority,
            b"protocol" => &mut protocol,
            _ => return Err(Violation::Http2BadPseudoField),
        };
        if regular.begun || place.replace(value).is_some() {
            return Err(Violation::Http2BadPseudoField);
        }
    }
    let method = method.ok_or(Violation::Http2MissingPseudoField)?;
    let is_connect = method == b"CONNECT";
    if is_connect && protocol.is_none() {
        // RFC 9113 8.5.
        if scheme.is_some() || path.is_some() {
            return Err(Violation::Http2BadPseudoField);
        }
        if authority.is_none() {
            return Err(Violation::Http2MissingPseudoField);
        }
    } else {
        let (Some(scheme), Some(path)) = (scheme, path) else {
            return Err(Violation::Http2MissingPseudoField);
        };
        if !is_token(method) || !is_scheme(scheme) || !is_path(method, scheme, path) {
            return Err(Violation::Http2BadPseudoValue);
        }
    }
    if let Some(protocol) = protocol {
        if !extended_connect || !is_connect {
            return Err(Violation::Http2BadConnect);
        }
        if authority.is_none() {
            return Err(Violation::Http2MissingPseudoField);
        }
        if !is_token(protocol) {
            return Err(Violation::Http2BadPseudoValue);
        }
    }
    if [authority, host].into_iter().flatten().any(|host| !is_host(host))
        || matches!((authority, host), (Some(a), Some(h)) if !a.eq_ignore_ascii_case(h))
    {
        return Err(Violation::Http2BadAuthority);
    }
    Ok(RequestHead { length: regular.length, is_connect })
}

/// Checks a response, interim or not.
pub(super) fn check_response<'f>(
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
) -> Result<ResponseHead, Violation> {
    let mut status = None;
    let mut regular = Regular::default();
    for (name, value) in fields {
        let [b':', pseudo @ ..] = name else {
            regular.check(name, value)?;
            continue;
        };
        if pseudo != b"status" || regular.begun || status.is_some() {
            return Err(Violation::Http2BadPseudoField);
        }
        // 101 is not a status of HTTP/2 (RFC 9113 8.6).
        status = match value {
            [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] if value != b"101" => {
                Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
            }
            _ => return Err(Violation::Http2BadPseudoValue),
        };
    }
    let status = status.ok_or(Violation::Http2MissingPseudoField)?;
    Ok(ResponseHead { length: regular.length, status })
}

/// Checks trailers: they have no pseudo-fields (RFC 9113 8.1).
pub(super) fn check_trailers<'f>(
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
) -> Result<(), Violation> {
    let mut regular = Regular::default();
    for (name, value) in fields {
        if name.first() == Some(&b':') {
            return Err(Violation::Http2BadPseudoField);
        }
        regular.check(name, value)?;
    }
    Ok(())
}

/// The fields that are not pseudo-fields, as far as they were read.
#[derive(Default)]
struct Regular {
    begun: bool,
    length: Option<u64>,
}

impl Regular {
    #[inline]
    fn check(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        self.begun = true;
        if !is_name(name) {
            return Err(Violation::Http2BadFieldName);
        }
        if !is_value(value) {
            return Err(Violation::Http2BadFieldValue);
        }
        match name.len() {
            // RFC 9113 8.2.2.
            2 if name == b"te" && !value.eq_ignore_ascii_case(b"trailers") => {
                return Err(Violation::Http2ConnectionField);
            }
            7 if name == b"upgrade" => return Err(Violation::Http2ConnectionField),
            10 if name == b"connection" || name == b"keep-alive" => {
                return Err(Violation::Http2ConnectionField);
            }
            16 if name == b"proxy-connection" => return Err(Violation::Http2ConnectionField),
            17 if name == b"transfer-encoding" => return Err(Violation::Http2ConnectionField),
            14 if name == b"content-length" => {
                let bytes = decimal(value).ok_or(Violation::BadContentLength)?;
                if *self.length.get_or_insert(bytes) != bytes {
                    return Err(Violation::ConflictingContentLength);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A token in lower case (RFC 9113 8.2.1).
#[inline]
fn is_name(name: &[u8]) -> bool {
    let common = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
    !name.is_empty()
        && (name.iter().fold(true, |good, byte| good & common(*byte))
            || name.iter().all(|byte| is_tchar(*byte) && !byte.is_ascii_uppercase()))
}

/// No control character but tabs, and no blank at either end (RFC 9113 8.2.1, RFC 9110 5.5).
#[inline]
fn is_value(value: &[u8]) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let good = |byte: u8| byte >= b' ' && byte != 0x7f || byte == b'\t';
    !blank(value.first())
        && !blank(value.last())
        && value.iter().fold(true, |all, byte| all & good(*byte))
}

/// RFC 3986 3.1.
fn is_scheme(scheme: &[u8]) -> bool {
    scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// A path, or `*` of OPTIONS; other schemes than http and https may have other forms (RFC 9113
/// 8.3.1).
fn is_path(method: &[u8], scheme: &[u8], path: &[u8]) -> bool {
    let form = match path {
        [] => false,
        [b'/', ..] => true,
        b"*" => method == b"OPTIONS",
        _ => !matches!(scheme, b"http" | b"https"),
    };
    form && path.iter().fold(true, |all, byte| all & (byte.is_ascii_graphic() & (*byte != b'#')))
}
