//! [`ClusterLink`]: the connections of a part to the masters of its slots.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use redis::{Pipeline, Value};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use super::super::kept::{permitted, publishing_by, reset_command, took};
use super::super::pages::{Page, fetch_pages};
use super::super::slots::{Address, Redirect, SlotMap};
use super::super::{Connection, store};
use super::ClusterTransport;
use super::master::{Master, PUBLISH};
use super::route::{Answer, Attempt, Item};
use crate::broker::Settings;
use crate::kept::{HistorySettings, Position};
use crate::limits::{ANSWER_TIMEOUT, CONNECT_TIMEOUT, REDIRECT_PAUSE, SEED_TIMEOUT};
use crate::members::redis::Keyed;
use crate::placement::{SLOTS, slot_of};
use crate::store::{NewValue, StoreAnswer, StoreCommand};
use crate::transport::{
    Channel, Fault, FaultKind, Fetched, Inbox, Link, Outgoing, Rejected, Taken,
};

/// The connections of one part.
pub struct ClusterLink {
    transport: ClusterTransport,
    inbox: Inbox,
    prefix: String,
    history: Option<HistorySettings>,
    random: fn() -> u64,
    pub(super) map: RefCell<Rc<SlotMap>>,
    /// The masters of the part's slots.
    own: RefCell<Vec<Address>>,
    masters: RefCell<HashMap<Address, Rc<Master>>>,
    /// Held while a connection is opened.
    opening: Mutex<()>,
    lost: UnboundedSender<Address>,
    losses: Mutex<UnboundedReceiver<Address>>,
    /// The script that changes members, once it is needed.
    member_text: RefCell<String>,
    /// Its name.
    member_script: RefCell<String>,
}

impl ClusterLink {
    /// A link without connections.
    pub(super) fn new(transport: ClusterTransport, inbox: Inbox, settings: &Settings) -> Self {
        let (lost, losses) = unbounded_channel();
        ClusterLink {
            transport,
            inbox,
            prefix: settings.prefix.clone(),
            history: settings.history,
            random: settings.random,
            map: RefCell::default(),
            own: RefCell::default(),
            masters: RefCell::default(),
            opening: Mutex::default(),
            lost,
            losses: Mutex::new(losses),
            member_text: RefCell::default(),
            member_script: RefCell::default(),
        }
    }

    /// Connects to the masters of the part's slots, and verifies what the user may do there.
    pub(super) async fn open(&self, map: SlotMap) -> Result<(), Fault> {
        self.follow(map)?;
        let own = self.own.borrow().clone();
        for address in own {
            let master = self.master(&address).await?;
            let subscribing = async { master.subscriber(&self.inbox).await.map(drop) };
            subscribing.await.map_err(|fault| at(&address, fault))?;
        }
        if self.history.is_some() {
            let control = self.probe(&format!("{}:nodes", self.prefix));
            permitted(self.fetch(&[(control.into(), None)]).await?)?;
        }
        Ok(())
    }

    /// The slots of this part.
    fn slots(&self) -> impl Iterator<Item = u16> {
        let is_own = |slot: &u16| {
            self.transport.placement.get(usize::from(*slot)) == Some(&self.transport.at)
        };
        (0..SLOTS as u16).filter(is_own)
    }

    /// Slots are served as this map tells.
    fn follow(&self, map: SlotMap) -> Result<(), Fault> {
        let mut own: Vec<Address> = Vec::new();
        for slot in self.slots() {
            let master = map.master(slot).ok_or_else(|| unserved(slot))?;
            if own.last() != Some(master) && !own.contains(master) {
                own.push(master.clone());
            }
        }
        // One that is a replica now may not have told the end of its subscriptions yet.
        let is_used = |address: &Address, master: &mut Rc<Master>| {
            map.masters().contains(address) || master.is_subscribed()
        };
        self.masters.borrow_mut().retain(is_used);
        *self.own.borrow_mut() = own;
        *self.map.borrow_mut() = Rc::new(map);
        Ok(())
    }

    /// Asks the node for the slots that a command was sent on to.
    pub(super) async fn refresh(&self, address: &Address) -> Result<(), Fault> {
        let asked = async {
            let master = self.master(address).await?;
            slots_of(master.commands(), &address.0).await
        };
        self.follow(asked.await?)
    }

