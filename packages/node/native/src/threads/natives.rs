//! What JavaScript calls, in place of functions of the same names in `sockets`, `http` and `setup`. A socket is named by
//! its number in the table.

use std::sync::Arc;

use napi_sys::napi_value;
use topics::Publication;

use super::Threads;
use super::batch::Command;
use super::holder::{Holder, Routes};
use super::{ANSWER_BYTES_MAX, COMMAND_BYTES_MAX};
use crate::app::{ARGUMENTS, App, natives};
use crate::exchange::{Exchange, Place};
use crate::handler::Js;
use crate::napi::{Env, Thrown};
use crate::sockets::cut;

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
    publish,
    subscribers,
    remote_address,
    remote_port,
    route_of,
    leave,
    open_sockets,
    pause,
    res_upgrade,
    res_close,
    res_write,
    res_try_end,
    res_pause,
    res_wants_data,
];

/// Bits of the arguments of `send` and `publish`.
const BINARY: u32 = 1;
const COMPRESS: u32 = 2;

/// What `send` returns: it waits, as of the last batch; it is on its way; it was dropped.
const WAITS: i32 = 0;
const SENT: i32 = 1;
const DROPPED: i32 = 2;

const NO_BYTES: &str = "expected a string, an ArrayBuffer or a view of one";

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

fn topic(env: Env, value: napi_value) -> std::result::Result<String, Thrown> {
    env.text(value).ok_or_else(|| Thrown::from("expected a topic: a string"))
}

// ---- listeners ----

