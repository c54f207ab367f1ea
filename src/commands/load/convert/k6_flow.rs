//! [`Flow`]: the statements of a k6 script's default function as steps.

mod batch;

use std::collections::{BTreeMap, BTreeSet};

use load::scenario::STEPS_MAX;

use super::draft::{Body, Check, Draft, Step, literal};
use super::js::{Expr, Kind, Statement, Value};
use super::url::escaped_target;

/// How deep functions call each other.
const CALLS_MAX: usize = 8;

/// The steps so far, and what names stand for.
#[derive(Default)]
pub(super) struct Flow {
    pub(super) draft: Draft,
    pub(super) notes: Vec<String>,
    bindings: BTreeMap<String, Binding>,
    groups: Vec<String>,
    /// How many calls of `http.batch` there were.
    batches: usize,
    calls: usize,
    /// Functions that were called.
    called: BTreeSet<String>,
}

#[derive(Clone)]
enum Binding {
    Value(Expr),
    /// The response of a step, by its index.
    Response(usize),
    /// Those of `http.batch`, by index or name.
    Responses(Vec<(String, usize)>),
    /// A template.
    Placeholder(String),
}

/// A part of a text.
enum Piece {
    Literal(String),
    /// The inside of a placeholder.
    Placeholder(String),
}

impl Flow {
    pub(super) fn left_out(&mut self, line: usize, what: &str) {
        let what: String = what.chars().filter(|char| !char.is_control()).take(100).collect();
        self.notes.push(format!("line {line}: left out: {what}"));
    }

