//! [`Transport`]: how a broker is reached; [`Link`]: one connection to it, or several that live and end together.
//!
//! A transport knows channels and bytes only. What a message means (`envelope.rs`), what is wanted
//! (`interest.rs`) and what is missing (`gaps.rs`) is the same for all of them, and the driver (`driver.rs`)
//! calls each link from one thread.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::broker::Settings;
use crate::kept::{Kept, Position};
use crate::members::MemberStore;
use crate::placement::Placement;
use crate::store::{NewValue, StoreAnswer, StoreCommand};

/// The name of a channel or a subject, as the broker knows it.
pub type Channel = Arc<str>;

/// A message for all subscribers of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where it goes.
    pub channel: Channel,
    /// An encoded envelope.
    pub body: Vec<u8>,
    /// The broker keeps it, if there is a history.
    pub keep: bool,
    /// It may have been published by an earlier connection.
    pub again: bool,
}

/// What a broker did with a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It has it, and passed it to so many connections, if it tells; 0 only if nobody is subscribed.
    To(Option<u64>),
    /// It keeps it.
    Kept {
        /// As in [`Taken::To`].
        reached: Option<u64>,
        /// Where; `None` if it is not kept any more.
        position: Option<Position>,
    },
    /// It has no memory for it: the message was not published.
    NoMemory,
    /// It takes none of this length: the message was not sent.
    TooLong,
    /// It refused this message, and takes others.
    Rejected(Rejected),
}

/// Why a broker refused a command for one topic. The connection and the other topics go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// What the broker answered, with the name of the key or channel where it is known.
    pub why: Arc<str>,
    /// What the broker keeps of the topic was not written by a node: nothing can be read or added.
    pub is_invalid: bool,
}

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Where it was published.
    pub channel: Box<str>,
    /// What was published.
    pub body: Vec<u8>,
    /// Where it is kept, and the offset of the one before it; `None` if it is not kept.
    pub kept: Option<(Kept, u64)>,
}

/// What comes from a broker of its own accord.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// A message.
    Message(Incoming),
    /// A subscription has ended and the others have not: what is published to this channel does not arrive any more.
    Ended(Box<str>),
}

/// What a broker keeps of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The epoch of its offsets.
    pub epoch: u32,
    /// All that was published after this offset is in `messages`.
    pub floor: u64,
    /// So is all that was published after this time, in milliseconds since 1970.
    pub floor_ms: u64,
    /// The last offset; 0 if there was no publication in this epoch.
    pub last: u64,
    /// Encoded envelopes in the order of their offsets.
    pub messages: Vec<(Kept, Vec<u8>)>,
}

impl Fetched {
    /// Whether nothing is missing between a position and the messages.
    #[must_use]
    pub fn continues(&self, after: Position) -> bool {
        self.epoch == after.epoch && self.floor <= after.offset && after.offset <= self.last
    }

    /// Memory of the messages, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(|(_, body)| size_of::<(Kept, Vec<u8>)>() + body.len()).sum()
    }
}

/// Why there is no connection to a broker, or not any more.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Nothing accepts connections there, or not in time.
    Unreachable,
    /// The broker refused the credentials, or what they permit is not enough.
    Refused,
    /// It is a replica: what is published there reaches no other server.
    ReadOnly,
    /// It did not answer in time.
    Silent,
    /// It closed the connection, or the network did.
    Closed,
    /// It answered what it should not.
    Protocol,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 6] = [
        FaultKind::Unreachable,
        FaultKind::Refused,
        FaultKind::ReadOnly,
        FaultKind::Silent,
        FaultKind::Closed,
        FaultKind::Protocol,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Unreachable => "unreachable",
            FaultKind::Refused => "refused",
            FaultKind::ReadOnly => "read_only",
            FaultKind::Silent => "silent",
            FaultKind::Closed => "closed",
            FaultKind::Protocol => "protocol",
        }
    }
}

/// The end of a connection, or of an attempt to connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What operators count.
    pub kind: FaultKind,
    /// One sentence for logs and `/ready`, without secrets.
    pub why: String,
}

