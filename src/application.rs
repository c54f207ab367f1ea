//! The flags of calls of the application: where it is, how much of it is used, what may wait.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serve::{AppConfig, Auth, AuthUrl, PostUrl, Target, TlsClient, TlsTrust};

use crate::auth::{SecretSource, secret_source};
use crate::units;

const HEADING: &str = "RPC";
/// That of the flags that decide who may connect.
const AUTH_HEADING: &str = "Authorization";

/// Time after which clients of Rails without a ping connect again.
const CLIENT_PATIENCE: Duration = Duration::from_secs(6);

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "application")]
pub(crate) struct Flags {
    /// Call this application about clients and channels of /cable, by AnyCable's contract:
    /// http://HOST/PATH (HTTP RPC) or HOST:PORT (gRPC), also https://, grpcs://, dns:///HOST:PORT and
    /// grpc-list://HOST:PORT,HOST:PORT
    #[arg(long, value_name = "URL", help_heading = HEADING)]
    rpc_host: Option<Target>,
    /// Maximum calls at a time, or auto: 5 to 100, as many as the application answers without delay
    #[arg(long, value_name = "N", default_value = "auto", value_parser = concurrency,
        help_heading = HEADING)]
    rpc_concurrency: ConcurrencyLimit,
    /// Time for a call
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::positive_duration,
        help_heading = HEADING)]
    rpc_timeout: Duration,
    /// Maximum calls that wait; further clients are refused
    #[arg(long, value_name = "N", default_value = "100k", value_parser = units::positive_count,
        help_heading = HEADING)]
    rpc_queue: u64,
    /// Maximum memory of calls that wait
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::size,
        help_heading = HEADING)]
    rpc_queue_bytes: u64,
    /// Time that a call may wait
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::positive_duration,
        help_heading = HEADING)]
    rpc_queue_wait: Duration,
    /// Longest answer of the application
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = units::size,
        help_heading = HEADING)]
    rpc_max_reply: u64,
    /// Key of HTTP RPC, sent as a Bearer token, or file:PATH, or none [default: derived from --secret,
    /// as in AnyCable's libraries]
    #[arg(long, value_name = "KEY", value_parser = secret_source, help_heading = HEADING)]
    http_rpc_secret: Option<SecretSource>,
    /// Call gRPC applications over TLS
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = HEADING)]
    rpc_tls: bool,
    /// Trust applications whose certificate is of a CA in this PEM file, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    rpc_tls_ca: Option<PathBuf>,
    /// Trust applications whatever their certificate; for tests
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = HEADING)]
    rpc_tls_insecure: bool,
    /// Ask this http:// or https:// URL who may connect to /topics and /events and publish there
    #[arg(long, value_name = "URL", help_heading = AUTH_HEADING)]
    auth_url: Option<PostUrl>,
    /// Secret that signs calls of --auth-url, or file:PATH, or none [default: derived from --secret]
    #[arg(long, value_name = "SECRET", value_parser = secret_source, help_heading = AUTH_HEADING)]
    auth_secret: Option<SecretSource>,
    /// Maximum memory of answers of --auth-url that are used again, as they allow
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = units::size,
        help_heading = AUTH_HEADING)]
    auth_cache_bytes: u64,
    /// Trust --auth-url if its certificate is of a CA in this PEM file, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = AUTH_HEADING)]
    auth_tls_ca: Option<PathBuf>,
    /// Headers of a client's handshake that calls repeat. Repeatable
    #[arg(long, value_name = "NAME", default_value = "cookie", value_delimiter = ',',
        value_parser = header, help_heading = HEADING)]
    proxy_headers: Vec<String>,
    /// Cookies that calls repeat. Repeatable [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = HEADING)]
    proxy_cookies: Vec<String>,
    /// The end of which connections the application is called for
    #[arg(long, value_name = "WHICH", default_value = "auto", help_heading = HEADING)]
    disconnect_mode: DisconnectMode,
    /// Maximum calls per second for connections that have ended
    #[arg(long, value_name = "N", default_value = "100",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = HEADING)]
    disconnect_rate: u32,
    /// Maximum such calls that wait; then the oldest are dropped
    #[arg(long, value_name = "N", default_value = "4096", value_parser = units::positive_count,
        help_heading = HEADING)]
    disconnect_backlog: u64,
}

#[derive(Clone, Copy, Debug)]
struct ConcurrencyLimit(Option<u32>);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DisconnectMode {
    /// Those that it was called for before
    Auto,
    /// All of /cable
    Always,
    /// None
    Never,
}

