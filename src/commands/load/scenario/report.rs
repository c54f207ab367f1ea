//! [`Document`]: the outcomes of a scenario's rounds as text and as JSON.

use std::fmt::{self, Display, Formatter};

use load::{Latency, Outcome, Verdict};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::file::Experiment;

/// The document of `--json`.
pub(super) struct Document<'a> {
    scenario: &'a str,
    about: Option<&'a String>,
    /// Seed of all random choices.
    seed: u64,
    has_rounds: bool,
    rounds: &'a [Outcome],
}

impl Serialize for Document<'_> {
    /// A single round is written as a run without a scenario.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let [outcome] = self.rounds {
            return outcome.serialize(serializer);
        }
        let mut document = serializer.serialize_struct("Document", 4)?;
        document.serialize_field("scenario", self.scenario)?;
        document.serialize_field("about", &self.about)?;
        document.serialize_field("seed", &self.seed)?;
        document.serialize_field("rounds", self.rounds)?;
        document.end()
    }
}

impl<'a> Document<'a> {
    pub(super) fn new(
        scenario: &'a str,
        experiment: &'a Experiment,
        seed: u64,
        rounds: &'a [Outcome],
    ) -> Document<'a> {
        let about = experiment.about.as_ref();
        Document { scenario, about, seed, has_rounds: experiment.has_rounds, rounds }
    }
}

impl Display for Document<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let about = self.about.map(|about| format!(": {about}")).unwrap_or_default();
        writeln!(f, "scenario      {}{about}", self.scenario)?;
        if self.has_rounds {
            table(f, self.rounds)?;
        }
        for (number, outcome) in self.rounds.iter().enumerate() {
            if self.has_rounds && Verdict::of(outcome).is_good() {
                continue;
            }
            if self.has_rounds {
                writeln!(f, "round         {}", number + 1)?;
            }
            write!(f, "{outcome}")?;
        }
        Ok(())
    }
}

/// Writes a line per round, with its reference figure.
fn table(f: &mut Formatter<'_>, rounds: &[Outcome]) -> fmt::Result {
    writeln!(
        f,
        "   users  connections  requests   failed  per second      beside    p50 ms    p99 ms"
    )?;
    for result in rounds {
        let kind = if result.config.keep_alive == Some(true) { "kept" } else { "new each" };
        let ms = |pick: fn(&Latency) -> f64| {
            result.latency.as_ref().map_or("-".to_owned(), |l| format!("{:.3}", pick(l)))
        };
        let beside = result.config.beside.map_or("-".to_owned(), |beside| format!("{beside:.0}"));
        let counts = result.requests.unwrap_or_default();
        writeln!(
            f,
            "{:>8}  {kind:<11} {:>9} {:>8} {:>11.0} {beside:>11} {:>9} {:>9}",
            result.config.users.unwrap_or(0),
            counts.ok + counts.failed,
            counts.failed,
            result.per_second.unwrap_or(0.0),
            ms(|latency| latency.p50_ms),
            ms(|latency| latency.p99_ms),
        )?;
    }
    Ok(())
}
