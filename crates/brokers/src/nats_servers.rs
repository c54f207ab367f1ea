//! [`NatsServers`]: where NATS is and how to connect to it; errors of NATS in words for operators.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, Subscriber};
use futures_util::StreamExt;
use tokio::sync::mpsc;

use crate::limits::{ANSWER_TIMEOUT, CONNECT_TIMEOUT, PING_INTERVAL};
use crate::settings::{UrlError, decoded, host_and_port};

/// The port of NATS without one in the URL.
const NATS_PORT: u16 = 4222;
/// Events of a connection that wait to be read. They are read at once; further ones are lost.
const EVENTS: usize = 64;

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
#[derive(Clone, Debug)]
pub struct NatsServers {
    /// Their URLs, at least one.
    pub urls: Vec<NatsUrl>,
    /// The text of a file of credentials (`.creds`), if there is one.
    pub credentials: Option<Arc<str>>,
    /// A file with the CA that their certificates must be of; the system's without it.
    pub ca: Option<PathBuf>,
}

/// A connection to NATS and what happens to it.
pub(crate) struct NatsConnection {
    pub(crate) client: Client,
    events: mpsc::Receiver<Event>,
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

impl NatsServers {
    /// Connects to one of them. The connection does not come back by itself: who uses it connects again.
    pub(crate) async fn connect(&self, queued: usize) -> Result<NatsConnection, String> {
        let (told, events) = mpsc::channel(EVENTS);
        let mut options = ConnectOptions::new()
            .name("standfast")
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .subscription_capacity(queued)
            // One attempt for each: the task of a lost connection ends then.
            .max_reconnects(self.urls.len())
            .event_callback(move |event| {
                let told = told.clone();
                async move { drop(told.try_send(event)) }
            });
        if let Some(credentials) = &self.credentials {
            options = options.credentials(credentials).map_err(|error| error.to_string())?;
        }
        let user = self.urls.iter().find_map(|url| Some((url.user.as_ref()?, &url.password)));
        match user {
            Some((user, Some(password))) => {
                options = options.user_and_password(user.clone(), password.clone());
            }
            // As in NATS' own clients a user alone is a token.
            Some((token, None)) => options = options.token(token.clone()),
            None => {}
        }
        if let Some(ca) = &self.ca {
            options = options.add_root_certificates(ca.clone());
        }
        options = options.require_tls(self.urls.iter().any(|url| url.tls));
        let urls: Vec<String> = self.urls.iter().map(NatsUrl::to_string).collect();
        let client = options.connect(urls).await.map_err(|error| match error.kind() {
            ConnectErrorKind::AuthorizationViolation => {
                "authorization violation: wrong user, password or credentials".to_owned()
            }
            _ => error.to_string(),
        })?;
        Ok(NatsConnection { client, events })
    }
}

impl NatsConnection {
    /// Waits until the server has processed everything that was sent before.
    pub(crate) async fn round_trip(&self) -> Result<(), String> {
        let inbox = self.client.new_inbox();
        let there_and_back = async {
            let mut back = self.client.subscribe(inbox.clone()).await.map_err(text)?;
            self.client.publish(inbox, "".into()).await.map_err(text)?;
            next(&mut back).await.ok_or_else(|| "the connection was closed".to_owned())
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, there_and_back).await {
            Ok(result) => result.map(drop),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    /// The next thing that happens to the connection.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

/// The next message of a subscription.
pub(crate) async fn next(subscriber: &mut Subscriber) -> Option<async_nats::Message> {
    StreamExt::next(subscriber).await
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
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
