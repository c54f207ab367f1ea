//! An application that decides about clients and channels of `/cable`, over HTTP RPC: what it is called
//! with, what its answers do, in which order. Bad applications and storms are in `application_storms.rs`.

use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::app::{Answer, App, chat, room};
use crate::harness::cable::Cable;
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, identifiers, signed, token};
use crate::harness::socket::TEXT;
use crate::harness::{eventually, http};

fn join(server: &Server, user: &str) -> Cable {
    let cookie = format!("other=1; user={user}");
    Cable::connect(server.listen, "?page=1", "", ("Cookie", &cookie))
}

/// A server that calls this application and repeats the cookie `user`.
fn server(app: &App, more: &[&str]) -> Server {
    let url = app.url();
    let fixed = ["--rpc-host", &url, "--proxy-cookies", "user"];
    Server::start(&[&fixed[..], more].concat())
}

fn send(cable: &mut Cable, command: &Value) {
    cable.socket.send_frame(TEXT, command.to_string().as_bytes());
}

fn command(cable: &mut Cable, name: &str, identifier: &Value) {
    send(cable, &json!({"command": name, "identifier": identifier.to_string()}));
}

fn perform(cable: &mut Cable, identifier: &Value, data: &str) {
    let identifier = identifier.to_string();
    send(cable, &json!({"command": "message", "identifier": identifier, "data": data}));
}

fn data(identifier: &Value, message: impl Into<Value>) -> Value {
    json!({"identifier": identifier.to_string(), "message": message.into()})
}

fn publish(server: &Server, topic: &str, data: &str) {
    assert_eq!(server.publish(&json!({"topic": topic, "data": data})).status, 200);
}

