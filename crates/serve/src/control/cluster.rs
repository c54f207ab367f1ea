//! What operators see of other nodes: `/api/cluster`, metrics, and publishing over a broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use admin::{ApiRequest, Exposition, Kind, Reply};
use brokers::{FaultKind, GapCause, Position, ShardFigures};
use engine::sys::process::now_ns;
use serde_json::{Value, json};
use topics::Epoch;

use super::Control;
use crate::broadcast::Disconnect;
use crate::pubsub::{Posted, Pubsub, Sent, Submitted};

/// The answer to a request, or what waits for the broker and then answers it.
pub(crate) enum Answer {
    Now(Reply),
    Later(Box<dyn FnOnce(&Control) -> Reply + Send>),
}

impl Answer {
    /// Waits for it.
    pub(crate) fn wait(self, control: &Control) -> Reply {
        match self {
            Answer::Now(reply) => reply,
            Answer::Later(finish) => finish(control),
        }
    }
}

impl Control {
    /// As [`Control::publish_all`], over the broker. `receivers` are those of this node.
    pub(super) fn publish_to_nodes(
        &self,
        pubsub: &Pubsub,
        publications: Vec<Posted>,
        status: u16,
        taken: &AtomicU64,
        count_receivers: bool,
    ) -> Reply {
        let topic = |posted: &Posted| posted.publication.topic.clone();
        let topics: Vec<_> = match count_receivers {
            true => publications.iter().map(topic).collect(),
            false => Vec::new(),
        };
        let submitted = pubsub.submit(publications);
        self.await_published(pubsub, submitted, status, taken, count_receivers.then_some(&topics))
    }

    /// Waits until the broker has what was submitted. The answer counts the receivers of these topics.
    pub(super) fn await_published(
        &self,
        pubsub: &Pubsub,
        submitted: Submitted,
        status: u16,
        taken: &AtomicU64,
        topics: Option<&[Arc<str>]>,
    ) -> Reply {
        let Sent { published, uncertain, complete, nodes, too_long, rejected, positions } =
            pubsub.wait(submitted);
        taken.fetch_add(published, Ordering::Relaxed);
        if complete {
            let mut reply = json!({ "published": published });
            if let Some(nodes) = nodes {
                reply["nodes"] = nodes.into();
            }
            if pubsub.keeps {
                put_positions(&mut reply, &positions);
            }
            if let Some(topics) = topics {
                reply["receivers"] = self.receivers(topics).into();
            }
            return Reply::json_with(status, &reply);
        }
        if too_long {
            let message = "the broker takes no publication of this length (max_payload of NATS), of \
                           those after the first `published`";
            return Reply::json_with(
                413,
                &json!({
                    "error": "publication_too_long",
                    "message": message,
                    "published": published,
                    "uncertain": uncertain,
                }),
            );
        }
        pubsub.unavailable.fetch_add(1, Ordering::Relaxed);
        let why = match rejected {
            Some(why) => why.to_string(),
            None => trouble(pubsub),
        };
        let message = match uncertain {
            0 => format!("{why}: {}", super::again(published)),
            _ => format!(
                "{why}: of the publications after the first `published`, `uncertain` may be published"
            ),
        };
        let reply = json!({
            "error": "pubsub_unavailable",
            "message": message,
            "published": published,
            "uncertain": uncertain,
        });
        Reply::json_with(503, &reply)
    }

    /// Ends sessions that lie in the store of the nodes. The receiver gets whether the store answered; there is none
    /// if nodes share no sessions.
    pub(super) fn end_in_store(&self, request: &Disconnect) -> Option<Receiver<bool>> {
        let stored = self.shared.stored_sessions.as_ref()?;
        stored.shared()?;
        let (sender, told) = sync_channel(1);
        // If it cannot be asked, the sender is dropped unused.
        stored.end_in_store(request, now_ns(), move |knows| {
            // The receiver may have stopped waiting.
            let _ = sender.try_send(knows);
        });
        Some(told)
    }

