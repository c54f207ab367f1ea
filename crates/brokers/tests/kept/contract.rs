//! What every transport with a history promises. Each test is run against the model and against real servers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use brokers::limits::BATCH_CHANNELS;
use brokers::{
    Arrived, Channel, Fetched, Inbox, InboxReceiver, Incoming, Kept, Link, Outgoing, Placement,
    Position, Settings, Taken, Transport,
};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::support::{PATIENCE, envelope, outgoing, settings, text};

const HOUR: Duration = Duration::from_secs(3600);
const CHANNEL: &str = "test:t:room";

/// A transport, and what makes its server lose all that it keeps.
pub(crate) struct Stand<'s, T> {
    pub(crate) transport: T,
    pub(crate) lose: &'s mut dyn FnMut(),
    /// Publications of several nodes to one topic arrive in the order of their offsets, always.
    pub(crate) in_order: bool,
}

/// A connection and what arrives by it.
struct Peer<L> {
    link: L,
    inbox: InboxReceiver,
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

async fn connect<T: Transport>(transport: &T, settings: &Settings) -> Peer<T::Link> {
    let (inbox, receiver) = Inbox::new(1 << 26, Arc::new(AtomicU64::new(0)));
    let link = transport.connect(inbox, settings).await.unwrap();
    Peer { link, inbox: receiver }
}

impl<L: Link> Peer<L> {
    async fn next(&mut self) -> Incoming {
        match tokio::time::timeout(PATIENCE, self.inbox.next()).await.unwrap().unwrap() {
            Arrived::Message(message) => message,
            other @ Arrived::Ended(_) => panic!("{other:?}"),
        }
    }

    async fn publish(&self, batch: &[Outgoing]) -> Vec<Option<Position>> {
        let taken = self.link.publish(batch).await.unwrap();
        let position = |taken: Taken| match taken {
            Taken::Kept { position, .. } => position,
            other => panic!("{other:?}"),
        };
        taken.into_iter().map(position).collect()
    }

    async fn subscribe(&self, channel: &str) {
        self.link.subscribe(&[channel.into()]).await.unwrap();
    }

