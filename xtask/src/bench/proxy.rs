//! The proxy: messages that it passes in both directions per second of its own CPU, standfast beside
//! nginx, HAProxy and a bare relay in C, one worker each; and the CPU and memory that 50,000 additional
//! silent tunnels cost.
//!
//! The CPU of the whole machine is measured too, because a proxy can leave its work to the kernel.

use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};
use super::server::{self, Kind, Server};
use super::{Context, proc, tools};

/// Sockets and bytes of a message.
const SHAPES: [(usize, usize); 2] = [(100, 20), (500, 1024)];
const SECONDS: f64 = 3.0;
const WARM_UP_SECONDS: f64 = 1.0;
const PATIENCE: Duration = Duration::from_secs(20);
const PER_CPU: &str = "messages per proxy cpu s";
const PER_MACHINE: &str = "messages per machine cpu s";

/// Lower limits of our messages per CPU, relative to nginx and HAProxy, and to the bare relay.
const OF_COMPETITORS: f64 = 1.0;
const OF_FLOOR: f64 = 0.95;

const IDLE: usize = 50_000;
/// Lower limit of the messages per CPU, relative to a run without idle tunnels.
const BESIDE_IDLE: f64 = 0.95;
/// Memory limit of the process: a fixed part and a part for each tunnel.
const RSS_BASE: f64 = 32.0 * 1024.0 * 1024.0;
const RSS_PER_TUNNEL: f64 = 200.0;

/// The proxy under test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProxyKind {
    Ours,
    Nginx,
    Haproxy,
    Floor,
}

impl Contestant for ProxyKind {
    fn name(self) -> &'static str {
        match self {
            ProxyKind::Ours => "standfast",
            ProxyKind::Nginx => "nginx",
            ProxyKind::Haproxy => "haproxy",
            ProxyKind::Floor => "floor",
        }
    }
}

/// Measures busy tunnels only. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    let mut kinds = vec![ProxyKind::Ours, ProxyKind::Floor];
    for competitor in [ProxyKind::Nginx, ProxyKind::Haproxy] {
        if tools::is_installed(competitor.name()) {
            kinds.push(competitor);
        } else {
            println!("{} is not installed: left out", competitor.name());
        }
    }
    let (mut results, mut targets) = (Vec::new(), Vec::new());
    for (sockets, bytes) in SHAPES {
        println!("\n=== proxy: {sockets} tunnels echo {bytes} B, one worker, {seconds} s each");
        let rounds =
            Rounds::run(&kinds, bench.pairs, |kind| once(bench, kind, sockets, bytes, seconds))?;
        rounds.print(&[PER_CPU, PER_MACHINE]);
        for (kind, share) in [
            (ProxyKind::Nginx, OF_COMPETITORS),
            (ProxyKind::Haproxy, OF_COMPETITORS),
            (ProxyKind::Floor, OF_FLOOR),
        ] {
            if rounds.have(ProxyKind::Ours, kind) {
                let what = format!(
                    "messages per proxy CPU, {sockets} × {bytes} B, ours ÷ {}",
                    kind.name()
                );
                let ratio = median(rounds.ratios(ProxyKind::Ours, kind, PER_CPU));
                targets.push(Target::at_least(what, ratio, share));
            }
        }
        results.push(json!({ "sockets": sockets, "bytes": bytes, "runs": rounds.json() }));
    }
    let settings = json!({ "seconds": seconds, "warm_up_seconds": WARM_UP_SECONDS, "workers": 1,
                           "pairs": bench.pairs });
    report::finish(&bench.out, "proxy", settings, Value::from(results), &targets)
}

fn once(
    bench: &Context,
    kind: ProxyKind,
    sockets: usize,
    bytes: usize,
    seconds: f64,
) -> Result<Figures> {
    let echo = Server::start(Kind::Floor, &bench.tools)?;
    let port = free_port()?;
    let proxy = start(bench, kind, port, echo.port())?;
    until_it_listens(port)?;
    let mut client = server::echo_client(&bench.tools, port, sockets, bytes)?;
    timed(&mut client, WARM_UP_SECONDS)?;
    measured(&mut client, &proxy, seconds)
}

