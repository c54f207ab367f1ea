//! Sends every message back: `cargo run --release -p standfast --example echo_server -- 127.0.0.1:8080`.

use standfast::{Accept, Handler, Message, Response, Server, Socket, UpgradeRequest};

#[derive(Clone)]
struct Echo;

impl Handler for Echo {
    type Data = ();

    fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
        Ok(Accept::default())
    }

    fn message(&mut self, socket: &mut Socket<'_>, _: &mut (), message: Message<'_>) {
        socket.send(message);
    }
}

fn main() -> Result<(), standfast::Error> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let server = Server::bind(address)?.route("/echo", Echo);
    println!("ws://{}/echo", server.address());
    server.run()
}
