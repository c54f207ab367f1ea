//! Help: `-h` and `--help` of every command fit on one screen, and `standfast help COMMAND TOPIC`
//! shows the rest. Topics are the help headings of the flags, so a new flag needs no entry here. This
//! file only lists the flags that the long commands show first.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::settings::nearest;
use crate::{args, output};

/// The topic that shows every flag.
const ALL: &str = "all";
/// Width of the first help screen in columns, also on wider terminals.
const COLUMNS: usize = 80;
/// The topic of flags that have no heading.
const GENERAL: &str = "options";

/// The first help screen of a command that has too many flags for one screen. With usage, examples
/// and topics it takes at most 23 lines of 80 columns, so a terminal of 24 lines also shows the
/// command that was typed.
struct First {
    command: &'static str,
    /// Flags in this order, each with one line of help. Includes the positional argument.
    flags: &'static [(&'static str, &'static str)],
    examples: [&'static str; 2],
    page: &'static str,
}

const FIRST: [First; 5] = [LOAD, SERVE, PROXY, PROVE, STRESS];

const LOAD: First = First {
    command: "load",
    flags: &[
        (
            "urls",
            "http:// https:// grpc:// for requests, ws:// wss:// for WebSockets, \
             cable:// for Action Cable, tcp:// for TCP; or a scenario FILE.toml",
        ),
        ("connections", "Concurrent connections"),
        ("rate", "Sent per second [default: closed loop]"),
        ("duration", "How long to send [default: 10s without a count]"),
        ("requests", "Total number of requests"),
        ("data", "Request body, or @FILE"),
        ("header", "Add a header to each request or handshake"),
        ("echo", "Send WebSocket messages and check the echoes"),
        ("hold", "Hold WebSockets [default: 10s, with --echo 0]"),
        ("fanout", "Publish N a second, check that all receive each"),
        ("threshold", "Pass or fail, as 'p99<250ms'"),
        ("json", "Write the results to a file, or - for stdout"),
    ],
    examples: [
        "standfast load http://127.0.0.1:8080/ --duration 10s --fail 'p99<250ms'",
        "standfast load ws://127.0.0.1:8080/echo --connections 10k --hold 30s",
    ],
    page: "docs/load/load.md",
};

const SERVE: First = First {
    command: "serve",
    flags: &[
        ("listen", "Client address"),
        ("admin", "Admin address, or off"),
        ("admin_key", "Key that operators must send"),
        ("echo", "Enable /echo, which returns each message"),
        ("public", "Open topics to everyone (default on loopback)"),
        ("allow_origin", "Accept browser pages from this origin"),
        ("secret", "Secret for tokens, streams, publishers: file:PATH"),
        ("tls_cert", "TLS certificate file (PEM)"),
        ("tls_key", "TLS private key file (PEM)"),
        ("max_connections", "Connection limit [default: what fits here]"),
        ("memory_limit", "Refuse and shed clients above this, such as 2GiB"),
        ("config", "Read the [serve] section of this TOML file"),
        ("drain", "Time to drain on SIGTERM"),
        ("log", "off, error, warn, info or debug"),
    ],
    examples: [
        "standfast serve --echo",
        "standfast serve --listen 0.0.0.0:443 --tls-cert a.pem --tls-key a.key",
    ],
    page: "docs/operate/serve.md",
};

const PROXY: First = First {
    command: "proxy",
    flags: &[
        ("listen", "Client address"),
        ("upstream", "Upstream servers; pools go in a --config file"),
        ("admin", "Admin address, or off"),
        ("admin_key", "Key that operators must send"),
        ("tls_cert", "TLS certificate file (PEM)"),
        ("tls_key", "TLS private key file (PEM)"),
        ("upstream_tls", "Connect to upstreams over TLS"),
        ("max_connections", "Tunnel limit [default: what fits here]"),
        ("idle_timeout", "Close tunnels idle for this long"),
        ("connect_timeout", "Upstream connect timeout"),
        ("config", "Read the [proxy] section of this TOML file"),
        ("access_log", "Access log file, or - for stdout"),
        ("drain", "Time to drain on SIGTERM"),
        ("log", "off, error, warn, info or debug"),
    ],
    examples: [
        "standfast proxy --upstream 127.0.0.1:8081,127.0.0.1:8082",
        "standfast proxy check proxy.toml",
    ],
    page: "docs/operate/proxy.md",
};

const PROVE: First = First {
    command: "prove",
    flags: &[
        ("scenario", "Scenario file, or a built-in scenario such as million or cable-10k"),
        ("connections", "Number of WebSockets [default: what fits, max 1M]"),
        ("connect", "How to open connections [default: windowed]"),
        ("hold", "How long to hold them [default: 30s]"),
        ("heartbeat", "Ping interval, 0 to disable [default: 30s]"),
        ("message_every", "Message interval [default: 0, no messages]"),
        ("broadcasts", "Messages published to all WebSockets [default: 1]"),
        ("json", "Write the results to a file, or - for stdout"),
        ("html", "Write a report as one HTML page"),
        ("force", "Start even if the machine's limits seem too low"),
        ("plain", "Print rows of text instead of the live screen"),
    ],
    examples: [
        "standfast prove --connections 100k --hold 5m",
        "standfast prove cluster --duration 2m --html cluster.html",
    ],
    page: "docs/load/prove.md",
};

const STRESS: First = First {
    command: "stress",
    flags: &[
        ("users", "Concurrent users, one connection each"),
        ("each", "Requests per user; c × n in total"),
        ("url", "http(s), ws(s), grpc or radius URL [default: http]"),
        ("curl", "File of curl commands, run in turn instead of -u"),
        ("header", "Add a header"),
        ("data", "Request body; makes the request a POST"),
        ("verify", "Response check: statusCode, json, any"),
        ("code", "Expected status or code [default: 200]"),
        ("keep", "Keep connections open between requests"),
        ("time", "Request timeout in seconds, 0 for 30"),
        ("timeout", "Time limit of the run in seconds, 0 for none"),
        ("debug", "true prints every response"),
        ("dialect", "Flag dialect: upstream or fork"),
        ("message", "Message to send over ws"),
        ("json", "Write the results to a file, or - for stdout"),
    ],
    examples: [
        "standfast stress -c 100 -n 1000 -u http://127.0.0.1:8080/health",
        "standfast stress -c 10 -n 10 -u ws://127.0.0.1:8080/echo -v any",
    ],
    page: "docs/load/stress.md",
};

impl First {
    /// Returns the flag with its one-line help, or hidden if it is not on the first screen.
    fn show(&self, arg: Arg) -> Arg {
        let Some(nth) = self.flags.iter().position(|(flag, _)| arg.get_id() == flag) else {
            return arg.hide(true);
        };
        let text = self.flags.get(nth).map_or("", |(_, text)| text);
        if arg.is_positional() {
            return arg.help(text);
        }
        let takes_values = arg.get_num_args().map(|values| values.takes_values());
        let valued = takes_values.unwrap_or(arg.get_action().takes_values());
        arg.help(text).display_order(nth).hide_possible_values(valued)
    }

