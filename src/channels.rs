//! The flags of sessions with channels: Action Cable and server-sent events.

use std::time::Duration;

use anyhow::{Result, bail};
use serve::{Channels, Limits, LongPolling};

use crate::units;

const HEADING: &str = "Channels";
const POLLING: &str = "Long polling";

/// Steps of the pong timeout in which silence is measured, and the fewest that are accepted.
const PONG_STEPS: u32 = 16;
const PONG_STEPS_MIN: u32 = 8;

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "channels")]
pub(crate) struct Flags {
    /// The path of Action Cable
    #[arg(long, value_name = "PATH", default_value = "/cable", value_parser = path, help_heading = HEADING)]
    cable_path: String,
    /// Interval of heartbeats to clients of /cable and /events. Action Cable's clients reconnect after
    /// 6 s without one
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::positive_duration,
        help_heading = HEADING)]
    ping_interval: Duration,
    /// Disconnect clients of AnyCable's extended protocol that are silent for this time, or off. Longer
    /// than the ping interval
    #[arg(long, value_name = "TIME", default_value = "off", value_parser = timeout, help_heading = HEADING)]
    pong_timeout: Timeout,
    /// Maximum subscriptions of one connection
    #[arg(long, value_name = "N", default_value = "1k", value_parser = units::positive_count,
        help_heading = HEADING)]
    max_subscriptions: u64,
    /// Maximum memory of one connection's subscriptions
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = units::size,
        help_heading = HEADING)]
    max_subscription_bytes: u64,
}

/// The flags of long polling.
#[derive(clap::Args, Debug)]
#[group(id = "long_polling_flags")]
pub(crate) struct LongPollingFlags {
    /// Serve clients of Action Cable whose network lets no WebSocket pass, by long polling
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = POLLING)]
    long_polling: bool,
    /// The path of long polling
    #[arg(long, value_name = "PATH", default_value = "/lp", value_parser = path, help_heading = POLLING)]
    long_polling_path: String,
    /// How long a request waits for messages
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::positive_duration,
        help_heading = POLLING)]
    long_polling_interval: Duration,
    /// How long messages are collected before a request that waits is answered
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = units::duration,
        help_heading = POLLING)]
    long_polling_flush_interval: Duration,
    /// How long a session stays without a request
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::positive_duration,
        help_heading = POLLING)]
    long_polling_keepalive: Duration,
    /// Longest body of a request for long polling
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = body_bytes,
        help_heading = POLLING)]
    long_polling_max_body: u64,
    /// Maximum memory of all sessions of long polling, with their waiting messages
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::size,
        help_heading = POLLING)]
    long_polling_bytes: u64,
}

impl LongPollingFlags {
    /// The settings, if it is to be served beside this path of Action Cable.
    ///
    /// # Errors
    /// Both have the same path.
    pub(crate) fn config(&self, cable_path: &str) -> Result<Option<LongPolling>> {
        if !self.long_polling {
            return Ok(None);
        }
        if self.long_polling_path == cable_path {
            bail!("invalid --long-polling-path {cable_path}: expected another than --cable-path");
        }
        Ok(Some(LongPolling {
            path: self.long_polling_path.as_str().into(),
            interval: self.long_polling_interval,
            flush_interval: self.long_polling_flush_interval,
            keepalive: self.long_polling_keepalive,
            max_body: self.long_polling_max_body,
        }))
    }

    pub(crate) fn set(&self, limits: &mut Limits) {
        limits.polled_bytes = usize::try_from(self.long_polling_bytes).unwrap_or(usize::MAX);
    }
}

/// At most what a worker takes of all bodies.
fn body_bytes(text: &str) -> Result<u64, String> {
    let most = Limits::default().bodies_bytes as u64;
    let bytes = units::size(text)?;
    let within = (1..=most).contains(&bytes);
    within.then_some(bytes).ok_or_else(|| "expected 1B to 16MiB".to_owned())
}

/// A timeout, or none.
#[derive(Clone, Copy, Debug)]
struct Timeout(Option<Duration>);

impl Flags {
    pub(crate) fn path(&self) -> Box<str> {
        self.cable_path.as_str().into()
    }

    pub(crate) fn channels(&self) -> Channels {
        Channels {
            ping_interval: self.ping_interval,
            pong_timeout: self.pong_timeout.0,
            max_subscriptions: usize::try_from(self.max_subscriptions).unwrap_or(usize::MAX),
            max_subscription_bytes: usize::try_from(self.max_subscription_bytes)
                .unwrap_or(usize::MAX),
        }
    }

    /// Sets how precisely silence is measured. Call it when the timeouts are set.
    ///
    /// # Errors
    /// A pong timeout that clients cannot keep, or that cannot be measured.
    pub(crate) fn set(&self, limits: &mut Limits) -> Result<()> {
        let Some(pong) = self.pong_timeout.0 else { return Ok(()) };
        if pong <= self.ping_interval {
            bail!(
                "invalid --pong-timeout {pong:?}: expected more than --ping-interval {:?}, as clients \
                 answer pings",
                self.ping_interval
            );
        }
        limits.idle_precision = Some(pong / PONG_STEPS);
        let step = limits.idle_step();
        let finest = Limits { idle_timeout: None, ..limits.clone() }.idle_step();
        if step > (pong / PONG_STEPS_MIN).max(finest) {
            bail!(
                "invalid --pong-timeout {pong:?}: with --idle-timeout {:?} silence is measured in steps \
                 of {step:?}; expected at least {:?}, or a shorter --idle-timeout",
                limits.idle_timeout.unwrap_or_default(),
                step * PONG_STEPS_MIN
            );
        }
        Ok(())
    }
}

fn timeout(text: &str) -> Result<Timeout, String> {
    match text {
        "off" => Ok(Timeout(None)),
        _ => units::positive_duration(text).map(|time| Timeout(Some(time))),
    }
}

fn path(text: &str) -> Result<String, String> {
    const OTHERS: [&str; 5] = ["/_broadcast", "/echo", "/events", "/health", "/ready"];
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%".contains(&byte));
    if !plain || !text.starts_with('/') || text == "/" {
        return Err("expected / and visible ASCII without ?, # and %".to_owned());
    }
    if OTHERS.contains(&text) || text.starts_with("/topics/") {
        return Err("this path serves something else".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_path_must_be_valid_and_unused() {
        for good in ["/cable", "/ws/cable", "/c-1"] {
            assert_eq!(path(good), Ok(good.to_owned()));
        }
        for bad in ["", "/", "cable", "/a?b", "/a b", "/é", "/health", "/topics/x"] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }
}
