//! [`Executable`]: the file that an agent was started from, which may have been replaced since.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::message::{HOST_CHARS_MAX, one_line};

/// How long `--version` of the file may take.
const ANSWER: Duration = Duration::from_secs(5);
/// The most bytes of its answer.
const ANSWER_BYTES: u64 = 256;

/// The release of this process.
pub(super) const RELEASE: &str = env!("CARGO_PKG_VERSION");

pub(super) struct Executable {
    path: PathBuf,
    /// What it was called as, and its arguments.
    words: Vec<OsString>,
}

impl Executable {
    /// Of this process. To be called at its start, while the file is there.
    pub(super) fn own() -> Result<Executable> {
        let words: Vec<OsString> = env::args_os().collect();
        let current = env::current_exe().context("the executable")?;
        let called = words.first().map(PathBuf::from).unwrap_or_default();
        let path = called_as(&called, &current).unwrap_or(current);
        Ok(Executable { path, words })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The release of the file now.
    pub(super) fn release(&self) -> Result<String> {
        let shown = self.path.display();
        let mut command = Command::new(&self.path);
        command.arg("--version").env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot execute {shown}"))?;
        let output = child.stdout.take();
        let (answer, answered) = mpsc::channel();
        // It may be another program, which says nothing or does not end.
        std::thread::spawn(move || {
            let mut line = String::new();
            if let Some(output) = output {
                let _ = BufReader::new(output.take(ANSWER_BYTES)).read_line(&mut line);
            }
            let _ = answer.send(line);
        });
        let line = answered.recv_timeout(ANSWER).unwrap_or_default();
        let _ = (child.kill(), child.wait());
        let release = line.trim_end().strip_prefix("standfast ").filter(|text| !text.is_empty());
        match release {
            Some(release) => Ok(one_line(release, HOST_CHARS_MAX)),
            None => bail!("{shown} --version does not say its release: is it standfast?"),
        }
    }

    /// Makes this process one of the file, with the same arguments. Returns only an error.
    pub(super) fn execute(&self) -> anyhow::Error {
        let mut command = Command::new(&self.path);
        if let Some((called, args)) = self.words.split_first() {
            command.arg0(called).args(args);
        }
        anyhow::Error::new(command.exec())
            .context(format!("cannot execute {}", self.path.display()))
    }
}

/// The path that a process was called by, if it leads to this file: a link there may lead to another one later.
fn called_as(called: &Path, current: &Path) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = match called.components().count() {
        0 => return None,
        1 if !called.is_absolute() => env::split_paths(&env::var_os("PATH")?).collect(),
        _ => vec![env::current_dir().ok()?],
    };
    let is_it = |path: &PathBuf| {
        path.is_absolute() && path.canonicalize().is_ok_and(|path| path == current)
    };
    folders.into_iter().map(|folder| folder.join(called)).find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_it_was_called_by_is_kept() {
        let current = env::current_exe().unwrap().canonicalize().unwrap();
        let folder = env::temp_dir().join(format!("standfast-called-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let link = folder.join("standfast");
        std::os::unix::fs::symlink(&current, &link).unwrap();
        assert_eq!(called_as(&link, &current), Some(link.clone()));
        assert_eq!(called_as(Path::new("/bin/sh"), &current), None);
        assert_eq!(called_as(Path::new("no-such-program"), &current), None);
        assert_eq!(called_as(Path::new(""), &current), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn other_programs_have_no_release() {
        let of = |path: &str| Executable { path: path.into(), words: Vec::new() }.release();
        assert!(of("/no/such/file").unwrap_err().to_string().contains("cannot execute"));
        assert!(of("/bin/true").unwrap_err().to_string().contains("is it standfast?"));
        assert!(of("/bin/ls").unwrap_err().to_string().contains("is it standfast?"));
    }
}
