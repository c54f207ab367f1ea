//! What JavaScript calls, in place of functions of the same names in `sockets`, `http` and `setup`. A socket is named by
//! its number in the table.

use std::sync::Arc;

use engine::ConnId;
use napi_sys::napi_value;
use topics::Publication;

use super::Threads;
use super::batch::{Command, Peer};
use super::holder::{Holder, Routes};
use super::{COMMAND_BYTES_MAX, SEND_AHEAD_BYTES};
use crate::app::{ARGUMENTS, App, natives};
use crate::handler::Js;
use crate::http::{NO_BYTES, first_protocol, gone};
use crate::napi::{Env, Thrown};
use crate::setup::where_to;
use crate::sockets::{BINARY, COMPRESS, DROPPED, SENT, WAITS, cut, shared_topic, topic};

type Arguments = [napi_value; ARGUMENTS];
type Result = std::result::Result<napi_value, Thrown>;

natives![
    listen,
    listener_port,
    close_listener,
    close_all,
    route,
    socket_route,
    add_certificate,
    send,
    ping,
    end,
    close,
    cork,
    uncork,
    buffered,
    subscribe,
    unsubscribe,
    is_subscribed,
    topics,
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
    res_upgrade,
    res_close,
    res_pause,
    res_wants_data,
];

/// Acts on the threads; commands leave with the turn.
#[inline]
fn with<T: Default>(app: &App, act: impl FnOnce(&mut Threads) -> T) -> T {
    app.with_turn(|js, _| js.threads.as_mut().map(|threads| act(threads)).unwrap_or_default())
}

/// As [`with`], with the bytes of a message.
#[inline]
fn with_bytes<T: Default>(
    app: &App,
    env: Env,
    message: napi_value,
    act: impl FnOnce(&mut Threads, &[u8]) -> T,
) -> std::result::Result<T, Thrown> {
    let result = app.with_turn(|js, _| {
        let mut scratch = std::mem::take(&mut js.scratch);
        let result = env.bytes(message, &mut scratch, |bytes| {
            js.threads.as_mut().map(|threads| act(threads, bytes)).unwrap_or_default()
        });
        js.keep_scratch(scratch);
        result
    });
    result.ok_or_else(|| NO_BYTES.into())
}

// ---- listeners ----

/// `listen(host or "", port, exclusive) → 0, or -1`: starts the threads.
fn listen(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (host, port, exclusive) = where_to(app, env, arguments)?;
    let keep: Vec<i32> = app.wake_fd().into_iter().collect();
    let listens = app.with(|js, core| {
        let routes = Arc::new(Routes {
            routers: js.routers.clone(),
            routes: js.routes.clone(),
            sockets: js.sockets.clone(),
            message_bytes_least: js.message_bytes_least,
            reports_dropped: js.reports_dropped,
            tls: js.tls_server.clone(),
            history: js.directory_with_history(),
        });
        let (limits, inlet) = (core.limits().clone(), core.remote().clone());
        let Some(threads) = &mut js.threads else { return Ok(false) };
        if threads.is_running() {
            return Err("an app with workers listens once, until it is closed".into());
        }
        threads.listen(&host, port, exclusive, &limits, &keep, move |thread, gate| {
            Holder::new(thread, Arc::clone(&routes), inlet.clone(), gate)
        })
    })?;
    if listens {
        app.closed.set(false);
    }
    app.settle();
    Ok(env.int(if listens { 0 } else { -1 }))
}

/// `listener_port(index) → port, or -1`
fn listener_port(app: &App, env: Env, _: &Arguments) -> Result {
    let port = with(app, |threads| threads.port());
    Ok(env.int(port.map_or(-1, i32::from)))
}

/// `close_listener(index)`
fn close_listener(app: &App, env: Env, _: &Arguments) -> Result {
    with(app, Threads::stop_listening);
    app.settle();
    Ok(env.undefined())
}

/// `close_all()`: the listener, the connections and the threads.
fn close_all(app: &App, env: Env, _: &Arguments) -> Result {
    app.closed.set(true);
    app.with_turn(|js, _| {
        js.exchanges.clear();
        if let Some(threads) = &mut js.threads {
            threads.stop();
        }
    });
    app.settle();
    Ok(env.undefined())
}

