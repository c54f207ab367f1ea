//! Result files: JSON to a file, replaced atomically, or to standard output.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use admin::log;
use anyhow::{Context, Result};
use load::Bars;
use serde::Serialize;

/// The file name that stands for standard output.
pub(crate) const STDOUT: &str = "-";

/// Writes a document as JSON.
///
/// # Errors
/// Names a file that cannot be written.
pub(crate) fn write_json(file: &str, document: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(document)? + "\n";
    if file == STDOUT {
        return print(&text);
    }
    write_file(Path::new(file), &text)
}

/// Prints the summary of a run: text to standard output unless JSON goes there.
///
/// # Errors
/// As [`write_json`] and [`print()`].
pub(crate) fn report(json: Option<&str>, text: &str, document: &impl Serialize) -> Result<()> {
    match json {
        Some(STDOUT) => {
            print_to_stderr(text);
        }
        _ => print(text)?,
    }
    json.map_or(Ok(()), |file| write_json(file, document))
}

/// The characters of bars in text that [`report`] prints: blocks on a terminal that shows them.
pub(crate) fn bars(json: Option<&str>) -> Bars {
    let is_terminal = match json {
        Some(STDOUT) => io::stderr().is_terminal(),
        _ => io::stdout().is_terminal(),
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    bars_of(is_terminal, variable)
}

fn bars_of(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Bars {
    // The first one that is set counts, as in locale(7).
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(&variable);
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    let is_plain = variable("NO_COLOR").is_some() || variable("TERM").is_some_and(|t| t == "dumb");
    match is_terminal && !is_plain && (locale.contains("utf-8") || locale.contains("utf8")) {
        true => Bars::Blocks,
        false => Bars::Ascii,
    }
}

/// Prints to standard output.
///
/// # Errors
/// A write error, such as a closed pipe.
pub(crate) fn print(text: &str) -> Result<()> {
    // On a terminal both streams appear in the order of their writes.
    log::flush();
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Prints text of whole lines to standard error. It never fails.
pub(crate) fn print_to_stderr(text: &str) {
    log::write(text.as_bytes());
}

/// Prints a line to standard error. It never fails.
pub(crate) fn note(line: &str) {
    log::write_line(line);
}

/// Writes a file under a temporary name and renames it, so readers never see half of it. Special files
/// (`/dev/null`, a pipe) are written directly.
///
/// # Errors
/// Names a file that cannot be written.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    let beside = beside(path);
    let written = if is_special(path) {
        fs::write(path, text)
    } else {
        fs::write(&beside, text).and_then(|()| fs::rename(&beside, path))
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the command line, quoted for a shell.
pub(crate) fn command_line() -> String {
    let words = std::env::args().skip(1).map(|word| quoted(&word));
    std::iter::once("standfast".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Formats a time as date and time in UTC: 2026-01-31 18:05 UTC.
pub(crate) fn utc(moment: SystemTime) -> String {
    let minutes = moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 60);
    let (mut days, minute) = (minutes / 1_440, minutes % 1_440);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut month) = (1970, 1);
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", days + 1, minute / 60, minute % 60)
}

/// Quotes a word for a POSIX shell.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Checks before a long run that the result can be written later.
///
/// # Errors
/// Names the file and the reason.
pub(crate) fn check_writable(file: &str) -> Result<()> {
    if file == STDOUT {
        return Ok(());
    }
    let path = Path::new(file);
    if path.is_dir() {
        anyhow::bail!("cannot write {file}: it is a directory");
    }
    if is_special(path) {
        return Ok(());
    }
    let beside = beside(path);
    fs::write(&beside, "")
        .and_then(|()| fs::remove_file(&beside))
        .with_context(|| format!("cannot write {file}"))
}

fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_if_a_shell_would_change_them() {
        for (word, text) in [
            ("--hold=5m", "--hold=5m"),
            ("X: it's", "'X: it'\\''s'"),
            ("", "''"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(quoted(word), text);
        }
    }

    #[test]
    fn bars_have_blocks_on_terminals_with_utf_8_only() {
        let bars = |is_terminal, variables: &[(&str, &str)]| {
            let value = |name: &str| {
                let named = variables.iter().find(|(known, _)| *known == name);
                named.map(|(_, value)| (*value).to_owned())
            };
            bars_of(is_terminal, value)
        };
        assert_eq!(bars(true, &[("LANG", "C.UTF-8")]), Bars::Blocks);
        assert_eq!(bars(true, &[("LANG", "C"), ("LC_ALL", "de_DE.utf8")]), Bars::Blocks);
        for (is_terminal, variables) in [
            (false, &[("LANG", "C.UTF-8")][..]),
            (true, &[]),
            (true, &[("LC_ALL", "C"), ("LANG", "C.UTF-8")]),
            (true, &[("LANG", "C.UTF-8"), ("NO_COLOR", "1")]),
            (true, &[("LANG", "C.UTF-8"), ("TERM", "dumb")]),
        ] {
            assert_eq!(bars(is_terminal, variables), Bars::Ascii, "{is_terminal} {variables:?}");
        }
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59 UTC"),
            (1_767_225_600, "2026-01-01 00:00 UTC"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + std::time::Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_file_is_replaced_atomically_and_a_directory_is_refused() {
        let file = std::env::temp_dir().join(format!("standfast-output-{}", std::process::id()));
        let name = file.to_str().unwrap();
        check_writable(name).unwrap();
        assert!(!file.exists(), "the check leaves no file");
        write_file(&file, "one").unwrap();
        write_file(&file, "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        fs::remove_file(&file).unwrap();
        assert!(check_writable(std::env::temp_dir().to_str().unwrap()).is_err());
        assert!(check_writable("/no/such/directory/file").is_err());
        write_file(Path::new("/dev/null"), "gone").unwrap();
        assert!(is_special(Path::new("/dev/null")), "it is still a device");
    }
}
