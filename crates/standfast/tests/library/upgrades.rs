//! Who is let in: at once, later, never.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use standfast::{
    Accept, Decision, Handler, InvalidHeader, Limits, Message, Response, Server, Socket,
    UpgradeRequest,
};

use crate::client::{Client, PATIENCE};

#[derive(Clone)]
struct Door {
    waiting: Sender<Decision<String>>,
}

impl Handler for Door {
    type Data = String;

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<String>, Response> {
        match request.param("how").as_deref() {
            Some("later") => {
                let (decision, later) = request.later();
                self.waiting.send(decision).map_err(|_| Response::new(503))?;
                Ok(later)
            }
            Some("protocol") if request.offers("chat.v2") => {
                Ok(Accept::with_protocol("v2".into(), "chat.v2"))
            }
            Some("header") => {
                let value = request.query("value").unwrap_or_default();
                let accept = Accept::with_protocol("h".into(), "chat.v2");
                Ok(accept.header("Set-Cookie", &value)?.header("X-Node", "eu 1")?)
            }
            Some("protocol") => Err(Response::text(400, "expected chat.v2\n")),
            Some(_) => {
                let name = request.query("name").ok_or_else(|| Response::new(401))?;
                Ok(Accept::new(name.into()))
            }
            None => Err(Response::new(400)),
        }
    }

    fn open(&mut self, socket: &mut Socket<'_>, name: &mut String) {
        socket.send(&format!("hello {name}"));
    }

    fn message(&mut self, socket: &mut Socket<'_>, name: &mut String, _: Message<'_>) {
        socket.send(&*name);
    }
}

fn door() -> (standfast::Running, std::sync::mpsc::Receiver<Decision<String>>) {
    let (waiting, decisions) = channel();
    let limits = Limits { handshake_timeout: Duration::from_secs(30), ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").unwrap().limits(limits);
    (server.route("/door/{how}", Door { waiting }).start().unwrap(), decisions)
}

#[test]
fn clients_are_let_in_or_refused_by_their_request() {
    let (server, _decisions) = door();
    let open = |path, headers: &[_]| Client::try_open(server.address(), path, headers);
    let (mut client, _) = open("/door/name?name=Ada%20L", &[]).unwrap();
    assert_eq!(client.text(), "hello Ada L");
    client.send("x");
    assert_eq!(client.text(), "Ada L");
    assert_eq!(open("/door/name", &[]).err(), Some(401));
    assert_eq!(open("/door/name/further", &[]).err(), Some(404));
    assert_eq!(open("/door/%ff", &[]).err(), Some(400));
    let offers = [("sec-websocket-protocol", "chat.v1, chat.v2")];
    let (mut client, response) = open("/door/protocol", &offers).unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat.v2");
    assert_eq!(client.text(), "hello v2");
    assert_eq!(open("/door/protocol", &[("sec-websocket-protocol", "x")]).err(), Some(400));
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn the_answer_that_opens_a_socket_has_headers_of_the_handler() {
    let (server, decisions) = door();
    let open = |path, headers: &[_]| Client::try_open(server.address(), path, headers);
    let offers = [("sec-websocket-protocol", "chat.v2")];
    let (mut client, response) = open("/door/header?value=a=1;%20Path=/", &offers).unwrap();
    let header = |name| response.headers()[name].to_str().unwrap();
    assert_eq!([header("set-cookie"), header("x-node")], ["a=1; Path=/", "eu 1"]);
    assert_eq!(header("sec-websocket-protocol"), "chat.v2");
    assert_eq!(client.text(), "hello h");
    drop(client);
    // A line break would add a header of the client's choice.
    assert_eq!(open("/door/header?value=a%0d%0aX-Evil:%201", &offers).err(), Some(500));
    let address = server.address();
    let later = std::thread::spawn(move || Client::try_open(address, "/door/later", &[]));
    let mut decision = decisions.recv_timeout(PATIENCE).unwrap();
    assert_eq!(decision.header("Upgrade", "x"), Err(InvalidHeader::Reserved));
    decision.header("X-Node", "eu 2").unwrap();
    decision.accept("later".into());
    let (client, response) = later.join().unwrap().unwrap();
    assert_eq!(response.headers()["x-node"], "eu 2");
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn another_thread_decides_later() {
    let (server, decisions) = door();
    let address = server.address();
    let client = || std::thread::spawn(move || Client::try_open(address, "/door/later", &[]));
    let decide = || decisions.recv_timeout(PATIENCE).unwrap();
    let accepted = client();
    let decision = decide();
    assert!(!decision.is_pointless());
    let id = decision.id();
    decision.accept("Bob".into());
    let (mut bob, _) = accepted.join().unwrap().unwrap();
    assert_eq!(bob.text(), "hello Bob");
    server.remote().send(id, "by its id").unwrap();
    assert_eq!(bob.text(), "by its id");
    let refused = client();
    decide().refuse(Response::new(403));
    assert_eq!(refused.join().unwrap().err(), Some(403));
    let forgotten = client();
    drop(decide());
    assert_eq!(forgotten.join().unwrap().err(), Some(500));
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_decision_about_a_client_that_has_left_is_pointless() {
    let (server, decisions) = door();
    let stream = std::net::TcpStream::connect(server.address()).unwrap();
    let head = "GET /door/later HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    std::io::Write::write_all(&mut &stream, head.as_bytes()).unwrap();
    let decision = decisions.recv_timeout(PATIENCE).unwrap();
    drop(stream);
    while !decision.is_pointless() {
        std::thread::yield_now();
    }
    decision.accept("nobody".into());
    let (mut client, _) = Client::try_open(server.address(), "/door/name?name=next", &[]).unwrap();
    assert_eq!(client.text(), "hello next");
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}
