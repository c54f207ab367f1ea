//! `/api/topics`: the topics with most subscribers and most traffic; and the subscribers of a topic.
//! Workers are asked in parallel, a portion of their topics at a time.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use admin::{ApiRequest, Reply};
use engine::sys::process::now_ns;
use serde_json::{Value, json};
use topics::{TopicCounts, Traffic};

use super::{Control, WAIT};
use crate::handler::{Post, TopicsQuery, TopicsReply, TopicsRequest};
use crate::path;

/// Topics in each list by default, and at most.
const LIMIT: usize = 20;
const LIMIT_MAX: usize = 100;
/// Topics whose subscribers are counted over all workers, to find those with most.
const CANDIDATES_MAX: usize = 1000;
/// Bytes that a request counts in a mailbox.
const REQUEST_BYTES: usize = 256;

/// Subscribers by topic.
pub(super) type Subscribers = HashMap<Arc<str>, u64>;

/// The replies of all workers to the first query.
#[derive(Default)]
pub(super) struct Figures {
    /// What is known of the largest topics of each worker, added up.
    largest: Subscribers,
    pub(super) messages: Merged,
    pub(super) bytes: Merged,
    covered_ns: u64,
}

/// The largest and the busiest topics.
pub(super) struct Top {
    pub(super) by_subscribers: Vec<Arc<str>>,
    pub(super) by_messages: Vec<Arc<str>>,
    pub(super) by_bytes: Vec<Arc<str>>,
    /// The subscribers of all these.
    pub(super) subscribers: Subscribers,
    pub(super) figures: Figures,
    /// The time in which messages and bytes were counted, in seconds.
    pub(super) covered_s: f64,
    /// Workers that did not answer in time.
    silent: Vec<usize>,
}

/// The counts of several workers and periods.
#[derive(Default)]
pub(super) struct Merged {
    /// Count and possible error beyond those of topics that are nowhere counted.
    above: HashMap<Arc<str>, (u64, i64)>,
    /// What a topic can have that is nowhere counted.
    others_max: u64,
}

impl Merged {
    fn add(&mut self, part: TopicCounts) {
        self.others_max += part.others_max;
        for one in part.counts {
            let (count, error) = self.above.entry(one.topic).or_default();
            *count += one.count.saturating_sub(part.others_max);
            *error += one.error as i64 - part.others_max as i64;
        }
    }

    /// A topic's count, and by how much it may be too high. `None` if it may be anything up to
    /// `others_max`.
    pub(super) fn get(&self, topic: &str) -> Option<(u64, u64)> {
        match self.above.get(topic) {
            Some((count, error)) => {
                Some((self.others_max + count, (self.others_max as i64 + error).max(0) as u64))
            }
            None => (self.others_max == 0).then_some((0, 0)),
        }
    }

    /// The topics with this prefix that have the highest counts.
    fn top(&self, prefix: &str, limit: usize) -> Vec<Arc<str>> {
        let all = self.above.iter().filter(|(topic, _)| topic.starts_with(prefix));
        top(all.map(|(topic, (count, _))| (topic, *count)), limit)
    }
}

/// The topics with the highest numbers, the highest first.
fn top<'t>(all: impl Iterator<Item = (&'t Arc<str>, u64)>, limit: usize) -> Vec<Arc<str>> {
    let mut all: Vec<(&Arc<str>, u64)> = all.filter(|(_, number)| *number > 0).collect();
    all.sort_unstable_by(|a, b| (Reverse(a.1), a.0).cmp(&(Reverse(b.1), b.0)));
    all.into_iter().take(limit).map(|(topic, _)| Arc::clone(topic)).collect()
}

