//! An application that answers HTTP RPC, as tests want it to: each call is recorded and answered by a
//! function.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::eventually;

/// A call as the application sees it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The path of the request.
    pub(crate) path: String,
    /// Header lines, names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: Value,
    /// The body as it was sent.
    pub(crate) raw: Vec<u8>,
}

impl Call {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The last part of its path.
    pub(crate) fn method(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The command, or the method of other calls.
    pub(crate) fn name(&self) -> &str {
        self.body["command"].as_str().unwrap_or(self.method())
    }

    /// The session id.
    pub(crate) fn sid(&self) -> &str {
        self.header("x-anycable-meta-sid").expect("a session id")
    }

    pub(crate) fn identifier(&self) -> &str {
        self.body["identifier"].as_str().unwrap_or_default()
    }
}

/// What it answers.
pub(crate) enum Answer {
    Json(Value),
    /// A status and a body.
    Raw(u16, Vec<u8>),
    /// The whole answer, as bytes.
    Bytes(Vec<u8>),
    /// Nothing, and the connection stays.
    Never,
    /// Nothing, and the connection ends.
    HangUp,
}

/// A running application; its listener closes with it.
pub(crate) struct App {
    pub(crate) address: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
    stopped: Arc<AtomicBool>,
    /// Most calls at a time so far.
    pub(crate) most: Arc<AtomicUsize>,
    /// Connections to it that are open.
    pub(crate) open: Arc<AtomicUsize>,
}

type Answerer = dyn Fn(&Call) -> Answer + Send + Sync;

impl App {
    /// An application on any port.
    pub(crate) fn start(answer: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self::serve(listener, answer)
    }

    /// An application on this port.
    pub(crate) fn start_at(
        address: SocketAddr,
        answer: impl Fn(&Call) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let mut listener = None;
        // One that has just ended there closes its own in its thread.
        eventually("the port is free", || {
            listener = TcpListener::bind(address).ok();
            listener.is_some()
        });
        Self::serve(listener.expect("it is bound"), answer)
    }

    fn serve(
        listener: TcpListener,
        answer: impl Fn(&Call) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("it has an address");
        let (calls, stopped) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let app = App {
            address,
            calls: Arc::clone(&calls),
            stopped: Arc::clone(&stopped),
            most: Arc::default(),
            open: Arc::default(),
        };
        let answer: Arc<Answerer> = Arc::new(answer);
        let (most, now) = (Arc::clone(&app.most), Arc::new(AtomicUsize::new(0)));
        let open = Arc::clone(&app.open);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (answer, calls) = (Arc::clone(&answer), Arc::clone(&calls));
                let (most, now) = (Arc::clone(&most), Arc::clone(&now));
                let (stopped, open) = (Arc::clone(&stopped), Arc::clone(&open));
                thread::spawn(move || {
                    open.fetch_add(1, Ordering::SeqCst);
                    let answer = |call: Call| {
                        if stopped.load(Ordering::SeqCst) {
                            return Answer::HangUp;
                        }
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        calls.lock().expect("no test panics").push(call.clone());
                        let answer = answer(&call);
                        now.fetch_sub(1, Ordering::SeqCst);
                        answer
                    };
                    talk(&stream, answer);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        app
    }

    /// The flag and value that make a server call it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/_anycable", self.address)
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("no test panics").clone()
    }

    /// The names of all calls so far.
    pub(crate) fn names(&self) -> Vec<String> {
        self.calls().iter().map(|call| call.name().to_owned()).collect()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

/// Answers the requests of one connection.
fn talk(stream: &TcpStream, answer: impl Fn(Call) -> Answer) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(call) = read(&mut reader) {
        let (status, body) = match answer(call) {
            Answer::Json(value) => (200, value.to_string().into_bytes()),
            Answer::Raw(status, body) => (status, body),
            Answer::Bytes(bytes) => {
                let _ = writer.write_all(&bytes);
                return;
            }
            Answer::HangUp => return,
            Answer::Never => {
                let _ = reader.read_to_end(&mut Vec::new());
                return;
            }
        };
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
        if writer.write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Call> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let path = lines.first()?.split(' ').nth(1)?.to_owned();
    let headers: Vec<(String, String)> = lines
        .iter()
        .skip(1)
        .map(|line| {
            let (name, value) = line.split_once(": ").expect("a header");
            (name.to_ascii_lowercase(), value.to_owned())
        })
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").expect("a length");
    let mut raw = vec![0; length.1.parse().expect("a number")];
    reader.read_exact(&mut raw).ok()?;
    let body = serde_json::from_slice(&raw).expect("calls are JSON");
    Some(Call { path, headers, body, raw })
}

/// The answer of a chat: cookie `user=NAME` identifies; `ChatChannel` streams from its room.
pub(crate) fn chat(call: &Call) -> Answer {
    let identifier = call.identifier().to_owned();
    let params: Value = serde_json::from_str(&identifier).unwrap_or_default();
    Answer::Json(match call.name() {
        "connect" => {
            let cookie = call.body["env"]["headers"]["cookie"].as_str().unwrap_or_default();
            match cookie.strip_prefix("user=") {
                None => json!({
                    "status": 2,
                    "transmissions":
                        [r#"{"type":"disconnect","reason":"unauthorized","reconnect":false}"#],
                }),
                Some(user) => json!({
                    "status": 1,
                    "identifiers": json!({"user": user}).to_string(),
                    "transmissions": [json!({"type": "welcome", "sid": call.sid()}).to_string()],
                    "env": {"cstate": {"since": "now"}},
                }),
            }
        }
        "subscribe" if params["room"] == "locked" => json!({
            "status": 2,
            "transmissions": [json!({"type": "reject_subscription", "identifier": identifier}).to_string()],
        }),
        "subscribe" => json!({
            "status": 1,
            "streams": [format!("room:{}", params["room"].as_str().unwrap_or_default())],
            "transmissions": [json!({"type": "confirm_subscription", "identifier": identifier}).to_string()],
            "env": {"istate": {"room": params["room"]}},
        }),
        "message" => {
            let data = call.body["data"].as_str().unwrap_or_default();
            let echo = json!({"identifier": identifier, "message": {"echo": data}});
            json!({"status": 1, "transmissions": [echo.to_string()]})
        }
        _ => json!({"status": 1}),
    })
}

/// An identifier of a chat room.
pub(crate) fn room(name: &str) -> Value {
    json!({"channel": "ChatChannel", "room": name})
}
