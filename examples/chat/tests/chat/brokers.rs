//! A redis-server or nats-server on a free port, in a folder of its own.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::client::{Node, eventually};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Redis,
    Nats,
}

pub(crate) struct Broker {
    child: Child,
    kind: Kind,
    port: u16,
    folder: PathBuf,
}

impl Broker {
    pub(crate) fn start(kind: Kind) -> Broker {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let name = format!("standfast-chat-{}-{port}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let text = port.to_string();
        let (program, args) = match kind {
            Kind::Redis => {
                ("redis-server", ["--bind", "127.0.0.1", "--save", "", "--port", &text].to_vec())
            }
            Kind::Nats => ("nats-server", ["-a", "127.0.0.1", "-p", &text].to_vec()),
        };
        let mut command = Command::new(program);
        command.args(args).current_dir(&folder).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        eventually("the broker listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Broker { child, kind, port, folder }
    }

    /// A node of the chat with this prefix.
    pub(crate) fn node(&self, prefix: &str, args: &[&str]) -> Node {
        let (flag, scheme) = match self.kind {
            Kind::Redis => ("--redis", "redis"),
            Kind::Nats => ("--nats", "nats"),
        };
        let url = format!("{scheme}://127.0.0.1:{}", self.port);
        Node::start(&[&[flag, &url, "--prefix", prefix], args].concat())
    }

    /// The number of channels of Redis that have subscribers.
    pub(crate) fn channels(&self) -> usize {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"PUBSUB CHANNELS\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim_end().strip_prefix('*').and_then(|length| length.parse().ok()).unwrap()
    }

    /// Three nodes that know each other.
    pub(crate) fn nodes(&self, prefix: &str, args: &[&str]) -> Vec<Node> {
        let nodes: Vec<Node> = (0..3).map(|_| self.node(prefix, args)).collect();
        for node in &nodes {
            eventually("nodes know each other", || node.others() == 2);
        }
        nodes
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