    /// The connections to a master, which are opened if there are none.
    pub(super) async fn master(&self, address: &Address) -> Result<Rc<Master>, Fault> {
        let known = || self.masters.borrow().get(address).map(Rc::clone);
        if let Some(master) = known() {
            return Ok(master);
        }
        let _opening = self.opening.lock().await;
        if let Some(master) = known() {
            return Ok(master);
        }
        let node = self.transport.node(address);
        let node = node.ok_or_else(|| Fault::new(FaultKind::Unreachable, "no node is known"))?;
        let opening = async {
            let (history, lost) = (self.history, self.lost.clone());
            let opened = Master::open(address.clone(), node, history, self.random, lost).await?;
            let script = self.member_text.borrow().clone();
            if !script.is_empty() {
                opened.load(&script).await?;
            }
            Ok(opened)
        };
        let opened = in_time(opening).await.map_err(|fault| at(address, fault))?;
        let master = Rc::new(opened);
        self.masters.borrow_mut().insert(address.clone(), Rc::clone(&master));
        Ok(master)
    }

    /// The processes that are masters now, as far as they answer.
    pub(super) async fn peers(&self) -> String {
        let map = Rc::clone(&self.map.borrow());
        let mut runs = Vec::new();
        for address in map.masters() {
            let asked = tokio::time::timeout(SEED_TIMEOUT, self.master(address)).await;
            if let Ok(Ok(master)) = asked
                && let Some(keeper) = &master.keeper
            {
                runs.push(keeper.run_id().to_owned());
            }
        }
        runs.join(",")
    }

    /// Loads what a master has forgotten.
    pub(super) async fn load_scripts(&self, master: &Master) -> Result<(), Fault> {
        master.load_kept().await?;
        let script = self.member_text.borrow().clone();
        if script.is_empty() { Ok(()) } else { master.load(&script).await.map(drop) }
    }

    /// Sends a command of subscriptions for channels to the masters of their slots, again where the slot has moved.
    /// Returns the channels that were refused.
    async fn subscriptions(
        &self,
        channels: &[Channel],
        subscribe: bool,
    ) -> Result<Vec<(Channel, Rejected)>, Fault> {
        let mut rejected = Vec::new();
        let mut left: Vec<&Channel> = channels.iter().collect();
        let until = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let mut by_slot: BTreeMap<u16, Vec<&Channel>> = BTreeMap::new();
            for channel in left.drain(..) {
                by_slot.entry(slot_of(channel.as_bytes())).or_default().push(channel);
            }
            let map = Rc::clone(&self.map.borrow());
            let mut by_master: BTreeMap<&Address, Vec<Vec<&Channel>>> = BTreeMap::new();
            for (slot, list) in &by_slot {
                let master = map.master(*slot).ok_or_else(|| unserved(*slot))?;
                by_master.entry(master).or_default().push(list.clone());
            }
            let mut moved = None;
            for (address, lists) in by_master {
                let master = self.master(address).await?;
                let subscriber = master.subscriber(&self.inbox).await?;
                if !subscribe {
                    // A slot that has moved has no subscription there any more.
                    subscriber.unsubscribe(&lists).await?;
                    continue;
                }
                let mut parts = vec![lists];
                while let Some(lists) = parts.pop() {
                    let errors = subscriber.subscribe(&lists).await?;
                    let is_redirect = |error: &String| error.starts_with("MOVED ");
                    if let Some(error) = errors.iter().find(|error| !is_redirect(error)) {
                        let code = error.split_once(' ').map_or(&**error, |(code, _)| code);
                        if code != "NOPERM" {
                            return Err(at(address, refused(code, error)));
                        }
                        // The server refuses a whole command for one of its channels, and does not name it.
                        match split(lists) {
                            Ok(halves) => parts.extend(halves),
                            Err(one) => rejected.extend(one.map(|one| {
                                let why = format!("{one}: {error}").into();
                                (Channel::clone(one), Rejected { why, is_invalid: false })
                            })),
                        }
                        continue;
                    }
                    for error in errors {
                        let (code, details) = error.split_once(' ').unwrap_or((&error, ""));
                        let slot: Option<u16> =
                            details.split(' ').next().and_then(|slot| slot.parse().ok());
                        match (Redirect::parse(code, details, &address.0), slot) {
                            (Some(Redirect::Moved(to)), Some(slot)) => {
                                moved = Some(to);
                                let of_slot = lists.iter().flatten().copied();
                                left.extend(of_slot.filter(|one| slot_of(one.as_bytes()) == slot));
                            }
                            _ => return Err(at(address, refused(code, &error))),
                        }
                    }
                }
            }
            let Some(moved) = moved else { return Ok(rejected) };
            if Instant::now() >= until {
                return Err(at(
                    &moved,
                    Fault::new(FaultKind::Unreachable, "MOVED, and moved again"),
                ));
            }
            self.refresh(&moved).await?;
            tokio::time::sleep(REDIRECT_PAUSE).await;
        }
    }
}

