//! What the tests share: settings, envelopes, and a receiver that records.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use brokers::envelope::{Envelope, Except, Message, NodeId, Sequence};
use brokers::members::{Member, Members, OwnMember, State};
use brokers::{
    Broker, ConfirmedTopic, GapCause, HistorySettings, Kept, Outgoing, OwnedExcept, Past,
    Publication, Receiver, Settings, Undelivered,
};
use tokio::time::Instant;

/// A bound for what has to become true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn clock() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

pub(crate) fn random() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    RandomState::new().hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn settings(messages: usize, age: Duration) -> Settings {
    Settings {
        prefix: "test".to_owned(),
        node_name: "node".to_owned(),
        linger: Duration::from_millis(50),
        spool_bytes: 64 * 1024 * 1024,
        members: None,
        values: None,
        history: Some(HistorySettings { messages, age }),
        clock,
        random,
    }
}

pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until_ns = clock() + PATIENCE.as_nanos() as u64;
    while !is_so() {
        assert!(clock() < until_ns, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A publication of a node, by number.
pub(crate) fn envelope(node: u64, number: u64, transient: bool, data: &[u8]) -> Vec<u8> {
    let message = Message {
        node: NodeId(node),
        at: Sequence { epoch: 1, number },
        binary: false,
        transient,
        except: Except::None,
        kind: None,
        data,
    };
    Envelope::Publication(message).encode()
}

pub(crate) fn outgoing(channel: &str, node: u64, number: u64) -> Outgoing {
    let body = envelope(node, number, false, number.to_string().as_bytes());
    Outgoing { channel: channel.into(), body, keep: true, again: false }
}

pub(crate) fn text(body: &[u8]) -> String {
    match Envelope::decode(body) {
        Ok(Envelope::Publication(message)) => String::from_utf8_lossy(message.data).into_owned(),
        other => format!("{other:?}"),
    }
}

pub(crate) fn publication(data: impl Into<Vec<u8>>, transient: bool) -> Publication {
    let data = data.into().into();
    Publication { data, binary: false, transient, except: OwnedExcept::None, kind: None }
}

/// What a receiver was told of one topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Loaded { epoch: u32, floor: u64, last: u64, data: Vec<String> },
    Confirmed,
    Kept { epoch: u32, offset: u64, data: String },
    Again { epoch: u32, offset: u64, data: String },
    Transient(String),
    Gap(GapCause),
    Released,
}

/// Records what it is told, and refuses publications if it is told to.
#[derive(Default)]
pub(crate) struct Recorder {
    events: Mutex<Vec<(String, Event)>>,
    pub(crate) busy: AtomicBool,
    pub(crate) overloaded: AtomicBool,
    pub(crate) refused: AtomicU64,
}

impl Recorder {
    fn add(&self, topic: &str, event: Event) {
        self.events.lock().unwrap().push((topic.to_owned(), event));
    }

    pub(crate) fn of(&self, topic: &str) -> Vec<Event> {
        let events = self.events.lock().unwrap();
        events.iter().filter(|(of, _)| of == topic).map(|(_, event)| event.clone()).collect()
    }

    /// What was loaded and delivered, in order; panics if an offset does not follow the one before.
    pub(crate) fn data(&self, topic: &str) -> Vec<String> {
        let (mut at, mut all) = (None, Vec::new());
        for event in self.of(topic) {
            match event {
                Event::Loaded { epoch, last, data, .. } => {
                    at = Some((epoch, last));
                    all.extend(data);
                }
                Event::Again { epoch, offset, .. } => at = Some((epoch, offset)),
                Event::Kept { epoch, offset, data } => {
                    let (in_epoch, last) = at.expect("it is loaded first");
                    assert_eq!(epoch, in_epoch, "{data}");
                    assert!(offset > last, "{offset} follows {last}");
                    at = Some((epoch, offset));
                    all.push(data);
                }
                Event::Transient(data) => all.push(data),
                _ => {}
            }
        }
        all
    }

    pub(crate) fn gaps(&self, topic: &str) -> usize {
        self.of(topic).iter().filter(|event| matches!(event, Event::Gap(_))).count()
    }

    pub(crate) fn confirmed(&self, topic: &str) -> usize {
        self.of(topic).iter().filter(|event| **event == Event::Confirmed).count()
    }
}

impl Receiver for Recorder {
    fn publication(
        &self,
        topic: &str,
        message: &Message<'_>,
        kept: Option<Kept>,
    ) -> Result<(), Undelivered> {
        for (refuses, why) in
            [(&self.busy, Undelivered::Busy), (&self.overloaded, Undelivered::Overloaded)]
        {
            if refuses.load(Ordering::Relaxed) {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(why);
            }
        }
        let data = String::from_utf8_lossy(message.data).into_owned();
        let event = match kept.map(|kept| kept.position) {
            Some(at) => Event::Kept { epoch: at.epoch, offset: at.offset, data },
            None => Event::Transient(data),
        };
        self.add(topic, event);
        Ok(())
    }

    fn loaded(&self, topic: &str, past: &Past<'_>) {
        let data =
            |(_, message): &(Kept, Message<'_>)| String::from_utf8_lossy(message.data).into_owned();
        let data = past.messages.iter().map(data).collect();
        let Past { epoch, floor, last, .. } = *past;
        self.add(topic, Event::Loaded { epoch, floor, last, data });
    }

    fn kept_again(&self, topic: &str, message: &Message<'_>, kept: Kept) {
        let (brokers::Position { epoch, offset }, data) = (kept.position, text(message.data));
        self.add(topic, Event::Again { epoch, offset, data });
    }

    fn released(&self, topics: &[Box<str>]) {
        topics.iter().for_each(|topic| self.add(topic, Event::Released));
    }

    fn confirmed(&self, topics: &[ConfirmedTopic]) -> bool {
        topics.iter().for_each(|one| self.add(&one.topic, Event::Confirmed));
        true
    }

    fn gap(&self, topics: &[Box<str>], cause: GapCause) -> usize {
        topics.iter().for_each(|topic| self.add(topic, Event::Gap(cause)));
        topics.len()
    }

    fn command(&self, _: &[u8]) -> bool {
        true
    }

    fn members(&self) -> Option<&dyn Members> {
        Some(self)
    }
}

/// Nobody is present.
impl Members for Recorder {
    fn loaded(&self, _: &str, _: &[Member], _: bool) {}

    fn own_loaded(&self, _: &str, _: &[Member]) {}

    fn changed(&self, _: &str, _: NodeId, _: &[(&str, State<'_>)]) {}

    fn released(&self, _: &str) {}

    fn of_node(&self, _: NodeId) -> Vec<(Arc<str>, Vec<Arc<str>>)> {
        Vec::new()
    }

    fn own(&self, _: &mut OwnMember<'_>) {}

    fn tick(&self) -> Vec<Arc<str>> {
        Vec::new()
    }
}

/// A node whose broker is connected.
pub(crate) struct Node {
    pub(crate) broker: Arc<Broker>,
    pub(crate) heard: Arc<Recorder>,
}

impl Node {
    pub(crate) fn start<T>(transport: &T, settings: Settings) -> Node
    where
        T: brokers::Transport + Clone + Send + 'static,
    {
        let broker = Broker::new(settings, std::slice::from_ref(transport));
        let heard = Arc::new(Recorder::default());
        let receiver: Arc<dyn Receiver> = Arc::clone(&heard) as _;
        broker.start(vec![transport.clone()], receiver).unwrap();
        let node = Node { broker, heard };
        node.until_up();
        node
    }

    pub(crate) fn until_up(&self) {
        let trouble = || format!("connected: {:?}", self.broker.trouble());
        let until_ns = clock() + PATIENCE.as_nanos() as u64;
        while self.broker.trouble().is_some() {
            assert!(clock() < until_ns, "{}", trouble());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn publish(&self, topic: &str, data: impl Into<Vec<u8>>) {
        self.broker.publish(topic, publication(data, false), None).unwrap();
    }

    /// Follows a topic, and waits until it is confirmed.
    pub(crate) fn follow(&self, topic: &str) {
        let before = self.heard.confirmed(topic);
        self.broker.want(topic);
        eventually("confirmed", || self.heard.confirmed(topic) > before);
    }

    pub(crate) fn until_heard(&self, topic: &str, last: &str) {
        let heard = || self.heard.data(topic).iter().any(|data| data == last);
        let until_ns = clock() + PATIENCE.as_nanos() as u64;
        while !heard() {
            assert!(clock() < until_ns, "{last}: {:?}", self.heard.of(topic));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
