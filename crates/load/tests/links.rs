//! Users that send to several hosts: how many connections they open and close, by what the servers
//! accepted.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]
#![allow(dead_code, reason = "the server has more behaviours than these tests use")]

mod http_server;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_server::start;
use load::requests::{
    Answer, Failure, Http1, HttpRequest, Part, Request, Requests, Script, Step, drive_requests,
};
use load::{Endpoint, Outcome};

/// Sends each request in turn, `left` in total per user.
struct Rounds {
    requests: Vec<Request>,
    sent: Vec<usize>,
    most: usize,
}

impl Script for Rounds {
    fn next(&mut self, user: u32, _: u64) -> Step {
        if self.sent[user as usize] == self.most { Step::End } else { Step::Send }
    }

    fn request(&mut self, user: u32) -> &Request {
        let at = self.sent[user as usize] % self.requests.len();
        &self.requests[at]
    }

    fn answered(&mut self, user: u32, _: &Answer<'_>) -> Option<Failure> {
        self.sent[user as usize] += 1;
        None
    }
}

/// `users` send `most` requests each, to the ports in turn.
fn rounds(ports: &[u16], users: u64, most: usize, change: impl Fn(&mut Requests)) -> Outcome {
    let endpoint = |port| Endpoint::parse_web(&format!("http://127.0.0.1:{port}/")).unwrap();
    let endpoints = ports.iter().map(endpoint).collect();
    let mut config = Requests {
        duration: None,
        requests: Some(1 << 40),
        timeout: Duration::from_secs(10),
        ..Requests::new(endpoints, users)
    };
    change(&mut config);
    let get = |at| {
        let (method, target, host) = ("GET", "/ok", "127.0.0.1");
        Request::http(
            at as u8,
            &HttpRequest { method, target, host, headers: &[], body: b"", close: false },
        )
    };
    let requests: Vec<Request> = (0..ports.len()).map(get).collect();
    let script = move |part: Part| Rounds {
        requests: requests.clone(),
        sent: vec![0; part.users as usize],
        most,
    };
    let wait = |time| {
        std::thread::sleep(time);
        false
    };
    drive_requests(&config, Http1::new, script, |_| {}, wait).unwrap()
}

#[test]
fn a_user_keeps_a_connection_to_each_host() {
    let [(one, log_one), (other, log_other)] = [start(), start()];
    let outcome = rounds(&[one, other], 5, 40, |_| {});
    assert_eq!((outcome.requests.unwrap().ok, outcome.error_count()), (200, 0), "{outcome}");
    assert_eq!((log_one.received(), log_other.received()), (100, 100));
    assert_eq!((log_one.accepted(), log_other.accepted()), (5, 5), "{outcome}");
    assert_eq!(outcome.connections.opened, Some(10), "{outcome}");
}

#[test]
fn beyond_the_limit_of_hosts_the_connection_used_longest_ago_is_closed() {
    let logs = [start(), start(), start()];
    let ports: Vec<u16> = logs.iter().map(|(port, _)| *port).collect();
    let accepted = || logs.iter().map(|(_, log)| log.accepted()).collect::<Vec<_>>();
    // In turn, the host that is needed is always the one that was given up.
    let outcome = rounds(&ports, 4, 30, |config| config.hosts = 2);
    assert_eq!((outcome.requests.unwrap().ok, outcome.error_count()), (120, 0), "{outcome}");
    assert_eq!(accepted(), [40, 40, 40], "{outcome}");
    let of = &outcome.connections;
    assert_eq!((of.opened, of.closed_surplus), (Some(120), Some(120 - 2 * 4)), "{outcome}");
    let outcome = rounds(&ports, 4, 30, |config| config.hosts = 3);
    assert_eq!(accepted(), [44, 44, 44], "{outcome}");
    assert_eq!(outcome.connections.closed_surplus, Some(0), "{outcome}");
}

#[test]
fn a_kept_connection_that_its_server_closes_or_writes_to_is_replaced() {
    let (port, log) = start();
    for ending in ["close", "talk"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = listener.local_addr().unwrap().port();
        let accepted = Arc::new(AtomicU64::new(0));
        let own = Arc::clone(&accepted);
        let before = log.received();
        let book = Arc::clone(&log);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                own.fetch_add(1, Ordering::SeqCst);
                let book = Arc::clone(&book);
                std::thread::spawn(move || {
                    let _ = stream.read(&mut [0; 4096]);
                    let answered = book.received();
                    // The user then goes on with the other host, which stalls.
                    let stalled = book.stall.lock().unwrap();
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                    while book.received() == answered {
                        std::thread::yield_now();
                    }
                    match ending {
                        "close" => stream.shutdown(std::net::Shutdown::Write).unwrap(),
                        _ => stream.write_all(b"HTTP/1.1 200 OK\r\n").unwrap(),
                    }
                    // It is over for both before the other host answers.
                    let _ = stream.read(&mut [0; 4096]);
                    drop(stalled);
                });
            }
        });
        let outcome = rounds(&[other, port], 1, 10, |_| {});
        assert_eq!((outcome.requests.unwrap().ok, outcome.error_count()), (10, 0), "{outcome}");
        let of = &outcome.connections;
        assert_eq!((accepted.load(Ordering::SeqCst), log.received() - before), (5, 5));
        let ended = (of.closed_idle, of.unasked);
        let expected = if ending == "close" { (Some(5), Some(0)) } else { (Some(0), Some(5)) };
        assert_eq!((ended, of.opened), (expected, Some(6)), "{outcome}");
    }
}