/// The halves of channels in lists, each with one hash slot; or the only one.
fn split(mut lists: Vec<Vec<&Channel>>) -> Result<[Vec<Vec<&Channel>>; 2], Option<&Channel>> {
    if lists.len() > 1 {
        let right = lists.split_off(lists.len() / 2);
        return Ok([right, lists]);
    }
    let mut list = lists.pop().unwrap_or_default();
    if list.len() > 1 {
        let right = list.split_off(list.len() / 2);
        return Ok([vec![right], vec![list]]);
    }
    Err(list.pop())
}

/// Opens a connection, for a bounded time.
pub(super) async fn in_time<T>(
    opening: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let late = |_| {
        let why = format!("no connection within {CONNECT_TIMEOUT:?}");
        Err(Fault::new(FaultKind::Unreachable, why))
    };
    tokio::time::timeout(CONNECT_TIMEOUT, opening).await.unwrap_or_else(late)
}

/// The slots as a node knows them.
pub(super) async fn slots_of(connection: &Connection, host: &str) -> Result<SlotMap, Fault> {
    let answer = connection.send(redis::cmd("CLUSTER").arg("SLOTS")).await;
    let answer = answer.map_err(|fault| match fault.why.contains("cluster support disabled") {
        true => {
            let why = "it is not a node of a Redis Cluster: leave --redis-cluster out";
            Fault::new(FaultKind::Refused, why)
        }
        false => fault,
    })?;
    let invalid = || Fault::new(FaultKind::Protocol, "invalid answer to CLUSTER SLOTS");
    SlotMap::parse(&answer, host).ok_or_else(invalid)
}

/// A fault with the node where it was.
pub(super) fn at((host, port): &Address, Fault { kind, why }: Fault) -> Fault {
    Fault::new(kind, format!("{host}:{port}: {why}"))
}

pub(super) fn unserved(slot: u16) -> Fault {
    Fault::new(FaultKind::Unreachable, format!("CLUSTERDOWN: no master has hash slot {slot}"))
}

/// The error of a command of subscriptions.
fn refused(code: &str, why: &str) -> Fault {
    let kind = match code {
        "NOPERM" | "NOAUTH" => FaultKind::Refused,
        "CLUSTERDOWN" => FaultKind::Unreachable,
        _ => FaultKind::Protocol,
    };
    Fault::new(kind, why)
}

