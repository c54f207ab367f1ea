//! [`Ledger`]: what nodes have accepted and servers have passed on, and whether what a subscriber lacks lies in a gap.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::Judge;

/// One book for all.
pub(crate) type Ledger = crate::ledger::Ledger<Book>;

/// What the runs of all seeds together should have seen.
#[derive(Default)]
pub(crate) struct Coverage {
    /// Messages that subscribers got, and publications that were refused.
    pub(crate) messages: u64,
    pub(crate) refused: u64,
    /// Gaps that nodes told, by cause, and publications that subscribers lacked in them.
    pub(crate) gaps: [u64; 3],
    pub(crate) lacked: u64,
    /// What was received twice, and not delivered again.
    pub(crate) repeated: u64,
    /// Subscriptions that waited for the broker.
    pub(crate) awaited: u64,
    /// Faults, by number of [`super::simulation::Mishap`].
    pub(crate) mishaps: [u64; 6],
    /// The most nodes of a run.
    pub(crate) nodes: usize,
}

pub(crate) struct Book {
    pub(crate) failure: Option<String>,
    /// No new work is begun, and nothing goes wrong.
    pub(crate) calm: bool,
    /// When each publication was accepted, by sending node and topic.
    accepted: Vec<Vec<Vec<u64>>>,
    /// The last one that a server has passed on.
    passed: Vec<Vec<usize>>,
    /// How many each node had accepted for a topic when a subscription was confirmed.
    baselines: Vec<Vec<usize>>,
    /// Receiver, topic and sender of messages that were dropped with the connection open.
    dropped: BTreeSet<(usize, u32, usize)>,
    pub(crate) dead: Vec<bool>,
    /// Senders and receivers forget each other.
    pub(crate) forgetful: bool,
    pub(crate) coverage: Coverage,
}

/// What a subscriber has of one topic.
#[derive(Debug)]
pub(crate) struct Reading {
    topic: u32,
    baseline: usize,
    /// The newest number of each sender, and how many gaps had been told.
    last: BTreeMap<usize, (usize, u64)>,
    /// When the latest gap was told, and how many were.
    gap_ns: u64,
    gaps: u64,
}

impl Judge for Book {
    fn failure(&mut self) -> &mut Option<String> {
        &mut self.failure
    }
}

impl Book {
    pub(crate) fn new(nodes: usize, topics: u32, forgetful: bool) -> Self {
        Book {
            failure: None,
            calm: false,
            accepted: vec![vec![Vec::new(); topics as usize]; nodes],
            passed: vec![vec![0; topics as usize]; nodes],
            baselines: Vec::new(),
            dropped: BTreeSet::new(),
            dead: vec![false; nodes],
            forgetful,
            coverage: Coverage::default(),
        }
    }

    /// The bytes of the next publication of a node to a topic.
    pub(crate) fn write(&self, node: usize, topic: u32, filler: usize) -> Vec<u8> {
        let number = self.accepted[node][topic as usize].len() + 1;
        let mut data = format!("{node:04x}{number:08x}").into_bytes();
        data.resize(12 + filler, b'.');
        data
    }

    /// The node has accepted it.
    pub(crate) fn accepted(&mut self, now_ns: u64, node: usize, topic: u32) {
        self.accepted[node][topic as usize].push(now_ns);
    }

    /// A server passes a publication on.
    pub(crate) fn passed(&mut self, topic: u32, data: &[u8]) {
        let Some((node, number)) = parse(data) else {
            return self.fail(format!("a server was sent {data:?}"));
        };
        let last = &mut self.passed[node][topic as usize];
        let right = number <= *last + 1;
        *last = (*last).max(number);
        self.require(right, || format!("{number} of node {node} to {topic} overtook another"));
    }

    /// A subscription is confirmed to its client. Returns what the client is told.
    pub(crate) fn confirm(&mut self, topic: u32) -> usize {
        let numbers = self.accepted.iter().map(|of| of[topic as usize].len()).collect();
        self.baselines.push(numbers);
        self.baselines.len() - 1
    }

