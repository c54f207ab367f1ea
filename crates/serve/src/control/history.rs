//! `/api/history/TOPIC`: the kept messages of a topic, a page at a time.

use std::sync::atomic::Ordering;

use admin::{ApiRequest, Reply};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::sys::process::now_ns;
use serde_json::{Value, json};
use topics::{KeptMessage, Position, Start, Unavailable};

use super::Control;
use super::cluster::trouble;
use crate::path::{check_topic, decode};

/// Messages in a page by default, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;
/// Bytes of the messages in a page, unless it is a single one.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

impl Control {
    /// Answers a request for the history of a topic, named as in the path.
    pub(super) fn topic_history(&self, topic: &str, request: &ApiRequest<'_>) -> Reply {
        if request.method != "GET" {
            let message = "expected GET /api/history/TOPIC";
            return Reply::error(405, "method_not_allowed", message);
        }
        let refuse = |message: &str| Reply::error(400, "bad_request", message);
        let topic = match decode(topic).and_then(|name| check_topic(&name).map(|()| name)) {
            Ok(topic) => topic,
            Err(why) => return refuse(why),
        };
        let (start, limit) = match self.range(request.parameters) {
            Ok(range) => range,
            Err(message) => return refuse(&message),
        };
        let Some(history) = self.shared.history() else {
            let message =
                "there is no history: start the server with --history memory, redis or nats";
            return Reply::error(404, "history_off", message);
        };
        let is_loaded = || history.last(&topic, now_ns()).is_some();
        let pubsub = self.shared.pubsub.as_ref().filter(|pubsub| pubsub.keeps);
        if let Some(pubsub) = pubsub.filter(|pubsub| !pubsub.follow(&topic, is_loaded)) {
            pubsub.unavailable.fetch_add(1, Ordering::Relaxed);
            let message = format!("{}: the history cannot be read", trouble(pubsub));
            return Reply::error(503, "pubsub_unavailable", &message);
        }
        let page = match history.page(&topic, start, limit, PAGE_BYTES, now_ns()) {
            Ok(page) => page,
            Err(why) => return unavailable(why),
        };
        let epoch = page.epoch;
        let last = page.messages.last().map(|message| message.offset);
        let next = last.filter(|last| *last < page.last);
        let next = next.map(|offset| Position { epoch, offset }.to_string());
        let messages: Vec<Value> =
            page.messages.iter().map(|message| self.message_json(message)).collect();
        Reply::json(&json!({
            "topic": topic,
            "epoch": epoch.to_string(),
            "first": page.first,
            "last": page.last,
            "messages": messages,
            "next": next,
        }))
    }

    /// The start and the number of messages that a query requests.
    fn range(&self, parameters: &[(String, String)]) -> Result<(Option<Start>, usize), String> {
        let (mut start, mut limit) = (None, LIMIT);
        for (name, value) in parameters {
            match name.as_str() {
                "since" => {
                    start = Some(self.shared.start_of(value).ok_or_else(|| {
                        format!("invalid since \"{value}\": expected EPOCH:OFFSET or Unix seconds")
                    })?);
                }
                "limit" => {
                    let number = value.parse().ok().filter(|n| (1..=LIMIT_MAX).contains(n));
                    limit = number.ok_or_else(|| {
                        format!(
                            "invalid limit \"{value}\": expected a number from 1 to {LIMIT_MAX}"
                        )
                    })?;
                }
                _ => {
                    return Err(format!("unknown parameter \"{name}\": expected since or limit"));
                }
            }
        }
        Ok((start, limit))
    }

    fn message_json(&self, message: &KeptMessage) -> Value {
        let mut value = json!({
            "offset": message.offset,
            "time": self.shared.unix_s(message.at_ns),
        });
        match str::from_utf8(&message.data).ok().filter(|_| !message.binary) {
            Some(text) => value["data"] = text.into(),
            None => value["data_base64"] = STANDARD.encode(&message.data).into(),
        }
        if let Some(kind) = &message.kind {
            value["type"] = (**kind).into();
        }
        value
    }
}

/// Not all messages that were requested are available.
fn unavailable(why: Unavailable) -> Reply {
    let message = match why {
        Unavailable::Epoch => {
            "the position is of another epoch: what kept the history was restarted"
        }
        Unavailable::Ahead => "the position is later than the last message",
        Unavailable::Evicted => "some of these messages are not kept any more",
    };
    Reply::error(410, why.name(), message)
}
