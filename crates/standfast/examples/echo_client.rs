//! Sends a text to an echo server so many times and waits for each answer, on so many sockets:
//! `cargo run --release -p standfast --example echo_client -- ws://127.0.0.1:8080/echo 100000 1`.

use std::sync::atomic::{AtomicU64, Ordering};

use standfast::{ClientHandler, ClientSocket, Clients, CloseCode, Connect, Limits, Lost, Message};

const TEXT: &str = "twenty bytes of text";

/// One socket of several.
struct Sender(u64);

impl ClientHandler for Sender {
    fn open(&mut self, socket: &mut ClientSocket<'_>, _protocol: Option<&str>) {
        socket.send(TEXT);
    }

    fn message(&mut self, socket: &mut ClientSocket<'_>, _message: Message<'_>) {
        self.0 -= 1;
        match self.0 {
            0 => socket.close(CloseCode::NORMAL, ""),
            _ => drop(socket.send(TEXT)),
        }
    }

    fn close(&mut self, lost: &Lost) {
        if self.0 > 0 {
            eprintln!("{lost}");
        }
        if self.0 > 0 || DONE.fetch_sub(1, Ordering::Relaxed) == 1 {
            std::process::exit(i32::from(self.0 > 0));
        }
    }
}

static DONE: AtomicU64 = AtomicU64::new(0);

fn main() -> Result<(), standfast::ClientError> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or("ws://127.0.0.1:8080/echo".into());
    let mut number = |usual| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (messages, sockets): (u64, u64) = (number(1), number(1).max(1));
    if sockets == 1 {
        let mut client = standfast::connect(&url)?;
        for _ in 0..messages {
            client.send(TEXT)?;
            client.receive()?;
        }
        let end = client.close(CloseCode::NORMAL, "")?;
        println!("{messages} answers; {end}");
        return Ok(());
    }
    DONE.store(sockets, Ordering::Relaxed);
    let clients = Clients::start(Limits::default())?;
    let connect = Connect::to(&url);
    for _ in 0..sockets {
        clients.connect(&connect, Sender((messages / sockets).max(1)))?;
    }
    clients.wait()
}
