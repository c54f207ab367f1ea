//! Redis and NATS (Debian's packages) as child processes on ports of their own, which can be killed and
//! started again, and minimal clients of both.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};

use super::executable::Running;
use super::lowered::Namespace;
use super::{Deserted, PATIENCE, eventually, skip};

const REDIS: &str = "/usr/bin/redis-server";
const NATS: &str = "/usr/sbin/nats-server";

/// A server of one of both, which keeps nothing over a restart.
pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    running: Option<Running>,
    program: &'static str,
    args: Vec<String>,
    folder: PathBuf,
    /// Where it runs, unless where the test does.
    namespace: Option<Arc<Namespace>>,
    _port: Option<Deserted>,
}

impl Broker {
    /// Starts Redis with additional arguments; `None` if it is not installed, which fails under `CI`.
    pub(crate) fn redis(more: &[&str]) -> Option<Self> {
        let usual = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", "PORT"];
        Self::start(REDIS, &[&usual, more].concat())
    }

    /// Starts NATS with additional arguments; `None` if it is not installed, which fails under `CI`.
    pub(crate) fn nats(more: &[&str]) -> Option<Self> {
        Self::start(NATS, &[&["--addr", "127.0.0.1", "--port", "PORT"], more].concat())
    }

    /// Starts NATS in a namespace; `None` as above.
    pub(crate) fn nats_in(namespace: &Arc<Namespace>, address: SocketAddr) -> Option<Self> {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let args = ["--addr", &ip, "--port", &port].map(str::to_owned).to_vec();
        Self::new(NATS, address, args, Some(Arc::clone(namespace)), None)
    }

    fn start(program: &'static str, args: &[&str]) -> Option<Self> {
        let port = Deserted::port();
        let address = port.address;
        let number = address.port().to_string();
        let args = args.iter().map(|arg| if *arg == "PORT" { &number } else { *arg }.to_owned());
        Self::new(program, address, args.collect(), None, Some(port))
    }

    fn new(
        program: &'static str,
        address: SocketAddr,
        args: Vec<String>,
        namespace: Option<Arc<Namespace>>,
        port: Option<Deserted>,
    ) -> Option<Self> {
        if !PathBuf::from(program).is_file() {
            skip::missing(&format!("{program} is missing: try cargo xtask test --install"));
            return None;
        }
        let place = namespace.as_ref().map_or("", |namespace| namespace.name());
        let name = format!("broker-{}-{place}{}", std::process::id(), address.port());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder can be made");
        let mut broker =
            Broker { address, running: None, program, args, folder, namespace, _port: port };
        broker.restart();
        Some(broker)
    }

    /// Starts it again, empty, and waits until it accepts connections.
    pub(crate) fn restart(&mut self) {
        let mut command = Command::new(self.program);
        command.args(&self.args);
        if let Some(namespace) = &self.namespace {
            command = namespace.inside(&command);
        }
        command.current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = Running(command.spawn().expect("the broker starts"));
        eventually("the broker accepts connections", || {
            let ended = running.0.try_wait().expect("the child is ours");
            assert_eq!(ended, None, "the broker has ended");
            let connect = || TcpStream::connect(self.address).is_ok();
            self.namespace.as_ref().map_or_else(connect, |namespace| namespace.within(connect))
        });
        self.running = Some(running);
    }

    /// Kills it: its connections end.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    /// Removes what it has written; it does not run.
    pub(crate) fn empty(&self) {
        fs::remove_dir_all(&self.folder).expect("its folder can be removed");
        fs::create_dir_all(&self.folder).expect("a folder can be made");
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let running = self.running.as_ref().expect("it runs");
        let pid = i32::try_from(running.0.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child's pid is positive"), signal).expect("the child lives");
    }

    /// The URL, with this before the host.
    pub(crate) fn url(&self, credentials: &str) -> String {
        let scheme = if self.program == REDIS { "redis" } else { "nats" };
        format!("{scheme}://{credentials}{}", self.address)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.running = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// An answer of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(String),
    Error(String),
    Number(i64),
    Many(Vec<Reply>),
    Nil,
}

/// A connection to Redis.
pub(crate) struct RedisClient(BufReader<TcpStream>);

impl RedisClient {
    pub(crate) fn connect(broker: &Broker) -> Self {
        let stream = TcpStream::connect(broker.address).expect("Redis accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        RedisClient(BufReader::new(stream))
    }

    /// Sends a command and returns its answer.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Reply {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(text.as_bytes()).expect("Redis reads");
        self.reply()
    }

    /// The same for a command that answers with a number.
    pub(crate) fn number(&mut self, words: &[&str]) -> i64 {
        match self.ask(words) {
            Reply::Number(number) => number,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    fn reply(&mut self) -> Reply {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("Redis answers");
        let (kind, rest) = line.trim_end().split_at(1);
        let count = || rest.parse::<i64>().expect("a number");
        match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(count()),
            "$" | "*" if count() < 0 => Reply::Nil,
            "$" => {
                let mut bytes = vec![0; count() as usize + 2];
                self.0.read_exact(&mut bytes).expect("Redis sends all of it");
                bytes.truncate(bytes.len() - 2);
                Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            "*" => Reply::Many((0..count()).map(|_| self.reply()).collect()),
            other => panic!("an answer of kind {other:?}"),
        }
    }
}

/// A connection to NATS.
pub(crate) struct NatsClient(BufReader<TcpStream>);

impl NatsClient {
    /// Connects with a user and a password, each unless empty.
    pub(crate) fn connect(broker: &Broker, user: &str, password: &str) -> Self {
        let stream = TcpStream::connect(broker.address).expect("NATS accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let mut client = NatsClient(BufReader::new(stream));
        client.line();
        let options = format!(r#"{{"verbose":false,"user":"{user}","pass":"{password}"}}"#);
        client.send(&format!("CONNECT {options}\r\n"));
        client
    }

    /// Publishes, and waits until the server has processed it.
    pub(crate) fn publish(&mut self, subject: &str, body: &str) {
        self.send(&format!("PUB {subject} {}\r\n{body}\r\nPING\r\n", body.len()));
        loop {
            match self.line().as_str() {
                "PONG" => return,
                "PING" => self.send("PONG\r\n"),
                line => assert!(!line.starts_with("-ERR"), "{line}"),
            }
        }
    }

    /// Subscribes to a subject, and waits until the server has processed it.
    pub(crate) fn subscribe(&mut self, subject: &str) {
        self.send(&format!("SUB {subject} 1\r\nPING\r\n"));
        while self.line() != "PONG" {}
    }

    /// The next message of a subscription: subject and body.
    pub(crate) fn message(&mut self) -> (String, String) {
        loop {
            let line = self.line();
            let words: Vec<_> = line.split(' ').collect();
            match words[0] {
                "MSG" => {
                    let mut body = vec![0; words[words.len() - 1].parse::<usize>().unwrap() + 2];
                    self.0.read_exact(&mut body).expect("NATS sends all of it");
                    body.truncate(body.len() - 2);
                    return (words[1].to_owned(), String::from_utf8(body).unwrap());
                }
                "PING" => self.send("PONG\r\n"),
                other => panic!("{other:?}"),
            }
        }
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).expect("NATS reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("NATS answers");
        line.trim_end().to_owned()
    }
}
