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
    for StoreCommand { key, what } in commands {
        match what {
            StoreAction::Put(value, ttl) => {
                pipeline.cmd("SET").arg(&**key).arg(&**value).arg("PX").arg(milliseconds(*ttl))
            }
            StoreAction::Take => pipeline.cmd("GETDEL").arg(&**key),
        };
    }
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
    for key in keys {
        pipeline.cmd("GET").arg(&**key);
    }
    let values = send(connection, &pipeline, keys.len()).await?.into_iter();
    let found = |value: Value| match value.extract_error() {
        Err(error) => Ok(refused(error)),
        Ok(Value::Nil) => Ok(StoreAnswer::Missing),
        Ok(Value::BulkString(value)) => Ok(StoreAnswer::Found(value)),
        Ok(_) => Err(Fault::new(FaultKind::Protocol, "invalid answer to GET")),
    };
    values.map(found).collect()
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
    for NewValue { key, value, ttl } in values {
        let set = pipeline.cmd("SET").arg(&**key).arg(&**value);
        set.arg("NX").arg("PX").arg(milliseconds(*ttl));
    }
    let answers = send(connection, &pipeline, values.len()).await?.into_iter();
    let added = |value: Value| match value.extract_error() {
        Err(error) => Ok(refused(error)),
        Ok(Value::Okay) => Ok(StoreAnswer::Stored),
        Ok(Value::Nil) => Ok(StoreAnswer::Exists),
        Ok(_) => Err(Fault::new(FaultKind::Protocol, "invalid answer to SET")),
    };
    answers.map(added).collect()
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

fn answer(value: Value, what: &StoreAction) -> Result<StoreAnswer, Fault> {
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
