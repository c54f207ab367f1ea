//! The crate's own clients, with its server and with tungstenite's.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use standfast::{
    Accept, ClientError, ClientHandler, ClientSocket, Clients, CloseCode, Closed, Compression,
    Connect, Handler, Limits, Lost, Message, Reconnect, Response, Running, Sent, Server, Socket,
    UpgradeRequest,
};

use crate::client::{eventually, next};

/// Sends back what it gets; `close` closes, `abort` aborts.
#[derive(Clone)]
pub(crate) struct Echo;

impl Handler for Echo {
    type Data = ();

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
        if request.path() == "/forbidden" {
            return Err(Response::text(403, "no\n"));
        }
        if request.header("x-name").is_some_and(|name| name != "Ada") {
            return Err(Response::new(400));
        }
        Ok(match request.offers("chat.v2") {
            true => Accept::with_protocol((), "chat.v2"),
            false => Accept::new(()),
        })
    }

    fn message(&mut self, socket: &mut Socket<'_>, _: &mut (), message: Message<'_>) {
        match message {
            Message::Text("close") => socket.close(CloseCode(4001), "as you wish"),
            Message::Text("abort") => socket.abort(),
            message => drop(socket.send(message)),
        }
    }
}

fn server(limits: Limits) -> Running {
    let server = Server::bind("127.0.0.1:0").unwrap().route("/{path}", Echo).workers(2);
    server.limits(limits).start().unwrap()
}

fn url(server: &Running) -> String {
    format!("ws://{}/echo", server.address())
}

