//! [`HeaderRule`]: a header that a route sets or removes, with variables in its value.
//!
//! Headers that delimit a message or belong to one connection cannot be changed: that could smuggle a
//! request (RFC 9112 section 11.2). Values are checked when they are parsed; what variables stand for is
//! checked when they are expanded.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Maximum length of a rule, in bytes.
const RULE_BYTES_MAX: usize = 4096;
/// Maximum number of rules of a route in each direction.
pub(crate) const RULES_MAX: usize = 32;

/// Headers that no rule may name, besides `Sec-WebSocket-*`.
const FIXED: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Sets or removes a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    name: Box<str>,
    /// Empty if the header is removed.
    value: Box<[Part]>,
}

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Variable(Variable),
}

/// What a value can contain of the request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Variable {
    Host,
    HttpHost,
    RemoteAddr,
    RequestId,
    Scheme,
}

/// The values of the variables for one request.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Variables<'r> {
    /// The client's address, if it is known.
    pub(crate) remote_addr: Option<IpAddr>,
    /// The host that was requested, as it was sent.
    pub(crate) host: &'r [u8],
    /// The connection uses TLS.
    pub(crate) secure: bool,
    pub(crate) request_id: Option<&'r str>,
}

impl HeaderRule {
    /// The header's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a rule for this header. `_` counts as `-`, as servers that turn headers into
    /// variables cannot tell them apart.
    pub(crate) fn is_for(&self, name: &str) -> bool {
        is_same(&self.name, name)
    }

    /// Whether the value needs a request id.
    pub(crate) fn uses_request_id(&self) -> bool {
        self.value.contains(&Part::Variable(Variable::RequestId))
    }

    /// Appends the header; nothing if it is removed, or if its value comes out empty.
    pub(crate) fn push(&self, out: &mut Vec<u8>, variables: &Variables<'_>) {
        let begin = out.len();
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(b": ");
        let value = out.len();
        for part in &self.value {
            part.push(out, variables);
        }
        let is_valid = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f;
        let written = out.get(value..).unwrap_or_default();
        if written.trim_ascii().is_empty() || !written.iter().all(is_valid) {
            return out.truncate(begin);
        }
        out.extend_from_slice(b"\r\n");
    }
}

impl Part {
    fn push(&self, out: &mut Vec<u8>, variables: &Variables<'_>) {
        match self {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Variable(Variable::Host) => {
                let name = without_port(variables.host);
                out.extend(name.iter().map(u8::to_ascii_lowercase));
            }
            Part::Variable(Variable::HttpHost) => out.extend_from_slice(variables.host),
            Part::Variable(Variable::RemoteAddr) => {
                let address = variables.remote_addr.map(|address| address.to_string());
                out.extend_from_slice(address.unwrap_or_default().as_bytes());
            }
            Part::Variable(Variable::RequestId) => {
                out.extend_from_slice(variables.request_id.unwrap_or_default().as_bytes());
            }
            Part::Variable(Variable::Scheme) => {
                let scheme = if variables.secure { "https" } else { "http" };
                out.extend_from_slice(scheme.as_bytes());
            }
        }
    }
}

impl FromStr for HeaderRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let shown = text.get(..80).unwrap_or(text).escape_debug();
            format!(
                "invalid header \"{shown}\": expected \"Name: value\", or \"Name:\" to remove it"
            )
        };
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let value = value.trim_matches([' ', '\t']);
        let visible = value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
        if !is_token(name) || !visible || text.len() > RULE_BYTES_MAX {
            return Err(wrong());
        }
        if is_fixed(name) {
            return Err(format!("{name} belongs to the connection: it cannot be set or removed"));
        }
        Ok(HeaderRule { name: name.into(), value: parts(value)? })
    }
}

/// The text form, without the value: it may be a secret.
impl fmt::Display for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Rejects a list that is too long, or has two rules for one header.
pub(crate) fn check(rules: &[HeaderRule], key: &str) -> Result<(), String> {
    if rules.len() > RULES_MAX {
        return Err(format!("{key} has {} entries: at most {RULES_MAX}", rules.len()));
    }
    for (at, rule) in rules.iter().enumerate() {
        if rules.iter().take(at).any(|other| other.is_for(&rule.name)) {
            return Err(format!("{key} names {} twice", rule.name));
        }
    }
    Ok(())
}

/// Splits a value into texts and variables: `$name`, `${name}`, and `$$` for a dollar sign.
fn parts(value: &str) -> Result<Box<[Part]>, String> {
    let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), value);
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            text.push('$');
            rest = after;
            continue;
        }
        let (name, after) = match after.strip_prefix('{').map(|after| after.split_once('}')) {
            Some(Some(braced)) => braced,
            Some(None) => return Err("a variable has no closing }".to_owned()),
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len()))
            }
        };
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text).into()));
        }
        parts.push(Part::Variable(variable(name)?));
        rest = after;
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text.into()));
    }
    Ok(parts.into())
}

fn variable(name: &str) -> Result<Variable, String> {
    match name {
        "host" => Ok(Variable::Host),
        "http_host" => Ok(Variable::HttpHost),
        "remote_addr" => Ok(Variable::RemoteAddr),
        "request_id" => Ok(Variable::RequestId),
        "scheme" => Ok(Variable::Scheme),
        _ => Err(format!(
            "unknown variable ${name}: expected $host, $http_host, $remote_addr, $request_id or $scheme, \
             or $$ for a dollar sign"
        )),
    }
}

