//! Steps on sockets in a scenario file: connect, send, receive, subscribe, and the steps of users in
//! groups.

use anyhow::Result;
use load::scenario::{Action, Expected, Match, Place, Receive, Source, Step, Template};

use super::hosts;
use super::keys::RECEIVE;
use super::steps::{Reader, each_text, escaped};
use super::tables::{Said, Table};

/// What a step may be, each under its key; without any of them it only receives.
pub(super) const WAYS: [&str; 12] = [
    "url",
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

/// Keys that only requests of HTTP have; those of the head a handshake has too.
const OF_REQUESTS: [&str; 5] = ["method", "body", "body_file", "json", "form"];
const OF_HEADS: [&str; 3] = ["headers", "basic", "bearer"];

/// The open socket of a flow.
#[derive(Clone, Debug)]
pub(super) struct Socket {
    endpoint: u8,
    is_cable: bool,
    /// The identifier that was subscribed to last.
    subscribed: Option<Said>,
}

/// The one thing that a step does.
pub(super) fn way(table: &Table<'_>) -> Result<&'static str> {
    let mut ways = WAYS.into_iter().filter(|way| table.has(way));
    match (ways.next(), ways.next()) {
        (Some(one), Some(other)) => {
            let what = format!("a step does one thing, not both {one} and {other}");
            Err(table.doc.wrong(table.at, what))
        }
        (Some(one), None) => Ok(one),
        (None, _) if table.has("receive") => Ok("receive"),
        (None, _) => {
            let what = format!("[[flows.steps]] needs one of {}, receive", WAYS.join(", "));
            Err(table.doc.wrong(table.at, what))
        }
    }
}

impl Reader<'_> {
    /// A step that is no request of HTTP.
    pub(super) fn talk(&mut self, table: &Table<'_>, way: &'static str) -> Result<Step> {
        let opens = matches!(way, "connect" | "cable");
        let strange = OF_REQUESTS.iter().chain(OF_HEADS.iter().filter(|_| !opens));
        if let Some(key) = strange.copied().find(|key| table.has(key)) {
            return Err(table.doc.wrong(table.at, format!("{key} does not go with {way}")));
        }
        if table.has("protocols") && way != "connect" {
            return Err(table.doc.wrong(table.at, "protocols go with connect"));
        }
        if opens {
            return self.connect(table, way);
        }
        let (mut body, mut name) = (None, way.to_owned());
        let action = match way {
            "meet" => self.truth(table, way, Action::Meet)?,
            "stay" => self.truth(table, way, Action::Stay)?,
            "close" => self.truth(table, way, Action::Close)?,
            "receive" => Action::Receive,
            "ping" => {
                let said = table.required("ping")?;
                let is_payload = said.text != "true";
                let payload = is_payload.then(|| self.template(table, &said, Place::Body));
                body = payload.transpose()?;
                Action::Ping
            }
            "send" => {
                body = Some(self.template(table, &table.required("send")?, Place::Body)?);
                Action::Send { binary: table.truth("binary")?.unwrap_or(false) }
            }
            "subscribe" => {
                let identifier = self.identifier(table, "subscribe")?;
                name = format!("subscribe {}", identifier.text);
                let template = self.template(table, &identifier, Place::Body)?;
                self.cable(table)?.subscribed = Some(identifier);
                Action::Subscribe(template)
            }
            "unsubscribe" => {
                let is_last = table
                    .said("unsubscribe")
                    .is_ok_and(|said| said.is_some_and(|said| said.text == "true"));
                let key = if is_last { "channel" } else { "unsubscribe" };
                Action::Unsubscribe(self.channel(table, key)?)
            }
            way => {
                let channel = self.channel(table, "channel")?;
                let (mut data, at) = table.json(way)?.unwrap_or_default();
                each_text(&mut data, &|text| escaped(text, "json", |part| part.to_owned()));
                body = Some(self.template(
                    table,
                    &Said { text: data.to_string(), at },
                    Place::Body,
                )?);
                if way == "perform" { Action::Perform(channel) } else { Action::Whisper(channel) }
            }
        };
        let endpoint = match action {
            Action::Meet | Action::Stay => 0,
            _ => self.socket(table)?.endpoint,
        };
        Ok(Step { body, ..self.blank(table, endpoint, action, name)? })
    }

    /// A handshake: its head is that of a GET.
    fn connect(&mut self, table: &Table<'_>, way: &'static str) -> Result<Step> {
        let mut url = table.required(way)?;
        let name = format!("{way} {}", url.text);
        for (theirs, ours) in [("ws://", "http://"), ("wss://", "https://")] {
            if let Some(rest) = url.text.strip_prefix(theirs) {
                url.text = format!("{ours}{rest}");
            }
        }
        if url.text.contains("://") && hosts::split(&url.text).is_none() {
            let what = format!("{:?}: write a path, ws:// or wss://", url.text);
            return Err(table.doc.wrong(url.at, what));
        }
        let (endpoint, target) = self.place(table, &url)?;
        let endpoint = self.hosts.of_sockets(endpoint);
        let endpoint = endpoint.map_err(|error| table.doc.wrong(url.at, error))?;
        let is_cable = way == "cable";
        self.socket = Some(Socket { endpoint, is_cable, subscribed: None });
        let action = if is_cable { Action::ConnectCable } else { Action::Connect };
        let basic = table.said("basic")?;
        let basic = basic.map(|said| self.template(table, &said, Place::Body)).transpose()?;
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
            let value = self.template(table, &Said { text, at: url.at }, Place::Header)?;
            headers.push((name.to_owned(), value));
        }
        let target = Said { text: target, at: url.at };
        let target = self.template(table, &target, Place::Target)?;
        Ok(Step { target, headers, basic, ..self.blank(table, endpoint, action, name)? })
    }

    /// Returns a step with this action and nothing else.
    pub(super) fn blank(
        &self,
        table: &Table<'_>,
        endpoint: u8,
        action: Action,
        name: String,
    ) -> Result<Step> {
        let nothing = Said { text: "/".to_owned(), at: table.at };
        let target = self.template(table, &nothing, Place::Target)?;
        Ok(Step::new(name, endpoint, action, target))
    }

    /// Reads the message that a step waits for.
    pub(super) fn receive(&self, table: &Table<'_>) -> Result<Option<Receive>> {
        let Some(table) = table.table("receive", &RECEIVE)? else { return Ok(None) };
        let mut matches = Vec::new();
        for (key, rule) in [("text", Match::Is as fn(Template) -> Match), ("contains", Match::Has)]
        {
            if let Some(said) = table.said(key)? {
                matches.push(rule(self.template(&table, &said, Place::Body)?));
            }
        }
        let found = [table.parsed("json", Source::json)?, table.parsed("regex", Source::regex)?];
        let found: Vec<Source> = found.into_iter().flatten().collect();
        let expected = match (table.said("is")?, table.parsed("matches", Expected::matches)?) {
            (Some(_), Some(_)) => {
                return Err(table.doc.wrong(table.at, "is or matches, not both"));
            }
            (Some(said), None) => Some(Expected::Is(said.text.into_bytes())),
            (None, matches) => matches,
        };
        if expected.is_some() && found.is_empty() {
            return Err(table.doc.wrong(table.at, "is and matches go with json or regex"));
        }
        let expected = expected.unwrap_or(Expected::Found);
        let values = found.into_iter().map(|source| Match::Value(source, expected.clone()));
        matches.extend(values);
        Ok(Some(Receive { matches }))
    }

    fn socket(&mut self, table: &Table<'_>) -> Result<&mut Socket> {
        let what = "there is no socket yet: a step with connect or cable goes before it";
        let missing = || table.doc.wrong(table.at, what);
        self.socket.as_mut().ok_or_else(missing)
    }

    fn cable(&mut self, table: &Table<'_>) -> Result<&mut Socket> {
        let what = "this is said to Action Cable: a step with cable goes before it";
        let missing = || table.doc.wrong(table.at, what);
        self.socket.as_mut().filter(|socket| socket.is_cable).ok_or_else(missing)
    }

    /// Returns the channel given by the key, or else that of the last subscription.
    fn channel(&mut self, table: &Table<'_>, key: &'static str) -> Result<Template> {
        let last = self.cable(table)?.subscribed.clone();
        let said = match table.has(key) {
            true => Some(self.identifier(table, key)?),
            false => last,
        };
        let missing =
            || table.doc.wrong(table.at, "no channel: subscribe before it, or say channel");
        self.template(table, &said.ok_or_else(missing)?, Place::Body)
    }

    /// An identifier: a text as it is, or a table as JSON.
    fn identifier(&self, table: &Table<'_>, key: &'static str) -> Result<Said> {
        let (mut value, at) = table.json(key)?.unwrap_or_default();
        if let serde_json::Value::String(text) = value {
            return Ok(Said { text, at });
        }
        each_text(&mut value, &|text| escaped(text, "json", |part| part.to_owned()));
        Ok(Said { text: value.to_string(), at })
    }

    fn truth(&self, table: &Table<'_>, key: &'static str, action: Action) -> Result<Action> {
        match table.truth(key)? {
            Some(true) => Ok(action),
            _ => Err(table.doc.wrong(table.at, format!("{key} is true, or left out"))),
        }
    }
}
