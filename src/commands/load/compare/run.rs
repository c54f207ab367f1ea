//! One side of a comparison: the figures of one run, or of several repetitions, from their result files.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use load::{Latency, Outcome};

use super::settings::Settings;
use crate::commands::plan::read_json;

/// The kind of a run; only runs of the same kind are compared.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Requests,
    Echo,
    Broadcast,
    Churn,
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
    /// Messages of gRPC streams.
    Messages,
    ReceiptP50,
    ReceiptP99,
    ReceiptMax,
    Connecting,
    Memory,
    Cpu,
}

impl Figure {
    pub(super) const ALL: [Figure; 13] = [
        Figure::Rate,
        Figure::P50,
        Figure::P90,
        Figure::P99,
        Figure::P999,
        Figure::Max,
        Figure::Messages,
        Figure::ReceiptP50,
        Figure::ReceiptP99,
        Figure::ReceiptMax,
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
            Figure::Messages => "messages",
            Figure::ReceiptP50 => "receipt_p50",
            Figure::ReceiptP99 => "receipt_p99",
            Figure::ReceiptMax => "receipt_max",
            Figure::Connecting => "connects",
            Figure::Memory => "memory",
            Figure::Cpu => "cpu",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Figure::Rate | Figure::Messages | Figure::Connecting => "/s",
            Figure::Memory => "B/conn",
            Figure::Cpu => "ms/1k",
            _ => "ms",
        }
    }

    pub(super) fn more_is_better(self) -> bool {
        matches!(self, Figure::Rate | Figure::Messages | Figure::Connecting)
    }

    /// Returns whether the figure affects the exit code. Maxima do not: they are single values that
    /// vary from run to run.
    pub(super) fn is_judged(self) -> bool {
        !matches!(self, Figure::Max | Figure::ReceiptMax)
    }

    fn of(self, kind: Kind, outcome: &Outcome) -> Option<f64> {
        let latency = |pick: fn(&Latency) -> f64| kind.latency(outcome).map(pick);
        let messages = outcome.messages.as_ref();
        let receipt = |pick: fn(&Latency) -> f64| messages?.latency.as_ref().map(pick);
        let watched = outcome.watched.as_ref();
        match self {
            Figure::Rate => kind.rate(outcome),
            Figure::P50 => latency(|latency| latency.p50_ms),
            Figure::P90 => latency(|latency| latency.p90_ms),
            Figure::P99 => latency(|latency| latency.p99_ms),
            Figure::P999 => latency(|latency| latency.p999_ms),
            Figure::Max => latency(|latency| latency.max_ms),
            Figure::Messages => messages?.received_per_second,
            Figure::ReceiptP50 => receipt(|latency| latency.p50_ms),
            Figure::ReceiptP99 => receipt(|latency| latency.p99_ms),
            Figure::ReceiptMax => receipt(|latency| latency.max_ms),
            Figure::Connecting => outcome.connections.per_second,
            Figure::Memory => watched?.rss_bytes_per_connection(),
            Figure::Cpu => watched?.cpu_ms_per_1000_messages(),
        }
    }
}

