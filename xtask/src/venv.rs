//! Packages from PyPI in a virtual environment of their own below the target folder.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step;

/// Makes `target/tools/NAME` have these packages and nothing else. Returns its folder of programs.
///
/// # Errors
/// Without Python's `venv`, or when pip finds no package for this machine.
pub(crate) fn install(name: &str, requirements: &[&str]) -> Result<PathBuf> {
    let folder = step::target_folder().join("tools").join(name);
    let (bin, list) = (folder.join("bin"), folder.join("installed.txt"));
    let wanted = requirements.join("\n");
    if fs::read_to_string(&list).is_ok_and(|installed| installed == wanted) {
        return Ok(bin);
    }
    println!("installing {} into {}", requirements.join(", "), folder.display());
    let venv = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder).status();
    ensure!(
        venv.is_ok_and(|status| status.success()),
        "no Python environment for {name}: apt-get install python3-venv"
    );
    let mut pip = Command::new(bin.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(requirements);
    let status = pip.status().context("the new environment has no pip")?;
    ensure!(status.success(), "pip could not install {}", requirements.join(", "));
    fs::write(&list, wanted)?;
    Ok(bin)
}

/// Whether [`install`] has done it.
pub(crate) fn is_installed(name: &str, requirements: &[&str]) -> bool {
    let list = step::target_folder().join("tools").join(name).join("installed.txt");
    fs::read_to_string(list).is_ok_and(|installed| installed == requirements.join("\n"))
}
