//! The proxy: how many messages it passes there and back per second of its own CPU, ours beside
//! nginx, one worker each, before the same bare C echo server.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::rounds::median;
use super::server::{Kind, Server};
use super::{Context, proc};

/// Sockets and bytes of a message.
const SHAPES: [(usize, usize); 2] = [(100, 20), (500, 1024)];
const SECONDS: f64 = 3.0;
const WARM_UP_SECONDS: f64 = 1.0;
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures; whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== proxy: echo through it, one worker, {seconds} s each");
    let (mut results, mut targets) = (Vec::new(), Vec::new());
    for (sockets, bytes) in SHAPES {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for pair in 0..bench.pairs {
            // Who goes first changes, so that neither has the warmer machine.
            for nginx in [pair % 2 == 1, pair % 2 == 0] {
                let figure = once(bench, nginx, sockets, bytes, seconds)?;
                println!("{sockets} × {bytes} B, {}: {figure:.0}", name(nginx));
                if nginx { theirs.push(figure) } else { ours.push(figure) }
            }
        }
        let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        let what = format!("messages per proxy CPU, {sockets} × {bytes} B, ours ÷ nginx's");
        targets.push(Target::at_least(&what, median(ratios), 1.0));
        results.push(
            json!({ "sockets": sockets, "bytes": bytes, "standfast": ours, "nginx": theirs }),
        );
    }
    let settings = json!({ "seconds": seconds, "warm_up_seconds": WARM_UP_SECONDS, "workers": 1,
                           "figure": "messages per second of the proxy's CPU" });
    report::finish(&bench.out, "proxy", settings, Value::from(results), &targets)
}

fn name(nginx: bool) -> &'static str {
    if nginx { "nginx" } else { "standfast" }
}

fn once(bench: &Context, nginx: bool, sockets: usize, bytes: usize, seconds: f64) -> Result<f64> {
    let echo = Server::start(Kind::Floor, &bench.tools)?;
    let port = free_port()?;
    let proxy =
        if nginx { start_nginx(port, echo.port())? } else { start_ours(bench, port, echo.port())? };
    until_it_listens(port)?;
    let mut client = super::server::echo_client(&bench.tools, port, sockets, bytes)?;
    timed(&mut client, WARM_UP_SECONDS)?;
    let before = proc::cpu_seconds(proxy.pid())?;
    let result = timed(&mut client, seconds)?;
    let cpu = proc::cpu_seconds(proxy.pid())? - before;
    Ok(result["messages"].as_f64().context("no messages")? / cpu)
}

fn timed(client: &mut Peer, seconds: f64) -> Result<Value> {
    client.ask(&format!("run {seconds}"), Duration::from_secs_f64(seconds + 20.0))
}

fn start_ours(bench: &Context, port: u16, upstream: u16) -> Result<Peer> {
    let command = words([
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
    ]);
    Peer::start("standfast proxy", Core::Server, &command)
}

/// One process that is master and worker, so that its CPU is one number.
fn start_nginx(port: u16, upstream: u16) -> Result<Peer> {
    let folder: PathBuf =
        std::env::temp_dir().join(format!("standfast-nginx-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
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
    std::fs::write(&file, text)?;
    let log = folder.join("error");
    let command = words([&"nginx", &"-e", &log, &"-c", &file]);
    Peer::start("nginx", Core::Server, &command).context("nginx must be installed")
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn until_it_listens(port: u16) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
        if Instant::now() > until {
            bail!("nobody listens on port {port}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
