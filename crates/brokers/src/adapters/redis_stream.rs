//! [`RedisStreamAdapter`]: a stream of Redis, read by a group of consumers of which each message goes to one.
//! A message stays in the stream until the inlet has accepted it: then it is acknowledged and deleted. What
//! a consumer has taken and not acknowledged is claimed by another after a while, so a message may be
//! accepted twice when a node ends between the two, and is never lost by an adapter.
//!
//! What waits in the inlet is held here by id. Its claim is renewed so that no other consumer takes it, and
//! with too much of it the adapter stops reading: the rest waits in the stream.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, RedisResult, Value};
use tokio::time::Instant;

use super::{AdapterStatus, Context, Message, Offered, Phase, RETRY_AFTER};
use crate::backoff::{Backoff, random};
use crate::redis::{RedisTransport, fault};
use crate::transport::{Fault, Transport};

/// The group of consumers, AnyCable's.
const GROUP: &str = "bx";
/// Messages read at a time.
const COUNT: usize = 64;
/// How long a read waits for messages, less than the time for any answer. The adapter ends after at most this
/// time.
const BLOCK: Duration = Duration::from_secs(1);
/// A message that was not acknowledged for this time is claimed.
const IDLE: Duration = Duration::from_secs(2);
/// Time between two claims, and between two renewals of our own.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// Bytes that may wait before the adapter stops reading.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A consumer without messages that did nothing for this time has ended.
const CONSUMER_GONE: Duration = Duration::from_secs(3600);

/// A stream of Redis that applications add to.
#[derive(Clone, Debug)]
pub struct RedisStreamAdapter {
    /// The server.
    pub server: RedisTransport,
    /// The key of the stream.
    pub stream: String,
    /// The name of this consumer in the group, which no other process has; empty for one at random.
    pub consumer: String,
}

impl RedisStreamAdapter {
    pub(super) fn status(&self) -> AdapterStatus {
        let place = format!("stream {} of {}", self.stream, self.server.server());
        AdapterStatus::new("redisx", place, false)
    }
}

/// What was read and is not acknowledged. It outlives connections.
#[derive(Default)]
struct Unsettled {
    /// What the inlet keeps, by its number.
    held: HashMap<u64, String>,
    /// The same by id.
    ids: HashSet<String>,
    /// What is accepted and still to be acknowledged.
    accepted: Vec<String>,
    /// The number of the next message.
    next: u64,
}

impl Unsettled {
    /// The inlet has accepted these.
    fn accepted(&mut self, numbers: Vec<u64>) {
        for id in numbers.iter().filter_map(|number| self.held.remove(number)) {
            self.ids.remove(&id);
            self.accepted.push(id);
        }
    }
}

pub(super) async fn run(mut adapter: RedisStreamAdapter, context: Context) {
    if adapter.consumer.is_empty() {
        adapter.consumer = format!("standfast-{:016x}", random());
    }
    let (mut backoff, mut unsettled) = (Backoff::default(), Unsettled::default());
    loop {
        match session(&adapter, &context, &mut unsettled, &mut backoff).await {
            Ok(()) => return,
            Err(fault) => context.status.down(fault.why),
        }
        let settled = |numbers| unsettled.accepted(numbers);
        if context.pause(&mut backoff, Phase::Leaving, settled).await {
            return;
        }
    }
}

/// Connects and takes messages until the process leaves or the connection ends.
async fn session(
    adapter: &RedisStreamAdapter,
    context: &Context,
    unsettled: &mut Unsettled,
    backoff: &mut Backoff,
) -> Result<(), Fault> {
    let opened = adapter.server.connection(None::<fn(PushInfo)>).await?;
    let connection = opened.commands.clone();
    read(Reader { adapter, context, unsettled, connection }, backoff).await.map_err(fault)
}

async fn read(mut reader: Reader<'_>, backoff: &mut Backoff) -> RedisResult<()> {
    let context = reader.context;
    reader.create_group().await?;
    reader.acknowledge().await?;
    reader.take_own().await?;
    match reader.delete_gone_consumers().await {
        // It is only tidy to do so.
        Err(error) if error.code() != Some("NOPERM") => return Err(error),
        _ => {}
    }
    context.status.open();
    backoff.connected();
    let mut claimed = Instant::now();
    while !context.is(Phase::Leaving) {
        if let Err(error) = reader.take_new().await {
            // The stream was deleted, or the server lost its memory.
            if error.code() != Some("NOGROUP") {
                return Err(error);
            }
            reader.create_group().await?;
        }
        reader.settle().await?;
        if claimed.elapsed() >= CLAIM_EVERY {
            claimed = Instant::now();
            reader.renew().await?;
            reader.claim().await?;
        }
    }
    reader.leave().await
}

