//! The admission flags, which `serve` and `proxy` share.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serve::{AdmissionLimits, ForwardedBy, Limits, Network, Prefix, Proxies, ProxyProtocol};

use crate::units;

/// The heading of these flags, which is a topic of `help`.
pub(crate) const ADMISSION: &str = "Admission";

/// The smallest memory limit.
const MEMORY_MIN: u64 = 16 << 20;

/// All of them take effect on SIGHUP.
pub(crate) const RELOADABLE: &[&str] = &[
    "connect_rate",
    "forwarded_header",
    "handshake_timeout",
    "keep_alive_timeout",
    "max_handshakes",
    "max_per_address",
    "memory_limit",
    "per_address_prefix",
    "per_address_rate",
    "proxy_protocol",
    "trusted_proxy",
];

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "admission")]
pub(crate) struct Flags {
    /// Time for a complete request head, from its first byte
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration,
        help_heading = ADMISSION)]
    handshake_timeout: Duration,
    /// Time between a response and the next request on its connection
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = units::positive_duration,
        help_heading = ADMISSION)]
    keep_alive_timeout: Duration,
    /// Maximum requests whose head stays incomplete; beyond it the oldest is answered 503
    #[arg(long, value_name = "N", default_value = "16k", value_parser = number,
        help_heading = ADMISSION)]
    max_handshakes: u32,
    /// Maximum new connections per second; further ones are answered 503
    #[arg(long, value_name = "N", value_parser = number, help_heading = ADMISSION)]
    connect_rate: Option<u32>,
    /// Maximum connections of one address at a time
    #[arg(long, value_name = "N", value_parser = number, help_heading = ADMISSION)]
    max_per_address: Option<u32>,
    /// Maximum new connections of one address per second
    #[arg(long, value_name = "N", value_parser = number, help_heading = ADMISSION)]
    per_address_rate: Option<u32>,
    /// Prefix lengths that count as one address, IPv4/IPv6
    #[arg(long, value_name = "V4/V6", default_value = "32/64", value_parser = prefix,
        help_heading = ADMISSION)]
    per_address_prefix: Prefix,
    /// Trust the client addresses that these peers send, such as 10.0.0.0/8. Repeatable
    #[arg(long, value_name = "CIDR", value_delimiter = ',', help_heading = ADMISSION)]
    trusted_proxy: Vec<Network>,
    /// Require a PROXY header (v1 or v2) on each connection of a trusted proxy
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = ADMISSION)]
    proxy_protocol: bool,
    /// The header with the client address, without --proxy-protocol
    #[arg(long, value_name = "HEADER", default_value = "x-forwarded-for", help_heading = ADMISSION)]
    forwarded_header: Forwarded,
    /// Refuse and shed clients beyond this resident memory, such as 2GiB
    #[arg(long, value_name = "SIZE", value_parser = memory_bytes, help_heading = ADMISSION)]
    memory_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Forwarded {
    /// X-Forwarded-For
    XForwardedFor,
    /// Forwarded (RFC 7239)
    Forwarded,
}

impl Flags {
    /// Sets the limits.
    ///
    /// # Errors
    /// A flag that needs another one.
    pub(crate) fn set(&self, limits: &mut Limits) -> Result<()> {
        if self.proxy_protocol && self.trusted_proxy.is_empty() {
            bail!("--proxy-protocol needs --trusted-proxy: the peers whose PROXY headers to trust");
        }
        limits.handshake_timeout = self.handshake_timeout;
        limits.keep_alive_timeout = self.keep_alive_timeout;
        limits.admission = AdmissionLimits {
            handshakes: self.max_handshakes,
            connect_rate: self.connect_rate,
            per_address: self.max_per_address,
            per_address_rate: self.per_address_rate,
            prefix: self.per_address_prefix,
            memory_bytes: self.memory_limit,
        };
        limits.proxies = Proxies {
            trusted: self.trusted_proxy.clone(),
            protocol: match self.proxy_protocol {
                true => ProxyProtocol::Required,
                false => ProxyProtocol::Off,
            },
            forwarded: match self.forwarded_header {
                Forwarded::XForwardedFor => ForwardedBy::XForwardedFor,
                Forwarded::Forwarded => ForwardedBy::Forwarded,
            },
        };
        Ok(())
    }
}

fn number(text: &str) -> Result<u32, String> {
    let number = units::positive_count(text)?;
    u32::try_from(number).map_err(|_| "expected at most 4G".to_owned())
}

fn prefix(text: &str) -> Result<Prefix, String> {
    let bits = |text: &str, most: u8| text.parse().ok().filter(|bits: &u8| *bits <= most);
    let parts = text.split_once('/').and_then(|(v4, v6)| Some((bits(v4, 32)?, bits(v6, 128)?)));
    let (v4, v6) =
        parts.ok_or_else(|| "expected the lengths for IPv4/IPv6, such as 32/64".to_owned())?;
    Ok(Prefix { v4, v6 })
}

fn memory_bytes(text: &str) -> Result<u64, String> {
    let bytes = units::size(text)?;
    let enough = (bytes >= MEMORY_MIN).then_some(bytes);
    enough.ok_or_else(|| "expected at least 16MiB".to_owned())
}