    /// Ends sessions on the other nodes; this one ends them already, by so many workers.
    pub(super) fn end_sessions_on_nodes(
        pubsub: &Arc<Pubsub>,
        request: &Disconnect,
        status: u16,
        notified: u64,
        in_store: Option<Receiver<bool>>,
    ) -> Answer {
        let (pubsub, submitted) = (Arc::clone(pubsub), pubsub.submit_disconnect(request));
        Answer::Later(Box::new(move |control| {
            let knows = |told: Receiver<bool>| told.recv_timeout(pubsub.timeout).unwrap_or(false);
            let stored = in_store.is_none_or(knows);
            match pubsub.wait(submitted).complete && stored {
                true => Reply::json_with(status, &json!({ "workers": notified })),
                false => control.not_on_all_nodes(&pubsub),
            }
        }))
    }

    /// The answer to a request to end sessions that did not reach the other nodes.
    fn not_on_all_nodes(&self, pubsub: &Pubsub) -> Reply {
        pubsub.unavailable.fetch_add(1, Ordering::Relaxed);
        let why = trouble(pubsub);
        let message = format!("{why}: only this node ends the sessions; send the request again");
        Reply::error(503, "pubsub_unavailable", &message)
    }

    /// `/api/cluster`.
    pub(super) fn cluster(&self, request: &ApiRequest<'_>) -> Reply {
        if request.method != "GET" {
            return Reply::error(405, "method_not_allowed", "expected GET /api/cluster");
        }
        Reply::json_with(200, &self.cluster_stats())
    }

    /// The body of `/api/cluster`, which is also a part of `/api/stats`; null without `--pubsub`.
    pub(super) fn cluster_stats(&self) -> Value {
        let Some(pubsub) = &self.shared.pubsub else { return Value::Null };
        let (broker, now_ns) = (&pubsub.broker, now_ns());
        let seconds = |since_ns: u64| now_ns.saturating_sub(since_ns) as f64 / 1e9;
        let connection = |shard: ShardFigures| {
            let full = shard.is_full.then_some(brokers::NO_ROOM);
            json!({
                "server": shard.server,
                "state": if shard.fault.is_none() { "connected" } else { "disconnected" },
                "seconds": seconds(shard.since_ns),
                "fault": shard.fault.as_ref().map(|fault| fault.kind.name()).or(full.map(|_| "full")),
                "reason": shard.fault.as_ref().map(|fault| fault.why.as_str()).or(full),
                "topics": shard.topics,
                "unconfirmed": shard.unconfirmed,
                "waiting": shard.waiting,
                "waiting_bytes": shard.waiting_bytes,
                "check_seconds": shard.check_ns as f64 / 1e9,
            })
        };
        let nodes = broker.nodes().into_iter().map(|seen| {
            let heard = seen.heard_ns_ago as f64 / 1e9;
            json!({ "id": seen.node.to_string(), "name": &*seen.name, "heard_seconds_ago": heard })
        });
        let counters = broker.counters();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let gaps = GapCause::ALL.map(GapCause::name).into_iter().zip(counters.gaps());
        let gaps: serde_json::Map<String, Value> =
            gaps.map(|(cause, count)| (cause.to_owned(), count.into())).collect();
        json!({
            "node": { "id": broker.node().to_string(), "name": broker.node_name() },
            "connections": broker.shards().into_iter().map(connection).collect::<Value>(),
            "nodes": nodes.collect::<Value>(),
            "published": count(&counters.published),
            "refused": count(&counters.refused),
            "received": count(&counters.received),
            "repeated": count(&counters.repeated),
            "malformed": count(&counters.malformed),
            "dropped": count(&counters.dropped),
            "rejected": count(&counters.rejected),
            "reset": count(&counters.reset),
            "gaps": gaps,
            "history": pubsub.keeps.then(|| json!({
                "loaded": count(&counters.loaded),
                "healed": count(&counters.healed),
                "fetches": count(&counters.fetches),
                "fetched": count(&counters.fetched),
                "no_memory": count(&counters.no_memory),
            })),
            "unconfirmed": count(&pubsub.unconfirmed),
            "unavailable": count(&pubsub.unavailable),
        })
    }

