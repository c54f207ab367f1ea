//! The history of topics that apps share: what is kept, by the crate `topics` or by the broker, and what JavaScript
//! does with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use brokers::HistorySettings;
use engine::sys::process::now_ns;
use engine::{ConnId, Core, Sys};
use napi_sys::napi_value;
use topics::{
    Directory, Epoch, Eviction, History, HistoryLimits, KeptAt, KeptMessage, Position, Start,
    Unavailable,
};

use crate::app::{ARGUMENTS, App, natives};
use crate::broker::random;
use crate::handler::{Event, Js, User};
use crate::napi::{Env, Thrown};
use crate::replays::{Beginning, POSITIONS, Replay, Sent};
use crate::shared::Peers;
use crate::sockets::{shared_topic, topic};

natives![history_follow, history_read, history_subscribe];

/// Bytes of the messages that one call reads, if they are several.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// How often what is too old is removed, where nobody reads or publishes.
const EXPIRE_NS: u64 = 10_000_000_000;
/// A change of the time of day below this is not followed, so that times of messages stay as they are.
const CLOCK_NS: u64 = 10_000_000;

/// Bits of the last argument of `history_subscribe`.
const WITH_POSITIONS: u32 = 1;
const MAY_WAIT: u32 = 2;

/// What `history_subscribe` has done: it is not open, all is sent, an event follows, or another call has to.
const GONE: i32 = 0;
const DONE: i32 = 1;
const PENDING: i32 = 2;
const BEHIND: i32 = 3;

/// The history of topics that apps share.
pub(crate) struct Keeper {
    pub(crate) limits: HistoryLimits,
    pub(crate) history: Arc<History>,
    /// Unix time at zero of the monotonic clock, in nanoseconds.
    clock_ns: AtomicU64,
    /// When to remove what is too old.
    expire_ns: AtomicU64,
    /// Requests for missed messages: those that got all, then by reason those that did not.
    requests: [AtomicU64; 1 + Unavailable::ALL.len()],
}

impl Keeper {
    /// An empty history, or a replica of what a broker keeps.
    pub(crate) fn new(limits: HistoryLimits, at_broker: bool) -> Keeper {
        let now_ns = now_ns();
        let history = match at_broker {
            true => History::replica(limits, now_ns),
            false => History::new(Epoch::new(random() as u32), limits, now_ns),
        };
        Keeper {
            limits,
            history: Arc::new(history),
            clock_ns: AtomicU64::new(unix_ns_at_zero()),
            expire_ns: AtomicU64::new(now_ns.saturating_add(EXPIRE_NS)),
            requests: Default::default(),
        }
    }

    /// What a broker is to keep.
    pub(crate) fn settings(&self) -> HistorySettings {
        let HistoryLimits { messages, age_ns, .. } = self.limits;
        HistorySettings { messages, age: Duration::from_nanos(age_ns) }
    }

    /// The time of the monotonic clock at a Unix time in milliseconds; 0 if it was before its zero.
    pub(crate) fn monotonic_ns(&self, unix_ms: u64) -> u64 {
        let clock_ns = self.clock_ns.load(Ordering::Relaxed);
        unix_ms.saturating_mul(1_000_000).saturating_sub(clock_ns)
    }

    fn unix_ms(&self, at_ns: u64) -> u64 {
        at_ns.saturating_add(self.clock_ns.load(Ordering::Relaxed)) / 1_000_000
    }

    /// The place of what a broker keeps, by this process's clock.
    pub(crate) fn kept_at(&self, kept: brokers::Kept) -> KeptAt {
        let brokers::Position { epoch, offset } = kept.position;
        let position = Position { epoch: Epoch::new(epoch), offset };
        KeptAt { position, at_ns: self.monotonic_ns(kept.time_ms) }
    }

