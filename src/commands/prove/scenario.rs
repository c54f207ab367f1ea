//! Scenario files: an experiment of `prove` as TOML, version 1 (`docs/protocol/scenario.md`). The
//! keys are the flags of `prove` with `_` for `-` and take the same values; flags override the file.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use load::Connect;
use serde::Deserialize;
use toml::Spanned;

use super::churn::Churn;
use super::link::Link;
use super::plan::{Messages, Round};
use super::proxies::{Cell, Table};
use crate::units;

/// The built-in scenarios by name: the reference experiments.
const BUILT_IN: [(&str, &str); 9] = [
    ("cable-10k", include_str!("../../../scenarios/cable-10k.toml")),
    ("cable-500k", include_str!("../../../scenarios/cable-500k.toml")),
    ("cable-churn", include_str!("../../../scenarios/cable-churn.toml")),
    ("million", include_str!("../../../scenarios/million.toml")),
    ("million-hold", include_str!("../../../scenarios/million-hold.toml")),
    ("nginx-active", include_str!("../../../scenarios/nginx-active.toml")),
    ("nginx-idle", include_str!("../../../scenarios/nginx-idle.toml")),
    ("slow-link", include_str!("../../../scenarios/slow-link.toml")),
    ("storm", include_str!("../../../scenarios/storm.toml")),
];

/// The supported version of the format.
const VERSION: u32 = 1;

/// The settings in a scenario; flags and defaults supply the rest.
#[derive(Default, Debug)]
pub(super) struct Scenario {
    /// The built-in name, or the file's.
    pub(super) name: Option<String>,
    pub(super) about: Option<String>,
    pub(super) connections: Option<u64>,
    pub(super) connect: Option<Connect>,
    pub(super) hold: Option<Duration>,
    pub(super) heartbeat: Option<Duration>,
    pub(super) broadcasts: Option<u32>,
    pub(super) messages: Option<Messages>,
    pub(super) link: Option<Link>,
    pub(super) cable: bool,
    pub(super) stale_after: Option<Duration>,
    pub(super) churn: Option<Churn>,
    pub(super) rounds: Vec<Round>,
    /// Cells to run through proxies, instead of a proof.
    pub(super) cells: Vec<Cell>,
    /// Flags of `standfast serve`.
    pub(super) serve: Vec<String>,
}

impl Scenario {
    /// Reads a file, or the built-in scenario of that name if there is no such file.
    ///
    /// # Errors
    /// An unknown scenario, or an invalid value with its line.
    pub(super) fn read(name: &str) -> Result<Scenario> {
        let path = Path::new(name);
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
        let (text, shown) = match built_in {
            Some((_, text)) if !path.exists() => ((*text).to_owned(), name.to_owned()),
            None if !path.exists() => {
                let known = BUILT_IN.map(|(known, _)| known).join(", ");
                if units::count(name).is_ok() {
                    bail!(
                        "no such file or built-in scenario: {name}\n  for this number of sockets: \
                         standfast prove --connections {name}"
                    );
                }
                bail!("no such file or built-in scenario: {name} (built in: {known})");
            }
            _ => {
                let text = std::fs::read_to_string(path);
                (text.with_context(|| format!("cannot read {name}"))?, name.to_owned())
            }
        };
        Self::parse(&text, &shown)
    }

    pub(super) fn parse(text: &str, shown: &str) -> Result<Scenario> {
        let file: File = toml::from_str(text).map_err(|error| anyhow!("{shown}: {error}"))?;
        let reader = Reader { text, shown };
        if file.version != VERSION {
            bail!("{shown}: unsupported version {}: expected {VERSION}", file.version);
        }
        let messages = file.messages.map(|messages| -> Result<Messages> {
            Ok(Messages {
                every: reader.value(&messages.every, units::positive_duration)?,
                size: match &messages.size {
                    Some(size) => reader.value(size, message_size)?,
                    None => Messages::SIZE_DEFAULT,
                },
            })
        });
        let link = file.link.map(|link| -> Result<Link> {
            Ok(Link {
                megabits: reader.value(&link.rate, megabits)?,
                delay: match &link.delay {
                    Some(delay) => reader.value(delay, units::duration)?,
                    None => Duration::ZERO,
                },
            })
        });
        let churn = file.churn.map(|churn| -> Result<Churn> {
            Ok(Churn {
                rate: reader.value(&churn.rate, units::positive_count)?,
                streams: reader.value(&churn.streams, units::positive_count)?,
                publish: reader.value(&churn.publish, units::positive_count)?,
                grace: match &churn.grace {
                    Some(grace) => reader.value(grace, units::positive_duration)?,
                    None => Duration::from_secs(1),
                },
            })
        });
        let cells = file.cells.iter().map(|table| table.cells(&reader));
        let cells: Vec<Vec<Cell>> = cells.collect::<Result<_>>()?;
        let round = |round: &RoundTable| -> Result<Round> {
            Ok(Round {
                connect: reader.value(&round.connect, crate::commands::load::connect)?,
                workers: round.workers,
            })
        };
        Ok(Scenario {
            name: Some(shown.to_owned()),
            about: file.about,
            connections: reader.optional(&file.connections, units::positive_count)?,
            connect: reader.optional(&file.connect, crate::commands::load::connect)?,
            hold: reader.optional(&file.hold, units::duration)?,
            heartbeat: reader.optional(&file.heartbeat, units::duration)?,
            broadcasts: file.broadcasts,
            messages: messages.transpose()?,
            link: link.transpose()?,
            cable: file.cable,
            stale_after: reader.optional(&file.stale_after, units::positive_duration)?,
            churn: churn.transpose()?,
            rounds: file.rounds.iter().map(round).collect::<Result<_>>()?,
            cells: cells.into_iter().flatten().collect(),
            serve: file
                .serve
                .into_iter()
                .map(as_flag)
                .collect::<Result<_>>()
                .context(format!("{shown}: [serve]"))?,
        })
    }
}