/// Messages per CPU second of the proxy and of the machine.
fn measured(client: &mut Peer, proxy: &Peer, seconds: f64) -> Result<Figures> {
    let (own, whole) = (proc::cpu_seconds(proxy.pid())?, proc::machine_cpu_seconds()?);
    let result = timed(client, seconds)?;
    let messages = result["messages"].as_f64().context("no messages")?;
    let own = proc::cpu_seconds(proxy.pid())? - own;
    let whole = proc::machine_cpu_seconds()? - whole;
    Ok(Figures::from([(PER_CPU, messages / own), (PER_MACHINE, messages / whole)]))
}

fn timed(client: &mut Peer, seconds: f64) -> Result<Value> {
    client.request(&format!("run {seconds}"), Duration::from_secs_f64(seconds + 20.0))
}

/// The same echo with and without 50,000 silent tunnels. Returns whether the targets were met.
pub(super) fn beside_idle(bench: &Context) -> Result<bool> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    let idle = bench.connections.unwrap_or(IDLE);
    let (sockets, bytes) = SHAPES[0];
    println!("\n=== proxy-idle: {sockets} tunnels echo {bytes} B, {idle} silent ones beside them");
    let scene = IdleScene::open(bench, idle)?;
    let mut client = server::echo_client(&bench.tools, scene.port, sockets, bytes)?;
    timed(&mut client, WARM_UP_SECONDS)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let before = proc::rss_bytes(scene.proxy.pid())?;
    let mut most = 0;
    for number in 1..=bench.pairs {
        alone.push(measured(&mut client, &scene.proxy, seconds)?[PER_CPU]);
        let crowd = scene.crowd(bench, idle)?;
        beside.push(measured(&mut client, &scene.proxy, seconds)?[PER_CPU]);
        most = most.max(proc::rss_bytes(scene.proxy.pid())?);
        scene.until_only(crowd, sockets)?;
        println!(
            "round {number}  alone {:.0}, beside {idle} silent tunnels {:.0} {PER_CPU}, {:.1} MB",
            alone[number - 1],
            beside[number - 1],
            most as f64 / 1e6
        );
    }
    let ratio = median(beside.iter().zip(&alone).map(|(with, without)| with / without).collect());
    let allowed = RSS_BASE + RSS_PER_TUNNEL * (idle + sockets) as f64;
    let targets = [
        Target::at_least(
            "messages per proxy CPU, beside silent tunnels ÷ alone",
            ratio,
            BESIDE_IDLE,
        ),
        Target::at_most("resident bytes of the proxy", most as f64, allowed),
    ];
    let settings = json!({ "seconds": seconds, "pairs": bench.pairs, "idle": idle,
                           "sockets": sockets, "bytes": bytes });
    let results = json!({ "alone": alone, "beside": beside, "rss_bytes_before": before,
                          "rss_bytes_most": most });
    report::finish(&bench.out, "proxy-idle", settings, results, &targets)
}

/// `serve` behind `proxy`, both with as many workers as their descriptors need. Pings are off, so
/// that the tunnels are silent.
struct IdleScene {
    _server: Server,
    proxy: Peer,
    port: u16,
    admin: u16,
}

impl IdleScene {
    fn open(bench: &Context, idle: usize) -> Result<IdleScene> {
        let held = (idle + idle / 10 + 1_000).to_string();
        let silent = ["--pings", "off", "--idle-timeout", "off", "--max-connections", &held];
        let server = Server::start_ours(&bench.tools, &silent)?;
        let (port, admin) = (free_port()?, free_port()?);
        let command = words([
            &bench.tools.standfast(),
            &"proxy",
            &"--listen",
            &format!("127.0.0.1:{port}"),
            &"--upstream",
            &format!("127.0.0.1:{}", server.port()),
            &"--admin",
            &format!("127.0.0.1:{admin}"),
            &"--max-connections",
            &held,
        ]);
        let proxy = Peer::start("server standfast proxy", Core::Server, &command)?;
        until_it_listens(port)?;
        Ok(IdleScene { _server: server, proxy, port, admin })
    }

