//! An HTTP server that behaves, correctly or not, as the path of a request selects, and counts requests.
//! It uses a thread per connection and only the standard library.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The counts of a server.
#[derive(Default)]
pub(crate) struct ServerLog {
    pub(crate) accepted: AtomicU64,
    /// Requests whose path was read.
    pub(crate) received: AtomicU64,
    /// Requests by behaviour.
    pub(crate) did: Mutex<BTreeMap<&'static str, u64>>,
    /// Locked while the server stalls.
    pub(crate) stall: Mutex<()>,
}

impl ServerLog {
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    pub(crate) fn did(&self, what: &str) -> u64 {
        self.did.lock().unwrap().get(what).copied().unwrap_or(0)
    }
}

/// The behaviours of `/mix` in turn. `ok` twice, so that some connections stay open.
pub(crate) const MIX: [&str; 12] = [
    "ok",
    "error",
    "reset",
    "truncated",
    "ok",
    "chunk",
    "noise",
    "close",
    "head",
    "length",
    "loop",
    "half",
];

/// The delay of `/slow`: longer than the grace period of a run without a slow answer.
pub(crate) const SLOW: Duration = Duration::from_millis(2_200);

/// The delay of the last byte of `/slow_body`.
pub(crate) const SLOW_BODY: Duration = Duration::from_millis(300);

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Starts a server and returns its port.
pub(crate) fn start() -> (u16, Arc<ServerLog>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let book = Arc::new(ServerLog::default());
    let own = Arc::clone(&book);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            own.accepted.fetch_add(1, Ordering::SeqCst);
            let book = Arc::clone(&own);
            thread::spawn(move || converse(stream, &book));
        }
    });
    (port, book)
}

/// Reads requests until one ends the connection.
fn converse(mut stream: TcpStream, book: &ServerLog) {
    let _ = stream.set_nodelay(true);
    let mut kept = Vec::new();
    while let Some(path) = next_path(&mut stream, &mut kept) {
        let number = book.received.fetch_add(1, Ordering::SeqCst) as usize;
        let word = path.trim_start_matches('/').split('?').next().unwrap_or_default();
        let what = if word == "mix" { MIX[number % MIX.len()] } else { known(word) };
        *book.did.lock().unwrap().entry(what).or_default() += 1;
        drop(book.stall.lock().unwrap());
        let goes_on = answer(&mut stream, what);
        if what.starts_with("reset") {
            // A close without lingering is a reset.
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            return;
        }
        if !goes_on {
            break;
        }
    }
    // Read to the end, so that a reset does not discard the answer.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    while stream.read(&mut [0; 4096]).is_ok_and(|got| got > 0) {}
}

fn known(word: &str) -> &'static str {
    const MORE: [&str; 9] = [
        "reset_later",
        "silent",
        "slow",
        "dribble",
        "bomb",
        "interim",
        "chunked",
        "redirect",
        "slow_body",
    ];
    MIX.iter().chain(&MORE).find(|known| **known == word).copied().unwrap_or("ok")
}

/// Sends an answer. Returns whether the connection stays open.
fn answer(stream: &mut TcpStream, what: &str) -> bool {
    let says: &[u8] = match what {
        "ok" => OK,
        "chunked" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "error" => b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        "loop" => b"HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n",
        "redirect" => b"HTTP/1.1 303 See Other\r\nLocation: /ok?x\r\nContent-Length: 0\r\n\r\n",
        "truncated" => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
        "half" => b"HTTP/1.1 200 O",
        "chunk" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "noise" => b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "length" => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more than that",
        "slow_body" => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no",
        "reset_later" => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
        _ => b"",
    };
    let _ = stream.write_all(says);
    match what {
        "silent" => wait_for_end(stream),
        "slow" => {
            thread::sleep(SLOW);
            let _ = stream.write_all(OK);
        }
        "slow_body" => {
            thread::sleep(SLOW_BODY);
            let _ = stream.write_all(b"k");
        }
        "dribble" => flood(stream, b"HTTP/1.1 200 OK\r\n\r\n", b"a", Duration::from_millis(20)),
        "interim" => flood(stream, b"", b"HTTP/1.1 102 Processing\r\n\r\n", Duration::ZERO),
        "head" => flood(stream, b"HTTP/1.1 200 OK\r\n", b"X: aaaaaaaaaaaaaaaa\r\n", Duration::ZERO),
        _ => {}
    }
    matches!(what, "ok" | "slow" | "slow_body" | "chunked" | "error" | "loop" | "redirect")
}

/// Repeats bytes until the client disconnects.
fn flood(stream: &mut TcpStream, first: &[u8], again: &[u8], pause: Duration) {
    let _ = stream.write_all(first);
    while stream.write_all(again).is_ok() {
        thread::sleep(pause);
    }
}

fn wait_for_end(stream: &mut TcpStream) {
    while stream.read(&mut [0; 4096]).is_ok_and(|got| got > 0) {}
}

/// Reads a request and returns its path.
fn next_path(stream: &mut TcpStream, kept: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = kept.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&kept[..end]).to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1);
            let length = length.and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
            if kept.len() >= end + 4 + length {
                let path = head.split(' ').nth(1).map(str::to_owned);
                kept.drain(..end + 4 + length);
                return path;
            }
        }
        let mut bytes = [0; 4096];
        let got = stream.read(&mut bytes).ok().filter(|got| *got > 0)?;
        kept.extend_from_slice(&bytes[..got]);
    }
}
