//! Steps that are gRPC calls: `grpc = "package.Service/Method"`, with types of `[grpc]` or of reflection.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use load::Endpoint;
use load::grpc::{
    MessageTemplate, MessageTemplateError, Method, MethodKind, Schema, Variant, encode_timeout,
    is_reserved, metadata,
};
use load::scenario::{Action, CALL_MESSAGES_MAX, Call, Step, Template, TemplateContext};
use serde_json::{Map, Value};

use super::bodies::{BODY_KEYS, each_text, escaped};
use super::hosts;
use super::keys::{FIXTURE, FLOW, GRPC, PARALLEL, STEP};
use super::steps::{Reader, bad_template};
use super::tables::{Located, Table};
use crate::commands::load::grpc::{SchemaFlags, Target, schema};
use crate::commands::load::requests::split_messages;
use crate::{tls, units};

/// Keys of requests that calls do not have.
const NOT_OF_CALLS: [&str; 3] = ["method", "headers", "basic"];
/// Keys that only calls have.
const OF_CALLS: [&str; 2] = ["message", "metadata"];
const AGENT: &str = concat!("grpc-standfast/", env!("CARGO_PKG_VERSION"));

/// What calls need, and the kinds of steps that were read.
pub(super) struct Calls<'a> {
    /// Their form, if there are any; those of gRPC-Web may differ.
    form: Option<Variant>,
    has_http2: bool,
    /// That of the target, for calls without a scheme.
    target_form: Variant,
    files: SchemaFlags,
    tls: &'a tls::ClientFlags,
    /// By server; with files there is one for all.
    schemas: Vec<(Option<u8>, Schema)>,
}

impl<'a> Calls<'a> {
    /// Reads `[grpc]`, and whether there are calls.
    pub(super) fn new(
        top: &Table<'_>,
        (connect, target): (Option<&Table<'_>>, Option<&Located>),
        folder: &Path,
        tls: &'a tls::ClientFlags,
    ) -> Result<Calls<'a>> {
        let target_form = target.and_then(|target| hosts::variant(&target.text));
        let target_form = target_form.unwrap_or_default();
        let form = form(top, target_form)?;
        let table = top.table("grpc", &GRPC)?;
        if let Some(table) = table.as_ref().filter(|_| form.is_none()) {
            return Err(table
                .doc
                .wrong(table.at, "[grpc] needs a step with the key grpc or stream"));
        }
        let http2 = connect.map(|connect| connect.boolean("http2")).transpose()?.flatten();
        let wrong = match (form.map(Variant::is_web), http2) {
            (Some(false), Some(false)) => {
                Some("http2: steps with the key grpc need HTTP/2: remove http2 = false")
            }
            (Some(true), Some(true)) => {
                Some("http2: gRPC-Web is called over HTTP/1.1: remove http2 = true, or use grpc://")
            }
            _ => None,
        };
        if let Some((connect, what)) = connect.zip(wrong) {
            return Err(connect.doc.wrong(connect.at, what));
        }
        let (mut proto, mut folders, mut set) = (Vec::new(), Vec::new(), None);
        if let Some(table) = &table {
            let file = |text: &str| -> Result<PathBuf, String> { Ok(folder.join(text)) };
            proto = table.all("proto", file)?;
            folders = table.all("proto_path", file)?;
            set = table.parsed("protoset", file)?;
            if set.is_some() && !proto.is_empty() {
                return Err(table.doc.wrong(table.at, "proto and protoset exclude each other"));
            }
            if proto.is_empty() && !folders.is_empty() {
                return Err(table.doc.wrong(table.at, "proto_path needs proto"));
            }
        }
        let files = SchemaFlags::of_files(proto, folders, set);
        let has_http2 = http2 == Some(true);
        Ok(Calls { form, has_http2, target_form, files, tls, schemas: Vec::new() })
    }

    /// Whether the scenario has calls over HTTP/2, so that all of it is.
    pub(super) fn need_http2(&self) -> bool {
        self.form.is_some_and(|form| !form.is_web())
    }

    /// Refuses a step that cannot be beside calls, and keys of calls in another one.
    pub(super) fn note(&self, table: &Table<'_>, action_key: &'static str) -> Result<()> {
        let wrong = |what: String| Err(table.doc.wrong(table.at, what));
        if matches!(action_key, "grpc" | "stream") {
            return Ok(());
        }
        if let Some(key) = OF_CALLS.into_iter().find(|key| table.has(key)) {
            return wrong(format!("{key} needs grpc or stream"));
        }
        let is_own = matches!(action_key, "url" | "connect" | "cable");
        match self.form.filter(|_| is_own) {
            Some(Variant::Http2) if !self.has_http2 => wrong(format!(
                "{action_key}: a scenario with gRPC calls is HTTP/2: set http2 = true in [connect], or use \
                 a scenario of their own for these steps"
            )),
            _ => Ok(()),
        }
    }

