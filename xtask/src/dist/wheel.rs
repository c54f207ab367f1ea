//! The wheel: the executable as a script, for `uvx standfast` and `pip install standfast`. `wheel pack` (PyPA)
//! writes its record and the zip file.
//!
//! Source: <https://packaging.python.org/en/latest/specifications/binary-distribution-format/>.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::extras::Extras;
use super::tools::Tools;
use super::{Built, LICENCES, THIRD_PARTY, VERSION, copy_licences, output, staging};
use crate::step;

pub(super) fn pack(built: &Built, extras: &Extras, tools: &Tools, dist: &Path) -> Result<PathBuf> {
    let version = python_version(VERSION);
    let stage = staging(dist, "wheel")?.join(format!("standfast-{version}"));
    let info = stage.join(format!("standfast-{version}.dist-info"));
    let scripts = stage.join(format!("standfast-{version}.data/scripts"));
    fs::create_dir_all(&scripts)?;
    fs::copy(&built.executable, scripts.join("standfast"))?;
    copy_licences(extras, &info.join("licenses"))?;
    fs::write(info.join("METADATA"), metadata(&version)?)?;
    let tags = tags(built.target.machine);
    let mut wheel =
        "Wheel-Version: 1.0\nGenerator: standfast xtask\nRoot-Is-Purelib: false\n".to_owned();
    for tag in &tags {
        wheel.push_str(&format!("Tag: py3-none-{tag}\n"));
    }
    fs::write(info.join("WHEEL"), wheel)?;
    let mut pack = Command::new(tools.path("wheel"));
    pack.arg("pack").arg(&stage).arg("--dest-dir").arg(dist);
    // The same bytes on every day. A zip file knows no earlier time.
    output(pack.env("SOURCE_DATE_EPOCH", "315532800"))?;
    Ok(dist.join(format!("standfast-{version}-py3-none-{}.whl", tags.join("."))))
}

/// A static executable runs with glibc and with musl. Rust needs Linux 3.2, manylinux_2_17 is newer.
fn tags(machine: &str) -> [String; 3] {
    ["manylinux2014", "manylinux_2_17", "musllinux_1_1"].map(|tag| format!("{tag}_{machine}"))
}

fn metadata(version: &str) -> Result<String> {
    let root = step::root();
    let description = fs::read_to_string(root.join("deploy/package.md")).context("package.md")?;
    let licences: String = LICENCES
        .iter()
        .chain(&[THIRD_PARTY])
        .map(|file| format!("License-File: {file}\n"))
        .collect();
    Ok(format!(
        "Metadata-Version: 2.4\nName: standfast\nVersion: {version}\n\
         Summary: {summary}\n\
         Keywords: websocket,server,proxy,load-testing,benchmark,actioncable,anycable\n\
         Classifier: Environment :: Console\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Classifier: Programming Language :: Rust\n\
         License-Expression: MIT OR Apache-2.0\n{licences}\
         Requires-Python: >=3.7\n\
         Description-Content-Type: text/markdown\n\n{description}",
        summary = "WebSocket server, reverse proxy and load generator in one executable",
    ))
}

/// A version of Cargo in the form of PEP 440: `1.2.0-rc.1` is `1.2.0rc1`.
fn python_version(version: &str) -> String {
    let Some((release, pre)) = version.split_once('-') else { return version.to_owned() };
    let pre = pre.replace("alpha", "a").replace("beta", "b").replace(['.', '-'], "");
    format!("{release}{pre}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_cargo_become_versions_of_python() {
        assert_eq!(python_version("1.2.3"), "1.2.3");
        assert_eq!(python_version("1.2.0-rc.1"), "1.2.0rc1");
        assert_eq!(python_version("1.2.0-alpha.2"), "1.2.0a2");
    }
}