    /// Removes what is too old, now and then. Returns when to be called again.
    fn expire(&self, now_ns: u64) -> Option<u64> {
        let due_ns = self.expire_ns.load(Ordering::Relaxed);
        let next_ns = now_ns.saturating_add(EXPIRE_NS);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let takes = || self.expire_ns.compare_exchange(due_ns, next_ns, success, failure).is_ok();
        // Another app may be doing it.
        if now_ns >= due_ns && takes() {
            let (before, now) = (self.clock_ns.load(Ordering::Relaxed), unix_ns_at_zero());
            if before.abs_diff(now) > CLOCK_NS {
                self.clock_ns.store(now, Ordering::Relaxed);
            }
            self.history.expire(now_ns);
        }
        let due_ns = if due_ns > now_ns { due_ns } else { next_ns };
        (self.history.bytes() > 0).then_some(due_ns)
    }

    fn count(&self, why: Option<Unavailable>) {
        let counter = self.requests.get(why.map_or(0, |why| 1 + why as usize));
        counter.into_iter().for_each(|counter| _ = counter.fetch_add(1, Ordering::Relaxed));
    }

    /// `[topics, messages, bytes, published, [evicted by Eviction::ALL], [requests]]`
    pub(crate) fn state(&self, env: Env) -> napi_value {
        let stats = self.history.stats();
        let number = |number: u64| env.number(number as f64);
        let evicted = env.array(Eviction::ALL.iter().zip(stats.evicted).map(|(_, n)| number(n)));
        let requests = self.requests.iter().map(|one| number(one.load(Ordering::Relaxed)));
        env.array([
            number(stats.topics as u64),
            number(stats.messages as u64),
            number(stats.bytes as u64),
            number(stats.kept_total),
            evicted,
            env.array(requests),
        ])
    }

    /// Where requested messages begin: `undefined`, a Unix time in milliseconds, or a position as text.
    fn start(&self, env: Env, since: napi_value) -> Option<Result<Start, Unavailable>> {
        if let Some(ms) = env.to_f64(since) {
            return Some(Ok(Start::Since(self.monotonic_ns(ms.max(0.0) as u64))));
        }
        // What is no position is none of this history.
        let position = Position::parse(&env.text(since)?).ok_or(Unavailable::Epoch);
        Some(position.map(Start::After))
    }
}

/// Unix time at zero of the monotonic clock, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "the time of day, for the times of messages")]
fn unix_ns_at_zero() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (unix.as_nanos() as u64).saturating_sub(now_ns())
}

impl Js {
    /// What is kept of the topics, if anything is.
    pub(crate) fn peers_with_history(&self) -> Option<Arc<Peers>> {
        let peers = self.shared.as_ref()?.peers();
        peers.keeper.is_some().then(|| Arc::clone(peers))
    }

    /// Where topics with a history have their members, for threads.
    pub(crate) fn directory_with_history(&self) -> Option<Directory> {
        let shared = self.shared.as_ref().filter(|_| self.has_history())?;
        Some(shared.place().1)
    }

    fn has_history(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.peers().keeper.is_some())
    }

    /// Whether a socket is subscribed to messages with positions.
    pub(crate) fn gets_positions<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        topic: &str,
    ) -> bool {
        self.has_history() && self.is_member_of(core, id, topic, core.encoding(id) | POSITIONS)
    }

    /// Whether a socket is subscribed.
    pub(crate) fn is_member<S: Sys>(&self, core: &Core<S, Self>, id: ConnId, topic: &str) -> bool {
        self.is_member_of(core, id, topic, core.encoding(id))
            || self.gets_positions(core, id, topic)
    }

    fn is_member_of<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        topic: &str,
        kind: u32,
    ) -> bool {
        let is = |user: &User| self.topics.is_subscribed(&user.memberships, topic, kind);
        core.user(id).is_some_and(is)
    }

    /// Ends a subscription; returns whether there was one.
    pub(crate) fn end_subscription<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &str,
    ) -> bool {
        let has_history = self.has_history();
        self.replays.end_subscription(core, &mut self.topics, id, topic, has_history)
    }

    /// Sends what sockets missed, and removes what is too old. Returns when to be called again.
    pub(crate) fn turn_history<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let peers = self.peers_with_history()?;
        let keeper = peers.keeper.as_ref()?;
        for (id, sent) in self.replays.turn(core, &mut self.topics, &keeper.history) {
            if let Some(sent) = sent {
                self.tell_sent(core, keeper, id.slot(), &sent);
            }
        }
        let expire_ns = keeper.expire(core.now_ns());
        if self.replays.has_ready() { Some(core.now_ns()) } else { expire_ns }
    }

    /// A subscription has been sent what it missed.
    pub(crate) fn tell_sent<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        keeper: &Keeper,
        slot: u32,
        sent: &Sent,
    ) {
        keeper.count(sent.why);
        self.emit(core, Event::Replayed, |env| {
            let topic = env.string(&sent.topic);
            [env.int(slot as i32), topic, reason(env, sent.why), position(env, sent.last)]
        });
    }
}

