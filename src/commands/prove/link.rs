//! A slow link between server and clients: two network namespaces connected by a veth pair with
//! traffic shaping, by `netem` if the kernel has it (rate and delay), else by a token bucket (rate
//! only). Created with `ip` and `tc`, removed on drop.
//!
//! The addresses are from 198.18.0.0/15, reserved for benchmarks (RFC 2544 appendix C).

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

/// The server's address.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The device's name in either namespace.
const DEVICE: &str = "slow0";
/// Ports of one address in a new namespace: the kernel's default range, 32768 to 60999.
const PORTS: u64 = 28_232;
/// Queue length of each end in packets, the default of Linux devices (`txqueuelen`).
const QUEUE_PACKETS: u32 = 1_000;
/// The same in bytes, for the token bucket.
const QUEUE_BYTES: u32 = QUEUE_PACKETS * 1_514;

/// The link that a scenario configures.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Link {
    /// Rate in each direction.
    pub(super) megabits: u32,
    /// Delay in each direction.
    pub(super) delay: Duration,
}

/// The two namespaces.
pub(super) struct Namespaces {
    server: String,
    clients: String,
    sources: Vec<IpAddr>,
    link: Link,
    /// `netem` or `tbf`.
    shaper: &'static str,
}

/// Traffic of one end and the drops of its queue.
#[derive(Serialize, Copy, Clone, Default, Debug)]
pub(super) struct Traffic {
    pub(super) bytes: u64,
    pub(super) packets: u64,
    pub(super) dropped: u64,
}

/// The link in the results.
#[derive(Serialize, Clone, Debug)]
pub(super) struct LinkResult {
    pub(super) megabits: u32,
    pub(super) delay_ms: f64,
    pub(super) shaper: &'static str,
    pub(super) to_server: Traffic,
    pub(super) to_clients: Traffic,
}

impl Namespaces {
    /// Creates both namespaces, with enough source addresses for `connections`.
    ///
    /// # Errors
    /// Missing privileges, or a missing `ip` or `tc`.
    pub(super) fn create(link: Link, connections: u64) -> Result<Namespaces> {
        let id = std::process::id();
        let sources = capacity::sources_needed(connections, PORTS, 1).unwrap_or(1).clamp(1, 65_000);
        let first = u32::from(Ipv4Addr::new(198, 19, 0, 1));
        let sources =
            (first..).take(sources as usize).map(|bits| Ipv4Addr::from(bits).into()).collect();
        let mut namespaces = Namespaces {
            server: format!("standfast-{id}-server"),
            clients: format!("standfast-{id}-clients"),
            sources,
            link,
            shaper: "netem",
        };
        namespaces.build().context(
            "this scenario needs network namespaces: run it as root with `ip` and `tc` installed \
             (Debian: apt install iproute2)",
        )?;
        Ok(namespaces)
    }

    /// Returns the source addresses of the clients.
    pub(super) fn sources(&self) -> &[IpAddr] {
        &self.sources
    }

    /// Returns the command prefix that runs a command in the server's namespace.
    pub(super) fn at_server(&self) -> Vec<String> {
        exec(&self.server)
    }

    /// Returns the command prefix for the clients' namespace.
    pub(super) fn at_clients(&self) -> Vec<String> {
        exec(&self.clients)
    }

    /// Describes the link in one line.
    pub(super) fn describe(&self) -> String {
        let Link { megabits, delay } = self.link;
        let delay = if self.shaper == "netem" && !delay.is_zero() {
            format!(", {delay:?} each way")
        } else if delay.is_zero() {
            String::new()
        } else {
            ", no delay: this kernel has no netem".to_owned()
        };
        format!("link: {megabits} Mbit/s each way ({}{delay})", self.shaper)
    }

    /// Returns the traffic so far.
    pub(super) fn result(&self) -> LinkResult {
        let Link { megabits, delay } = self.link;
        let delayed = if self.shaper == "netem" { delay.as_secs_f64() * 1e3 } else { 0.0 };
        LinkResult {
            megabits,
            delay_ms: delayed,
            shaper: self.shaper,
            to_server: traffic(&self.clients).unwrap_or_default(),
            to_clients: traffic(&self.server).unwrap_or_default(),
        }
    }

    fn build(&mut self) -> Result<()> {
        let Namespaces { server, clients, .. } = &*self;
        // The later batches need the namespaces.
        ip(&[], &[format!("netns add {server}"), format!("netns add {clients}")])?;
        let pair = format!("link add {DEVICE} type veth peer name {DEVICE} netns {clients}");
        let lines =
            ["link set lo up".to_owned(), pair, format!("addr add {SERVER}/16 dev {DEVICE}")];
        ip(&["-n", server], &lines)?;
        let up = [
            format!("link set {DEVICE} up"),
            format!("route add 198.19.0.0/16 dev {DEVICE} scope link"),
        ];
        ip(&["-n", server], &up)?;
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("addr add 198.18.0.2/16 dev {DEVICE}"),
            format!("link set {DEVICE} up"),
        ];
        lines
            .extend(self.sources.iter().map(|source| format!("addr add {source}/32 dev {DEVICE}")));
        ip(&["-n", clients], &lines)?;
        self.shape()
    }

    fn shape(&mut self) -> Result<()> {
        let Link { megabits, delay } = self.link;
        let netem = format!(
            "netem rate {megabits}mbit delay {}us limit {QUEUE_PACKETS}",
            delay.as_micros()
        );
        let bucket = format!("tbf rate {megabits}mbit burst 64kb limit {QUEUE_BYTES}");
        let at = |namespace: &str, how: &str| {
            let words = format!("-n {namespace} qdisc add dev {DEVICE} root {how}");
            run(Command::new("tc").args(words.split(' ')), "")
        };
        if at(&self.server, &netem).is_ok() {
            at(&self.clients, &netem)?;
            return Ok(());
        }
        self.shaper = "tbf";
        at(&self.server, &bucket)?;
        at(&self.clients, &bucket)?;
        Ok(())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.server, &self.clients] {
            let _ = run(Command::new("ip").args(["netns", "del", name]), "");
        }
    }
}

fn exec(namespace: &str) -> Vec<String> {
    ["ip", "netns", "exec", namespace].map(String::from).to_vec()
}

/// Runs lines of `ip` as one batch.
fn ip(options: &[&str], lines: &[String]) -> Result<()> {
    let mut command = Command::new("ip");
    run(command.args(options).args(["-batch", "-"]), &lines.join("\n")).map(drop)
}

fn traffic(namespace: &str) -> Result<Traffic> {
    let mut command = Command::new("tc");
    command.args(["-n", namespace, "-s", "-j", "qdisc", "show", "dev", DEVICE, "root"]);
    let output = run(&mut command, "")?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let number = |key: &str| json[0][key].as_u64().unwrap_or(0);
    Ok(Traffic { bytes: number("bytes"), packets: number("packets"), dropped: number("drops") })
}

/// Runs a program; its standard error is the error if it fails.
fn run(command: &mut Command, input: &str) -> Result<Output> {
    let name = format!("cannot run `{}`", command.get_program().to_string_lossy());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context(name.clone())?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early reports the reason on standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().context(name.clone())?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output)
}
