//! Members of topics that nodes share: who is present at which node. The broker keeps them ([`MemberStore`]), with
//! a lease for each node: without it a node has ended, and what it had is removed by the others.
//!
//! The members of a topic have a version, which rises with every change. A node that follows a topic loads its
//! members once, and then follows the changes, which the broker sends to the topic's channel; one that does not
//! begin where the last one ended means that the members have to be loaded again (`versions.rs`). What a node
//! changes waits in its outbox (`outbox.rs`), the last change of each member only.

#[cfg(all(test, feature = "redis", feature = "nats"))]
mod contract_tests;
mod event;
#[cfg(test)]
mod memory;
#[cfg(feature = "nats")]
pub(crate) mod nats;
pub(crate) mod outbox;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod versions;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::event::Event;
pub(crate) use self::event::is_event;
use crate::envelope::NodeId;
use crate::transport::{Channel, Fault, FaultKind, Rejected};

/// Longest id of a member, in bytes.
pub const ID_BYTES_MAX: usize = 1024;
/// Longest info of a member, in bytes.
pub const INFO_BYTES_MAX: usize = 64 * 1024 - 1;
/// Members changed by one write to a topic.
pub const WRITE_MEMBERS: usize = 512;
/// Bytes of their ids and infos; the last one may exceed it.
pub const WRITE_BYTES: usize = 256 * 1024;
/// Writes that are sent together.
pub const BATCH_WRITES: usize = 256;
/// Topics whose members are loaded together.
pub const BATCH_LOADS: usize = 64;
/// Shortest time between two batches of writes: what changes meanwhile is one batch.
pub const WRITE_INTERVAL: Duration = Duration::from_millis(25);
/// How long the members of a topic are kept without a change, at least. Nodes repeat their own before that.
pub const KEPT: Duration = Duration::from_secs(3600);
/// Time between the repetitions.
pub const REPEAT_NS: u64 = 1_200_000_000_000;
/// Members in the outbox of one broker. With more everything is written anew, as by another node.
pub const OUTBOX_MAX: usize = 256 * 1024;
/// Bytes of changes that wait while a topic is loaded. With more it is loaded again.
pub const PENDING_BYTES_MAX: usize = 256 * 1024;
/// Nodes whose leases are watched, at each broker.
pub const NODES_MAX: usize = 4096;

/// The state of a member at a node.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum State<'m> {
    /// It is present, with this info.
    Present(Option<&'m str>),
    /// It is not.
    Absent,
}

/// A member that a node has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The id of the member.
    pub id: Box<str>,
    /// What is known of it.
    pub info: Option<Box<str>>,
}

/// Gets a member of this node: its topic, id and info.
pub type OwnMember<'f> = dyn FnMut(&str, &Arc<str>, Option<&Arc<str>>) + 'f;

/// What a program does with members of other nodes. Called by one thread.
pub trait Members: Send + Sync + 'static {
    /// The members that other nodes have in a topic, in place of all that were known. `first` if it was not
    /// followed before.
    fn loaded(&self, topic: &str, members: &[Member], first: bool);

    /// The members that the broker has of this node in a topic. What differs is to be sent again.
    fn own_loaded(&self, topic: &str, members: &[Member]);

    /// Members of another node have changed.
    fn changed(&self, topic: &str, node: NodeId, changes: &[(&str, State<'_>)]);

    /// A topic is not followed any more.
    fn released(&self, topic: &str);

    /// The members of a node that are known, by topic.
    fn of_node(&self, node: NodeId) -> Vec<(Arc<str>, Vec<Arc<str>>)>;

    /// Calls with each member of this node.
    fn own(&self, each: &mut OwnMember<'_>);

    /// Called from time to time. Returns topics of which not all members are known, to be loaded again.
    fn tick(&self) -> Vec<Arc<str>>;
}

/// Changes of members of a topic, to be written together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where the topic's members are kept.
    pub key: String,
    /// Where the change is told.
    pub channel: Channel,
    /// The node whose members they are.
    pub node: NodeId,
    /// Members that are present, with their infos.
    pub present: Vec<(Arc<str>, Option<Arc<str>>)>,
    /// Members that are not.
    pub absent: Vec<Arc<str>>,
}

/// What a broker has of a topic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// The version of the members; 0 without any.
    pub version: u64,
    /// The members of all nodes.
    pub members: Vec<Member>,
}

/// A connection to a broker that keeps members.
pub trait MemberStore {
    /// Prepares the connection for writes, and verifies that this key may be used.
    ///
    /// # Errors
    /// The broker refused it or did not answer.
    fn open_members(&self, _: &str) -> impl Future<Output = Result<(), Fault>> {
        unsupported()
    }

    /// Changes members, and tells those who follow their topics. Returns which were changed, as many.
    ///
    /// # Errors
    /// Any number of them may have been changed.
    fn write_members(
        &self,
        _: &[Write],
    ) -> impl Future<Output = Result<Vec<Result<(), Rejected>>, Fault>> {
        unsupported()
    }

    /// Deletes what is kept under keys, after [`Rejected::is_invalid`].
    ///
    /// # Errors
    /// The broker refused it or did not answer.
    fn reset_members(&self, _: &[String]) -> impl Future<Output = Result<(), Fault>> {
        async { Ok(()) }
    }

    /// The members under these keys, whose changes are told at these channels, as many.
    ///
    /// # Errors
    /// The broker did not answer, or refused more than these keys.
    fn load_members(
        &self,
        _: &[(String, Channel)],
    ) -> impl Future<Output = Result<Vec<Result<Stored, Rejected>>, Fault>> {
        unsupported()
    }

    /// Begins a lease.
    ///
    /// # Errors
    /// The broker refused it or did not answer.
    fn begin_lease(&self, _: &str, _: Duration) -> impl Future<Output = Result<(), Fault>> {
        unsupported()
    }

    /// Renews a lease. Returns false if it has ended.
    ///
    /// # Errors
    /// The broker refused it or did not answer.
    fn renew_lease(&self, _: &str, _: Duration) -> impl Future<Output = Result<bool, Fault>> {
        unsupported()
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// The broker refused it or did not answer.
    fn end_lease(&self, _: &str) -> impl Future<Output = Result<(), Fault>> {
        unsupported()
    }

    /// Which of these leases there are, as many.
    ///
    /// # Errors
    /// The broker refused it or did not answer.
    fn leases(&self, _: &[String]) -> impl Future<Output = Result<Vec<bool>, Fault>> {
        unsupported()
    }
}

async fn unsupported<T>() -> Result<T, Fault> {
    Err(Fault::new(FaultKind::Protocol, "this broker keeps no members"))
}
