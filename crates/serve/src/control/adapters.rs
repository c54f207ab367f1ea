//! What broadcast adapters receive: publishing it, and their figures.

use std::sync::Arc;

use admin::{Exposition, Kind};
use brokers::adapters::{AdapterFigures, AdapterState};
use engine::sys::process::now_ns;
use serde_json::{Value, json};

use super::Control;
use crate::broadcast::Disconnect;
use crate::handler::Post;
use crate::pubsub::Posted;

impl Control {
    /// The longest message of an adapter, in bytes, as of the admin listener.
    pub(crate) fn body_bytes_max(&self) -> usize {
        (wire::Limits::BODY_BYTES as usize).max(self.message_bytes_max().saturating_mul(2))
    }

    /// Publishes what only this node has received: to the clients of all nodes. False if it has to be tried
    /// again.
    pub(crate) fn publish_everywhere(&self, posted: &Posted) -> bool {
        match &self.shared.pubsub {
            Some(pubsub) => pubsub.send(posted),
            None => self.publish_here(posted),
        }
    }

    /// Publishes what all nodes have received: to the clients of this one. False if it has to be tried again.
    pub(crate) fn publish_here(&self, posted: &Posted) -> bool {
        self.shared.directory.publish(&self.remote, &posted.publication).is_ok()
    }

    /// Ends sessions of this node, and of the others unless they were told, too. False if it has to be tried
    /// again.
    pub(crate) fn disconnect_from_adapter(
        &self,
        request: &Arc<Disconnect>,
        everywhere: bool,
    ) -> bool {
        let others = self.shared.pubsub.as_ref().filter(|_| everywhere);
        if let Some(stored) = &self.shared.stored_sessions
            && !stored.end_in_store(request, now_ns(), |_| {})
        {
            return false;
        }
        others.is_none_or(|pubsub| pubsub.send_disconnect(request))
            && self.post_disconnect(request).is_ok()
    }

    /// Tells workers that streams are confirmed. False if it has to be told again.
    pub(crate) fn post_confirmed(&self, streams: &[Box<str>]) -> bool {
        let streams: Arc<[Box<str>]> = streams.into();
        let bytes = streams.iter().map(|stream| stream.len() + size_of::<Box<str>>()).sum();
        let post = || Post::Confirmed(Arc::clone(&streams));
        self.shared.running().all(|worker| self.remote.post(worker, post(), bytes).is_ok())
    }

    /// Streams are received from now on: what was published before is not in their histories.
    pub(crate) fn interrupt_history(&self, streams: &[&str]) {
        // A broker keeps none of them.
        let Some(history) = self.shared.history().filter(|history| !history.is_replica()) else {
            return;
        };
        let now_ns = now_ns();
        streams.iter().for_each(|stream| history.interrupt(stream, now_ns));
    }

    /// Posts a request to end sessions to every running worker. Returns how many there are.
    pub(crate) fn post_disconnect(
        &self,
        request: &Arc<Disconnect>,
    ) -> Result<u64, engine::MailboxFull> {
        self.shared.end_named(request);
        let bytes = size_of::<Disconnect>() + request.identifiers.len();
        let mut notified = 0;
        for worker in self.shared.running() {
            self.remote.post(worker, Post::Disconnect(Arc::clone(request)), bytes)?;
            notified += 1;
        }
        Ok(notified)
    }

    /// Why not all adapters are open.
    pub(super) fn adapter_trouble(&self) -> Option<String> {
        self.shared.adapters.get().and_then(|open| open.adapters.trouble())
    }

    /// Publications accepted from each kind of adapter.
    pub(super) fn adapter_published(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let open = self.shared.adapters.get().into_iter().flat_map(|open| &open.published);
        open.map(|of| (of.adapter, of.count.load(std::sync::atomic::Ordering::Relaxed)))
    }

    /// Writes the metrics of adapters, if there are any.
    pub(super) fn adapter_metrics(&self, exposition: &mut Exposition) {
        let Some(open) = self.shared.adapters.get() else { return };
        let all = open.adapters.figures();
        let mut family = |name, kind, help, of: &dyn Fn(&AdapterFigures) -> f64| {
            let samples = all.iter().map(|each| {
                let labels =
                    vec![("adapter", each.adapter.to_owned()), ("place", each.place.clone())];
                (labels, of(each))
            });
            exposition.tagged(name, kind, help, samples);
        };
        let (counter, gauge) = (Kind::Counter, Kind::Gauge);
        let help = "Whether an adapter is open: 1, or 0 while its broker is away.";
        let is_open = |each: &AdapterFigures| f64::from(u8::from(each.state == AdapterState::Open));
        family("broadcast_adapter_open", gauge, help, &is_open);
        let help = "Times that an adapter was opened.";
        family("broadcast_adapter_opened", counter, help, &|each| each.opened as f64);
        let help = "Times that an adapter was closed by an error, or could not be opened.";
        family("broadcast_adapter_failed", counter, help, &|each| each.failed as f64);
        let help = "Messages received by an adapter.";
        family("broadcast_adapter_messages", counter, help, &|each| each.messages as f64);
        let help = "Bytes of messages received by an adapter.";
        family("broadcast_adapter_bytes", counter, help, &|each| each.bytes as f64);
        let help = "Messages that could not be understood.";
        family("broadcast_adapter_invalid", counter, help, &|each| each.invalid as f64);
        let help = "Messages of which something had to wait, because its topic was overloaded.";
        family("broadcast_adapter_waited", counter, help, &|each| each.waited as f64);
        let help = "Messages of which something was dropped, because too much waited.";
        family("broadcast_adapter_dropped", counter, help, &|each| each.dropped as f64);
        let help = "Messages taken over from a consumer that did not acknowledge them.";
        family("broadcast_adapter_claimed", counter, help, &|each| each.claimed as f64);
        let help = "Times that a stream of Rails may have missed messages, because Redis was away.";
        family("broadcast_adapter_missed", counter, help, &|each| each.missed as f64);
        let help = "Memory of what waits, because its topic is overloaded.";
        family("broadcast_adapter_waiting_bytes", gauge, help, &|each| each.waiting_bytes as f64);
        if let Some(confirmation) = &self.shared.confirmation {
            let help =
                "Subscriptions refused because Redis did not confirm a stream of Rails in time.";
            let refused = confirmation.unconfirmed() as f64;
            exposition.single("broadcast_adapter_unconfirmed", counter, help, refused);
        }
    }

    /// The same figures for `/api/stats`; null without adapters.
    pub(super) fn adapter_stats(&self) -> Value {
        let Some(open) = self.shared.adapters.get() else { return Value::Null };
        let adapters = open.adapters.figures().into_iter().map(|each| {
            let (state, reason) = match each.state {
                AdapterState::Connecting => ("connecting", None),
                AdapterState::Open => ("open", None),
                AdapterState::Down(reason) => ("down", Some(reason)),
            };
            json!({
                "adapter": each.adapter,
                "place": each.place,
                "state": state,
                "reason": reason,
                "since_seconds": each.since.as_secs_f64(),
                "opened": each.opened,
                "failed": each.failed,
                "messages": each.messages,
                "bytes": each.bytes,
                "invalid": each.invalid,
                "waited": each.waited,
                "dropped": each.dropped,
                "claimed": each.claimed,
                "missed": each.missed,
                "waiting_bytes": each.waiting_bytes,
            })
        });
        adapters.collect()
    }
}
