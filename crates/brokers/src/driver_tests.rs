//! Tests of the driver with connections that are lost.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;
use crate::broker::{ConfirmedTopic, Publication, Settings, Undelivered};
use crate::envelope::{Envelope, Except, Message, NodeId, Sequence};
use crate::kept::{Kept, Past, Position};
use crate::members::MemberStore;
use crate::transport::{Channel, Fetched, Incoming, Outgoing, Rejected, Taken};
use crate::{OwnedExcept, Ticket};

/// A broker that nobody connects to, except by [`Lossy`].
struct Nowhere;

impl Transport for Nowhere {
    type Link = Lossy;

    fn server(&self) -> String {
        "nowhere".to_owned()
    }

    async fn connect(&self, _: Inbox, _: &Settings) -> Result<Lossy, Fault> {
        Err(not_yet())
    }
}

/// A connection that is lost before the answer to the first batches.
#[derive(Default)]
struct Lossy {
    lost: Cell<usize>,
    sent: RefCell<Vec<Outgoing>>,
    is_over: bool,
}

/// Publications to the topic `a` arrive before the first connection ends.
struct Bursting(usize, AtomicBool);

impl Transport for Bursting {
    type Link = Lossy;

    fn server(&self) -> String {
        "somewhere".to_owned()
    }

    async fn connect(&self, inbox: Inbox, _: &Settings) -> Result<Lossy, Fault> {
        if self.1.swap(true, Ordering::Relaxed) {
            return Err(not_yet());
        }
        for number in 1..=self.0 as u64 {
            let message = Message {
                node: NodeId(9),
                at: Sequence { epoch: 1, number },
                binary: false,
                transient: false,
                except: Except::None,
                kind: None,
                data: b"x",
            };
            let (channel, body) = ("p:t:a".into(), Envelope::Publication(message).encode());
            inbox.push(Incoming { channel, body, kept: None });
        }
        Ok(Lossy { is_over: true, ..Lossy::default() })
    }
}

impl MemberStore for Lossy {}

impl Link for Lossy {
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Taken>, Fault> {
        self.sent.borrow_mut().extend_from_slice(batch);
        match self.lost.get() {
            0 => Ok(vec![Taken::To(None); batch.len()]),
            lost => {
                self.lost.set(lost - 1);
                Err(Fault::new(FaultKind::Closed, "lost"))
            }
        }
    }

    async fn subscribe(&self, _: &[Channel]) -> Result<Vec<(Channel, Rejected)>, Fault> {
        Ok(Vec::new())
    }

    async fn unsubscribe(&self, _: &[Channel]) -> Result<(), Fault> {
        Ok(())
    }

    async fn fetch(
        &self,
        _: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
        Ok(Vec::new())
    }

    async fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn ended(&self) -> Fault {
        match self.is_over {
            true => Fault::new(FaultKind::Closed, "over"),
            false => std::future::pending().await,
        }
    }
}

/// Takes a few gaps with each call, and sometimes none.
#[derive(Default)]
struct Slow {
    told: Mutex<Vec<Box<str>>>,
    calls: AtomicUsize,
    /// Takes no confirmations.
    is_full: AtomicBool,
    confirmed: Mutex<Vec<ConfirmedTopic>>,
    /// Publications offered and taken: every other one.
    offered: AtomicUsize,
    taken: AtomicUsize,
}

