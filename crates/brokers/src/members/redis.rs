//! Redis as a [`MemberStore`], one server or a cluster ([`Keyed`]): a hash for each topic, with a field for each member of each node, and the version in
//! the field `v`. A script changes members and publishes the change, so that both have one order.

use std::cell::RefCell;
use std::future::Future;
use std::time::Duration;

use redis::{Pipeline, Value};

use super::event::{START, encode_changes};
use super::{KEPT, Member, MemberStore, Stored, Write};
use crate::envelope::NodeId;
use crate::redis::{RedisLink, fault, load_script, rejected, unreadable};
use crate::transport::{Channel, Fault, FaultKind, Rejected};

/// The field of the version.
const VERSION: &str = "v";
/// Hexadecimal digits of the node that precede the id of its member in a field.
const NODE_DIGITS: usize = 16;

/// Arguments: the channel, what precedes and what follows the versions in the message, how long the hash is kept in
/// milliseconds, how many fields are set; these with their values, and fields that are removed. A version begins
/// with the time, so that a hash never has that of an earlier one.
const CHANGE: &str = r"
local key, sets = KEYS[1], tonumber(ARGV[5])
local before = redis.call('HGET', key, 'v')
local removed = 0
if sets > 0 then redis.call('HSET', key, unpack(ARGV, 6, 5 + 2 * sets)) end
if #ARGV > 5 + 2 * sets then removed = redis.call('HDEL', key, unpack(ARGV, 6 + 2 * sets)) end
if sets == 0 and removed == 0 then return 0 end
local after
if before then after = tonumber(before) + 1 else
  local now = redis.call('TIME')
  before, after = '0', tonumber(now[1]) * 1000000 + tonumber(now[2])
end
after = string.format('%.0f', after)
local rest = '1'
if sets == 0 and redis.call('HLEN', key) <= 1 then
  redis.call('DEL', key)
  rest = '0'
else
  redis.call('HSET', key, 'v', after)
  redis.call('PEXPIRE', key, ARGV[4])
end
redis.call('PUBLISH', ARGV[1], ARGV[2] .. before .. ' ' .. after .. ' ' .. rest .. '\n' .. ARGV[3])
return 1
";

fn protocol(why: &str) -> Fault {
    Fault::new(FaultKind::Protocol, why)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// A connection that executes commands for keys.
pub trait Keyed {
    /// Executes a command for each key, in this order, and returns the answers.
    ///
    /// # Errors
    /// Any number of them may have been executed.
    fn each(
        &self,
        keys: &[&str],
        build: impl Fn(usize, &mut Pipeline),
    ) -> impl Future<Output = Result<Vec<Value>, Fault>>;

    /// Loads the script that changes members, and returns its name.
    ///
    /// # Errors
    /// The server refused it or did not answer.
    fn load_member_script(&self, script: &str) -> impl Future<Output = Result<String, Fault>>;

    /// The name of the script, once it is loaded.
    fn member_script(&self) -> &RefCell<String>;

    /// A key to verify that such keys may be used.
    fn probe(&self, key: &str) -> String {
        key.to_owned()
    }
}

async fn one<L: Keyed>(link: &L, key: &str, build: impl Fn(&mut Pipeline)) -> Result<Value, Fault> {
    let mut answers = link.each(&[key], |_, pipeline| build(pipeline)).await?;
    let answer = answers.pop().ok_or_else(|| protocol("invalid number of answers"))?;
    answer.extract_error().map_err(fault)
}

/// Executes the same command for each key.
async fn each_key<'k, L: Keyed>(
    link: &L,
    keys: impl Iterator<Item = &'k String>,
    command: &str,
) -> Result<Vec<Value>, Fault> {
    let names: Vec<&str> = keys.map(String::as_str).collect();
    let build = |at: usize, pipeline: &mut Pipeline| {
        if let Some(key) = names.get(at) {
            pipeline.cmd(command).arg(*key);
        }
    };
    link.each(&names, build).await
}

impl Keyed for RedisLink {
    async fn each(
        &self,
        keys: &[&str],
        build: impl Fn(usize, &mut Pipeline),
    ) -> Result<Vec<Value>, Fault> {
        let mut pipeline = Pipeline::with_capacity(keys.len());
        (0..keys.len()).for_each(|at| build(at, &mut pipeline));
        let mut commands = self.publisher.commands.clone();
        let sent = commands.send_packed_commands(&pipeline, 0, keys.len()).await;
        sent.map_err(fault)
    }

    async fn load_member_script(&self, script: &str) -> Result<String, Fault> {
        load_script(&self.publisher, script).await
    }

    fn member_script(&self) -> &RefCell<String> {
        &self.member_script
    }
}

impl<L: Keyed> MemberStore for L {
    async fn open_members(&self, key: &str) -> Result<(), Fault> {
        let sha = self.load_member_script(CHANGE).await?;
        let key = self.probe(key);
        // It changes nothing without members.
        one(self, &key, |pipeline| {
            pipeline
                .cmd("EVALSHA")
                .arg(&sha)
                .arg(1)
                .arg(&key)
                .arg("")
                .arg("")
                .arg("")
                .arg(1)
                .arg(0);
        })
        .await?;
        *self.member_script().borrow_mut() = sha;
        Ok(())
    }

