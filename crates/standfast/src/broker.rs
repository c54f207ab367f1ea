//! [`Broker`]: where Redis or NATS is, for topics across processes; [`BrokerState`]: how that goes.

use std::time::Duration;

#[cfg(feature = "nats")]
use brokers::nats::NatsTransport;
#[cfg(feature = "redis")]
use brokers::redis::{ClusterTransport, RedisTransport};
use engine::{TlsClient, TlsTrust};

use crate::Error;

/// A Redis or a NATS, which passes publications on between the processes of an application
/// ([`Server::broker`](crate::Server::broker)). With the features `redis` and `nats`.
///
/// ```no_run
/// # use standfast::{Broker, Server};
/// # fn main() -> Result<(), standfast::Error> {
/// let redis = Broker::redis("redis://10.0.0.5:6379")?.prefix("chat").spool_bytes(1 << 20);
/// let server = Server::bind("127.0.0.1:8080")?.broker(redis);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Broker {
    servers: Servers,
    pub(crate) prefix: String,
    pub(crate) name: Option<String>,
    pub(crate) linger: Duration,
    pub(crate) spool_bytes: usize,
    tls: Option<TlsClient>,
}

#[derive(Clone, Debug)]
enum Servers {
    #[cfg(feature = "redis")]
    Redis { urls: Vec<brokers::RedisUrl>, sentinels: Vec<brokers::RedisUrl> },
    #[cfg(feature = "redis")]
    RedisCluster(Vec<brokers::RedisUrl>),
    #[cfg(feature = "nats")]
    Nats(Vec<brokers::NatsUrl>),
}

/// How the servers are reached.
#[derive(Clone)]
pub(crate) enum Transports {
    #[cfg(feature = "redis")]
    Redis(Vec<RedisTransport>),
    #[cfg(feature = "redis")]
    RedisCluster(Vec<ClusterTransport>),
    #[cfg(feature = "nats")]
    Nats(NatsTransport),
}

impl Broker {
    /// A Redis 6 or newer, or Valkey: `redis://`, `rediss://` (TLS) or `unix:`, with user and password where
    /// they are needed. Several URLs, with commas between them, share the topics: all processes give the same
    /// in the same order.
    ///
    /// # Errors
    /// [`Error::Broker`]: a URL that names no server.
    #[cfg(feature = "redis")]
    pub fn redis(urls: &str) -> Result<Broker, Error> {
        Ok(Broker::of(Servers::Redis { urls: redis_urls(urls)?, sentinels: Vec::new() }))
    }

    /// A Redis Cluster of Redis 7 or newer, or of Valkey, by the URLs of some of its nodes, with commas between them:
    /// `redis://` or `rediss://`. The others are found by them. A topic is published to the master of its hash slot by
    /// sharded channels; when slots move or a replica becomes a master, the connections follow.
    ///
    /// [`Server::start`](crate::Server::start) asks the nodes for the masters: at most 5 s for each. It starts without an
    /// answer as well, with some connections more.
    ///
    /// # Errors
    /// As [`Broker::redis`], and for a `unix:` URL or a database other than 0, which a cluster has not.
    #[cfg(feature = "redis")]
    pub fn redis_cluster(urls: &str) -> Result<Broker, Error> {
        let urls = redis_urls(urls)?;
        let is_tcp = |url: &brokers::RedisUrl| {
            matches!(url.address, brokers::ServerAddress::Tcp(..)) && url.database == 0
        };
        if !urls.iter().all(is_tcp) {
            let expected = "expected redis://HOST or rediss://HOST, without a database";
            return Err(Error::Broker(format!("invalid node of a Redis Cluster: {expected}")));
        }
        Ok(Broker::of(Servers::RedisCluster(urls)))
    }

    /// The sentinels that know the address of the Redis, whose URL has the name of its master for a host: `[:PASSWORD@]HOST[:PORT]`
    /// with commas between them, the port 26379 if there is none. They are asked in this order whenever a connection is opened,
    /// so that it follows a failover.
    ///
    /// ```no_run
    /// # use standfast::Broker;
    /// # fn main() -> Result<(), standfast::Error> {
    /// let redis = Broker::redis("redis://live")?.sentinels("10.0.0.1,10.0.0.2,10.0.0.3")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Broker`]: an address that is none, or a broker that is no [`Broker::redis`].
    #[cfg(feature = "redis")]
    pub fn sentinels(mut self, addresses: &str) -> Result<Broker, Error> {
        let Servers::Redis { sentinels, .. } = &mut self.servers else {
            return Err(Error::Broker("sentinels are for Broker::redis only".into()));
        };
        for address in addresses.split(',').map(str::trim) {
            let sentinel = brokers::RedisUrl::of_sentinel(address);
            let of = |error| Error::Broker(format!("invalid sentinel {address:?}: {error}"));
            sentinels.push(sentinel.map_err(of)?);
        }
        Ok(self)
    }

    /// A NATS: `nats://` or `tls://`. Several URLs, with commas between them, are servers of one cluster, of
    /// which any is used.
    ///
    /// # Errors
    /// As [`Broker::redis`].
    #[cfg(feature = "nats")]
    pub fn nats(urls: &str) -> Result<Broker, Error> {
        let parsed: Result<_, _> = urls.split(',').map(|url| url.trim().parse()).collect();
        let parsed = parsed.map_err(|error: brokers::UrlError| Error::Broker(error.to_string()));
        Ok(Broker::of(Servers::Nats(parsed?)))
    }

    fn of(servers: Servers) -> Broker {
        Broker {
            servers,
            prefix: "standfast".to_owned(),
            name: None,
            linger: Duration::from_secs(10),
            spool_bytes: 0,
            tls: None,
        }
    }