/// The threads have what was there when they were started.
fn before_listen(app: &App, env: Env, arguments: &Arguments, native: crate::app::Native) -> Result {
    if with(app, |threads| threads.is_running()) {
        return Err(
            "the workers of an app have begun: add routes and certificates before listen".into()
        );
    }
    native(app, env, arguments)
}

fn route(app: &App, env: Env, arguments: &Arguments) -> Result {
    before_listen(app, env, arguments, crate::setup::route)
}

fn socket_route(app: &App, env: Env, arguments: &Arguments) -> Result {
    before_listen(app, env, arguments, crate::setup::socket_route)
}

fn add_certificate(app: &App, env: Env, arguments: &Arguments) -> Result {
    before_listen(app, env, arguments, crate::setup::add_certificate)
}

// ---- sockets ----

/// `send(number * 4 + flags, message) → outcome`
#[inline]
fn send(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [number, message, ..] = *arguments;
    let number = env.to_u32(number);
    let (number, flags) = (number >> 2, number & 3);
    let outcome = with_bytes(app, env, message, |threads, bytes| {
        let pass = threads.pass;
        let Some((id, entry)) = threads.table.get_mut(number) else { return DROPPED };
        let (binary, compress) = (flags & BINARY != 0, flags & COMPRESS != 0);
        let Ok(length) = u32::try_from(bytes.len()) else { return DROPPED };
        let sent = entry.count_sent(length, pass);
        let waits = threads.buffered.contains_key(&number);
        let reports = !waits && sent > SEND_AHEAD_BYTES;
        if !threads.command(id, Command::Send { id, binary, compress, reports, length }, bytes) {
            return DROPPED;
        }
        if !waits && !reports {
            return SENT;
        }
        let waiting = threads.buffered.entry(number).or_default();
        *waiting = waiting.saturating_add(if waits { length } else { sent });
        WAITS
    })?;
    Ok(env.int(outcome))
}

/// `ping(number, message) → outcome`
fn ping(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [number, message, ..] = *arguments;
    let number = env.to_u32(number);
    let outcome = with_bytes(app, env, message, |threads, bytes| {
        let Some((id, _)) = threads.table.get(number) else { return DROPPED };
        let command = Command::Ping { id, length: bytes.len() as u32 };
        if threads.command(id, command, bytes) { SENT } else { DROPPED }
    })?;
    Ok(env.int(outcome))
}

/// `end(number, code, reason)`: JavaScript has told its program already.
fn end(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [number, code, reason, ..] = *arguments;
    let (number, code) = (env.to_u32(number), env.to_u32(code));
    let mut reason = env.text(reason).unwrap_or_default();
    cut(&mut reason);
    app.with_turn(|js, _| {
        if let Some(threads) = &mut js.threads
            && let Some((id, _)) = threads.table.get(number)
        {
            let code = u16::try_from(code).unwrap_or(0);
            let command = Command::End { id, code, length: reason.len() as u32 };
            if !threads.command(id, command, reason.as_bytes()) {
                // The thread is far behind: without a reason the command always has room.
                threads.command(id, Command::End { id, code, length: 0 }, &[]);
            }
        }
        js.forget(number);
    });
    Ok(env.undefined())
}

/// `close(number)`: at once; JavaScript has told its program already.
fn close(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    app.with_turn(|js, _| {
        if let Some(threads) = &mut js.threads
            && let Some((id, _)) = threads.table.get(number)
        {
            threads.command(id, Command::Close(id), &[]);
        }
        js.forget(number);
    });
    Ok(env.undefined())
}

/// `cork(number) → false`: all commands of a turn leave together.
fn cork(_: &App, env: Env, _: &Arguments) -> Result {
    Ok(env.bool(false))
}

fn uncork(_: &App, env: Env, _: &Arguments) -> Result {
    Ok(env.undefined())
}

/// `buffered(number) → bytes`: see `Threads::buffered`
fn buffered(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    let bytes = with(app, |threads| threads.buffered.get(&number).copied().unwrap_or(0));
    Ok(env.number(f64::from(bytes)))
}

