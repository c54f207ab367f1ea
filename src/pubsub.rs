//! The flags of publications between nodes: the broker, and what waits for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serve::{
    ClusterTransport, PubsubConfig, PubsubTransport, RedisTransport, RedisUrl, ServerAddress,
};

use crate::application::tls_to;
use crate::{brokers, units};

const HEADING: &str = "Nodes";

/// The variable that applications and hosters name a Redis server by.
const REDIS_VARIABLE: &str = "REDIS_URL";
/// The server on this machine, without it.
const REDIS_HERE: &str = "redis://127.0.0.1:6379";
/// Longest name of a node, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "pubsub_flags")]
pub(crate) struct Flags {
    /// Exchange publications and commands with other nodes over this broker: none, redis or nats
    #[arg(long, value_name = "BROKER", default_value = "none", help_heading = HEADING)]
    pubsub: Broker,
    /// Redis servers: redis://, rediss:// or unix:. Several share the topics, in this order on all nodes
    /// [default: the variable REDIS_URL, or redis://127.0.0.1:6379]
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = HEADING)]
    redis_url: Vec<RedisUrl>,
    /// Sentinels, [:PASSWORD@]HOST[:PORT]; the host of --redis-url is the name of their master
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = RedisUrl::of_sentinel,
        help_heading = HEADING)]
    redis_sentinels: Vec<RedisUrl>,
    /// The --redis-url are nodes of a Redis Cluster (Redis 7 or Valkey), which names its masters
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = HEADING)]
    redis_cluster: bool,
    /// Trust rediss:// servers whose certificate is of a CA in this PEM file, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    redis_ca: Option<PathBuf>,
    /// What the names of channels at the broker begin with; the same on all nodes
    #[arg(long, value_name = "TEXT", default_value = "standfast", value_parser = prefix,
        help_heading = HEADING)]
    pubsub_prefix: String,
    /// Stay subscribed to a topic for this time after its last subscriber has left
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = linger,
        help_heading = HEADING)]
    pubsub_linger: Duration,
    /// Time for the broker to confirm a subscription or to take a publication
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration,
        help_heading = HEADING)]
    pubsub_timeout: Duration,
    /// Bytes of publications that wait while the broker is away; beyond them publishing is refused
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size,
        help_heading = HEADING)]
    pubsub_spool: u64,
    /// Name of this node for others [default: the host name]
    #[arg(long, value_name = "NAME", value_parser = name, help_heading = HEADING)]
    node_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Broker {
    /// This node is alone
    None,
    /// Publish and subscribe of Redis 6 or newer, or Valkey
    Redis,
    /// NATS, of its core
    Nats,
}

impl Flags {
    /// The value of --pubsub.
    pub(crate) fn broker(&self) -> &'static str {
        match self.pubsub {
            Broker::None => "none",
            Broker::Redis => "redis",
            Broker::Nats => "nats",
        }
    }

    /// The Redis servers.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn redis_servers(&self) -> Result<Vec<RedisTransport>> {
        let transport = |url: &RedisUrl| {
            let tls = match url.tls {
                // The name is that of each URL's host.
                true => Some(tls_to("localhost", ("redis-ca", self.redis_ca.as_deref()), false)?),
                false => None,
            };
            Ok(RedisTransport {
                url: url.clone(),
                tls: tls.map(|client| Arc::clone(&client.parts().0)),
                sentinels: self.redis_sentinels.clone(),
            })
        };
        if !self.redis_url.is_empty() {
            return self.redis_url.iter().map(transport).collect();
        }
        let variable = std::env::var(REDIS_VARIABLE).ok().filter(|url| !url.is_empty());
        let url = variable.as_deref().unwrap_or(REDIS_HERE);
        let url = url.parse().with_context(|| format!("the variable {REDIS_VARIABLE}"))?;
        Ok(vec![transport(&url)?])
    }

    /// The nodes of a Redis Cluster that are asked first.
    fn seeds(&self) -> Result<Vec<RedisTransport>> {
        let seeds = self.redis_servers()?;
        if seeds.iter().any(|seed| !matches!(seed.url.address, ServerAddress::Tcp(..))) {
            bail!("--redis-cluster needs --redis-url redis://HOST: nodes are reached by TCP");
        }
        if seeds.iter().any(|seed| seed.url.database != 0) {
            bail!("--redis-cluster: a Redis Cluster has no database but 0");
        }
        Ok(seeds)
    }

    /// What crosses nodes, if there are others. `brokers` are the flags of publishers and of NATS.
    ///
    /// # Errors
    /// A file that cannot be read, or flags that contradict each other.
    pub(crate) fn config(&self, brokers: &brokers::Flags) -> Result<Option<PubsubConfig>> {
        if self.redis_cluster && (self.pubsub != Broker::Redis || brokers.need_redis()) {
            // Its messages are sent to all nodes, and a stream is on one of them.
            bail!("--redis-cluster is for --pubsub redis, without a broadcast adapter to Redis");
        }
        if self.redis_cluster && !self.redis_sentinels.is_empty() {
            bail!("--redis-cluster and --redis-sentinels exclude each other");
        }
        if self.pubsub == Broker::None {
            if !self.redis_sentinels.is_empty() && !brokers.need_redis() {
                bail!(
                    "--redis-sentinels has no effect without --pubsub redis or a broadcast adapter to Redis"
                );
            }
            return Ok(None);
        }
        let transport = match self.pubsub {
            Broker::Nats => PubsubTransport::Nats(brokers.nats_servers()?),
            Broker::None | Broker::Redis if self.redis_cluster => {
                let seeds = self.seeds()?;
                PubsubTransport::RedisCluster(vec![ClusterTransport::new(seeds)])
            }
            Broker::None | Broker::Redis => PubsubTransport::Redis(self.redis_servers()?),
        };
        Ok(Some(PubsubConfig {
            transport,
            prefix: self.pubsub_prefix.clone(),
            node_name: self.node_id.clone().unwrap_or_else(host_name),
            linger: self.pubsub_linger,
            timeout: self.pubsub_timeout,
            spool_bytes: usize::try_from(self.pubsub_spool).unwrap_or(usize::MAX),
        }))
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn prefix(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    match (1..=64).contains(&text.len()) && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 64 letters, digits, -, _, . or :".to_owned()),
    }
}

fn linger(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    match time >= Duration::from_secs(1) {
        true => Ok(time),
        false => Err("expected at least 1s".to_owned()),
    }
}

fn name(text: &str) -> Result<String, String> {
    match (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected 1 to {NAME_BYTES_MAX} bytes without control characters")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_names_are_what_brokers_and_logs_can_carry() {
        assert!(prefix("app-1.prod:eu").is_ok() && name("node 1").is_ok());
        for wrong in ["", "a b", "é", "a*", "a>"] {
            assert!(prefix(wrong).is_err(), "{wrong}");
        }
        assert!(prefix(&"a".repeat(65)).is_err() && name("").is_err() && name("a\nb").is_err());
        assert!(linger("1s").is_ok() && linger("999ms").is_err());
    }
}
