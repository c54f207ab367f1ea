//! [`Ledger`]: what happened on both sides, and whether it was right. Every handler records here,
//! and the first contradiction is the run's failure.

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use engine::{Closed, ConnId, ConnInfo, SlowConsumer};

/// The control plane's name as a publisher.
pub(crate) const CONTROL: u32 = 0;

/// One book for all.
#[derive(Clone)]
pub(crate) struct Ledger(Rc<RefCell<Book>>);

/// How many each publisher had published to a topic at some time.
type Counts = BTreeMap<u32, u32>;

struct Subscription {
    topic: u32,
    /// What was published before it began: may or may not arrive.
    since: Counts,
    /// What was published when it ended: no more may arrive.
    until: Option<Counts>,
    /// The next number expected from each publisher.
    next: Counts,
    missed: u64,
}

/// A connection that some client made.
struct Peer {
    subscription: Option<Subscription>,
    open: bool,
    /// It keeps to the protocol.
    behaves: bool,
}

pub(crate) struct Book {
    pub(crate) failure: Option<String>,
    /// Messages may be dropped for slow readers.
    pub(crate) lossy: bool,
    /// No new work is begun, and no fault is drawn.
    pub(crate) calm: bool,
    /// When the clock jumped last.
    pub(crate) jumped_ns: u64,
    /// Per process and connection: `open` was called, `closed` was called.
    lives: HashMap<(usize, ConnId), (bool, bool)>,
    /// Per process and connection: the cause given to `closing`.
    closing_causes: HashMap<(usize, ConnId), Closed>,
    /// Per process and worker: connections on which `open` was called and `closed` was not.
    open: BTreeMap<(usize, u16), u64>,
    /// Causes reported in the current turn.
    pub(crate) closed: Vec<Closed>,
    peers: Vec<Peer>,
    published: BTreeMap<u32, Counts>,
    /// Requests that wait for an answer.
    pub(crate) later: Vec<ConnId>,
    /// The server's connections with the peers they belong to, some closed long ago.
    pub(crate) known: Vec<(ConnId, u32)>,
    /// Messages of the server that arrived somewhere. Lines of streams are not among them: those in
    /// a write that was cut short all count as dropped.
    pub(crate) arrived: u64,
    /// Posts put into mailboxes and taken out of them.
    pub(crate) posted: u64,
    pub(crate) taken: u64,
}

impl Ledger {
    pub(crate) fn new(policy: SlowConsumer) -> Self {
        let control = Peer { subscription: None, open: false, behaves: false };
        Ledger(Rc::new(RefCell::new(Book {
            failure: None,
            lossy: policy != SlowConsumer::Disconnect,
            calm: false,
            jumped_ns: 0,
            lives: HashMap::new(),
            closing_causes: HashMap::new(),
            open: BTreeMap::new(),
            closed: Vec::new(),
            peers: vec![control],
            published: BTreeMap::new(),
            later: Vec::new(),
            known: Vec::new(),
            arrived: 0,
            posted: 0,
            taken: 0,
        })))
    }

    pub(crate) fn book(&self) -> RefMut<'_, Book> {
        self.0.borrow_mut()
    }
}

