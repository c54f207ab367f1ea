//! [`Connect`]: where a client connects to, and how.

use std::time::Duration;

use engine::{Compression, Target, TlsClient, TlsTrust};

use super::address::Address;
use super::resolver::Resolver;
use super::{Client, ClientError, ClientHandler, Lost};
use crate::client::driver::Driver;
use crate::{InvalidHeader, Limits, header};

/// A WebSocket to connect to: its URL, headers, subprotocols, limits, and whether it is opened again.
///
/// ```no_run
/// use standfast::{Connect, Reconnect};
///
/// # fn main() -> Result<(), standfast::ClientError> {
/// let connect = Connect::to("wss://example.org/feed")
///     .header("Authorization", "Bearer 1234")
///     .protocol("feed.v1")
///     .reconnect(Reconnect::default());
/// let mut client = connect.open()?;
/// client.send("hello")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Connect {
    url: String,
    headers: Vec<(String, String)>,
    protocols: Vec<String>,
    tls: Option<TlsClient>,
    pub(super) reconnect: Option<Reconnect>,
    pub(super) limits: Limits,
}

/// When a lost connection is opened again: after a random time of at most `first`, which doubles with every
/// failure up to `longest`.
#[derive(Clone, Debug)]
pub struct Reconnect {
    /// Longest first pause. Default 500 ms.
    pub first: Duration,
    /// Longest pause of all. Default 30 s.
    pub longest: Duration,
    /// Failures in a row after which it is given up; `None` for never. Default `None`.
    pub attempts: Option<u32>,
}

impl Default for Reconnect {
    fn default() -> Self {
        let (first, longest) = (Duration::from_millis(500), Duration::from_secs(30));
        Reconnect { first, longest, attempts: None }
    }
}

impl Reconnect {
    /// The pause after so many failures in a row, 1 or more; `None` if it is given up.
    pub(super) fn pause(&self, failures: u32, random: u64) -> Option<Duration> {
        if self.attempts.is_some_and(|attempts| failures > attempts) {
            return None;
        }
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let share = (random >> 11) as f64 / (1u64 << 53) as f64;
        Some(doubled.min(self.longest).mul_f64(share))
    }
}

/// A [`Connect`] whose parts were checked.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub(super) address: Address,
    pub(super) tls: Option<TlsClient>,
    headers: Vec<(String, String)>,
    protocols: Vec<String>,
    deflate: bool,
    pub(super) reconnect: Option<Reconnect>,
}

impl Connect {
    /// A `ws://` or `wss://` URL. Mistakes in it are reported when it is connected to.
    #[must_use]
    pub fn to(url: &str) -> Connect {
        Connect {
            url: url.to_owned(),
            headers: Vec::new(),
            protocols: Vec::new(),
            tls: None,
            reconnect: None,
            limits: Limits::default(),
        }
    }

    /// A header of the handshake, besides those that every client sends.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Connect {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A subprotocol that is offered, after those before it.
    #[must_use]
    pub fn protocol(mut self, name: &str) -> Connect {
        self.protocols.push(name.to_owned());
        self
    }

