//! Converts flows and steps of the file to those of [`load::scenario`] and compiles their templates.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use load::grpc::MessageTemplate;
use load::scenario::{
    Action, BadTemplate, Bound, Capture, Check, Condition, Expected, Flow, ITEMS_MAX, Items, Names,
    Rule, STEPS_MAX, Source, Step, Take, Template, TemplateContext,
};

use super::calls::Calls;
use super::hosts::{self, Hosts};
use super::keys::{CAPTURE, CHECK, STEP};
use super::open_calls;
use super::tables::{Located, Table};
use super::talk::{self, Socket};
use crate::settings::nearest;
use crate::units;

const CONTENT_TYPE: &str = "Content-Type";

/// Settings that all steps share, and what has been read so far.
pub(super) struct Reader<'a> {
    pub(super) folder: &'a Path,
    pub(super) hosts: Hosts,
    /// Server and path prefix for relative URLs; `None` without a target.
    pub(super) target: Option<(u8, String)>,
    pub(super) headers: Vec<(Located, Located)>,
    pub(super) think: Option<(Duration, Duration)>,
    /// Whether a pass goes on after a failed step.
    pub(super) continues: bool,
    /// Time limit for one answer.
    pub(super) timeout: Duration,
    pub(super) names: Names,
    pub(super) steps: Vec<Step>,
    /// Names of all captures by slot.
    pub(super) captures: Vec<String>,
    /// The number of values that steps use of captured lists, by slot.
    pub(super) least: RefCell<BTreeMap<usize, usize>>,
    /// gRPC calls, and which kinds of steps there are.
    pub(super) calls: Calls<'a>,
    /// The sockets of the current flow, by slot.
    pub(super) sockets: Vec<Option<Socket>>,
    /// The names of all sockets by slot; the one without a name is empty.
    pub(super) socket_names: Vec<String>,
}

