//! Each flag in each kind of run: it changes the configuration, or it is refused.

use std::sync::LazyLock;

use clap::{Command, CommandFactory, FromArgMatches};

use super::*;

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    _args: Args,
}

/// A minimal command line of each kind of run.
const LINES: [(Modes, &str); 12] = [
    (HOLD, "ws://127.0.0.1:1"),
    (ECHO, "ws://127.0.0.1:1 --echo --message x"),
    (STAGES, "ws://127.0.0.1:1 --stages 1s:5"),
    (FANOUT, "ws://127.0.0.1:1/topics/t --fanout 5 --publish-url http://127.0.0.1:1/api/publish"),
    (CABLE_HOLD, "cable://127.0.0.1:1"),
    (CABLE_ECHO, r#"cable://127.0.0.1:1 --message {"action":"echo"}"#),
    (CABLE_STAGES, "cable://127.0.0.1:1 --stages 1s:5"),
    (CABLE_FANOUT, "cable://127.0.0.1:1 --fanout 5 --publish-url http://127.0.0.1:1/_broadcast"),
    (
        CHURN,
        r#"cable://127.0.0.1:1 --fanout 5 --churn 5 --publish-url http://127.0.0.1:1/_broadcast
            --channel {"channel":"$pubsub","stream_name":"s{1..3}"}"#,
    ),
    (HTTP, "http://127.0.0.1:1"),
    (TCP, "tcp://127.0.0.1:1 --data x"),
    (SCENARIO, "go-stress-http"),
];

/// Each flag with a value that is not its default, and what it needs beside it in some kinds of runs.
const GIVEN: [(&str, &str); 63] = [
    ("target", "--target http://127.0.0.1:2"),
    ("connections", "--connections 7"),
    ("stages", "--stages 2s:6"),
    ("connect", "--connect storm"),
    ("in_flight", "--in-flight 3"),
    ("connect_timeout", "--connect-timeout 9s"),
    ("retry", "--retry 3"),
    ("backoff", "--backoff 1ms..2ms --retry 1"),
    ("reconnect", "--reconnect"),
    ("hold", "--hold 7s"),
    ("heartbeat", "--heartbeat 7s"),
    ("source", "--source 127.0.0.2"),
    ("proxy", "--proxy http://127.0.0.1:3"),
    ("unix_socket", "--unix-socket /run/x"),
    ("resolve", "--resolve a:1:127.0.0.9"),
    ("header", "--header A:b"),
    ("subprotocol", "--subprotocol p"),
    ("force", "--force"),
    ("echo", "--echo"),
    ("size", "--size 99"),
    ("message", r#"--message {"action":"other"}"#),
    ("binary", "--binary"),
    ("answer", "--answer any"),
    ("compression", "--compression shared"),
    ("compress_above", "--compress-above 9 --compression shared"),
    ("think", "--think 5s"),
    ("rate", "--rate 77"),
    ("messages", "--messages 77"),
    ("messages_per_connection", "--messages-per-connection 77"),
    ("duration", "--duration 77s"),
    ("timeout", "--timeout 77s"),
    ("fanout", "--fanout 77"),
    ("publishers", "--publishers 3"),
    ("publish_url", "--publish-url http://127.0.0.1:4/api/publish"),
    ("publish_by_socket", "--publish-by-socket"),
    ("publish_in_flight", "--publish-in-flight 3"),
    ("publish_key", "--publish-key k"),
    ("publish_header", "--publish-header A:b"),
    ("topic", "--topic other"),
    ("publish_body", "--publish-body $DATA$STREAM"),
    ("late_after", "--late-after 7s"),
    ("channel", r#"--channel {"channel":"$pubsub","stream_name":"s9"}"#),
    ("cable_extended", "--cable-extended"),
    ("stale_after", "--stale-after 77s"),
    ("churn", "--churn 77"),
    ("requests", "--requests 77"),
    ("method", "--method PUT"),
    ("data", "--data other"),
    ("warm_up", "--warm-up 3s"),
    ("rates", "--rates 1s:5"),
    ("new_connections", "--new-connections"),
    ("pipeline", "--pipeline 3"),
    ("http2", "--http2"),
    ("streams", "--http2 --streams 3"),
    ("redirects", "--redirects 3"),
    ("accept", "--accept 204"),
    ("check", "--check latency<250ms"),
    ("expect", "--expect y"),
    ("expect_regex", "--expect-regex y"),
    ("expect_length", "--expect-length 3"),
    ("http1.0", "--http1.0"),
    ("urls", "URL"),
    ("control", "--control"),
];

/// Flags that are no part of a configuration: the client of TLS, whose tests are in `tests/tls.rs`, the
/// types and messages of calls, whose tests are in `tests/load_grpc.rs` and `tests/load_grpc_streams.rs`, and
/// the outputs, which are those of all runs.
const BESIDE: [&str; 28] = [
    "agents",
    "agents_within",
    "json_max",
    "agent_share",
    "nats",
    "nats_creds",
    "nats_ca",
    "fleet",
    "files_max",
    "proto",
    "proto_path",
    "protoset",
    "message_every",
    "health",
    "insecure",
    "ca",
    "cert",
    "key",
    "sni",
    "tls_resume",
    "json",
    "threshold",
    "watch_pid",
    "csv",
    "html",
    "metrics",
    "metrics_key",
    "plain",
];

/// Returns a line with a flag instead of the same one in the line, or beside it.
fn with(line: &str, id: &str, given: &str) -> Vec<String> {
    let flag = given.split(' ').next().unwrap_or_default();
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let replaced = match id {
        "publish_by_socket" => "--publish-url",
        // Sizes and contents of messages exclude each other.
        "size" | "rate" if line.contains("--echo") => "--message",
        _ => flag,
    };
    if let Some(at) = words.iter().position(|word| word == replaced) {
        words.drain(at..at + if replaced == "--echo" { 1 } else { 2 });
    }
    words.extend(given.split_whitespace().map(str::to_owned));
    words
}

/// Returns the configuration of a line as text; an error if a flag is refused.
fn configured(words: &[String], mode: Modes) -> Result<String> {
    static COMMAND: LazyLock<Command> = LazyLock::new(Cli::command);
    let words = std::iter::once("load").chain(words.iter().map(String::as_str));
    let flags = COMMAND.clone().try_get_matches_from(words)?;
    let args = Args::from_arg_matches(&flags)?;
    // A flag may lead to another kind of run, which then uses it.
    check(&flags, of(&args))?;
    Ok(match of(&args) {
        SCENARIO => scenario::configured(&args, &flags)?,
        HTTP | TCP => format!("{:?}", requests::plan(&args)?),
        _ => format!("{mode} {:?}", config::config(&args)?),
    })
}

#[test]
fn every_flag_is_declared() {
    let command: Command = Cli::command();
    let mut all: Vec<String> =
        command.get_arguments().map(|argument| argument.get_id().to_string()).collect();
    let mut declared: Vec<String> = FLAGS.iter().map(|(id, _)| (*id).to_owned()).collect();
    let mut tested: Vec<String> =
        GIVEN.iter().map(|(id, _)| *id).chain(BESIDE).map(str::to_owned).collect();
    [&mut all, &mut declared, &mut tested].into_iter().for_each(|list| list.sort());
    assert_eq!(all, declared, "each flag of the command has a row in the table");
    assert_eq!(all, tested, "and a value here");
}

#[test]
fn lines_are_of_their_kind() {
    for (mode, line) in LINES {
        let words = std::iter::once("load").chain(line.split_whitespace());
        let args = Cli::command().try_get_matches_from(words).unwrap();
        assert_eq!(of(&Args::from_arg_matches(&args).unwrap()), mode, "{line}");
    }
}

/// Each flag in each kind of run: it changes the configuration, or it is refused.
#[test]
fn every_flag_is_used_or_refused_in_every_kind_of_run() {
    let mut wrong = Vec::new();
    for (mode, line) in LINES {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let before = configured(&words, mode).unwrap();
        for (id, given) in GIVEN {
            if ["urls", "control"].contains(&id) {
                continue;
            }
            let words = with(line, id, given);
            let shown = words.join(" ");
            match configured(&words, mode) {
                // The message of the line implies the echo.
                Ok(after) if after == before && id != "echo" => {
                    wrong.push(format!("{shown}: the flag has no effect"));
                }
                Ok(_) => {}
                Err(error) => {
                    let error = format!("{error:#}");
                    let mut flags = given.split(' ').filter(|word| word.starts_with("--"));
                    let is_named = flags.any(|flag| error.contains(flag));
                    // There an echo needs a message.
                    let leads_to_echo = mode == CABLE_HOLD && error.contains("--message");
                    if uses(mode, id) || !is_named && !leads_to_echo {
                        wrong.push(format!("{shown}: {error}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn flags_without_effect_beside_others_are_refused() {
    for (line, named) in [
        ("ws://127.0.0.1:1 --stages 1s:5 --think 1s", "--think is for --echo, not for --stages"),
        ("ws://127.0.0.1:1 --stages 1s:5 --timeout 1s", "--timeout is for --echo"),
        ("ws://127.0.0.1:1 --stages 1s:5 --duration 1s", "--duration is for --echo"),
        ("cable://127.0.0.1:1 --stages 1s:5 --size 9", "--size is for"),
        ("ws://127.0.0.1:1 --compress-above 9", "--compression shared"),
        ("ws://127.0.0.1:1 --backoff 1s..2s", "--retry"),
        ("cable://127.0.0.1:1 --reconnect", "--reconnect is for ws://, not for cable://"),
        (
            "http://127.0.0.1:1 --hold 1s",
            "--hold is for ws://, cable://, grpc:// and grpc-web://, not for http://",
        ),
        (
            "http://127.0.0.1:1 --fanout 5 --publish-by-socket",
            "--fanout is for ws:// and cable://, not for http://",
        ),
        ("http://127.0.0.1:1 --echo", "--echo is for ws://, cable:// and grpc://, not for http://"),
        ("http://127.0.0.1:1 --tls-resume off", "TLS"),
        ("ws://127.0.0.1:1 --churn 5 --fanout 5 --publish-url http://a", "--churn is for cable://"),
    ] {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = format!("{:#}", configured(&words, HOLD).unwrap_err());
        assert!(error.contains(named), "{line}: {error}");
    }
}
