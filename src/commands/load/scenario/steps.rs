//! Converts flows and steps of the file to those of [`load::scenario`] and compiles their templates.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use load::scenario::{
    Action, BadTemplate, Bound, Capture, Check, Expected, Flow, Names, Place, Rule, STEPS_MAX,
    Source, Step, Template,
};

use super::hosts::{self, Hosts};
use super::keys::{CAPTURE, CHECK, STEP};
use super::tables::{Said, Table};
use super::talk::{self, Socket};
use crate::settings::nearest;
use crate::units;

/// Settings that all steps share, and what has been read so far.
pub(super) struct Reader<'a> {
    pub(super) folder: &'a Path,
    pub(super) hosts: Hosts,
    /// Server and path prefix for relative URLs; `None` without a target.
    pub(super) target: Option<(u8, String)>,
    pub(super) headers: Vec<(Said, Said)>,
    pub(super) think: Option<(Duration, Duration)>,
    /// Time limit for one answer.
    pub(super) timeout: Duration,
    pub(super) names: Names,
    pub(super) steps: Vec<Step>,
    /// Names of all captures by slot.
    pub(super) captures: Vec<String>,
    /// The socket of the current flow.
    pub(super) socket: Option<Socket>,
}

impl Reader<'_> {
    pub(super) fn flow(&mut self, number: usize, table: &Table<'_>) -> Result<Flow> {
        let first = self.steps.len();
        let role = table.parsed("role", super::groups::role)?;
        let tables = table.tables("steps", &STEP)?;
        // A capture is known in later steps of its flow only.
        let known = self.names.captures.clone();
        self.socket = None;
        for step in &tables {
            if self.steps.len() >= STEPS_MAX {
                return Err(table.doc.wrong(step.at, format!("more than {STEPS_MAX} steps")));
            }
            let step = self.step(step)?;
            self.steps.push(step);
        }
        self.names.captures = known;
        let steps = self.steps.get(first..).unwrap_or_default();
        if steps.iter().all(|step| step.once) {
            let what = "a flow needs a step that is not once";
            return Err(table.doc.wrong(table.at, what));
        }
        let weight = |text: &str| {
            u32::try_from(units::count(text)?).map_err(|_| format!("{text} is too much"))
        };
        let name = table.said("name")?.map(|said| said.text);
        Ok(Flow {
            name: name.unwrap_or_else(|| (number + 1).to_string()),
            weight: table.parsed("weight", weight)?.unwrap_or(1),
            steps: first..self.steps.len(),
            role,
            rate: table.parsed("rate", units::positive_count)?,
        })
    }

    fn step(&mut self, table: &Table<'_>) -> Result<Step> {
        let step = match talk::way(table)? {
            "url" => self.request(table)?,
            way => self.talk(table, way)?,
        };
        let receive = self.receive(table)?;
        let sends = matches!(
            step.action,
            Action::Send { .. } | Action::Perform(_) | Action::Whisper(_) | Action::Receive
        );
        if receive.is_some() && !sends {
            let what = "receive stands alone, or with send, perform or whisper";
            return Err(table.doc.wrong(table.at, what));
        }
        let name = table.said("name")?.map(|said| said.text);
        let think = table.parsed("think", units::duration_range)?.or(self.think);
        let checks = table.tables("checks", &CHECK)?;
        let repeat = table.parsed("repeat", |text| {
            u32::try_from(units::positive_count(text)?).map_err(|_| format!("{text} is too much"))
        })?;
        Ok(Step {
            name: name.unwrap_or(step.name),
            receive,
            checks: checks.iter().map(check).collect::<Result<_>>()?,
            think: think.filter(|(_, most)| !most.is_zero()),
            limit: table.parsed("within", units::positive_duration)?.or(match step.action {
                Action::Meet => Some(self.timeout),
                _ => None,
            }),
            repeat: repeat.unwrap_or(1),
            once: table.truth("once")?.unwrap_or(false),
            each: table.truth("each")?.unwrap_or(false),
            stamped: step.body.as_ref().is_some_and(Template::is_stamped),
            captures: self.captured(table)?,
            ..step
        })
    }

    /// Reads an HTTP request.
    fn request(&mut self, table: &Table<'_>) -> Result<Step> {
        let url = table.required("url")?;
        let (endpoint, target) = self.place(table, &url)?;
        let target = Said { text: target, at: url.at };
        let target = self.template(table, &target, Place::Target)?;
        let (body, kind) = self.body(table)?;
        let method = table.parsed("method", method)?;
        let default = if body.is_some() { "POST" } else { "GET" };
        let method = method.unwrap_or_else(|| default.to_owned());
        let basic = table.said("basic")?;
        let basic = basic.map(|said| self.template(table, &said, Place::Body)).transpose()?;
        let headers = self.headers(table, kind)?;
        let name = format!("{method} {}", url.text);
        let blank = self.blank(table, endpoint, Action::Request, name)?;
        Ok(Step { method, target, headers, body, basic, ..blank })
    }

    /// Whom a URL asks, and for what.
    pub(super) fn place(&mut self, table: &Table<'_>, url: &Said) -> Result<(u8, String)> {
        if let Some((origin, rest)) = hosts::split(&url.text) {
            return Ok((self.hosts.number(table, url, origin)?, with_slash(rest)));
        }
        let Some((endpoint, prefix)) = &self.target else {
            let what = format!("{:?} is a path, and there is no target", url.text);
            return Err(table.doc.wrong(url.at, what));
        };
        // A captures link is whole already.
        let prefix = if url.text.starts_with("{{") { "" } else { prefix.as_str() };
        let slash = if url.text.starts_with(['/', '{']) { "" } else { "/" };
        Ok((*endpoint, format!("{prefix}{slash}{}", url.text)))
    }

    pub(super) fn headers(
        &self,
        table: &Table<'_>,
        kind: Option<&'static str>,
    ) -> Result<Vec<(String, Template)>> {
        let own = table.pairs("headers")?;
        let bearer = table.said("bearer")?;
        let bearer = bearer.map(|Said { text, at }| {
            let name = Said { text: "Authorization".to_owned(), at };
            (name, Said { text: format!("Bearer {text}"), at })
        });
        let at = table.at;
        let kind = kind.map(|kind| {
            let name = Said { text: "Content-Type".to_owned(), at };
            (name, Said { text: kind.to_owned(), at })
        });
        let mut headers: Vec<(String, Template)> = Vec::new();
        let all = own.into_iter().chain(bearer).chain(self.headers.iter().cloned()).chain(kind);
        for (name, value) in all {
            let is_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.text.is_empty() || !name.text.bytes().all(is_token) {
                let what = format!("{:?} is no name of a header", name.text);
                return Err(table.doc.wrong(name.at, what));
            }
            // Headers of the step override those of the top level.
            if !headers.iter().any(|(one, _)| one.eq_ignore_ascii_case(&name.text)) {
                headers.push((name.text, self.template(table, &value, Place::Header)?));
            }
        }
        Ok(headers)
    }

    /// Returns the body, and its content type if it is known.
    fn body(&self, table: &Table<'_>) -> Result<(Option<Template>, Option<&'static str>)> {
        let ways = ["body", "body_file", "json", "form"];
        if ways.iter().filter(|way| table.has(way)).count() > 1 {
            let what = format!("there is one body: by one of {}", ways.join(", "));
            return Err(table.doc.wrong(table.at, what));
        }
        let (said, kind) = if let Some(said) = table.said("body")? {
            (said, None)
        } else if let Some(file) = table.said("body_file")? {
            let path = self.folder.join(&file.text);
            let text = std::fs::read_to_string(&path);
            let wrong = |error| table.doc.wrong(file.at, format!("{}: {error}", path.display()));
            (Said { text: text.map_err(wrong)?, at: file.at }, None)
        } else if let Some((mut value, at)) = table.json("json")? {
            each_text(&mut value, &|text| escaped(text, "json", |part| part.to_owned()));
            (Said { text: value.to_string(), at }, Some("application/json"))
        } else if table.has("form") {
            let pairs = table.pairs("form")?;
            let one = |text: &str| escaped(text, "url", form_encoded);
            let pairs = pairs.iter().map(|(k, v)| format!("{}={}", one(&k.text), one(&v.text)));
            let text = pairs.collect::<Vec<_>>().join("&");
            (Said { text, at: table.at }, Some("application/x-www-form-urlencoded"))
        } else {
            return Ok((None, None));
        };
        Ok((Some(self.template(table, &said, Place::Body)?), kind))
    }

    fn captured(&mut self, table: &Table<'_>) -> Result<Vec<Capture>> {
        let mut captures = Vec::new();
        for (name, capture) in table.named_tables("capture", &CAPTURE)? {
            let source = source(&capture)?;
            let missing = || capture.doc.wrong(capture.at, "a capture needs header, json or regex");
            let source = source.ok_or_else(missing)?;
            let known = self.captures.iter().position(|known| *known == name.text);
            let slot = known.unwrap_or(self.captures.len());
            if known.is_none() {
                self.captures.push(name.text.clone());
            }
            // Slots belong to the whole scenario; a slot that is not captured yet has no name.
            self.names.captures.resize(self.captures.len(), String::new());
            if let Some(place) = self.names.captures.get_mut(slot) {
                place.clone_from(&name.text);
            }
            captures.push(Capture { name: name.text, slot, source });
        }
        Ok(captures)
    }

    pub(super) fn template(
        &self,
        table: &Table<'_>,
        said: &Said,
        place: Place,
    ) -> Result<Template> {
        let wrong = |what: String| table.doc.wrong(said.at, what);
        Template::compile(&said.text, place, &self.names).map_err(|error| match error {
            BadTemplate::Said(text) => wrong(text),
            BadTemplate::Unknown { name, known } => {
                let known = known.iter().map(String::as_str).filter(|known| !known.is_empty());
                let near = nearest(&name, known);
                let near = near.map(|near| format!("; did you mean {{{{{near}}}}}?"));
                let near = near.unwrap_or_else(|| {
                    "; captures are known from the step after theirs on".to_owned()
                });
                wrong(format!("{{{{{name}}}}} is no value{near}"))
            }
        })
    }
}

