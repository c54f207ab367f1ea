//! The scenarios of AnyCable's conformance suite, replayed from transcripts of our own
//! (`conformance/cable/scenarios.toml`): what each client sends, what the application is called with and
//! answers, what each client must receive. A scenario that is not replayed has a reason.
//!
//! `docs/protocol/cable-conformance.md` has the results; a test compares it with the list.

mod player;
mod transcript;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, panic};

use serde::Deserialize;

use self::player::play;
use self::transcript::Step;

/// The number of scenarios in each part of the suite.
const PARTS: [(&str, usize); 3] = [("core", 32), ("optional", 4), ("anycable", 9)];
/// Between these lines the page has the table.
const MARKS: [&str; 2] = ["<!-- scenarios -->\n", "<!-- end -->\n"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    scenario: Vec<Scenario>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// Of [`PARTS`].
    part: String,
    name: String,
    /// Flags of the server beside those that all have.
    #[serde(default)]
    flags: Vec<String>,
    /// Texts of JSON that `$NAME` stands for in its lines.
    #[serde(default)]
    texts: BTreeMap<String, String>,
    /// Its lines.
    #[serde(default)]
    script: String,
    /// Why it is not replayed, if it is not.
    #[serde(default)]
    reason: String,
    /// What the result depends on.
    #[serde(default)]
    note: String,
}

#[test]
fn scenarios_of_the_conformance_suite_are_replayed() {
    let failed: Vec<String> = listed()
        .into_iter()
        .filter(|scenario| scenario.reason.is_empty())
        .filter_map(|Scenario { name, flags, texts, script, .. }| {
            let steps = Step::parse_all(&script, &texts);
            println!("--- {name}");
            let played = panic::catch_unwind(|| play(&flags, &steps));
            played.err().map(|_| name)
        })
        .collect();
    assert!(failed.is_empty(), "failed, for the reasons above: {failed:#?}");
}

#[test]
fn every_scenario_is_listed_once_with_a_transcript_or_a_reason() {
    let listed = listed();
    for (part, count) in PARTS {
        assert_eq!(listed.iter().filter(|one| one.part == part).count(), count, "{part}");
    }
    assert_eq!(listed.len(), PARTS.iter().map(|(_, count)| count).sum::<usize>());
    let mut names: Vec<&str> = listed.iter().map(|one| &*one.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), listed.len(), "a name is there twice");
    for Scenario { name, script, reason, .. } in &listed {
        assert!(!script.is_empty() || !reason.is_empty(), "{name}: no transcript, no reason");
        assert!(script.is_empty() || script.contains(" hears"), "{name} checks nothing");
    }
}

#[test]
fn the_page_has_the_table_of_the_list() {
    let path = root().join("docs/protocol/cable-conformance.md");
    let page = fs::read_to_string(path).expect("the page is there");
    let shown = page.split_once(MARKS[0]).and_then(|(_, rest)| rest.split_once(MARKS[1]));
    let table = table(&listed());
    assert!(shown.is_some_and(|(shown, _)| shown.trim() == table.trim()), "expected:\n{table}");
}

fn table(listed: &[Scenario]) -> String {
    let mut text = "| part | scenario | result | |\n|---|---|---|---|\n".to_owned();
    for Scenario { part, name, reason, note, .. } in listed {
        let (result, why) =
            if reason.is_empty() { ("pass", note) } else { ("not replayed", reason) };
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "| {part} | {name} | {result} | {why} |");
    }
    text
}

fn listed() -> Vec<Scenario> {
    let path = root().join("conformance/cable/scenarios.toml");
    let text = fs::read_to_string(path).expect("the scenarios are listed");
    let listed: Listed = toml::from_str(&text).expect("scenarios in TOML");
    listed.scenario
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