    /// Which servers are trusted with `wss://`, and the client's own certificate. Default: servers whose
    /// certificate is of an authority that this machine trusts.
    ///
    /// ```no_run
    /// # use standfast::{Connect, TlsClient, TlsTrust};
    /// let own = TlsTrust::Authorities(std::fs::read("authority.pem")?);
    /// // Without a certificate of the client's; sessions are resumed.
    /// let tls = TlsClient::new(&own, None, true)?;
    /// let client = Connect::to("wss://feed.internal/").tls(tls).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tls(mut self, tls: TlsClient) -> Connect {
        self.tls = Some(tls);
        self
    }

    /// Opens the connection again when it was lost, but not after the client's own close. Without this it
    /// stays lost.
    #[must_use]
    pub fn reconnect(mut self, reconnect: Reconnect) -> Connect {
        self.reconnect = Some(reconnect);
        self
    }

    /// Limits of messages, queues and times. [`Limits::compression`] offers permessage-deflate;
    /// [`Limits::handshake_timeout`] includes the connect. Those of requests and of HTTP are for servers.
    /// With [`Clients`](super::Clients) those of [`Clients::start`](super::Clients::start) apply, except
    /// for compression.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Connect {
        self.limits = limits;
        self
    }

    /// Connects, and waits until the WebSocket is open.
    ///
    /// # Errors
    /// [`ClientError`]. A first connection that fails is not tried again.
    pub fn open(self) -> Result<Client, ClientError> {
        Client::open(self)
    }

    /// Connects, and calls a handler in this thread until the connection has ended for good. Returns how:
    /// after the client's own close with [`Closed::ByUs`](crate::Closed::ByUs).
    ///
    /// # Errors
    /// [`ClientError`], except for [`ClientError::Lost`].
    pub fn run<H: ClientHandler>(self, handler: H) -> Result<Lost, ClientError> {
        let checked = self.check()?;
        let mut driver =
            Driver::new(&self.limits, Resolver::new(1)).map_err(ClientError::Worker)?;
        driver.begin(checked, handler);
        loop {
            driver.turn(None).map_err(ClientError::Worker)?;
            if let Some(lost) = driver.take_ended() {
                return Ok(lost);
            }
        }
    }

    pub(super) fn check(&self) -> Result<Checked, ClientError> {
        let address = Address::parse(&self.url).map_err(ClientError::Options)?;
        for (name, value) in &self.headers {
            let checked = match name.eq_ignore_ascii_case("host") {
                true => Err(InvalidHeader::Reserved),
                false => header::check(name, value),
            };
            if let Err(error) = checked {
                return Err(ClientError::Options(format!("invalid header {name:?}: {error}")));
            }
        }
        let is_token =
            |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(name) = self.protocols.iter().find(|name| !is_token(name) || name.contains(','))
        {
            let what = format!("invalid subprotocol {name:?}: expected a token");
            return Err(ClientError::Options(what));
        }
        let tls = match (&self.tls, address.tls) {
            (_, false) => None,
            (Some(tls), true) => Some(tls.named(&address.host).map_err(ClientError::Tls)?),
            (None, true) => {
                let system = TlsClient::new(&TlsTrust::System, None, true);
                let named = system.and_then(|tls| tls.named(&address.host));
                Some(named.map_err(ClientError::Tls)?)
            }
        };
        Ok(Checked {
            address,
            tls,
            headers: self.headers.clone(),
            protocols: self.protocols.clone(),
            deflate: self.limits.compression != Compression::Off,
            reconnect: self.reconnect.clone(),
        })
    }
}

impl Checked {
    /// The engine's target at one of the addresses.
    pub(super) fn target(&self, at: std::net::SocketAddr) -> Target {
        let protocols: Vec<&str> = self.protocols.iter().map(String::as_str).collect();
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let Address { authority, path, .. } = &self.address;
        let mut target = Target::websocket(at, authority, path, &protocols, self.deflate, &headers);
        target.tls.clone_from(&self.tls);
        target
    }

    /// Whether the same target serves both.
    pub(super) fn is_same(&self, other: &Checked) -> bool {
        self.address == other.address
            && self.headers == other.headers
            && self.protocols == other.protocols
            && self.deflate == other.deflate
            && self.tls == other.tls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_end_with_the_attempts() {
        let reconnect = Reconnect {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(1),
            attempts: Some(60),
        };
        let longest = |failures| reconnect.pause(failures, u64::MAX).unwrap().as_millis();
        assert_eq!([1, 2, 3, 4, 5, 60].map(longest), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(reconnect.pause(7, 0), Some(Duration::ZERO));
        assert_eq!(reconnect.pause(61, 0), None);
    }

    #[test]
    fn headers_and_subprotocols_are_checked() {
        let url = "ws://localhost/";
        for wrong in [
            Connect::to(url).header("a b", "c"),
            Connect::to(url).header("a", "b\r\nc: d"),
            Connect::to(url).header("Sec-WebSocket-Key", "x"),
            Connect::to(url).header("Content-Length", "5"),
            Connect::to(url).header("host", "x"),
            Connect::to(url).protocol("a, b"),
            Connect::to("localhost"),
        ] {
            assert!(matches!(wrong.check(), Err(ClientError::Options(_))), "{wrong:?}");
        }
        assert!(Connect::to(url).header("a", "b").protocol("c").check().is_ok());
    }
}
