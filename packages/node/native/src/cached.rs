//! Answers that are kept for routes with a cache. While one is young enough it is sent without a call of JavaScript, which
//! makes all of them: `uws/cached.js`.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use napi_sys::napi_value;
use wire::http::Request as Head;

use crate::app::{ARGUMENTS, App, natives};
use crate::exchange::{Exchange, Written};
use crate::handler::Js;
use crate::http::{NO_BYTES, read};
use crate::napi::{Env, Thrown};
use crate::router::Route;

type Arguments = [napi_value; ARGUMENTS];
type Result = std::result::Result<napi_value, Thrown>;

natives![cache, cache_key, cache_keep, cache_retry, cache_drop];

/// What an answer takes beside its own bytes and its key: its places in the two maps, and those that are free.
const ENTRY_BYTES: usize = 512;

/// The answers of a route, by the target of requests.
pub(crate) struct Cache {
    /// From this age on an answer is made anew, beside what is sent.
    lower_ns: u64,
    /// From this age on it is not sent.
    upper_ns: u64,
    /// When JavaScript is asked again for what it has not answered.
    retry_ns: u64,
    bytes_max: usize,
    bytes: usize,
    answers: HashMap<Rc<str>, Kept>,
    /// Oldest first.
    order: BTreeMap<u64, Rc<str>>,
    next: u64,
}

struct Kept {
    answer: Answer,
    number: u64,
    bytes: usize,
    made_ns: u64,
    /// When JavaScript was asked for a new one.
    asked_ns: Option<u64>,
}

struct Answer {
    status: Vec<u8>,
    /// Whole lines.
    headers: Vec<u8>,
    written: Written,
    body: Body,
    /// The connection ends with it.
    close: bool,
}

enum Body {
    Bytes(Vec<u8>),
    /// None, whatever length is reported.
    Absent(Option<u64>),
}

impl Answer {
    fn bytes(&self) -> usize {
        let body = match &self.body {
            Body::Bytes(bytes) => bytes.len(),
            Body::Absent(_) => 0,
        };
        self.status.len() + self.headers.len() + body
    }

    fn write(&self, exchange: &mut Exchange) {
        exchange.prepared_head(&self.status, &self.headers, self.written);
        match &self.body {
            Body::Bytes(bytes) => exchange.end(bytes, self.close),
            Body::Absent(length) => exchange.end_without_body(*length, self.close),
        }
    }
}

impl Cache {
    /// The answer for a key, and whether JavaScript has to make a new one.
    fn find(&mut self, key: &str, now_ns: u64) -> Option<(&Answer, bool)> {
        let kept = self.answers.get_mut(key)?;
        let age_ns = now_ns.saturating_sub(kept.made_ns);
        if age_ns >= self.upper_ns {
            return None;
        }
        let waited = |asked_ns| now_ns.saturating_sub(asked_ns) >= self.retry_ns;
        let asks = age_ns >= self.lower_ns && kept.asked_ns.is_none_or(waited);
        if asks {
            kept.asked_ns = Some(now_ns);
        }
        Some((&kept.answer, asks))
    }

    /// Keeps an answer, unless it has no room; the oldest make room.
    fn keep(&mut self, key: &str, answer: Answer, now_ns: u64) {
        self.remove(key);
        let bytes = ENTRY_BYTES + key.len() + answer.bytes();
        if bytes > self.bytes_max {
            return;
        }
        while let Some((_, oldest)) = self.order.first_key_value() {
            let oldest = Rc::clone(oldest);
            let made_ns = self.answers.get(&oldest).map_or(0, |kept| kept.made_ns);
            let expired = now_ns.saturating_sub(made_ns) >= self.upper_ns;
            if self.bytes + bytes <= self.bytes_max && !expired {
                break;
            }
            self.remove(&oldest);
        }
        let (key, number): (Rc<str>, u64) = (key.into(), self.next);
        self.next += 1;
        self.bytes += bytes;
        self.order.insert(number, Rc::clone(&key));
        self.answers.insert(key, Kept { answer, number, bytes, made_ns: now_ns, asked_ns: None });
    }

