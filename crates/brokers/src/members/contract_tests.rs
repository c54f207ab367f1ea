//! What every [`MemberStore`] does, with members in memory, with a real Redis and a real NATS.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::memory::Memory;
use super::versions::{Verdict, Versions};
use super::{Event, Member, MemberStore, State, Stored, Write};
use crate::broker::Settings;
use crate::envelope::NodeId;
use crate::nats::NatsLink;
use crate::redis::RedisLink;
use crate::test_servers::{Server, run};
use crate::transport::{Arrived, Channel, Inbox, InboxReceiver, Link, Transport};

const A: NodeId = NodeId(0xa);
const B: NodeId = NodeId(0xb);
/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    Settings { members: Some(Duration::from_secs(1)), ..crate::test_servers::settings() }
}

fn inbox() -> (Inbox, InboxReceiver) {
    Inbox::new(64 * 1024 * 1024, Arc::default())
}

/// Runs a test with each store. It gets two connections, and what arrives from the channel `c`.
fn with_each<F: Future<Output = ()>, G: Future<Output = ()>, H: Future<Output = ()>>(
    memory: impl FnOnce([Memory; 2], InboxReceiver) -> F,
    redis: impl FnOnce([RedisLink; 2], InboxReceiver) -> G,
    nats: impl FnOnce([NatsLink; 2], InboxReceiver) -> H,
) {
    let (sender, receiver) = inbox();
    let model = Memory::default();
    run(memory([model.connect(sender), model.clone()], receiver));
    if let Some(server) = Server::redis(&[]) {
        run(async {
            let (links, receiver) = links(&server.redis_as("")).await;
            redis(links, receiver).await;
        });
    }
    if let Some(server) = Server::nats(&[]) {
        run(async {
            let (links, receiver) = links(&server.nats_transport()).await;
            nats(links, receiver).await;
        });
    }
}

async fn links<T: Transport>(transport: &T) -> ([T::Link; 2], InboxReceiver) {
    let (sender, receiver) = inbox();
    let link = transport.connect(sender, &settings()).await.unwrap();
    link.subscribe(&["c".into()]).await.unwrap();
    let other = transport.connect(inbox().0, &settings()).await.unwrap();
    ([link, other], receiver)
}

fn write(node: NodeId, present: &[(&str, Option<&str>)], absent: &[&str]) -> Write {
    let present = present.iter().map(|(id, info)| ((*id).into(), info.map(Into::into)));
    Write {
        key: "k".into(),
        channel: "c".into(),
        node,
        present: present.collect(),
        absent: absent.iter().map(|id| (*id).into()).collect(),
    }
}

async fn load(store: &impl MemberStore) -> Stored {
    let mut all = store.load_members(&[("k".to_owned(), "c".into())]).await.unwrap();
    let mut stored = all.pop().unwrap().unwrap();
    stored.members.sort_by(|one, other| (one.node, &one.id).cmp(&(other.node, &other.id)));
    stored
}

async fn next(inbox: &mut InboxReceiver) -> Vec<u8> {
    let arrived = tokio::time::timeout(PATIENCE, inbox.next()).await;
    body(arrived.expect("a message in time").unwrap())
}

fn body(arrived: Arrived) -> Vec<u8> {
    match arrived {
        Arrived::Message(message) => message.body,
        other @ Arrived::Ended(_) => panic!("{other:?}"),
    }
}

fn member(node: NodeId, id: &str, info: Option<&str>) -> Member {
    Member { node, id: id.into(), info: info.map(Into::into) }
}

