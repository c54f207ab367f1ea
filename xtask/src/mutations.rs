//! Mutations: plausible mistakes, applied to a copy of the sources, that the simulations must find.
//!
//! `crates/sim/mutations/*.toml` lists them. All are applied at once to a copy below
//! `target/mutations`, each behind a switch that an environment variable sets, so one build serves
//! every mutation. The copy shares the target folder, hence the builds of other people's packages.
//! Not a generator of mutations: `cargo xtask mutants` runs one.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::sim::{self, EXECUTABLE};
use crate::step;

/// What of the repository the copy holds: every member of the workspace, so that features resolve
/// as they do here.
pub(crate) const COPIED: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "crates",
    "examples",
    "packages/node/native",
    "src",
    "tests/main.rs",
    "xtask",
];
/// The executable of the copy; another name, as both are put into the same folder.
const MUTATED_EXECUTABLE: &str = "standfast-sim-mutated";
/// Names the mutation that is switched on.
const SWITCH: &str = "STANDFAST_MUTATION";
/// Seeds that must pass with no mutation switched on.
const SEEDS_WITHOUT: u64 = 10;
/// Added to the engine's copy.
const SWITCH_MODULE: &str = r#"//! Which mutation is switched on.

use std::sync::LazyLock;

static ACTIVE: LazyLock<String> =
    LazyLock::new(|| std::env::var("STANDFAST_MUTATION").unwrap_or_default());

/// Whether this mutation is switched on.
#[must_use]
pub fn active(name: &str) -> bool {
    *ACTIVE == name
}
"#;

/// The mutations of one crate.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// The folder below `crates/`.
    #[serde(rename = "crate")]
    package: String,
    /// The simulation that must find them.
    simulation: String,
    #[serde(rename = "mutation")]
    mutations: Vec<Mutation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutation {
    name: String,
    /// One sentence.
    meaning: String,
    #[serde(rename = "edit")]
    edits: Vec<Edit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    /// Below the crate's folder.
    file: String,
    find: String,
    replace: String,
}

/// What [`run`] runs.
pub(crate) struct Options<'a> {
    /// The simulations.
    pub(crate) simulations: &'a [&'a str],
    pub(crate) seeds: u64,
    pub(crate) seed: u64,
    pub(crate) debug: bool,
    /// Only the mutations of crates that changed since theirs were last found.
    pub(crate) changed: bool,
}

/// Whether the simulations find every mutation. The last line printed counts them as libtest does.
pub(crate) fn run(options: &Options<'_>) -> Result<bool> {
    let root = step::root();
    let all = lists(&root)?;
    let files = mutated_files(&root, &all)?;
    let scratch = step::target_folder().join("mutations");
    let (mut due, mut skipped) = (Vec::new(), 0);
    for list in all.iter().filter(|l| options.simulations.contains(&l.simulation.as_str())) {
        let stamp = scratch.join(format!("{}-{}.stamp", list.package, list.simulation));
        let hash = source_hash(&root, &list.package)?;
        if options.changed && fs::read_to_string(&stamp).is_ok_and(|found| found == hash) {
            println!("{}: unchanged since its mutations were found", list.package);
            skipped += list.mutations.len();
        } else {
            due.push((list, stamp, hash));
        }
    }
    let (mut found, mut missed) = (0, 0);
    if !due.is_empty() {
        let executable = build(&root, &scratch.join("workspace"), files, options.debug)?;
        check_without(&executable, &due, options.seed)?;
        for (list, stamp, hash) in due {
            let missed_here = search(&executable, list, options)?;
            found += list.mutations.len() - missed_here;
            missed += missed_here;
            if missed_here == 0 {
                fs::write(stamp, hash)?;
            }
        }
    }
    let verdict = if missed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {found} passed; {missed} failed; {skipped} ignored");
    Ok(missed == 0)
}

/// With no mutation switched on the copy must behave as the original.
fn check_without(executable: &Path, due: &[(&List, PathBuf, String)], seed: u64) -> Result<()> {
    let simulations: BTreeSet<&str> = due.iter().map(|(list, ..)| &*list.simulation).collect();
    for simulation in simulations {
        let failure = first_failure(executable, simulation, "", SEEDS_WITHOUT, seed)?;
        if let Some(failure) = failure {
            bail!("without a mutation the simulation `{simulation}` fails: {failure}");
        }
    }
    Ok(())
}

/// Switches on one mutation after another; how many were not found.
fn search(executable: &Path, list: &List, options: &Options<'_>) -> Result<usize> {
    let mut missed = 0;
    for mutation in &list.mutations {
        let (seeds, seed) = (options.seeds, options.seed);
        match first_failure(executable, &list.simulation, &mutation.name, seeds, seed)? {
            Some(failure) => println!("{} found: {failure}", mutation.name),
            None => {
                missed += 1;
                println!("{} NOT found by {seeds} seeds: {}", mutation.name, mutation.meaning);
            }
        }
    }
    Ok(missed)
}

