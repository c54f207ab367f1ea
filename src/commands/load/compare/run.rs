//! One side of a comparison: the figures of one run, or of several repetitions, from their JSON.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::commands::plan::read_json;

/// The kind of a run; only runs of the same kind are compared.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Requests,
    Echo,
    Broadcast,
    Held,
}

/// A figure that can be compared.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Figure {
    Rate,
    P50,
    P90,
    P99,
    P999,
    Max,
    Connecting,
    Memory,
    Cpu,
}

impl Figure {
    pub(super) const ALL: [Figure; 9] = [
        Figure::Rate,
        Figure::P50,
        Figure::P90,
        Figure::P99,
        Figure::P999,
        Figure::Max,
        Figure::Connecting,
        Figure::Memory,
        Figure::Cpu,
    ];

    /// Returns the name for `--max-regression` and the output.
    pub(super) fn name(self) -> &'static str {
        match self {
            Figure::Rate => "rate",
            Figure::P50 => "p50",
            Figure::P90 => "p90",
            Figure::P99 => "p99",
            Figure::P999 => "p999",
            Figure::Max => "max",
            Figure::Connecting => "connects",
            Figure::Memory => "memory",
            Figure::Cpu => "cpu",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Figure::Rate | Figure::Connecting => "/s",
            Figure::Memory => "B/conn",
            Figure::Cpu => "ms/1k",
            _ => "ms",
        }
    }

    pub(super) fn more_is_better(self) -> bool {
        matches!(self, Figure::Rate | Figure::Connecting)
    }

    /// Returns whether the figure affects the exit code. The maximum does not: it is a single value that
    /// varies from run to run.
    pub(super) fn is_judged(self) -> bool {
        self != Figure::Max
    }

    fn of(self, run: &Run) -> Option<f64> {
        let value = &run.value;
        let latency = |key: &str| run.kind.latency(value)[key].as_f64();
        match self {
            Figure::Rate => run.rate(),
            Figure::P50 => latency("p50_ms"),
            Figure::P90 => latency("p90_ms"),
            Figure::P99 => latency("p99_ms"),
            Figure::P999 => latency("p999_ms"),
            Figure::Max => latency("max_ms"),
            Figure::Connecting => value["connections"]["per_second"].as_f64(),
            Figure::Memory => value["watched"]["rss_bytes_per_connection"].as_f64(),
            Figure::Cpu => value["watched"]["cpu_ms_per_1000_messages"].as_f64(),
        }
    }

    /// Returns the key of this figure in a sample of one second.
    fn of_second(self) -> Option<&'static str> {
        match self {
            Figure::P50 => Some("p50_ms"),
            Figure::P99 => Some("p99_ms"),
            _ => None,
        }
    }
}

impl Kind {
    fn of(value: &Value) -> Option<Kind> {
        if value["requests"]["ok"].is_u64() {
            return Some(Kind::Requests);
        }
        let is_ours = value["connections"]["requested"].is_u64() && value["held"].is_boolean();
        match (is_ours, value["echo"].is_object(), value["broadcast"].is_object()) {
            (false, ..) => None,
            (true, true, _) => Some(Kind::Echo),
            (true, false, true) => Some(Kind::Broadcast),
            (true, false, false) => Some(Kind::Held),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Requests => "requests",
            Kind::Echo => "echo messages",
            Kind::Broadcast => "publications",
            Kind::Held => "held connections",
        }
    }

    /// Returns the name in the JSON, where it stays what it was.
    pub(super) fn json_name(self) -> &'static str {
        match self {
            Kind::Echo => "messages that come back",
            Kind::Held => "connections that are held",
            other => other.name(),
        }
    }

    /// Returns the phases that count.
    fn phases(self) -> &'static [&'static str] {
        match self {
            Kind::Requests => &["requests"],
            Kind::Echo => &["echo"],
            Kind::Broadcast => &["fanout", "broadcast"],
            Kind::Held => &["hold"],
        }
    }

    fn latency(self, value: &Value) -> &Value {
        match self {
            Kind::Requests | Kind::Echo => &value["latency"],
            Kind::Broadcast => &value["broadcast"]["latency"],
            Kind::Held => &value["heartbeats"]["latency"],
        }
    }
}

