//! `cargo xtask bench`: standfast beside competitors and bare C programs (the floor), on this machine.
//!
//! Every comparison runs its servers in turn, in an order that is shuffled for each round, with the
//! same C client; ratios are computed within a round and their median over the rounds is judged.
//! CPU is the scheduler's own count (`/proc/PID/task/*/schedstat`). Tables go to standard output,
//! every raw figure to `bench/results/NAME.json`.
//!
//! Not a profiler and not a test: run it on an otherwise idle machine, or the figures mean nothing.

mod admin;
mod answers;
mod applications;
mod away;
mod broker;
mod compare;
mod connects;
mod echo;
mod fanout;
mod grpc;
mod history;
mod hold;
mod http;
mod http2;
mod http2_sockets;
mod idle_bytes;
mod library;
mod million;
mod node;
mod nodes;
mod nodes_cable;
mod page;
mod peer;
mod presence;
mod proc;
mod proxy;
mod report;
mod resubscribe;
mod rounds;
mod screen;
mod server;
mod siege;
mod siege_holders;
mod siege_proxy;
mod siege_proxy_holders;
mod soak;
mod tools;
mod wrapped;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::step;
use server::Kind;
use tools::Tools;

/// What to measure, and for how long.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Benchmarks to run
    #[arg(value_enum, required = true)]
    what: Vec<Bench>,
    /// Rounds; each runs every server once [default: 7; of compare 20]
    #[arg(long)]
    pairs: Option<usize>,
    /// Add rounds to those in the results file, which must have the same settings: node
    #[arg(long)]
    add: bool,
    /// Folder for the raw results
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
    /// Sockets, instead of the benchmark's own number (for a trial run)
    #[arg(long)]
    connections: Option<usize>,
    /// Seconds of each run or hold, instead of the benchmark's own
    #[arg(long)]
    seconds: Option<f64>,
    /// Servers to run, instead of the benchmark's own
    #[arg(long, value_enum, value_delimiter = ',')]
    servers: Vec<Kind>,
    /// Executable to measure instead of the release build
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Executable of standfast from before a change, to run as "standfast again"
    #[arg(long)]
    control: Option<PathBuf>,
    /// Executable of AnyCable, to run beside standfast: applications, nodes-cable
    #[arg(long)]
    anycable: Option<PathBuf>,
    /// Executable of ghz, to run beside standfast: grpc [default: that on the PATH]
    #[arg(long)]
    ghz: Option<PathBuf>,
    /// Executable of an echo server on another library, to run beside ours; may be repeated: library
    #[arg(long, value_name = "PATH")]
    rival: Vec<PathBuf>,
    /// Server to call instead of the C program, HOST:PORT: grpc
    #[arg(long)]
    target: Option<String>,
}

