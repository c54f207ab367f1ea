//! `--auth-url`: an application decides who may connect to plain topics and event streams, with which
//! rights, and which messages are published. Whatever it answers wrongly, late or never is a refusal.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use serde_json::{Value, json};

use crate::harness::app::{Answer, App, Call, chat};
use crate::harness::cable::Cable;
use crate::harness::executable::run;
use crate::harness::peer::{self, Program};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, identifiers, now_unix_s, signed, signed_at, token};
use crate::harness::socket::{BINARY, Frame, Socket, TEXT, upgrade};
use crate::harness::{Deserted, eventually, http};

const NODE: peer::Runtime = peer::Runtime { program: "node", check: &["-e", ""] };

fn server(app: &App, more: &[&str]) -> Server {
    let url = format!("http://{}/auth?app=1", app.address);
    Server::start(&[&["--auth-url", &url], more].concat())
}

/// The status of a handshake with this cookie.
fn handshake(server: &Server, path: &str, cookie: &str) -> (Socket, http::Response) {
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade(path, &[("Cookie", cookie)]).as_bytes());
    let response = socket.response();
    (socket, response)
}

fn joined(server: &Server, path: &str, cookie: &str) -> Socket {
    let (socket, response) = handshake(server, path, cookie);
    assert_eq!(response.status, 101, "{response:?}");
    socket
}

fn text(text: &str) -> Frame {
    Frame { first: TEXT, payload: text.as_bytes().to_vec() }
}

fn publish(server: &Server, topic: &str, data: &str) {
    assert_eq!(server.publish(&json!({"topic": topic, "data": data})).status, 200);
}

fn metric(server: &Server, name: &str) -> f64 {
    server.metrics().get(name).copied().unwrap_or_default()
}

fn calls(server: &Server, method: &str, status: &str) -> f64 {
    metric(server, &format!("standfast_app_calls_total{{method=\"{method}\",status=\"{status}\"}}"))
}

/// Cookie `user=NAME` is allowed, with what the cookie `answer` adds as JSON.
fn by_cookie(call: &Call) -> Answer {
    let cookies = call.body["env"]["headers"]["cookie"].as_str().unwrap_or_default();
    let cookie = |name: &str| {
        cookies.split("; ").find_map(|cookie| cookie.strip_prefix(name)?.strip_prefix('='))
    };
    let Some(user) = cookie("user") else {
        return Answer::Json(json!({"allow": false, "status": 401, "reason": "log in first"}));
    };
    let mut answer = json!({"allow": true, "identity": {"user": user}});
    let more: Value =
        cookie("answer").map_or(json!({}), |more| serde_json::from_str(more).unwrap());
    for (name, value) in more.as_object().unwrap() {
        answer[name] = value.clone();
    }
    Answer::Json(answer)
}

