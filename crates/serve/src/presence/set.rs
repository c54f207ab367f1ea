//! [`Set`]: the members of one topic, and what its subscribers do not know of them yet. Pure: the time is
//! passed in.
//!
//! A member is present while a session of it is, and for a while after the last one has lost its
//! connection. Subscribers are told of the difference to what they were told before: who joins and leaves
//! within a window is not mentioned.

use std::collections::BTreeMap;
use std::sync::Arc;

use action_cable::{Presence, PresenceEvent};

use super::pace::{Form, Pace};

/// Memory of a member beyond its texts, in bytes: entries in tables, with spare room.
const MEMBER_BYTES: usize = 256;
/// Longest summary that lists the members, in bytes.
const SUMMARY_BYTES_MAX: usize = 16 * 1024;

/// A member, or one that has left and of whom subscribers are not told yet.
#[derive(Debug)]
struct Member {
    /// JSON for the others.
    info: Option<Arc<str>>,
    /// Its sessions that have a connection.
    live: u32,
    /// It stays until then without one.
    lingers_until_ns: Option<u64>,
    /// Another node has it.
    elsewhere: bool,
    /// Subscribers know it.
    announced: bool,
    /// Its id is among the changes.
    queued: bool,
}

impl Member {
    /// It is present by sessions of this process.
    fn is_own(&self) -> bool {
        self.live > 0 || self.lingers_until_ns.is_some()
    }

    fn is_present(&self) -> bool {
        self.is_own() || self.elsewhere
    }

    fn bytes(&self, id: &str) -> usize {
        record_bytes(id, self.info.as_deref())
    }
}

/// What counts for a member, in bytes.
pub(super) fn record_bytes(id: &str, info: Option<&str>) -> usize {
    MEMBER_BYTES + 2 * id.len() + info.map_or(0, str::len)
}

/// How a join has changed a set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Joined {
    /// The id, shared with the set.
    pub(super) id: Arc<str>,
    /// Bytes that were added and that were freed.
    pub(super) added: usize,
    pub(super) freed: usize,
    /// This process did not have the member before.
    pub(super) new: bool,
    /// It did not, or with another info.
    pub(super) changed: bool,
    /// Until when it would have stayed without this session.
    pub(super) lingered_until_ns: Option<u64>,
}

/// An event for subscribers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Join,
    Leave,
    /// The members.
    Info,
    /// Their number only.
    Changed,
}

/// Members to be written as JSON when no lock is held.
#[derive(Debug, Default)]
pub(super) struct List {
    total: usize,
    records: Vec<(Arc<str>, Option<Arc<str>>)>,
}

impl List {
    pub(super) fn json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + 64 * self.records.len());
        let records = self.records.iter().map(|(id, info)| record(id, info.as_deref()));
        let event = PresenceEvent::Info { total: self.total as u64, records: records.collect() };
        event.encode(&mut out);
        out
    }
}

fn record<'m>(id: &'m str, info: Option<&'m str>) -> Presence<'m> {
    Presence { id: id.into(), info }
}

/// Events, each with its JSON.
pub(super) type Events = Vec<(Event, Vec<u8>)>;

/// The members of one topic.
#[derive(Debug, Default)]
pub(super) struct Set {
    members: BTreeMap<Arc<str>, Member>,
    present: usize,
    /// Members whose presence may differ from what was announced, in order.
    changes: Vec<Arc<str>>,
    pub(super) pace: Pace,
    /// Changes with the members and their infos.
    pub(super) version: u64,
}

impl Set {
    /// An empty set. Versions of a later one of the same topic are higher.
    pub(super) fn new(now_ns: u64) -> Self {
        Set { version: now_ns + 1, ..Set::default() }
    }

    #[cfg(test)]
    pub(super) fn present(&self) -> usize {
        self.present
    }