/// `subscribe(number, topic) → subscribers; 0 if it was one, -1 if it is not open`
fn subscribe(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (number, topic) = (env.to_u32(arguments[0]), shared_topic(app, env, arguments[1])?);
    let subscribers = with(app, |threads| {
        let Some(id) = threads.open_id(number) else { return -1 };
        if threads.mirror.is_member(number, &topic) {
            return 0;
        }
        let length = topic.len() as u32;
        if !threads.command(id, Command::Subscribe { id, length }, topic.as_bytes()) {
            return -1;
        }
        threads.mirror.add(number, id, &topic);
        i32::try_from(threads.mirror.count(&topic)).unwrap_or(i32::MAX)
    });
    Ok(env.int(subscribers))
}

/// `unsubscribe(number, topic) → subscribers, or -1 if it was none`
fn unsubscribe(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (number, topic) = (env.to_u32(arguments[0]), topic(env, arguments[1])?);
    let subscribers = with(app, |threads| {
        let Some((id, _)) = threads.table.get(number) else { return -1 };
        let length = topic.len() as u32;
        if !threads.mirror.is_member(number, &topic)
            || !threads.command(id, Command::Unsubscribe { id, length }, topic.as_bytes())
        {
            return -1;
        }
        threads.mirror.remove(number, id, &topic);
        threads.end_sending(number, &topic);
        i32::try_from(threads.mirror.count(&topic)).unwrap_or(i32::MAX)
    });
    Ok(env.int(subscribers))
}

/// `is_subscribed(number, topic)`
fn is_subscribed(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (number, topic) = (env.to_u32(arguments[0]), topic(env, arguments[1])?);
    Ok(env.bool(with(app, |threads| threads.mirror.is_member(number, &topic))))
}

/// `topics(number) → array of strings`
fn topics(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    let names = with(app, |threads| threads.mirror.topics_of(number).to_vec());
    Ok(env.array(names.iter().map(|name| env.string(name))))
}

impl Threads {
    /// See `Js::audience`.
    pub(crate) fn audience(
        &self,
        socket: Option<u32>,
        topic: &str,
    ) -> Option<(bool, Option<ConnId>)> {
        let mut others = self.mirror.count(topic);
        let id = match socket {
            None => None,
            Some(number) => {
                let (id, _) = self.table.get(number)?;
                if self.mirror.topics_of(number).is_empty() {
                    return None;
                }
                others -= u32::from(self.mirror.is_member(number, topic));
                Some(id)
            }
        };
        Some((others > 0, id))
    }

    /// Publishes to members of a topic, or to none of them if one of their threads is far behind.
    pub(crate) fn publish(&mut self, publication: &Arc<Publication>) -> bool {
        let publishes = self.accept(&publication.topic);
        if publishes {
            self.deliver(publication);
        }
        publishes
    }

    /// Whether none of the threads with members of a topic is far behind.
    pub(crate) fn accept(&self, topic: &str) -> bool {
        self.mirror.threads(topic).all(|thread| {
            let batch = self.out.get(usize::from(thread));
            batch.is_some_and(|batch| batch.weight() <= COMMAND_BYTES_MAX)
        })
    }

    /// Delivers to members of a topic: the publications of others, too, whose number is limited where they are
    /// published.
    pub(crate) fn deliver(&mut self, publication: &Arc<Publication>) {
        for thread in self.mirror.threads(&publication.topic) {
            if let Some(batch) = self.out.get_mut(usize::from(thread)) {
                batch.push_shared(Command::Publish(Arc::clone(publication)), publication.bytes());
                self.pending = true;
            }
        }
    }
}

/// `subscribers(topic) → count`
fn subscribers(app: &App, env: Env, arguments: &Arguments) -> Result {
    let topic = topic(env, arguments[0])?;
    Ok(env.number(f64::from(with(app, |threads| threads.mirror.count(&topic)))))
}

/// `remote_address(number) → its 4 or 16 bytes, or none if it is unknown`
fn remote_address(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    let peer = with(app, |threads| threads.table.get(number).map(|(_, own)| own.peer));
    Ok(env.array_buffer(peer.unwrap_or_default().address()))
}

/// `remote_port(number) → port, or 0 if it is unknown`
fn remote_port(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    let peer = with(app, |threads| threads.table.get(number).map(|(_, own)| own.peer));
    Ok(env.int(peer.unwrap_or_default().port.into()))
}