    async fn fetch(&self, channel: &str, after: Option<Position>) -> Fetched {
        let wanted = [(Channel::from(channel), after)];
        self.link.fetch(&wanted).await.unwrap().pop().unwrap().unwrap()
    }
}

fn texts(fetched: &Fetched) -> Vec<String> {
    fetched.messages.iter().map(|(_, body)| text(body)).collect()
}

/// Everything that holds for a transport.
pub(crate) fn all<T: Transport>(stand: &mut Stand<'_, T>) {
    run(async {
        order(stand).await;
        boundaries(stand).await;
        numbers_evict(stand).await;
        age_evicts(stand).await;
        resent(stand).await;
        late(stand).await;
        loss(stand).await;
        transient(stand).await;
        many_channels(stand).await;
        empty(stand).await;
    });
}

/// Two publishers at the same time, and two subscribers: one order, in which each offset follows the one before.
async fn order<T: Transport>(stand: &Stand<'_, T>) {
    const EACH: u64 = 1_000;
    let settings = settings(5_000, HOUR);
    let channel = "test:t:order";
    let mut peers =
        [connect(&stand.transport, &settings).await, connect(&stand.transport, &settings).await];
    for peer in &peers {
        peer.subscribe(channel).await;
    }
    let [a, b] = &peers;
    let publish = async |peer: &Peer<T::Link>, node: u64| {
        let mut positions = Vec::new();
        for batch in (1..=EACH).collect::<Vec<_>>().chunks(50) {
            let batch: Vec<Outgoing> = batch
                .iter()
                .map(|number| {
                    let body =
                        envelope(node, *number, false, format!("{node}/{number}").as_bytes());
                    Outgoing { channel: channel.into(), body, keep: true, again: false }
                })
                .collect();
            positions.extend(peer.publish(&batch).await);
        }
        positions
    };
    let (of_a, of_b) = tokio::join!(publish(a, 1), publish(b, 2));
    let mut orders = Vec::new();
    for peer in &mut peers {
        let mut seen = Vec::new();
        for _ in 0..2 * EACH {
            let message = peer.next().await;
            let (kept, before) = message.kept.unwrap();
            seen.push((kept, before, text(&message.body)));
        }
        if !stand.in_order {
            seen.sort_by_key(|(kept, _, _)| kept.position.offset);
        }
        let mut last = 0;
        for (kept, before, _) in &seen {
            assert_eq!(*before, last, "the chain has no hole");
            assert!(kept.position.offset > last);
            last = kept.position.offset;
        }
        let seen: Vec<_> = seen.into_iter().map(|(kept, _, text)| (kept, text)).collect();
        orders.push(seen);
    }
    let without_time = |order: &[(Kept, String)]| {
        order.iter().map(|(kept, text)| (kept.position, text.clone())).collect::<Vec<_>>()
    };
    let [a, b] = [&orders[0], &orders[1]].map(|order| without_time(order));
    assert_eq!(a, b);
    for (node, positions) in [(1, of_a), (2, of_b)] {
        let own = orders[0].iter().filter(|(_, data)| data.starts_with(&format!("{node}/")));
        let own: Vec<Option<Position>> = own.map(|(kept, _)| Some(kept.position)).collect();
        assert_eq!(own, positions, "publishers are told where it is kept");
    }
    let fetched = peers[0].fetch(channel, None).await;
    let kept: Vec<_> = fetched.messages.iter().map(|(kept, body)| (*kept, text(body))).collect();
    assert_eq!(without_time(&kept), a, "what is fetched is what was passed on");
    let pairs = kept.iter().zip(&orders[0]).map(|((one, _), (other, _))| (one, other));
    let patience = PATIENCE.as_millis() as u64;
    assert!(pairs.into_iter().all(|(one, other)| one.time_ms.abs_diff(other.time_ms) < patience));
}

async fn boundaries<T: Transport>(stand: &Stand<'_, T>) {
    let peer = connect(&stand.transport, &settings(100, HOUR)).await;
    let batch: Vec<Outgoing> = (1..=9).map(|number| outgoing(CHANNEL, 1, number)).collect();
    let positions: Vec<Position> = peer.publish(&batch).await.into_iter().flatten().collect();
    let whole = peer.fetch(CHANNEL, None).await;
    assert_eq!(texts(&whole), ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert!(whole.floor < positions[0].offset && whole.last == positions[8].offset);
    let first = whole.messages[0].0;
    assert!(whole.floor_ms <= first.time_ms);
    for (at, position) in positions.iter().enumerate() {
        let fetched = peer.fetch(CHANNEL, Some(*position)).await;
        assert_eq!(texts(&fetched), texts(&whole)[at + 1..], "after {position:?}");
        assert!(fetched.continues(*position));
    }
    let last = positions[8];
    let beyond = Position { offset: last.offset + 1, ..last };
    let elsewhere = Position { epoch: last.epoch ^ 1, ..last };
    for unknown in [beyond, elsewhere] {
        let fetched = peer.fetch(CHANNEL, Some(unknown)).await;
        assert!(!fetched.continues(unknown));
        assert_eq!(texts(&fetched), texts(&whole), "all, as the position is unknown");
    }
}

async fn numbers_evict<T: Transport>(stand: &Stand<'_, T>) {
    let (peer, channel) = (connect(&stand.transport, &settings(5, HOUR)).await, "test:t:numbers");
    let batch: Vec<Outgoing> = (1..=12).map(|number| outgoing(channel, 1, number)).collect();
    let positions: Vec<Position> = peer.publish(&batch).await.into_iter().flatten().collect();
    let whole = peer.fetch(channel, None).await;
    assert_eq!(texts(&whole), ["8", "9", "10", "11", "12"]);
    assert!(whole.floor >= positions[6].offset && whole.floor < positions[7].offset);
    assert!(whole.floor_ms <= whole.messages[0].0.time_ms);
    assert!(!peer.fetch(channel, Some(positions[5])).await.continues(positions[5]));
    for position in &positions[6..] {
        assert!(peer.fetch(channel, Some(*position)).await.continues(*position));
    }
}

async fn age_evicts<T: Transport>(stand: &Stand<'_, T>) {
    let short = settings(100, Duration::from_secs(1));
    let (peer, channel) = (connect(&stand.transport, &short).await, "test:t:age");
    let batch = [outgoing(channel, 1, 1), outgoing(channel, 1, 2)];
    let positions = peer.publish(&batch).await;
    let (first, last) = (positions[0].unwrap(), positions[1].unwrap());
    let mut fetched = peer.fetch(channel, None).await;
    assert_eq!(texts(&fetched), ["1", "2"]);
    for _ in 0..1_000 {
        if fetched.messages.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        fetched = peer.fetch(channel, None).await;
    }
    assert_eq!((texts(&fetched), fetched.last), (vec![], last.offset));
    assert!(fetched.continues(last), "who has missed nothing is told so");
    assert!(!fetched.continues(first));
    let third = peer.publish(&[outgoing(channel, 1, 3)]).await[0].unwrap();
    let fetched = peer.fetch(channel, Some(last)).await;
    assert!(fetched.continues(last) && third.epoch == last.epoch);
    assert_eq!(texts(&fetched), ["3"]);
}

/// What is sent again after a lost connection is kept once and passed on once.
async fn resent<T: Transport>(stand: &Stand<'_, T>) {
    let channel = "test:t:resent";
    let settings = settings(4, HOUR);
    let mut peer = connect(&stand.transport, &settings).await;
    peer.subscribe(channel).await;
    let batch: Vec<Outgoing> = (1..=3).map(|number| outgoing(channel, 1, number)).collect();
    let positions = peer.publish(&batch).await;
    let again = |number| Outgoing { again: true, ..outgoing(channel, 1, number) };
    let batch: Vec<Outgoing> = (1..=4).map(again).collect();
    let repeated = peer.publish(&batch).await;
    assert_eq!(repeated[..3], positions);
    assert_eq!(texts(&peer.fetch(channel, None).await), ["1", "2", "3", "4"]);
    for expected in ["1", "2", "3", "4"] {
        assert_eq!(text(&peer.next().await.body), expected);
    }
    // The one that was kept is evicted already.
    let batch: Vec<Outgoing> = (5..=9).map(|number| outgoing(channel, 1, number)).collect();
    let sixth = peer.publish(&batch).await[1].unwrap().offset;
    let before = positions[0].unwrap().offset;
    let fifth = peer.publish(&[again(5)]).await[0];
    assert!(fifth.is_none_or(|at| at.offset > before && at.offset < sixth), "{fifth:?}");
    assert_eq!(texts(&peer.fetch(channel, None).await), ["6", "7", "8", "9"]);
}

/// What a lost connection still brings, after it was sent again, is not kept and passed on another time.
async fn late<T: Transport>(stand: &Stand<'_, T>) {
    let (peer, channel) = (connect(&stand.transport, &settings(100, HOUR)).await, "test:t:late");
    let again = |number| Outgoing { again: true, ..outgoing(channel, 3, number) };
    peer.publish(&[again(1), again(2)]).await;
    peer.publish(&[outgoing(channel, 3, 1), outgoing(channel, 3, 2)]).await;
    peer.publish(&[outgoing(channel, 4, 1), outgoing(channel, 3, 3)]).await;
    assert_eq!(texts(&peer.fetch(channel, None).await), ["1", "2", "1", "3"]);
}

async fn loss<T: Transport>(stand: &mut Stand<'_, T>) {
    let (settings, channel) = (settings(100, HOUR), "test:t:loss");
    let peer = connect(&stand.transport, &settings).await;
    let before = peer.publish(&[outgoing(channel, 1, 1)]).await[0].unwrap();
    assert!(peer.fetch(channel, Some(before)).await.continues(before));
    (stand.lose)();
    let peer = connect(&stand.transport, &settings).await;
    let fetched = peer.fetch(channel, Some(before)).await;
    assert!(!fetched.continues(before) && fetched.messages.is_empty());
    assert_ne!(fetched.epoch, before.epoch);
    let after = peer.publish(&[outgoing(channel, 1, 2)]).await[0].unwrap();
    assert_eq!(after.epoch, fetched.epoch, "the epoch that was told");
    assert!(!peer.fetch(channel, Some(before)).await.continues(before));
}

/// What is not kept is passed on between the others, in order.
async fn transient<T: Transport>(stand: &Stand<'_, T>) {
    let channel = "test:t:transient";
    let mut peer = connect(&stand.transport, &settings(100, HOUR)).await;
    peer.subscribe(channel).await;
    let (body, keep) = (envelope(1, 2, true, b"2"), false);
    let transient = Outgoing { channel: channel.into(), body, keep, again: false };
    let batch = [outgoing(channel, 1, 1), transient, outgoing(channel, 1, 3)];
    let taken = peer.link.publish(&batch).await.unwrap();
    assert!(matches!(taken[1], Taken::To(_)), "{taken:?}");
    let mut seen = Vec::new();
    for _ in 0..3 {
        let message = peer.next().await;
        seen.push((text(&message.body), message.kept.is_some()));
    }
    let expected = [("1", true), ("2", false), ("3", true)];
    assert_eq!(seen, expected.map(|(data, is_kept)| (data.to_owned(), is_kept)));
    assert_eq!(texts(&peer.fetch(channel, None).await), ["1", "3"]);
}

async fn many_channels<T: Transport>(stand: &Stand<'_, T>) {
    let peer = connect(&stand.transport, &settings(100, HOUR)).await;
    let names: Vec<Channel> =
        (0..BATCH_CHANNELS).map(|number| format!("test:t:many:{number}").into()).collect();
    let batch: Vec<Outgoing> =
        names.iter().flat_map(|name| [outgoing(name, 1, 1), outgoing(name, 1, 2)]).collect();
    let positions = peer.publish(&batch).await;
    let wanted = names.iter().zip(positions.chunks(2)).enumerate().map(|(at, (name, of))| {
        let after = of[at % 2].filter(|_| at % 3 > 0);
        (Channel::clone(name), after)
    });
    let wanted: Vec<(Channel, Option<Position>)> = wanted.collect();
    let all = peer.link.fetch(&wanted).await.unwrap();
    assert_eq!(all.len(), BATCH_CHANNELS);
    for (at, fetched) in all.iter().enumerate() {
        let expected: &[&str] = match (at % 3, at % 2) {
            (0, _) => &["1", "2"],
            (_, 0) => &["2"],
            _ => &[],
        };
        assert_eq!(texts(fetched.as_ref().unwrap()), expected, "channel {at}");
    }
}

/// A topic that nothing was published to has a position, too.
async fn empty<T: Transport>(stand: &Stand<'_, T>) {
    let peer = connect(&stand.transport, &settings(100, HOUR)).await;
    for name in ["test:t:empty", "test:t:}{", "test:t:*?[é ", "test:t:"] {
        // As the broker names it.
        let name = match stand.transport.placement() {
            Placement::Slots(_) => &format!("{{{name}}}"),
            Placement::Hashed => name,
        };
        let before = peer.fetch(name, None).await;
        let start = Position { epoch: before.epoch, offset: before.last };
        assert!(before.messages.is_empty() && before.continues(start));
        let first = peer.publish(&[outgoing(name, 1, 1)]).await[0].unwrap();
        let fetched = peer.fetch(name, Some(start)).await;
        assert!(fetched.continues(start) && first.epoch == start.epoch, "{name}");
        assert_eq!(texts(&fetched), ["1"]);
    }
}
