//! Real servers on loopback, each in a directory of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use brokers::NatsServers;
use brokers::nats::NatsTransport;
use brokers::redis::{ClusterTransport, RedisTransport};

use crate::support::{eventually, random};

const REDIS: &str = "/usr/bin/redis-server";
const NATS: &str = "/usr/sbin/nats-server";

/// A server that is ended with its owner, and keeps its directory while it is started again.
pub(crate) struct RedisServer {
    pub(crate) port: u16,
    directory: PathBuf,
    flags: Vec<String>,
    running: Option<Child>,
}

impl RedisServer {
    /// A server with these flags; `None` if this machine has none.
    pub(crate) fn start(flags: &[&str]) -> Option<Self> {
        if !std::path::Path::new(REDIS).exists() {
            assert!(std::env::var_os("CI").is_none(), "{REDIS} is missing");
            eprintln!("skipped: {REDIS} is missing");
            return None;
        }
        let directory = std::env::temp_dir().join(format!("standfast-kept-{:016x}", random()));
        std::fs::create_dir_all(&directory).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut server = RedisServer { port, directory, flags, running: None };
        server.restart();
        Some(server)
    }

    /// Kills it and starts it again, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let port = self.port.to_string();
        let mut command = Command::new(REDIS);
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]);
        command.arg("--dir").arg(&self.directory).args(&self.flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.running = Some(command.spawn().unwrap());
        eventually("redis-server answers", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && !self.ask("PING").starts_with("-LOADING")
        });
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Executes an inline command; returns the first line of the answer.
    pub(crate) fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{command}\r\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The number of its process.
    pub(crate) fn run_id(&self) -> String {
        self.info("server", "run_id:")
    }

    /// Commands of scripts that were executed.
    pub(crate) fn evaluations(&self) -> u64 {
        let calls = self.info("commandstats", "cmdstat_evalsha:calls=");
        calls.split(',').next().unwrap().parse().unwrap()
    }

    fn info(&self, section: &str, field: &str) -> String {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        (&stream).write_all(format!("INFO {section}\r\n").as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix(field).map(str::to_owned)).unwrap()
    }

    pub(crate) fn transport(&self) -> RedisTransport {
        self.transport_as("")
    }

    /// Connects as `USER:PASSWORD@`.
    pub(crate) fn transport_as(&self, user: &str) -> RedisTransport {
        let url = format!("redis://{user}127.0.0.1:{}", self.port).parse().unwrap();
        RedisTransport { url, tls: None, sentinels: Vec::new() }
    }

    /// Closes all connections of nodes.
    pub(crate) fn cut(&self) {
        self.ask("CLIENT KILL TYPE pubsub SKIPME yes");
        self.ask("CLIENT KILL TYPE normal SKIPME yes");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Masters of a Redis Cluster, which share its slots.
pub(crate) struct RedisCluster(pub(crate) Vec<RedisServer>);

impl RedisCluster {
    pub(crate) fn start(masters: usize) -> Option<Self> {
        let mut servers = Vec::new();
        for at in 0..masters {
            let bus = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let bus = bus.to_string();
            let flags = ["--cluster-enabled", "yes", "--cluster-port", &bus];
            let server = RedisServer::start(&flags)?;
            let first = |at: usize| at * 16384 / masters;
            let slots = format!("{} {}", first(at), first(at + 1) - 1);
            assert_eq!(server.ask(&format!("CLUSTER ADDSLOTSRANGE {slots}")), "+OK");
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", server.port);
            servers.push((server, meet));
        }
        for (_, meet) in &servers[1..] {
            assert_eq!(servers[0].0.ask(meet), "+OK");
        }
        let cluster = RedisCluster(servers.into_iter().map(|(server, _)| server).collect());
        for server in &cluster.0 {
            // Without its slot or with a cluster that is not complete the answer is another error or none.
            eventually("the cluster has all slots", || {
                let refused = server.ask("GET a").starts_with("-CLUSTERDOWN");
                !refused && server.ask("CLUSTER SLOTS") == format!("*{masters}")
            });
        }
        Some(cluster)
    }

    /// The whole cluster as one part.
    pub(crate) fn transport(&self) -> ClusterTransport {
        self.transport_as("")
    }

    /// Connects as `USER:PASSWORD@`.
    pub(crate) fn transport_as(&self, user: &str) -> ClusterTransport {
        ClusterTransport::new(self.0.iter().map(|server| server.transport_as(user)).collect())
    }
}

/// As [`RedisServer`]. Without a configuration it has JetStream, with files in its directory.
pub(crate) struct NatsServer {
    pub(crate) port: u16,
    directory: PathBuf,
    flags: Vec<String>,
    running: Option<Child>,
}

impl NatsServer {
    /// A server with JetStream; `None` if this machine has none.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&["--jetstream", "--store_dir", "."], "")
    }

    /// A server with these flags and this configuration.
    pub(crate) fn start_with(flags: &[&str], config: &str) -> Option<Self> {
        if !std::path::Path::new(NATS).exists() {
            assert!(std::env::var_os("CI").is_none(), "{NATS} is missing");
            eprintln!("skipped: {NATS} is missing");
            return None;
        }
        let directory = std::env::temp_dir().join(format!("standfast-kept-{:016x}", random()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("nats.conf"), config).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut server = NatsServer { port, directory, flags, running: None };
        server.restart();
        Some(server)
    }

    /// Kills it and starts it again, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let mut command = Command::new(NATS);
        command.args(["--addr", "127.0.0.1", "--port", &self.port.to_string(), "-c", "nats.conf"]);
        command.args(&self.flags).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.running = Some(command.spawn().unwrap());
        eventually("nats-server answers", || self.greeting().is_some());
    }

    fn greeting(&self) -> Option<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        line.starts_with("INFO ").then_some(line)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it, removes what it has kept, and starts it again.
    pub(crate) fn empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.directory.join("jetstream")).unwrap();
        self.restart();
    }

    /// The answer to a request.
    pub(crate) fn ask(&self, subject: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        write!(stream, "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\n").unwrap();
        write!(stream, "PUB {subject} answer {length}\r\n{body}\r\n").unwrap();
        let lines = BufReader::new(stream).lines();
        let mut lines = lines.map_while(Result::ok).skip_while(|line| !line.starts_with("MSG "));
        lines.nth(1).unwrap()
    }

    pub(crate) fn transport(&self) -> NatsTransport {
        self.transport_as("")
    }

    /// Connects as `USER:PASSWORD@`.
    pub(crate) fn transport_as(&self, user: &str) -> NatsTransport {
        let url = format!("nats://{user}127.0.0.1:{}", self.port).parse().unwrap();
        NatsTransport { servers: NatsServers { urls: vec![url], credentials: None }, tls: None }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
