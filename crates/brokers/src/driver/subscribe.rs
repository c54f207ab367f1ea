//! The part of a connection that subscribes to what is wanted and unsubscribes from the rest.

use std::collections::HashSet;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::Driver;
use super::fetch::Part;
use crate::broker::ConfirmedTopic;
use crate::figures::{Counters, GapCause};
use crate::interest::Confirmed;
use crate::transport::{Channel, Fault, Link};

/// Longest sleep without being woken.
const SLEEP_MAX: Duration = Duration::from_secs(5);

/// Channels that the broker has subscribed, with a part of what it keeps of them, and those of which nothing is
/// fetched yet.
struct Subscribed {
    channels: Vec<Channel>,
    part: Part,
    rest: Vec<(Channel, u64)>,
}

impl Driver {
    /// Subscribes and unsubscribes as interest changes. Ends with a fault.
    pub(super) async fn subscribe(&self, link: &impl Link) -> Fault {
        let counters = &self.broker.counters;
        // Those of before the connection that somebody wants; meanwhile there may always be new ones.
        let mut left = self.shard().lock().interest.queued();
        let mut before: Option<Subscribed> = None;
        loop {
            let now_ns = self.broker.now_ns();
            let (unwanted, gone, wanted, due_ns, topics) = {
                let mut inner = self.shard().lock();
                let interest = &mut inner.interest;
                interest.retry_rejected(now_ns);
                let unwanted = interest.take_unwanted(now_ns);
                let gone = interest.take_gone();
                (unwanted, gone, interest.take_wanted(), interest.due_ns(), interest.len())
            };
            self.unfollow(&gone);
            self.unfollow(&unwanted);
            self.release_members(&gone);
            self.release_members(&unwanted);
            if !unwanted.is_empty() {
                if let Err(fault) = link.unsubscribe(&unwanted).await {
                    return fault;
                }
                Counters::add(&counters.unsubscribed, unwanted.len());
            }
            let (is_idle, mut finished) = (wanted.is_empty(), before.take());
            let finishes = finished.is_some();
            if let Some(Subscribed { channels, .. }) = &mut finished {
                left = left.saturating_sub(channels.len());
                // Those that are asked for again, as the broker has ended them, are not confirmed yet.
                let again: HashSet<&Channel, RandomState> = wanted.iter().collect();
                channels.retain(|channel| !again.contains(channel));
            }
            // While the broker answers, those before are confirmed.
            let (asked, confirmed) =
                tokio::join!(self.ask(link, wanted), self.finish(link, finished));
            match asked.and_then(|asked| confirmed.map(|()| asked)) {
                Ok(asked) => before = asked,
                Err(fault) => return fault,
            }
            if is_idle {
                left = 0;
            }
            if left == 0 {
                self.connected(topics);
            }
            if is_idle && unwanted.is_empty() && !finishes {
                let sleep = due_ns.map_or(SLEEP_MAX, |due_ns| {
                    Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(SLEEP_MAX)
                });
                let woken = self.shard().wakes.interest.notified();
                let _ = tokio::time::timeout(sleep, woken).await;
            }
        }
    }

    /// Subscribes to channels and fetches the first part of what is kept of them.
    async fn ask(
        &self,
        link: &impl Link,
        channels: Vec<Channel>,
    ) -> Result<Option<Subscribed>, Fault> {
        if channels.is_empty() {
            return Ok(None);
        }
        self.follow(&channels);
        let refused = link.subscribe(&channels).await?;
        let channels = self.without_refused(channels, refused).await?;
        Counters::add(&self.broker.counters.subscribed, channels.len());
        let (part, rest) = self.begin_sync(link, &channels).await?;
        Ok(Some(Subscribed { channels, part, rest }))
    }

    /// Delivers what is kept of channels, and tells that they are confirmed.
    async fn finish(&self, link: &impl Link, finished: Option<Subscribed>) -> Result<(), Fault> {
        let Some(Subscribed { channels, part, rest }) = finished else { return Ok(()) };
        // So that the commands for the next ones are sent first.
        tokio::task::yield_now().await;
        self.sync(part, GapCause::Reconnected).await;
        self.catch_up(link, rest, GapCause::Reconnected).await?;
        self.load_members(link, &channels).await?;
        self.confirm(&channels).await;
        Ok(())
    }

    /// The broker has confirmed channels. Tells what was missed before it tells that they are confirmed.
    pub(super) async fn confirm(&self, channels: &[Channel]) {
        let generation = self.received.borrow().generation();
        let confirmed = self.shard().lock().interest.confirm(channels, generation);
        // What is kept was fetched.
        let is_kept = |channel: &Channel| {
            self.broker.settings.history.is_some() && self.broker.topic(channel).is_some()
        };
        let missed = confirmed.iter().filter(|one| one.missed).map(|one| &one.channel);
        let missed: Vec<&Channel> = missed.filter(|channel| !is_kept(channel)).collect();
        if !missed.is_empty() {
            self.gap(&missed, GapCause::Reconnected).await;
        }
        let topic = |one: &Confirmed| {
            let topic = self.broker.topic(&one.channel)?.into();
            Some(ConfirmedTopic { topic, awaited: one.awaited })
        };
        let confirmed: Vec<ConfirmedTopic> = confirmed.iter().filter_map(topic).collect();
        if !confirmed.is_empty() {
            self.tell(|receiver| receiver.confirmed(&confirmed)).await;
        }
        // Not before: if the connection ends while they wait to be told, the next one tells them.
        self.shard().lock().interest.told(channels);
    }
}
