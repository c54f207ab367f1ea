//! The workloads, and whether what `load` reports of them is what the log of the server says.

use std::time::Duration;

use serde_json::Value;

use crate::harness::chat::Book;
use crate::harness::faults::Fault;

/// A workload against a chat server.
#[derive(Clone, Copy)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    /// The command line, with `HOST` for the address of the server.
    pub(super) words: &'static str,
    /// The scenario, if it is one, with `LENGTH` for how long it takes.
    pub(super) scenario: Option<&'static str>,
    /// What makes it end after a while, and never.
    pub(super) lengths: [&'static str; 2],
    /// There is a fault in each so many deliveries.
    pub(super) every: u64,
    pub(super) delay: Duration,
    /// Faults that do not fail the run.
    pub(super) tolerates: &'static [Fault],
    /// Asserts that a report agrees with the log.
    pub(super) agrees: fn(&Report, &Book, Fault),
}

/// A report of `load`.
pub(super) struct Report {
    pub(super) document: Value,
    pub(super) is_interrupted: bool,
}

impl Report {
    pub(super) fn section(&self, name: &str) -> &Value {
        &self.document[name]
    }
}

pub(super) fn count(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("no {name}: {of}"))
}

pub(super) fn counts<const N: usize>(of: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| count(of, name))
}

/// The faults of this kind that the server has made.
pub(super) fn made(book: &Book, fault: Fault) -> u64 {
    match fault {
        Fault::Drop => book.dropped,
        Fault::Double => book.doubled,
        Fault::Swap => book.swapped,
        Fault::Corrupt => book.corrupted,
        Fault::Delay => book.delayed,
        Fault::Foreign => book.foreign,
        Fault::Refuse => book.refused,
        _ => book.ended,
    }
}

/// Whether connections that the server has ended are counted by their cause.
pub(super) fn closes_agree(report: &Report, book: &Book, fault: Fault) {
    let mut expected = serde_json::Map::new();
    if let Some(cause) = fault.cause().filter(|_| book.ended > 0) {
        expected.insert(cause.to_owned(), book.ended.into());
    }
    let closed = report.section("closed");
    if report.is_interrupted && fault.cause().is_some() {
        // The end of a connection may have been under way.
        let told = fault.cause().and_then(|cause| closed[cause].as_u64()).unwrap_or(0);
        assert!(told <= book.ended, "{closed}");
    } else {
        assert_eq!(closed, &Value::Object(expected), "{fault:?}: {}", report.document);
    }
}

/// The messages of an echo.
pub(super) fn echo_agrees(report: &Report, book: &Book, fault: Fault) {
    let echo = report.section("echo");
    if report.is_interrupted && echo.is_null() {
        return;
    }
    let [sent, received, lost, unknown] = counts(echo, ["sent", "received", "lost", "unknown"]);
    let [duplicated, reordered, corrupted, late] =
        counts(echo, ["duplicated", "reordered", "corrupted", "late"]);
    let wrong = duplicated + corrupted;
    if fault == Fault::Reset {
        // What was sent when the server reset the connection was not read.
        assert!(book.heard <= sent, "{echo}");
    } else {
        assert_eq!(book.heard, sent, "{echo}");
    }
    assert_eq!(received, sent - lost - unknown + wrong, "{echo}");
    let out_of_order = book.swapped + book.overtaken;
    if report.is_interrupted {
        assert!(received <= book.sent + book.doubled + book.corrupted + book.foreign, "{echo}");
        assert!(lost <= sent - book.sent && unknown >= book.sent - (received - wrong), "{echo}");
        assert!(duplicated <= book.doubled && late <= out_of_order + book.delayed, "{echo}");
        assert!(corrupted <= book.corrupted + book.foreign && reordered <= out_of_order, "{echo}");
        return;
    }
    // A reset may overtake an answer: what is sent on the socket fails before the rest is read.
    let overtaken = if fault == Fault::Reset { book.ended } else { 0 };
    let missing = sent - book.sent;
    assert!((missing..=missing + overtaken).contains(&lost) && unknown == 0, "{echo}");
    assert_eq!((duplicated, corrupted), (book.doubled, book.corrupted + book.foreign), "{echo}");
    closes_agree(report, book, fault);
    let refused = ["connect_errors", "retried_by"].map(|map| &report.section(map)["status_503"]);
    let refused: u64 = refused.iter().filter_map(|count| count.as_u64()).sum();
    assert_eq!(refused, book.refused, "{}", report.document);
}

