//! [`TestServer`]: what it calls a handler with is what a server calls it with.

use std::time::Duration;

use standfast::{
    Accept, Close, CloseCode, Closed, Context, Handler, Message, Received, Response, Sent, Socket,
    TestServer, UpgradeRequest,
};

/// Does what its messages say.
#[derive(Clone, Default)]
struct Does {
    ticks: u32,
    closed: Vec<String>,
}

impl Handler for Does {
    type Data = String;

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<String>, Response> {
        let name = request.param("name").unwrap_or_default().into_owned();
        match request.query("how").as_deref() {
            Some("later") => {
                let (mut decision, later) = request.later();
                std::thread::spawn(move || {
                    decision.header("X-Decided", "later").unwrap();
                    decision.accept_with_protocol(name, "v2");
                });
                Ok(later)
            }
            Some("dropped") => Ok(request.later().1),
            Some("refused") => Err(Response::new(403)),
            _ if request.offers("v1") => Ok(Accept::with_protocol(name, "v1")),
            _ => Ok(Accept::new(name)),
        }
    }

    fn open(&mut self, socket: &mut Socket<'_>, name: &mut String) {
        socket.subscribe("all");
        socket.send(&format!("hello {name}"));
    }

    fn message(&mut self, socket: &mut Socket<'_>, _: &mut String, message: Message<'_>) {
        match message {
            Message::Text("all") => socket.publish("all", "to all").unwrap(),
            Message::Text("others") => socket.publish_to_others("all", "to others").unwrap(),
            Message::Text("close") => socket.close(CloseCode(4001), &"é".repeat(100)),
            Message::Text("abort") => socket.abort(),
            Message::Text("ping") => drop(socket.ping(b"p")),
            Message::Text("pause") => socket.pause(),
            Message::Text("timer") => socket.set_timer(Duration::from_secs(3)),
            Message::Text("leave") => drop(socket.unsubscribe("all")),
            Message::Text("fill") => {
                assert_eq!(socket.send("12345678"), Sent::Queued(10));
                assert_eq!((socket.send(&[0; 8]), socket.queued_bytes()), (Sent::Queued(20), 20));
            }
            message => drop(socket.send(message)),
        }
    }

    fn drain(&mut self, socket: &mut Socket<'_>, _: &mut String) {
        assert_eq!(socket.send("drained"), Sent::Sent);
    }

    fn timer(&mut self, socket: &mut Socket<'_>, _: &mut String) {
        socket.send("timer");
    }

    fn pong(&mut self, socket: &mut Socket<'_>, _: &mut String, payload: &[u8]) {
        socket.send(payload);
    }

    fn stopping(&mut self, socket: &mut Socket<'_>, _: &mut String) {
        socket.send("goodbye");
    }

    fn close(&mut self, socket: &mut Socket<'_>, name: String, close: &Close<'_>) {
        assert!(!socket.is_open() && socket.topics().is_empty());
        assert_eq!(socket.send("too late"), Sent::Dropped);
        let _ = socket.publish("all", &format!("{name} has left"));
        self.closed.push(format!("{name}: {} {:?} {}", close.cause, close.code, close.reason));
    }

    fn tick(&mut self, context: &mut Context<'_>) {
        self.ticks += 1;
        context.publish_here("all", "tick");
    }
}

fn server() -> TestServer<Does> {
    TestServer::new("/in/{name}", Does::default())
}

