//! [`Users`]: who is logged in on this node, in about 50 bytes each.
//!
//! An entry has its user id in itself, and the session of a socket is the number of its entry. No user has
//! a timer: a heartbeat is a time in the entry, which is compared when somebody asks.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use standfast::SocketId;

/// Longest user id in bytes.
pub(crate) const USER_ID_BYTES: usize = 19;
/// Parts of the table, each with a lock.
const SHARDS: usize = 64;
const SHARD_BITS: u32 = SHARDS.trailing_zeros();
/// Entries that are allocated together: 10 KiB.
const CHUNK: usize = 256;
/// End of the list of free entries.
const NONE: u32 = u32::MAX;

/// A user id: 1 to 19 bytes of UTF-8.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub(crate) struct UserId {
    length: u8,
    bytes: [u8; USER_ID_BYTES],
}

impl UserId {
    /// `None` if the text is empty or longer than [`USER_ID_BYTES`].
    pub(crate) fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; USER_ID_BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        let length = u8::try_from(text.len()).ok().filter(|length| *length > 0)?;
        Some(UserId { length, bytes })
    }

    pub(crate) fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// An application, as its place in the list of `--apps`.
pub(crate) type AppIndex = u8;

/// The number of an entry. Another user may have it once its user has left, so it is used together with
/// the socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct UserRef(NonZeroU32);

impl UserRef {
    fn new(shard: usize, slot: u32) -> Self {
        let number = (slot << SHARD_BITS | shard as u32).saturating_add(1);
        UserRef(NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX))
    }

    fn shard(self) -> usize {
        (self.0.get() - 1) as usize % SHARDS
    }

    fn slot(self) -> u32 {
        (self.0.get() - 1) >> SHARD_BITS
    }
}

#[derive(Copy, Clone)]
struct Entry {
    /// The socket; in a free entry the next free one.
    socket: u64,
    /// When the user logged in, in milliseconds of the clock.
    login_ms: u64,
    /// Time of the last heartbeat, in seconds of the clock.
    heartbeat: u32,
    app: AppIndex,
    /// `None` in a free entry.
    id: Option<UserId>,
}

const FREE: Entry = Entry { socket: NONE as u64, login_ms: 0, heartbeat: 0, app: 0, id: None };

const _: () = assert!(size_of::<Entry>() <= 48);

#[derive(Default)]
struct Shard {
    /// Slots by user.
    index: HashTable<u32>,
    chunks: Vec<Box<[Entry]>>,
    /// First entry of the list of free ones.
    free: Option<u32>,
}

impl Shard {
    fn entry(&self, slot: u32) -> Option<&Entry> {
        self.chunks.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)
    }

    fn entry_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        self.chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)
    }

    fn find(&self, hash: u64, app: AppIndex, id: &UserId) -> Option<u32> {
        let chunks = &self.chunks;
        let is = |slot: &u32| {
            let entry =
                chunks.get(*slot as usize / CHUNK).map(|chunk| &chunk[*slot as usize % CHUNK]);
            entry.is_some_and(|entry| entry.app == app && entry.id.as_ref() == Some(id))
        };
        self.index.find(hash, is).copied()
    }

    /// A free slot, which is no longer in the list.
    fn allocate(&mut self) -> u32 {
        let slot = self.free.unwrap_or_else(|| {
            let first = (self.chunks.len() * CHUNK) as u32;
            let mut chunk = vec![FREE; CHUNK].into_boxed_slice();
            for (at, entry) in chunk.iter_mut().enumerate().take(CHUNK - 1) {
                entry.socket = u64::from(first) + at as u64 + 1;
            }
            self.chunks.push(chunk);
            first
        });
        let next = self.entry(slot).map_or(NONE, |entry| entry.socket as u32);
        self.free = (next != NONE).then_some(next);
        slot
    }

    fn release(&mut self, slot: u32) {
        let next = self.free.unwrap_or(NONE);
        if let Some(entry) = self.entry_mut(slot) {
            *entry = Entry { socket: u64::from(next), ..FREE };
            self.free = Some(slot);
        }
    }
}

/// Where a user is, and since when.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) socket: SocketId,
    pub(crate) login_ms: u64,
    /// Time of the last heartbeat, in seconds of the clock.
    pub(crate) heartbeat: u32,
}

/// Everyone who is logged in on this node.
pub(crate) struct Users {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    /// Users by application.
    counts: Vec<AtomicU64>,
}

