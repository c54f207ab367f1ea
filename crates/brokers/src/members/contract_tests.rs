//! What every [`MemberStore`] does, with members in memory and with a real Redis.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;

use super::memory::Memory;
use super::versions::{Verdict, Versions};
use super::{Event, Member, MemberStore, State, Stored, Write};
use crate::broker::Settings;
use crate::envelope::NodeId;
use crate::redis::RedisTransport;
use crate::transport::{Arrived, Channel, Inbox, InboxReceiver, Link, Transport};

const A: NodeId = NodeId(0xa);
const B: NodeId = NodeId(0xb);
/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_secs(20);

/// A redis-server that ends with the test.
struct Server(Child, u16);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

impl Server {
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            eprintln!("skipped: no redis-server");
            return None;
        };
        let server = Server(child, port);
        for _ in 0..1_000 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server does not accept connections");
    }

    fn transport(&self) -> RedisTransport {
        let url = format!("redis://127.0.0.1:{}", self.1).parse().unwrap();
        RedisTransport { url, tls: None, sentinels: Vec::new() }
    }
}

fn settings() -> Settings {
    Settings {
        prefix: "test".to_owned(),
        node_name: "a".to_owned(),
        linger: Duration::ZERO,
        spool_bytes: 0,
        history: None,
        members: Some(Duration::from_secs(1)),
        values: None,
        clock: || 0,
        random: || 0,
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(3 * PATIENCE, test).await.expect("it ends");
    });
}

fn inbox() -> (Inbox, InboxReceiver) {
    Inbox::new(64 * 1024 * 1024, Arc::default())
}

/// Runs a test with each store. It gets two connections, and what arrives from the channel `c`.
fn with_each<F: Future<Output = ()>, G: Future<Output = ()>>(
    memory: impl FnOnce([Memory; 2], InboxReceiver) -> F,
    redis: impl FnOnce([crate::redis::RedisLink; 2], InboxReceiver) -> G,
) {
    let (sender, receiver) = inbox();
    let model = Memory::default();
    run(memory([model.connect(sender), model.clone()], receiver));
    let Some(server) = Server::start() else { return };
    run(async {
        let (sender, receiver) = inbox();
        let link = server.transport().connect(sender, &settings()).await.unwrap();
        link.subscribe(&["c".into()]).await.unwrap();
        let other = server.transport().connect(inbox().0, &settings()).await.unwrap();
        redis([link, other], receiver).await;
    });
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
    let mut all = store.load_members(&["k".to_owned()]).await.unwrap();
    let mut stored = all.pop().unwrap();
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
    assert_eq!(second.version, first.version + 2, "nothing is no change");
    for (node, version) in [(B, first.version + 1), (A, first.version + 2)] {
        let body = next(&mut inbox).await;
        let event = Event::decode(&body).unwrap();
        assert_eq!((event.node, event.before, event.after), (node, version - 1, version));
    }
    // The last one leaves, and the next members have a higher version.
    store.write_members(&[write(B, &[], &["ann"])]).await.unwrap();
    assert_eq!(load(&store).await, Stored::default());
    let body = next(&mut inbox).await;
    assert!(!Event::decode(&body).unwrap().rest);
    store.write_members(&[write(A, &[("ann", None)], &[])]).await.unwrap();
    let body = next(&mut inbox).await;
    let event = Event::decode(&body).unwrap();
    assert!(event.before == 0 && event.after > second.version + 1, "{event:?}");
}

#[test]
fn changes_have_one_order_and_versions_follow_each_other() {
    with_each(changes, changes);
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
    with_each(leases, leases);
}

async fn many([store, other]: [impl MemberStore; 2], _: InboxReceiver) {
    store.open_members("k").await.unwrap();
    let info = "x".repeat(4_000);
    let ids: Vec<String> = (0..super::WRITE_MEMBERS).map(|id| id.to_string()).collect();
    let present: Vec<(&str, Option<&str>)> = ids.iter().map(|id| (&**id, Some(&*info))).collect();
    let writes: Vec<Write> = (0..200)
        .map(|topic| Write {
            key: format!("k{topic}"),
            ..write(A, if topic == 0 { &present } else { &present[..3] }, &[])
        })
        .collect();
    store.write_members(&writes).await.unwrap();
    let keys: Vec<String> = (0..201).map(|topic| format!("k{topic}")).collect();
    let all = other.load_members(&keys).await.unwrap();
    let lengths: Vec<usize> = all.iter().map(|stored| stored.members.len()).collect();
    assert_eq!((lengths[0], lengths[200], lengths.len()), (ids.len(), 0, 201));
    assert!(lengths[1..200].iter().all(|length| *length == 3));
}

#[test]
fn many_members_and_many_topics_are_written_and_loaded_together() {
    with_each(many, many);
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
    for _ in 0..1_500 {
        let (node, id) = ([A, B][draw(2) as usize], draw(5).to_string());
        let info = draw(3).to_string();
        let change = match draw(2) {
            0 => write(node, &[(&id, Some(&info))], &[]),
            _ => write(node, &[], &[&id]),
        };
        match node {
            A => store.write_members(&[change]).await.unwrap(),
            _ => other.write_members(&[change]).await.unwrap(),
        }
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
    assert!(loads > 1 && arrived > 500, "{loads} loads, {arrived} changes");
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
    with_each(follow, follow);
}
