//! The pictures in `docs/images`: a small proof on a terminal of its own (tmux) and the report it
//! writes, both rendered by Chromium.
//!
//! Not a terminal emulator: tmux is one. It prints the screen as text with colour sequences (SGR),
//! which become HTML here.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::step;

/// What is photographed: 20,000 sockets held for 20 s.
const PROOF: &str = "prove --connections 20k --hold 20s --heartbeat 5s";
const COLUMNS: usize = 100;
const ROWS: usize = 25;
/// A picture must not make the repository heavy.
const BYTES_MAX: u64 = 150_000;

/// Writes `live-screen.png` and `report.png` into `images`. Whether both are small enough.
pub(crate) fn take(images: &Path) -> Result<bool> {
    let executable = step::release_executable();
    ensure!(executable.is_file(), "no {}: cargo build --release", executable.display());
    let scratch = step::target_folder().join("pictures");
    fs::create_dir_all(&scratch)?;
    let report = scratch.join("report.html");
    let screen = live_screen(&executable, &report)?;
    let live = scratch.join("live-screen.html");
    fs::write(&live, page(&screen))?;
    fs::create_dir_all(images)?;
    let mut small = true;
    for (page, name, size) in
        [(&live, "live-screen.png", (880, 505)), (&report, "report.png", (1000, 1112))]
    {
        let picture = images.join(name);
        photograph(page, &picture, size, &scratch)?;
        let bytes = fs::metadata(&picture)?.len();
        println!("{}: {bytes} bytes", picture.display());
        small &= bytes <= BYTES_MAX;
    }
    Ok(small)
}

/// The screen in the last phase of the proof, as tmux prints it. Waits for the proof's end.
fn live_screen(executable: &Path, report: &Path) -> Result<String> {
    let socket = format!("standfast-docs-{}", process::id());
    let tmux = |words: &[&str]| {
        let mut tmux = Command::new("tmux");
        tmux.args(["-L", &socket, "-f", "/dev/null"]).args(words).stderr(Stdio::null());
        tmux
    };
    let command = format!("{} {PROOF} --html {}", executable.display(), report.display());
    let (columns, rows) = (COLUMNS.to_string(), ROWS.to_string());
    let mut start =
        tmux(&["new-session", "-d", "-s", "proof", "-x", &columns, "-y", &rows, &command]);
    ensure!(start.status().context("cannot start tmux")?.success(), "tmux did not start");
    let (mut kept, started) = (String::new(), Instant::now());
    while started.elapsed() < Duration::from_secs(120) {
        let shown = tmux(&["capture-pane", "-e", "-p", "-t", "proof"]).output()?;
        if !shown.status.success() {
            break;
        }
        let screen = String::from_utf8(shown.stdout)?;
        // Once the hold has gone on for a while its curves have something to show.
        if screen.contains("▶ hold") && (70..90).contains(&share(&screen)) {
            kept = screen;
        }
        thread::sleep(Duration::from_millis(200));
    }
    let _ = tmux(&["kill-server"]).status();
    ensure!(!kept.is_empty() && report.is_file(), "the proof was not seen to its end: {command}");
    Ok(kept)
}

/// The percentage of the current phase, the first on the screen.
fn share(screen: &str) -> u32 {
    let before = screen.split('%').next().unwrap_or_default();
    let digits = before.rsplit(|char: char| !char.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// A screen as a page of HTML.
fn page(screen: &str) -> String {
    let mut text = String::new();
    for line in screen.trim_end().lines() {
        text += &html(line);
        text.push('\n');
    }
    format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><style>body{{margin:0;background:#16181d}}pre{{margin:14px 18px;\
         color:#d8dbe2;font:14px/1.35 'DejaVu Sans Mono','Liberation Mono',monospace}}\
         .b{{font-weight:bold;color:#fff}}.d{{color:#8b919e}}.c1{{color:#f47067}}.c2{{color:#6bc46d}}\
         .c3{{color:#daaa3f}}.c4{{color:#539bf5}}.c5{{color:#dcbdfb}}.c6{{color:#56d4dd}}.c12{{color:#6cb6ff}}\
         i{{font-style:normal;display:inline-block;width:1ch}}</style><pre>{text}</pre>"
    )
}

/// A line with its colour sequences as elements with classes.
fn html(line: &str) -> String {
    let (mut out, mut classes) = (String::new(), Vec::<String>::new());
    for (nth, part) in line.split("\x1b[").enumerate() {
        let mut text = part;
        if nth > 0 {
            let Some((codes, rest)) = part.split_once('m') else { continue };
            restyle(&mut classes, codes);
            text = rest;
        }
        if text.is_empty() {
            continue;
        }
        let text = cells(&text.replace('&', "&amp;").replace('<', "&lt;"));
        let _ = write!(out, "<span class=\"{}\">{text}</span>", classes.join(" "));
    }
    out
}

/// Each character of dots in a cell of its own: they come from another font, of another width.
fn cells(text: &str) -> String {
    let cell = |char: char| match char {
        '\u{2800}'..='\u{28ff}' => format!("<i>{char}</i>"),
        _ => char.to_string(),
    };
    text.chars().map(cell).collect()
}

/// Applies the codes of one sequence: `0`, `1` bold, `2` dim, `3N`, `9N` and `38;5;N` a colour, `39` none.
fn restyle(classes: &mut Vec<String>, codes: &str) {
    let mut codes = codes.split(';');
    while let Some(code) = codes.next() {
        match code {
            "" | "0" => classes.clear(),
            "1" => classes.push("b".to_owned()),
            "2" => classes.push("d".to_owned()),
            "38" => {
                classes.retain(|class| !class.starts_with('c'));
                classes.extend(codes.nth(1).map(|colour| format!("c{colour}")));
            }
            "39" => classes.retain(|class| !class.starts_with('c')),
            _ => {}
        }
    }
}

/// A page as a picture.
fn photograph(
    page: &Path,
    picture: &Path,
    (width, height): (u32, u32),
    scratch: &Path,
) -> Result<()> {
    let profile = scratch.join("chromium");
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
    chromium.args(["--no-first-run", "--disable-background-networking", "--hide-scrollbars"]);
    chromium.args(["--disable-component-update", "--disable-sync"]);
    chromium.arg(format!("--user-data-dir={}", profile.display()));
    chromium.arg(format!("--window-size={width},{height}"));
    chromium.arg(format!("--screenshot={}", picture.display()));
    chromium.arg(format!("file://{}", page.display()));
    let status = chromium.stdout(Stdio::null()).stderr(Stdio::null()).status();
    ensure!(status.context("cannot start Chromium")?.success(), "Chromium failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_sequences_become_classes() {
        assert_eq!(html("plain"), "<span class=\"\">plain</span>");
        let line = "\x1b[1ma\x1b[0;2m\x1b[38;5;6mb<\x1b[39mc";
        let expected = "<span class=\"b\">a</span><span class=\"d c6\">b&lt;</span>\
                        <span class=\"d\">c</span>";
        assert_eq!(html(line), expected);
    }
}
