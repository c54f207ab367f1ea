//! NATS as a [`MemberStore`], in one stream with the last message of each subject:
//!
//! | subject, after `PREFIX:presence.` | |
//! |---|---|
//! | `m.CHANNEL.NODE.SLOTS.SLOT` | members of a node in a topic: those whose ids have this slot by their hash |
//! | `d.CHANNEL` | the nodes that have members in a topic, each with its number of slots |
//! | `t.CHANNEL` | the last change of a topic. The stream passes it on to the channel: its sequence is the version |
//! | `n.NODE` | the lease of a node |
//! | `clock` | nothing: its time is that of the server |
//!
//! A change is written in this order, and read in the opposite one: what has the version of a topic has all changes
//! up to it, and perhaps some of later ones, which arrive and change nothing then.

mod slots;

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use foldhash::fast::RandomState;
use tracing::warn;

use self::slots::{
    Directory, Entry, Infos, Pieces, SLOT_BYTES, SLOT_MEMBERS, SLOTS_MAX, apply, changes_of,
    directory, encoded, has_present, infos, lines, slot_of, slots_for,
};
use super::event::{START, encode_changes};
use super::{KEPT, Member, MemberStore, REPEAT_NS, State, Stored, Write};
use crate::backoff::random;
use crate::envelope::NodeId;
use crate::nats::{Bucket, Connection, NatsLink, NotPut, Put, StoredMessage, now_ms, subject};
use crate::transport::{Channel, Fault, FaultKind, Rejected};

/// Attempts to change what others change at the same time.
const ATTEMPTS: usize = 20;
/// Bytes of a message beside its members.
const OVERHEAD: usize = 1024;

/// The stream of a prefix.
pub(crate) struct Presence {
    bucket: Bucket,
    subjects: String,
    /// Members were left out, which is logged once.
    has_left_out: Cell<bool>,
}

/// A write on its way.
struct Job<'w> {
    write: &'w Write,
    directory: Directory,
    entry: Entry,
    /// The directory has the entry.
    is_known: bool,
    /// A slot has too many members.
    is_full: bool,
    /// A slot has none any more.
    is_emptied: bool,
    /// Others were faster.
    again: bool,
}

impl<'w> Job<'w> {
    fn new(write: &'w Write, directory: Directory) -> Self {
        let known = directory.entries.iter().find(|entry| entry.node == write.node).copied();
        let entry = known.unwrap_or_else(|| Entry { node: write.node, slots: 1, seed: random() });
        let (is_known, is_full, is_emptied, again) = (known.is_some(), false, false, false);
        Job { write, directory, entry, is_known, is_full, is_emptied, again }
    }

    fn has_present(&self) -> bool {
        !self.write.present.is_empty()
    }

    /// The changes by slots.
    fn slots(&self) -> BTreeMap<u32, Vec<(&'w str, State<'w>)>> {
        let mut slots: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for (id, state) in changes_of(self.write) {
            slots.entry(slot_of(id, &self.entry)).or_default().push((id, state));
        }
        slots
    }
}

impl Presence {
    pub(crate) async fn open(connection: &Connection, prefix: &str) -> Result<Self, Fault> {
        let subjects = format!("{}:presence.", subject(prefix));
        let all = [format!("{subjects}>")];
        let changes = format!("{subjects}t.*");
        let republish = Some((&*changes, "{{wildcard(1)}}"));
        let bucket = Bucket::open(connection, (prefix, "presence"), &all, KEPT, republish).await?;
        Ok(Presence { bucket, subjects, has_left_out: Cell::default() })
    }

    fn left_out(&self) {
        if !self.has_left_out.replace(true) {
            warn!("presence: members left out: they are longer than max_payload of NATS");
        }
    }

    pub(crate) async fn check(&self, connection: &Connection) -> Result<(), Fault> {
        self.bucket.check(connection).await
    }

    fn of_topic(&self, what: &str, channel: &str) -> String {
        format!("{}{what}.{}", self.subjects, subject(channel))
    }

