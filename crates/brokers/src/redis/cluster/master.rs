//! [`Master`]: the connections of a link to one master of a cluster.

use std::cell::RefCell;

use redis::{Pipeline, PushInfo, Value};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::{JoinHandle, spawn_local};

use super::super::kept::{Keeper, load_script};
use super::super::sharded::ShardSubscriber;
use super::super::slots::Address;
use super::super::{Connection, RedisTransport, fault};
use super::link::in_time;
use crate::kept::HistorySettings;
use crate::transport::{Fault, FaultKind, Inbox};

/// The command that publishes to a shard channel.
pub(super) const PUBLISH: &str = "SPUBLISH";

/// One master.
pub(super) struct Master {
    pub(super) address: Address,
    node: RedisTransport,
    commands: Connection,
    subscriber: OnceCell<ShardSubscriber>,
    pub(super) keeper: Option<Keeper>,
    /// Tell that a connection has ended.
    watches: RefCell<Vec<JoinHandle<()>>>,
    lost: UnboundedSender<Address>,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.watches.borrow().iter().for_each(JoinHandle::abort);
    }
}

impl Master {
    /// Connects, and loads the scripts. `lost` is told when a connection has ended.
    pub(super) async fn open(
        address: Address,
        node: RedisTransport,
        history: Option<HistorySettings>,
        random: fn() -> u64,
        lost: UnboundedSender<Address>,
    ) -> Result<Self, Fault> {
        let mut commands = node.open(&node.url.address, None::<fn(PushInfo)>).await?;
        commands.asks_role = commands.require_master().await?;
        let keeper = match history {
            Some(history) => Some(Keeper::new(&commands, PUBLISH, history, random).await?),
            None => None,
        };
        let (subscriber, watches) = (OnceCell::new(), RefCell::default());
        let master = Master { address, node, commands, subscriber, keeper, watches, lost };
        master.require_cluster().await?;
        master.watch(master.commands.ended.take());
        Ok(master)
    }

    fn watch(&self, ended: Option<oneshot::Receiver<()>>) {
        let Some(ended) = ended else { return };
        let (lost, address) = (self.lost.clone(), self.address.clone());
        self.watches.borrow_mut().push(spawn_local(async move {
            let _ = ended.await;
            let _ = lost.send(address);
        }));
    }

    /// The connection that subscribes.
    pub(super) async fn subscriber(&self, inbox: &Inbox) -> Result<&ShardSubscriber, Fault> {
        let open = async {
            let stream = self.node.stream(&self.node.url.address).await?;
            let subscriber = ShardSubscriber::new(&self.node.url, stream, inbox.clone()).await?;
            subscriber.require_shard_channels().await?;
            self.watch(subscriber.ended.take());
            Ok(subscriber)
        };
        self.subscriber.get_or_try_init(|| in_time(open)).await
    }

    /// Sends commands, each after `ASKING` if the slot is being moved here.
    pub(super) async fn send(
        &self,
        many: usize,
        asking: bool,
        build: impl Fn(usize, &mut Pipeline),
    ) -> Result<Vec<Value>, Fault> {
        let step = if asking { 2 } else { 1 };
        let mut pipeline = Pipeline::with_capacity(step * many);
        for at in 0..many {
            if asking {
                pipeline.cmd("ASKING");
            }
            build(at, &mut pipeline);
        }
        let mut commands = self.commands.commands.clone();
        let sent = commands.send_packed_commands(&pipeline, 0, step * many).await;
        let answers: Vec<Value> =
            sent.map_err(fault)?.into_iter().skip(step - 1).step_by(step).collect();
        match answers.len() == many {
            true => Ok(answers),
            false => Err(Fault::new(FaultKind::Protocol, "invalid number of answers")),
        }
    }

    /// Loads a script.
    pub(super) async fn load(&self, script: &str) -> Result<String, Fault> {
        load_script(&self.commands, script).await
    }

    /// Loads the scripts of the history, which the server may have forgotten.
    pub(super) async fn load_kept(&self) -> Result<(), Fault> {
        match &self.keeper {
            Some(keeper) => keeper.load(&self.commands).await,
            None => Ok(()),
        }
    }

    pub(super) fn commands(&self) -> &Connection {
        &self.commands
    }

    /// Whether channels are subscribed there.
    pub(super) fn is_subscribed(&self) -> bool {
        self.subscriber.get().is_some_and(ShardSubscriber::is_subscribed)
    }

    /// Verifies that the subscriptions are alive.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        match self.subscriber.get() {
            Some(subscriber) => subscriber.ping().await,
            None => Ok(()),
        }
    }

    /// Verifies that it takes publications, and is in touch with the cluster: a master that is cut off keeps its
    /// subscriptions, while another one has taken over its slots.
    pub(super) async fn check(&self) -> Result<(), Fault> {
        if self.commands.asks_role {
            self.commands.require_master().await?;
        }
        self.require_cluster().await
    }

    async fn require_cluster(&self) -> Result<(), Fault> {
        let text = match self.commands.send(redis::cmd("CLUSTER").arg("INFO")).await? {
            Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            Value::VerbatimString { text, .. } => text,
            _ => return Err(Fault::new(FaultKind::Protocol, "invalid answer to CLUSTER INFO")),
        };
        match text.lines().any(|line| line == "cluster_state:ok") {
            true => Ok(()),
            false => {
                Err(Fault::new(FaultKind::Unreachable, "CLUSTERDOWN: cluster_state is not ok"))
            }
        }
    }
}
