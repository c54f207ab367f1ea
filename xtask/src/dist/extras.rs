//! What accompanies the executable: completions, manual pages, licences of the libraries in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{THIRD_PARTY, output, third_party};

/// Shells and the file name under which each looks for its completions.
const SHELLS: [(&str, &str); 3] =
    [("bash", "standfast.bash"), ("zsh", "_standfast"), ("fish", "standfast.fish")];

pub(super) struct Extras {
    /// A file for each shell.
    pub(super) completions: PathBuf,
    /// Pages of section 1.
    pub(super) man: PathBuf,
    pub(super) third_party: PathBuf,
}

/// Lets the executable generate them into `folder`.
pub(super) fn write(executable: &Path, folder: &Path) -> Result<Extras> {
    let extras = Extras {
        completions: folder.join("completions"),
        man: folder.join("man"),
        third_party: folder.join(THIRD_PARTY),
    };
    fs::create_dir_all(&extras.completions)?;
    for (shell, file) in SHELLS {
        let script = output(Command::new(executable).args(["completions", shell]))?;
        fs::write(extras.completions.join(file), script)?;
    }
    output(Command::new(executable).arg("man").arg(&extras.man))?;
    fs::write(&extras.third_party, third_party::notices()?)?;
    Ok(extras)
}
