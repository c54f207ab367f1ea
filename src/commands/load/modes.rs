//! The kinds of runs of `standfast load`, and the flags that each one uses. Any other flag is refused:
//! without its effect the run would not be what was asked for.

use anyhow::{Result, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;

use super::flags::{Args, Compression};
use super::{cable, config, requests, scenario};

/// A set of kinds of runs; one kind is a set of one.
pub(super) type Modes = u16;

const HOLD: Modes = 1;
const ECHO: Modes = 1 << 1;
const STAGES: Modes = 1 << 2;
const FANOUT: Modes = 1 << 3;
const CABLE_HOLD: Modes = 1 << 4;
const CABLE_ECHO: Modes = 1 << 5;
const CABLE_STAGES: Modes = 1 << 6;
const CABLE_FANOUT: Modes = 1 << 7;
const CHURN: Modes = 1 << 8;
const HTTP: Modes = 1 << 9;
const TCP: Modes = 1 << 10;
pub(super) const SCENARIO: Modes = 1 << 11;
const GRPC: Modes = 1 << 12;
const GRPC_WEB: Modes = 1 << 13;

const WS: Modes = HOLD | ECHO | STAGES | FANOUT;
const CABLE: Modes = CABLE_HOLD | CABLE_ECHO | CABLE_STAGES | CABLE_FANOUT | CHURN;
const SOCKETS: Modes = WS | CABLE;
const ECHOES: Modes = ECHO | CABLE_ECHO;
const STAGED: Modes = STAGES | CABLE_STAGES;
const FANOUTS: Modes = FANOUT | CABLE_FANOUT | CHURN;
const CALLS: Modes = GRPC | GRPC_WEB;
const REQUESTS: Modes = HTTP | TCP | CALLS;
const RUNS: Modes = SOCKETS | REQUESTS;
const ALL: Modes = RUNS | SCENARIO;
/// What agents can share.
const SHARED: Modes = ALL & !FANOUTS;

/// Each flag, by its name in [`Args`], and the kinds of runs that use it.
const FLAGS: [(&str, Modes); 91] = [
    ("urls", ALL),
    ("target", SCENARIO),
    // Connections
    ("connections", ALL & !STAGED),
    ("stages", STAGED | REQUESTS),
    ("connect", SOCKETS),
    ("in_flight", SOCKETS),
    ("connect_timeout", RUNS),
    ("retry", SOCKETS),
    ("backoff", SOCKETS),
    // Action Cable clients always reconnect.
    ("reconnect", WS),
    ("hold", SOCKETS | CALLS),
    ("heartbeat", SOCKETS),
    ("source", RUNS),
    ("proxy", RUNS),
    ("unix_socket", RUNS),
    ("resolve", RUNS),
    ("header", SOCKETS | HTTP | CALLS),
    ("subprotocol", SOCKETS),
    ("force", ALL),
    ("control", SOCKETS),
    // Messages
    ("echo", ECHOES | GRPC),
    ("size", ECHO | FANOUTS),
    ("message", ECHOES),
    ("binary", ECHO),
    ("answer", ECHO),
    ("compression", SOCKETS | GRPC),
    ("compress_above", SOCKETS),
    // Pacing
    ("think", ECHOES),
    ("rate", ECHOES | REQUESTS),
    ("messages", ECHOES | FANOUTS | CALLS),
    ("messages_per_connection", ECHO),
    ("duration", ECHOES | FANOUTS | REQUESTS | SCENARIO),
    ("timeout", ECHOES | REQUESTS),
    // Fan-out
    ("fanout", FANOUTS),
    ("publishers", FANOUTS),
    ("publish_url", FANOUTS),
    ("publish_by_socket", FANOUT | CABLE_FANOUT),
    ("publish_key", FANOUTS),
    ("publish_header", FANOUTS),
    ("topic", FANOUT | CABLE_FANOUT),
    ("publish_body", FANOUTS),
    ("publish_in_flight", FANOUTS),
    ("late_after", FANOUTS | GRPC),
    // Action Cable
    ("channel", CABLE),
    ("cable_extended", CABLE),
    ("stale_after", CABLE),
    ("churn", CHURN),
    // Requests
    ("requests", REQUESTS),
    ("method", HTTP),
    ("data", REQUESTS),
    ("warm_up", ALL & !STAGED & !CHURN),
    ("rates", REQUESTS),
    ("new_connections", REQUESTS),
    ("pipeline", HTTP | TCP),
    ("http2", HTTP | SOCKETS),
    ("streams", HTTP | GRPC | SOCKETS),
    // gRPC
    ("proto", CALLS),
    ("proto_path", CALLS),
    ("protoset", CALLS),
    ("message_every", GRPC),
    ("health", GRPC),
    ("redirects", HTTP),
    ("accept", HTTP | CALLS),
    ("check", HTTP | CALLS),
    ("expect", TCP),
    ("expect_regex", TCP),
    ("expect_length", TCP),
    ("http1.0", HTTP),
    // TLS
    ("insecure", RUNS),
    ("ca", RUNS),
    ("cert", RUNS),
    ("key", RUNS),
    ("sni", RUNS),
    ("tls_resume", RUNS),
    // Results
    ("json", ALL),
    ("threshold", ALL),
    ("watch_pid", ALL),
    ("csv", ALL),
    ("html", ALL),
    ("metrics", ALL),
    ("metrics_key", ALL),
    ("plain", ALL),
    // Fleets
    ("agents", SHARED),
    ("agents_within", SHARED),
    ("json_max", SHARED),
    ("agent_share", SHARED),
    ("nats", SHARED),
    ("nats_creds", SHARED),
    ("nats_ca", SHARED),
    ("fleet", SHARED),
    ("files_max", SHARED),
];

/// Names of sets in messages; the first that fit are used.
const NAMES: [(Modes, &str); 19] = [
    (WS, "ws://"),
    (CABLE, "cable://"),
    (ECHOES, "--echo"),
    (FANOUTS, "--fanout"),
    (STAGED, "--stages over ws:// and cable://"),
    (HOLD, "ws:// alone"),
    (ECHO, "--echo over ws://"),
    (STAGES, "--stages over ws://"),
    (FANOUT, "--fanout over ws://"),
    (CABLE_HOLD, "cable:// alone"),
    (CABLE_ECHO, "--message over cable://"),
    (CABLE_STAGES, "--stages over cable://"),
    (CABLE_FANOUT, "--fanout over cable://"),
    (CHURN, "cable:// with --churn"),
    (HTTP, "http://"),
    (TCP, "tcp://"),
    (GRPC, "grpc://"),
    (GRPC_WEB, "grpc-web://"),
    (SCENARIO, "a scenario FILE.toml"),
];

/// Returns the kind of the run.
pub(super) fn of(args: &Args) -> Modes {
    if scenario::is_scenario(&args.urls) {
        return SCENARIO;
    }
    if requests::is_meant(&args.urls) {
        return match requests::is_http(&args.urls) {
            true => HTTP,
            false if requests::is_grpc(&args.urls) => GRPC,
            false if requests::is_grpc_web(&args.urls) => GRPC_WEB,
            false => TCP,
        };
    }
    let (ws, cable) = if args.fanout.is_some() {
        (FANOUT, if args.churn.is_some() { CHURN } else { CABLE_FANOUT })
    } else if !args.stages.is_empty() {
        (STAGES, CABLE_STAGES)
    } else if config::is_echo(args) {
        (ECHO, CABLE_ECHO)
    } else {
        (HOLD, CABLE_HOLD)
    };
    if args.urls.iter().any(|url| cable::is_cable(url)) { cable } else { ws }
}

/// Returns whether runs of this kind use a flag.
pub(super) fn uses(mode: Modes, id: &str) -> bool {
    FLAGS.iter().any(|(flag, modes)| *flag == id && modes & mode != 0)
}

/// Checks that the run uses every flag that was given.
///
/// # Errors
/// Names the flag and the kinds of runs that use it.
pub(super) fn check(flags: &ArgMatches, mode: Modes) -> Result<()> {
    let is_given = |id: &str| {
        matches!(flags.try_get_raw(id), Ok(Some(_)))
            && flags.value_source(id) == Some(ValueSource::CommandLine)
    };
    let unused = FLAGS.iter().find(|(id, modes)| modes & mode == 0 && is_given(id));
    if let Some((id, modes)) = unused {
        let flag = id.replace('_', "-");
        if mode == SCENARIO {
            bail!(
                "--{flag} cannot be combined with a scenario: set it in the file \
                 (docs/load/scenarios.md)"
            );
        }
        bail!("--{flag} is for {}, not for {}", users_of(id, *modes), named(mode));
    }
    let of_fleets =
        ["agents_within", "json_max", "nats", "nats_creds", "nats_ca", "fleet", "files_max"];
    if let Some(id) = of_fleets.into_iter().find(|id| is_given(id) && !is_given("agents")) {
        bail!("--{} has an effect only with --agents", id.replace('_', "-"));
    }
    let compression = flags.get_one("compression");
    let is_gzip = matches!(compression, Some(Compression::Gzip));
    let is_compressed = !matches!(compression, None | Some(Compression::Off));
    if is_compressed && is_gzip != (mode == GRPC) {
        bail!("--compression gzip is for grpc://, --compression shared for ws:// and cable://");
    }
    if is_given("compress_above") && !is_compressed {
        bail!("--compress-above has an effect only with --compression shared");
    }
    if mode & WS != 0 && is_given("backoff") && !is_given("retry") && !is_given("reconnect") {
        bail!("--backoff has an effect only with --retry or --reconnect");
    }
    Ok(())
}

/// Names the runs that a flag is for. One that makes a kind of run is for all URLs that it can be added to.
fn users_of(id: &str, modes: Modes) -> String {
    if id == "churn" {
        return "cable:// with --fanout".to_owned();
    }
    let makes_kind = ["echo", "fanout", "stages"].contains(&id);
    let with = |set: Modes| if makes_kind && modes & set != 0 { set } else { 0 };
    named(modes | with(WS) | with(CABLE))
}

fn named(modes: Modes) -> String {
    let (mut rest, mut names) = (modes, Vec::new());
    for (set, name) in NAMES {
        if set & !rest == 0 {
            names.push(name);
            rest &= !set;
        }
    }
    match names.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests;