impl Js {
    /// Subscribes a socket to what is published from now on: nothing of that is sent from what is kept, which may be less.
    fn subscribe_from_now<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        history: &History,
        slot: u32,
        id: ConnId,
        topic: &Arc<str>,
        kind: u32,
    ) -> (i32, Option<Unavailable>, Option<Position>) {
        if let Some(threads) = &mut self.threads {
            // As a member of the topic: what is published after its last position comes after the command.
            threads.join(slot, id, topic);
            let last = history.last(topic, core.now_ns());
            let passed = threads.subscribe_from(slot, id, topic, Beginning::After { kind, last });
            return (if passed { DONE } else { BEHIND }, None, last);
        }
        self.end_subscription(core, id, topic);
        let kind = core.encoding(id) | kind;
        self.topics.subscribe(core, id, topic, kind);
        let last = history.last(topic, core.now_ns());
        if let Some(last) = last {
            self.topics.skip_until(core, id, topic, kind, last);
        }
        (DONE, None, last)
    }
}

fn reason(env: Env, why: Option<Unavailable>) -> napi_value {
    why.map_or_else(|| env.undefined(), |why| env.string(why.name()))
}

fn position(env: Env, position: Option<Position>) -> napi_value {
    position.map_or_else(|| env.undefined(), |position| env.string(&position.to_string()))
}

fn with_history(app: &App) -> Result<Arc<Peers>, Thrown> {
    let peers = app.with(|js, _| js.peers_with_history());
    peers.ok_or_else(|| "without the option history nothing is kept".into())
}

/// `history_follow(topic) → whether what is kept of it can be read`; if not, the event `confirmed` follows.
fn history_follow(
    app: &App,
    env: Env,
    arguments: &[napi_value; ARGUMENTS],
) -> Result<napi_value, Thrown> {
    let topic = shared_topic(app, env, arguments[0])?;
    let can = app.with(|js, _| js.shared.as_ref().is_none_or(|shared| shared.prepare(&topic)));
    Ok(env.bool(can))
}

/// `history_read(topic, since, limit) → [reason or undefined, position or undefined, more, data, position, time, …]`:
/// from `since` on, or without it the latest.
fn history_read(
    app: &App,
    env: Env,
    arguments: &[napi_value; ARGUMENTS],
) -> Result<napi_value, Thrown> {
    let [name, since, limit, ..] = *arguments;
    let (topic, limit) = (topic(env, name)?, env.to_u32(limit) as usize);
    let peers = with_history(app)?;
    let Some(keeper) = &peers.keeper else { return Ok(env.undefined()) };
    let (history, now_ns) = (&keeper.history, now_ns());
    let start = keeper.start(env, since);
    let (most, bytes) =
        if start.is_some() { (limit, PAGE_BYTES) } else { (usize::MAX, usize::MAX) };
    let is_latest = start.is_none();
    let page = start.transpose().and_then(|start| history.page(&topic, start, most, bytes, now_ns));
    if !is_latest {
        keeper.count(page.as_ref().err().copied());
    }
    let mut page = match page {
        Ok(page) => page,
        Err(why) => {
            let last = position(env, history.last(&topic, now_ns));
            return Ok(env.array([reason(env, Some(why)), last, env.bool(false)]));
        }
    };
    let (epoch, messages) = (page.epoch, &mut page.messages);
    if is_latest {
        messages.drain(..messages.len() - latest(messages, limit));
    }
    let read = messages.last().map(|message| message.offset);
    let more = read.is_some_and(|read| read < page.last);
    let end = if more { read } else { None }.unwrap_or(page.last);
    let head =
        [env.undefined(), position(env, Some(Position { epoch, offset: end })), env.bool(more)];
    let each = |message: &KeptMessage| {
        let data = match message.binary {
            true => env.array_buffer(&message.data),
            false => env.string(&String::from_utf8_lossy(&message.data)),
        };
        let place = Position { epoch, offset: message.offset };
        let time = env.number(keeper.unix_ms(message.at_ns) as f64);
        [data, position(env, Some(place)), time]
    };
    Ok(env.array(head.into_iter().chain(messages.iter().flat_map(each))))
}