    pub(super) fn note(&mut self, at: Option<&Expr>, what: String) {
        let note = match at {
            Some(expr) => format!("line {}: {what}", expr.line),
            None => what,
        };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn declare(&mut self, name: &str, value: &Expr) {
        self.bindings.insert(name.to_owned(), Binding::Value(value.clone()));
    }

    /// Reads the body of a declared function.
    pub(super) fn call(&mut self, name: &str) {
        let Some(Binding::Value(Expr { of: Value::Function(_, body), .. })) =
            self.bindings.get(name)
        else {
            return;
        };
        let body = body.clone();
        self.called.insert(name.to_owned());
        if self.calls < CALLS_MAX {
            self.calls += 1;
            self.statements(&body);
            self.calls -= 1;
        }
    }

    /// Lists the functions that were not called, such as `setup`.
    pub(super) fn list_uncalled(&mut self) {
        let functions = self.bindings.iter().filter_map(|(name, binding)| match binding {
            Binding::Value(Expr { line, of: Value::Function(..) }) => Some((*line, name.clone())),
            _ => None,
        });
        let functions: Vec<_> = functions.filter(|(_, name)| !self.called.contains(name)).collect();
        for (line, name) in functions {
            self.left_out(
                line,
                &format!("function {name}, which the default function does not call"),
            );
        }
    }

    pub(super) fn statements(&mut self, statements: &[Statement]) {
        for Statement { line, of } in statements {
            match of {
                Kind::Import => {}
                Kind::Declare(name, value) => self.local(name, value),
                Kind::Do(expr) => self.statement(expr),
                Kind::Return(Expr { of: Value::Null, .. }) => {}
                Kind::Return(expr) => self.statement(expr),
                Kind::Default(_) => self.left_out(*line, "export"),
                Kind::Unknown(words) => self.left_out(*line, words),
            }
        }
    }

    fn local(&mut self, name: &str, value: &Expr) {
        if let Some(steps) = self.batch(value) {
            self.bindings.insert(name.to_owned(), Binding::Responses(steps));
            return;
        }
        if let Some(step) = self.request(value) {
            if let Some(step) = step {
                self.bindings.insert(name.to_owned(), Binding::Response(step));
            } else {
                self.bindings.remove(name);
            }
            return;
        }
        if let Some((step, path)) = self.captured(value)
            && let Some(step) = self.draft.steps.get_mut(step)
        {
            let capture = format!("{}_{name}", step.captures.len() + 1);
            let taken = self
                .bindings
                .values()
                .any(|one| matches!(one, Binding::Placeholder(known) if known == name));
            let capture = if taken { capture } else { name.to_owned() };
            step.captures.push((capture.clone(), path));
            self.bindings.insert(name.to_owned(), Binding::Placeholder(capture));
            return;
        }
        if is_call(value, &["check", "sleep", "group"]) {
            self.statement(value);
        } else {
            self.declare(name, value);
        }
    }

    fn statement(&mut self, expr: &Expr) {
        if self.batch(expr).is_some() || self.request(expr).is_some() {
            return;
        }
        let line = expr.line;
        let Value::Call(callee, arguments) = &expr.of else {
            return self.left_out(line, &shown(expr));
        };
        match (&callee.of, arguments.as_slice()) {
            (Value::Name(name), [response, checks, ..]) if name == "check" => {
                self.checks(response, checks);
            }
            (Value::Name(name), [time]) if name == "sleep" => self.sleep(time),
            (Value::Name(name), [Expr { of: Value::Text(group), .. }, function])
                if name == "group" =>
            {
                let Value::Function(_, body) = &function.of else {
                    return self.left_out(line, "group without a function");
                };
                self.groups.push(group.clone());
                self.statements(body);
                self.groups.pop();
            }
            (Value::Name(name), []) if self.is_function(name) => self.call(&name.clone()),
            _ => self.left_out(line, &shown(expr)),
        }
    }

    fn is_function(&self, name: &str) -> bool {
        let function = self.bindings.get(name);
        matches!(function, Some(Binding::Value(Expr { of: Value::Function(..), .. })))
    }

    /// Adds the step of `http.get(…)` and the like. `None`: it is something else; `Some(None)`: it is
    /// noted and left out.
    fn request(&mut self, expr: &Expr) -> Option<Option<usize>> {
        let Value::Call(callee, arguments) = &expr.of else { return None };
        let Value::Member(object, function) = &callee.of else { return None };
        if !matches!(&object.of, Value::Name(name) if name == "http") {
            return None;
        }
        let step = self.step(function, arguments);
        if let Err(why) = &step {
            self.left_out(expr.line, &format!("http.{function}: {why}"));
        }
        Some(step.ok())
    }

    fn step(&mut self, function: &str, arguments: &[Expr]) -> Result<usize, String> {
        let (method, arguments) = match (function, arguments) {
            ("get" | "head", [url, rest @ ..]) => {
                (function.to_uppercase(), (url, None, rest.first()))
            }
            ("del", [url, rest @ ..]) => ("DELETE".to_owned(), (url, rest.first(), rest.get(1))),
            ("post" | "put" | "patch" | "options", [url, rest @ ..]) => {
                (function.to_uppercase(), (url, rest.first(), rest.get(1)))
            }
            ("request", [method, url, rest @ ..]) => {
                let method = self
                    .text(method)
                    .filter(|method| method.bytes().all(|b| b.is_ascii_uppercase()));
                (method.ok_or("the method is not known")?, (url, rest.first(), rest.get(1)))
            }
            _ => return Err("not supported".to_owned()),
        };
        if self.draft.steps.len() >= STEPS_MAX {
            return Err(format!("a scenario has at most {STEPS_MAX} steps"));
        }
        let (url, body, params) = arguments;
        let url = self.url(url).ok_or("the URL is not known")?;
        let mut step = Step { method, url, ..Step::default() };
        if let Some(body) =
            body.map(|body| self.resolved(body)).filter(|body| body.of != Value::Null)
        {
            step.body = Some(self.body(&body).ok_or("the body is not known")?);
        }
        if let Some(params) = params.map(|params| self.resolved(params)) {
            self.params(&params, &mut step);
        }
        if let Some(group) = self.groups.last() {
            let groups = self.groups.join("::");
            step.tags.insert("group".to_owned(), groups.replace([',', '{', '}', '"'], "_"));
            if !step.name.is_empty() {
                step.name = format!("{group}: {}", step.name);
            }
        }
        self.draft.steps.push(step);
        Ok(self.draft.steps.len() - 1)
    }

    fn params(&mut self, params: &Expr, step: &mut Step) {
        let Value::Object(pairs) = &params.of else {
            return self.left_out(params.line, "parameters of a request that are not known");
        };
        for (key, value) in pairs {
            let value = self.resolved(value);
            let Value::Object(entries) = &value.of else {
                self.left_out(value.line, &format!("parameter {key}"));
                continue;
            };
            for (name, value) in entries {
                let text = self.text(value).filter(|text| !text.is_empty());
                match (key.as_str(), text) {
                    ("headers", Some(text)) => step.headers.push((name.clone(), text)),
                    ("tags", Some(text)) if name == "name" => step.name = text,
                    ("tags", Some(text))
                        if !name.contains([':', ',', '{', '}'])
                            && !["step", "flow", "check"].contains(&name.as_str()) =>
                    {
                        step.tags.insert(name.clone(), text);
                    }
                    _ => self.left_out(value.line, &format!("{key} {name}")),
                }
            }
        }
    }

    fn url(&mut self, url: &Expr) -> Option<String> {
        let resolved = self.resolved(url);
        // http.url`…` only names the request.
        let mut pieces = self.pieces(&resolved)?;
        if let Some(Piece::Placeholder(name)) = pieces.first() {
            // A base URL that is not known here.
            let what = format!("the base URL {name} is not known: set target, or use --target");
            self.note(Some(url), what);
            pieces.remove(0);
        }
        let text: String = pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Literal(text) => escaped_target(text),
                Piece::Placeholder(name) => format!("{{{{{name}}}}}"),
            })
            .collect();
        let is_url = ["http://", "https://", "/"].iter().any(|begin| text.starts_with(begin));
        let host =
            text.split("://").nth(1).map(|rest| rest.split(['/', '?']).next().unwrap_or_default());
        (is_url && host.is_none_or(|host| !host.is_empty() && !host.contains(['{', '@', '%'])))
            .then_some(text)
    }

    fn body(&mut self, body: &Expr) -> Option<Body> {
        match &body.of {
            Value::Object(pairs) => {
                let pairs =
                    pairs.iter().map(|(key, value)| Some((literal(key), self.text(value)?)));
                Some(Body::Form(pairs.collect::<Option<_>>()?))
            }
            Value::Call(_, arguments) if is_call(body, &["JSON.stringify"]) => {
                let value = self.resolved(arguments.first()?);
                let mut text = String::new();
                self.json(&value, &mut text)?;
                Some(Body::Text(text))
            }
            _ => self.text(body).map(Body::Text),
        }
    }

    /// Writes a value as JSON with placeholders.
    fn json(&mut self, value: &Expr, out: &mut String) -> Option<()> {
        let value = self.resolved(value);
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match &value.of {
            Value::True => out.push_str("true"),
            Value::False => out.push_str("false"),
            Value::Null => out.push_str("null"),
            Value::Number(number) => *out += &number.to_string(),
            Value::Array(values) => {
                for (at, value) in values.iter().enumerate() {
                    out.push(if at == 0 { '[' } else { ',' });
                    self.json(value, out)?;
                }
                *out += if values.is_empty() { "[]" } else { "]" };
            }
            Value::Object(pairs) => {
                for (at, (key, value)) in pairs.iter().enumerate() {
                    out.push(if at == 0 { '{' } else { ',' });
                    *out += &literal(&quoted(key));
                    out.push(':');
                    self.json(value, out)?;
                }
                *out += if pairs.is_empty() { "{}" } else { "}" };
            }
            _ => match self.pieces(&value)?.as_slice() {
                // Numbers stay numbers.
                [Piece::Placeholder(name)] if is_number(name) => *out += &format!("{{{{{name}}}}}"),
                pieces => {
                    out.push('"');
                    for piece in pieces {
                        match piece {
                            Piece::Literal(text) => {
                                let text = quoted(text);
                                *out += &literal(text.trim_start_matches('"').strip_suffix('"')?);
                            }
                            Piece::Placeholder(name) => *out += &format!("{{{{json {name}}}}}"),
                        }
                    }
                    out.push('"');
                }
            },
        }
        Some(())
    }

    fn checks(&mut self, response: &Expr, checks: &Expr) {
        let step = self.response(response).or_else(|| self.request(response).flatten());
        let (Some(step), Value::Object(checks)) = (step, &self.resolved(checks).of) else {
            return self.left_out(response.line, "check of something else than a response");
        };
        for (name, condition) in checks {
            let check = match &condition.of {
                Value::Function(parameters, body) => match (parameters.as_slice(), body.as_slice())
                {
                    ([parameter], [Statement { of: Kind::Return(condition), .. }]) => {
                        rule(condition, parameter)
                    }
                    _ => None,
                },
                _ => None,
            };
            match (check, self.draft.steps.get_mut(step)) {
                (Some((key, value)), Some(step)) => {
                    step.checks.push(Check { name: Some(name.clone()), key, value });
                }
                _ => self.left_out(condition.line, &format!("check {name:?}")),
            }
        }
    }

    fn sleep(&mut self, time: &Expr) {
        let time = self.resolved(time);
        match (&time.of, self.draft.steps.last_mut()) {
            (Value::Number(seconds), Some(step)) if (0.0..1e6).contains(seconds) => {
                step.think_ms += (seconds * 1e3) as u64;
            }
            _ => self.left_out(time.line, "sleep"),
        }
    }

    /// Replaces a name, or a member of a known object, by its value.
    fn resolved(&self, expr: &Expr) -> Expr {
        let mut found = expr.clone();
        for _ in 0..CALLS_MAX {
            let next = match &found.of {
                Value::Name(name) => match self.bindings.get(name) {
                    Some(Binding::Value(value)) => Some(value.clone()),
                    _ => None,
                },
                Value::Member(object, key) => match self.resolved_object(object) {
                    Some(pairs) => {
                        pairs.into_iter().find(|(one, _)| one == key).map(|(_, value)| value)
                    }
                    None => None,
                },
                _ => None,
            };
            match next {
                Some(next) if next != found => found = next,
                _ => break,
            }
        }
        found
    }

    fn resolved_object(&self, object: &Expr) -> Option<Vec<(String, Expr)>> {
        let Value::Name(name) = &object.of else { return None };
        match self.bindings.get(name)? {
            Binding::Value(Expr { of: Value::Object(pairs), .. }) => Some(pairs.clone()),
            _ => None,
        }
    }

    /// Returns a text as a template.
    fn text(&mut self, expr: &Expr) -> Option<String> {
        let pieces = self.pieces(expr)?.into_iter().map(|piece| match piece {
            Piece::Literal(text) => literal(&text),
            Piece::Placeholder(name) => format!("{{{{{name}}}}}"),
        });
        Some(pieces.collect())
    }

    fn pieces(&mut self, expr: &Expr) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        self.collect(expr, &mut pieces, 0)?;
        Some(pieces)
    }

    fn collect(&mut self, expr: &Expr, out: &mut Vec<Piece>, depth: usize) -> Option<()> {
        if depth > 64 || out.len() > 1_000 {
            return None;
        }
        let expr = self.resolved(expr);
        let literal = |text: String| Piece::Literal(text);
        match &expr.of {
            Value::Text(text) => out.push(literal(text.clone())),
            Value::Number(number) => out.push(literal(number.to_string())),
            Value::True => out.push(literal("true".to_owned())),
            Value::False => out.push(literal("false".to_owned())),
            Value::Template(parts) => {
                for part in parts {
                    if part.of != Value::Text(String::new()) {
                        self.collect(part, out, depth + 1)?;
                    }
                }
            }
            Value::Binary(sign, left, right) if sign == "+" => {
                self.collect(left, out, depth + 1)?;
                self.collect(right, out, depth + 1)?;
            }
            Value::Binary(sign, left, right) if sign == "||" || sign == "??" => {
                let Value::Member(object, name) = &left.of else { return None };
                if !matches!(&object.of, Value::Name(name) if name == "__ENV") {
                    return None;
                }
                self.note(Some(left), format!("the default of __ENV.{name} is used"));
                self.collect(right, out, depth + 1)?;
            }
            _ => out.push(Piece::Placeholder(self.placeholder(&expr)?)),
        }
        Some(())
    }

    /// Returns the inside of a placeholder for a value that is known only in the run.
    fn placeholder(&mut self, expr: &Expr) -> Option<String> {
        match &expr.of {
            Value::Name(name) if name == "__VU" => {
                self.note(Some(expr), "__VU becomes {{user}}, which counts from 0".to_owned());
                Some("user".to_owned())
            }
            Value::Name(name) if name == "__ITER" => Some("pass".to_owned()),
            Value::Name(name) => match self.bindings.get(name) {
                Some(Binding::Placeholder(name)) => Some(name.clone()),
                _ => None,
            },
            Value::Member(object, name) => match &object.of {
                Value::Name(object) if object == "__ENV" => Some(format!("env {name}")),
                _ => None,
            },
            Value::Call(_, arguments) => match arguments.as_slice() {
                [] if is_call(expr, &["uuidv4", "crypto.randomUUID"]) => Some("uuid".to_owned()),
                [] if is_call(expr, &["Date.now"]) => Some("now_ms".to_owned()),
                [least, most] if is_call(expr, &["randomIntBetween"]) => {
                    match (&self.resolved(least).of, &self.resolved(most).of) {
                        (Value::Number(least), Value::Number(most)) => {
                            Some(format!("random_int {least:.0} {most:.0}"))
                        }
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Finds `response.json('path')` and `response.json().path`: the step, and a JSONPath.
    fn captured(&self, expr: &Expr) -> Option<(usize, String)> {
        let (call, members) = match &expr.of {
            Value::Member(object, last) => {
                let mut members = vec![last];
                let mut object = object;
                while let Value::Member(inner, name) = &object.of {
                    members.push(name);
                    object = inner;
                }
                members.reverse();
                (object.as_ref(), members)
            }
            _ => (expr, Vec::new()),
        };
        let Value::Call(callee, arguments) = &call.of else { return None };
        let Value::Member(response, function) = &callee.of else { return None };
        let step = self.response(response).filter(|_| function == "json")?;
        let mut path = "$".to_owned();
        let argument = match arguments.as_slice() {
            [] => Vec::new(),
            [Expr { of: Value::Text(text), .. }] => text.split('.').collect(),
            _ => return None,
        };
        for name in argument.into_iter().chain(members.into_iter().map(String::as_str)) {
            let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
            if name.is_empty() || !name.chars().all(is_plain) {
                return None;
            }
            path += &match name.parse::<u32>() {
                Ok(index) => format!("[{index}]"),
                Err(_) => format!("['{name}']"),
            };
        }
        Some((step, path))
    }
}

/// The condition of a check as a key and its value.
fn rule(condition: &Expr, response: &str) -> Option<(&'static str, String)> {
    match &condition.of {
        Value::Binary(sign, left, right) => {
            let Value::Number(number) = right.of else { return None };
            match (path(left)?.strip_prefix(response)?, sign.as_str()) {
                (".status", "===" | "==") if (100.0..1000.0).contains(&number) => {
                    Some(("status", format!("{number:.0}")))
                }
                (".status", "<") if number == 400.0 => Some(("status", "100-399".to_owned())),
                (".timings.duration", "<" | "<=") if number >= 1.0 => {
                    Some(("latency", format!("<{number:.0}ms")))
                }
                _ => None,
            }
        }
        Value::Call(callee, arguments) => {
            let [Expr { of: Value::Text(text), .. }] = arguments.as_slice() else { return None };
            let is_body = path(callee)?.strip_prefix(response)? == ".body.includes";
            is_body.then(|| ("regex", regex::escape(text)))
        }
        _ => None,
    }
}

/// Names with dots.
fn path(expr: &Expr) -> Option<String> {
    match &expr.of {
        Value::Name(name) => Some(name.clone()),
        Value::Member(object, name) => Some(format!("{}.{name}", path(object)?)),
        _ => None,
    }
}

fn is_call(expr: &Expr, names: &[&str]) -> bool {
    let Value::Call(callee, _) = &expr.of else { return false };
    path(callee).is_some_and(|path| names.contains(&path.as_str()))
}

fn is_number(placeholder: &str) -> bool {
    matches!(placeholder, "user" | "pass" | "now_ms") || placeholder.starts_with("random_int ")
}

/// A statement for a note.
fn shown(expr: &Expr) -> String {
    match &expr.of {
        Value::Call(callee, _) => format!("{}(…)", path(callee).unwrap_or_default()),
        _ => path(expr).unwrap_or_else(|| "an expression".to_owned()),
    }
}