struct Run {
    file: String,
    kind: Kind,
    value: Value,
}

impl Run {
    fn read(path: &Path) -> Result<Run> {
        let file = path.display().to_string();
        let value = read_json(path)?;
        if value["verdict"].is_string() {
            bail!("{file} is a result of `standfast prove`: expected a result of `standfast load`");
        }
        let Some(kind) = Kind::of(&value) else {
            bail!("{file} is not a result of `standfast load`: create one with --json FILE");
        };
        Ok(Run { file, kind, value })
    }

    /// As asked for: how many a run of requests opened is the server's doing.
    fn connections(&self) -> Option<u64> {
        let users = self.value["users"].as_u64();
        users.or(self.value["connections"]["requested"].as_u64())
    }

    /// The name of its file or of ours, wherever it lay; `None` of a run without one.
    fn scenario(&self) -> Option<&str> {
        Path::new(self.value["scenario"].as_str()?).file_name()?.to_str()
    }

    /// When it sent.
    fn pace(&self) -> String {
        let pace = &self.value["pace"];
        let open = pace["model"] == "open";
        match (pace["rate"].as_f64(), pace["stages"].is_array()) {
            (Some(rate), _) => format!("at {rate} per second"),
            (None, true) if open => format!("with rate stages {}", pace["stages"]),
            (None, true) => format!("with connection stages {}", pace["stages"]),
            (None, false) => "a closed loop".to_owned(),
        }
    }

    /// What it asked for. The host may be another: that is what one compares.
    fn paths(&self) -> String {
        let urls = self.value["target"].as_array().map(Vec::as_slice).unwrap_or_default();
        let urls = urls.iter().filter_map(Value::as_str).map(|url| {
            let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
            let path = rest.find(['/', '?']).and_then(|at| rest.get(at..)).unwrap_or("/");
            format!("{scheme} {path}")
        });
        format!("on {}", urls.collect::<Vec<_>>().join(", "))
    }

    /// Whatever a second of this run brought: answers per second.
    fn rate(&self) -> Option<f64> {
        match self.kind {
            Kind::Requests => self.value["per_second"].as_f64(),
            Kind::Echo => self.value["generator"]["messages_per_second"].as_f64(),
            Kind::Broadcast => self.value["broadcast"]["reached_rate"].as_f64(),
            Kind::Held => None,
        }
    }

    /// Those that went wrong, of all.
    fn errors(&self) -> (u64, u64) {
        let value = &self.value;
        let count = |section: &str, key: &str| value[section][key].as_u64().unwrap_or(0);
        match self.kind {
            Kind::Requests => {
                let bad = count("requests", "failed") + count("requests", "unsent");
                (bad, bad + count("requests", "ok"))
            }
            Kind::Echo => {
                let wrong = ["unsent", "lost", "duplicated", "reordered", "corrupted", "late"];
                let asked = count("echo", "sent") + count("echo", "unsent");
                (wrong.iter().map(|key| count("echo", key)).sum(), asked)
            }
            Kind::Broadcast => {
                let wrong = ["lost", "duplicated", "reordered", "corrupted", "late"];
                let wrong = wrong.iter().map(|key| count("broadcast", key)).sum();
                (wrong, count("broadcast", "expected"))
            }
            Kind::Held => {
                let open = count("connections", "open");
                let all = count("connections", "requested");
                (all.saturating_sub(open), all)
            }
        }
    }