/// `proxied_address(number) → the 4 or 16 bytes in the PROXY header of a request's connection, or none`
fn proxied_address(app: &App, env: Env, arguments: &Arguments) -> Result {
    Ok(env.array_buffer(proxied(app, env, arguments).address()))
}

/// `proxied_port(number) → the port in that header, or 0`
fn proxied_port(app: &App, env: Env, arguments: &Arguments) -> Result {
    Ok(env.int(proxied(app, env, arguments).port.into()))
}

fn proxied(app: &App, env: Env, arguments: &Arguments) -> Peer {
    let number = env.to_u32(arguments[0]);
    let proxied = |js: &mut Js| js.exchange(number)?.client.as_deref()?.proxied;
    app.with(|js, _| proxied(js)).unwrap_or_default()
}

/// `client_certificate(number) → what the client of a request has proved to own, in DER, or none`
fn client_certificate(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    let certificate =
        |js: &mut Js| Some(js.exchange(number)?.client.as_deref()?.certificate.clone());
    Ok(env.array_buffer(&app.with(|js, _| certificate(js)).unwrap_or_default()))
}

/// `open_sockets() → array of numbers`
fn open_sockets(app: &App, env: Env, _: &Arguments) -> Result {
    let numbers: Vec<u32> = with(app, |threads| threads.table.open().collect());
    Ok(env.array(numbers.iter().map(|&number| env.int(number as i32))))
}

/// `leave(number)`: ends the subscriptions of a socket whose end is reported.
fn leave(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    with(app, |threads| {
        if let Some((id, _)) = threads.table.get(number) {
            threads.mirror.leave(number, id);
        }
    });
    Ok(env.undefined())
}

/// `pause(number, paused)`: whether the socket is read.
fn pause(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (number, paused) = (env.to_u32(arguments[0]), env.to_bool(arguments[1]));
    with(app, |threads| {
        if let Some((id, _)) = threads.table.get(number) {
            threads.command(id, Command::Pause { id, paused }, &[]);
        }
    });
    Ok(env.undefined())
}

/// `route_of(number) → the route of a socket`
fn route_of(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    let route = app.with(|js: &mut Js, _| {
        let (_, entry) = js.threads.as_ref()?.table.get(number)?;
        js.sockets.get(usize::from(entry.route)).map(|own| own.route)
    });
    Ok(env.int(route.map_or(-1, |route| route as i32)))
}

// ---- requests ----

/// `res_upgrade(number, protocol) → true`: opens the WebSocket of a request. If its client has left, the event
/// of that follows.
fn res_upgrade(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [number, protocol, ..] = *arguments;
    let (number, protocol) = (env.to_u32(number), env.text(protocol).unwrap_or_default());
    let protocol = first_protocol(&protocol);
    if !app.with_turn(|js, _| js.upgrade_by_thread(number, protocol)) {
        return Err(gone().into());
    }
    Ok(env.bool(true))
}

/// `res_close(number)`: at once; JavaScript has told its program already.
fn res_close(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    app.with_turn(|js, _| {
        js.exchanges.remove(&number);
        if js.now.as_ref().is_some_and(|now| now.exchange.id.slot() == number) {
            js.now = None;
        }
        if let Some(threads) = &mut js.threads
            && let Some((id, _)) = threads.table.get(number)
        {
            threads.command(id, Command::Reset(id), &[]);
        }
        js.forget(number);
    });
    Ok(env.undefined())
}

/// `res_pause(number, paused)`: whether the body is read.
fn res_pause(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (number, paused) = (env.to_u32(arguments[0]), env.to_bool(arguments[1]));
    app.with(|js, _| {
        if let Some(exchange) = js.exchange(number) {
            exchange.paused = paused;
        }
        if let Some(threads) =
            js.threads.as_mut().filter(|own| !paused && own.held.contains_key(&number))
        {
            threads.resumed.push(number);
        }
    });
    pause(app, env, arguments)
}

/// `res_wants_data(number)`
fn res_wants_data(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    let found = with(app, |threads| {
        let Some((id, _)) = threads.table.get(number) else { return false };
        threads.command(id, Command::WantData(id), &[])
    });
    if found { Ok(env.undefined()) } else { Err(gone().into()) }
}
