//! What a broker keeps, as [`Inward`] passes it to the history of this process.

use std::sync::Arc;

use admin::Watchdog;
use brokers::envelope::{Except, Message, NodeId, Sequence};
use brokers::{ConfirmedTopic, GapCause, Kept, Past, Position, Receiver};
use engine::Remote;
use engine::sys::process::now_ns;
use topics::{Epoch, Start, Unavailable};

use super::receiver::Inward;
use crate::config::{Config, HistoryConfig, HistoryPlace};
use crate::log_events;
use crate::shared::Shared;

/// A process with a history here, without workers.
fn receiver(place: HistoryPlace) -> (Arc<Shared>, Inward) {
    let history = Some(HistoryConfig { place, ..HistoryConfig::default() });
    let config = Config { history, ..Config::default() };
    let (log, _) = log_events::channel();
    let shared = Arc::new(Shared::new(&config, Arc::new(Watchdog::new(1)), 1, log));
    let inward = Inward::new(&shared, Remote::new(Vec::new(), 1 << 20), NodeId(1));
    (shared, inward)
}

fn message(data: &str) -> Message<'_> {
    Message {
        node: NodeId(2),
        at: Sequence { epoch: 1, number: 1 },
        binary: false,
        transient: false,
        except: Except::None,
        kind: None,
        data: data.as_bytes(),
    }
}

fn unix_ms(shared: &Shared) -> u64 {
    shared.clock.unix_ms(now_ns())
}

fn kept(shared: &Shared, epoch: u32, offset: u64) -> Kept {
    Kept { position: Position { epoch, offset }, time_ms: unix_ms(shared) }
}

fn past<'b>(shared: &Shared, offsets: &[(u64, &'b str)]) -> Past<'b> {
    let messages = offsets.iter().map(|(at, data)| (kept(shared, 0xa1, *at), message(data)));
    Past {
        epoch: 0xa1,
        floor: 4,
        floor_ms: unix_ms(shared) - 60_000,
        last: offsets.last().map_or(4, |(at, _)| *at),
        messages: messages.collect(),
    }
}

fn loaded(shared: &Shared, inward: &Inward, offsets: &[(u64, &str)]) {
    inward.loaded("a", &past(shared, offsets));
}

/// Offsets and payloads after a position.
fn after(shared: &Shared, epoch: u32, offset: u64) -> Result<Vec<(u64, String)>, Unavailable> {
    let start = Start::After(topics::Position { epoch: Epoch::new(epoch), offset });
    page(shared, start)
}

fn page(shared: &Shared, start: Start) -> Result<Vec<(u64, String)>, Unavailable> {
    let history = shared.history().unwrap();
    let page = history.page("a", Some(start), 100, 1 << 20, now_ns())?;
    let text = |data: &[u8]| String::from_utf8(data.to_vec()).unwrap();
    Ok(page.messages.iter().map(|one| (one.offset, text(&one.data))).collect())
}

fn pairs(all: &[(u64, &str)]) -> Vec<(u64, String)> {
    all.iter().map(|(offset, data)| (*offset, (*data).to_owned())).collect()
}