impl Kind {
    fn of(outcome: &Outcome) -> Kind {
        match outcome {
            Outcome { requests: Some(_), .. } => Kind::Requests,
            Outcome { echo: Some(_), .. } => Kind::Echo,
            Outcome { churn: Some(_), .. } => Kind::Churn,
            Outcome { broadcast: Some(_), .. } => Kind::Broadcast,
            _ => Kind::Held,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Requests => "requests",
            Kind::Echo => "echo messages",
            Kind::Broadcast => "publications",
            Kind::Churn => "churn of subscriptions",
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

    fn latency(self, outcome: &Outcome) -> Option<&Latency> {
        match self {
            Kind::Requests if outcome.all_calls_lasted() => None,
            Kind::Requests | Kind::Echo => outcome.latency.as_ref(),
            Kind::Broadcast => outcome.broadcast.as_ref()?.latency.as_ref(),
            Kind::Churn => outcome.churn.as_ref()?.latency.as_ref(),
            Kind::Held => outcome.heartbeats.as_ref()?.latency.as_ref(),
        }
    }

    /// Returns whether anything was answered, received or, where nothing is sent, opened.
    fn is_answered(self, outcome: &Outcome) -> bool {
        let received = match self {
            Kind::Requests => outcome.requests.map(|of| of.answered),
            Kind::Echo => outcome.echo.as_ref().map(|of| of.received),
            Kind::Broadcast => outcome.broadcast.as_ref().map(|of| of.received),
            Kind::Churn => outcome.churn.as_ref().map(|of| of.received),
            Kind::Held => outcome.connections.opened.or(outcome.connections.open),
        };
        received.is_some_and(|received| received > 0)
    }

    /// Good answers per second, or publications.
    fn rate(self, outcome: &Outcome) -> Option<f64> {
        let rate = outcome.good_rate();
        match self {
            Kind::Requests if outcome.all_calls_lasted() => None,
            Kind::Requests => rate.or_else(|| {
                let seconds = outcome.seconds.filter(|seconds| *seconds > 0.0)?;
                Some(outcome.requests?.ok as f64 / seconds)
            }),
            // Version 1 recorded only how many were sent.
            Kind::Echo if outcome.version < 2 => outcome.generator.as_ref()?.messages_per_second(),
            Kind::Echo | Kind::Broadcast | Kind::Churn => rate,
            Kind::Held => None,
        }
    }
}

/// A run, as far as it is compared.
#[derive(Debug)]
struct Run {
    file: String,
    kind: Kind,
    settings: Settings,
    /// In the order of [`Figure::ALL`]; `None`: not measured.
    figures: [Option<f64>; Figure::ALL.len()],
    /// What went wrong, of all that was due.
    errors: (u64, u64),
    answered: bool,
    /// Whether it was interrupted; `None`: the file does not say.
    interrupted: Option<bool>,
    /// Why its generator was saturated; `None`: the file does not say.
    saturated: Option<Option<String>>,
}

impl Run {
    fn read(path: &Path) -> Result<Run> {
        let file = path.display().to_string();
        let value = read_json(path)?;
        if value["verdict"].is_string() {
            bail!("{file} is a result of `standfast prove`: expected a result of `standfast load`");
        }
        if value["rounds"].is_array() {
            bail!("{file} has several rounds: expected the results of one round");
        }
        let outcome = Outcome::read(value).map_err(|why| {
            anyhow!("{file} is not a result of `standfast load`, written by --json FILE: {why}")
        })?;
        let kind = Kind::of(&outcome);
        let generator = outcome.generator.as_ref();
        Ok(Run {
            file,
            kind,
            settings: Settings::of(kind, &outcome),
            figures: Figure::ALL.map(|figure| figure.of(kind, &outcome)),
            errors: (outcome.error_count(), outcome.due_count()),
            answered: kind.is_answered(&outcome),
            // Files of version 1 recorded it for scenarios only.
            interrupted: (outcome.version >= 2 || outcome.interrupted)
                .then_some(outcome.interrupted),
            saturated: generator.map(|generator| generator.saturated()),
        })
    }

    /// Returns why the figures of the run mean nothing beside others, if that is known.
    fn unfit(&self) -> Option<String> {
        if self.interrupted == Some(true) {
            return Some(format!("the run of {} was interrupted", self.file));
        }
        let why = self.saturated.as_ref()?.as_ref()?;
        Some(format!(
            "the generator of {} was saturated ({why}), so its figures are not those of the server",
            self.file
        ))
    }

    /// Returns what the file should say and does not.
    fn unknown(&self) -> Vec<String> {
        let interrupted = self.interrupted.is_none().then_some("whether it was interrupted");
        let saturated = self.saturated.is_none().then_some("whether its generator was saturated");
        let others = interrupted.into_iter().chain(saturated).map(str::to_owned);
        self.settings.unknown().chain(others).collect()
    }
}

/// One run, or several that are the same.
#[derive(Debug)]
pub(super) struct Side {
    runs: Vec<Run>,
    kind: Kind,
}

impl Side {
    /// # Errors
    /// A file that is none of ours, or runs that are not repetitions of each other.
    pub(super) fn read(files: &[PathBuf]) -> Result<Side> {
        for (number, file) in files.iter().enumerate() {
            if files.iter().take(number).any(|other| other == file) {
                bail!("{} is given twice: each file is one run", file.display());
            }
        }
        let runs: Vec<Run> = files.iter().map(|file| Run::read(file)).collect::<Result<_>>()?;
        let Some(first) = runs.first() else { bail!("missing file name") };
        let kind = first.kind;
        for other in &runs {
            let why = first.settings.differences(&other.settings);
            if !why.is_empty() {
                bail!(
                    "{} and {} are not repetitions of the same run: {}",
                    first.file,
                    other.file,
                    why.join("; ")
                );
            }
        }
        Ok(Side { runs, kind })
    }

    pub(super) fn name(&self) -> String {
        self.runs.iter().map(|run| run.file.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The file of each run.
    pub(super) fn files(&self) -> Vec<String> {
        self.runs.iter().map(|run| run.file.clone()).collect()
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns why the two are not compared: runs without a meaning of their own, or with other settings.
    /// Nothing answered after the change is a result, nothing before it no basis.
    pub(super) fn differs_from(&self, other: &Side) -> Option<String> {
        let unfit = self.runs.iter().chain(&other.runs).find_map(Run::unfit);
        let differences = || {
            let (one, other) = (self.runs.first()?, other.runs.first()?);
            let all = one.settings.differences(&other.settings);
            (!all.is_empty()).then(|| all.join("; "))
        };
        let dead = || {
            let dead = self.runs.iter().find(|run| !run.answered)?;
            Some(format!("nothing was answered in the run of {}", dead.file))
        };
        unfit.or_else(differences).or_else(dead)
    }

    pub(super) fn count(&self) -> usize {
        self.runs.len()
    }

    /// A figure of each run; `None` if one did not measure it.
    pub(super) fn of(&self, figure: Figure) -> Option<Vec<f64>> {
        let at = Figure::ALL.iter().position(|one| *one == figure)?;
        self.runs.iter().map(|run| *run.figures.get(at)?).collect()
    }

    /// What went wrong in each run, of all that was due.
    pub(super) fn errors(&self) -> Vec<(u64, u64)> {
        self.runs.iter().map(|run| run.errors).collect()
    }

    /// What a reader of the figures should know.
    pub(super) fn notes(&self) -> Vec<String> {
        let notes = self.runs.iter().filter_map(|run| {
            let unknown = run.unknown();
            (!unknown.is_empty()).then(|| {
                format!("{} does not record: {}. They may differ", run.file, unknown.join(", "))
            })
        });
        notes.collect()
    }
}
