//! Errors of the command line: what is wrong, where, and what to type instead, in at most three lines.
//! Flags that other load generators and servers have are answered with ours: [`FOREIGN`].

use std::fmt::Write as _;

use admin::log;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::EXIT_ENVIRONMENT;
use crate::settings::nearest;
use crate::units;

/// Flags of other tools: command, their names, and what to use instead.
const FOREIGN: &[(&str, &[&str], &str)] = &[
    (
        "load",
        &["-n", "--number", "--num-requests", "--iterations", "-i", "--amount"],
        "the total number of requests is --requests N; per WebSocket --messages N",
    ),
    (
        "load",
        &["-z", "--time", "--test-time", "--run-time"],
        "the time to send is --duration TIME, such as --duration 10s",
    ),
    (
        "load",
        &["-u", "--users", "--vus", "--clients", "--concurrency", "-U"],
        "concurrent users are connections: -c N or --connections N",
    ),
    (
        "load",
        &["-t", "--threads", "--workers", "-w"],
        "there is a thread per core; a time limit is --duration 10s, of an answer --timeout 5s",
    ),
    (
        "load",
        &["-q", "-r", "-R", "--rps", "--qps", "--overallRate", "--connectionRate"],
        "the rate over all connections is --rate N, per second",
    ),
    ("load", &["-m"], "the request method is -X METHOD or --method METHOD"),
    (
        "load",
        &["-b", "--body", "-D", "--body-file"],
        "the request body is --data TEXT or --data @FILE",
    ),
    (
        "load",
        &["-p", "--pipelining"],
        "requests in flight are --pipeline N; a body is --data @FILE",
    ),
    (
        "load",
        &["-T", "--content-type"],
        "the type is a header: -H 'Content-Type: application/json'",
    ),
    ("load", &["-A"], "the accepted type is a header: -H 'Accept: application/json'"),
    (
        "load",
        &["-a", "--auth"],
        "credentials are a header: -H 'Authorization: Basic …'; a number of requests --requests N",
    ),
    ("load", &["--cookie", "-C"], "cookies are a header: -H 'Cookie: name=value'"),
    (
        "load",
        &["-k", "--keepalive"],
        "connections stay open unless --new-connections; certificates are not checked with --insecure",
    ),
    (
        "load",
        &["--disable-keepalive", "--no-keepalive"],
        "a connection per request is --new-connections",
    ),
    (
        "load",
        &["-s", "--script"],
        "scripts are scenarios: standfast load init writes one, from-k6 and from-har convert",
    ),
    ("load", &["--stage"], "stages are one flag: --stages 30s:10k,2m:10k,30s:0"),
    ("load", &["--ramp-up", "--spawn-rate"], "a ramp is --stages 30s:10k,2m:10k,30s:0"),
    ("load", &["-x"], "the proxy is --proxy http://HOST:PORT"),
    ("load", &["--latency", "-l", "--percentiles"], "percentiles are always printed: leave it out"),
    ("load", &["--no-tui", "--no-color", "--no-progress", "--quiet"], "rows of text are --plain"),
    (
        "load",
        &["-o", "--output", "--out", "--summary-export", "-j"],
        "results go to --json FILE, --csv FILE and --html FILE",
    ),
    ("load", &["-2", "--h2", "--h2c"], "HTTP/2 is --http2, also without TLS"),
    ("load", &["--max-concurrent-streams"], "requests in flight per connection are --streams N"),
    ("load", &["--call"], "the method is in the URL: grpc://HOST:PORT/package.Service/Method"),
    ("load", &["--import-paths", "-i"], "imports of .proto files begin at --proto-path DIR"),
    ("load", &["--metadata"], "metadata is a header: -H 'name: value'"),
    ("load", &["--skipTLS"], "any certificate is accepted with --insecure; plain text is grpc://"),
    ("load", &["--cacert"], "the authority to trust is --ca FILE"),
    ("load", &["--url", "--host"], "the URL needs no flag: standfast load URL"),
    ("load", &["-L", "--location"], "redirects are followed with --redirects N"),
    ("stress", &["-z"], "the time limit of the run is -timeout SECONDS"),
    (
        "stress",
        &["-X", "-method"],
        "-data TEXT makes the request a POST; other methods: -p FILE with curl",
    ),
    (
        "prove",
        &["-n", "-u", "--users", "--clients", "--vus"],
        "the number of sockets is --connections N",
    ),
    ("prove", &["-d", "-z", "--duration", "--time"], "the time to hold the sockets is --hold TIME"),
    (
        "prove",
        &["--url", "--target", "--host"],
        "prove starts its own server; to load another: standfast load URL --connections N",
    ),
    (
        "serve proxy",
        &["-p", "--port", "-P"],
        "address and port are one flag: --listen 127.0.0.1:8080",
    ),
    (
        "serve proxy",
        &["-b", "--bind", "--host", "--address", "--addr", "-l"],
        "the address is --listen 127.0.0.1:8080",
    ),
    (
        "serve proxy",
        &["--cert", "--certificate", "--ssl-cert", "--tls"],
        "TLS needs --tls-cert FILE and --tls-key FILE",
    ),
    ("serve proxy", &["--key", "--ssl-key"], "the TLS key is --tls-key FILE"),
    ("serve proxy", &["-c", "--conf", "-f"], "the settings file is --config FILE"),
    (
        "serve proxy",
        &["-v", "--verbose", "--debug", "--log-level", "--loglevel"],
        "the log level is --log debug",
    ),
    (
        "serve proxy",
        &["-d", "--daemon", "--daemonize"],
        "it runs in the foreground: start it with systemd or &",
    ),
    (
        "serve",
        &["--origin", "--cors", "--origins", "--allowed-origins", "--allowed_origins"],
        "pages are allowed by --allow-origin https://example.com",
    ),
    (
        "serve",
        &["--jwt_id_key", "--jwt-key", "--token", "--auth"],
        "tokens are checked with --secret file:PATH; an application decides with --auth-url URL",
    ),
    (
        "serve",
        &["--broker", "--presets"],
        "messages are kept with --history memory, redis or nats, members with --presence memory",
    ),
    (
        "serve",
        &["--rpc", "--rpc-url", "--rpc_url", "--rpc-impl", "--rpc_impl", "--app-url"],
        "the application is --rpc-host http://HOST/PATH or, by gRPC, --rpc-host HOST:PORT",
    ),
    ("serve", &["--norpc"], "no application is called without --rpc-host: leave it out"),
    ("serve", &["--noauth"], "clients need no token without --enforce-jwt: leave it out"),
    ("serve", &["--path"], "the path of Action Cable is --cable-path PATH"),
    (
        "serve",
        &["--sse", "--turbo_streams", "--turbo-streams"],
        "/events and Turbo Streams are always served: leave it out; signed streams need --secret",
    ),
    (
        "serve",
        &["--broadcast_adapter"],
        "--broadcast-adapter; applications may also post to /_broadcast of the --admin listener",
    ),
    (
        "serve proxy",
        &["--metrics_http", "--metrics", "--metrics-port", "--metrics_port"],
        "metrics are at /metrics of the --admin listener",
    ),
    (
        "proxy",
        &["--backend", "--backends", "--server", "--to", "--target"],
        "servers are --upstream 127.0.0.1:8081,127.0.0.1:8082",
    ),
    ("doctor", &["-n", "-c", "--sockets", "--users"], "the number of sockets is --connections N"),
];

