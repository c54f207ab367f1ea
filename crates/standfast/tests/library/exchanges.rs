//! Plain requests in pieces, and answers of other threads.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use standfast::{
    BodyWriter, Exchange, Gone, Http, Limits, Reply, Response, Running, Sent, Server, WriteError,
};

use crate::client::{PATIENCE, eventually, next};

/// A connection that keeps reading answers.
struct Peer(BufReader<TcpStream>);

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
    complete: bool,
}

impl Peer {
    fn new(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Peer(BufReader::new(stream))
    }

    fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        // A connection that is cut off has no further line.
        let _ = self.0.read_line(&mut line);
        line
    }

    fn head(&mut self) -> (u16, String) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let line = self.line();
            assert!(!line.is_empty(), "the connection ended within {head:?}");
            head += &line;
        }
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head)
    }

    fn answer(&mut self, method: &str) -> Answer {
        let (status, head) = self.head();
        let mut answer = Answer { status, head, body: Vec::new(), complete: true };
        if method == "HEAD" || status == 204 {
            return answer;
        }
        let length = answer.head.split("Content-Length: ").nth(1);
        if let Some(length) = length.map(|rest| rest.split('\r').next().unwrap()) {
            answer.body.resize(length.parse().unwrap(), 0);
            self.0.read_exact(&mut answer.body).unwrap();
        } else if answer.head.contains("Transfer-Encoding: chunked") {
            loop {
                let line = self.line();
                let Ok(length) = usize::from_str_radix(line.trim_end(), 16) else {
                    answer.complete = false;
                    break;
                };
                let mut chunk = vec![0; length + 2];
                self.0.read_exact(&mut chunk).unwrap();
                answer.body.extend_from_slice(&chunk[..length]);
                if length == 0 {
                    break;
                }
            }
        } else {
            self.0.read_to_end(&mut answer.body).unwrap();
        }
        answer
    }

    fn ask(&mut self, request: &str) -> Answer {
        self.write(request.replace('\n', "\r\n"));
        self.answer(request.split(' ').next().unwrap())
    }

    fn ends(&mut self) -> bool {
        !matches!(self.0.read(&mut [0]), Ok(1))
    }
}

/// Sends a body back while it is received, and notes what happens.
struct Mirror(Sender<String>);

impl Exchange for Mirror {
    fn begin(&mut self, http: &mut Http<'_>) {
        http.begin(Response::new(200).header("X-Mirror", "1"), None);
        let _ = self.0.send("begin".into());
    }

    fn data(&mut self, http: &mut Http<'_>, data: &[u8]) {
        assert_ne!(http.write(data), Sent::Dropped);
        if http.queued_bytes() > 64 * 1024 {
            http.pause();
            let _ = self.0.send("pause".into());
        }
    }

    fn drain(&mut self, http: &mut Http<'_>) {
        http.resume();
    }

    fn end(&mut self, http: &mut Http<'_>) {
        http.write(b".");
        http.finish();
        assert_eq!(http.write(b"late"), Sent::Dropped);
    }

    fn close(self: Box<Self>, complete: bool) {
        let _ = self.0.send(format!("close {complete}"));
    }
}

/// Counts a body, and answers with a length.
struct Count(usize);

impl Exchange for Count {
    fn data(&mut self, _: &mut Http<'_>, data: &[u8]) {
        self.0 += data.len();
    }

    fn end(&mut self, http: &mut Http<'_>) {
        http.respond(Response::text(200, format!("{}\n", self.0)));
    }
}

/// Writes lines until the server stops.
struct Endless;

impl Exchange for Endless {
    fn begin(&mut self, http: &mut Http<'_>) {
        http.begin(Response::text(200, "first\n"), None);
    }

    fn stopping(&mut self, http: &mut Http<'_>) {
        http.write(b"last\n");
        http.finish();
    }
}

fn start(limits: Limits) -> (Running, Receiver<String>, Receiver<Reply>) {
    let (notes, noted) = channel();
    let (replies, waiting) = channel();
    let (later, posted) = (replies.clone(), replies);
    let server = Server::bind("127.0.0.1:0")
        .unwrap()
        .limits(limits)
        .exchange("POST", "/mirror", 64 << 20, move |request| match request.header("x-refuse") {
            Some(_) => Err(Response::new(403)),
            None => Ok(Box::new(Mirror(notes.clone()))),
        })
        .exchange("POST", "/count", 1000, |_| Ok(Box::new(Count(0))))
        .exchange("GET", "/count", 0, |_| Ok(Box::new(Count(0))))
        .exchange("GET", "/endless", 0, |_| Ok(Box::new(Endless)))
        .later("GET", "/later/{name}", None, move |_, reply| later.send(reply).unwrap())
        .later("POST", "/later", Some(100), move |request, reply| {
            assert_eq!(request.body(), b"abc");
            posted.send(reply).unwrap();
        })
        .workers(2)
        .start()
        .unwrap();
    (server, noted, waiting)
}

