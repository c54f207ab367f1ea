//! [`Document`]: the outcomes of a scenario's rounds as text and as JSON.

use capacity::{Count, Decimal, Milliseconds};
use load::{Bars, Latency, Outcome, Verdict};
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

impl Document<'_> {
    /// The document for people, with bars of these characters.
    pub(super) fn text(&self, bars: Bars) -> String {
        let about = self.about.map(|about| format!(": {about}")).unwrap_or_default();
        let mut text = format!("scenario      {}{about}\n", self.scenario);
        if self.has_rounds {
            text += &table(self.rounds);
        }
        for (number, outcome) in self.rounds.iter().enumerate() {
            if self.has_rounds && Verdict::of(outcome).is_good() {
                continue;
            }
            if self.has_rounds {
                text += &format!("round         {}\n", number + 1);
            }
            text += &outcome.text(bars).to_string();
        }
        text
    }
}

/// A line per round, with its reference figure.
fn table(rounds: &[Outcome]) -> String {
    let mut text =
        "   users  connections  requests   failed  per second      beside       p50       p99\n"
            .to_owned();
    for result in rounds {
        let kind = if result.config.keep_alive == Some(true) { "kept" } else { "new each" };
        let ms = |pick: fn(&Latency) -> f64| {
            result.latency.as_ref().map_or("-".to_owned(), |l| Milliseconds(pick(l)).to_string())
        };
        let beside = result.config.beside;
        let beside = beside.map_or("-".to_owned(), |beside| Decimal(beside, 0).to_string());
        let counts = result.requests.unwrap_or_default();
        text += &format!(
            "{:>8}  {kind:<11} {:>9} {:>8} {:>11} {beside:>11} {:>9} {:>9}\n",
            Count(result.config.users.unwrap_or(0)),
            Count(counts.ok + counts.failed),
            Count(counts.failed),
            Decimal(result.per_second.unwrap_or(0.0), 0),
            ms(|latency| latency.p50_ms),
            ms(|latency| latency.p99_ms),
        );
    }
    text
}