impl Book {
    /// Records a failure, unless there is one.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failure.get_or_insert(what.into());
    }

    pub(crate) fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(what());
        }
    }

    // ---- lives of connections ----

    /// A handler of `process` was called about `id`, which must not have ended.
    pub(crate) fn called(&mut self, process: usize, id: ConnId, about: &str) {
        let closed = self.lives.entry((process, id)).or_default().1;
        self.require(!closed, || format!("`{about}` after `closed` of {id}"));
    }

    pub(crate) fn drained(&mut self, process: usize, id: ConnId, info: Option<ConnInfo>) {
        self.called(process, id, "drained");
        let queued = info.map_or(0, |info| info.queued_bytes);
        self.require(queued == 0, || format!("{id} told drained with {queued} bytes queued"));
    }

    pub(crate) fn opened(&mut self, process: usize, id: ConnId) {
        self.called(process, id, "open");
        let life = self.lives.entry((process, id)).or_default();
        let twice = std::mem::replace(&mut life.0, true);
        *self.open.entry((process, id.worker())).or_default() += 1;
        self.require(!twice, || format!("`open` twice for {id}"));
    }

    /// It is open no longer, and its connection still there.
    pub(crate) fn closing(&mut self, process: usize, id: ConnId, why: Closed) {
        self.called(process, id, "closing");
        let was_open = self.lives.get(&(process, id)).is_some_and(|life| life.0);
        let twice = self.closing_causes.insert((process, id), why).is_some();
        self.require(was_open && !twice, || format!("`closing` for {id}, open: {was_open}"));
        let ordered = matches!(why, Closed::ByUs | Closed::Draining);
        self.require(!ordered, || format!("`closing` for {id} tells what was ordered: {why}"));
    }

    pub(crate) fn ended(&mut self, process: usize, id: ConnId, why: Closed, opened: bool) {
        self.closed.push(why);
        self.ended_without_socket(process, id, why, opened);
    }

    /// The same for one of which the kernel knows nothing.
    pub(crate) fn ended_without_socket(
        &mut self,
        process: usize,
        id: ConnId,
        why: Closed,
        opened: bool,
    ) {
        let told = self.closing_causes.remove(&(process, id));
        self.require(told.is_none_or(|told| told == why), || {
            format!("{id} closed by {why}, told before: {told:?}")
        });
        let life = self.lives.entry((process, id)).or_default();
        let (was_open, twice) = (life.0, std::mem::replace(&mut life.1, true));
        if was_open && let Some(open) = self.open.get_mut(&(process, id.worker())) {
            *open -= 1;
        }
        self.require(!twice, || format!("`closed` twice for {id}"));
        self.require(was_open == opened, || format!("{id} closed as opened: {opened}"));
    }

    /// Connections of a worker on which `open` was called and `closed` was not.
    pub(crate) fn open_on(&self, process: usize, worker: u16) -> u64 {
        self.open.get(&(process, worker)).copied().unwrap_or(0)
    }

    // ---- peers ----

    /// A client makes a connection; its name.
    pub(crate) fn new_peer(&mut self, behaves: bool) -> u32 {
        self.peers.push(Peer { subscription: None, open: true, behaves });
        self.peers.len() as u32 - 1
    }

    pub(crate) fn behaves(&self, peer_id: u32) -> bool {
        self.peers.get(peer_id as usize).is_some_and(|peer| peer.behaves)
    }

    /// The client's side of a connection has ended.
    pub(crate) fn peer_gone(&mut self, peer_id: u32) {
        if let Some(peer) = self.peers.get_mut(peer_id as usize) {
            peer.open = false;
        }
    }

    // ---- topics ----

    /// So many has the publisher published to the topic.
    pub(crate) fn published(&self, topic: u32, publisher: u32) -> u32 {
        let counts = self.published.get(&topic);
        counts.and_then(|counts| counts.get(&publisher)).copied().unwrap_or(0)
    }

    pub(crate) fn publishes(&mut self, topic: u32, publisher: u32, number: u32) {
        let next = self.published.entry(topic).or_default().entry(publisher).or_default();
        let expected = std::mem::replace(next, number + 1);
        self.require(expected == number, || {
            format!("publisher {publisher} published {number} instead of {expected}")
        });
    }

    pub(crate) fn subscribes(&mut self, peer_id: u32, topic: u32) {
        let since = self.published.get(&topic).cloned().unwrap_or_default();
        let subscription =
            Subscription { topic, since, until: None, next: Counts::new(), missed: 0 };
        if let Some(peer) = self.peers.get_mut(peer_id as usize) {
            peer.subscription = Some(subscription);
        }
    }

    pub(crate) fn unsubscribes(&mut self, peer_id: u32) {
        let peer = self.peers.get_mut(peer_id as usize);
        if let Some(subscription) = peer.and_then(|peer| peer.subscription.as_mut()) {
            let now = self.published.get(&subscription.topic).cloned().unwrap_or_default();
            subscription.until = Some(now);
        }
    }

    /// A subscriber got a publication.
    pub(crate) fn received(&mut self, peer_id: u32, publisher: u32, number: u32) {
        let subscription =
            self.peers.get_mut(peer_id as usize).and_then(|peer| peer.subscription.as_mut());
        let Some(subscription) = subscription else {
            return self.fail(format!("{peer_id} got a publication without a subscription"));
        };
        let over = subscription.until.as_ref();
        let over = over.is_some_and(|until| number >= until.get(&publisher).copied().unwrap_or(0));
        let since = subscription.since.get(&publisher).copied().unwrap_or(0);
        let next = subscription.next.get(&publisher).copied();
        let skipped = number.saturating_sub(next.unwrap_or(since));
        let duplicated = next.is_some_and(|next| number < next);
        subscription.missed += u64::from(skipped);
        subscription.next.insert(publisher, number + 1);
        let topic = subscription.topic;
        let lossy = self.lossy;
        let there = self.published(topic, publisher);
        let what =
            || format!("{peer_id} got {number} of {publisher} on {topic}, expected {next:?}");
        self.require(number < there, || format!("{} before it was published", what()));
        self.require(!over, || format!("{} after unsubscribing", what()));
        self.require(!duplicated, || format!("{} again", what()));
        self.require(lossy || skipped == 0, || format!("{}, since {since}: lost", what()));
    }

    /// After a calm: every subscriber that stayed has got everything. Returns what was missed by
    /// subscribers of a server that may drop.
    pub(crate) fn check_topics(&mut self) -> u64 {
        let mut missed = 0;
        let mut wrong = Vec::new();
        for (peer_id, peer) in self.peers.iter().enumerate().filter(|(_, peer)| peer.open) {
            let Some(subscription) = &peer.subscription else { continue };
            missed += subscription.missed;
            if subscription.until.is_some() {
                continue;
            }
            let Some(published) = self.published.get(&subscription.topic) else { continue };
            for (publisher, &count) in published {
                let since = subscription.since.get(publisher).copied().unwrap_or(0);
                let next = subscription.next.get(publisher).copied().unwrap_or(since);
                let lacks = count.saturating_sub(next);
                if lacks > 0 && self.lossy {
                    missed += u64::from(lacks);
                } else if lacks > 0 {
                    wrong.push(format!("{peer_id} never got {next}.. of {publisher}'s {count}"));
                }
            }
        }
        if let Some(first) = wrong.into_iter().next() {
            self.fail(first);
        }
        missed
    }
}
