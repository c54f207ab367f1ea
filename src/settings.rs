//! Layered settings: file < environment of another program < environment < flag. A key is a flag's name
//! with `_` for `-`, a value is as on the command line, so every layer goes through the same parser.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// Sections of a configuration file, one per program.
const SECTIONS: [&str; 3] = ["serve", "proxy", "load"];
/// Other tables of the file, which `routes` reads.
const TABLES: [&str; 2] = ["route", "pool"];
/// The flag that names the file; valid in the environment, too, but not in the file.
const FILE_KEY: &str = "config";

/// Key → values as on the command line.
pub(crate) type Layer = BTreeMap<String, Vec<String>>;

/// The settings of one program, parsed and as given.
pub(crate) struct Settings<A> {
    /// The parsed settings.
    pub(crate) args: A,
    values: Layer,
    /// Keys that a layer sets.
    given: Vec<String>,
}

impl<A: Args + FromArgMatches> Settings<A> {
    /// Reads all layers. `section` is the subcommand's name, `flags` the parsed command line,
    /// `borrowed` the layer from another program's environment, with its prefix for messages.
    ///
    /// # Errors
    /// A file that cannot be read, an unknown key (with the nearest known one), or an invalid value;
    /// each with its location.
    pub(crate) fn read(section: &str, flags: &ArgMatches, borrowed: (&str, Layer)) -> Result<Self> {
        let command = A::augment_args(Command::new("standfast").no_binary_name(true));
        let flags = values_of(&command, flags, |source| source == ValueSource::CommandLine);
        Self::read_with(section, flags, borrowed)
    }

    /// As [`Settings::read`] with the values of some flags, for other commands that need the settings of
    /// a program.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub(crate) fn read_with(
        section: &str,
        flags: Layer,
        (from, borrowed): (&str, Layer),
    ) -> Result<Self> {
        let command = A::augment_args(Command::new("standfast").no_binary_name(true));
        let environment = from_environment(section, &command)?;
        check::<A>(&command, &environment).map_err(|error| {
            anyhow!("in the environment (STANDFAST_{}_…): {error}", section.to_uppercase())
        })?;
        check::<A>(&command, &borrowed)
            .map_err(|error| anyhow!("in the environment ({from}…): {error}"))?;
        let file =
            [&flags, &environment].into_iter().find_map(|layer| layer.get(FILE_KEY)?.first());
        let file = file.map(|path| from_file::<A>(Path::new(path), section, &command));
        let mut all = file.transpose()?.unwrap_or_default();
        all.extend(borrowed);
        all.extend(environment);
        all.extend(flags);
        let matches = parse(&command, &all).map_err(|error| anyhow!(short_message(&error)))?;
        let args = A::from_arg_matches(&matches)?;
        let given = all.into_keys().collect();
        Ok(Settings { args, values: values_of(&command, &matches, |_| true), given })
    }

    /// Reads one layer alone, to check it.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub(crate) fn read_layer(section: &str, layer: Layer) -> Result<Self> {
        let command = A::augment_args(Command::new("standfast").no_binary_name(true));
        let file = layer.get(FILE_KEY).and_then(|values| values.first());
        let file = file.map(|path| from_file::<A>(Path::new(path), section, &command));
        let mut all = file.transpose()?.unwrap_or_default();
        all.extend(layer);
        let matches = parse(&command, &all).map_err(|error| anyhow!(short_message(&error)))?;
        let args = A::from_arg_matches(&matches)?;
        let given = all.into_keys().collect();
        Ok(Settings { args, values: values_of(&command, &matches, |_| true), given })
    }

    /// Settings that a layer has and whose part is off: `no effect without FLAG: FLAGS`. `parts` has the flags that
    /// turn a part on, and how its keys begin.
    pub(crate) fn without_effect(&self, parts: &[(&str, &[&str])]) -> Vec<String> {
        let is_on = |flag: &str| {
            let mut words = flag.trim_start_matches("--").split(' ');
            let key = words.next().unwrap_or_default().replace('-', "_");
            let value = self.values.get(&key).and_then(|values| values.first());
            value
                .is_some_and(|value| words.next().is_none_or(|_| value != "off" && value != "none"))
        };
        let mut found = Vec::new();
        for (flags, beginnings) in parts {
            let of_part = |key: &&String| beginnings.iter().any(|begin| key.starts_with(begin));
            let idle = self.given.iter().filter(of_part);
            let idle: Vec<String> =
                idle.map(|key| format!("--{}", key.replace('_', "-"))).collect();
            if !idle.is_empty() && !flags.split(" or ").any(is_on) {
                found.push(format!("no effect without {flags}: {}", idle.join(", ")));
            }
        }
        found
    }

    /// Keys whose values differ.
    pub(crate) fn differing_keys<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let keys =
            self.values.keys().chain(other.values.keys().filter(|k| !self.values.contains_key(*k)));
        keys.filter(|key| self.values.get(*key) != other.values.get(*key))
            .map(String::as_str)
            .collect()
    }
}