/// Words that other tools have as their first.
const FOREIGN_COMMANDS: &[(&[&str], &str)] = &[
    (&["bench", "run", "test", "attack", "wrk", "ws", "http"], "standfast load URL"),
    (&["server", "start", "listen", "gateway"], "standfast serve"),
    (&["balance", "lb", "reverse-proxy", "tunnel"], "standfast proxy --upstream ADDRESS:PORT"),
    (&["version"], "standfast --version"),
    (&["check", "limits"], "standfast doctor"),
    (
        &["compare", "init", "from-curl", "from-har", "from-k6", "grpc-list"],
        "standfast load COMMAND",
    ),
];

/// Commands below `load` and `token` that need an argument, and how they are typed.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("load", "compare", "standfast load compare before.json after.json"),
    ("load", "from-curl", "standfast load from-curl commands.txt"),
    ("load", "from-har", "standfast load from-har recording.har > scenario.toml"),
    ("load", "from-k6", "standfast load from-k6 script.js > scenario.toml"),
    ("load", "merge", "standfast load merge a.json b.json"),
    ("token", "check", "standfast token check - --secret file:PATH < token"),
    ("token", "create", "standfast token create '{\"user_id\":1}' --secret file:PATH"),
    ("token", "key", "standfast token key publish --secret file:PATH; or broadcast"),
    ("token", "sign-stream", "standfast token sign-stream chat/1 --secret file:PATH"),
];

