//! A configuration file (TOML) and values of flags and environment variables, with the executable's own
//! code: nothing panics, and an accepted value means the same when it is printed and parsed again.
#![no_main]
#![allow(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "the executable's modules"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as _, Command, ValueEnum};
use libfuzzer_sys::fuzz_target;

#[path = "../../src/settings.rs"]
mod settings;
#[path = "../../src/units.rs"]
mod units;

/// A setting of each kind that the programs have.
#[derive(clap::Args, Debug)]
struct Args {
    #[arg(long, default_value = "127.0.0.1:8080", value_delimiter = ',')]
    listen: Vec<std::net::SocketAddr>,
    #[arg(long, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true")]
    echo: bool,
    #[arg(long, value_parser = units::count)]
    max_connections: Option<u64>,
    #[arg(long, default_value = "64KiB", value_parser = units::size)]
    max_message: u64,
    #[arg(long, default_value = "10s", value_parser = units::positive_duration)]
    handshake_timeout: Duration,
    #[arg(long, value_parser = units::duration_range)]
    retry: Option<(Duration, Duration)>,
    #[arg(long, default_value = "disconnect")]
    slow_consumer: Policy,
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    #[arg(long)]
    config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Policy {
    Disconnect,
    DropOldest,
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    check_units(text);
    let command = Args::augment_args(Command::new("fuzz").no_binary_name(true));
    let layer = match settings::from_text::<Args>(text, "a file", "serve", &command) {
        Ok(layer) => layer,
        Err(error) => return assert!(!format!("{error:#}").is_empty()),
    };
    let mut again = String::from("[serve]\n");
    for (key, values) in &layer {
        let values = values.iter().cloned().map(toml::Value::String).collect();
        let line = toml::Table::from_iter([(key.clone(), toml::Value::Array(values))]);
        again.push_str(&line.to_string());
    }
    let twice = settings::from_text::<Args>(&again, "a file", "serve", &command);
    assert_eq!(twice.expect("what was understood can be said"), layer);
});

/// Numbers with units, as on the command line.
fn check_units(text: &str) {
    if let Ok(time) = units::duration(text) {
        assert_eq!(units::duration(&units::format_duration(time)), Ok(time));
    }
    if let Ok((from, to)) = units::duration_range(text) {
        assert!(from <= to);
    }
    let _ = (units::count(text), units::size(text), units::positive_count(text));
}