impl Control {
    /// Answers `/api/topics`.
    pub(super) fn top_topics(&self, request: &ApiRequest<'_>) -> Reply {
        if request.method != "GET" {
            return Reply::error(405, "method_not_allowed", "expected GET /api/topics");
        }
        let limit = match request.parameter("limit") {
            None => LIMIT,
            Some(text) => match text.parse() {
                Ok(limit @ 1..=LIMIT_MAX) => limit,
                _ => {
                    let message = format!(
                        "invalid limit \"{text}\": expected a number from 1 to {LIMIT_MAX}"
                    );
                    return Reply::error(400, "bad_request", &message);
                }
            },
        };
        let prefix = request.parameter("prefix").unwrap_or_default();
        if let Some(topic) = request.parameter("topic") {
            if !prefix.is_empty() {
                return Reply::error(400, "bad_request", "expected topic or prefix, not both");
            }
            return self.one_topic(topic);
        }
        let top = self.top(prefix, limit);
        let entries = |topics: &[Arc<str>]| -> Value {
            topics.iter().map(|topic| top.figures.entry(topic, &top.subscribers)).collect()
        };
        Reply::json(&json!({
            "topics": self.shared.directory.topics(),
            "seconds": top.covered_s,
            "by_subscribers": entries(&top.by_subscribers),
            "by_messages": entries(&top.by_messages),
            "by_bytes": entries(&top.by_bytes),
            "silent_workers": top.silent,
        }))
    }

    /// The figures of one topic. One without subscribers has none.
    fn one_topic(&self, topic: &str) -> Reply {
        if let Err(why) = path::check_topic(topic) {
            return Reply::error(400, "bad_request", why);
        }
        let topic: Arc<str> = topic.into();
        let until_ns = now_ns() + WAIT.as_nanos() as u64;
        let (figures, silent) = self.figures(&topic, until_ns);
        let (subscribers, late) = self.subscribers(&[Arc::clone(&topic)].into(), until_ns);
        let mut entry = figures.entry(&topic, &subscribers);
        entry["seconds"] = self.covered_s(&figures).into();
        entry["silent_workers"] = longer(silent, late).into();
        Reply::json(&entry)
    }

    /// The time in which messages and bytes were counted, in seconds.
    fn covered_s(&self, figures: &Figures) -> f64 {
        (figures.covered_ns as f64 / 1e9).min(self.uptime_seconds())
    }

    /// The topics with this prefix that have most subscribers, messages and bytes.
    pub(super) fn top(&self, prefix: &str, limit: usize) -> Top {
        let until_ns = now_ns() + WAIT.as_nanos() as u64;
        let (figures, silent) = self.figures(&prefix.into(), until_ns);
        let mut names = top(figures.largest.iter().map(|(t, n)| (t, *n)), CANDIDATES_MAX);
        let by_messages = figures.messages.top(prefix, limit);
        let by_bytes = figures.bytes.top(prefix, limit);
        names.extend(by_messages.iter().chain(&by_bytes).cloned());
        names.sort_unstable();
        names.dedup();
        let (subscribers, late) = self.subscribers(&names.into(), until_ns);
        let by_subscribers = top(subscribers.iter().map(|(t, n)| (t, *n)), limit);
        let covered_s = self.covered_s(&figures);
        let silent = longer(silent, late);
        Top { by_subscribers, by_messages, by_bytes, subscribers, figures, covered_s, silent }
    }

    /// The largest topics with this prefix and the traffic of all workers, and which workers did not
    /// answer in time.
    fn figures(&self, prefix: &Arc<str>, until_ns: u64) -> (Figures, Vec<usize>) {
        let mut figures = Figures::default();
        let query = |position| TopicsQuery::Largest { prefix: Arc::clone(prefix), position };
        let silent = self.query(&query(0), until_ns, |reply| {
            let TopicsReply::Largest { top, traffic } = reply else { return None };
            for (topic, subscribers) in top.topics {
                *figures.largest.entry(topic).or_default() += subscribers;
            }
            if let Some(Traffic { messages, bytes, covered_ns }) = traffic {
                messages.into_iter().for_each(|part| figures.messages.add(part));
                bytes.into_iter().for_each(|part| figures.bytes.add(part));
                figures.covered_ns = figures.covered_ns.max(covered_ns);
            }
            top.next.map(query)
        });
        (figures, silent)
    }

    /// The receivers of publications that were just posted to these topics, one entry for each; `None`
    /// if a worker does not count them in time. A worker takes its posts in order, so it counts right
    /// after it has the publications.
    pub(super) fn receivers(&self, published: &[Arc<str>]) -> Option<u64> {
        let mut topics = published.to_vec();
        topics.sort_unstable();
        topics.dedup();
        let until_ns = now_ns() + WAIT.as_nanos() as u64;
        let (subscribers, silent) = self.subscribers(&topics.into(), until_ns);
        let each = published.iter().map(|topic| subscribers.get(topic));
        silent.is_empty().then(|| each.flatten().sum())
    }