pub(super) const ECHO: Workload = Workload {
    name: "echo",
    words: "wss://HOST/echo?refusable --connections 6 --rate 200 --timeout 3s",
    scenario: None,
    lengths: ["--messages 40", "--duration 1h"],
    every: 23,
    delay: Duration::from_secs(1),
    tolerates: &[],
    agrees: |report, book, fault| {
        echo_agrees(report, book, fault);
        let echo = report.section("echo");
        if !report.is_interrupted {
            let out_of_order = book.swapped + book.overtaken;
            assert_eq!(counts(echo, ["reordered", "late"]), [out_of_order, 0], "{echo}");
            assert_eq!(count(echo, "unsent"), 240 - count(echo, "sent"), "{echo}");
        }
    },
};

/// Connections that are closed after five messages and replaced.
pub(super) const LIVES: Workload = Workload {
    name: "lives",
    words: "wss://HOST/echo?refusable --connections 6 --messages-per-connection 5 --timeout 1s \
            --think 1ms..5ms --reconnect --backoff 1ms..2ms",
    scenario: None,
    lengths: ["--duration 3s", "--duration 1h"],
    every: 53,
    delay: Duration::from_millis(1_400),
    tolerates: &[Fault::Refuse],
    agrees: |report, book, fault| {
        echo_agrees(report, book, fault);
        let echo = report.section("echo");
        if !report.is_interrupted {
            let late = book.swapped + book.delayed;
            assert_eq!(counts(echo, ["reordered", "late"]), [0, late], "{echo}");
            let reconnects = count(report.section("connections"), "reconnects");
            assert_eq!(reconnects, book.ended, "{}", report.document);
        }
    },
};

/// Clients of Action Cable that receive what is published over https.
pub(super) const FANOUT: Workload = Workload {
    name: "fan-out",
    words: "cables://HOST/cable --connections 8 --fanout 25 --late-after 2s --retry 0 \
            --publish-url https://HOST/_broadcast",
    scenario: None,
    lengths: ["--messages 50", "--duration 1h"],
    every: 47,
    delay: Duration::from_millis(2_200),
    tolerates: &[Fault::Foreign],
    agrees: |report, book, fault| {
        let broadcast = report.section("broadcast");
        // Interrupted before it published.
        if report.is_interrupted && broadcast["publish_rejected"].is_null() {
            return assert_eq!(book.published, 0, "{broadcast}");
        }
        let [published, rejected, unanswered, in_flight] = counts(
            broadcast,
            ["published", "publish_rejected", "publish_unanswered", "publish_unknown"],
        );
        let [expected, received, lost, unknown] =
            counts(broadcast, ["expected", "received", "lost", "unknown"]);
        assert_eq!(expected, count(broadcast, "receivers") * published, "{broadcast}");
        assert_eq!(expected, received + lost + unknown, "{broadcast}");
        let names = ["duplicated", "reordered", "corrupted", "late", "foreign", "refused"];
        let told = counts(broadcast, names);
        let out_of_order = book.swapped + book.overtaken;
        let did =
            [book.doubled, out_of_order, book.corrupted, book.delayed, book.foreign, book.undue];
        if report.is_interrupted {
            assert!(published + rejected <= book.published, "{broadcast}");
            assert!(book.published <= published + rejected + unanswered + in_flight);
            assert!(received <= book.sent, "{broadcast}");
            assert!(lost <= book.due - book.sent + book.ended * published, "{broadcast}");
            assert!(told.iter().zip(did).all(|(told, did)| *told <= did), "{broadcast}");
            return;
        }
        assert_eq!((published, rejected), (book.published - book.refused, book.refused));
        assert_eq!((unanswered, in_flight, unknown), (0, 0, 0), "{broadcast}");
        let unsent = count(broadcast, "publish_unsent");
        assert_eq!(published + rejected + unsent, 50, "{broadcast}");
        assert_eq!(received, book.sent - book.undue, "{broadcast}");
        assert_eq!(told, did, "{names:?}: {broadcast}");
        closes_agree(report, book, fault);
    },
};