/// Reads the source of a value, if the table has one.
fn source(table: &Table<'_>) -> Result<Option<Source>> {
    let header = |text: &str| Ok(Source::Header(text.to_owned()));
    let ways = [
        table.parsed("header", header)?,
        table.parsed("json", Source::json)?,
        table.parsed("regex", Source::regex)?,
    ];
    let mut ways = ways.into_iter().flatten();
    let source = ways.next();
    match ways.next() {
        Some(_) => Err(table.doc.wrong(table.at, "one of header, json and regex, not two")),
        None => Ok(source),
    }
}

fn check(table: &Table<'_>) -> Result<Check> {
    let bound = |parse: fn(&str) -> Result<u64, String>| {
        move |text: &str| {
            let wrong = || format!("{text:?} is no bound: write <, > or = before the number");
            let sign = text.chars().next().ok_or_else(wrong)?;
            let rest = text.get(sign.len_utf8()..).unwrap_or_default();
            Bound::new(sign, parse(rest.trim())?).ok_or_else(wrong)
        }
    };
    let nanoseconds = |text: &str| Ok(units::duration(text)?.as_nanos() as u64);
    let found = source(table)?;
    let is = table.said("is")?;
    let matches = table.parsed("matches", Expected::matches)?;
    let has_source = found.is_some();
    let expected = match (is, matches) {
        (Some(_), Some(_)) => return Err(table.doc.wrong(table.at, "is or matches, not both")),
        (Some(said), None) => Some(Expected::Is(said.text.into_bytes())),
        (None, matches) => matches,
    };
    if expected.is_some() && !has_source {
        return Err(table.doc.wrong(table.at, "is and matches go with header, json or regex"));
    }
    let rules = [
        table.parsed("status", Rule::status)?,
        table.parsed("size", bound(units::size))?.map(Rule::Size),
        table.parsed("latency", bound(nanoseconds))?.map(Rule::Latency),
        found.map(|source| Rule::Value(source, expected.unwrap_or(Expected::Found))),
    ];
    let mut rules = rules.into_iter().flatten();
    let (rule, more) = (rules.next(), rules.next());
    let (Some(rule), None) = (rule, more) else {
        let what = "a check is one of status, header, json, regex, size, latency";
        return Err(table.doc.wrong(table.at, what));
    };
    let name = match table.said("name")? {
        Some(said) => said.text,
        None => as_said(table)?,
    };
    Ok(Check { name, rule })
}

