//! The archive: a folder with everything, to unpack anywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::extras::Extras;
use super::{Built, VERSION, copy_licences, output, staging, tar};
use crate::step;

/// Files that are packed unchanged.
const FILES: [&str; 5] = [
    "README.md",
    "README.zh-CN.md",
    "CHANGELOG.md",
    "deploy/systemd/standfast.service",
    "deploy/systemd/standfast-proxy.service",
];

/// The archive's name without its ending, and the folder in it. `Cargo.toml` has it for cargo-binstall.
pub(super) fn name(triple: &str) -> String {
    format!("standfast-{VERSION}-{triple}")
}

pub(super) fn pack(built: &Built, extras: &Extras, dist: &Path) -> Result<PathBuf> {
    let name = name(built.target.triple);
    let stage = staging(dist, "archive")?;
    let folder = stage.join(&name);
    copy_licences(extras, &folder)?;
    fs::copy(&built.executable, folder.join("standfast"))?;
    for file in FILES {
        let from = step::root().join(file);
        let file_name = from.file_name().context("a file has a name")?;
        fs::copy(&from, folder.join(file_name)).with_context(|| file.to_owned())?;
    }
    for part in [&extras.completions, &extras.man] {
        output(Command::new("cp").arg("-r").arg(part).arg(&folder))?;
    }
    let uncompressed = dist.join(format!("{name}.tar"));
    tar(&stage, &[&name], &uncompressed)?;
    built.gzip(&uncompressed)?;
    Ok(dist.join(format!("{name}.tar.gz")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cargo-binstall downloads what Cargo.toml describes.
    #[test]
    fn cargo_binstall_finds_the_archive_and_the_executable_in_it() {
        let manifest = fs::read_to_string(step::root().join("Cargo.toml")).unwrap();
        let manifest: toml::Table = toml::from_str(&manifest).unwrap();
        let settings = &manifest["package"]["metadata"]["binstall"];
        let filled_in = |key: &str| {
            let template = settings[key].as_str().unwrap();
            let values = [
                ("{ repo }", "REPO"),
                ("{ name }", "standfast-cli"),
                ("{ bin }", "standfast"),
                ("{ version }", VERSION),
                ("{ target }", "x86_64-unknown-linux-musl"),
                ("{ binary-ext }", ""),
                ("{ archive-suffix }", ".tar.gz"),
            ];
            values.iter().fold(template.to_owned(), |url, (key, value)| url.replace(key, value))
        };
        let name = name("x86_64-unknown-linux-musl");
        let url = filled_in("pkg-url");
        assert_eq!(url, format!("REPO/releases/download/v{VERSION}/{name}.tar.gz"));
        assert_eq!(filled_in("bin-dir"), format!("{name}/standfast"));
        assert_eq!(settings["pkg-fmt"].as_str(), Some("tgz"));
    }
}