impl Link for ClusterLink {
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Taken>, Fault> {
        let item = |one: &Outgoing| Item {
            slot: slot_of(one.channel.as_bytes()),
            order: one.keep.then(|| Channel::clone(&one.channel)),
        };
        let items: Vec<Item> = batch.iter().map(item).collect();
        let epoch = ((self.random)() as u32).max(1).to_string();
        let build = |at: usize, attempt: Attempt<'_>, master: &Master, pipeline: &mut Pipeline| {
            let Some(one) = batch.get(at) else { return };
            let Attempt { again, peers } = attempt;
            match &master.keeper {
                Some(keeper) => {
                    keeper.publish_command(pipeline, one, again, &epoch, Some(peers));
                }
                None => drop(pipeline.cmd(PUBLISH).arg(&*one.channel).arg(&*one.body)),
            }
        };
        let answers = self.route(&items, build).await?;
        let taken = |(answer, one): (Answer, &Outgoing)| {
            let taken = took(answer.value, one)?;
            Ok(match taken {
                // The subscriptions are at the node that the slot is moved from.
                Taken::Kept { position, .. } if answer.asked => {
                    Taken::Kept { reached: None, position }
                }
                other => other,
            })
        };
        answers.into_iter().zip(batch).map(taken).collect()
    }

    async fn subscribe(&self, channels: &[Channel]) -> Result<Vec<(Channel, Rejected)>, Fault> {
        self.subscriptions(channels, true).await
    }

    async fn unsubscribe(&self, channels: &[Channel]) -> Result<(), Fault> {
        self.subscriptions(channels, false).await.map(drop)
    }

    async fn fetch(
        &self,
        channels: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
        let epoch = ((self.random)() as u32).max(1).to_string();
        let send = async |pages: &[Page<'_>]| {
            let items: Vec<Item> = pages.iter().map(|page| Item::new(page.channel)).collect();
            let build =
                |at: usize, attempt: Attempt<'_>, master: &Master, pipeline: &mut Pipeline| {
                    if let (Some(page), Some(keeper)) = (pages.get(at), &master.keeper) {
                        keeper.fetch_command(pipeline, page, &epoch, Some(attempt.peers));
                    }
                };
            let answers = self.route(&items, build).await?;
            Ok(answers.into_iter().map(|answer| answer.value).collect())
        };
        if self.history.is_none() {
            return Err(Fault::new(FaultKind::Protocol, "nothing is kept"));
        }
        fetch_pages(channels, send).await
    }

    async fn reset(&self, channels: &[Channel]) -> Result<(), Fault> {
        let items: Vec<Item> = channels.iter().map(|channel| Item::new(channel)).collect();
        let build = |at: usize, _: Attempt<'_>, _: &Master, pipeline: &mut Pipeline| {
            if let Some(channel) = channels.get(at) {
                reset_command(pipeline, channel);
            }
        };
        self.route(&items, build).await.map(drop)
    }

    async fn store(&self, commands: &[StoreCommand]) -> Result<Vec<StoreAnswer>, Fault> {
        let items: Vec<Item> = commands.iter().map(|one| Item::new(&one.key)).collect();
        let build = |at: usize, _: Attempt<'_>, _: &Master, pipeline: &mut Pipeline| {
            if let Some(one) = commands.get(at) {
                store::perform_one(pipeline, one);
            }
        };
        let answers = self.route(&items, build).await?.into_iter().zip(commands);
        answers.map(|(answer, one)| store::answer(answer.value, &one.what)).collect()
    }

    async fn read(&self, keys: &[Arc<str>]) -> Result<Vec<StoreAnswer>, Fault> {
        let items: Vec<Item> = keys.iter().map(|key| Item::new(key)).collect();
        let build = |at: usize, _: Attempt<'_>, _: &Master, pipeline: &mut Pipeline| {
            if let Some(key) = keys.get(at) {
                store::read_one(pipeline, key);
            }
        };
        let answers = self.route(&items, build).await?;
        answers.into_iter().map(|answer| store::found(answer.value)).collect()
    }

    async fn add(&self, values: &[NewValue]) -> Result<Vec<StoreAnswer>, Fault> {
        let items: Vec<Item> = values.iter().map(|one| Item::new(&one.key)).collect();
        let build = |at: usize, _: Attempt<'_>, _: &Master, pipeline: &mut Pipeline| {
            if let Some(one) = values.get(at) {
                store::add_one(pipeline, one);
            }
        };
        let answers = self.route(&items, build).await?;
        answers.into_iter().map(|answer| store::added(answer.value)).collect()
    }

    async fn check(&self) -> Result<(), Fault> {
        let all: Vec<Rc<Master>> = self.masters.borrow().values().map(Rc::clone).collect();
        for master in all {
            let is_own = self.own.borrow().contains(&master.address);
            let checking = async {
                master.ping().await?;
                if is_own { master.check().await } else { Ok(()) }
            };
            checking.await.map_err(|fault| at(&master.address, fault))?;
        }
        Ok(())
    }

    async fn ended(&self) -> Fault {
        let mut losses = self.losses.lock().await;
        while let Some(address) = losses.recv().await {
            let is_subscribed =
                self.masters.borrow().get(&address).is_some_and(|one| one.is_subscribed());
            if is_subscribed || self.own.borrow().contains(&address) {
                let closed = Fault::new(FaultKind::Closed, "the connection was closed");
                return at(&address, closed);
            }
            self.masters.borrow_mut().remove(&address);
        }
        std::future::pending().await
    }
}

impl Keyed for ClusterLink {
    async fn each(
        &self,
        keys: &[&str],
        build: impl Fn(usize, &mut Pipeline),
    ) -> Result<Vec<Value>, Fault> {
        let items: Vec<Item> = keys.iter().map(|key| Item::new(key)).collect();
        let answers = self.route(&items, |at, _, _, pipeline| build(at, pipeline)).await?;
        Ok(answers.into_iter().map(|one| one.value).collect())
    }

    async fn load_member_script(&self, script: &str) -> Result<String, Fault> {
        *self.member_text.borrow_mut() = publishing_by(PUBLISH, script);
        let masters: Vec<Rc<Master>> = self.masters.borrow().values().map(Rc::clone).collect();
        let (script, mut name) = (self.member_text.borrow().clone(), String::new());
        for master in masters {
            name = master.load(&script).await.map_err(|fault| at(&master.address, fault))?;
        }
        Ok(name)
    }

    fn member_script(&self) -> &RefCell<String> {
        &self.member_script
    }

    /// A key like this one in a slot of the part.
    fn probe(&self, key: &str) -> String {
        let is_own = |name: &String| {
            let slot = usize::from(slot_of(name.as_bytes()));
            self.transport.placement.get(slot) == Some(&self.transport.at)
        };
        let mut names = (0..SLOTS).map(|number| format!("{{{key}:{number}}}"));
        names.find(is_own).unwrap_or_else(|| format!("{{{key}}}"))
    }
}
