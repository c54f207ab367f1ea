//! [`NatsServers`]: where NATS is: URLs of its servers, with user and password.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::settings::{UrlError, decoded, host_and_port};

/// The port of NATS without one in the URL.
const NATS_PORT: u16 = 4222;

/// A NATS server as its URL names it: `nats://` or `tls://`.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsUrl {
    host: String,
    port: u16,
    tls: bool,
    user: Option<String>,
    password: Option<String>,
}

/// Servers of one NATS: of a cluster any of them.
#[derive(Clone)]
pub struct NatsServers {
    /// Their URLs, at least one.
    pub urls: Vec<NatsUrl>,
    /// The text of a file of credentials (`.creds`), if there is one.
    pub credentials: Option<Arc<str>>,
}

/// Without the password.
impl fmt::Display for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "tls" } else { "nats" };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{}{close}:{}", self.host, self.port)
    }
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsUrl({self})")
    }
}

impl FromStr for NatsUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let parse = |rest: &str, tls| {
            let rest = rest.strip_prefix("//").ok_or("// and a host must follow the scheme")?;
            let (credentials, place) = rest.rsplit_once('@').unwrap_or(("", rest));
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            let (host, port) = host_and_port(place.trim_end_matches('/'), NATS_PORT)?;
            let (user, password) = (decoded(user)?, decoded(password)?);
            Ok(NatsUrl { host: host.to_owned(), port, tls, user, password })
        };
        let parsed = match text.split_once(':') {
            Some(("nats", rest)) => parse(rest, false),
            Some(("tls", rest)) => parse(rest, true),
            _ => Err("expected nats://HOST or tls://HOST"),
        };
        parsed.map_err(|why| UrlError::new("NATS", text, why))
    }
}

/// Without passwords.
impl fmt::Display for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, url) in self.urls.iter().enumerate() {
            write!(f, "{}{url}", if at > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Without passwords and credentials.
impl fmt::Debug for NatsServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsServers({self})")
    }
}

impl NatsUrl {
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether it wants TLS, whatever the server says.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// User and password.
    pub(crate) fn credentials(&self) -> Option<(&str, Option<&str>)> {
        Some((self.user.as_deref()?, self.password.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_server_tls_and_credentials_and_hide_them() {
        let url: NatsUrl = "nats://app:p%40ss@nats.example".parse().unwrap();
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("app"), Some("p@ss")));
        assert_eq!(url.to_string(), "nats://nats.example:4222");
        assert!(!format!("{url:?}").contains("p@ss"));
        let url: NatsUrl = "tls://[::1]:4333/".parse().unwrap();
        assert_eq!((url.to_string().as_str(), url.tls), ("tls://[::1]:4333", true));
        for (text, expected) in [
            ("localhost:4222", "expected nats://HOST"),
            ("nats:localhost", "// and a host"),
            ("nats://u:secret@localhost:x", "the port must be"),
        ] {
            let error = text.parse::<NatsUrl>().unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
