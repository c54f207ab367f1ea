//! Applications that are slow, away or wrong, and thousands of clients at once: nobody waits forever,
//! nothing is held for clients that have left, and what an application says wrong is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::app::{Answer, App, Call, chat, room};
use crate::harness::cable::{Cable, V1};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::{Deserted, eventually};

fn server(app: &App, more: &[&str]) -> Server {
    let url = app.url();
    Server::start(&[&["--rpc-host", &url], more].concat())
}

fn join(server: &Server) -> Cable {
    Cable::connect(server.listen, "", "", ("Cookie", "user=ann"))
}

fn calls(server: &Server, method: &str, status: &str) -> f64 {
    let name = format!("standfast_app_calls_total{{method=\"{method}\",status=\"{status}\"}}");
    server.metrics().get(&name).copied().unwrap_or_default()
}

/// Admits a number of calls at a time, each for a while, first come first served.
struct Slots {
    free: Mutex<usize>,
    changed: Condvar,
}

impl Slots {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Slots { free: Mutex::new(slots), changed: Condvar::new() })
    }

    fn spend(&self, time: Duration) {
        let free = self.free.lock().unwrap();
        let mut free = self.changed.wait_while(free, |free| *free == 0).unwrap();
        *free -= 1;
        drop(free);
        std::thread::sleep(time);
        *self.free.lock().unwrap() += 1;
        self.changed.notify_one();
    }
}

/// Each of them holds buffers, however many calls there were at a time in the last storm.
#[test]
fn connections_to_the_application_that_stay_unused_are_closed() {
    let app = App::start(chat);
    let server = server(&app, &[]);
    let mut clients: Vec<Cable> = (0..20).map(|_| join(&server)).collect();
    for cable in &mut clients {
        cable.welcome();
    }
    assert!(app.open.load(Ordering::SeqCst) > 0, "they are kept for further calls");
    eventually("they are closed", || app.open.load(Ordering::SeqCst) == 0);
    // The next call opens one.
    assert_eq!(clients[0].subscribe(&room("lobby")), "confirm_subscription");
}

/// All of them at once, an application that takes 20 ms for each call and 28 at a time: two calls each.
#[test]
fn a_storm_of_clients_is_admitted_as_fast_as_the_application_allows() {
    const CLIENTS: usize = 2_000;
    let slots = Slots::new(28);
    let app = App::start(move |call| {
        slots.spend(Duration::from_millis(20));
        chat(call)
    });
    let server = server(&app, &["--disconnect-rate", "10"]);
    let began = Instant::now();
    let sockets = (0..CLIENTS).map(|_| {
        let mut socket = Socket::connect(server.listen);
        let changes = [("Sec-WebSocket-Protocol", V1), ("Cookie", "user=ann")];
        socket.send(upgrade("/cable", &changes).as_bytes());
        socket
    });
    let mut cables: Vec<Cable> = sockets
        .collect::<Vec<_>>()
        .into_iter()
        .map(|mut socket| {
            assert_eq!(socket.response().status, 101);
            Cable { socket }
        })
        .collect();
    let subscribe =
        json!({"command": "subscribe", "identifier": room("a").to_string()}).to_string();
    for cable in &mut cables {
        cable.welcome();
        cable.socket.send_frame(TEXT, subscribe.as_bytes());
    }
    for cable in &mut cables {
        assert_eq!(cable.hear()["type"], "confirm_subscription");
    }
    let took = began.elapsed();
    let least = Duration::from_millis(20) * (2 * CLIENTS as u32) / 28;
    eprintln!("{CLIENTS} clients in {took:?}, at least {least:?}");
    let most = app.most.load(Ordering::SeqCst);
    assert!(most >= 20, "the application was kept busy with {most} calls at a time");
    assert_eq!(calls(&server, "connect", "success"), CLIENTS as f64);
    assert_eq!(calls(&server, "subscribe", "success"), CLIENTS as f64);
    // They leave, slowly told, for minutes; a new client does not wait for that.
    drop(cables);
    eventually("all have left", || server.metrics()["standfast_websockets"] == 0.0);
    join(&server).welcome();
    assert!(server.metrics()["standfast_app_waiting"] > 0.0, "ends are still to be reported");
}

