//! The part of a connection that publishes: what was on its way when the last connection was lost, then what
//! waits, then beacons and signs of life. The next batch is sent when the broker has the one before.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::warn;

use super::Driver;
use crate::broker::{Content, NO_ROOM, OwnedExcept, Queued, State};
use crate::envelope::{Envelope, Except, Message, Sequence};
use crate::figures::Counters;
use crate::limits::{ALIVE_INTERVAL, BATCH_BYTES, BATCH_PUBLICATIONS, LOG_INTERVAL_NS};
use crate::ticket::Ticket;
use crate::transport::{Channel, Fault, Link, Outgoing, Taken};

/// Longest sleep without being woken.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// An encoded publication or command with its number.
pub(super) struct Numbered {
    outgoing: Outgoing,
    about: About,
}

/// A batch that the broker has not answered. The last messages may have no number.
pub(super) struct InFlight {
    batch: Rc<[Outgoing]>,
    about: Vec<About>,
}

/// What is known of a message.
struct About {
    /// Its number.
    at: Sequence,
    /// The ticket of the publisher that waits for its result.
    ticket: Option<Arc<Ticket>>,
    /// The broker has answered it with an error once, and what it kept of the topic was deleted.
    is_retried: bool,
}

impl InFlight {
    /// What has to be sent again.
    pub(super) fn into_numbered(self) -> impl Iterator<Item = Numbered> {
        let InFlight { batch, about } = self;
        about.into_iter().enumerate().filter_map(move |(at, about)| {
            let outgoing = Outgoing { again: true, ..batch.get(at)?.clone() };
            Some(Numbered { outgoing, about })
        })
    }
}

impl Driver {
    /// Publishes what is queued. Ends with a fault.
    pub(super) async fn publish(&self, link: &impl Link) -> Fault {
        let mut alive_ns = 0;
        loop {
            if !self.is_up() {
                self.shard().wakes.publisher.notified().await;
                continue;
            }
            let now_ns = self.broker.now_ns();
            let (mut batch, about) = self.take_batch(now_ns);
            let beacons = self.take_beacons(now_ns, batch.len());
            let beaconed = beacons.len();
            batch.extend(beacons);
            if now_ns >= alive_ns && self.has_control() {
                alive_ns = now_ns.saturating_add(ALIVE_INTERVAL.as_nanos() as u64);
                let (node, name) = (self.broker.node, self.broker.node_name());
                let body = Envelope::Alive { node, name }.encode();
                let channel = Channel::clone(&self.broker.control);
                batch.push(Outgoing { channel, body, keep: false, again: false });
            }
            if batch.is_empty() {
                self.rest(now_ns, alive_ns).await;
                continue;
            }
            let batch: Rc<[Outgoing]> = batch.into();
            *self.in_flight.borrow_mut() = Some(InFlight { batch: Rc::clone(&batch), about });
            let taken = match link.publish(&batch).await {
                Ok(taken) => taken,
                Err(fault) => return fault,
            };
            Counters::add(&self.broker.counters.beacons, beaconed);
            let Some(InFlight { batch, about }) = self.in_flight.borrow_mut().take() else {
                continue;
            };
            match self.took(&batch, about, taken) {
                Ok(invalid) if invalid.is_empty() => {}
                Ok(invalid) => {
                    if let Err(fault) = self.reset(link, &invalid).await {
                        return fault;
                    }
                }
                Err(fault) => return fault,
            }
        }
    }

    /// The broker has answered a batch. Returns the channels of which it keeps something that was not written by a
    /// node: the messages for them are sent once more.
    fn took(
        &self,
        batch: &[Outgoing],
        about: Vec<About>,
        taken: Vec<Taken>,
    ) -> Result<Vec<Channel>, Fault> {
        let (many, mut again, mut invalid) = (about.len(), Vec::new(), Vec::new());
        let mut refused = self.control_refused(batch, &taken).err();
        let mut sequences = self.sequences.borrow_mut();
        for ((outgoing, about), taken) in batch.iter().zip(about).zip(taken) {
            let About { at, ticket, is_retried } = about;
            match taken {
                Taken::To(reached) => {
                    Counters::add(&self.broker.counters.published, 1);
                    sequences.published(&outgoing.channel, at, reached);
                    ticket.inspect(|ticket| ticket.published(reached, None));
                }
                Taken::Kept { reached, position } => {
                    if self.shard().full_ns.load(Ordering::Relaxed) > 0 {
                        self.shard().full_ns.store(0, Ordering::Relaxed);
                    }
                    Counters::add(&self.broker.counters.published, 1);
                    sequences.published(&outgoing.channel, at, reached);
                    ticket.inspect(|ticket| ticket.published(reached, position));
                }
                // Its number will be missing.
                Taken::NoMemory => {
                    Counters::add(&self.broker.counters.no_memory, 1);
                    self.no_room();
                    // A publisher that waits counts it.
                    match ticket {
                        Some(ticket) => ticket.full(),
                        None => Counters::add(&self.broker.counters.refused, 1),
                    }
                }
                // Its number will be missing.
                Taken::TooLong => {
                    Counters::add(&self.broker.counters.refused, 1);
                    ticket.inspect(|ticket| ticket.too_long());
                }
                Taken::Rejected(why) if why.is_invalid && !is_retried => {
                    if !invalid.contains(&outgoing.channel) {
                        invalid.push(Channel::clone(&outgoing.channel));
                    }
                    let about = About { at, ticket, is_retried: true };
                    again.push(Numbered { outgoing: outgoing.clone(), about });
                }
                // Its number will be missing.
                Taken::Rejected(why) => {
                    refused = refused.or(self.rejected(&outgoing.channel, &why).err());
                    match ticket {
                        // A publisher that waits counts it.
                        Some(ticket) => ticket.rejected(why.why),
                        None => Counters::add(&self.broker.counters.refused, 1),
                    }
                }
            }
        }
        self.answered(many.saturating_sub(again.len()));
        // Before what has later numbers.
        let mut resend = self.resend.borrow_mut();
        again.into_iter().rev().for_each(|one| resend.push_front(one));
        refused.map_or(Ok(invalid), Err)
    }