/// The format of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    about: Option<String>,
    connections: Option<Spanned<String>>,
    connect: Option<Spanned<String>>,
    hold: Option<Spanned<String>>,
    heartbeat: Option<Spanned<String>>,
    broadcasts: Option<u32>,
    messages: Option<MessagesTable>,
    link: Option<LinkTable>,
    #[serde(default)]
    cable: bool,
    stale_after: Option<Spanned<String>>,
    churn: Option<ChurnTable>,
    #[serde(default)]
    rounds: Vec<RoundTable>,
    #[serde(default)]
    cells: Vec<Table>,
    #[serde(default)]
    serve: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessagesTable {
    every: Spanned<String>,
    size: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChurnTable {
    rate: Spanned<String>,
    streams: Spanned<String>,
    publish: Spanned<String>,
    grace: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    rate: Spanned<String>,
    delay: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoundTable {
    connect: Spanned<String>,
    workers: u16,
}

/// Parses values as on the command line; errors name the line.
pub(super) struct Reader<'a> {
    text: &'a str,
    shown: &'a str,
}

impl Reader<'_> {
    pub(super) fn value<T, E: Display>(
        &self,
        value: &Spanned<String>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T> {
        parse(value.as_ref()).map_err(|error| {
            let before = self.text.get(..value.span().start).unwrap_or_default();
            let error = units::with_value(value.as_ref(), &error.to_string());
            anyhow!("{}, line {}: {error}", self.shown, before.matches('\n').count() + 1)
        })
    }

    fn optional<T, E: Display>(
        &self,
        value: &Option<Spanned<String>>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>> {
        value.as_ref().map(|value| self.value(value, parse)).transpose()
    }
}

fn message_size(text: &str) -> Result<usize, String> {
    let size = usize::try_from(units::size(text)?).unwrap_or(usize::MAX);
    let range = load::Echo::SIZE_MIN..=1 << 20;
    if !range.contains(&size) {
        return Err(format!(
            "expected a size of {}B to 1MiB, as a message carries its number",
            range.start()
        ));
    }
    Ok(size)
}

/// Parses the rate of a link, such as `72mbit`.
fn megabits(text: &str) -> Result<u32, String> {
    let rate = text.strip_suffix("mbit").and_then(|digits| digits.parse().ok());
    rate.filter(|&rate| rate > 0).ok_or_else(|| format!("invalid rate {text:?}: expected 72mbit"))
}

/// Converts a key of [serve] to the flag of `standfast serve`.
fn as_flag((key, value): (String, toml::Value)) -> Result<String> {
    let flag = key.replace('_', "-");
    if ["listen", "admin", "ready-json", "end-with-parent", "drain", "drain-delay", "log"]
        .contains(&flag.as_str())
    {
        bail!("{key} is set by prove and cannot be changed");
    }
    match value {
        toml::Value::String(text) => Ok(format!("--{flag}={text}")),
        toml::Value::Integer(number) => Ok(format!("--{flag}={number}")),
        toml::Value::Boolean(truth) => Ok(format!("--{flag}={truth}")),
        _ => bail!("invalid value for {key}: expected a string, an integer or a boolean"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_scenario_is_valid_and_described() {
        for (name, _) in BUILT_IN {
            let scenario = Scenario::read(name).unwrap();
            assert_eq!(scenario.name.as_deref(), Some(name));
            let of_proxies = !scenario.cells.is_empty();
            assert!(scenario.about.is_some(), "{name}");
            assert_ne!(scenario.connections.is_some(), of_proxies, "{name}");
        }
        let million = Scenario::read("million").unwrap();
        assert_eq!(million.connections, Some(1_000_000));
        assert_eq!(million.hold, Some(Duration::from_secs(3_600)));
        assert_eq!(million.messages.unwrap().every, Duration::from_secs(60));
        assert_eq!(million.serve, ["--idle-timeout=60s"]);
    }

    #[test]
    fn errors_name_the_line() {
        let error = |text: &str| format!("{:#}", Scenario::parse(text, "x.toml").unwrap_err());
        for (text, parts) in [
            ("version = 2", &["x.toml", "version 2", "expected 1"][..]),
            ("connections = '1k'", &["version"]),
            ("version = 1\nhold = '5'", &["line 2", "duration"]),
            ("version = 1\n\nconections = '1k'", &["conections", "connections"]),
            ("version = 1\n[messages]\nevery = '0s'", &["line 3", "more than 0"]),
            ("version = 1\n[messages]\nevery = '1s'\nsize = '2'", &["line 4", "size"]),
            ("version = 1\n[link]\nrate = '72'", &["line 3", "72mbit"]),
            ("version = 1\n[churn]\nrate = '0'\nstreams = '1'\npublish = '1'", &["line 3"]),
            ("version = 1\n[serve]\nlisten = '0.0.0.0:1'", &["[serve]", "listen"]),
            ("version = 1\nconnect = 'fast'", &["line 2", "windowed"]),
            ("version = 1\n[[rounds]]\nconnect = 'fast'\nworkers = 1", &["line 3", "windowed"]),
            ("version = 1\n[[rounds]]\nconnect = 'storm'", &["workers"]),
        ] {
            let message = error(text);
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
        let unknown = format!("{:#}", Scenario::read("milion").unwrap_err());
        assert!(unknown.contains("cable-10k, cable-500k, cable-churn, million"), "{unknown}");
    }
}
