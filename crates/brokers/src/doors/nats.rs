//! [`NatsDoor`]: a subject of NATS. NATS keeps nothing: what is published while the door is down is not
//! received.

use async_nats::{Event, Subscriber};

use super::{Context, DoorStatus, Message, Phase};
use crate::backoff::Backoff;
use crate::nats_servers::{NatsServers, next};

/// Messages that the library may queue. They are taken at once; further ones are dropped and counted.
const QUEUED: usize = 1024;

/// A subject of NATS that applications publish to.
#[derive(Clone, Debug)]
pub struct NatsDoor {
    /// The servers.
    pub servers: NatsServers,
    /// The subject.
    pub subject: String,
}

impl NatsDoor {
    pub(super) fn status(&self) -> DoorStatus {
        let place = format!("subject {} of {}", self.subject, self.servers);
        DoorStatus::new("nats", place, true)
    }
}

pub(super) async fn run(door: NatsDoor, context: Context) {
    let mut backoff = Backoff::default();
    loop {
        let reason = tokio::select! {
            () = context.reached(Phase::Closed) => return,
            reason = session(&door, &context, &mut backoff) => reason,
        };
        context.status.down(reason);
        if context.pause(&mut backoff, Phase::Closed, drop).await {
            return;
        }
    }
}

/// Connects, subscribes and takes messages until the connection ends. Returns why it ended.
async fn session(door: &NatsDoor, context: &Context, backoff: &mut Backoff) -> String {
    let mut connection = match door.servers.connect(QUEUED).await {
        Ok(connection) => connection,
        Err(reason) => return reason,
    };
    let mut messages = match connection.client.subscribe(door.subject.clone()).await {
        Ok(messages) => messages,
        Err(error) => return error.to_string(),
    };
    if let Err(reason) = connection.round_trip().await {
        // The server says why a moment before.
        return refusal(&mut connection).await.unwrap_or(reason);
    }
    context.status.open();
    backoff.connected();
    loop {
        tokio::select! {
            taken = take(door, context, &mut messages) => if !taken {
                return "the connection was closed".to_owned();
            },
            event = connection.event() => match event {
                Some(Event::SlowConsumer(_)) => {
                    context.status.dropped_before("it was not read in time");
                }
                Some(Event::Connected | Event::Draining) => {}
                Some(Event::LameDuckMode) => return "the server shuts down".to_owned(),
                Some(Event::Disconnected | Event::Closed) | None => {
                    return "the connection was closed".to_owned();
                }
                Some(error) => return error.to_string(),
            },
            () = context.retry_due() => drop(context.retry()),
        }
    }
}

/// Takes the next message; false at the end.
async fn take(door: &NatsDoor, context: &Context, messages: &mut Subscriber) -> bool {
    let Some(message) = next(messages).await else { return false };
    context.offer(Message {
        channel: &door.subject,
        body: &message.payload,
        kept: None,
        identifiers: None,
    });
    true
}

/// The error that the server has reported, if there is one.
async fn refusal(connection: &mut crate::nats_servers::NatsConnection) -> Option<String> {
    loop {
        match tokio::time::timeout(std::time::Duration::ZERO, connection.event()).await.ok()?? {
            error @ (Event::ServerError(_) | Event::ClientError(_)) => {
                return Some(error.to_string());
            }
            _ => {}
        }
    }
}
