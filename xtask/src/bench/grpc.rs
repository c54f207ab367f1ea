//! Client CPU per gRPC call: `standfast load grpc://` beside h2load, which sends the same bytes and reads no gRPC,
//! and ghz, against a C program that answers as fast as frames can be written, client and server pinned to a
//! core each; unary calls, streams of answers and, beside ghz only, streams in both directions. Then the memory of `load` with held streams.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::http::{CPU, FAILED, PER_SECOND, RSS, measured, of_ours};
use super::http2::{SECONDS, SHAPES, of_h2load};
use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};
use super::{Context, tools};

/// CPU of a call ÷ h2load's.
const SHARE_MOST: f64 = 1.0;
/// CPU of a call of ghz ÷ ours.
const GHZ_LEAST: f64 = 5.0;
/// Connections and streams with ghz, which differs by far more than the machine varies.
const GHZ_SHAPE: (u32, u32) = (10, 10);
const GHZ_PAIRS: usize = 3;
/// Messages that a call in both directions sends; the server answers with as many.
const SENT: u32 = 100;
/// Held streams of each of 10 connections: the memory of the first, and that of each further stream.
const HELD: [u32; 2] = [1_000, 10_000];
const HELD_CONNECTIONS: u32 = 10;
const HELD_ROUNDS: usize = 3;
const HELD_SECONDS: f64 = 6.0;
const HELD_RSS_MOST: f64 = 25e6;
const STREAM_BYTES_MOST: f64 = 256.0;

/// Types of the calls. A server of one's own (`--target`) answers `Call` with one message, `Stream` with any number,
/// and holds the streams of `Hold`; `Both` takes any number of messages.
const PROTO: &str = "syntax = \"proto3\";\npackage bench;\nmessage Text { string text = 1; }\n\
                     service Bench {\n  rpc Call(Text) returns (Text);\n  rpc Stream(Text) returns (stream Text);\n  \
                     rpc Hold(Text) returns (stream Text);\n  rpc Both(stream Text) returns (stream Text);\n}\n";

/// What is called. The server answers by the letter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Call,
    Stream,
    Hold,
    Both,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Call => "Call",
            Method::Stream => "Stream",
            Method::Hold => "Hold",
            Method::Both => "Both",
        }
    }

    fn letter(self) -> char {
        match self {
            Method::Call => 'u',
            Method::Stream | Method::Both => 's',
            Method::Hold => 'h',
        }
    }

    /// The flag for the messages that a call sends, as this generator names it.
    fn messages(self, flag: &str) -> String {
        if self == Method::Both { format!("{flag} {SENT}") } else { String::new() }
    }
}

/// A load generator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Generator {
    H2load,
    Ours,
    Ghz,
}

impl Contestant for Generator {
    fn name(self) -> &'static str {
        match self {
            Generator::H2load => "h2load",
            Generator::Ours => "ours",
            Generator::Ghz => "ghz",
        }
    }
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    let server = Server::start(bench)?;
    println!("\n=== grpc: {} on one core, client on the other", server.name);
    let (mut targets, mut results) = (Vec::new(), serde_json::Map::new());
    for method in [Method::Call, Method::Stream] {
        for shape in SHAPES {
            let name = format!("{} {} x {}", method.name(), shape.0, shape.1);
            println!("\n{} connections x {} streams: {}", shape.0, shape.1, method.name());
            let generators = [Generator::H2load, Generator::Ours];
            let rounds = Rounds::run(&generators, bench.pairs, |generator| {
                once(bench, &server, generator, method, shape, seconds)
            })?;
            rounds.print(&[CPU, PER_SECOND, FAILED, RSS]);
            let share = median(rounds.ratios(Generator::Ours, Generator::H2load, CPU));
            let what = format!("CPU of a call, ours ÷ h2load's, {name}");
            targets.push(Target::at_most(what, share, SHARE_MOST));
            let failed = rounds.values(Generator::Ours, FAILED).into_iter().fold(0.0, f64::max);
            targets.push(Target::at_most(format!("failed, {name}"), failed, 0.0));
            results.insert(name, rounds.json());
        }
    }
    for method in [Method::Call, Method::Stream, Method::Both] {
        let Some(ghz) = &server.ghz else {
            println!("ghz is not installed: left out (--ghz PATH)");
            break;
        };
        let (name, pairs) = (format!("{} beside ghz", method.name()), bench.pairs.min(GHZ_PAIRS));
        println!("\n10 connections x 10 streams: {name} ({})", ghz.display());
        let generators = [Generator::Ours, Generator::Ghz];
        let rounds = Rounds::run(&generators, pairs, |generator| {
            once(bench, &server, generator, method, GHZ_SHAPE, seconds)
        })?;
        rounds.print(&[CPU, PER_SECOND, FAILED, RSS]);
        let share = median(rounds.ratios(Generator::Ghz, Generator::Ours, CPU));
        let what = format!("CPU of a call, ghz's ÷ ours, {}", method.name());
        targets.push(Target::at_least(what, share, GHZ_LEAST));
        results.insert(name, rounds.json());
    }
    results.insert("held".to_owned(), held(bench, &server, &mut targets)?);
    let settings = json!({ "seconds": seconds, "pairs": bench.pairs, "server": server.name });
    report::finish(&bench.out, "grpc", settings, results.into(), &targets)
}

