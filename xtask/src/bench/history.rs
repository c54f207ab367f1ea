//! The history at full size: 100,000 topics of 100 messages. Is the memory what was counted, and is dropped exactly
//! what has to be?

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::admin::Admin;
use super::report::{self, Target};
use super::server::Server;

const TOPICS: usize = 100_000;
const MESSAGES: usize = 100;
/// The share of the topics that then get more messages, and how many.
const MORE: (usize, usize) = (10, 10);
const BYTES: usize = 40;
/// As documented in docs/protocol/history.md.
const MESSAGE_BYTES: usize = 144;
const TOPIC_BYTES: usize = 384;
/// Messages of one request.
const BATCH: usize = 1_000;
/// Resident bytes beside the counted ones.
const RESIDENT_LIMIT: f64 = 1.05;

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let topics = bench.connections.unwrap_or(TOPICS);
    println!("\n=== history: {topics} topics of {MESSAGES} messages of {BYTES} bytes");
    let each = MESSAGE_BYTES + BYTES;
    let entries = topics * (TOPIC_BYTES + name(0).len());
    let expected = entries + topics * MESSAGES * each;
    let ample = (expected + expected / 10).to_string();
    let (full, mut targets) = all_kept(bench, topics, expected, &ample)?;
    // Half of the messages, and not a multiple of a message's bytes.
    let limit = entries + topics * MESSAGES / 2 * each + each / 2;
    let (half, of_half) = half_kept(bench, topics, limit)?;
    targets.extend(of_half);
    let settings = json!({ "topics": topics, "messages": MESSAGES, "bytes": BYTES,
                           "limit_of_half": limit });
    let results = json!({ "all_kept": full, "half_kept": half });
    report::finish(&bench.out, "history", settings, results, &targets)
}

/// Everything fits; then some topics get more than `--history-limit`.
fn all_kept(
    bench: &Context,
    topics: usize,
    expected: usize,
    limit: &str,
) -> Result<(Value, Vec<Target>)> {
    let server = start(bench, limit)?;
    let mut client = Client::connect(&server)?;
    let before = server.rss_bytes()?;
    client.publish(topics, 1..=MESSAGES)?;
    std::thread::sleep(Duration::from_secs(1));
    let (resident, figures) = (server.rss_bytes()? - before, client.figures()?);
    let kept = topics * MESSAGES;
    let ratio = resident as f64 / figures.bytes as f64;
    println!("counted {} MB, resident {} MB", figures.bytes / 1_000_000, resident / 1_000_000);
    let mut targets = vec![
        exactly("bytes counted", figures.bytes, expected),
        exactly("messages kept", figures.messages, kept),
        exactly("topics", figures.topics, topics),
        exactly("messages dropped", figures.dropped(), 0),
        Target::at_most("resident ÷ counted bytes", ratio, RESIDENT_LIMIT),
    ];
    let some = topics / MORE.0;
    client.publish(some, MESSAGES + 1..=MESSAGES + MORE.1)?;
    let after = client.figures()?;
    targets.extend([
        exactly("bytes counted after more messages", after.bytes, expected),
        exactly("dropped by number", after.by("messages"), some * MORE.1),
        exactly("dropped otherwise", after.dropped() - after.by("messages"), 0),
    ]);
    let mut wrong = 0;
    for topic in sample(topics) {
        let first = if topic < some { MORE.1 + 1 } else { 1 };
        wrong += usize::from(client.kept(topic)? != (first, first + MESSAGES - 1));
    }
    targets.push(exactly("sampled topics with wrong messages", wrong, 0));
    let json = json!({ "counted_bytes": figures.bytes, "resident_bytes": resident,
                       "messages": figures.messages, "resident_after_more": server.rss_bytes()? - before });
    Ok((json, targets))
}

/// Half of the messages fit: the others are dropped, oldest first of all topics.
fn half_kept(bench: &Context, topics: usize, limit: usize) -> Result<(Value, Vec<Target>)> {
    let server = start(bench, &limit.to_string())?;
    let mut client = Client::connect(&server)?;
    let before = server.rss_bytes()?;
    let mut most = 0;
    for number in 1..=MESSAGES {
        client.publish(topics, number..=number)?;
        most = most.max(client.figures()?.bytes);
    }
    std::thread::sleep(Duration::from_secs(1));
    let (resident, figures) = (server.rss_bytes()? - before, client.figures()?);
    let (all, kept) = (topics * MESSAGES, topics * MESSAGES / 2);
    let mut wrong = 0;
    for topic in sample(topics) {
        wrong += usize::from(client.kept(topic)? != (MESSAGES / 2 + 1, MESSAGES));
    }
    let targets = vec![
        Target::at_most("half: most bytes counted", most as f64, limit as f64),
        exactly("half: messages kept", figures.messages, kept),
        exactly("half: dropped by bytes", figures.by("bytes"), all - kept),
        exactly("half: dropped otherwise", figures.dropped() - figures.by("bytes"), 0),
        exactly("half: sampled topics with wrong messages", wrong, 0),
        Target::at_most("half: resident ÷ limit", resident as f64 / limit as f64, RESIDENT_LIMIT),
    ];
    let json = json!({ "counted_bytes": figures.bytes, "most_counted_bytes": most,
                       "resident_bytes": resident, "messages": figures.messages });
    Ok((json, targets))
}

