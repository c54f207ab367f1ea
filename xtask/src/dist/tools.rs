//! Tools from PyPI that build and pack, in `target/tools/packaging`: zig and cargo-zigbuild as a C compiler and
//! linker for both processors, `wheel`, and uv to check the wheel.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use super::output;
use crate::step;

/// Versions that the packages are made with.
const REQUIREMENTS: [&str; 4] =
    ["ziglang==0.17.1", "cargo-zigbuild==0.24.0", "wheel==0.48.0", "uv==0.13.9"];

/// An environment of Python with the tools.
pub(super) struct Tools {
    bin: PathBuf,
}

impl Tools {
    /// Installs what is missing.
    ///
    /// # Errors
    /// Without Python's `venv`, or when pip finds no package for this machine.
    pub(super) fn install() -> Result<Tools> {
        let folder = step::target_folder().join("tools/packaging");
        let (bin, list) = (folder.join("bin"), folder.join("installed.txt"));
        let wanted = REQUIREMENTS.join("\n");
        if !fs::read_to_string(&list).is_ok_and(|installed| installed == wanted) {
            println!("installing {} into {}", REQUIREMENTS.join(", "), folder.display());
            let venv =
                Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder).status();
            ensure!(
                venv.is_ok_and(|status| status.success()),
                "no Python environment for the packaging tools: apt-get install python3-venv"
            );
            let mut pip = Command::new(bin.join("pip"));
            pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(REQUIREMENTS);
            output(&mut pip)?;
            fs::write(&list, wanted)?;
        }
        Ok(Tools { bin })
    }

    /// The path of a tool.
    pub(super) fn path(&self, tool: &str) -> PathBuf {
        self.bin.join(tool)
    }

    /// Makes a command find the tools before others of the same name.
    pub(super) fn first_in_path<'c>(&self, command: &'c mut Command) -> Result<&'c mut Command> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [self.bin.clone()].into_iter().chain(env::split_paths(&path));
        Ok(command.env("PATH", env::join_paths(folders)?))
    }
}
