//! The flags of `standfast load` and the parsers of their values.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use admin::Address;
use clap::builder::ValueParser;
use clap::{Subcommand, ValueEnum};
use load::stages::Stage;
use load::{Connect, Fanout, HttpPublish, Proxy, Resolve, Threshold};

use super::requests::flags as requests;
use super::requests::grpc as calls;
use super::scenario::InitArgs;
use super::share::Share;
use super::{compare, convert, from_curl, grpc, merge, threshold, urls};
use crate::commands::fleet::{FilesFlag, FleetFlags, who};
use crate::report::prometheus;
use crate::{tls, units};

/// Help headings; `standfast help load TOPIC` selects flags by them.
const CONNECTIONS: &str = "Connections";
const PACING: &str = "Pacing";
const MESSAGES: &str = "Messages";
pub(super) const RESULTS: &str = "Results";
const FANOUT: &str = "Fan-out";
const CABLE: &str = "Action Cable";
const FLEETS: &str = crate::commands::fleet::HEADING;

/// Load generator for HTTP, WebSockets, gRPC, Action Cable and TCP.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) command: Option<Command>,

    /// Target: http://HOST:PORT/PATH or https:// for requests, ws:// wss:// for WebSockets, cable://
    /// cables:// for Action Cable, grpc://HOST:PORT/SERVICE/METHOD grpcs:// for calls, tcp:// tls:// for
    /// other protocols; or a scenario, FILE.toml
    ///
    /// PORT, :PORT/PATH and HOST:PORT/PATH are http://. Several URLs of one kind are used in turn, and {9000..9003} expands to each number of the range. A
    /// scenario describes users step by step; `standfast load init` writes an example
    #[arg(required = true, value_name = "URL", value_parser = urls::complete)]
    pub(super) urls: Vec<String>,

    /// Base URL for scenario steps whose url is a path [default: the file's target]
    #[arg(long, value_name = "URL", help_heading = CONNECTIONS)]
    pub(super) target: Option<String>,

    /// Number of connections
    #[arg(short = 'c', long, value_name = "N", default_value = "100", value_parser = units::positive_count,
        help_heading = CONNECTIONS)]
    pub(super) connections: u64,

    /// Ramp the number of connections: 30s:10k,2m:10k,30s:0 opens 10,000 within 30 s, holds them for
    /// 2 min and closes them within 30 s; replaces --connections
    #[arg(long, value_name = "TIME:N,…", value_delimiter = ',', value_parser = stage,
        conflicts_with_all = ["connections", "echo", "fanout", "rate", "messages"],
        help_heading = CONNECTIONS)]
    pub(super) stages: Vec<Stage>,

    /// How to open connections: windowed (as fast as the server accepts them), storm (all at once),
    /// paced:RATE (RATE per second) or one-by-one
    #[arg(long, value_name = "HOW", default_value = "windowed", value_parser = connect,
        help_heading = CONNECTIONS)]
    pub(super) connect: Connect,

    /// Maximum connects in flight [default: with storm 16k, with windowed 512 per core]
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = CONNECTIONS)]
    pub(super) in_flight: Option<u64>,

    /// Time limit for opening a connection [default: 30s, with cable:// 6s; for requests --timeout
    /// applies]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration,
        help_heading = CONNECTIONS)]
    pub(super) connect_timeout: Option<Duration>,

    /// Retries per failed connection, or `forever` [default: 0, with cable:// 10]
    #[arg(long, value_name = "N", value_parser = attempts, help_heading = CONNECTIONS)]
    pub(super) retry: Option<u32>,

    /// Retry backoff MIN..MAX, doubling, full jitter [default: 100ms..30s; with cable:// as the Rails
    /// client: 6s to 12s, then 15 % longer each time]
    #[arg(long, value_name = "TIME..TIME", value_parser = units::duration_range,
        help_heading = CONNECTIONS)]
    pub(super) backoff: Option<(Duration, Duration)>,

    /// Reopen WebSockets that were closed, with the retry backoff; cable:// clients always reconnect
    #[arg(long, help_heading = CONNECTIONS)]
    pub(super) reconnect: bool,

    /// How long to hold the open connections [default: 10s, with --echo 0]; with grpc:// how long each
    /// stream lasts [default: until it or the run ends]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = CONNECTIONS)]
    pub(super) hold: Option<Duration>,

    /// Ping interval per connection, 0 to disable [default: 30s; with cable:// 0, as in browsers]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = CONNECTIONS)]
    pub(super) heartbeat: Option<Duration>,

    /// Send messages and check the echoes, with grpc:// on bidi streams; with ws:// implied by --size, --message, --think, --rate, --messages,
    /// --messages-per-connection, --duration and --timeout
    #[arg(long, help_heading = MESSAGES)]
    pub(super) echo: bool,

    /// Message size in bytes [default: 20]
    #[arg(long, value_name = "BYTES", value_parser = units::size, help_heading = MESSAGES)]
    pub(super) size: Option<u64>,

    /// Message content, or @FILE; text unless --binary. Answers are matched in order. With cable:// the
    /// message is performed on the channel, as '{"action":"echo"}', and any message counts as its answer
    #[arg(long, value_name = "TEXT", conflicts_with = "size", value_parser = content,
        help_heading = MESSAGES)]
    pub(super) message: Option<Bytes>,

    /// Send --message as a binary message
    #[arg(long, requires = "message", help_heading = MESSAGES)]
    pub(super) binary: bool,

    /// What counts as an answer: the same message, or any message
    #[arg(long, value_enum, default_value = "same", requires = "message", help_heading = MESSAGES)]
    pub(super) answer: Answer,

    /// Think time between an answer and the next message: 1s, or a random time from 500ms..2s
    #[arg(long, value_name = "TIME", value_parser = units::duration_range, conflicts_with = "rate",
        help_heading = PACING)]
    pub(super) think: Option<(Duration, Duration)>,

    /// Messages or requests per second over all connections, sent on schedule (open loop) [default:
    /// each connection sends the next when the last is answered]
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = PACING)]
    pub(super) rate: Option<u64>,

    /// Messages per connection; in a fan-out test the total number of publications, with grpc:// messages
    /// per call of a stream
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = PACING)]
    pub(super) messages: Option<u64>,

    /// Close a connection after N answered messages and open a new one; at the end of --duration the
    /// open connections send their remaining messages
    #[arg(long, value_name = "N", value_parser = units::positive_count,
        conflicts_with_all = ["messages", "rate", "stages", "fanout"], help_heading = PACING)]
    pub(super) messages_per_connection: Option<u64>,

    /// How long to send messages or requests [default: 10s, unless a number of them is set]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration,
        help_heading = PACING)]
    pub(super) duration: Option<Duration>,

    /// Warm-up before the measurement, whose messages and requests are not counted
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration,
        help_heading = PACING)]
    pub(super) warm_up: Duration,

    /// Time limit for an answer [default: 1s, for requests 30s]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration,
        help_heading = PACING)]
    pub(super) timeout: Option<Duration>,

    /// Publish RATE messages a second and check that every connection receives each one once;
    /// --messages, --duration and --size then describe the publications
    #[arg(long, value_name = "RATE", value_parser = units::positive_count, help_heading = FANOUT)]
    pub(super) fanout: Option<u64>,

    /// Number of publishers that share the rate, each with its own connection and sequence
    /// numbers; at most 64
    #[arg(long, value_name = "K", default_value_t = 1, help_heading = FANOUT,
        requires = "fanout",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Fanout::PUBLISHERS_MAX)))]
    pub(super) publishers: u32,

    /// URL to publish to by HTTP POST: http://HOST:PORT/api/publish, or https://
    #[arg(long, value_name = "URL", help_heading = FANOUT, requires = "fanout")]
    pub(super) publish_url: Option<String>,

    /// Publish through the first connections, which must receive the messages too; with cable:// as
    /// whispers to the other clients
    #[arg(long, help_heading = FANOUT, requires = "fanout", conflicts_with = "publish_url")]
    pub(super) publish_by_socket: bool,

    /// Key for publishing, sent as 'Authorization: Bearer KEY'
    #[arg(long, value_name = "KEY", value_parser = ValueParser::new(publish_key),
        help_heading = FANOUT, requires = "publish_url")]
    pub(super) publish_key: Option<(String, String)>,

    /// Add a header to the publish requests
    #[arg(long, value_name = "NAME: VALUE", value_parser = ValueParser::new(header),
        help_heading = FANOUT, requires = "publish_url")]
    pub(super) publish_header: Vec<(String, String)>,

    /// Topic to publish to [default: NAME if the URL's path is /topics/NAME, with cable:// the public
    /// stream of --channel]
    #[arg(long, value_name = "NAME", help_heading = FANOUT, requires = "publish_url",
        conflicts_with = "publish_body")]
    pub(super) topic: Option<String>,

    /// Body of the publish request for other servers: $DATA is replaced by the message, and with
    /// --churn $STREAM by the stream name as JSON
    /// [default: {"topic":"NAME","data":"$DATA"}, for AnyCable's /_broadcast
    /// {"stream":"NAME","data":"\"$DATA\""}]
    #[arg(long, value_name = "TEXT", help_heading = FANOUT, requires = "publish_url")]
    pub(super) publish_body: Option<String>,

    /// Unanswered publications that each publisher may have; a publication that is due beyond them is
    /// not sent, and counted
    #[arg(long, value_name = "N", default_value_t = HttpPublish::IN_FLIGHT, help_heading = FANOUT,
        requires = "publish_url", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) publish_in_flight: u32,

    /// A message received later than this after its publication counts as late; with --churn also the
    /// time limit for an unsubscribe, with grpc:// an answer to a message that --echo awaits
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::positive_duration,
        help_heading = FANOUT)]
    pub(super) late_after: Duration,

    /// Identifier that an Action Cable client subscribes with; several are used in turn, and {1..4}
    /// expands to each number of the range. $pubsub is a channel of streams by name, without a class
    /// of the application [default: {"channel":"$pubsub","stream_name":"load"}]
    #[arg(long, value_name = "JSON", help_heading = CABLE)]
    pub(super) channel: Vec<String>,

    /// Offer AnyCable's extended protocol, actioncable-v1-ext-json, instead of actioncable-v1-json
    #[arg(long, help_heading = CABLE)]
    pub(super) cable_extended: bool,

    /// Time without a ping after which an Action Cable client reconnects; also its connect time limit
    /// [default: 6s, as in the Rails and AnyCable clients]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration, help_heading = CABLE)]
    pub(super) stale_after: Option<Duration>,

    /// Subscribe or unsubscribe RATE times a second over all connections, with a random --channel and at
    /// most four per connection, while --fanout publishes to all streams in turn; every subscription
    /// must receive each publication of its lifetime once, and no other
    #[arg(long, value_name = "RATE", value_parser = units::positive_count, help_heading = CABLE,
        requires_all = ["fanout", "publish_url"], conflicts_with = "topic")]
    pub(super) churn: Option<u64>,

    /// Local addresses to connect from; not needed for loopback
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = units::ip,
        help_heading = CONNECTIONS)]
    pub(super) source: Vec<IpAddr>,

    /// Use this HTTP proxy, http://[USER:PASSWORD@]HOST:PORT: http:// requests are sent to it, all
    /// others through a CONNECT tunnel
    #[arg(long, value_name = "URL", value_parser = Proxy::parse, help_heading = CONNECTIONS)]
    pub(super) proxy: Option<Proxy>,

    /// Connect to this UNIX socket instead of the URL's host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["proxy", "source"],
        help_heading = CONNECTIONS)]
    pub(super) unix_socket: Option<PathBuf>,

    /// Resolve HOST:PORT to ADDRESS without DNS: HOST:PORT:ADDRESS
    #[arg(long, value_name = "ENTRY", value_parser = Resolve::parse, help_heading = CONNECTIONS)]
    pub(super) resolve: Vec<Resolve>,

    /// Add a header to the handshake or to each request
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = ValueParser::new(header),
        help_heading = CONNECTIONS)]
    pub(super) header: Vec<(String, String)>,

    /// Subprotocol to offer
    #[arg(long, value_name = "NAME", help_heading = CONNECTIONS)]
    pub(super) subprotocol: Vec<String>,

    /// Compress messages: shared for WebSockets (permessage-deflate, each message separately), gzip for
    /// grpc://
    #[arg(long, value_name = "HOW", value_enum, default_value = "off", help_heading = MESSAGES)]
    pub(super) compression: Compression,

    /// Size from which messages are compressed, in bytes
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = units::size,
        help_heading = MESSAGES)]
    pub(super) compress_above: u64,

    #[command(flatten)]
    pub(super) requests: requests::Flags,

    #[command(flatten, next_help_heading = "gRPC (grpc:// grpcs://)")]
    pub(super) grpc: grpc::SchemaFlags,

    #[command(flatten, next_help_heading = "gRPC (grpc:// grpcs://)")]
    pub(super) call: calls::CallFlags,

    #[command(flatten)]
    pub(super) tls: tls::ClientFlags,

    /// Write the summary as JSON to a file, or - for standard output
    #[arg(long, value_name = "FILE", help_heading = RESULTS)]
    pub(super) json: Option<String>,

    /// Condition for exit code 0, such as 'p99<50ms' or 'failed<1': p50, p90, p95, p99, p999, max
    /// (times); failed, closed, lost, errors, rate (counts); errors also as 'errors<0.1%'. Of scenarios
    /// also of steps and tags, 'p99{step:login}<1s', and 'checks{check:NAME}>99%'
    #[arg(long, value_parser = threshold::parse, visible_alias = "fail", value_name = "CONDITION", help_heading = RESULTS)]
    pub(super) threshold: Vec<Threshold>,

    /// Report memory, CPU and descriptors of this process
    #[arg(long, value_name = "PID", help_heading = RESULTS)]
    pub(super) watch_pid: Option<u32>,

    /// Write one CSV line per second of the run
    #[arg(long, value_name = "FILE", help_heading = RESULTS)]
    pub(super) csv: Option<String>,

    /// Write a report of the run as one HTML page
    #[arg(long, value_name = "FILE", help_heading = RESULTS)]
    pub(super) html: Option<String>,

    /// Serve Prometheus metrics at http://ADDRESS/metrics during the run; a port alone listens on
    /// 127.0.0.1
    #[arg(long, value_name = "ADDRESS", value_parser = prometheus::address, help_heading = RESULTS)]
    pub(super) metrics: Option<Address>,

    /// Bearer token that scrapes must send; required when --metrics is not on loopback
    #[arg(long, value_name = "KEY", help_heading = RESULTS, requires = "metrics",
        value_parser = crate::running::key)]
    pub(super) metrics_key: Option<String>,

    /// Start even if the machine's limits seem too low
    #[arg(long, help_heading = CONNECTIONS)]
    pub(super) force: bool,

    /// Print rows of text instead of the live screen
    #[arg(long, help_heading = RESULTS)]
    pub(super) plain: bool,

    /// Share the run over agents of a fleet: their number, `all`, or a label as KEY=VALUE
    #[arg(long, value_name = "WHO", value_parser = who, help_heading = FLEETS)]
    pub(super) agents: Option<String>,

    /// How long to wait for that number of agents
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::positive_duration,
        help_heading = FLEETS)]
    pub(super) agents_within: Duration,

    /// Most bytes of --json: details are left out until it fits, agents' first
    #[arg(long, value_name = "SIZE", value_parser = json_max, requires = "json",
        help_heading = FLEETS)]
    pub(super) json_max: Option<u64>,

    #[command(flatten)]
    pub(super) fleet: FleetFlags,

    #[command(flatten)]
    pub(super) files: FilesFlag,

    /// Be one of several generators, as JSON says; used by `standfast agent`
    #[arg(long, hide = true, value_parser = Share::parse)]
    pub(super) agent_share: Option<Share>,

    /// Take commands as JSON lines on standard input and report on standard output
    #[arg(long, hide = true)]
    pub(super) control: bool,
}

