//! [`Call`]: what the application is called with, by AnyCable's contract (`etc/rpc.proto`), whatever the
//! transport. Its JSON is that of HTTP RPC.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::path::parameters_except;

/// The name of the header that has the client's address.
pub(crate) const REMOTE_ADDR: &str = "REMOTE_ADDR";

/// The methods of the service.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Method {
    Connect,
    Command,
    Disconnect,
    /// The call of `--auth-url`, which is not part of AnyCable's contract.
    Authorize,
}

impl Method {
    pub(crate) const ALL: [Method; 4] =
        [Method::Connect, Method::Command, Method::Disconnect, Method::Authorize];

    /// The last part of the path of HTTP RPC.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Method::Connect => "connect",
            Method::Command => "command",
            Method::Disconnect => "disconnect",
            Method::Authorize => "authorize",
        }
    }
}

/// The handshake of a client, which each call repeats: its URL, the selected headers, with names in lower
/// case, and `REMOTE_ADDR`. A clone shares it.
///
/// It is one text, because it is kept as long as the connection: the URL on the first line, and a line
/// `NAME: VALUE` for each header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Env(Arc<str>);

impl Env {
    pub(crate) fn new<'h>(url: &str, headers: impl Iterator<Item = (&'h str, &'h str)>) -> Env {
        // No request head has line breaks within these; a line more would be a header that nobody sent.
        let line = |text: &str| text.replace(['\r', '\n'], " ");
        let mut text = line(url);
        for (name, value) in headers {
            text.push('\n');
            text.push_str(&line(name));
            text.push_str(": ");
            text.push_str(&line(value));
        }
        Env(text.into())
    }

    /// All of it, for [`Env::from_text`].
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_text(text: &str) -> Env {
        Env(text.into())
    }

    pub(crate) fn url(&self) -> &str {
        self.0.lines().next().unwrap_or_default()
    }

    /// Names and values.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.lines().skip(1).filter_map(|line| line.split_once(": "))
    }

    /// Its memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        32 + self.0.len()
    }

    /// Whether it has the same URL, but for the session that is to be resumed, and the same headers. The
    /// address may be another one.
    pub(crate) fn is_same_client(&self, other: &Env) -> bool {
        fn parts(env: &Env) -> (&str, impl Iterator<Item = String>) {
            let (path, query) = match env.url().split_once('?') {
                Some((path, query)) => (path, Some(query)),
                None => (env.url(), None),
            };
            (path, parameters_except(query, "sid"))
        }
        fn headers(env: &Env) -> impl Iterator<Item = (&str, &str)> {
            env.headers().filter(|(name, _)| *name != REMOTE_ADDR)
        }
        let ((path, query), (other_path, other_query)) = (parts(self), parts(other));
        path == other_path && query.eq(other_query) && headers(self).eq(headers(other))
    }
}

/// State that the application keeps with a connection or a subscription: keys and values. A clone
/// shares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(Option<Arc<[Field]>>);

/// A key and its value.
type Field = (Box<str>, Box<str>);

impl State {
    pub(crate) fn from_fields(fields: Vec<Field>) -> Self {
        State((!fields.is_empty()).then(|| fields.into()))
    }

    pub(crate) fn fields(&self) -> &[Field] {
        self.0.as_deref().unwrap_or_default()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.fields().iter().find(|(own, _)| **own == *key).map(|(_, value)| &**value)
    }

    /// Applies changes: an empty value deletes its key.
    pub(crate) fn merge(&mut self, changes: BTreeMap<String, String>) {
        if changes.is_empty() {
            return;
        }
        let kept = self.fields().iter().filter(|(key, _)| !changes.contains_key(&**key));
        let mut fields: Vec<Field> = kept.cloned().collect();
        let set = changes.into_iter().filter(|(_, value)| !value.is_empty());
        fields.extend(set.map(|(key, value)| (key.into(), value.into())));
        self.0 = (!fields.is_empty()).then(|| fields.into());
    }

    /// Its memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.fields().iter().map(|(key, value)| 32 + key.len() + value.len()).sum()
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields().iter().map(|(key, value)| (key, value)))
    }
}

/// A command of a client.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandName {
    Subscribe,
    Unsubscribe,
    /// To be performed.
    Message,
}

impl CommandName {
    /// Its name in calls.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CommandName::Subscribe => "subscribe",
            CommandName::Unsubscribe => "unsubscribe",
            CommandName::Message => "message",
        }
    }
}

/// A call of the application.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The session id.
    pub(crate) sid: Box<str>,
    pub(crate) env: Env,
    pub(crate) cstate: State,
    pub(crate) what: What,
}

