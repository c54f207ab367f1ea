//! Rounds: every server once per round in a shuffled order, raw figures, ratios within a round.
//!
//! The machine's speed changes from minute to minute. Two servers in the same round run at the same
//! speed, so a ratio within a round is more precise than the ratio of two medians. The control (the
//! same executable twice) shows how much a ratio varies by chance.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use anyhow::Result;
use serde_json::{Value, json};

/// The figures of one run, by name.
pub(super) type Figures = BTreeMap<&'static str, f64>;

/// A program that takes part in a comparison.
pub(super) trait Contestant: Copy + PartialEq {
    /// Its name in tables and results.
    fn name(self) -> &'static str;
}

/// All runs of a comparison.
pub(super) struct Rounds<K> {
    servers: Vec<K>,
    /// Each round's runs in the order they were made.
    rounds: Vec<Vec<(K, Figures)>>,
}

impl<K: Contestant> Rounds<K> {
    /// Runs every server once per round and prints each result.
    pub(super) fn run(
        servers: &[K],
        pairs: usize,
        mut once: impl FnMut(K) -> Result<Figures>,
    ) -> Result<Rounds<K>> {
        let mut rounds = Vec::with_capacity(pairs);
        for number in 1..=pairs {
            let mut round = Vec::with_capacity(servers.len());
            for kind in shuffled(servers) {
                let figures = once(kind)?;
                let shown: Vec<String> = figures
                    .iter()
                    .map(|(name, value)| format!("{name} {}", short(*value)))
                    .collect();
                println!("round {number}  {:<16} {}", kind.name(), shown.join("  "));
                round.push((kind, figures));
            }
            rounds.push(round);
        }
        Ok(Rounds { servers: servers.to_vec(), rounds })
    }

    /// Puts the rounds of earlier results, as [`Rounds::json`] returns them, before these. Figures that are not among
    /// `figures` are left out.
    pub(super) fn add_earlier(&mut self, results: &Value, figures: &[&'static str]) {
        let one = |run: &Value| {
            let kind = self.servers.iter().find(|kind| run["server"] == kind.name())?;
            let of = |name: &&'static str| Some((*name, run["figures"][*name].as_f64()?));
            Some((*kind, figures.iter().filter_map(of).collect()))
        };
        let rounds = results["rounds"].as_array().map(Vec::as_slice).unwrap_or_default();
        let runs = |round: &Value| {
            round.as_array().map(|runs| runs.iter().filter_map(one).collect()).unwrap_or_default()
        };
        let mut all: Vec<Vec<(K, Figures)>> = rounds.iter().map(runs).collect();
        all.append(&mut self.rounds);
        self.rounds = all;
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.rounds.len()
    }

    /// Whether both take part.
    pub(super) fn have(&self, one: K, other: K) -> bool {
        self.servers.contains(&one) && self.servers.contains(&other)
    }

    /// Every value of one figure of one server.
    pub(super) fn values(&self, kind: K, figure: &str) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| value(round, kind, figure)).collect()
    }

    /// The median of one figure of one server.
    pub(super) fn median(&self, kind: K, figure: &str) -> f64 {
        median(self.values(kind, figure))
    }

    /// `one ÷ other` of a figure, per round.
    pub(super) fn ratios(&self, one: K, other: K, figure: &str) -> Vec<f64> {
        let ratio = |round: &Vec<(K, Figures)>| {
            Some(value(round, one, figure)? / value(round, other, figure)?)
        };
        self.rounds.iter().filter_map(ratio).collect()
    }

    /// One line per server and figure: median and range.
    pub(super) fn print(&self, figures: &[&str]) {
        println!("\n{:<18} {:<26} {:>12} {:>12} {:>12}", "server", "", "median", "least", "most");
        for figure in figures {
            for &kind in &self.servers {
                let mut values = self.values(kind, figure);
                values.sort_by(f64::total_cmp);
                if let [least, .., most] | [least @ most] = values[..] {
                    let middle = short(median(values));
                    let (least, most) = (short(least), short(most));
                    println!(
                        "{:<18} {figure:<26} {middle:>12} {least:>12} {most:>12}",
                        kind.name()
                    );
                }
            }
        }
    }

    /// All figures, raw and as medians.
    pub(super) fn json(&self) -> Value {
        let rounds: Vec<Vec<Value>> = self
            .rounds
            .iter()
            .map(|round| {
                let run = |(kind, figures): &(K, Figures)| {
                    json!({ "server": kind.name(), "figures": figures })
                };
                round.iter().map(run).collect()
            })
            .collect();
        let mut medians = serde_json::Map::new();
        for &kind in &self.servers {
            let names =
                self.rounds.first().and_then(|round| round.iter().find(|run| run.0 == kind));
            let of: BTreeMap<&str, f64> = names
                .map(|(_, figures)| {
                    figures.keys().map(|name| (*name, self.median(kind, name))).collect()
                })
                .unwrap_or_default();
            medians.insert(kind.name().to_owned(), json!(of));
        }
        json!({ "medians": medians, "rounds": rounds })
    }
}

/// The middle value, or the mean of the two in the middle; 0 for none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.get(middle) {
        None => 0.0,
        Some(upper) if values.len() % 2 == 1 => *upper,
        Some(upper) => (values[middle - 1] + upper) / 2.0,
    }
}

/// A number with about four significant digits.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn value<K: PartialEq>(round: &[(K, Figures)], kind: K, figure: &str) -> Option<f64> {
    round.iter().find(|run| run.0 == kind)?.1.get(figure).copied()
}

/// Returns the items in random order: a Fisher-Yates shuffle; the randomness is from the standard
/// library's hash keys.
pub(super) fn shuffled<T: Copy>(things: &[T]) -> Vec<T> {
    let mut order = things.to_vec();
    for last in (1..order.len()).rev() {
        let chance = RandomState::new().build_hasher().finish();
        order.swap(last, (chance % (last as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::server::Kind;

    #[test]
    fn median_ignores_outliers() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn rounds_are_added_to_earlier_ones() {
        let run = |speed: f64| {
            Rounds::run(&[Kind::Bun, Kind::Floor], 2, |kind| {
                let speed = if kind == Kind::Floor { 2.0 * speed } else { speed };
                Ok(Figures::from([("speed", speed), ("of a version before", 1.0)]))
            })
            .unwrap()
        };
        let earlier = run(1.0).json();
        let mut rounds = run(10.0);
        rounds.add_earlier(&earlier, &["speed"]);
        assert_eq!(rounds.values(Kind::Bun, "speed"), [1.0, 1.0, 10.0, 10.0]);
        assert_eq!(rounds.ratios(Kind::Floor, Kind::Bun, "speed"), [2.0; 4]);
        assert_eq!(rounds.values(Kind::Bun, "of a version before"), [1.0; 2], "only of the new");
    }

    #[test]
    fn ratios_are_computed_within_a_round() {
        let mut runs = 0.0;
        let rounds = Rounds::run(&[Kind::Bun, Kind::Floor], 5, |kind| {
            // The floor is always twice as fast.
            runs += 1.0;
            let speed = if kind == Kind::Floor { 200.0 } else { 100.0 };
            Ok(Figures::from([("speed", speed), ("run", runs)]))
        })
        .unwrap();
        assert_eq!(rounds.ratios(Kind::Floor, Kind::Bun, "speed"), [2.0; 5]);
        let all = [rounds.values(Kind::Bun, "run"), rounds.values(Kind::Floor, "run")].concat();
        assert_eq!(all.iter().sum::<f64>(), 55.0, "each server ran once in each round");
    }
}
