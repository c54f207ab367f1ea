//! What a run was asked to do, as far as its result file records it, and how two runs differ in that. Only
//! runs with the same settings are compared; the server, its address and its version may differ.
//!
//! What a file does not record is unknown, neither equal nor different: it becomes a note.

use std::collections::BTreeMap;
use std::path::Path;

use load::{Outcome, PaceConfig, RunConfig};
use serde_json::{Value, json};

use super::run::Kind;

/// Settings that say how long a run is. They are alike if the larger is at most so many times the smaller;
/// no warm-up is unlike any.
const LENGTHS: [&str; 2] = ["duration_seconds", "warm_up_seconds"];
const LENGTH_RATIO_MAX: f64 = 2.0;

/// Settings that are recorded as text only.
const TEXTS: [&str; 7] = [
    "answer timeout",
    "connections are replaced",
    "headers",
    "late after",
    "redirects followed",
    "subprotocols",
    "think time",
];

/// The settings of a run by name; `None` for what its file does not record.
#[derive(Clone, Default, Debug)]
pub(super) struct Settings(BTreeMap<&'static str, Option<Value>>);

impl Settings {
    pub(super) fn of(kind: Kind, outcome: &Outcome) -> Settings {
        let config = &outcome.config;
        // Files of version 1 left out what they did not record; later ones only what does not apply.
        let is_first = outcome.version < 2;
        let recorded = |value: Value| Some(value).filter(|value| !(is_first && value.is_null()));
        let mut all = BTreeMap::from([
            ("kind", Some(json!(kind.name()))),
            ("scenario", Some(json!(scenario(config)))),
            // As requested: how many a run of requests opened is the server's doing.
            ("connections", Some(json!(outcome.connections.requested))),
            ("pace", pace(&config.pace).map(Value::from)),
            ("target", paths(&config.target).map(Value::from)),
        ]);
        if let Some(requests) = &outcome.requests {
            // Also in files that do not record how long it was.
            all.insert("warm_up", Some(json!(requests.warm_up > 0)));
            all.extend([
                ("keep_alive", recorded(json!(config.keep_alive))),
                ("method", recorded(json!(config.method))),
                ("passes", recorded(json!(config.passes)).or(Some(Value::Null))),
                ("pipeline", recorded(json!(config.pipeline))),
                // Files without it are of HTTP/1.1.
                ("streams", Some(json!(config.streams))),
                ("warm_up_seconds", recorded(json!(config.warm_up_seconds))),
            ]);
        } else {
            all.insert("compressed", recorded(json!(config.compressed)));
        }
        if kind != Kind::Held {
            all.extend([
                ("message_bytes", recorded(json!(config.message_bytes))),
                ("duration_seconds", recorded(json!(config.duration_seconds))),
            ]);
        }
        let fanout = outcome.broadcast.as_ref().and_then(|broadcast| broadcast.fanout.as_ref());
        if let Some(fanout) = fanout {
            all.insert("publishers", Some(json!(fanout.publishers)));
            all.insert("publications_per_second", Some(json!(fanout.rate)));
        }
        if let Some(churn) = &outcome.churn {
            all.insert("streams", Some(json!(churn.streams)));
        }
        if !config.settings.is_empty() {
            let rows = |name: &str| config.settings.iter().find(|(row, _)| row == name);
            all.extend(TEXTS.map(|name| (name, Some(json!(rows(name).map(|(_, text)| text))))));
        }
        Settings(all)
    }

    /// Returns every difference between settings that both files record.
    pub(super) fn differences(&self, other: &Settings) -> Vec<String> {
        let both = self.0.iter().filter_map(|(name, one)| {
            let (one, other) = (one.as_ref()?, other.0.get(name)?.as_ref()?);
            (!is_like(name, one, other))
                .then(|| format!("{}: {} and {}", shown(name), text(one), text(other)))
        });
        both.collect()
    }

    /// Returns the settings that the file should record and does not.
    pub(super) fn unknown(&self) -> impl Iterator<Item = String> {
        let unknown = self.0.iter().filter(|(_, value)| value.is_none());
        unknown.map(|(name, _)| shown(name))
    }
}

fn shown(name: &str) -> String {
    name.replace('_', " ")
}

fn is_like(name: &str, one: &Value, other: &Value) -> bool {
    if let (Some(one), Some(other)) = (one.as_f64(), other.as_f64())
        && LENGTHS.contains(&name)
    {
        let (least, most) = (one.min(other), one.max(other));
        return most <= least * LENGTH_RATIO_MAX;
    }
    one == other
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Bool(is) => if *is { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The name of the scenario's file, wherever it lay.
fn scenario(config: &RunConfig) -> &str {
    let name = config.scenario.as_deref().unwrap_or("none");
    Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or(name)
}

fn pace(pace: &PaceConfig) -> Option<String> {
    if pace.model.is_empty() {
        return None;
    }
    let of_stages = if pace.is_open() { "rate stages" } else { "connection stages" };
    if let Some(rate) = pace.arrival_rate {
        let stages = pace.stages.as_ref().map(|stages| format!(" in stages {stages:?}"));
        return Some(format!("{rate} passes per second{}", stages.unwrap_or_default()));
    }
    Some(match (pace.rate, &pace.stages) {
        (Some(rate), _) => format!("{rate} per second"),
        (None, Some(stages)) => format!("{of_stages} {stages:?}"),
        (None, None) => "closed loop".to_owned(),
    })
}

/// The schemes and paths of all URLs. The host may differ: that is what one compares.
fn paths(urls: &[String]) -> Option<String> {
    let paths = urls.iter().map(|url| {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let path = rest.find(['/', '?']).and_then(|at| rest.get(at..)).unwrap_or("/");
        format!("{scheme} {path}")
    });
    (!urls.is_empty()).then(|| paths.collect::<Vec<_>>().join(", "))
}
