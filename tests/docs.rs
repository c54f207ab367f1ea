//! The Markdown pages are correct: every link and anchor resolves, every command line parses, the
//! summary of the site lists every page, and the commands of `docs/load/five-minutes.md` run.
//!
//! These checks need no mdBook; `cargo xtask docs` builds the site and follows its links.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::executable;
use crate::harness::server::Server;

/// Where pages are, beside those in the root.
const FOLDERS: [&str; 7] =
    ["bench", "conformance", "deploy", "docs", "examples", "fuzz", "scenarios"];
/// Files that commands in the docs read, which somebody else would have written.
const THEIR_FILES: [&str; 2] = ["body.json", "order.json"];

#[test]
fn links_lead_to_pages_and_headings_that_are_there() {
    let mut links = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let folder = page.parent().unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.contains(' ') {
                continue;
            }
            links += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { page.clone() } else { folder.join(path) };
            assert!(file.exists(), "{}: {target} leads nowhere", page.display());
            if !heading.is_empty() {
                let there = headings(&fs::read_to_string(&file).unwrap());
                let known = there.iter().any(|one| one == heading);
                assert!(known, "{}: no heading {target}: {there:?}", page.display());
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
}

/// As a page's headings are named in links.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = text.lines().filter(|line| line.starts_with('#'));
    let titles = titles.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    titles.map(|title| title.chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn commands_in_the_docs_are_commands() {
    let folder = Folder::new("docs-commands");
    for file in THEIR_FILES {
        fs::write(folder.0.join(file), "{}").unwrap();
    }
    let mut tried = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for line in commands(&text) {
            // `--help` acts once all before it has been read.
            let output = folder.shell(&format!("{line} --help"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {line}\n{said}", page.display());
            tried += 1;
        }
    }
    assert!(tried > 60, "only {tried} commands were found");
}

#[test]
fn the_five_minutes_of_the_readme_work_as_they_stand() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("### Five minutes").expect("the section is there");
    let part = rest.split("\n##").next().unwrap();
    let server = Server::start(&[]);
    let address = server.listen.to_string();
    let folder = Folder::new("docs-five-minutes");
    let mut ran = Vec::new();
    for line in commands(part).filter(|line| *line != "standfast serve") {
        let output = folder.shell(&line.replace("127.0.0.1:8080", &address));
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}\n{said}\n{error}");
        ran.push(line);
    }
    assert!(ran.len() >= 4, "{ran:?}");
    let step = part.lines().find_map(|line| line.trim().strip_prefix("- run: ")).expect("the step");
    let run = |step: &str| folder.shell(&format!("URL=http://{address}; {step}"));
    assert!(run(step).status.success(), "{step}");
    let missed = run(&format!("{} --duration 200ms", step.replace("p99<1s", "rate>100M")));
    assert_eq!(missed.status.code(), Some(1), "the threshold decides: {missed:?}");
    let json = fs::read_to_string(folder.0.join("run.json")).unwrap();
    assert!(json.contains("\"thresholds\""), "{json}");
}

/// The command lines of the executable in the shell blocks of a page, as `standfast ARGUMENTS`:
/// without prompt, path, pipes and comments.
fn commands(page: &str) -> impl Iterator<Item = String> {
    let blocks = page.split("```").skip(1).step_by(2);
    let blocks = blocks.filter(|block| block.starts_with('\n') || block.starts_with("sh\n"));
    let joined = blocks.map(|block| block.replace("\\\n", " ")).collect::<Vec<_>>().join("\n");
    let lines = joined.lines().map(|line| line.trim().trim_start_matches("$ ").to_owned());
    let lines: Vec<String> = lines.filter(|line| line.starts_with("standfast ")).collect();
    lines.into_iter().map(|line| alone(&line).to_owned()).filter(|line| !has_a_gap(line))
}

/// Up to a comment, a pipe, or whatever else ends a command.
fn alone(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, sign) in line.char_indices() {
        let ends = matches!(sign, '|' | '>' | '<' | ';' | '&') || sign == '#' && before == ' ';
        match quote {
            Some(open) if open == sign => quote = None,
            Some(_) => {}
            None if matches!(sign, '\'' | '"') => quote = Some(sign),
            None if ends => return line[..at].trim_end(),
            None => {}
        }
        before = sign;
    }
    line.trim_end()
}

/// Whether the reader has to fill in a word, such as FILE.
fn has_a_gap(line: &str) -> bool {
    let gap = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    line.contains('…')
        || line.split([' ', '=']).any(|word| gap(word.trim_matches(['[', ']', '\''])))
}

fn pages() -> Vec<PathBuf> {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let mut pages: Vec<PathBuf> = inside(root()).into_iter().filter(is_page).collect();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for path in inside(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if is_page(&path) {
                pages.push(path);
            }
        }
    }
    pages
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A scratch folder in which commands run; removed with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("{}-{name}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// Runs a line in a shell that finds the executable by its name.
    fn shell(&self, line: &str) -> std::process::Output {
        let executable = executable::path();
        let bin = Path::new(&executable).parent().unwrap().to_owned();
        let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(&self.0).env("PATH", path).stdin(Stdio::null());
        shell.output().expect("a shell starts")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