/// Clients that leave while their call waits cost the application nothing.
#[test]
fn calls_of_clients_that_have_left_are_not_made() {
    let slots = Slots::new(1);
    let (gate, entered) = (Arc::clone(&slots), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&entered);
    let held = gate.free.lock().unwrap();
    let app = App::start(move |call| {
        seen.fetch_add(1, Ordering::SeqCst);
        slots.spend(Duration::ZERO);
        chat(call)
    });
    let server = server(&app, &["--rpc-concurrency", "1", "--rpc-timeout", "60s"]);
    let mut first = join(&server);
    eventually("the first is called for", || entered.load(Ordering::SeqCst) == 1);
    let others: Vec<Cable> = (0..50).map(|_| join(&server)).collect();
    eventually("the others wait", || server.metrics()["standfast_app_waiting"] == 50.0);
    drop(others);
    let gone = || server.metrics()["standfast_app_discarded_total{cause=\"gone\"}"];
    eventually("their calls are discarded", || gone() == 50.0);
    assert_eq!(server.metrics()["standfast_app_waiting_bytes"], 0.0);
    drop(held);
    first.welcome();
    assert_eq!(app.names(), ["connect"]);
}

/// A connect that succeeds after its client has left is followed by its end.
#[test]
fn an_application_that_has_admitted_a_client_hears_of_its_end() {
    let slots = Slots::new(1);
    let gate = Arc::clone(&slots);
    let held = gate.free.lock().unwrap();
    let app = App::start(move |call| {
        slots.spend(Duration::ZERO);
        chat(call)
    });
    let server = server(&app, &["--rpc-timeout", "60s"]);
    let cable = join(&server);
    eventually("it is called for", || app.names() == ["connect"]);
    drop(cable);
    eventually("it has left", || server.metrics()["standfast_websockets"] == 0.0);
    drop(held);
    eventually("its end is reported", || app.names() == ["connect", "disconnect"]);
    assert_eq!(app.calls()[1].body["identifiers"], json!({"user": "ann"}).to_string());
}

#[test]
fn clients_beyond_the_queue_are_refused_with_a_time_to_come_back() {
    let app = App::start(|call| match call.name() {
        "connect" => Answer::Never,
        _ => chat(call),
    });
    let flags = ["--rpc-concurrency", "1", "--rpc-queue", "3", "--rpc-timeout", "60s"];
    let server = server(&app, &flags);
    let _first = join(&server);
    eventually("the first is called for", || app.names().len() == 1);
    let _waiting: Vec<Cable> = (0..3).map(|_| join(&server)).collect();
    eventually("the queue is full", || server.metrics()["standfast_app_waiting"] == 3.0);
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade("/cable", &[("Sec-WebSocket-Protocol", V1)]).as_bytes());
    let response = socket.response();
    assert_eq!(response.status, 503);
    let after: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "{after}");
}

#[test]
fn a_client_that_has_waited_for_too_long_is_told_to_come_back() {
    let app = App::start(|_| Answer::Never);
    let flags = ["--rpc-concurrency", "1", "--rpc-queue-wait", "300ms", "--rpc-timeout", "60s"];
    let server = server(&app, &flags);
    let _first = join(&server);
    eventually("the first is called for", || app.names().len() == 1);
    let mut second = join(&server);
    assert_eq!(second.disconnect_reason(), ("overloaded".to_owned(), true));
    assert_eq!(calls(&server, "connect", "late"), 1.0);
}

/// Pings keep clients of Rails from giving up while they wait for their welcome.
#[test]
fn clients_are_pinged_while_they_wait() {
    let app = App::start(|_| Answer::Never);
    let server = server(&app, &["--ping-interval", "200ms", "--rpc-timeout", "60s"]);
    let mut cable = join(&server);
    let frame = cable.socket.frame().expect("a ping");
    let message: Value = serde_json::from_slice(&frame.payload).unwrap();
    assert_eq!(message["type"], "ping");
}

/// A restart of the application: clients wait, and none is refused.
#[test]
fn clients_wait_while_the_application_is_away() {
    let deserted = Deserted::port();
    let url = format!("http://{}/_anycable", deserted.address);
    let server = Server::start(&["--rpc-host", &url]);
    let mut early: Vec<Cable> = (0..50).map(|_| join(&server)).collect();
    eventually("calls have failed", || server.metrics()["standfast_app_put_back_total"] >= 4.0);
    let address = deserted.address;
    drop(deserted);
    let app = App::start_at(address, chat);
    early.iter_mut().for_each(|cable| drop(cable.welcome()));
    assert_eq!(app.names(), ["connect"; 50]);
    eventually("it is logged", || {
        let log = server.log();
        log.contains("application unreachable") && log.contains("application reached again")
    });
    // It ends and comes back, with connections open.
    let mut cable = early.swap_remove(0);
    drop(app);
    let app = App::start_at(address, chat);
    assert_eq!(cable.subscribe(&room("a")), "confirm_subscription");
    drop(app);
}

