//! Publications that a JetStream stream keeps: one stream for all topics, which numbers and keeps them, and passes
//! each on (`republish`) to the subject that nodes subscribe to, with its sequence and that of the one before it in
//! its topic. Needs NATS 2.9.
//!
//! Two nodes that publish to a topic at the same time may be passed on in another order than they are kept in: then
//! one is received whose predecessor is missing, and that is fetched before it (`driver/deliver.rs`).
//!
//! An offset is a sequence of the stream, an epoch its time of creation. What is kept is read from the leader
//! (`STREAM.MSG.GET`), as other replicas may be behind.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::api::{self, State, Width, nanos, new_stream, stream_name};
use super::connection::{Connection, Requests};
use super::protocol;
use super::stored::{ApiError, Stored, answer, invalid, place, stored, time_ms, time_ns};
use crate::envelope::Envelope;
use crate::kept::{HistorySettings, Kept, Position};
use crate::limits::DUPLICATE_WINDOW;
use crate::transport::{Channel, Fault, Fetched, Outgoing, Taken};

/// What the description of a stream says before the sequence from which on its topics are complete.
const SINCE: &str = "history of standfast, complete after sequence ";

/// The stream of a prefix.
pub(super) struct Stream {
    name: String,
    /// What the subjects of kept publications begin with.
    subjects: String,
    epoch: u32,
    created: String,
    history: HistorySettings,
    /// Requests for messages that are sent together.
    width: Width,
}

/// Part of a topic that is looked through for messages.
struct Piece {
    topic: usize,
    find: Find,
}

/// What is asked for next.
#[derive(Copy, Clone)]
enum Find {
    /// Whether there is one after this one. Servers find the last one of a topic by an index, but may look through
    /// all that follows for the first one from a sequence on.
    Newer(u64),
    /// The first one from a sequence on.
    First(u64),
    /// The last one, after this one.
    Last(u64),
    /// The first one between two sequences, both included.
    Between(u64, u64),
    /// The first one from a sequence on that was read already.
    Still(u64),
}

/// What was read of a topic.
#[derive(Default)]
struct Found {
    messages: Vec<Stored>,
    /// What was published before it may be missing.
    floor: u64,
    is_sorted: bool,
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the time of day, where the server does not tell it")]
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// FNV-1a: the same for nodes of all versions.
fn epoch(name: &str, created: &str) -> u32 {
    let created = time_ns(created).unwrap_or_default().to_le_bytes();
    let bytes = name.bytes().chain(created);
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.max(1)
}

/// The sequence from which on topics are complete, as the description of a stream tells.
fn since(config: &Value) -> u64 {
    let description = config["description"].as_str().unwrap_or_default();
    description.strip_prefix(SINCE).and_then(|since| since.parse().ok()).unwrap_or_default()
}

impl State {
    /// Everything after it that is not kept any more was evicted by the number of messages.
    fn evicted(&self) -> u64 {
        self.first.saturating_sub(1).max(since(&self.config))
    }

    /// Everything published before it may have been evicted.
    fn evicted_ms(&self) -> u64 {
        if self.first_ms > 0 && since(&self.config) < self.first {
            return self.first_ms;
        }
        self.last_ms.max(time_ms(&self.created).unwrap_or_default())
    }
}

impl Stream {
    /// Creates the stream, or changes its limits to those of the settings.
    pub(super) async fn open(
        connection: &Connection,
        prefix: &str,
        history: HistorySettings,
    ) -> Result<Self, Fault> {
        let mut stream = Stream {
            name: stream_name(prefix, "history"),
            subjects: format!("{}:kept.", protocol::subject(prefix)),
            epoch: 0,
            created: String::new(),
            history,
            width: Width::default(),
        };
        let changed = |state: &State| stream.changed(state);
        let found = api::open_stream(connection, &stream.name, &stream.config(), changed).await?;
        stream.epoch = epoch(&stream.name, &found.created);
        stream.created = found.created;
        Ok(stream)
    }