impl Users {
    pub(crate) fn new(apps: usize) -> Self {
        Users {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            counts: (0..apps).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Logs a user in on a socket. Returns the user's entry, and where the user was until now.
    pub(crate) fn login(
        &self,
        app: AppIndex,
        id: &UserId,
        socket: SocketId,
        now_ms: u64,
    ) -> (UserRef, Option<Found>) {
        let (hash, at) = self.place(app, id);
        let mut shard = self.shard(at);
        let heartbeat = (now_ms / 1_000) as u32;
        let entry =
            Entry { socket: socket.as_u64(), login_ms: now_ms, heartbeat, app, id: Some(*id) };
        if let Some(slot) = shard.find(hash, app, id) {
            let before = shard.entry_mut(slot).map(|old| std::mem::replace(old, entry));
            return (UserRef::new(at, slot), before.map(|before| found(&before)));
        }
        let slot = shard.allocate();
        if let Some(free) = shard.entry_mut(slot) {
            *free = entry;
        }
        let Shard { index, chunks, .. } = &mut *shard;
        index.insert_unique(hash, slot, |slot| {
            let entry = &chunks[*slot as usize / CHUNK][*slot as usize % CHUNK];
            self.hasher.hash_one((entry.app, entry.id))
        });
        self.count(app, 1);
        (UserRef::new(at, slot), None)
    }

    /// Notes a heartbeat. Returns `false` if the user is no longer logged in on this socket.
    pub(crate) fn heartbeat(&self, user: UserRef, socket: SocketId, now_ms: u64) -> bool {
        let mut shard = self.shard(user.shard());
        match shard.entry_mut(user.slot()) {
            Some(entry) if is_on(entry, socket) => {
                entry.heartbeat = (now_ms / 1_000) as u32;
                true
            }
            _ => false,
        }
    }

    /// Who is logged in on a socket.
    pub(crate) fn identity(&self, user: UserRef, socket: SocketId) -> Option<(AppIndex, UserId)> {
        let shard = self.shard(user.shard());
        let entry = shard.entry(user.slot()).filter(|entry| is_on(entry, socket))?;
        Some((entry.app, entry.id?))
    }

    /// Logs a user out, unless the user is on another socket by now.
    pub(crate) fn leave(&self, user: UserRef, socket: SocketId) -> Option<(AppIndex, UserId)> {
        let mut shard = self.shard(user.shard());
        let entry = *shard.entry(user.slot()).filter(|entry| is_on(entry, socket))?;
        let (app, id) = (entry.app, entry.id?);
        let (hash, _) = self.place(app, &id);
        if let Ok(occupied) = shard.index.find_entry(hash, |slot| *slot == user.slot()) {
            occupied.remove();
        }
        shard.release(user.slot());
        self.count(app, -1);
        Some((app, id))
    }

    pub(crate) fn find(&self, app: AppIndex, id: &UserId) -> Option<Found> {
        let (hash, at) = self.place(app, id);
        let shard = self.shard(at);
        shard.entry(shard.find(hash, app, id)?).map(found)
    }

    /// Users of an application.
    pub(crate) fn in_app(&self, app: AppIndex) -> u64 {
        self.counts.get(usize::from(app)).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Users of all applications.
    pub(crate) fn len(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Calls a function with at most `limit` users, of one application or all, in no order. Others can log
    /// in and out meanwhile.
    pub(crate) fn each(
        &self,
        app: Option<AppIndex>,
        limit: usize,
        mut call: impl FnMut(AppIndex, &UserId, SocketId),
    ) {
        let mut left = limit;
        for at in 0..SHARDS {
            let shard = self.shard(at);
            for entry in shard.chunks.iter().flat_map(|chunk| chunk.iter()) {
                let Some(id) = entry.id.as_ref().filter(|_| app.is_none_or(|app| app == entry.app))
                else {
                    continue;
                };
                if left == 0 {
                    return;
                }
                left -= 1;
                call(entry.app, id, SocketId::from_u64(entry.socket));
            }
        }
    }

    fn place(&self, app: AppIndex, id: &UserId) -> (u64, usize) {
        let hash = self.hasher.hash_one((app, Some(*id)));
        // The index uses the highest and lowest bits.
        (hash, (hash >> 32) as usize % SHARDS)
    }

    fn shard(&self, at: usize) -> MutexGuard<'_, Shard> {
        self.shards[at % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, app: AppIndex, change: i64) {
        if let Some(count) = self.counts.get(usize::from(app)) {
            count.fetch_add(change as u64, Ordering::Relaxed);
        }
    }
}

fn is_on(entry: &Entry, socket: SocketId) -> bool {
    entry.id.is_some() && entry.socket == socket.as_u64()
}

fn found(entry: &Entry) -> Found {
    let socket = SocketId::from_u64(entry.socket);
    Found { socket, login_ms: entry.login_ms, heartbeat: entry.heartbeat }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(number: u64) -> UserId {
        UserId::new(&number.to_string()).unwrap()
    }

    fn socket(number: u64) -> SocketId {
        SocketId::from_u64(number)
    }

    #[test]
    fn a_user_id_has_1_to_19_bytes() {
        assert_eq!(UserId::new(""), None);
        assert_eq!(UserId::new("12345678901234567890"), None);
        for name in ["1", "1234567890123456789", "司马相如司马"] {
            assert_eq!(UserId::new(name).unwrap().as_str(), name);
        }
        assert_eq!(UserId::new("司马相如司马相"), None);
    }

    #[test]
    fn users_log_in_and_out() {
        let users = Users::new(2);
        let (ada, found) = users.login(0, &user(1), socket(7), 5_000);
        assert_eq!(found, None);
        let (other, _) = users.login(1, &user(1), socket(8), 6_000);
        assert_ne!(ada, other);
        assert_eq!((users.in_app(0), users.in_app(1), users.len()), (1, 1, 2));
        assert!(users.heartbeat(ada, socket(7), 9_999));
        assert!(!users.heartbeat(ada, socket(8), 20_000));
        let expected = Found { socket: socket(7), login_ms: 5_000, heartbeat: 9 };
        assert_eq!(users.find(0, &user(1)), Some(expected));
        assert_eq!(users.find(0, &user(2)), None);
        assert_eq!(users.identity(ada, socket(7)), Some((0, user(1))));
        assert_eq!(users.leave(ada, socket(7)), Some((0, user(1))));
        assert_eq!(users.leave(ada, socket(7)), None);
        assert_eq!((users.find(0, &user(1)), users.len()), (None, 1));
    }

    #[test]
    fn a_second_login_takes_the_user_over() {
        let users = Users::new(1);
        let (first, _) = users.login(0, &user(1), socket(7), 1_000);
        let (second, before) = users.login(0, &user(1), socket(9), 2_000);
        assert_eq!(before.unwrap().socket, socket(7));
        assert_eq!(users.leave(first, socket(7)), None, "its user is on another socket");
        assert_eq!(users.identity(second, socket(9)), Some((0, user(1))));
        assert_eq!(users.len(), 1);
    }

    #[test]
    fn entries_are_used_again_and_all_users_are_listed() {
        let users = Users::new(2);
        let mut entries = Vec::new();
        for round in 0..3 {
            for number in 0..20_000 {
                let app = (number % 2) as AppIndex;
                let socket = socket(round * 100_000 + number);
                entries.push((users.login(app, &user(number), socket, 0).0, socket));
            }
            let chunks: usize = users.shards.iter().map(|s| s.lock().unwrap().chunks.len()).sum();
            assert!(chunks <= 2 * 20_000 / CHUNK, "{chunks} chunks in round {round}");
            let (mut listed, mut even) = (std::collections::BTreeSet::new(), 0);
            users.each(None, usize::MAX, |_, user, _| {
                assert!(listed.insert(user.as_str().to_owned()))
            });
            users.each(Some(0), usize::MAX, |app, _, _| even += 1 + u32::from(app));
            assert_eq!((listed.len(), even), (20_000, 10_000));
            let mut some = 0;
            users.each(None, 10, |_, _, _| some += 1);
            assert_eq!(some, 10);
            for (entry, socket) in entries.drain(..) {
                assert!(users.leave(entry, socket).is_some());
            }
            assert_eq!(users.len(), 0);
        }
    }

    #[test]
    fn users_take_64_bytes_each() {
        const USERS: u64 = 100_000;
        let users = Users::new(4);
        for number in 0..USERS {
            users.login((number % 4) as AppIndex, &user(number), socket(number), 0);
        }
        let bytes = |shard: &Shard| {
            shard.chunks.len() * CHUNK * size_of::<Entry>() + shard.index.allocation_size()
        };
        let all: usize = users.shards.iter().map(|shard| bytes(&shard.lock().unwrap())).sum();
        let each = all as u64 / USERS;
        assert!(each <= 64, "{each} bytes each");
    }
}
