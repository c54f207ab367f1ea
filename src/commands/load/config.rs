//! From flags to a [`Config`]: what goes together, and what is meant where nothing is said.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::{
    Cable, Config, Connect, Content, Echo, Endpoint, Fanout, Growth, HttpPublish, Publish, Retry,
    stages,
};

use super::cable::{self, Clients};
use super::destinations;
use super::flags::{Answer, Args, Bytes, Compression};

/// # Errors
/// What cannot be used, or does not go together.
pub(super) fn config(args: &Args) -> Result<Config> {
    let (urls, is_cable) = cable::to_websocket(destinations::urls(args)?)?;
    let clients = Clients::new(args, is_cable)?;
    let ways = destinations::ways(args)?;
    let endpoints = urls.iter().map(|url| ways.websocket(url)).collect::<Result<_, _>>();
    let mut endpoints: Vec<Endpoint> = endpoints.map_err(anyhow::Error::msg)?;
    let publish = args.publish_url.as_deref().map(|url| destinations::publish(args, url));
    let mut publish = publish.transpose()?;
    args.tls.set(endpoints.iter_mut().chain(&mut publish))?;
    let streams = streams(args)?;
    if streams.is_some() {
        for endpoint in &mut endpoints {
            endpoint.client = endpoint.client.take().map(|client| client.for_http2());
        }
    }
    destinations::check_sources(args, &endpoints)?;
    let clients = clients.as_ref();
    let fanout = fanout(args, &endpoints, clients, publish)?;
    let is_echo = fanout.is_none() && args.stages.is_empty() && is_echo(args);
    let echo = if is_echo { Some(echo(args, clients)?) } else { None };
    let stale_after = args.stale_after.unwrap_or(Cable::STALE_AFTER);
    let heartbeat_default = clients.is_none().then_some(Duration::from_secs(30));
    let phases = echo.is_some() || fanout.is_some() || !args.stages.is_empty();
    let hold_default = if phases { Duration::ZERO } else { Duration::from_secs(10) };
    Ok(Config {
        endpoints,
        connections: match args.stages.as_slice() {
            [] => args.connections.saturating_mul(streams.unwrap_or(1).into()),
            stages => stages::begun(stages).max(1),
        },
        stages: args.stages.clone(),
        connect: args.connect,
        in_flight: in_flight(args)?,
        connect_timeout: args.connect_timeout.unwrap_or(match clients {
            Some(_) => stale_after,
            None => Duration::from_secs(30),
        }),
        retry: retry(args, clients.is_some()),
        awaits_target: args.retry.is_some(),
        sources: args.source.clone(),
        streams,
        headers: args.header.clone(),
        protocols: match clients {
            Some(clients) => clients.protocols(&args.subprotocol),
            None => args.subprotocol.clone(),
        },
        cable: clients
            .map(|clients| Cable { stale_after, ..Cable::new(clients.identifiers.clone()) }),
        compress_above: match args.compression {
            Compression::Off | Compression::Gzip => None,
            Compression::Shared => Some(usize::try_from(args.compress_above).unwrap_or(usize::MAX)),
        },
        heartbeat: args.heartbeat.or(heartbeat_default).filter(|period| !period.is_zero()),
        warm_up: warm_up(args)?,
        hold: args.hold.unwrap_or(hold_default),
        linger: Duration::ZERO,
        echo,
        fanout,
        churn: clients.map(|clients| clients.churn(args)).transpose()?.flatten(),
        force: args.force,
        gate: None,
    })
}

/// Returns the sockets on each HTTP/2 connection; `None` without HTTP/2.
fn streams(args: &Args) -> Result<Option<u32>> {
    let flags = &args.requests;
    if flags.streams > 1 && !flags.http2 {
        bail!("--streams is for HTTP/2: add --http2");
    }
    Ok(flags.http2.then_some(flags.streams))
}

fn warm_up(args: &Args) -> Result<Duration> {
    if !args.warm_up.is_zero() && args.control {
        bail!("--warm-up cannot be combined with --control");
    }
    Ok(args.warm_up)
}