/// What the application is called for.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Connect,
    Command {
        name: CommandName,
        identifier: Arc<str>,
        /// The connection's identifiers.
        identifiers: Arc<str>,
        data: Box<str>,
        istate: State,
    },
    Disconnect {
        identifiers: Arc<str>,
        /// The subscriptions, with their states.
        subscriptions: Vec<(Arc<str>, State)>,
    },
    /// Whether a client of a plain topic may connect or publish.
    Authorize(Question),
}

/// What the application is asked by `--auth-url`.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The name of the protocol.
    pub(crate) protocol: &'static str,
    pub(crate) topic: Arc<str>,
    /// The identifiers of the client, as far as they are known.
    pub(crate) identity: Option<Arc<str>>,
    /// The message that the client publishes, and whether it is binary; `None` for a connect.
    pub(crate) message: Option<(Arc<[u8]>, bool)>,
}

impl Call {
    pub(crate) fn method(&self) -> Method {
        match &self.what {
            What::Connect => Method::Connect,
            What::Command { .. } => Method::Command,
            What::Disconnect { .. } => Method::Disconnect,
            What::Authorize(_) => Method::Authorize,
        }
    }

    /// Its name in metrics.
    pub(crate) fn name(&self) -> &'static str {
        match &self.what {
            What::Connect => "connect",
            What::Command { name, .. } => name.name(),
            What::Disconnect { .. } => "disconnect",
            What::Authorize(Question { message: None, .. }) => "authorize_connect",
            What::Authorize(_) => "authorize_publish",
        }
    }

    /// Whether the application may be called again if it is unknown whether it was: for a client that
    /// connects or subscribes anew, as clients do by themselves.
    pub(crate) fn is_repeatable(&self) -> bool {
        match &self.what {
            What::Connect => true,
            What::Command { name, .. } => *name == CommandName::Subscribe,
            What::Disconnect { .. } => false,
            What::Authorize(_) => true,
        }
    }

    /// The memory that it holds until it is performed, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let what = match &self.what {
            What::Connect => 0,
            What::Command { identifier, data, istate, .. } => {
                identifier.len() + data.len() + istate.bytes()
            }
            What::Disconnect { subscriptions, .. } => {
                let each = |(text, state): &(Arc<str>, State)| 32 + text.len() + state.bytes();
                self.env.bytes() + subscriptions.iter().map(each).sum::<usize>()
            }
            What::Authorize(Question { topic, message, .. }) => {
                let message = message.as_ref().map_or(0, |(data, _)| data.len());
                self.env.bytes() + topic.len() + message
            }
        };
        size_of::<Call>() + self.sid.len() + self.cstate.bytes() + what
    }

    /// The states of a disconnect: by identifier, as JSON.
    pub(crate) fn disconnect_states(subscriptions: &[(Arc<str>, State)]) -> Vec<(&str, String)> {
        let kept = subscriptions.iter().filter(|(_, state)| !state.fields().is_empty());
        let json = |state: &State| serde_json::to_string(state).unwrap_or_default();
        kept.map(|(identifier, state)| (&**identifier, json(state))).collect()
    }
}

/// The body of a request of HTTP RPC or of `--auth-url`.
impl Serialize for Call {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.what {
            What::Connect => {}
            What::Command { name, identifier, identifiers, data, .. } => {
                map.serialize_entry("command", name.name())?;
                map.serialize_entry("identifier", &**identifier)?;
                map.serialize_entry("connection_identifiers", &**identifiers)?;
                if !data.is_empty() {
                    map.serialize_entry("data", data)?;
                }
            }
            What::Disconnect { identifiers, subscriptions } => {
                map.serialize_entry("identifiers", &**identifiers)?;
                let texts: Vec<&str> = subscriptions.iter().map(|(text, _)| &**text).collect();
                map.serialize_entry("subscriptions", &texts)?;
            }
            What::Authorize(question) => {
                let Question { protocol, topic, identity, message } = question;
                let action = if message.is_some() { "publish" } else { "connect" };
                map.serialize_entry("action", action)?;
                map.serialize_entry("protocol", protocol)?;
                map.serialize_entry("topic", &**topic)?;
                map.serialize_entry("sid", &self.sid)?;
                if let Some(identity) = identity {
                    map.serialize_entry("identity", &**identity)?;
                }
                match message {
                    Some((data, true)) => {
                        map.serialize_entry("data_base64", &STANDARD.encode(data))?;
                    }
                    Some((data, false)) => {
                        map.serialize_entry("data", &String::from_utf8_lossy(data))?;
                    }
                    None => {}
                }
            }
        }
        map.serialize_entry("env", &EnvJson(self))?;
        map.end()
    }
}