/// What an application answers, and how the call ends.
type Case = (Box<dyn Fn() -> Answer + Send + Sync>, &'static str);

/// Answers that are none of the contract: counted, and the client comes back.
#[test]
fn answers_that_are_none_are_counted_and_end_the_connect() {
    let long = || Answer::Raw(200, vec![b' '; 10 << 20]);
    let text = |text: &'static str| move || Answer::Raw(200, text.into());
    let status = |status| move || Answer::Raw(status, b"<h1>oops</h1>".to_vec());
    let cases: Vec<Case> = vec![
        (Box::new(text("")), "invalid"),
        (Box::new(text("null")), "invalid"),
        (Box::new(text("[1,[]]")), "invalid"),
        (Box::new(text("{\"status\":7}")), "invalid"),
        (Box::new(text("{\"status\":1,\"transmissions\":[7]}")), "invalid"),
        (Box::new(text("{\"status\":0,\"error_msg\":\"no\"}")), "error"),
        (Box::new(text("{}")), "error"),
        (Box::new(long), "invalid"),
        (Box::new(status(401)), "invalid"),
        (Box::new(status(404)), "invalid"),
        (Box::new(status(500)), "invalid"),
        (Box::new(|| Answer::Never), "timeout"),
        (Box::new(|| Answer::HangUp), "lost"),
        (
            Box::new(|| Answer::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_vec())),
            "lost",
        ),
        (Box::new(|| Answer::Bytes(b"\0\xff garbage\r\n\r\n".to_vec())), "lost"),
        (
            Box::new(|| {
                Answer::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"status\":1}{\"status\":1}HTTP/1.1 200".to_vec())
            }),
            "success",
        ),
    ];
    for (at, (answer, expected)) in cases.into_iter().enumerate() {
        let app = App::start(move |_| answer());
        let server = server(&app, &["--rpc-timeout", "500ms"]);
        let mut cable = join(&server);
        if expected == "success" {
            cable.welcome();
        } else {
            assert_eq!(cable.socket.close_code(), 1011, "case {at}");
        }
        assert_eq!(calls(&server, "connect", expected), 1.0, "case {at}: {}", server.log());
    }
}

/// An overloaded application is called again, later.
#[test]
fn an_application_that_is_overloaded_is_called_again() {
    let times = AtomicUsize::new(0);
    let app = App::start(move |call| match times.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::Raw(503, Vec::new()),
        1 => Answer::Raw(429, Vec::new()),
        _ => chat(call),
    });
    let server = server(&app, &[]);
    let mut client = join(&server);
    client.welcome();
    assert_eq!(app.names(), ["connect"; 3]);
    assert_eq!(server.metrics()["standfast_app_put_back_total"], 2.0);
}

/// A command whose answer is lost is not performed again; a subscribe is.
#[test]
fn only_what_a_client_would_repeat_is_repeated() {
    let lost = Mutex::new(std::collections::BTreeSet::new());
    let app =
        App::start(move |call: &Call| match lost.lock().unwrap().insert(call.name().to_owned()) {
            true => Answer::HangUp,
            false => chat(call),
        });
    let server = server(&app, &[]);
    let mut cable = join(&server).welcomed();
    assert_eq!(cable.subscribe(&room("a")), "confirm_subscription");
    let identifier = room("a").to_string();
    for data in ["1", "2"] {
        let message = json!({"command": "message", "identifier": identifier, "data": data});
        cable.socket.send_frame(TEXT, message.to_string().as_bytes());
    }
    assert_eq!(cable.hear()["message"]["echo"], "2");
    assert_eq!(app.names(), ["connect", "connect", "subscribe", "subscribe", "message", "message"]);
    assert_eq!(calls(&server, "message", "lost"), 1.0);
}

/// What an application makes the server keep for a connection is bounded.
#[test]
fn states_and_streams_are_bounded() {
    let app = App::start(|call| match call.name() {
        "subscribe" if call.identifier().contains("streams") => {
            let streams: Vec<String> = (0..2_000).map(|number| format!("s{number}")).collect();
            Answer::Json(json!({"status": 1, "streams": streams}))
        }
        "subscribe" if call.identifier().contains("names") => {
            Answer::Json(json!({"status": 1, "streams": ["x".repeat(300)]}))
        }
        "subscribe" => {
            let state = "x".repeat(100_000);
            Answer::Json(json!({"status": 1, "env": {"istate": {"a": state}}}))
        }
        _ => chat(call),
    });
    let server = server(&app, &[]);
    let mut cable = join(&server).welcomed();
    for room in [room("streams"), room("names")] {
        assert_eq!(cable.subscribe(&room), "reject_subscription");
    }
    assert_eq!(server.metrics()["standfast_subscriptions"], 0.0);
    let command = json!({"command": "subscribe", "identifier": room("state").to_string()});
    cable.socket.send_frame(TEXT, command.to_string().as_bytes());
    assert_eq!(cable.socket.close_code(), 1011);
    eventually("nothing is left", || server.metrics()["standfast_subscription_bytes"] == 0.0);
}
