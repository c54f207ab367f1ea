//! `standfast load`: flags to a [`Config`], rows and a summary to people, an exit code.

mod page;
mod screen;
mod threshold;
mod urls;
mod watch;

use std::io::{self, BufReader, Write};
use std::net::{IpAddr, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clap::builder::ValueParser;
use engine::sys::process::{self, Signal};
use host::Machine;
use load::stages::{self, Stage};
use load::{
    Config, Connect, Content, Echo, Ended, Endpoint, Fanout, HttpPublish, Publish, Retry, Row,
    Summary,
};
use serde::Serialize;

use self::screen::Screen;
use self::threshold::{Outcome, Threshold};
use self::watch::{Generator, Watched};
use crate::progress::Series;
use crate::{output, tls, units};

const FANOUT: &str = "Fan-out";

/// Opens WebSockets, holds them, sends messages and checks every answer.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to connect, ws://HOST:PORT/PATH or wss://…; several are taken in turn, and {9000..9003} stands
    /// for each number of a range
    #[arg(required = true, value_name = "URL")]
    urls: Vec<String>,

    /// Connections to open
    #[arg(long, value_name = "N", default_value = "100", value_parser = units::positive_count)]
    connections: u64,

    /// A number of connections that goes up and down: 30s:10k,2m:10k,30s:0 takes 30 s to 10,000,
    /// stays 2 min, and closes them within 30 s; instead of --connections
    #[arg(long, value_name = "TIME:N,…", value_delimiter = ',', value_parser = stage,
        conflicts_with_all = ["connections", "echo", "fanout", "rate", "messages"])]
    stages: Vec<Stage>,

    /// How to open them: windowed (as fast as the server opens them), storm (all at once),
    /// paced:RATE (so many per second) or one-by-one
    #[arg(long, value_name = "HOW", default_value = "windowed", value_parser = connect)]
    connect: Connect,

    /// How long one connection may take to open
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::positive_duration)]
    connect_timeout: Duration,

    /// Try a connect that failed so many times more, or forever [default: 0]
    #[arg(long, value_name = "N", value_parser = attempts)]
    retry: Option<u32>,

    /// Wait before it, at random up to a bound that doubles from the first time to the second
    #[arg(long, value_name = "TIME..TIME", default_value = "100ms..30s", value_parser = units::duration_range)]
    backoff: (Duration, Duration),

    /// Open WebSockets that ended again, with the same waits
    #[arg(long)]
    reconnect: bool,

    /// How long to hold the open connections [default: 10s, or 0 before an echo]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    hold: Option<Duration>,

    /// Ping each connection once in this time; 0 never
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    heartbeat: Duration,

    /// Send messages and expect them back; implied by the five flags that follow
    #[arg(long)]
    echo: bool,

    /// Bytes of a message [default: 20]
    #[arg(long, value_name = "BYTES", value_parser = units::size)]
    size: Option<u64>,

    /// What each message says, or @FILE; text, unless --binary. Answers are taken in their order
    #[arg(long, value_name = "TEXT", conflicts_with = "size", value_parser = content)]
    message: Option<Bytes>,

    /// Send --message as a binary message
    #[arg(long, requires = "message")]
    binary: bool,

    /// What an answer is: the same, or any message
    #[arg(long, value_enum, default_value = "same", requires = "message")]
    answer: Answer,

    /// Wait between an answer and the next message, 1s, or at random 500ms..2s
    #[arg(long, value_name = "TIME", value_parser = units::duration_range, conflicts_with = "rate")]
    think: Option<(Duration, Duration)>,

    /// Messages per second over all connections, sent when due; without it, a connection sends its
    /// next message when its last was answered
    #[arg(long, value_name = "N", value_parser = units::positive_count)]
    rate: Option<u64>,

    /// Messages per connection, or publications in all
    #[arg(long, value_name = "N", value_parser = units::positive_count)]
    messages: Option<u64>,

    /// How long to send messages [default: 10s without --messages]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration)]
    duration: Option<Duration>,

    /// How long to wait for an answer [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration)]
    timeout: Option<Duration>,

    /// Publish so many messages a second, of which every connection is to receive each once;
    /// --messages, --duration and --size are of the publications then
    #[arg(long, value_name = "RATE", value_parser = units::positive_count, help_heading = FANOUT)]
    fanout: Option<u64>,

    /// So many publishers take turns at the rate, each over an HTTP connection or by a socket of its
    /// own and with numbers of its own; at most 64
    #[arg(long, value_name = "K", default_value_t = 1, help_heading = FANOUT,
        requires = "fanout",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(Fanout::PUBLISHERS_MAX)))]
    publishers: u32,

    /// Where to publish by HTTP POST, http://HOST:PORT/api/publish
    #[arg(long, value_name = "URL", help_heading = FANOUT, requires = "fanout")]
    publish_url: Option<String>,

    /// Publish by the first connections, which are to receive their messages too
    #[arg(long, help_heading = FANOUT, requires = "fanout", conflicts_with = "publish_url")]
    publish_by_socket: bool,

    /// The key that publishing needs, sent as 'Authorization: Bearer KEY'
    #[arg(long, value_name = "KEY", value_parser = ValueParser::new(publish_key),
        help_heading = FANOUT, requires = "publish_url")]
    publish_key: Option<(String, String)>,

    /// A further header line of the publish request
    #[arg(long, value_name = "NAME: VALUE", value_parser = ValueParser::new(header),
        help_heading = FANOUT, requires = "publish_url")]
    publish_header: Vec<(String, String)>,

    /// The topic to publish to [default: NAME where the URL's path is /topics/NAME]
    #[arg(long, value_name = "NAME", help_heading = FANOUT, requires = "publish_url",
        conflicts_with = "publish_body")]
    topic: Option<String>,

    /// The request's body for other servers, in which $DATA is the message
    /// [default: {"topic":"NAME","data":"$DATA"}]
    #[arg(long, value_name = "TEXT", help_heading = FANOUT, requires = "publish_url")]
    publish_body: Option<String>,

    /// A receipt later than this after its publish counts as late
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::positive_duration,
        help_heading = FANOUT)]
    late_after: Duration,

    /// Addresses of this machine to connect from; loopback needs none
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = units::ip)]
    source: Vec<IpAddr>,

    /// A further header line of the handshake
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = ValueParser::new(header))]
    header: Vec<(String, String)>,

    /// A subprotocol to offer
    #[arg(long, value_name = "NAME")]
    subprotocol: Vec<String>,

    /// Offer permessage-deflate, and compress what is sent, each message by itself
    #[arg(long, value_name = "HOW", value_enum, default_value = "off")]
    compression: Compression,

    /// Bytes from which on a message is compressed
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = units::size)]
    compress_above: u64,

    #[command(flatten)]
    tls: tls::ClientFlags,

    /// Write the summary as JSON to a file, or to standard output with -
    #[arg(long, value_name = "FILE")]
    json: Option<String>,

    /// What must be reached for exit code 0, such as 'p99<50ms' or 'failed<1': p50, p90, p99, p999,
    /// max (times); failed, closed, lost, errors, rate (counts)
    #[arg(long, value_name = "CONDITION")]
    threshold: Vec<Threshold>,

    /// Tell what this process takes: memory, CPU, descriptors
    #[arg(long, value_name = "PID")]
    watch_pid: Option<u32>,

    /// Write the whole run as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<String>,

    /// Begin even though the machine seems too small
    #[arg(long)]
    force: bool,

    /// Rows of text instead of a live screen
    #[arg(long)]
    plain: bool,

    /// Obey JSON lines on standard input and answer on standard output
    #[arg(long, hide = true)]
    control: bool,
}