#[test]
fn clients_of_a_test_server_are_let_in_and_refused() {
    let mut server = server();
    let status = |server: &mut TestServer<Does>, target: &str, headers: &[(&str, &str)]| {
        server.connect(target, headers).unwrap_err().status()
    };
    assert_eq!(status(&mut server, "/in/ada?how=refused", &[]), 403);
    assert_eq!(status(&mut server, "/in/ada?how=dropped", &[]), 500);
    assert_eq!(status(&mut server, "/out", &[]), 404);
    assert_eq!(status(&mut server, "/in/a b", &[]), 400);
    assert_eq!(status(&mut server, "/in/ada", &[("X", "a\r\n\r\nb")]), 400);
    assert_eq!(server.sockets().count(), 0);
    let protocol = ("Sec-WebSocket-Protocol", "v0, v1");
    let ada = server.connect("/in/ada", &[protocol]).unwrap();
    assert_eq!(server.answer(ada), (Some("v1"), vec![]));
    let bob = server.connect("/in/bob?how=later", &[]).unwrap();
    assert_eq!(server.answer(bob), (Some("v2"), vec![("X-Decided", "later")]));
    assert_eq!(server.received(bob), ["hello bob"]);
    assert_eq!(server.data(ada).cloned(), Some("ada".into()));
    assert!(server.sockets().eq([ada, bob]));
    let wrong = TestServer::new("in", Does::default()).connect("/in", &[]).unwrap_err();
    assert_eq!(wrong.status(), 500);
}

#[test]
fn sockets_of_a_test_server_get_what_is_sent_and_published() {
    let mut server = server();
    let [ada, bob, eve] =
        ["ada", "bob", "eve"].map(|name| server.connect(&format!("/in/{name}"), &[]).unwrap());
    for message in ["leave", "x"] {
        assert!(server.message(eve, message));
    }
    assert!(server.message(ada, "all") && server.message(ada, "others"));
    assert!(server.message(bob, &[1, 2]));
    assert_eq!(server.received(ada), ["hello ada", "to all"]);
    let received = server.received(bob);
    assert_eq!(received[..3], ["hello bob", "to all", "to others"]);
    assert_eq!(received[3], &[1, 2][..]);
    assert_eq!(server.received(eve), ["hello eve", "x"]);
    server.tick();
    server.act(|context| context.publish("all", "from outside")).unwrap();
    assert_eq!(server.received(ada), ["tick", "from outside"]);
    assert_eq!((server.received(eve).len(), server.handler().ticks), (0, 1));
    server.message(ada, "ping");
    assert_eq!(server.received(ada), [Received::Ping(b"p".to_vec())]);
    assert!(server.pong(ada, b"p"));
    assert_eq!(server.received(ada)[0], &b"p"[..]);
    assert!(server.message(ada, "pause") && !server.message(ada, "x"));
    server.act(|context| context.socket(ada).resume());
    assert!(server.message(ada, "x"));
    server.block(bob);
    server.message(bob, "fill");
    assert!(server.drain(bob) && !server.drain(bob));
    assert_eq!(server.received(bob).last().unwrap(), &"drained");
    assert!(!server.timer(ada) && server.message(ada, "timer"));
    assert_eq!(server.timer_of(ada), Some(Duration::from_secs(3)));
    assert!(server.timer(ada) && !server.timer(ada));
    assert_eq!(server.received(ada), ["x", "timer"]);
}

#[test]
fn sockets_of_a_test_server_end_once_each() {
    let mut server = server();
    let names = ["a", "b", "c", "d", "e"];
    let ids = names.map(|name| server.connect(&format!("/in/{name}"), &[]).unwrap());
    let [a, b, c, d, e] = ids;
    for id in ids {
        server.received(id);
    }
    server.message(a, "close");
    let reason = "é".repeat(61);
    assert_eq!(server.received(a), [Received::Close(CloseCode(4001), reason)]);
    assert!(!server.is_open(a) && !server.message(a, "x"));
    server.message(b, "abort");
    assert_eq!(server.received(b), [Received::Text("a has left".into()), Received::Aborted]);
    server.leave(c, CloseCode::NORMAL, "bye");
    server.leave(c, CloseCode::NORMAL, "again");
    server.lose(d, Closed::IdleTimeout);
    assert_eq!(server.received(e), ["a has left", "b has left", "c has left", "d has left"]);
    server.stop();
    let going_away = Received::Close(CloseCode::GOING_AWAY, String::new());
    assert_eq!(server.received(e), [Received::Text("goodbye".into()), going_away]);
    let closed = [
        "a: by_us None ",
        "b: aborted None ",
        "c: by_peer Some(CloseCode(1000)) bye",
        "d: idle_timeout None ",
        "e: draining None ",
    ];
    assert_eq!(server.handler().closed, closed);
}
