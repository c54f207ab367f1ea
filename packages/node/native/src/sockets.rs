//! What JavaScript does with WebSockets and topics. A socket is named by its slot: JavaScript forgets it when it
//! is told of the end, before the slot is used again.

use std::net::SocketAddr;
use std::sync::Arc;

use engine::sys::linux::Linux;
use engine::{ConnId, Core, Sent};
use napi_sys::napi_value;
use topics::Publication;
use wire::websocket::{CloseCode, OpCode};

use crate::app::{ARGUMENTS, App, natives};
use crate::handler::{Js, encode};
use crate::http::NO_BYTES;
use crate::napi::{Env, Thrown};
use crate::threads::Peer;

type Arguments = [napi_value; ARGUMENTS];
type Result = std::result::Result<napi_value, Thrown>;

natives![
    send,
    ping,
    end,
    close,
    cork,
    uncork,
    send_deferred,
    buffered,
    subscribe,
    unsubscribe,
    is_subscribed,
    topics,
    publish,
    subscribers,
    remote_address,
    remote_port,
    proxied_address,
    proxied_port,
    client_certificate,
    route_of,
    leave,
    open_sockets,
    pause,
];

/// Bits of the third argument of `send` and the fourth of `publish`.
pub(crate) const BINARY: u32 = 1;
pub(crate) const COMPRESS: u32 = 2;

/// Bytes of a topic at most, with a broker. NATS ends a connection whose lines are longer than 4096 bytes, of which a byte
/// takes up to 3.
const TOPIC_BYTES_MAX: usize = 1024;

/// What `send` returns: it waits, it was sent, it was dropped. With threads, the first as of their last batch.
pub(crate) const WAITS: i32 = 0;
pub(crate) const SENT: i32 = 1;
pub(crate) const DROPPED: i32 = 2;

fn opcode(flags: u32) -> OpCode {
    if flags & BINARY == 0 { OpCode::Text } else { OpCode::Binary }
}

#[inline]
fn outcome(core: &Core<Linux, Js>, id: ConnId, sent: Sent) -> i32 {
    match sent {
        Sent::Dropped => DROPPED,
        Sent::Queued(_) => WAITS,
        Sent::Sent if core.queued(id) > 0 => WAITS,
        Sent::Sent => SENT,
    }
}

/// `send(slot * 4 + flags, message) → outcome`
#[inline]
fn send(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, message, ..] = *arguments;
    let slot = env.to_u32(slot);
    let (slot, flags) = (slot >> 2, slot & 3);
    let outcome = app.with(|js, core| {
        let mut scratch = std::mem::take(&mut js.scratch);
        let sent = env.bytes(message, &mut scratch, |bytes| {
            let Some(id) = core.id_at(slot) else { return DROPPED };
            js.topics.catch_up(core, id);
            let sent = if flags & COMPRESS == 0 {
                core.send_uncompressed(id, opcode(flags), bytes)
            } else {
                core.send(id, opcode(flags), bytes)
            };
            outcome(core, id, sent)
        });
        js.keep_scratch(scratch);
        sent
    });
    let outcome = outcome.ok_or_else(|| Thrown::from(NO_BYTES))?;
    if outcome == DROPPED {
        // It may have ended the connection.
        app.turn_soon();
    }
    Ok(env.int(outcome))
}

/// `ping(slot, message) → outcome`
fn ping(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, message, ..] = *arguments;
    let slot = env.to_u32(slot);
    let outcome = app.with(|js, core| {
        let Some(id) = core.id_at(slot) else { return Some(DROPPED) };
        let mut scratch = std::mem::take(&mut js.scratch);
        let sent = env.bytes(message, &mut scratch, |bytes| {
            let sent = core.ping(id, bytes);
            outcome(core, id, sent)
        });
        js.keep_scratch(scratch);
        sent
    });
    Ok(env.int(outcome.ok_or_else(|| Thrown::from(NO_BYTES))?))
}

/// Cuts the reason of a close frame to its longest length.
pub(crate) fn cut(reason: &mut String) {
    let mut length = reason.len().min(123);
    while !reason.is_char_boundary(length) {
        length -= 1;
    }
    reason.truncate(length);
}

/// `end(slot, code, reason)`: JavaScript has told its program already.
fn end(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, code, reason, ..] = *arguments;
    let (slot, code) = (env.to_u32(slot), env.to_u32(code));
    let mut reason = env.text(reason).unwrap_or_default();
    cut(&mut reason);
    app.with_turn(|js, core| {
        // Also if the connection is lost already: `closed` then does not tell JavaScript again.
        if let Some(user) = core.user_at(slot) {
            user.told = true;
        }
        let Some(id) = core.id_at(slot) else { return };
        js.topics.catch_up(core, id);
        js.topics.unsubscribe_all(core, id, |_| {});
        let code = CloseCode(u16::try_from(code).unwrap_or(0));
        if code.is_sendable() {
            core.close(id, code, &reason);
        } else {
            core.close_without_code(id);
        }
    });
    Ok(env.undefined())
}