/// `listen(host or "", port, exclusive) → 0, or -1`: starts the threads.
fn listen(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [host, port, exclusive, ..] = *arguments;
    let (host, exclusive) = (env.text(host).unwrap_or_default(), env.to_bool(exclusive));
    let port = env.to_f64(port).filter(|port| (0.0..65_536.0).contains(port));
    let port = port.ok_or("expected a port: a number from 0 to 65535")? as u16;
    let keep: Vec<i32> = app.wake_fd().into_iter().collect();
    let listens = app.with(|js, core| {
        if js.tls.is_some() && js.tls_server.is_none() {
            return Err("an SSLApp needs key_file_name and cert_file_name, or addServerName".into());
        }
        let routes = Arc::new(Routes {
            routers: js.routers.clone(),
            routes: js.routes.clone(),
            sockets: js.sockets.clone(),
            message_bytes_least: js.message_bytes_least,
            reports_dropped: js.reports_dropped,
            tls: js.tls_server.clone(),
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
        let Some((id, _)) = threads.table.get(number) else { return DROPPED };
        let (binary, compress) = (flags & BINARY != 0, flags & COMPRESS != 0);
        let Ok(length) = u32::try_from(bytes.len()) else { return DROPPED };
        if !threads.command(id, Command::Send { id, binary, compress, length }, bytes) {
            return DROPPED;
        }
        if threads.buffered.contains_key(&number) { WAITS } else { SENT }
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

/// `buffered(number) → bytes, as of the last batch`
fn buffered(app: &App, env: Env, arguments: &Arguments) -> Result {
    let number = env.to_u32(arguments[0]);
    let bytes = with(app, |threads| threads.buffered.get(&number).copied().unwrap_or(0));
    Ok(env.number(f64::from(bytes)))
}

/// `subscribe(number, topic) → subscribers; 0 if it was one, -1 if it is not open`
fn subscribe(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (number, topic) = (env.to_u32(arguments[0]), topic(env, arguments[1])?);
    let subscribers = with(app, |threads| {
        let Some((id, _)) = threads.table.get(number).filter(|(_, own)| own.open) else {
            return -1;
        };
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

/// `publish(number or -1, topic, message, flags) → whether anybody is subscribed`
fn publish(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [number, name, message, flags, ..] = *arguments;
    let (number, flags) = (env.to_f64(number).unwrap_or(-1.0), env.to_u32(flags));
    let name = topic(env, name)?;
    let published = with_bytes(app, env, message, |threads, bytes| {
        let mut others = threads.mirror.count(&name);
        let mut except = None;
        if number >= 0.0 {
            let number = number as u32;
            let socket = threads.table.get(number).map(|(id, _)| id);
            if socket.is_none() || threads.mirror.topics_of(number).is_empty() {
                return false;
            }
            others -= u32::from(threads.mirror.is_member(number, &name));
            except = socket;
        }
        if others == 0 {
            return false;
        }
        let mut publication =
            Publication::new(name.as_str().into(), bytes.into(), flags & BINARY != 0);
        publication.except = except;
        // See `encode`.
        publication.kind = (flags & COMPRESS != 0).then(|| "".into());
        threads.publish(&Arc::new(publication))
    })?;
    Ok(env.bool(published))
}

impl Threads {
    /// Publishes to the threads with members, or to none of them if one is far behind.
    fn publish(&mut self, publication: &Arc<Publication>) -> bool {
        let threads: Vec<u16> = self.mirror.threads(&publication.topic).collect();
        let behind = |thread: &u16| {
            let batch = self.out.get(usize::from(*thread));
            batch.is_none_or(|batch| batch.weight() > COMMAND_BYTES_MAX)
        };
        if threads.iter().any(behind) {
            return false;
        }
        for thread in threads {
            if let Some(batch) = self.out.get_mut(usize::from(thread)) {
                batch.push_shared(Command::Publish(Arc::clone(publication)), publication.bytes());
            }
        }
        self.pending = true;
        true
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
    let protocol = env.text(protocol).unwrap_or_default();
    let protocol = protocol.split(',').next().unwrap_or_default().trim();
    let protocol = Some(protocol).filter(|protocol| !protocol.is_empty());
    let number = env.to_u32(number);
    if !app.with_turn(|js, _| js.upgrade_by_thread(number, protocol)) {
        return Err(
            "this response has ended, or its client has left: onAborted tells when it does".into(),
        );
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

/// Adds a piece to an answer, which leaves when it is complete.
fn piece(
    app: &App,
    env: Env,
    arguments: &Arguments,
    add: impl FnOnce(&mut Exchange, &[u8]),
) -> std::result::Result<bool, Thrown> {
    let number = env.to_u32(arguments[0]);
    app.with_turn(|js, _| {
        let mut scratch = std::mem::take(&mut js.scratch);
        let Some(exchange) = js.exchange(number) else {
            return Err(
                "this response has ended, or its client has left: onAborted tells when it does"
                    .into(),
            );
        };
        let added = env.bytes(arguments[1], &mut scratch, |bytes| {
            let fits = exchange.out.len() + bytes.len() <= ANSWER_BYTES_MAX;
            if fits {
                add(exchange, bytes);
            }
            fits
        });
        let (ended, place) = (exchange.has_ended(), exchange.place);
        js.keep_scratch(scratch);
        match added {
            None => Err(NO_BYTES.into()),
            Some(false) => {
                Err("an app with workers holds an answer until it is complete: at most 16 MiB"
                    .into())
            }
            Some(true) => {
                if place == Place::Thread {
                    js.answer_by_thread(number);
                }
                Ok(ended)
            }
        }
    })
}

/// `res_write(number, piece) → true`
fn res_write(app: &App, env: Env, arguments: &Arguments) -> Result {
    piece(app, env, arguments, Exchange::write)?;
    Ok(env.bool(true))
}

/// `res_try_end(number, piece, total) → bits: 1 nothing waits, 2 it has ended`
fn res_try_end(app: &App, env: Env, arguments: &Arguments) -> Result {
    let total = env.to_f64(arguments[2]).unwrap_or(0.0) as u64;
    let ended = piece(app, env, arguments, |exchange, bytes| exchange.part(bytes, total))?;
    Ok(env.int(1 | i32::from(ended) << 1))
}

fn res_pause(_: &App, _: Env, _: &Arguments) -> Result {
    Err("an app with workers does not read request bodies".into())
}

fn res_wants_data(_: &App, _: Env, _: &Arguments) -> Result {
    Err("an app with workers does not read request bodies".into())
}