    /// Returns the lines below the flags: examples and the topics that show all other flags.
    fn footer(&self, topics: &[String]) -> String {
        let First { command, examples: [one, other], page, .. } = self;
        let topics = topics.join(" ");
        format!(
            "Try:  {one}\n      {other}\n\
             More: {page}, standfast help {command} TOPIC, where TOPIC is one of\n  {topics} {ALL}"
        )
    }
}

/// Show help for a command or a topic
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Command and topic, or `all` for every flag: standfast help load fan-out
    #[arg(value_name = "COMMAND TOPIC")]
    words: Vec<String>,
}

/// Prints help.
///
/// # Errors
/// Returns an error that names the nearest match if the command or topic does not exist.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let whole = args::Args::command();
    let (path, rest) = split(&whole, &args.words);
    let at = descend(&whole, path);
    let mut tree = match rest {
        [] => one_screen(whole),
        [topic] if topic == ALL => in_full(whole),
        [topic] if topics(at).contains(topic) => of_topic(in_full(whole), topic),
        [word, ..] => bail!("{}", unknown(at, path, word)),
    };
    tree.build();
    let mut at = &mut tree;
    for name in path {
        match at.find_subcommand_mut(name) {
            Some(next) => at = next,
            None => bail!("no such command: {name}"),
        }
    }
    output::print(&at.render_help().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the command tree as it is parsed, with help that fits on one screen.
pub(crate) fn one_screen(command: Command) -> Command {
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort);
    let command = command.disable_help_flag(true).mut_subcommands(one_screen);
    let first = FIRST.iter().find(|first| first.command == command.get_name());
    let Some(first) = first else {
        return command.arg(help.help("Print help"));
    };
    let footer = first.footer(&topics(&command));
    let usage = usage(&command);
    let template = match command.get_positionals().next() {
        Some(_) => "{about}\n{usage-heading} {usage}\n\n{positionals}\n{options}{after-help}",
        None => "{about}\n{usage-heading} {usage}\n\n{options}{after-help}",
    };
    let command = command.mut_args(|arg| first.show(arg)).arg(help.hide(true));
    let command = command.override_usage(usage).help_template(template).after_help(footer);
    command.max_term_width(COLUMNS)
}