/// The subcommand of these words, if it is one of [`EXAMPLES`], and its example.
fn example(command: &str, subcommand: &str) -> Option<(&'static str, &'static str)> {
    let found = EXAMPLES.iter().find(|(one, name, _)| *one == command && *name == subcommand);
    found.map(|(_, name, example)| (*name, *example))
}

/// Prints what is wrong with the command line, or the help that it asks for, and exits.
pub(crate) fn exit(error: &clap::Error, words: &[String]) -> ! {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(
        error.kind(),
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        error.exit();
    }
    log::write_line(&text(error, words));
    std::process::exit(EXIT_ENVIRONMENT.into());
}

/// Returns why a word has a meaning that users of other tools do not expect.
pub(crate) fn misread(words: &[String]) -> Option<String> {
    if words.get(1).is_none_or(|command| command != "load") {
        return None;
    }
    let value = words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix("-d") {
        Some("") => words.get(at + 1).map(String::as_str),
        Some(value) => Some(value.strip_prefix('=').unwrap_or(value)),
        None => None,
    })?;
    let seconds = value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty();
    let time = if seconds { format!("{value}s") } else { value.to_owned() };
    units::positive_duration(&time).ok()?;
    Some(format!(
        "standfast load: -d {value} would be the request body, as in curl\n  for the time to send use: \
         --duration {time}\n  to send this text as the body: --data {value}"
    ))
}

/// Returns an error without the drawing of the library for TOML around the line that is wrong: what is
/// wrong, and the line.
pub(crate) fn without_drawing(error: &str) -> String {
    if !error.contains("TOML parse error at line") {
        return error.to_owned();
    }
    let is_drawn = |line: &&str| !line.trim_start_matches(' ').starts_with('|');
    let lines = error.lines().filter(is_drawn).map(|line| match line.split_once(" | ") {
        Some((number, wrong)) if number.trim().parse::<u32>().is_ok() => {
            format!("  {}", wrong.trim())
        }
        _ => line.to_owned(),
    });
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The message: at most three lines.
fn text(error: &clap::Error, words: &[String]) -> String {
    let command = words.get(1).filter(|word| !word.starts_with('-')).map_or("", String::as_str);
    let example = example(command, words.get(2).map_or("", String::as_str));
    let named = if command.is_empty() || error.kind() == ErrorKind::InvalidSubcommand {
        "standfast".to_owned()
    } else if let Some((subcommand, _)) = example {
        format!("standfast {command} {subcommand}")
    } else {
        format!("standfast {command}")
    };
    let mut text = format!("{named}: {}", what(error));
    if let Some(hint) = hint(error, command, words) {
        let _ = write!(text, "\n  {hint}");
    }
    let more = match command {
        _ if example.is_some() => format!("{named} --help"),
        "load" | "serve" | "proxy" | "stress" => format!("standfast help {command} all"),
        "" => "standfast --help".to_owned(),
        _ if error.kind() == ErrorKind::InvalidSubcommand => "standfast --help".to_owned(),
        _ => format!("standfast {command} --help"),
    };
    let _ = write!(text, "\n  all options: {more}");
    text
}

/// What is wrong and where, in one line.
fn what(error: &clap::Error) -> String {
    let listed = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(all)) => Some(all.join(", ")),
        _ => None,
    };
    let arg = listed(ContextKind::InvalidArg).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => format!("unknown option {arg}"),
        ErrorKind::MissingRequiredArgument => {
            // A positional that needs two values is named twice.
            let one = arg.split_once("> <").map_or(arg.as_str(), |(one, _)| one);
            format!("{} missing", one.trim_end_matches("...").trim_matches(['<', '>']))
        }
        ErrorKind::TooFewValues => {
            let number = |kind| match error.get(kind) {
                Some(ContextValue::Number(number)) => *number,
                _ => 0,
            };
            let (min, found) =
                (number(ContextKind::MinValues), number(ContextKind::ActualNumValues));
            format!("expected at least {min} values, found {found}")
        }
        ErrorKind::InvalidSubcommand => {
            let word = listed(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("no such command: {word}")
        }
        _ => {
            let whole = error.to_string();
            let lines = whole.lines().take_while(|line| !line.trim().is_empty());
            let line = lines.map(str::trim).collect::<Vec<_>>().join(" ");
            line.strip_prefix("error: ").unwrap_or(&line).to_owned()
        }
    }
}

