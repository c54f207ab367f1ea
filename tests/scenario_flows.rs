//! Scenarios of `standfast load` with sockets: against a chat server that drops, duplicates and reorders
//! messages and counts that, against hostile servers, and against `serve`.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::chat::Chat;
use crate::harness::executable::{self, Finished};
use crate::harness::server::Server;
use crate::harness::web::{Answer, Web};

pub(crate) fn run(text: &str, code: i32) -> (Finished, Value) {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = Scratch::new(&format!("flows-{number}.toml"), text);
    let finished = executable::run(&["load", file.path(), "--json", "-"]);
    assert_eq!(finished.code, Some(code), "{text}\n{finished:?}");
    finished.with_json()
}

fn counts<const N: usize>(of: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| of[name].as_u64().unwrap_or_else(|| panic!("no {name}: {of}")))
}

/// A flow for all users: join a room and send messages.
fn room(kind: &str, size: u32, users: u32, messages: u32, more: &str) -> String {
    format!(
        "version = 1\nusers = {users}\npasses = 1\n{more}
[group]
kind = '{kind}'
size = {size}
quiet = '1s'
late = '20s'
[[flows]]
role = 'SENDER'
[[flows.steps]]
connect = 'TARGET'
[[flows.steps]]
meet = true
[[flows.steps]]
name = 'say'
send = '{{\"from\":{{{{user}}}},\"text\":\"{{{{stamp}}}}\"}}'
repeat = {messages}
"
    )
}

const LISTENERS: &str = "
[[flows]]
role = 'receiver'
[[flows.steps]]
connect = 'TARGET'
[[flows.steps]]
meet = true
[[flows.steps]]
stay = true
";

#[test]
fn lost_duplicated_and_reordered_messages_are_counted_exactly() {
    for (kind, size, senders) in [("1:N", 5, 2), ("1:1", 2, 5)] {
        let chat = Chat::start(10);
        let text = room(kind, size, 10, 100, "") + LISTENERS;
        let target = format!("ws://{}/room/{{{{group}}}}", chat.address);
        let text = text.replace("SENDER", "sender").replace("TARGET", &target);
        let (finished, document) = run(&text, 1);
        let (groups, book) = (&document["groups"], chat.book());
        assert!(book.dropped >= 10 && book.doubled >= 10 && book.swapped >= 5, "{book:?}");
        let names = ["senders", "sent", "expected", "lost", "duplicated", "reordered"];
        let said = [senders, senders * 100, book.due, book.dropped, book.doubled, book.swapped];
        assert_eq!(counts(groups, names), said, "{kind}: {groups}\n{book:?}");
        let [received, late] = counts(groups, ["received", "late"]);
        assert_eq!((received, late), (book.due - book.dropped, 0), "{groups}");
        assert_eq!(groups["latency"]["count"], received, "{groups}");
        let worst = groups["worst"].as_array().unwrap();
        let lost: u64 = worst.iter().map(|one| one["lost"].as_u64().unwrap()).sum();
        assert_eq!(lost, book.dropped, "fewer than ten receivers, each named: {groups}");
        let line = format!("{} lost, {} duplicated", book.dropped, book.doubled);
        assert!(finished.stderr.contains(&line), "{}", finished.stderr);
        assert_eq!(document["sockets"]["received"], received + book.doubled, "{document}");
    }
}

