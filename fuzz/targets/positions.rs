//! Where the missed messages begin that clients request: the command `history` of the extended protocol, and
//! the text of `?since=` and `Last-Event-ID`. Any text is a position, a time or neither; a history without
//! messages answers each.
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "a module of `serve`")]

use action_cable::Command;
use libfuzzer_sys::fuzz_target;
use topics::{Epoch, History, HistoryLimits, Position, Start};

#[path = "../../crates/serve/src/requested.rs"]
mod requested;

use requested::Requested;

const STARTED_NS: u64 = 5_000_000_000;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let epoch = Epoch::new(0x0012_ab34);
    let limits = HistoryLimits { messages: 1, age_ns: 1, topic_bytes: 1, bytes: 1 };
    let history = History::new(epoch, limits, STARTED_NS);
    if let Some(requested) = Requested::parse(text) {
        let (again, start) = match requested {
            Requested::After(position) => {
                let Position { epoch, offset } = position;
                (format!("{epoch}:{offset}"), Start::After(position))
            }
            Requested::Since(unix_s) => {
                let since_ns = u64::try_from(unix_s).unwrap_or(0).saturating_mul(1_000_000_000);
                (unix_s.to_string(), Start::Since(since_ns))
            }
        };
        assert_eq!(Requested::parse(&again), Some(requested), "{text:?}");
        // The id of an event is the only form of a position.
        assert!(!matches!(requested, Requested::After(_)) || text.len() >= 10, "{text:?}");
        answers(&history, start);
    }
    let Ok(Command::History { history: request, .. }) = Command::decode(text) else { return };
    for position in &request.streams {
        let Some(epoch) = Epoch::parse(&position.epoch) else { continue };
        assert_eq!(epoch.to_string(), *position.epoch);
        answers(&history, Start::After(Position { epoch, offset: position.offset }));
    }
});

/// Nothing was published: only the first position and times after the start are lossless.
fn answers(history: &History, start: Start) {
    let lossless = match start {
        Start::After(position) => position.epoch == history.epoch() && position.offset == 0,
        Start::Since(since_ns) => since_ns > STARTED_NS,
    };
    let first = history.first("news", start, 2 * STARTED_NS);
    let expected = Position { epoch: history.epoch(), offset: 1 };
    assert_eq!(first.ok(), lossless.then_some(expected), "{start:?}");
}
