//! What JavaScript does with requests and their answers. A request is that whose handler is being called; an
//! answer is named by the slot of its connection, which JavaScript forgets when the answer has ended.

use engine::Core;
use engine::sys::linux::Linux;
use napi_sys::napi_value;
use wire::http::Request as Head;

use crate::app::{ARGUMENTS, App, natives};
use crate::exchange::{Exchange, Place};
use crate::handler::Js;
use crate::napi::{Env, Thrown};

type Arguments = [napi_value; ARGUMENTS];
type Result = std::result::Result<napi_value, Thrown>;

natives![
    method,
    url,
    query,
    query_value,
    header,
    headers,
    parameter,
    res_status,
    res_header,
    res_write,
    res_end,
    res_end_without_body,
    res_try_end,
    res_offset,
    res_close,
    res_pause,
    res_cork,
    res_uncork,
    res_wants_data,
    res_upgrade,
];

pub(crate) const NO_BYTES: &str = "expected a string, an ArrayBuffer or a view of one";

// ---- the request ----

/// Calls `read` with the head of the request whose handler is being called.
pub(crate) fn read<T>(
    app: &App,
    read: impl FnOnce(&Head<'_, '_>, &[(u32, u32)]) -> T,
) -> std::result::Result<T, Thrown> {
    let read = app.with(|js, _| {
        let now = js.now.as_ref().filter(|now| !now.head.is_null())?;
        #[expect(unsafe_code, reason = "a borrow across a call of JavaScript")]
        // SAFETY: `now` is there only while the handler is called for this head, which the caller borrows: see
        // `Js::on_request`.
        let head = unsafe { &*now.head };
        Some(read(head, &now.spans))
    });
    read.ok_or_else(|| "a request can only be read until its handler has returned".into())
}

fn method(app: &App, env: Env, _: &Arguments) -> Result {
    read(app, |head, _| env.latin1(head.method.as_bytes()))
}

fn url(app: &App, env: Env, _: &Arguments) -> Result {
    read(app, |head, _| env.latin1(head.path().as_bytes()))
}

fn query(app: &App, env: Env, _: &Arguments) -> Result {
    read(app, |head, _| env.latin1(head.query().unwrap_or_default().as_bytes()))
}

/// `query_value(key) → value, or undefined; false if it has to be decoded`
fn query_value(app: &App, env: Env, arguments: &Arguments) -> Result {
    let value = env.short_text(arguments[0], |key| {
        read(app, |head, _| match raw_query_value(head.query().unwrap_or_default(), key) {
            None => env.bool(false),
            Some(value) => value.map_or_else(|| env.undefined(), |value| env.latin1(value)),
        })
    });
    value.ok_or("expected the key of a query parameter: a string")?
}

/// The value of a key as `URLSearchParams` finds it, if there is one; `None` if something is encoded.
fn raw_query_value<'q>(query: &'q str, key: &[u8]) -> Option<Option<&'q [u8]>> {
    let query = query.as_bytes();
    if query.starts_with(b"?") || query.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return None;
    }
    // Keys without `=` have no value.
    let mut pairs = query.split(|byte| *byte == b'&').filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        Some((pair.get(..at)?, pair.get(at + 1..)?))
    });
    Some(pairs.find(|(name, _)| *name == key).map(|(_, value)| value))
}

/// `header(name) → value, or ""`
fn header(app: &App, env: Env, arguments: &Arguments) -> Result {
    let value = env.short_text(arguments[0], |name| {
        // No header has another name than one in ASCII, or none.
        let name = std::str::from_utf8(name).unwrap_or_default();
        read(app, |head, _| env.latin1(head.header(name).unwrap_or_default()))
    });
    value.ok_or("expected the name of a header: a string")?
}

/// `headers() → [name, value, …]`
fn headers(app: &App, env: Env, _: &Arguments) -> Result {
    read(app, |head, _| {
        env.array(head.headers.iter().flat_map(|header| {
            let name = header.name.to_ascii_lowercase();
            [env.latin1(name.as_bytes()), env.latin1(header.value)]
        }))
    })
}