/// Runs the command. 0: all held; 1: something fell short; 130: interrupted.
///
/// # Errors
/// What cannot be used or is not allowed here: exit code 2.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = config(args)?;
    for file in [&args.json, &args.html].into_iter().flatten() {
        output::check_writable(file)?;
    }
    let interrupted =
        |wait| matches!(process::wait_signal(wait), Some(Signal::Interrupt | Signal::Terminate));
    let ended = if args.control {
        process::end_with_parent();
        let input = BufReader::new(io::stdin());
        load::control::obey(&config, input, io::stdout(), || interrupted(Duration::ZERO))?
    } else {
        return measure(args, &config, interrupted);
    };
    Ok(match ended {
        Ended { interrupted: true, .. } => ExitCode::from(130),
        Ended { summary, .. } => ExitCode::from(u8::from(!summary.held)),
    })
}

/// What a run says of itself beside its summary: `--json`.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    generator: &'a Generator,
    watched: Option<&'a Watched>,
    thresholds: &'a [Outcome],
}

fn measure(
    args: &Args,
    config: &Config,
    interrupted: impl FnMut(Duration) -> bool,
) -> Result<ExitCode> {
    let machine = Machine::read();
    let mut watched = args.watch_pid.map(Watched::begin).transpose().map_err(anyhow::Error::msg)?;
    let mut generator = Generator::new(machine.cores);
    let before = watched.as_mut().and_then(Watched::look);
    let mut screen = Screen::new(config, &args.urls, args.plain, before);
    let mut series = Series::new();
    let row = |row: &Row| {
        let usage = watched.as_mut().and_then(|watched| watched.look_during(row));
        let sample = screen.row(row, usage);
        generator.row(row, sample.client);
        series.push(&sample);
    };
    let mut ended = load::drive(config, row, interrupted)?;
    drop(screen);
    generator.finish(&ended.summary, asked_rate(config), sending_seconds(config));
    if let Some(watched) = &mut watched {
        watched.finish(&ended.summary);
    }
    if generator.missed_the_rate() {
        // What was measured is another rate than the one asked for.
        ended.summary.held = false;
        ended.summary.reasons.push("the rate asked for was not reached in time".to_owned());
    }
    let rate = generator.messages_per_second();
    let outcomes: Vec<Outcome> =
        args.threshold.iter().map(|threshold| threshold.judge(&ended.summary, rate)).collect();
    let (generator, thresholds) = (&generator, &outcomes[..]);
    let document =
        Document { summary: &ended.summary, generator, watched: watched.as_ref(), thresholds };
    report(args.json.as_deref(), &document)?;
    if let Some(file) = &args.html {
        let (asked, came) = ((&args.urls[..], config), (&document, ended.interrupted));
        page::report(asked, came, &series, &machine).write(file)?;
    }
    let missed = outcomes.iter().any(|outcome| !outcome.met);
    let short = match outcomes.as_slice() {
        [] => !ended.summary.held,
        _ => missed || generator.missed_the_rate(),
    };
    Ok(if ended.interrupted { ExitCode::from(130) } else { ExitCode::from(u8::from(short)) })
}

