//! The Debian package, made by cargo-deb from `package.metadata.deb` in Cargo.toml: executable, manual pages,
//! completions, and the systemd units, which are neither enabled nor started by the installation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::extras::Extras;
use super::{Built, Target, VERSION, copy_licences, output};
use crate::step;

/// The cargo-deb that the package is made with.
const CARGO_DEB: &str = "3.8.0";
const UNITS: [&str; 2] = ["standfast", "standfast-proxy"];

pub(super) fn pack(built: &Built, profile: &str, extras: &Extras, dist: &Path) -> Result<PathBuf> {
    let tools = install_cargo_deb()?;
    stage(extras)?;
    let file = dist.join(file_name(built.target));
    let mut deb = Command::new(tools.join("bin/cargo-deb"));
    deb.args(["deb", "--quiet", "--no-build", "--no-strip", "--package", "standfast-cli"]);
    deb.args(["--target", built.target.triple, "--profile", profile]);
    deb.args(["--deb-version", &version(VERSION), "--output"]).arg(&file);
    if !built.is_small {
        // xz takes ten times as long.
        deb.arg("--fast");
    }
    // The same bytes on every day.
    output(deb.current_dir(step::root()).env("SOURCE_DATE_EPOCH", "0"))?;
    Ok(file)
}

pub(super) fn file_name(target: &Target) -> String {
    format!("standfast_{}_{}.deb", version(VERSION), target.debian)
}

/// Upstream version and revision of the packaging: `1.2.0-rc.1` is `1.2.0~rc.1-1`, which is before `1.2.0-1`.
fn version(version: &str) -> String {
    format!("{}-1", version.replacen('-', "~", 1))
}

/// Writes the files that Cargo.toml lists.
fn stage(extras: &Extras) -> Result<()> {
    // Cargo.toml has this path.
    let stage = step::root().join("target/deb");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    copy_licences(extras, &stage)?;
    for part in [&extras.completions, &extras.man] {
        output(Command::new("cp").arg("-r").arg(part).arg(&stage))?;
    }
    let systemd = stage.join("systemd");
    for folder in [&systemd, &stage.join("scripts")] {
        fs::create_dir_all(folder)?;
    }
    for unit in UNITS {
        let file = format!("{unit}.service");
        let text = fs::read_to_string(step::root().join("deploy/systemd").join(&file))?;
        fs::write(systemd.join(&file), packaged_unit(unit, &text)?)?;
    }
    Ok(())
}

/// A unit that runs the packaged executable. Its header says how to enable it, not how to install it.
fn packaged_unit(unit: &str, text: &str) -> Result<String> {
    let last = "systemctl daemon-reload";
    let mut lines = text.lines().skip_while(|line| !line.contains(last));
    lines.next().with_context(|| format!("the header of {unit} has no line with {last}"))?;
    let settings: Vec<&str> = lines.collect();
    let settings = settings.join("\n").replace("/usr/local/bin/", "/usr/bin/");
    ensure!(!settings.contains("/usr/local"), "{unit} names a path of other packages");
    Ok(format!(
        "# Of the package standfast. Neither enabled nor started by its installation:\n#\n\
         #   systemctl enable --now {unit}\n{settings}\n"
    ))
}

/// Installs cargo-deb into `target/tools` if it is missing. Without optimization: it compiles sooner.
fn install_cargo_deb() -> Result<PathBuf> {
    let tools = step::target_folder().join("tools");
    let installed = output(Command::new(tools.join("bin/cargo-deb")).arg("--version"));
    if !installed.is_ok_and(|version| version.contains(CARGO_DEB)) {
        println!("installing cargo-deb {CARGO_DEB} into {}", tools.display());
        let mut install =
            step::cargo(&["install", "cargo-deb", "--version", CARGO_DEB, "--locked"]);
        // Without its own xz it uses the system's.
        install.args(["--debug", "--quiet", "--no-default-features", "--root"]).arg(&tools);
        ensure!(install.status()?.success(), "cargo-deb {CARGO_DEB} cannot be installed");
    }
    Ok(tools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_before_a_release_sorts_before_it() {
        assert_eq!(version("1.2.3"), "1.2.3-1");
        assert_eq!(version("1.2.0-rc.1"), "1.2.0~rc.1-1");
    }

    #[test]
    fn packaged_units_differ_only_in_path_and_header() {
        for unit in UNITS {
            let file = step::root().join(format!("deploy/systemd/{unit}.service"));
            let text = fs::read_to_string(file).unwrap();
            let packaged = packaged_unit(unit, &text).unwrap();
            assert!(packaged.contains("\nExecStart=/usr/bin/standfast "), "{packaged}");
            let settings = |text: &str| {
                let lines = text.lines().filter(|line| !line.starts_with('#'));
                lines.map(|line| line.replace("/usr/local/bin/", "/usr/bin/")).collect::<Vec<_>>()
            };
            assert_eq!(settings(&packaged), settings(&text));
        }
        assert!(packaged_unit("x", "[Unit]\n").is_err());
    }
}
