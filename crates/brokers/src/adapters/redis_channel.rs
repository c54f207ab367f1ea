//! [`RedisChannelAdapter`]: a channel of Redis. Messages are handed over where they are read, so an adapter that
//! reads slowly is Redis' slow subscriber, which closes it at `client-output-buffer-limit`: nothing queues
//! here. Redis keeps nothing: what is published while the adapter is down is not received.

use std::sync::Arc;

use redis::{PushInfo, PushKind, Value};

use super::{AdapterStatus, Context, Message, Phase};
use crate::backoff::Backoff;
use crate::limits::PING_INTERVAL;
use crate::redis::{RedisTransport, fault};
use crate::transport::{Fault, Transport};

/// A channel of Redis that applications publish to.
#[derive(Clone, Debug)]
pub struct RedisChannelAdapter {
    /// The server.
    pub server: RedisTransport,
    /// The channel.
    pub channel: String,
}

impl RedisChannelAdapter {
    pub(super) fn status(&self) -> AdapterStatus {
        let place = format!("channel {} of {}", self.channel, self.server.server());
        AdapterStatus::new("redis", place, true)
    }
}

pub(super) async fn run(adapter: RedisChannelAdapter, context: Context) {
    let (mut backoff, context) = (Backoff::default(), Arc::new(context));
    loop {
        let reason = tokio::select! {
            () = context.reached(Phase::Closed) => return,
            result = session(&adapter, &context, &mut backoff) => match result {
                Ok(()) => "the connection was closed".to_owned(),
                Err(fault) => fault.why,
            },
        };
        context.status.down(reason);
        if context.pause(&mut backoff, Phase::Closed, drop).await {
            return;
        }
    }
}

/// Connects, subscribes and takes messages until the connection ends.
async fn session(
    adapter: &RedisChannelAdapter,
    context: &Arc<Context>,
    backoff: &mut Backoff,
) -> Result<(), Fault> {
    let take = {
        let context = Arc::clone(context);
        move |push| take(&context, &push)
    };
    let connection = adapter.server.connection(Some(take)).await?;
    let mut commands = connection.commands.clone();
    commands.subscribe(&adapter.channel).await.map_err(fault)?;
    context.status.open();
    backoff.connected();
    let mut ended = std::pin::pin!(connection.ended());
    let mut pings = tokio::time::interval(PING_INTERVAL);
    loop {
        tokio::select! {
            () = &mut ended => return Ok(()),
            // A connection that swallows everything does not answer.
            _ = pings.tick() => {
                redis::cmd("PING").query_async::<()>(&mut commands).await.map_err(fault)?;
            }
            () = context.retry_due() => drop(context.retry()),
        }
    }
}

fn take(context: &Context, push: &PushInfo) {
    if let (PushKind::Message, [Value::BulkString(channel), Value::BulkString(body)]) =
        (&push.kind, push.data.as_slice())
    {
        let channel = std::str::from_utf8(channel).unwrap_or_default();
        context.offer(Message { channel, body, kept: None, identifiers: None });
    }
}