/// A check without a name is called what it says.
fn as_said(table: &Table<'_>) -> Result<String> {
    let mut words = Vec::new();
    for key in ["status", "header", "json", "regex", "size", "latency", "is", "matches"] {
        if let Some(said) = table.said(key)? {
            words.push(format!("{key} {}", said.text));
        }
    }
    Ok(words.join(" "))
}

fn method(text: &str) -> Result<String, String> {
    let is_method = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let wrong = || format!("{text:?} is no method: write GET, POST, PUT, PATCH, DELETE, HEAD …");
    (is_method && text != "CONNECT").then(|| text.to_owned()).ok_or_else(wrong)
}

fn with_slash(rest: &str) -> String {
    if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") }
}

/// Applies `change` to every text in a value.
pub(super) fn each_text(value: &mut serde_json::Value, change: &impl Fn(&str) -> String) {
    match value {
        serde_json::Value::String(text) => *text = change(text),
        serde_json::Value::Array(values) => values.iter_mut().for_each(|v| each_text(v, change)),
        serde_json::Value::Object(pairs) => pairs.values_mut().for_each(|v| each_text(v, change)),
        _ => {}
    }
}

/// Rewrites `{{x}}` as `{{FUNCTION x}}`, and applies `literal` to the text between templates.
pub(super) fn escaped(text: &str, function: &str, literal: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((inside, after)) = after.split_once("}}") else { break };
        out += &literal(before);
        out += &format!("{{{{{function} {}}}}}", inside.trim());
        rest = after;
    }
    out + &literal(rest)
}

fn form_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |out, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            out + &char::from(byte).to_string()
        }
        _ => out + &format!("%{byte:02X}"),
    })
}
