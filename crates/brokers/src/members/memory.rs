//! [`Memory`]: members in this process, as a model of what brokers do.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::event::{START, encode_changes};
use super::{Member, MemberStore, Stored, Write};
use crate::envelope::NodeId;
use crate::transport::{Channel, Fault, Inbox, Incoming, Rejected};

type Topic = (u64, BTreeMap<(NodeId, Box<str>), Option<Box<str>>>);

/// What connections share.
#[derive(Default)]
struct Data {
    topics: RefCell<HashMap<String, Topic>>,
    leases: RefCell<HashMap<String, Instant>>,
    inboxes: RefCell<Vec<Inbox>>,
    clock: Cell<u64>,
}

/// A connection.
#[derive(Default, Clone)]
pub(super) struct Memory(Rc<Data>);

impl Memory {
    /// Another connection, with what arrives there.
    pub(super) fn connect(&self, inbox: Inbox) -> Memory {
        self.0.inboxes.borrow_mut().push(inbox);
        self.clone()
    }

    fn write(&self, write: &Write) {
        let mut topics = self.0.topics.borrow_mut();
        let (version, mut members) = topics.remove(&write.key).unwrap_or_default();
        let before = members.len();
        write.absent.iter().for_each(|id| drop(members.remove(&(write.node, (&**id).into()))));
        let is_changed = members.len() < before || !write.present.is_empty();
        for (id, info) in &write.present {
            members.insert((write.node, (&**id).into()), info.as_deref().map(Into::into));
        }
        self.0.clock.set(self.0.clock.get() + 1_000_000);
        let after = if version > 0 { version + 1 } else { self.0.clock.get() };
        let rest = u8::from(!members.is_empty());
        if rest == 1 {
            topics.insert(write.key.clone(), (if is_changed { after } else { version }, members));
        }
        if is_changed {
            let line = format!("{version} {after} {rest}\n");
            let body = [&START[..], line.as_bytes(), &encode_changes(write)].concat();
            let channel: Box<str> = (&*write.channel).into();
            let message = Incoming { channel, body, kept: None };
            self.0.inboxes.borrow().iter().for_each(|inbox| inbox.push(message.clone()));
        }
    }
}

impl MemberStore for Memory {
    async fn open_members(&self, _: &str) -> Result<(), Fault> {
        Ok(())
    }

    async fn write_members(&self, batch: &[Write]) -> Result<Vec<Result<(), Rejected>>, Fault> {
        batch.iter().for_each(|write| self.write(write));
        Ok(vec![Ok(()); batch.len()])
    }

    async fn load_members(
        &self,
        wanted: &[(String, Channel)],
    ) -> Result<Vec<Result<Stored, Rejected>>, Fault> {
        let topics = self.0.topics.borrow();
        let member = |((node, id), info): (&(NodeId, Box<str>), &Option<Box<str>>)| Member {
            node: *node,
            id: id.clone(),
            info: info.clone(),
        };
        let stored = |(key, _): &(String, Channel)| {
            let found = topics.get(key);
            found.map_or_else(Stored::default, |(version, members)| Stored {
                version: *version,
                members: members.iter().map(member).collect(),
            })
        };
        Ok(wanted.iter().map(stored).map(Ok).collect())
    }

    async fn begin_lease(&self, key: &str, time: Duration) -> Result<(), Fault> {
        self.0.leases.borrow_mut().insert(key.to_owned(), now() + time);
        Ok(())
    }

    async fn renew_lease(&self, key: &str, time: Duration) -> Result<bool, Fault> {
        let mut leases = self.0.leases.borrow_mut();
        let lease = leases.get_mut(key).filter(|until| **until > now());
        Ok(lease.map(|until| *until = now() + time).is_some())
    }

    async fn end_lease(&self, key: &str) -> Result<(), Fault> {
        self.0.leases.borrow_mut().remove(key);
        Ok(())
    }

    async fn leases(&self, keys: &[String]) -> Result<Vec<bool>, Fault> {
        let leases = self.0.leases.borrow();
        Ok(keys.iter().map(|key| leases.get(key).is_some_and(|until| *until > now())).collect())
    }
}

#[expect(clippy::disallowed_methods, reason = "a test with leases in real time")]
fn now() -> Instant {
    Instant::now()
}
