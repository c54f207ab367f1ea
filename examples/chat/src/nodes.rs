//! [`Nodes`]: the other nodes of the chat, and what they are asked.
//!
//! There is no directory of users: a node that does not have a user asks all others, and answers its own
//! client when they have answered or a time has passed. So nothing is written for a login or a heartbeat,
//! and nothing outlives the node that it is about. A node that has sent no sign of life for `--node-ttl-ms`
//! is gone, and with it its users.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use serde::{Deserialize, Serialize};
use standfast::{Remote, Running};

use crate::chat::{Chat, Delivery, ELSEWHERE, ELSEWHERE_REASON, NOT_ONLINE, OVERLOADED, count};
use crate::inbox::{self, InboxReader};
use crate::users::UserId;

/// Questions that wait for answers at most; further ones are refused as `overloaded`.
const ASKED_MAX: usize = 10_000;
/// How often signs of life are sent, at most; it is also a fifth of the TTL.
const ALIVE_INTERVAL_MS: u64 = 1_000;
/// How often the state is looked at.
const INTERVAL: Duration = Duration::from_millis(50);
/// Logins and message ids that wait to be told, of each; beyond it further ones are not told, counted as
/// `untold`.
const TOLD_MAX: usize = 100_000;
/// Those in one message, and users in one answer.
const BATCH: usize = 500;
/// Longest message id that other nodes are told, in bytes.
const ID_BYTES_MAX: usize = 128;
/// Time in which a starting node hears of the others, once the broker is there.
const JOIN_TIME: Duration = Duration::from_millis(200);
/// Looks at the broker while a node starts, one in each interval.
const JOIN_LOOKS: u32 = 200;

/// Why a message may have been delivered or not.
const NO_ANSWER: &str = "a node did not answer in time: the message may have been delivered";

/// What a node asks the others.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(tag = "q")]
pub(crate) enum Question {
    /// Send a message to a user.
    Send { app: u32, user: String, id: String, text: String },
    /// Send a message to everyone but this user, if the user is there.
    SendAll { app: u32, user: String, id: String, text: String },
    /// Whether a user is online; application 0: in any.
    Online { app: u32, user: String },
    /// The users of an application.
    List { app: u32 },
}

/// What nodes publish to each other.
#[derive(Serialize, Deserialize, Debug)]
#[serde(tag = "m")]
enum Letter {
    Alive {
        node: String,
        users: Vec<u64>,
    },
    /// For the nodes that are waited for: one that was thought to be gone must not act on it later.
    Ask {
        node: String,
        id: u64,
        to: BTreeSet<String>,
        question: Question,
    },
    Answer {
        node: String,
        id: u64,
        answer: Answer,
    },
    Told {
        node: String,
        logins: Vec<(u32, String, u64)>,
        ids: Vec<String>,
    },
}

#[derive(Serialize, Deserialize, Default, Debug)]
#[serde(default)]
struct Answer {
    sent: bool,
    duplicate: bool,
    overloaded: bool,
    online: bool,
    count: u64,
    users: Vec<String>,
    /// Further parts follow.
    more: bool,
}

/// What all nodes have answered.
#[derive(Default, Debug)]
pub(crate) struct Gathered {
    sent: bool,
    duplicate: bool,
    overloaded: bool,
    pub(crate) online: bool,
    pub(crate) count: u64,
    pub(crate) users: Vec<String>,
    /// Nodes that have not answered in time.
    missing: usize,
}

impl Gathered {
    pub(crate) fn delivery(&self) -> Delivery {
        match self {
            Gathered { sent: true, .. } => Delivery::Sent,
            Gathered { duplicate: true, .. } => Delivery::Duplicate,
            Gathered { overloaded: true, .. } => Delivery::Failed(OVERLOADED),
            Gathered { missing: 1.., .. } => Delivery::Failed(NO_ANSWER),
            _ => Delivery::Failed(NOT_ONLINE),
        }
    }

    fn is_decided(&self) -> bool {
        self.sent || self.duplicate || self.overloaded || self.online
    }
}

type Done = Box<dyn FnOnce(&Chat, &Remote, Gathered) + Send>;

struct Asked {
    done: Done,
    waiting: BTreeSet<String>,
    gathered: Gathered,
    until_ms: u64,
}

struct Peer {
    heard_ms: u64,
    users: Vec<u64>,
}