    /// A figure second by second, without the first, in which all begins. The last is whole: a run's
    /// JSON leaves out what is less than a second.
    fn seconds(&self, figure: Figure) -> Vec<f64> {
        let samples = self.value["samples"].as_array().map(Vec::as_slice).unwrap_or_default();
        let phases = self.kind.phases();
        let during =
            |sample: &&Value| sample["phase"].as_str().is_some_and(|phase| phases.contains(&phase));
        let samples: Vec<&Value> = samples.iter().filter(during).collect();
        if let Some(key) = figure.of_second() {
            let inner = samples.get(1..).unwrap_or_default();
            return inner.iter().filter_map(|sample| sample[key].as_f64()).collect();
        }
        if figure != Figure::Rate {
            return Vec::new();
        }
        let total =
            |sample: &Value| sample["received"].as_f64().zip(sample["elapsed_seconds"].as_f64());
        let pairs = samples.windows(2).filter_map(|pair| {
            let [before, after] = pair else { return None };
            let ((count, second), (later, then)) = (total(before)?, total(after)?);
            Some((later - count) / (then - second).max(1e-3))
        });
        pairs.collect()
    }
}

/// One run, or several that are the same.
pub(super) struct Side {
    runs: Vec<Run>,
    kind: Kind,
}

impl Side {
    /// # Errors
    /// A file that is none of ours, or runs that are not like each other.
    pub(super) fn read(files: &[PathBuf]) -> Result<Side> {
        let runs: Vec<Run> = files.iter().map(|file| Run::read(file)).collect::<Result<_>>()?;
        let Some(first) = runs.first() else { bail!("missing file name") };
        let kind = first.kind;
        for other in &runs {
            if let Some(why) = differ(first, other) {
                bail!(
                    "{} and {} are not repetitions of the same run: {why}",
                    first.file,
                    other.file
                );
            }
        }
        Ok(Side { runs, kind })
    }

    pub(super) fn name(&self) -> String {
        self.runs.iter().map(|run| run.file.as_str()).collect::<Vec<_>>().join(",")
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Why the two are not the same measurement.
    pub(super) fn differs_from(&self, other: &Side) -> Option<String> {
        differ(self.runs.first()?, other.runs.first()?)
    }

    pub(super) fn count(&self) -> usize {
        self.runs.len()
    }

    /// A figure of each run.
    pub(super) fn of(&self, figure: Figure) -> Vec<f64> {
        self.runs.iter().filter_map(|run| figure.of(run)).collect()
    }

    /// A figure of each second of all runs.
    pub(super) fn seconds(&self, figure: Figure) -> Vec<f64> {
        self.runs.iter().flat_map(|run| run.seconds(figure)).collect()
    }

    pub(super) fn errors(&self) -> (u64, u64) {
        let each = self.runs.iter().map(Run::errors);
        each.fold((0, 0), |(bad, all), (more, of)| (bad + more, all + of))
    }

    /// What whoever trusts the figures should know.
    pub(super) fn notes(&self) -> Vec<String> {
        let saturated = self.runs.iter().filter_map(|run| {
            let why = load::saturated(&run.value)?;
            Some(format!("{}: the generator was saturated: {why}", run.file))
        });
        saturated.collect()
    }
}

fn differ(one: &Run, other: &Run) -> Option<String> {
    if one.kind != other.kind {
        return Some(format!("one is of {}, the other of {}", one.kind.name(), other.kind.name()));
    }
    if let Some((some, others)) = one.connections().zip(other.connections())
        && some != others
    {
        return Some(format!("one is of {some} connections, the other of {others}"));
    }
    if one.scenario() != other.scenario() {
        let name = |run: &Run| run.scenario().map_or("of a URL".to_owned(), |s| format!("of {s}"));
        return Some(format!("one is {}, the other {}", name(one), name(other)));
    }
    // Runs of a version that did not write these down may be anything.
    for (key, what) in [("pace", Run::pace as fn(&Run) -> String), ("target", Run::paths)] {
        let (some, others) = (what(one), what(other));
        let known = !one.value[key].is_null() && !other.value[key].is_null();
        if known && some != others {
            return Some(format!("one is {some}, the other {others}"));
        }
    }
    None
}
