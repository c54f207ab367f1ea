//! Targets, their verdicts on standard output, and the raw results as a file.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::proc;
use super::rounds::short;

/// A figure and its limit.
pub(super) struct Target {
    what: String,
    value: f64,
    limit: f64,
    at_least: bool,
}

impl Target {
    /// `value` must be `limit` or more.
    pub(super) fn at_least(what: impl Into<String>, value: f64, limit: f64) -> Target {
        Target { what: what.into(), value, limit, at_least: true }
    }

    /// `value` must be `limit` or less.
    pub(super) fn at_most(what: impl Into<String>, value: f64, limit: f64) -> Target {
        Target { what: what.into(), value, limit, at_least: false }
    }

    /// Whether the figure is within the limit.
    pub(super) fn is_met(&self) -> bool {
        if self.at_least { self.value >= self.limit } else { self.value <= self.limit }
    }

    fn print(&self) {
        let verdict = if self.is_met() { "met " } else { "FELL SHORT" };
        let sign = if self.at_least { "≥" } else { "≤" };
        println!(
            "{verdict:<10} {}: {} ({sign} {})",
            self.what,
            short(self.value),
            short(self.limit)
        );
    }

    fn json(&self) -> Value {
        let sense = if self.at_least { "at least" } else { "at most" };
        json!({ "what": self.what, "value": self.value, "limit": self.limit, "sense": sense,
                "met": self.is_met() })
    }
}

/// The results in `NAME.json`, if it has any with these settings.
pub(super) fn earlier(out: &Path, name: &str, settings: &Value) -> Result<Option<Value>> {
    let path = out.join(format!("{name}.json"));
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path)?;
    let mut document: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    ensure!(
        document["settings"] == *settings,
        "{} has rounds with other settings: remove it, or run without --add",
        path.display()
    );
    Ok(Some(document["results"].take()))
}

/// Prints the verdicts and writes `NAME.json`. Returns whether every target was met.
pub(super) fn finish(
    out: &Path,
    name: &str,
    settings: Value,
    results: Value,
    targets: &[Target],
) -> Result<bool> {
    println!();
    targets.iter().for_each(Target::print);
    let document = json!({
        "bench": name,
        "machine": proc::machine(),
        "settings": settings,
        "targets": targets.iter().map(Target::json).collect::<Vec<_>>(),
        "results": results,
    });
    fs::create_dir_all(out)?;
    let path = out.join(format!("{name}.json"));
    let text = format!("{document:#}\n");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("raw results in {}", path.display());
    Ok(targets.iter().all(Target::is_met))
}
