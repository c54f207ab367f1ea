//! [`Draft`]: a scenario to be written as a file.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::url::split;

/// A scenario with one flow.
#[derive(Default, Debug)]
pub(super) struct Draft {
    /// Lines of comment at the top.
    pub(super) comments: Vec<String>,
    pub(super) about: Option<String>,
    pub(super) target: Option<String>,
    /// Other keys of the top level, with values in TOML.
    pub(super) top: Vec<(&'static str, String)>,
    pub(super) flow: Option<String>,
    pub(super) steps: Vec<Step>,
}

/// A request.
#[derive(Clone, Default, Debug)]
pub(super) struct Step {
    /// The group of requests that are sent at the same time, which follow each other.
    pub(super) batch: Option<usize>,
    pub(super) name: String,
    pub(super) method: String,
    pub(super) url: String,
    /// Values are templates, as all texts here but those of base64.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Option<Body>,
    /// In milliseconds.
    pub(super) think_ms: u64,
    pub(super) tags: BTreeMap<String, String>,
    /// Names and JSONPaths.
    pub(super) captures: Vec<(String, String)>,
    pub(super) checks: Vec<Check>,
}

/// The body of a request.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Body {
    Text(String),
    Base64(String),
    /// With distinct names.
    Form(Vec<(String, String)>),
}

/// A check with the key and value of its condition.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Check {
    pub(super) name: Option<String>,
    pub(super) key: &'static str,
    pub(super) value: String,
}

/// The variable that stands for two opening braces.
const BRACES: &str = "braces";

/// Returns a template that renders this text.
pub(super) fn literal(text: &str) -> String {
    text.replace("{{", &format!("{{{{{BRACES}}}}}"))
}

impl Draft {
    /// Moves headers that all steps have in common to the top level, and writes the file.
    pub(super) fn text(&self) -> String {
        let common = self.common_headers();
        let mut out = String::new();
        for comment in &self.comments {
            // Whatever was recorded must not become a line of the file.
            let comment: String = comment.chars().filter(|char| !char.is_control()).collect();
            let _ = writeln!(out, "# {comment}");
        }
        out += "version = 1\n";
        for (key, value) in [("about", &self.about), ("target", &self.target)] {
            if let Some(value) = value {
                let _ = writeln!(out, "{key} = {}", quoted(value));
            }
        }
        for (key, value) in &self.top {
            let _ = writeln!(out, "{key} = {value}");
        }
        let mut body = String::new();
        if !common.is_empty() {
            body += "\n[headers]\n";
            for (name, value) in &common {
                let _ = writeln!(body, "{} = {}", quoted(name), quoted(value));
            }
        }
        body += "\n[[flows]]\n";
        if let Some(name) = &self.flow {
            let _ = writeln!(body, "name = {}", quoted(name));
        }
        for together in self.steps.chunk_by(|a, b| a.batch.is_some() && a.batch == b.batch) {
            let is_batch = together.iter().any(|step| step.batch.is_some());
            let table = if is_batch { "flows.steps.parallel" } else { "flows.steps" };
            let think_ms: u64 = together.iter().map(|step| step.think_ms).sum();
            if is_batch {
                body.push_str("\n[[flows.steps]]\n");
                write_think(&mut body, think_ms);
            }
            together.iter().for_each(|step| step.write(&mut body, table, &common));
        }
        if body.contains(&format!("{{{{{BRACES}}}}}")) {
            let _ = writeln!(out, "\n[variables]\n{BRACES} = \"{{{{\"");
        }
        out + &body
    }

    /// Headers that every step has with the same value; a lone step keeps its own.
    fn common_headers(&self) -> Vec<(String, String)> {
        let [first, rest @ ..] = self.steps.as_slice() else { return Vec::new() };
        let is_common = |header: &&(String, String)| {
            !rest.is_empty()
                && !header.0.eq_ignore_ascii_case("content-type")
                && rest.iter().all(|step| step.headers.contains(header))
        };
        first.headers.iter().filter(is_common).cloned().collect()
    }
}