/// One benchmark.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Messages echoed per server CPU second: 100 sockets, 20 bytes
    Echo,
    /// The same with compression: 100 sockets, 1 KiB of JSON
    Deflate,
    /// The same over TLS: 100 sockets, 20 bytes; memory of 15,000 idle sockets
    Tls,
    /// Server CPU for 10,000 connects at once
    Connects,
    /// Server CPU for publishing to 10,000 sockets, one message at a time
    Fanout,
    /// The same with and without a history, in turn
    FanoutHistory,
    /// 100 messages per second to 10,000 sockets: delivery, latency, CPU
    Rate,
    /// Latency of `/health` and the admin listener during a connection storm and a broadcast
    Answers,
    /// 10,000 clients at once before an application that takes 20 ms for a call; what a call costs
    Applications,
    /// Whole-process memory with 100,000 sockets, and after they have disconnected
    Memory,
    /// Client CPU per HTTP request, `load` beside wrk, k6 and go-stress-testing: kept and new
    /// connections, live screen; send delay at a rate
    Http,
    /// Client CPU per HTTP/2 request, `load --http2` beside h2load: by streams and connections, over TLS,
    /// with the live screen
    Http2,
    /// Client CPU of an echoed message, `load ws://` over HTTP/2 beside HTTP/1.1, through HAProxy
    Http2Sockets,
    /// Client CPU per gRPC call, `load grpc://` beside h2load and ghz: unary and streams; memory of 100,000 held
    /// streams
    Grpc,
    /// Five minutes of requests that each open a connection: none may fail
    NewConnections,
    /// Messages per proxy CPU second through standfast, nginx, HAProxy and a bare relay
    Proxy,
    /// The same for standfast with 50,000 silent tunnels in addition, and their memory
    ProxyIdle,
    /// CPU of `load` with and without the live screen
    Screen,
    /// Verdicts of `load compare` on runs of one unchanged server, beside a program that comes and goes
    Compare,
    /// The admin page over 100,000 connections to 10,000 topics: first paint, CPU while it is open
    Page,
    /// 10,000 members who join one topic within two seconds: events that each receives
    Presence,
    /// 10,000 clients that are away for 5 s during 100 messages per second: each message once, when they have
    /// caught up
    Away,
    /// 100,000 topics of 100 messages in the history: counted and resident bytes, what is dropped
    History,
    /// One stream of messages to 10,000 sockets on 1 to 8 nodes over Redis: bytes of Redis, CPU, latency
    Nodes,
    /// Broadcasts to 10,000 clients of Action Cable on 3 nodes over Redis, and a restart of Redis meanwhile; with
    /// `--anycable` beside AnyCable
    NodesCable,
    /// 100,000 topics of one node, whose Redis or NATS is killed and started again: time to the last topic and to a
    /// delivery
    Resubscribe,
    /// Memory of an idle client of `/cable`, without and with an application
    IdleBytes,
    /// Messages per server CPU second and memory of an idle socket: the library's example beside `serve --echo`, and
    /// with `--rival` beside other libraries
    Library,
    /// The package of npm beside uWebSockets.js, `ws` and `node:http`: messages, requests and publications per server
    /// CPU second, memory of an idle socket
    Node,
    /// A million sockets on threads of one Node.js process with the package of npm, for ten minutes: memory, pauses for
    /// garbage; not part of `all`
    NodeHold,
    /// An hour of killed clients and an application that is killed, slow and wrong: messages lost or doubled;
    /// not part of `all`
    Soak,
    /// Memory that remains after 100,000 refused handshakes, 100,000 resets, 10,000 endless request
    /// heads; what clients hold by padded identifiers, begun messages, silent admin connections, and
    /// with a closed log
    Siege,
    /// The same for the proxy: refused handshakes, resets of either side, floods to peers that do not
    /// read; slow bodies, half-closed tunnels, an unread access log
    ProxySiege,
    /// Server CPU for a million silent sockets
    Idle,
    /// `standfast prove` with a million sockets
    Million,
    /// All of these except `soak` and `node-hold`, million last
    All,
}

const ALL: [Bench; 33] = [
    Bench::Echo,
    Bench::Deflate,
    Bench::Tls,
    Bench::Connects,
    Bench::Fanout,
    Bench::FanoutHistory,
    Bench::Rate,
    Bench::Answers,
    Bench::Applications,
    Bench::Memory,
    Bench::Http,
    Bench::Http2,
    Bench::Http2Sockets,
    Bench::Grpc,
    Bench::NewConnections,
    Bench::Proxy,
    Bench::ProxyIdle,
    Bench::Screen,
    Bench::Compare,
    Bench::Page,
    Bench::Presence,
    Bench::Away,
    Bench::History,
    Bench::Nodes,
    Bench::NodesCable,
    Bench::Resubscribe,
    Bench::IdleBytes,
    Bench::Library,
    Bench::Node,
    Bench::Siege,
    Bench::ProxySiege,
    Bench::Idle,
    Bench::Million,
];

/// Rounds of a benchmark.
const PAIRS: usize = 7;
/// How long ports stay unusable after many sockets were closed (TIME_WAIT is 60 s).
const TIME_WAIT: Duration = Duration::from_secs(61);