/// What to type instead.
fn hint(error: &clap::Error, command: &str, words: &[String]) -> Option<String> {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            foreign(command, arg, words).or_else(|| match error.get(ContextKind::SuggestedArg) {
                Some(ContextValue::String(near)) if is_near(arg, near) => {
                    Some(format!("did you mean {near}?"))
                }
                _ => None,
            })
        }
        ErrorKind::MissingRequiredArgument | ErrorKind::TooFewValues => {
            let subcommand = words.get(2).map_or("", String::as_str);
            let example = match example(command, subcommand) {
                Some((_, example)) => example,
                None if command == "load" => "standfast load http://127.0.0.1:8080/ --duration 10s",
                None => return None,
            };
            Some(format!("for example: {example}"))
        }
        ErrorKind::InvalidSubcommand => {
            let word = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(word)) => word.as_str(),
                _ => "",
            };
            Some(subcommand(command, word)?)
        }
        ErrorKind::InvalidValue => match error.get(ContextKind::SuggestedValue) {
            Some(ContextValue::String(near)) => Some(format!("did you mean {near}?")),
            _ => None,
        },
        _ => None,
    }
}

/// clap suggests words with little in common.
fn is_near(arg: &str, near: &str) -> bool {
    let bare = |text: &str| text.trim_start_matches('-').to_owned();
    nearest(&bare(arg), [bare(near).as_str()].into_iter()).is_some()
}

/// Ours for a flag of another tool. clap names a cluster of short flags by its first.
fn foreign(command: &str, arg: &str, words: &[String]) -> Option<String> {
    let name = arg.split('=').next().unwrap_or(arg);
    let typed = words.iter().find(|word| word.split('=').next() == Some(name));
    let name = typed.map_or(name, |word| word.split('=').next().unwrap_or(name));
    let of = |(commands, names, _): &&(&str, &[&str], &str)| {
        commands.split(' ').any(|one| one == command) && names.contains(&name)
    };
    FOREIGN.iter().find(of).map(|(.., ours)| (*ours).to_owned())
}

