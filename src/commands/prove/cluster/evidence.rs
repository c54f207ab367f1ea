//! What a proof has seen, as plain data: publications with what was answered, what each subscriber noticed,
//! the times of faults, and gaps that nodes told about. The checker judges nothing else.

use std::collections::HashMap;

use load::subscribers::SubscriberLog;

use super::faults::Fault;

/// How a publication ended for its publisher.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Accepted: owed to every subscriber.
    Acknowledged,
    /// Refused with this status: owed to nobody.
    Refused(u16),
    /// No answer: it may have been published or not.
    Unknown,
}

/// One publication.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Publication {
    /// The number in the message: [`stream`] of topic and node.
    pub(super) publisher: u32,
    /// Counted per publisher, from 0.
    pub(super) sequence: u32,
    pub(super) topic: u32,
    /// The node that it was published at.
    pub(super) node: usize,
    pub(super) sent_ns: u64,
    /// When it was answered, or given up.
    pub(super) ended_ns: u64,
    pub(super) answer: Answer,
}

/// The publisher of a topic at a node: its publications are made one after another, so they have an order.
pub(super) fn stream(topic: u32, node: usize, nodes: usize) -> u32 {
    topic * nodes as u32 + node as u32
}

/// A fault that was carried out.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Window {
    pub(super) fault: Fault,
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
}

/// A node told that publications between nodes are missing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Tell {
    pub(super) node: usize,
    pub(super) at_ns: u64,
}

/// All of it.
#[derive(Default)]
pub(super) struct Evidence {
    pub(super) publications: Vec<Publication>,
    pub(super) subscribers: Vec<SubscriberLog>,
    pub(super) windows: Vec<Window>,
    pub(super) tells: Vec<Tell>,
    /// Whether endpoint numbers of the subscribers are nodes; through a proxy they are not.
    pub(super) endpoints_are_nodes: bool,
    /// Clients ask for what they missed, so only a broker that lost its data explains a loss.
    pub(super) clients_recover: bool,
    /// Clients are told of gaps themselves, so what only their node counts explains nothing.
    pub(super) clients_are_told: bool,
    /// A kill of the broker loses nothing that it has taken.
    pub(super) broker_keeps_data: bool,
    /// From then on nothing was at fault: what is published must arrive everywhere.
    pub(super) calm_from_ns: u64,
    /// The proof ended before all had recovered: what had not arrived by then could still have come.
    pub(super) ended_early: bool,
}

impl Evidence {
    /// Publications of each topic in the order of sending, and the position of each in that list by publisher
    /// and number.
    pub(super) fn by_topic(&self) -> HashMap<u32, Topic<'_>> {
        let mut topics: HashMap<u32, Topic<'_>> = HashMap::new();
        for publication in &self.publications {
            topics.entry(publication.topic).or_default().publications.push(publication);
        }
        for topic in topics.values_mut() {
            topic.publications.sort_by_key(|one| (one.sent_ns, one.publisher, one.sequence));
            let numbered = topic.publications.iter().enumerate();
            topic.position =
                numbered.map(|(at, one)| ((one.publisher, one.sequence), at)).collect();
        }
        topics
    }
}

/// The publications of one topic.
#[derive(Default)]
pub(super) struct Topic<'a> {
    pub(super) publications: Vec<&'a Publication>,
    pub(super) position: HashMap<(u32, u32), usize>,
}
