//! Strings and integers that all threads of a process share, by collection and key: the key-value functions of
//! uWebSockets.js. What a program puts there stays until it deletes it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use napi_sys::{napi_callback_info, napi_env, napi_value};

use crate::app::{ARGUMENTS, called, natives};
use crate::napi::{Env, Thrown};

type Arguments = [napi_value; ARGUMENTS];
type Result = std::result::Result<napi_value, Thrown>;

type Collections<V> = HashMap<Box<[u8]>, HashMap<Box<[u8]>, V>>;

/// Keys, collections and strings are the bytes that the program has given.
#[derive(Default)]
struct Store {
    strings: Collections<Box<[u8]>>,
    integers: Collections<i32>,
}

static STORE: LazyLock<Mutex<Store>> = LazyLock::new(Mutex::default);

natives! {
    enter:
    get_string,
    set_string,
    get_string_keys,
    delete_string,
    delete_string_collection,
    get_integer,
    set_integer,
    inc_integer,
    get_integer_keys,
    delete_integer,
    delete_integer_collection,
    lock,
    unlock,
}

/// Calls a function that belongs to no app.
fn enter(
    env: napi_env,
    info: napi_callback_info,
    function: fn(Env, &Arguments) -> Result,
) -> napi_value {
    let env = Env(env);
    let (arguments, _) = env.arguments::<ARGUMENTS>(info);
    if ENDED.get() {
        return env.undefined();
    }
    called(env, || function(env, &arguments))
}

fn store() -> MutexGuard<'static, Store> {
    STORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Longer strings could not be returned: V8 has none of 2^29 characters.
const STRING_BYTES_MAX: usize = 256 << 20;

fn bytes(env: Env, value: napi_value, what: &str) -> std::result::Result<Box<[u8]>, Thrown> {
    let bytes: Option<Box<[u8]>> = env.short_text(value, |bytes| bytes.into());
    let bytes = bytes
        .ok_or_else(|| format!("expected {what}: a string, an ArrayBuffer or a view of one"))?;
    if bytes.len() > STRING_BYTES_MAX {
        return Err(format!("{what} has more than {STRING_BYTES_MAX} bytes").into());
    }
    Ok(bytes)
}

fn key(env: Env, value: napi_value) -> std::result::Result<Box<[u8]>, Thrown> {
    bytes(env, value, "a key")
}

fn collection(env: Env, value: napi_value) -> std::result::Result<Box<[u8]>, Thrown> {
    bytes(env, value, "the name of a collection")
}

/// A number as JavaScript converts it to 32 bits: what is beyond wraps around.
fn integer(env: Env, value: napi_value) -> std::result::Result<i32, Thrown> {
    env.to_i32(value).ok_or_else(|| "expected a number".into())
}

/// A string of the bytes, in UTF-8.
fn string(env: Env, bytes: &[u8]) -> napi_value {
    env.string(&String::from_utf8_lossy(bytes))
}

fn get<V>(collections: &Collections<V>, collection: &[u8], key: &[u8]) -> Option<V>
where
    V: Clone,
{
    collections.get(collection)?.get(key).cloned()
}

fn delete<V>(collections: &mut Collections<V>, collection: &[u8], key: &[u8]) {
    if let Some(own) = collections.get_mut(collection) {
        own.remove(key);
        if own.is_empty() {
            collections.remove(collection);
        }
    }
}

fn keys<V>(collections: &Collections<V>, collection: &[u8]) -> Vec<Box<[u8]>> {
    collections.get(collection).into_iter().flat_map(|own| own.keys().cloned()).collect()
}

/// `get_string(key, collection) → its value, or ""`
fn get_string(env: Env, &[name, from, ..]: &Arguments) -> Result {
    let (name, from) = (key(env, name)?, collection(env, from)?);
    let value = get(&store().strings, &from, &name);
    Ok(string(env, &value.unwrap_or_default()))
}

/// `set_string(key, value, collection)`
fn set_string(env: Env, &[name, value, to, ..]: &Arguments) -> Result {
    let (name, value) = (key(env, name)?, bytes(env, value, "a value")?);
    let to = collection(env, to)?;
    store().strings.entry(to).or_default().insert(name, value);
    Ok(env.undefined())
}

/// `get_string_keys(collection) → the keys of its strings`
fn get_string_keys(env: Env, &[from, ..]: &Arguments) -> Result {
    let from = collection(env, from)?;
    let keys = keys(&store().strings, &from);
    Ok(env.array(keys.iter().map(|key| string(env, key))))
}

/// `delete_string(key, collection)`
fn delete_string(env: Env, &[name, from, ..]: &Arguments) -> Result {
    let (name, from) = (key(env, name)?, collection(env, from)?);
    delete(&mut store().strings, &from, &name);
    Ok(env.undefined())
}

