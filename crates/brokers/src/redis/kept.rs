//! Publications that Redis keeps: a hash and a stream for each topic, changed by scripts, so that numbering, keeping
//! and publishing are one step and all nodes receive them in the order of their offsets. Needs Redis 6.2.
//!
//! The hash has the epoch and the last offset, and outlives the stream, so that a client that has missed nothing is
//! told so. An epoch is that of one process of the server: after a restart or a failover another one begins. A slot of a
//! cluster that is moved to another master takes its epochs along.

use redis::{Pipeline, Value};

use super::pages::{Page, fetch_pages};
use super::{Connection, fault, rejected, taken, unreadable};
use crate::kept::{HistorySettings, Kept, Position};
use crate::transport::{Channel, Fault, FaultKind, Fetched, Outgoing, Rejected, Taken};

/// The first byte of an envelope that has its place in front of it: epoch, offset and time follow (little endian).
/// The version of an envelope without it is 1.
const PLACED: u8 = 2;
/// Length of a place.
const PLACE_BYTES: usize = 21;
/// Attempts to run scripts that the server has forgotten.
const LOADS_MAX: usize = 3;

const KEEP: &str =
    concat!("local peers = ARGV[8]\n", include_str!("topic.lua"), include_str!("keep.lua"));
const FETCH: &str =
    concat!("local peers = ARGV[9]\n", include_str!("topic.lua"), include_str!("fetch.lua"));

/// A script that publishes by this command instead.
pub(super) fn publishing_by(command: &str, script: &str) -> String {
    script.replace("'PUBLISH'", &format!("'{command}'"))
}

/// What the scripts need to know of a server and of the settings.
pub(super) struct Keeper {
    run_id: String,
    /// The command that publishes.
    command: &'static str,
    /// Names of the scripts.
    keep: String,
    fetch: String,
    messages: String,
    age_ms: String,
    random: fn() -> u64,
}

/// The place in front of an envelope, with the offset before it, and the envelope.
pub(super) fn unpack(mut body: Vec<u8>) -> (Option<(Kept, u64)>, Vec<u8>) {
    if body.first() != Some(&PLACED) {
        return (None, body);
    }
    let Some(kept) = place(&body) else { return (None, body) };
    body.drain(..PLACE_BYTES);
    (Some((kept, kept.position.offset.saturating_sub(1))), body)
}

fn place(body: &[u8]) -> Option<Kept> {
    let epoch = u32::from_le_bytes(body.get(1..5)?.try_into().ok()?);
    let offset = u64::from_le_bytes(body.get(5..13)?.try_into().ok()?);
    let time_ms = u64::from_le_bytes(body.get(13..PLACE_BYTES)?.try_into().ok()?);
    Some(Kept { position: Position { epoch, offset }, time_ms })
}

/// The keys of a channel: its hash and its stream.
fn keys(channel: &str) -> [String; 2] {
    // A channel of a Redis Cluster is a hash tag.
    let (open, close) = if channel.starts_with('{') { ("", "") } else { ("{", "}") };
    ["at", "kept"].map(|name| format!("{open}{channel}{close}:{name}"))
}

/// The command that deletes what is kept of a channel.
pub(super) fn reset_command(pipeline: &mut Pipeline, channel: &str) {
    pipeline.cmd("DEL").arg(&keys(channel));
}

/// The user may use the keys that were asked for.
pub(super) fn permitted(answers: Vec<Result<Fetched, Rejected>>) -> Result<(), Fault> {
    let refused = answers.into_iter().find_map(Result::err).filter(|one| !one.is_invalid);
    refused.map_or(Ok(()), |one| Err(Fault::new(FaultKind::Refused, &*one.why)))
}

pub(super) fn invalid(what: &str) -> Fault {
    Fault::new(FaultKind::Protocol, format!("invalid answer to {what}"))
}

