//! `--help` of every command fits on one screen and leads to every flag: by topic, in full, in
//! completions and in the manual pages.

use std::collections::BTreeSet;
use std::fs;

use crate::harness::executable::{self, Finished, standfast};

/// A default terminal, less one line for the next prompt.
const SCREEN: Size = Size { lines: 23, columns: 80 };
/// Help for one topic may be longer.
const PAGE: Size = Size { lines: 45, columns: 100 };

struct Size {
    lines: usize,
    columns: usize,
}

/// Runs a command line on a terminal of the given width.
fn run(words: &[&str], size: &Size) -> Finished {
    let mut command = standfast(words);
    command.env("COLUMNS", size.columns.to_string());
    executable::run_command(command)
}

fn help_on(words: &[&str], size: &Size) -> String {
    let finished = run(words, size);
    assert_eq!(finished.code, Some(0), "{words:?}: {finished:?}");
    finished.stdout
}

fn help(words: &[&str]) -> String {
    help_on(words, &PAGE)
}

fn fits(words: &[&str], size: &Size) -> String {
    let text = help_on(words, size);
    let lines = text.lines().count();
    assert!(lines <= size.lines, "{words:?} has {lines} lines: {text}");
    for line in text.lines() {
        assert!(line.chars().count() <= size.columns, "{words:?}: {line}");
    }
    text
}

/// Returns the names below `Commands:`, or those in the usage as `<one|other>`.
fn commands(help: &str) -> Vec<String> {
    let usage = help.lines().find(|line| line.starts_with("       standfast "));
    let named = usage.and_then(|line| line.trim_end_matches('>').split_once('<'));
    if let Some((_, names)) = named.filter(|(_, names)| *names != "COMMAND") {
        return names.split('|').map(str::to_owned).collect();
    }
    let under = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let rows = under.take_while(|line| !line.is_empty());
    // Continuation lines are indented further.
    let rows = rows.filter_map(|line| line.strip_prefix("  ")).filter(|row| !row.starts_with(' '));
    rows.filter_map(|row| row.split(' ').next()).map(str::to_owned).collect()
}

/// Returns the long flags that have a row of their own.
fn flags(help: &str) -> BTreeSet<String> {
    // Rows that are indented further continue the row before.
    let near = |line: &&str| line.len() - line.trim_start().len() <= 6;
    let rows = help.lines().filter(near).map(str::trim_start).filter(|row| row.starts_with('-'));
    let names = rows.flat_map(|row| row.split([' ', '=', '[']).take(2));
    let long = names.filter(|name| name.starts_with("--"));
    long.map(|name| name.trim_end_matches([',', '.']).to_owned()).collect()
}

#[test]
fn help_of_every_command_fits_one_screen() {
    let mut left = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(path) = left.pop() {
        let path_words: Vec<&str> = path.iter().map(String::as_str).collect();
        let text = fits(&[&path_words[..], &["--help"]].concat(), &SCREEN);
        for words in [[&path_words[..], &["-h"]].concat(), [&["help"], &path_words[..]].concat()] {
            assert_eq!(fits(&words, &SCREEN), text, "{words:?}");
        }
        seen += 1;
        left.extend(commands(&text).into_iter().map(|name| [&path[..], &[name]].concat()));
    }
    assert!(seen >= 14, "only {seen} commands were found");
}

#[test]
fn topics_completions_and_manual_have_every_flag() {
    let folder = std::env::temp_dir().join(format!("standfast-help-man-{}", std::process::id()));
    help(&["man", folder.to_str().expect("UTF-8 path")]);
    let script = help(&["completions", "bash"]);
    for (command, least) in
        [("load", 65), ("serve", 50), ("proxy", 45), ("stress", 14), ("prove", 10)]
    {
        let all = flags(&help(&["help", command, "all"]));
        assert!(all.len() >= least, "{command} has {} flags: {all:?}", all.len());
        let page = fs::read_to_string(folder.join(format!("standfast-{command}.1"))).unwrap();
        for flag in &all {
            assert!(script.contains(flag), "completions lack {flag} of {command}");
            assert!(page.contains(&flag.replace('-', r"\-")), "the manual lacks {flag}");
        }
        let first = help(&[command, "--help"]);
        let Some((_, topics)) = first.split_once("TOPIC is one of\n") else {
            assert_eq!(flags(&first), all, "{command} shows all flags on one screen");
            continue;
        };
        let mut found = BTreeSet::from(["--help".to_owned()]);
        for topic in topics.split_whitespace().filter(|topic| *topic != "all") {
            let text = fits(&["help", command, topic], &PAGE);
            assert!(!flags(&text).is_empty(), "{topic}: {text}");
            found.extend(flags(&text));
        }
        assert_eq!(found, all, "topics of {command}");
    }
    fs::remove_dir_all(&folder).expect("created above");
}

#[test]
fn help_by_topic_has_more_than_the_first_screen() {
    let pacing = help(&["help", "load", "pacing"]);
    assert!(pacing.contains("--think") && !pacing.contains("--fanout"), "{pacing}");
    let all = help(&["help", "load", "all"]);
    assert!(all.contains("{9000..9003}") && all.contains("Action Cable:"), "{all}");
    assert!(!help(&["load", "--help"]).contains("{9000..9003}"));
    for (words, named) in [
        (&["help", "laod"][..], "did you mean load?"),
        (&["help", "load", "fanout"], "did you mean fan-out?"),
        (&["help", "load", "fan-out", "more"], "fan-out"),
    ] {
        let finished = run(words, &PAGE);
        assert_eq!(finished.code, Some(2), "{words:?}: {finished:?}");
        assert!(finished.stderr.contains(named), "{words:?}: {finished:?}");
    }
}