/// Parses `--json-max`: a result without details needs a few KiB.
fn json_max(text: &str) -> Result<u64, String> {
    let size = units::size(text)?;
    if size >= 16 << 10 { Ok(size) } else { Err("expected at least 16KiB".to_owned()) }
}

/// Subcommands that prepare or compare runs.
#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Compare runs before and after a change; exit code 1 if it made them worse
    Compare(compare::Args),
    /// Convert a file of curl commands to `standfast load` commands
    FromCurl(from_curl::Args),
    /// Convert a browser's HAR recording to a scenario
    FromHar(convert::from_har::Args),
    /// Convert the plain parts of a k6 script to a scenario
    FromK6(convert::from_k6::Args),
    /// List the services and methods of a gRPC server, with example commands
    GrpcList(grpc::list::Args),
    /// Merge the results of generators that ran at the same time
    Merge(merge::Args),
    /// Write a commented example scenario
    Init(InitArgs),
}

/// Formats a [`Connect`] as [`connect`] parses it.
pub(crate) fn connect_flag(connect: Connect) -> String {
    match connect {
        Connect::Windowed => "windowed".to_owned(),
        Connect::Storm => "storm".to_owned(),
        Connect::OneByOne => "one-by-one".to_owned(),
        Connect::Paced(rate) => format!("paced:{rate}"),
    }
}