impl Keeper {
    /// Loads the scripts, which publish by a command.
    pub(super) async fn new(
        connection: &Connection,
        command: &'static str,
        history: HistorySettings,
        random: fn() -> u64,
    ) -> Result<Self, Fault> {
        let info = match connection.send(redis::cmd("INFO").arg("server")).await? {
            Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            Value::VerbatimString { text, .. } => text,
            _ => return Err(invalid("INFO")),
        };
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let version = field("redis_version").unwrap_or_default();
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        if (numbers.next(), numbers.next()) < (Some(6), Some(2)) {
            let why = format!("a shared history needs Redis 6.2 or newer, this is {version}");
            return Err(Fault::new(FaultKind::Refused, why));
        }
        let run_id = field("run_id").ok_or_else(|| invalid("INFO"))?.to_owned();
        let age_ms = history.age.as_millis().max(1).to_string();
        let messages = history.messages.max(1).to_string();
        let [keep, fetch] = load(connection, command).await?;
        Ok(Keeper { run_id, command, keep, fetch, messages, age_ms, random })
    }

    /// An epoch for topics that begin one.
    pub(super) fn epoch(&self) -> String {
        ((self.random)() as u32).max(1).to_string()
    }

    /// Loads the scripts again.
    pub(super) async fn load(&self, connection: &Connection) -> Result<(), Fault> {
        load(connection, self.command).await.map(drop)
    }

    fn script<'p>(
        &self,
        pipeline: &'p mut Pipeline,
        script: &str,
        channel: &str,
        epoch: &str,
    ) -> &'p mut Pipeline {
        let [hash, stream] = keys(channel);
        pipeline
            .cmd("EVALSHA")
            .arg(script)
            .arg(2)
            .arg(hash)
            .arg(stream)
            .arg(&*self.run_id)
            .arg(epoch)
            .arg(&*self.messages)
            .arg(&*self.age_ms)
    }

    /// The server's process.
    pub(super) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The command for a message; `again` if it may have been executed. `peers` are the run ids of a cluster.
    pub(super) fn publish_command(
        &self,
        pipeline: &mut Pipeline,
        one: &Outgoing,
        again: bool,
        epoch: &str,
        peers: Option<&str>,
    ) {
        let (channel, body) = (&*one.channel, &*one.body);
        if one.keep {
            self.script(pipeline, &self.keep, channel, epoch)
                .arg(channel)
                .arg(body)
                .arg(u8::from(one.again || again))
                .arg(peers);
        } else {
            pipeline.cmd(self.command).arg(channel).arg(body);
        }
    }

    /// The command that fetches a page of what follows a position.
    pub(super) fn fetch_command(
        &self,
        pipeline: &mut Pipeline,
        page: &Page<'_>,
        epoch: &str,
        peers: Option<&str>,
    ) {
        let (after_epoch, after) = page.after.map_or((0, 0), |after| (after.epoch, after.offset));
        self.script(pipeline, &self.fetch, page.channel, epoch)
            .arg(after_epoch)
            .arg(after)
            .arg(&*page.before)
            .arg(page.bytes)
            .arg(peers);
    }

    /// As [`crate::Link::publish`].
    pub(super) async fn publish(
        &self,
        connection: &Connection,
        batch: &[Outgoing],
    ) -> Result<Vec<Taken>, Fault> {
        let epoch = self.epoch();
        let build = |from: usize| {
            let mut pipeline = Pipeline::with_capacity(batch.len());
            for one in batch.get(from..).unwrap_or_default() {
                // Some of what follows one that was not executed may have been.
                self.publish_command(&mut pipeline, one, from > 0, &epoch, None);
            }
            pipeline
        };
        let answers = self.run(connection, batch.len(), build).await?;
        answers.into_iter().zip(batch).map(|(answer, one)| took(answer, one)).collect()
    }

    /// As [`crate::Link::fetch`].
    pub(super) async fn fetch(
        &self,
        connection: &Connection,
        channels: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
        let epoch = self.epoch();
        let send = async |pages: &[Page<'_>]| {
            let build = |from: usize| {
                let mut pipeline = Pipeline::with_capacity(pages.len());
                for page in pages.get(from..).unwrap_or_default() {
                    self.fetch_command(&mut pipeline, page, &epoch, None);
                }
                pipeline
            };
            self.run(connection, pages.len(), build).await
        };
        fetch_pages(channels, send).await
    }

    /// Sends commands, and those from the first on that the server did not know the script of again.
    async fn run(
        &self,
        connection: &Connection,
        many: usize,
        build: impl Fn(usize) -> Pipeline,
    ) -> Result<Vec<Value>, Fault> {
        let mut answers: Vec<Value> = Vec::new();
        for _ in 0..LOADS_MAX {
            let (from, pipeline) = (answers.len(), build(answers.len()));
            let mut commands = connection.commands.clone();
            let sent = commands.send_packed_commands(&pipeline, 0, many - from).await;
            answers.extend(sent.map_err(fault)?);
            if answers.len() != many {
                return Err(invalid("EVALSHA"));
            }
            let Some(at) = answers.iter().position(is_unknown_script) else { return Ok(answers) };
            answers.truncate(at);
            self.load(connection).await?;
        }
        Err(Fault::new(FaultKind::Protocol, "NOSCRIPT: the server forgets its scripts"))
    }
}

