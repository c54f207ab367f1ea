//! Reading an [`Outcome`] from JSON, of this version of the schema or an older one.
//!
//! A document of the current version has every count: one that is missing is an error and never zero. What
//! version 1 left out is added to documents of that version only.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::outcome::samples::SampleLatency;
use crate::outcome::sections::FanoutSummary;
use crate::outcome::{OUTCOME_VERSION, Outcome};

impl Outcome {
    /// Reads an outcome. Version 1, which had no `version`, is understood; what it did not contain
    /// stays unknown.
    ///
    /// # Errors
    /// A document that is not an outcome, or one of a later version; the text says which.
    pub fn read(mut value: Value) -> Result<Outcome, String> {
        let version = value.get("version").and_then(Value::as_u64).unwrap_or(1);
        if version > OUTCOME_VERSION.into() {
            return Err(format!(
                "it has version {version} of the schema: expected at most {OUTCOME_VERSION}, so \
                 read it with the release of standfast that wrote it"
            ));
        }
        if version == 1 {
            upgrade(&mut value);
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    }
}

/// Adds what version 1 left out. `samples` and the like were always written.
fn upgrade(value: &mut Value) {
    let users = value.get("users").cloned();
    let none = || json!({});
    add(
        Some(value),
        [
            ("version", json!(1)),
            ("standfast", json!("")),
            ("interrupted", json!(false)),
            ("tolerated", json!(false)),
            ("thresholds", json!([])),
            ("samples", json!([])),
            ("status", none()),
            ("errors", none()),
            ("connect_errors", none()),
            ("retried_by", none()),
            ("closed", none()),
        ],
    );
    // Of requests it had only the number that was configured.
    if let Some(users) = users {
        add(value.get_mut("connections"), [("requested", users)]);
    }
    add(value.get_mut("requests"), [("stragglers", json!(0)), ("unknown", json!(0))]);
    for section in ["echo", "broadcast"] {
        add(value.get_mut(section), [("unknown", json!(0))]);
    }
    // It was in the messages that were received.
    for section in ["broadcast", "churn", "groups"] {
        add(value.get_mut(section), [("refused", json!(0))]);
    }
    add(value.get_mut("heartbeats"), [("awaited", json!(false))]);
    add(value.get_mut("sockets"), [("reopened", json!(0))]);
    add_above_range(value);
    upgrade_generator(value.get_mut("generator"));
}

/// Adds fields that a section does not have, if there is such a section.
fn add<const N: usize>(section: Option<&mut Value>, fields: [(&str, Value); N]) {
    let Some(section) = section.and_then(Value::as_object_mut) else { return };
    for (key, value) in fields {
        section.entry(key).or_insert(value);
    }
}

/// Adds the count of times above the range, which version 1 did not keep, to every latency.
fn add_above_range(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(add_above_range),
        Value::Object(fields) => {
            if ["count", "p95_ms", "p999_ms"].iter().all(|key| fields.contains_key(*key)) {
                fields.entry("above_range").or_insert(json!(0));
            }
            fields.values_mut().for_each(add_above_range);
        }
        _ => {}
    }
}

/// `saturated` was the reason or null, and nothing was known about workers.
fn upgrade_generator(generator: Option<&mut Value>) {
    let Some(generator) = generator else { return };
    let saturated = generator.get("saturated").filter(|saturated| !saturated.is_boolean());
    if let Some(saturated) = saturated {
        let reasons: Vec<String> = saturated.as_str().map(str::to_owned).into_iter().collect();
        if let Some(generator) = generator.as_object_mut() {
            generator.insert("saturated".to_owned(), json!(!reasons.is_empty()));
            generator.insert("reasons".to_owned(), json!(reasons));
        }
    }
    add(Some(generator), [("workers", json!([])), ("reasons", json!([]))]);
}

/// Reads the additional figures of a fan-out.
pub(crate) fn fanout<'de, D>(deserializer: D) -> Result<Option<FanoutSummary>, D::Error>
where
    D: Deserializer<'de>,
{
    const KEYS: [&str; 13] = [
        "publishers",
        "publish_failed",
        "publish_rejected",
        "publish_unanswered",
        "publish_unknown",
        "publish_unsent",
        "rate",
        "reached_rate",
        "accepted_rate",
        "publish_lag",
        "publish",
        "receivers_short",
        "worst",
    ];
    flattened(deserializer, &KEYS)
}

/// Reads the latency of a sample.
pub(crate) fn sample_latency<'de, D>(deserializer: D) -> Result<Option<SampleLatency>, D::Error>
where
    D: Deserializer<'de>,
{
    flattened(deserializer, &["p50_ms", "p99_ms", "max_ms"])
}

