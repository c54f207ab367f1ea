//! A scenario of WebSockets: its `[load]` section holds flags of `standfast load`, with `_` for `-`.
//! Flags on the command line override the file.

use anyhow::Result;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command, FromArgMatches};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tables::Doc;
use crate::commands::load::flags::Args;
use crate::commands::load::modes;
use crate::settings::nearest;

/// Returns the file as a parsed command line; `None` if it has no `[load]`.
///
/// # Errors
/// The first error with its line.
pub(super) fn read(
    text: &str,
    shown: &str,
    flags: &ArgMatches,
) -> Result<Option<(Args, ArgMatches)>> {
    let doc = Doc { text, shown };
    // The parser of flows reports a file that is not TOML.
    let Ok(file) = DeTable::parse(text) else { return Ok(None) };
    let Some(load) = file.get_ref().get("load") else { return Ok(None) };
    let at = load.span().start;
    let DeValue::Table(values) = load.get_ref() else {
        return Err(doc.wrong(at, "load must be a table of flags"));
    };
    check_top(doc, file.get_ref())?;
    let command = Args::augment_args(Command::new("load").no_binary_name(true));
    let words = words(doc, values, &command, flags)?;
    let matches = command.try_get_matches_from(words);
    let matches = matches.map_err(|error| {
        let error = error.to_string();
        let line = error.lines().next().unwrap_or_default();
        doc.wrong(at, line.strip_prefix("error: ").unwrap_or(line))
    })?;
    let args = Args::from_arg_matches(&matches)?;
    // It would be read again, and again if it is this one.
    if super::is_scenario(&args.urls) {
        let urls = args.urls.concat();
        return Err(doc.wrong(at, format!("urls must be URLs: {urls} is a scenario")));
    }
    Ok(Some((args, matches)))
}

/// Returns the file as arguments, each flag once.
fn words(
    doc: Doc<'_>,
    values: &DeTable<'_>,
    command: &Command,
    flags: &ArgMatches,
) -> Result<Vec<String>> {
    let is_given = |id: &str| {
        let id = if id == "urls" { "target" } else { id };
        modes::uses(modes::SCENARIO, id) && flags.value_source(id) == Some(ValueSource::CommandLine)
    };
    let mut words = Vec::new();
    let known = || command.get_arguments().map(|argument| argument.get_id().as_str());
    for (key, value) in values {
        let name: &str = key.as_ref();
        if !known().any(|known| known == name) {
            let near = nearest(name, known());
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return Err(doc.wrong(key.span().start, format!("[load] has no key {name}{near}")));
        }
        if !is_given(name) {
            words.extend(each(doc, name, value)?);
        }
    }
    for id in known().filter(|id| *id != "urls" && is_given(id)) {
        let values = flags.get_raw(id).into_iter().flatten();
        let values = values.map(|value| value.to_string_lossy().into_owned());
        words.extend(
            values.flat_map(|value| word(if id == "target" { "urls" } else { id }, &value)),
        );
    }
    Ok(words)
}

fn each(doc: Doc<'_>, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>> {
    Ok(match value.get_ref() {
        DeValue::Array(values) => {
            let each = values.iter().map(|value| each(doc, name, value));
            each.collect::<Result<Vec<_>>>()?.concat()
        }
        DeValue::String(text) => word(name, text),
        DeValue::Integer(number) => word(name, number.as_str()),
        DeValue::Boolean(truth) => word(name, &truth.to_string()),
        _ => {
            let what = format!("{name} must be a string, an integer, true or false");
            return Err(doc.wrong(value.span().start, what));
        }
    })
}

fn word(name: &str, value: &str) -> Vec<String> {
    let flag = name.replace('_', "-");
    match value {
        _ if name == "urls" => vec![value.to_owned()],
        "true" => vec![format!("--{flag}")],
        "false" => Vec::new(),
        value => vec![format!("--{flag}={value}")],
    }
}

/// Rejects top-level keys other than `version`, `about` and `load`, and unknown versions.
fn check_top(doc: Doc<'_>, top: &DeTable<'_>) -> Result<()> {
    for key in top.keys() {
        let name: &str = key.as_ref();
        if !["version", "about", "load"].contains(&name) {
            let what = format!(
                "unknown key {name}: a file with [load] has only version and about besides"
            );
            return Err(doc.wrong(key.span().start, what));
        }
    }
    match top.get("version").map(|version| version.get_ref()) {
        Some(DeValue::Integer(number)) if number.as_str() == super::file::VERSION => Ok(()),
        _ => Err(doc.wrong(0, "missing or unknown version: expected version = 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(text: &str, line: &[&str]) -> Result<Option<(Args, ArgMatches)>> {
        let command = Args::augment_args(Command::new("load").no_binary_name(true));
        read(text, "x.toml", &command.try_get_matches_from([&["x.toml"], line].concat()).unwrap())
    }

    const TEXT: &str = "version = 1\n[load]\nurls = ['ws://127.0.0.1:1/']\nconnections = '2k'\n\
                        messages = 3\necho = true\nbinary = false\nthreshold = ['p99<1s', 'lost<1']\n";

    #[test]
    fn keys_are_flags_and_the_command_line_overrides_them() {
        let (args, _) = read_with(TEXT, &[]).unwrap().unwrap();
        assert_eq!((args.connections, args.messages, args.echo), (2_000, Some(3), true));
        assert_eq!((args.urls.len(), args.threshold.len(), args.binary), (1, 2, false));
        let line = ["--connections", "9", "--target", "ws://127.0.0.1:2/", "--plain"];
        let (args, _) = read_with(TEXT, &line).unwrap().unwrap();
        assert_eq!((args.connections, args.plain, &*args.urls[0]), (9, true, "ws://127.0.0.1:2/"));
        assert!(read_with("version = 1\n", &[]).unwrap().is_none());
    }

    #[test]
    fn scenario_that_names_a_scenario_is_refused() {
        for (urls, line) in [
            ("x.toml", &[][..]),
            ("other.toml", &[]),
            ("ws://127.0.0.1:1/", &["--target", "x.toml"]),
        ] {
            let text = TEXT.replace("ws://127.0.0.1:1/", urls);
            let error = read_with(&text, line).err().map(|error| format!("{error:#}"));
            let error = error.unwrap_or_default();
            assert!(error.contains("x.toml") && error.contains("is a scenario"), "{urls}: {error}");
        }
    }

    #[test]
    fn errors_name_the_line_and_the_nearest_key() {
        let wrong = |text: &str| format!("{:#}", read_with(text, &[]).err().unwrap());
        for (from, to, parts) in [
            ("messages", "mesages", &["line 5", "mesages", "messages"][..]),
            ("'2k'", "'many'", &["x.toml", "many", "10k"]),
            ("echo = true", "echo = 1.5", &["line 6", "echo"]),
            ("version = 1", "version = 2", &["version = 1"]),
            ("version = 1", "version = 1\nusers = 5", &["line 2", "users"]),
        ] {
            let error = wrong(&TEXT.replace(from, to));
            assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
        }
    }
}