/// Runs seeds until one fails; its line.
fn first_failure(
    executable: &Path,
    simulation: &str,
    mutation: &str,
    seeds: u64,
    seed: u64,
) -> Result<Option<String>> {
    let mut command = Command::new(executable);
    command.args([simulation, "--seeds", &seeds.to_string(), "--seed", &seed.to_string()]);
    let output = command.env(SWITCH, mutation).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failure = text.lines().find(|line| line.starts_with("seed "));
    ensure!(
        output.status.success() || failure.is_some(),
        "`{simulation}` with the mutation `{mutation}` neither passed nor named a seed: {}{text}",
        String::from_utf8_lossy(&output.stderr),
    );
    Ok(failure.map(str::to_owned))
}

/// Copies the workspace with the mutated files and builds its simulations; the executable's path.
fn build(
    root: &Path,
    copy: &Path,
    mutated: BTreeMap<PathBuf, String>,
    debug: bool,
) -> Result<PathBuf> {
    let mut files = BTreeMap::new();
    for path in COPIED {
        read_all(root, Path::new(path), &mut files)?;
    }
    files.extend(mutated.into_iter().map(|(path, text)| (path, text.into_bytes())));
    set_apart(&mut files, "mutated")?;
    edit(&mut files, "crates/engine/src/lib.rs", "\npub mod sys;", |rest| {
        format!("\npub mod mutation;{rest}")
    })?;
    files.insert("crates/engine/src/mutation.rs".into(), SWITCH_MODULE.into());
    write_changed(copy, &files)?;
    let mut cargo = sim::build_command(MUTATED_EXECUTABLE, debug);
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", step::target_folder());
    ensure!(cargo.status()?.success(), "the mutated simulations do not build");
    Ok(sim::executable(MUTATED_EXECUTABLE, debug))
}

/// Gives the copy's packages another version and its executable another name, or cargo would take
/// them for those of the repository, as they share the target folder.
pub(crate) fn set_apart(files: &mut BTreeMap<PathBuf, Vec<u8>>, suffix: &str) -> Result<()> {
    edit(files, "Cargo.toml", "[workspace.package]\nversion = \"", |rest| {
        rest.replacen('"', &format!("+{suffix}\""), 1)
    })?;
    edit(files, "crates/sim/Cargo.toml", "[[bin]]\nname = \"", |rest| {
        rest.replacen(EXECUTABLE, &format!("{EXECUTABLE}-{suffix}"), 1)
    })
}

/// Changes what follows the first `anchor` in a file of the copy.
pub(crate) fn edit(
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
    path: &str,
    anchor: &str,
    change: impl FnOnce(&str) -> String,
) -> Result<()> {
    let file = files.get_mut(Path::new(path)).with_context(|| format!("no {path}"))?;
    let text = String::from_utf8(std::mem::take(file))?;
    let (before, rest) =
        text.split_once(anchor).with_context(|| format!("{path} lacks {anchor:?}"))?;
    *file = format!("{before}{anchor}{}", change(rest)).into_bytes();
    Ok(())
}

/// Makes the folder hold exactly these files, and touches none that is right, so that cargo builds
/// again only what changed. Cargo's own lock file changes with the versions and stays.
pub(crate) fn write_changed(copy: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    fs::create_dir_all(copy)?;
    let mut there = BTreeMap::new();
    for path in COPIED.iter().filter(|path| copy.join(path).exists()) {
        read_all(copy, Path::new(path), &mut there)?;
    }
    for stale in there.keys().filter(|path| !files.contains_key(*path)) {
        fs::remove_file(copy.join(stale))?;
    }
    for (path, bytes) in files.iter().filter(|(path, bytes)| there.get(*path) != Some(bytes)) {
        let path = copy.join(path);
        fs::create_dir_all(path.parent().context("a file without a folder")?)?;
        fs::write(path, bytes)?;
    }
    Ok(())
}

/// Reads a file, or every file of a folder, by its path below `root`.
pub(crate) fn read_all(
    root: &Path,
    path: &Path,
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
) -> Result<()> {
    let full = root.join(path);
    if full.is_dir() {
        for entry in fs::read_dir(&full)? {
            read_all(root, &path.join(entry?.file_name()), files)?;
        }
    } else {
        let bytes = fs::read(&full).with_context(|| full.display().to_string())?;
        files.insert(path.to_owned(), bytes);
    }
    Ok(())
}

/// A hash of all that decides whether a crate's mutations are found: the crate, the simulations
/// with the lists, and this module.
fn source_hash(root: &Path, package: &str) -> Result<String> {
    let mut files = BTreeMap::new();
    for path in [&*format!("crates/{package}"), "crates/sim", "xtask/src/mutations.rs"] {
        read_all(root, Path::new(path), &mut files)?;
    }
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    Ok(format!("{:016x}\n", hasher.finish()))
}