    /// Where a message that arrived is kept, and the offset of the one before it.
    pub(super) fn place(&self, head: &[u8], now_ms: fn() -> u64) -> Option<(Kept, u64)> {
        if head.is_empty() {
            return None;
        }
        place(head, self.epoch, now_ms)
    }

    /// The number of messages of a topic: with one more than the history the one before it is known.
    fn messages(&self) -> u64 {
        (self.history.messages.max(1) as u64).saturating_add(1).min(i64::MAX as u64)
    }

    fn config(&self) -> Value {
        let mut config = new_stream(&self.name);
        config["discard"] = "old".into();
        config["description"] = format!("{SINCE}0").into();
        self.set(&mut config);
        config
    }

    /// The part of a configuration that the settings determine.
    fn set(&self, config: &mut Value) {
        let age = nanos(self.history.age.max(Duration::from_millis(100)));
        let subjects = format!("{}*", self.subjects);
        config["max_msgs_per_subject"] = self.messages().into();
        config["max_age"] = age.into();
        config["duplicate_window"] = age.min(nanos(DUPLICATE_WINDOW)).into();
        config["republish"] = json!({"src": subjects, "dest": "{{wildcard(1)}}"});
        config["subjects"] = json!([subjects]);
    }

    /// The configuration of the stream with that of the settings, if that is another one.
    fn changed(&self, state: &State) -> Option<Value> {
        let mut config = state.config.clone();
        self.set(&mut config);
        if config == state.config {
            return None;
        }
        let before = state.config["max_msgs_per_subject"].as_i64().unwrap_or(-1);
        if before > 0 && (before as u64) < self.messages() {
            // What was evicted by the lower number is not told by the number of those that are left.
            config["description"] = format!("{SINCE}{}", state.last).into();
        }
        Some(config)
    }

    fn fault(&self, error: ApiError) -> Fault {
        api::fault(&self.name, error)
    }

    /// Verifies that the stream is there and was not created anew.
    pub(super) async fn check(&self, connection: &Connection) -> Result<(), Fault> {
        self.state(connection).await.map(drop)
    }

    async fn state(&self, connection: &Connection) -> Result<State, Fault> {
        api::state(connection, &self.name, &self.created).await
    }

    /// Appends a publication; `None` if it is too long. What is sent twice is kept once.
    pub(super) fn publish(
        &self,
        connection: &Connection,
        requests: &mut Requests<'_>,
        one: &Outgoing,
    ) -> Option<()> {
        let subject = protocol::subject(&one.channel);
        let id = match Envelope::decode(&one.body) {
            Ok(Envelope::Publication(message)) => {
                let (node, at) = (message.node.0, message.at);
                format!("{node:x}:{:x}:{:x}:{subject}", at.epoch, at.number)
            }
            _ => String::new(),
        };
        let head = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        if head.len() + one.body.len() > connection.payload_bytes_max() {
            return None;
        }
        let reply = requests.reply();
        let subject = format!("{}{subject}", self.subjects);
        protocol::request_with_head(&mut requests.bytes, &subject, &reply, &head, &one.body);
        Some(())
    }

    /// What became of a publication.
    pub(super) fn published(&self, delivery: &protocol::Delivery) -> Result<Taken, Fault> {
        match answer(delivery) {
            Ok(answer) => {
                let offset = answer["seq"].as_u64().ok_or_else(|| invalid("a publication"))?;
                let position = Some(Position { epoch: self.epoch, offset });
                Ok(Taken::Kept { reached: None, position })
            }
            Err(ApiError::NoRoom) => Ok(Taken::NoMemory),
            Err(ApiError::TooLong) => Ok(Taken::TooLong),
            Err(error) => Err(self.fault(error)),
        }
    }