/// Reads fields that are written among those of another object. They are absent only together: serde would
/// take one that is missing or misspelt for the absence of all.
fn flattened<'de, D, T>(deserializer: D, keys: &[&str]) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let fields = Map::<String, Value>::deserialize(deserializer)?;
    if !keys.iter().any(|key| fields.contains_key(*key)) {
        return Ok(None);
    }
    serde_json::from_value(Value::Object(fields)).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::fixture;

    /// Removes each field of a document in turn; `refused` gets its path and the rest.
    fn without_each(document: &Value, mut refused: impl FnMut(&[String], Value)) {
        fn paths(value: &Value, at: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
            let fields: Vec<(String, &Value)> = match value {
                Value::Object(fields) => fields.iter().map(|(key, v)| (key.clone(), v)).collect(),
                Value::Array(of) => {
                    of.iter().enumerate().map(|(n, v)| (n.to_string(), v)).collect()
                }
                _ => return,
            };
            for (key, field) in fields {
                at.push(key);
                if value.is_object() {
                    all.push(at.clone());
                }
                paths(field, at, all);
                at.pop();
            }
        }
        let mut all = Vec::new();
        paths(document, &mut Vec::new(), &mut all);
        for path in all {
            let mut rest = document.clone();
            let (key, parents) = path.split_last().unwrap();
            let parent = rest.pointer_mut(&pointer(parents)).unwrap();
            parent.as_object_mut().unwrap().remove(key);
            refused(&path, rest);
        }
    }

    fn pointer(path: &[String]) -> String {
        path.iter().map(|key| format!("/{key}")).collect()
    }

    fn says_nothing(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(values) => values.is_empty(),
            Value::Object(fields) => fields.values().all(says_nothing),
            Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// Removes fields that say nothing, which may be written or left out.
    fn prune(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.values_mut().for_each(prune);
                fields.retain(|_, field| !says_nothing(field));
            }
            Value::Array(values) => values.iter_mut().for_each(prune),
            _ => {}
        }
    }

    #[test]
    fn nothing_that_is_missing_is_read_as_a_count() {
        let document = serde_json::to_value(fixture::full()).unwrap();
        let read = Outcome::read(document.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), document, "and back");
        let mut refusals = 0;
        without_each(&document, |path, mut rest| {
            // Without a version it is the first one, which had fewer fields.
            if path == ["version"] {
                return;
            }
            let Ok(read) = Outcome::read(rest.clone()) else {
                refusals += 1;
                return;
            };
            let mut read = serde_json::to_value(read).unwrap();
            let path = pointer(path);
            let (parent, key) = path.rsplit_once('/').unwrap();
            let missing = |value: &mut Value| {
                value.pointer_mut(parent).and_then(Value::as_object_mut)?.remove(key)
            };
            let value = missing(&mut read).unwrap_or_default();
            assert!(says_nothing(&value), "{path}: {value}");
            // Nor does it take anything else with it.
            let _ = missing(&mut rest);
            [&mut read, &mut rest].into_iter().for_each(prune);
            assert!(read == rest, "{path} took more with it");
        });
        assert!(refusals > 80, "{refusals}");
    }

    #[test]
    fn first_version_is_read_without_what_it_did_not_have() {
        let mut document = json!({
            "held": true, "reasons": [], "connections": {"requested": 1, "failed": 0},
            "requests": {"ok": 1, "failed": 0, "sent": 1, "answered": 1, "unfinished": 0,
                "unsent": 0, "warm_up": 0, "redirects": 0},
            "latency": {"count": 1, "p50_ms": 1.0, "p90_ms": 1.0, "p95_ms": 1.0, "p99_ms": 1.0,
                "p999_ms": 1.0, "max_ms": 1.0},
            "sockets": {"received": 1, "unread_dropped": 0, "closed_by": {}, "gone": 0,
                "broken": {}},
            "generator": {"cores": 2, "cpu_seconds": 1.0, "cpu_cores_most": 1.0,
                "saturated": "it was busy", "rate_missed": false},
        });
        let read = Outcome::read(document.clone()).unwrap();
        let of = read.requests.unwrap();
        assert_eq!((of.stragglers, of.unknown, read.version), (0, 0, 1));
        assert_eq!(read.latency.unwrap().above_range, 0);
        assert_eq!(read.sockets.as_ref().unwrap().reopened, 0);
        let why = read.generator.as_ref().and_then(|generator| generator.saturated());
        assert_eq!(why.as_deref(), Some("it was busy"));
        document["generator"]["saturated"] = Value::Null;
        assert!(!Outcome::read(document.clone()).unwrap().is_saturated());
        document["version"] = json!(OUTCOME_VERSION);
        assert!(Outcome::read(document).is_err(), "a later version had them");
    }
}
