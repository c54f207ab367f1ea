//! Timers of single sockets.

use std::time::{Duration, Instant};

use standfast::{Accept, Handler, Message, Response, Server, Socket, UpgradeRequest};

use crate::client::Client;

const SHORT: Duration = Duration::from_millis(20);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

#[derive(Clone)]
struct Timed;

impl Handler for Timed {
    type Data = u32;

    fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<u32>, Response> {
        Ok(Accept::default())
    }

    fn message(&mut self, socket: &mut Socket<'_>, count: &mut u32, message: Message<'_>) {
        *count = 0;
        match message.as_text() {
            Some("short") => socket.set_timer(SHORT),
            Some("long") => socket.set_timer(LONG),
            Some("replace") => {
                socket.set_timer(LONG);
                socket.set_timer(SHORT);
            }
            Some("clear") => {
                socket.set_timer(SHORT);
                let cleared = [socket.clear_timer(), socket.clear_timer()];
                socket.send(&format!("{cleared:?}"));
            }
            _ => drop(socket.send("pong")),
        }
    }

    fn timer(&mut self, socket: &mut Socket<'_>, count: &mut u32) {
        *count += 1;
        socket.send(&format!("timer {count}"));
        if *count < 3 {
            socket.set_timer(SHORT);
        }
    }
}

#[test]
fn a_timer_is_called_once_after_its_time_and_can_be_set_again() {
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", Timed).workers(1);
    let server = server.start().unwrap();
    let mut client = Client::open(server.address(), "/");
    let mut other = Client::open(server.address(), "/");
    other.send("long");
    for how in ["short", "replace"] {
        let began = Instant::now();
        client.send(how);
        assert_eq!(client.text(), "timer 1");
        assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
        assert_eq!([client.text(), client.text()], ["timer 2", "timer 3"]);
    }
    client.send("clear");
    assert_eq!(client.text(), "[true, false]");
    // Its turns pass the time of the one that was removed.
    other.send("short");
    assert_eq!([other.text(), other.text(), other.text()], ["timer 1", "timer 2", "timer 3"]);
    client.send("ping");
    assert_eq!(client.text(), "pong");
    // A timer ends with its socket.
    client.send("long");
    drop((client, other));
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_hundred_timers_that_are_due_together_are_all_called() {
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", Timed).workers(2);
    let server = server.start().unwrap();
    let mut clients: Vec<_> = (0..100).map(|_| Client::open(server.address(), "/")).collect();
    clients.iter_mut().for_each(|client| client.send("short"));
    for client in &mut clients {
        assert_eq!([client.text(), client.text()], ["timer 1", "timer 2"]);
    }
    drop(clients);
    server.stop(Duration::ZERO).unwrap();
}
