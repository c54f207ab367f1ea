//! What JavaScript's thread knows of the connections of the other threads: a number for each, which is the slot that
//! `../uws` has, and the topics of each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use engine::ConnId;
use topics::Directory;

use super::batch::Peer;

/// No number, in the lists by slots.
const NONE: u32 = u32::MAX;
/// Connections at most: bits of a slot of the engine.
const CONNECTIONS_MAX: usize = engine::SLOTS_MAX as usize;

#[derive(Copy, Clone, PartialEq, Eq)]
enum State {
    /// The number is free.
    Free,
    Request,
    Socket,
}

/// A connection that JavaScript knows.
#[derive(Copy, Clone)]
pub(crate) struct Entry {
    id: ConnId,
    pub(crate) peer: Peer,
    /// The index of its route for WebSockets.
    pub(crate) route: u16,
    state: State,
    /// Bytes that were sent to it since the commands were last posted, and the last bits of the number of that pass.
    pass: u8,
    sent: u32,
}

// There is one for each of a million sockets.
const _: () = assert!(size_of::<Entry>() == 40);

impl Entry {
    /// It is a WebSocket.
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Socket
    }

    /// The request has become a WebSocket.
    pub(crate) fn open(&mut self) {
        self.state = State::Socket;
    }

    /// Counts bytes that are sent in this pass. Returns how many they are so far.
    #[inline]
    pub(crate) fn count_sent(&mut self, bytes: u32, pass: u8) -> u32 {
        if self.pass != pass {
            (self.pass, self.sent) = (pass, 0);
        }
        self.sent = self.sent.saturating_add(bytes);
        self.sent
    }
}

/// The connections that JavaScript knows, by number.
#[derive(Default)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// By thread and slot, the number of a connection.
    numbers: Vec<Vec<u32>>,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds a connection. `None` if there are too many.
    pub(crate) fn insert(&mut self, id: ConnId, peer: Peer, route: u16, open: bool) -> Option<u32> {
        let state = if open { State::Socket } else { State::Request };
        let entry = Entry { id, peer, route, state, pass: 0, sent: 0 };
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.entries.len() < CONNECTIONS_MAX => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
            None => return None,
        };
        *self.entries.get_mut(number as usize)? = entry;
        let (thread, slot) = (usize::from(id.worker()), id.slot() as usize);
        if self.numbers.len() <= thread {
            self.numbers.resize_with(thread + 1, Vec::new);
        }
        let slots = self.numbers.get_mut(thread)?;
        if slots.len() <= slot {
            slots.resize(slot + 1, NONE);
        }
        *slots.get_mut(slot)? = number;
        Some(number)
    }

    /// The number of a connection, if JavaScript knows it and has not ended it.
    #[inline]
    pub(crate) fn number(&self, id: ConnId) -> Option<u32> {
        let slots = self.numbers.get(usize::from(id.worker()))?;
        let number = *slots.get(id.slot() as usize)?;
        let (own, _) = self.get(number)?;
        (own == id).then_some(number)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<(ConnId, &Entry)> {
        let entry = self.entries.get(number as usize)?;
        (entry.state != State::Free).then_some((entry.id, entry))
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<(ConnId, &mut Entry)> {
        let entry = self.entries.get_mut(number as usize)?;
        (entry.state != State::Free).then_some((entry.id, entry))
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<ConnId> {
        let (id, entry) = self.get_mut(number)?;
        entry.state = State::Free;
        self.free.push(number);
        Some(id)
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = u32> + '_ {
        let entries = self.entries.iter().enumerate();
        entries.filter(|(_, entry)| entry.is_open()).map(|(at, _)| at as u32)
    }
}

#[derive(Default)]
struct Members {
    count: u32,
    /// By thread.
    threads: BTreeMap<u16, u32>,
}

/// The topics of sockets, as JavaScript sees them: the threads hear of a change in the order of all commands.
pub(crate) struct Mirror {
    topics: HashMap<Arc<str>, Members>,
    /// By number of the socket.
    sockets: HashMap<u32, Vec<Arc<str>>>,
    /// Where other apps find which topics have members here, and the number of this app there.
    shared: Option<(u16, Directory)>,
}

impl Mirror {
    pub(crate) fn new(shared: Option<(u16, Directory)>) -> Mirror {
        Mirror { topics: HashMap::new(), sockets: HashMap::new(), shared }
    }

    /// All sockets leave all topics.
    pub(crate) fn clear(&mut self) {
        if let Some((own, directory)) = &self.shared {
            self.topics.keys().for_each(|topic| directory.leave(topic, *own));
        }
        self.topics.clear();
        self.sockets.clear();
    }

    pub(crate) fn count(&self, topic: &str) -> u32 {
        self.topics.get(topic).map_or(0, |members| members.count)
    }

    pub(crate) fn topics_of(&self, number: u32) -> &[Arc<str>] {
        self.sockets.get(&number).map_or(&[], |topics| topics)
    }

    pub(crate) fn is_member(&self, number: u32, topic: &str) -> bool {
        self.topics_of(number).iter().any(|own| **own == *topic)
    }

    /// Threads with members of a topic.
    pub(crate) fn threads(&self, topic: &str) -> impl Iterator<Item = u16> + '_ {
        self.topics.get(topic).into_iter().flat_map(|members| members.threads.keys().copied())
    }

    /// Returns `false` if it is a member already.
    pub(crate) fn add(&mut self, number: u32, id: ConnId, topic: &str) -> bool {
        if self.is_member(number, topic) {
            return false;
        }
        let known = self.topics.get_key_value(topic).map(|(name, _)| Arc::clone(name));
        let name = known.unwrap_or_else(|| {
            if let Some((own, directory)) = &self.shared {
                directory.join(topic, *own);
            }
            topic.into()
        });
        let members = self.topics.entry(Arc::clone(&name)).or_default();
        members.count += 1;
        *members.threads.entry(id.worker()).or_default() += 1;
        self.sockets.entry(number).or_default().push(name);
        true
    }

    /// Returns whether it was a member.
    pub(crate) fn remove(&mut self, number: u32, id: ConnId, topic: &str) -> bool {
        let Some(topics) = self.sockets.get_mut(&number) else { return false };
        let Some(at) = topics.iter().position(|own| **own == *topic) else { return false };
        topics.swap_remove(at);
        if topics.is_empty() {
            self.sockets.remove(&number);
        }
        self.left(id, topic);
        true
    }

    pub(crate) fn leave(&mut self, number: u32, id: ConnId) {
        for topic in self.sockets.remove(&number).unwrap_or_default() {
            self.left(id, &topic);
        }
    }

    fn left(&mut self, id: ConnId, topic: &str) {
        let Some(members) = self.topics.get_mut(topic) else { return };
        members.count -= 1;
        if members.count == 0 {
            self.topics.remove(topic);
            if let Some((own, directory)) = &self.shared {
                directory.leave(topic, *own);
            }
        } else if let Some(count) = members.threads.get_mut(&id.worker()) {
            *count -= 1;
            if *count == 0 {
                members.threads.remove(&id.worker());
            }
        }
    }
}