    /// The types of messages of a server.
    fn schema(
        &mut self,
        number: u8,
        server: Option<&Endpoint>,
        metadata: &[(String, String)],
    ) -> Result<&Schema> {
        let of = (!self.files.has_files()).then_some(number);
        let known = self.schemas.iter().position(|(one, _)| *one == of);
        let at = match known {
            Some(at) => at,
            None => {
                let server = server.filter(|_| of.is_some());
                let server = server.map(|server| Target::of(server, self.tls)).transpose()?;
                let found = schema(&self.files, server.as_ref(), metadata)?;
                let found = found.ok_or_else(|| {
                    anyhow!("interrupted while the server was asked for its types")
                })?;
                self.schemas.push((of, found));
                self.schemas.len() - 1
            }
        };
        let found = self.schemas.get(at).map(|(_, schema)| schema);
        found.ok_or_else(|| anyhow!("no types of messages"))
    }
}

/// The form of calls, if there are any.
fn form(top: &Table<'_>, target_form: Variant) -> Result<Option<Variant>> {
    let mut steps = Vec::new();
    for name in ["setup", "teardown"] {
        if let Some(table) = top.table(name, &FIXTURE)? {
            steps.extend(table.tables("steps", &STEP)?);
        }
    }
    for table in top.tables("flows", &FLOW)? {
        steps.extend(table.tables("steps", &STEP)?);
    }
    let mut parallel = Vec::new();
    for step in steps.iter().filter(|step| step.has("parallel")) {
        parallel.extend(step.tables("parallel", &PARALLEL)?);
    }
    let mut found = None;
    let of_parallel = parallel.iter().filter(|step| step.has("grpc"));
    for step in steps.iter().chain(of_parallel) {
        let key = if step.has("grpc") { "grpc" } else { "stream" };
        let Some(named) = step.text(key)? else { continue };
        let form = hosts::variant(&named.text).unwrap_or(target_form);
        if found.is_some_and(|found: Variant| found.is_web() != form.is_web()) {
            let what = "grpc: calls over HTTP/2 and of gRPC-Web cannot be in one scenario: use two";
            return Err(step.doc.wrong(named.at, what));
        }
        found = Some(form);
    }
    Ok(found)
}

/// An error of the command line as one of a file.
fn of_file(why: &anyhow::Error) -> String {
    [
        ("give --proto FILE or --protoset FILE", "set proto or protoset in [grpc]"),
        ("--proto FILE", "proto in [grpc]"),
        ("--proto-path DIR", "proto_path in [grpc]"),
        ("--proto-path", "proto_path"),
        ("-H 'authorization: …'", "metadata = { authorization = \"…\" }"),
        ("--ca FILE", "ca in [connect]"),
        ("check --proxy", "check proxy in [connect]"),
        ("--insecure", "insecure in [connect]"),
        (", another name --sni NAME", ""),
    ]
    .into_iter()
    .fold(format!("{why:#}"), |text, (flag, key)| text.replace(flag, key))
}

/// Which method a step calls, and where.
pub(super) struct CallHead {
    key: &'static str,
    at: usize,
    pub(super) endpoint: u8,
    pub(super) method: Method,
    pub(super) variant: Variant,
    metadata: Vec<(String, Template)>,
    pub(super) target: Template,
}

impl CallHead {
    /// Whether the method takes a stream.
    pub(super) fn sends(&self) -> bool {
        matches!(self.method.kind(), MethodKind::ClientStream | MethodKind::BidiStream)
    }

    pub(super) fn wrong(&self, table: &Table<'_>, why: &str) -> anyhow::Error {
        table.doc.wrong(self.at, format!("{}: {why}", self.key))
    }
}

