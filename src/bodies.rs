//! The flags for request bodies of `standfast proxy`.

use std::time::Duration;

use ::proxy::{BodyLimits, MinRate};

use crate::units::{self, IdleTimeout, idle_timeout};

/// The heading of these flags, which is a topic of `help`.
const BODIES: &str = "Bodies";

/// The largest buffer of one body.
const BUFFER_MAX: u64 = 64 << 20;

/// All of them take effect on SIGHUP, for later requests.
pub(crate) const RELOADABLE: &[&str] =
    &["body_buffer", "body_buffer_memory", "body_min_rate", "body_timeout", "max_body"];

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "bodies")]
pub(crate) struct Flags {
    /// Maximum size of a request body, such as 100MiB, or off; a larger one is answered 413
    #[arg(long, value_name = "SIZE", default_value = "off", value_parser = size_or_off,
        help_heading = BODIES)]
    max_body: Size,
    /// Time for a complete request body, or off; then it is answered 408
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = idle_timeout,
        help_heading = BODIES)]
    body_timeout: IdleTimeout,
    /// Minimum rate of a request body in SIZE per TIME, or off; a slower one is answered 408. Time in
    /// which an upstream reads too slowly does not count
    #[arg(long, value_name = "SIZE/TIME", default_value = "10KiB/20s", value_parser = min_rate,
        help_heading = BODIES)]
    body_min_rate: Rate,
    /// Receive this much of each request body before an upstream is chosen, or off
    #[arg(long, value_name = "SIZE", default_value = "off", value_parser = buffer,
        help_heading = BODIES)]
    body_buffer: Size,
    /// Memory for buffered bodies per worker; beyond it bodies are passed on as they arrive
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = bytes,
        help_heading = BODIES)]
    body_buffer_memory: usize,
}

/// A size in bytes, or none.
#[derive(Copy, Clone, Debug)]
struct Size(Option<u64>);

/// A minimum rate, or none.
#[derive(Copy, Clone, Debug)]
struct Rate(Option<MinRate>);

impl Flags {
    /// Returns the limits.
    pub(crate) fn limits(&self) -> BodyLimits {
        BodyLimits {
            bytes_max: self.max_body.0,
            timeout: self.body_timeout.0,
            min_rate: self.body_min_rate.0,
            buffer_bytes: self.body_buffer.0.and_then(|bytes| usize::try_from(bytes).ok()),
            buffers_bytes: self.body_buffer_memory,
        }
    }
}

/// Parses `max_body` of a route.
pub(crate) fn max_body(text: &str) -> Result<Option<u64>, String> {
    size_or_off(text).map(|size| size.0)
}

/// Parses `body_min_rate` of a route.
pub(crate) fn body_min_rate(text: &str) -> Result<Option<MinRate>, String> {
    min_rate(text).map(|rate| rate.0)
}

/// Parses `body_buffer` of a route.
pub(crate) fn body_buffer(text: &str) -> Result<Option<usize>, String> {
    let bytes = buffer(text)?.0;
    bytes.map(|bytes| usize::try_from(bytes).map_err(|_| "too large".to_owned())).transpose()
}

fn size_or_off(text: &str) -> Result<Size, String> {
    match text {
        "off" => Ok(Size(None)),
        _ => {
            units::size(text).map(|bytes| Size(Some(bytes))).map_err(|why| format!("{why}, or off"))
        }
    }
}

fn buffer(text: &str) -> Result<Size, String> {
    let size = size_or_off(text)?;
    let within = size.0.is_none_or(|bytes| (1..=BUFFER_MAX).contains(&bytes));
    if within { Ok(size) } else { Err("expected 1B to 64MiB, or off".to_owned()) }
}

fn bytes(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    usize::try_from(bytes).map_err(|_| "too large".to_owned())
}

fn min_rate(text: &str) -> Result<Rate, String> {
    if text == "off" {
        return Ok(Rate(None));
    }
    let parsed = text.split_once('/').and_then(|(bytes, every)| {
        let bytes = units::size(bytes).ok().filter(|bytes| *bytes > 0)?;
        let every = units::positive_duration(every).ok().filter(|every| *every >= PERIOD_MIN)?;
        Some(Rate(Some(MinRate { bytes, every })))
    });
    parsed.ok_or_else(|| {
        "expected a size per time of at least 100ms, such as 10KiB/20s, or off".to_owned()
    })
}

/// The shortest period of a rate: requests are checked each 50 ms.
const PERIOD_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_size_and_a_time() {
        let rate = |bytes, every| Some(MinRate { bytes, every });
        assert_eq!(min_rate("10KiB/20s").unwrap().0, rate(10_240, Duration::from_secs(20)));
        assert_eq!(min_rate("1/100ms").unwrap().0, rate(1, PERIOD_MIN));
        assert_eq!(min_rate("off").unwrap().0, None);
        for wrong in ["", "10KiB", "10KiB/", "/20s", "0/20s", "1KiB/0s", "1KiB/99ms", "x/y", "1/s"]
        {
            assert!(min_rate(wrong).unwrap_err().contains("10KiB/20s, or off"), "{wrong}");
        }
    }

    #[test]
    fn buffers_have_a_range() {
        assert_eq!(buffer("64KiB").unwrap().0, Some(65_536));
        assert_eq!(buffer("off").unwrap().0, None);
        assert!(buffer("0").is_err() && buffer("65MiB").is_err() && buffer("many").is_err());
    }
}
