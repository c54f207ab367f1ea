//! A node of the chat, and a client of it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::{HandshakeError, Message, WebSocket};

/// Time limit of a condition. A passing test never waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running node, which is killed when this is dropped.
pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    /// Lines of standard error; an empty one is its end.
    log: Arc<Mutex<Vec<String>>>,
    _stdout: BufReader<ChildStdout>,
}

impl Node {
    pub(crate) fn start(args: &[&str]) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chat"));
        command.args(["--listen", "127.0.0.1:0"]).args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (noted, stderr) = (Arc::clone(&log), BufReader::new(child.stderr.take().unwrap()));
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok).chain([String::new()]) {
                eprintln!("{line}");
                noted.lock().unwrap().push(line);
            }
        });
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|url| url.split('/').next());
        let address = address.and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{line:?}"));
        Node { child, address, log, _stdout: stdout }
    }

    /// What a GET answers: status, headers, body.
    pub(crate) fn get(&self, path: &str) -> (u16, String, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    }

    /// `data` of what a GET answers.
    pub(crate) fn data(&self, path: &str) -> Value {
        data_of(&self.get(path))
    }

    /// `data` of what a form is answered.
    pub(crate) fn post(&self, path: &str, form: &[(&str, &str)]) -> Value {
        data_of(&self.post_with(path, form, ""))
    }

    pub(crate) fn post_with(
        &self,
        path: &str,
        form: &[(&str, &str)],
        headers: &str,
    ) -> (u16, String, String) {
        let encode =
            |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02X}")).collect() };
        let pairs = form.iter().map(|(name, value)| format!("{name}={}", encode(value)));
        let body = pairs.collect::<Vec<_>>().join("&");
        let length = body.len();
        self.ask(&format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n{headers}\r\n{body}"
        ))
    }

    pub(crate) fn ask(&self, request: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    /// A counter of `/system/state`.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.data("/system/state")["counters"][name].as_u64().unwrap()
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// The names of the other nodes that it knows.
    pub(crate) fn names_of_others(&self) -> Vec<String> {
        let names = self.data("/system/state")["nodes"]["others"].clone();
        serde_json::from_value(names).unwrap()
    }

    /// The number of other nodes that it knows.
    pub(crate) fn others(&self) -> usize {
        self.data("/system/state")["nodes"]["others"].as_array().map_or(0, Vec::len)
    }

    /// Waits until this many users are logged in.
    pub(crate) fn wait_for_users(&self, users: u64) {
        eventually("the number of users", || {
            self.data("/system/state")["managerInfo"]["usersLen"] == users
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn data_of((status, _, body): &(u16, String, String)) -> Value {
    assert_eq!(*status, 200, "{body}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["code"], &body["msg"]), (&json!(200), &json!("Success")), "{body}");
    body["data"].clone()
}

/// Waits for a condition.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not after {PATIENCE:?}");
}

pub(crate) struct Client {
    pub(crate) socket: WebSocket<TcpStream>,
    next: u32,
}

impl Client {
    pub(crate) fn connect(node: &Node) -> Client {
        Client::connect_to(node, "/acc").unwrap()
    }

    /// The status, if the client is refused.
    pub(crate) fn connect_to(node: &Node, path: &str) -> Result<Client, u16> {
        let stream = TcpStream::connect(node.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        match tungstenite::client(format!("ws://{}{path}", node.address), stream) {
            Ok((socket, _)) => Ok(Client { socket, next: 0 }),
            Err(HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
                Err(answer.status().as_u16())
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A client that has logged in to application 101.
    pub(crate) fn login(node: &Node, user: &str) -> Client {
        let mut client = Client::connect(node);
        let answer = client.request("login", json!({ "appID": 101, "userID": user }));
        assert_eq!(answer, json!({ "code": 200, "codeMsg": "Success", "data": null }));
        client
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.socket.send(Message::text(text)).unwrap();
    }

    pub(crate) fn text(&mut self) -> String {
        match self.socket.read().unwrap() {
            Message::Text(text) => text.to_string(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn json(&mut self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    /// What was sent before, until nothing more comes. For what must not come.
    pub(crate) fn received(&mut self) -> Vec<Value> {
        let mut received = Vec::new();
        // A worker answers what it has read before it sends what other threads have posted, in the same turn: all
        // of that comes before the second pong.
        for _ in 0..2 {
            let seq = self.send_request("ping", json!({}));
            loop {
                let message = self.json();
                if message["seq"] == seq && message["cmd"] == "ping" {
                    break;
                }
                received.push(message);
            }
        }
        received
    }

    fn send_request(&mut self, cmd: &str, data: Value) -> String {
        self.next += 1;
        let seq = format!("seq-{}", self.next);
        self.send(&json!({ "seq": seq, "cmd": cmd, "data": data }).to_string());
        seq
    }

    /// Sends a request; returns `response` of its answer, which has to come next.
    pub(crate) fn request(&mut self, cmd: &str, data: Value) -> Value {
        let seq = self.send_request(cmd, data);
        let answer = self.json();
        assert_eq!((&answer["seq"], &answer["cmd"]), (&json!(seq), &json!(cmd)), "{answer}");
        answer["response"].clone()
    }

    /// As [`Client::request`], where pushes may come before the answer.
    pub(crate) fn request_through(&mut self, cmd: &str) -> Value {
        let seq = self.send_request(cmd, json!({}));
        loop {
            let answer = self.json();
            if answer["seq"] == seq {
                return answer["response"].clone();
            }
        }
    }

    /// The code of the close frame that follows, whatever comes before it.
    pub(crate) fn closed(&mut self) -> u16 {
        loop {
            match self.socket.read() {
                Ok(Message::Close(frame)) => return frame.map_or(1005, |frame| frame.code.into()),
                Ok(_) => {}
                Err(tungstenite::Error::Io(error)) if error.kind() != ErrorKind::WouldBlock => {
                    return 1006;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn leave(mut self) {
        let _ = self.socket.close(None);
        while self.socket.read().is_ok() {}
    }
}

/// A message that is pushed.
pub(crate) fn push(seq: &str, cmd: &str, text: &str, from: &str) -> Value {
    let data = json!({ "target": "", "type": "text", "msg": text, "from": from });
    json!({ "seq": seq, "cmd": cmd, "response": { "code": 200, "codeMsg": "Ok", "data": data } })
}