/// `parameter(index) → value, or undefined`
fn parameter(app: &App, env: Env, arguments: &Arguments) -> Result {
    let index = env.to_u32(arguments[0]) as usize;
    read(app, |head, spans| {
        let value =
            spans.get(index).and_then(|&(from, to)| head.path().get(from as usize..to as usize));
        value.map_or_else(|| env.undefined(), |value| env.latin1(value.as_bytes()))
    })
}

// ---- the answer ----

/// Calls `act` with an answer, and passes on what it has written.
fn answer<T>(
    app: &App,
    env: Env,
    slot: napi_value,
    act: impl FnOnce(&mut Exchange, &mut Vec<u8>) -> T,
) -> std::result::Result<T, Thrown> {
    let slot = env.to_u32(slot);
    let (result, passed) = app.with(|js, core| {
        let mut scratch = std::mem::take(&mut js.scratch);
        let result =
            js.exchange(slot).map(|exchange| (act(exchange, &mut scratch), exchange.place));
        js.keep_scratch(scratch);
        let (result, place) = result.ok_or_else(|| Thrown::from(gone()))?;
        let passes = place != Place::Handler;
        if passes {
            js.pass_on(core, slot);
        }
        Ok::<_, Thrown>((result, passes))
    })?;
    if passed {
        app.turn_soon();
    }
    Ok(result)
}

pub(crate) fn gone() -> &'static str {
    "this response has ended, or its client has left: onAborted tells when it does"
}

/// `res_status(slot, status)`
fn res_status(app: &App, env: Env, arguments: &Arguments) -> Result {
    let status = arguments[1];
    hold(app, env, arguments[0], |exchange, scratch| {
        env.text_or_bytes(status, scratch, |status| exchange.status(status)).ok_or(NO_BYTES)
    })?;
    Ok(env.undefined())
}

/// As [`answer`], for what is passed on with what follows.
fn hold<T>(
    app: &App,
    env: Env,
    slot: napi_value,
    act: impl FnOnce(&mut Exchange, &mut Vec<u8>) -> std::result::Result<T, &'static str>,
) -> std::result::Result<T, Thrown> {
    let slot = env.to_u32(slot);
    app.with(|js, _| {
        let mut scratch = std::mem::take(&mut js.scratch);
        let result = js.exchange(slot).map(|exchange| act(exchange, &mut scratch));
        js.keep_scratch(scratch);
        result.unwrap_or_else(|| Err(gone())).map_err(Into::into)
    })
}

/// `res_header(slot, name, value)`
fn res_header(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, name, value, ..] = *arguments;
    let written = env.short_text(name, |name| {
        hold(app, env, slot, |exchange, scratch| {
            let written = env.text_or_bytes(value, scratch, |value| exchange.header(name, value));
            written.unwrap_or(Err(NO_BYTES))
        })
    });
    written.ok_or(NO_BYTES)??;
    Ok(env.undefined())
}

fn flows(app: &App, slot: u32) -> bool {
    app.with(|js, core| js.flows(core, slot))
}

/// `res_write(slot, piece) → whether nothing waits`; with threads, whether little waits
fn res_write(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, piece, ..] = *arguments;
    let written = answer(app, env, slot, |exchange, scratch| {
        env.bytes(piece, scratch, |bytes| exchange.write(bytes))
    })?;
    written.ok_or(NO_BYTES)?;
    Ok(env.bool(flows(app, env.to_u32(slot))))
}

/// `res_end(slot, body, close)`
fn res_end(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, body, close, ..] = *arguments;
    let close = env.to_bool(close);
    let ended = answer(app, env, slot, |exchange, scratch| {
        env.text_or_bytes(body, scratch, |bytes| exchange.end(bytes, close))
    })?;
    ended.ok_or(NO_BYTES)?;
    Ok(env.undefined())
}

/// `res_end_without_body(slot, length or undefined, close)`
fn res_end_without_body(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, length, close, ..] = *arguments;
    let (length, close) = (env.to_f64(length).map(|length| length as u64), env.to_bool(close));
    answer(app, env, slot, |exchange, _| exchange.end_without_body(length, close))?;
    Ok(env.undefined())
}