#[test]
fn clients_of_topics_are_allowed_with_an_identity_or_refused_with_a_reason() {
    let app = App::start(by_cookie);
    let server = server(&app, &["--auth-secret", "hush"]);
    let (_, refused) = handshake(&server, "/topics/news", "other=1");
    assert_eq!((refused.status, refused.body.as_str()), (401, "log in first\n"));
    let mut ann = joined(&server, "/topics/news?page=1", "user=ann");
    publish(&server, "news", "hello");
    assert_eq!(ann.frame(), Some(text("hello")));
    let listed = server.admin_get("/api/connections").json();
    let entry = &listed["connections"][0];
    assert_eq!(
        (&entry["identity"], &entry["protocol"]),
        (&json!(r#"{"user":"ann"}"#), &json!("topic"))
    );
    let body = json!({"identifier": r#"{"user":"ann"}"#}).to_string();
    assert_eq!(server.admin_post("/api/disconnect", &body).status, 200);
    assert_eq!(ann.close_code(), 1000, "the application can end it by its identity");

    let asked = app.calls();
    assert_eq!(asked.len(), 2);
    let call = &asked[1];
    assert_eq!(call.path, "/auth?app=1");
    let at = signed_at("hush", call.header("x-standfast-signature").unwrap(), &call.raw);
    assert!(now_unix_s() - at.expect("the signature is right") < 60);
    let sid = call.body["sid"].as_str().unwrap();
    let headers = json!({"cookie": "user=ann", "REMOTE_ADDR": "127.0.0.1"});
    let expected = json!({
        "action": "connect", "protocol": "topic", "topic": "news", "sid": sid,
        "env": {"url": "http://127.0.0.1/topics/news?page=1", "headers": headers},
    });
    assert_eq!(call.body, expected);
    let counted = ["success", "failure"].map(|status| calls(&server, "authorize_connect", status));
    assert_eq!(counted, [1.0, 1.0]);
    assert_eq!(metric(&server, "standfast_auth_refused_total{cause=\"application\"}"), 1.0);
    // It is not asked about what is no handshake.
    assert_eq!(http::get(server.listen, "/topics/news").status, 426);
    assert_eq!(app.calls().len(), 2);
}

#[test]
fn clients_of_event_streams_are_allowed_or_refused() {
    let app = App::start(by_cookie);
    let server = server(&app, &["--secret", SECRET]);
    let request = |query: &str, cookie: &str| {
        format!("GET /events?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n")
    };
    let refused = http::ask(server.listen, &request("topic=news", "other=1"));
    assert_eq!((refused.status, refused.body.as_str()), (401, "log in first\n"));
    let mut stream = Socket::connect(server.listen);
    stream.send(request("topic=news", "user=ann").as_bytes());
    let head = stream.text_until(":\n\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    // By the key of the secret, computed by Python's hmac.
    let key = "1db397202b5bd68b12665b638515c3aeac9100f721fd7c4fcb6f29c69f32c886";
    let body = json!({"topic": "news", "data": "hello"}).to_string();
    let post = format!(
        "POST /api/publish HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(http::ask(server.admin, &post).status, 200);
    stream.text_until("data: hello\n\n");
    let asked = app.calls();
    assert_eq!(
        (&asked[1].body["protocol"], &asked[1].body["topic"]),
        (&json!("events"), &json!("news"))
    );
    // Signed names are the application's decision already; a token is told.
    let name = signed(SECRET, "news");
    let mut by_name = Socket::connect(server.listen);
    by_name.send(request(&format!("signed_stream={name}"), "").as_bytes());
    by_name.text_until(":\n\n");
    assert_eq!(app.calls().len(), 2);
    let with_token = request(&format!("topic=news&jid={}", token(7)), "");
    assert_eq!(http::ask(server.listen, &with_token).status, 401);
    assert_eq!(app.calls()[2].body["identity"], identifiers(7));
}

#[test]
fn an_answer_names_the_topics_that_it_allows() {
    let app = App::start(by_cookie);
    let server = server(&app, &[]);
    let cookie = r#"user=ann; answer={"topics":["news","chat/*"]}"#;
    joined(&server, "/topics/news", cookie);
    joined(&server, "/topics/chat/1", cookie);
    let (_, refused) = handshake(&server, "/topics/newspaper", cookie);
    assert_eq!(refused.status, 403);
}

#[test]
fn a_connection_ends_when_its_permission_expires() {
    let app = App::start(by_cookie);
    let server = server(&app, &[]);
    let cookie = r#"user=ann; answer={"expires_in":1}"#;
    let mut socket = joined(&server, "/topics/news", cookie);
    assert_eq!(socket.close_code(), 1008);
    let mut stream = Socket::connect(server.listen);
    let request =
        format!("GET /events?topic=news HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n");
    stream.send(request.as_bytes());
    let mut all = Vec::new();
    while stream.take(&mut all) {}
    assert!(all.starts_with(b"HTTP/1.1 200"), "{}", all.escape_ascii());
    let mut lasting = joined(&server, "/topics/news", r#"user=ann; answer={"expires_in":3600}"#);
    publish(&server, "news", "still");
    assert_eq!(lasting.frame(), Some(text("still")));
}

#[test]
fn who_may_publish_is_decided_when_connecting() {
    let app = App::start(by_cookie);
    let server = server(&app, &[]);
    let mut all = joined(&server, "/topics/news", "user=eve");
    let mut may = joined(&server, "/topics/news", r#"user=ann; answer={"publish":true}"#);
    may.send_frame(TEXT, b"from ann");
    assert_eq!((all.frame(), may.frame()), (Some(text("from ann")), Some(text("from ann"))));
    let mut may_not = joined(&server, "/topics/news", "user=bob");
    may_not.send_frame(TEXT, b"from bob");
    assert_eq!(may_not.close_code(), 1008);
    publish(&server, "news", "next");
    assert_eq!(all.frame(), Some(text("next")), "nothing of bob");
    assert_eq!(metric(&server, "standfast_auth_refused_total{cause=\"publish\"}"), 1.0);
}

/// With `"publish": "ask"` the application decides about each message; they stay in order.
#[test]
fn each_message_is_decided_about_if_the_application_wants_that() {
    let app = App::start(|call| {
        if call.body["action"] == "connect" {
            return Answer::Json(json!({"allow": true, "identity": "ann", "publish": "ask"}));
        }
        let data = call.body["data"].as_str().unwrap_or_default();
        Answer::Json(json!({"allow": !data.contains("bad"), "reason": "mind your words"}))
    });
    let server = server(&app, &[]);
    let mut hears = joined(&server, "/topics/chat", "");
    let mut socket = joined(&server, "/topics/chat", "");
    for number in 0..50 {
        socket.send_frame(TEXT, number.to_string().as_bytes());
    }
    socket.send_frame(BINARY, &[0, 255]);
    for number in 0..50 {
        assert_eq!(hears.frame(), Some(text(&number.to_string())));
    }
    assert_eq!(hears.frame(), Some(Frame { first: BINARY, payload: vec![0, 255] }));
    socket.send_frame(TEXT, b"a bad word");
    socket.send_frame(TEXT, b"behind it");
    while let Some(frame) = socket.frame() {
        if frame.first == 0x88 {
            assert_eq!(frame.payload[..2], 1008u16.to_be_bytes());
            assert_eq!(&frame.payload[2..], b"mind your words");
        }
    }
    publish(&server, "chat", "end");
    assert_eq!(hears.frame(), Some(text("end")), "what follows a refused message is not published");
    let published: Vec<Call> =
        app.calls().into_iter().filter(|call| call.body["action"] == "publish").collect();
    assert_eq!(published.len(), 52);
    let first = &published[0].body;
    assert_eq!((&first["data"], &first["identity"]), (&json!("0"), &json!("ann")));
    assert_eq!((&first["topic"], &first["protocol"]), (&json!("chat"), &json!("topic")));
    assert_eq!(published[50].body["data_base64"], "AP8=");
}

/// A client that publishes faster than the application answers is not read; nothing is lost.
#[test]
fn a_flood_of_messages_that_are_asked_about_is_bounded() {
    let (release, wait) = mpsc::channel::<()>();
    let (wait, asked) = (Mutex::new(wait), AtomicUsize::new(0));
    let app = App::start(move |call| {
        if call.body["action"] == "publish" && asked.fetch_add(1, Ordering::SeqCst) == 0 {
            let _ = wait.lock().unwrap().recv();
        }
        Answer::Json(json!({"allow": true, "publish": "ask"}))
    });
    let server = server(&app, &["--rpc-timeout", "60s"]);
    let mut hears = joined(&server, "/topics/chat", "");
    let socket = joined(&server, "/topics/chat", "");
    let mut sender = socket.sender();
    let flood = std::thread::spawn(move || {
        for number in 0..2000 {
            let message = format!("{number} {}", "x".repeat(1000));
            assert!(sender.send(&crate::harness::socket::masked(TEXT, message.as_bytes())));
        }
    });
    let read = || metric(&server, "standfast_messages_in_total");
    eventually("some are read", || read() >= 16.0);
    assert!(read() < 1000.0, "the others wait in the client's buffers: {}", read());
    release.send(()).unwrap();
    for number in 0..2000 {
        let payload = hears.frame().unwrap().payload;
        assert!(payload.starts_with(format!("{number} ").as_bytes()), "{number}");
    }
    flood.join().unwrap();
}

/// Late, garbage, huge, the wrong status, a lost connection: each is a refusal that is counted and told.
#[test]
fn wrong_answers_are_refusals() {
    let app = App::start(|call| match call.body["topic"].as_str().unwrap() {
        "garbage" => Answer::Raw(200, b"yes".to_vec()),
        "list" => Answer::Raw(200, b"[true]".to_vec()),
        "maybe" => Answer::Json(json!({"allow": "true"})),
        "huge" => Answer::Raw(200, vec![b' '; 10_000_000]),
        "created" => Answer::Raw(201, br#"{"allow":true}"#.to_vec()),
        "broken" => Answer::Raw(500, b"sorry".to_vec()),
        "bytes" => Answer::Bytes(b"\x00\x01\r\n\r\n".to_vec()),
        "hang-up" => Answer::HangUp,
        "never" => Answer::Never,
        "forbidden" => Answer::Raw(403, b"<html>".to_vec()),
        _ => Answer::Json(json!({"allow": true})),
    });
    let server = server(&app, &["--rpc-timeout", "2s"]);
    for topic in
        ["garbage", "list", "maybe", "huge", "created", "broken", "bytes", "hang-up", "never"]
    {
        let (_, response) = handshake(&server, &format!("/topics/{topic}"), "");
        assert_eq!(response.status, 503, "{topic}: {response:?}");
        let seconds: u64 = response.header("retry-after").unwrap().parse().unwrap();
        assert!(seconds >= 1, "{topic}");
    }
    let counted =
        ["invalid", "lost", "timeout"].map(|how| calls(&server, "authorize_connect", how));
    assert_eq!(counted.iter().sum::<f64>(), 9.0, "{counted:?}");
    assert!(counted[0] >= 6.0 && counted[2] == 1.0, "{counted:?}");
    assert!(
        server.log().contains("application failed to answer authorize_connect"),
        "{}",
        server.log()
    );
    assert_eq!(handshake(&server, "/topics/forbidden", "").1.status, 403, "a status that denies");
    joined(&server, "/topics/right", "");
}

/// Clients wait while the application is away, as long as a call may wait, and are admitted afterwards.
#[test]
fn handshakes_wait_for_an_application_that_is_away() {
    let away = Deserted::port();
    let url = format!("http://{}/auth", away.address);
    let server = Server::start(&["--auth-url", &url]);
    let mut waiting: Vec<Socket> = (0..20)
        .map(|_| {
            let mut socket = Socket::connect(server.listen);
            socket.send(upgrade("/topics/news", &[]).as_bytes());
            socket
        })
        .collect();
    eventually("they wait", || metric(&server, "standfast_app_waiting") >= 19.0);
    assert_eq!(metric(&server, "standfast_handshakes"), 0.0, "their heads are complete");
    let gone = waiting.split_off(10);
    drop(gone);
    let discarded = || metric(&server, "standfast_app_discarded_total{cause=\"gone\"}");
    eventually("calls of clients that have left are not made", || discarded() >= 9.0);
    let address = away.address;
    drop(away);
    let _app = App::start_at(address, |_| Answer::Json(json!({"allow": true})));
    for socket in &mut waiting {
        assert_eq!(socket.response().status, 101);
    }
    publish(&server, "news", "all are here");
    for socket in &mut waiting {
        assert_eq!(socket.frame(), Some(text("all are here")));
    }
    eventually("the others have left", || metric(&server, "standfast_connections") == 10.0);
}

#[test]
fn clients_that_cannot_be_asked_about_in_time_are_told_to_come_back() {
    let away = Deserted::port();
    let url = format!("http://{}/auth", away.address);
    let bounds = ["--rpc-queue-wait", "2s", "--rpc-queue", "5", "--rpc-concurrency", "1"];
    let server = Server::start(&[&["--auth-url", &url], &bounds[..]].concat());
    let mut sockets: Vec<Socket> = (0..30)
        .map(|_| {
            let mut socket = Socket::connect(server.listen);
            socket.send(upgrade("/topics/news", &[]).as_bytes());
            socket
        })
        .collect();
    let mut times = Vec::new();
    for socket in &mut sockets {
        let response = socket.response();
        assert_eq!(response.status, 503, "{response:?}");
        times.push(response.header("retry-after").unwrap().to_owned());
    }
    times.sort();
    times.dedup();
    assert!(times.len() > 1, "not all at the same time: {times:?}");
    let full = metric(&server, "standfast_app_discarded_total{cause=\"full\"}");
    let late = calls(&server, "authorize_connect", "late");
    assert!(full >= 1.0 && late >= 1.0 && full + late == 30.0, "{full} at once, {late} later");
    assert_eq!(metric(&server, "standfast_app_waiting_bytes"), 0.0);
}

/// A decision holds for as long as it says, for the same credentials and topics.
#[test]
fn decisions_are_used_again_if_they_say_so() {
    let app = App::start(by_cookie);
    let server = server(&app, &[]);
    let cookie = r#"user=ann; answer={"ttl":3600,"topics":["chat/*"]}"#;
    for number in 0..10 {
        joined(&server, &format!("/topics/chat/{number}"), cookie);
    }
    assert_eq!(app.calls().len(), 1);
    assert_eq!(metric(&server, "standfast_auth_decisions_reused_total"), 9.0);
    assert!(metric(&server, "standfast_auth_decisions_bytes") > 0.0);
    assert_eq!(
        handshake(&server, "/topics/news", cookie).1.status,
        403,
        "asked about, and not allowed"
    );
    joined(&server, "/topics/chat/1", r#"user=bob; answer={"ttl":3600,"topics":["chat/*"]}"#);
    assert_eq!(app.calls().len(), 3, "other credentials are asked about");
    for _ in 0..3 {
        let refused = handshake(&server, "/topics/chat/1", "nobody=1").1;
        assert_eq!(refused.status, 401);
    }
    assert_eq!(app.calls().len(), 6, "without ttl each is asked about");
}

/// What a client sends right behind its handshake is delivered after the answer.
#[test]
fn messages_behind_a_handshake_wait_for_the_answer() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let app = App::start(move |_| {
        let _ = wait.lock().unwrap().recv();
        Answer::Json(json!({"allow": true, "publish": true}))
    });
    let server = server(&app, &["--rpc-timeout", "60s"]);
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade("/topics/news", &[]).as_bytes());
    eventually("it is asked about", || app.calls().len() == 1);
    for number in 0..100 {
        socket.send_frame(TEXT, format!("{number} {}", "x".repeat(2000)).as_bytes());
    }
    release.send(()).unwrap();
    assert_eq!(socket.response().status, 101);
    for number in 0..100 {
        assert!(socket.frame().unwrap().payload.starts_with(format!("{number} ").as_bytes()));
    }
}

/// Both kinds of calls, of two applications, in one queue.
#[test]
fn clients_of_channels_have_their_own_application() {
    let (topics, channels) = (App::start(by_cookie), App::start(chat));
    let server = server(&topics, &["--rpc-host", &channels.url()]);
    let mut cable = Cable::connect(server.listen, "", "", ("Cookie", "user=ann"));
    cable.welcome();
    let _socket = joined(&server, "/topics/news", "user=ann");
    assert_eq!((topics.calls().len(), channels.names()), (1, vec!["connect".to_owned()]));
    let alone = self::server(&topics, &[]);
    Cable::join(alone.listen, None).welcome();
    assert_eq!(topics.calls().len(), 1, "without --rpc-host nobody is asked about /cable");
}

#[test]
fn wrong_urls_prevent_the_start() {
    for (url, expected) in [
        ("app.example", "http://HOST/PATH"),
        ("ftp://app/", "http://HOST/PATH"),
        ("http://", "http"),
    ] {
        let finished = run(&["serve", "--admin", "off", "--auth-url", url]);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains("--auth-url"), "{finished:?}");
        assert!(finished.stderr.contains(expected), "{finished:?}");
    }
}

/// By a program that verifies signatures as the documentation says.
#[test]
fn an_application_in_node() {
    let Some(program) = Program::start(&NODE, "auth.js", &["hush"]) else { return };
    let url = format!("http://127.0.0.1:{}/", program.first_line());
    let server = Server::start(&["--auth-url", &url, "--auth-secret", "hush"]);
    let mut socket = joined(&server, "/topics/rooms/1", "user=ann");
    socket.send_frame(TEXT, b"hello");
    assert_eq!(socket.frame(), Some(text("hello")));
    assert_eq!(handshake(&server, "/topics/rooms/1", "").1.status, 401);
    assert_eq!(handshake(&server, "/topics/offices/1", "user=ann").1.status, 403);
    let wrong = Server::start(&["--auth-url", &url, "--auth-secret", "other"]);
    assert_eq!(handshake(&wrong, "/topics/rooms/1", "user=ann").1.status, 503, "not genuine: 400");
}