fn lost<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Lost {
    match result {
        Err(ClientError::Lost(lost)) => lost,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_blocking_client_sends_and_receives_in_order() {
    let compression = Compression::Shared;
    let server = server(Limits { compression, ..Limits::default() });
    for compression in [Compression::Off, Compression::Shared] {
        let limits = Limits { compression, ..Limits::default() };
        let connect = Connect::to(&url(&server)).limits(limits).header("X-Name", "Ada");
        let mut client = connect.protocol("chat.v1").protocol("chat.v2").open().unwrap();
        assert_eq!(client.protocol().as_deref(), Some("chat.v2"));
        let long = "long ".repeat(10_000);
        for text in ["hello", "", "é", &long] {
            client.send(text).unwrap();
            assert_eq!(client.receive().unwrap(), Message::Text(text));
        }
        client.send(&[0, 255]).unwrap();
        assert_eq!(client.receive().unwrap(), Message::Binary(&[0, 255]));
        let texts: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        client.send_all(texts.iter().map(|text| Message::Text(text))).unwrap();
        for text in &texts {
            assert_eq!(client.receive().unwrap(), Message::Text(text));
        }
        assert_eq!(client.receive_for(Duration::from_millis(1)).unwrap(), None);
        // A thread sends by the handle while the client waits.
        let remote = client.remote().clone();
        let other = std::thread::spawn(move || remote.send_with_receipt("elsewhere").unwrap());
        assert_eq!(client.receive().unwrap(), Message::Text("elsewhere"));
        assert_eq!(other.join().unwrap().wait(), Ok(Sent::Sent));
        let end = client.close(CloseCode::NORMAL, "bye").unwrap();
        assert_eq!((end.cause, end.opened), (Closed::ByUs, true));
    }
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn much_is_sent_and_received_with_backpressure() {
    let server = server(Limits { message_bytes: 1 << 20, ..Limits::default() });
    let limits = Limits { message_bytes: 1 << 20, ..Limits::default() };
    let mut client = Connect::to(&url(&server)).limits(limits).open().unwrap();
    // More than both ends and the kernel hold, so sending has to wait for what is received.
    let payload = vec![7; 200_000];
    let (mut sent, mut received) = (0, 0);
    while received < 100 {
        while sent < 100 && sent < received + 10 {
            client.send(&payload).unwrap();
            sent += 1;
        }
        assert_eq!(client.receive().unwrap().len(), payload.len());
        received += 1;
    }
    // Together, too, they wait for the server.
    client.send_all((0..40).map(|_| Message::Binary(&payload))).unwrap();
    for _ in 0..40 {
        assert_eq!(client.receive().unwrap().len(), payload.len());
    }
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

/// Answers a handshake, writes 18 MiB, and only then reads, without an answer to anything.
fn flood() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let flooding = std::thread::spawn(move || {
        let socket = tungstenite::accept(listener.accept().unwrap().0).unwrap();
        let mut stream = socket.into_inner();
        let frame = [&[0x82, 126, 0xFF, 0xFF][..], &[0; 0xFFFF]].concat();
        (0..288).for_each(|_| stream.write_all(&frame).unwrap());
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    (url, flooding)
}

#[test]
fn a_client_closes_in_time_whatever_waits() {
    let close_timeout = Duration::from_millis(300);
    let limits = Limits { close_timeout, mailbox_bytes: 100_000, ..Limits::default() };
    // It receives more than it keeps while it waits for the server to read, and so reads no more itself.
    let (flooded, flooding) = flood();
    let mut client = Connect::to(&flooded).limits(limits.clone()).open().unwrap();
    let server = server(Limits::default());
    let piece = vec![0; 0xFFFF];
    client.send_all((0..288).map(|_| Message::Binary(&piece))).unwrap();
    let end = client.close(CloseCode::NORMAL, "enough").unwrap();
    assert_eq!(end.cause, Closed::ByUs);
    flooding.join().unwrap();
    // What other threads have posted leaves no room in the mailbox.
    let client = Connect::to(&url(&server)).limits(limits).open().unwrap();
    while client.remote().send("posted").is_ok() {}
    assert_eq!(client.close(CloseCode::NORMAL, "bye").unwrap().cause, Closed::ByUs);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn clients_whose_handler_has_panicked_take_no_connection() {
    struct Panics;
    impl ClientHandler for Panics {
        fn message(&mut self, _: &mut ClientSocket<'_>, _: Message<'_>) {
            panic!("as the test wants");
        }
    }
    let server = server(Limits::default());
    let connect = Connect::to(&url(&server));
    let clients = Clients::start(Limits::default()).unwrap();
    let first = clients.connect(&connect, Panics).unwrap();
    eventually("the handler panics", || {
        let _ = first.send("x");
        match clients.connect(&connect, Panics) {
            Ok(_) => false,
            Err(ClientError::Worker(error)) => {
                assert!(error.to_string().contains("has panicked"), "{error}");
                true
            }
            Err(error) => panic!("{error}"),
        }
    });
    let error = clients.wait().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn names_are_looked_up() {
    let server = server(Limits::default());
    let clients = Clients::start(Limits::default()).unwrap();
    let (notes, noted) = channel();
    let url = format!("ws://localhost:{}/echo", server.address().port());
    for _ in 0..20 {
        clients.connect(&Connect::to(&url), Opens(notes.clone())).unwrap();
    }
    (0..20).for_each(|_| drop(next(&noted)));
    let lookups = clients.lookups();
    assert_eq!((lookups.begun, lookups.waiting), (20, 0), "{lookups:?}");
    clients.stop(Duration::ZERO).unwrap();
    server.stop(Duration::ZERO).unwrap();
}

/// Notes that it is open.
struct Opens(Sender<String>);

impl ClientHandler for Opens {
    fn open(&mut self, _: &mut ClientSocket<'_>, _: Option<&str>) {
        self.0.send("open".into()).unwrap();
    }

    fn message(&mut self, _: &mut ClientSocket<'_>, _: Message<'_>) {}
}

#[test]
fn an_end_is_explained() {
    let server = server(Limits::default());
    let mut client = standfast::connect(&url(&server)).unwrap();
    client.send("last").unwrap();
    client.send("close").unwrap();
    assert_eq!(client.receive().unwrap(), Message::Text("last"));
    let end = lost(client.receive());
    assert_eq!(
        (end.cause, end.code, &*end.reason),
        (Closed::ByPeer, Some(CloseCode(4001)), "as you wish")
    );
    assert_eq!(end.to_string(), "closed by the server: 4001 (as you wish)");
    assert_eq!(lost(client.send("more")).code, end.code);

    let refused = lost(standfast::connect(&url(&server).replace("echo", "forbidden")));
    assert_eq!((refused.status, refused.opened), (Some(403), false));
    assert!(refused.to_string().contains("403"), "{refused}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = lost(standfast::connect(&format!("ws://{free}/")));
    assert_eq!(refused.to_string(), "connection refused");
    let unknown = lost(standfast::connect("ws://nobody.invalid/"));
    assert!(unknown.to_string().contains("nobody.invalid"), "{unknown}");
    assert!(matches!(standfast::connect("http://x"), Err(ClientError::Options(_))));
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_lost_connection_is_opened_again() {
    let server = server(Limits::default());
    let first = Duration::from_millis(5);
    let reconnect = Reconnect { first, longest: first, attempts: None };
    let mut client = Connect::to(&url(&server)).reconnect(reconnect).open().unwrap();
    for opened in 1..=5 {
        assert_eq!(client.opened(), opened);
        client.send("abort").unwrap();
        // The answer comes by the next connection.
        while client.opened() == opened {
            let _ = client.receive_for(Duration::from_millis(5)).unwrap();
        }
        client.send("again").unwrap();
        assert_eq!(client.receive().unwrap(), Message::Text("again"));
    }
    assert_eq!(client.close(CloseCode::NORMAL, "").unwrap().cause, Closed::ByUs);
    server.stop(Duration::ZERO).unwrap();
    // A first connection is not tried again, a later one only so often.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let connect = Connect::to(&format!("ws://{address}/")).reconnect(Reconnect::default());
    assert_eq!(lost(connect.open()).cause, Closed::ConnectRefused);
}

/// Counts up to its number with the echo server, and notes what happens.
struct Counter {
    number: u32,
    until: u32,
    notes: Sender<String>,
}

impl ClientHandler for Counter {
    fn open(&mut self, socket: &mut ClientSocket<'_>, _: Option<&str>) {
        let _ = socket.send(&self.number.to_string());
    }

    fn message(&mut self, socket: &mut ClientSocket<'_>, message: Message<'_>) {
        assert_eq!(message.as_text(), Some(&*self.number.to_string()));
        self.number += 1;
        match self.number == self.until {
            true => socket.close(CloseCode::NORMAL, "done"),
            false => drop(socket.send(&self.number.to_string())),
        }
    }

    fn close(&mut self, lost: &Lost) {
        let again = lost.again_in.is_some();
        self.notes.send(format!("{} {} {again}", self.number, lost.cause)).unwrap();
    }
}

#[test]
fn handlers_of_many_connections_share_a_worker() {
    let server = server(Limits::default());
    let (notes, noted) = channel();
    let clients = Clients::start(Limits::default()).unwrap();
    let connect = Connect::to(&url(&server));
    for _ in 0..100 {
        let counter = Counter { number: 0, until: 50, notes: notes.clone() };
        clients.connect(&connect, counter).unwrap();
    }
    for _ in 0..100 {
        assert_eq!(next(&noted), "50 by_us false");
    }
    assert_eq!(clients.totals().messages_in, 5_000);
    // One that nobody answers is tried again until its attempts are used up, or it is closed.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let first = Duration::from_millis(1);
    let reconnect = Reconnect { first, longest: first, attempts: Some(2) };
    let connect = Connect::to(&format!("ws://{address}/")).reconnect(reconnect);
    let counter = |notes: &Sender<String>| Counter { number: 7, until: 8, notes: notes.clone() };
    clients.connect(&connect, counter(&notes)).unwrap();
    let refused = "7 connect_refused";
    let expected = [true, true, false].map(|again| format!("{refused} {again}"));
    assert_eq!([next(&noted), next(&noted), next(&noted)], expected);
    let long = Duration::from_secs(3600);
    let connect = connect.reconnect(Reconnect { first: long, longest: long, attempts: None });
    let remote = clients.connect(&connect, counter(&notes)).unwrap();
    assert_eq!(next(&noted), format!("{refused} true"));
    remote.close(CloseCode::NORMAL, "").unwrap();
    assert_eq!(next(&noted), "7 by_us false");
    clients.stop(Duration::ZERO).unwrap();
    // In this thread.
    let counter = Counter { number: 0, until: 10, notes };
    let end = Connect::to(&url(&server)).run(counter).unwrap();
    assert_eq!((end.cause, next(&noted)), (Closed::ByUs, "10 by_us false".to_owned()));
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn another_server_is_understood_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut socket = tungstenite::accept(listener.accept().unwrap().0).unwrap();
        socket.send(tungstenite::Message::Ping("are you there?".into())).unwrap();
        socket.send(tungstenite::Message::text("first")).unwrap();
        let mut got = Vec::new();
        while let Ok(message) = socket.read() {
            got.push(message);
        }
        got
    });
    let mut client = standfast::connect(&format!("ws://{address}/")).unwrap();
    assert_eq!(client.receive().unwrap(), Message::Text("first"));
    client.send("second").unwrap();
    client.close(CloseCode(4000), "bye").unwrap();
    let got = server.join().unwrap();
    assert_eq!(got[0], tungstenite::Message::Pong("are you there?".into()));
    assert_eq!(got[1], tungstenite::Message::text("second"));
    assert!(matches!(&got[2], tungstenite::Message::Close(Some(frame)) if frame.reason == "bye"));
}