/// Users who whisper to the others of their group.
pub(super) const GROUPS: Workload = Workload {
    name: "groups",
    words: "",
    scenario: Some(
        "version = 1\nusers = 8\nLENGTH
[connect]
insecure = true
[group]
kind = '1:N'
size = 4
quiet = '3s'
late = '2s'
[[flows]]
role = 'sender'
[[flows.steps]]
cable = 'wss://HOST/cable?refusable'
once = true
[[flows.steps]]
subscribe = { channel = '$pubsub', stream_name = 'room {{group}}' }
once = true
[[flows.steps]]
meet = true
once = true
[[flows.steps]]
whisper = { text = '{{stamp}}' }
repeat = 40
think = '20ms'
[[flows]]
role = 'receiver'
[[flows.steps]]
cable = 'wss://HOST/cable?refusable'
[[flows.steps]]
subscribe = { channel = '$pubsub', stream_name = 'room {{group}}' }
[[flows.steps]]
meet = true
[[flows.steps]]
stay = true
",
    ),
    lengths: ["passes = 1", "duration = '1h'"],
    every: 23,
    delay: Duration::from_millis(2_500),
    tolerates: &[],
    agrees: |report, book, _| {
        let groups = report.section("groups");
        let [sent, expected, received, lost] =
            counts(groups, ["sent", "expected", "received", "lost"]);
        let names = ["duplicated", "reordered", "corrupted", "late", "foreign"];
        let told = counts(groups, names);
        let out_of_order = book.swapped + book.overtaken;
        let did = [book.doubled, out_of_order, book.corrupted, book.delayed, book.foreign];
        assert_eq!(sent, book.heard, "{groups}");
        assert_eq!(expected, sent * 3, "{groups}");
        if report.is_interrupted {
            assert!(received <= book.sent, "{groups}");
            assert!(lost <= expected - book.sent, "{groups}");
            assert!(told.iter().zip(did).all(|(told, did)| *told <= did), "{groups}");
            return;
        }
        assert_eq!((received, lost), (book.sent, expected - book.sent), "{groups}");
        assert_eq!(told, did, "{names:?}: {groups}");
    },
};

/// Sockets that users hold over passes.
pub(super) const HELD: Workload = Workload {
    name: "held",
    words: "",
    scenario: Some(
        "version = 1\nusers = 4\nLENGTH
[connect]
insecure = true
[[flows]]
[[flows.steps]]
connect = 'wss://HOST/echo?refusable'
socket = 'kept'
hold = true
[[flows.steps]]
send = '{{user}} {{pass}}'
receive = { text = '{{user}} {{pass}}' }
within = '5s'
socket = 'kept'
think = '10ms'
",
    ),
    lengths: ["passes = 30", "duration = '1h'"],
    every: 23,
    delay: Duration::from_millis(5_050),
    tolerates: &[Fault::Double, Fault::Foreign],
    agrees: |report, book, fault| {
        let sockets = report.section("sockets");
        let steps = &report.section("flows")[0]["steps"];
        let [received, reopened] = counts(sockets, ["received", "reopened"]);
        let sent = book.sent + book.doubled + book.corrupted + book.foreign;
        let [asked, failed] = counts(&steps[1], ["requests", "failed"]);
        if report.is_interrupted {
            assert!(received <= sent, "{sockets}\n{steps}");
            assert!(asked - failed <= book.sent && book.heard >= asked, "{steps}");
            return;
        }
        assert_eq!(asked, book.heard, "{steps}");
        // Users close their sockets with the last answer; what comes behind it is not read.
        let behind = match fault {
            Fault::Double | Fault::Foreign | Fault::Swap | Fault::Delay => 4,
            _ => 0,
        };
        assert!(received <= sent && received + behind >= sent, "{sockets}\n{steps}");
        let missing = book.dropped + book.swapped + book.corrupted + book.delayed;
        assert_eq!(failed, missing + book.ended, "{steps}");
        // Not those that ended with the last pass of their user.
        assert!(reopened <= book.ended && reopened + 4 >= book.ended, "{sockets}");
        let of = |field: &str, key: &str| sockets[field][key].as_u64().unwrap_or(0);
        let [gone, closed, broken] = match fault {
            Fault::Close => [0, book.ended, 0],
            Fault::Masked => [0, 0, book.ended],
            _ => [book.ended, 0, 0],
        };
        assert_eq!(count(sockets, "gone"), gone, "{sockets}");
        assert_eq!((of("closed_by", "4007"), of("broken", "masked_frame")), (closed, broken));
        assert_eq!(count(&steps[0], "failed"), book.refused, "{steps}");
    },
};