/// Messages per second of an open model.
fn asked_rate(config: &Config) -> Option<f64> {
    let fanout = config.fanout.as_ref().map(|fanout| fanout.rate);
    fanout.or(config.echo.as_ref().and_then(|echo| echo.rate)).map(|rate| rate as f64)
}

/// How long messages are due, where that was said.
fn sending_seconds(config: &Config) -> Option<f64> {
    let echo = config.echo.as_ref()?;
    echo.duration.filter(|_| echo.messages.is_none()).map(|time| time.as_secs_f64())
}

fn config(args: &Args) -> Result<Config> {
    let urls = args.urls.iter().map(|url| urls::expand(url, load::ENDPOINTS_MAX));
    let urls: Vec<Vec<String>> = urls.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
    let endpoints = urls.iter().flatten().map(|url| Endpoint::parse(url)).collect::<Result<_, _>>();
    let mut endpoints: Vec<Endpoint> = endpoints.map_err(anyhow::Error::msg)?;
    args.tls.set(&mut endpoints)?;
    for &source in &args.source {
        if let Some(other) = endpoints.iter().find(|e| e.address.is_ipv4() != source.is_ipv4()) {
            bail!("--source {source}: cannot reach {} from there", other.address);
        }
        // Binding is how to ask whether an address is ours.
        UdpSocket::bind((source, 0))
            .with_context(|| format!("--source {source} is no address of this machine"))?;
    }
    let fanout = fanout(args, &endpoints)?;
    let echo = if fanout.is_some() { None } else { echo(args)? };
    let phases = echo.is_some() || fanout.is_some() || !args.stages.is_empty();
    let hold_default = if phases { Duration::ZERO } else { Duration::from_secs(10) };
    Ok(Config {
        endpoints,
        connections: match args.stages.as_slice() {
            [] => args.connections,
            stages => stages::begun(stages).max(1),
        },
        stages: args.stages.clone(),
        connect: args.connect,
        connect_timeout: args.connect_timeout,
        retry: Retry {
            attempts: args.retry.unwrap_or(if args.reconnect { u32::MAX } else { 0 }),
            base: args.backoff.0,
            most: args.backoff.1,
            reconnect: args.reconnect,
        },
        sources: args.source.clone(),
        headers: args.header.clone(),
        protocols: args.subprotocol.clone(),
        compress_above: match args.compression {
            Compression::Off => None,
            Compression::Shared => Some(usize::try_from(args.compress_above).unwrap_or(usize::MAX)),
        },
        heartbeat: (!args.heartbeat.is_zero()).then_some(args.heartbeat),
        hold: args.hold.unwrap_or(hold_default),
        echo,
        fanout,
        force: args.force,
    })
}