impl Reader<'_> {
    pub(super) fn flow(&mut self, number: usize, table: &Table<'_>) -> Result<Flow> {
        let role = table.parsed("role", super::groups::role)?;
        // A capture is known in later steps of its flow only.
        let known = self.names.captures.clone();
        let range = self.steps(table)?;
        self.names.captures = known;
        let steps = self.steps.get(range.clone()).unwrap_or_default();
        if steps.iter().all(|step| step.once) {
            let what = "a flow needs a step that is not once";
            return Err(table.doc.wrong(table.at, what));
        }
        let weight = |text: &str| {
            u32::try_from(units::count(text)?).map_err(|_| "expected at most 4294967295".to_owned())
        };
        let name = table.text("name")?.map(|located| located.text);
        let users = table.parsed("users", units::positive_count)?;
        let own = ["arrival_rate", "start"].into_iter().find(|key| table.has(key));
        if let (None, Some(key)) = (users, own) {
            let what = format!("{key} of a flow needs users: those that do nothing else");
            return Err(table.doc.wrong(table.at, what));
        }
        let shared = ["weight", "role"].into_iter().find(|key| table.has(key));
        if let (Some(_), Some(key)) = (users, shared) {
            let what = format!("a flow with users of its own cannot have {key}");
            return Err(table.doc.wrong(table.at, what));
        }
        Ok(Flow {
            users: 0..users.unwrap_or(0),
            arrival_rate: table.parsed("arrival_rate", units::positive_count)?,
            start: table.parsed("start", units::duration)?.unwrap_or_default(),
            name: name.unwrap_or_else(|| (number + 1).to_string()),
            weight: table.parsed("weight", weight)?.unwrap_or(1),
            steps: range,
            role,
            rate: table.parsed("rate", units::positive_count)?,
        })
    }

    /// Reads `[setup]` or `[teardown]`. The captures of the setup are known in all flows.
    pub(super) fn fixture(&mut self, name: &str, table: &Table<'_>) -> Result<Flow> {
        let range = self.steps(table)?;
        let steps = self.steps.get(range.clone()).unwrap_or_default();
        if steps.is_empty() {
            return Err(table.doc.wrong(table.at, format!("[{name}] needs [[{name}.steps]]")));
        }
        let of_a_group = |step: &&Step| {
            step.stamped || step.each || matches!(step.action, Action::Meet | Action::Stay)
        };
        if let Some(step) = steps.iter().find(of_a_group) {
            let what = format!(
                "step {:?}: [{name}] has one user: meet, stay, each and {{{{stamp}}}} need flows",
                step.name
            );
            return Err(table.doc.wrong(table.at, what));
        }
        Ok(Flow { name: name.to_owned(), weight: 1, steps: range, ..Flow::default() })
    }

    /// Reads the steps of a flow.
    fn steps(&mut self, table: &Table<'_>) -> Result<Range<usize>> {
        let first = self.steps.len();
        self.sockets.clear();
        for step in &table.tables("steps", &STEP)? {
            if step.has("parallel") {
                self.parallel(step)?;
            } else {
                let read = self.step(step)?;
                self.steps.push(read);
            }
            if self.steps.len() > STEPS_MAX {
                return Err(table.doc.wrong(step.at, format!("more than {STEPS_MAX} steps")));
            }
        }
        Ok(first..self.steps.len())
    }

    pub(super) fn step(&mut self, table: &Table<'_>) -> Result<Step> {
        let action_key = talk::action_key(table)?;
        self.calls.note(table, action_key)?;
        let step = match action_key {
            "url" => self.request(table)?,
            "grpc" => self.call(table)?,
            "stream" => self.open_call(table)?,
            action_key => self.socket_step(table, action_key)?,
        };
        let held = self.is_held(table, &step.action)?;
        let receive = self.receive(table)?;
        let sends = matches!(
            step.action,
            Action::Send { .. } | Action::Perform(_) | Action::Whisper(_) | Action::Receive
        );
        if receive.is_some() && !sends {
            let what = "receive cannot be combined with this step: expected it alone or with send, perform or whisper";
            return Err(table.doc.wrong(table.at, what));
        }
        let name = table.text("name")?.map(|located| located.text);
        let tags = tags(table)?;
        let think = table.parsed("think", units::duration_range)?.or(self.think);
        let checks = table.tables("checks", &CHECK)?;
        let sent = step.call.as_ref().filter(|_| matches!(step.action, Action::Send { .. }));
        let mut sent = sent.into_iter().flat_map(|call| &call.messages);
        let stamped = step.body.as_ref().is_some_and(Template::is_stamped)
            || sent.any(MessageTemplate::is_stamped);
        let step = Step {
            name: name.unwrap_or(step.name),
            tags,
            receive,
            checks: checks
                .iter()
                .map(|one| check(one, step.call.is_some()))
                .collect::<Result<_>>()?,
            think: think.filter(|(_, most)| !most.is_zero()),
            limit: table.parsed("within", units::positive_duration)?.or(match step.action {
                Action::Meet => Some(self.timeout),
                _ => None,
            }),
            repeat: repeat(table)?,
            holds: held,
            once: held || table.boolean("once")?.unwrap_or(false),
            when: self.condition(table)?,
            items: self.items(table)?,
            continues: on_failure(table)?.unwrap_or(self.continues),
            each: table.boolean("each")?.unwrap_or(false),
            stamped,
            captures: self.captures(table)?,
            ..step
        };
        open_calls::check_parts(table, &step)?;
        Ok(step)
    }

    /// Reads `when`.
    pub(super) fn condition(&self, table: &Table<'_>) -> Result<Option<Condition>> {
        let Some(located) = table.text("when")? else { return Ok(None) };
        let condition = Condition::parse(&located.text, &self.names);
        condition.map(Some).map_err(|error| bad_template(table, &located, error))
    }

    /// Reads `for_each`: values, a column or a capture.
    pub(super) fn items(&self, table: &Table<'_>) -> Result<Option<Items>> {
        let Some((value, at)) = table.json("for_each")? else { return Ok(None) };
        let wrong = |what: String| table.doc.wrong(at, what);
        if let Some(key) = ["repeat", "each", "meet", "stay"].into_iter().find(|key| table.has(key))
        {
            return Err(wrong(format!("for_each and {key} exclude each other")));
        }
        if self.names.has("item") {
            return Err(wrong(
                "for_each: {{item}} is a capture or a variable: rename it".to_owned(),
            ));
        }
        let text = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => Some(text.clone()),
            serde_json::Value::Number(number) => Some(number.to_string()),
            serde_json::Value::Bool(truth) => Some(truth.to_string()),
            _ => None,
        };
        let expected =
            || wrong("for_each: expected a list, FEED.COLUMN, or the name of a capture".to_owned());
        let too_many =
            |count: usize| wrong(format!("for_each: {count} items: expected at most {ITEMS_MAX}"));
        let items = match &value {
            serde_json::Value::Array(values) if values.is_empty() => {
                return Err(wrong("for_each: the list is empty".to_owned()));
            }
            serde_json::Value::Array(values) if values.len() > ITEMS_MAX => {
                return Err(too_many(values.len()));
            }
            serde_json::Value::Array(values) => {
                let values = values.iter().map(|value| Some(text(value)?.into_bytes().into()));
                Items::Values(values.collect::<Option<_>>().ok_or_else(expected)?)
            }
            serde_json::Value::String(name) => self.names.loop_items(name).ok_or_else(|| {
                let located = Located { text: name.clone(), at };
                bad_template(table, &located, self.names.unknown(name))
            })?,
            _ => return Err(expected()),
        };
        if let Items::Column(feed, _) = items
            && let Some(rows) = self.names.feeds.get(feed).map(|feed| feed.rows() as usize)
            && rows > ITEMS_MAX
        {
            return Err(too_many(rows));
        }
        Ok(Some(items))
    }

    /// Reads an HTTP request.
    fn request(&mut self, table: &Table<'_>) -> Result<Step> {
        let url = table.required("url")?;
        if hosts::as_http(&url.text) != url.text {
            let what = format!("url: {:?} is a URL of gRPC: use the key grpc", url.text);
            return Err(table.doc.wrong(url.at, what));
        }
        let (endpoint, target) = self.place(table, &url)?;
        let target = Located { text: target, at: url.at };
        let target = self.template(table, &target, TemplateContext::Target)?;
        let (body, kind) = self.body(table)?;
        let method = table.parsed("method", method)?;
        let default = if body.is_some() { "POST" } else { "GET" };
        let method = method.unwrap_or_else(|| default.to_owned());
        let basic = table.text("basic")?;
        let basic = basic
            .map(|located| self.template(table, &located, TemplateContext::Body))
            .transpose()?;
        let headers = self.headers(table, kind)?;
        let name = format!("{method} {}", url.text);
        let blank = self.blank(table, endpoint, Action::Request, name)?;
        Ok(Step { method, target, headers, body, basic, ..blank })
    }

    /// Resolves a URL to a server and a request target.
    pub(super) fn place(&mut self, table: &Table<'_>, url: &Located) -> Result<(u8, String)> {
        if let Some((origin, rest)) = hosts::split(&url.text) {
            return Ok((self.hosts.number(table, url, origin)?, with_slash(rest)));
        }
        let Some((endpoint, prefix)) = &self.target else {
            let what = format!(
                "{:?} is a path, but there is no target: set target or use a full URL",
                url.text
            );
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
        let bearer = table.text("bearer")?;
        let bearer = bearer.map(|Located { text, at }| {
            let name = Located { text: "Authorization".to_owned(), at };
            (name, Located { text: format!("Bearer {text}"), at })
        });
        let at = table.at;
        let mut kind = kind.map(|kind| {
            let name = Located { text: CONTENT_TYPE.to_owned(), at };
            (name, Located { text: kind.to_owned(), at })
        });
        let mut headers: Vec<(String, Template)> = Vec::new();
        let forced = if table.has("multipart") { kind.take() } else { None };
        let is_type =
            |(name, _): &&(Located, Located)| name.text.eq_ignore_ascii_case(CONTENT_TYPE);
        if let Some((name, _)) = own.iter().find(is_type).filter(|_| forced.is_some()) {
            let what = "multipart sets Content-Type, with its boundary: remove this header";
            return Err(table.doc.wrong(name.at, what));
        }
        let common = self.headers.iter().cloned();
        let all = own.into_iter().chain(bearer).chain(forced).chain(common).chain(kind);
        for (name, value) in all {
            let is_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.text.is_empty() || !name.text.bytes().all(is_token) {
                let what = format!("invalid name of a header {:?}", name.text);
                return Err(table.doc.wrong(name.at, what));
            }
            // Headers of the step override those of the top level.
            if !headers.iter().any(|(one, _)| one.eq_ignore_ascii_case(&name.text)) {
                headers.push((name.text, self.template(table, &value, TemplateContext::Header)?));
            }
        }
        Ok(headers)
    }

    fn captures(&mut self, table: &Table<'_>) -> Result<Vec<Capture>> {
        let mut captures = Vec::new();
        for (name, capture) in table.named_tables("capture", &CAPTURE)? {
            let source = source(&capture)?;
            let missing = || capture.doc.wrong(capture.at, "a capture needs header, json or regex");
            let source = source.ok_or_else(missing)?;
            let take = capture.parsed("take", |text| match text {
                "first" => Ok(Take::First),
                "random" => Ok(Take::Random),
                "all" => Ok(Take::All),
                _ => Err("expected first, random or all".to_owned()),
            })?;
            let take = take.unwrap_or_default();
            if take != Take::First && matches!(source, Source::Header(_)) {
                return Err(capture.doc.wrong(capture.at, "take needs json or regex"));
            }
            let known = self.captures.iter().position(|known| *known == name.text);
            if known.is_some() && self.names.lists.contains(&name.text) != (take == Take::All) {
                let what = format!("{} is captured as a list and as a single value", name.text);
                return Err(capture.doc.wrong(capture.at, what));
            }
            if take == Take::All {
                self.names.lists.insert(name.text.clone());
            }
            let slot = known.unwrap_or(self.captures.len());
            if known.is_none() {
                self.captures.push(name.text.clone());
            }
            // Slots belong to the whole scenario; a slot that is not captured yet has no name.
            self.names.captures.resize(self.captures.len(), String::new());
            match self.names.captures.get_mut(slot) {
                Some(known) => known.clone_from(&name.text),
                None => engine::invariant::broken("the slot of a capture is in the list"),
            }
            captures.push(Capture { name: name.text, slot, source, take, least: 0 });
        }
        Ok(captures)
    }

    /// Lets captures of lists fail that have fewer values than are used.
    pub(super) fn set_least(&mut self) {
        let least = self.least.borrow();
        for capture in self.steps.iter_mut().flat_map(|step| &mut step.captures) {
            capture.least = least.get(&capture.slot).copied().unwrap_or(0);
        }
    }

    pub(super) fn template(
        &self,
        table: &Table<'_>,
        located: &Located,
        place: TemplateContext,
    ) -> Result<Template> {
        let compiled = Template::compile(&located.text, place, &self.names);
        for (slot, at) in compiled.iter().flat_map(Template::items) {
            let mut least = self.least.borrow_mut();
            let least = least.entry(slot).or_default();
            *least = (*least).max(at + 1);
        }
        compiled.map_err(|error| bad_template(table, located, error))
    }
}

