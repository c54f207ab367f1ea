//! [`Forward`]: an HTTP proxy for CONNECT, played by the test: every host is on this machine, at the
//! port that is asked for. And [`answers`], a server that always says the same bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::http::read_more;

/// A proxy that ends with its test's process.
pub(crate) struct Forward {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Forward {
    /// One that opens tunnels where `refusal` is `None`, and says that instead elsewhere. An empty
    /// refusal is silence.
    pub(crate) fn start(refusal: Option<&'static str>) -> Forward {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let book = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let book = Arc::clone(&book);
                thread::spawn(move || tunnel(stream, &book, refusal));
            }
        });
        Forward { address, asked }
    }

    /// The heads of all requests so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn tunnel(mut client: TcpStream, book: &Mutex<Vec<String>>, refusal: Option<&str>) {
    let mut pending = Vec::new();
    while !pending.ends_with(b"\r\n\r\n") {
        if !read_more(&mut client, &mut pending) {
            return;
        }
    }
    let head = String::from_utf8(pending).unwrap();
    let port = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let port: u16 = port.and_then(|at| at.rsplit_once(':')).unwrap().1.parse().unwrap();
    book.lock().unwrap().push(head);
    match refusal {
        // Until the other side has enough.
        Some("") => drop(client.read(&mut [0])),
        Some(refusal) => client.write_all(refusal.as_bytes()).unwrap(),
        None => {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            // Interim answers are allowed before it (RFC 9110 section 15.2).
            let interim = b"HTTP/1.1 103 Early Hints\r\nx-a: b\r\n\r\n";
            client.write_all(interim).unwrap();
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
            let (to, from) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || copy(from, to));
            copy(server, client);
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    // Whoever leaves by a reset leaves, too.
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

/// A server that says `bytes` to every request without a body.
pub(crate) fn answers(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let bytes = bytes.clone();
            thread::spawn(move || {
                let mut pending = Vec::new();
                while read_more(&mut stream, &mut pending) {
                    while let Some(end) = pending.windows(4).position(|four| four == b"\r\n\r\n") {
                        pending.drain(..end + 4);
                        if stream.write_all(&bytes).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}
