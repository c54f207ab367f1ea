//! The flags of brokers: where they are, and by which of them applications publish.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use crate::application::tls_to;
use crate::pubsub;
use brokers::adapters::{
    ActionCableAdapter, Adapter, NatsAdapter, RedisChannelAdapter, RedisStreamAdapter,
};
use brokers::nats::NatsTransport;
use brokers::{NatsServers, NatsUrl};
use clap::ValueEnum;
use engine::sys::process::now_ns;

/// That of the flags of where brokers are.
const HEADING: &str = "Brokers";

/// The servers on this machine, without a flag.
const NATS_HERE: &str = "nats://127.0.0.1:4222";

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "broker_flags")]
pub(crate) struct Flags {
    /// Broadcast adapters besides HTTP: redis (a channel), redisx (a stream: nothing is lost), nats (a
    /// subject), action-cable (Rails' own adapter for Redis). Repeatable
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = HEADING)]
    broadcast_adapter: Vec<Named>,
    /// Channel of the adapter redis
    #[arg(long, value_name = "NAME", default_value = "__anycable__", value_parser = channel,
        help_heading = HEADING)]
    redis_channel: String,
    /// Stream of the adapter redisx
    #[arg(long, value_name = "KEY", default_value = "__anycable__", value_parser = channel,
        help_heading = HEADING)]
    redisx_stream: String,
    /// Prefix of Rails' channels, its channel_prefix
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true,
        help_heading = HEADING)]
    action_cable_prefix: String,
    /// NATS servers, of one cluster: nats://HOST:PORT or tls://HOST:PORT, with user and password.
    /// Repeatable [default: nats://127.0.0.1:4222]
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = HEADING)]
    nats_servers: Vec<NatsUrl>,
    /// File of credentials for NATS (.creds)
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    nats_creds: Option<PathBuf>,
    /// Trust NATS servers whose certificate is of a CA in this PEM file, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    nats_ca: Option<PathBuf>,
    /// Subject of the adapter nats
    #[arg(long, value_name = "NAME", default_value = "__anycable__", value_parser = subject,
        help_heading = HEADING)]
    nats_channel: String,
}

/// A name of --broadcast-adapter.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Named {
    /// `/_broadcast`, which is always there
    Http,
    /// A channel of Redis
    Redis,
    /// A stream of Redis: nothing is lost
    Redisx,
    /// A subject of NATS
    Nats,
    /// Rails' own adapter for Redis
    ActionCable,
}

impl Flags {
    /// The adapters.
    ///
    /// # Errors
    /// A file that cannot be read, or a URL in the environment that names no server.
    pub(crate) fn adapters(&self, redis: &pubsub::Flags) -> Result<Vec<Adapter>> {
        let (mut adapters, wants) =
            (Vec::new(), |adapter| self.broadcast_adapter.contains(&adapter));
        if self.need_redis() {
            for server in redis.redis_servers()? {
                if wants(Named::ActionCable) {
                    let adapter =
                        ActionCableAdapter::new(server.clone(), &self.action_cable_prefix, now_ns);
                    adapters.push(Adapter::ActionCable(adapter));
                }
                if wants(Named::Redis) {
                    let (server, channel) = (server.clone(), self.redis_channel.clone());
                    adapters.push(Adapter::RedisChannel(RedisChannelAdapter { server, channel }));
                }
                if wants(Named::Redisx) {
                    let (stream, consumer) = (self.redisx_stream.clone(), String::new());
                    adapters.push(Adapter::RedisStream(RedisStreamAdapter {
                        server,
                        stream,
                        consumer,
                    }));
                }
            }
        }
        if wants(Named::Nats) {
            let (servers, subject) = (self.nats_servers()?, self.nats_channel.clone());
            adapters.push(Adapter::Nats(NatsAdapter { servers, subject }));
        }
        Ok(adapters)
    }

    /// An adapter whose messages every node receives, if there is one.
    pub(crate) fn received_by_all(&self) -> Option<&'static str> {
        self.broadcast_adapter.iter().find_map(|adapter| match adapter {
            Named::Http | Named::Redisx => None,
            Named::Redis => Some("redis"),
            Named::Nats => Some("nats"),
            Named::ActionCable => Some("action-cable"),
        })
    }

    /// Whether one of the adapters is to Redis.
    pub(crate) fn need_redis(&self) -> bool {
        let redis = [Named::Redis, Named::Redisx, Named::ActionCable];
        redis.iter().any(|adapter| self.broadcast_adapter.contains(adapter))
    }

    /// The NATS servers.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn nats_servers(&self) -> Result<NatsTransport> {
        nats_servers(&self.nats_servers, self.nats_creds.as_deref(), self.nats_ca.as_deref())
    }
}

/// The NATS servers of flags.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn nats_servers(
    urls: &[NatsUrl],
    credentials: Option<&Path>,
    ca: Option<&Path>,
) -> Result<NatsTransport> {
    let mut urls = urls.to_vec();
    if urls.is_empty() {
        urls.push(NATS_HERE.parse().context("the usual NATS server")?);
    }
    let credentials = credentials.map(|file| read("nats-creds", file));
    let credentials = credentials.transpose()?.map(String::from_utf8).transpose();
    let credentials = credentials.context("--nats-creds: the file is not text")?;
    // A server may want TLS by itself.
    let tls = match ca.is_some() || urls.iter().any(NatsUrl::is_tls) {
        true => Some(tls_to("localhost", ("nats-ca", ca), false)?),
        false => None,
    };
    let servers = NatsServers { urls, credentials: credentials.map(Into::into) };
    Ok(NatsTransport { servers, tls: tls.map(|client| Arc::clone(&client.parts().0)) })
}

fn read(flag: &str, file: &Path) -> Result<Vec<u8>> {
    let content =
        fs::read(file).with_context(|| format!("--{flag}: cannot read {}", file.display()))?;
    if content.is_empty() {
        bail!("--{flag}: {} is empty", file.display());
    }
    Ok(content)
}

fn channel(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("the name is empty".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// A subject of NATS. Wildcards are allowed: who subscribes may use them.
fn subject(text: &str) -> Result<String, String> {
    let has_space = text.contains(|c: char| c.is_whitespace() || c.is_control());
    if text.is_empty() || has_space || text.split('.').any(str::is_empty) {
        return Err(
            "expected a subject of NATS: words without spaces, separated by dots".to_owned()
        );
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_channels_and_subjects_are_checked() {
        assert!(channel("").is_err() && channel("any name").is_ok());
        for good in ["__anycable__", "a.b", "a.*", ">"] {
            assert_eq!(subject(good).as_deref(), Ok(good));
        }
        for bad in ["", "a b", ".a", "a..b", "a\n"] {
            assert!(subject(bad).is_err(), "{bad:?}");
        }
    }
}
