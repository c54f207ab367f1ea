//! A small server of gRPC-Web over HTTP/1.1 that logs calls and answers each 10th in a wrong way. One thread per
//! connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::accept::accept;

/// A message with a field.
const MESSAGE: &[u8] = b"\x00\x00\x00\x00\x03\x0a\x01x";
const WEB: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text+proto";

/// What is wrong with an answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Nothing.
    Nothing,
    /// It ends without trailers.
    NoTrailers,
    /// Its trailers have no status.
    NoStatus,
    /// It is text.
    Text,
    /// Its HTTP status is 503.
    Unavailable,
    /// Its status, after a message.
    Status(&'static str),
    /// Its status, in the head.
    InHead(&'static str),
    /// Its message is cut, and the trailers follow.
    Cut,
    /// It has two messages.
    Two,
    /// It is no message.
    NoMessage,
    /// It continues after the trailers.
    More,
    /// Its trailers are 20 KiB.
    Long,
    /// The connection ends within it.
    Ends,
    /// The connection ends before it.
    Closes,
    /// Nothing: each answer has so many messages.
    Messages(usize),
    /// Nothing: each answer has messages until the client leaves.
    Endless,
    /// Each answer is a page of an overloaded proxy that does not end until the client leaves.
    EndlessPage,
}

/// What it received.
#[derive(Default, Debug)]
pub(crate) struct Log {
    pub(crate) connections: u64,
    pub(crate) calls: u64,
    pub(crate) answered: u64,
    pub(crate) body_bytes: u64,
    /// Messages of complete answers.
    pub(crate) messages: u64,
    /// Heads without what gRPC-Web demands of them.
    pub(crate) strange: Vec<String>,
}

pub(crate) struct GrpcWebServer {
    pub(crate) address: SocketAddr,
    pub(crate) log: Arc<Mutex<Log>>,
}

impl GrpcWebServer {
    pub(crate) fn start(wrong: Wrong) -> GrpcWebServer {
        let log = Arc::new(Mutex::new(Log::default()));
        let own = Arc::clone(&log);
        let address = accept(move |stream| {
            own.lock().unwrap().connections += 1;
            serve(stream, wrong, &own)
        });
        GrpcWebServer { address, log }
    }
}

/// Serves a connection until either side ends it.
fn serve(mut stream: TcpStream, wrong: Wrong, log: &Mutex<Log>) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "))?;
        let mut body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        let is_text = lower.contains("grpc-web-text");
        if is_text {
            body = STANDARD.decode(body).ok()?;
        }
        let number = {
            let mut log = log.lock().unwrap();
            let kind = if is_text { TEXT } else { WEB };
            let has = |name: &str| lower.contains(&format!("\r\n{name}: {kind}\r\n"));
            let is_web = lower.starts_with("post /a.b/") && has("content-type") && has("accept");
            if !is_web || lower.contains("\r\nte:") || !lower.contains("x-grpc-web: 1\r\n") {
                log.strange.push(head);
            }
            log.calls += 1;
            log.body_bytes += body.len() as u64;
            log.calls
        };
        let is_wrong = number.is_multiple_of(10)
            || matches!(wrong, Wrong::Messages(_) | Wrong::Endless | Wrong::EndlessPage);
        let how = if is_wrong { wrong } else { Wrong::Nothing };
        answer(&mut stream, how, is_text, log)?;
    }
}

fn trailers(lines: &str) -> Vec<u8> {
    [b"\x80", &(lines.len() as u32).to_be_bytes()[..], lines.as_bytes()].concat()
}

fn answer(stream: &mut TcpStream, how: Wrong, is_text: bool, log: &Mutex<Log>) -> Option<()> {
    let ok = trailers("grpc-status: 0\r\n");
    let right = [MESSAGE, &ok].concat();
    let (mut status, mut kind, mut more) = (200, WEB, String::new());
    let body = match how {
        Wrong::Nothing | Wrong::Ends => right,
        Wrong::Messages(count) => [MESSAGE.repeat(count), ok].concat(),
        Wrong::Endless => MESSAGE.to_vec(),
        Wrong::NoTrailers => MESSAGE.to_vec(),
        Wrong::NoStatus => [MESSAGE, &trailers("a: b\r\n")].concat(),
        Wrong::Text => {
            kind = "text/plain";
            b"not here".to_vec()
        }
        Wrong::Unavailable | Wrong::EndlessPage => {
            (status, kind) = (503, "text/html");
            b"<h1>".to_vec()
        }
        Wrong::Status(code) => [MESSAGE, &trailers(&format!("Grpc-Status:{code}\r\n"))].concat(),
        Wrong::InHead(code) => {
            more = format!("grpc-status: {code}\r\n");
            Vec::new()
        }
        Wrong::Cut => [&MESSAGE[..6], &ok].concat(),
        Wrong::Two => [MESSAGE, MESSAGE, &ok].concat(),
        Wrong::NoMessage => b"hello, world".to_vec(),
        Wrong::More => [MESSAGE, &ok, MESSAGE].concat(),
        Wrong::Long => {
            let long = format!("grpc-status: 0\r\na: {}\r\n", "b".repeat(20 << 10));
            [MESSAGE, &trailers(&long)].concat()
        }
        Wrong::Closes => return None,
    };
    let body = match is_text {
        // The trailers are encoded by themselves, as some proxies do.
        true if kind == WEB => {
            kind = TEXT;
            let (one, other) = body.split_at(body.len().min(MESSAGE.len()));
            (STANDARD.encode(one) + &STANDARD.encode(other)).into_bytes()
        }
        _ => body,
    };
    write!(stream, "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{more}").ok()?;
    write!(stream, "Transfer-Encoding: chunked\r\n\r\n").ok()?;
    // In pieces, as servers do.
    for piece in body.chunks(5) {
        write!(stream, "{:x}\r\n", piece.len()).ok()?;
        stream.write_all(piece).ok()?;
        write!(stream, "\r\n").ok()?;
        if how == Wrong::Ends {
            return None;
        }
    }
    if matches!(how, Wrong::Endless | Wrong::EndlessPage) {
        loop {
            write!(stream, "{:x}\r\n", body.len()).ok()?;
            stream.write_all(&body).ok()?;
            write!(stream, "\r\n").ok()?;
            thread::sleep(Duration::from_millis(5));
        }
    }
    write!(stream, "0\r\n\r\n").ok()?;
    let mut log = log.lock().unwrap();
    log.answered += u64::from(matches!(how, Wrong::Nothing | Wrong::Messages(_)));
    if let Wrong::Messages(count) = how {
        log.messages += count as u64;
    }
    Some(())
}