    fn of_slot(&self, channel: &str, entry: &Entry, slot: u32) -> String {
        let Entry { node, slots, .. } = entry;
        format!("{}.{node}.{slots}.{slot}", self.of_topic("m", channel))
    }

    fn of_lease(&self, key: &str) -> String {
        format!("{}n.{}", self.subjects, subject(key))
    }

    async fn get(
        &self,
        connection: &Connection,
        subjects: &[String],
    ) -> Result<Vec<Option<StoredMessage>>, Fault> {
        self.bucket.get(connection, subjects).await
    }

    /// Puts one value.
    async fn put(
        &self,
        connection: &Connection,
        subject: String,
        after: Option<u64>,
        body: Vec<u8>,
    ) -> Result<Result<u64, NotPut>, Fault> {
        let put = self.bucket.put(connection, &[Put { subject, after, body }]).await?;
        put.into_iter().next().ok_or_else(|| protocol("no answer to a value"))
    }

    async fn directories<'c>(
        &self,
        connection: &Connection,
        channels: impl Iterator<Item = &'c Channel>,
    ) -> Result<Vec<Directory>, Fault> {
        let subjects: Vec<String> = channels.map(|channel| self.of_topic("d", channel)).collect();
        let found = self.get(connection, &subjects).await?;
        Ok(found.into_iter().map(|one| one.map_or_else(Directory::default, directory)).collect())
    }

    /// Writes changes, of which no two are of the same node in the same topic.
    async fn write(&self, connection: &Connection, writes: &[Write]) -> Result<(), Fault> {
        let mut pending: Vec<&Write> = writes.iter().collect();
        for _ in 0..ATTEMPTS {
            if pending.is_empty() {
                break;
            }
            pending = self.try_write(connection, pending).await?;
        }
        if !pending.is_empty() {
            return Err(protocol("members of a topic are changed by others all the time"));
        }
        let changes = |write: &Write| Put {
            subject: self.of_topic("t", &write.channel),
            after: None,
            body: [&START[..], &encode_changes(write)].concat(),
        };
        let told: Vec<Put> = writes.iter().map(changes).collect();
        for put in self.bucket.put(connection, &told).await? {
            put.map_err(not_put)?;
        }
        Ok(())
    }

    /// Returns the writes that have to be tried again, as others have changed the same.
    async fn try_write<'w>(
        &self,
        connection: &Connection,
        writes: Vec<&'w Write>,
    ) -> Result<Vec<&'w Write>, Fault> {
        let channels = writes.iter().map(|write| &write.channel);
        let directories = self.directories(connection, channels).await?;
        let mut jobs: Vec<Job<'_>> =
            writes.into_iter().zip(directories).map(|(write, of)| Job::new(write, of)).collect();
        let mut puts = self.changed_slots(connection, &mut jobs).await?;
        for job in jobs.iter_mut().filter(|job| job.is_full) {
            self.grow(connection, job).await?;
        }
        puts.retain(|(at, _)| jobs.get(*at).is_some_and(|job| !job.is_full));
        self.put_all(connection, &mut jobs, puts).await?;
        let mut puts = Vec::new();
        for (at, job) in jobs.iter().enumerate().filter(|(_, job)| !job.again && !job.is_full) {
            let is_old = job.directory.time_ms.saturating_add(REPEAT_NS / 1_000_000) < now_ms();
            let entry = match job.is_emptied {
                true if self.is_empty(connection, job).await? => None,
                true => continue,
                false if !job.has_present() || job.is_known && !is_old => continue,
                false => Some(job.entry),
            };
            puts.push((at, self.entered(job, entry)));
        }
        self.put_all(connection, &mut jobs, puts).await?;
        Ok(jobs.into_iter().filter(|job| job.again).map(|job| job.write).collect())
    }

    /// Puts what belongs to jobs, which are to be tried again if others were faster.
    async fn put_all(
        &self,
        connection: &Connection,
        jobs: &mut [Job<'_>],
        puts: Vec<(usize, Put)>,
    ) -> Result<(), Fault> {
        let (of, puts): (Vec<usize>, Vec<Put>) = puts.into_iter().unzip();
        for (put, at) in self.bucket.put(connection, &puts).await?.into_iter().zip(of) {
            match put {
                Ok(_) => {}
                Err(NotPut::Conflict) => {
                    jobs.get_mut(at).into_iter().for_each(|job| job.again = true)
                }
                Err(NotPut::TooLong) => self.left_out(),
                Err(why) => return Err(not_put(why)),
            }
        }
        Ok(())
    }

    /// The slots that writes change, with their changes.
    async fn changed_slots(
        &self,
        connection: &Connection,
        jobs: &mut [Job<'_>],
    ) -> Result<Vec<(usize, Put)>, Fault> {
        let (mut subjects, mut parts) = (Vec::new(), Vec::new());
        for (at, job) in jobs.iter().enumerate() {
            // A node without members can lose none.
            let slots =
                if job.is_known || job.has_present() { job.slots() } else { BTreeMap::new() };
            for (slot, changes) in slots {
                subjects.push(self.of_slot(&job.write.channel, &job.entry, slot));
                parts.push((at, changes));
            }
        }
        let found = self.get(connection, &subjects).await?;
        let mut puts = Vec::new();
        for ((subject, (at, changes)), found) in subjects.into_iter().zip(parts).zip(found) {
            let Some(job) = jobs.get_mut(at) else { continue };
            let after = found.as_ref().map_or(0, |found| found.sequence);
            // What a node had before it was not in the directory is no member any more.
            let mut members = found.filter(|_| job.is_known).map_or_else(Infos::new, infos);
            let before = members.len();
            apply(&mut members, &changes);
            job.is_emptied |= members.is_empty();
            if members.len() == before && !has_present(&changes) {
                continue;
            }
            let body = encoded(job.entry.node, &members);
            let is_full = members.len() > SLOT_MEMBERS || body.len() > SLOT_BYTES;
            job.is_full |= is_full && job.entry.slots < SLOTS_MAX;
            puts.push((at, Put { subject, after: Some(after), body }));
        }
        Ok(puts)
    }

    /// The directory of a topic with another entry of a node, or none.
    fn entered(&self, job: &Job<'_>, entry: Option<Entry>) -> Put {
        let others = job.directory.entries.iter().filter(|other| other.node != job.entry.node);
        let entries: Vec<Entry> = others.copied().chain(entry).collect();
        Put {
            subject: self.of_topic("d", &job.write.channel),
            after: Some(job.directory.sequence),
            body: lines(&entries),
        }
    }

    /// The messages of all slots of a node in a topic.
    async fn slots(
        &self,
        connection: &Connection,
        channel: &Channel,
        entry: &Entry,
    ) -> Result<Vec<Option<StoredMessage>>, Fault> {
        let slots = 0..entry.slots;
        let subjects: Vec<String> = slots.map(|slot| self.of_slot(channel, entry, slot)).collect();
        self.get(connection, &subjects).await
    }

    /// Whether no slot of a node has members.
    async fn is_empty(&self, connection: &Connection, job: &Job<'_>) -> Result<bool, Fault> {
        if job.entry.slots == 1 {
            return Ok(true);
        }
        let all = self.slots(connection, &job.write.channel, &job.entry).await?;
        Ok(all.into_iter().flatten().all(|slot| slot.body.is_empty()))
    }

    /// Performs a write to a node's members and gives them so many slots as they need, if these are more.
    async fn grow(&self, connection: &Connection, job: &mut Job<'_>) -> Result<(), Fault> {
        let (write, entry) = (job.write, job.entry);
        let mut members = Infos::new();
        if job.is_known {
            let all = self.slots(connection, &write.channel, &entry).await?;
            all.into_iter().flatten().for_each(|slot| members.extend(infos(slot)));
        }
        apply(&mut members, &changes_of(write).collect::<Vec<_>>());
        let slots = slots_for(&members);
        job.is_full = slots > entry.slots;
        if !job.is_full {
            return Ok(());
        }
        let grown = Entry { slots, seed: random(), ..entry };
        let mut by_slot = vec![Infos::new(); slots as usize];
        for (id, info) in members {
            if let Some(slot) = by_slot.get_mut(slot_of(&id, &grown) as usize) {
                slot.insert(id, info);
            }
        }
        let put = |(slot, members): (usize, &Infos)| Put {
            subject: self.of_slot(&write.channel, &grown, slot as u32),
            after: None,
            body: encoded(grown.node, members),
        };
        let puts: Vec<Put> = by_slot.iter().enumerate().map(put).collect();
        for put in self.bucket.put(connection, &puts).await? {
            put.map_err(not_put)?;
        }
        // The old slots stay, for those who have just read the directory.
        let put = self.bucket.put(connection, &[self.entered(job, Some(grown))]).await?;
        job.again = match put.first() {
            Some(Ok(_)) => false,
            Some(Err(NotPut::Conflict)) | None => true,
            Some(Err(why)) => return Err(not_put(*why)),
        };
        Ok(())
    }

    async fn load(
        &self,
        connection: &Connection,
        channels: &[&Channel],
    ) -> Result<Vec<Stored>, Fault> {
        let subjects: Vec<String> =
            channels.iter().map(|channel| self.of_topic("t", channel)).collect();
        let changes = self.get(connection, &subjects).await?;
        let version = |last: &Option<StoredMessage>| last.as_ref().map_or(0, |last| last.sequence);
        let mut stored: Vec<Stored> = changes
            .iter()
            .map(|last| Stored { version: version(last), members: Vec::new() })
            .collect();
        let numbered = channels.iter().enumerate().zip(&changes);
        let changed: Vec<(usize, &Channel)> = numbered
            .filter(|(_, last)| last.is_some())
            .map(|((at, channel), _)| (at, *channel))
            .collect();
        let named = changed.iter().map(|(_, channel)| *channel);
        let directories = self.directories(connection, named).await?;
        let (mut subjects, mut of) = (Vec::new(), Vec::new());
        for ((at, channel), directory) in changed.into_iter().zip(directories) {
            for entry in directory.entries {
                for slot in 0..entry.slots {
                    subjects.push(self.of_slot(channel, &entry, slot));
                    of.push((at, entry.node));
                }
            }
        }
        for (found, (at, node)) in self.get(connection, &subjects).await?.into_iter().zip(of) {
            let (Some(found), Some(stored)) = (found, stored.get_mut(at)) else { continue };
            let member = |(id, info)| Member { node, id, info };
            stored.members.extend(infos(found).into_iter().map(member));
        }
        Ok(stored)
    }

    async fn renew(
        &self,
        connection: &Connection,
        key: &str,
        time: Duration,
    ) -> Result<bool, Fault> {
        let subject = self.of_lease(key);
        let found = self.get(connection, std::slice::from_ref(&subject)).await?;
        let Some(lease) = found.into_iter().flatten().next() else { return Ok(false) };
        let Some(until_ms) = until_ms(&lease) else { return Ok(false) };
        let after = Some(lease.sequence);
        let sequence = match self.put(connection, subject.clone(), after, millis(time)).await? {
            Ok(sequence) => sequence,
            Err(NotPut::Conflict) => return Ok(false),
            Err(why) => return Err(not_put(why)),
        };
        // Others may have noticed meanwhile that it had ended: its end is by the time of the server.
        let times = self.bucket.times(connection, &[sequence]).await?;
        let is_in_time = times.into_iter().flatten().any(|time_ms| time_ms <= until_ms);
        if !is_in_time {
            self.put(connection, subject, None, Vec::new()).await?.map_err(not_put)?;
        }
        Ok(is_in_time)
    }

    async fn leases(&self, connection: &Connection, keys: &[String]) -> Result<Vec<bool>, Fault> {
        let clock = format!("{}clock", self.subjects);
        self.put(connection, clock.clone(), None, Vec::new()).await?.map_err(not_put)?;
        // Perhaps that of another node, which is later.
        let now = self.get(connection, &[clock]).await?.into_iter().flatten().next();
        let Some(now) = now else { return Err(protocol("no time")) };
        let subjects: Vec<String> = keys.iter().map(|key| self.of_lease(key)).collect();
        let found = self.get(connection, &subjects).await?;
        let lives = |lease: &StoredMessage| until_ms(lease).is_some_and(|ms| ms >= now.time_ms);
        Ok(found.iter().map(|lease| lease.as_ref().is_some_and(lives)).collect())
    }
}

impl NatsLink {
    fn presence(&self) -> Result<(&Connection, &Presence), Fault> {
        let without = || Fault::new(FaultKind::Protocol, "no members are kept");
        self.members().ok_or_else(without)
    }
}

impl MemberStore for NatsLink {
    async fn open_members(&self, _: &str) -> Result<(), Fault> {
        self.presence().map(drop)
    }

    async fn write_members(&self, batch: &[Write]) -> Result<Vec<Result<(), Rejected>>, Fault> {
        let (connection, presence) = self.presence()?;
        let most = connection.payload_bytes_max().saturating_sub(OVERHEAD);
        let mut pieces = Vec::with_capacity(batch.len());
        for write in batch {
            let (all, left_out) = Pieces::of(write, most);
            if left_out {
                presence.left_out();
            }
            pieces.extend(all);
        }
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            // The second write of a node to a topic needs what the first one has written.
            let mut seen: HashSet<(&str, NodeId), RandomState> = HashSet::default();
            let mut of = rest.iter().map(|write| (&*write.channel, write.node));
            let many = of.position(|place| !seen.insert(place)).unwrap_or(rest.len());
            let (part, later) = rest.split_at(many);
            presence.write(connection, part).await?;
            rest = later;
        }
        Ok(vec![Ok(()); batch.len()])
    }

    async fn load_members(
        &self,
        topics: &[(String, Channel)],
    ) -> Result<Vec<Result<Stored, Rejected>>, Fault> {
        let (connection, presence) = self.presence()?;
        let channels: Vec<&Channel> = topics.iter().map(|(_, channel)| channel).collect();
        let all = presence.load(connection, &channels).await?;
        Ok(all.into_iter().map(Ok).collect())
    }

    async fn begin_lease(&self, key: &str, time: Duration) -> Result<(), Fault> {
        let (connection, presence) = self.presence()?;
        let subject = presence.of_lease(key);
        presence.put(connection, subject, None, millis(time)).await?.map_err(not_put).map(drop)
    }

    async fn renew_lease(&self, key: &str, time: Duration) -> Result<bool, Fault> {
        let (connection, presence) = self.presence()?;
        presence.renew(connection, key, time).await
    }

    async fn end_lease(&self, key: &str) -> Result<(), Fault> {
        let (connection, presence) = self.presence()?;
        let subject = presence.of_lease(key);
        presence.put(connection, subject, None, Vec::new()).await?.map_err(not_put).map(drop)
    }

    async fn leases(&self, keys: &[String]) -> Result<Vec<bool>, Fault> {
        let (connection, presence) = self.presence()?;
        presence.leases(connection, keys).await
    }
}

/// An event of members as nodes read it, of a change that the stream has passed on with these headers.
pub(crate) fn passed_on(before: u64, after: u64, change: &[u8]) -> Vec<u8> {
    let changes = change.get(START.len()..).unwrap_or_default();
    [&START[..], format!("{before} {after} 1\n").as_bytes(), changes].concat()
}

fn protocol(why: &str) -> Fault {
    Fault::new(FaultKind::Protocol, why)
}

fn not_put(why: NotPut) -> Fault {
    let why = match why {
        NotPut::Conflict => "JetStream: members were changed by another node",
        NotPut::NoRoom => "JetStream: no room for members",
        NotPut::TooLong => "a change of members is longer than max_payload of NATS",
    };
    Fault::new(FaultKind::Refused, why)
}

fn millis(time: Duration) -> Vec<u8> {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    millis.to_le_bytes().to_vec()
}

/// The time of the server until which a lease lasts; `None` if it was ended.
fn until_ms(lease: &StoredMessage) -> Option<u64> {
    let time_ms = u64::from_le_bytes(lease.body.as_slice().try_into().ok()?);
    Some(lease.time_ms.saturating_add(time_ms))
}
