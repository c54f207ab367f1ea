//! The copy of the sources with all mutants in, each behind its number, and the build of its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Mutant, Package, Place, Span, judges};
use crate::mutations::{self, COPIED};
use crate::step;

/// Compilers report errors in rounds: types first, borrows last.
const BUILDS_MAX: usize = 12;
const SWITCH_MODULE: &str = "//! Which mutant is chosen.\n\nextern crate std;\n\
    use std::sync::LazyLock;\n\nstatic CHOSEN: LazyLock<usize> = LazyLock::new(|| {\n    \
    std::env::var(\"STANDFAST_MUTATION\").ok().and_then(|text| text.parse().ok()).unwrap_or(0)\n});\
    \n\n/// Its number.\npub(crate) fn chosen() -> usize {\n    *CHOSEN\n}\n";

type Built = (Vec<Vec<String>>, BTreeSet<usize>, BTreeSet<usize>);

/// Builds the tests with all mutants in; the commands that judge, and the numbers of mutants that do
/// not compile and of those that cannot be chosen at run time.
pub(super) fn build(
    package: Package,
    copy: &Path,
    mutants: &[Mutant],
    mut unviable: BTreeSet<usize>,
) -> Result<Built> {
    let (folder, _, packages) = package.parts();
    let mut skipped = BTreeSet::new();
    for _ in 0..BUILDS_MAX {
        let (files, ranges) = write(folder, mutants, &unviable, &mut skipped)?;
        mutations::write_changed(copy, &files)?;
        let words = ["test", "--no-run", "--message-format", "json", "--quiet"];
        let mut cargo = step::cargo(&words);
        cargo.current_dir(copy).env("CARGO_TARGET_DIR", step::target_folder());
        for package in packages {
            cargo.args(["--package", package]);
        }
        if matches!(package, Package::Wire) {
            cargo.args(["--config", "profile.dev.package.standfast-wire.opt-level=1"]);
        }
        let output = cargo.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if output.status.success() {
            return Ok((judges::commands(package, &messages), unviable, skipped));
        }
        let before = unviable.len();
        for message in &messages {
            unviable.extend(wrong_in(message, &ranges));
        }
        if unviable.len() == before {
            bail!("the mutants do not build: {}", String::from_utf8_lossy(&output.stderr));
        }
        println!("{} mutants do not compile", unviable.len());
    }
    bail!("the mutants do not build after {BUILDS_MAX} attempts")
}