async fn changes([store, other]: [impl MemberStore; 2], mut inbox: InboxReceiver) {
    store.open_members("k").await.unwrap();
    other.open_members("k").await.unwrap();
    assert_eq!(load(&store).await, Stored::default());
    store.write_members(&[write(A, &[("ann", Some("{}")), ("é", None)], &["bob"])]).await.unwrap();
    let first = load(&other).await;
    assert_eq!(first.members, [member(A, "ann", Some("{}")), member(A, "é", None)]);
    let body = next(&mut inbox).await;
    let event = Event::decode(&body).unwrap();
    assert_eq!((event.before, event.after, event.rest), (0, first.version, true));
    let ann = ("ann", State::Present(Some("{}")));
    assert_eq!(event.changes, [ann, ("é", State::Present(None)), ("bob", State::Absent)]);
    // The same id at another node, and a change of nothing.
    let both = [write(B, &[("ann", Some("1"))], &[]), write(B, &[], &["nobody"])];
    other.write_members(&both).await.unwrap();
    store.write_members(&[write(A, &[], &["ann", "é"])]).await.unwrap();
    let second = load(&store).await;
    assert_eq!(second.members, [member(B, "ann", Some("1"))]);
    let (mut known, mut told) = (first.version, Vec::new());
    while known != second.version {
        let body = next(&mut inbox).await;
        let event = Event::decode(&body).unwrap();
        assert_eq!(event.before, known);
        known = event.after;
        // Nothing may be told, too.
        if event.changes != [("nobody", State::Absent)] {
            told.push(event.node);
        }
    }
    assert_eq!(told, [B, A]);
    // The last one leaves, and the next members have a higher version.
    store.write_members(&[write(B, &[], &["ann"])]).await.unwrap();
    let third = load(&store).await;
    assert_eq!(third.members, []);
    let body = next(&mut inbox).await;
    let event = Event::decode(&body).unwrap();
    assert_eq!((event.before, third.version), (known, if event.rest { event.after } else { 0 }));
    let highest = event.after;
    store.write_members(&[write(A, &[("ann", None)], &[])]).await.unwrap();
    let body = next(&mut inbox).await;
    let event = Event::decode(&body).unwrap();
    assert!(event.before == third.version && event.after > highest, "{event:?}");
}

#[test]
fn changes_have_one_order_and_versions_follow_each_other() {
    with_each(changes, changes, changes);
}

async fn leases([store, other]: [impl MemberStore; 2], _: InboxReceiver) {
    let [one, two] = ["n:1".to_owned(), "n:2".to_owned()];
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(50));
    assert!(!store.renew_lease(&one, long).await.unwrap(), "it has not begun");
    store.begin_lease(&one, long).await.unwrap();
    store.begin_lease(&two, short).await.unwrap();
    assert!(store.renew_lease(&one, long).await.unwrap());
    let both = [one.clone(), two.clone()];
    while other.leases(&both).await.unwrap() != [true, false] {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!store.renew_lease(&two, long).await.unwrap(), "it has ended");
    other.end_lease(&one).await.unwrap();
    assert_eq!(store.leases(&both).await.unwrap(), [false, false]);
}

#[test]
fn a_lease_lasts_for_its_time_and_is_not_renewed_after_it() {
    with_each(leases, leases, leases);
}

async fn many([store, other]: [impl MemberStore; 2], _: InboxReceiver) {
    store.open_members("k").await.unwrap();
    other.open_members("k").await.unwrap();
    let info = "x".repeat(4_000);
    let ids: Vec<String> = (0..super::WRITE_MEMBERS).map(|id| id.to_string()).collect();
    let present: Vec<(&str, Option<&str>)> = ids.iter().map(|id| (&**id, Some(&*info))).collect();
    let writes: Vec<Write> = (0..200)
        .map(|topic| Write {
            key: format!("k{topic}"),
            channel: format!("c{topic}").into(),
            ..write(A, if topic == 0 { &present } else { &present[..3] }, &[])
        })
        .collect();
    store.write_members(&writes).await.unwrap();
    let key = |topic| (format!("k{topic}"), format!("c{topic}").into());
    let all = other.load_members(&(0..201).map(key).collect::<Vec<_>>()).await.unwrap();
    let lengths: Vec<usize> = all.iter().flatten().map(|stored| stored.members.len()).collect();
    assert_eq!((lengths[0], lengths[200], lengths.len()), (ids.len(), 0, 201));
    assert!(lengths[1..200].iter().all(|length| *length == 3));
    // Two nodes remove them at the same time, each some first; who is there then is there alone.
    let place = || Write { key: "k0".into(), channel: "c0".into(), ..write(A, &[], &[]) };
    let absent: Vec<Arc<str>> = ids.iter().map(|id| (&**id).into()).collect();
    let halves = absent.chunks(absent.len() / 2).map(<[_]>::to_vec);
    let halves: Vec<Write> = halves.map(|absent| Write { absent, ..place() }).collect();
    let reversed: Vec<Write> = halves.iter().rev().cloned().collect();
    let (one, two) = tokio::join!(store.write_members(&halves), other.write_members(&reversed));
    one.and(two).unwrap();
    let load = async || other.load_members(&[key(0)]).await.unwrap().remove(0).unwrap().members;
    assert_eq!(load().await, []);
    let present = vec![("7".into(), None)];
    store.write_members(&[Write { present, ..place() }]).await.unwrap();
    assert_eq!(load().await, [member(A, "7", None)]);
}

