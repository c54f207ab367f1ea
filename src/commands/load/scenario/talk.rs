//! Steps on sockets in a scenario file: connect, send, receive, subscribe, and the steps of users in
//! groups.

use std::sync::Arc;

use anyhow::Result;
use load::scenario::{
    Action, Call, Expected, Match, Receive, SOCKETS_MAX, Source, Step, Template, TemplateContext,
};

use super::bodies::{BODY_KEYS, each_text, escaped};
use super::hosts;
use super::keys::RECEIVE;
use super::steps::Reader;
use super::tables::{Located, Table};

/// Keys that select the action of a step; a step without any of them only receives.
pub(super) const ACTION_KEYS: [&str; 14] = [
    "url",
    "grpc",
    "stream",
    "connect",
    "cable",
    "send",
    "ping",
    "close",
    "subscribe",
    "unsubscribe",
    "perform",
    "whisper",
    "meet",
    "stay",
];

/// Keys that are valid in handshakes, too.
const HEADER_KEYS: [&str; 3] = ["headers", "basic", "bearer"];

/// The open socket or call of a flow.
#[derive(Clone, Debug)]
pub(super) struct Socket {
    endpoint: u8,
    is_cable: bool,
    /// The identifier of the last subscription.
    subscribed: Option<Located>,
    /// The call that it is.
    call: Option<Arc<Call>>,
}

impl Socket {
    pub(super) fn of_call(endpoint: u8, call: Arc<Call>) -> Socket {
        Socket { endpoint, is_cable: false, subscribed: None, call: Some(call) }
    }
}

