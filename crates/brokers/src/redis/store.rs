//! Values that nodes leave for each other, in Redis: keys that expire, `SET … PX`, `GET`, and `GETDEL`, which needs
//! Redis 6.2 or Valkey.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, Value};

use super::fault;
use crate::store::{NewValue, StoreAction, StoreAnswer, StoreCommand};
use crate::transport::{Fault, FaultKind};

/// Performs commands with one write.
///
/// # Errors
/// Any number of them may have been performed.
pub(crate) async fn perform(
    connection: &MultiplexedConnection,
    commands: &[StoreCommand],
) -> Result<Vec<StoreAnswer>, Fault> {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    commands.iter().for_each(|one| perform_one(&mut pipeline, one));
    let values = send(connection, &pipeline, commands.len()).await?.into_iter();
    values.zip(commands).map(|(value, command)| answer(value, &command.what)).collect()
}

/// Returns values.
///
/// # Errors
/// The server did not answer.
pub(crate) async fn read(
    connection: &MultiplexedConnection,
    keys: &[Arc<str>],
) -> Result<Vec<StoreAnswer>, Fault> {
    let mut pipeline = Pipeline::with_capacity(keys.len());
    keys.iter().for_each(|key| read_one(&mut pipeline, key));
    send(connection, &pipeline, keys.len()).await?.into_iter().map(found).collect()
}

/// Keeps values where there are none.
///
/// # Errors
/// Any number of them may have been kept.
pub(crate) async fn add(
    connection: &MultiplexedConnection,
    values: &[NewValue],
) -> Result<Vec<StoreAnswer>, Fault> {
    let mut pipeline = Pipeline::with_capacity(values.len());
    values.iter().for_each(|one| add_one(&mut pipeline, one));
    send(connection, &pipeline, values.len()).await?.into_iter().map(added).collect()
}

/// Adds the command of [`perform`].
pub(super) fn perform_one(pipeline: &mut Pipeline, StoreCommand { key, what }: &StoreCommand) {
    match what {
        StoreAction::Put(value, ttl) => {
            pipeline.cmd("SET").arg(&**key).arg(&**value).arg("PX").arg(milliseconds(*ttl))
        }
        StoreAction::Take => pipeline.cmd("GETDEL").arg(&**key),
    };
}

/// Adds the command of [`read`].
pub(super) fn read_one(pipeline: &mut Pipeline, key: &str) {
    pipeline.cmd("GET").arg(key);
}

/// Adds the command of [`add`].
pub(super) fn add_one(pipeline: &mut Pipeline, NewValue { key, value, ttl }: &NewValue) {
    let set = pipeline.cmd("SET").arg(&**key).arg(&**value);
    set.arg("NX").arg("PX").arg(milliseconds(*ttl));
}

/// The answer to [`read_one`].
pub(super) fn found(value: Value) -> Result<StoreAnswer, Fault> {
    match value.extract_error() {
        Err(error) => Ok(refused(error)),
        Ok(Value::Nil) => Ok(StoreAnswer::Missing),
        Ok(Value::BulkString(value)) => Ok(StoreAnswer::Found(value)),
        Ok(_) => Err(Fault::new(FaultKind::Protocol, "invalid answer to GET")),
    }
}

/// The answer to [`add_one`].
pub(super) fn added(value: Value) -> Result<StoreAnswer, Fault> {
    match value.extract_error() {
        Err(error) => Ok(refused(error)),
        Ok(Value::Okay) => Ok(StoreAnswer::Stored),
        Ok(Value::Nil) => Ok(StoreAnswer::Exists),
        Ok(_) => Err(Fault::new(FaultKind::Protocol, "invalid answer to SET")),
    }
}

async fn send(
    connection: &MultiplexedConnection,
    pipeline: &Pipeline,
    count: usize,
) -> Result<Vec<Value>, Fault> {
    let mut connection = connection.clone();
    connection.send_packed_commands(pipeline, 0, count).await.map_err(fault)
}

fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Of one command only: it is not permitted or not known, or the memory is full.
fn refused(error: RedisError) -> StoreAnswer {
    StoreAnswer::Refused(fault(error).why.into())
}

/// The answer to [`perform_one`].
pub(super) fn answer(value: Value, what: &StoreAction) -> Result<StoreAnswer, Fault> {
    match (value.extract_error(), what) {
        (Err(error), _) => Ok(refused(error)),
        (Ok(Value::Okay), StoreAction::Put(..)) => Ok(StoreAnswer::Stored),
        (Ok(Value::Nil), StoreAction::Take) => Ok(StoreAnswer::Missing),
        (Ok(Value::BulkString(value)), StoreAction::Take) => Ok(StoreAnswer::Taken(value)),
        (Ok(_), StoreAction::Put(..)) => {
            Err(Fault::new(FaultKind::Protocol, "invalid answer to SET"))
        }
        (Ok(_), StoreAction::Take) => {
            Err(Fault::new(FaultKind::Protocol, "invalid answer to GETDEL"))
        }
    }
}