/// `delete_string_collection(collection)`
fn delete_string_collection(env: Env, &[from, ..]: &Arguments) -> Result {
    let from = collection(env, from)?;
    let deleted = store().strings.remove(&from);
    drop(deleted);
    Ok(env.undefined())
}

/// `get_integer(key, collection) → its value, or 0`
fn get_integer(env: Env, &[name, from, ..]: &Arguments) -> Result {
    let (name, from) = (key(env, name)?, collection(env, from)?);
    let value = get(&store().integers, &from, &name);
    Ok(env.int(value.unwrap_or_default()))
}

/// `set_integer(key, value, collection)`
fn set_integer(env: Env, &[name, value, to, ..]: &Arguments) -> Result {
    let (name, value) = (key(env, name)?, integer(env, value)?);
    let to = collection(env, to)?;
    store().integers.entry(to).or_default().insert(name, value);
    Ok(env.undefined())
}

/// `inc_integer(key, change, collection) → the sum`
fn inc_integer(env: Env, &[name, change, to, ..]: &Arguments) -> Result {
    let (name, change) = (key(env, name)?, integer(env, change)?);
    let to = collection(env, to)?;
    let mut store = store();
    let value = store.integers.entry(to).or_default().entry(name).or_default();
    *value = value.wrapping_add(change);
    Ok(env.int(*value))
}

/// `get_integer_keys(collection) → the keys of its integers`
fn get_integer_keys(env: Env, &[from, ..]: &Arguments) -> Result {
    let from = collection(env, from)?;
    let keys = keys(&store().integers, &from);
    Ok(env.array(keys.iter().map(|key| string(env, key))))
}

/// `delete_integer(key, collection)`
fn delete_integer(env: Env, &[name, from, ..]: &Arguments) -> Result {
    let (name, from) = (key(env, name)?, collection(env, from)?);
    delete(&mut store().integers, &from, &name);
    Ok(env.undefined())
}

/// `delete_integer_collection(collection)`
fn delete_integer_collection(env: Env, &[from, ..]: &Arguments) -> Result {
    let from = collection(env, from)?;
    let deleted = store().integers.remove(&from);
    drop(deleted);
    Ok(env.undefined())
}

// ---- the lock ----

/// The lock of programs: the functions above do not wait for it.
static LOCKED: Mutex<bool> = Mutex::new(false);
static UNLOCKED: Condvar = Condvar::new();

/// How long a thread waits for the lock before it looks whether it is being ended.
const WAIT: Duration = Duration::from_millis(50);

/// How often this thread has taken the lock. It is given back with the thread.
#[derive(Default)]
struct Depth(u32);

thread_local! {
    /// The thread was ended while it waited for the lock. Nothing can be thrown in it any more, and JavaScript may still do
    /// what comes next: it changes nothing here.
    static ENDED: Cell<bool> = const { Cell::new(false) };
    static DEPTH: RefCell<Depth> = RefCell::default();
}

impl Depth {
    /// Returns whether the thread has the lock: not if it is being ended meanwhile, as nothing would end the wait.
    fn take(&mut self, env: Env) -> bool {
        let has_it = self.0 > 0 || Self::wait(env);
        self.0 += u32::from(has_it);
        has_it
    }

    fn wait(env: Env) -> bool {
        loop {
            let locked = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
            let free = UNLOCKED.wait_timeout_while(locked, WAIT, |locked| *locked);
            let (mut locked, waited) = free.unwrap_or_else(PoisonError::into_inner);
            if !waited.timed_out() {
                *locked = true;
                return true;
            }
            drop(locked);
            if env.is_ending() {
                return false;
            }
        }
    }

    /// Returns whether the thread has had it.
    fn give_back(&mut self) -> bool {
        let Some(rest) = self.0.checked_sub(1) else { return false };
        self.0 = rest;
        if rest == 0 {
            *LOCKED.lock().unwrap_or_else(PoisonError::into_inner) = false;
            UNLOCKED.notify_one();
        }
        true
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        self.0 = self.0.min(1);
        self.give_back();
    }
}

/// `lock()`: waits until no other thread has the lock.
fn lock(env: Env, _: &Arguments) -> Result {
    if !DEPTH.with_borrow_mut(|depth| depth.take(env)) {
        ENDED.set(true);
    }
    Ok(env.undefined())
}

/// `unlock()`, as often as `lock()`
fn unlock(env: Env, _: &Arguments) -> Result {
    if !DEPTH.with_borrow_mut(Depth::give_back) {
        return Err("unlock() without lock(): this thread does not have the lock".into());
    }
    Ok(env.undefined())
}