/// The numbers of the mutants that an error of the compiler is about.
fn wrong_in(message: &Value, ranges: &[(PathBuf, usize, usize, usize)]) -> Vec<usize> {
    let error = &message["message"];
    if error["level"] != "error" {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for span in error["spans"].as_array().into_iter().flatten() {
        let line = span["line_start"].as_u64().unwrap_or(0) as usize;
        let name = Path::new(span["file_name"].as_str().unwrap_or_default());
        let inside = ranges.iter().filter(|(file, from, to, _)| {
            (name.ends_with(file) || file.ends_with(name)) && (*from..=*to).contains(&line)
        });
        wrong.extend(inside.map(|(.., number)| *number));
    }
    wrong
}

type Written = (BTreeMap<PathBuf, Vec<u8>>, Vec<(PathBuf, usize, usize, usize)>);

/// The files of the copy, and in which lines of which file each mutant's body is.
fn write(
    folder: &str,
    mutants: &[Mutant],
    unviable: &BTreeSet<usize>,
    skipped: &mut BTreeSet<usize>,
) -> Result<Written> {
    let root = step::root();
    let mut files = BTreeMap::new();
    for path in COPIED {
        mutations::read_all(&root, Path::new(path), &mut files)?;
    }
    let mut by_function: BTreeMap<(PathBuf, Span), Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in (1..).zip(mutants) {
        match &mutant.function {
            Some(function) if !unviable.contains(&number) => {
                let key = (mutant.file.clone(), function.span);
                by_function.entry(key).or_default().push((number, mutant));
            }
            Some(_) => {}
            None => {
                skipped.insert(number);
            }
        }
    }
    let mut ranges: Vec<(PathBuf, usize, usize, usize)> = Vec::new();
    // From the last function of a file to the first, so that places before it stay right.
    for ((file, span), mutants) in by_function.into_iter().rev() {
        let bytes = files.get_mut(&file).with_context(|| format!("no {}", file.display()))?;
        let text = String::from_utf8(std::mem::take(bytes))?;
        let (changed, bodies) = match switched(&text, span, &mutants) {
            Some(switched) => switched,
            None => {
                skipped.extend(mutants.iter().map(|(number, _)| *number));
                (text.clone(), Vec::new())
            }
        };
        let grown = changed.lines().count() - text.lines().count();
        for (.., from, to, _) in ranges.iter_mut().filter(|(other, ..)| *other == file) {
            *from += grown;
            *to += grown;
        }
        ranges
            .extend(bodies.into_iter().map(|(from, to, number)| (file.clone(), from, to, number)));
        *bytes = changed.into_bytes();
    }
    let lib = format!("crates/{folder}/src/lib.rs");
    mutations::edit(&mut files, &lib, "\nmod ", |rest| format!("mutant;\nmod {rest}"))?;
    files.insert(format!("crates/{folder}/src/mutant.rs").into(), SWITCH_MODULE.into());
    mutations::set_apart(&mut files, "mutants")?;
    Ok((files, ranges))
}

type Switched = (String, Vec<(usize, usize, usize)>);

/// The text with a function's body once for each mutant; the lines that each is in.
fn switched(text: &str, function: Span, mutants: &[(usize, &Mutant)]) -> Option<Switched> {
    let (start, end) = (offset(text, function.start)?, offset(text, function.end)?);
    let open = start + opening(text.get(start..end)?)?;
    let close = start + text.get(start..end)?.rfind('}')?;
    // A constant function chooses nothing, so the copy's are not constant.
    let signature = text.get(start..open)?.replace("const fn", "fn");
    let before = text.get(..start)?;
    let mut out = format!("{before}{signature}{{ match crate::mutant::chosen() {{\n");
    let mut ranges = Vec::new();
    for (number, mutant) in mutants {
        let (from, to) = (offset(text, mutant.span.start)?, offset(text, mutant.span.end)?);
        let (before, after) = (text.get(open + 1..from)?, text.get(to..close)?);
        let first = out.lines().count() + 1;
        let _ = writeln!(out, "{number} => {{ {before} {} {after}\n}}", mutant.replacement);
        ranges.push((first, out.lines().count(), *number));
    }
    let _ = write!(out, "_ => {{ {}\n}} }} ", text.get(open + 1..close)?);
    Some((out + text.get(close..)?, ranges))
}

/// Where a function's body begins: the first brace that is in no comment and in no attribute.
fn opening(text: &str) -> Option<usize> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let code = line.trim_start();
        let prose = code.starts_with("//") || code.starts_with("#[");
        if let Some(brace) = line.find('{').filter(|_| !prose) {
            return Some(at + brace);
        }
        at += line.len();
    }
    None
}

fn offset(text: &str, place: Place) -> Option<usize> {
    let line: usize = text.split_inclusive('\n').take(place.line - 1).map(str::len).sum();
    let rest = text.get(line..)?;
    let column = rest.char_indices().nth(place.column - 1).map_or(rest.len(), |(at, _)| at);
    Some(line + column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::without_place;

    #[test]
    fn a_function_gets_a_body_per_mutant() {
        let text = "/// As { this }.\nfn f(a: u8) -> bool {\n    a == 1\n}\n";
        let place = |line, column| Place { line, column };
        let mutant = Mutant {
            file: "f.rs".into(),
            function: None,
            name: "f.rs:3:7: replace == with != in f".into(),
            replacement: "!=".into(),
            span: Span { start: place(3, 7), end: place(3, 9) },
        };
        let function = Span { start: place(1, 1), end: place(4, 2) };
        let (out, ranges) = switched(text, function, &[(7, &mutant)]).unwrap();
        let words: Vec<&str> = out.split_whitespace().skip(5).collect();
        let expected = "fn f(a: u8) -> bool { match crate::mutant::chosen() { 7 => { a != 1 } \
            _ => { a == 1 } } }";
        assert_eq!(words.join(" "), expected);
        assert_eq!(ranges, [(3, 6, 7)]);
        assert_eq!(without_place(&mutant.name), "f.rs: replace == with != in f");
        let constant = text.replace("fn f", "const fn f");
        let (of_constant, _) = switched(&constant, function, &[(7, &mutant)]).unwrap();
        assert_eq!(of_constant, out);
    }
}
