//! The tables of SECURITY.md: what a peer can make the process hold. Every test named there exists, every
//! flag exists, and the defaults are those of `--help`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::root;
use crate::harness::executable;

const HEADING: &str = "### What a peer can make us hold\n";
/// How the paragraphs above the tables begin.
const TABLES: [&str; 3] = ["**One client**", "**One address**", "**One upstream**"];
const RESOURCES: [&str; 3] = ["bytes", "descriptors", "CPU"];
/// The commands whose flags bound what peers hold.
const COMMANDS: [&str; 2] = ["serve", "proxy"];

/// What rows may name.
struct Known {
    tests: BTreeSet<String>,
    /// The flags of each command, with their defaults in `--help`.
    flags: Vec<BTreeMap<String, Option<String>>>,
}

#[test]
fn what_a_peer_can_hold_names_existing_tests_flags_and_defaults() {
    let page = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let known = Known::find();
    let (_, section) = page.split_once(HEADING).expect("the section");
    let section = section.split("\n### ").next().unwrap_or_default();
    let mut wrong = Vec::new();
    for table in TABLES {
        let (_, after) = section.split_once(table).expect(table);
        let (_, rows) = after.split_once("|---|").expect("a table follows");
        let rows = rows.lines().skip(1).take_while(|line| line.starts_with('|'));
        let mut resources = BTreeSet::new();
        for row in rows {
            resources.insert(row.split('|').nth(1).unwrap_or_default().trim());
            wrong.extend(known.check(row).err());
        }
        assert_eq!(resources, RESOURCES.into(), "{table}");
    }
    assert!(wrong.is_empty(), "SECURITY.md: {}", wrong.join("\n"));
}

#[test]
fn wrong_rows_of_what_a_peer_can_hold_are_found() {
    let known = Known {
        tests: ["bounded".to_owned()].into(),
        flags: vec![
            [("--size".to_owned(), Some("64KiB".to_owned())), ("--time".to_owned(), None)].into(),
            [("--size".to_owned(), Some("1h".to_owned()))].into(),
        ],
    };
    for row in [
        "| bytes | a | b | `--size` | 64KiB, 1h | `bounded` |",
        "| bytes | a | b `--size` | fixed | | `bounded` |",
        "| CPU | a | b | `--time` | off | `bounded` |",
        "| CPU | the key `max` | b | keys of the pool | 0 | `bounded` |",
    ] {
        assert_eq!(known.check(row), Ok(()), "{row}");
    }
    for (row, why) in [
        ("| bytes | a | b | `--size` | 64KiB, 1h |", "cells"),
        ("| sockets | a | b | `--size` | 64KiB, 1h | `bounded` |", "sockets"),
        ("| bytes | a | b | `--size` | 64KiB, 1h | |", "no test"),
        ("| bytes | a | b | `--size` | 64KiB, 1h | `unbounded` |", "unbounded"),
        ("| bytes | a | b | `--width` | 64KiB | `bounded` |", "--width"),
        ("| bytes | a | b `--width` | fixed | | `bounded` |", "--width"),
        ("| bytes | a | b | `--size` | 64KiB | `bounded` |", "1h"),
        ("| bytes | a | b | `--time` | | `bounded` |", "default"),
        ("| bytes | a | b | | 64KiB | `bounded` |", "flag"),
    ] {
        let error = known.check(row).unwrap_err();
        assert!(error.contains(why), "{row}: {error}");
    }
}

impl Known {
    fn find() -> Known {
        let mut tests = BTreeSet::new();
        for folder in ["crates", "src", "tests", "xtask"] {
            collect_tests(&root().join(folder), &mut tests);
        }
        assert!(tests.len() > 500, "only {} tests were found", tests.len());
        let help = |command| executable::run(&["help", command, "all"]).stdout;
        Known { tests, flags: COMMANDS.map(|command| defaults(&help(command))).into() }
    }

    /// Checks a row: resource, what, at most, flags, defaults, tests.
    fn check(&self, row: &str) -> Result<(), String> {
        let cells: Vec<&str> = row.trim().trim_matches('|').split('|').map(str::trim).collect();
        let &[resource, _, bound, flags, default, tests] = &cells[..] else {
            return Err(format!("{row}: {} cells instead of 6", cells.len()));
        };
        if !RESOURCES.contains(&resource) {
            return Err(format!("{row}: {resource}, expected one of {RESOURCES:?}"));
        }
        let mut named = code(tests).peekable();
        named.peek().ok_or_else(|| format!("{row}: no test"))?;
        if let Some(test) = named.find(|test| !self.tests.contains(*test)) {
            return Err(format!("{row}: there is no test {test}"));
        }
        let is_flag = |word: &&str| word.starts_with("--");
        for flag in code(flags).chain(code(bound)).filter(is_flag) {
            if !self.flags.iter().any(|known| known.contains_key(flag)) {
                return Err(format!("{row}: there is no flag {flag}"));
            }
        }
        if code(flags).find(is_flag).is_none() {
            let other = flags == "fixed" && default.is_empty() || flags.starts_with("keys of ");
            return other.then_some(()).ok_or_else(|| format!("{row}: no flag, and not fixed"));
        }
        if default.is_empty() {
            return Err(format!("{row}: no default"));
        }
        let given: Vec<&str> = default.split([',', '(']).map(str::trim).collect();
        for flag in code(flags).filter(is_flag) {
            let shown = self.flags.iter().filter_map(|known| known.get(flag)?.as_deref());
            // Longer ones describe what the default depends on.
            let mut values = shown.filter(|value| !value.contains(' '));
            if let Some(value) = values.find(|value| !given.contains(value)) {
                return Err(format!("{row}: the default of {flag} is {value}"));
            }
        }
        Ok(())
    }
}

/// What is in backticks.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The flags in a help text, with their defaults.
fn defaults(help: &str) -> BTreeMap<String, Option<String>> {
    let mut flags: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut text = String::new();
    let mut last = String::new();
    for line in help.lines().chain(["  --end"]) {
        let row = line.trim_start();
        let is_near = line.len() - row.len() <= 6;
        if is_near && row.starts_with('-') {
            let default = text.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
            flags.insert(last, default.map(|(value, _)| value.to_owned()));
            let name = row.split([' ', '=', '[', ',']).find(|word| word.starts_with("--"));
            last = name.unwrap_or_default().to_owned();
            text.clear();
        }
        text.push_str(row);
        text.push(' ');
    }
    flags.remove("");
    flags
}

/// Adds the names of the tests in a folder.
fn collect_tests(folder: &Path, tests: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_tests(&path, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            for part in source.split("#[test]\n").skip(1) {
                // Other attributes may be in between.
                let function =
                    part.lines().map(str::trim).find_map(|line| line.strip_prefix("fn "));
                let name = function.and_then(|rest| rest.split('(').next());
                tests.extend(name.map(str::to_owned));
            }
        }
    }
}
