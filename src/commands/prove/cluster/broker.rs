//! The broker of a proof: a server that it starts, kills and starts again, or the user's, which it leaves alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::sys::process::{self, now_ns};

use crate::commands::prove::proxies::in_path;

/// Time limit for it to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// What carries publications between the nodes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(in crate::commands::prove) enum Kind {
    Redis,
    Nats,
    /// Nothing: several nodes must then fall short.
    None,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Redis => "redis",
            Kind::Nats => "nats",
            Kind::None => "none",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Kind::Nats => "nats-server",
            Kind::Redis | Kind::None => "redis-server",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Kind::Nats => "--nats-servers",
            Kind::Redis | Kind::None => "--redis-url",
        }
    }

    fn scheme(self) -> &'static str {
        match self {
            Kind::Nats => "nats://",
            Kind::Redis | Kind::None => "redis://",
        }
    }
}

/// A URL of a broker on loopback, divided so that a relay can take the place of the address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Url {
    kind: Kind,
    /// `user:password@`, or nothing.
    credentials: String,
    pub(super) address: SocketAddr,
    /// What follows the address.
    rest: String,
}

impl Url {
    /// # Errors
    /// Another scheme, or an address that is not on loopback.
    pub(super) fn parse(kind: Kind, text: &str) -> Result<Url> {
        let (scheme, flag) = (kind.scheme(), kind.flag());
        let expected = format!("expected {scheme}127.0.0.1:PORT, on loopback and without TLS");
        let Some(rest) = text.strip_prefix(scheme) else {
            bail!("invalid {flag} {text:?}: {expected}");
        };
        let (authority, rest) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let at = authority.rfind('@').map_or(0, |at| at + 1);
        let (credentials, host) = authority.split_at(at);
        let host = host.replace("localhost", "127.0.0.1");
        let address = host.parse::<SocketAddr>().or_else(|_| {
            let port = if kind == Kind::Nats { 4_222 } else { 6_379 };
            host.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port))
        });
        match address {
            Ok(address) if address.ip().is_loopback() => {
                Ok(Url { kind, credentials: credentials.into(), address, rest: rest.into() })
            }
            _ => bail!("invalid {flag} {text:?}: {expected}"),
        }
    }

    /// The flag of a node that reaches it through this address.
    pub(super) fn flag_through(&self, address: SocketAddr) -> String {
        let Url { kind, credentials, rest, .. } = self;
        format!("{}={}{credentials}{address}{rest}", kind.flag(), kind.scheme())
    }
}

/// The broker.
pub(super) struct Broker {
    kind: Kind,
    url: Url,
    /// `None` if it is the user's.
    command: Option<Command>,
    child: Option<Child>,
    /// Where it keeps its files, removed with it.
    folder: Option<Folder>,
    pub(super) version: Option<String>,
}

/// A directory that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Folder> {
        let path =
            std::env::temp_dir().join(format!("standfast-prove-{}-nats", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Broker {
    /// Starts one at this address of loopback. It keeps a history if it is to.
    ///
    /// # Errors
    /// A program that is not installed or does not start.
    pub(super) fn start(kind: Kind, host: Ipv4Addr, port: u16, history: bool) -> Result<Broker> {
        let name = kind.program();
        let Some(program) = in_path(name) else {
            bail!(
                "{name} is not installed (Debian: apt-get install {name})\n  with a running one: \
                 standfast prove cluster {} {}127.0.0.1:{}",
                kind.flag(),
                kind.scheme(),
                if kind == Kind::Nats { 4_222 } else { 6_379 }
            );
        };
        let mut command = Command::new(&program);
        let (host_text, port_text) = (host.to_string(), port.to_string());
        let folder = (kind == Kind::Nats && history).then(Folder::create).transpose()?;
        if let Some(folder) = &folder {
            command.arg("--jetstream").arg("--store_dir").arg(&folder.0);
        }
        match kind {
            Kind::Nats => command.args(["-a", &host_text, "-p", &port_text]),
            Kind::Redis | Kind::None => {
                let folder = std::env::temp_dir();
                command.current_dir(folder);
                command.args(["--bind", &host_text, "--port", &port_text, "--save", ""]);
                command.args(["--appendonly", "no", "--protected-mode", "no"])
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C goes to the proof only, which then ends it.
        command.process_group(0);
        let address = SocketAddr::new(host.into(), port);
        let url = Url { kind, credentials: String::new(), address, rest: String::new() };
        let version = version(&program);
        let mut broker = Broker { kind, url, command: Some(command), child: None, folder, version };
        broker.restart()?;
        Ok(broker)
    }

    /// Takes the user's, which must be reachable.
    ///
    /// # Errors
    /// A broker that is not reachable.
    pub(super) fn of_user(kind: Kind, url: Url) -> Result<Broker> {
        TcpStream::connect_timeout(&url.address, Duration::from_secs(2))
            .with_context(|| format!("cannot connect to the broker {}", url.address))?;
        Ok(Broker { kind, url, command: None, child: None, folder: None, version: None })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether what it has taken survives that it is killed.
    pub(super) fn keeps_data(&self) -> bool {
        self.folder.is_some()
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again at the same address, and waits until it listens.
    ///
    /// # Errors
    /// It does not listen in time.
    pub(super) fn restart(&mut self) -> Result<()> {
        let Some(command) = &mut self.command else { return Ok(()) };
        let name = self.kind.program();
        let child = process::start_foreign(command);
        self.child = Some(child.with_context(|| format!("cannot start {name}"))?);
        let deadline_ns = now_ns() + READY_TIMEOUT.as_nanos() as u64;
        while TcpStream::connect(self.url.address).is_err() {
            let ended = self.ended();
            if ended.is_some() || now_ns() > deadline_ns {
                let how = ended.unwrap_or_else(|| "it does not listen".to_owned());
                bail!("{name} did not start at {}: {how}", self.url.address);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Its exit status if it has ended by itself.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(status.to_string())
    }
}

impl Drop for Broker {
    /// Before its folder.
    fn drop(&mut self) {
        self.kill();
    }
}

/// Redis: `Redis server v=7.0.15 sha=…`; NATS: `nats-server: v2.9.10`.
fn version(program: &std::path::Path) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace().map(|word| word.trim_start_matches("v="));
    let word =
        words.find(|word| word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit()));
    word.map(|word| word.trim_start_matches('v').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_takes_the_place_of_the_address_only() {
        let relay = SocketAddr::from(([127, 0, 0, 1], 9));
        for (kind, text, flag) in [
            (Kind::Redis, "redis://127.0.0.1:7000", "--redis-url=redis://127.0.0.1:9"),
            (Kind::Redis, "redis://localhost", "--redis-url=redis://127.0.0.1:9"),
            (Kind::Redis, "redis://a:b@127.0.0.1/2", "--redis-url=redis://a:b@127.0.0.1:9/2"),
            (Kind::Nats, "nats://u:p@localhost:4222", "--nats-servers=nats://u:p@127.0.0.1:9"),
        ] {
            assert_eq!(Url::parse(kind, text).unwrap().flag_through(relay), flag);
        }
        let port = Url::parse(Kind::Nats, "nats://127.0.0.1").unwrap().address.port();
        assert_eq!(port, 4_222);
    }

    #[test]
    fn brokers_of_other_machines_and_with_tls_are_refused() {
        for text in ["redis://192.0.2.1:6379", "rediss://127.0.0.1", "redis://broker", "127.0.0.1"]
        {
            let error = Url::parse(Kind::Redis, text).unwrap_err().to_string();
            assert!(error.contains("--redis-url") && error.contains("loopback"), "{error}");
        }
    }
}