/// A command for a word that is none.
fn subcommand(command: &str, word: &str) -> Option<String> {
    if word.contains("://") {
        return Some(format!("to load it: standfast load {word}"));
    }
    if units::count(word).is_ok() {
        return Some(format!(
            "the number of sockets is a flag: standfast {command} --connections {word}"
        ));
    }
    let ours = FOREIGN_COMMANDS.iter().find(|(names, _)| names.contains(&word));
    if let Some((_, ours)) = ours {
        return Some(format!("did you mean {}?", ours.replace("COMMAND", word)));
    }
    const COMMANDS: [&str; 10] = [
        "serve",
        "load",
        "proxy",
        "prove",
        "stress",
        "plan",
        "doctor",
        "token",
        "help",
        "completions",
    ];
    match nearest(word, COMMANDS.into_iter()) {
        Some(near) => Some(format!("did you mean standfast {near}?")),
        None => Some(format!("commands: {}", COMMANDS.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn message(line: &str) -> String {
        let words = words(line);
        let error = Args::command().try_get_matches_from(&words).unwrap_err();
        text(&error, &words)
    }

    /// A flag of ours would never get to the table, and a hint names flags that exist.
    #[test]
    fn foreign_flags_are_not_ours_and_hints_name_flags_that_are() {
        let whole = Args::command();
        for (commands, names, hint) in FOREIGN {
            for command in commands.split(' ') {
                let command = whole.find_subcommand(command).unwrap();
                let has = |name: &str| {
                    command.get_arguments().any(|arg| {
                        let long = arg
                            .get_long()
                            .into_iter()
                            .chain(arg.get_all_aliases().into_iter().flatten());
                        let short = arg.get_short().map(|short| format!("-{short}"));
                        long.map(|long| format!("--{long}")).any(|long| long == name)
                            || short.is_some_and(|short| short == name)
                    })
                };
                for name in *names {
                    assert!(!has(name), "{} has {name}", command.get_name());
                }
                let load = whole.find_subcommand("load").unwrap();
                let in_load = |name: &str| {
                    hint.contains("standfast load")
                        && load.get_arguments().any(|arg| {
                            arg.get_long().is_some_and(|long| name == format!("--{long}"))
                        })
                };
                for word in hint.split([' ', ';', ':', ',']).filter(|word| word.starts_with("--")) {
                    assert!(has(word) || in_load(word), "{}: {hint}", command.get_name());
                }
            }
        }
    }

    #[test]
    fn messages_say_what_is_wrong_and_what_to_type() {
        for (line, what, next) in [
            ("standfast load http://a -z 10s", "standfast load: unknown option -z", "--duration"),
            ("standfast load http://a --vus=3", "unknown option --vus", "--connections N"),
            (
                "standfast load http://a --conections 3",
                "--conections",
                "did you mean --connections?",
            ),
            ("standfast load", "standfast load: URL missing", "standfast load http://"),
            ("standfast load merge", "standfast load merge: A.json B.json missing", "merge a.json"),
            ("standfast load merge a.json", "expected at least 2 values, found 1", "merge a.json"),
            ("standfast token create", "token create: IDENTIFIERS missing", "{\"user_id\":1}"),
            ("standfast laod http://a", "no such command: laod", "did you mean standfast load?"),
            ("standfast http://a", "no such command: http://a", "standfast load http://a"),
            ("standfast doctor 10k", "no such command: 10k", "doctor --connections 10k"),
            ("standfast serve --port 80", "standfast serve: unknown option --port", "--listen"),
            ("standfast load http://a --duration 10", "'10' for '--duration", "10s"),
        ] {
            let text = message(line);
            assert!(text.lines().next().unwrap().contains(what), "{text}");
            assert!(text.contains(next), "{text}");
            assert!(text.lines().count() <= 3, "{text}");
        }
    }

    #[test]
    fn errors_of_toml_are_three_lines() {
        for text in ["a = 1\nb = [1\nc = 2\n", "a = = 2"] {
            let error = text.parse::<toml::Table>().unwrap_err();
            let error = without_drawing(&format!("standfast: f.toml: {error}"));
            assert_eq!(error.lines().count(), 3, "{error}");
            assert!(error.contains("line ") && !error.contains('|'), "{error}");
        }
        assert_eq!(without_drawing("standfast: a\n1 | b"), "standfast: a\n1 | b");
    }

    #[test]
    fn a_short_d_with_a_time_is_never_a_body() {
        for line in ["-d 10s", "-d 10", "-d10s", "-d=2m"] {
            let text = misread(&words(&format!("standfast load http://a {line}"))).unwrap();
            assert!(text.contains("--duration") && text.contains("--data"), "{text}");
        }
        for line in ["-d {}", "--data 10s", "-d @file", "-d", "--duration 10s", "-d a1s"] {
            assert_eq!(misread(&words(&format!("standfast load http://a {line}"))), None, "{line}");
        }
        assert_eq!(misread(&words("standfast stress -d 10s")), None);
    }
}