fn in_flight(args: &Args) -> Result<Option<u64>> {
    if args.in_flight.is_some_and(|most| most > 1) && args.connect == Connect::OneByOne {
        bail!("--in-flight cannot be combined with --connect one-by-one");
    }
    Ok(args.in_flight)
}

/// Action Cable clients reconnect with the waits of the Rails client. Retries are limited, so a run
/// against a server that is down fails.
fn retry(args: &Args, cable: bool) -> Retry {
    let reconnect = args.reconnect || cable;
    let attempts_default = match (cable, args.reconnect) {
        (true, _) => 10,
        (false, true) => u32::MAX,
        (false, false) => 0,
    };
    let attempts = args.retry.unwrap_or(attempts_default);
    let (base, most) = args.backoff.unwrap_or(match cable {
        true => (Cable::STALE_AFTER, Duration::ZERO),
        false => (Duration::from_millis(100), Duration::from_secs(30)),
    });
    let as_rails = cable && args.backoff.is_none();
    let growth = if as_rails { Growth::Cable } else { Growth::Doubling };
    Retry { attempts, base, most, growth, reconnect }
}

fn fanout(
    args: &Args,
    endpoints: &[Endpoint],
    clients: Option<&Clients>,
    endpoint: Option<Endpoint>,
) -> Result<Option<Fanout>> {
    let Some(rate) = args.fanout else { return Ok(None) };
    let publish = match args.publish_url.as_ref().zip(endpoint) {
        None if args.publish_by_socket => Publish::Socket,
        None => bail!(
            "--fanout needs --publish-url URL (for standfast serve \
             http://127.0.0.1:8090/api/publish) or --publish-by-socket"
        ),
        Some((url, endpoint)) => Publish::Http(HttpPublish {
            endpoint,
            headers: args.publish_key.iter().chain(&args.publish_header).cloned().collect(),
            body: publish_body(args, endpoints, url, clients)?,
            in_flight: args.publish_in_flight,
        }),
    };
    if args.publish_by_socket && u64::from(args.publishers) > args.connections {
        bail!("--publishers {} exceeds --connections", args.publishers);
    }
    let messages = messages(args.messages, "--messages")?;
    let duration_default = messages.is_none().then_some(Duration::from_secs(10));
    let size = args.size.unwrap_or(0);
    let size = usize::try_from(size).ok().filter(|&size| size <= 1 << 20);
    Ok(Some(Fanout {
        rate,
        publishers: args.publishers,
        messages,
        duration: args.duration.or(duration_default),
        size: size.context("invalid --size: a publication has at most 1MiB")?,
        late_after: args.late_after,
        publish,
    }))
}

fn publish_body(
    args: &Args,
    endpoints: &[Endpoint],
    publish_url: &str,
    clients: Option<&Clients>,
) -> Result<String> {
    if let Some(body) = &args.publish_body {
        if !body.contains("$DATA") {
            bail!("invalid --publish-body: expected $DATA in place of the message");
        }
        if args.churn.is_some() && !body.contains("$STREAM") {
            bail!(
                "invalid --publish-body: expected $STREAM in place of the stream name with --churn"
            );
        }
        return Ok(body.clone());
    }
    let broadcasts = publish_url.ends_with("/_broadcast");
    if args.churn.is_some() {
        let body = if broadcasts {
            HttpPublish::BROADCAST_BODY_FOR_ALL
        } else {
            HttpPublish::BODY_FOR_ALL
        };
        return Ok(body.to_owned());
    }
    let body_for = match broadcasts {
        true => HttpPublish::broadcast_body_for,
        false => HttpPublish::body_for,
    };
    if let Some(topic) = &args.topic {
        return Ok(body_for(topic));
    }
    if let Some(clients) = clients {
        return Ok(body_for(&clients.public_stream()?));
    }
    let path = endpoints.first().map(|endpoint| endpoint.path.as_str()).unwrap_or_default();
    let topic = path.strip_prefix("/topics/").map(|rest| rest.split('?').next().unwrap_or(rest));
    let topic = topic.context(
        "--topic NAME is required unless the URL's path is /topics/NAME; for other servers use \
         --publish-body '{\"channel\":\"news\",\"data\":\"$DATA\"}'",
    )?;
    Ok(body_for(topic))
}

