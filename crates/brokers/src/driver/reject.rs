//! Topics that a broker refuses: each is left out, and all others go on.

use std::collections::HashSet;

use foldhash::fast::RandomState;
use tracing::warn;

use super::Driver;
use crate::figures::{Counters, GapCause};
use crate::limits::LOG_INTERVAL_NS;
use crate::transport::{Channel, Fault, FaultKind, Link, Rejected};

impl Driver {
    /// The broker has refused to subscribe some of these channels. Returns the others.
    pub(super) async fn without_refused(
        &self,
        mut channels: Vec<Channel>,
        refused: Vec<(Channel, Rejected)>,
    ) -> Result<Vec<Channel>, Fault> {
        if refused.is_empty() {
            return Ok(channels);
        }
        let names: HashSet<Channel, RandomState> =
            refused.iter().map(|(channel, _)| Channel::clone(channel)).collect();
        channels.retain(|channel| !names.contains(channel));
        let with_id = |(channel, why): (Channel, Rejected)| {
            let id = self.shard().lock().interest.get(&channel)?.id;
            Some((channel, id, why))
        };
        self.reject(refused.into_iter().filter_map(with_id).collect()).await?;
        Ok(channels)
    }

    /// The broker has refused to tell what it keeps of channels that are subscribed: they are unsubscribed.
    pub(super) async fn reject_subscribed(
        &self,
        link: &impl Link,
        refused: Vec<(Channel, u64, Rejected)>,
    ) -> Result<(), Fault> {
        if refused.is_empty() {
            return Ok(());
        }
        let names: Vec<Channel> =
            refused.iter().map(|(channel, ..)| Channel::clone(channel)).collect();
        self.reject(refused).await?;
        link.unsubscribe(&names).await
    }

    /// Subscriptions of these channels stay without a confirmation until the broker takes them.
    async fn reject(&self, refused: Vec<(Channel, u64, Rejected)>) -> Result<(), Fault> {
        let now_ns = self.broker.now_ns();
        for (channel, id, why) in refused {
            self.rejected(&channel, &why)?;
            self.followed.borrow_mut().set_rejected(&channel, id, true);
            // Somebody may wait for the topic to be settled.
            self.settled.notify_one();
            let rejected = self.shard().lock().interest.reject(now_ns, &channel, id);
            if rejected == Some(true) {
                // Its subscribers receive nothing until the broker confirms it again.
                self.gap(&[&channel], GapCause::Missing).await;
            }
        }
        Ok(())
    }

    /// Counts and logs that the broker has refused a command for one channel.
    ///
    /// # Errors
    /// It is the channel of commands, which every node needs.
    pub(super) fn rejected(&self, channel: &Channel, why: &Rejected) -> Result<(), Fault> {
        if *channel == self.broker.control {
            return Err(Fault::new(FaultKind::Refused, &*why.why));
        }
        Counters::add(&self.broker.counters.rejected, 1);
        self.log_rejected(&format!("broker refuses a topic, others go on: {}", why.why));
        Ok(())
    }

    /// Deletes what is kept of channels and was not written by a node, and counts and logs that.
    pub(super) async fn reset(&self, link: &impl Link, channels: &[Channel]) -> Result<(), Fault> {
        link.reset(channels).await?;
        Counters::add(&self.broker.counters.reset, channels.len());
        let named = channels.first().map_or("", |channel| channel);
        self.log_rejected(&format!(
            "history deleted, as its content was not written by a node; another epoch begins: {named}"
        ));
        Ok(())
    }

    /// Logs at most once in a while.
    pub(super) fn log_rejected(&self, line: &str) {
        let now_ns = self.broker.now_ns();
        if now_ns >= self.rejected_log_ns.get() {
            self.rejected_log_ns.set(now_ns.saturating_add(LOG_INTERVAL_NS));
            warn!("{line}");
        }
    }
}
