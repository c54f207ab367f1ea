//! The programs of a benchmark: our release build, the C programs of `bench/floor`, the competitors
//! from npm (versions pinned in `tests/peers`).
//!
//! Builds or installs what is missing; upgrades nothing.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{machine, step};

/// Paths of the programs.
pub(super) struct Tools {
    binary: PathBuf,
    control: PathBuf,
}

const FLOOR: [&str; 10] = [
    "app_server",
    "away_client",
    "cable_client",
    "echo_server",
    "echo_client",
    "connect_client",
    "grpc_server",
    "publish_client",
    "relay",
    "timer",
];

impl Tools {
    /// Builds and installs; standfast only if `ours`. `binary` replaces the release build, `control` the
    /// second run of it.
    pub(super) fn prepare(
        binary: Option<PathBuf>,
        control: Option<PathBuf>,
        ours: bool,
    ) -> Result<Tools> {
        if ours && binary.is_none() {
            must(&mut step::cargo(&["build", "--release", "--bin", "standfast"]))?;
        }
        fs::create_dir_all(floor_bin())?;
        for name in FLOOR {
            let mut cc = Command::new("cc");
            cc.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(floor_bin().join(name));
            must(cc.arg(step::root().join(format!("bench/floor/{name}.c"))))?;
        }
        machine::npm_packages(true)?;
        let binary = binary.unwrap_or_else(step::release_executable);
        Ok(Tools { control: control.unwrap_or_else(|| binary.clone()), binary })
    }

    /// The executable under test.
    pub(super) fn standfast(&self) -> PathBuf {
        self.binary.clone()
    }

    /// The executable of the control run: the same, or one from before a change.
    pub(super) fn control(&self) -> PathBuf {
        self.control.clone()
    }

    /// A program of `bench/floor`.
    pub(super) fn floor(&self, name: &str) -> PathBuf {
        floor_bin().join(name)
    }

    /// A script of `bench/competitors`.
    pub(super) fn competitor(&self, name: &str) -> PathBuf {
        step::root().join("bench/competitors").join(name)
    }

    /// The directory whose `node_modules` has the competitors.
    pub(super) fn peers(&self) -> PathBuf {
        step::root().join(".peers")
    }

    /// Bun's executable, as npm lays it.
    pub(super) fn bun(&self) -> PathBuf {
        self.peers().join("node_modules/.bin/bun")
    }
}

/// Whether a program is installed where the shell would find it.
pub(super) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

fn floor_bin() -> PathBuf {
    step::root().join("bench/floor/bin")
}

fn must(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} failed ({status})");
    Ok(())
}