/// The values of every flag of `command` from the wanted sources.
fn values_of(command: &Command, flags: &ArgMatches, wanted: impl Fn(ValueSource) -> bool) -> Layer {
    let values = command.get_arguments().filter_map(|argument| {
        let key = argument.get_id().as_str();
        let source = flags.value_source(key)?;
        let values = flags.get_raw(key)?.map(|value| value.to_string_lossy().into_owned());
        wanted(source).then(|| (key.to_owned(), values.collect()))
    });
    values.collect()
}

fn from_environment(section: &str, command: &Command) -> Result<Layer> {
    let prefix = format!("STANDFAST_{}_", section.to_uppercase());
    let mut layer = Layer::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else {
            continue;
        };
        let key = name.to_lowercase();
        let full = format!("{prefix}{name}");
        if let Some(unknown) = unknown(&key, command, false) {
            let near =
                unknown.map(|near| format!("; did you mean {prefix}{}?", near.to_uppercase()));
            bail!(
                "unknown variable {full}: not a setting of standfast {section}{}",
                near.unwrap_or_default()
            );
        }
        let value = value.into_string().map_err(|_| anyhow!("{full} is not UTF-8"))?;
        layer.insert(key, vec![value]);
    }
    Ok(layer)
}

fn from_file<A: Args + FromArgMatches>(
    path: &Path,
    section: &str,
    command: &Command,
) -> Result<Layer> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    from_text::<A>(&text, &shown, section, command)
}

/// Reads `section` of a file's text. `shown` is the file's name for messages.
pub(crate) fn from_text<A: Args + FromArgMatches>(
    text: &str,
    shown: &str,
    section: &str,
    command: &Command,
) -> Result<Layer> {
    let table: toml::Table = text.parse().with_context(|| format!("{shown} is not TOML"))?;
    let mut layer = Layer::new();
    for (name, value) in table {
        // `routes` reads these.
        if TABLES.contains(&name.as_str()) {
            continue;
        }
        if !SECTIONS.contains(&name.as_str()) {
            let near = nearest(&name, SECTIONS.into_iter().chain(TABLES));
            let near = near.map(|near| format!("; did you mean [{near}]?"));
            let sections = SECTIONS.map(|section| format!("[{section}]")).join(", ");
            bail!(
                "{shown}: unknown section {name}: expected {sections}{}",
                near.unwrap_or_default()
            );
        }
        let toml::Value::Table(keys) = value else {
            bail!("{shown}: {name} must be a section, [{name}]")
        };
        if name != section {
            continue;
        }
        for (key, value) in keys {
            if let Some(unknown) = unknown(&key, command, true) {
                let near = unknown.map(|near| format!("; did you mean {near}?"));
                let line = line_of_key(text, section, &key);
                bail!("{shown}{line}: [{section}] has no key {key}{}", near.unwrap_or_default());
            }
            let values = as_flag_values(value);
            layer.insert(key.clone(), values.with_context(|| format!("{shown}: {key}"))?);
        }
    }
    check::<A>(command, &layer).map_err(|error| anyhow!("{shown}: {error}"))?;
    Ok(layer)
}

/// `:` and the line of a key, if it is found.
fn line_of_key(text: &str, section: &str, key: &str) -> String {
    let found = || {
        let table = toml::de::DeTable::parse(text).ok()?;
        let (_, value) = table.get_ref().get_key_value(section)?;
        let (name, _) = value.get_ref().as_table()?.get_key_value(key)?;
        Some(format!(":{}", line_of(text, name.span().start)))
    };
    found().unwrap_or_default()
}