/// How many of these are the latest up to a number, and up to the bytes of a page.
fn latest(messages: &[KeptMessage], limit: usize) -> usize {
    let mut bytes = 0;
    let fits = |(many, message): &(usize, &KeptMessage)| {
        bytes += message.data.len();
        *many < limit && (bytes <= PAGE_BYTES || *many == 0)
    };
    messages.iter().rev().enumerate().take_while(fits).count()
}

/// `history_subscribe(slot, topic, since, flags) → [outcome, reason or undefined, position or undefined]`: subscribes a
/// socket to what is published from `since`, or from now on. If it is subscribed already, that ends.
fn history_subscribe(
    app: &App,
    env: Env,
    arguments: &[napi_value; ARGUMENTS],
) -> Result<napi_value, Thrown> {
    let [slot, name, since, flags, ..] = *arguments;
    let (slot, topic, flags) = (env.to_u32(slot), topic(env, name)?, env.to_u32(flags));
    let peers = with_history(app)?;
    let Some(keeper) = &peers.keeper else { return Ok(env.undefined()) };
    let start = keeper.start(env, since);
    let done = app.with_turn(|js, core| {
        let id = match &js.threads {
            Some(threads) => threads.open_id(slot),
            None => core.id_at(slot).filter(|id| core.is_open(*id)),
        };
        let Some(id) = id else { return (GONE, None, None) };
        let kind = if flags & WITH_POSITIONS == 0 { 0 } else { POSITIONS };
        let topic: Arc<str> = topic.as_str().into();
        let (history, now_ns) = (&*keeper.history, core.now_ns());
        let Some(start) = start else {
            return js.subscribe_from_now(core, history, slot, id, &topic, kind);
        };
        let next = || history.last(&topic, now_ns).map(Position::next).ok_or(Unavailable::Evicted);
        let first = start.and_then(|start| history.first(&topic, start, now_ns));
        let why = first.err();
        if why == Some(Unavailable::Ahead) && flags & MAY_WAIT != 0 && history.is_replica() {
            return (BEHIND, why, None);
        }
        // Without one nothing is known of it: it was released meanwhile.
        let next = first.or_else(|_| next()).ok();
        if let Some(threads) = &mut js.threads {
            // A thread that is far behind has no room for it.
            let passed =
                threads.subscribe_from(slot, id, &topic, Beginning::At { kind, next, why });
            return (if passed { PENDING } else { BEHIND }, None, None);
        }
        js.end_subscription(core, id, &topic);
        let kind = core.encoding(id) | kind;
        js.topics.subscribe(core, id, &topic, kind);
        let sent = match next {
            None => Some((why, None)),
            Some(next) => {
                let replay = Replay { id, topic, kind, next, why, ticket: 0 };
                let sent = js.replays.begin(core, &mut js.topics, history, replay);
                sent.map(|sent| (sent.why, sent.last))
            }
        };
        let Some((why, last)) = sent else { return (PENDING, None, None) };
        keeper.count(why);
        (DONE, why, last)
    });
    let (outcome, why, last) = done;
    Ok(env.array([env.int(outcome), reason(env, why), position(env, last)]))
}
