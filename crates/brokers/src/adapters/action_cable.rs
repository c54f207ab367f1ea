//! [`ActionCableAdapter`]: what Rails' own Redis adapter publishes. Its channels are the names of streams, after an
//! optional prefix, and a message is what subscribers get, so the adapter subscribes to the streams that this
//! process has subscribers of ([`Streams`]). Rails ends sessions of a connection's identifiers by a
//! channel of their own, `action_cable/IDENTIFIERS`: one pattern has them all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;

use super::{AdapterStatus, Context, Message, Phase};
use crate::backoff::Backoff;
use crate::bell::Bell;
use crate::interest::Interest;
use crate::limits::PING_INTERVAL;
use crate::redis::{RedisTransport, fault};
use crate::transport::{Channel, Fault, Transport};

/// Before the identifiers of a connection, in names of channels.
const SESSIONS: &str = "action_cable/";
/// How long a stream stays subscribed after its last subscriber has left.
const LINGER: Duration = Duration::from_secs(10);
/// Longest sleep of the part that subscribes.
const SLEEP_MAX: Duration = Duration::from_secs(5);

/// Redis as an application of Rails uses it.
#[derive(Clone)]
pub struct ActionCableAdapter {
    server: RedisTransport,
    /// With its colon, or empty.
    prefix: String,
    streams: Arc<Streams>,
}

/// The streams that this process has subscribers of. Any thread may say so.
pub struct Streams {
    prefix: String,
    interest: Mutex<Interest>,
    bell: Arc<Bell>,
    woken: Notify,
    clock: fn() -> u64,
}

impl std::fmt::Debug for ActionCableAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ActionCableAdapter({:?}, {:?})", self.server, self.prefix)
    }
}

impl ActionCableAdapter {
    /// An adapter to this server. `prefix` is the application's `channel_prefix`, or empty; `clock` the monotonic
    /// clock in nanoseconds.
    #[must_use]
    pub fn new(server: RedisTransport, prefix: &str, clock: fn() -> u64) -> Self {
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}:") };
        let linger_ns = u64::try_from(LINGER.as_nanos()).unwrap_or(u64::MAX);
        let streams = Streams {
            prefix: prefix.clone(),
            interest: Mutex::new(Interest::new(linger_ns)),
            bell: Arc::default(),
            woken: Notify::new(),
            clock,
        };
        ActionCableAdapter { server, prefix, streams: Arc::new(streams) }
    }

    /// The streams that it subscribes to.
    #[must_use]
    pub fn streams(&self) -> &Arc<Streams> {
        &self.streams
    }

    pub(super) fn status(&self) -> AdapterStatus {
        let place = format!("streams {}* of {}", self.prefix, self.server.server());
        AdapterStatus::new("action-cable", place, true)
    }
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, Interest> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel(&self, stream: &str) -> Channel {
        format!("{}{stream}", self.prefix).into()
    }

    /// A stream has its first subscriber in this process.
    pub fn want(&self, stream: &str) {
        if self.lock().want(&self.channel(stream)) {
            self.bell.ring();
        }
    }

    /// A stream has lost its last subscriber in this process.
    pub fn release(&self, stream: &str) {
        let mut interest = self.lock();
        let sooner = interest.due_ns().is_none();
        interest.release((self.clock)(), &self.channel(stream));
        drop(interest);
        if sooner {
            self.bell.ring();
        }
    }

    /// Wants a stream for a moment: somebody is about to subscribe. Whether Redis has confirmed it; otherwise
    /// [`super::Inlet::confirmed`] will be called with it.
    pub fn prepare(&self, stream: &str) -> bool {
        let channel = self.channel(stream);
        let mut interest = self.lock();
        interest.touch((self.clock)(), &channel);
        let confirmed = interest.confirmed_or_await(&channel);
        drop(interest);
        if !confirmed {
            self.bell.ring();
        }
        confirmed
    }

    /// Streams that are subscribed or are to be.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

pub(super) async fn run(adapter: ActionCableAdapter, context: Context) {
    let (mut backoff, context) = (Backoff::default(), Arc::new(context));
    // Workers cannot wake this thread themselves.
    let passed_on = adapter.streams.bell.start({
        let streams = Arc::downgrade(&adapter.streams);
        move || streams.upgrade().map(|streams| streams.woken.notify_one()).is_some()
    });
    if let Err(error) = passed_on {
        return context.status.down(format!("cannot start its thread: {error}"));
    }
    loop {
        let reason = tokio::select! {
            () = context.reached(Phase::Closed) => return,
            result = session(&adapter, &context, &mut backoff) => match result {
                Ok(()) => "the connection was closed".to_owned(),
                Err(fault) => fault.why,
            },
        };
        adapter.streams.lock().disconnected();
        context.status.down(reason);
        if context.pause(&mut backoff, Phase::Closed, drop).await {
            return;
        }
    }
}