/// The line of a byte, from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// A TOML value as on the command line.
fn as_flag_values(value: toml::Value) -> Result<Vec<String>> {
    match value {
        toml::Value::String(text) => Ok(vec![text]),
        toml::Value::Integer(number) => Ok(vec![number.to_string()]),
        toml::Value::Boolean(truth) => Ok(vec![truth.to_string()]),
        toml::Value::Array(values) => {
            let each: Result<Vec<Vec<String>>> = values.into_iter().map(as_flag_values).collect();
            Ok(each?.concat())
        }
        _ => bail!(
            "invalid value: expected a string, a whole number, true, false, or an array of these"
        ),
    }
}

/// `None` for a known key; otherwise the nearest known key, if any is near.
fn unknown(key: &str, command: &Command, in_file: bool) -> Option<Option<String>> {
    let known = || {
        let ids = command.get_arguments().map(|argument| argument.get_id().as_str());
        ids.filter(|id| !in_file || *id != FILE_KEY)
    };
    let is_known = known().any(|id| id == key);
    (!is_known).then(|| nearest(key, known()).map(str::to_owned))
}

/// Whether one layer alone parses.
fn check<A: FromArgMatches>(command: &Command, layer: &Layer) -> Result<(), String> {
    let parsed = parse(command, layer).and_then(|matches| A::from_arg_matches(&matches));
    parsed.map(|_| ()).map_err(|error| short_message(&error))
}

fn parse(command: &Command, layer: &Layer) -> Result<ArgMatches, clap::Error> {
    let flags = layer.iter().flat_map(|(key, values)| {
        values.iter().map(move |value| format!("--{}={value}", key.replace('_', "-")))
    });
    command.clone().try_get_matches_from(flags)
}

/// clap's first line, without its prefix and usage.
fn short_message(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// The known word with the smallest edit distance, unless all are too far.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let by_distance = known.map(|other| (distance(word, other), other)).min()?;
    (by_distance.0 <= word.len().div_ceil(3)).then_some(by_distance.1)
}

/// The Damerau-Levenshtein distance of two words: insertions, deletions, replacements and swaps of
/// adjacent letters (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let [a, b]: [Vec<char>; 2] = [a.chars().collect(), b.chars().collect()];
    let far = a.len() + b.len();
    let get = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(far);
    let mut older: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, ours) in a.iter().enumerate() {
        let mut next = vec![at + 1];
        for (to, theirs) in b.iter().enumerate() {
            let cost = usize::from(ours != theirs);
            let edited = (get(&row, to) + cost).min(get(&row, to + 1) + 1).min(get(&next, to) + 1);
            let before = at.checked_sub(1).and_then(|at| a.get(at));
            let crossed = to.checked_sub(1).filter(|to| b.get(*to) == Some(ours));
            let swapped = crossed.filter(|_| before == Some(theirs));
            let swapped = swapped.map_or(far, |to| get(&older, to) + 1);
            next.push(edited.min(swapped));
        }
        older = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_unless_none_is_near() {
        let known = ["max_message", "max_connections", "backlog", "drain"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(near("max_mesage"), Some("max_message"));
        assert_eq!(near("drian"), Some("drain"), "two swapped letters");
        assert_eq!(near("backlogs"), Some("backlog"));
        assert_eq!(near("colour"), None);
        assert_eq!(
            (distance("", "abc"), distance("abc", "abc"), distance("abc", "axc")),
            (3, 0, 1)
        );
        assert_eq!((distance("ulr", "url"), distance("abcd", "badc")), (1, 2));
        assert_eq!(nearest("ulr", ["url", "user"].into_iter()), Some("url"));
    }

    #[test]
    fn toml_values_become_flag_values() {
        let table: toml::Table =
            "a = 'x'\nb = 7\nc = true\nd = ['x', 'y']\ne = 1.5".parse().unwrap();
        let values = |key: &str| as_flag_values(table.get(key).cloned().unwrap());
        assert_eq!(values("a").unwrap(), ["x"]);
        assert_eq!(values("b").unwrap(), ["7"]);
        assert_eq!(values("c").unwrap(), ["true"]);
        assert_eq!(values("d").unwrap(), ["x", "y"]);
        assert!(values("e").is_err());
    }
}
