//! A small faulty chat server that counts its faults: rooms (`/room/NAME`), where each message goes to
//! all others; private chats (`/private?id=N`), where `{"to":N}` names the recipient; and `/echo`, which
//! with `?chooses=NAME` selects that subprotocol. Every other path violates the protocol in one way; with
//! `?held` the connection then stays open. One thread per connection; no code of this project.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine;
use serde_json::Value;
use sha1::{Digest, Sha1};

use super::eventually;
use super::recorder::{RecordedRequest, frame, more, read_frame, read_request};

/// The messages of a chat and its faults.
#[derive(Clone, Default, Debug)]
pub(crate) struct Book {
    pub(crate) handshakes: Vec<RecordedRequest>,
    pub(crate) due: u64,
    pub(crate) dropped: u64,
    pub(crate) doubled: u64,
    pub(crate) swapped: u64,
    /// Close frames that clients sent.
    pub(crate) closes: u64,
    pub(crate) pongs: u64,
    /// Received texts.
    pub(crate) said: Vec<String>,
}

pub(crate) struct Chat {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Interval in receipts of one dropped, one duplicated and two swapped messages; 0: none.
    every: u64,
    book: Book,
    members: Vec<Member>,
    /// Connections that stay open.
    held: Vec<TcpStream>,
}

struct Member {
    number: u64,
    room: String,
    stream: TcpStream,
    /// A message to send after the next one.
    held: Option<Vec<u8>>,
}

impl Chat {
    /// Starts a server with one fault of each kind per `every` receipts; 0: none.
    pub(crate) fn start(every: u64) -> Chat {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { every, ..State::default() }));
        let own = Arc::clone(&state);
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().map_while(Result::ok)) {
                let state = Arc::clone(&own);
                thread::spawn(move || serve(stream, number, &state));
            }
        });
        Chat { address, state }
    }

    /// Returns the counts once all clients have disconnected; held messages count as dropped.
    pub(crate) fn book(&self) -> Book {
        eventually("all have left", || self.state.lock().unwrap().members.is_empty());
        self.state.lock().unwrap().book.clone()
    }
}

impl Chat {
    /// Returns the number of texts received so far.
    pub(crate) fn received(&self) -> usize {
        self.state.lock().unwrap().book.said.len()
    }

    /// Returns all received texts, once all clients have disconnected.
    pub(crate) fn said(&self) -> Vec<String> {
        self.book().said
    }
}

fn serve(mut stream: TcpStream, number: u64, state: &Mutex<State>) {
    let mut pending = Vec::new();
    let Some(asked) = read_request(&mut stream, &mut pending, number) else { return };
    let Some(key) = asked.header("sec-websocket-key").map(str::to_owned) else { return };
    let room = asked.target.clone();
    state.lock().unwrap().book.handshakes.push(asked);
    let digest = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    let accept = base64::engine::general_purpose::STANDARD.encode(digest);
    let (way, is_held) = room.strip_suffix("?held").map_or((&*room, false), |way| (way, true));
    if hostile(&mut stream, way, &accept) {
        // Reads the rest, so that no sent bytes are lost to a reset.
        while more(&mut stream, &mut pending).is_some() {}
        if is_held {
            state.lock().unwrap().held.push(stream);
        }
        return;
    }
    {
        // A client that has the answer must be registered: others may send to it from then on.
        let mut state = state.lock().unwrap();
        let mut head = switched(&accept);
        if let Some((_, name)) = room.split_once("?chooses=") {
            head.insert_str(head.len() - 2, &format!("Sec-WebSocket-Protocol: {name}\r\n"));
        }
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        let member =
            Member { number, room: room.clone(), stream: stream.try_clone().unwrap(), held: None };
        state.members.push(member);
    }
    let mut joined = Vec::new();
    while let Some((opcode, data)) = read_frame(&mut stream, &mut pending) {
        match opcode {
            0x8 => {
                state.lock().unwrap().book.closes += 1;
                let _ = stream.write_all(&frame(0x8, &data));
                break;
            }
            0x9 => drop(stream.write_all(&frame(0xa, &data))),
            0xa => state.lock().unwrap().book.pongs += 1,
            _ => {
                joined.clear();
                joined.extend_from_slice(&data);
                state.lock().unwrap().pass_on(number, &room, &joined, opcode, &mut stream);
            }
        }
    }
    let mut state = state.lock().unwrap();
    let left = state.members.iter().position(|member| member.number == number);
    if let Some(member) = left.map(|at| state.members.swap_remove(at)) {
        state.book.dropped += u64::from(member.held.is_some());
    }
}