/// A host without its port; the last colon of `[::1]` starts none.
fn without_port(host: &[u8]) -> &[u8] {
    let name = host.trim_ascii_end();
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let front = name.get(..name.len() - digits).unwrap_or_default();
    front
        .strip_suffix(b":")
        .filter(|front| !front.contains(&b':') || front.ends_with(b"]"))
        .unwrap_or(name)
}

fn is_fixed(name: &str) -> bool {
    const HANDSHAKE: &str = "sec-websocket-";
    let front = name.get(..HANDSHAKE.len());
    front.is_some_and(|front| is_same(front, HANDSHAKE))
        || FIXED.iter().any(|fixed| is_same(name, fixed))
}

fn is_same(one: &str, other: &str) -> bool {
    let plain = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.bytes().map(plain).eq(other.bytes().map(plain))
}

/// Whether a text is a token (RFC 9110 section 5.6.2).
fn is_token(text: &str) -> bool {
    let right = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(rule: &str, variables: &Variables<'_>) -> String {
        let mut out = Vec::new();
        rule.parse::<HeaderRule>().unwrap().push(&mut out, variables);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn values_contain_variables() {
        let id = Some("0123");
        let address = Some([192, 0, 2, 1].into());
        let all =
            Variables { remote_addr: address, host: b"A.test:81", secure: true, request_id: id };
        for (rule, line) in [
            ("X-A: b", "X-A: b\r\n"),
            ("X-A:\t b, c ", "X-A: b, c\r\n"),
            ("X-A: $remote_addr", "X-A: 192.0.2.1\r\n"),
            ("X-A: $scheme://${host}/x", "X-A: https://a.test/x\r\n"),
            ("X-A: $http_host", "X-A: A.test:81\r\n"),
            ("X-A: $request_id;$$1", "X-A: 0123;$1\r\n"),
            ("X-A:", ""),
        ] {
            assert_eq!(pushed(rule, &all), line, "{rule}");
        }
        assert_eq!(pushed("X-A: $remote_addr$request_id", &Variables::default()), "");
        assert_eq!(pushed("X-A: $scheme", &Variables::default()), "X-A: http\r\n");
    }

    #[test]
    fn hosts_are_shown_without_a_port() {
        for (host, name) in [
            ("a", "a"),
            ("A:80", "a"),
            ("a:", "a"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]"),
            ("1", "1"),
        ] {
            let variables = Variables { host: host.as_bytes(), ..Variables::default() };
            assert_eq!(pushed("X-A: $host", &variables), format!("X-A: {name}\r\n"));
        }
    }

    #[test]
    fn a_variable_cannot_add_a_line() {
        for host in [&b"a\r\nX-B: c"[..], b"a\nb", b"a\0b", b"a\x7f"] {
            let variables = Variables { host, ..Variables::default() };
            assert_eq!(
                pushed("X-A: $host", &variables) + &pushed("X-A: $http_host", &variables),
                ""
            );
        }
    }

    #[test]
    fn headers_of_the_message_and_the_connection_cannot_be_changed() {
        for name in [
            "Connection",
            "Content-Length",
            "content_length",
            "Transfer-Encoding",
            "Transfer_Encoding",
            "Upgrade",
            "Host",
            "TE",
            "Trailer",
            "Keep-Alive",
            "Proxy-Authorization",
            "Proxy-Connection",
            "HTTP2-Settings",
            "Expect",
            "Sec-WebSocket-Key",
            "sec_websocket_accept",
            "Sec-WebSocket-Protocol",
        ] {
            for rule in [format!("{name}: x"), format!("{name}:")] {
                let error = rule.parse::<HeaderRule>().unwrap_err();
                assert!(error.contains("cannot be set or removed"), "{rule}: {error}");
            }
        }
    }

    #[test]
    fn invalid_rules_are_rejected() {
        let long = format!("X-A: {}", "a".repeat(RULE_BYTES_MAX));
        for (rule, complaint) in [
            ("", "expected \"Name: value\""),
            ("X-A", "expected \"Name: value\""),
            (": a", "expected \"Name: value\""),
            ("X A: b", "expected \"Name: value\""),
            ("X-A : b", "expected \"Name: value\""),
            ("X-A: b\r\nX-C: d", "expected \"Name: value\""),
            ("X-A: b\n", "expected \"Name: value\""),
            ("X-A: b\0", "expected \"Name: value\""),
            ("X-A: ü", "expected \"Name: value\""),
            (&long, "expected \"Name: value\""),
            ("X-A: $remote_address", "unknown variable $remote_address: expected $host"),
            ("X-A: 5 $", "unknown variable $:"),
            ("X-A: ${host", "no closing }"),
        ] {
            let error = rule.parse::<HeaderRule>().unwrap_err();
            assert!(error.contains(complaint) && error.len() < 300, "{rule:?}: {error}");
        }
    }

    #[test]
    fn a_header_has_one_rule() {
        let rules = |list: &[&str]| -> Vec<HeaderRule> {
            list.iter().map(|rule| rule.parse().unwrap()).collect()
        };
        assert_eq!(check(&rules(&["X-A: 1", "X-B: 2"]), "k"), Ok(()));
        let error = check(&rules(&["X-A: 1", "x_a:"]), "k").unwrap_err();
        assert_eq!(error, "k names x_a twice");
        let many: Vec<String> = (0..=RULES_MAX).map(|at| format!("X-{at}: 1")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(check(&rules(&many), "k").unwrap_err().contains("at most 32"));
    }
}
