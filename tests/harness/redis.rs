//! Debian's redis-server on loopback, and [`Relay`], a TCP relay in front of it that holds or swallows bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use super::executable::Running;
use super::{Deserted, Scratch, eventually, skip};

const PROGRAM: &str = "/usr/bin/redis-server";

/// A server without a file, which can be killed and started again at its address.
pub(crate) struct Redis {
    place: Deserted,
    arguments: Vec<String>,
    running: Option<Running>,
    /// The configuration of a sentinel, which it writes to.
    _config: Option<Scratch>,
}

impl Redis {
    /// A server with these flags; `None` if this machine has none, and the test is recorded as skipped.
    pub(crate) fn start(flags: &[&str]) -> Option<Self> {
        if !std::path::Path::new(PROGRAM).exists() {
            skip::missing("redis-server: try cargo xtask test --install");
            return None;
        }
        let place = Deserted::port();
        let port = place.address.port().to_string();
        let fixed = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"];
        Some(Redis::run(place, &[&fixed[..], flags].concat(), None))
    }

    /// A sentinel that alone decides about the master named `live`.
    pub(crate) fn sentinel_of(master: &Redis) -> Self {
        let (place, of) = (Deserted::port(), master.address());
        let text = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor live {} {} 1\n\
             sentinel down-after-milliseconds live 500\nsentinel failover-timeout live 3000\n",
            place.address.port(),
            of.ip(),
            of.port()
        );
        let config = Scratch::new("sentinel.conf", &text);
        let path = config.path().to_owned();
        Redis::run(place, &[&path, "--sentinel"], Some(config))
    }

    fn run(place: Deserted, arguments: &[&str], config: Option<Scratch>) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut redis = Redis { place, arguments, running: None, _config: config };
        redis.restart();
        redis
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.place.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// Starts it again, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        let mut command = Command::new(PROGRAM);
        command.args(&self.arguments).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.running = Some(Running(command.spawn().expect("redis-server starts")));
        eventually("redis-server accepts connections", || {
            TcpStream::connect(self.address()).is_ok()
        });
    }

    pub(crate) fn runs(&self) -> bool {
        self.running.is_some()
    }

    fn send(&self, command: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address()).expect("redis-server accepts");
        write!(stream, "{command}\r\n").expect("redis-server reads");
        BufReader::new(stream)
    }

    /// Executes an inline command; returns the first line of the answer.
    pub(crate) fn ask(&self, command: &str) -> String {
        line(&mut self.send(command))
    }

    /// Executes an inline command that is answered with a string.
    pub(crate) fn text(&self, command: &str) -> String {
        string(&mut self.send(command))
    }

    /// Executes an inline command that is answered with strings.
    pub(crate) fn list(&self, command: &str) -> Vec<String> {
        let mut answer = self.send(command);
        let many = line(&mut answer).trim_start_matches('*').parse().expect("an array");
        (0..many).map(|_: usize| string(&mut answer)).collect()
    }

    /// A figure of INFO.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let info = self.text("INFO");
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {name}")).parse().expect("a number")
    }
}

fn line(answer: &mut impl BufRead) -> String {
    let mut line = String::new();
    let _ = answer.read_line(&mut line);
    line.trim_end().to_owned()
}

fn string(answer: &mut impl BufRead) -> String {
    let head = line(answer);
    let Some(Ok(length)) = head.strip_prefix('$').map(str::parse::<usize>) else { return head };
    let mut text = vec![0; length + 2];
    answer.read_exact(&mut text).expect("a whole string");
    String::from_utf8_lossy(&text[..length]).into_owned()
}

/// What a relay does with bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Passage {
    /// They are passed on.
    Open,
    /// They wait.
    Held,
    /// They are read and dropped, as by a network that has lost the way.
    Swallowed,
}

/// A relay to one address.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    gate: Arc<Gate>,
}

struct Gate {
    passage: Mutex<Passage>,
    changed: Condvar,
}

impl Relay {
    pub(crate) fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Arc::new(Gate { passage: Mutex::new(Passage::Open), changed: Condvar::new() });
        let shared = Arc::clone(&gate);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(to) else { continue };
                let both = [(&client, &server), (&server, &client)];
                for (from, into) in both.map(|(a, b)| (a.try_clone(), b.try_clone())) {
                    let (Ok(from), Ok(into)) = (from, into) else { continue };
                    let gate = Arc::clone(&shared);
                    thread::spawn(move || gate.copy(from, into));
                }
            }
        });
        Relay { address, gate }
    }

    pub(crate) fn set(&self, passage: Passage) {
        *self.gate.passage.lock().unwrap() = passage;
        self.gate.changed.notify_all();
    }
}

impl Gate {
    fn copy(&self, mut from: TcpStream, mut into: TcpStream) {
        let mut bytes = [0; 16 * 1024];
        // A connection that has lost bytes carries none any more.
        let mut lost = false;
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            let passage = self.passage.lock().unwrap();
            let held = |passage: &mut Passage| *passage == Passage::Held;
            lost |= *self.changed.wait_while(passage, held).unwrap() == Passage::Swallowed;
            if !lost && into.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both));
    }
}
