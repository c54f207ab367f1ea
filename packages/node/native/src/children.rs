//! Apps of other threads that serve the connections of an app's listeners. A child has duplicates of the listeners'
//! descriptors and accepts by itself; its parent accepts nothing as long as it has children.

use std::collections::BTreeMap;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::Remote;
use engine::sys::process;
use napi_sys::napi_value;

use crate::app::{ARGUMENTS, App, natives};
use crate::handler::Post;
use crate::napi::{Env, Thrown};

type Arguments = [napi_value; ARGUMENTS];
type Result = std::result::Result<napi_value, Thrown>;

natives![descriptor, add_child, remove_child];

/// Children of an app at most.
const CHILDREN_MAX: usize = 1024;

/// The next descriptor of an app: those of apps that have ended name no others.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// By descriptor, apps that are or may become children or parents, and their parents.
static APPS: Mutex<BTreeMap<u32, Known>> = Mutex::new(BTreeMap::new());

struct Known {
    remote: Remote<Post>,
    parents: Vec<u32>,
}

fn apps() -> MutexGuard<'static, BTreeMap<u32, Known>> {
    APPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which listener of which parent it is.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) parent: u32,
    pub(crate) index: usize,
}

/// What apps tell each other.
pub(crate) enum Family {
    /// Accept from this listener of a parent.
    Listen(Origin, OwnedFd),
    /// Accept no more from this listener of a parent, or from any of its.
    Leave(u32, Option<usize>),
    /// This child has ended.
    Ended(u32),
}

fn tell(app: u32, news: Family) -> bool {
    let remote = apps().get(&app).map(|known| known.remote.clone());
    remote.is_some_and(|remote| remote.post(0, Post::Family(news), 0).is_ok())
}

/// The descriptor of an app, given with the first call.
fn descriptor_of(app: &App) -> u32 {
    if app.descriptor.get() == 0 {
        let remote = app.with(|_, core| core.remote().clone());
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        apps().insert(next, Known { remote, parents: Vec::new() });
        app.descriptor.set(next);
    }
    app.descriptor.get()
}

/// Gives a child a listener of an app. `false` if there is no descriptor left, or the child's mailbox is full.
pub(crate) fn give(child: u32, origin: Origin, number: i32) -> bool {
    let copy = process::duplicate(number);
    copy.is_ok_and(|copy| tell(child, Family::Listen(origin, copy)))
}

/// Takes one or all listeners of an app from a child.
pub(crate) fn take_back(parent: u32, child: u32, index: Option<usize>) {
    tell(child, Family::Leave(parent, index));
}

/// An app has ended with its thread.
pub(crate) fn ended(app: &App) {
    let own = app.descriptor.get();
    let known = apps().remove(&own);
    for parent in known.into_iter().flat_map(|known| known.parents) {
        tell(parent, Family::Ended(own));
    }
}

/// What another app has told this one.
pub(crate) fn heard(app: &App, news: Family) {
    let mut listeners = app.listeners.borrow_mut();
    match news {
        Family::Listen(origin, copy) => listeners.add_of(origin, copy.into_raw_fd()),
        Family::Leave(parent, index) => listeners.leave(parent, index),
        Family::Ended(child) => listeners.forget(child),
    }
}

/// `descriptor() → number`: it may become the child of another thread's app, and keeps its thread until it is closed.
fn descriptor(app: &App, env: Env, _: &Arguments) -> Result {
    let descriptor = descriptor_of(app);
    app.listeners.borrow_mut().awaited = true;
    app.settle();
    Ok(env.number(descriptor.into()))
}

/// `add_child(descriptor)`
fn add_child(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (own, child) = (descriptor_of(app), env.to_u32(arguments[0]));
    if own == child {
        return Err("an app is not its own child".into());
    }
    let unknown = "expected what getDescriptor of an app has returned, whose thread goes on";
    {
        let mut listeners = app.listeners.borrow_mut();
        if listeners.children.contains(&child) {
            return Ok(env.undefined());
        }
        if listeners.children.len() >= CHILDREN_MAX {
            return Err("too many children: an app has at most 1024".into());
        }
        apps().get_mut(&child).ok_or(unknown)?.parents.push(own);
        // It is given the listeners next.
        listeners.children.push(child);
    }
    app.settle();
    app.turn_soon();
    Ok(env.undefined())
}

/// `remove_child(descriptor)`
fn remove_child(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (own, child) = (app.descriptor.get(), env.to_u32(arguments[0]));
    app.listeners.borrow_mut().forget(child);
    if let Some(known) = apps().get_mut(&child) {
        known.parents.retain(|parent| *parent != own);
    }
    take_back(own, child, None);
    app.settle();
    app.turn_soon();
    Ok(env.undefined())
}