fn fanout(args: &Args, endpoints: &[Endpoint]) -> Result<Option<Fanout>> {
    let Some(rate) = args.fanout else { return Ok(None) };
    if args.echo || args.rate.is_some() {
        bail!("--fanout publishes to all connections; --echo and --rate are another run");
    }
    let publish = match &args.publish_url {
        None if args.publish_by_socket => Publish::Socket,
        None => bail!(
            "--fanout: say how messages are published: --publish-url URL (for standfast serve \
             http://127.0.0.1:8090/api/publish) or --publish-by-socket"
        ),
        Some(url) => Publish::Http(HttpPublish {
            endpoint: Endpoint::parse_http(url).map_err(anyhow::Error::msg)?,
            headers: args.publish_key.iter().chain(&args.publish_header).cloned().collect(),
            body: publish_body(args, endpoints)?,
        }),
    };
    if args.publish_by_socket && u64::from(args.publishers) > args.connections {
        bail!("--publishers {}: there are fewer --connections to publish by", args.publishers);
    }
    let messages = messages(args)?;
    let duration_default = messages.is_none().then_some(Duration::from_secs(10));
    let size = args.size.unwrap_or(0);
    let size = usize::try_from(size).ok().filter(|&size| size <= 1 << 20);
    Ok(Some(Fanout {
        rate,
        publishers: args.publishers,
        messages,
        duration: args.duration.or(duration_default),
        size: size.context("--size of a publication is at most 1MiB")?,
        late_after: args.late_after,
        publish,
    }))
}

fn publish_body(args: &Args, endpoints: &[Endpoint]) -> Result<String> {
    if let Some(body) = &args.publish_body {
        if !body.contains("$DATA") {
            bail!("--publish-body: $DATA must stand where the message goes");
        }
        return Ok(body.clone());
    }
    if let Some(topic) = &args.topic {
        return Ok(HttpPublish::body_for(topic));
    }
    let path = endpoints.first().map(|endpoint| endpoint.path.as_str()).unwrap_or_default();
    let topic = path.strip_prefix("/topics/").map(|rest| rest.split('?').next().unwrap_or(rest));
    let topic = topic.context(
        "--topic NAME is needed, as the URL's path is not /topics/NAME; or for another server \
         --publish-body '{\"channel\":\"news\",\"data\":\"$DATA\"}'",
    )?;
    Ok(HttpPublish::body_for(topic))
}

fn messages(args: &Args) -> Result<Option<u32>> {
    match args.messages.map(u32::try_from) {
        Some(Ok(u32::MAX) | Err(_)) => bail!("--messages must be below {}", u32::MAX),
        Some(Ok(messages)) => Ok(Some(messages)),
        None => Ok(None),
    }
}