struct Reader<'r> {
    adapter: &'r RedisStreamAdapter,
    context: &'r Context,
    unsettled: &'r mut Unsettled,
    connection: MultiplexedConnection,
}

impl Reader<'_> {
    /// Creates the stream and the group if they are missing. The group gets what is in the stream already:
    /// nobody has accepted it.
    async fn create_group(&mut self) -> RedisResult<()> {
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(&self.adapter.stream).arg(GROUP).arg("0").arg("MKSTREAM");
        match create.query_async::<Value>(&mut self.connection).await {
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
            other => other.map(drop),
        }
    }

    /// Takes what this consumer had read when its last connection ended.
    async fn take_own(&mut self) -> RedisResult<()> {
        let mut after = "0".to_owned();
        loop {
            let entries = self.read(&after, None).await?;
            let Some(last) = entries.last() else { return Ok(()) };
            after.clone_from(&last.id);
            self.take(entries);
            self.acknowledge().await?;
        }
    }

    /// Takes new messages. Waits for them, unless something is to be tried again soon.
    async fn take_new(&mut self) -> RedisResult<()> {
        let waiting = self.context.status.waiting_bytes();
        if waiting >= WAITING_BYTES_MAX {
            tokio::time::sleep(RETRY_AFTER).await;
            return Ok(());
        }
        let block = if waiting > 0 { RETRY_AFTER } else { BLOCK };
        let entries = self.read(">", Some(block)).await?;
        self.take(entries);
        Ok(())
    }

    async fn read(&mut self, after: &str, block: Option<Duration>) -> RedisResult<Vec<Entry>> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(&self.adapter.consumer).arg("COUNT").arg(COUNT);
        if let Some(block) = block {
            read.arg("BLOCK").arg(block.as_millis() as u64);
        }
        read.arg("STREAMS").arg(&self.adapter.stream).arg(after);
        Ok(entries_of_streams(read.query_async(&mut self.connection).await?))
    }

    /// Offers messages to the inlet. Those that are in its hands already are left out.
    fn take(&mut self, entries: Vec<Entry>) {
        for Entry { id, payload } in entries {
            if self.unsettled.ids.contains(&id) || self.unsettled.accepted.contains(&id) {
                continue;
            }
            let number = self.unsettled.next;
            self.unsettled.next += 1;
            let channel = &self.adapter.stream;
            // Without a payload it is an empty message, which is invalid: what nobody can understand must
            // not come again and again.
            let body = payload.as_deref().unwrap_or_default();
            let message = Message { channel, body, kept: Some(number), identifiers: None };
            if self.context.offer(message) == Offered::Waits {
                self.unsettled.ids.insert(id.clone());
                self.unsettled.held.insert(number, id);
            } else {
                self.unsettled.accepted.push(id);
            }
        }
    }

    /// Tries again what waits, and acknowledges what is accepted.
    async fn settle(&mut self) -> RedisResult<()> {
        if !self.unsettled.held.is_empty() {
            self.unsettled.accepted(self.context.retry());
        }
        self.acknowledge().await
    }

    async fn acknowledge(&mut self) -> RedisResult<()> {
        if self.unsettled.accepted.is_empty() {
            return Ok(());
        }
        let (stream, ids) = (&self.adapter.stream, &self.unsettled.accepted);
        let mut both = redis::pipe();
        both.cmd("XACK").arg(stream).arg(GROUP).arg(ids).cmd("XDEL").arg(stream).arg(ids);
        both.query_async::<Value>(&mut self.connection).await?;
        self.unsettled.accepted.clear();
        Ok(())
    }

    /// Claims what waits again, so that no other consumer does.
    async fn renew(&mut self) -> RedisResult<()> {
        let ids: Vec<&String> = self.unsettled.ids.iter().collect();
        for ids in ids.chunks(COUNT * 8) {
            let mut claim = redis::cmd("XCLAIM");
            claim.arg(&self.adapter.stream).arg(GROUP).arg(&self.adapter.consumer).arg(0).arg(ids);
            claim.arg("JUSTID").query_async::<Value>(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Takes what other consumers have read and not acknowledged in time.
    async fn claim(&mut self) -> RedisResult<()> {
        let mut from = "0-0".to_owned();
        while self.context.status.waiting_bytes() < WAITING_BYTES_MAX {
            let mut claim = redis::cmd("XAUTOCLAIM");
            claim.arg(&self.adapter.stream).arg(GROUP).arg(&self.adapter.consumer);
            claim.arg(IDLE.as_millis() as u64).arg(&from).arg("COUNT").arg(COUNT);
            let answer = claim.query_async(&mut self.connection).await?;
            let Some((next, entries)) = claimed(answer) else { return Ok(()) };
            self.context.status.claimed(entries.len());
            self.take(entries);
            self.acknowledge().await?;
            if next == "0-0" {
                break;
            }
            from = next;
        }
        Ok(())
    }

    /// Deletes consumers of processes that have ended, which are without messages.
    async fn delete_gone_consumers(&mut self) -> RedisResult<()> {
        let mut info = redis::cmd("XINFO");
        info.arg("CONSUMERS").arg(&self.adapter.stream).arg(GROUP);
        let consumers: Vec<HashMap<String, Value>> = info.query_async(&mut self.connection).await?;
        let number = |of: &HashMap<String, Value>, key: &str| match of.get(key) {
            Some(Value::Int(number)) => Some(*number),
            _ => None,
        };
        for consumer in &consumers {
            let idle = number(consumer, "idle").is_some_and(|ms| {
                u64::try_from(ms).is_ok_and(|ms| Duration::from_millis(ms) >= CONSUMER_GONE)
            });
            let Some(Value::BulkString(name)) = consumer.get("name") else { continue };
            if idle && number(consumer, "pending") == Some(0) {
                let mut delete = redis::cmd("XGROUP");
                delete.arg("DELCONSUMER").arg(&self.adapter.stream).arg(GROUP).arg(name);
                delete.query_async::<Value>(&mut self.connection).await?;
            }
        }
        Ok(())
    }

    /// Removes this consumer, unless it still has messages: then another one claims them.
    async fn leave(mut self) -> RedisResult<()> {
        self.settle().await?;
        if self.unsettled.held.is_empty() {
            let mut delete = redis::cmd("XGROUP");
            delete
                .arg("DELCONSUMER")
                .arg(&self.adapter.stream)
                .arg(GROUP)
                .arg(&self.adapter.consumer);
            delete.query_async::<Value>(&mut self.connection).await?;
        }
        Ok(())
    }
}

/// One message of a stream.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    id: String,
    /// The field `payload`, if it has one.
    payload: Option<Vec<u8>>,
}

/// The entries of `{key: [entry, …], …}`, or of nil if there are none.
fn entries_of_streams(answer: Value) -> Vec<Entry> {
    let Value::Map(streams) = answer else { return Vec::new() };
    let entries = streams.into_iter().filter_map(|(_, entries)| array(entries));
    entries.flatten().filter_map(entry).collect()
}

/// Where to go on, and the entries of `[next, [entry, …], [deleted, …]]`.
fn claimed(answer: Value) -> Option<(String, Vec<Entry>)> {
    let mut parts = array(answer)?.into_iter();
    let (next, entries) = (text(parts.next()?)?, array(parts.next()?)?);
    Some((next, entries.into_iter().filter_map(entry).collect()))
}

/// `[id, [field, value, …]]`; nil instead of the fields if it was deleted.
fn entry(value: Value) -> Option<Entry> {
    let mut parts = array(value)?.into_iter();
    let (id, mut fields) = (text(parts.next()?)?, array(parts.next()?)?.into_iter());
    let mut payload = None;
    while let (Some(field), Some(value)) = (fields.next(), fields.next()) {
        if let (Value::BulkString(name), Value::BulkString(value)) = (field, value)
            && name == b"payload"
        {
            payload = Some(value);
        }
    }
    Some(Entry { id, payload })
}

fn array(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn stored(id: &str, fields: &[&str]) -> Value {
        let fields = fields.iter().map(|field| bytes(field)).collect();
        Value::Array(vec![bytes(id), Value::Array(fields)])
    }

    fn entry_of(id: &str, payload: Option<&str>) -> Entry {
        Entry { id: id.into(), payload: payload.map(Into::into) }
    }

    #[test]
    fn any_answer_is_entries_or_none() {
        let entries = vec![
            stored("1-0", &["payload", "a"]),
            stored("1-1", &["other", "x", "payload", "b"]),
            stored("1-2", &["other", "x"]),
            Value::Array(vec![bytes("1-3"), Value::Nil]),
            Value::Int(7),
        ];
        let expected =
            [entry_of("1-0", Some("a")), entry_of("1-1", Some("b")), entry_of("1-2", None)];
        let streams = vec![(bytes("key"), Value::Array(entries.clone()))];
        assert_eq!(entries_of_streams(Value::Map(streams)), expected);
        assert_eq!(entries_of_streams(Value::Nil), []);
        let answer = vec![bytes("2-0"), Value::Array(entries), Value::Array(vec![bytes("0-1")])];
        let (next, entries) = claimed(Value::Array(answer)).unwrap();
        assert_eq!((next.as_str(), entries), ("2-0", Vec::from(expected)));
        assert_eq!(claimed(Value::Nil), None);
    }
}
