//! `standfast load from-k6 FILE`: the plain subset of k6 scripts as a scenario. The script is read and not
//! run; whatever is not understood is left out and listed with its line.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use super::draft::{Draft, name_steps, quoted, set_target};
use super::js::{self, Expr, Kind, Statement, Value};
use super::k6_flow::Flow;
use super::{Output, finish, read};
use crate::units;

/// Size limit of a script, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Convert the plain parts of a k6 script to a scenario
#[derive(clap::Args, Debug)]
pub(in crate::commands::load) struct Args {
    /// k6 script; - for stdin. It is read and not run: what is not understood is listed and left out
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    output: Output,
}

/// Runs the command. Notes go to standard error.
///
/// # Errors
/// A file that cannot be read, or has no request that can be converted.
pub(in crate::commands::load) fn run(args: &Args) -> Result<ExitCode> {
    let shown = args.file.display().to_string();
    let text = read(&args.file, FILE_BYTES_MAX)?;
    let (draft, notes) = convert(&text).map_err(|error| anyhow::anyhow!("{shown}: {error}"))?;
    if draft.steps.is_empty() {
        notes.iter().for_each(|note| crate::output::note(note));
        bail!("{shown}: no request to convert: expected http.get(…) in the default function");
    }
    finish(&draft, &notes, &args.output)
}

/// Returns the scenario, and notes on what was left out.
fn convert(text: &str) -> Result<(Draft, Vec<String>), String> {
    let statements = js::parse(text)?;
    let mut flow = Flow::default();
    let (mut options, mut default) = (None, None);
    for Statement { line, of } in &statements {
        match of {
            Kind::Import => {}
            Kind::Declare(name, value) if name == "options" => options = Some(value),
            Kind::Declare(name, value) => flow.declare(name, value),
            Kind::Default(function) => default = Some(function),
            Kind::Return(_) | Kind::Do(_) => flow.left_out(*line, "a statement outside functions"),
            Kind::Unknown(words) => flow.left_out(*line, words),
        }
    }
    match default.map(|default| &default.of) {
        Some(Value::Function(parameters, body)) => {
            if let Some(parameter) = parameters.first() {
                flow.note(default, format!("{parameter} of setup() is unknown"));
            }
            flow.statements(body);
        }
        Some(Value::Name(name)) => flow.call(name),
        _ => {}
    }
    flow.list_uncalled();
    let mut draft = std::mem::take(&mut flow.draft);
    draft.comments.push("Converted from a k6 script by standfast load from-k6.".to_owned());
    if let Some(options) = options {
        read_options(options, &mut draft, &mut flow);
    }
    if draft.top.iter().all(|(key, _)| !matches!(*key, "duration" | "passes" | "stages")) {
        draft.top.push(("passes", "1".to_owned()));
    }
    set_target(&mut draft);
    if draft.target.is_none() {
        draft.target = Some("http://127.0.0.1:8080".to_owned());
        flow.notes.push("the base URL is unknown: set target, or use --target".to_owned());
    }
    name_steps(&mut draft.steps);
    flow.notes.sort_by_key(|note| line_of(note));
    Ok((draft, flow.notes))
}

fn line_of(note: &str) -> usize {
    let digits = note.strip_prefix("line ").and_then(|rest| rest.split(':').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(usize::MAX)
}

fn read_options(options: &Expr, draft: &mut Draft, flow: &mut Flow) {
    let Value::Object(pairs) = &options.of else {
        return flow.left_out(options.line, "options");
    };
    let number = |expr: &Expr| match expr.of {
        Value::Number(number) if number >= 1.0 && number.fract() == 0.0 && number < 1e9 => {
            Some(number as u64)
        }
        _ => None,
    };
    let users = pairs.iter().find(|(key, _)| key == "vus").and_then(|(_, value)| number(value));
    for (key, value) in pairs {
        let read = match key.as_str() {
            "vus" => users.map(|users| draft.top.push(("users", users.to_string()))),
            "duration" => duration(value).map(|time| draft.top.push(("duration", quoted(&time)))),
            "iterations" => number(value).map(|iterations| {
                // k6 shares them among all users.
                let passes = iterations.div_ceil(users.unwrap_or(1));
                if passes * users.unwrap_or(1) != iterations {
                    flow.note(
                        Some(value),
                        format!("{iterations} iterations become {passes} passes of each user"),
                    );
                }
                draft.top.push(("passes", passes.to_string()));
            }),
            "stages" => stages(value).map(|stages| draft.top.push(("stages", stages))),
            "thresholds" => {
                let thresholds = thresholds(value, draft, flow);
                if !thresholds.is_empty() {
                    let lines = thresholds.iter().map(|one| format!("  {},\n", quoted(one)));
                    draft.top.push(("thresholds", format!("[\n{}]", lines.collect::<String>())));
                }
                Some(())
            }
            _ => None,
        };
        if read.is_none() {
            flow.left_out(value.line, &format!("option {key}"));
        }
    }
}

/// A time as k6 writes it, such as `1m30s`, in our form.
fn duration(value: &Expr) -> Option<String> {
    let Value::Text(text) = &value.of else { return None };
    let mut milliseconds = 0.0;
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 60e3,
            "h" => 3_600e3,
            "d" => 86_400e3,
            _ => return None,
        };
        milliseconds += number.parse::<f64>().ok()? * unit;
        rest = after;
    }
    let time = format!("{milliseconds:.0}ms");
    let time = units::duration(&time).ok().filter(|time| !time.is_zero())?;
    Some(units::format_duration(time))
}