fn echo(args: &Args) -> Result<Option<Echo>> {
    let Args { size, rate, duration, timeout, .. } = args;
    let counted = size.or(*rate).or(args.messages);
    let worded = args.message.is_some() || args.think.is_some();
    if !worded && !args.echo && counted.is_none() && duration.is_none() && timeout.is_none() {
        return Ok(None);
    }
    let size = size.unwrap_or(20);
    let size = usize::try_from(size).ok().filter(|size| (Echo::SIZE_MIN..=1 << 30).contains(size));
    let Some(size) = size else {
        bail!("--size must be {} to 1GiB: a message carries its number", Echo::SIZE_MIN);
    };
    if let Some(Bytes(data)) = &args.message
        && !args.binary
        && std::str::from_utf8(data).is_err()
    {
        bail!("--message is not UTF-8, which a text message must be: send it with --binary");
    }
    let messages = self::messages(args)?;
    let duration_default = messages.is_none().then_some(Duration::from_secs(10));
    Ok(Some(Echo {
        size,
        rate: *rate,
        messages,
        duration: duration.or(duration_default),
        content: args.message.as_ref().map(|Bytes(data)| Content {
            data: data.clone(),
            binary: args.binary,
            any_answer: matches!(args.answer, Answer::Any),
        }),
        think: args.think,
        timeout: timeout.unwrap_or(Duration::from_secs(1)),
    }))
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
struct Bytes(Vec<u8>);

#[derive(ValueEnum, Copy, Clone, Debug)]
enum Answer {
    /// The message as it was sent
    Same,
    /// Any message
    Any,
}

#[derive(ValueEnum, Copy, Clone, Debug)]
enum Compression {
    /// Nothing is offered
    Off,
    /// Each message by itself
    Shared,
}

fn content(text: &str) -> Result<Bytes, String> {
    let Some(file) = text.strip_prefix('@') else { return Ok(Bytes(text.as_bytes().to_vec())) };
    std::fs::read(file).map(Bytes).map_err(|error| format!("cannot read {file}: {error}"))
}

fn stage(text: &str) -> Result<Stage, String> {
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

/// The summary: text to standard output, unless JSON is to go there.
fn report(json: Option<&str>, document: &Document<'_>) -> Result<()> {
    let mut text = document.summary.to_string();
    text += &document.generator.to_string();
    text += &document.watched.map(Watched::to_string).unwrap_or_default();
    document.thresholds.iter().for_each(|outcome| text += &outcome.to_string());
    match json {
        Some(output::STDOUT) => {
            let _ = io::stderr().write_all(text.as_bytes());
        }
        _ => output::print(&text)?,
    }
    json.map_or(Ok(()), |file| output::write_json(file, document))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn read(line: &str) -> Result<Config> {
        let words = std::iter::once("load").chain(line.split(' '));
        config(&Command::try_parse_from(words)?.args)
    }

    #[test]
    fn any_flag_of_the_echo_asks_for_one() {
        let plain = read("ws://127.0.0.1:1/").unwrap();
        assert!(plain.echo.is_none());
        assert_eq!((plain.hold, plain.connections), (Duration::from_secs(10), 100));
        for flag in ["--echo", "--size 64KiB", "--rate 1k", "--messages 5", "--duration 1m"] {
            let config = read(&format!("ws://127.0.0.1:1/ {flag}")).unwrap();
            assert!(config.echo.is_some() && config.hold.is_zero(), "{flag}");
        }
        let echo = read("ws://127.0.0.1:1/ --messages 2k").unwrap().echo.unwrap();
        assert_eq!((echo.size, echo.messages, echo.duration), (20, Some(2_000), None));
        let echo = read("ws://127.0.0.1:1/ --rate 10k").unwrap().echo.unwrap();
        assert_eq!((echo.rate, echo.duration), (Some(10_000), Some(Duration::from_secs(10))));
    }

    #[test]
    fn ways_to_connect() {
        assert_eq!(connect("paced:5k"), Ok(Connect::Paced(5_000)));
        assert_eq!(connect("storm"), Ok(Connect::Storm));
        assert!(connect("fast").is_err() && connect("paced:").is_err());
        assert!(read("ws://127.0.0.1:1/ --heartbeat 0").unwrap().heartbeat.is_none());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (line, named) in [
            ("gopher://127.0.0.1/", "gopher"),
            ("ws://127.0.0.1:1/ --size 3", "--size"),
            ("ws://127.0.0.1:1/ --messages 5000M", "--messages"),
            ("ws://127.0.0.1:1/ --connections 0", "--connections"),
            ("ws://127.0.0.1:1/ --source 192.0.2.1", "192.0.2.1"),
            ("ws://127.0.0.1:1/ --source ::1", "::1"),
            ("ws://127.0.0.1:1/ --hold 5", "--hold"),
        ] {
            let error = format!("{:#}", read(line).unwrap_err());
            assert!(error.contains(named), "{line}: {error}");
        }
        assert!(header("X: a\r\nY: b").is_err() && header("no colon").is_err());
        assert_eq!(header("Origin: http://a"), Ok(("Origin".into(), "http://a".into())));
    }
}