/// `close(slot)`: at once; JavaScript has told its program already.
fn close(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    app.with_turn(|js, core| {
        // Also if the connection is lost already: `closed` then does not tell JavaScript again.
        if let Some(user) = core.user_at(slot) {
            user.told = true;
        }
        let Some(id) = core.id_at(slot) else { return };
        js.topics.unsubscribe_all(core, id, |_| {});
        core.abort(id);
    });
    Ok(env.undefined())
}

/// `cork(slot) → whether uncork is due`
fn cork(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    let began = app.with(|_, core| core.id_at(slot).is_some_and(|id| core.begin_cork(id)));
    Ok(env.bool(began))
}

/// `uncork()`
fn uncork(app: &App, env: Env, _: &Arguments) -> Result {
    app.with(|_, core| core.end_cork());
    Ok(env.undefined())
}

/// `send_deferred()`: the process ends, perhaps within a call for another socket.
fn send_deferred(app: &App, env: Env, _: &Arguments) -> Result {
    app.with(|_, core| core.send_deferred());
    Ok(env.undefined())
}

/// `buffered(slot) → bytes`
fn buffered(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    let bytes = app.with(|_, core| {
        core.id_at(slot).map_or(0, |id| {
            core.send_deferred_to(id);
            core.queued(id)
        })
    });
    Ok(env.number(bytes as f64))
}

/// Subscribers of a topic on this worker.
fn count(js: &Js, topic: &str) -> i32 {
    let mut budget = u32::MAX;
    i32::try_from(js.topics.subscribers(topic, &mut budget)).unwrap_or(i32::MAX)
}

pub(crate) fn topic(env: Env, value: napi_value) -> std::result::Result<String, Thrown> {
    env.text(value).ok_or_else(|| Thrown::from("expected a topic: a string"))
}

/// A topic that becomes one of the broker's, if there is one.
pub(crate) fn shared_topic(
    app: &App,
    env: Env,
    value: napi_value,
) -> std::result::Result<String, Thrown> {
    let topic = topic(env, value)?;
    let bytes = topic.len();
    if bytes > TOPIC_BYTES_MAX && app.with(|js, _| js.has_broker()) {
        let limit = format!("with a broker a topic has at most {TOPIC_BYTES_MAX} bytes");
        return Err(format!("a topic of {bytes} bytes: {limit}").into());
    }
    Ok(topic)
}

/// `subscribe(slot, topic) → subscribers; 0 if it was one, -1 if it is not open`
fn subscribe(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (slot, topic) = (env.to_u32(arguments[0]), shared_topic(app, env, arguments[1])?);
    let subscribers = app.with(|js, core| {
        let Some(id) = core.id_at(slot).filter(|id| core.is_open(*id)) else { return -1 };
        if js.gets_positions(core, id, &topic) {
            return 0;
        }
        let encoding = core.encoding(id);
        let new = js.topics.subscribe(core, id, &topic, encoding);
        if new { count(js, &topic) } else { 0 }
    });
    Ok(env.int(subscribers))
}

/// `unsubscribe(slot, topic) → subscribers, or -1 if it was none`
fn unsubscribe(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (slot, topic) = (env.to_u32(arguments[0]), topic(env, arguments[1])?);
    let subscribers = app.with(|js, core| {
        let Some(id) = core.id_at(slot) else { return -1 };
        let was = js.end_subscription(core, id, &topic);
        if was { count(js, &topic) } else { -1 }
    });
    Ok(env.int(subscribers))
}

/// `is_subscribed(slot, topic)`
fn is_subscribed(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (slot, topic) = (env.to_u32(arguments[0]), topic(env, arguments[1])?);
    let is = app.with(|js, core| core.id_at(slot).is_some_and(|id| js.is_member(core, id, &topic)));
    Ok(env.bool(is))
}

/// `topics(slot) → array of strings`
fn topics(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    let names: Vec<Arc<str>> = app.with(|js, core| {
        // Also of one that has ended, while its end is reported.
        let user = core.user_at(slot);
        user.map(|user| js.topics.topics_of(&user.memberships).cloned().collect())
            .unwrap_or_default()
    });
    Ok(env.array(names.iter().map(|name| env.string(name))))
}

/// `publish(slot or -1, topic, message, flags) → whether anybody is subscribed`
fn publish(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, name, message, flags, ..] = *arguments;
    let (slot, flags) = (env.to_f64(slot).unwrap_or(-1.0), env.to_u32(flags));
    let name = shared_topic(app, env, name)?;
    let published = app.with_turn(|js, core| {
        let mut scratch = std::mem::take(&mut js.scratch);
        let publication = env.bytes(message, &mut scratch, |bytes| {
            Publication::new(name.as_str().into(), bytes.into(), flags & BINARY != 0)
        });
        js.keep_scratch(scratch);
        let mut publication = publication?;
        let socket = (slot >= 0.0).then_some(slot as u32);
        let Some((others, except)) = js.audience(core, socket, &name) else { return Some(false) };
        publication.except = except;
        // See `encode`.
        publication.kind = (flags & COMPRESS != 0).then(|| "".into());
        if let Some(shared) = js.shared.take() {
            let published = js.publish_shared(core, &shared, publication, others);
            js.shared = Some(shared);
            return Some(published);
        }
        Some(others && js.publish_here(core, &Arc::new(publication)))
    });
    Ok(env.bool(published.ok_or_else(|| Thrown::from(NO_BYTES))?))
}

