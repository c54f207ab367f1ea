//! Values that nodes leave for each other, in Redis: keys that expire, `SET … PX` and `GETDEL`, which needs
//! Redis 6.2 or Valkey.

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};

use super::fault;
use crate::store::{StoreAction, StoreAnswer, StoreCommand};
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
                let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
                pipeline.cmd("SET").arg(&**key).arg(&**value).arg("PX").arg(ttl_ms)
            }
            StoreAction::Take => pipeline.cmd("GETDEL").arg(&**key),
        };
    }
    let mut connection = connection.clone();
    let sent = connection.send_packed_commands(&pipeline, 0, commands.len()).await;
    let values = sent.map_err(fault)?.into_iter();
    values.zip(commands).map(|(value, command)| answer(value, &command.what)).collect()
}

fn answer(value: Value, what: &StoreAction) -> Result<StoreAnswer, Fault> {
    match (value.extract_error(), what) {
        // Of this command only: it is not permitted or not known, or the memory is full.
        (Err(error), _) => Ok(StoreAnswer::Refused(fault(error).why.into())),
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
