//! Histories that are longer than what one command answers with.

use std::sync::Arc;
use std::time::Duration;

use brokers::limits::FETCH_BYTES;
use brokers::{Inbox, Link, Outgoing, Position, Transport};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::servers::{RedisCluster, RedisServer};
use crate::support::{envelope, settings};

const MESSAGES: u64 = 150;

/// Topics of twice what one command answers with, one with short messages, and one that is empty.
fn long_histories_are_fetched_whole<T: Transport>(transport: &T, prefix: &str, suffix: &str) {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    let test = async {
        let (inbox, _) = Inbox::new(1 << 20, Arc::default());
        let settings = settings(100, Duration::from_secs(3600));
        let link = transport.connect(inbox, &settings).await.unwrap();
        let name = |at: u64| format!("{prefix}test:t:long{at}{suffix}").into();
        let long = vec![b'x'; 2 * FETCH_BYTES / 100];
        for number in 1..=MESSAGES {
            let one = |(at, data): (u64, &[u8])| {
                let body = envelope(1, number, false, data);
                Outgoing { channel: name(at), body, keep: true, again: false }
            };
            let batch: Vec<Outgoing> =
                [(0, &*long), (1, &*long), (2, b"short")].map(one).into_iter().collect();
            link.publish(&batch).await.unwrap();
        }
        let fetched = link.fetch(&[0, 1, 2, 3].map(|at| (name(at), None))).await.unwrap();
        let epochs: Vec<u32> = fetched.iter().flatten().map(|one| one.epoch).collect();
        for (at, fetched) in fetched.into_iter().enumerate() {
            let fetched = fetched.unwrap();
            let offsets: Vec<u64> =
                fetched.messages.iter().map(|(kept, _)| kept.position.offset).collect();
            let expected = if at == 3 { vec![] } else { (MESSAGES - 99..=MESSAGES).collect() };
            assert_eq!(offsets, expected, "topic {at}");
            let ends = if at == 3 { (0, 0) } else { (MESSAGES - 100, MESSAGES) };
            assert_eq!((fetched.floor, fetched.last), ends, "topic {at}");
        }
        // After each position, known or not.
        for after in [0, MESSAGES - 100, MESSAGES - 99, MESSAGES - 60, MESSAGES - 1, MESSAGES] {
            let wanted = [0, 1, 2].map(|at| {
                let position = Position { epoch: epochs[at as usize], offset: after };
                (name(at), Some(position))
            });
            for (fetched, (_, position)) in link.fetch(&wanted).await.unwrap().iter().zip(&wanted) {
                let (fetched, position) = (fetched.as_ref().unwrap(), position.unwrap());
                let first = after.max(MESSAGES - 100);
                assert_eq!(fetched.messages.len() as u64, MESSAGES - first, "after {after}");
                assert_eq!(fetched.continues(position), after >= MESSAGES - 100, "after {after}");
                assert_eq!((fetched.floor, fetched.last), (first, MESSAGES), "after {after}");
            }
        }
    };
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn long_histories_of_redis_are_fetched_whole() {
    let Some(server) = RedisServer::start(&[]) else { return };
    long_histories_are_fetched_whole(&server.transport(), "", "");
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    let test = async {
        let (inbox, _) = Inbox::new(1 << 20, Arc::default());
        let settings = settings(100, Duration::from_secs(3600));
        let link = server.transport().connect(inbox, &settings).await.unwrap();
        for (topic, at_least, at_most) in [("long0", 2, 4), ("long2", 1, 1)] {
            let before = server.evaluations();
            let fetched = link.fetch(&[(format!("test:t:{topic}").into(), None)]).await.unwrap();
            assert_eq!(fetched[0].as_ref().unwrap().messages.len(), 100);
            let pages = server.evaluations() - before;
            assert!((at_least..=at_most).contains(&pages), "{topic}: {pages} pages");
        }
    };
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn long_histories_of_a_redis_cluster_are_fetched_whole() {
    let Some(cluster) = RedisCluster::start(2) else { return };
    long_histories_are_fetched_whole(&cluster.transport(), "{", "}");
}