impl Reader<'_> {
    /// Reads a gRPC call that ends with its answer.
    pub(super) fn call(&mut self, table: &Table<'_>) -> Result<Step> {
        let head = self.call_head(table, "grpc")?;
        let (method, variant) = (&head.method, head.variant);
        if head.sends() && variant.is_web() {
            return Err(head.wrong(
                table,
                &format!(
                    "{} is a {}: gRPC-Web is for methods that take one message; use grpc://",
                    method.path(),
                    method.kind()
                ),
            ));
        }
        let messages = self.messages(table, "message", method, head.sends())?;
        let deadline = table.parsed("within", units::positive_duration)?;
        let headers = self.call_headers(table, &head, deadline)?;
        let name = method.path().trim_start_matches('/').to_owned();
        let blank = self.blank(table, head.endpoint, Action::Request, name)?;
        let call = Some(Arc::new(Call { method: head.method, variant, messages }));
        Ok(Step { method: "POST".to_owned(), target: head.target, headers, call, ..blank })
    }

    /// Reads which method a step calls.
    pub(super) fn call_head(&mut self, table: &Table<'_>, key: &'static str) -> Result<CallHead> {
        let mut rejected = BODY_KEYS.iter().chain(&NOT_OF_CALLS);
        if let Some(rejected) = rejected.find(|key| table.has(key)) {
            let instead = match *rejected {
                "headers" | "basic" => ": use metadata",
                "method" => "",
                _ => ": use message",
            };
            let what = format!("{rejected} cannot be combined with {key}{instead}");
            return Err(table.doc.wrong(table.at, what));
        }
        let named = table.required(key)?;
        let wrong = |why: String| table.doc.wrong(named.at, format!("{key}: {why}"));
        let url = Located { text: hosts::as_http(&named.text), at: named.at };
        let (endpoint, path) = self.method_place(table, key, &url)?;
        let headers = self.metadata(table)?;
        let server = self.hosts.endpoints.get(usize::from(endpoint));
        let constant = |(name, value): &(String, Template)| {
            Some((name.clone(), String::from_utf8(value.constant()?.to_vec()).ok()?))
        };
        let constants: Vec<_> = headers.iter().filter_map(constant).collect();
        let found = self.calls.schema(endpoint, server, &constants);
        let method = found.map_err(|why| wrong(of_file(&why)))?.method(&path);
        let method = method.map_err(|why| wrong(why.to_string()))?;
        let variant = hosts::variant(&named.text).unwrap_or(self.calls.target_form);
        let target = Located { text: method.path(), at: named.at };
        let target = self.template(table, &target, TemplateContext::Target)?;
        Ok(CallHead { key, at: named.at, endpoint, method, variant, metadata: headers, target })
    }

    /// The header fields of a call.
    pub(super) fn call_headers(
        &self,
        table: &Table<'_>,
        head: &CallHead,
        deadline: Option<Duration>,
    ) -> Result<Vec<(String, Template)>> {
        let given = &head.metadata;
        let own = head.variant.headers().iter().copied().chain([("user-agent", AGENT)]);
        let own = own.map(|(name, value)| (name, value.to_owned()));
        let deadline = deadline.map(|time| ("grpc-timeout", encode_timeout(time)));
        let own = own.chain(deadline).filter(|(name, _)| !given.iter().any(|(one, _)| one == name));
        let own = own.map(|(name, value)| {
            let value = Located { text: value, at: head.at };
            Ok((name.to_owned(), self.template(table, &value, TemplateContext::Header)?))
        });
        let mut all: Vec<(String, Template)> = own.collect::<Result<_>>()?;
        all.extend(given.iter().cloned());
        Ok(all)
    }

    /// Resolves `package.Service/Method`, or a URL with it, to a server and the method.
    fn method_place(
        &mut self,
        table: &Table<'_>,
        key: &str,
        url: &Located,
    ) -> Result<(u8, String)> {
        if url.text.contains("{{") {
            let what = format!("{key}: the method must be fixed, without templates");
            return Err(table.doc.wrong(url.at, what));
        }
        if let Some((origin, path)) = hosts::split(&url.text) {
            return Ok((self.hosts.number(table, url, origin)?, path.to_owned()));
        }
        if url.text.contains("://") {
            let what = format!(
                "{key}: invalid URL {:?}: expected grpc://, grpcs://, grpc-web:// or grpc-webs://",
                url.text
            );
            return Err(table.doc.wrong(url.at, what));
        }
        match &self.target {
            Some((endpoint, _)) => Ok((*endpoint, url.text.clone())),
            None => Err(table.doc.wrong(
                url.at,
                format!(
                    "{key}: {:?} is a method, but there is no target: set target, or use \
                     grpc://HOST:PORT/{}",
                    url.text,
                    url.text.trim_start_matches('/')
                ),
            )),
        }
    }

    /// Reads the metadata: of the step, then of the top level.
    fn metadata(&self, table: &Table<'_>) -> Result<Vec<(String, Template)>> {
        let bearer = table.text("bearer")?.map(|Located { text, at }| {
            let name = Located { text: "authorization".to_owned(), at };
            (name, Located { text: format!("Bearer {text}"), at })
        });
        let own: Vec<_> = table.pairs("metadata")?.into_iter().chain(bearer).collect();
        let own_count = own.len();
        let mut all: Vec<(String, Template)> = Vec::new();
        for (nth, (name, value)) in own.into_iter().chain(self.headers.iter().cloned()).enumerate()
        {
            // Headers of the top level may be for requests: calls have their own content type.
            if nth >= own_count && is_reserved(&name.text) {
                continue;
            }
            let template = self.template(table, &value, TemplateContext::Header)?;
            // Values that are not known yet are printable: only their names are checked.
            let known = template.constant().map(String::from_utf8_lossy);
            let known = known.unwrap_or(if name.text.ends_with("-bin") { "" } else { "x" }.into());
            let (key, sent) = metadata(&name.text, &known)
                .map_err(|why| table.doc.wrong(name.at, format!("metadata: {why}")))?;
            if all.iter().any(|(one, _)| *one == key) {
                continue;
            }
            // Base64 is sent without padding.
            let is_binary = key.ends_with("-bin") && template.constant().is_some();
            let sent = Located { text: sent, at: value.at };
            let sent = is_binary.then(|| self.template(table, &sent, TemplateContext::Header));
            all.push((key, sent.transpose()?.unwrap_or(template)));
        }
        Ok(all)
    }

    /// The messages of a call: several only of a method that takes a stream.
    pub(super) fn messages(
        &mut self,
        table: &Table<'_>,
        key: &'static str,
        method: &Method,
        sends: bool,
    ) -> Result<Vec<MessageTemplate>> {
        let (value, at) = table.json(key)?.unwrap_or((Value::Object(Map::new()), table.at));
        let texts = match value {
            Value::String(text) if sends => {
                split_messages(&text).into_iter().map(|text| (text.to_owned(), true)).collect()
            }
            Value::Array(elements) if sends => {
                let texts = elements.into_iter().map(message_text).collect::<Option<Vec<_>>>();
                texts.ok_or_else(|| {
                    table.doc.wrong(at, format!("{key}: expected tables, or JSON in strings"))
                })?
            }
            Value::Array(_) if key == "send" => {
                let what =
                    "send: expected one message, a table or JSON: use a step for each, or repeat";
                return Err(table.doc.wrong(at, what));
            }
            Value::Array(_) => {
                let what = format!(
                    "message: a list is for methods that take a stream, {} is a {} method",
                    method.path(),
                    method.kind()
                );
                return Err(table.doc.wrong(at, what));
            }
            value => vec![message_text(value).ok_or_else(|| {
                table.doc.wrong(at, format!("{key}: expected a table, or JSON in a string"))
            })?],
        };
        if texts.len() > CALL_MESSAGES_MAX {
            let what = format!("message: expected at most {CALL_MESSAGES_MAX} messages");
            return Err(table.doc.wrong(at, what));
        }
        let is_list = texts.len() > 1;
        let mut messages = Vec::new();
        for (number, (text, is_json)) in texts.into_iter().enumerate() {
            let text = Located { text, at };
            // Its errors have a line, and it notes which values of lists are used.
            self.template(table, &text, TemplateContext::Body)?;
            let message = MessageTemplate::compile(method, &text.text, &self.names);
            messages.push(message.map_err(|why| match why {
                MessageTemplateError::Template(why) => bad_template(table, &text, why),
                MessageTemplateError::Json(why) => {
                    let why = why.to_string();
                    let why = if is_json { why } else { without_place(&why) };
                    let which = if is_list { format!(" {}", number + 1) } else { String::new() };
                    table.doc.wrong(at, format!("{key}{which}: {why}"))
                }
            })?);
        }
        Ok(messages)
    }
}

/// The JSON of a message, and whether it was written as JSON; `None` if it is neither a table nor a string.
fn message_text(mut value: Value) -> Option<(String, bool)> {
    match value {
        Value::String(text) => Some((text, true)),
        Value::Object(_) => {
            each_text(&mut value, &|text| escaped(text, "json", |part| part.to_owned()));
            Some((value.to_string(), false))
        }
        _ => None,
    }
}

/// An error of JSON that was made of a table, whose lines are not those of the file.
fn without_place(why: &str) -> String {
    let Some((before, rest)) = why.split_once(", line ") else { return why.to_owned() };
    let after = rest.split_once("; ").map(|(_, after)| format!("; {after}"));
    format!("{before}{}", after.unwrap_or_default())
}
