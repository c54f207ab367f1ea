//! [`Cell`]: one combination of tunnels, message size and message interval, and the table of a scenario
//! file that expands to all combinations of its lists.

use std::time::Duration;

use anyhow::{Result, bail};
use load::Connect;
use serde::Deserialize;
use toml::Spanned;

use crate::commands::prove::plan::{Messages, Plan};
use crate::commands::prove::scenario::Reader;
use crate::units;

/// Largest message of a cell, in bytes.
const SIZE_MAX: u64 = 1 << 20;

/// Tunnels and traffic through a proxy, and their duration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::commands::prove) struct Cell {
    pub(super) tunnels: u64,
    /// Bytes of a message's payload.
    pub(super) size: usize,
    pub(super) traffic: Traffic,
    pub(in crate::commands::prove) hold: Duration,
}

/// Timing of the messages.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Traffic {
    /// One message per tunnel in this interval.
    Every(Duration),
    /// This number of messages per tunnel, each after the last was echoed; then the tunnel is closed and
    /// replaced.
    BackToBack(u32),
}

impl Cell {
    /// Returns the name that `--cells` takes: `1k-128B-10s`, `500-1B-50x`.
    pub(in crate::commands::prove) fn name(&self) -> String {
        let tunnels = match self.tunnels {
            whole if whole.is_multiple_of(1_000) => format!("{}k", whole / 1_000),
            odd => odd.to_string(),
        };
        format!("{tunnels}-{}B-{}", self.size, self.pace())
    }

    /// Returns the last part of the name.
    pub(super) fn pace(&self) -> String {
        match self.traffic {
            Traffic::Every(time) => units::format_duration(time),
            Traffic::BackToBack(messages) => format!("{messages}x"),
        }
    }

    /// Checks that messages are due during the hold.
    ///
    /// # Errors
    /// A hold that is too short.
    pub(in crate::commands::prove) fn check(&self) -> Result<()> {
        match self.traffic {
            Traffic::Every(every) if every > self.hold => bail!(
                "{}: a hold of {} is too short for one message per tunnel",
                self.name(),
                units::format_duration(self.hold)
            ),
            Traffic::BackToBack(_) if self.hold.is_zero() => {
                bail!("{}: invalid hold 0: expected more than 0", self.name())
            }
            _ => Ok(()),
        }
    }

    /// Returns the plan for the server and the clients of this cell.
    pub(super) fn plan(&self, plan: &Plan) -> Plan {
        let every = match self.traffic {
            Traffic::Every(every) => every,
            Traffic::BackToBack(_) => Duration::ZERO,
        };
        Plan {
            connect: Connect::Windowed,
            messages: Some(Messages { every, size: self.size }),
            ..plan.clone()
        }
    }
}

/// `[[cells]]` of a scenario file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::commands::prove) struct Table {
    tunnels: Vec<Spanned<String>>,
    sizes: Vec<Spanned<String>>,
    /// Exactly one of `every` and `messages` is set.
    every: Option<Vec<Spanned<String>>>,
    messages: Option<u32>,
    hold: Spanned<String>,
}

impl Table {
    /// Returns every combination in the order of the lists.
    ///
    /// # Errors
    /// An invalid value with its line.
    pub(in crate::commands::prove) fn cells(&self, reader: &Reader<'_>) -> Result<Vec<Cell>> {
        let hold = reader.value(&self.hold, units::positive_duration)?;
        let paces = match (&self.every, self.messages) {
            (Some(times), None) => times
                .iter()
                .map(|time| reader.value(time, units::positive_duration).map(Traffic::Every))
                .collect::<Result<Vec<_>>>()?,
            (None, Some(messages)) if messages > 0 => vec![Traffic::BackToBack(messages)],
            _ => bail!("[[cells]]: set either `every` or `messages` (number per connection)"),
        };
        let tunnels = self.tunnels.iter().map(|n| reader.value(n, units::positive_count));
        let sizes = self.sizes.iter().map(|size| reader.value(size, size_in_bytes));
        let sizes: Vec<usize> = sizes.collect::<Result<_>>()?;
        let mut cells = Vec::new();
        for tunnels in tunnels {
            let tunnels = tunnels?;
            for &size in &sizes {
                let cell = |&traffic: &Traffic| Cell { tunnels, size, traffic, hold };
                cells.extend(paces.iter().map(cell));
            }
        }
        let numbered = |cell: &Cell| matches!(cell.traffic, Traffic::Every(_));
        if let Some(cell) = cells.iter().find(|c| numbered(c) && c.size < load::Echo::SIZE_MIN) {
            bail!(
                "[[cells]]: size {} B is too small: with `every` a message carries its number",
                cell.size
            );
        }
        Ok(cells)
    }
}

fn size_in_bytes(text: &str) -> Result<usize, String> {
    let size = units::size(text)?;
    let within = usize::try_from(size).ok().filter(|_| (1..=SIZE_MAX).contains(&size));
    within.ok_or_else(|| "expected a size of 1B to 1MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::prove::scenario::Scenario;

    fn cells(text: &str) -> Result<Vec<Cell>> {
        Ok(Scenario::parse(&format!("version = 1\n[[cells]]\n{text}"), "x.toml")?.cells)
    }

    #[test]
    fn a_table_expands_to_all_combinations() {
        let text =
            "tunnels = ['1k', '250']\nsizes = ['10', '4KiB']\nevery = ['100ms']\nhold = '5s'";
        let names: Vec<_> = cells(text).unwrap().iter().map(Cell::name).collect();
        assert_eq!(names, ["1k-10B-100ms", "1k-4096B-100ms", "250-10B-100ms", "250-4096B-100ms"]);
        let text = "tunnels = ['500']\nsizes = ['1']\nmessages = 50\nhold = '5s'";
        assert_eq!(cells(text).unwrap()[0].name(), "500-1B-50x");
    }

    #[test]
    fn invalid_cells_are_refused() {
        let (lists, hold) = ("tunnels = ['5']\nsizes = ['20']", "hold = '5s'");
        for (text, named) in [
            (format!("{lists}\n{hold}"), "either"),
            (format!("{lists}\nevery = ['1s']\nmessages = 5\n{hold}"), "either"),
            (format!("{lists}\nmessages = 0\n{hold}"), "either"),
            (format!("{lists}\nevery = ['1']\n{hold}"), "line 5"),
            (format!("tunnels = ['5']\nsizes = ['2']\nevery = ['1s']\n{hold}"), "too small"),
            (format!("tunnels = ['5']\nsizes = ['0']\nmessages = 2\n{hold}"), "line 4"),
        ] {
            let error = format!("{:#}", cells(&text).unwrap_err());
            assert!(error.contains(named), "{text}: {error}");
        }
        let text = format!("{lists}\nevery = ['6s']\n{hold}");
        assert!(cells(&text).unwrap()[0].check().unwrap_err().to_string().contains("too short"));
    }
}
