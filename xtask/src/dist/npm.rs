//! The packages of npm: for each target one with the executable and one with the addon of Node.js, and `standfast`
//! (`packages/node`) with a launcher and the API, of which they are optional dependencies. npm installs those that
//! fit; no script runs at installation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::addon::Addon;
use super::extras::Extras;
use super::{Built, LICENCES, VERSION, copy_licences, output, staging};
use crate::step;

/// What of `packages/node` is not published.
const OF_THE_REPOSITORY: [&str; 4] = ["native", "test", "build.sh", "standfast.node"];

/// `@standfast/linux-x64` or the like.
pub(super) fn pack_executable(built: &Built, extras: &Extras, dist: &Path) -> Result<PathBuf> {
    let cpu = built.target.npm;
    let stage = staging(dist, &format!("npm-{cpu}"))?;
    let manifest = fs::read_to_string(templates().join("platform/package.json"))?;
    let manifest = manifest.replace("PLATFORM", &format!("linux-{cpu}")).replace("CPU", cpu);
    write_manifest(&manifest, &stage)?;
    copy_licences(extras, &stage)?;
    fs::create_dir_all(stage.join("bin"))?;
    fs::copy(&built.executable, stage.join("bin/standfast"))?;
    pack(&stage, dist)
}

/// `@standfast/node-linux-x64-gnu` or the like.
pub(super) fn pack_addon(addon: &Addon, extras: &Extras, dist: &Path) -> Result<PathBuf> {
    let (cpu, libc) = (addon.target.npm, addon.libc);
    let stage = staging(dist, &format!("npm-node-{cpu}-{}", libc.npm))?;
    let manifest = fs::read_to_string(templates().join("addon/package.json"))?;
    let manifest = manifest
        .replace("PLATFORM", &format!("linux-{cpu}-{}", libc.npm))
        .replace("CPU", cpu)
        .replace("LIBC", libc.npm_field);
    write_manifest(&manifest, &stage)?;
    copy_licences(extras, &stage)?;
    fs::copy(&addon.file, stage.join("standfast.node"))?;
    pack(&stage, dist)
}

/// `standfast`. npm takes what `files` in its manifest names, which tests and the addon's source are not.
pub(super) fn pack_main(dist: &Path) -> Result<PathBuf> {
    let stage = staging(dist, "npm")?;
    let source = step::root().join("packages/node");
    for entry in fs::read_dir(&source)? {
        let entry = entry?;
        if !OF_THE_REPOSITORY.iter().any(|name| entry.file_name() == *name) {
            output(Command::new("cp").arg("-r").arg(entry.path()).arg(&stage))?;
        }
    }
    write_manifest(&fs::read_to_string(source.join("package.json"))?, &stage)?;
    for licence in LICENCES {
        fs::copy(step::root().join(licence), stage.join(licence))?;
    }
    pack(&stage, dist)
}

fn templates() -> PathBuf {
    step::root().join("deploy/npm")
}

/// Writes `package.json` with the version, also as that of the packages with executables.
fn write_manifest(template: &str, folder: &Path) -> Result<()> {
    let mut manifest: Value = serde_json::from_str(template).context("package.json")?;
    manifest["version"] = VERSION.into();
    if let Some(dependencies) = manifest["optionalDependencies"].as_object_mut() {
        dependencies.values_mut().for_each(|version| *version = VERSION.into());
    }
    fs::write(folder.join("package.json"), serde_json::to_string_pretty(&manifest)? + "\n")?;
    Ok(())
}

/// `npm pack`, without a network.
fn pack(stage: &Path, dist: &Path) -> Result<PathBuf> {
    let mut npm = Command::new("npm");
    npm.args(["pack", "--json", "--offline", "--pack-destination"]).arg(dist);
    let report = output(npm.current_dir(stage))?;
    let report: Value = serde_json::from_str(&report).context("npm pack reports JSON")?;
    // An array, from npm 12 on an object by name.
    let packed = report.get(0).or_else(|| report.as_object()?.values().next());
    let name = packed.and_then(|packed| packed["filename"].as_str()).context("a file name")?;
    // Some versions of npm name the scope with its slash.
    let name = name.trim_start_matches('@').replace('/', "-");
    Ok(dist.join(name))
}
