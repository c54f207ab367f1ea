//! Redis as a [`MemberStore`]: a hash for each topic, with a field for each member of each node, and the version in
//! the field `v`. A script changes members and publishes the change, so that both have one order.

use std::time::Duration;

use redis::{Pipeline, Value};

use super::event::{START, encode_changes};
use super::{KEPT, Member, MemberStore, Stored, Write};
use crate::envelope::NodeId;
use crate::redis::{RedisLink, fault};
use crate::transport::{Fault, FaultKind};

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

impl RedisLink {
    /// Executes commands together.
    async fn all(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Fault> {
        let mut commands = self.publisher.commands.clone();
        let sent = commands.send_packed_commands(pipeline, 0, pipeline.len()).await;
        let extracted = |value: Value| value.extract_error().map_err(fault);
        sent.map_err(fault)?.into_iter().map(extracted).collect()
    }

    async fn one(&self, command: &redis::Cmd) -> Result<Value, Fault> {
        let sent = self.publisher.commands.clone().send_packed_command(command).await;
        sent.map_err(fault)?.extract_error().map_err(fault)
    }
}

impl MemberStore for RedisLink {
    async fn open_members(&self, key: &str) -> Result<(), Fault> {
        let loaded = self.one(redis::cmd("SCRIPT").arg("LOAD").arg(CHANGE)).await?;
        let Value::BulkString(sha) = loaded else {
            return Err(protocol("invalid answer to SCRIPT LOAD"));
        };
        // It changes nothing without members.
        let mut nothing = redis::cmd("EVALSHA");
        nothing.arg(&*sha).arg(1).arg(key).arg("").arg("").arg("").arg(1).arg(0);
        self.one(&nothing).await?;
        *self.member_script.borrow_mut() = sha;
        Ok(())
    }

    async fn write_members(&self, batch: &[Write]) -> Result<(), Fault> {
        let script = self.member_script.borrow().clone();
        let mut pipeline = Pipeline::with_capacity(batch.len());
        for write in batch {
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
        }
        self.all(&pipeline).await.map(drop)
    }

    async fn load_members(&self, keys: &[String]) -> Result<Vec<Stored>, Fault> {
        let mut pipeline = Pipeline::with_capacity(keys.len());
        for key in keys {
            pipeline.cmd("HGETALL").arg(key);
        }
        let answers = self.all(&pipeline).await?;
        if answers.len() != keys.len() {
            return Err(protocol("invalid number of answers"));
        }
        answers.into_iter().map(stored).collect()
    }

    async fn begin_lease(&self, key: &str, time: Duration) -> Result<(), Fault> {
        self.one(redis::cmd("SET").arg(key).arg("1").arg("PX").arg(millis(time))).await.map(drop)
    }

    async fn renew_lease(&self, key: &str, time: Duration) -> Result<bool, Fault> {
        match self.one(redis::cmd("PEXPIRE").arg(key).arg(millis(time))).await? {
            Value::Int(number) => Ok(number == 1),
            _ => Err(protocol("invalid answer to PEXPIRE")),
        }
    }

    async fn end_lease(&self, key: &str) -> Result<(), Fault> {
        self.one(redis::cmd("DEL").arg(key)).await.map(drop)
    }

    async fn leases(&self, keys: &[String]) -> Result<Vec<bool>, Fault> {
        let mut pipeline = Pipeline::with_capacity(keys.len());
        for key in keys {
            pipeline.cmd("EXISTS").arg(key);
        }
        let answers = self.all(&pipeline).await?;
        Ok(answers.into_iter().map(|answer| answer == Value::Int(1)).collect())
    }
}

/// The members in a hash. Fields that no node writes are left out.
fn stored(hash: Value) -> Result<Stored, Fault> {
    let Value::Map(fields) = hash else { return Err(protocol("invalid answer to HGETALL")) };
    let mut stored = Stored { version: 0, members: Vec::with_capacity(fields.len()) };
    for (field, value) in fields {
        let (Value::BulkString(field), Value::BulkString(value)) = (field, value) else { continue };
        let (Ok(field), Ok(value)) = (String::from_utf8(field), String::from_utf8(value)) else {
            continue;
        };
        if field == VERSION {
            stored.version = value.parse().map_err(|_| protocol("invalid version of members"))?;
            continue;
        }
        stored.members.extend(member(&field, value));
    }
    Ok(stored)
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
        assert_eq!(stored(Value::Map(fields)), Ok(Stored { version: 17, members }));
        assert_eq!(stored(Value::Map(Vec::new())), Ok(Stored::default()));
        assert!(stored(Value::Map(vec![pair("v", "x")])).is_err() && stored(Value::Nil).is_err());
    }
}
