//! A client, and a handler that is made of functions.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use standfast::{Accept, Close, Handler, Message, Response, Socket, UpgradeRequest};
use tungstenite::client::IntoClientRequest;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{HandshakeError, WebSocket};

/// Time limit of a condition. A passing test never waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client(pub(crate) WebSocket<TcpStream>);

impl Client {
    pub(crate) fn open(address: SocketAddr, path: &str) -> Client {
        Client::try_open(address, path, &[]).unwrap().0
    }

    /// With further headers. Returns the answer's headers too, or the status that refuses it.
    pub(crate) fn try_open(
        address: SocketAddr,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<(Client, tungstenite::handshake::client::Response), u16> {
        let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        match tungstenite::client(request, stream) {
            Ok((socket, response)) => Ok((Client(socket), response)),
            Err(HandshakeError::Failure(tungstenite::Error::Http(response))) => {
                Err(response.status().as_u16())
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.0.send(tungstenite::Message::text(text)).unwrap();
    }

    /// The next text.
    pub(crate) fn text(&mut self) -> String {
        loop {
            match self.0.read().unwrap() {
                tungstenite::Message::Text(text) => return text.to_string(),
                tungstenite::Message::Ping(_) | tungstenite::Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The close frame that follows, whatever is sent before it.
    pub(crate) fn closed(&mut self) -> (u16, String) {
        loop {
            if let tungstenite::Message::Close(frame) = self.0.read().unwrap() {
                let frame = frame.unwrap();
                let _ = self.0.flush();
                return (frame.code.into(), frame.reason.to_string());
            }
        }
    }

    pub(crate) fn close(&mut self, code: u16, reason: &str) {
        let code = CloseCode::from(code);
        let frame = tungstenite::protocol::CloseFrame { code, reason: reason.to_owned().into() };
        self.0.close(Some(frame)).unwrap();
        while self.0.read().is_ok() {}
    }
}

type OnMessage = fn(&mut Socket<'_>, &mut Data, &str);

/// A handler that lets everyone in, does what its function says, and notes what it was called with.
#[derive(Clone)]
pub(crate) struct Noted {
    pub(crate) on_message: OnMessage,
    pub(crate) notes: Sender<String>,
}

/// The data of its sockets.
#[derive(Default)]
pub(crate) struct Data {
    pub(crate) count: u32,
    pub(crate) rest: u32,
}

impl Noted {
    pub(crate) fn new(on_message: OnMessage) -> (Noted, Receiver<String>) {
        let (notes, noted) = channel();
        (Noted { on_message, notes }, noted)
    }

    fn note(&self, text: String) {
        let _ = self.notes.send(text);
    }
}

impl Handler for Noted {
    type Data = Data;

    fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<Data>, Response> {
        Ok(Accept::default())
    }

    fn open(&mut self, socket: &mut Socket<'_>, _: &mut Data) {
        self.note(format!("open {}", socket.id()));
    }

    fn message(&mut self, socket: &mut Socket<'_>, data: &mut Data, message: Message<'_>) {
        data.count += 1;
        (self.on_message)(socket, data, message.as_text().unwrap_or("binary"));
    }

    fn drain(&mut self, socket: &mut Socket<'_>, data: &mut Data) {
        self.note("drain".into());
        while data.rest > 0 {
            data.rest -= 1;
            if socket.send(&[7; 100_000]) != standfast::Sent::Sent {
                return;
            }
        }
        socket.send("done");
    }

    fn pong(&mut self, _: &mut Socket<'_>, _: &mut Data, payload: &[u8]) {
        self.note(format!("pong {}", payload.escape_ascii()));
    }

    fn stopping(&mut self, socket: &mut Socket<'_>, _: &mut Data) {
        socket.send("goodbye");
    }

    fn close(&mut self, socket: &mut Socket<'_>, data: Data, close: &Close<'_>) {
        assert!(!socket.is_open() && socket.topics().is_empty());
        let code = close.code.map_or(0, |code| code.0);
        self.note(format!("close {} {code} {:?} after {}", close.cause, close.reason, data.count));
    }
}

/// The next note.
pub(crate) fn next(notes: &Receiver<String>) -> String {
    notes.recv_timeout(PATIENCE).unwrap()
}

/// The id in a note of `open`.
pub(crate) fn id_of(note: &str) -> standfast::SocketId {
    let mut parts = note.strip_prefix("open ").unwrap().split('.').map(|part| part.parse::<u64>());
    let mut part = || parts.next().unwrap().unwrap();
    standfast::SocketId::from_u64(part() << 54 | part() << 32 | part())
}

#[expect(clippy::disallowed_methods, reason = "the time limit of a condition")]
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reports that the running test is skipped, because this machine lacks something. As `tests/harness/skip.rs` of the
/// repository: `cargo xtask test` counts the lines of a file.
///
/// # Panics
/// With `CI` set, where nothing may be missing.
pub(crate) fn missing(reason: &str) {
    let is_ci = std::env::var("CI").is_ok_and(|ci| !matches!(ci.as_str(), "" | "0" | "false"));
    assert!(!is_ci, "CI is set and this machine lacks something: {reason}");
    eprintln!("skipped: {reason}");
    let Some(path) = std::env::var_os("STANDFAST_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}\t{reason}\n", thread.name().unwrap_or("unnamed"));
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the skip list is writable");
}