/// Whether the server does not know a script.
pub(super) fn is_unknown_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Whether a script found a key of another process of the cluster, and changed nothing.
pub(super) fn is_of_other_run(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "OTHERRUN")
}

/// The answer to a command of [`Keeper::publish_command`].
pub(super) fn took(answer: Value, one: &Outgoing) -> Result<Taken, Fault> {
    if one.keep { kept(answer, &one.channel) } else { taken(answer, &one.channel) }
}

/// Loads both scripts.
async fn load(connection: &Connection, command: &str) -> Result<[String; 2], Fault> {
    let mut names = [String::new(), String::new()];
    for (script, name) in [KEEP, FETCH].into_iter().zip(&mut names) {
        *name = load_script(connection, &publishing_by(command, script)).await?;
    }
    Ok(names)
}

/// Loads a script and returns its name.
pub(crate) async fn load_script(connection: &Connection, script: &str) -> Result<String, Fault> {
    match connection.send(redis::cmd("SCRIPT").arg("LOAD").arg(script)).await? {
        Value::BulkString(sha) => Ok(String::from_utf8_lossy(&sha).into_owned()),
        Value::SimpleString(sha) => Ok(sha),
        _ => Err(invalid("SCRIPT LOAD")),
    }
}

pub(super) fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn kept(answer: Value, channel: &str) -> Result<Taken, Fault> {
    if matches!(&answer, Value::ServerError(error) if error.code() == "OOM") {
        return Ok(Taken::NoMemory);
    }
    let parts = match answer.extract_error() {
        Ok(Value::Array(parts)) => parts,
        Ok(_) => return Err(invalid("EVALSHA")),
        Err(error) => return rejected(channel, error).map(Taken::Rejected),
    };
    let epoch = number(parts.first()).and_then(|epoch| u32::try_from(epoch).ok());
    let (Some(epoch), Some(offset)) = (epoch, number(parts.get(1))) else {
        return Ok(Taken::Rejected(unreadable(channel)));
    };
    let position = (offset > 0).then_some(Position { epoch, offset });
    Ok(Taken::Kept { reached: number(parts.get(3)), position })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_off_and_other_bytes_are_left() {
        let mut body = vec![PLACED, 1, 0, 0, 0];
        body.extend_from_slice(&7_u64.to_le_bytes());
        body.extend_from_slice(&9_u64.to_le_bytes());
        assert_eq!(unpack(body[..20].to_vec()), (None, body[..20].to_vec()));
        body.extend_from_slice(b"rest");
        let kept = Kept { position: Position { epoch: 1, offset: 7 }, time_ms: 9 };
        assert_eq!(unpack(body), (Some((kept, 6)), b"rest".to_vec()));
        assert_eq!(unpack(vec![1, 2]), (None, vec![1, 2]));
        assert_eq!(unpack(Vec::new()), (None, Vec::new()));
    }
}
