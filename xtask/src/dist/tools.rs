//! Tools from PyPI that build and pack, in `target/tools/packaging`: zig and cargo-zigbuild as a C compiler and
//! linker for both processors, `wheel`, and uv to check the wheel.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::venv;

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
        let bin = venv::install("packaging", &REQUIREMENTS)?;
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