fn messages(value: Option<u64>, flag: &str) -> Result<Option<u32>> {
    match value.map(u32::try_from) {
        Some(Ok(u32::MAX) | Err(_)) => bail!("invalid {flag}: expected less than {}", u32::MAX),
        Some(Ok(messages)) => Ok(Some(messages)),
        None => Ok(None),
    }
}

/// Returns whether the flags of a run without stages and fan-out imply an echo.
pub(super) fn is_echo(args: &Args) -> bool {
    let Args { size, rate, duration, timeout, .. } = args;
    let counted = size.or(*rate).or(args.messages).or(args.messages_per_connection);
    let timed = duration.is_some() || timeout.is_some() || args.think.is_some();
    args.echo || args.message.is_some() || counted.is_some() || timed
}

fn echo(args: &Args, clients: Option<&Clients>) -> Result<Echo> {
    let Args { size, rate, duration, timeout, .. } = args;
    let turnover = args.messages_per_connection;
    let size = usize::try_from(size.unwrap_or(20)).unwrap_or(usize::MAX);
    // In a closed loop answers are matched by order; otherwise a message carries a number.
    let least = if rate.is_none() { 1 } else { Echo::SIZE_MIN };
    if !(least..=1 << 30).contains(&size) {
        bail!(
            "invalid --size: expected {least} to 1GiB (with --rate a message carries a 4-byte number)"
        );
    }
    if let Some(Bytes(data)) = &args.message
        && !args.binary
        && std::str::from_utf8(data).is_err()
    {
        bail!("--message is not valid UTF-8: add --binary");
    }
    let messages = match turnover {
        Some(_) => self::messages(turnover, "--messages-per-connection")?,
        None => self::messages(args.messages, "--messages")?,
    };
    let timed = messages.is_none() || turnover.is_some();
    let duration_default = timed.then_some(Duration::from_secs(10));
    let content = match clients {
        Some(clients) => Some(clients.performed(args)?),
        None => args.message.as_ref().map(|Bytes(data)| Content {
            data: data.clone(),
            binary: args.binary,
            any_answer: matches!(args.answer, Answer::Any),
        }),
    };
    let content = content.or_else(|| (size < Echo::SIZE_MIN).then(|| Content::filling(size)));
    Ok(Echo {
        size,
        rate: *rate,
        messages,
        duration: duration.or(duration_default),
        turnover: turnover.is_some(),
        content,
        validator: None,
        think: args.think,
        timeout: timeout.unwrap_or(Duration::from_secs(1)),
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::commands::load::modes;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        _args: Args,
    }

    fn read(line: &str) -> Result<Config> {
        let words = std::iter::once("load").chain(line.split(' '));
        let matches = Command::command().try_get_matches_from(words)?;
        let args = Args::from_arg_matches(&matches)?;
        modes::check(&matches, modes::of(&args))?;
        config(&args)
    }

    #[test]
    fn flags_of_the_echo_imply_echo() {
        let plain = read("ws://127.0.0.1:1/").unwrap();
        assert!(plain.echo.is_none());
        assert_eq!((plain.hold, plain.connections), (Duration::from_secs(10), 100));
        for flag in ["--echo", "--size 64KiB", "--rate 1k", "--messages 5", "--duration 1m"] {
            let config = read(&format!("ws://127.0.0.1:1/ {flag}")).unwrap();
            assert!(config.echo.is_some() && config.hold.is_zero(), "{flag}");
        }
        let echo = read("ws://127.0.0.1:1/ --messages 2k").unwrap().echo.unwrap();
        assert_eq!((echo.size, echo.messages, echo.duration), (20, Some(2_000), None));
        let turnover = read("ws://127.0.0.1:1/ --messages-per-connection 50 --size 1");
        let echo = turnover.unwrap().echo.unwrap();
        assert!(echo.turnover && echo.content.is_some_and(|content| content.data.len() == 1));
        assert_eq!((echo.messages, echo.duration), (Some(50), Some(Duration::from_secs(10))));
        let echo = read("ws://127.0.0.1:1/ --rate 10k").unwrap().echo.unwrap();
        assert_eq!((echo.rate, echo.duration), (Some(10_000), Some(Duration::from_secs(10))));
    }

    #[test]
    fn connects_in_flight_are_limited_unless_one_by_one() {
        let storm = read("ws://127.0.0.1:1/ --connect storm --in-flight 100k").unwrap();
        assert_eq!((storm.connect, storm.in_flight), (Connect::Storm, Some(100_000)));
        assert_eq!(read("ws://127.0.0.1:1/ --connect storm").unwrap().in_flight, None);
        assert!(read("ws://127.0.0.1:1/ --in-flight 0").is_err());
        assert!(read("ws://127.0.0.1:1/ --connect one-by-one --in-flight 2").is_err());
    }

    #[test]
    fn cable_clients_have_the_defaults_of_rails() {
        let cable = read("cable://127.0.0.1:1").unwrap();
        let endpoint = &cable.endpoints[0];
        assert_eq!((endpoint.path.as_str(), endpoint.tls), ("/cable", false));
        assert_eq!(cable.protocols, ["actioncable-v1-json", "actioncable-unsupported"]);
        let clients = cable.cable.unwrap();
        assert_eq!(clients.identifiers, [r#"{"channel":"$pubsub","stream_name":"load"}"#]);
        assert_eq!((cable.heartbeat, cable.connect_timeout), (None, Duration::from_secs(6)));
        assert!(cable.retry.reconnect && cable.retry.growth == Growth::Cable);
        assert_eq!(cable.retry.attempts, 10);
        let patient = read("cable://127.0.0.1:1 --stale-after 90s").unwrap();
        let stale_after = patient.cable.unwrap().stale_after;
        assert_eq!((stale_after, patient.connect_timeout), (Duration::from_secs(90), stale_after));
        let line = "cable://127.0.0.1:1/live?jid=x --cable-extended --subprotocol anycable-token.a \
                    --backoff 1s..2s --heartbeat 5s";
        let config = read(line).unwrap();
        let offered = ["actioncable-v1-ext-json", "anycable-token.a", "actioncable-unsupported"];
        assert_eq!(
            (config.endpoints[0].path.as_str(), config.protocols.as_slice()),
            ("/live?jid=x", &offered.map(str::to_owned)[..])
        );
        assert_eq!(
            (config.retry.growth, config.heartbeat),
            (Growth::Doubling, Some(Duration::from_secs(5)))
        );
    }

    #[test]
    fn publications_go_to_the_stream_of_the_channel() {
        let body = |line: &str| match read(line).unwrap().fanout.unwrap().publish {
            Publish::Http(http) => http.body,
            Publish::Socket => "a whisper".to_owned(),
        };
        let cable =
            r#"cable://127.0.0.1:1 --fanout 1 --channel {"channel":"$pubsub","stream_name":"a"}"#;
        let broadcast = format!("{cable} --publish-url http://127.0.0.1:1/_broadcast");
        assert_eq!(body(&broadcast), r#"{"stream":"a","data":"\"$DATA\""}"#);
        let publish = format!("{cable} --publish-url http://127.0.0.1:1/api/publish");
        assert_eq!(body(&publish), r#"{"topic":"a","data":"$DATA"}"#);
        let signed = r#"cable://127.0.0.1:1 --fanout 1 --channel {"channel":"Turbo::StreamsChannel","signed_stream_name":"x"}"#;
        let named = format!("{signed} --publish-url http://127.0.0.1:1/_broadcast --topic b");
        assert_eq!(body(&named), r#"{"stream":"b","data":"\"$DATA\""}"#);
        assert_eq!(body(&format!("{signed} --publish-by-socket")), "a whisper");
        for (line, named) in [
            (format!("{signed} --publish-url http://127.0.0.1:1/_broadcast"), "--topic"),
            (
                format!("{cable} --channel {{\"channel\":\"B\"}} --publish-by-socket"),
                "one --channel",
            ),
        ] {
            let error = format!("{:#}", read(&line).unwrap_err());
            assert!(error.contains(named), "{line}: {error}");
        }
    }

    #[test]
    fn a_churn_publishes_to_the_streams_of_all_channels() {
        let line = r#"cable://127.0.0.1:1 --channel {"channel":"$pubsub","stream_name":"s{1..3}"}
            --fanout 9 --churn 50 --publish-url http://127.0.0.1:1/_broadcast"#;
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let config = read(&line).unwrap();
        let churn = config.churn.unwrap();
        assert_eq!((churn.rate, churn.streams), (50, ["s1", "s2", "s3"].map(str::to_owned).into()));
        let Publish::Http(http) = config.fanout.unwrap().publish else { panic!("by HTTP") };
        assert_eq!(http.body, r#"{"stream":$STREAM,"data":"\"$DATA\""}"#);
        for (more, named) in [
            (r#" --channel {"channel":"Chat"}"#, "does not name"),
            (r#" --channel {"channel":"$pubsub","stream_name":"s2","n":1}"#, "the same stream"),
            (" --publishers 4", "number of streams"),
            (" --publish-body $DATA", "$STREAM"),
        ] {
            let error = format!("{:#}", read(&format!("{line}{more}")).unwrap_err());
            assert!(error.contains(named), "{more}: {error}");
        }
    }

    #[test]
    fn a_message_of_a_cable_client_is_performed() {
        let line = r#"cable://127.0.0.1:1 --message {"action":"echo"} --channel {"channel":"A"}"#;
        let content = read(line).unwrap().echo.unwrap().content.unwrap();
        let text = r#"{"command":"message","identifier":"{\"channel\":\"A\"}","data":"{\"action\":\"echo\"}"}"#;
        assert_eq!(
            (String::from_utf8(content.data).unwrap().as_str(), content.any_answer),
            (text, true)
        );
    }

    #[test]
    fn heartbeat_zero_disables_it() {
        assert!(read("ws://127.0.0.1:1/ --heartbeat 0").unwrap().heartbeat.is_none());
    }

    #[test]
    fn invalid_values_are_named() {
        for (line, named) in [
            ("gopher://127.0.0.1/", "gopher"),
            ("ws://127.0.0.1:1/ --proxy socks5://127.0.0.1:1", "http://"),
            ("ws://127.0.0.1:1/ --unix-socket a --proxy b:1", "cannot be used with"),
            ("ws://127.0.0.1:1/ --unix-socket a --source 127.0.0.1", "cannot be used with"),
            ("ws://127.0.0.1:1/ --size 3 --rate 5", "--size"),
            ("ws://127.0.0.1:1/ --size 0", "--size"),
            ("ws://127.0.0.1:1/ --messages-per-connection 5 --rate 5", "--rate"),
            ("cable://127.0.0.1:1/ --message a --messages-per-connection 5", "ws://"),
            ("ws://127.0.0.1:1/ --messages 5000M", "--messages"),
            ("ws://127.0.0.1:1/ --connections 0", "--connections"),
            ("ws://127.0.0.1:1/ --source 192.0.2.1", "192.0.2.1"),
            ("ws://127.0.0.1:1/ --source ::1", "::1"),
            ("ws://127.0.0.1:1/ --hold 5", "--hold"),
            ("ws://127.0.0.1:1/ --channel {}", "cable://"),
            ("ws://127.0.0.1:1/ --cable-extended", "cable://"),
            ("ws://127.0.0.1:1/ --stale-after 9s", "cable://"),
            ("ws://127.0.0.1:1/ cable://127.0.0.1:1/", "cable://"),
            ("cable://127.0.0.1:1/ --channel Chat", "not JSON"),
            ("cable://127.0.0.1:1/ --channel {}", "channel is missing"),
            ("cable://127.0.0.1:1/ --echo", "--message"),
            ("cable://127.0.0.1:1/ --message hello", "--message"),
        ] {
            let error = format!("{:#}", read(line).unwrap_err());
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