fn switched(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

impl State {
    fn pass_on(&mut self, from: u64, room: &str, data: &[u8], opcode: u8, own: &mut TcpStream) {
        let whole = frame(opcode, data);
        if room.starts_with("/echo") {
            // The answer in two fragments, with a ping in between.
            let cut = data.len() / 2;
            let mut pieces = frame(opcode, &data[..cut]);
            pieces[0] &= 0x7f;
            pieces.extend(frame(0x9, b"there?"));
            pieces.extend(frame(0x0, &data[cut..]));
            let _ = own.write_all(&pieces);
            return;
        }
        self.book.said.push(String::from_utf8_lossy(data).into_owned());
        let said: Value = serde_json::from_slice(data).unwrap_or_default();
        let private = said["to"].as_u64().map(|to| format!("/private?id={to}"));
        let (every, book) = (self.every, &mut self.book);
        for member in &mut self.members {
            let is_meant = match &private {
                Some(room) => member.room == *room,
                None => member.room == room && member.number != from,
            };
            if !is_meant {
                continue;
            }
            book.due += 1;
            let turn = if every == 0 { u64::MAX } else { book.due % every };
            match turn {
                1 => {
                    book.dropped += 1;
                    continue;
                }
                3 => {
                    book.doubled += 1;
                    let _ = member.stream.write_all(&whole);
                }
                5 if member.held.is_none() => {
                    member.held = Some(whole.clone());
                    continue;
                }
                _ => {}
            }
            let _ = member.stream.write_all(&whole);
            if let Some(held) = member.held.take() {
                book.swapped += 1;
                let _ = member.stream.write_all(&held);
            }
        }
    }
}

/// Sends the protocol violation of a path; returns false for other paths.
fn hostile(stream: &mut TcpStream, path: &str, accept: &str) -> bool {
    let switched = switched(accept).into_bytes();
    let then = |bytes: &[u8]| [switched.as_slice(), bytes].concat();
    let lines = &switched[..switched.len() - 2];
    let with = |line: &str| [lines, line.as_bytes(), b"\r\n\r\n"].concat();
    let says = match path {
        "/masked" => then(&[0x81, 0x81, 1, 2, 3, 4, 5]),
        "/accept" => b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n"
            .to_vec(),
        "/reserved" => then(&[0xf1, 1, b'a']),
        "/oversize" => then(&[0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0]),
        "/huge" => then(&[0x82, 127, 0x40, 0, 0, 0, 0, 0, 0, 0]),
        "/continuation" => then(&[0x80, 1, b'a']),
        "/utf8" => then(&[0x81, 2, 0xc3, 0x28]),
        "/short-close" => then(&[0x88, 1, 3]),
        "/bad-close" => then(&[0x88, 2, 0x03, 0xed]),
        // 200 KB of one message without a final fragment.
        "/fragments" => {
            let piece = [&[0x00, 100][..], &[b'a'; 100]].concat();
            then(&[&[0x01, 0][..], &piece.repeat(2_000)].concat())
        }
        "/farewell" => {
            let text = br#"{"type":"disconnect","reason":"full","reconnect":false}"#;
            then(&frame(0x1, text))
        }
        "/busy" => b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n".to_vec(),
        "/page" => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi".to_vec(),
        "/garbage" => b"SSH-2.0-x\r\n\r\n".to_vec(),
        "/unasked" => with("Sec-WebSocket-Extensions: x"),
        "/protocol" => with("Sec-WebSocket-Protocol: other"),
        "/no-upgrade" => {
            let right = String::from_utf8(switched.clone()).unwrap();
            right.replacen("Upgrade: websocket", "X: y", 1).into_bytes()
        }
        "/refused" => b"HTTP/1.1 403 X\r\nContent-Length: 2\r\n\r\nno".to_vec(),
        "/closes" => then(&[0x88, 2, 0x0f, 0xa7]),
        "/midway" => then(&[0x81, 10, b'a', b'b']),
        "/gone" => then(&[]),
        "/head" => [b"HTTP/1.1 101 X\r\nA: ".as_slice(), &[b'a'; 32 << 10]].concat(),
        "/silent" => Vec::new(),
        _ => return false,
    };
    let _ = stream.write_all(&says);
    if matches!(path, "/midway" | "/gone") {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    true
}
