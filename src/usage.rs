//! Errors of the command line: what is wrong, where, and what to type instead, in at most three lines.
//! Flags that other load generators and servers have are answered with ours: [`FOREIGN`].

mod foreign;

use std::fmt::Write as _;

use admin::log;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use self::foreign::FOREIGN;
use crate::EXIT_ENVIRONMENT;
use crate::settings::nearest;
use crate::units;

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
            let one = one.trim_end_matches("...");
            // A positional; an option keeps the name of its value.
            let one = one.strip_prefix('<').map_or(one, |name| name.trim_end_matches('>'));
            format!("{one} missing")
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

    /// Each flag of the tables of `docs/load/moving.md` is one of ours or has a hint, in any of which ours is
    /// named as the table names it.
    #[test]
    fn flags_of_h2load_and_ghz_are_answered_as_their_table_says() {
        let page = include_str!("../docs/load/moving.md");
        let whole = Args::command();
        let load = whole.find_subcommand("load").unwrap();
        let is_ours = |name: &str| {
            load.get_arguments().any(|arg| {
                arg.get_long().is_some_and(|long| name == format!("--{long}"))
                    || arg.get_short().is_some_and(|short| name == format!("-{short}"))
            })
        };
        let flags = |cell: &str| -> Vec<String> {
            let quoted = cell.split('`').skip(1).step_by(2);
            let flags = quoted.filter_map(|text| text.split(' ').next());
            flags.filter(|text| text.starts_with('-')).map(str::to_owned).collect()
        };
        let mut count = 0;
        for line in page.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = line.split('|').collect();
            let instead = flags(cells[2]);
            for name in flags(cells[1]) {
                count += 1;
                if is_ours(&name) {
                    continue;
                }
                let of = ["standfast", "load", "http://a", name.as_str(), "1"].map(str::to_owned);
                let hint = foreign("load", &name, &of).unwrap_or_else(|| panic!("no hint: {name}"));
                let is_named = instead.iter().any(|ours| hint.contains(ours.as_str()));
                assert!(is_named || instead.is_empty(), "{name}: {hint}; {instead:?}");
            }
        }
        assert!(count > 60, "{count}");
    }

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
            ("standfast agent", "standfast agent: --name <NAME> missing", "--name"),
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