/// Publishes to a server with [`SECRET`].
fn publish_with_key(server: &Server, topic: &str, data: &str) {
    let body = json!({"topic": topic, "data": data}).to_string();
    // Computed by Python's hmac, from the secret and "api-cable".
    let key = "1db397202b5bd68b12665b638515c3aeac9100f721fd7c4fcb6f29c69f32c886";
    let request = format!(
        "POST /api/publish HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(http::ask(server.admin, &request).status, 200);
}

#[test]
fn an_application_admits_a_client_and_answers_its_commands() {
    let app = App::start(chat);
    let server = server(&app, &["--secret", SECRET]);
    let mut cable = join(&server, "ann");
    let sid = cable.welcome();
    let lobby = room("lobby");
    assert_eq!(cable.subscribe(&lobby), "confirm_subscription");
    publish_with_key(&server, "room:lobby", "1");
    assert_eq!(cable.hear(), data(&lobby, 1));
    perform(&mut cable, &lobby, r#"{"action":"speak"}"#);
    assert_eq!(cable.hear(), data(&lobby, json!({"echo": r#"{"action":"speak"}"#})));
    command(&mut cable, "unsubscribe", &lobby);
    eventually("it is unsubscribed", || server.metrics()["standfast_subscriptions"] == 0.0);
    assert_eq!(cable.subscribe(&room("other")), "confirm_subscription");
    drop(cable);
    eventually("the application hears of the end", || app.names().len() == 6);

    let calls = app.calls();
    assert_eq!(
        app.names(),
        ["connect", "subscribe", "message", "unsubscribe", "subscribe", "disconnect"]
    );
    let env = json!({
        "url": format!("http://127.0.0.1/cable?page=1"),
        "headers": {"cookie": "user=ann", "REMOTE_ADDR": "127.0.0.1"},
    });
    assert_eq!(calls[0].body, json!({"env": env}));
    for call in &calls {
        assert_eq!(call.sid(), sid);
        // Computed by Python's hmac, from the secret and "rpc-cable".
        let key = "Bearer 08ac56f1562c6377ddd5d2d55cee2e35e117a55959d6a6ea3a63548ef0a7e559";
        assert_eq!(call.header("authorization"), Some(key));
        assert_eq!(call.path, format!("/_anycable/{}", call.method()));
    }
    let mut known = env;
    known["cstate"] = json!({"since": "now"});
    let ann = json!({"user": "ann"}).to_string();
    let subscribe = json!({
        "command": "subscribe", "identifier": lobby.to_string(), "connection_identifiers": ann,
        "env": known,
    });
    assert_eq!(calls[1].body, subscribe);
    let mut with_state = known.clone();
    with_state["istate"] = json!({"room": "lobby"});
    let message = json!({
        "command": "message", "identifier": lobby.to_string(), "connection_identifiers": ann,
        "data": r#"{"action":"speak"}"#, "env": with_state,
    });
    assert_eq!(calls[2].body, message);
    let other = room("other").to_string();
    let mut with_states = known;
    with_states["istate"] = json!({other.clone(): json!({"room": "other"}).to_string()});
    let disconnect = json!({"identifiers": ann, "subscriptions": [other], "env": with_states});
    assert_eq!(calls[5].body, disconnect);
}

#[test]
fn an_application_refuses_clients_and_subscriptions() {
    let app = App::start(chat);
    let server = server(&app, &[]);
    let stranger = Cable::connect(server.listen, "", "", ("", ""));
    assert_eq!(stranger.refused(), "unauthorized");
    let mut cable = join(&server, "ann").welcomed();
    assert_eq!(cable.subscribe(&room("locked")), "reject_subscription");
    assert_eq!(cable.subscribe(&room("open")), "confirm_subscription");
    let refused = "standfast_auth_refused_total{cause=\"application\"}";
    assert_eq!(server.metrics()[refused], 1.0);
    drop(cable);
    eventually("one has ended", || app.names().last().is_some_and(|name| name == "disconnect"));
    assert_eq!(
        app.names().iter().filter(|name| *name == "disconnect").count(),
        1,
        "of a known one"
    );
}

/// An application that sends no messages of the protocol itself.
#[test]
fn messages_of_the_protocol_that_an_application_leaves_out_are_sent() {
    let app = App::start(|call| {
        let refused = call.body["env"]["url"].as_str().is_some_and(|url| url.contains("refuse"))
            || call.identifier().contains("locked");
        Answer::Json(json!({"status": if refused { 2 } else { 1 }}))
    });
    let server = server(&app, &[]);
    let mut cable = join(&server, "ann");
    assert_eq!(cable.welcome().len(), 32);
    assert_eq!(cable.subscribe(&room("a")), "confirm_subscription");
    assert_eq!(cable.subscribe(&room("locked")), "reject_subscription");
    let refused = Cable::connect(server.listen, "?refuse", "", ("", ""));
    assert_eq!(refused.refused(), "unauthorized");
}

#[test]
fn a_client_with_a_token_needs_no_connect_call() {
    let app = App::start(chat);
    let server = server(&app, &["--secret", SECRET]);
    let mut cable = Cable::join(server.listen, Some(&token(7))).welcomed();
    assert_eq!(cable.subscribe(&room("a")), "confirm_subscription");
    let mut silent = Cable::join(server.listen, Some(&token(8))).welcomed();
    let stream = json!({"channel": "$pubsub", "signed_stream_name": signed(SECRET, "news")});
    assert_eq!(silent.subscribe(&stream), "confirm_subscription");
    drop((cable, silent));
    eventually("both have ended", || server.metrics()["standfast_websockets"] == 0.0);
    eventually("the end of one is reported", || app.names() == ["subscribe", "disconnect"]);
    assert_eq!(app.calls()[0].body["connection_identifiers"], identifiers(7));
}

/// Streams with public or signed names are never the application's.
#[test]
fn streams_work_while_the_application_is_slow() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let app = App::start(move |call| {
        if call.name() == "subscribe" {
            let _ = wait.lock().unwrap().recv();
        }
        chat(call)
    });
    let server = server(&app, &["--rpc-timeout", "60s"]);
    let mut cable = join(&server, "ann").welcomed();
    command(&mut cable, "subscribe", &room("slow"));
    let stream = json!({"channel": "$pubsub", "stream_name": "news"});
    assert_eq!(cable.subscribe(&stream), "confirm_subscription");
    publish(&server, "news", "1");
    assert_eq!(cable.hear(), data(&stream, 1));
    release.send(()).unwrap();
    assert_eq!(cable.hear()["type"], "confirm_subscription");
}

/// One call of a connection at a time, in the order of its commands; repeated subscribes cost nothing.
#[test]
fn commands_are_performed_in_order_one_at_a_time() {
    let app = App::start(|call| {
        std::thread::sleep(Duration::from_millis(2));
        chat(call)
    });
    let server = server(&app, &["--rpc-concurrency", "8"]);
    let mut cable = join(&server, "ann");
    let (a, b) = (room("a"), room("b"));
    // Before the welcome, as fast as possible.
    for _ in 0..5 {
        command(&mut cable, "subscribe", &a);
    }
    for number in 0..200 {
        perform(&mut cable, &a, &number.to_string());
    }
    command(&mut cable, "unsubscribe", &a);
    command(&mut cable, "subscribe", &a);
    command(&mut cable, "subscribe", &b);
    cable.welcome();
    let confirm = |identifier: &Value| json!({"type": "confirm_subscription", "identifier": identifier.to_string()});
    assert_eq!(cable.hear(), confirm(&a));
    for number in 0..200 {
        assert_eq!(cable.hear(), data(&a, json!({"echo": number.to_string()})));
    }
    assert_eq!((cable.hear(), cable.hear()), (confirm(&a), confirm(&b)));
    let mut expected = vec!["connect", "subscribe"];
    expected.extend(["message"; 200]);
    expected.extend(["unsubscribe", "subscribe", "subscribe"]);
    assert_eq!(app.names(), expected);
    assert_eq!(app.most.load(std::sync::atomic::Ordering::SeqCst), 1);
    // A repeated one is confirmed without a call.
    assert_eq!(cable.subscribe(&b), "confirm_subscription");
    assert_eq!(app.names().len(), expected.len());
}

/// A client that sends faster than the application answers is not read any more; its commands are all
/// performed.
#[test]
fn a_flood_of_commands_is_bounded_and_none_is_lost() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let app = App::start(move |call| {
        if call.name() == "subscribe" {
            let _ = wait.lock().unwrap().recv();
        }
        chat(call)
    });
    let server = server(&app, &["--rpc-timeout", "60s"]);
    let mut cable = join(&server, "ann").welcomed();
    let a = room("a");
    command(&mut cable, "subscribe", &a);
    let padding = "x".repeat(1000);
    let mut sender = cable.socket.sender();
    let identifier = a.to_string();
    let flood = std::thread::spawn(move || {
        for number in 0..3000 {
            let data = format!("{number} {padding}");
            let message = json!({"command": "message", "identifier": identifier, "data": data});
            let frame = crate::harness::socket::masked(TEXT, message.to_string().as_bytes());
            assert!(sender.send(&frame));
        }
    });
    eventually("commands wait", || server.metrics()["standfast_subscription_bytes"] > 16_000.0);
    let held = server.metrics()["standfast_subscription_bytes"];
    assert!(held < 64_000.0, "{held}");
    release.send(()).unwrap();
    assert_eq!(cable.hear()["type"], "confirm_subscription");
    for number in 0..3000 {
        let echo = cable.hear()["message"]["echo"].as_str().unwrap().to_owned();
        assert!(echo.starts_with(&format!("{number} ")), "{number}: {}", &echo[..20]);
    }
    flood.join().unwrap();
    assert!(server.metrics()["standfast_subscription_bytes"] < 4_000.0);
}

/// A subscribe with requests for after its confirmation is kept until it is answered, and counts meanwhile.
#[test]
fn what_a_subscribe_requests_counts_while_it_waits() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let app = App::start(move |call| {
        if call.name() == "subscribe" {
            let _ = wait.lock().unwrap().recv();
        }
        chat(call)
    });
    let server = server(&app, &["--rpc-timeout", "60s"]);
    let mut cable = join(&server, "ann").welcomed();
    let history = json!({"streams": {"x".repeat(50_000): {"offset": 1, "epoch": "e"}}});
    let identifier = room("a").to_string();
    let subscribe = json!({"command": "subscribe", "identifier": identifier, "history": history});
    cable.socket.send_frame(TEXT, subscribe.to_string().as_bytes());
    let held = || server.metrics()["standfast_subscription_bytes"];
    eventually("it counts", || held() > 50_000.0);
    release.send(()).unwrap();
    assert_eq!(cable.hear()["type"], "confirm_subscription");
    eventually("it counts no more", || held() < 4_000.0);
}

/// Several streams of one subscription, one stream of several subscriptions, none at all.
#[test]
fn a_subscription_has_the_streams_that_the_application_chooses() {
    let app = App::start(|call| {
        let data: Value = call.body["data"]
            .as_str()
            .map_or(Value::Null, |data| serde_json::from_str(data).unwrap_or_default());
        match call.name() {
            "subscribe" => Answer::Json(json!({"status": 1, "streams": []})),
            // The data is the answer.
            "message" => {
                let mut answer = data;
                answer["status"] = json!(1);
                Answer::Json(answer)
            }
            _ => chat(call),
        }
    });
    let server = server(&app, &[]);
    let mut cable = join(&server, "ann").welcomed();
    let (a, b) = (room("a"), room("b"));
    let said = |identifier: &Value| data(identifier, "said").to_string();
    for identifier in [&a, &b] {
        assert_eq!(cable.subscribe(identifier), "confirm_subscription");
    }
    let act = |cable: &mut Cable, identifier: &Value, answer: &Value| {
        let mut answer = answer.clone();
        answer["transmissions"] = json!([said(identifier)]);
        perform(cable, identifier, &answer.to_string());
        assert_eq!(cable.hear(), data(identifier, "said"));
    };
    let subscriptions = || server.metrics()["standfast_subscriptions"];
    assert_eq!(subscriptions(), 0.0);
    act(&mut cable, &a, &json!({"streams": ["one", "two", "one"]}));
    act(&mut cable, &b, &json!({"streams": ["two"]}));
    assert_eq!(subscriptions(), 3.0);
    publish(&server, "one", "1");
    assert_eq!(cable.hear(), data(&a, 1));
    publish(&server, "two", "2");
    let mut both = [cable.hear(), cable.hear()];
    both.sort_by_key(|message| message["identifier"].to_string());
    assert_eq!(both, [data(&a, 2), data(&b, 2)], "once for each subscription");
    act(&mut cable, &a, &json!({"stopped_streams": ["two", "unknown"]}));
    publish(&server, "two", "3");
    assert_eq!(cable.hear(), data(&b, 3));
    act(&mut cable, &a, &json!({"stop_streams": true, "streams": ["three"]}));
    publish(&server, "one", "4");
    publish(&server, "three", "5");
    assert_eq!(cable.hear(), data(&a, 5));
    drop(cable);
    eventually("nothing is left", || subscriptions() == 0.0);
    eventually("no bytes are left", || server.metrics()["standfast_subscription_bytes"] == 0.0);
    assert_eq!(server.metrics()["standfast_topics"], 0.0);
}

/// State lives with the connection and its subscriptions; an empty value deletes.
#[test]
fn states_are_kept_and_changed_by_answers() {
    let app = App::start(|call| match call.name() {
        "message" => {
            let data = call.body["data"].as_str().unwrap_or_default();
            let env: Value = serde_json::from_str(data).unwrap_or_default();
            let seen = json!({
                "identifier": call.identifier(),
                "message": [call.body["env"]["cstate"], call.body["env"]["istate"]],
            });
            Answer::Json(json!({"status": 1, "env": env, "transmissions": [seen.to_string()]}))
        }
        _ => chat(call),
    });
    let server = server(&app, &[]);
    let mut cable = join(&server, "ann").welcomed();
    let (a, b) = (room("a"), room("b"));
    for identifier in [&a, &b] {
        assert_eq!(cable.subscribe(identifier), "confirm_subscription");
    }
    let change = json!({"cstate": {"n": "1"}, "istate": {"m": "2", "room": ""}}).to_string();
    for (identifier, change, seen) in [
        (&a, &*change, json!([{"since": "now"}, {"room": "a"}])),
        (&a, "{}", json!([{"since": "now", "n": "1"}, {"m": "2"}])),
        (
            &b,
            r#"{"cstate":{"since":"","n":""}}"#,
            json!([{"since": "now", "n": "1"}, {"room": "b"}]),
        ),
        (&b, "{}", json!([null, {"room": "b"}])),
    ] {
        perform(&mut cable, identifier, change);
        assert_eq!(cable.hear(), data(identifier, seen));
    }
}

#[test]
fn an_application_ends_a_connection() {
    let app = App::start(|call| match call.name() {
        "message" => Answer::Json(json!({"status": 1, "disconnect": true})),
        _ => chat(call),
    });
    let server = server(&app, &[]);
    let mut cable = join(&server, "ann").welcomed();
    assert_eq!(cable.subscribe(&room("a")), "confirm_subscription");
    perform(&mut cable, &room("a"), "{}");
    assert_eq!(cable.disconnect_reason(), ("remote".to_owned(), true));
    assert_eq!(cable.socket.close_code(), 1000);
    // From outside, by the identifiers that it gave the connection.
    let mut cable = join(&server, "ann").welcomed();
    let ann = json!({"user": "ann"}).to_string();
    let body = json!({"command": "disconnect", "payload": {"identifier": ann, "reconnect": false}});
    assert_eq!(server.admin_post("/_broadcast", &body.to_string()).status, 201);
    assert_eq!(cable.disconnect_reason(), ("remote".to_owned(), false));
}

/// Whispers go to the stream that the state of a subscription names.
#[test]
fn an_application_allows_whispers() {
    let app = App::start(|call| match call.name() {
        "subscribe" => Answer::Json(json!({
            "status": 1,
            "streams": ["room"],
            "env": {"istate": match call.identifier().contains("quiet") {
                true => json!({}),
                false => json!({"$w": "room"}),
            }},
        })),
        _ => chat(call),
    });
    let server = server(&app, &[]);
    let (mut ann, mut bob) = (join(&server, "ann").welcomed(), join(&server, "bob").welcomed());
    let (loud, quiet) = (room("loud"), room("quiet"));
    assert_eq!(ann.subscribe(&loud), "confirm_subscription");
    assert_eq!(bob.subscribe(&quiet), "confirm_subscription");
    let whisper = |identifier: &Value, text: &str| json!({"command": "whisper", "identifier": identifier.to_string(), "data": text});
    send(&mut bob, &whisper(&quiet, "ignored"));
    send(&mut ann, &whisper(&loud, "psst"));
    assert_eq!(bob.hear(), data(&quiet, "psst"));
    publish(&server, "room", "1");
    assert_eq!(ann.hear(), data(&loud, 1), "not its own");
}

/// Without a history and presence clients are told so.
#[test]
fn history_and_presence_are_refused_after_the_confirmation() {
    let app = App::start(chat);
    let server = server(&app, &[]);
    let mut cable = join(&server, "ann").welcomed();
    let identifier = room("a").to_string();
    let subscribe = json!({
        "command": "subscribe", "identifier": identifier,
        "history": {"since": 1}, "presence": {"id": "ann"},
    });
    send(&mut cable, &subscribe);
    let kinds = [cable.hear(), cable.hear(), cable.hear()].map(|message| message["type"].clone());
    assert_eq!(kinds, ["confirm_subscription", "reject_history", "presence"]);
}

/// What ends when the server does is reported before it exits, whatever the rate.
#[test]
fn ends_are_reported_before_the_server_exits() {
    let app = App::start(chat);
    let mut server = server(&app, &["--disconnect-rate", "1", "--drain", "0s"]);
    let cables: Vec<Cable> = (0..50).map(|_| join(&server, "ann").welcomed()).collect();
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());
    drop(cables);
    assert_eq!(app.names().iter().filter(|name| *name == "disconnect").count(), 50);
}

#[test]
fn which_ends_are_reported_can_be_chosen() {
    for (mode, ends) in [("never", 0), ("always", 2), ("auto", 1)] {
        let app = App::start(chat);
        let server = server(&app, &["--secret", SECRET, "--disconnect-mode", mode]);
        drop(Cable::join(server.listen, Some(&token(7))).welcomed());
        drop(join(&server, "ann").welcomed());
        eventually("both have ended", || server.metrics()["standfast_websockets"] == 0.0);
        eventually("no call waits", || {
            let metrics = server.metrics();
            metrics["standfast_app_waiting"] + metrics["standfast_app_running"] == 0.0
        });
        let reported = app.names().iter().filter(|name| *name == "disconnect").count();
        assert_eq!(reported, ends, "{mode}");
    }
}

#[test]
fn calls_are_counted_by_method_and_status() {
    let app = App::start(chat);
    let server = server(&app, &[]);
    let mut cable = join(&server, "ann").welcomed();
    assert_eq!(cable.subscribe(&room("a")), "confirm_subscription");
    assert_eq!(cable.subscribe(&room("locked")), "reject_subscription");
    let metrics = server.metrics();
    let calls = |method: &str, status: &str| {
        metrics[&format!("standfast_app_calls_total{{method=\"{method}\",status=\"{status}\"}}")]
    };
    assert_eq!(calls("connect", "success"), 1.0);
    assert_eq!((calls("subscribe", "success"), calls("subscribe", "failure")), (1.0, 1.0));
    assert_eq!(metrics["standfast_app_command_seconds_count"], 2.0);
    assert_eq!(metrics["standfast_app_wait_seconds_count"], 3.0);
    let stats = server.admin_get("/api/stats").json();
    assert_eq!(stats["application"]["calls"]["subscribe"], json!({"success": 1, "failure": 1}));
    assert_eq!(Server::start(&[]).admin_get("/api/stats").json()["application"], Value::Null);
}