    /// What the names of channels begin with: 1 to 64 letters, digits, `-`, `_`, `.` or `:`, the same in all
    /// processes of an application. Default `standfast`, as in `standfast serve`, whose plain topics are
    /// shared then.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Broker {
        self.prefix = prefix.to_owned();
        self
    }

    /// The name of this process for the others. Default: the host name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Broker {
        self.name = Some(name.to_owned());
        self
    }

    /// How long a topic stays subscribed at the broker after its last subscriber in this process has left, so
    /// that a page that is loaded again costs the broker nothing. Default 10 s.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Broker {
        self.linger = linger;
        self
    }

    /// Bytes of publications that wait for the other processes while the broker cannot be reached. Beyond
    /// them they are lost there, counted as [`BrokerState::lost`]. Default 0.
    #[must_use]
    pub fn spool_bytes(mut self, bytes: usize) -> Broker {
        self.spool_bytes = bytes;
        self
    }

    /// Which servers are trusted with `rediss://` and `tls://`. Default: those whose certificate is of an
    /// authority that this machine trusts.
    #[must_use]
    pub fn tls(mut self, tls: TlsClient) -> Broker {
        self.tls = Some(tls);
        self
    }

    /// # Errors
    /// A prefix that brokers cannot carry, or no certificates of authorities.
    pub(crate) fn transports(&self) -> Result<Transports, Error> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.bytes().all(plain) {
            let expected = "expected 1 to 64 letters, digits, -, _, . or :";
            let what = format!("invalid prefix of channels {:?}: {expected}", self.prefix);
            return Err(Error::Broker(what));
        }
        let tls = |is_used: bool| {
            let client = match &self.tls {
                _ if !is_used => return Ok(None),
                Some(client) => Ok(client.clone()),
                // The name is that of each URL's host.
                None => TlsClient::new(&TlsTrust::System, None, true),
            };
            let client = client.map_err(|error| Error::Broker(format!("TLS: {error}")))?;
            Ok(Some(client.parts().0))
        };
        #[cfg(feature = "redis")]
        let redis = |url: &brokers::RedisUrl, sentinels: &[brokers::RedisUrl]| {
            let (url, sentinels) = (url.clone(), sentinels.to_vec());
            Ok::<_, Error>(RedisTransport { tls: tls(url.tls)?, url, sentinels })
        };
        Ok(match &self.servers {
            #[cfg(feature = "redis")]
            Servers::Redis { urls, sentinels } => {
                let all: Result<_, _> = urls.iter().map(|url| redis(url, sentinels)).collect();
                Transports::Redis(all?)
            }
            #[cfg(feature = "redis")]
            Servers::RedisCluster(urls) => {
                let seeds: Result<_, _> = urls.iter().map(|url| redis(url, &[])).collect();
                Transports::RedisCluster(parts(ClusterTransport::new(seeds?))?)
            }
            #[cfg(feature = "nats")]
            Servers::Nats(urls) => {
                let tls = tls(urls.iter().any(brokers::NatsUrl::is_tls))?;
                let servers = brokers::NatsServers { urls: urls.clone(), credentials: None };
                Transports::Nats(NatsTransport { servers, tls })
            }
        })
    }
}

#[cfg(feature = "redis")]
fn redis_urls(urls: &str) -> Result<Vec<brokers::RedisUrl>, Error> {
    let parsed: Result<_, _> = urls.split(',').map(|url| url.trim().parse()).collect();
    parsed.map_err(|error: brokers::UrlError| Error::Broker(error.to_string()))
}

/// A part for each master.
#[cfg(feature = "redis")]
fn parts(whole: ClusterTransport) -> Result<Vec<ClusterTransport>, Error> {
    // In a thread of its own: the caller's may run a runtime, within which there cannot be another.
    let asking = std::thread::Builder::new().name("redis-cluster".into());
    let found = asking.spawn(move || whole.discover()).map_err(Error::Workers)?.join();
    let panicked = |_| Error::Broker("Redis Cluster: asking for the masters has failed".into());
    found.map_err(panicked)?.map_err(|fault| Error::Broker(format!("Redis Cluster: {fault}")))
}

/// How the connection to the broker is, and what was counted since the start. See
/// [`Remote::broker`](crate::Remote::broker).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BrokerState {
    /// Why publications do not reach the other processes now, for people; `None` if they do.
    pub trouble: Option<String>,
    /// Topics that are subscribed at the broker, those that linger included.
    pub topics: usize,
    /// Those of them that the broker has not confirmed yet: publications of other processes may be missed.
    pub unconfirmed: usize,
    /// Publications that wait to be sent, or are on their way.
    pub waiting: usize,
    /// Publications of this process that the broker has taken.
    pub published: u64,
    /// Publications of this process that did not reach the others: there was no connection, or the broker
    /// has refused them.
    pub lost: u64,
    /// Publications that arrived, this process's own included, which are delivered without this way.
    pub received: u64,
    /// Publications of other processes that this one could not deliver in time.
    pub dropped: u64,
    /// Times that publications of others to a topic may have been missed, each reported to
    /// [`Handler::missed`](crate::Handler::missed).
    pub gaps: u64,
    /// Connections to the broker that were opened.
    pub connected: u64,
    /// The names of other processes that were heard lately, in order.
    pub others: Vec<Box<str>>,
}

impl BrokerState {
    /// Whether everything is connected and subscribed: from now on nothing of the other processes is missed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.trouble.is_none() && self.unconfirmed == 0
    }
}