/// Returns the usage: a line with the arguments, and a line with the subcommands if there are any.
fn usage(command: &Command) -> String {
    let name = command.get_name();
    let taken: String = command.get_positionals().map(|arg| format!(" {arg}")).collect();
    let mut usage = format!("standfast {name} [OPTIONS]{taken}");
    let below: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    if !below.is_empty() {
        usage += &format!("\n       standfast {name} <{}>", below.join("|"));
    }
    usage
}

/// Returns the command tree with the long help of each flag.
fn in_full(command: Command) -> Command {
    let command = command.mut_subcommands(in_full);
    command.mut_args(|arg| match arg.get_long_help().cloned() {
        Some(text) => arg.help(text),
        None => arg,
    })
}

/// Returns the command tree with the flags of one topic only.
fn of_topic(command: Command, topic: &str) -> Command {
    let command = command.mut_subcommands(|command| of_topic(command, topic));
    let command = command.mut_args(|arg| if is_of(&arg, topic) { arg } else { arg.hide(true) });
    command.disable_help_flag(true).help_template("{options}\n")
}

/// Splits the words into the command path and the rest.
fn split<'w>(whole: &Command, words: &'w [String]) -> (&'w [String], &'w [String]) {
    let mut at = whole;
    let mut named = 0;
    while let Some(next) = words.get(named).and_then(|word| at.find_subcommand(word)) {
        at = next;
        named += 1;
    }
    words.split_at(named)
}

fn descend<'c>(whole: &'c Command, path: &[String]) -> &'c Command {
    path.iter().fold(whole, |at, name| at.find_subcommand(name).unwrap_or(at))
}

/// Returns the topics of a command in the order of its flags.
fn topics(command: &Command) -> Vec<String> {
    let mut topics = Vec::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional()) {
        let topic = topic(arg);
        if !topics.contains(&topic) {
            topics.push(topic);
        }
    }
    topics
}

fn is_of(arg: &Arg, name: &str) -> bool {
    !arg.is_positional() && topic(arg) == name
}

/// Returns the heading as one word without text in brackets: `Fan-out` gives `fan-out`.
fn topic(arg: &Arg) -> String {
    let heading = arg.get_help_heading().unwrap_or(GENERAL);
    let heading = heading.split('(').next().unwrap_or(heading).trim();
    heading.to_lowercase().replace(' ', "-")
}

fn unknown(at: &Command, path: &[String], word: &str) -> String {
    let topics = topics(at);
    let names = at.get_subcommands().filter(|command| !command.is_hide_set());
    let mut known: Vec<&str> = names.map(Command::get_name).collect();
    if !path.is_empty() {
        known.extend(topics.iter().map(String::as_str).chain([ALL]));
    }
    let near = nearest(word, known.iter().copied());
    let near = near.map_or(String::new(), |near| format!(", did you mean {near}?"));
    // The name of the program stands in front of every error.
    let command = match path {
        [] => String::new(),
        _ => format!("{}: ", path.join(" ")),
    };
    let known = known.join(", ");
    format!("{command}no command or topic \"{word}\"{near} (expected one of {known})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_first_screen_exist() {
        let whole = args::Args::command();
        for First { command, flags, .. } in &FIRST {
            let command = whole.find_subcommand(command).unwrap();
            for (flag, _) in *flags {
                assert!(command.get_arguments().any(|arg| arg.get_id() == flag), "{flag}");
            }
        }
    }

    #[test]
    fn every_flag_of_a_long_command_has_a_heading() {
        let whole = args::Args::command();
        for First { command, .. } in &FIRST {
            let command = whole.find_subcommand(command).unwrap();
            assert!(!topics(command).contains(&GENERAL.to_owned()), "{}", command.get_name());
        }
        let heading = Arg::new("x").help_heading("Requests (http:// tcp://)");
        assert_eq!((topic(&heading), topic(&Arg::new("y"))), ("requests".into(), GENERAL.into()));
    }

    #[test]
    fn unknown_words_suggest_the_nearest_match() {
        let whole = args::Args::command();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let message = |text: &str| {
            let words = words(text);
            let (path, rest) = split(&whole, &words);
            unknown(descend(&whole, path), path, &rest[0])
        };
        assert!(message("laod").contains("did you mean load?"), "{}", message("laod"));
        assert!(message("laod").starts_with("no command"), "{}", message("laod"));
        assert!(
            message("load fanout").contains("did you mean fan-out?"),
            "{}",
            message("load fanout")
        );
        assert!(message("load compare x").starts_with("load compare: no command or topic \"x\""));
    }
}
