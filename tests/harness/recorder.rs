//! A small recording server: it records HTTP requests; on WebSockets it answers JSON pings as gowebsocket
//! does and broadcasts other messages to all. One thread per connection; no code of this project.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) connection: u64,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) at: Instant,
}

impl RecordedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(one, _)| one == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// An answer: status, additional headers, body.
pub(crate) type Reply = (u16, Vec<(&'static str, String)>, String);

pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    asked: Mutex<Vec<RecordedRequest>>,
    connections: AtomicU64,
    reply: Box<dyn Fn(&RecordedRequest) -> Reply + Send + Sync>,
    sockets: Mutex<Vec<TcpStream>>,
    pings: AtomicU64,
    /// Number of WebSocket handshakes to collect before any is answered.
    gathered: u64,
    asking: AtomicU64,
}

impl Recorder {
    /// Answers each request with `reply`.
    pub(crate) fn start(reply: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::gathering(0, reply)
    }

    /// Answers every request with `hello`.
    pub(crate) fn hello() -> Self {
        Self::start(|_| (200, Vec::new(), "hello".to_owned()))
    }

    pub(crate) fn gathering(
        gathered: u64,
        reply: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::on(vec![TcpListener::bind("127.0.0.1:0").unwrap()], gathered, reply)
    }

    /// Listens on several sockets, which may be of different namespaces.
    pub(crate) fn on(
        listeners: Vec<TcpListener>,
        gathered: u64,
        reply: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let address = listeners[0].local_addr().unwrap();
        let shared = Arc::new(Shared {
            asked: Mutex::default(),
            connections: AtomicU64::new(0),
            reply: Box::new(reply),
            sockets: Mutex::default(),
            pings: AtomicU64::new(0),
            gathered,
            asking: AtomicU64::new(0),
        });
        for listener in listeners {
            let own = Arc::clone(&shared);
            thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let shared = Arc::clone(&own);
                    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
                    thread::spawn(move || shared.serve(stream, number));
                }
            });
        }
        Self { address, shared }
    }

    pub(crate) fn asked(&self) -> Vec<RecordedRequest> {
        self.shared.asked.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.shared.asked.lock().unwrap().len()
    }

    pub(crate) fn pings(&self) -> u64 {
        self.shared.pings.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream, connection: u64) {
        let mut pending = Vec::new();
        while let Some(asked) = read_request(&mut stream, &mut pending, connection) {
            let key = asked.header("sec-websocket-key").map(str::to_owned);
            self.asked.lock().unwrap().push(asked.clone());
            if let Some(key) = key {
                return self.websocket(stream, pending, &key);
            }
            let (status, headers, body) = (self.reply)(&asked);
            let lines: String =
                headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let body = if asked.method == "HEAD" { String::new() } else { body };
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{lines}\r\n{body}");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
            if asked.header("connection") == Some("close") {
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
    }

    fn websocket(&self, mut stream: TcpStream, mut pending: Vec<u8>, key: &str) {
        self.asking.fetch_add(1, Ordering::Relaxed);
        while self.asking.load(Ordering::Relaxed) < self.gathered {
            thread::sleep(Duration::from_millis(5));
        }
        let digest = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
        let accept = base64::engine::general_purpose::STANDARD.encode(digest);
        let head = format!(
            "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        self.sockets.lock().unwrap().push(stream.try_clone().unwrap());
        while let Some((opcode, data)) = read_frame(&mut stream, &mut pending) {
            match opcode {
                0x8 => {
                    let _ = stream.write_all(&frame(0x8, &data));
                    // Other threads hold this socket too, so dropping it would not close it.
                    let _ = stream.shutdown(Shutdown::Both);
                    return;
                }
                0x9 => drop(stream.write_all(&frame(0xa, &data))),
                0x1 => self.text(&mut stream, &data),
                _ => {}
            }
        }
    }

    fn text(&self, stream: &mut TcpStream, data: &[u8]) {
        let value: Option<Value> = serde_json::from_slice(data).ok();
        match value.filter(|value| value["cmd"].is_string()) {
            Some(ping) => {
                self.pings.fetch_add(1, Ordering::Relaxed);
                let code = if ping["data"]["bad"] == true { 403 } else { 200 };
                let answer = json!({"seq": ping["seq"], "cmd": ping["cmd"],
                    "response": {"code": code, "codeMsg": "Success", "data": null}});
                let _ = stream.write_all(&frame(0x1, answer.to_string().as_bytes()));
            }
            None => {
                let frame = frame(0x1, data);
                for socket in self.sockets.lock().unwrap().iter_mut() {
                    let _ = socket.write_all(&frame);
                }
            }
        }
    }
}

pub(super) fn read_request(
    stream: &mut TcpStream,
    pending: &mut Vec<u8>,
    connection: u64,
) -> Option<RecordedRequest> {
    let end = loop {
        if let Some(at) = pending.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        more(stream, pending)?;
    };
    let head = String::from_utf8_lossy(&pending.drain(..end).collect::<Vec<_>>()).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ').map(str::to_owned);
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, value)| value.parse().unwrap());
    while pending.len() < length {
        more(stream, pending)?;
    }
    let body = pending.drain(..length).collect();
    let (method, target) = (first.next()?, first.next()?);
    Some(RecordedRequest { connection, method, target, headers, body, at: Instant::now() })
}

pub(super) fn read_frame(stream: &mut TcpStream, pending: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let mut need = |count: usize, pending: &mut Vec<u8>| {
        while pending.len() < count {
            more(stream, pending)?;
        }
        Some(())
    };
    need(6, pending)?;
    let (opcode, short) = (pending[0] & 0xf, usize::from(pending[1] & 0x7f));
    let (at, length) = match short {
        126 => {
            need(8, pending)?;
            (4, usize::from(u16::from_be_bytes([pending[2], pending[3]])))
        }
        short => (2, short),
    };
    need(at + 4 + length, pending)?;
    let frame: Vec<u8> = pending.drain(..at + 4 + length).collect();
    let (mask, data) = frame[at..].split_at(4);
    Some((opcode, data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect()))
}

pub(super) fn frame(opcode: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match u8::try_from(data.len()) {
        Ok(short) if short < 126 => frame.push(short),
        _ => {
            frame.push(126);
            frame.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        }
    }
    frame.extend(data);
    frame
}

pub(super) fn more(stream: &mut TcpStream, pending: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => {
                pending.extend_from_slice(&buffer[..count]);
                return Some(());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
