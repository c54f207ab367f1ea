//! What a run was asked to do, as far as its result file records it, and how two runs differ in that. Only
//! runs with the same settings are compared; the server, its address and its version may differ.
//!
//! What a file does not record is unknown, neither equal nor different: it becomes a note.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::run::Kind;

/// Settings that say how long a run is. They are alike if the larger is at most so many times the smaller;
/// no warm-up is unlike any.
const LENGTHS: [&str; 5] =
    ["duration_seconds", "hold_seconds", "messages", "requests", "warm_up_seconds"];
const LENGTH_RATIO_MAX: f64 = 2.0;

/// Settings that older files do not record.
const OF_REQUESTS: &str = "method, body size, new connections, pipelining, duration, warm-up";
const OF_SOCKETS: &str = "message size, think time, duration, compression";

/// The settings of a run by name.
#[derive(Clone, Default, Debug)]
pub(super) struct Settings {
    known: BTreeMap<String, Value>,
    unknown: Vec<&'static str>,
}

impl Settings {
    pub(super) fn of(kind: Kind, value: &Value) -> Settings {
        let mut settings = Settings::default();
        settings.add("kind", Some(kind.name().into()));
        settings.add("scenario", Some(scenario(value).into()));
        // As requested: how many a run of requests opened is the server's doing.
        let connections = value["users"].as_u64().or(value["connections"]["requested"].as_u64());
        settings.add("connections", connections.map(Value::from));
        settings.add("pace", value.get("pace").map(|pace| pace_text(pace).into()));
        settings.add("target", value["target"].as_array().map(|urls| paths(urls).into()));
        if kind == Kind::Requests {
            let sent = value["requests"]["warm_up"].as_u64();
            settings.add("warm_up", sent.map(|sent| (sent > 0).into()));
        }
        // Only in runs of a scenario, a fan-out or a churn.
        let sections = [&value["broadcast"], &value["churn"], value];
        for (section, keys) in sections.into_iter().zip([
            &["publishers", "rate"][..],
            &["rate", "streams"][..],
            &["keep_alive"][..],
        ]) {
            for key in keys {
                if let Some(setting) = section.get(key) {
                    settings.add(key, Some(setting.clone()));
                }
            }
        }
        match value["settings"].as_object() {
            Some(all) => {
                settings.known.extend(all.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            None if kind == Kind::Requests => settings.unknown.push(OF_REQUESTS),
            None => settings.unknown.push(OF_SOCKETS),
        }
        settings
    }

    fn add(&mut self, name: &'static str, value: Option<Value>) {
        match value {
            Some(value) => drop(self.known.insert(name.to_owned(), value)),
            None => self.unknown.push(name),
        }
    }

    /// Returns every difference between settings that both files record.
    pub(super) fn differences(&self, other: &Settings) -> Vec<String> {
        let both = self.known.iter().filter_map(|(name, one)| {
            let other = other.known.get(name).filter(|other| !is_like(name, one, other))?;
            Some(format!("{}: {} and {}", name.replace('_', " "), text(one), text(other)))
        });
        both.collect()
    }

    /// Returns the settings that the file should record and does not.
    pub(super) fn unknown(&self) -> &[&'static str] {
        &self.unknown
    }
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
fn scenario(value: &Value) -> &str {
    let name = value["scenario"].as_str().unwrap_or("none");
    Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or(name)
}

fn pace_text(pace: &Value) -> String {
    let open = pace["model"] == "open";
    match (pace["rate"].as_f64(), pace["stages"].is_array()) {
        (Some(rate), _) => format!("{rate} per second"),
        (None, true) if open => format!("rate stages {}", pace["stages"]),
        (None, true) => format!("connection stages {}", pace["stages"]),
        (None, false) => "closed loop".to_owned(),
    }
}

/// The schemes and paths of all URLs. The host may differ: that is what one compares.
fn paths(urls: &[Value]) -> String {
    let urls = urls.iter().filter_map(Value::as_str).map(|url| {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let path = rest.find(['/', '?']).and_then(|at| rest.get(at..)).unwrap_or("/");
        format!("{scheme} {path}")
    });
    urls.collect::<Vec<_>>().join(", ")
}
