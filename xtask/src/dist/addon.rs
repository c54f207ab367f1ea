//! The addon of Node.js, cross-compiled for glibc 2.28 or newer and for musl.

use std::env::consts::ARCH;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::tools::Tools;
use super::{Target, build};
use crate::{elf, step};

/// The oldest glibc that the addon loads with: that of Debian 10, RHEL 8 and Ubuntu 18.10.
const GLIBC_MIN: (u32, u32) = (2, 28);

/// A C library that the addon is loaded beside, which is that of Node.js.
pub(super) struct Libc {
    /// As in names of our packages and in targets of Rust.
    pub(super) npm: &'static str,
    /// As in `libc` of a package's manifest.
    pub(super) npm_field: &'static str,
}

const LIBCS: [Libc; 2] =
    [Libc { npm: "gnu", npm_field: "glibc" }, Libc { npm: "musl", npm_field: "musl" }];

/// The addon for a target and a C library.
pub(super) struct Addon {
    pub(super) target: &'static Target,
    pub(super) libc: &'static Libc,
    pub(super) file: PathBuf,
}

/// Builds the addons of all targets; in the suite that of this machine's processor and glibc alone.
pub(super) fn build(
    targets: &[&'static Target],
    profile: &str,
    tools: &Tools,
    suite: bool,
) -> Result<Vec<Addon>> {
    let mut addons = Vec::new();
    for target in targets {
        for libc in &LIBCS {
            let here = target.machine == ARCH && libc.npm == "gnu";
            if here || !suite {
                addons.push(one(target, libc, profile, tools)?);
            }
        }
    }
    Ok(addons)
}

fn one(
    target: &'static Target,
    libc: &'static Libc,
    profile: &str,
    tools: &Tools,
) -> Result<Addon> {
    let triple = format!("{}-unknown-linux-{}", target.machine, libc.npm);
    build::add_standard_library(&triple)?;
    println!("=== addon of Node.js, {triple}, profile {profile}");
    // zigbuild links with the glibc of a version that follows the target.
    let wanted = match libc.npm {
        "gnu" => format!("{triple}.{}.{}", GLIBC_MIN.0, GLIBC_MIN.1),
        _ => triple.clone(),
    };
    let mut cargo = step::cargo(&["zigbuild", "--locked", "--package", "standfast-node"]);
    cargo.args(["--profile", profile, "--target", &wanted]);
    // Rust links musl into the file by default, which a library of another program must not have.
    let shared = if libc.npm == "musl" { " -Ctarget-feature=-crt-static" } else { "" };
    cargo.env("RUSTFLAGS", build::remapped_paths() + " -Cstrip=symbols" + shared);
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    ensure!(tools.first_in_path(&mut cargo)?.status()?.success(), "the addon does not build");
    let folder = if profile == "dev" { "debug" } else { profile };
    let file = step::target_folder().join(&triple).join(folder).join("libstandfast_node.so");
    if libc.npm == "gnu" {
        let newest = elf::newest_glibc(&file)?.context("the addon names no version of glibc")?;
        let shown = file.display();
        ensure!(newest <= GLIBC_MIN, "{shown} wants glibc {}.{}", newest.0, newest.1);
    }
    Ok(Addon { target, libc, file })
}