/// Every list, checked.
fn lists(root: &Path) -> Result<Vec<List>> {
    let folder = root.join("crates/sim/mutations");
    let mut lists: Vec<List> = Vec::new();
    let mut names = BTreeSet::new();
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    for path in paths {
        let stem = path.file_stem().unwrap_or_default();
        if path.extension().is_none_or(|extension| extension != "toml") || stem == "accepted" {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let list: List = toml::from_str(&text).with_context(|| path.display().to_string())?;
        for mutation in &list.mutations {
            ensure!(names.insert(mutation.name.clone()), "two mutations {}", mutation.name);
            ensure!(!mutation.edits.is_empty(), "mutation {} changes nothing", mutation.name);
        }
        lists.push(list);
    }
    Ok(lists)
}

/// The files that mutations change, by their paths below the root, with all of them applied.
fn mutated_files(root: &Path, lists: &[List]) -> Result<BTreeMap<PathBuf, String>> {
    let mut edits: BTreeMap<PathBuf, Vec<(&str, &Edit, String)>> = BTreeMap::new();
    for list in lists {
        for mutation in &list.mutations {
            for edit in &mutation.edits {
                let path = Path::new("crates").join(&list.package).join(&edit.file);
                let switch = switch(&list.package, &mutation.name);
                let replacement = edit.replace.replace("MUTATED", &switch);
                edits.entry(path).or_default().push((&mutation.name, edit, replacement));
            }
        }
    }
    let mut files = BTreeMap::new();
    for (path, edits) in edits {
        let text = fs::read_to_string(root.join(&path))
            .with_context(|| format!("mutation {}: {}", edits[0].0, path.display()))?;
        files.insert(path, mutated(&text, edits)?);
    }
    Ok(files)
}

/// The expression that is true while a mutation is switched on.
fn switch(package: &str, mutation: &str) -> String {
    match package {
        "engine" => format!("crate::mutation::active(\"{mutation}\")"),
        // It does not use the engine.
        "brokers" => format!("std::env::var(\"{SWITCH}\").is_ok_and(|own| own == \"{mutation}\")"),
        _ => format!("engine::mutation::active(\"{mutation}\")"),
    }
}

/// The text with all edits applied. Each is looked for in the text as it was.
fn mutated(text: &str, edits: Vec<(&str, &Edit, String)>) -> Result<String> {
    let mut places = Vec::new();
    for (name, edit, replacement) in edits {
        let found = occurrences(text, &edit.find);
        let [(start, end)] = found[..] else {
            bail!(
                "mutation {name}: {} holds {:?} {} times, expected once: adapt the mutation",
                edit.file,
                edit.find,
                found.len(),
            );
        };
        places.push((start, end, name, replacement));
    }
    places.sort();
    let (mut out, mut at) = (String::new(), 0);
    for (start, end, name, replacement) in places {
        ensure!(start >= at, "mutation {name} overlaps with another");
        out += &text[at..start];
        out += &replacement;
        at = end;
    }
    Ok(out + &text[at..])
}

/// Where a text holds these words, with any white space between them.
fn occurrences(text: &str, words: &str) -> Vec<(usize, usize)> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let Some((first, others)) = words.split_first() else { return Vec::new() };
    let end_of = |start: usize| {
        others.iter().try_fold(start + first.len(), |end, word| {
            let rest = &text[end..];
            let trimmed = rest.trim_start();
            let space = rest.len() - trimmed.len();
            (space > 0 && trimmed.starts_with(word)).then(|| end + space + word.len())
        })
    };
    text.match_indices(first).filter_map(|(start, _)| Some((start, end_of(start)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_of_the_lists_applies() {
        let root = step::root();
        let lists = lists(&root).unwrap();
        let count: usize = lists.iter().map(|list| list.mutations.len()).sum();
        assert!(count >= 32, "only {count} mutations");
        let files = mutated_files(&root, &lists).unwrap();
        let switches: usize = files
            .values()
            .map(|text| text.matches("mutation::active(\"").count() + text.matches(SWITCH).count())
            .sum();
        assert!(switches >= count, "{switches} switches for {count} mutations");
    }

    fn apply(text: &str, edits: &[(&str, &str, &str)]) -> Result<String> {
        let list: Vec<Edit> = edits
            .iter()
            .map(|&(_, find, replace)| Edit {
                file: "file".into(),
                find: find.into(),
                replace: replace.into(),
            })
            .collect();
        let edits = edits.iter().zip(&list);
        mutated(text, edits.map(|(&(name, ..), e)| (name, e, e.replace.clone())).collect())
    }

    #[test]
    fn edits_are_found_whatever_the_white_space_and_applied_together() {
        let text = "if a\n        .b()\n    && c { d(); }";
        let edits = [("second", "d();", "e();"), ("first", "a .b() && c", "c")];
        assert_eq!(apply(text, &edits).unwrap(), "if c { e(); }");
    }

    #[test]
    fn an_edit_that_matches_not_exactly_once_names_its_mutation() {
        for text in ["nothing", "x(); x();"] {
            let error = apply(text, &[("name-of-it", "x();", "")]).unwrap_err().to_string();
            assert!(error.contains("name-of-it") && error.contains("expected once"), "{error}");
        }
        let both = [("one", "a b", "x"), ("two", "b c", "y")];
        assert!(apply("a b c", &both).unwrap_err().to_string().contains("overlaps"));
    }
}