/// Runs the requested benchmarks. Returns whether every target was met.
///
/// # Errors
/// When something cannot be built, started or read; a missed target is not an error.
pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    let wanted: Vec<Bench> =
        if args.what.contains(&Bench::All) { ALL.to_vec() } else { args.what.clone() };
    let bench = Context {
        tools: Tools::prepare(
            args.binary.clone(),
            args.control.clone(),
            needs_ours(args, &wanted),
        )?,
        pairs: args.pairs.unwrap_or(PAIRS).max(1),
        pairs_wanted: args.pairs,
        add: args.add,
        connections: args.connections,
        seconds: args.seconds,
        servers: args.servers.clone(),
        anycable: args.anycable.clone(),
        ghz: args.ghz.clone(),
        rivals: args.rival.clone(),
        target: args.target.clone(),
        out: step::root().join(&args.out),
    };
    let mut met = true;
    for (index, what) in wanted.iter().enumerate() {
        if index > 0 && matches!(what, Bench::Idle | Bench::NodeHold | Bench::Million) {
            println!("\nwaiting {} s for ports in TIME_WAIT", TIME_WAIT.as_secs());
            std::thread::sleep(TIME_WAIT);
        }
        met &= match what {
            Bench::Echo => echo::run(&bench)?,
            Bench::Deflate => wrapped::deflate(&bench)?,
            Bench::Tls => wrapped::tls(&bench)?,
            Bench::Connects => connects::run(&bench)?,
            Bench::Fanout => fanout::one_at_a_time(&bench)?,
            Bench::FanoutHistory => fanout::with_history(&bench)?,
            Bench::Rate => fanout::at_a_rate(&bench)?,
            Bench::Answers => answers::run(&bench)?,
            Bench::Applications => applications::run(&bench)?,
            Bench::Memory => hold::memory(&bench)?,
            Bench::Http => http::run(&bench)?,
            Bench::Http2 => http2::run(&bench)?,
            Bench::Http2Sockets => http2_sockets::run(&bench)?,
            Bench::Grpc => grpc::run(&bench)?,
            Bench::NewConnections => http::new_connections(&bench)?,
            Bench::Proxy => proxy::run(&bench)?,
            Bench::ProxyIdle => proxy::beside_idle(&bench)?,
            Bench::Screen => screen::run(&bench)?,
            Bench::Compare => compare::run(&bench)?,
            Bench::Page => page::run(&bench)?,
            Bench::Presence => presence::run(&bench)?,
            Bench::Away => away::run(&bench)?,
            Bench::History => history::run(&bench)?,
            Bench::Nodes => nodes::run(&bench)?,
            Bench::NodesCable => nodes_cable::run(&bench)?,
            Bench::Resubscribe => resubscribe::run(&bench)?,
            Bench::IdleBytes => idle_bytes::run(&bench)?,
            Bench::Library => library::run(&bench)?,
            Bench::Node => node::run(&bench)?,
            Bench::NodeHold => hold::node(&bench)?,
            Bench::Soak => soak::run(&bench)?,
            Bench::Siege => siege::run(&bench)?,
            Bench::ProxySiege => siege_proxy::run(&bench)?,
            Bench::Idle => hold::idle(&bench)?,
            Bench::Million => million::run(&bench)?,
            Bench::All => true,
        };
    }
    Ok(met)
}

/// Whether standfast takes part, so that it must be built.
fn needs_ours(args: &BenchArgs, wanted: &[Bench]) -> bool {
    let compared = |bench: &Bench| {
        matches!(bench, Bench::Echo | Bench::Connects | Bench::Fanout | Bench::Rate)
    };
    !wanted.iter().all(compared)
        || args.servers.is_empty()
        || args.servers.iter().any(|kind| kind.is_ours())
}

/// What every benchmark needs.
struct Context {
    tools: Tools,
    pairs: usize,
    /// Pairs of the command line, for a benchmark with a default of its own.
    pairs_wanted: Option<usize>,
    /// Rounds are added to those of earlier results.
    add: bool,
    connections: Option<usize>,
    seconds: Option<f64>,
    servers: Vec<Kind>,
    anycable: Option<PathBuf>,
    ghz: Option<PathBuf>,
    rivals: Vec<PathBuf>,
    target: Option<String>,
    out: PathBuf,
}

impl Context {
    /// Returns the requested servers, or the benchmark's own.
    fn servers(&self, defined: &[Kind]) -> Vec<Kind> {
        if self.servers.is_empty() { defined.to_vec() } else { self.servers.clone() }
    }
}
