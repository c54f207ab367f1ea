//! `/api/connections`: lists connections and closes one.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use admin::{ApiRequest, Page, Reply};
use engine::sys::process::now_ns;
use engine::{ConnId, Mode};
use serde_json::{Value, json};
use tracing::info;

use super::{Control, WAIT};
use crate::handler::{
    CloseRequest, ConnectionEntry, ConnectionFilter, ListReply, ListRequest, Post,
};
use crate::session::SessionProtocol;

/// Time after which a page ends where it is.
const SCAN_TIME: Duration = Duration::from_millis(500);
/// Bytes that a request counts in a mailbox.
const REQUEST_BYTES: usize = 256;

impl Control {
    /// One page of the connections that match a filter.
    pub(super) fn list_connections(&self, page: &Page, filter: &[(String, String)]) -> Reply {
        let filter = match parse_filter(filter) {
            Ok(filter) => Arc::new(filter),
            Err(message) => return Reply::error(400, "bad_request", &message),
        };
        let begun_ns = now_ns();
        let until_ns = begun_ns + WAIT.as_nanos() as u64;
        let (mut listed, mut silent) = (Vec::new(), Vec::new());
        let (from, from_slot) = position_after(page.after);
        let mut next = None;
        'workers: for worker in self.shared.running().filter(|worker| *worker >= from) {
            let mut slot = if worker == from { from_slot } else { 0 };
            let late = || now_ns().saturating_sub(begun_ns) > SCAN_TIME.as_nanos() as u64;
            loop {
                let started = worker > from || slot > from_slot;
                if listed.len() >= page.limit || started && late() {
                    next = Some(cursor(worker, slot));
                    break 'workers;
                }
                let limit = page.limit - listed.len();
                let Some(answer) = self.list(worker, (slot, limit), &filter, until_ns) else {
                    silent.push(worker);
                    break;
                };
                listed.extend(answer.connections);
                match answer.next_slot {
                    Some(next) => slot = next,
                    None => break,
                }
            }
        }
        let connections: Vec<Value> = listed.iter().map(entry_json).collect();
        let next = next.map(|next| next.to_string());
        let reply = json!({ "connections": connections, "next": next, "silent_workers": silent });
        Reply::json(&reply)
    }

    /// Requests connections of one worker from a slot on; `None` if it does not answer in time.
    fn list(
        &self,
        worker: usize,
        (slot, limit): (u32, usize),
        filter: &Arc<ConnectionFilter>,
        until_ns: u64,
    ) -> Option<ListReply> {
        let (reply, answer) = sync_channel(1);
        let filter = Arc::clone(filter);
        let list = Box::new(ListRequest { slot, limit, filter, reply });
        self.remote.post(worker, Post::List(list), REQUEST_BYTES).ok()?;
        let left = until_ns.saturating_sub(now_ns());
        answer.recv_timeout(Duration::from_nanos(left)).ok()
    }

    /// Answers a request for one connection, by its id.
    pub(super) fn connection(&self, id: &str, request: &ApiRequest<'_>) -> Reply {
        if !matches!(request.method, "GET" | "DELETE") {
            let message = "expected GET or DELETE /api/connections/ID";
            return Reply::error(405, "method_not_allowed", message);
        }
        if request.method == "DELETE" && !request.may_change {
            return Reply::read_only();
        }
        let Ok(number) = id.parse() else {
            let message = format!("invalid id \"{id}\": expected one of GET /api/connections");
            return Reply::error(400, "bad_request", &message);
        };
        if request.method == "GET" {
            return self.show(ConnId::from_u64(number));
        }
        let reconnect = match request.parameter("reconnect") {
            None | Some("true") => true,
            Some("false") => false,
            Some(other) => {
                let message = format!("invalid reconnect \"{other}\": expected true or false");
                return Reply::error(400, "bad_request", &message);
            }
        };
        self.close(ConnId::from_u64(number), reconnect)
    }

    fn show(&self, id: ConnId) -> Reply {
        let worker = usize::from(id.worker());
        let unknown = || Reply::error(404, "not_found", "no such connection");
        // A post would start another one.
        if !self.shared.running().any(|running| running == worker) {
            return unknown();
        }
        let until_ns = now_ns() + WAIT.as_nanos() as u64;
        let Some(answer) = self.list(worker, (id.slot(), 1), &Arc::default(), until_ns) else {
            let message = format!("worker {worker} has not responded");
            return Reply::error(503, "no_response", &message);
        };
        // Slots are used again, by connections with other ids.
        let found = answer.connections.iter().find(|entry| entry.info.id == id);
        found.map_or_else(unknown, |entry| Reply::json(&entry_json(entry)))
    }

    fn close(&self, id: ConnId, reconnect: bool) -> Reply {
        let worker = usize::from(id.worker());
        let unknown = || Reply::error(404, "not_found", "no such connection, or it is closing");
        // A post would start another one.
        if !self.shared.running().any(|running| running == worker) {
            return unknown();
        }
        let (reply, answer) = sync_channel(1);
        let request = Box::new(CloseRequest { id, reconnect, reply });
        if self.remote.post(worker, Post::Close(request), REQUEST_BYTES).is_err() {
            let message = "the worker's mailbox is full: send the request again";
            return Reply::error(503, "overloaded", message);
        }
        match answer.recv_timeout(WAIT) {
            Ok(true) => {
                info!("API: closed connection {id}");
                Reply::json(&json!({ "closed": id.as_u64().to_string() }))
            }
            Ok(false) => unknown(),
            Err(_) => {
                let message = format!("worker {worker} has not responded: it may still close it");
                Reply::error(503, "no_response", &message)
            }
        }
    }
}

