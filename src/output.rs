//! Results as files: JSON to a file or to standard output, written whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// The file name that stands for standard output.
pub(crate) const STDOUT: &str = "-";

/// Writes a document as JSON.
///
/// # Errors
/// A file that cannot be written, by name.
pub(crate) fn write_json(file: &str, document: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(document)? + "\n";
    if file == STDOUT {
        return print(&text);
    }
    write_file(Path::new(file), &text)
}

/// Prints to standard output.
///
/// # Errors
/// A pipe that nobody reads any more, among others.
pub(crate) fn print(text: &str) -> Result<()> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Writes a file beside its place and moves it there, so that nobody sees half of it. What is no
/// plain file (`/dev/null`, a pipe) is written where it is.
///
/// # Errors
/// A file that cannot be written, by name.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    let beside = beside(path);
    let written = if is_special(path) {
        fs::write(path, text)
    } else {
        fs::write(&beside, text).and_then(|()| fs::rename(&beside, path))
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Whether a result can be written there later; asked before a run that takes long.
///
/// # Errors
/// Why not, by name.
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
