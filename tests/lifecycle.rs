//! How `serve` starts, reloads and ends: configuration, signals, exit codes.

use std::net::{TcpListener, TcpStream};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::executable::{self, Finished};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::{Scratch, eventually, http};

#[test]
fn sigterm_closes_every_client_with_1001_and_exits_with_0() {
    let mut server = Server::start(&["--drain", "1s"]);
    let mut sockets: Vec<Socket> =
        (0..20).map(|_| Socket::open(server.listen, "/topics/x")).collect();
    server.signal(Signal::TERM);
    eventually("new connections are refused", || TcpStream::connect(server.listen).is_err());
    for socket in &mut sockets {
        assert_eq!(socket.close_code(), 1001);
        socket.send_frame(0x88, &1001_u16.to_be_bytes());
        assert!(socket.ends());
    }
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

#[test]
fn health_reports_draining_until_a_second_signal_exits() {
    let mut server = Server::start(&["--drain", "10m", "--workers", "1"]);
    let mut sockets: Vec<Socket> =
        (0..3_000).map(|_| Socket::open(server.listen, "/topics/x")).collect();
    assert_eq!(http::get(server.admin, "/health").status, 200);
    server.signal(Signal::TERM);
    eventually("health reports draining", || http::get(server.admin, "/health").status == 503);
    assert_eq!(http::get(server.admin, "/health").body.trim(), "draining");
    assert_eq!(http::get(server.admin, "/api/stats").json()["status"], "draining");
    // Half a minute for 3,000 connections: the last ones are still served.
    let last = sockets.last_mut().unwrap();
    assert_eq!(server.publish(&json!({"topic": "x", "data": "meanwhile"})).status, 200);
    assert_eq!(last.frame().map(|frame| frame.payload), Some(b"meanwhile".to_vec()));
    assert!(server.log().contains("over 30s; signal again to exit now"), "{}", server.log());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert!(server.log().contains("second signal: exiting now"), "{}", server.log());
}

/// Ten minutes are for many connections: a hundred a second are closed at least.
#[test]
fn one_client_does_not_take_the_whole_drain() {
    let upstream = Server::start(&["--drain", "10m"]);
    let address = upstream.listen.to_string();
    let proxy = Server::start_proxy(&["--upstream", &address, "--drain", "10m"]);
    for mut server in [proxy, upstream] {
        let mut socket = Socket::open(server.listen, "/echo");
        server.signal(Signal::INT);
        while socket.frame().is_some() {}
        drop(socket);
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    }
}

#[test]
fn a_client_that_never_answers_does_not_delay_the_exit() {
    let mut server = Server::start(&["--drain", "200ms"]);
    let _silent = Socket::open(server.listen, "/echo");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

#[test]
fn sighup_reloads_what_can_change_and_refuses_the_rest() {
    let config = Scratch::new("reload.toml", "[serve]\nmax_message = \"1KiB\"\nbacklog = 128\n");
    let server = Server::start(&["--config", config.path()]);
    let mut before = Socket::open(server.listen, "/echo");
    before.send_frame(TEXT, &[b'x'; 2048]);
    assert_eq!(before.close_code(), 1009);

    config.write("[serve]\nmax_message = \"1KiB\"\nbacklog = 256\n");
    server.signal(Signal::HUP);
    eventually("the key that needs a restart is named", || server.log().contains("backlog"));

    config.write("[serve]\nmax_message = \"4KiB\"\nbacklog = 128\n");
    server.signal(Signal::HUP);
    eventually("the new limit applies", || {
        let mut after = Socket::open(server.listen, "/echo");
        after.send_frame(TEXT, &[b'x'; 2048]);
        after.frame().is_some_and(|frame| frame.first == TEXT)
    });
    assert_eq!(http::get(server.listen, "/health").status, 200);
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let config = Scratch::new("order.toml", "[serve]\nmax_message = \"1KiB\"\n");
    let echoes = |server: &Server, length: usize| {
        let mut socket = Socket::open(server.listen, "/echo");
        socket.send_frame(TEXT, &vec![b'x'; length]);
        socket.frame().is_some_and(|frame| frame.first == TEXT)
    };
    let file = Server::start(&["--config", config.path()]);
    assert!(echoes(&file, 1024) && !echoes(&file, 1025));
    let env = [("STANDFAST_SERVE_MAX_MESSAGE", "2KiB")];
    let environment = Server::start_with(&["--config", config.path()], &env);
    assert!(echoes(&environment, 2048) && !echoes(&environment, 2049));
    let flags = ["--config", config.path(), "--max-message", "3KiB"];
    let flag = Server::start_with(&flags, &env);
    assert!(echoes(&flag, 3072) && !echoes(&flag, 3073));
}

#[test]
fn unusable_configuration_exits_with_2_and_the_reason() {
    let unknown = Scratch::new("unknown.toml", "[serve]\nmax_mesage = \"1KiB\"\n");
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().unwrap().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["no-such-command"], "no-such-command"),
        (&["serve", "--no-such-flag"], "--no-such-flag"),
        (&["serve", "--listen", "nowhere"], "nowhere"),
        (&["serve", "--max-message", "many"], "many"),
        (&["serve", "--config", "/does/not/exist.toml"], "/does/not/exist.toml"),
        (&["serve", "--config", unknown.path()], "max_message"),
        (&["serve", "--listen", &busy, "--admin", "127.0.0.1:0"], &busy),
        (&["serve", "--listen", "127.0.0.1:0", "--admin", &busy], &busy),
        (&["serve", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"], "--admin-key"),
        (&["load", "gopher://127.0.0.1/"], "gopher"),
    ];
    for (args, named) in cases {
        let Finished { code, stdout, stderr } = executable::run(args);
        assert_eq!(code, Some(2), "{args:?}\n{stdout}{stderr}");
        assert!(stderr.contains(named), "{args:?} does not name {named}:\n{stderr}");
        assert!(stdout.is_empty(), "{args:?} printed to stdout: {stdout}");
    }
}

#[test]
fn workers_that_cannot_hold_the_connections_are_refused_with_the_number_needed() {
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let impossible = ["--workers", "1", "--max-connections", "1000M"];
    let Finished { code, stderr, .. } = executable::run(&[&args[..], &impossible[..]].concat());
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("workers"), "{stderr}");
}
