//! Topics that the apps of several threads share, by a name, and with other processes by a broker.
//!
//! Each app delivers to its own sockets; a publication is posted to the apps that have subscribers, as between the
//! workers of a server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

use engine::{Core, MailboxFull, Remote, Sys, WORKERS_MAX};
use napi_sys::napi_value;
use topics::{Directory, HistoryLimits, Mailboxes, Publication, Refused};

use crate::app::{ARGUMENTS, App, natives};
use crate::broker::{Broker, Link};
use crate::handler::{Js, Post, encode};
use crate::history::Keeper;
use crate::napi::{Env, Thrown};

natives![topics_state];

/// Apps that share topics at most: a directory names workers by a number.
const APPS_MAX: usize = WORKERS_MAX;

/// By name, topics that an app has.
static GROUPS: Mutex<BTreeMap<Box<str>, Weak<Group>>> = Mutex::new(BTreeMap::new());

fn groups() -> MutexGuard<'static, BTreeMap<Box<str>, Weak<Group>>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The apps that share topics.
pub(crate) struct Peers {
    pub(crate) directory: Directory,
    /// What is kept, if anything is.
    pub(crate) keeper: Option<Keeper>,
    /// By the number that the directory has of an app.
    apps: RwLock<Vec<Place>>,
}

enum Place {
    Free,
    /// Its app is being created.
    Taken,
    App(Remote<Post>),
}

impl Peers {
    fn new(limits: Option<HistoryLimits>, at_broker: bool) -> Peers {
        let keeper = limits.map(|limits| Keeper::new(limits, at_broker));
        let history = keeper.as_ref().map(|keeper| Arc::clone(&keeper.history));
        Peers { directory: Directory::with_history(history), keeper, apps: RwLock::default() }
    }

    /// Posts to all apps, or to none of them if one has no room.
    pub(crate) fn post_to_all(&self, bytes: usize, post: impl FnMut() -> Post) -> bool {
        let apps = self.apps();
        let remotes = apps.iter().filter_map(|app| match app {
            Place::App(remote) => Some(remote),
            _ => None,
        });
        Remote::post_to_each(remotes, bytes, post).is_ok()
    }

    fn apps(&self) -> RwLockReadGuard<'_, Vec<Place>> {
        self.apps.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailboxes<Post> for Peers {
    fn post_all(
        &self,
        workers: impl Iterator<Item = usize> + Clone,
        bytes: usize,
        post: impl FnMut() -> Post,
    ) -> Result<(), MailboxFull> {
        let apps = self.apps();
        let remotes = workers.filter_map(|at| match apps.get(at) {
            Some(Place::App(remote)) => Some(remote),
            _ => None,
        });
        Remote::post_to_each(remotes, bytes, post)
    }
}

struct Group {
    name: Box<str>,
    peers: Arc<Peers>,
    link: Option<Link>,
    /// Publications that nobody got: an app or the broker was too far behind.
    refused: AtomicU64,
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut groups = groups();
        // Another one may have its name already.
        if groups.get(&self.name).is_some_and(|group| group.strong_count() == 0) {
            groups.remove(&self.name);
        }
        drop(groups);
        if let Some(link) = &self.link {
            link.end();
        }
    }
}

impl Group {
    /// The topics with this name, made now if no app has them.
    fn find(
        name: &str,
        broker: Option<Broker>,
        limits: Option<HistoryLimits>,
    ) -> Result<Arc<Group>, Thrown> {
        let mut groups = groups();
        if let Some(group) = groups.get(name).and_then(Weak::upgrade) {
            // It may be the last to hold it, which then takes the lock.
            drop(groups);
            if group.link.as_ref().map(|link| &link.broker) != broker.as_ref() {
                let what =
                    "has a broker or options of it that differ from those of an app that is there";
                // The name may contain the URL of a broker, with its password.
                return Err(format!("an app with these topics {what}").into());
            }
            if group.peers.keeper.as_ref().map(|keeper| keeper.limits) != limits {
                let what = "has another history than an app that is there";
                return Err(format!("an app with these topics {what}").into());
            }
            return Ok(group);
        }
        let mut peers = Peers::new(limits, broker.is_some());
        let link = broker.map(|broker| Link::new(broker, &mut peers)).transpose()?;
        let peers = Arc::new(peers);
        if let Some(link) = &link {
            let started = link.start(&peers).inspect_err(|_| link.end());
            started.map_err(|error| format!("no thread for a broker: {error}"))?;
        }
        let refused = AtomicU64::new(0);
        let group = Arc::new(Group { name: name.into(), peers, link, refused });
        groups.insert(name.into(), Arc::downgrade(&group));
        Ok(group)
    }
}

/// An app's part of topics that it shares, until it is dropped.
pub(crate) struct Shared {
    group: Arc<Group>,
    at: usize,
}