    /// Every node needs the channel of commands and signs of life.
    fn control_refused(&self, batch: &[Outgoing], taken: &[Taken]) -> Result<(), Fault> {
        for (outgoing, taken) in batch.iter().zip(taken) {
            if let Taken::Rejected(why) = taken
                && outgoing.channel == self.broker.control
            {
                self.rejected(&outgoing.channel, why)?;
            }
        }
        Ok(())
    }

    /// The broker had no room for a publication.
    fn no_room(&self) {
        let now_ns = self.broker.now_ns();
        self.shard().full_ns.store(now_ns.max(1), Ordering::Relaxed);
        let next_ns = self.no_memory_ns.get().saturating_add(LOG_INTERVAL_NS);
        if self.no_memory_ns.get() == 0 || now_ns >= next_ns {
            self.no_memory_ns.set(now_ns.max(1));
            let server = &self.shard().server;
            warn!("publications refused: {server}: {NO_ROOM}");
        }
    }

    fn has_control(&self) -> bool {
        std::ptr::eq(self.broker.shard(&self.broker.control), self.shard())
    }

    /// Waits until there is something to send.
    async fn rest(&self, now_ns: u64, alive_ns: u64) {
        let beacon_ns = self.sequences.borrow().due_ns();
        let alive_ns = self.has_control().then_some(alive_ns);
        let due_ns = beacon_ns.into_iter().chain(alive_ns).min();
        let sleep = due_ns.map_or(SLEEP_MAX, |due_ns| {
            Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(SLEEP_MAX)
        });
        let woken = self.shard().wakes.publisher.notified();
        let _ = tokio::time::timeout(sleep, woken).await;
    }

    /// The next publications in their order, numbered and encoded.
    fn take_batch(&self, now_ns: u64) -> (Vec<Outgoing>, Vec<About>) {
        let (mut batch, mut about, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut resend = self.resend.borrow_mut();
        while batch.len() < BATCH_PUBLICATIONS && bytes < BATCH_BYTES {
            let Some(Numbered { outgoing, about: one }) = resend.pop_front() else { break };
            bytes += outgoing.body.len();
            batch.push(outgoing);
            about.push(one);
        }
        let mut sequences = self.sequences.borrow_mut();
        while batch.len() < BATCH_PUBLICATIONS && bytes < BATCH_BYTES {
            let Some(Queued { channel, content, ticket }) = self.pop() else { break };
            // A publisher that waited for too long was told that it is not published.
            if ticket.as_ref().is_some_and(|ticket| !ticket.send()) {
                self.answered(1);
                continue;
            }
            let at = sequences.next(now_ns, &channel);
            let keep = self.broker.settings.history.is_some()
                && matches!(&content, Content::Publication(one) if !one.transient);
            let body = self.encode(&content, at);
            bytes += body.len();
            batch.push(Outgoing { channel, body, keep, again: false });
            about.push(About { at, ticket, is_retried: false });
        }
        (batch, about)
    }

    fn pop(&self) -> Option<Queued> {
        let mut inner = self.shard().lock();
        if !matches!(inner.state, State::Up { .. }) {
            return None;
        }
        let queued = inner.queue.pop_front()?;
        inner.queue_bytes = inner.queue_bytes.saturating_sub(queued.bytes());
        inner.unanswered += 1;
        Some(queued)
    }

    /// So many that were popped are in the broker, or will never be.
    fn answered(&self, many: usize) {
        let mut inner = self.shard().lock();
        inner.unanswered = inner.unanswered.saturating_sub(many);
    }

    fn encode(&self, content: &Content, at: Sequence) -> Vec<u8> {
        let node = self.broker.node;
        match content {
            Content::Command(body) => Envelope::Command { node, at, body }.encode(),
            Content::Publication(publication) => {
                let except = match &publication.except {
                    OwnedExcept::None => Except::None,
                    OwnedExcept::Own(connection) => Except::Own(*connection),
                    OwnedExcept::Session(sid) => Except::Session(sid),
                };
                let message = Message {
                    node,
                    at,
                    binary: publication.binary,
                    transient: publication.transient,
                    except,
                    kind: publication.kind.as_deref(),
                    data: &publication.data,
                };
                Envelope::Publication(message).encode()
            }
        }
    }

    fn take_beacons(&self, now_ns: u64, taken: usize) -> Vec<Outgoing> {
        let most = BATCH_PUBLICATIONS.saturating_sub(taken);
        let due = self.sequences.borrow_mut().take_due(now_ns, most);
        let node = self.broker.node;
        let beacon = |beacon: crate::gaps::Beacon| {
            let body = Envelope::Beacon { node, newest: beacon.newest }.encode();
            Outgoing { channel: beacon.channel, body, keep: false, again: false }
        };
        due.into_iter().map(beacon).collect()
    }
}
