//! The flags of `standfast load`, and how each value is read.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use admin::Address;
use clap::builder::ValueParser;
use clap::{Subcommand, ValueEnum};
use load::stages::Stage;
use load::{Connect, Fanout, Proxy, Resolve};

use super::requests::flags as requests;
use super::scenario::InitArgs;
use super::threshold::Threshold;
use super::{compare, from_curl, metrics};
use crate::{tls, units};

/// Headings of flags, by which `help` finds them.
const CONNECTIONS: &str = "Connections";
const PACING: &str = "Pacing";
const MESSAGES: &str = "Messages";
const RESULTS: &str = "Results";
const FANOUT: &str = "Fan-out";
const CABLE: &str = "Action Cable";

/// Sends requests, or opens WebSockets and holds them, and checks every answer.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) command: Option<Command>,

    /// Where to: http://HOST:PORT/PATH or https:// for requests, ws:// wss:// for WebSockets, cable://
    /// cables:// for Action Cable, tcp:// tls:// for a protocol of one's own; or FILE.toml, a scenario
    ///
    /// Several of one kind are taken in turn, and {9000..9003} stands for each number of a range. A
    /// scenario is users who go step by step: standfast load init writes one
    #[arg(required = true, value_name = "URL")]
    pub(super) urls: Vec<String>,

    /// Where the steps of a scenario go whose url is a path, instead of what its file says
    #[arg(long, value_name = "URL", help_heading = CONNECTIONS)]
    pub(super) target: Option<String>,

    /// Connections to open
    #[arg(short = 'c', long, value_name = "N", default_value = "100", value_parser = units::positive_count,
        help_heading = CONNECTIONS)]
    pub(super) connections: u64,

    /// A number of connections that goes up and down: 30s:10k,2m:10k,30s:0 takes 30 s to 10,000,
    /// stays 2 min, and closes them within 30 s; instead of --connections
    #[arg(long, value_name = "TIME:N,…", value_delimiter = ',', value_parser = stage,
        conflicts_with_all = ["connections", "echo", "fanout", "rate", "messages"],
        help_heading = CONNECTIONS)]
    pub(super) stages: Vec<Stage>,

    /// How to open them: windowed (as fast as the server opens them), storm (all at once),
    /// paced:RATE (so many per second) or one-by-one
    #[arg(long, value_name = "HOW", default_value = "windowed", value_parser = connect,
        help_heading = CONNECTIONS)]
    pub(super) connect: Connect,

    /// How long one connection may take to open [default: 30s, with cable:// 6s; of requests no time of
    /// its own within --timeout]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration,
        help_heading = CONNECTIONS)]
    pub(super) connect_timeout: Option<Duration>,

    /// Try a connect that failed so many times more, or forever [default: 0, with cable:// 10]
    #[arg(long, value_name = "N", value_parser = attempts, help_heading = CONNECTIONS)]
    pub(super) retry: Option<u32>,

    /// Wait before it, at random up to a bound that doubles from the first time to the second
    /// [default: 100ms..30s, with cable:// as Rails' client waits: 6s to 12s, then 15 % longer each time]
    #[arg(long, value_name = "TIME..TIME", value_parser = units::duration_range,
        help_heading = CONNECTIONS)]
    pub(super) backoff: Option<(Duration, Duration)>,

    /// Open WebSockets that ended again, with the same waits; with cable:// they always are
    #[arg(long, help_heading = CONNECTIONS)]
    pub(super) reconnect: bool,

    /// How long to hold the open connections [default: 10s, or 0 before an echo]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = CONNECTIONS)]
    pub(super) hold: Option<Duration>,

    /// Ping each connection once in this time; 0 never [default: 30s, with cable:// 0: browsers send none]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = CONNECTIONS)]
    pub(super) heartbeat: Option<Duration>,

    /// Send messages and expect them back; implied by --size, --message, --think, --rate, --messages,
    /// --messages-per-connection, --duration and --timeout
    #[arg(long, help_heading = MESSAGES)]
    pub(super) echo: bool,

    /// Bytes of a message [default: 20]
    #[arg(long, value_name = "BYTES", value_parser = units::size, help_heading = MESSAGES)]
    pub(super) size: Option<u64>,

    /// What each message says, or @FILE; text, unless --binary. Answers are taken in their order.
    /// With cable:// it is performed on the channel, as '{"action":"echo"}', and any message answers it
    #[arg(long, value_name = "TEXT", conflicts_with = "size", value_parser = content,
        help_heading = MESSAGES)]
    pub(super) message: Option<Bytes>,

    /// Send --message as a binary message
    #[arg(long, requires = "message", help_heading = MESSAGES)]
    pub(super) binary: bool,

    /// What an answer is: the same, or any message
    #[arg(long, value_enum, default_value = "same", requires = "message", help_heading = MESSAGES)]
    pub(super) answer: Answer,

    /// Wait between an answer and the next message, 1s, or at random 500ms..2s
    #[arg(long, value_name = "TIME", value_parser = units::duration_range, conflicts_with = "rate",
        help_heading = PACING)]
    pub(super) think: Option<(Duration, Duration)>,

    /// Messages or requests per second over all connections, sent when due; without it, a connection
    /// sends its next when its last was answered
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = PACING)]
    pub(super) rate: Option<u64>,

    /// Messages per connection, or publications in all
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = PACING)]
    pub(super) messages: Option<u64>,

    /// Close a connection after so many messages, each sent when the last was answered, and open
    /// another in its place; when --duration is over those that are open finish theirs
    #[arg(long, value_name = "N", value_parser = units::positive_count,
        conflicts_with_all = ["messages", "rate", "stages", "fanout"], help_heading = PACING)]
    pub(super) messages_per_connection: Option<u64>,

    /// How long to send messages or requests [default: 10s without a number of them]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration,
        help_heading = PACING)]
    pub(super) duration: Option<Duration>,

    /// How long to wait for an answer [default: 1s, to a request 30s]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration,
        help_heading = PACING)]
    pub(super) timeout: Option<Duration>,

    /// Publish so many messages a second, of which every connection is to receive each once;
    /// --messages, --duration and --size are of the publications then
    #[arg(long, value_name = "RATE", value_parser = units::positive_count, help_heading = FANOUT)]
    pub(super) fanout: Option<u64>,

    /// So many publishers take turns at the rate, each over an HTTP connection or by a socket of its
    /// own and with numbers of its own; at most 64
    #[arg(long, value_name = "K", default_value_t = 1, help_heading = FANOUT,
        requires = "fanout",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Fanout::PUBLISHERS_MAX)))]
    pub(super) publishers: u32,

    /// Where to publish by HTTP POST, http://HOST:PORT/api/publish
    #[arg(long, value_name = "URL", help_heading = FANOUT, requires = "fanout")]
    pub(super) publish_url: Option<String>,

    /// Publish by the first connections, which are to receive their messages too; with cable:// they
    /// whisper to the others
    #[arg(long, help_heading = FANOUT, requires = "fanout", conflicts_with = "publish_url")]
    pub(super) publish_by_socket: bool,

    /// The key that publishing needs, sent as 'Authorization: Bearer KEY'
    #[arg(long, value_name = "KEY", value_parser = ValueParser::new(publish_key),
        help_heading = FANOUT, requires = "publish_url")]
    pub(super) publish_key: Option<(String, String)>,

    /// A further header line of the publish request
    #[arg(long, value_name = "NAME: VALUE", value_parser = ValueParser::new(header),
        help_heading = FANOUT, requires = "publish_url")]
    pub(super) publish_header: Vec<(String, String)>,

    /// The topic to publish to [default: NAME where the URL's path is /topics/NAME, with cable:// the
    /// public stream of --channel]
    #[arg(long, value_name = "NAME", help_heading = FANOUT, requires = "publish_url",
        conflicts_with = "publish_body")]
    pub(super) topic: Option<String>,

    /// The request's body for other servers, in which $DATA is the message, and with --churn $STREAM
    /// the stream's name as JSON
    /// [default: {"topic":"NAME","data":"$DATA"}, for AnyCable's /_broadcast
    /// {"stream":"NAME","data":"\"$DATA\""}]
    #[arg(long, value_name = "TEXT", help_heading = FANOUT, requires = "publish_url")]
    pub(super) publish_body: Option<String>,

    /// A receipt later than this after its publish counts as late; with --churn also how long a
    /// subscription's end may take
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::positive_duration,
        help_heading = FANOUT)]
    pub(super) late_after: Duration,

    /// What a client of Action Cable subscribes by; several are taken in turn, and {1..4} stands for
    /// each number of a range [default: {"channel":"$pubsub","stream_name":"load"}]
    #[arg(long, value_name = "JSON", help_heading = CABLE)]
    pub(super) channel: Vec<String>,

    /// Offer AnyCable's extended protocol, actioncable-v1-ext-json, instead of actioncable-v1-json
    #[arg(long, help_heading = CABLE)]
    pub(super) cable_extended: bool,

    /// How long a client of Action Cable goes without a ping before it gives its connection up and takes
    /// another; as long may a connect take [default: 6s, as Rails' and AnyCable's clients]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration, help_heading = CABLE)]
    pub(super) stale_after: Option<Duration>,

    /// Begin or end so many subscriptions a second over all connections, at most four of each, by
    /// --channel at random, while --fanout publishes to all their streams in turn; every subscription
    /// must get each publication that falls into its time once, and nothing else
    #[arg(long, value_name = "RATE", value_parser = units::positive_count, help_heading = CABLE,
        requires_all = ["fanout", "publish_url"], conflicts_with = "topic")]
    pub(super) churn: Option<u64>,

    /// Addresses of this machine to connect from; loopback needs none
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = units::ip,
        help_heading = CONNECTIONS)]
    pub(super) source: Vec<IpAddr>,

    /// Go by this HTTP proxy, http://[USER:PASSWORD@]HOST:PORT: it is asked for http:// in the server's
    /// place, and by CONNECT for a tunnel to all others
    #[arg(long, value_name = "URL", value_parser = Proxy::parse, help_heading = CONNECTIONS)]
    pub(super) proxy: Option<Proxy>,

    /// Connect to this UNIX socket, whatever the URL's host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["proxy", "source"],
        help_heading = CONNECTIONS)]
    pub(super) unix_socket: Option<PathBuf>,

    /// Where a name leads, HOST:PORT:ADDRESS, before any name server is asked
    #[arg(long, value_name = "ENTRY", value_parser = Resolve::parse, help_heading = CONNECTIONS)]
    pub(super) resolve: Vec<Resolve>,

    /// A further header line of the handshake, or of each request
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = ValueParser::new(header),
        help_heading = CONNECTIONS)]
    pub(super) header: Vec<(String, String)>,

    /// A subprotocol to offer
    #[arg(long, value_name = "NAME", help_heading = CONNECTIONS)]
    pub(super) subprotocol: Vec<String>,

    /// Offer permessage-deflate, and compress what is sent, each message by itself
    #[arg(long, value_name = "HOW", value_enum, default_value = "off", help_heading = MESSAGES)]
    pub(super) compression: Compression,

    /// Bytes from which on a message is compressed
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = units::size,
        help_heading = MESSAGES)]
    pub(super) compress_above: u64,

    #[command(flatten)]
    pub(super) requests: requests::Flags,

    #[command(flatten)]
    pub(super) tls: tls::ClientFlags,

    /// Write the summary as JSON to a file, or to standard output with -
    #[arg(long, value_name = "FILE", help_heading = RESULTS)]
    pub(super) json: Option<String>,

    /// What must be reached for exit code 0, such as 'p99<50ms' or 'failed<1': p50, p90, p95, p99,
    /// p999, max (times); failed, closed, lost, errors, rate (counts); errors also as 'errors<0.1%'
    #[arg(long, visible_alias = "fail", value_name = "CONDITION", help_heading = RESULTS)]
    pub(super) threshold: Vec<Threshold>,

    /// Tell what this process takes: memory, CPU, descriptors
    #[arg(long, value_name = "PID", help_heading = RESULTS)]
    pub(super) watch_pid: Option<u32>,

    /// Write a line per second of the run
    #[arg(long, value_name = "FILE", help_heading = RESULTS)]
    pub(super) csv: Option<String>,

    /// Write the whole run as one HTML page
    #[arg(long, value_name = "FILE", help_heading = RESULTS)]
    pub(super) html: Option<String>,

    /// Show what the run has come to so far at http://ADDRESS/metrics, for Prometheus, while it lasts;
    /// a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDRESS", value_parser = metrics::address, help_heading = RESULTS)]
    pub(super) metrics: Option<Address>,

    /// Key that scrapes must send as a Bearer token; without one --metrics is for this machine only
    #[arg(long, value_name = "KEY", help_heading = RESULTS, requires = "metrics",
        value_parser = crate::running::key)]
    pub(super) metrics_key: Option<String>,

    /// Begin even though the machine seems too small
    #[arg(long, help_heading = CONNECTIONS)]
    pub(super) force: bool,

    /// Rows of text instead of a live screen
    #[arg(long, help_heading = RESULTS)]
    pub(super) plain: bool,

    /// Obey JSON lines on standard input and answer on standard output
    #[arg(long, hide = true)]
    pub(super) control: bool,
}