/// Returns the error of a template with its line.
pub(super) fn bad_template(
    table: &Table<'_>,
    located: &Located,
    error: BadTemplate,
) -> anyhow::Error {
    let wrong = |what: String| table.doc.wrong(located.at, what);
    match error {
        BadTemplate::Invalid(text) => wrong(text),
        BadTemplate::Unknown { name, known } => {
            let known = known.iter().map(String::as_str).filter(|known| !known.is_empty());
            let near = nearest(&name, known);
            let near = near.map(|near| format!("; did you mean {{{{{near}}}}}?"));
            let near = near.unwrap_or_else(|| {
                "; captures are known only in later steps of their flow".to_owned()
            });
            wrong(format!("unknown template {{{{{name}}}}}{near}"))
        }
    }
}

/// Reads `on_failure`: whether a pass goes on after a failed step.
pub(super) fn on_failure(table: &Table<'_>) -> Result<Option<bool>> {
    table.parsed("on_failure", |text| match text {
        "continue" => Ok(true),
        "end_pass" => Ok(false),
        _ => Err("expected end_pass or continue".to_owned()),
    })
}

/// Reads how often a step is made in a row.
pub(super) fn repeat(table: &Table<'_>) -> Result<u32> {
    let repeat = table.parsed("repeat", |text| {
        u32::try_from(units::positive_count(text)?)
            .map_err(|_| "expected at most 4294967295".to_owned())
    })?;
    Ok(repeat.unwrap_or(1))
}