    /// Nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.pace.due_ns().is_none()
    }

    pub(super) fn is_crowded(&self, now_ns: u64) -> bool {
        self.pace.is_crowded(self.changes.len(), now_ns)
    }

    /// Adds a session of a member, or only replaces its info if the session is known (`again`).
    pub(super) fn join(
        &mut self,
        id: &str,
        info: Option<&str>,
        again: bool,
        now_ns: u64,
        window_ns: u64,
    ) -> Joined {
        let sessions = u32::from(!again);
        if let Some((id, _)) = self.members.get_key_value(id) {
            let id = Arc::clone(id);
            if let Some(member) = self.members.get_mut(&id) {
                let (before, was) = (member.bytes(&id), member.is_present());
                let new = !member.is_own();
                member.live = member.live.saturating_add(sessions);
                let lingered_until_ns = member.lingers_until_ns.take();
                let changed = member.info.as_deref() != info || new;
                if changed {
                    member.info = info.map(Into::into);
                    self.version += 1;
                }
                let now = member.bytes(&id);
                let (added, freed) = (now.saturating_sub(before), before.saturating_sub(now));
                if !was {
                    self.present += 1;
                    self.changed(&id, now_ns, window_ns);
                }
                return Joined { id, added, freed, new, changed, lingered_until_ns };
            }
        }
        let id: Arc<str> = id.into();
        let member = Member {
            info: info.map(Into::into),
            live: 1,
            lingers_until_ns: None,
            elsewhere: false,
            announced: false,
            queued: false,
        };
        let added = member.bytes(&id);
        self.members.insert(Arc::clone(&id), member);
        self.present += 1;
        self.version += 1;
        self.changed(&id, now_ns, window_ns);
        Joined { id, added, freed: 0, new: true, changed: true, lingered_until_ns: None }
    }

    /// Ends a session of a member. It stays until `until_ns`, if that is given, unless it has others.
    /// Returns whether it was the last one with a connection.
    pub(super) fn end_session(
        &mut self,
        id: &str,
        until_ns: Option<u64>,
        now_ns: u64,
        window_ns: u64,
    ) -> bool {
        let Some(member) = self.members.get_mut(id).filter(|member| member.live > 0) else {
            return false;
        };
        member.live -= 1;
        if member.live > 0 {
            return false;
        }
        member.lingers_until_ns = until_ns;
        if until_ns.is_none() {
            self.gone(id, now_ns, window_ns);
        }
        true
    }

    /// A member that has lost its last connection has not come back in time.
    pub(super) fn expire(&mut self, id: &str, now_ns: u64, window_ns: u64) -> bool {
        let Some(member) = self.members.get_mut(id) else { return false };
        if member.live > 0 || member.lingers_until_ns.is_none_or(|until_ns| until_ns > now_ns) {
            return false;
        }
        member.lingers_until_ns = None;
        self.gone(id, now_ns, window_ns);
        true
    }

    /// A member is not present any more, unless another node has it.
    fn gone(&mut self, id: &str, now_ns: u64, window_ns: u64) {
        if self.members.get(id).is_none_or(Member::is_present) {
            return;
        }
        self.present -= 1;
        self.version += 1;
        if let Some((id, _)) = self.members.get_key_value(id) {
            let id = Arc::clone(id);
            self.changed(&id, now_ns, window_ns);
        }
    }

    /// Another node has a member, with this info if this process does not have it. Subscribers are told, unless
    /// there are none yet (`first`). Returns bytes that were added and freed.
    pub(super) fn join_elsewhere(
        &mut self,
        id: &Arc<str>,
        info: Option<&Arc<str>>,
        first: bool,
        now_ns: u64,
        window_ns: u64,
    ) -> (usize, usize) {
        let Some(member) = self.members.get_mut(id) else {
            let member = Member {
                info: info.cloned(),
                live: 0,
                lingers_until_ns: None,
                elsewhere: true,
                announced: first,
                queued: false,
            };
            let added = member.bytes(id);
            self.members.insert(Arc::clone(id), member);
            self.present += 1;
            self.version += 1;
            if !first {
                self.changed(id, now_ns, window_ns);
            }
            return (added, 0);
        };
        let was = member.is_present();
        member.elsewhere = true;
        let bytes = self.set_info_elsewhere(id, info);
        if !was {
            self.present += 1;
            self.version += 1;
            self.changed(id, now_ns, window_ns);
        }
        bytes
    }

    /// The info of a member that another node has, unless this process has the member, too. Returns bytes that
    /// were added and freed.
    pub(super) fn set_info_elsewhere(
        &mut self,
        id: &str,
        info: Option<&Arc<str>>,
    ) -> (usize, usize) {
        let Some(member) = self.members.get_mut(id).filter(|member| !member.is_own()) else {
            return (0, 0);
        };
        if member.info.as_ref() == info {
            return (0, 0);
        }
        let before = member.bytes(id);
        member.info = info.cloned();
        self.version += 1;
        let now = member.bytes(id);
        (now.saturating_sub(before), before.saturating_sub(now))
    }

    /// No other node has a member any more.
    pub(super) fn leave_elsewhere(&mut self, id: &str, now_ns: u64, window_ns: u64) {
        let Some(member) = self.members.get_mut(id).filter(|member| member.elsewhere) else {
            return;
        };
        member.elsewhere = false;
        self.gone(id, now_ns, window_ns);
    }

    /// The members of other nodes are not known any more. Nobody is told, as there are no subscribers. Returns
    /// freed bytes.
    pub(super) fn forget_elsewhere(&mut self) -> usize {
        let (mut freed, mut present) = (0, self.present);
        self.members.retain(|id, member| {
            let was = std::mem::take(&mut member.elsewhere);
            let stays = !was || member.is_own();
            if !stays {
                freed += member.bytes(id);
                present -= 1;
            }
            stays
        });
        self.version += u64::from(freed > 0);
        self.present = present;
        freed
    }

    /// The members that this process has.
    pub(super) fn own(&self) -> impl Iterator<Item = (&Arc<str>, Option<&Arc<str>>)> {
        let own = self.members.iter().filter(|(_, member)| member.is_own());
        own.map(|(id, member)| (id, member.info.as_ref()))
    }

    fn changed(&mut self, id: &Arc<str>, now_ns: u64, window_ns: u64) {
        let Some(member) = self.members.get_mut(id) else { return };
        self.pace.changed(now_ns, window_ns);
        if !member.queued {
            member.queued = true;
            self.changes.push(Arc::clone(id));
        }
    }

    /// What subscribers are told now, and the bytes of members that are forgotten with it.
    pub(super) fn announce(&mut self, now_ns: u64, window_ns: u64) -> (Events, usize) {
        let members = &self.members;
        let differs = |id: &&Arc<str>| {
            members.get(*id).is_some_and(|member| member.is_present() != member.announced)
        };
        let changes = self.changes.iter().filter(differs).count();
        let form = self.pace.announce(changes, now_ns, window_ns);
        if form.is_none() && self.pace.due_ns().is_some() {
            return (Events::new(), 0);
        }
        let (mut events, mut freed) = (Events::new(), 0);
        for id in std::mem::take(&mut self.changes) {
            let Some(member) = self.members.get_mut(&id) else { continue };
            member.queued = false;
            let present = member.is_present();
            if present != member.announced && form == Some(Form::Single) {
                events.push(single(&id, member, present));
            }
            member.announced = present;
            if !present {
                freed += member.bytes(&id);
                self.members.remove(&id);
            }
        }
        if form == Some(Form::Summary) {
            events.push(self.summary());
        }
        (events, freed)
    }

    fn summary(&self) -> (Event, Vec<u8>) {
        match self.list(true, SUMMARY_BYTES_MAX) {
            Some(list) => (Event::Info, list.json()),
            None => {
                let mut out = Vec::new();
                PresenceEvent::Changed { total: self.present as u64 }.encode(&mut out);
                (Event::Changed, out)
            }
        }
    }

    /// The members, or only their number; `None` if their JSON is longer than `bytes_max`.
    pub(super) fn list(&self, records: bool, bytes_max: usize) -> Option<List> {
        let mut list = List { total: self.present, records: Vec::new() };
        let mut bytes = 0;
        let present = self.members.iter().filter(|(_, member)| member.is_present());
        for (id, member) in present.take_while(|_| records) {
            let info = member.info.as_ref().map_or(0, |info| info.len());
            bytes += id.len() + info + r#"{"id":"","info":},"#.len();
            if bytes > bytes_max {
                return None;
            }
            list.records.push((Arc::clone(id), member.info.clone()));
        }
        Some(list)
    }

    /// Bytes that its members count for.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.members.iter().map(|(id, member)| member.bytes(id)).sum()
    }
}

fn single(id: &Arc<str>, member: &Member, present: bool) -> (Event, Vec<u8>) {
    let mut out = Vec::new();
    if present {
        PresenceEvent::Join(record(id, member.info.as_deref())).encode(&mut out);
        return (Event::Join, out);
    }
    PresenceEvent::Leave { id: (&**id).into() }.encode(&mut out);
    (Event::Leave, out)
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
