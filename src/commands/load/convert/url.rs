//! URLs as other tools write them, and percent-encoding.

/// The parts of an absolute URL.
pub(super) struct Url<'a> {
    pub(super) scheme: &'static str,
    /// With the port.
    pub(super) host: &'a str,
    /// Everything after the host, without the fragment.
    pub(super) rest: &'a str,
}

impl Url<'_> {
    pub(super) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.host)
    }

    /// The host without its port.
    pub(super) fn name(&self) -> &str {
        let port =
            self.host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
        port.map_or(self.host, |(name, _)| name)
    }

    pub(super) fn path(&self) -> &str {
        self.rest.split('?').next().unwrap_or_default()
    }

    pub(super) fn target(&self) -> String {
        if self.rest.starts_with('/') { self.rest.to_owned() } else { format!("/{}", self.rest) }
    }
}

pub(super) fn without_fragment(url: &str) -> &str {
    url.split('#').next().unwrap_or_default()
}

pub(super) fn split(url: &str) -> Option<Url<'_>> {
    let (scheme, after) = without_fragment(url).split_once("://")?;
    let scheme = ["http", "https"].into_iter().find(|known| scheme.eq_ignore_ascii_case(known))?;
    let (host, rest) = after.split_at(after.find(['/', '?']).unwrap_or(after.len()));
    (!host.is_empty()).then_some(Url { scheme, host, rest })
}

/// Percent-encodes what is not allowed in a request target (RFC 3986).
pub(super) fn escaped_target(target: String) -> String {
    percent_encoded(&target, |byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte))
}

pub(super) fn percent_encoded(text: &str, stays: impl Fn(u8) -> bool) -> String {
    text.bytes().fold(String::new(), |out, byte| match byte {
        _ if byte.is_ascii_alphanumeric() || stays(byte) => out + &char::from(byte).to_string(),
        _ => out + &format!("%{byte:02X}"),
    })
}

/// Decodes a part of a form; `None` if it is not UTF-8.
pub(super) fn decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).filter(|_| byte == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    String::from_utf8(out).ok()
}
