//! The kinds of runs of `standfast stress`, and the flags that each one uses. A flag of go-stress-testing
//! that has no effect is noted, as the original accepts it; one of ours is refused.

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

use super::flags::{self, Args, OURS, is_true};

/// A set of kinds of runs; one kind is a set of one.
pub(super) type Kinds = u8;

pub(super) const HTTP: Kinds = 1;
/// Pings over ws, each answered.
pub(super) const PINGS: Kinds = 1 << 1;
/// One group over ws in which all receive every message.
pub(super) const GROUP: Kinds = 1 << 2;
/// Chats over ws whose messages are addressed.
pub(super) const CHATS: Kinds = 1 << 3;
/// Calls over gRPC.
pub(super) const CALLS: Kinds = 1 << 4;
/// Access-Requests of RADIUS.
pub(super) const RADIUS: Kinds = 1 << 5;
const WS: Kinds = PINGS | GROUP | CHATS;
const REQUESTS: Kinds = HTTP | CALLS;
const ALL: Kinds = REQUESTS | WS | RADIUS;

/// Each flag, by its name in [`Args`], and the kinds of runs that use it.
const FLAGS: [(&str, Kinds); 34] = [
    ("users", ALL),
    ("each", ALL),
    ("url", ALL),
    ("debug", REQUESTS | PINGS | RADIUS),
    ("curl", HTTP),
    ("verify", REQUESTS | PINGS),
    ("header", REQUESTS | WS),
    ("data", REQUESTS),
    ("idle", 0),
    ("code", REQUESTS),
    ("http2", HTTP),
    ("keep", HTTP),
    ("time", ALL),
    ("timeout", ALL),
    ("cpu_number", ALL),
    ("redirect", HTTP),
    ("step", REQUESTS | WS),
    ("interval", REQUESTS | WS),
    ("clients", GROUP | CHATS),
    ("issenders", GROUP | CHATS),
    ("iscollectmsg", GROUP | CHATS),
    ("toclients", GROUP | CHATS),
    ("connectionmode", WS),
    ("variable", WS),
    ("apptimeout", ALL),
    ("dialect", ALL),
    ("message", PINGS | CHATS),
    ("pause", WS),
    ("hold", PINGS),
    ("proto", CALLS),
    ("user", RADIUS),
    ("password", RADIUS),
    ("secret", RADIUS),
    ("nas", RADIUS),
];

/// Returns the kind of a run over ws.
pub(super) fn of_sockets(args: &Args, is_group_chat: bool) -> Kinds {
    match args.clients > 0 || is_true(&args.toclients) {
        _ if is_group_chat => CHATS,
        true => GROUP,
        false => PINGS,
    }
}

/// Returns notes on the flags that were given and have no effect.
///
/// # Errors
/// Such a flag that is refused.
pub(super) fn check(given: &ArgMatches, kind: Kinds) -> Result<Vec<String>> {
    let command = flags::command();
    let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let mut notes = Vec::new();
    for (id, _) in FLAGS.iter().filter(|(id, kinds)| kinds & kind == 0 && is_given(id)) {
        let flag = command.get_arguments().find(|flag| flag.get_id() == *id);
        let (name, where_to) = (flag.map(name).unwrap_or_default(), named(kind));
        let is_ours = flag.is_some_and(|flag| flag.get_help_heading() == Some(OURS));
        match *id {
            "data" if kind & WS != 0 => {
                bail!("{name} is the body of an HTTP request: over ws use --message TEXT")
            }
            "curl" => bail!("{name} works only over http: here give -u alone"),
            _ if is_ours => bail!("{name} has no effect {where_to}: leave it out"),
            _ => notes.push(format!("{name} has no effect {where_to}")),
        }
    }
    Ok(notes)
}

/// Returns the name of a flag as it is typed.
fn name(flag: &Arg) -> String {
    let long = flag.get_long().unwrap_or_default();
    let dashes = if flag.get_help_heading() == Some(OURS) { "--" } else { "-" };
    flag.get_short().map_or_else(|| format!("{dashes}{long}"), |short| format!("-{short}"))
}

fn named(kind: Kinds) -> &'static str {
    match kind {
        HTTP => "over http",
        CALLS => "over grpc",
        RADIUS => "over radius",
        PINGS => "over ws without receivers",
        GROUP => "over ws with -clients and without --message",
        _ => "over ws with receivers",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_used_noted_or_refused_in_every_kind_of_run() {
        let command = flags::command();
        let mut all: Vec<&str> =
            command.get_arguments().map(|flag| flag.get_id().as_str()).collect();
        let mut declared: Vec<&str> = FLAGS.iter().map(|(id, _)| *id).chain(["json"]).collect();
        all.sort_unstable();
        declared.sort_unstable();
        assert_eq!(all, declared);
        for (id, kinds) in FLAGS {
            let flag = command.get_arguments().find(|flag| flag.get_id() == id).unwrap();
            let shown = name(flag);
            let value = match id {
                "connectionmode" | "clients" => "1",
                "dialect" => "fork",
                "header" => "A: b",
                "pause" | "hold" => "1s",
                "debug" | "issenders" | "keep" | "http2" | "redirect" => "true",
                _ => "2",
            };
            let dashes = if flag.get_short().is_some() { "" } else { "-" };
            let word = format!("{dashes}{}={value}", shown.replace("--", "-"));
            let given = command.clone().try_get_matches_from(["stress", &word]).unwrap();
            for kind in [HTTP, PINGS, GROUP, CHATS, CALLS, RADIUS] {
                let said = match check(&given, kind) {
                    Ok(notes) => notes.concat(),
                    Err(error) => error.to_string(),
                };
                let is_used = kinds & kind != 0;
                assert_eq!(said.is_empty(), is_used, "{word} {}: {said}", named(kind));
                assert!(is_used || said.starts_with(&shown), "{word}: {said}");
            }
        }
    }

    #[test]
    fn flags_of_ours_are_refused_where_they_have_no_effect() {
        let command = flags::command();
        for (flag, kind) in [
            ("--hold=1s", HTTP),
            ("--message=x", HTTP),
            ("--hold=1s", GROUP),
            ("--proto=a", HTTP),
            ("--secret=x", CALLS),
        ] {
            let given = command.clone().try_get_matches_from(["stress", flag]).unwrap();
            let error = check(&given, kind).unwrap_err().to_string();
            assert!(error.starts_with(flag.split('=').next().unwrap()), "{error}");
        }
    }
}
