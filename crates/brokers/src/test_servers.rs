//! Real servers on loopback, which end with their test.

use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::task::LocalSet;

use crate::broker::Settings;

/// Longest time for a test.
const PATIENCE: Duration = Duration::from_secs(180);

/// A redis-server or a nats-server.
pub(crate) struct Server {
    child: Option<Child>,
    port: u16,
    command: Command,
    folder: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Server {
    /// `None` where it is not installed.
    #[cfg(feature = "redis")]
    pub(crate) fn redis(flags: &[&str]) -> Option<Self> {
        let usual = ["--save", "", "--bind", "127.0.0.1"];
        Self::start("/usr/bin/redis-server", &[&usual, flags].concat())
    }

    /// With JetStream, which has its files in a folder of its own. `None` where it is not installed.
    #[cfg(feature = "nats")]
    pub(crate) fn nats(flags: &[&str]) -> Option<Self> {
        let usual = ["--addr", "127.0.0.1", "--jetstream", "--store_dir", "."];
        Self::start("/usr/sbin/nats-server", &[&usual, flags].concat())
    }

    fn start(program: &str, flags: &[&str]) -> Option<Self> {
        if !std::path::Path::new(program).exists() {
            eprintln!("skipped: {program} is missing");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let name = format!("standfast-brokers-{}-{port}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string()]).args(flags).current_dir(&folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Server { child: None, port, command, folder };
        server.restart();
        Some(server)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = (child.kill(), child.wait());
        }
    }

    /// Starts it, again if it runs.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = Some(self.command.spawn().unwrap());
        for _ in 0..2_000 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not accept connections");
    }

    /// Connects as this user, `USER:PASSWORD@` or nothing.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_as(&self, user: &str) -> crate::redis::RedisTransport {
        let url = format!("redis://{user}127.0.0.1:{}", self.port).parse().unwrap();
        crate::redis::RedisTransport { url, tls: None, sentinels: Vec::new() }
    }

    #[cfg(feature = "nats")]
    pub(crate) fn nats_transport(&self) -> crate::nats::NatsTransport {
        let url = format!("nats://127.0.0.1:{}", self.port).parse().unwrap();
        let servers = crate::NatsServers { urls: vec![url], credentials: None };
        crate::nats::NatsTransport { servers, tls: None }
    }
}

/// The settings of a node.
pub(crate) fn settings() -> Settings {
    Settings {
        prefix: "t".to_owned(),
        node_name: "a".to_owned(),
        linger: Duration::ZERO,
        spool_bytes: 0,
        history: None,
        members: None,
        values: None,
        clock: || 0,
        random: || 0,
    }
}

/// Runs a test on one thread.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(PATIENCE, test).await.expect("it ends");
    });
}
