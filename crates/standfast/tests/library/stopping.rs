//! How servers end.

use std::process::Command;
use std::time::Duration;

use standfast::{Error, Limits, Server};

use crate::client::{Client, Noted, missing, next};

#[test]
fn a_server_that_stops_says_goodbye_to_every_socket() {
    let (handler, notes) = Noted::new(|_, _, _| {});
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).workers(3);
    let server = server.and_bind("127.0.0.1:0").unwrap().start().unwrap();
    let addresses = server.addresses().to_vec();
    assert!(addresses.len() == 2 && addresses[0] != addresses[1]);
    let mut clients: Vec<_> =
        (0..20).map(|number| Client::open(addresses[number % 2], "/")).collect();
    let remote = server.remote().clone();
    let ended = std::thread::spawn(move || server.wait());
    remote.stop(Duration::from_millis(50));
    for client in &mut clients {
        assert_eq!(client.text(), "goodbye");
        assert_eq!(client.closed().0, 1001);
    }
    drop(clients);
    ended.join().unwrap().unwrap();
    let closed = notes.iter().filter(|note| note == "close draining 0 \"\" after 0").count();
    assert_eq!(closed, 20, "{:?}", remote.totals());
    assert!(std::net::TcpStream::connect(addresses[0]).is_err());
}

#[test]
fn a_handler_that_panics_ends_the_server_with_an_error() {
    let (handler, notes) = Noted::new(|_, _, _| panic!("as the test wants"));
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).workers(2);
    let server = server.start().unwrap();
    let mut client = Client::open(server.address(), "/");
    assert!(next(&notes).starts_with("open "));
    client.send("x");
    let error = server.wait().unwrap_err();
    assert!(matches!(error, Error::Failed(_)), "{error}");
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn the_length_of_accept_queues_is_a_limit() {
    if Command::new("ss").arg("-V").output().is_err() {
        return missing("ss (iproute2) is not installed");
    }
    let (handler, _) = Noted::new(|_, _, _| {});
    let limits = Limits { backlog: 7, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).workers(3);
    let server = server.limits(limits).start().unwrap();
    let port = format!("sport = :{}", server.address().port());
    let listeners = Command::new("ss").args(["-ltnH", &port]).output().unwrap();
    let listeners = String::from_utf8(listeners.stdout).unwrap();
    // State, what waits, and the length.
    let lengths = listeners.lines().map(|line| line.split_whitespace().nth(2).unwrap());
    assert_eq!(lengths.collect::<Vec<_>>(), ["7"; 3], "{listeners}");
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_server_that_is_not_started_leaves_its_port() {
    let server = Server::bind("127.0.0.1:0").unwrap();
    let address = server.address();
    drop(server);
    drop(Server::bind(address).unwrap());
}
