//! Client CPU per HTTP/2 request: `standfast load --http2` beside h2load (`nghttp2-client`), against nghttpd
//! or nginx, client and server pinned to a core each, by connections and streams; in the clear, over TLS, and
//! with the live screen.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::Context;
use super::http::{CPU, Content, FAILED, Nginx, PER_SECOND, RSS, measured, of_ours, pinned};
use super::peer::Core;
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};

/// Connections and streams of each.
pub(super) const SHAPES: [(u32, u32); 3] = [(100, 1), (10, 10), (1, 100)];
pub(super) const SECONDS: f64 = 4.0;
/// CPU of a request ÷ h2load's, without and with the live screen.
const SHARE_MOST: f64 = 1.0;
const LIVE_SHARE_MOST: f64 = 1.06;
const RSS_MOST: f64 = 25e6;

/// A load generator and how it is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Generator {
    H2load { tls: bool },
    Ours { tls: bool },
    Live,
}

impl Contestant for Generator {
    fn name(self) -> &'static str {
        match self {
            Generator::H2load { tls: false } => "h2load",
            Generator::H2load { tls: true } => "h2load, TLS",
            Generator::Ours { tls: false } => "ours",
            Generator::Ours { tls: true } => "ours, TLS",
            Generator::Live => "live",
        }
    }
}

const ALL: [Generator; 5] = [
    Generator::H2load { tls: false },
    Generator::Ours { tls: false },
    Generator::Live,
    Generator::H2load { tls: true },
    Generator::Ours { tls: true },
];

/// Those compared against nginx.
const BESIDE_NGINX: [Generator; 2] =
    [Generator::H2load { tls: false }, Generator::Ours { tls: false }];

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== http2: nghttpd on one core, client on the other");
    let server = Server::start()?;
    let (mut targets, mut results) = (Vec::new(), serde_json::Map::new());
    for (connections, streams) in SHAPES {
        println!("\n{connections} connections x {streams} streams");
        let rounds = Rounds::run(&ALL, bench.pairs, |generator| {
            once(bench, &server.urls(), generator, (connections, streams), seconds)
        })?;
        rounds.print(&[CPU, PER_SECOND, FAILED, RSS]);
        let share = |one, other| median(rounds.ratios(one, other, CPU));
        let (rival, ours) = (Generator::H2load { tls: false }, Generator::Ours { tls: false });
        let (rival_tls, ours_tls) =
            (Generator::H2load { tls: true }, Generator::Ours { tls: true });
        let name = format!("{connections} x {streams}");
        let cpu = |what: &str| format!("CPU of a request, ours ÷ h2load's, {name}{what}");
        targets.push(Target::at_most(cpu(""), share(ours, rival), SHARE_MOST));
        targets.push(Target::at_most(cpu(", TLS"), share(ours_tls, rival_tls), SHARE_MOST));
        targets.push(Target::at_most(
            cpu(", with the screen"),
            share(Generator::Live, rival),
            LIVE_SHARE_MOST,
        ));
        let of_ours = [ours, ours_tls, Generator::Live];
        let most = |figure| {
            let all = of_ours.iter().flat_map(|one| rounds.values(*one, figure));
            all.fold(0.0, f64::max)
        };
        targets.push(Target::at_most(format!("failed, {name}"), most(FAILED), 0.0));
        targets.push(Target::at_most(
            format!("resident bytes of ours, {name}"),
            most(RSS),
            RSS_MOST,
        ));
        results.insert(name, rounds.json());
    }
    drop(server);
    for (what, content) in [("a text", Content::Text), ("a file", Content::File)] {
        println!("\n=== nginx with {what} on one core, client on the other");
        let nginx = Nginx::start("http2", content)?;
        for (connections, streams) in SHAPES {
            println!("\n{connections} connections x {streams} streams");
            let rounds = Rounds::run(&BESIDE_NGINX, bench.pairs, |generator| {
                let urls = [nginx.url(), String::new()];
                once(bench, &urls, generator, (connections, streams), seconds)
            })?;
            rounds.print(&[CPU, PER_SECOND, FAILED, RSS]);
            let [rival, ours] = BESIDE_NGINX;
            let name = format!("nginx with {what}, {connections} x {streams}");
            targets.push(Target::at_most(
                format!("CPU of a request, ours ÷ h2load's, {name}"),
                median(rounds.ratios(ours, rival, CPU)),
                SHARE_MOST,
            ));
            let failed = rounds.values(ours, FAILED).into_iter().fold(0.0, f64::max);
            targets.push(Target::at_most(format!("failed, {name}"), failed, 0.0));
            results.insert(name, rounds.json());
        }
    }
    let settings = json!({ "seconds": seconds, "pairs": bench.pairs,
                           "server": "nghttpd, one thread, a file of 6 bytes; nginx, one worker, 6 bytes" });
    report::finish(&bench.out, "http2", settings, results.into(), &targets)
}