    /// Writes the metrics of what crosses nodes, if there is a broker.
    pub(super) fn cluster_metrics(&self, exposition: &mut Exposition) {
        let Some(pubsub) = &self.shared.pubsub else { return };
        let (broker, counters) = (&pubsub.broker, pubsub.broker.counters());
        let shards = broker.shards();
        let mut family = |name, help, of: &dyn Fn(&ShardFigures) -> f64| {
            let samples = shards.iter().map(|shard| (shard.server.clone(), of(shard)));
            exposition.labelled(name, Kind::Gauge, help, "server", samples);
        };
        let help = "Whether publications can be exchanged over a broker: 1 or 0.";
        family("pubsub_connected", help, &|shard| f64::from(shard.fault.is_none()));
        let help = "Topics that this node is subscribed to at a broker, or wants to be.";
        family("pubsub_topics", help, &|shard| shard.topics as f64);
        let help = "Those that the broker has not confirmed.";
        family("pubsub_topics_unconfirmed", help, &|shard| shard.unconfirmed as f64);
        let help = "Publications that wait to be sent to a broker.";
        family("pubsub_waiting", help, &|shard| shard.waiting as f64);
        let help = "Memory of these publications.";
        family("pubsub_waiting_bytes", help, &|shard| shard.waiting_bytes as f64);
        let help = "Round trip of the last check of a broker.";
        family("pubsub_check_seconds", help, &|shard| shard.check_ns as f64 / 1e9);
        let help = "Other nodes heard of in the last minute.";
        exposition.single("pubsub_nodes", Kind::Gauge, help, broker.nodes().len() as f64);
        let mut counter = |name, help, counter: &AtomicU64| {
            let value = counter.load(Ordering::Relaxed) as f64;
            exposition.single(name, Kind::Counter, help, value);
        };
        let help = "Publications and commands that a broker has taken from this node.";
        counter("pubsub_published", help, &counters.published);
        let help =
            "Publications and commands given up: no connection, too many waited, or too long.";
        counter("pubsub_refused", help, &counters.refused);
        let help = "Publications that arrived from brokers, this node's own included.";
        counter("pubsub_received", help, &counters.received);
        let help = "Those that had arrived before, and were not delivered again.";
        counter("pubsub_repeated", help, &counters.repeated);
        let help = "Messages from brokers that this version does not understand.";
        counter("pubsub_malformed", help, &counters.malformed);
        let help =
            "Messages from brokers dropped because too many waited; their topics have a gap.";
        counter("pubsub_dropped", help, &counters.dropped);
        let help = "Numbers of the newest publication sent again, so that losses are noticed.";
        counter("pubsub_beacons", help, &counters.beacons);
        counter("pubsub_subscribed", "Topics subscribed to at brokers.", &counters.subscribed);
        counter("pubsub_unsubscribed", "Topics unsubscribed at brokers.", &counters.unsubscribed);
        let help = "Subscriptions ended by a Redis Cluster that has moved their hash slot.";
        counter("pubsub_moved", help, &counters.moved);
        let help = "Commands for one topic that a broker has refused: its other topics go on.";
        counter("pubsub_rejected", help, &counters.rejected);
        let help = "Topics whose history or members were deleted, as no node had written them.";
        counter("pubsub_reset", help, &counters.reset);
        counter("pubsub_connects", "Connections to brokers opened.", &counters.connected);
        if pubsub.keeps {
            let help = "Topics whose history was loaded from a broker, each time.";
            counter("pubsub_history_loaded", help, &counters.loaded);
            let help =
                "Times that missed publications were fetched from a broker and then delivered.";
            counter("pubsub_history_healed", help, &counters.healed);
            let help = "Topics asked for at brokers that keep publications, each time.";
            counter("pubsub_history_fetches", help, &counters.fetches);
            let help = "Publications that brokers answered with.";
            counter("pubsub_history_fetched", help, &counters.fetched);
            let help = "Publications that a broker had no memory to keep, and so did not take.";
            counter("pubsub_history_no_memory", help, &counters.no_memory);
        }
        let help = "Subscriptions refused because the broker did not confirm their topic in time.";
        counter("pubsub_unconfirmed", help, &pubsub.unconfirmed);
        let help = "Requests to publish or to end sessions answered 503 because of the broker.";
        counter("pubsub_unavailable", help, &pubsub.unavailable);
        self.store_metrics(exposition);
        let gaps = GapCause::ALL.map(GapCause::name).into_iter().zip(counters.gaps());
        let gaps = gaps.map(|(cause, count)| (cause.to_owned(), count as f64));
        let help = "Topics of which publications may be missing, each time, by cause: missing, \
                    reconnected, overloaded or unreadable.";
        exposition.labelled("pubsub_gaps", Kind::Counter, help, "cause", gaps);
        let faults = FaultKind::ALL.map(FaultKind::name).into_iter().zip(counters.faults());
        let faults = faults.map(|(kind, count)| (kind.to_owned(), count as f64));
        let help = "Connections to brokers lost and attempts failed, by kind.";
        exposition.labelled("pubsub_faults", Kind::Counter, help, "kind", faults);
    }