    /// As [`crate::Link::fetch`].
    pub(super) async fn fetch(
        &self,
        connection: &Connection,
        channels: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Fetched>, Fault> {
        let after = |position: &Option<Position>| {
            let known = position.filter(|position| position.epoch == self.epoch);
            known.map_or(0, |position| position.offset)
        };
        let wanted: Vec<(&str, u64)> =
            channels.iter().map(|(channel, position)| (&**channel, after(position))).collect();
        let first = self.after(connection, &wanted).await?;
        // Without some of what follows a position all that is kept is needed.
        let unknown = first.iter().enumerate().filter(|(_, (_, is_complete))| !is_complete);
        let unknown: Vec<usize> = unknown.map(|(at, _)| at).collect();
        let mut all: Vec<Fetched> = first.into_iter().map(|(fetched, _)| fetched).collect();
        if !unknown.is_empty() {
            let again = unknown.iter().filter_map(|at| Some((wanted.get(*at)?.0, 0)));
            let whole = self.after(connection, &again.collect::<Vec<_>>()).await?;
            for (at, (fetched, _)) in unknown.into_iter().zip(whole) {
                if let Some(place) = all.get_mut(at) {
                    *place = fetched;
                }
            }
        }
        Ok(all)
    }

    /// What is kept of topics after an offset each, and whether nothing is missing between.
    async fn after(
        &self,
        connection: &Connection,
        topics: &[(&str, u64)],
    ) -> Result<Vec<(Fetched, bool)>, Fault> {
        // What is published to a topic that is found empty has a higher sequence.
        let before = match topics.iter().any(|(_, after)| *after == 0) {
            true => self.state(connection).await?.last,
            false => u64::MAX,
        };
        let subjects: Vec<String> = topics
            .iter()
            .map(|(channel, _)| format!("{}{}", self.subjects, protocol::subject(channel)))
            .collect();
        let found = self.scan(connection, &subjects, topics).await?;
        // Read afterwards: what was evicted by age before it was asked for is before the first.
        let state = self.state(connection).await?;
        let most = state.config["max_msgs_per_subject"].as_u64().unwrap_or(u64::MAX);
        let most = usize::try_from(most.min(self.messages())).unwrap_or(usize::MAX).max(2) - 1;
        let fetched = |(found, (_, after)): (Found, &(&str, u64))| {
            let Found { mut messages, floor, .. } = found;
            let (mut floor, mut floor_ms) = (floor.max(state.evicted()), state.evicted_ms());
            if let Some(first) = messages.first() {
                floor_ms = floor_ms.min(first.time_ms);
            }
            if messages.len() > most
                && let Some(evicted) = messages.drain(..messages.len() - most).next_back()
            {
                (floor, floor_ms) = (evicted.sequence, evicted.time_ms);
            }
            let is_complete = *after == 0 || floor <= *after && *after <= state.last;
            // Without a message the floor is also the last position: it is the same at most nodes.
            let last = messages.last().map(|last| last.sequence);
            let last = last.unwrap_or_else(|| floor.min(before).max(*after));
            let (epoch, floor) = (self.epoch, floor.max(*after).min(last));
            let messages = messages.into_iter().map(|Stored { sequence, time_ms, body }| {
                let position = Position { epoch, offset: sequence };
                (Kept { position, time_ms }, body)
            });
            let messages = messages.collect();
            (Fetched { epoch, floor, floor_ms, last, messages }, is_complete)
        };
        Ok(found.into_iter().zip(topics).map(fetched).collect())
    }

    /// The messages of topics after an offset each. Requests that do not depend on each other are sent together.
    async fn scan(
        &self,
        connection: &Connection,
        subjects: &[String],
        topics: &[(&str, u64)],
    ) -> Result<Vec<Found>, Fault> {
        let mut found: Vec<Found> = topics.iter().map(|_| Found::default()).collect();
        let first = |(topic, (_, after)): (usize, &(&str, u64))| {
            let find = if *after == 0 { Find::First(1) } else { Find::Newer(*after) };
            Piece { topic, find }
        };
        let mut pieces: Vec<Piece> = topics.iter().enumerate().map(first).collect();
        while !pieces.is_empty() {
            let width = self.width.get();
            let part = pieces.split_off(pieces.len().saturating_sub(width));
            for (piece, stored) in self.get(connection, subjects, part).await? {
                let Some(of) = found.get_mut(piece.topic) else { continue };
                let Some(stored) = stored else { continue };
                let (topic, at) = (piece.topic, stored.sequence);
                let mut between = |from: u64, to: u64| {
                    if from <= to {
                        pieces.push(Piece { topic, find: Find::Between(from, to) });
                    }
                };
                match piece.find {
                    // Not kept yet: what precedes it may be evicted before it is read, unless that begins first.
                    Find::Newer(after) if at > after => {
                        pieces.push(Piece { topic, find: Find::First(after + 1) });
                        continue;
                    }
                    Find::Newer(_) => continue,
                    Find::First(from) if at >= from => {
                        pieces.push(Piece { topic, find: Find::Last(at) });
                    }
                    Find::Last(first) if at > first => between(first + 1, at - 1),
                    Find::Last(_) => continue,
                    Find::Between(from, to) if at >= from => {
                        if at > to {
                            continue;
                        }
                        // Each half may be long, so both go on at the same time.
                        let middle = at + (to - at) / 2;
                        between(at + 1, middle);
                        between(middle.max(at) + 1, to);
                    }
                    Find::Still(first) if at >= first => {
                        of.evicted_before(at);
                        continue;
                    }
                    _ => return Err(invalid("STREAM.MSG.GET")),
                }
                of.messages.push(stored);
            }
            if pieces.is_empty() {
                // Those that were read with several requests may have been evicted between them.
                pieces.extend(found.iter_mut().enumerate().filter_map(|(topic, of)| {
                    let first = of.complete()?;
                    Some(Piece { topic, find: Find::Still(first) })
                }));
            }
        }
        Ok(found)
    }

    /// Asks for one message each.
    async fn get(
        &self,
        connection: &Connection,
        subjects: &[String],
        pieces: Vec<Piece>,
    ) -> Result<Vec<(Piece, Option<Stored>)>, Fault> {
        let mut requests = connection.requests();
        let api = api::subject("STREAM.MSG.GET", &self.name);
        for Piece { topic, find } in &pieces {
            // Subjects need no escapes.
            let subject = subjects.get(*topic).map_or("", String::as_str);
            let body = match find {
                Find::Newer(_) | Find::Last(_) => format!(r#"{{"last_by_subj":"{subject}"}}"#),
                Find::First(from) | Find::Between(from, _) | Find::Still(from) => {
                    format!(r#"{{"seq":{from},"next_by_subj":"{subject}"}}"#)
                }
            };
            api::request(&mut requests, &api, &body);
        }
        let answers = requests.send().await?;
        let bytes: usize = answers.iter().map(|answer| answer.body.len()).sum();
        self.width.adapt(bytes, pieces.len());
        let message = |delivery: &protocol::Delivery| match answer(delivery) {
            Ok(answer) => stored(&answer).map(Some),
            Err(ApiError::NoMessage) => Ok(None),
            Err(error) => Err(self.fault(error)),
        };
        let all = pieces.into_iter().zip(&answers);
        all.map(|(piece, delivery)| Ok((piece, message(delivery)?))).collect()
    }
}

impl Found {
    /// All pieces have been read. Returns the first sequence, if it has to be verified that it is still there.
    fn complete(&mut self) -> Option<u64> {
        if std::mem::replace(&mut self.is_sorted, true) || self.messages.len() < 2 {
            return None;
        }
        self.messages.sort_unstable_by_key(|one| one.sequence);
        self.messages.dedup_by_key(|one| one.sequence);
        self.messages.first().map(|first| first.sequence)
    }

    /// What was there before a sequence may be missing.
    fn evicted_before(&mut self, sequence: u64) {
        if self.messages.first().is_some_and(|first| first.sequence < sequence) {
            self.messages.retain(|one| one.sequence >= sequence);
            self.floor = sequence - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_the_same_in_every_zone_and_another_one_for_another_stream() {
        let one = epoch("a", "2026-11-27T18:20:42.463048742Z");
        assert_eq!(one, epoch("a", "2026-11-27T19:20:42.463048742+01:00"));
        assert_ne!(one, epoch("b", "2026-11-27T18:20:42.463048742Z"));
        assert_ne!(one, epoch("a", "2026-11-27T18:20:42.463048743Z"));
    }
}
