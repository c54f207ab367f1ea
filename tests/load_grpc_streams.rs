//! `standfast load grpc://…` with client and bidirectional streams: against a server that logs each message and does
//! each tenth call or message in a wrong way, to the unit; and against grpc-js.

use std::fs;

use serde_json::{Value, json};

use crate::harness::executable::{self, Finished};
use crate::harness::grpc_echo::{EchoLog, EchoServer, Wrong};
use crate::harness::peer::{self, Program};
use crate::harness::{Scratch, eventually};

const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; }\n\
                     service B { rpc Send(stream Text) returns (Text);\n\
                     rpc Both(stream Text) returns (stream Text); }\n";
const STAMP: &str = "{\"text\":\"{{stamp}}\"}";

/// Calls over 2 connections with 5 streams each: how the run finished, its JSON, and what the server received.
fn call(wrong: Wrong, method: &str, more: &[&str]) -> (Finished, Value, EchoLog) {
    let server = EchoServer::start(wrong);
    // Other tests have theirs at the same time.
    let file = Scratch::new(&format!("streams-{}.proto", server.address.port()), PROTO);
    let url = format!("grpc://{}/a.B/{method}", server.address);
    let flags = ["load", &url, "--proto", file.path(), "--connections", "2", "--streams", "5"];
    // No answer is late on a busy machine.
    let late = if more.contains(&"--late-after") { &[][..] } else { &["--late-after", "60s"] };
    let finished = executable::run(&[&flags[..], &["--json", "-"], late, more].concat());
    let said = if finished.stdout.is_empty() { Value::Null } else { finished.json() };
    // Until it has read what was sent last.
    eventually("the connections have ended", || {
        let log = server.log.lock().unwrap();
        log.ended == log.connections
    });
    let log = std::mem::take(&mut *server.log.lock().unwrap());
    (finished, said, log)
}

/// 100 calls of 5 messages, each sent when the one before is answered.
fn echo(wrong: Wrong, more: &[&str]) -> (Finished, Value, EchoLog) {
    let flags = ["-d", STAMP, "--echo", "--messages", "5", "--requests", "100"];
    call(wrong, "Both", &[&flags[..], more].concat())
}