/// `res_try_end(slot, piece, total) → bits: 1 nothing waits, 2 it has ended`
fn res_try_end(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, piece, total, ..] = *arguments;
    let total = env.to_f64(total).unwrap_or(0.0) as u64;
    let place = env.to_u32(slot);
    // Pieces of the piece, as long as nothing waits.
    let mut at = 0;
    loop {
        let queued = app.with(|js, core| js.waiting(core, place));
        let written = answer(app, env, slot, |exchange, scratch| {
            env.bytes(piece, scratch, |bytes| {
                let room = TRY_BYTES.saturating_sub(queued + exchange.out.len());
                let rest = bytes.get(at..).unwrap_or_default();
                let taken = rest.len().min(room);
                let total = if total == 0 { bytes.len() as u64 } else { total };
                exchange.part(rest.get(..taken).unwrap_or_default(), total);
                at += taken;
                (exchange.has_ended(), at == bytes.len(), taken, exchange.id)
            })
        })?;
        let (ended, all, taken, id) = written.ok_or(NO_BYTES)?;
        if ended || all {
            return Ok(env.int(1 | i32::from(ended) << 1));
        }
        if taken == 0 || !flows(app, place) {
            app.with_turn(|js, _| js.await_flow(id));
            return Ok(env.int(0));
        }
    }
}

/// Bytes that `res_try_end`, and with threads `res_write`, let wait at most.
pub(crate) const TRY_BYTES: usize = 256 * 1024;

/// `res_offset(slot) → bytes of the body`
fn res_offset(app: &App, env: Env, arguments: &Arguments) -> Result {
    let offset = hold(app, env, arguments[0], |exchange, _| Ok(exchange.offset))?;
    Ok(env.number(offset as f64))
}

/// `res_close(slot)`: at once; JavaScript has told its program already. Without a request it is the connection that a
/// filter is called for.
fn res_close(app: &App, env: Env, arguments: &Arguments) -> Result {
    let slot = env.to_u32(arguments[0]);
    app.with_turn(|js, core: &mut Core<Linux, Js>| {
        let id = js.exchange(slot).map(|exchange| exchange.id);
        if let Some(id) = id.or_else(|| core.id_at(slot)) {
            js.exchanges.remove(&slot);
            if js.now.as_ref().is_some_and(|now| now.exchange.id == id) {
                js.now = None;
            }
            core.reset(id);
        }
    });
    Ok(env.undefined())
}

/// `res_pause(slot, paused)`: whether the body is read.
fn res_pause(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (slot, paused) = (env.to_u32(arguments[0]), env.to_bool(arguments[1]));
    app.with_turn(|js, core| {
        let Some(exchange) = js.exchange(slot) else { return };
        exchange.paused = paused;
        let (id, raw) = (exchange.id, exchange.place == Place::Raw);
        if raw && paused {
            core.pause(id);
        } else if raw {
            core.resume(id);
        }
    });
    Ok(env.undefined())
}

/// `res_cork(slot)`
fn res_cork(app: &App, env: Env, arguments: &Arguments) -> Result {
    hold(app, env, arguments[0], |exchange, _| {
        exchange.corked = true;
        Ok(())
    })?;
    Ok(env.undefined())
}

/// `res_uncork(slot)`: of one that has ended meanwhile, too.
fn res_uncork(app: &App, env: Env, arguments: &Arguments) -> Result {
    let _ = answer(app, env, arguments[0], |exchange, _| exchange.corked = false);
    Ok(env.undefined())
}

/// `res_wants_data(slot)`
fn res_wants_data(app: &App, env: Env, arguments: &Arguments) -> Result {
    hold(app, env, arguments[0], |exchange, _| {
        exchange.wants_data = true;
        Ok(())
    })?;
    Ok(env.undefined())
}

/// `res_upgrade(slot, protocol) → whether its client is there`: opens the WebSocket of a request. The open handler is
/// called by JavaScript.
fn res_upgrade(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [slot, protocol, ..] = *arguments;
    let (slot, protocol) = (env.to_u32(slot), env.text(protocol).unwrap_or_default());
    let protocol = first_protocol(&protocol);
    let opened = app.with_turn(|js, core| js.upgrade(core, slot, protocol));
    Ok(env.bool(opened.ok_or_else(gone)?))
}

/// The subprotocol of an answer. A browser refuses a list: the first that the client offers is meant.
pub(crate) fn first_protocol(offered: &str) -> Option<&str> {
    let first = offered.split(',').next().unwrap_or_default().trim();
    Some(first).filter(|protocol| !protocol.is_empty())
}