/// Reads the labels of a step.
pub(super) fn tags(table: &Table<'_>) -> Result<BTreeMap<String, String>> {
    let mut tags = BTreeMap::new();
    for (key, value) in table.pairs("tags")? {
        if ["step", "flow", "check"].contains(&key.text.as_str()) {
            let what = format!("a tag cannot be named {}, which selects by name", key.text);
            return Err(table.doc.wrong(key.at, what));
        }
        if key.text.is_empty() || key.text.contains([':', ',', '{', '}']) || value.text.is_empty() {
            let what = "invalid tag: expected a name without : , { } and a value";
            return Err(table.doc.wrong(key.at, what));
        }
        tags.insert(key.text, value.text);
    }
    Ok(tags)
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
        Some(_) => {
            Err(table.doc.wrong(table.at, "expected one of header, json and regex, not two"))
        }
        None => Ok(source),
    }
}

/// Reads a check of an answer, or of the answer to a gRPC call.
fn check(table: &Table<'_>, is_call: bool) -> Result<Check> {
    let bound = |parse: fn(&str) -> Result<u64, String>| {
        move |text: &str| {
            let wrong = || "expected a bound: <, > or = and a number".to_owned();
            let sign = text.chars().next().ok_or_else(wrong)?;
            let rest = text.get(sign.len_utf8()..).unwrap_or_default();
            Bound::new(sign, parse(rest.trim())?).ok_or_else(wrong)
        }
    };
    let nanoseconds = |text: &str| Ok(units::duration(text)?.as_nanos() as u64);
    let found = source(table)?;
    let is = table.text("is")?;
    let matches = table.parsed("matches", Expected::matches)?;
    let has_source = found.is_some();
    let expected = match (is, matches) {
        (Some(_), Some(_)) => {
            return Err(table.doc.wrong(table.at, "is and matches exclude each other"));
        }
        (Some(located), None) => Some(Expected::Is(located.text.into_bytes())),
        (None, matches) => matches,
    };
    if expected.is_some() && !has_source {
        return Err(table.doc.wrong(table.at, "is and matches need header, json or regex"));
    }
    let rules = [
        table.parsed("status", if is_call { Rule::code } else { Rule::status })?,
        table.parsed("size", bound(units::size))?.map(Rule::Size),
        table.parsed("latency", bound(nanoseconds))?.map(Rule::Latency),
        found.map(|source| Rule::Value(source, expected.unwrap_or(Expected::Found))),
    ];
    let mut rules = rules.into_iter().flatten();
    let (rule, more) = (rules.next(), rules.next());
    let (Some(rule), None) = (rule, more) else {
        let what = "a check needs exactly one of status, header, json, regex, size, latency";
        return Err(table.doc.wrong(table.at, what));
    };
    let name = match table.text("name")? {
        Some(located) => located.text,
        None => as_flag_values(table)?,
    };
    Ok(Check { name, rule })
}

/// Returns the default name of a check, its conditions.
fn as_flag_values(table: &Table<'_>) -> Result<String> {
    let mut words = Vec::new();
    for key in ["status", "header", "json", "regex", "size", "latency", "is", "matches"] {
        if let Some(located) = table.text(key)? {
            words.push(format!("{key} {}", located.text));
        }
    }
    Ok(words.join(" "))
}

fn method(text: &str) -> Result<String, String> {
    let is_method = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let wrong = || "expected a method such as GET, POST, PUT, PATCH, DELETE or HEAD".to_owned();
    (is_method && text != "CONNECT").then(|| text.to_owned()).ok_or_else(wrong)
}

fn with_slash(rest: &str) -> String {
    if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") }
}