    /// Opens the silent tunnels and waits until all are open.
    fn crowd(&self, bench: &Context, idle: usize) -> Result<Peer> {
        let url = format!("ws://127.0.0.1:{}/echo", self.port);
        let many = idle.to_string();
        let command = words([
            &bench.tools.standfast(),
            &"load",
            &url,
            &"--connections",
            &many,
            &"--hold",
            &"1h",
            &"--heartbeat",
            &"0",
            &"--plain",
        ]);
        let crowd = Peer::start("server crowd", Core::Client, &command)?;
        self.until_tunnels(|tunnels| tunnels >= idle)?;
        Ok(crowd)
    }

    /// Closes the silent tunnels and waits until only the busy ones are open.
    fn until_only(&self, crowd: Peer, sockets: usize) -> Result<()> {
        drop(crowd);
        self.until_tunnels(|tunnels| tunnels <= sockets)
    }

    fn until_tunnels(&self, enough: impl Fn(usize) -> bool) -> Result<()> {
        let until = Instant::now() + 6 * PATIENCE;
        loop {
            let tunnels = self.tunnels()?;
            if enough(tunnels) {
                // Time for the work that opening and closing leaves.
                std::thread::sleep(Duration::from_secs(1));
                return Ok(());
            }
            if Instant::now() > until {
                bail!("the proxy has {tunnels} tunnels");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn tunnels(&self) -> Result<usize> {
        use std::io::{Read as _, Write as _};
        let mut stream = TcpStream::connect(("127.0.0.1", self.admin))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        let line = response.lines().find_map(|line| line.strip_prefix("standfast_tunnels "));
        line.and_then(|number| number.trim().parse().ok()).context("no standfast_tunnels")
    }
}

fn start(bench: &Context, kind: ProxyKind, port: u16, upstream: u16) -> Result<Peer> {
    let command = match kind {
        ProxyKind::Ours => ours(bench, port, upstream),
        ProxyKind::Nginx => nginx(port, upstream)?,
        ProxyKind::Haproxy => haproxy(port, upstream)?,
        ProxyKind::Floor => {
            words([&bench.tools.floor("relay"), &upstream.to_string(), &port.to_string()])
        }
    };
    Peer::start(&format!("server {}", kind.name()), Core::Server, &command)
}

fn ours(bench: &Context, port: u16, upstream: u16) -> Vec<OsString> {
    words([
        &bench.tools.standfast(),
        &"proxy",
        &"--listen",
        &format!("127.0.0.1:{port}"),
        &"--upstream",
        &format!("127.0.0.1:{upstream}"),
        &"--admin",
        &"off",
        &"--workers",
        &"1",
    ])
}

/// One process as master and worker, so that its CPU is one number.
fn nginx(port: u16, upstream: u16) -> Result<Vec<OsString>> {
    let folder = folder("nginx")?;
    let shown = folder.display();
    let text = format!(
        "daemon off; master_process off; worker_processes 1; pid {shown}/pid; error_log {shown}/error;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; client_body_temp_path {shown}; proxy_temp_path {shown};\n\
         fastcgi_temp_path {shown}; uwsgi_temp_path {shown}; scgi_temp_path {shown};\n\
         server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream};\n\
         proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;\n\
         proxy_set_header Connection upgrade; }} }} }}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, text)?;
    Ok(words([&"nginx", &"-e", &folder.join("error"), &"-c", &file]))
}

/// One thread, no health checks, no log: only what a tunnel needs.
fn haproxy(port: u16, upstream: u16) -> Result<Vec<OsString>> {
    let text = format!(
        "global\n  nbthread 1\n  maxconn 4096\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  \
         timeout tunnel 1h\n\
         frontend in\n  bind 127.0.0.1:{port}\n  default_backend out\n\
         backend out\n  server one 127.0.0.1:{upstream}\n"
    );
    let file = folder("haproxy")?.join("haproxy.cfg");
    fs::write(&file, text)?;
    Ok(words([&"haproxy", &"-q", &"-db", &"-f", &file]))
}

fn folder(name: &str) -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("standfast-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn until_it_listens(port: u16) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
        if Instant::now() > until {
            bail!("connection refused on port {port}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