    async fn write_members(&self, batch: &[Write]) -> Result<Vec<Result<(), Rejected>>, Fault> {
        let script = self.member_script().borrow().clone();
        let keys: Vec<&str> = batch.iter().map(|write| &*write.key).collect();
        let build = |at: usize, pipeline: &mut Pipeline| {
            let Some(write) = batch.get(at) else { return };
            let node = write.node;
            let field = |id: &str| format!("{node}{id}");
            let command = pipeline.cmd("EVALSHA").arg(&*script).arg(1).arg(&write.key);
            command.arg(&*write.channel).arg(&START).arg(encode_changes(write));
            command.arg(millis(KEPT)).arg(write.present.len());
            for (id, info) in &write.present {
                command.arg(field(id)).arg(info.as_deref().unwrap_or_default());
            }
            for id in &write.absent {
                command.arg(field(id));
            }
        };
        let answers = self.each(&keys, build).await?.into_iter().zip(keys);
        let written = |(answer, key): (Value, &str)| match answer.extract_error() {
            Ok(_) => Ok(Ok(())),
            Err(error) => rejected(key, error).map(Err),
        };
        answers.map(written).collect()
    }

    async fn reset_members(&self, keys: &[String]) -> Result<(), Fault> {
        // What the user may not delete is refused again.
        each_key(self, keys.iter(), "DEL").await.map(drop)
    }

    async fn load_members(
        &self,
        topics: &[(String, Channel)],
    ) -> Result<Vec<Result<Stored, Rejected>>, Fault> {
        let answers = each_key(self, topics.iter().map(|(key, _)| key), "HGETALL").await?;
        if answers.len() != topics.len() {
            return Err(protocol("invalid number of answers"));
        }
        let answers = answers.into_iter().zip(topics);
        let loaded = |(answer, (key, _)): (Value, &(String, Channel))| match answer.extract_error()
        {
            Ok(hash) => Ok(stored(hash).ok_or_else(|| unreadable(key))),
            Err(error) => rejected(key, error).map(Err),
        };
        answers.map(loaded).collect()
    }

    async fn begin_lease(&self, key: &str, time: Duration) -> Result<(), Fault> {
        let set = |pipeline: &mut Pipeline| {
            pipeline.cmd("SET").arg(key).arg("1").arg("PX").arg(millis(time));
        };
        one(self, key, set).await.map(drop)
    }

    async fn renew_lease(&self, key: &str, time: Duration) -> Result<bool, Fault> {
        let renew = |pipeline: &mut Pipeline| {
            pipeline.cmd("PEXPIRE").arg(key).arg(millis(time));
        };
        match one(self, key, renew).await? {
            Value::Int(number) => Ok(number == 1),
            _ => Err(protocol("invalid answer to PEXPIRE")),
        }
    }

    async fn end_lease(&self, key: &str) -> Result<(), Fault> {
        let delete = |pipeline: &mut Pipeline| {
            pipeline.cmd("DEL").arg(key);
        };
        one(self, key, delete).await.map(drop)
    }

    async fn leases(&self, keys: &[String]) -> Result<Vec<bool>, Fault> {
        let answers = each_key(self, keys.iter(), "EXISTS").await?;
        let has_lease = |answer: Value| {
            let answer = answer.extract_error().map_err(fault)?;
            Ok(answer == Value::Int(1))
        };
        answers.into_iter().map(has_lease).collect()
    }
}

/// The members in a hash; `None` if its version is not one. Fields that no node writes are left out.
fn stored(hash: Value) -> Option<Stored> {
    let Value::Map(fields) = hash else { return None };
    let mut stored = Stored { version: 0, members: Vec::with_capacity(fields.len()) };
    for (field, value) in fields {
        let (Value::BulkString(field), Value::BulkString(value)) = (field, value) else { continue };
        let (Ok(field), Ok(value)) = (String::from_utf8(field), String::from_utf8(value)) else {
            continue;
        };
        if field == VERSION {
            stored.version = value.parse().ok()?;
            continue;
        }
        stored.members.extend(member(&field, value));
    }
    Some(stored)
}

fn member(field: &str, value: String) -> Option<Member> {
    let (node, id) = field.split_at_checked(NODE_DIGITS)?;
    let node = NodeId(u64::from_str_radix(node, 16).ok()?);
    let info = (!value.is_empty()).then(|| value.into());
    Some(Member { node, id: id.into(), info })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_hash_is_members_or_an_error() {
        let bytes = |text: &str| Value::BulkString(text.into());
        let pair = |field: &str, value: &str| (bytes(field), bytes(value));
        let fields = vec![
            pair("v", "17"),
            pair("00000000000000ffann", "{}"),
            pair("00000000000000ffé", ""),
            pair("00000000000000zzbob", ""),
            pair("short", ""),
            (Value::Int(1), bytes("")),
        ];
        let member = |id: &str, info: Option<&str>| Member {
            node: NodeId(255),
            id: id.into(),
            info: info.map(Into::into),
        };
        let members = vec![member("ann", Some("{}")), member("é", None)];
        assert_eq!(stored(Value::Map(fields)), Some(Stored { version: 17, members }));
        assert_eq!(stored(Value::Map(Vec::new())), Some(Stored::default()));
        assert_eq!((stored(Value::Map(vec![pair("v", "x")])), stored(Value::Nil)), (None, None));
    }
}