#[test]
fn many_members_and_many_topics_are_written_and_loaded_together() {
    with_each(many, many, many);
}

/// Applies what arrives until the version is that of the store.
async fn follow([store, other]: [impl MemberStore; 2], mut inbox: InboxReceiver) {
    store.open_members("k").await.unwrap();
    other.open_members("k").await.unwrap();
    let (channel, mut versions) = (Channel::from("c"), Versions::default());
    versions.follow(&[Channel::clone(&channel)]);
    let (mut seen, mut random) = (BTreeMap::<(NodeId, String), Option<String>>::new(), 7_u64);
    let mut draw = |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut loads, mut arrived) = (0, 0);
    let mut wanted = true;
    for _ in 0..600 {
        let (node, id) = ([A, B][draw(2) as usize], draw(5).to_string());
        let info = draw(3).to_string();
        let change = match draw(2) {
            0 => write(node, &[(&id, Some(&info))], &[]),
            _ => write(node, &[], &[&id]),
        };
        let written = match node {
            A => store.write_members(&[change]).await,
            _ => other.write_members(&[change]).await,
        };
        assert_eq!(written, Ok(vec![Ok(())]));
        if wanted {
            wanted = false;
            versions.begin(&channel);
            let stored = load(&other).await;
            loads += 1;
            seen = stored
                .members
                .into_iter()
                .map(|one| ((one.node, one.id.into()), one.info.map(Into::into)))
                .collect();
            assert!(versions.loaded("c", stored.version).is_some());
        }
        while let Some(message) = inbox.try_next().map(body) {
            arrived += 1;
            // Some are lost.
            if draw(50) == 0 {
                continue;
            }
            let event = Event::decode(&message).unwrap();
            match versions.arrived("c", &event, &message) {
                Verdict::Apply => event.changes.iter().for_each(|(id, state)| {
                    let key = (event.node, (*id).to_owned());
                    match state {
                        State::Present(info) => drop(seen.insert(key, info.map(Into::into))),
                        State::Absent => drop(seen.remove(&key)),
                    }
                }),
                Verdict::Reload => wanted = true,
                Verdict::Ignore => {}
                Verdict::Waits => panic!("nothing is being loaded"),
            }
        }
        tokio::task::yield_now().await;
    }
    assert!(loads > 1 && arrived > 200, "{loads} loads, {arrived} changes");
    // One more change makes the last loss known.
    store.write_members(&[write(A, &[("end", None)], &[])]).await.unwrap();
    let end = loop {
        let body = next(&mut inbox).await;
        let event = Event::decode(&body).unwrap();
        let verdict = versions.arrived("c", &event, &body);
        if event.changes.iter().any(|(id, _)| *id == "end") {
            break verdict;
        }
        for (id, state) in event.changes.iter().filter(|_| verdict == Verdict::Apply) {
            let key = (event.node, (*id).to_owned());
            match state {
                State::Present(info) => drop(seen.insert(key, info.map(Into::into))),
                State::Absent => drop(seen.remove(&key)),
            }
        }
    };
    if end == Verdict::Apply {
        seen.insert((A, "end".into()), None);
        let stored = load(&store).await.members.into_iter();
        let stored: BTreeMap<_, _> =
            stored.map(|one| ((one.node, one.id.into()), one.info.map(Into::into))).collect();
        assert_eq!(seen, stored);
    }
}

#[test]
fn who_follows_the_changes_has_the_members_or_knows_that_some_are_missing() {
    with_each(follow, follow, follow);
}