fn reply(replies: &Receiver<Reply>) -> Reply {
    replies.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn a_body_is_sent_back_while_it_is_received() {
    let (server, notes, _replies) = start(Limits::default());
    let mut peer = Peer::new(server.address());
    let mut sender = peer.0.get_ref().try_clone().unwrap();
    let body: Vec<u8> = (0..20_000_000u32).map(|n| n.wrapping_mul(2_654_435_761) as u8).collect();
    let expected = body.clone();
    let sending = std::thread::spawn(move || {
        let head =
            format!("POST /mirror HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        sender.write_all(head.as_bytes()).unwrap();
        sender.write_all(&body).unwrap();
        // A further request, without waiting for the answer.
        sender.write_all(b"GET /count HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    });
    assert_eq!(next(&notes), "begin");
    // The client does not read: the server stops reading, too.
    assert_eq!(next(&notes), "pause");
    let answer = peer.answer("POST");
    assert!(answer.head.contains("X-Mirror: 1") && answer.complete, "{}", answer.head);
    assert!(answer.body.strip_suffix(b".").unwrap() == expected);
    let answer = peer.answer("GET");
    assert_eq!((answer.status, &answer.body[..]), (200, &b"0\n"[..]));
    sending.join().unwrap();
    assert!(notes.try_iter().all(|note| note == "pause" || note == "close true"));
    drop(peer);
    let remote = server.remote().clone();
    server.stop(Duration::ZERO).unwrap();
    let totals = remote.totals();
    assert_eq!((totals.requests, totals.bodies_in, totals.queued_bytes), (2, 1, 0));
}

#[test]
fn bodies_come_in_every_form_and_within_their_limit() {
    let (server, notes, _replies) = start(Limits::default());
    let mut peer = Peer::new(server.address());
    let chunked =
        "POST /count HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n3\nabc\n4\n1234\n0\n\n";
    for _ in 0..2 {
        let answer = peer.ask(chunked);
        assert_eq!((answer.status, &answer.body[..]), (200, &b"7\n"[..]));
        assert!(answer.head.contains("Connection: keep-alive\r\n"), "{}", answer.head);
    }
    peer.write(
        "POST /count HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
    );
    assert_eq!(peer.head().0, 100);
    peer.write("a");
    peer.write("bc");
    assert_eq!(peer.answer("POST").body, b"3\n");
    let answer = peer.ask("HEAD /count HTTP/1.1\nHost: x\n\n");
    assert!(answer.head.contains("Content-Length: 2\r\n"), "{}", answer.head);
    let answer = peer.ask("OPTIONS /count HTTP/1.1\nHost: x\n\n");
    assert!(answer.status == 204 && answer.head.contains("Allow: POST, GET, HEAD, OPTIONS\r\n"));
    let answer = peer.ask("GET /count HTTP/1.0\n\n");
    assert!(answer.head.contains("Connection: close") && answer.body == b"0\n" && peer.ends());
    for (request, status) in [
        ("POST /count HTTP/1.1\nHost: x\nContent-Length: 1001\n\n", 413),
        ("POST /count HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\nffff\n", 413),
        ("POST /count HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\nx\n", 400),
        ("POST /mirror HTTP/1.1\nHost: x\nX-Refuse: 1\nContent-Length: 3\n\nabc", 403),
    ] {
        let mut peer = Peer::new(server.address());
        assert_eq!(peer.ask(request).status, status, "{request}");
        assert!(peer.ends(), "{request}");
    }
    // An answer of unknown length to HTTP/1.0 ends with the connection.
    let mut old = Peer::new(server.address());
    let answer = old.ask("POST /mirror HTTP/1.0\nContent-Length: 3\n\nabc");
    assert!(answer.body == b"abc." && !answer.head.contains("chunked"), "{}", answer.head);
    // An invalid body ends an answer that has begun.
    let mut peer = Peer::new(server.address());
    assert_eq!(next(&notes), "begin");
    assert_eq!(next(&notes), "close true");
    peer.write("POST /mirror HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(next(&notes), "begin");
    peer.write("x");
    assert_eq!(next(&notes), "close false");
    assert!(!peer.answer("POST").complete);
    drop((peer, old));
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn another_thread_answers() {
    let (server, _notes, replies) = start(Limits::default());
    let mut peer = Peer::new(server.address());
    for body in ["one\n", "two\n"] {
        peer.write("GET /later/x HTTP/1.1\r\nHost: x\r\n\r\n");
        let reply = reply(&replies);
        assert!(!reply.is_pointless());
        reply.respond(Response::text(201, body));
        let answer = peer.answer("GET");
        assert_eq!((answer.status, &answer.body[..]), (201, body.as_bytes()));
    }
    peer.write("POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
    drop(reply(&replies));
    assert_eq!(peer.answer("POST").status, 500);
    peer.write("GET /later/x HTTP/1.1\r\nHost: x\r\n\r\n");
    let forgotten = reply(&replies);
    drop(peer);
    while !forgotten.is_pointless() {
        std::thread::yield_now();
    }
    forgotten.respond(Response::new(200));
    let mut peer = Peer::new(server.address());
    let answer = peer.ask("GET /later/x HTTP/1.1\nHost: x\nContent-Length: 1\n\nx");
    assert_eq!(answer.status, 413);
    drop(peer);
    server.stop(Duration::ZERO).unwrap();
}

fn stream(server: &Running, replies: &Receiver<Reply>) -> (Peer, BodyWriter) {
    let mut peer = Peer::new(server.address());
    peer.write("GET /later/x HTTP/1.1\r\nHost: x\r\n\r\n");
    (peer, reply(replies).stream(Response::text(200, "begin "), None))
}

#[test]
fn pieces_of_any_length_are_taken_once_the_writer_is_ready() {
    let (server, _notes, replies) = start(Limits::default());
    let (mut peer, writer) = stream(&server, &replies);
    let sending = std::thread::spawn(move || {
        for number in 0..100 {
            let piece = vec![b'x'; if number % 2 == 0 { 100_000 } else { 200_000 }];
            if writer.write(&piece) == Err(WriteError::Full) {
                writer.wait().unwrap();
                writer.write(&piece).unwrap();
            }
        }
        writer.finish();
    });
    let answer = peer.answer("GET");
    assert!(answer.complete);
    assert_eq!(answer.body.len(), 6 + 15_000_000);
    sending.join().unwrap();
}

#[test]
fn a_piece_beyond_the_limit_of_queues_arrives_complete() {
    let (server, _notes, replies) = start(Limits::default());
    let (mut peer, writer) = stream(&server, &replies);
    writer.write(&vec![b'x'; 16_000_000]).unwrap();
    eventually("more waits than a slow consumer may have", || {
        server.totals().queued_bytes > 2 * Limits::default().send_queue_bytes as u64
    });
    writer.finish();
    let answer = peer.answer("GET");
    assert!(answer.complete);
    assert_eq!(answer.body.len(), 6 + 16_000_000);
}

#[test]
fn another_thread_sends_an_answer_in_pieces() {
    let (server, _notes, replies) = start(Limits::default());
    let (mut peer, writer) = stream(&server, &replies);
    let sending = std::thread::spawn(move || {
        let mut full = 0;
        for number in 0..2_000u32 {
            let piece = [number as u8; 10_000];
            while writer.write(&piece) == Err(WriteError::Full) {
                full += 1;
                writer.wait().unwrap();
            }
        }
        writer.finish();
        full
    });
    // Nobody reads yet: what waits is bounded.
    for _ in 0..10_000 {
        if server.totals().queued_bytes > 100_000 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(server.totals().queued_bytes < 1 << 20);
    let answer = peer.answer("GET");
    assert_eq!(answer.body.len(), 6 + 20_000_000);
    assert!(answer.complete && answer.body.ends_with(&[(1_999u32 & 0xFF) as u8; 10_000]));
    assert!(sending.join().unwrap() > 0);
    // The same connection serves the next request.
    peer.write("GET /later/x HTTP/1.1\r\nHost: x\r\n\r\n");
    let writer = reply(&replies).stream(Response::new(200), Some(5));
    writer.write(b"12").unwrap();
    writer.write(b"345").unwrap();
    writer.finish();
    assert_eq!(peer.answer("GET").body, b"12345");
    // A body that is not complete cuts the connection off.
    let (mut cut, writer) = stream(&server, &replies);
    assert_eq!(cut.head().0, 200);
    drop(writer);
    let mut body = Vec::new();
    let _ = cut.0.read_to_end(&mut body);
    assert!(!body.ends_with(b"0\r\n\r\n"), "{}", body.escape_ascii());
    let (left, writer) = stream(&server, &replies);
    drop(left);
    while !writer.is_gone() {
        std::thread::yield_now();
    }
    assert_eq!((writer.write(b"x"), writer.wait()), (Err(WriteError::Gone), Err(Gone)));
    drop((peer, cut));
    server.stop(Duration::ZERO).unwrap();
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn all_tasks_that_wait_for_room_are_woken() {
    let (server, _notes, replies) = start(Limits::default());
    let (mut peer, writer) = stream(&server, &replies);
    let (piece, mut pieces) = (vec![b'x'; 100_000], 0);
    let queue_bytes = Limits::default().send_queue_bytes / 2;
    let is_full = || server.totals().queued_bytes as usize + piece.len() > queue_bytes;
    // Until the buffers of the kernel, the queue and then the writer are full: nothing moves any more.
    let mut fits = || {
        let fits = writer.write(&piece).is_ok();
        pieces += usize::from(fits);
        fits
    };
    while fits() || !is_full() || fits() {
        std::thread::yield_now();
    }
    let mut waiting: Vec<_> =
        (0..3).map(|_| (Box::pin(writer.ready()), Arc::new(Woken::default()))).collect();
    // The second one is polled twice.
    for at in [0, 1, 2, 1] {
        let (future, woken) = &mut waiting[at];
        let waker = Waker::from(Arc::clone(woken));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    // One task ends before.
    let (ended, not_woken) = waiting.remove(0);
    drop(ended);
    let reading = std::thread::spawn(move || peer.answer("GET"));
    for (_, waker) in &waiting {
        eventually("the task is woken", || waker.0.load(Ordering::Relaxed) == 1);
    }
    assert_eq!(not_woken.0.load(Ordering::Relaxed), 0);
    drop(waiting);
    writer.finish();
    assert_eq!(reading.join().unwrap().body.len(), 6 + pieces * 100_000);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn late_replies_and_slow_clients_are_answered_in_time() {
    let short = Duration::from_millis(600);
    let limits = Limits { reply_timeout: short, exchange_timeout: short, ..Limits::default() };
    let (server, notes, replies) = start(limits);
    let mut peer = Peer::new(server.address());
    peer.write("GET /later/x HTTP/1.1\r\nHost: x\r\n\r\n");
    let late = reply(&replies);
    assert_eq!(peer.answer("GET").status, 504);
    while !late.is_pointless() {
        std::thread::yield_now();
    }
    late.respond(Response::new(200));
    assert!(peer.ends());
    let mut peer = Peer::new(server.address());
    let answer = peer.ask("POST /count HTTP/1.1\nHost: x\nContent-Length: 3\n\nab");
    assert!(answer.status == 408 && peer.ends());
    // A client that does not take its answer is cut off.
    let mut peer = Peer::new(server.address());
    peer.write("POST /mirror HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n");
    let _ = peer.0.get_mut().write_all(&[b'x'; 60_000_000]);
    assert_eq!(next(&notes), "begin");
    while next(&notes) != "close false" {}
    drop(peer);
    let remote = server.remote().clone();
    server.stop(Duration::ZERO).unwrap();
    assert_eq!(remote.totals().bodies_late, 1);
}

#[test]
fn answers_under_way_end_when_the_server_stops() {
    let (server, _notes, replies) = start(Limits::default());
    let (mut pieces, writer) = stream(&server, &replies);
    let mut endless = Peer::new(server.address());
    endless.write("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(endless.head().0, 200);
    let remote = server.remote().clone();
    remote.stop(Duration::ZERO);
    let stopping = std::thread::spawn(move || server.wait());
    let mut text = String::new();
    endless.0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "6\r\nfirst\n\r\n5\r\nlast\n\r\n0\r\n\r\n");
    // Its stop has reached the workers: this one goes on nevertheless.
    writer.write(b"end").unwrap();
    writer.finish();
    assert_eq!(pieces.answer("GET").body, b"begin end");
    drop((pieces, endless));
    stopping.join().unwrap().unwrap();
}
