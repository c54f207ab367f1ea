//! Many users. With `--nocapture` the tests print what they measure, with `CHAT_USERS` they have more users: see
//! README.md.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Client, Node, eventually};

/// Opens a socket and returns it once the handshake is answered, without a buffer of its own.
fn open(node: &Node) -> TcpStream {
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_nodelay(true).unwrap();
    let request = "GET /acc HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "));
    stream
}

/// A masked frame of text of less than 64 KiB, with a mask of zeros.
fn frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81];
    match text.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length => frame.extend([0xfe, (length >> 8) as u8, length as u8]),
    }
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    frame
}

fn login(number: usize) -> Vec<u8> {
    let data = json!({ "appID": 101, "userID": format!("user-{number:08}") });
    frame(&json!({ "seq": "1", "cmd": "login", "data": data }).to_string())
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// Messages between two users while many others log in within 2 s.
#[test]
#[expect(clippy::disallowed_methods, reason = "a load at a rate")]
fn messages_arrive_while_many_log_in() {
    let users = number("CHAT_USERS").unwrap_or(2_000);
    let node = Node::start(&["--announce-users", "100000"]);
    let mut sender = Client::login(&node, "sender");
    let mut receiver = Client::login(&node, "receiver");
    let mut sockets: Vec<_> = (0..users).map(|_| open(&node)).collect();
    let before = cpu(&node);
    let begin = Instant::now();
    let storm = thread::spawn(move || {
        for (at, socket) in sockets.iter_mut().enumerate() {
            let due = begin + Duration::from_secs(2) * at as u32 / users as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            socket.write_all(&login(at)).unwrap();
        }
        (begin.elapsed(), sockets)
    });
    let mut times = Vec::new();
    let mut announcements = 0_u32;
    while !storm.is_finished() {
        let sent = Instant::now();
        let id = times.len().to_string();
        let data = json!({ "to": "receiver", "message": "hello", "msgID": id });
        sender.send(&json!({ "seq": id, "cmd": "msg", "data": data }).to_string());
        loop {
            let message = receiver.json();
            if message["cmd"] == "msg" && message["seq"] == id.as_str() {
                break;
            }
            announcements += 1;
        }
        times.push(sent.elapsed());
        thread::sleep(Duration::from_millis(2));
    }
    let (took, sockets) = storm.join().unwrap();
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{users} logins in {took:.2?}: {} messages, p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms; \
         {announcements} announcements received; {:.2} s of CPU",
        times.len(),
        at(0.5),
        at(0.99),
        at(0.9999),
        cpu(&node) - before
    );
    println!("{}", node.data("/system/state"));
    assert_eq!(node.counter("logins"), users as u64 + 2);
    assert_eq!(node.counter("sent"), times.len() as u64);
    drop(sockets);
}

/// Resident memory of each logged-in user, without the pages of the executable.
#[test]
fn users_take_less_than_256_bytes() {
    let users = number("CHAT_USERS").unwrap_or(6_000);
    let node = Node::start(&["--announce-users", "0"]);
    let mut sockets = Vec::new();
    let (mut measured, mut heartbeats) = (Vec::new(), 0);
    for step in 1..=3 {
        while sockets.len() < users * step / 3 {
            let mut socket = open(&node);
            socket.write_all(&login(sockets.len())).unwrap();
            sockets.push(socket);
        }
        node.wait_for_users(sockets.len() as u64);
        for socket in &mut sockets {
            socket.write_all(&frame(r#"{"seq":"2","cmd":"heartbeat","data":{}}"#)).unwrap();
        }
        heartbeats += sockets.len() as u64;
        eventually("heartbeats are counted", || node.counter("heartbeats") == heartbeats);
        measured.push((sockets.len(), resident(&node)));
    }
    let ((few, first), (many, last)) = (measured[0], measured[2]);
    let each = (last - first) as f64 / (many - few) as f64;
    println!("{measured:?}: {each:.0} bytes for each user from {few} to {many}");
    assert!(each <= 256.0);
}

fn resident(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

/// Seconds of processor time of a node.
fn cpu(node: &Node) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", node.child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}