    /// The subscribers of topics now, and which workers did not answer in time.
    fn subscribers(&self, topics: &Arc<[Arc<str>]>, until_ns: u64) -> (Subscribers, Vec<usize>) {
        let mut sums = Subscribers::new();
        let query = |position| TopicsQuery::Count { topics: Arc::clone(topics), position };
        let silent = self.query(&query(0), until_ns, |reply| {
            let TopicsReply::Count { position, subscribers } = reply else { return None };
            let next = position + subscribers.len();
            for (topic, count) in topics.iter().skip(position).zip(subscribers) {
                *sums.entry(Arc::clone(topic)).or_default() += count;
            }
            (next > position && next < topics.len()).then(|| query(next))
        });
        (sums, silent)
    }

    /// Sends a query to all running workers, and to each the further queries that `reply` returns.
    /// Returns the workers that did not answer all of theirs in time.
    fn query(
        &self,
        first: &TopicsQuery,
        until_ns: u64,
        mut reply: impl FnMut(TopicsReply) -> Option<TopicsQuery>,
    ) -> Vec<usize> {
        let mut waiting: Vec<usize> = self.shared.running().collect();
        // Each worker has one query at a time, so there is room for every reply.
        let (sender, replies) = sync_channel(waiting.len().max(1));
        let post = |worker: usize, query: TopicsQuery| {
            let request = Box::new(TopicsRequest { query, reply: sender.clone() });
            self.remote.post(worker, Post::Topics(request), REQUEST_BYTES).is_ok()
        };
        let mut silent = Vec::new();
        waiting.retain(|worker| {
            let posted = post(*worker, first.clone());
            silent.extend((!posted).then_some(*worker));
            posted
        });
        while !waiting.is_empty() {
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            let Ok((worker, answer)) = replies.recv_timeout(left) else { break };
            let next = reply(answer);
            let goes_on = next.is_some();
            if !next.is_some_and(|next| post(worker, next)) {
                waiting.retain(|other| *other != worker);
                silent.extend(goes_on.then_some(worker));
            }
        }
        silent.extend(waiting);
        silent.sort_unstable();
        silent
    }
}

fn longer(one: Vec<usize>, other: Vec<usize>) -> Vec<usize> {
    if other.len() > one.len() { other } else { one }
}

impl Figures {
    fn entry(&self, topic: &Arc<str>, subscribers: &Subscribers) -> Value {
        let (messages, bytes) = (self.messages.get(topic), self.bytes.get(topic));
        json!({
            "topic": &**topic,
            "subscribers": subscribers.get(topic).copied().unwrap_or_default(),
            "messages": messages.map(|(count, _)| count),
            "messages_error": messages.map(|(_, error)| error),
            "bytes": bytes.map(|(count, _)| count),
            "bytes_error": bytes.map(|(_, error)| error),
        })
    }
}

#[cfg(test)]
mod tests {
    use topics::TopicCount;

    use super::*;

    fn part(counts: &[(&str, u64, u64)], others_max: u64) -> TopicCounts {
        let count = |&(topic, count, error): &(&str, u64, u64)| TopicCount {
            topic: topic.into(),
            count,
            error,
        };
        TopicCounts { counts: counts.iter().map(count).collect(), others_max }
    }

    #[test]
    fn counts_of_workers_add_up_with_their_errors() {
        let mut merged = Merged::default();
        merged.add(part(&[("a", 100, 0), ("b", 7, 2)], 5));
        assert_eq!((merged.get("a"), merged.get("b")), (Some((100, 0)), Some((7, 2))));
        assert_eq!(merged.get("c"), None, "anything up to 5");
        merged.add(part(&[("b", 50, 0)], 0));
        assert_eq!(merged.get("a"), Some((100, 0)), "the other worker counts all and has none");
        assert_eq!(merged.get("b"), Some((57, 2)));
        merged.add(part(&[("a", 30, 1)], 10));
        assert_eq!(merged.get("a"), Some((130, 1)));
        assert_eq!(merged.get("b"), Some((67, 12)), "this worker may have counted up to 10");
        assert_eq!((merged.top("", 1), merged.top("b", 2)), (vec!["a".into()], vec!["b".into()]));
        assert_eq!(Merged::default().get("a"), Some((0, 0)));
    }
}