fn stages(value: &Expr) -> Option<String> {
    let Value::Array(stages) = &value.of else { return None };
    let stage = |stage: &Expr| {
        let Value::Object(pairs) = &stage.of else { return None };
        let field = |name: &str| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let Value::Number(target) = field("target")?.of else { return None };
        Some(quoted(&format!("{}:{target:.0}", duration(field("duration")?)?)))
    };
    let stages: Vec<String> = stages.iter().map(stage).collect::<Option<_>>()?;
    (!stages.is_empty()).then(|| format!("[{}]", stages.join(", ")))
}

/// Converts thresholds; the others are noted.
fn thresholds(value: &Expr, draft: &Draft, flow: &mut Flow) -> Vec<String> {
    let mut converted = Vec::new();
    let Value::Object(pairs) = &value.of else {
        flow.left_out(value.line, "thresholds");
        return converted;
    };
    for (metric, conditions) in pairs {
        let conditions = match &conditions.of {
            Value::Array(conditions) => conditions.as_slice(),
            _ => std::slice::from_ref(conditions),
        };
        for condition in conditions {
            let text = match &condition.of {
                Value::Text(text) => Some(text),
                Value::Object(pairs) => {
                    flow.note(
                        Some(condition),
                        "a threshold is judged at the end of the run".to_owned(),
                    );
                    pairs.iter().find(|(key, _)| key == "threshold").and_then(|(_, value)| {
                        match &value.of {
                            Value::Text(text) => Some(text),
                            _ => None,
                        }
                    })
                }
                _ => None,
            };
            match text.and_then(|text| threshold(metric, text, draft)) {
                Some(threshold) => converted.push(threshold),
                None => {
                    let text = text.map(String::as_str).unwrap_or_default();
                    flow.left_out(condition.line, &format!("threshold {metric} {text}"));
                }
            }
        }
    }
    converted
}

/// Converts a threshold such as `p(95)<200` of `http_req_duration{type:api}`.
fn threshold(metric: &str, condition: &str, draft: &Draft) -> Option<String> {
    let (metric, labels) = match metric.split_once('{') {
        Some((metric, labels)) => (metric, Some(labels.strip_suffix('}')?)),
        None => (metric, None),
    };
    let compact: String = condition.split_whitespace().collect();
    let at = compact.find(['<', '>', '='])?;
    let (figure, rest) = compact.split_at(at);
    let bound = rest.trim_start_matches(['<', '>', '=']);
    let sign = match rest.get(..rest.len() - bound.len())? {
        "<" | "<=" => "<",
        ">" | ">=" => ">",
        "==" | "===" => "==",
        _ => return None,
    };
    let bound: f64 = bound.parse().ok().filter(|bound| *bound >= 0.0)?;
    // Shares such as 0.07 have no exact percentage.
    let per_cent = |share: f64| (share * 1e8).round() / 1e6;
    let (name, bound) = match (metric, figure) {
        ("http_req_duration", figure) => {
            let name = match figure {
                "p(50)" | "med" => "p50",
                "p(90)" => "p90",
                "p(95)" => "p95",
                "p(99)" => "p99",
                "p(99.9)" => "p999",
                "max" => "max",
                _ => return None,
            };
            let time = (bound.fract() == 0.0).then(|| Duration::from_millis(bound as u64))?;
            (name, units::format_duration(time))
        }
        ("http_req_failed", "rate") => ("errors", format!("{}%", per_cent(bound))),
        ("checks", "rate") if draft.steps.iter().any(|step| !step.checks.is_empty()) => {
            ("checks", format!("{}%", per_cent(bound)))
        }
        ("http_reqs", "rate") if bound.fract() == 0.0 => ("rate", bound.to_string()),
        _ => return None,
    };
    let selector = labels.map(|labels| selector(labels, draft));
    let selector = match selector {
        Some(None) => return None,
        Some(Some(selector)) => selector,
        None => String::new(),
    };
    let text = format!("{name}{selector}{sign}{bound}");
    crate::commands::load::threshold::parse(&text).ok()?;
    Some(text)
}

/// Converts labels; `None` if no step or check has them.
fn selector(labels: &str, draft: &Draft) -> Option<String> {
    let mut converted = BTreeMap::new();
    for label in labels.split(',') {
        let (key, value) = label.split_once(':')?;
        let (key, value) = (key.trim(), value.trim().trim_matches('"').trim_start_matches("::"));
        let key = if key == "name" { "step" } else { key };
        let is_known = draft.steps.iter().any(|step| match key {
            "step" => step.name == value,
            "check" => step.checks.iter().any(|check| check.name.as_deref() == Some(value)),
            tag => step.tags.get(tag).is_some_and(|tag| tag == value),
        });
        if !is_known {
            return None;
        }
        converted.insert(key, value);
    }
    let labels = converted.iter().map(|(key, value)| format!("{key}:{value}"));
    Some(format!("{{{}}}", labels.collect::<Vec<_>>().join(",")))
}
