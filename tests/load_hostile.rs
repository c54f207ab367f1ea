//! `standfast load` over WebSockets against servers that violate the protocol, close, or keep TCP open
//! after the close: each kind is counted exactly under its own name, unsent messages are reported, and
//! no closed connection counts as open. Scenarios against the same servers: `scenario_flows`.

use serde_json::{Value, json};

use crate::harness::chat::Chat;
use crate::harness::executable;
use crate::harness::server::Server;

/// How a server ends a WebSocket after the handshake, and the counted cause.
const ENDS: [(&str, &str); 11] = [
    ("/masked", "masked_frame"),
    ("/reserved", "reserved_bits"),
    ("/oversize", "message_too_big"),
    ("/huge", "message_too_big"),
    ("/continuation", "unexpected_continuation"),
    ("/utf8", "invalid_utf8"),
    ("/short-close", "close_too_short"),
    ("/bad-close", "close_code_invalid"),
    ("/closes", "by_peer"),
    ("/midway", "gone"),
    ("/gone", "gone"),
];
/// Number of connections to each.
const EACH: usize = 3;

/// Runs `load`, expects it to fall short, and returns the summary.
fn falls_short(urls: &[String], connections: usize, more: &[&str]) -> Value {
    let connections = connections.to_string();
    let mut words = vec!["load"];
    words.extend(urls.iter().map(String::as_str));
    words.extend(["--connections", &connections, "--plain", "--json", "-"]);
    words.extend(more);
    let finished = executable::run(&words);
    assert_eq!(finished.code, Some(1), "{more:?}: {finished:?}");
    assert!(!finished.stderr.contains("all held"), "{more:?}: {finished:?}");
    finished.json()
}

fn urls<'a>(chat: &Chat, paths: impl IntoIterator<Item = &'a str>, suffix: &str) -> Vec<String> {
    let url = |path: &str| format!("ws://{}{path}{suffix}", chat.address);
    paths.into_iter().map(url).collect()
}

/// Returns [`EACH`] of each cause, as in the summary.
fn of_each<'a>(names: impl IntoIterator<Item = &'a str>) -> Value {
    let mut counts = serde_json::Map::new();
    for name in names {
        let count = counts.get(name).and_then(Value::as_u64).unwrap_or(0);
        counts.insert(name.to_owned(), json!(count + EACH as u64));
    }
    Value::Object(counts)
}

#[test]
fn each_kind_of_disconnect_is_counted_and_not_as_open() {
    let chat = Chat::start(0);
    let connections = ENDS.len() * EACH;
    let run = |suffix: &str, more: &[&str]| {
        let summary =
            falls_short(&urls(&chat, ENDS.map(|(path, _)| path), suffix), connections, more);
        assert_eq!(summary["closed"], of_each(ENDS.map(|(_, name)| name)), "{more:?}: {summary}");
        let counts = ["open", "failed"].map(|key| summary["connections"][key].as_u64());
        assert_eq!(counts, [Some(0), Some(0)], "{more:?}: {summary}");
        summary
    };
    let asked = connections as u64 * 5;
    std::thread::scope(|scope| {
        for (suffix, more) in [
            ("?held", &["--messages", "5", "--rate", "100"][..]),
            ("?held", &["--messages", "5"]),
            ("", &["--messages", "5"]),
        ] {
            scope.spawn(move || {
                let summary = run(suffix, more);
                let echo = ["sent", "unsent", "lost"].map(|key| summary["echo"][key].as_u64());
                assert_eq!(echo, [Some(0), Some(asked), Some(0)], "{more:?}: {summary}");
                let said = json!(format!("{asked} messages were never sent"));
                assert!(summary["reasons"].as_array().unwrap().contains(&said), "{summary}");
            });
        }
        scope.spawn(|| run("?held", &["--hold", "2s"]));
        scope.spawn(|| {
            // Messages are due on a connection that is being reopened, too.
            let again = ["--hold", "1s", "--reconnect", "--backoff", "1ms..2ms"];
            let summary = falls_short(&urls(&chat, ["/masked"], "?held"), EACH, &again);
            assert_eq!(summary["closed"], of_each(["masked_frame"]), "{summary}");
            assert_eq!(summary["connections"]["reconnects"], EACH, "{summary}");
        });
    });
}