/// Subscriptions that begin and end meanwhile.
pub(super) const CHURN: Workload = Workload {
    name: "churn",
    words: "cables://HOST/cable --connections 8 --fanout 100 --churn 4 --late-after 500ms --retry 0 \
            --channel {\"channel\":\"$pubsub\",\"stream_name\":\"s{1..4}\"} \
            --publish-url https://HOST/_broadcast",
    scenario: None,
    lengths: ["--duration 3s", "--duration 1h"],
    every: 61,
    delay: Duration::from_secs(1),
    tolerates: &[],
    agrees: |report, book, fault| {
        let churn = report.section("churn");
        if report.is_interrupted && churn.is_null() {
            return;
        }
        let names = ["received", "refused", "duplicated", "unexpected", "corrupted", "stale"];
        let told = counts(churn, names);
        let all: u64 = told.iter().sum();
        let sent = book.sent + book.doubled + book.corrupted + book.foreign;
        let [lost, reordered, late] = counts(churn, ["lost", "reordered", "late"]);
        let [_, refused, duplicated, unexpected, corrupted, _] = told;
        let failed: u64 =
            churn["publish_failed"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        let [definite, perhaps] = missed(book);
        assert!(reordered <= book.swapped + book.overtaken, "{churn}");
        // On a busy machine others are late, too.
        let is_slow = churn["from_send"]["max_ms"].as_f64().is_some_and(|ms| ms >= 500.0);
        assert!(late <= book.delayed || is_slow, "{churn}");
        assert!(lost <= book.due - book.sent + book.delayed, "{churn}");
        if report.is_interrupted {
            assert!(all <= sent && count(churn, "published") <= book.published, "{churn}");
            assert!(refused <= book.undue && duplicated <= book.doubled, "{churn}");
            return;
        }
        assert_eq!(count(churn, "published"), book.published - book.refused, "{churn}");
        // Some of what is late comes behind the end of the run.
        let behind = if fault == Fault::Delay { book.delayed } else { 0 };
        assert!((sent - behind..=sent).contains(&all), "{names:?}, {sent}: {churn}");
        assert_eq!(failed, book.refused, "{churn}");
        assert_eq!(corrupted, book.corrupted, "{churn}");
        // The second copy of a refused publication is a refused one if the answer has come.
        assert!(
            refused >= book.undue && refused + duplicated <= book.undue + book.doubled,
            "{churn}"
        );
        assert!(unexpected >= book.foreign, "{churn}");
        match fault {
            Fault::Drop | Fault::Corrupt => {
                assert!((definite..=definite + perhaps).contains(&lost), "{definite}: {churn}");
                assert!(definite > 0, "{churn}");
            }
            Fault::Double | Fault::Foreign | Fault::Refuse => assert_eq!(lost, 0, "{churn}"),
            _ => closes_agree(report, book, fault),
        }
    },
};

/// Messages that subscriptions have certainly missed, and those that may not have been expected: around
/// the confirmation, and around the grace before the unsubscribe.
pub(super) fn missed(book: &Book) -> [u64; 2] {
    const GRACE: Duration = Duration::from_millis(500);
    const MARGIN: Duration = Duration::from_millis(400);
    let mut missed = [0; 2];
    for log in &book.subscriptions {
        for at in &log.missed {
            let begins = *at < log.began + MARGIN;
            let left = log.ended.map(|ended| ended - *at);
            match left {
                // Too short before the end for a loss, or just not.
                Some(left) if begins || left < GRACE + MARGIN => missed[1] += 1,
                None if begins => missed[1] += 1,
                _ => missed[0] += 1,
            }
        }
    }
    missed
}
