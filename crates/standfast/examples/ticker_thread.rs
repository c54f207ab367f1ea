//! A thread that publishes numbers to all sockets, at an interval in milliseconds, and stops the server
//! when standard input ends: `cargo run --release -p standfast --example ticker_thread -- 127.0.0.1:8080 1000`.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use standfast::{Accept, Handler, Message, Remote, Response, Server, Socket, UpgradeRequest};

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
    let server = Server::bind(address)?.route("/ticks", Listener).start()?;
    println!("ws://{}/ticks", server.address());
    let remote = server.remote().clone();
    let (stop, stopped) = channel::<()>();
    std::thread::spawn(move || {
        let mut number = 0u64;
        while stopped.recv_timeout(Duration::from_millis(interval))
            == Err(RecvTimeoutError::Timeout)
        {
            number += 1;
            if let Err(refused) = remote.publish("ticks", &number.to_string()) {
                eprintln!("tick {number}: {refused}");
            }
        }
    });
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    drop(stop);
    server.stop(Duration::from_millis(100))
}