/// What is done with runs that have been, or are to be.
#[derive(Subcommand, Debug)]
pub(super) enum Command {
    /// Compare two runs: what changed, how sure that is; exit code 1 where it got worse
    Compare(compare::Args),
    /// Print what a file of curl commands is as commands of `standfast load`
    FromCurl(from_curl::Args),
    /// Write a commented scenario that runs as it is
    Init(InitArgs),
}

/// How to open connections, as [`connect`] reads it.
pub(crate) fn connect_as_said(connect: Connect) -> String {
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
            None => Err("write windowed, storm, paced:RATE or one-by-one".to_owned()),
        },
    }
}

/// A message of the user's own.
#[derive(Clone, Debug)]
pub(super) struct Bytes(pub(super) Vec<u8>);

#[derive(ValueEnum, Copy, Clone, Debug)]
pub(super) enum Answer {
    /// The message as it was sent
    Same,
    /// Any message
    Any,
}

#[derive(ValueEnum, Copy, Clone, Debug)]
pub(super) enum Compression {
    /// Nothing is offered
    Off,
    /// Each message by itself
    Shared,
}

pub(super) fn content(text: &str) -> Result<Bytes, String> {
    let Some(file) = text.strip_prefix('@') else { return Ok(Bytes(text.as_bytes().to_vec())) };
    std::fs::read(file).map(Bytes).map_err(|error| format!("cannot read {file}: {error}"))
}

