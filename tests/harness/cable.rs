//! A minimal Action Cable client for receiving messages.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::socket::{Socket, TEXT, upgrade};

/// The subprotocol that a client of Action Cable offers first.
pub(crate) const V1: &str = "actioncable-v1-json";

/// An open WebSocket at `/cable`.
pub(crate) struct Cable {
    pub(crate) socket: Socket,
}

impl Cable {
    /// Connects with a query, additional subprotocols and a header, each unless empty.
    pub(crate) fn connect(
        server: SocketAddr,
        query: &str,
        protocols: &str,
        header: (&str, &str),
    ) -> Self {
        let mut socket = Socket::connect(server);
        let offered = format!("{V1}{protocols}");
        let changes = [("Sec-WebSocket-Protocol", offered.as_str()), header];
        socket.send(upgrade(&format!("/cable{query}"), &changes).as_bytes());
        let response = socket.response();
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.header("sec-websocket-protocol"), Some(V1), "{response:?}");
        Cable { socket }
    }

    /// Connects with a token in the query, or without any.
    pub(crate) fn join(server: SocketAddr, token: Option<&str>) -> Self {
        let query = token.map_or_else(String::new, |token| format!("?jid={token}"));
        Cable::connect(server, &query, "", ("", ""))
    }

    /// Returns the next message other than a ping.
    pub(crate) fn hear(&mut self) -> Value {
        loop {
            let frame = self.socket.frame().expect("a message before the end");
            assert_eq!(frame.first, TEXT, "{frame:?}");
            let message: Value = serde_json::from_slice(&frame.payload).expect("it is JSON");
            if message["type"] != "ping" {
                return message;
            }
        }
    }

    /// Reads the welcome and returns its session id.
    pub(crate) fn welcome(&mut self) -> String {
        let message = self.hear();
        assert_eq!(message["type"], "welcome", "{message}");
        message["sid"].as_str().unwrap_or_default().to_owned()
    }

    /// Reads the welcome and returns the connection.
    pub(crate) fn welcomed(mut self) -> Self {
        self.welcome();
        self
    }

    /// Reads a disconnect message and returns its reason and whether to reconnect.
    pub(crate) fn disconnect_reason(&mut self) -> (String, bool) {
        let message = self.hear();
        assert_eq!(message["type"], "disconnect", "{message}");
        let reason = message["reason"].as_str().expect("a reason").to_owned();
        (reason, message["reconnect"].as_bool().expect("whether to reconnect"))
    }

    /// Reads a rejection without reconnect and returns its reason.
    pub(crate) fn refused(mut self) -> String {
        let (reason, reconnect) = self.disconnect_reason();
        assert!(!reconnect, "{reason}");
        assert_eq!(self.socket.close_code(), 1000);
        reason
    }

    /// Subscribes and returns the type of the answer.
    pub(crate) fn subscribe(&mut self, identifier: &Value) -> String {
        let identifier = identifier.to_string();
        let command = json!({"command": "subscribe", "identifier": identifier});
        self.socket.send_frame(TEXT, command.to_string().as_bytes());
        let answer = self.hear();
        assert_eq!(answer["identifier"], json!(identifier), "{answer}");
        answer["type"].as_str().expect("a type").to_owned()
    }
}

/// The subprotocol of AnyCable's extended protocol.
pub(crate) const EXTENDED: &str = "actioncable-v1-ext-json";

/// A client of the extended protocol after its welcome.
pub(crate) struct Extended {
    pub(crate) socket: Socket,
    pub(crate) protocol: String,
    pub(crate) welcome: Value,
    pub(crate) sid: String,
}

impl Extended {
    /// Connects with a query, unless it is empty.
    pub(crate) fn connect(server: SocketAddr, query: &str) -> Self {
        Self::connect_with(server, query, ("", ""))
    }

    /// The same with a header.
    pub(crate) fn connect_with(server: SocketAddr, query: &str, header: (&str, &str)) -> Self {
        let mut socket = Socket::connect(server);
        let changes = [("Sec-WebSocket-Protocol", EXTENDED), header];
        socket.send(upgrade(&format!("/cable{query}"), &changes).as_bytes());
        let response = socket.response();
        assert_eq!(response.status, 101, "{response:?}");
        let protocol = response.header("sec-websocket-protocol").unwrap_or_default().to_owned();
        let mut client = Extended { socket, protocol, welcome: Value::Null, sid: String::new() };
        client.welcome = client.hear();
        assert_eq!(client.welcome["type"], "welcome", "{}", client.welcome);
        client.sid = client.welcome["sid"].as_str().unwrap_or_default().to_owned();
        client
    }

    pub(crate) fn send(&mut self, command: &Value) {
        self.socket.send_frame(TEXT, command.to_string().as_bytes());
    }

    /// Subscribes and waits for the confirmation.
    pub(crate) fn subscribe(&mut self, identifier: &str) {
        self.send(&json!({"command": "subscribe", "identifier": identifier}));
        assert_eq!(self.hear(), json!({"type": "confirm_subscription", "identifier": identifier}));
    }

    /// Subscribes with a request for missed messages.
    pub(crate) fn subscribe_with(&mut self, identifier: &str, history: &Value) {
        self.send(&json!({"command": "subscribe", "identifier": identifier, "history": history}));
    }

    /// Requests missed messages.
    pub(crate) fn history(&mut self, identifier: &str, history: &Value) {
        self.send(&json!({"command": "history", "identifier": identifier, "history": history}));
    }

    /// The next message that is no ping; `None` if none comes within this time, which pings have to end.
    pub(crate) fn hear_within(&mut self, time: Duration) -> Option<Value> {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            let frame = self.socket.frame().expect("a message before the end");
            let message: Value = serde_json::from_slice(&frame.payload).expect("it is JSON");
            if message["type"] != "ping" {
                return Some(message);
            }
        }
        None
    }

    /// Returns the next message other than a ping.
    pub(crate) fn hear(&mut self) -> Value {
        loop {
            let frame = self.socket.frame().expect("a message before the end");
            assert_eq!(frame.first, TEXT, "{frame:?}");
            let message: Value = serde_json::from_slice(&frame.payload).expect("it is JSON");
            if message["type"] != "ping" {
                return message;
            }
        }
    }
}