#[test]
fn what_was_loaded_and_what_follows_has_the_positions_of_the_broker() {
    let (shared, inward) = receiver(HistoryPlace::Broker);
    assert_eq!(after(&shared, 0xa1, 4), Err(Unavailable::Evicted), "it is not followed");
    loaded(&shared, &inward, &[(5, "five"), (9, "nine")]);
    let confirmed = ConfirmedTopic { topic: "a".into(), awaited: false };
    assert!(inward.confirmed(&[confirmed]));
    inward.publication("a", &message("twelve"), Some(kept(&shared, 0xa1, 12))).unwrap();
    // A transient one, or one of the time before the broker kept anything.
    inward.publication("a", &message("not kept"), None).unwrap();
    let all = pairs(&[(5, "five"), (9, "nine"), (12, "twelve")]);
    assert_eq!(after(&shared, 0xa1, 4), Ok(all.clone()));
    assert_eq!(after(&shared, 0xa1, 9), Ok(pairs(&[(12, "twelve")])));
    assert_eq!(after(&shared, 0xa1, 3), Err(Unavailable::Evicted));
    assert_eq!(after(&shared, 0xb2, 9), Err(Unavailable::Epoch));
    // By the clock: what the broker has begins a minute ago.
    let since = |seconds: u64| {
        let unix_s = i64::try_from(unix_ms(&shared) / 1000 - seconds).unwrap();
        page(&shared, Start::Since(shared.monotonic_ns(unix_s)))
    };
    assert_eq!((since(50), since(70)), (Ok(all), Err(Unavailable::Evicted)));
    inward.released(&["b".into(), "a".into()]);
    assert_eq!(after(&shared, 0xa1, 9), Err(Unavailable::Evicted));
    assert_eq!(shared.history().unwrap().stats().bytes, 0);
}

#[test]
fn a_gap_of_messages_that_are_not_kept_takes_nothing_from_the_history() {
    let (shared, inward) = receiver(HistoryPlace::Broker);
    loaded(&shared, &inward, &[(5, "five")]);
    for cause in GapCause::ALL {
        assert_eq!(inward.gap(&["a".into()], cause), 1);
    }
    inward.publication("a", &message("six"), Some(kept(&shared, 0xa1, 6))).unwrap();
    assert_eq!(after(&shared, 0xa1, 4), Ok(pairs(&[(5, "five"), (6, "six")])));
    // What is not kept any more is told after it was loaded.
    let past = Past { floor: 8, ..past(&shared, &[(9, "nine")]) };
    inward.loaded("a", &past);
    assert_eq!(inward.gap(&["a".into()], GapCause::Missing), 1);
    assert_eq!(after(&shared, 0xa1, 6), Err(Unavailable::Evicted));
    assert_eq!(after(&shared, 0xa1, 8), Ok(pairs(&[(9, "nine")])));
}

#[test]
fn an_epoch_begins_without_a_gap_before_it() {
    let (shared, inward) = receiver(HistoryPlace::Broker);
    loaded(&shared, &inward, &[(5, "five")]);
    let floor_ms = unix_ms(&shared);
    inward.loaded("a", &Past { epoch: 0xb2, floor: 0, floor_ms, last: 0, messages: Vec::new() });
    assert_eq!(after(&shared, 0xa1, 5), Err(Unavailable::Epoch));
    assert_eq!(after(&shared, 0xb2, 0), Ok(Vec::new()));
    inward.publication("a", &message("one"), Some(kept(&shared, 0xb2, 1))).unwrap();
    // It was delivered in the epoch before, and others may have it from here.
    inward.kept_again("a", &message("five"), kept(&shared, 0xb2, 2));
    assert_eq!(after(&shared, 0xb2, 0), Ok(pairs(&[(1, "one"), (2, "five")])));
    assert_eq!(after(&shared, 0xb2, 1), Ok(pairs(&[(2, "five")])));
}

#[test]
fn a_history_of_this_process_takes_no_position_of_others() {
    let (shared, inward) = receiver(HistoryPlace::Memory);
    loaded(&shared, &inward, &[(5, "five")]);
    inward.publication("a", &message("one"), None).unwrap();
    let last = shared.history().unwrap().last("a", now_ns()).unwrap();
    assert_eq!((last.offset, last.epoch), (1, shared.history().unwrap().epoch()));
    inward.released(&["a".into()]);
    assert_eq!(shared.history().unwrap().last("a", now_ns()), Some(last));
    // A topic that is followed from now on has missed something.
    assert!(inward.confirmed(&[ConfirmedTopic { topic: "a".into(), awaited: false }]));
    let missed = shared.history().unwrap().first("a", Start::After(last), now_ns());
    assert_eq!(missed, Err(Unavailable::Evicted));
}