#[derive(Default)]
struct State {
    peers: BTreeMap<String, Peer>,
    asked: BTreeMap<u64, Asked>,
    next: u64,
    /// Logins and message ids that the others are to be told of.
    logins: Vec<(u32, String, u64)>,
    ids: Vec<String>,
}

/// The other nodes.
pub(crate) struct Nodes {
    node: String,
    ttl_ms: u64,
    ask_ms: u64,
    state: Mutex<State>,
    asked: AtomicU64,
    unanswered: AtomicU64,
    lost: AtomicU64,
    untold: AtomicU64,
}

impl Nodes {
    pub(crate) fn new(node: &str, ttl_ms: u64) -> Self {
        Nodes {
            node: node.to_owned(),
            ttl_ms,
            ask_ms: ttl_ms,
            state: Mutex::default(),
            asked: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Users of an application on the other nodes.
    pub(crate) fn users_in_app(&self, app: usize) -> u64 {
        let state = self.lock();
        state.peers.values().filter_map(|peer| peer.users.get(app)).sum()
    }

    /// The names of the other nodes, and counters.
    pub(crate) fn describe(&self) -> (Vec<String>, [(&'static str, u64); 4]) {
        let names = self.lock().peers.keys().cloned().collect();
        let counters = [
            ("asked", &self.asked),
            ("unanswered", &self.unanswered),
            ("nodesLost", &self.lost),
            ("untold", &self.untold),
        ];
        (names, counters.map(|(name, counter)| (name, counter.load(Ordering::Relaxed))))
    }

    /// Asks the other nodes; `done` is called once, perhaps before this returns, perhaps by another thread.
    pub(crate) fn ask(
        &self,
        chat: &Chat,
        remote: &Remote,
        question: Question,
        done: impl FnOnce(&Chat, &Remote, Gathered) + Send + 'static,
    ) {
        let mut state = self.lock();
        let waiting: BTreeSet<String> = state.peers.keys().cloned().collect();
        if waiting.is_empty() {
            drop(state);
            return done(chat, remote, Gathered::default());
        }
        if state.asked.len() >= ASKED_MAX {
            drop(state);
            count(&chat.counters.overloaded);
            return done(chat, remote, Gathered { overloaded: true, ..Gathered::default() });
        }
        state.next += 1;
        let (id, until_ms) = (state.next, chat.now_ms() + self.ask_ms);
        let (gathered, to) = (Gathered::default(), waiting.clone());
        state.asked.insert(id, Asked { done: Box::new(done), waiting, gathered, until_ms });
        drop(state);
        count(&self.asked);
        let letter = Letter::Ask { node: self.node.clone(), id, to, question };
        if !publish(remote, inbox::ALL, &letter)
            && let Some(asked) = self.lock().asked.remove(&id)
        {
            count(&chat.counters.overloaded);
            (asked.done)(chat, remote, Gathered { overloaded: true, ..asked.gathered });
        }
    }

    /// A user has logged in here: sessions on other nodes end.
    pub(crate) fn logged_in(&self, app: u32, user: &UserId, login_ms: u64) {
        let mut state = self.lock();
        if state.logins.len() < TOLD_MAX {
            state.logins.push((app, user.as_str().to_owned(), login_ms));
        } else {
            count(&self.untold);
        }
    }

    /// A message id was used here.
    pub(crate) fn used(&self, id: &str) {
        let mut state = self.lock();
        if state.ids.len() < TOLD_MAX && id.len() <= ID_BYTES_MAX {
            state.ids.push(id.to_owned());
        } else {
            count(&self.untold);
        }
    }

    // ---- what arrives ----

    fn receive(&self, chat: &Chat, remote: &Remote, letter: Letter) {
        match letter {
            Letter::Alive { node, users } if node != self.node => {
                let heard_ms = chat.now_ms();
                let peer = Peer { heard_ms, users };
                if self.lock().peers.insert(node.clone(), peer).is_none() {
                    note(&format!("node joined: {node} at {} ms of Unix time", chat.now_ms()));
                    self.send_alive(chat, remote);
                }
            }
            Letter::Ask { node, id, to, question } if to.contains(&self.node) => {
                self.answer(chat, remote, &node, id, question);
            }
            Letter::Answer { node, id, answer } => self.gather(chat, remote, &node, id, answer),
            Letter::Told { node, logins, ids } if node != self.node => {
                for (app, user, login_ms) in logins {
                    self.end_older(chat, remote, &node, (app, &user), login_ms);
                }
                for id in ids {
                    chat.message_ids.is_new(&id, chat.now_seconds());
                }
            }
            _ => {}
        }
    }

    fn answer(&self, chat: &Chat, remote: &Remote, node: &str, id: u64, question: Question) {
        let mut answer = Answer::default();
        match question {
            Question::Send { app, user, id, text } => {
                let is_new = chat.message_ids.is_new(&id, chat.now_seconds());
                if let Some((app, user, _)) = chat.find(app, &user) {
                    answer.deliver(is_new, || chat.send(remote, app, &user, &text));
                }
            }
            Question::SendAll { app, user, id, text } => {
                let is_new = chat.message_ids.is_new(&id, chat.now_seconds());
                if let Some((app, _, socket)) = chat.find(app, &user) {
                    answer.deliver(is_new, || chat.send_to_all(remote, app, Some(socket), text));
                }
            }
            Question::Online { app, user } => answer.online = chat.is_online_in(app, &user),
            Question::List { app } => return self.answer_list(chat, remote, node, id, app),
        }
        self.publish_answer(remote, node, id, answer);
    }

    /// The list of users, in parts.
    fn answer_list(&self, chat: &Chat, remote: &Remote, node: &str, id: u64, app: u32) {
        let (mut users, app) = (Vec::new(), chat.app(app));
        if app.is_some() {
            let limit = chat.settings.list_users;
            chat.users.each(app, limit, |_, user, _| users.push(user.as_str().to_owned()));
        }
        let count = app.map_or(0, |app| chat.users.in_app(app));
        let mut rest = users;
        loop {
            let after = rest.split_off(rest.len().min(BATCH));
            let more = !after.is_empty();
            let count = if more { 0 } else { count };
            let part = Answer { count, users: rest, more, ..Answer::default() };
            self.publish_answer(remote, node, id, part);
            if !more {
                return;
            }
            rest = after;
        }
    }

    fn publish_answer(&self, remote: &Remote, node: &str, id: u64, answer: Answer) {
        let letter = Letter::Answer { node: self.node.clone(), id, answer };
        if !publish(remote, &inbox::topic(node), &letter) {
            count(&self.untold);
        }
    }

    fn gather(&self, chat: &Chat, remote: &Remote, node: &str, id: u64, answer: Answer) {
        let mut state = self.lock();
        let Some(asked) = state.asked.get_mut(&id) else { return };
        if !asked.waiting.contains(node) {
            return;
        }
        asked.gathered.add(answer, chat.settings.list_users, || {
            asked.waiting.remove(node);
        });
        if (asked.waiting.is_empty() || asked.gathered.is_decided())
            && let Some(asked) = state.asked.remove(&id)
        {
            drop(state);
            (asked.done)(chat, remote, asked.gathered);
        }
    }

    /// Ends the session of a user who has logged in on another node since.
    fn end_older(&self, chat: &Chat, remote: &Remote, node: &str, who: (u32, &str), login_ms: u64) {
        let found = chat.app(who.0).zip(UserId::new(who.1));
        let Some(found) = found.and_then(|(app, user)| chat.users.find(app, &user)) else { return };
        // Both nodes decide alike.
        if (found.login_ms, &*self.node) < (login_ms, node) {
            count(&chat.counters.replaced);
            let _ = remote.close(found.socket, ELSEWHERE, ELSEWHERE_REASON);
        }
    }

    // ---- what happens at intervals ----

    fn send_alive(&self, chat: &Chat, remote: &Remote) {
        let users = (0..chat.settings.apps.len()).map(|app| chat.users.in_app(app as u8)).collect();
        publish(remote, inbox::ALL, &Letter::Alive { node: self.node.clone(), users });
    }

    /// Gives up nodes and questions whose time has passed, and tells what has happened here.
    fn look(&self, chat: &Chat, remote: &Remote) {
        let now_ms = chat.now_ms();
        let mut ended = Vec::new();
        let mut state = self.lock();
        let is_silent = |(_, peer): &(&String, &Peer)| peer.heard_ms + self.ttl_ms <= now_ms;
        let lost: Vec<String> =
            state.peers.iter().filter(is_silent).map(|(node, _)| node.clone()).collect();
        for node in &lost {
            state.peers.remove(node);
        }
        self.lost.fetch_add(lost.len() as u64, Ordering::Relaxed);
        let late: Vec<u64> = state
            .asked
            .iter()
            .filter(|(_, asked)| asked.until_ms <= now_ms)
            .map(|(id, _)| *id)
            .collect();
        ended.extend(late.iter().filter_map(|id| state.asked.remove(id)));
        let logins = std::mem::take(&mut state.logins);
        let ids = std::mem::take(&mut state.ids);
        let alone = state.peers.is_empty();
        drop(state);
        for node in &lost {
            let silent = format!("silent for {} ms, its users are offline here", self.ttl_ms);
            note(&format!("node lost: {node} at {now_ms} ms of Unix time: {silent}"));
        }
        for mut asked in ended {
            count(&self.unanswered);
            asked.gathered.missing = asked.waiting.len();
            (asked.done)(chat, remote, asked.gathered);
        }
        if alone {
            return;
        }
        for part in 0..logins.len().max(ids.len()).div_ceil(BATCH) {
            let (from, to) = (part * BATCH, (part + 1) * BATCH);
            let logins = logins.get(from..to.min(logins.len())).unwrap_or_default().to_vec();
            let ids = ids.get(from..to.min(ids.len())).unwrap_or_default().to_vec();
            let told = (logins.len() + ids.len()) as u64;
            let letter = Letter::Told { node: self.node.clone(), logins, ids };
            if !publish(remote, inbox::ALL, &letter) {
                self.untold.fetch_add(told, Ordering::Relaxed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer {
    fn deliver(&mut self, is_new: bool, deliver: impl FnOnce() -> Delivery) {
        if !is_new {
            self.duplicate = true;
            return;
        }
        match deliver() {
            Delivery::Sent => self.sent = true,
            Delivery::Failed(OVERLOADED) => self.overloaded = true,
            _ => {}
        }
    }
}

impl Gathered {
    fn add(&mut self, answer: Answer, users_max: usize, complete: impl FnOnce()) {
        self.sent |= answer.sent;
        self.duplicate |= answer.duplicate;
        self.overloaded |= answer.overloaded;
        self.online |= answer.online;
        self.count += answer.count;
        let room = users_max.saturating_sub(self.users.len());
        self.users.extend(answer.users.into_iter().take(room));
        if !answer.more {
            complete();
        }
    }
}

fn publish(remote: &Remote, topic: &str, letter: &Letter) -> bool {
    let text = serde_json::to_string(letter).unwrap_or_default();
    remote.publish(topic, &text).is_ok()
}

/// Opens the inbox and joins the other nodes, in threads that run as long as the process.
///
/// # Errors
/// The inbox cannot be opened, or a thread cannot be started.
pub(crate) fn join(chat: &Arc<Chat>, running: &Running, secret: &str) -> io::Result<()> {
    let Some(nodes) = &chat.nodes else { return Ok(()) };
    let remote = running.remote().clone();
    let mut reader = InboxReader::open(running.address(), secret)?;
    let mut keeper = reader.keeper()?;
    let (own, to) = (Arc::clone(chat), remote.clone());
    thread::Builder::new().name("inbox".into()).spawn(move || {
        let Some(nodes) = &own.nodes else { return };
        while let Ok(text) = reader.next() {
            let letter = text.and_then(|text| serde_json::from_str(&text).ok());
            if let Some(letter) = letter {
                nodes.receive(&own, &to, letter);
            }
        }
        // The inbox ends with its worker, and so with the server.
        eprintln!("chat: the inbox has ended: this node no longer hears the others");
    })?;
    for _ in 0..JOIN_LOOKS {
        if remote.broker().is_none_or(|broker| broker.is_ready() && broker.topics >= 2) {
            break;
        }
        thread::sleep(INTERVAL);
    }
    nodes.send_alive(chat, &remote);
    thread::sleep(JOIN_TIME);
    let own = Arc::clone(chat);
    thread::Builder::new().name("nodes".into()).spawn(move || {
        let Some(nodes) = &own.nodes else { return };
        let interval_ms = ALIVE_INTERVAL_MS.min(nodes.ttl_ms / 5);
        let mut due_ms = 0;
        loop {
            nodes.look(&own, &remote);
            if own.now_ms() >= due_ms {
                due_ms = own.now_ms() + interval_ms;
                nodes.send_alive(&own, &remote);
                let _ = keeper.keep();
            }
            thread::sleep(INTERVAL);
        }
    })?;
    Ok(())
}

/// A line on standard error. Nobody may read it any more, which must not end a thread.
fn note(what: &str) {
    let _ = writeln!(io::stderr(), "chat: {what}");
}