#[test]
fn each_kind_of_rejected_handshake_is_counted() {
    let ways = [
        ("/accept", "wrong_accept"),
        ("/head", "head_too_large"),
        ("/garbage", "bad_status_line"),
        ("/refused", "status_403"),
        ("/busy", "status_503"),
        ("/page", "status_200"),
        ("/no-upgrade", "switched_without_upgrade"),
        ("/unasked", "unoffered_extension"),
        ("/protocol", "unoffered_protocol"),
    ];
    let chat = Chat::start(0);
    let targets = urls(&chat, ways.map(|(path, _)| path), "");
    let retry = ["--retry", "2", "--backoff", "1ms..2ms"];
    for (more, times) in [(&[][..], 0), (&retry, 2)] {
        let summary = falls_short(&targets, ways.len() * EACH, more);
        // Retries go to all targets in turn.
        for (_, name) in ways {
            let of = |map: &str| summary[map][name].as_u64().unwrap_or(0);
            let attempts = of("connect_errors") + of("retried_by");
            assert_eq!(attempts, EACH as u64 * (1 + times), "{name}: {summary}");
        }
        let counts = ["open", "failed", "retries"].map(|key| summary["connections"][key].as_u64());
        let all = (ways.len() * EACH) as u64;
        assert_eq!(counts, [Some(0), Some(all), Some(all * times)], "{summary}");
        let retried = summary["retried_by"].as_object().unwrap().values().filter_map(Value::as_u64);
        assert_eq!(retried.sum::<u64>(), all * times, "{summary}");
    }
}

#[test]
fn unsent_messages_are_reported() {
    let chat = Chat::start(0);
    let summary = falls_short(
        &[urls(&chat, ["/echo"], ""), urls(&chat, ["/fragments"], "?held")].concat(),
        10,
        &["--messages", "100", "--rate", "2k", "--timeout", "20s"],
    );
    assert_eq!(summary["connections"]["open"], 5, "{summary}");
    assert_eq!(summary["closed"], json!({"message_too_big": 5}), "{summary}");
    let echo = ["sent", "unsent", "received", "lost"].map(|key| summary["echo"][key].as_u64());
    let [Some(sent), Some(unsent), Some(received), Some(lost)] = echo else { panic!("{summary}") };
    // Some connections may have sent messages before one was too long.
    assert_eq!((sent + unsent, received, lost), (1_000, 500, sent - 500), "{summary}");
    assert!(unsent > 0, "{summary}");
}

#[test]
fn cable_clients_that_received_disconnect_are_not_open() {
    let chat = Chat::start(0);
    for (path, cause, disconnects) in
        [("/farewell", "by_us", json!({"full": EACH})), ("/masked", "masked_frame", json!({}))]
    {
        let url = format!("cable://{}{path}?held", chat.address);
        let summary = falls_short(&[url], EACH, &["--hold", "1s", "--retry", "0"]);
        assert_eq!(summary["closed"], of_each([cause]), "{summary}");
        assert_eq!(summary["connections"]["open"], 0, "{summary}");
        let cable = &summary["cable"];
        let counts = ["subscribed", "rejected", "waiting"].map(|key| cable[key].as_u64());
        assert_eq!((counts, &cable["disconnects"]), ([Some(0); 3], &disconnects), "{cable}");
    }
}

#[test]
fn disconnected_clients_are_not_expected_to_receive() {
    let server = Server::start(&["--admin-key", "secret"]);
    let chat = Chat::start(0);
    let publish = format!("http://{}/api/publish", server.admin);
    let topic = format!("ws://{}/topics/fan", server.listen);
    let door = ["--publish-url", &publish, "--publish-key", "secret", "--topic", "fan"];
    let few = ["--fanout", "100", "--messages", "5"];
    let targets = [vec![topic], urls(&chat, ["/masked"], "?held")].concat();
    let summary = falls_short(&targets, 2 * EACH, &[&few[..], &door].concat());
    assert_eq!(summary["closed"], of_each(["masked_frame"]), "{summary}");
    let broadcast = &summary["broadcast"];
    let counts = ["receivers", "received", "lost"].map(|key| broadcast[key].as_u64());
    assert_eq!(counts, [Some(3), Some(15), Some(0)], "{broadcast}");
}
