//! Redis and NATS for benchmarks of several nodes: started on a free port, killed, and started again on the same.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::proc;
use super::rounds::median;

const PATIENCE: Duration = Duration::from_secs(20);

/// A kind of server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `redis-server`, which keeps nothing on disk.
    Redis,
    /// `nats-server`.
    Nats,
    /// The same with JetStream, which keeps its files in a temporary folder.
    JetStream,
}

/// A server, killed when dropped.
pub(super) struct Broker {
    kind: Kind,
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Broker {
    /// Starts a server and waits until it accepts connections.
    pub(super) fn start(kind: Kind) -> Result<Broker> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let name = format!("standfast-bench-{}-{port}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let child = spawn(kind, port, &folder)?;
        let mut broker = Broker { kind, child, port, folder };
        broker.accepts()?;
        Ok(broker)
    }

    /// Kills it.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again after it was killed, on the same port. Returns when it accepted the first connection.
    pub(super) fn start_again(&mut self) -> Result<Instant> {
        self.child = spawn(self.kind, self.port, &self.folder)?;
        self.accepts()
    }

    /// The flags of `standfast serve` for it.
    pub(super) fn flags(&self) -> Vec<String> {
        let port = self.port;
        let (name, flag) = match self.kind {
            Kind::Redis => ("redis", "--redis-url"),
            Kind::Nats | Kind::JetStream => ("nats", "--nats-servers"),
        };
        ["--pubsub", name, flag, &format!("{name}://127.0.0.1:{port}")].map(str::to_owned).into()
    }

    /// Its URL.
    pub(super) fn url(&self) -> String {
        self.flags().pop().unwrap_or_default()
    }

    /// Its CPU time since it was started, in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        proc::cpu_seconds(self.child.id())
    }

    fn accepts(&mut self) -> Result<Instant> {
        let began = Instant::now();
        loop {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(Instant::now());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the broker ended ({status})");
            }
            ensure!(began.elapsed() < PATIENCE, "the broker accepts no connection");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Bytes that Redis has sent so far. Asking adds one answer, about 1.3 KB.
    pub(super) fn sent_bytes(&self) -> Result<f64> {
        let info = self.ask("INFO stats")?;
        let line = info.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        Ok(line.context("no total_net_output_bytes")?.trim().parse()?)
    }

    /// The median time of a PING of Redis over an open connection.
    pub(super) fn ping_ms(&self) -> Result<f64> {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", self.port))?);
        stream.get_ref().set_nodelay(true)?;
        let mut times = Vec::new();
        for _ in 0..50 {
            let began = Instant::now();
            stream.get_mut().write_all(b"PING\r\n")?;
            stream.read_line(&mut String::new())?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(times))
    }

    /// The answer of Redis to an inline command: a line, or a bulk.
    fn ask(&self, command: &str) -> Result<String> {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", self.port))?);
        stream.get_ref().set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream.get_mut(), "{command}\r\n")?;
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some(bytes) = line.trim_end().strip_prefix('$') else { return Ok(line) };
        let mut bulk = vec![0; bytes.parse()?];
        stream.read_exact(&mut bulk)?;
        Ok(String::from_utf8(bulk)?)
    }
}

fn spawn(kind: Kind, port: u16, folder: &PathBuf) -> Result<Child> {
    let port = port.to_string();
    let (program, fixed): (_, &[&str]) = match kind {
        Kind::Redis => ("redis-server", &["--bind", "127.0.0.1", "--save", "", "--port", &port]),
        Kind::Nats => ("nats-server", &["--addr", "127.0.0.1", "--port", &port]),
        Kind::JetStream => {
            ("nats-server", &["--addr", "127.0.0.1", "--jetstream", "--port", &port])
        }
    };
    let mut command = Command::new(program);
    command.args(fixed).current_dir(folder);
    if kind == Kind::JetStream {
        command.arg("--store_dir").arg(folder);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().with_context(|| format!("{program} does not start"))
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