fn count(said: &Value, pointer: &str) -> u64 {
    said.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

#[test]
fn echoes_of_a_stream_are_matched_and_timed() {
    for (data, by) in [(STAMP, "stamp"), ("{\"text\":\"{{seq}}\"}", "order")] {
        let flags = ["-d", data, "--echo", "--messages", "5", "--requests", "100"];
        let (finished, said, log) = call(Wrong::Nothing, "Both", &flags);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert_eq!((log.calls, log.ok, log.messages, log.echoed), (100, 100, 500, 500), "{log:?}");
        let of = &said["messages"];
        assert_eq!(
            [&of["sent"], &of["received"], &of["answered"], &of["lost"], &of["matched_by"]],
            [&json!(500), &json!(500), &json!(500), &json!(0), &json!(by)],
            "{said}"
        );
        assert_eq!(count(&said, "/messages/latency/count"), 500, "{said}");
        assert_eq!(count(&said, "/messages/first/count"), 100, "{said}");
        assert_eq!(count(&said, "/messages/interval/count"), 400, "{said}");
        assert_eq!(count(&said, "/latency/count"), 100, "the histogram of calls: {said}");
        assert_eq!(count(&said, "/connections/opened"), 2, "{said}");
    }
}

#[test]
fn the_page_has_the_counts_of_messages() {
    let page = Scratch::new("streams-page.html", "");
    let flags = ["-d", STAMP, "--messages", "50", "--requests", "20"];
    let (finished, said, log) =
        call(Wrong::Drops, "Both", &[&flags[..], &["--html", page.path()]].concat());
    let text = fs::read_to_string(page.path()).unwrap();
    assert_eq!((log.messages, log.echoed), (1_000, 900), "{finished:?}");
    assert_eq!(count(&said, "/messages/lost"), 100, "{said}");
    for part in
        ["1,000 sent, 900 received", "100, 0", "messages lost, duplicated", "Messages received"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Streams that last as long as the run have no rate of answers.
    let flags = ["-d", STAMP, "--message-every", "50ms", "--duration", "500ms"];
    let (finished, _, _) =
        call(Wrong::Nothing, "Both", &[&flags[..], &["--html", page.path()]].concat());
    let text = fs::read_to_string(page.path()).unwrap();
    assert!(text.contains("answers at the end"), "{finished:?} {text}");
    assert!(!text.contains("Answer rate"), "{text}");
}

#[test]
fn a_client_stream_sends_its_messages_and_gets_one_answer() {
    let data = "[{\"text\":\"a\"},{\"text\":\"b{{seq}}\"},{}]";
    for (more, each) in [(&[][..], 3), (&["--messages", "7"][..], 7)] {
        let flags = ["-d", data, "--requests", "100"];
        let (finished, said, log) = call(Wrong::Counts, "Send", &[&flags[..], more].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert_eq!((log.calls, log.ok, log.messages), (100, 100, 100 * each), "{log:?}");
        assert_eq!(
            (count(&said, "/messages/sent"), count(&said, "/messages/received")),
            (100 * each, 100),
            "{said}"
        );
        assert_eq!(said["messages"]["lost"], Value::Null, "nothing was checked: {said}");
    }
}

#[test]
fn faults_of_calls_are_counted_as_the_server_logged_them() {
    for (wrong, kind, failed) in [
        (Wrong::Reset, "stream_internal_error", 10),
        (Wrong::NoTrailers, "grpc_no_status", 10),
        (Wrong::Status("5"), "grpc_not_found", 10),
        (Wrong::Status("99"), "grpc_other_status", 10),
        (Wrong::Garbage, "grpc_message", 10),
        (Wrong::Long, "too_large", 10),
        (Wrong::Bomb, "too_large", 10),
        (Wrong::Unnamed, "grpc_encoding", 10),
    ] {
        let (finished, said, log) = echo(wrong, &[]);
        assert_eq!(finished.code, Some(1), "{wrong:?} {finished:?}");
        assert_eq!(said["errors"], json!({kind: failed}), "{wrong:?} {said}");
        assert_eq!((count(&said, "/requests/ok"), log.ok), (90, 90), "{wrong:?} {said} {log:?}");
        let (sent, received) = (count(&said, "/messages/sent"), count(&said, "/messages/received"));
        assert_eq!((sent, received), (log.messages, log.echoed), "{wrong:?} {said} {log:?}");
        assert_eq!(count(&said, "/messages/lost"), sent - received, "{wrong:?} {said}");
        assert_eq!(count(&said, "/messages/unsent"), 0, "{wrong:?} {said}");
    }
}

#[test]
fn an_answer_may_come_before_all_was_sent() {
    let (finished, said, log) = echo(Wrong::Early, &["--fail", "lost<50"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.ok, count(&said, "/requests/ok")), (100, 100), "{said}");
    assert_eq!(count(&said, "/messages/calls_answered_early"), 10, "{said}");
    assert_eq!(count(&said, "/messages/sent"), log.messages, "{said} {log:?}");
    assert_eq!((log.messages, log.resets), (90 * 5 + 10 * 3, 0), "{log:?}");
}

#[test]
fn goaway_repeats_the_calls_that_were_not_processed() {
    let (finished, said, log) = echo(Wrong::Leaves(7), &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((count(&said, "/requests/ok"), log.ok), (100, 100), "{said} {log:?}");
    assert_eq!(count(&said, "/messages/sent"), log.messages, "{said} {log:?}");
    assert_eq!((log.messages, log.echoed), (500, 500), "{log:?}");
    assert!(log.connections >= 14, "{log:?}");
}

#[test]
fn a_connection_that_is_cut_fails_the_calls_on_it() {
    let (finished, said, log) = echo(Wrong::Cut, &[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(count(&said, "/requests/ok"), log.ok, "{said} {log:?}");
    assert_eq!(count(&said, "/requests/ok") + count(&said, "/requests/failed"), 100, "{said}");
    assert_eq!(count(&said, "/messages/received"), log.echoed, "{said} {log:?}");
    let sent = count(&said, "/messages/sent");
    // What was on its way to a connection that was cut is in no log.
    assert!(sent >= log.messages, "{said} {log:?}");
    assert_eq!(count(&said, "/messages/lost"), sent - log.echoed, "{said} {log:?}");
}

#[test]
fn silence_ends_by_the_deadline() {
    let (finished, said, log) = echo(Wrong::Silent, &["--timeout", "1s", "--late-after", "100ms"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(said["errors"], json!({"timeout": 10}), "{said}");
    assert_eq!((count(&said, "/requests/ok"), log.ok), (90, 90), "{said} {log:?}");
    // The next message is sent although the last was not answered.
    assert_eq!((count(&said, "/messages/sent"), log.messages), (500, 500), "{said} {log:?}");
    assert_eq!((count(&said, "/messages/received"), log.echoed), (470, 470), "{said} {log:?}");
    assert_eq!((count(&said, "/messages/lost"), log.resets), (30, 10), "{said} {log:?}");
}

#[test]
fn messages_that_are_lost_doubled_reordered_and_changed_are_counted() {
    let all = |wrong| {
        // Without waiting for answers, so that the next message is sent whatever became of the last.
        let (finished, said, log) =
            call(wrong, "Both", &["-d", STAMP, "--messages", "50", "--requests", "20"]);
        assert_eq!(finished.code, Some(1), "{wrong:?} {finished:?}");
        assert_eq!(said["errors"], json!({}), "{wrong:?} {said}");
        assert_eq!((log.messages, count(&said, "/messages/sent")), (1_000, 1_000), "{said}");
        assert_eq!(count(&said, "/messages/received"), log.echoed, "{wrong:?} {said} {log:?}");
        let of = |name: &str| count(&said, &format!("/messages/{name}"));
        ["answered", "lost", "duplicated", "reordered", "corrupted", "unexpected"].map(of)
    };
    assert_eq!(all(Wrong::Drops), [900, 100, 0, 0, 0, 0]);
    assert_eq!(all(Wrong::Doubles), [1_000, 0, 100, 0, 0, 0]);
    assert_eq!(all(Wrong::Changes), [900, 100, 0, 0, 100, 0]);
    let [answered, lost, _, reordered, ..] = all(Wrong::Swaps);
    // Those at the end of a call have no other to be behind.
    assert_eq!((answered, lost), (1_000, 0));
    assert!((80..=100).contains(&reordered), "{reordered}");
}

#[test]
fn a_stalled_window_neither_grows_memory_nor_hides_what_was_not_sent() {
    let flags = ["-d", STAMP, "--message-every", "2ms", "--messages", "100", "--requests", "20"];
    let more = ["--timeout", "1s"];
    let (finished, said, log) = call(Wrong::Stalls(120), "Both", &[&flags[..], &more].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_eq!(said["errors"], json!({"timeout": 20}), "{said}");
    let (sent, unsent) = (count(&said, "/messages/sent"), count(&said, "/messages/unsent"));
    assert_eq!(sent, log.messages, "{said} {log:?}");
    assert_eq!(
        sent + unsent,
        2_000,
        "all were due, and those that were not sent are counted: {said}"
    );
    // The first messages may be sent before the server's settings have arrived.
    assert!(unsent >= 1_000 && log.bytes >= 20 * 120, "each stream had 120 bytes: {said} {log:?}");
    assert_eq!(log.resets, 20, "{log:?}");
}

#[test]
fn messages_are_sent_at_an_interval_until_the_run_ends() {
    let flags = ["-d", STAMP, "--message-every", "10ms", "--duration", "1s"];
    let (finished, said, log) = call(Wrong::Nothing, "Both", &flags);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.calls, log.ok, log.echoed), (10, 10, log.messages), "{log:?}");
    let sent = count(&said, "/messages/sent");
    assert_eq!(sent, log.messages, "{said}");
    assert!((900..=1_010).contains(&sent), "ten streams, 100 a second: {said}");
    assert_eq!(count(&said, "/messages/send_lag/count"), sent, "{said}");
    let (_, said, log) = call(
        Wrong::Nothing,
        "Both",
        &[&flags[..], &["--hold", "200ms", "--fail", "receipt_p99<10s"]].concat(),
    );
    assert_eq!(count(&said, "/messages/sent"), log.messages, "{said}");
    assert!(log.calls >= 20, "each lasts 200 ms: {log:?}");
    assert_eq!(said["thresholds"][0]["met"], json!(true), "{said}");
}

#[test]
fn messages_are_compressed_in_both_directions() {
    let (finished, said, log) = echo(Wrong::Nothing, &["--compression", "gzip"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.compressed, count(&said, "/messages/answered")), (500, 500), "{said}");
    let (finished, said, log) = echo(Wrong::Gzip, &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((log.compressed, count(&said, "/messages/answered")), (0, 500), "{said}");
}

#[test]
fn flags_of_streams_are_refused_where_they_have_no_effect() {
    for (method, more, part) in [
        ("Send", &["--echo"][..], "--echo is for bidi streams: /a.B/Send is a client stream"),
        ("Send", &["-d", "[{\"text\":1},{}]"], "--data, message 1: text"),
        ("Send", &["-d", "[{\"text\":\"a\"},"], "--data: the list of messages has no end"),
        ("Send", &["--compression", "shared"], "--compression gzip is for grpc://"),
        ("Both", &["--think", "1s"], "--think is for"),
    ] {
        let (finished, _, log) = call(Wrong::Nothing, method, more);
        assert_eq!(finished.code, Some(2), "{more:?} {finished:?}");
        assert!(finished.stderr.contains(part), "{part}: {finished:?}");
        assert_eq!(log.calls, 0);
    }
}

#[test]
fn streams_of_grpc_js_are_called() {
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let url = format!("grpc://127.0.0.1:{}/shop.v1.Orders", server.first_line());
    let run = |method: &str, more: &[&str]| {
        let url = format!("{url}/{method}");
        let flags = ["load", &url, "--connections", "2", "--streams", "5", "--json", "-"];
        let late = ["--late-after", "60s"];
        let finished = executable::run(&[&flags[..], &late, more].concat());
        let said = finished.json();
        assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
        let of = |name: &str| count(&said, &format!("/messages/{name}"));
        (count(&said, "/requests/ok"), of("sent"), of("received"), of("answered"))
    };
    let order = r#"{"customerName":"{{stamp}}"}"#;
    let flags = ["-d", order, "--messages", "5", "--requests", "100"];
    assert_eq!(run("Import", &flags), (100, 500, 100, 0));
    let echo = [&flags[..], &["--echo", "--compression", "gzip"]].concat();
    assert_eq!(run("Negotiate", &echo), (100, 500, 500, 500));
    assert_eq!(run("Negotiate", &flags), (100, 500, 500, 500));
}
