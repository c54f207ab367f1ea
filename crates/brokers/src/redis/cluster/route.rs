//! Commands for the masters of their hash slots, and where slots have moved, or are being moved, for the next ones.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use redis::{Pipeline, Value};
use tokio::time::Instant;

use super::super::kept::{is_of_other_run, is_unknown_script};
use super::super::slots::{Address, Redirect};
use super::link::{ClusterLink, at, unserved};
use super::master::Master;
use crate::limits::{ANSWER_TIMEOUT, REDIRECT_PAUSE};
use crate::placement::slot_of;
use crate::transport::{Channel, Fault, FaultKind};

/// A command.
pub(super) struct Item {
    pub(super) slot: u16,
    /// When one of a channel was not executed, all later ones are executed again after it.
    pub(super) order: Option<Channel>,
}

/// What differs when a command is sent again.
#[derive(Copy, Clone)]
pub(super) struct Attempt<'a> {
    /// It may have been executed before.
    pub(super) again: bool,
    /// The run ids of all masters, or `?` until they are needed.
    pub(super) peers: &'a str,
}

/// The answer to it, which may be an error other than those that are handled here.
pub(super) struct Answer {
    pub(super) value: Value,
    /// The slot was being moved, and the node that it is moved to has answered.
    pub(super) asked: bool,
}

impl Item {
    /// A command for a key.
    pub(super) fn new(key: &str) -> Self {
        Item { slot: slot_of(key.as_bytes()), order: None }
    }
}

/// Commands for one node.
struct Group {
    address: Address,
    asking: bool,
    items: Vec<usize>,
}

impl ClusterLink {
    /// Executes commands, each once, and those of a slot in their order. `build` adds one for a master.
    pub(super) async fn route(
        &self,
        items: &[Item],
        build: impl Fn(usize, Attempt<'_>, &Master, &mut Pipeline),
    ) -> Result<Vec<Answer>, Fault> {
        let mut answers: Vec<Option<Answer>> = items.iter().map(|_| None).collect();
        let (mut again, mut asked) = (HashSet::new(), HashMap::new());
        let until = Instant::now() + ANSWER_TIMEOUT;
        let (mut is_first, mut peers) = (true, "?".to_owned());
        loop {
            let (mut moved, mut last, mut foreign) = (None, String::new(), false);
            for Group { address, asking, items } in self.groups(items, &answers, &asked)? {
                let master = self.master(&address).await?;
                let build = |place: usize, pipeline: &mut Pipeline| {
                    if let Some(item) = items.get(place) {
                        let attempt = Attempt { again: again.contains(item), peers: &peers };
                        build(*item, attempt, &master, pipeline);
                    }
                };
                let sent = master.send(items.len(), asking, build).await;
                let values = sent.map_err(|fault| at(&address, fault))?;
                let mut forgot = false;
                for (item, value) in items.iter().zip(values) {
                    forgot |= is_unknown_script(&value);
                    foreign |= is_of_other_run(&value);
                    match redirect(&value, &address) {
                        Some(why) => {
                            last = why.text;
                            match why.to {
                                Some(Redirect::Moved(to)) => {
                                    asked.remove(item);
                                    moved = Some(to);
                                }
                                Some(Redirect::Ask(to)) => drop(asked.insert(*item, to)),
                                Some(Redirect::TryAgain) | None => {}
                            }
                        }
                        None => {
                            if let Some(answer) = answers.get_mut(*item) {
                                *answer = Some(Answer { value, asked: asking });
                            }
                        }
                    }
                }
                if forgot {
                    self.load_scripts(&master).await?;
                }
            }
            if answers.iter().all(Option::is_some) {
                return Ok(answers.into_iter().flatten().collect());
            }
            if Instant::now() >= until {
                return Err(Fault::new(FaultKind::Unreachable, last));
            }
            keep_order(items, &mut answers, &mut again);
            if let Some(to) = &moved {
                self.refresh(to).await?;
            }
            if foreign {
                peers = self.peers().await;
            }
            let is_done = moved.is_some() || foreign;
            if !std::mem::take(&mut is_first) || !is_done {
                tokio::time::sleep(REDIRECT_PAUSE).await;
            }
        }
    }

    /// What is not answered yet, by node.
    fn groups(
        &self,
        items: &[Item],
        answers: &[Option<Answer>],
        asked: &HashMap<usize, Address>,
    ) -> Result<Vec<Group>, Fault> {
        let map = Rc::clone(&self.map.borrow());
        let mut groups: Vec<Group> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            if answers.get(at).is_some_and(Option::is_some) {
                continue;
            }
            let (address, asking) = match asked.get(&at) {
                Some(address) => (address, true),
                None => (map.master(item.slot).ok_or_else(|| unserved(item.slot))?, false),
            };
            let found =
                groups.iter_mut().find(|group| group.asking == asking && group.address == *address);
            match found {
                Some(group) => group.items.push(at),
                None => groups.push(Group { address: address.clone(), asking, items: vec![at] }),
            }
        }
        Ok(groups)
    }
}

/// What follows a command of a channel that was not executed is executed again after it.
fn keep_order(items: &[Item], answers: &mut [Option<Answer>], again: &mut HashSet<usize>) {
    let mut broken: HashSet<&Channel> = HashSet::new();
    for (at, (item, answer)) in items.iter().zip(answers).enumerate() {
        let Some(channel) = &item.order else { continue };
        if answer.is_none() {
            broken.insert(channel);
        } else if broken.contains(channel) {
            *answer = None;
            again.insert(at);
        }
    }
}

/// Why a command was not executed and is sent again, and where if that has changed.
struct Unexecuted {
    text: String,
    to: Option<Redirect>,
}

fn redirect(value: &Value, (host, port): &Address) -> Option<Unexecuted> {
    let Value::ServerError(error) = value else { return None };
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    let to = Redirect::parse(code, details, host);
    let text = || format!("{host}:{port}: {code} {details}");
    let is_retried = to.is_some() || is_unknown_script(value) || is_of_other_run(value);
    is_retried.then(|| Unexecuted { text: text(), to })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_an_unexecuted_command_of_a_channel_is_executed_again() {
        let item = |name: Option<&str>| Item { slot: 0, order: name.map(Channel::from) };
        let items = [Some("a"), Some("b"), Some("a"), None, Some("b"), Some("a")].map(item);
        let executed = [false, true, true, false, true, true];
        let mut answers =
            executed.map(|executed| executed.then_some(Answer { value: Value::Nil, asked: false }));
        let mut again = HashSet::new();
        keep_order(&items, &mut answers, &mut again);
        let left = answers.map(|answer| answer.is_none());
        assert_eq!(left, [true, false, true, true, false, true]);
        assert_eq!(again, HashSet::from([2, 5]));
    }
}