pub(crate) fn connect(text: &str) -> Result<Connect, String> {
    match text {
        "windowed" => Ok(Connect::Windowed),
        "storm" => Ok(Connect::Storm),
        "one-by-one" => Ok(Connect::OneByOne),
        _ => match text.strip_prefix("paced:") {
            Some(rate) => units::positive_count(rate).map(Connect::Paced),
            None => Err("expected windowed, storm, paced:RATE or one-by-one".to_owned()),
        },
    }
}

/// Message content given on the command line.
#[derive(Clone, Debug)]
pub(super) struct Bytes(pub(super) Vec<u8>);

#[derive(ValueEnum, Copy, Clone, Debug)]
pub(super) enum Answer {
    /// The message that was sent
    Same,
    /// Any message
    Any,
}

#[derive(ValueEnum, Copy, Clone, Debug)]
pub(super) enum Compression {
    /// No compression
    Off,
    /// Each message of WebSockets is compressed separately
    Shared,
    /// Each message of gRPC
    Gzip,
}

pub(super) fn content(text: &str) -> Result<Bytes, String> {
    let Some(file) = text.strip_prefix('@') else { return Ok(Bytes(text.as_bytes().to_vec())) };
    let read = load::files::admit(file.as_ref()).and_then(|()| std::fs::read(file));
    read.map(Bytes).map_err(|error| format!("cannot read {file}: {error}"))
}