impl Receiver for Slow {
    fn publication(&self, _: &str, _: &Message<'_>, _: Option<Kept>) -> Result<(), Undelivered> {
        if self.offered.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Err(Undelivered::Busy);
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn loaded(&self, _: &str, _: &Past<'_>) {}

    fn kept_again(&self, _: &str, _: &Message<'_>, _: Kept) {}

    fn released(&self, _: &[Box<str>]) {}

    fn confirmed(&self, topics: &[ConfirmedTopic]) -> bool {
        let is_full = self.is_full.load(Ordering::Relaxed);
        if !is_full {
            self.confirmed.lock().unwrap().extend_from_slice(topics);
        }
        !is_full
    }

    fn gap(&self, topics: &[Box<str>], _: GapCause) -> usize {
        let room = (self.calls.fetch_add(1, Ordering::Relaxed) % 4).min(topics.len());
        self.told.lock().unwrap().extend_from_slice(&topics[..room]);
        room
    }

    fn command(&self, _: &[u8]) -> bool {
        true
    }
}

fn driver(receiver: Arc<dyn Receiver>) -> Driver {
    let settings = Settings {
        prefix: "p".to_owned(),
        node_name: "a".to_owned(),
        linger: Duration::ZERO,
        spool_bytes: usize::MAX,
        history: None,
        members: None,
        values: None,
        clock: || 1,
        random: || 7,
    };
    Driver::new(Broker::new(settings, &[Nowhere]), 0, receiver)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

#[test]
fn a_gap_that_finds_no_room_goes_on_with_the_topics_that_are_left() {
    let slow = Arc::new(Slow::default());
    let driver = driver(Arc::<Slow>::clone(&slow));
    let topics: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let channels: Vec<String> = topics.iter().map(|topic| format!("p:t:{topic}")).collect();
    block_on(driver.gap(&channels, GapCause::Reconnected));
    assert_eq!(slow.told.lock().unwrap().join(" "), topics.join(" "), "each once");
}

#[test]
fn what_had_arrived_before_a_connection_ended_is_delivered_first() {
    const ARRIVED: usize = 50;
    let slow = Arc::new(Slow::default());
    let driver = driver(Arc::<Slow>::clone(&slow));
    let broker = Arc::clone(&driver.broker);
    assert!(!broker.prepare("a"));
    let faults = || broker.counters.faults()[FaultKind::Closed as usize];
    let until_ended = async {
        tokio::select! {
            () = driver.run(Bursting(ARRIVED, AtomicBool::new(false))) => {}
            () = async {
                while faults() == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            } => {}
        }
    };
    block_on(until_ended);
    assert_eq!(slow.taken.load(Ordering::Relaxed), ARRIVED);
    assert_eq!(broker.counters.dropped.load(Ordering::Relaxed), 0);
}

#[test]
fn a_publication_counts_as_unsent_until_the_broker_has_it() {
    let driver = driver(Arc::new(Slow::default()));
    let broker = Arc::clone(&driver.broker);
    let publication = || Publication {
        data: b"x".as_slice().into(),
        binary: false,
        transient: false,
        except: OwnedExcept::None,
        kind: None,
    };
    let tickets: Vec<Arc<Ticket>> = (0..3).map(|_| Ticket::new()).collect();
    for ticket in &tickets {
        broker.publish("a", publication(), Some(Arc::clone(ticket))).unwrap();
    }
    assert_eq!(broker.unsent(), 3);
    assert_eq!(tickets[1].wait(Duration::ZERO), crate::Outcome::Withdrawn);
    let link = Lossy { lost: Cell::new(2), ..Lossy::default() };
    for connection in 1..=2 {
        driver.connected(0);
        let fault = block_on(driver.publish(&link));
        assert_eq!(broker.unsent(), 2, "on their way");
        driver.disconnected(1, fault);
        assert_eq!(broker.unsent(), 2, "to be sent again after connection {connection}");
    }
    driver.connected(0);
    let until_sent = async {
        tokio::select! {
            fault = driver.publish(&link) => panic!("{fault}"),
            () = async {
                while broker.unsent() > 0 {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
    };
    block_on(until_sent);
    let sent = link.sent.borrow();
    let bodies = sent.iter().filter(|one| one.channel.contains(":t:")).map(|one| &one.body);
    let bodies: Vec<&Vec<u8>> = bodies.collect();
    assert_eq!(bodies.len(), 6, "both by each of the connections");
    assert!(bodies[..2] == bodies[2..4] && bodies[..2] == bodies[4..], "with the same numbers");
}

#[test]
fn a_confirmation_that_found_no_room_before_its_connection_ended_is_told_by_the_next() {
    let slow = Arc::new(Slow::default());
    let driver = driver(Arc::<Slow>::clone(&slow));
    let interest = |driver: &Driver| driver.shard().lock().interest.take_wanted();
    assert!(!driver.broker.prepare("a"), "somebody waits");
    slow.is_full.store(true, Ordering::Relaxed);
    let asked = interest(&driver);
    let ended = async {
        tokio::select! {
            () = driver.confirm(&asked) => panic!("there is no room"),
            () = tokio::task::yield_now() => {}
        }
    };
    block_on(ended);
    driver.disconnected(1, not_yet());
    slow.is_full.store(false, Ordering::Relaxed);
    block_on(driver.confirm(&interest(&driver)));
    let told = slow.confirmed.lock().unwrap().clone();
    assert_eq!(told, [ConfirmedTopic { topic: "a".into(), awaited: true }]);
    driver.disconnected(1, not_yet());
    block_on(driver.confirm(&interest(&driver)));
    assert!(!slow.confirmed.lock().unwrap().last().unwrap().awaited, "once");
}
