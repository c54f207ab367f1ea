//! Several WebSockets of a user in `standfast load FILE.toml`, and sockets that stay open over passes.

use serde_json::json;

use crate::harness::Scratch;
use crate::harness::chat::Chat;
use crate::harness::executable;
use crate::harness::web::Web;
use crate::scenario_flows::run;

const TWO: &str = "version = 1\ntarget = 'http://WEB'\nusers = 2\npasses = 5\n[[flows]]
[[flows.steps]]
connect = 'ws://CHAT/echo?one'
socket = 'one'
hold = true
[[flows.steps]]
connect = 'ws://CHAT/echo?two'
socket = 'two'
hold = true
[[flows.steps]]
url = '/between'
[[flows.steps]]
send = 'a {{user}} {{pass}}'
socket = 'one'
[[flows.steps]]
send = 'b {{user}} {{pass}}'
receive = { text = 'b {{user}} {{pass}}' }
socket = 'two'
[[flows.steps]]
send = 'c {{user}} {{pass}}'
socket = 'two'
[[flows.steps]]
receive = { text = 'a {{user}} {{pass}}' }
socket = 'one'
[[flows.steps]]
receive = { text = 'c {{user}} {{pass}}' }
socket = 'two'
";

#[test]
fn a_user_holds_several_sockets_over_passes() {
    let (web, chat) = (Web::start(|_| (204, Vec::new(), String::new())), Chat::start(0));
    let text = TWO.replace("WEB", &web.address.to_string());
    let text = text.replace("CHAT", &chat.address.to_string());
    let (_, document) = run(&text, 0);
    let flow = &document["flows"][0];
    let steps = flow["steps"].as_array().unwrap();
    let requests: Vec<u64> = steps.iter().map(|s| s["requests"].as_u64().unwrap()).collect();
    assert_eq!(requests, [2, 2, 10, 10, 10, 10, 10, 10], "{flow}");
    assert_eq!(flow["completed"], 10, "{flow}");
    let book = chat.book();
    assert_eq!((book.handshakes.len(), book.closes), (4, 4), "two of each user: {book:?}");
    assert_eq!(document["connections"]["opened"], 4 + 2, "{document}");
    let sockets = &document["sockets"];
    assert_eq!((&sockets["received"], &sockets["reopened"]), (&json!(30), &json!(0)), "{sockets}");
    // On one socket only the messages of that one are received.
    let mixed =
        text.replacen("receive = { text = 'a", "within = '300ms'\nreceive = { text = 'c", 1);
    let (_, document) = run(&mixed, 1);
    let step = &document["flows"][0]["steps"][6];
    assert_eq!(step["errors"], json!({"timeout": 10}), "{document}");
    for (from, to, said) in [
        (
            "socket = 'two'\n[[flows.steps]]\nurl",
            "socket = 'three'\n[[flows.steps]]\nurl",
            "no socket \"two\"",
        ),
        (
            "url = '/between'",
            "url = '/between'\nhold = true",
            "hold needs connect, cable or stream",
        ),
        (
            "url = '/between'",
            "url = '/between'\nsocket = 'one'",
            "socket needs a step on a WebSocket",
        ),
    ] {
        let text = text.replacen("hold = true\n[[flows.steps]]\nurl", "[[flows.steps]]\nurl", 1);
        let file = Scratch::new("sockets.toml", &text.replacen(from, to, 1));
        let finished = executable::run(&["load", file.path()]);
        assert_eq!(finished.code, Some(2), "{to}: {finished:?}");
        assert!(finished.stderr.contains(said), "{to}: {finished:?}");
    }
}

#[test]
fn flows_share_a_held_socket_until_a_step_closes_it() {
    let chat = Chat::start(0);
    let flow = |more: &str| {
        format!(
            "[[flows]]\n[[flows.steps]]\nconnect = 'ws://{}/echo'\nhold = true\n\
             [[flows.steps]]\nsend = 'hi'\nreceive = {{}}\n{more}",
            chat.address
        )
    };
    let text = format!("version = 1\npasses = 20\nseed = 3\n{}{}", flow(""), flow(""));
    let (_, document) = run(&text, 0);
    let opened = |document: &serde_json::Value| document["connections"]["opened"].as_u64().unwrap();
    assert_eq!(opened(&document), 1, "of both flows: {document}");
    assert!((1..20).contains(&document["flows"][0]["begun"].as_u64().unwrap()), "{document}");
    let close = "[[flows.steps]]\nclose = true\n";
    let text = format!("version = 1\npasses = 5\n{}", flow(close));
    let (_, document) = run(&text, 0);
    assert_eq!((opened(&document), &document["sockets"]["reopened"]), (5, &json!(0)), "{document}");
}

#[test]
fn a_held_socket_is_opened_again_after_it_ended() {
    let chat = Chat::start(0);
    let text = format!(
        "version = 1\npasses = 4\n[[flows]]
[[flows.steps]]
connect = 'ws://{0}/echo'
socket = 'kept'
hold = true
[[flows.steps]]
connect = 'ws://{0}/closes'
hold = true
[[flows.steps]]
receive = {{}}
on_failure = 'continue'
[[flows.steps]]
send = 'hi'
receive = {{ text = 'hi' }}
socket = 'kept'
",
        chat.address
    );
    let (finished, document) = run(&text, 1);
    let flow = &document["flows"][0];
    let steps = flow["steps"].as_array().unwrap();
    let requests: Vec<u64> = steps.iter().map(|s| s["requests"].as_u64().unwrap()).collect();
    assert_eq!(requests, [1, 4, 4, 4], "only the socket that ended is opened again: {flow}");
    assert_eq!((&steps[3]["failed"], &flow["completed"]), (&json!(0), &json!(4)), "{flow}");
    let sockets = &document["sockets"];
    assert_eq!(sockets["closed_by"], json!({"4007": 4}), "{sockets}");
    assert_eq!(sockets["reopened"], 3, "{sockets}");
    assert!(finished.stderr.contains("3 held over passes were opened again"), "{finished:?}");
}
