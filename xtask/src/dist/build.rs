//! The static executables, cross-compiled with zig as C compiler and linker.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::tools::Tools;
use super::{Built, Target, USERS_PROFILE, output};
use crate::{elf, step};

/// Builds `standfast` for all targets at once and checks that none needs a loader.
///
/// One cargo: what runs on this machine (procedural macros, build scripts) is built once for all, and the last
/// crates of one target, which wait for each other, beside those of the other.
pub(super) fn build(
    targets: Vec<&'static Target>,
    profile: &str,
    tools: &Tools,
) -> Result<Vec<Built>> {
    let mut cargo = step::cargo(&["zigbuild", "--locked", "--package", "standfast-cli"]);
    cargo.args(["--profile", profile]);
    for target in &targets {
        add_standard_library(target.triple)?;
        println!("=== {}, profile {profile}", target.triple);
        cargo.args(["--target", target.triple]);
    }
    // With --target the flags are not those of what runs here: with the profile `dev` that is shared with the
    // tests, which are built without flags.
    let is_small = profile == USERS_PROFILE;
    let strip = if is_small { "" } else { " -Cstrip=symbols" };
    cargo.env("RUSTFLAGS", remapped_paths() + strip);
    if !is_small {
        // Line tables would be compiled, linked, and stripped.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    }
    ensure!(tools.first_in_path(&mut cargo)?.status()?.success(), "the build failed");
    // cargo's folder of the profile `dev` has another name.
    let folder = if profile == "dev" { "debug" } else { profile };
    let built = |target: &'static Target| {
        let executable = step::target_folder().join(target.triple).join(folder).join("standfast");
        let shown = executable.display();
        ensure!(elf::is_static(&executable)?, "{shown} is not static: it names a loader");
        Ok(Built { target, executable, is_small })
    };
    targets.into_iter().map(built).collect()
}

/// Adds Rust's standard library for a target, unless it is here.
pub(super) fn add_standard_library(triple: &str) -> Result<()> {
    let installed = output(Command::new("rustup").args(["target", "list", "--installed"]));
    if installed.is_ok_and(|list| list.lines().any(|line| line == triple)) {
        return Ok(());
    }
    let add = Command::new("rustup").args(["target", "add", triple]).status();
    ensure!(
        add.is_ok_and(|status| status.success()),
        "Rust's standard library for {triple} is missing: rustup target add {triple}"
    );
    Ok(())
}

/// Compiler flags that remove this machine's paths: they are private, and builds become reproducible.
pub(super) fn remapped_paths() -> String {
    let home = env::var_os("HOME").unwrap_or_default();
    let cargo = env::var_os("CARGO_HOME").map_or(Path::new(&home).join(".cargo"), PathBuf::from);
    let remap = |from: &Path, to| format!("--remap-path-prefix={}={to}", from.display());
    [remap(&step::root(), "."), remap(&cargo, "cargo")].join(" ")
}
