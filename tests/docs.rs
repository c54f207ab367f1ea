//! The Markdown pages are correct: every link and anchor resolves, every command line parses, the
//! summary of the site lists every page, quick starts and shell blocks run as they are written, and the
//! README in Chinese is in step with the README.
//!
//! These checks need no mdBook; `cargo xtask docs` builds the site and follows its links.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::executable;
use crate::harness::server::Server;

use self::blocks::{Block, blocks};

mod blocks;
mod quick_starts;
mod security;
mod session;
mod shell_blocks;
mod translation;

/// Folders with pages, beside the root.
const FOLDERS: [&str; 11] = [
    ".github",
    "bench",
    "conformance",
    "crates",
    "deploy",
    "docs",
    "examples",
    "fuzz",
    "scenarios",
    "tests",
    "xtask",
];
/// Files that commands in the docs read, and that the user has.
const USER_FILES: [&str; 2] = ["body.json", "order.json"];
/// The longest README that is still read.
const README_LINES_MAX: usize = 150;
/// A picture must not make the repository heavy.
const PICTURE_BYTES_MAX: u64 = 150_000;

#[test]
fn links_lead_to_files_and_headings() {
    let mut links = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let folder = page.parent().unwrap();
        for target in targets(&text) {
            links += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { page.clone() } else { folder.join(path) };
            assert!(file.exists(), "{}: no file {target}", page.display());
            if !heading.is_empty() {
                let ids = anchors(&fs::read_to_string(&file).unwrap());
                assert!(ids.contains(heading), "{}: no heading {target}: {ids:?}", page.display());
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
}

#[test]
fn the_summary_lists_every_page_of_docs_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<PathBuf> =
        targets(&summary).map(|target| docs.join(target).canonicalize().expect(target)).collect();
    let unique: BTreeSet<&PathBuf> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice");
    for page in pages().iter().filter(|page| page.starts_with(&docs)) {
        let page = page.canonicalize().unwrap();
        let is_listed = page.ends_with("SUMMARY.md") || unique.contains(&page);
        assert!(is_listed, "docs/SUMMARY.md lacks {}", page.display());
    }
}

#[test]
fn the_readme_and_its_pictures_stay_small() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines, {README_LINES_MAX} allowed");
    for picture in ["live-screen.png", "report.png"] {
        let file = root().join("docs/images").join(picture);
        assert!(readme.contains(&format!("docs/images/{picture}")), "README.md lacks {picture}");
        let bytes = fs::metadata(&file).unwrap().len();
        assert!(bytes <= PICTURE_BYTES_MAX, "{picture} has {bytes} bytes");
    }
}

#[test]
fn anchors_are_made_as_github_and_mdbook_make_them() {
    let page =
        "# A `b`: c_d, 2\n```\n# no heading\n```\n## [Link](x.md#y) here\n## Same\n### Same\n";
    let expected = ["a-b-c_d-2", "link-here", "same", "same-1"];
    assert_eq!(anchors(page), expected.map(str::to_owned).into());
}

/// Targets of the links in a page, without those to other sites.
fn targets(page: &str) -> impl Iterator<Item = &str> {
    links(page).filter(|target| !target.contains("://") && !target.contains(' '))
}

/// Targets of all links and pictures in a page.
fn links(page: &str) -> impl Iterator<Item = &str> {
    page.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The identifiers of a page's headings, by which links name them.
fn anchors(page: &str) -> BTreeSet<String> {
    let (mut ids, mut in_code) = (BTreeSet::new(), false);
    for line in page.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if in_code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        // Of a link the text counts.
        let parts = title.split("](").enumerate().map(|(nth, part)| match part.split_once(')') {
            Some((_, after)) if nth > 0 => after,
            _ => part,
        });
        let title = parts.collect::<String>().trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let id = kept.collect::<String>().replace(' ', "-");
        let free = (1..).map(|n| format!("{id}-{n}")).find(|id| !ids.contains(id));
        ids.insert(if ids.contains(&id) { free.expect("a number is free") } else { id });
    }
    ids
}

/// The command line of the executable reads each command: its flags exist, its values are valid.
#[test]
fn every_command_in_the_docs_parses() {
    let folder = Folder::new("docs-commands");
    for file in USER_FILES {
        fs::write(folder.0.join(file), "{}").unwrap();
    }
    let mut tried = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for line in commands(&text) {
            // `--help` acts once all before it has been read.
            let output = folder.shell(&format!("{line} --help"));
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {line}\n{error}", page.display());
            tried += 1;
        }
    }
    assert!(tried > 60, "only {tried} commands were found");
}

#[test]
fn commands_are_found_behind_prompts_and_paths() {
    let page = "```console\n$ standfast a 'x|y' | z # no\ntarget/release/standfast b\n\
                cargo run --release -- c\nnpx standfast d\nstandfast e FILE\n```\n```js\nstandfast f\n```\n";
    let found: Vec<String> = commands(page).collect();
    assert_eq!(found, ["standfast a 'x|y'", "standfast b", "standfast c", "standfast d"]);
}

#[test]
fn the_step_for_continuous_integration_passes_and_fails_by_its_threshold() {
    let page = fs::read_to_string(root().join("docs/load/five-minutes.md")).unwrap();
    let server = Server::start(&[]);
    let folder = Folder::new("docs-five-minutes");
    assert!(folder.shell("standfast load init").status.success());
    let step = page.lines().find_map(|line| line.trim().strip_prefix("- run: ")).expect("the step");
    let run = |step: &str| folder.shell(&format!("URL=http://{}; {step}", server.listen));
    assert!(run(step).status.success(), "{step}");
    let missed = run(&format!("{} --duration 200ms", step.replace("p99<1s", "rate>100M")));
    assert_eq!(missed.status.code(), Some(1), "the threshold decides: {missed:?}");
    let json = fs::read_to_string(folder.0.join("run.json")).unwrap();
    assert!(json.contains("\"thresholds\""), "{json}");
}

/// The command lines of the executable in the shell blocks of a page, as `standfast ARGUMENTS`:
/// without prompt, path, pipes and comments.
fn commands(page: &str) -> impl Iterator<Item = String> {
    let blocks = blocks(page).into_iter().filter(Block::is_shell);
    let blocks: Vec<String> = blocks.map(|block| block.text.replace("\\\n", " ")).collect();
    let lines: Vec<String> = blocks.iter().flat_map(|block| block.lines()).map(plain).collect();
    let lines = lines.into_iter().filter(|line| line.starts_with("standfast "));
    lines.map(|line| alone(&line).to_owned()).filter(|line| !has_a_gap(line))
}

/// A line without prompt, and with the executable by its name.
fn plain(line: &str) -> String {
    let line = line.trim().trim_start_matches("$ ");
    for before in ["./target/release/", "target/release/", "npx ", "uvx "] {
        if let Some(command) = line.strip_prefix(before) {
            return command.to_owned();
        }
    }
    match line.strip_prefix("cargo run --release -- ") {
        Some(arguments) => format!("standfast {arguments}"),
        None => line.to_owned(),
    }
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
    let folders = FOLDERS.iter().map(|folder| root().join(folder));
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
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