    fn remove(&mut self, key: &str) {
        if let Some(kept) = self.answers.remove(key) {
            self.order.remove(&kept.number);
            self.bytes = self.bytes.saturating_sub(kept.bytes);
        }
    }
}

impl Js {
    /// Writes the answer that is kept for a request. `None` if there is none; otherwise whether JavaScript has to make a
    /// new one.
    pub(crate) fn answer_from_cache(
        &mut self,
        route: Route,
        head: &Head<'_, '_>,
        now_ns: u64,
        exchange: &mut Exchange,
    ) -> Option<bool> {
        let cache = self.caches.get_mut(route as usize)?.as_mut()?;
        let (answer, asks) = cache.find(head.target, now_ns)?;
        answer.write(exchange);
        Some(asks)
    }
}

/// `cache(route, lower, upper, bytes, retry)`: times in seconds
fn cache(app: &App, env: Env, arguments: &Arguments) -> Result {
    let route = env.to_u32(arguments[0]) as usize;
    let number = |at: usize| env.to_f64(arguments[at]).unwrap_or(0.0);
    let ns = |at| (number(at) * 1e9) as u64;
    let cache = Cache {
        lower_ns: ns(1),
        upper_ns: ns(2),
        retry_ns: ns(4),
        bytes_max: number(3) as usize,
        bytes: 0,
        answers: HashMap::new(),
        order: BTreeMap::new(),
        next: 0,
    };
    app.with(|js, _| {
        if route < js.routes.len() {
            js.caches.resize_with(js.routes.len(), || None);
            js.caches[route] = Some(Box::new(cache));
        }
    });
    Ok(env.undefined())
}

/// `cache_key()`: of the request whose handler is being called
fn cache_key(app: &App, env: Env, _: &Arguments) -> Result {
    read(app, |head, _| env.string(head.target))
}

/// Acts on the cache of a route, with a key.
fn with(
    app: &App,
    env: Env,
    arguments: &Arguments,
    act: impl FnOnce(&mut Cache, &str, u64),
) -> Result {
    let route = env.to_u32(arguments[0]) as usize;
    let key = env.text(arguments[1]).ok_or(NO_BYTES)?;
    app.with(|js, core| {
        if let Some(Some(cache)) = js.caches.get_mut(route) {
            // A handler may have taken long.
            act(cache, &key, core.clock_ns());
        }
    });
    Ok(env.undefined())
}

/// `cache_keep(route, key, { status, headers, body, length, close })`: without a body, `length` is what is reported
fn cache_keep(app: &App, env: Env, arguments: &Arguments) -> Result {
    let given = arguments[2];
    let bytes = |name| {
        let value = env.property(given, name);
        (!env.is_undefined(value)).then(|| env.bytes(value, &mut Vec::new(), <[u8]>::to_vec))?
    };
    let length = || env.to_f64(env.property(given, c"length")).map(|length| length as u64);
    let (headers, mut written) = (bytes(c"headers").ok_or(NO_BYTES)?, Written::default());
    for line in headers.split(|byte| *byte == b'\n') {
        let end = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(end);
        written.note(name, value.get(1..).unwrap_or_default());
    }
    let answer = Answer {
        status: bytes(c"status").ok_or(NO_BYTES)?,
        headers,
        written,
        body: bytes(c"body").map_or_else(|| Body::Absent(length()), Body::Bytes),
        close: env.to_bool(env.property(given, c"close")),
    };
    with(app, env, arguments, |cache, key, clock_ns| cache.keep(key, answer, clock_ns))
}

/// `cache_retry(route, key)`: no new answer was made; the next request that needs one asks again.
fn cache_retry(app: &App, env: Env, arguments: &Arguments) -> Result {
    with(app, env, arguments, |cache, key, _| {
        if let Some(kept) = cache.answers.get_mut(key) {
            kept.asked_ns = None;
        }
    })
}

/// `cache_drop(route, key)`
fn cache_drop(app: &App, env: Env, arguments: &Arguments) -> Result {
    with(app, env, arguments, |cache, key, _| cache.remove(key))
}
