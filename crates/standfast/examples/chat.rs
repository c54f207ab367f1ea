//! A chat with rooms, and its page: `cargo run --release -p standfast --example chat -- 127.0.0.1:8080`.

use standfast::{Accept, Close, Handler, Message, Response, Server, Socket, UpgradeRequest};

const PAGE: &str = include_str!("chat.html");
const NAME_BYTES: usize = 32;

#[derive(Clone)]
struct Chat;

/// What is kept for each socket.
struct Member {
    name: String,
    room: String,
}

impl Handler for Chat {
    type Data = Member;

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<Member>, Response> {
        let room = request.param("room").ok_or_else(|| Response::text(400, "which room?\n"))?;
        match request.query("name").filter(|name| (1..=NAME_BYTES).contains(&name.len())) {
            Some(name) => Ok(Accept::new(Member { name: name.into(), room: room.into() })),
            None => Err(Response::text(400, "expected ?name=, at most 32 bytes\n")),
        }
    }

    fn open(&mut self, socket: &mut Socket<'_>, member: &mut Member) {
        socket.subscribe(&member.room);
        say(socket, &member.room, &format!("* {} is here", member.name));
    }

    fn message(&mut self, socket: &mut Socket<'_>, member: &mut Member, message: Message<'_>) {
        match message {
            Message::Text(text) => say(socket, &member.room, &format!("{}: {text}", member.name)),
            Message::Binary(_) => drop(socket.send("* text only")),
        }
    }

    fn close(&mut self, socket: &mut Socket<'_>, member: Member, _: &Close<'_>) {
        say(socket, &member.room, &format!("* {} has left", member.name));
    }
}

/// Sends a line to everyone in a room.
fn say(socket: &mut Socket<'_>, room: &str, line: &str) {
    if let Err(refused) = socket.publish(room, line) {
        socket.send(&format!("* not sent: {refused}"));
    }
}

fn main() -> Result<(), standfast::Error> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let server =
        Server::bind(address)?.route("/rooms/{room}", Chat).get("/", |_| Response::html(PAGE));
    println!("http://{}/", server.address());
    server.run()
}