impl Flags {
    /// The application, if there is one. `ping_interval` is that of its clients.
    ///
    /// # Errors
    /// A file that cannot be read, or flags that contradict each other.
    pub(crate) fn config(&self, auth: &Auth, ping_interval: Duration) -> Result<Option<AppConfig>> {
        let asked = self.auth_url.as_ref().map(|url| self.auth_url(url, auth)).transpose()?;
        if self.rpc_host.is_none() && asked.is_none() {
            return Ok(None);
        }
        let own = self.http_rpc_secret.as_ref();
        let own = own.map(|source| source.read("http-rpc-secret")).transpose()?;
        if own.as_ref().is_some_and(|key| !key.fits_a_header()) {
            bail!("--http-rpc-secret: expected visible ASCII without spaces");
        }
        let key = match own {
            Some(own) => Some(own).filter(|own| !own.is_none()),
            None => auth.rpc_key(),
        };
        // Clients that get pings wait for their welcome.
        let pinged = ping_interval < CLIENT_PATIENCE;
        let items = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let boxed = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        Ok(Some(AppConfig {
            target: self.rpc_host.clone(),
            auth: asked,
            tls: self.rpc_host.as_ref().map(|target| self.tls(target)).transpose()?.flatten(),
            key,
            concurrency: self.rpc_concurrency.0,
            timeout: self.rpc_timeout,
            queue: items(self.rpc_queue),
            queue_bytes: items(self.rpc_queue_bytes),
            queue_wait: self.rpc_queue_wait,
            patience: if pinged { self.rpc_queue_wait } else { CLIENT_PATIENCE },
            reply_bytes: items(self.rpc_max_reply),
            proxy_headers: boxed(&self.proxy_headers),
            proxy_cookies: boxed(&self.proxy_cookies),
            disconnect_mode: match self.disconnect_mode {
                DisconnectMode::Auto => serve::DisconnectMode::Auto,
                DisconnectMode::Always => serve::DisconnectMode::Always,
                DisconnectMode::Never => serve::DisconnectMode::Never,
            },
            disconnect_rate: self.disconnect_rate,
            disconnect_backlog: items(self.disconnect_backlog),
        }))
    }

    fn auth_url(&self, url: &PostUrl, auth: &Auth) -> Result<AuthUrl> {
        let own = self.auth_secret.as_ref();
        let secret = match own.map(|source| source.read("auth-secret")).transpose()? {
            Some(own) => Some(own).filter(|own| !own.is_none()),
            None => auth.auth_url_key(),
        };
        let ca = self.auth_tls_ca.as_deref();
        let tls = url.tls.then(|| tls_to(&url.host.name, ("auth-tls-ca", ca), false));
        Ok(AuthUrl {
            url: url.clone(),
            tls: tls.transpose()?,
            secret,
            decisions_bytes: usize::try_from(self.auth_cache_bytes).unwrap_or(usize::MAX),
        })
    }

    fn tls(&self, target: &Target) -> Result<Option<TlsClient>> {
        let (by_scheme, name) = match target {
            Target::Http { tls, host, .. } => (*tls, Some(&host.name)),
            Target::Grpc { tls, hosts } => (
                *tls || self.rpc_tls || self.rpc_tls_ca.is_some(),
                hosts.first().map(|host| &host.name),
            ),
        };
        if !by_scheme {
            if self.rpc_tls || self.rpc_tls_ca.is_some() || self.rpc_tls_insecure {
                bail!(
                    "--rpc-tls…: the application at {target} has no TLS: use https:// or grpcs://"
                );
            }
            return Ok(None);
        }
        let name = name.map_or("localhost", |name| name);
        let ca = self.rpc_tls_ca.as_deref();
        tls_to(name, ("rpc-tls-ca", ca), self.rpc_tls_insecure).map(Some)
    }
}

/// TLS to a server with this name. `ca` is a flag and its file.
///
/// # Errors
/// A file that cannot be read, or a name that no certificate has.
pub(crate) fn tls_to(
    name: &str,
    (flag, ca): (&str, Option<&Path>),
    insecure: bool,
) -> Result<TlsClient> {
    let trust = match ca {
        _ if insecure => TlsTrust::Any,
        Some(file) => {
            let shown = file.display();
            let read = fs::read(file);
            TlsTrust::Authorities(read.with_context(|| format!("--{flag}: cannot read {shown}"))?)
        }
        None => TlsTrust::System,
    };
    let client = TlsClient::new(&trust, None, true).context("TLS to the application")?;
    client.named(name).with_context(|| format!("TLS to {name}"))
}

fn concurrency(text: &str) -> Result<ConcurrencyLimit, String> {
    if text == "auto" {
        return Ok(ConcurrencyLimit(None));
    }
    let limit = text.parse().ok().filter(|limit| (1..=10_000).contains(limit));
    let limit: u32 = limit.ok_or_else(|| "expected 1 to 10000, or auto".to_owned())?;
    Ok(ConcurrencyLimit(Some(limit)))
}

fn header(text: &str) -> Result<String, String> {
    let named = !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    named
        .then(|| text.to_ascii_lowercase())
        .ok_or_else(|| "expected the name of a header".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrency_is_a_number_or_auto() {
        assert!(matches!(concurrency("auto"), Ok(ConcurrencyLimit(None))));
        assert!(matches!(concurrency("28"), Ok(ConcurrencyLimit(Some(28)))));
        for wrong in ["0", "-1", "10001", "many", ""] {
            assert!(concurrency(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers_are_compared_in_lower_case() {
        assert_eq!(header("X-Api-Token"), Ok("x-api-token".to_owned()));
        assert!(header("a b").is_err() && header("").is_err());
    }
}