/// Connects and subscribes to what is wanted until the connection ends.
async fn session(
    adapter: &ActionCableAdapter,
    context: &Arc<Context>,
    backoff: &mut Backoff,
) -> Result<(), Fault> {
    let take = {
        let (context, prefix) = (Arc::clone(context), adapter.prefix.clone());
        move |push| take(&context, &prefix, &push)
    };
    let connection = adapter.server.connection(Some(take)).await?;
    let mut commands = connection.commands.clone();
    let sessions = format!("{}{SESSIONS}*", escaped(&adapter.prefix));
    commands.psubscribe(sessions).await.map_err(fault)?;
    let mut pings = tokio::time::interval(PING_INTERVAL);
    let mut ended = std::pin::pin!(connection.ended());
    let mut subscribing = std::pin::pin!(subscribe(adapter, context, commands.clone(), backoff));
    loop {
        tokio::select! {
            () = &mut ended => return Ok(()),
            fault = &mut subscribing => return Err(fault),
            _ = pings.tick() => {
                let ping = redis::cmd("PING");
                ping.query_async::<()>(&mut commands).await.map_err(fault)?;
            }
            () = context.retry_due() => drop(context.retry()),
        }
    }
}

/// Subscribes and unsubscribes as what is wanted changes. Ends with a fault.
async fn subscribe(
    adapter: &ActionCableAdapter,
    context: &Context,
    mut commands: MultiplexedConnection,
    backoff: &mut Backoff,
) -> Fault {
    let streams = &adapter.streams;
    let names = |batch: &[Channel]| -> Vec<String> {
        batch.iter().map(|channel| (**channel).to_owned()).collect()
    };
    // What was wanted before the connection; the adapter is open when all of it is subscribed.
    let (mut before, mut is_open) = (Some(streams.len()), false);
    loop {
        let now_ns = (streams.clock)();
        let (unwanted, wanted, due_ns) = {
            let mut interest = streams.lock();
            (interest.take_unwanted(now_ns), interest.take_wanted(), interest.due_ns())
        };
        if !unwanted.is_empty()
            && let Err(error) = commands.unsubscribe(names(&unwanted)).await
        {
            return fault(error);
        }
        if !wanted.is_empty() {
            if let Err(error) = commands.subscribe(names(&wanted)).await {
                return fault(error);
            }
            let confirmed = streams.lock().confirm(&wanted, 0);
            let awaited = confirmed.iter().filter(|one| one.awaited);
            let awaited = awaited.filter_map(|one| one.channel.strip_prefix(&*adapter.prefix));
            let awaited: Vec<Box<str>> = awaited.map(Box::from).collect();
            context.status.missed(confirmed.iter().filter(|one| one.missed).count());
            let begun =
                confirmed.iter().filter_map(|one| one.channel.strip_prefix(&*adapter.prefix));
            context.begun(&begun.collect::<Vec<_>>());
            context.confirmed(&awaited).await;
            streams.lock().told(&wanted);
        }
        before =
            before.filter(|_| !wanted.is_empty()).map(|left| left.saturating_sub(wanted.len()));
        if before == Some(0) || !is_open && before.is_none() {
            (before, is_open) = (None, true);
            context.status.open();
            backoff.connected();
        }
        if wanted.is_empty() && unwanted.is_empty() {
            let sleep = due_ns.map_or(SLEEP_MAX, |due_ns| {
                Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(SLEEP_MAX)
            });
            let _ = tokio::time::timeout(sleep, streams.woken.notified()).await;
        }
    }
}

/// Hands over what Rails has published.
fn take(context: &Context, prefix: &str, push: &PushInfo) {
    let (channel, body, sessions) = match (&push.kind, push.data.as_slice()) {
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(body)]) => {
            (channel, body, false)
        }
        (PushKind::PMessage, [_, Value::BulkString(channel), Value::BulkString(body)]) => {
            (channel, body, true)
        }
        _ => return,
    };
    let channel = std::str::from_utf8(channel).ok().and_then(|name| name.strip_prefix(prefix));
    // It is subscribed to no other name.
    let Some(channel) = channel else { return };
    let (channel, identifiers) = match channel.strip_prefix(SESSIONS).filter(|_| sessions) {
        Some(identifiers) => (channel, Some(identifiers)),
        None => (channel, None),
    };
    context.offer(Message { channel, body, kept: None, identifiers });
}

/// A prefix of channels as the beginning of a pattern.
fn escaped(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len());
    for sign in prefix.chars() {
        if matches!(sign, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(sign);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(escaped("app_production:"), "app_production:");
        assert_eq!(escaped(r"a*b?[c]\"), r"a\*b\?\[c\]\\");
    }
}