fn start(bench: &Context, limit: &str) -> Result<Server> {
    let messages = MESSAGES.to_string();
    let flags = ["--history", "memory", "--history-limit", &messages, "--history-ttl", "1h"];
    let sizes = ["--history-bytes", limit, "--max-message", "1MiB"];
    Server::start_ours(&bench.tools, &[&flags[..], &sizes[..]].concat())
}

/// Within half of a unit, as figures are numbers with fractions.
fn exactly(what: &str, value: usize, expected: usize) -> Target {
    Target::at_most(
        format!("{what}: {value}, deviation from {expected}"),
        value.abs_diff(expected) as f64,
        0.0,
    )
}

fn name(topic: usize) -> String {
    format!("topic:{topic:06}")
}

/// A hundred topics, the first and the last among them.
fn sample(topics: usize) -> impl Iterator<Item = usize> {
    (0..100).map(move |at| at * (topics - 1) / 99)
}

fn text(topic: usize, number: usize) -> String {
    format!("{:<BYTES$}", format!("{topic} {number}"))
}

/// The metrics of the history.
struct History {
    topics: usize,
    messages: usize,
    bytes: usize,
    evicted: Vec<(String, usize)>,
}

impl History {
    fn dropped(&self) -> usize {
        self.evicted.iter().map(|(_, count)| count).sum()
    }

    fn by(&self, cause: &str) -> usize {
        let own = self.evicted.iter().filter(|(name, _)| name.contains(&format!("\"{cause}\"")));
        own.map(|(_, count)| count).sum()
    }
}

/// The requests to the admin listener.
struct Client(Admin);

impl Client {
    fn connect(server: &Server) -> Result<Client> {
        Admin::connect(server).map(Client)
    }
    /// Publishes these messages of each topic, topic after topic for each number, and checks their offsets.
    fn publish(&mut self, topics: usize, numbers: std::ops::RangeInclusive<usize>) -> Result<()> {
        for number in numbers {
            for first in (0..topics).step_by(BATCH) {
                let batch = first..topics.min(first + BATCH);
                let one = |topic| json!({ "topic": name(topic), "data": text(topic, number) });
                let body = json!(batch.clone().map(one).collect::<Vec<_>>()).to_string();
                let answer = self.0.request("POST", "/api/publish", &body)?;
                let answer: Value = serde_json::from_str(&answer)?;
                let offsets = answer["offsets"].as_array().context("no offsets")?;
                let right = offsets.iter().all(|offset| *offset == number);
                ensure!(right && offsets.len() == batch.len(), "wrong offsets: {answer}");
            }
        }
        Ok(())
    }

    fn figures(&mut self) -> Result<History> {
        let values: Vec<(String, usize)> = self.0.metrics("standfast_history_")?;
        let of = |name: &str| {
            let found = values.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| *value).with_context(|| format!("no metric {name}"))
        };
        Ok(History {
            topics: of("topics")?,
            messages: of("messages")?,
            bytes: of("bytes")?,
            evicted: values
                .iter()
                .filter(|(name, _)| name.starts_with("evicted"))
                .cloned()
                .collect(),
        })
    }

    /// The first and the last offset of the messages that are kept, which must be those that were published.
    fn kept(&mut self, topic: usize) -> Result<(usize, usize)> {
        let path = format!("/api/history/{}?limit=1000", name(topic).replace(':', "%3A"));
        let answer: Value = serde_json::from_str(&self.0.request("GET", &path, "")?)?;
        let messages = answer["messages"].as_array().context("no messages")?;
        let first = answer["first"].as_u64().context("no first")? as usize;
        for (message, number) in messages.iter().zip(first..) {
            let right = message["offset"] == number && message["data"] == text(topic, number);
            ensure!(right, "{}: {message} instead of {number}", name(topic));
        }
        Ok((first, first + messages.len() - 1))
    }
}