impl Shared {
    /// Takes part in the topics with this name.
    pub(crate) fn new(
        name: &str,
        broker: Option<Broker>,
        limits: Option<HistoryLimits>,
    ) -> Result<Shared, Thrown> {
        let group = Group::find(name, broker, limits)?;
        let mut apps = group.peers.apps.write().unwrap_or_else(PoisonError::into_inner);
        let free = apps.iter().position(|place| matches!(place, Place::Free));
        let at = free.unwrap_or(apps.len());
        match apps.get_mut(at) {
            Some(place) => *place = Place::Taken,
            None if at < APPS_MAX => apps.push(Place::Taken),
            None => {
                return Err(format!("too many apps share these topics: at most {APPS_MAX}").into());
            }
        }
        drop(apps);
        Ok(Shared { group, at })
    }

    /// What the app's worker has for its topics. From now on others can post to it.
    pub(crate) fn join(&self, remote: &Remote<Post>) -> (u16, Directory) {
        self.set(Place::App(remote.clone()));
        self.place()
    }

    /// The app's number, and the directory that has it.
    pub(crate) fn place(&self) -> (u16, Directory) {
        (self.at as u16, self.group.peers.directory.clone())
    }

    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.group.peers
    }

    /// Whether what is kept of a topic can be read; if not, [`Post::Confirmed`] follows.
    pub(crate) fn prepare(&self, topic: &str) -> bool {
        self.group.link.as_ref().is_none_or(|link| link.prepare(topic))
    }

    /// Publishes to all apps and processes in one order, in which it is kept: none of them gets it before its position
    /// is known.
    fn publish_in_order(&self, publication: Publication) -> Result<(), Refused> {
        let Group { peers, link, .. } = &*self.group;
        match link {
            Some(link) => link.submit(&publication),
            None => {
                let publication = Arc::new(publication);
                peers.directory.publish_by(&**peers, &publication, None).map(|_| ())
            }
        }
    }

    fn set(&self, place: Place) {
        let mut apps = self.group.peers.apps.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = apps.get_mut(self.at) {
            *own = place;
        }
    }

    /// Publishes to the other apps and processes, and if nothing keeps it from them, `here`. Returns whether an app
    /// has subscribers, or another process may have.
    fn publish(
        &self,
        publication: &Arc<Publication>,
        here: impl FnOnce(),
    ) -> Result<bool, Refused> {
        let Group { peers, link, .. } = &*self.group;
        let all_here = || {
            let reached = peers.directory.publish_by(&**peers, publication, Some(self.at))?;
            here();
            Ok(reached > 0)
        };
        match link {
            None => all_here(),
            Some(link) => link.publish(publication, all_here).map(|_| true),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.set(Place::Free);
    }
}

impl Js {
    pub(crate) fn has_broker(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.group.link.is_some())
    }

    /// Delivers to subscribers of this app.
    pub(crate) fn deliver<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        publication: &Arc<Publication>,
    ) {
        match &mut self.threads {
            Some(threads) => threads.deliver(publication),
            None => self.topics.deliver(core, publication, encode),
        }
    }

    /// Publishes to subscribers of all apps with these topics. `here` is whether this app has any but the publisher. Returns
    /// whether anybody gets it; with a history, whether it was published.
    pub(crate) fn publish_shared<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        shared: &Shared,
        publication: Publication,
        here: bool,
    ) -> bool {
        let accepts = match &self.threads {
            Some(threads) => threads.accept(&publication.topic),
            None => self.topics.accepts_posts(),
        };
        let outcome = match accepts {
            false => Err(Refused::MailboxFull),
            true if shared.group.peers.keeper.is_some() => {
                shared.publish_in_order(publication.accepted(core.now_ns())).map(|()| true)
            }
            true => shared.publish(&Arc::new(for_others(&publication)), || {
                if here {
                    // The publisher is not told apart from sockets of other apps: those get the other one.
                    self.deliver(core, &Arc::new(publication));
                }
            }),
        };
        if outcome.is_err() {
            shared.group.refused.fetch_add(1, Ordering::Relaxed);
        }
        outcome.is_ok_and(|elsewhere| elsewhere || here)
    }
}

/// A publication for all sockets of other apps.
fn for_others(publication: &Publication) -> Publication {
    let (topic, data) = (Arc::clone(&publication.topic), Arc::clone(&publication.data));
    let mut others = Publication::new(topic, data, publication.binary);
    others.kind.clone_from(&publication.kind);
    others
}

/// `topics_state() → [apps, refused, states of broker and history, or undefined]`; `undefined` without shared topics
fn topics_state(app: &App, env: Env, _: &[napi_value; ARGUMENTS]) -> Result<napi_value, Thrown> {
    let group = app.with(|js, _| js.shared.as_ref().map(|shared| Arc::clone(&shared.group)));
    let Some(group) = group else { return Ok(env.undefined()) };
    let used = |place: &&Place| !matches!(place, Place::Free);
    let apps = group.peers.apps().iter().filter(used).count();
    let number = |number: u64| env.number(number as f64);
    let refused = number(group.refused.load(Ordering::Relaxed));
    let broker = group.link.as_ref().map_or_else(|| env.undefined(), |link| link.state(env));
    let keeper = group.peers.keeper.as_ref();
    let history = keeper.map_or_else(|| env.undefined(), |keeper| keeper.state(env));
    Ok(env.array([number(apps as u64), refused, broker, history]))
}
