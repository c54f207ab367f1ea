//! [`NatsAdapter`]: a subject of NATS. Messages are handed over where they are read: nothing queues here. NATS keeps
//! nothing: what is published while the adapter is down is not received.

use std::sync::Arc;

use super::{AdapterStatus, Context, Message, Phase};
use crate::backoff::Backoff;
use crate::limits::PING_INTERVAL;
use crate::nats::{Delivery, NatsTransport, subscription};
use crate::transport::{Fault, Transport};

/// A subject of NATS that applications publish to.
#[derive(Clone, Debug)]
pub struct NatsAdapter {
    /// The servers.
    pub servers: NatsTransport,
    /// The subject.
    pub subject: String,
}

impl NatsAdapter {
    pub(super) fn status(&self) -> AdapterStatus {
        let place = format!("subject {} of {}", self.subject, self.servers.server());
        AdapterStatus::new("nats", place, true)
    }
}

pub(super) async fn run(adapter: NatsAdapter, context: Context) {
    let (mut backoff, context) = (Backoff::default(), Arc::new(context));
    loop {
        let fault = tokio::select! {
            () = context.reached(Phase::Closed) => return,
            fault = session(&adapter, &context, &mut backoff) => fault,
        };
        context.status.down(fault.why);
        if context.pause(&mut backoff, Phase::Closed, drop).await {
            return;
        }
    }
}

/// Connects, subscribes and takes messages until the connection ends. Returns why it ended.
async fn session(adapter: &NatsAdapter, context: &Arc<Context>, backoff: &mut Backoff) -> Fault {
    let taking = (Arc::clone(context), adapter.subject.clone());
    let take = move |delivery: Delivery| {
        let (context, channel, body) = (&taking.0, taking.1.as_str(), &delivery.body);
        context.offer(Message { channel, body, kept: None, identifiers: None });
    };
    let connection = match adapter.servers.connection(take).await {
        Ok(connection) => connection,
        Err(fault) => return fault,
    };
    if let Err(fault) = connection.round_trip(&subscription(&adapter.subject)).await {
        return fault;
    }
    context.status.open();
    backoff.connected();
    let mut ended = std::pin::pin!(connection.ended());
    let mut pings = tokio::time::interval(PING_INTERVAL);
    loop {
        tokio::select! {
            fault = &mut ended => return fault,
            // A connection that swallows everything does not answer.
            _ = pings.tick() => if let Err(fault) = connection.round_trip(&[]).await {
                return fault;
            },
            () = context.retry_due() => drop(context.retry()),
        }
    }
}
