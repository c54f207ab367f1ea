//! The packages of npm: one for each target with the executable, and `standfast` with a launcher, of which
//! they are optional dependencies. npm installs the one that fits; no script runs at installation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::extras::Extras;
use super::{Built, LICENCES, VERSION, copy_licences, output, staging};
use crate::step;

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

/// `standfast`.
pub(super) fn pack_launcher(dist: &Path) -> Result<PathBuf> {
    let stage = staging(dist, "npm")?;
    let template = templates().join("standfast");
    write_manifest(&fs::read_to_string(template.join("package.json"))?, &stage)?;
    for licence in LICENCES {
        fs::copy(step::root().join(licence), stage.join(licence))?;
    }
    fs::copy(step::root().join("deploy/package.md"), stage.join("README.md"))?;
    output(Command::new("cp").arg("-r").arg(template.join("bin")).arg(&stage))?;
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