/// The filter that a query's parameters describe.
fn parse_filter(parameters: &[(String, String)]) -> Result<ConnectionFilter, String> {
    let mut filter = ConnectionFilter::default();
    for (name, value) in parameters {
        match name.as_str() {
            "topic" | "identity" if value.is_empty() => {
                return Err(format!("{name} is empty"));
            }
            // Signed stream names may be longer than those of `/topics`.
            "topic" => filter.topic = Some(value.as_str().into()),
            "identity" => filter.identity = Some(value.as_str().into()),
            "protocol" => {
                filter.protocol = Some(SessionProtocol::named(value).ok_or_else(|| {
                    let names = SessionProtocol::names();
                    format!("invalid protocol \"{value}\": expected one of {names}")
                })?);
            }
            "address" => filter.address = Some(value.parse()?),
            _ => {
                return Err(format!(
                    "unknown parameter \"{name}\": expected limit, after, topic, identity, protocol \
                     or address"
                ));
            }
        }
    }
    Ok(filter)
}

/// The position after a connection or cursor: worker and slot.
fn position_after(after: u64) -> (usize, u32) {
    match after {
        0 => (0, 0),
        after => {
            let after = ConnId::from_u64(after);
            (usize::from(after.worker()), after.slot() + 1)
        }
    }
}

/// A number between the ids of the connections before a position and those from there on.
fn cursor(worker: usize, slot: u32) -> u64 {
    let first = ConnId::first_at(worker as u16, slot).as_u64();
    first.saturating_sub(1)
}

fn entry_json(entry: &ConnectionEntry) -> Value {
    let ConnectionEntry { info, topics, .. } = entry;
    let topics: Vec<&str> = topics.iter().map(|topic| &**topic).collect();
    json!({
        "id": info.id.as_u64().to_string(),
        "worker": info.id.worker(),
        "peer": info.peer.map(|peer| peer.to_string()),
        "client": info.client.map(|client| client.to_string()),
        "protocol": entry.protocol.name(),
        "identity": entry.identity.as_deref(),
        "state": state(info.mode),
        "topic": topics.first().filter(|_| entry.subscriptions == 1),
        "topics": topics,
        "subscriptions": entry.subscriptions,
        "queued_bytes": info.queued_bytes,
        "idle_seconds": info.idle_seconds,
    })
}

fn state(mode: Mode) -> &'static str {
    match mode {
        Mode::Connecting => "connecting",
        Mode::Http => "http",
        Mode::Parked => "parked",
        Mode::WebSocket => "websocket",
        Mode::Polled => "polled",
        Mode::Raw => "raw",
        Mode::HalfClosed => "half_closed",
        Mode::Closing => "closing",
        Mode::Lingering => "lingering",
        Mode::Dead => "dead",
    }
}

#[cfg(test)]
mod tests {
    use engine::SLOTS_MAX;

    use super::*;

    #[test]
    fn a_cursor_continues_where_the_page_ended() {
        for position in [(0, 1), (0, SLOTS_MAX - 1), (1, 0), (7, 3), (1023, SLOTS_MAX - 1)] {
            let (worker, slot) = position;
            let after = position_after(cursor(worker, slot));
            // The slot after a worker's last is the next worker's first.
            let next = if after.1 == SLOTS_MAX { (after.0 + 1, 0) } else { after };
            assert_eq!(next, position);
        }
        assert_eq!(position_after(0), (0, 0));
    }

    #[test]
    fn parameters_of_filters_are_checked() {
        let parse = |name: &str, value: &str| parse_filter(&[(name.into(), value.into())]);
        for protocol in ["http", "echo", "topic", "events", "cable", "cable_ext"] {
            assert!(parse("protocol", protocol).unwrap().protocol.is_some());
        }
        let refused = [
            ("protocol", "mqtt", "expected one of http, echo, topic, events, cable, cable_ext"),
            ("address", "10.0.0.1/8", "beyond its prefix"),
            ("topic", "", "topic is empty"),
            ("topics", "x", "expected limit, after, topic, identity, protocol or address"),
        ];
        for (name, value, expected) in refused {
            let message = parse(name, value).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
