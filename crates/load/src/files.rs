//! What a run reads while its plan is made: which files, so that they can travel to other generators, and
//! which variables of the environment, which cannot. In a process that runs the plan of another one only
//! files below its own folder are read.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

/// The variable of the environment that keeps a process within its folder. It is set from outside, as files
/// are read while the command line is parsed.
pub const CONFINED: &str = "STANDFAST_CONFINED";
/// The most files, and variables, that are remembered; of further ones nothing is.
const FILES_MAX: usize = 4_096;

static VARIABLES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static READ: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static IS_CONFINED: LazyLock<bool> = LazyLock::new(|| std::env::var_os(CONFINED).is_some());

/// Notes a file that is about to be read.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] in a process that is kept within its folder, if the file is not below it.
pub fn admit(path: &Path) -> io::Result<()> {
    if *IS_CONFINED && !is_below(path) {
        let why = "it is outside the folder of this run";
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if read.len() < FILES_MAX {
        read.insert(path.to_owned());
    }
    Ok(())
}

/// The files that were read so far, in order.
#[must_use]
pub fn read() -> Vec<PathBuf> {
    READ.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Notes a variable of the environment that is about to be read.
pub(crate) fn note_variable(name: &str) {
    let mut variables = VARIABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if variables.len() < FILES_MAX {
        variables.insert(name.to_owned());
    }
}

/// The variables of the environment that were read so far, in order.
#[must_use]
pub fn variables() -> Vec<String> {
    VARIABLES.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Whether a path is relative and leads nowhere above the current folder.
#[must_use]
pub fn is_below(path: &Path) -> bool {
    let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    path.components().all(is_plain) && path.file_name().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_not_below() {
        for (path, below) in [
            ("a", true),
            ("./a/b.csv", true),
            ("../a", false),
            ("a/../../b", false),
            ("/etc/passwd", false),
            ("", false),
            (".", false),
        ] {
            assert_eq!(is_below(Path::new(path)), below, "{path}");
        }
    }
}