pub(super) fn stage(text: &str) -> Result<Stage, String> {
    let (time, connections) =
        text.split_once(':').ok_or_else(|| format!("{text:?} is no stage: write 30s:10k"))?;
    Ok(Stage { time: units::duration(time)?, connections: units::count(connections)? })
}

fn attempts(text: &str) -> Result<u32, String> {
    if text == "forever" {
        return Ok(u32::MAX);
    }
    let count = units::count(text).ok().and_then(|count| u32::try_from(count).ok());
    count.ok_or_else(|| format!("{text:?} is no number of attempts: write 5 or forever"))
}

fn publish_key(key: &str) -> Result<(String, String), String> {
    let usable = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    let line = || ("Authorization".to_owned(), format!("Bearer {key}"));
    usable.then(line).ok_or_else(|| "a key is letters, digits and signs without blanks".to_owned())
}

fn header(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
    let is_name = |name: &str| {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !name.is_empty() && name.bytes().all(token)
    };
    match parts {
        Some((name, value)) if is_name(name) && !value.contains(char::is_control) => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(format!("{text:?} is no header line: write 'Name: value'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_connect() {
        assert_eq!(connect("paced:5k"), Ok(Connect::Paced(5_000)));
        assert_eq!(connect("storm"), Ok(Connect::Storm));
        assert!(connect("fast").is_err() && connect("paced:").is_err());
    }

    #[test]
    fn header_lines_break_out_of_nothing() {
        assert!(header("X: a\r\nY: b").is_err() && header("no colon").is_err());
        assert_eq!(header("Origin: http://a"), Ok(("Origin".into(), "http://a".into())));
    }
}