/// The memory of held streams.
fn held(bench: &Context, server: &Server, targets: &mut Vec<Target>) -> Result<Value> {
    let seconds = bench.seconds.unwrap_or(HELD_SECONDS).max(HELD_SECONDS);
    let mut resident = Vec::new();
    for streams in HELD {
        let mut values = Vec::new();
        for _ in 0..bench.pairs.min(HELD_ROUNDS) {
            let line = server.ours(bench, Method::Hold, (HELD_CONNECTIONS, streams), seconds);
            let run = measured("ours", &line, false)?;
            let outcome: Value =
                serde_json::from_str(&fs::read_to_string(server.folder.join("load.json"))?)?;
            let open = outcome["requests"]["unfinished"].as_f64();
            let most = f64::from(HELD_CONNECTIONS * streams);
            ensure!(open == Some(most), "{open:?} of {most} streams were held");
            values.push(run.rss());
        }
        println!(
            "held: 10 connections x {streams} streams: {:.1} MB",
            median(values.clone()) / 1e6
        );
        resident.push(values);
    }
    let [few, many] = [0, 1].map(|at| median(resident.get(at).cloned().unwrap_or_default()));
    let further = f64::from(HELD_CONNECTIONS * (HELD[1] - HELD[0]));
    let each = (many - few) / further;
    targets.push(Target::at_most("resident bytes, 10 x 1,000 held streams", few, HELD_RSS_MOST));
    targets.push(Target::at_most("bytes of a further held stream", each, STREAM_BYTES_MOST));
    Ok(json!({ "streams": HELD, "connections": HELD_CONNECTIONS, "resident_bytes": resident,
               "bytes_per_stream": each }))
}

/// One run, with the CPU of the process that calls.
fn once(
    bench: &Context,
    server: &Server,
    generator: Generator,
    method: Method,
    shape: (u32, u32),
    seconds: f64,
) -> Result<Figures> {
    let (connections, streams) = shape;
    let (at, folder, name) = (&server.address, &server.folder, method.name());
    let line = match generator {
        Generator::Ours => server.ours(bench, method, shape, seconds),
        Generator::H2load => {
            let body = folder.join("body.bin");
            // The prefix of five bytes and the field (gRPC over HTTP2; Protocol Buffers).
            fs::write(&body, [0, 0, 0, 0, 3, 0x0a, 1, method.letter() as u8])?;
            format!(
                "h2load -c {connections} -m {streams} -t 1 -D {seconds} -d {} -H 'te: trailers' -H \
                 'content-type: application/grpc' http://{at}/bench.Bench/{name}",
                body.display()
            )
        }
        Generator::Ghz => format!(
            "{} --insecure --proto {} --call bench.Bench/{name} -d '{{\"text\":\"{}\"}}' --connections \
             {connections} -c {} -z {seconds}s --duration-stop wait {} --format json -o {} {at}",
            server.ghz.as_deref().context("ghz is not installed")?.display(),
            folder.join("bench.proto").display(),
            method.letter(),
            connections * streams,
            method.messages("--stream-call-count"),
            folder.join("ghz.json").display()
        ),
    };
    let run = measured(generator.name(), &line, false)?;
    let (calls, failed) = match generator {
        Generator::H2load => of_h2load(&run.output)?,
        Generator::Ours => of_ours(&folder.join("load.json"))?,
        Generator::Ghz => of_ghz(&fs::read_to_string(folder.join("ghz.json"))?)?,
    };
    run.figures(calls, failed)
}

/// Calls, and those that did not end with OK.
fn of_ghz(text: &str) -> Result<(f64, f64)> {
    let output: Value = serde_json::from_str(text)?;
    let calls = output["count"].as_f64().context("ghz has written no count")?;
    Ok((calls, calls - output["statusCodeDistribution"]["OK"].as_f64().unwrap_or(0.0)))
}

/// The server, and the files of its clients. Stopped when dropped.
struct Server {
    address: String,
    name: String,
    ghz: Option<PathBuf>,
    folder: PathBuf,
    _peer: Option<Peer>,
}

impl Server {
    fn start(bench: &Context) -> Result<Server> {
        let folder = std::env::temp_dir().join(format!("standfast-grpc-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("bench.proto"), PROTO)?;
        let installed = tools::is_installed("ghz").then(|| PathBuf::from("ghz"));
        let ghz = bench.ghz.clone().or(installed);
        if let Some(address) = bench.target.clone() {
            let name = "a server of --target".to_owned();
            return Ok(Server { address, name, ghz, folder, _peer: None });
        }
        let program = bench.tools.floor("grpc_server");
        let mut peer = Peer::start("server", Core::Server, &words([&program]))?;
        let ready = peer.receive(Duration::from_secs(10))?;
        let port = ready["port"].as_u64().context("the server has no port")?;
        let (address, name) = (format!("127.0.0.1:{port}"), "bench/floor/grpc_server".to_owned());
        Ok(Server { address, name, ghz, folder, _peer: Some(peer) })
    }

    fn ours(
        &self,
        bench: &Context,
        method: Method,
        (connections, streams): (u32, u32),
        seconds: f64,
    ) -> String {
        format!(
            "{} load grpc://{}/bench.Bench/{} --proto {} -d '{{\"text\":\"{}\"}}' --connections {connections} \
             --streams {streams} --duration {seconds}s --timeout 60s {} --json {} --plain",
            bench.tools.standfast().display(),
            self.address,
            method.name(),
            self.folder.join("bench.proto").display(),
            method.letter(),
            method.messages("--messages"),
            self.folder.join("load.json").display()
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_ghz_is_parsed() {
        let output = r#"{"count": 10, "statusCodeDistribution": {"OK": 8, "Unavailable": 2}}"#;
        assert_eq!(of_ghz(output).unwrap(), (10.0, 2.0));
        assert!(of_ghz("{}").is_err());
    }
}
