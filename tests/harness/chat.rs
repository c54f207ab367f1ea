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
use super::recorder::{Asked, frame, more, read_frame, read_request};

/// The messages of a chat and its faults.
#[derive(Clone, Default, Debug)]
pub(crate) struct Book {
    pub(crate) handshakes: Vec<Asked>,
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
    world: Arc<Mutex<World>>,
}

#[derive(Default)]
struct World {
    /// Every so many receipts one is dropped, one doubled and two are swapped; 0: never.
    every: u64,
    book: Book,
    guests: Vec<Guest>,
    /// Connections that nobody ends.
    held: Vec<TcpStream>,
}

struct Guest {
    number: u64,
    place: String,
    stream: TcpStream,
    /// A message to send after the next one.
    held: Option<Vec<u8>>,
}

impl Chat {
    /// Starts a server with one fault of each kind per `every` receipts; 0: none.
    pub(crate) fn start(every: u64) -> Chat {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let world = Arc::new(Mutex::new(World { every, ..World::default() }));
        let own = Arc::clone(&world);
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().map_while(Result::ok)) {
                let world = Arc::clone(&own);
                thread::spawn(move || serve(stream, number, &world));
            }
        });
        Chat { address, world }
    }

    /// Returns the counts once all clients have disconnected; held messages count as dropped.
    pub(crate) fn book(&self) -> Book {
        eventually("all have left", || self.world.lock().unwrap().guests.is_empty());
        self.world.lock().unwrap().book.clone()
    }
}

impl Chat {
    /// Returns all received texts.
    pub(crate) fn said(&self) -> Vec<String> {
        self.book().said
    }
}

fn serve(mut stream: TcpStream, number: u64, world: &Mutex<World>) {
    let mut pending = Vec::new();
    let Some(asked) = read_request(&mut stream, &mut pending, number) else { return };
    let Some(key) = asked.header("sec-websocket-key").map(str::to_owned) else { return };
    let place = asked.target.clone();
    world.lock().unwrap().book.handshakes.push(asked);
    let digest = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    let accept = base64::engine::general_purpose::STANDARD.encode(digest);
    let (way, is_held) = place.strip_suffix("?held").map_or((&*place, false), |way| (way, true));
    if hostile(&mut stream, way, &accept) {
        // Reads the rest, so that no sent bytes are lost to a reset.
        while more(&mut stream, &mut pending).is_some() {}
        if is_held {
            world.lock().unwrap().held.push(stream);
        }
        return;
    }
    {
        // Whoever is told to be in is in: the others may speak to it from then on.
        let mut world = world.lock().unwrap();
        let mut head = switched(&accept);
        if let Some((_, name)) = place.split_once("?chooses=") {
            head.insert_str(head.len() - 2, &format!("Sec-WebSocket-Protocol: {name}\r\n"));
        }
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        let guest =
            Guest { number, place: place.clone(), stream: stream.try_clone().unwrap(), held: None };
        world.guests.push(guest);
    }
    let mut joined = Vec::new();
    while let Some((opcode, data)) = read_frame(&mut stream, &mut pending) {
        match opcode {
            0x8 => {
                world.lock().unwrap().book.closes += 1;
                let _ = stream.write_all(&frame(0x8, &data));
                break;
            }
            0x9 => drop(stream.write_all(&frame(0xa, &data))),
            0xa => world.lock().unwrap().book.pongs += 1,
            _ => {
                joined.clear();
                joined.extend_from_slice(&data);
                world.lock().unwrap().pass_on(number, &place, &joined, opcode, &mut stream);
            }
        }
    }
    let mut world = world.lock().unwrap();
    let left = world.guests.iter().position(|guest| guest.number == number);
    if let Some(guest) = left.map(|at| world.guests.swap_remove(at)) {
        world.book.dropped += u64::from(guest.held.is_some());
    }
}

fn switched(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

impl World {
    fn pass_on(&mut self, from: u64, place: &str, data: &[u8], opcode: u8, own: &mut TcpStream) {
        let whole = frame(opcode, data);
        if place.starts_with("/echo") {
            // A ping and the answer in two pieces.
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
        for guest in &mut self.guests {
            let is_meant = match &private {
                Some(place) => guest.place == *place,
                None => guest.place == place && guest.number != from,
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
                    let _ = guest.stream.write_all(&whole);
                }
                5 if guest.held.is_none() => {
                    guest.held = Some(whole.clone());
                    continue;
                }
                _ => {}
            }
            let _ = guest.stream.write_all(&whole);
            if let Some(held) = guest.held.take() {
                book.swapped += 1;
                let _ = guest.stream.write_all(&held);
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