/// Returns the key that selects the action of a step.
pub(super) fn action_key(table: &Table<'_>) -> Result<&'static str> {
    let mut ways = ACTION_KEYS.into_iter().filter(|action_key| table.has(action_key));
    match (ways.next(), ways.next()) {
        (Some(one), Some(other)) => {
            let what = format!("a step does one thing: {one} and {other} exclude each other");
            Err(table.doc.wrong(table.at, what))
        }
        (Some(one), None) => Ok(one),
        (None, _) if table.has("receive") => Ok("receive"),
        (None, _) => {
            let what = format!("[[flows.steps]] needs one of {}, receive", ACTION_KEYS.join(", "));
            Err(table.doc.wrong(table.at, what))
        }
    }
}

impl Reader<'_> {
    /// Reads a step that is not an HTTP request.
    pub(super) fn socket_step(
        &mut self,
        table: &Table<'_>,
        action_key: &'static str,
    ) -> Result<Step> {
        let opens = matches!(action_key, "connect" | "cable");
        let rejected =
            BODY_KEYS.iter().chain(&["method"]).chain(HEADER_KEYS.iter().filter(|_| !opens));
        if let Some(key) = rejected.copied().find(|key| table.has(key)) {
            return Err(table
                .doc
                .wrong(table.at, format!("{key} cannot be combined with {action_key}")));
        }
        if table.has("protocols") && action_key != "connect" {
            return Err(table.doc.wrong(table.at, "protocols need connect"));
        }
        if opens {
            return self.connect(table, action_key);
        }
        if !matches!(action_key, "meet" | "stay")
            && let Some(Socket { endpoint, call: Some(call), .. }) = self.known_socket(table)?
        {
            return self.call_step(table, action_key, (endpoint, &call));
        }
        let (mut body, mut name) = (None, action_key.to_owned());
        let action = match action_key {
            "meet" => self.boolean(table, action_key, Action::Meet)?,
            "stay" => self.boolean(table, action_key, Action::Stay)?,
            "close" => self.boolean(table, action_key, Action::Close)?,
            "receive" => Action::Receive,
            "ping" => {
                let located = table.required("ping")?;
                let is_payload = located.text != "true";
                let payload =
                    is_payload.then(|| self.template(table, &located, TemplateContext::Body));
                body = payload.transpose()?;
                Action::Ping
            }
            "send" => {
                body =
                    Some(self.template(table, &table.required("send")?, TemplateContext::Body)?);
                Action::Send { binary: table.boolean("binary")?.unwrap_or(false) }
            }
            "subscribe" => {
                let identifier = self.identifier(table, "subscribe")?;
                name = format!("subscribe {}", identifier.text);
                let template = self.template(table, &identifier, TemplateContext::Body)?;
                self.cable(table)?.subscribed = Some(identifier);
                Action::Subscribe(template)
            }
            "unsubscribe" => {
                let is_last = table
                    .text("unsubscribe")
                    .is_ok_and(|located| located.is_some_and(|located| located.text == "true"));
                let key = if is_last { "channel" } else { "unsubscribe" };
                Action::Unsubscribe(self.channel(table, key)?)
            }
            action_key => {
                let channel = self.channel(table, "channel")?;
                let (mut data, at) = table.json(action_key)?.unwrap_or_default();
                each_text(&mut data, &|text| escaped(text, "json", |part| part.to_owned()));
                body = Some(self.template(
                    table,
                    &Located { text: data.to_string(), at },
                    TemplateContext::Body,
                )?);
                if action_key == "perform" {
                    Action::Perform(channel)
                } else {
                    Action::Whisper(channel)
                }
            }
        };
        if matches!(action, Action::Meet | Action::Stay) {
            return Ok(Step { body, ..self.blank(table, 0, action, name)? });
        }
        let (endpoint, socket) = (self.socket(table)?.endpoint, self.slot(table)?);
        Ok(Step { body, socket, ..self.blank(table, endpoint, action, name)? })
    }

    /// Reads a handshake, which has the headers of a GET.
    fn connect(&mut self, table: &Table<'_>, action_key: &'static str) -> Result<Step> {
        let mut url = table.required(action_key)?;
        let name = format!("{action_key} {}", url.text);
        for (theirs, ours) in [("ws://", "http://"), ("wss://", "https://")] {
            if let Some(rest) = url.text.strip_prefix(theirs) {
                url.text = format!("{ours}{rest}");
            }
        }
        if url.text.contains("://") && hosts::split(&url.text).is_none() {
            let what = format!("invalid URL {:?}: expected a path, ws:// or wss://", url.text);
            return Err(table.doc.wrong(url.at, what));
        }
        let (endpoint, target) = self.place(table, &url)?;
        let endpoint = self.hosts.for_sockets(endpoint);
        let endpoint = endpoint.map_err(|error| table.doc.wrong(url.at, error))?;
        let is_cable = action_key == "cable";
        let socket = self.slot(table)?;
        let opened = Socket { endpoint, is_cable, subscribed: None, call: None };
        self.open_socket(socket, opened);
        let action = if is_cable { Action::ConnectCable } else { Action::Connect };
        let basic = table.text("basic")?;
        let basic = basic
            .map(|located| self.template(table, &located, TemplateContext::Body))
            .transpose()?;
        let offered = table.all("protocols", |text| Ok(text.to_owned()))?;
        let offered = if is_cable { vec![action_cable::V1.to_owned()] } else { offered };
        let mut headers = self.headers(table, None)?;
        let mut lines = vec![
            ("Upgrade", "websocket".to_owned()),
            ("Connection", "Upgrade".to_owned()),
            ("Sec-WebSocket-Version", "13".to_owned()),
        ];
        if !offered.is_empty() {
            lines.push(("Sec-WebSocket-Protocol", offered.join(", ")));
        }
        for (name, text) in lines {
            headers.retain(|(one, _)| !one.eq_ignore_ascii_case(name));
            let value =
                self.template(table, &Located { text, at: url.at }, TemplateContext::Header)?;
            headers.push((name.to_owned(), value));
        }
        let target = Located { text: target, at: url.at };
        let target = self.template(table, &target, TemplateContext::Target)?;
        Ok(Step { target, headers, basic, socket, ..self.blank(table, endpoint, action, name)? })
    }

    /// Notes what a step opens.
    pub(super) fn open_socket(&mut self, slot: u8, opened: Socket) {
        let at = usize::from(slot).saturating_sub(1);
        self.sockets.resize(self.sockets.len().max(at + 1), None);
        if let Some(open) = self.sockets.get_mut(at) {
            *open = Some(opened);
        }
    }

    /// The socket of a step, if an earlier one opened it.
    fn known_socket(&mut self, table: &Table<'_>) -> Result<Option<Socket>> {
        let at = usize::from(self.slot(table)?) - 1;
        Ok(self.sockets.get(at).cloned().flatten())
    }

    /// Returns the number of the step's socket, from 1; a new name gets the next one.
    pub(super) fn slot(&mut self, table: &Table<'_>) -> Result<u8> {
        let name = table.text("socket")?.map(|located| located.text).unwrap_or_default();
        let known = self.socket_names.iter().position(|known| *known == name);
        let at = known.unwrap_or(self.socket_names.len());
        let slot = u8::try_from(at + 1).ok().filter(|slot| *slot <= SOCKETS_MAX);
        let Some(slot) = slot else {
            return Err(table.doc.wrong(table.at, format!("more than {SOCKETS_MAX} sockets")));
        };
        if known.is_none() {
            self.socket_names.push(name);
        }
        Ok(slot)
    }

    /// Reads `hold`: whether the socket of a step stays open over passes.
    pub(super) fn is_held(&self, table: &Table<'_>, action: &Action) -> Result<bool> {
        let opens = matches!(action, Action::Connect | Action::ConnectCable | Action::Open);
        if table.has("hold") && !opens {
            return Err(table.doc.wrong(table.at, "hold needs connect, cable or stream"));
        }
        if table.has("socket") && matches!(action, Action::Request | Action::Meet | Action::Stay) {
            let what = "socket needs a step on a WebSocket or an open call";
            return Err(table.doc.wrong(table.at, what));
        }
        Ok(table.boolean("hold")?.unwrap_or(false))
    }

    /// Returns a step with this action and nothing else.
    pub(super) fn blank(
        &self,
        table: &Table<'_>,
        endpoint: u8,
        action: Action,
        name: String,
    ) -> Result<Step> {
        let nothing = Located { text: "/".to_owned(), at: table.at };
        let target = self.template(table, &nothing, TemplateContext::Target)?;
        Ok(Step::new(name, endpoint, action, target))
    }

    /// Reads the message that a step waits for.
    pub(super) fn receive(&self, table: &Table<'_>) -> Result<Option<Receive>> {
        let Some(table) = table.table("receive", &RECEIVE)? else { return Ok(None) };
        let mut matches = Vec::new();
        for (key, rule) in [("text", Match::Is as fn(Template) -> Match), ("contains", Match::Has)]
        {
            if let Some(located) = table.text(key)? {
                matches.push(rule(self.template(&table, &located, TemplateContext::Body)?));
            }
        }
        let found = [table.parsed("json", Source::json)?, table.parsed("regex", Source::regex)?];
        let found: Vec<Source> = found.into_iter().flatten().collect();
        let expected = match (table.text("is")?, table.parsed("matches", Expected::matches)?) {
            (Some(_), Some(_)) => {
                return Err(table.doc.wrong(table.at, "is and matches exclude each other"));
            }
            (Some(located), None) => Some(Expected::Is(located.text.into_bytes())),
            (None, matches) => matches,
        };
        if expected.is_some() && found.is_empty() {
            return Err(table.doc.wrong(table.at, "is and matches need json or regex"));
        }
        let expected = expected.unwrap_or(Expected::Found);
        let values = found.into_iter().map(|source| Match::Value(source, expected.clone()));
        matches.extend(values);
        Ok(Some(Receive { matches }))
    }

    fn socket(&mut self, table: &Table<'_>) -> Result<&mut Socket> {
        let name = table.text("socket")?.map(|located| format!(" {:?}", located.text));
        let name = name.unwrap_or_default();
        let what =
            format!("no socket{name}: expected an earlier step with connect, cable or stream");
        let missing = || table.doc.wrong(table.at, what);
        let at = usize::from(self.slot(table)?) - 1;
        self.sockets.get_mut(at).and_then(Option::as_mut).ok_or_else(missing)
    }

    fn cable(&mut self, table: &Table<'_>) -> Result<&mut Socket> {
        let what = "no Action Cable connection: expected an earlier step with cable";
        let missing = || table.doc.wrong(table.at, what);
        let at = usize::from(self.slot(table)?) - 1;
        let socket = self.sockets.get_mut(at).and_then(Option::as_mut);
        socket.filter(|socket| socket.is_cable).ok_or_else(missing)
    }

    /// Returns the channel given by the key, or else that of the last subscription.
    fn channel(&mut self, table: &Table<'_>, key: &'static str) -> Result<Template> {
        let last = self.cable(table)?.subscribed.clone();
        let located = match table.has(key) {
            true => Some(self.identifier(table, key)?),
            false => last,
        };
        let missing = || {
            table
                .doc
                .wrong(table.at, "no channel: expected an earlier subscribe, or the key channel")
        };
        self.template(table, &located.ok_or_else(missing)?, TemplateContext::Body)
    }

    /// Reads an identifier: a string as it is, or a table as JSON.
    fn identifier(&self, table: &Table<'_>, key: &'static str) -> Result<Located> {
        let (mut value, at) = table.json(key)?.unwrap_or_default();
        if let serde_json::Value::String(text) = value {
            return Ok(Located { text, at });
        }
        each_text(&mut value, &|text| escaped(text, "json", |part| part.to_owned()));
        Ok(Located { text: value.to_string(), at })
    }

    pub(super) fn boolean(
        &self,
        table: &Table<'_>,
        key: &'static str,
        action: Action,
    ) -> Result<Action> {
        match table.boolean(key)? {
            Some(true) => Ok(action),
            _ => Err(table.doc.wrong(table.at, format!("invalid {key}: expected true"))),
        }
    }
}
