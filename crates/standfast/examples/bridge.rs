//! A bridge between the topics of a server and the subjects of NATS, for programs that know NATS only. What a
//! client of /subjects/NAME sends is published to the subject `web.NAME`, and what others publish to that
//! subject reaches the clients of /subjects/NAME, at all bridges. NATS is reached by its WebSocket listener
//! (`websocket { port: 8081, no_tls: true }` in its configuration), and again when it was away:
//! `cargo run --release -p standfast --example bridge -- 127.0.0.1:8080 ws://127.0.0.1:8081`, then
//! `nats publish web.news hello`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use standfast::{
    Accept, ClientHandler, ClientRemote, ClientSocket, Clients, Connect, Handler, Limits, Lost,
    Message, Reconnect, Remote, Response, Server, Socket, UpgradeRequest,
};

const PREFIX: &str = "web.";
/// The longest frame of NATS, which may have many of its messages, and the longest part of one that waits for
/// its rest, both in bytes.
const FRAME_BYTES: u32 = 8 << 20;

/// What both sides know.
#[derive(Default)]
struct Link {
    server: OnceLock<Remote>,
    is_ready: AtomicBool,
}

/// The server's side: sockets, each in the topic of its subject.
#[derive(Clone)]
struct Subjects {
    link: Arc<Link>,
    nats: ClientRemote,
}

impl Handler for Subjects {
    /// The subject, without the prefix.
    type Data = Box<str>;

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<Box<str>>, Response> {
        let is_word = |word: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            !word.is_empty() && word.bytes().all(allowed)
        };
        match request.param("name") {
            Some(name) if name.split('.').all(is_word) => Ok(Accept::new(name.into())),
            _ => {
                Err(Response::text(400, "expected words of letters, digits, - and _, with dots\n"))
            }
        }
    }

    fn open(&mut self, socket: &mut Socket<'_>, name: &mut Box<str>) {
        socket.subscribe(name);
    }

    fn message(&mut self, socket: &mut Socket<'_>, name: &mut Box<str>, message: Message<'_>) {
        let mut publish = format!("PUB {PREFIX}{name} {}\r\n", message.len()).into_bytes();
        publish.extend_from_slice(message.as_bytes());
        publish.extend_from_slice(b"\r\n");
        // NATS does not send back to a connection what came from it.
        let is_sent =
            self.link.is_ready.load(Ordering::Relaxed) && self.nats.send(&publish).is_ok();
        if socket.publish_to_others(name, message).is_err() {
            socket.send("* not sent to all clients here: too much is being published");
        }
        if !is_sent {
            socket.send("* not sent to NATS, which is away: try again later");
        }
    }
}

/// The side of NATS: the client of its protocol, whose operations may come in several frames.
struct Nats {
    link: Arc<Link>,
    unread: Vec<u8>,
}

impl ClientHandler for Nats {
    fn open(&mut self, socket: &mut ClientSocket<'_>, _protocol: Option<&str>) {
        self.unread.clear();
        let connect = r#"CONNECT {"verbose":false,"pedantic":false,"echo":false,"headers":false}"#;
        let subscribe = format!("{connect}\r\nSUB {PREFIX}> 1\r\nPING\r\n");
        socket.send(subscribe.as_bytes());
    }

    fn message(&mut self, socket: &mut ClientSocket<'_>, message: Message<'_>) {
        self.unread.extend_from_slice(message.as_bytes());
        let mut read = 0;
        while let Some((line, body, bytes)) = operation(&self.unread[read..]) {
            let mut words = line.split(' ');
            match (words.next().unwrap_or(""), words.next()) {
                ("MSG", Some(subject)) => self.publish(subject, body),
                ("PING", _) => drop(socket.send(b"PONG\r\n")),
                // The subscription before the PING is in effect.
                ("PONG", _) => self.link.is_ready.store(true, Ordering::Relaxed),
                ("-ERR", _) => eprintln!("NATS: {line}"),
                _ => {}
            }
            read += bytes;
        }
        self.unread.drain(..read);
        if self.unread.len() > FRAME_BYTES as usize {
            socket.abort();
        }
    }

    fn close(&mut self, lost: &Lost) {
        self.link.is_ready.store(false, Ordering::Relaxed);
        eprintln!("NATS: {lost}");
    }
}

impl Nats {
    fn publish(&self, subject: &str, body: &[u8]) {
        let (Some(server), Some(name)) = (self.link.server.get(), subject.strip_prefix(PREFIX))
        else {
            return;
        };
        let refused = match std::str::from_utf8(body) {
            Ok(text) => server.publish(name, text),
            Err(_) => server.publish(name, body),
        };
        if let Err(refused) = refused {
            eprintln!("{subject}: {refused}");
        }
    }
}

/// An operation of NATS: its line, its body, and the length of both. `None` until all of it is there.
fn operation(bytes: &[u8]) -> Option<(&str, &[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = std::str::from_utf8(&bytes[..end]).unwrap_or("");
    let start = end + 2;
    if !line.starts_with("MSG ") {
        return Some((line, &[], start));
    }
    let length: usize = line.rsplit(' ').next()?.parse().ok()?;
    let whole = start.checked_add(length)?.checked_add(2)?;
    (bytes.len() >= whole).then(|| (line, &bytes[start..start + length], whole))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:8080".into());
    let url = arguments.next().unwrap_or("ws://127.0.0.1:8081".into());
    let link = Arc::new(Link::default());
    let clients = Clients::start(Limits { message_bytes: FRAME_BYTES, ..Limits::default() })?;
    let connect = Connect::to(&url).reconnect(Reconnect::default());
    let nats = clients.connect(&connect, Nats { link: link.clone(), unread: Vec::new() })?;
    let ready = link.clone();
    let server = Server::bind(address)?
        .route("/subjects/{name}", Subjects { link: link.clone(), nats })
        .get("/ready", move |_| match ready.is_ready.load(Ordering::Relaxed) {
            true => Response::text(200, "connected to NATS\n"),
            false => Response::text(503, "not connected to NATS\n"),
        })
        .start()?;
    let _ = link.server.set(server.remote().clone());
    println!("ws://{}/subjects/news", server.address());
    Ok(server.wait()?)
}