/// `subscribers(topic) → count`
fn subscribers(app: &App, env: Env, arguments: &Arguments) -> Result {
    let topic = topic(env, arguments[0])?;
    Ok(env.int(app.with(|js, _| count(js, &topic))))
}

/// `remote_address(slot) → its 4 or 16 bytes, or none if it is unknown`. An IPv4 client of an IPv6 listener has 16, as in uWebSockets.js.
fn remote_address(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    let peer = app.with(|_, core| core.id_at(slot).and_then(|id| core.info(id)?.peer));
    Ok(env.array_buffer(Peer::new(peer).address()))
}

/// `remote_port(slot) → port, or 0 if it is unknown`
fn remote_port(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    let peer = app.with(|_, core| core.id_at(slot).and_then(|id| core.info(id)?.peer));
    Ok(env.int(peer.map_or(0, |peer| peer.port()).into()))
}

/// `proxied_address(slot) → the 4 or 16 bytes in the PROXY header of its connection, or none`
fn proxied_address(app: &App, env: Env, arguments: &Arguments) -> Result {
    let client = proxied(app, env, arguments);
    Ok(env.array_buffer(client.map(Peer::reported).unwrap_or_default().address()))
}

/// `proxied_port(slot) → the port in the PROXY header of its connection, or 0`
fn proxied_port(app: &App, env: Env, arguments: &Arguments) -> Result {
    Ok(env.int(proxied(app, env, arguments).map_or(0, |client| client.port()).into()))
}

fn proxied(app: &App, env: Env, arguments: &Arguments) -> Option<SocketAddr> {
    let slot = env.to_u32(arguments[0]);
    app.with(|_, core| core.reported_client(core.id_at(slot)?))
}

/// `client_certificate(slot) → what the client of a request has proved to own, in DER, or none`
fn client_certificate(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    let certificate =
        |core: &Core<Linux, Js>| core.client_certificate(core.id_at(slot)?).map(Vec::from);
    Ok(env.array_buffer(&app.with(|_, core| certificate(core)).unwrap_or_default()))
}

/// `open_sockets() → array of slots`
fn open_sockets(app: &App, env: Env, _: &Arguments) -> Result {
    let slots: Vec<u32> = app.with(|_, core| {
        let open = |slot: &u32| core.id_at(*slot).is_some_and(|id| core.is_open(id));
        (0..core.slots()).filter(open).collect()
    });
    Ok(env.array(slots.iter().map(|&slot| env.int(slot as i32))))
}

/// `leave(slot)`: ends the subscriptions of a socket whose end is reported.
fn leave(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    app.with(|js, core| {
        if let Some(id) = js.ending.filter(|id| id.slot() == slot) {
            js.topics.unsubscribe_all(core, id, |_| {});
        }
    });
    Ok(env.undefined())
}

/// `pause(slot, paused)`: whether the socket is read.
fn pause(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (slot, paused) = (env.to_u32(arguments[0]), env.to_bool(arguments[1]));
    app.with_turn(|_, core| match core.id_at(slot) {
        Some(id) if paused => core.pause(id),
        Some(id) => core.resume(id),
        None => {}
    });
    Ok(env.undefined())
}

/// `route_of(slot) → the route of a socket`
fn route_of(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    let route = app.with(|js, core| {
        // Also of one that has ended, while its end is reported.
        let user = core.user_at(slot).map(|user| user.route)?;
        js.sockets.get(usize::from(user)).map(|own| own.route)
    });
    Ok(env.int(route.map_or(-1, |route| route as i32)))
}

impl Js {
    /// Whether a topic has subscribers besides the socket that publishes, if one does, and its id. `None` if that is
    /// subscribed to nothing.
    fn audience(
        &self,
        core: &Core<Linux, Js>,
        socket: Option<u32>,
        topic: &str,
    ) -> Option<(bool, Option<ConnId>)> {
        if let Some(threads) = &self.threads {
            return threads.audience(socket, topic);
        }
        let mut others = count(self, topic);
        let id = match socket {
            None => None,
            Some(slot) => {
                let id = core.id_at(slot)?;
                let memberships = &core.user(id)?.memberships;
                if memberships.is_empty() {
                    return None;
                }
                others -= i32::from(self.is_member(core, id, topic));
                Some(self.topics.id(id))
            }
        };
        Some((others > 0, id))
    }

    /// Publishes to subscribers of this app alone.
    fn publish_here(&mut self, core: &mut Core<Linux, Js>, publication: &Arc<Publication>) -> bool {
        match &mut self.threads {
            Some(threads) => threads.publish(publication),
            None => self.topics.publish(core, publication, encode).is_ok(),
        }
    }

    /// Keeps a buffer for the next call.
    #[inline]
    pub(crate) fn keep_scratch(&mut self, mut scratch: Vec<u8>) {
        if scratch.capacity() > 256 * 1024 {
            scratch = Vec::new();
        }
        self.scratch = scratch;
    }
}