    pub(crate) fn dropped(&mut self, node: usize, topic: u32, data: &[u8]) {
        if let Some((sender, _)) = parse(data) {
            self.dropped.insert((node, topic, sender));
        }
    }

    /// A subscriber gets a publication.
    pub(crate) fn got(&mut self, node: usize, reading: &mut Reading, data: &[u8]) {
        self.coverage.messages += 1;
        let Some((sender, number)) = parse(data) else {
            return self.fail(format!("a subscriber got {data:?}"));
        };
        let last = reading.last.get(&sender).map(|(last, _)| *last);
        let before = last.unwrap_or(self.baselines[reading.baseline][sender]);
        // What is sent again is not recognized by a node that has forgotten the sender, and has told a gap for that.
        let since = reading.last.get(&sender).map_or(0, |(_, gaps)| *gaps);
        let forgotten = self.forgetful && reading.gaps > since;
        if last.is_some_and(|last| number <= last) && !forgotten {
            let topic = reading.topic;
            self.fail(format!("{number} of node {sender} to {topic} came after {last:?}"));
        }
        if number > before + 1 {
            self.lacks(node, reading, sender, before + 1, number - 1, last.is_none());
        }
        reading.last.insert(sender, (number, reading.gaps));
    }

    /// What a subscriber does not have has to lie before a gap that it was told of.
    fn lacks(
        &mut self,
        node: usize,
        reading: &Reading,
        sender: usize,
        first: usize,
        until: usize,
        nothing_before: bool,
    ) {
        let topic = reading.topic;
        self.coverage.lacked += (until + 1 - first) as u64;
        let accepted_ns = self.accepted[sender][topic as usize].get(until - 1).copied();
        // A number says nothing about those before it to a node that has none of this sender.
        let excused = nothing_before && self.dropped.contains(&(node, topic, sender));
        let told = accepted_ns.is_some_and(|accepted_ns| accepted_ns <= reading.gap_ns);
        self.require(told || excused, || {
            format!(
                "a client of node {node} never got {first} to {until} of node {sender} to {topic}, and \
                 was told of no gap since"
            )
        });
    }

    /// Everything has arrived that will.
    pub(crate) fn check(&mut self, node: usize, reading: &Reading) {
        for sender in 0..self.accepted.len() {
            let passed = self.passed[sender][reading.topic as usize];
            let last = reading.last.get(&sender).map(|(last, _)| *last);
            let has = last.unwrap_or(self.baselines[reading.baseline][sender]);
            // Nobody repeats the number of a sender that is dead or has forgotten it.
            let silent = self.dead[sender] || self.forgetful;
            let excused = silent && self.dropped.contains(&(node, reading.topic, sender));
            if passed > has && !excused {
                self.lacks(node, reading, sender, has + 1, passed, last.is_none());
            }
        }
    }

    /// What living nodes have accepted is with the servers.
    pub(crate) fn check_passed(&mut self) {
        for node in 0..self.accepted.len() {
            for topic in 0..self.passed[node].len() {
                let (accepted, passed) =
                    (self.accepted[node][topic].len(), self.passed[node][topic]);
                let dead = self.dead[node];
                self.require(passed == accepted || dead && passed < accepted, || {
                    format!("node {node} accepted {accepted} to {topic}, {passed} reached a server")
                });
            }
        }
    }

    /// All that were accepted.
    pub(crate) fn publications(&self) -> u64 {
        self.accepted.iter().flatten().map(|of| of.len() as u64).sum()
    }
}

impl Reading {
    /// Of a subscription that was confirmed so.
    pub(crate) fn new(topic: u32, baseline: usize) -> Self {
        Reading { topic, baseline, last: BTreeMap::new(), gap_ns: 0, gaps: 0 }
    }

    pub(crate) fn gap(&mut self, told_ns: u64) {
        self.gap_ns = self.gap_ns.max(told_ns);
        self.gaps += 1;
    }
}

/// Sender and number.
fn parse(data: &[u8]) -> Option<(usize, usize)> {
    let hex = |range| usize::from_str_radix(std::str::from_utf8(data.get(range)?).ok()?, 16).ok();
    Some((hex(0..4)?, hex(4..12)?))
}
