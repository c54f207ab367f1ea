//! Request ids: one for each request, in `X-Request-Id` and in the access log. A trusted proxy's is kept.

use std::str::{FromStr, from_utf8};

use wire::http::Request;

use crate::headers::ClientIdentity;

/// The header.
pub(crate) const HEADER: &str = "X-Request-Id";
/// Maximum length of an id that is kept.
const BYTES_MAX: usize = 128;

/// Where request ids are sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum RequestIds {
    /// Nowhere: the header is passed on like any other.
    #[default]
    Off,
    /// To upstreams.
    Upstream,
    /// To upstreams and to clients.
    All,
}

impl FromStr for RequestIds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(RequestIds::Off),
            "upstream" => Ok(RequestIds::Upstream),
            "all" => Ok(RequestIds::All),
            _ => Err("expected off, upstream or all".to_owned()),
        }
    }
}

/// The id of a request: the one that a trusted proxy gave it, or a new one.
pub(crate) fn of(
    request: &Request<'_, '_>,
    identity: &ClientIdentity,
    random: impl FnMut() -> u64,
) -> Box<str> {
    let given = request.header("x-request-id").filter(|_| identity.trusted.is_some());
    match given.filter(|id| is_valid(id)).and_then(|id| from_utf8(id).ok()) {
        Some(id) => id.into(),
        None => new(random),
    }
}

/// A new id: 128 random bits, as nginx's.
pub(crate) fn new(mut random: impl FnMut() -> u64) -> Box<str> {
    format!("{:016x}{:016x}", random(), random()).into()
}

/// Whether an id can be passed on and logged.
fn is_valid(id: &[u8]) -> bool {
    let right = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(byte);
    (1..=BYTES_MAX).contains(&id.len()) && id.iter().all(right)
}

#[cfg(test)]
mod tests {
    use wire::http::{EMPTY_HEADER, ForwardedBy, parse_request};

    use super::*;

    fn id_of(header: &str, identity: &ClientIdentity) -> String {
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{header}\r\n");
        let mut headers = [EMPTY_HEADER; 4];
        let request = parse_request(head.as_bytes(), &mut headers).unwrap();
        let mut counter = 0;
        let random = || {
            counter += 1;
            counter
        };
        of(&request, identity, random).into()
    }

    #[test]
    fn only_a_valid_id_of_a_trusted_proxy_is_kept() {
        let new = "00000000000000010000000000000002";
        let trusted = Some(ForwardedBy::XForwardedFor);
        let trusted = ClientIdentity { trusted, ..ClientIdentity::default() };
        let stranger = ClientIdentity::default();
        let longest = "a".repeat(128);
        for id in ["7b0e-11", "Root=1-67891233:abc/+@~_.", &longest] {
            let header = format!("x-request-id: {id}\r\n");
            assert_eq!(id_of(&header, &trusted), id);
            assert_eq!(id_of(&header, &stranger), new);
        }
        let long = "a".repeat(129);
        for id in ["", "a b", "a\"b", "a\\b", "ü", "a,b", &long] {
            assert_eq!(id_of(&format!("X-Request-Id: {id}\r\n"), &trusted), new, "{id}");
        }
        assert_eq!(id_of("", &trusted), new);
        let twice = "X-Request-Id: a\r\nX-Request-Id: b\r\n";
        assert!(["a", new].contains(&id_of(twice, &trusted).as_str()));
    }
}
