//! A topic with more subscriptions than can be served soon: it is refused by itself, and other topics do
//! not wait for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::app::{Answer, App, room};
use crate::harness::cable::Cable;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::{eventually, http};

/// Clients of the large topic, each with as many subscriptions by identifiers of its own.
const CLIENTS: usize = 20;
const IDENTIFIERS: usize = 1_000;
/// Publications to the large topic at most, so that a server that accepts all of them is not busy for
/// minutes.
const ACCEPTED_MAX: usize = 40;

/// The subscribers of the large topic, each read by a thread.
struct Crowd {
    received: Arc<AtomicUsize>,
    readers: Vec<JoinHandle<()>>,
    end: Arc<AtomicBool>,
}

impl Crowd {
    fn join(server: &Server) -> Self {
        let (received, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let readers = (0..CLIENTS).map(|client| {
            let mut cable = Cable::join(server.listen, None).welcomed();
            let (received, end) = (Arc::clone(&received), Arc::clone(&end));
            for number in 0..IDENTIFIERS {
                let identifier =
                    json!({"channel": "$pubsub", "stream_name": "large", "n": [client, number]});
                let command = json!({"command": "subscribe", "identifier": identifier.to_string()});
                cable.socket.send_frame(TEXT, command.to_string().as_bytes());
            }
            for _ in 0..IDENTIFIERS {
                let answer = cable.hear();
                assert_eq!(answer["type"], "confirm_subscription", "{answer}");
            }
            thread::spawn(move || read(&mut cable, &received, &end))
        });
        let readers = readers.collect();
        Crowd { received, readers, end }
    }

    /// Waits until all subscribers have received so many publications.
    fn until_received(&self, publications: usize) {
        let all = publications * CLIENTS * IDENTIFIERS;
        eventually("the large topic's subscribers have all that was accepted", || {
            let received = self.received.load(Ordering::Relaxed);
            assert!(received <= all, "{received} messages of {all}");
            received == all
        });
    }

    /// Ends the readers, with one more publication that wakes them.
    fn leave(self, server: &Server) {
        self.end.store(true, Ordering::Relaxed);
        eventually("the last publication is accepted", || {
            server.publish(&json!({"topic": "large", "data": "0"})).status == 200
        });
        for reader in self.readers {
            reader.join().expect("messages of each identifier are in order");
        }
    }
}

/// Counts messages, which are numbers from 1 on in the order of their publication by each identifier.
fn read(cable: &mut Cable, received: &AtomicUsize, end: &AtomicBool) {
    let mut last = vec![0; IDENTIFIERS];
    loop {
        let message = cable.hear();
        if end.load(Ordering::Relaxed) {
            return;
        }
        let identifier = message["identifier"].as_str().expect("a message of a subscription");
        let identifier: Value = serde_json::from_str(identifier).expect("it is the client's");
        let number = identifier["n"][1].as_u64().expect("its number") as usize;
        let published = message["message"].as_u64().expect("a number");
        assert_eq!(published, last[number] + 1, "of {number}");
        last[number] = published;
        received.fetch_add(1, Ordering::Relaxed);
    }
}

/// Publishes to the large topic without a pause until `end`. Returns how many publications were accepted
/// and how many were refused.
fn flood(
    server: &Server,
    first: usize,
    accepted: &AtomicUsize,
    refused: &AtomicUsize,
    end: &AtomicBool,
) {
    let mut number = first;
    while !end.load(Ordering::Relaxed) && number < first + ACCEPTED_MAX {
        let body = json!({"topic": "large", "data": number.to_string()});
        let response = server.publish(&body);
        if response.status == 200 {
            number += 1;
            accepted.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        assert_eq!(response.status, 429, "{response:?}");
        let after = response.header("retry-after").expect("when to publish again");
        assert!((1..=10).contains(&after.parse::<u64>().expect("seconds")), "{after}");
        assert_eq!(response.json()["error"], "topic_overloaded");
        refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// The time from a publication to its receipt.
fn latency(server: &Server, subscriber: &mut Socket, number: usize) -> Duration {
    let began = Instant::now();
    let data = number.to_string();
    let response = server.publish(&json!({"topic": "small", "data": data}));
    assert_eq!(response.status, 200, "{response:?}");
    let frame = subscriber.frame().expect("a message");
    assert_eq!((frame.first, frame.payload), (TEXT, data.into_bytes()));
    began.elapsed()
}

#[test]
fn an_overloaded_topic_is_refused_alone_and_delays_no_other() {
    let flags = ["--workers", "1", "--max-subscription-bytes", "16MiB"];
    let server = Server::start(&flags);
    let crowd = Crowd::join(&server);
    let mut small = Socket::open(server.listen, "/topics/small");

    // How long one publication to the large topic takes, with the machine as busy as it is.
    let large = |number: usize| {
        let began = Instant::now();
        let response = server.publish(&json!({"topic": "large", "data": number.to_string()}));
        assert_eq!(response.status, 200, "{response:?}");
        crowd.until_received(number);
        began.elapsed()
    };
    let before = large(1);

    let (accepted, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let end = AtomicBool::new(false);
    let mut times = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| flood(&server, 2, &accepted, &refused, &end));
        eventually("more is published than can be delivered soon", || {
            refused.load(Ordering::Relaxed) > 0 || accepted.load(Ordering::Relaxed) == ACCEPTED_MAX
        });
        times.extend((0..15).map(|number| latency(&server, &mut small, number)));
        end.store(true, Ordering::Relaxed);
    });
    let (accepted, refused) = (accepted.into_inner(), refused.into_inner());
    crowd.until_received(1 + accepted);
    // It may have become busier.
    let large = before.max(large(2 + accepted));
    println!("one large publication in {large:?}, small ones in {times:?}");
    let total: Duration = times.iter().sum();
    assert!(total < large * 4, "{times:?} beside {accepted} publications of {large:?} each");
    assert!(refused > 0, "all {accepted} publications were accepted");

    let metrics = server.metrics();
    assert_eq!(metrics["standfast_topic_overloaded_total"], refused as f64);
    assert_eq!(metrics["standfast_publish_overloaded_total"], 0.0);
    assert_eq!(metrics["standfast_dropped_slow_total"], 0.0);
    eventually("nothing is pending", || {
        server.metrics()["standfast_publications_pending_bytes"] == 0.0
    });
    let stats = http::get(server.admin, "/api/stats").json();
    assert_eq!(stats["topic_overloaded"], refused, "{stats}");
    crowd.leave(&server);
}

/// Whispers wait behind a command that the application has yet to answer. When it has, the topic of most is
/// overloaded: they wait again, and so does what the client has sent after them.
#[test]
fn whispers_behind_a_command_stay_in_order_while_their_topic_is_overloaded() {
    const LARGE: usize = 10;
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let app = App::start(move |call| {
        if call.name() == "message" {
            let _ = wait.lock().unwrap().recv();
        }
        let params: Value = serde_json::from_str(call.identifier()).unwrap_or_default();
        let topic = params["room"].as_str().unwrap_or_default();
        Answer::Json(json!({"status": 1, "env": {"istate": {"$w": topic}}}))
    });
    let url = app.url();
    let flags = ["--workers", "1", "--max-subscription-bytes", "16MiB", "--rpc-timeout", "60s"];
    let server = Server::start(&[&flags[..], &["--rpc-host", &url]].concat());
    let crowd = Crowd::join(&server);
    let mut small = Socket::open(server.listen, "/topics/small");
    let mut cable = Cable::join(server.listen, None).welcomed();
    for topic in ["large", "small"] {
        assert_eq!(cable.subscribe(&room(topic)), "confirm_subscription");
    }
    let mut send = |command: &str, topic: &str, data: Value| {
        let identifier = room(topic).to_string();
        let message = json!({"command": command, "identifier": identifier, "data": data});
        cable.socket.send_frame(TEXT, message.to_string().as_bytes());
    };
    send("message", "large", json!("{}"));
    (1..=LARGE).for_each(|number| send("whisper", "large", json!(number)));
    send("whisper", "small", json!(1));
    send("ping", "", Value::Null);
    assert_eq!(cable.hear()["type"], "pong", "the server has read the whispers");
    release.send(()).unwrap();
    assert_eq!(small.frame().expect("the last whisper").payload, b"1");
    let published = server.metrics()["standfast_published_total{source=\"socket\"}"];
    assert_eq!(published, LARGE as f64 + 1.0, "those before it are accepted");
    assert!(server.metrics()["standfast_publish_paused_total"] > 0.0);
    crowd.until_received(LARGE);
    crowd.leave(&server);
}