    /// Writes the metrics of sessions that nodes leave for each other.
    fn store_metrics(&self, exposition: &mut Exposition) {
        let sessions = self.shared.stored_sessions.as_ref();
        let Some(shared) = sessions.and_then(|sessions| sessions.shared()) else { return };
        let results = [
            ("stored", &shared.stored),
            ("refused", &shared.refused),
            ("taken", &shared.taken),
            ("missing", &shared.missing),
            ("unavailable", &shared.unavailable),
        ];
        let due = shared.due.as_deref();
        let due = due
            .iter()
            .flat_map(|due| [("left", &due.left), ("untold", &due.untold), ("told", &due.told)]);
        let results = results.into_iter().chain(due);
        let results = results
            .map(|(result, count)| (result.to_owned(), count.load(Ordering::Relaxed) as f64));
        let help = "Sessions left for other nodes: stored or refused; those of other nodes that clients named: \
                    taken or missing; unavailable: the store did not answer in time; left or untold by this node when it drained, \
                    and told to the application for a node that has drained.";
        exposition.labelled("sessions_shared", Kind::Counter, help, "result", results);
    }
}

/// Adds the positions of publications to the answer: their epoch, or all epochs if topics have different ones.
fn put_positions(reply: &mut Value, positions: &[Option<Position>]) {
    let epoch = |position: Position| Epoch::new(position.epoch).to_string();
    let mut epochs: Vec<String> = positions.iter().flatten().copied().map(epoch).collect();
    epochs.dedup();
    match epochs.as_slice() {
        [] => {}
        [one] => reply["epoch"] = one.as_str().into(),
        _ => reply["epochs"] = positions.iter().map(|one| one.map(epoch)).collect(),
    }
    reply["offsets"] = positions.iter().map(|one| one.map(|one| one.offset)).collect();
}

/// Why a broker did not do something.
pub(super) fn trouble(pubsub: &Pubsub) -> String {
    let why = pubsub.broker.trouble();
    why.unwrap_or_else(|| format!("the broker did not answer within {:?}", pubsub.timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_epoch_of_all_or_that_of_each() {
        let at = |epoch, offset| Some(Position { epoch, offset });
        let answer = |positions: &[Option<Position>]| {
            let mut reply = json!({});
            put_positions(&mut reply, positions);
            reply
        };
        let one = json!({"epoch": "0000000a", "offsets": [3, null, 9]});
        assert_eq!(answer(&[at(10, 3), None, at(10, 9)]), one);
        let several = json!({"epochs": ["0000000a", "0000000b", null], "offsets": [3, 1, null]});
        assert_eq!(answer(&[at(10, 3), at(11, 1), None]), several);
        assert_eq!(answer(&[None]), json!({"offsets": [null]}));
    }
}