struct EnvJson<'c>(&'c Call);

impl Serialize for EnvJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Call { env, cstate, what, .. } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("url", env.url())?;
        map.serialize_entry("headers", &Pairs(env))?;
        if !cstate.fields().is_empty() {
            map.serialize_entry("cstate", cstate)?;
        }
        match what {
            What::Command { istate, .. } if !istate.fields().is_empty() => {
                map.serialize_entry("istate", istate)?;
            }
            What::Disconnect { subscriptions, .. } => {
                let states: BTreeMap<&str, String> =
                    Call::disconnect_states(subscriptions).into_iter().collect();
                if !states.is_empty() {
                    map.serialize_entry("istate", &states)?;
                }
            }
            _ => {}
        }
        map.end()
    }
}

struct Pairs<'p>(&'p Env);

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.headers())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn state(pairs: &[(&str, &str)]) -> State {
        let mut state = State::default();
        state.merge(map(pairs));
        state
    }

    fn call(what: What) -> Value {
        let headers = [("cookie", "a=1"), ("REMOTE_ADDR", "127.0.0.1")];
        let env = Env::new("ws://x/cable", headers.into_iter());
        let call = Call { sid: "s".into(), env, cstate: state(&[("user", "7")]), what };
        serde_json::to_value(call).unwrap()
    }

    #[test]
    fn calls_have_the_json_of_http_rpc() {
        let env = json!({
            "url": "ws://x/cable",
            "headers": {"cookie": "a=1", "REMOTE_ADDR": "127.0.0.1"},
            "cstate": {"user": "7"},
        });
        assert_eq!(call(What::Connect), json!({"env": env}));
        let command = |data: &str| What::Command {
            name: CommandName::Message,
            identifier: "{}".into(),
            identifiers: "me".into(),
            data: data.into(),
            istate: state(&[("room", "1")]),
        };
        let mut with_state = env.clone();
        with_state["istate"] = json!({"room": "1"});
        let mut expected = json!({
            "command": "message", "identifier": "{}", "connection_identifiers": "me",
            "data": "{\"action\":\"a\"}", "env": with_state,
        });
        assert_eq!(call(command(r#"{"action":"a"}"#)), expected);
        expected.as_object_mut().unwrap().remove("data");
        assert_eq!(call(command("")), expected);
        let subscriptions =
            vec![("a".into(), state(&[("room", "1")])), ("b".into(), State::default())];
        let mut with_states = env;
        with_states["istate"] = json!({"a": "{\"room\":\"1\"}"});
        assert_eq!(
            call(What::Disconnect { identifiers: "me".into(), subscriptions }),
            json!({"identifiers": "me", "subscriptions": ["a", "b"], "env": with_states}),
        );
    }

    #[test]
    fn questions_have_their_own_json() {
        let question = |identity: Option<&str>, message: Option<(&[u8], bool)>| Question {
            protocol: "topic",
            topic: "news".into(),
            identity: identity.map(Into::into),
            message: message.map(|(data, binary)| (data.into(), binary)),
        };
        let ask = |question| {
            let env = Env::new("http://x/topics/news", std::iter::empty());
            let cstate = State::default();
            let call = Call { sid: "s".into(), env, cstate, what: What::Authorize(question) };
            serde_json::to_value(call).unwrap()
        };
        let env = json!({"url": "http://x/topics/news", "headers": {}});
        let mut expected = json!({"action": "connect", "protocol": "topic", "topic": "news", "sid": "s", "env": env});
        assert_eq!(ask(question(None, None)), expected);
        expected["action"] = "publish".into();
        expected["identity"] = "{\"user\":7}".into();
        expected["data"] = "hi".into();
        assert_eq!(ask(question(Some(r#"{"user":7}"#), Some((b"hi", false)))), expected);
        let binary = ask(question(None, Some((b"\xff\0", true))));
        assert_eq!((&binary["data_base64"], &binary["data"]), (&json!("/wA="), &Value::Null));
    }

    #[test]
    fn an_empty_value_deletes_a_key() {
        let mut own = state(&[("a", "1"), ("b", "2")]);
        own.merge(map(&[("a", ""), ("c", "3"), ("d", "")]));
        assert_eq!(own, state(&[("b", "2"), ("c", "3")]));
        assert_eq!((own.get("c"), own.get("a")), (Some("3"), None));
        own.merge(map(&[("b", ""), ("c", "")]));
        assert_eq!(own, State::default());
        assert_eq!(size_of::<State>(), 16);
    }
}