/// One run, with the CPU of the process that sends.
fn once(
    bench: &Context,
    [plain, secure]: &[String; 2],
    generator: Generator,
    (connections, streams): (u32, u32),
    seconds: f64,
) -> Result<Figures> {
    let url = |tls: bool| if tls { secure } else { plain };
    let file = std::env::temp_dir().join(format!("standfast-http2-{}.json", std::process::id()));
    let ours = |tls: bool, more: &str| {
        format!(
            "{} load {} --http2 --connections {connections} --streams {streams} \
             --duration {seconds}s --json {} {more}",
            bench.tools.standfast().display(),
            url(tls),
            file.display()
        )
    };
    let line = match generator {
        Generator::H2load { tls } => {
            format!("h2load -c {connections} -m {streams} -t 1 -D {seconds} {}", url(tls))
        }
        Generator::Ours { tls: false } => ours(false, "--plain"),
        Generator::Ours { tls: true } => ours(true, "--plain --insecure"),
        Generator::Live => ours(false, ""),
    };
    let run = measured(generator.name(), &line, generator == Generator::Live)?;
    let (requests, failed) = match generator {
        Generator::H2load { .. } => of_h2load(&run.output)?,
        _ => of_ours(&file)?,
    };
    // Left over when it cannot be removed.
    let _ = fs::remove_file(&file);
    run.figures(requests, failed)
}

/// "requests: 42 total, 42 started, 41 done, 40 succeeded, 1 failed, 0 errored, 0 timeout".
pub(super) fn of_h2load(output: &str) -> Result<(f64, f64)> {
    let line = output.lines().find_map(|line| line.strip_prefix("requests: "));
    let line = line.with_context(|| format!("unexpected output of h2load:\n{output}"))?;
    let of = |name: &str| {
        let part = line.split(", ").find_map(|part| part.strip_suffix(name))?;
        part.trim().parse::<f64>().ok()
    };
    let figures = of("done").zip(of("failed"));
    figures.with_context(|| format!("unexpected output of h2load:\n{output}"))
}

/// nghttpd on the servers' core, in the clear and over TLS, stopped when dropped.
struct Server {
    children: Vec<Child>,
    plain: u16,
    secure: u16,
    folder: PathBuf,
}

impl Server {
    /// In the clear, and over TLS.
    fn urls(&self) -> [String; 2] {
        [("http", self.plain), ("https", self.secure)]
            .map(|(scheme, port)| format!("{scheme}://127.0.0.1:{port}/index.html"))
    }

    fn start() -> Result<Server> {
        let port = || -> Result<u16> { Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port()) };
        let folder = std::env::temp_dir().join(format!("standfast-http2-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("index.html"), "hello\n")?;
        let (key, cert) = (folder.join("key.pem"), folder.join("cert.pem"));
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
            ])
            .args(["-subj", "/CN=localhost", "-days", "2", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&cert)
            .stderr(Stdio::null())
            .status()
            .context("cannot start openssl")?;
        ensure!(made.success(), "openssl makes no certificate");
        let mut server = Server { children: Vec::new(), plain: port()?, secure: port()?, folder };
        for tls in [false, true] {
            let number = if tls { server.secure } else { server.plain };
            let mut command = pinned(Core::Server, "nghttpd");
            command.arg("-d").arg(&server.folder).args(["-a", "127.0.0.1", "-n", "1"]);
            if !tls {
                command.arg("--no-tls");
            }
            command.arg(number.to_string());
            if tls {
                command.args([&key, &cert]);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child =
                command.spawn().context("cannot start nghttpd (apt install nghttp2-server)")?;
            server.children.push(child);
            let is_up = (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                TcpStream::connect(("127.0.0.1", number)).is_ok()
            });
            ensure!(is_up, "nghttpd does not listen");
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // These fail only when nothing is left to stop.
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_h2load_is_parsed() {
        let output = "finished in 5.00s, 8.40 req/s, 1KB/s\nrequests: 42 total, 42 started, 41 done, \
                      40 succeeded, 1 failed, 0 errored, 0 timeout\n";
        assert_eq!(of_h2load(output).unwrap(), (41.0, 1.0));
        assert!(of_h2load("nothing").is_err());
    }
}