impl Fault {
    /// A fault with its reason.
    pub fn new(kind: FaultKind, why: impl Into<String>) -> Self {
        Fault { kind, why: why.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Fault {}

/// How a broker is reached.
pub trait Transport {
    /// A connection.
    type Link: Link;

    /// Which of the transports of a process has which names. The same for all of them.
    fn placement(&self) -> Placement {
        Placement::Hashed
    }

    /// The server for logs, without secrets.
    fn server(&self) -> String;

    /// Connects and authenticates, and verifies that the server takes publications. What arrives goes to the
    /// inbox until the link is dropped. With [`Settings::history`] it verifies that it keeps publications, too. The
    /// caller bounds the time.
    ///
    /// # Errors
    /// Why not, so that it is tried again later.
    fn connect(
        &self,
        inbox: Inbox,
        settings: &Settings,
    ) -> impl Future<Output = Result<Self::Link, Fault>>;
}

/// An open connection. All its methods may be in progress at the same time; after the first fault it is dropped.
pub trait Link: MemberStore {
    /// Publishes in this order. Ends when the broker has all of them that it takes.
    ///
    /// # Errors
    /// Any number of them may have been published.
    fn publish(&self, batch: &[Outgoing]) -> impl Future<Output = Result<Vec<Taken>, Fault>>;

    /// Subscribes to channels, at most [`crate::limits::BATCH_CHANNELS`]. Ends when the broker has confirmed all
    /// of them: what is published from then on arrives in the inbox. Returns those that it refused.
    ///
    /// # Errors
    /// The broker did not answer, or refused more than these channels.
    fn subscribe(
        &self,
        channels: &[Channel],
    ) -> impl Future<Output = Result<Vec<(Channel, Rejected)>, Fault>>;

    /// Ends subscriptions, at most [`crate::limits::BATCH_CHANNELS`].
    ///
    /// # Errors
    /// The broker did not answer.
    fn unsubscribe(&self, channels: &[Channel]) -> impl Future<Output = Result<(), Fault>>;

    /// What the broker keeps of channels, at most [`crate::limits::BATCH_CHANNELS`], after a position of each; all
    /// if there is none, or if it is not known any more. Only with [`Settings::history`].
    ///
    /// # Errors
    /// The broker did not answer, or refused more than these channels.
    fn fetch(
        &self,
        channels: &[(Channel, Option<Position>)],
    ) -> impl Future<Output = Result<Vec<Result<Fetched, Rejected>>, Fault>>;

    /// Deletes what is kept of channels, after [`Rejected::is_invalid`]: the next command begins another epoch.
    ///
    /// # Errors
    /// The broker refused it or did not answer.
    fn reset(&self, _: &[Channel]) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// Verifies that the broker answers and still takes publications.
    ///
    /// # Errors
    /// It does not.
    fn check(&self) -> impl Future<Output = Result<(), Fault>>;

    /// Keeps and takes values, at most [`crate::limits::STORE_BATCH`], in this order. Ends with an answer to each.
    ///
    /// # Errors
    /// Any number of them may have been performed.
    fn store(
        &self,
        commands: &[StoreCommand],
    ) -> impl Future<Output = Result<Vec<StoreAnswer>, Fault>> {
        let refused = || StoreAnswer::Refused("this broker keeps no values".into());
        let all = commands.iter().map(|_| refused()).collect();
        async { Ok(all) }
    }

    /// Returns the values of keys, which stay; at most [`crate::limits::STORE_BATCH`].
    ///
    /// # Errors
    /// The broker did not answer.
    fn read(&self, keys: &[Arc<str>]) -> impl Future<Output = Result<Vec<StoreAnswer>, Fault>> {
        let all = vec![StoreAnswer::Unsupported; keys.len()];
        async { Ok(all) }
    }

    /// Keeps values where there is none by their key, at most [`crate::limits::STORE_BATCH`].
    ///
    /// # Errors
    /// Any number of them may have been kept.
    fn add(&self, values: &[NewValue]) -> impl Future<Output = Result<Vec<StoreAnswer>, Fault>> {
        let all = vec![StoreAnswer::Unsupported; values.len()];
        async { Ok(all) }
    }

    /// Ends when the connection has ended.
    fn ended(&self) -> impl Future<Output = Fault>;
}

/// Where a link puts what arrives, in the broker's order. It takes a bounded number of bytes: what finds no room
/// is dropped and counted, and the hole in its sender's numbers tells that it is missing.
#[derive(Clone)]
pub struct Inbox {
    sender: UnboundedSender<Arrived>,
    waiting: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
    bytes_max: usize,
}

/// The other end of an [`Inbox`].
pub struct InboxReceiver {
    receiver: UnboundedReceiver<Arrived>,
    waiting: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

impl Inbox {
    /// An empty inbox for `bytes_max` bytes. `dropped` counts what finds no room, and what is left in it.
    #[must_use]
    pub fn new(bytes_max: usize, dropped: Arc<AtomicU64>) -> (Inbox, InboxReceiver) {
        let (sender, receiver) = unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (waits, drops) = (Arc::clone(&waiting), Arc::clone(&dropped));
        let other = InboxReceiver { receiver, waiting: waits, dropped: drops };
        (Inbox { sender, waiting, dropped, bytes_max }, other)
    }

    /// Adds a message, if there is room.
    pub fn push(&self, message: Incoming) {
        let bytes = message.bytes();
        if self.waiting.load(Ordering::Relaxed).saturating_add(bytes) > self.bytes_max {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.add(Arrived::Message(message));
    }

    /// Tells that the broker has ended a subscription. It always finds room: there is one for each subscription.
    pub fn ended(&self, channel: Box<str>) {
        self.add(Arrived::Ended(channel));
    }

    fn add(&self, arrived: Arrived) {
        let bytes = arrived.bytes();
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        if self.sender.send(arrived).is_err() {
            // The link is being dropped.
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl InboxReceiver {
    /// What arrived next; `None` once the link is gone.
    pub async fn next(&mut self) -> Option<Arrived> {
        let message = self.receiver.recv().await?;
        self.waiting.fetch_sub(message.bytes(), Ordering::Relaxed);
        Some(message)
    }

    /// What arrived next, if there is something now.
    pub fn try_next(&mut self) -> Option<Arrived> {
        let message = self.receiver.try_recv().ok()?;
        self.waiting.fetch_sub(message.bytes(), Ordering::Relaxed);
        Some(message)
    }

    /// Nothing arrives any more.
    pub fn close(&mut self) {
        self.receiver.close();
    }
}

impl Drop for InboxReceiver {
    fn drop(&mut self) {
        self.receiver.close();
        self.dropped.fetch_add(self.receiver.len() as u64, Ordering::Relaxed);
    }
}

impl Incoming {
    /// Memory that it holds, in bytes.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.channel.len() + self.body.len()
    }
}

impl Arrived {
    fn bytes(&self) -> usize {
        match self {
            Arrived::Message(message) => message.bytes(),
            Arrived::Ended(channel) => size_of::<Self>() + channel.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_keeps_the_order_and_drops_what_finds_no_room() {
        let dropped = Arc::new(AtomicU64::new(0));
        let message =
            |number: u8| Incoming { channel: "a".into(), body: vec![number; 100], kept: None };
        let room_for_two = 2 * message(0).bytes();
        let (inbox, mut receiver) = Inbox::new(room_for_two, Arc::clone(&dropped));
        (1..=3).for_each(|number| inbox.push(message(number)));
        let arrived = |number| Some(Arrived::Message(message(number)));
        assert_eq!(receiver.try_next(), arrived(1));
        inbox.push(message(4));
        inbox.ended("b".into());
        assert_eq!((receiver.try_next(), receiver.try_next()), (arrived(2), arrived(4)));
        assert_eq!(receiver.try_next(), Some(Arrived::Ended("b".into())), "whatever the room");
        assert_eq!(receiver.try_next(), None);
        assert_eq!(dropped.load(Ordering::Relaxed), 1, "the third");
    }
}
