//! The quick starts, `docs/quickstart`: each page from its first command to its last, as it is written.
//! A block of `text` below commands is what they print; code blocks are saved under the names that the page gives.

use std::fs;

use super::session::Session;
use super::{blocks, root};
use crate::harness::peer::{self, APPLICATION, BROWSER, NODE, PYTHON, Runtime};
use crate::harness::rails::RAILS;

/// The folder of the pages.
pub(super) const FOLDER: &str = "docs/quickstart";
/// One page each, so that it is read to its end. The first hour is the longest.
const LINES_MAX: usize = 150;

#[test]
fn first_hour() {
    let connected = ["#state:text-is('connected')", "hello from curl"];
    follow("first-hour.md", &[&BROWSER, &PYTHON], &connected);
}

#[test]
fn quick_start_of_node() {
    follow("node.md", &[&NODE], &[]);
}

#[test]
fn quick_start_of_a_browser() {
    let connected = ["#state:text-is('connected')", "hello from curl"];
    follow("browser.md", &[&BROWSER, &PYTHON], &connected);
}

#[test]
fn quick_start_of_python() {
    follow("python.md", &[&PYTHON], &[]);
}

#[test]
fn quick_start_of_rails() {
    follow("rails.md", &[&BROWSER, &RAILS], &["turbo-cable-stream-source[connected]"]);
}

#[test]
fn quick_start_of_curl() {
    follow("curl.md", &[], &[]);
}

#[test]
fn quick_start_of_tokens() {
    follow("jwt.md", &[&NODE, &APPLICATION], &[]);
}

#[test]
fn every_quick_start_is_run_and_listed() {
    let source = fs::read_to_string(root().join("tests/docs/quick_starts.rs")).unwrap();
    let start = fs::read_to_string(root().join("docs/start.md")).unwrap();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut pages = 0;
    for entry in fs::read_dir(root().join(FOLDER)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(source.contains(&format!("follow(\"{name}\"")), "{name} is not run");
        assert!(start.contains(&format!("(quickstart/{name})")), "docs/start.md lacks {name}");
        assert!(readme.contains(&format!("({FOLDER}/{name})")), "README.md lacks {name}");
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{name} has {lines} lines");
        pages += 1;
    }
    assert!(pages >= 6, "{pages} pages");
}

/// Follows a page. `connected` are the arguments for the tabs: the element of a connected page, and a text
/// that the page publishes later.
fn follow(page: &str, runtimes: &[&Runtime], connected: &[&str]) {
    if !runtimes.iter().all(|runtime| peer::is_here(runtime, page)) {
        return;
    }
    let text = fs::read_to_string(root().join(FOLDER).join(page)).unwrap();
    let Some(mut session) = Session::start(page.split('.').next().unwrap()) else { return };
    let (mut ran, mut seen, mut tabs) = (0, 0, None);
    for block in blocks(&text) {
        if let Some(url) = &block.opens {
            tabs = Some(session.open_tabs(&[&[url.as_str()], connected].concat()));
        }
        if let Some(file) = &block.file {
            session.save(file, &block.text);
        } else if block.is_shell() {
            session.run(&block.text);
            ran += 1;
        } else if block.language == "text" {
            session.sees(&block.text);
            seen += 1;
        }
    }
    assert!(ran >= 2 && seen >= 2, "{page}: {ran} blocks were run, {seen} compared");
    assert_eq!(tabs.is_some(), !connected.is_empty(), "{page} is opened in a browser");
    if let Some(tabs) = tabs {
        tabs.close();
    }
}