#[test]
fn messages_of_the_warm_up_are_not_counted() {
    let chat = Chat::start(10);
    let text = room("1:N", 5, 10, 1, "warm_up = '300ms'") + LISTENERS;
    let target = format!("ws://{}/room/{{{{group}}}}", chat.address);
    // A pass is one message; users stay connected.
    let text = text.replace("SENDER'", "sender'\nrate = 200").replace("passes = 1", "passes = 30");
    let text = text.replace("TARGET'", &format!("{target}'\nonce = true"));
    let text = text.replace("meet = true", "meet = true\nonce = true");
    let (finished, document) = run(&text, 1);
    let (groups, book) = (&document["groups"], chat.book());
    let [senders, sent, expected] = counts(groups, ["senders", "sent", "expected"]);
    // Thirty passes each, and the rest of one begun in the warm-up.
    assert!(senders == 2 && (60..=62).contains(&sent) && expected == sent * 4, "{groups}");
    assert_eq!(counts(groups, ["foreign", "early", "corrupted"]), [0; 3], "{groups}");
    let [warm_up, received, lost] = counts(groups, ["warm_up", "received", "lost"]);
    assert!(warm_up >= 20, "{groups}");
    assert_eq!((received + lost, book.due), (expected, (sent + warm_up) * 4), "{groups}\n{book:?}");
    // One in ten is dropped.
    assert!((12..=36).contains(&lost) && lost < book.dropped, "{groups}\n{book:?}");
    assert_eq!(groups["latency"]["count"], received, "{groups}");
    assert_eq!(groups["send_lag"]["count"], sent, "{groups}");
    assert!(finished.stderr.contains("sent in the warm-up"), "{}", finished.stderr);
    let said: Vec<u64> = document["flows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["begun"].as_u64().unwrap())
        .collect();
    assert_eq!(said[0], 60, "passes of the warm-up are not counted: {document}");
}

#[test]
fn private_chats_are_checked_per_pair() {
    let chat = Chat::start(0);
    let threshold = "thresholds = ['lost==0', 'duplicated==0', 'receipt_p99<20s', 'errors<1']";
    let text = room("N:N", 3, 6, 10, threshold).replace("repeat", "each = true\nrepeat");
    let text = text.replace("SENDER", "both").replace("{\"from\":{{user}}", "{\"to\":{{to}}");
    let private = format!("ws://{}/private?id={{{{user}}}}", chat.address);
    let (_, document) = run(&text.replace("TARGET", &private), 0);
    let names = ["groups", "met", "sent", "expected", "received", "lost", "foreign"];
    assert_eq!(counts(&document["groups"], names), [2, 2, 120, 120, 120, 0, 0], "{document}");
    assert_eq!(
        (chat.book().due, &document["flows"][0]["steps"][2]["requests"]),
        (120, &json!(120))
    );
    // All send to one user: messages meant for others are reported.
    let text = text.replace("{{to}}", "0").replace("TARGET", &private);
    let (_, document) = run(&text, 1);
    let [lost, foreign, received] = counts(&document["groups"], ["lost", "foreign", "received"]);
    assert_eq!((received, lost), (20, 100), "{document}");
    // User 0 also receives the messages for the other member of its group, with the same numbers, while
    // it is there.
    assert!((1..=60).contains(&foreign), "{document}");
    assert!(document["thresholds"][0]["met"] == false, "{document}");
}

#[test]
fn topics_deliver_all_messages_at_the_requested_rate() {
    let server = Server::start(&[]);
    let target = format!("ws://{}/topics/room-{{{{group}}}}", server.listen);
    let text = room("N:N", 4, 8, 15, "").replace("quiet", "own = true\nquiet");
    let text = text.replace("role = 'SENDER'", "rate = 50").replace("TARGET", &target);
    let (_, document) = run(&text, 0);
    let groups = &document["groups"];
    let names = ["sent", "expected", "received", "lost", "duplicated", "reordered", "early"];
    assert_eq!(counts(groups, names), [120, 480, 480, 0, 0, 0, 0], "{groups}");
    // 120 messages of eight users, 14 intervals of 20 ms each.
    let rate = groups["sent_per_second"].as_f64().unwrap();
    assert!(rate > 0.0 && rate < 8.0 * 50.0 * 1.2, "{groups}");
    assert_eq!(groups["send_lag"]["count"], 120, "{groups}");
    assert!(
        groups["received_per_second"].as_f64() > Some(rate),
        "four users receive each: {groups}"
    );
}

#[test]
fn messages_published_over_http_are_expected_by_receivers() {
    let server = Server::start(&[]);
    let text = format!(
        "version = 1\nusers = 4\npasses = 1\n[group]\nkind = '1:N'\nsize = 4
[[flows]]
role = 'sender'
[[flows.steps]]
meet = true
[[flows.steps]]
url = 'http://{}/api/publish'
json = {{ topic = 'news', data = '{{{{stamp}}}}' }}
repeat = 30
{}",
        server.admin,
        LISTENERS.replace("TARGET", &format!("ws://{}/topics/news", server.listen))
    );
    let (_, document) = run(&text, 0);
    let names = ["sent", "expected", "received", "lost"];
    assert_eq!(counts(&document["groups"], names), [30, 90, 90, 0], "{document}");
    // A refused message counts as not sent and is not expected by receivers.
    let (_, document) = run(&text.replace("topic =", "topik ="), 1);
    assert_eq!(
        counts(&document["groups"], ["sent", "not_sent", "expected"]),
        [0, 1, 0],
        "{document}"
    );
}

#[test]
fn clients_of_action_cable_subscribe_and_whisper_to_each_other() {
    let server = Server::start(&["--public-streams"]);
    let text = "version = 1\nusers = 6\npasses = 1\n[group]\nkind = 'N:1'\nsize = 3
[[flows]]
role = 'sender'
[[flows.steps]]
cable = 'ws://HOST/cable'
[[flows.steps]]
subscribe = { channel = '$pubsub', stream_name = 'room {{group}}' }
[[flows.steps]]
meet = true
[[flows.steps]]
whisper = { text = '{{stamp}}', from = '{{user}}' }
repeat = 20
[[flows.steps]]
unsubscribe = true
[[flows]]
role = 'receiver'
[[flows.steps]]
cable = 'ws://HOST/cable'
[[flows.steps]]
name = 'subscribe'
subscribe = '{\"stream_name\":\"room {{group}}\",\"channel\":\"$pubsub\"}'
[[flows.steps]]
meet = true
[[flows.steps]]
name = 'first'
receive = { json = '$.text', matches = '^sf1 ' }
capture = { from = { json = '$.from' } }
[[flows.steps]]
name = 'of the same'
receive = { json = '$.from', matches = '^[0-9]$' }
checks = [{ json = '$.from', matches = '^[1245]$' }]
[[flows.steps]]
stay = true
";
    let (_, document) = run(&text.replace("HOST", &server.listen.to_string()), 0);
    let groups = &document["groups"];
    let names = ["senders", "receivers", "sent", "expected", "received", "lost"];
    assert_eq!(counts(groups, names), [4, 2, 80, 80, 80, 0], "{groups}");
    let steps = &document["flows"][1]["steps"];
    assert_eq!((&steps[1]["requests"], &steps[1]["failed"]), (&json!(2), &json!(0)), "{steps}");
    assert_eq!((&steps[4]["checks"][0]["passed"], &steps[3]["failed"]), (&json!(2), &json!(0)));
    // A rejected subscription ends the flow.
    let rejected = "version = 1\npasses = 2\n[[flows]]\n[[flows.steps]]\ncable = 'ws://HOST/cable'
[[flows.steps]]
subscribe = { channel = 'ChatChannel' }
[[flows.steps]]
perform = { action = 'speak' }
";
    let (_, document) = run(&rejected.replace("HOST", &server.listen.to_string()), 1);
    let steps = &document["flows"][0]["steps"];
    assert_eq!((&steps[0]["failed"], &steps[2]["requests"]), (&json!(0), &json!(0)), "{steps}");
    assert_eq!(steps[1]["errors"], json!({"rejected": 2}), "{steps}");
}

#[test]
fn sockets_use_cookies_and_captures_of_earlier_requests() {
    let web = Web::start(|got| -> Answer {
        let cookie = vec![("Set-Cookie", "sid=9; Path=/".to_owned())];
        match got.target.as_str() {
            "/login" => (200, cookie, r#"{"token":"t-1"}"#.to_owned()),
            _ => (204, Vec::new(), String::new()),
        }
    });
    let chat = Chat::start(0);
    let text = "version = 1\ntarget = 'http://WEB'\nusers = 3\npasses = 4\n[[flows]]
[[flows.steps]]
url = '/login'
method = 'POST'
once = true
capture = { token = { json = '$.token' } }
[[flows.steps]]
connect = 'ws://CHAT/echo?t={{token}}'
bearer = '{{token}}'
headers = { X-User = '{{user}}' }
protocols = []
[[flows.steps]]
name = 'ask'
send = '{\"n\":{{pass}},\"user\":{{user}}}'
receive = { json = '$.n' }
capture = { n = { json = '$.n' } }
checks = [{ name = 'mine', regex = '\"user\":(.)', matches = '^[012]$' }, { latency = '<20s' }]
[[flows.steps]]
name = 'while it is open'
url = '/seen?n={{n}}'
[[flows.steps]]
ping = 'still there'
[[flows.steps]]
name = 'twice'
send = 'x {{user}}'
repeat = 2
[[flows.steps]]
name = 'bytes'
send = 'y {{user}}'
binary = true
[[flows.steps]]
name = 'what came before'
receive = { text = 'x {{user}}' }
repeat = 2
[[flows.steps]]
name = 'and the other'
receive = { contains = 'y', regex = '[0-9]' }
think = '1ms'
[[flows.steps]]
close = true
";
    let text = text.replace("WEB", &web.address.to_string());
    let (_, document) = run(&text.replace("CHAT", &chat.address.to_string()), 0);
    let flow = &document["flows"][0];
    assert_eq!((&flow["begun"], &flow["completed"]), (&json!(12), &json!(12)), "{flow}");
    let requests: Vec<u64> =
        flow["steps"].as_array().unwrap().iter().map(|s| s["requests"].as_u64().unwrap()).collect();
    assert_eq!(requests, [3, 12, 12, 12, 12, 24, 12, 24, 12, 12], "{flow}");
    let book = chat.book();
    assert_eq!((book.handshakes.len(), book.closes), (12, 12), "each pass has its own");
    assert_eq!(book.pongs, 4 * 12, "between two pieces of each answer the server pings");
    for asked in &book.handshakes {
        assert_eq!(asked.target, "/echo?t=t-1");
        assert_eq!(asked.header("authorization"), Some("Bearer t-1"));
        assert!(["0", "1", "2"].contains(&asked.header("x-user").unwrap()));
        assert_eq!(asked.header("upgrade"), Some("websocket"));
    }
    let seen = web.got().into_iter().filter(|got| got.target.starts_with("/seen?n="));
    let seen: Vec<_> = seen.collect();
    assert_eq!(seen.len(), 12);
    assert!(seen.iter().all(|got| got.header("cookie") == Some("sid=9")), "{seen:?}");
    assert_eq!(document["connections"]["opened"], 12 + 3, "HTTP's is kept: {document}");
    let step = &flow["steps"][2];
    assert_eq!(step["checks"][2]["passed"], 12, "{step}");
    assert_eq!(document["sockets"]["received"], 4 * 12, "{document}");
}

#[test]
fn hostile_servers_are_counted_by_kind_and_never_hang_a_flow() {
    let chat = Chat::start(0);
    for (path, of_connect, kind) in [
        ("/masked", false, "masked_frame"),
        ("/reserved", false, "reserved_bits"),
        ("/oversize", false, "message_too_big"),
        ("/midway", false, "closed_midway"),
        ("/gone", false, "closed"),
        ("/closes", false, "closed"),
        ("/accept", true, "wrong_accept"),
        ("/head", true, "head_too_large"),
        ("/refused", true, "status"),
        ("/silent", true, "timeout"),
    ] {
        let text = format!(
            "version = 1\nusers = 2\npasses = 3\n[[flows]]\n[[flows.steps]]\n\
             connect = 'ws://{}{path}'\nwithin = '{}'\n[[flows.steps]]\nreceive = {{}}\n",
            chat.address,
            if path == "/silent" { "300ms" } else { "20s" },
        );
        let (_, document) = run(&text, 1);
        let steps = &document["flows"][0]["steps"];
        let (failed, other) = if of_connect { (0, 1) } else { (1, 0) };
        // A message after the handshake may arrive before the next step.
        let early = steps[failed]["errors"]["not_connected"].as_u64().unwrap_or(0);
        let told = steps[failed]["errors"][kind].as_u64().unwrap_or(0);
        assert_eq!(early + told, 6, "{path}: {steps}");
        assert_eq!(steps[other]["failed"], 0, "{path}: {steps}");
        assert_eq!(document["requests"]["failed"], 6, "{path}: {document}");
        let sockets = &document["sockets"];
        let count = |field: &str, key: &str| sockets[field][key].as_u64().unwrap_or(0);
        match path {
            "/closes" => assert_eq!(count("closed_by", "4007"), 6, "{sockets}"),
            "/gone" | "/midway" => assert_eq!(sockets["gone"], 6, "{sockets}"),
            "/masked" | "/reserved" | "/oversize" | "/accept" | "/head" => {
                assert_eq!(count("broken", kind), 6, "{path}: {sockets}");
            }
            _ => {}
        }
    }
}

#[test]
fn receive_timeout_keeps_the_socket_and_a_lost_socket_is_reopened() {
    let chat = Chat::start(0);
    let text = format!(
        "version = 1\npasses = 3\n[[flows]]\n[[flows.steps]]\nconnect = 'ws://{}/echo'\nonce = true\n\
         [[flows.steps]]\nsend = 'hello'\n[[flows.steps]]\nname = 'never'\n\
         receive = {{ text = 'nothing of the kind' }}\nwithin = '50ms'\n",
        chat.address
    );
    let (_, document) = run(&text, 1);
    let steps = &document["flows"][0]["steps"];
    assert_eq!(steps[2]["errors"], json!({"timeout": 3}), "{steps}");
    assert_eq!(chat.book().handshakes.len(), 1, "it is the same socket: {document}");
    let server = Server::start(&[]);
    let text = format!(
        "version = 1\npasses = 3\n[[flows]]\n[[flows.steps]]\nconnect = 'ws://{}/echo'\nonce = true\n\
         [[flows.steps]]\nsend = 'hello'\nreceive = {{ text = 'hello' }}\n\
         [[flows.steps]]\nclose = true\n",
        server.listen
    );
    let (_, document) = run(&text, 1);
    let steps = &document["flows"][0]["steps"];
    // After its own close a user that connects only once has no socket.
    assert_eq!(steps[1]["errors"], json!({"not_connected": 2}), "{steps}");
    let gone = "connect = 'ws://HOST/gone'\n[[flows.steps]]\nreceive = {}";
    let text = text.replace("close = true", gone).replace("HOST", &chat.address.to_string());
    let (_, document) = run(&text, 1);
    let first = &document["flows"][0]["steps"][0];
    assert_eq!(first["requests"], 3, "opened again as the server had ended it: {document}");
}

#[test]
fn incomplete_groups_are_reported() {
    let chat = Chat::start(0);
    let text =
        room("1:1", 2, 2, 5, "timeout = '500ms'") + &LISTENERS.replace("TARGET", "ws://DEAD/");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = text.replace("SENDER", "sender").replace("DEAD", &free.to_string());
    let text = text.replace("TARGET", &format!("ws://{}/room/x", chat.address));
    let (finished, document) = run(&text, 1);
    let names = ["groups", "met", "sent", "expected"];
    assert_eq!(counts(&document["groups"], names), [1, 0, 0, 0], "{document}");
    assert_eq!(document["flows"][0]["steps"][1]["errors"], json!({"timeout": 1}), "{document}");
    assert!(finished.stderr.contains("1 groups were never complete"), "{}", finished.stderr);
}

#[test]
fn the_chat_of_the_docs_runs_beside_serve() {
    let docs = include_str!("../docs/load/scenarios.md");
    let example =
        docs.split("<!-- chat -->\n```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let server = Server::start(&["--public-streams"]);
    let text = example.replace("127.0.0.1:8080", &server.listen.to_string());
    let (_, document) = run(&text.replace("users = 100", "users = 10"), 0);
    let [expected, received, lost] = counts(&document["groups"], ["expected", "received", "lost"]);
    assert!(expected > 0 && received == expected && lost == 0, "{document}");
    assert_eq!(document["thresholds"].as_array().unwrap().len(), 3, "{document}");
}

#[test]
fn no_group_threshold_is_met_without_receipts() {
    let chat = Chat::start(0);
    let asked = ["lost<99", "late==0", "duplicated==0", "receipt_p99<1h", "errors<9"];
    let text = room("1:1", 2, 2, 3, &format!("thresholds = {asked:?}")) + LISTENERS;
    let text = text.replace("SENDER", "sender").replace("\"from\":{{user}}", "\"to\":99");
    let text = text.replace("TARGET", &format!("ws://{}/private?id={{{{user}}}}", chat.address));
    let (finished, document) = run(&text, 1);
    let names = ["expected", "received", "lost"];
    assert_eq!(counts(&document["groups"], names), [3, 0, 3], "{document}");
    let outcomes = document["thresholds"].as_array().unwrap().iter();
    let met: Vec<bool> = outcomes.map(|outcome| outcome["met"] == true).collect();
    // Steps were answered, so what errors they had is known.
    assert_eq!(met, [false, false, false, false, true], "{document}");
    assert!(finished.stderr.contains("lost 3 < 99: MISSED: nothing was answered"));
}

#[test]
fn no_scenario_threshold_is_met_without_answers() {
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 2\npasses = 1\ntimeout = '200ms'\n\
         thresholds = ['errors<9', 'failed<9', 'p99<1h', 'closed==0', 'rate<1M']\n\
         [[flows]]\n[[flows.steps]]\nurl = '/'\n",
        deaf.local_addr().unwrap()
    );
    let (_, document) = run(&text, 1);
    let outcomes = document["thresholds"].as_array().unwrap();
    assert_eq!(outcomes.len(), 5);
    assert!(outcomes.iter().all(|outcome| outcome["met"] == false), "{document}");
}

/// The secret of `scenarios/session-tokens.csv`.
const EXAMPLE_SECRET: &str = "a secret of examples, known to everyone";

#[test]
fn example_of_a_session_runs_against_serve() {
    for (secret, code) in [(EXAMPLE_SECRET, 0), ("another secret", 1)] {
        let server = Server::start(&["--public", "--enforce-jwt", "--jwt-secret", secret]);
        let target = format!("http://{}", server.listen);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/session.toml");
        let args = ["load", file, "--target", &target, "--duration", "2s", "--json", "-"];
        let finished = executable::run(&args);
        assert_eq!(finished.code, Some(code), "{finished:?}");
        let document = finished.json();
        let flow = &document["flows"][0];
        let step = |at: usize, key: &str| flow["steps"][at][key].as_u64().unwrap();
        if code == 0 {
            assert!(flow["completed"].as_u64() > Some(0), "{document}");
            assert!(step(1, "requests") >= 10 && step(2, "requests") > 0, "{document}");
            assert_eq!([step(0, "failed"), step(1, "failed"), step(2, "failed")], [0; 3]);
            let check = &flow["steps"][1]["checks"][0];
            assert_eq!(check["passed"], step(1, "requests"), "{document}");
        } else {
            assert_eq!((step(0, "failed"), step(1, "requests")), (step(0, "requests"), 0));
        }
    }
}