impl Step {
    fn write(&self, out: &mut String, in_table: &str, common: &[(String, String)]) {
        let _ = writeln!(out, "\n[[{in_table}]]");
        let _ = writeln!(out, "name = {}", quoted(&self.name));
        let default = if self.body.is_some() { "POST" } else { "GET" };
        if self.method != default {
            let _ = writeln!(out, "method = {}", quoted(&self.method));
        }
        let _ = writeln!(out, "url = {}", quoted(&self.url));
        let own: Vec<_> = self.headers.iter().filter(|one| !common.contains(one)).collect();
        if !own.is_empty() {
            let _ = writeln!(out, "headers = {}", table(own.into_iter().cloned()));
        }
        match &self.body {
            None => {}
            Some(Body::Text(text)) => drop(writeln!(out, "body = {}", quoted(text))),
            Some(Body::Base64(text)) => drop(writeln!(out, "body_base64 = {}", quoted(text))),
            Some(Body::Form(pairs)) => {
                let _ = writeln!(out, "form = {}", table(pairs.iter().cloned()));
            }
        }
        if !self.tags.is_empty() {
            let _ = writeln!(out, "tags = {}", table(self.tags.clone()));
        }
        if self.batch.is_none() {
            write_think(out, self.think_ms);
        }
        if !self.captures.is_empty() {
            let captures = self
                .captures
                .iter()
                .map(|(name, path)| format!("{} = {{ json = {} }}", quoted(name), quoted(path)));
            let _ = writeln!(out, "capture = {{ {} }}", captures.collect::<Vec<_>>().join(", "));
        }
        for check in &self.checks {
            let _ = writeln!(out, "[[{in_table}.checks]]");
            if let Some(name) = &check.name {
                let _ = writeln!(out, "name = {}", quoted(name));
            }
            let _ = writeln!(out, "{} = {}", check.key, quoted(&check.value));
        }
    }
}

fn write_think(out: &mut String, think_ms: u64) {
    if think_ms > 0 {
        let _ = writeln!(out, "think = \"{think_ms}ms\"");
    }
}

/// Writes pairs as an inline table, in their order.
fn table(pairs: impl IntoIterator<Item = (String, String)>) -> String {
    let pairs =
        pairs.into_iter().map(|(key, value)| format!("{} = {}", quoted(&key), quoted(&value)));
    format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
}

/// Writes a basic string of TOML.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            _ if char.is_control() => drop(write!(out, "\\u{:04X}", u32::from(char))),
            _ => out.push(char),
        }
    }
    out + "\""
}

/// Makes the origin that most steps have the target, and their URLs paths.
pub(super) fn set_target(draft: &mut Draft) {
    draft.target = most_used_origin(&draft.steps);
    let Some(target) = &draft.target else { return };
    for step in &mut draft.steps {
        // An origin is followed by a path, a query or nothing.
        let path = step.url.strip_prefix(target).filter(|path| path.starts_with('/'));
        if let Some(path) = path {
            step.url = path.to_owned();
        }
    }
}

/// Gives steps their method and path as names, with a number if it was given before.
pub(super) fn name_steps(steps: &mut [Step]) {
    let mut given: BTreeMap<String, usize> = BTreeMap::new();
    for step in steps {
        let rest = step.url.split_once("://").map_or(step.url.as_str(), |(_, rest)| rest);
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let path: String = path.chars().take(60).collect();
        let name = format!("{} {path}", step.method);
        let count = given.entry(name.clone()).or_default();
        *count += 1;
        if !step.name.is_empty() {
            continue;
        }
        step.name = if *count > 1 { format!("{name} ({count})") } else { name };
    }
}

/// The origin that most steps have; the first of several.
fn most_used_origin(steps: &[Step]) -> Option<String> {
    let origins = steps.iter().filter_map(|step| Some(split(&step.url)?.origin()));
    let origins: Vec<String> = origins.collect();
    let count = |origin: &String| origins.iter().filter(|one| *one == origin).count();
    let most = origins.iter().map(count).max()?;
    origins.iter().find(|origin| count(origin) == most).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_back_as_they_were() {
        let text = "a\"b\\c\n\r\t\u{1}\u{7f}\u{85}ä{{x}}#'''";
        let document = format!("a = {}\n{} = 1\n", quoted(text), quoted(text));
        let table: toml::Table = document.parse().unwrap();
        assert_eq!(table["a"].as_str(), Some(text));
        assert!(table.contains_key(text));
        assert_eq!(literal("a{{{b"), "a{{braces}}{b");
    }
}