pub(super) fn stage(text: &str) -> Result<Stage, String> {
    let (time, connections) =
        text.split_once(':').ok_or_else(|| "expected TIME:N, such as 30s:10k".to_owned())?;
    Ok(Stage { time: units::duration(time)?, connections: units::count(connections)? })
}

fn attempts(text: &str) -> Result<u32, String> {
    if text == "forever" {
        return Ok(u32::MAX);
    }
    let count = units::count(text).ok().and_then(|count| u32::try_from(count).ok());
    count.ok_or_else(|| "expected a number such as 5, or forever".to_owned())
}

fn publish_key(key: &str) -> Result<(String, String), String> {
    let usable = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    let line = || ("Authorization".to_owned(), format!("Bearer {key}"));
    usable.then(line).ok_or_else(|| "expected printable ASCII without spaces".to_owned())
}

pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
    let is_name = |name: &str| {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !name.is_empty() && name.bytes().all(token)
    };
    match parts {
        Some((name, value)) if is_name(name) && !value.contains(char::is_control) => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected 'Name: value'".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_modes_are_parsed() {
        assert_eq!(connect("paced:5k"), Ok(Connect::Paced(5_000)));
        assert_eq!(connect("storm"), Ok(Connect::Storm));
        assert!(connect("fast").is_err() && connect("paced:").is_err());
    }

    #[test]
    fn headers_with_line_breaks_are_refused() {
        assert!(header("X: a\r\nY: b").is_err() && header("no colon").is_err());
        assert_eq!(header("Origin: http://a"), Ok(("Origin".into(), "http://a".into())));
    }
}
