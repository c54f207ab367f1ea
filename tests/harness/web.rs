//! [`Web`]: a small HTTP/1.1 server that records requests and answers as the test decides. One thread per
//! connection; an invalid request fails the test.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::http::read_more;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) peer: SocketAddr,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// Number of the request on its connection, from 0.
    pub(crate) number: usize,
}

impl ReceivedRequest {
    /// The value of a header, given in lower case.
    ///
    /// # Panics
    /// When it is there twice.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(one, _)| one == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} twice: {self:?}");
        value
    }
}

/// An answer: status, additional headers, body.
pub(crate) type Answer = (u16, Vec<(&'static str, String)>, String);

/// A server that ends with its test's process.
pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    got: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Web {
    pub(crate) fn start(
        answer: impl Fn(&ReceivedRequest) -> Answer + Send + Sync + 'static,
    ) -> Web {
        Web::at(0, answer)
    }

    /// Starts at this port of loopback.
    pub(crate) fn at(
        port: u16,
        answer: impl Fn(&ReceivedRequest) -> Answer + Send + Sync + 'static,
    ) -> Web {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let address = listener.local_addr().unwrap();
        let got: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let (book, answer) = (Arc::clone(&got), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (book, answer) = (Arc::clone(&book), Arc::clone(&answer));
                thread::spawn(move || serve(stream.unwrap(), &book, &*answer));
            }
        });
        Web { address, got }
    }

    /// Returns all requests so far.
    pub(crate) fn got(&self) -> Vec<ReceivedRequest> {
        self.got.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    book: &Mutex<Vec<ReceivedRequest>>,
    answer: &dyn Fn(&ReceivedRequest) -> Answer,
) {
    let (peer, mut pending) = (stream.peer_addr().unwrap(), Vec::new());
    for number in 0.. {
        let Some(got) = read(&mut stream, &mut pending, peer, number) else { return };
        let (status, headers, body) = answer(&got);
        let close = got.header("connection") == Some("close");
        let is_head = got.method == "HEAD";
        book.lock().unwrap().push(got);
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let sent = if is_head { "" } else { &body };
        let text = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{lines}\r\n{sent}");
        if stream.write_all(text.as_bytes()).is_err() || close {
            return;
        }
    }
}

/// `None` at the end of the stream.
fn read(
    stream: &mut TcpStream,
    pending: &mut Vec<u8>,
    peer: SocketAddr,
    number: usize,
) -> Option<ReceivedRequest> {
    let end = loop {
        if let Some(at) = pending.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if !read_more(stream, pending) {
            return None;
        }
    };
    let head = String::from_utf8(pending.drain(..end).collect()).expect("a head is text");
    let mut lines = head.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap().split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else { panic!("no request: {head:?}") };
    let headers = lines.filter(|line| !line.is_empty()).map(|line| {
        let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("no header: {line:?}"));
        (name.to_ascii_lowercase(), value.to_owned())
    });
    let (method, target) = (method.to_owned(), target.to_owned());
    let mut got = ReceivedRequest {
        peer,
        method,
        target,
        headers: headers.collect(),
        body: String::new(),
        number,
    };
    let length = got.header("content-length").map_or(0, |length| length.parse().unwrap());
    while pending.len() < length {
        if !read_more(stream, pending) {
            return None;
        }
    }
    got.body = String::from_utf8(pending.drain(..length).collect()).expect("a body of text");
    Some(got)
}
