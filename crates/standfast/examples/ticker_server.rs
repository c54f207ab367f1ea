//! Publishes numbers to all sockets, at an interval in milliseconds, answers from another thread, and stops the
//! server when standard input ends: `cargo run --release -p standfast --example ticker_server -- 127.0.0.1:8080 1000`.

use std::io;
use std::time::Duration;

use standfast::{
    Accept, Context, Handler, Message, Remote, Response, Server, Socket, UpgradeRequest,
};

#[derive(Clone)]
struct Listener;

impl Handler for Listener {
    type Data = ();

    fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
        Ok(Accept::default())
    }

    fn open(&mut self, socket: &mut Socket<'_>, _: &mut ()) {
        socket.subscribe("ticks");
    }

    /// A socket that sends `later` gets an answer from another thread.
    fn message(&mut self, socket: &mut Socket<'_>, _: &mut (), message: Message<'_>) {
        if message == Message::Text("later") {
            let (remote, id) = (socket.remote().clone(), socket.id());
            std::thread::spawn(move || answer(&remote, id));
        }
    }

    fn stopping(&mut self, socket: &mut Socket<'_>, _: &mut ()) {
        socket.send("the server stops");
    }
}

fn answer(remote: &Remote, id: standfast::SocketId) {
    let receipt = match remote.send_with_receipt(id, "an answer from another thread") {
        Ok(receipt) => receipt,
        Err(full) => return eprintln!("{id}: {full}"),
    };
    match receipt.wait() {
        Ok(sent) => eprintln!("{id}: {sent:?}"),
        Err(gone) => eprintln!("{id}: {gone}"),
    }
}

fn main() -> Result<(), standfast::Error> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:8080".into());
    let interval = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let mut number = 0_u64;
    let tick = move |context: &mut Context<'_>| {
        number += 1;
        if let Err(refused) = context.publish("ticks", &number.to_string()) {
            eprintln!("tick {number}: {refused}");
        }
    };
    let server = Server::bind(address)?.route("/ticks", Listener);
    let server = server.every(Duration::from_millis(interval), tick).start()?;
    println!("ws://{}/ticks", server.address());
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    server.stop(Duration::from_millis(100))
}
