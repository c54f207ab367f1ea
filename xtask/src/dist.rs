//! `cargo xtask dist`: the packages for users, in `target/dist`. For each target a static executable, and
//! with it an archive, a Debian package, a wheel, a package of npm; the addon of Node.js, in packages of npm; and a
//! container image for all targets.
//!
//! Not a release: it signs nothing and uploads nothing (RELEASING.md). Versions come from the workspace's
//! Cargo.toml alone.

mod addon;
mod archive;
mod build;
mod check;
mod deb;
mod extras;
mod image;
mod npm;
mod roots;
mod third_party;
mod tools;
mod wheel;

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{machine, step};

/// The version of everything that is packed.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The profile of packages for users.
const USERS_PROFILE: &str = "dist";
/// Licences, packed unchanged.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
/// Licences of the libraries in the executable.
const THIRD_PARTY: &str = "THIRD-PARTY.txt";

#[derive(Args)]
pub(crate) struct DistArgs {
    /// Additional target: aarch64-unknown-linux-musl or x86_64-unknown-linux-musl (repeatable)
    #[arg(long = "target", value_name = "TRIPLE")]
    more: Vec<String>,
    /// Profile of cargo
    #[arg(long, default_value = USERS_PROFILE)]
    profile: String,
    /// Build and check nothing but the addon of Node.js
    #[arg(long, conflicts_with = "suite")]
    addons: bool,
    /// Also install each package into an empty Debian 12 root without network, and prove sockets there; needs root
    #[arg(long)]
    check: bool,
    /// Sockets that each installed package must hold (with --check)
    #[arg(long, value_name = "N", default_value_t = 20_000, requires = "check")]
    connections: u64,
    /// As in the suite: hold the sockets for a second only, without a limit on the time, and count as a skipped
    /// test on a machine without empty roots
    #[arg(long, hide = true, requires = "check")]
    suite: bool,
}

/// An operating system and processor under the names of each packager.
struct Target {
    triple: &'static str,
    debian: &'static str,
    npm: &'static str,
    oci: &'static str,
    /// As in tags of wheels, and in the names of qemu's user mode emulators.
    machine: &'static str,
}

const TARGETS: [Target; 2] = [
    Target {
        triple: "x86_64-unknown-linux-musl",
        debian: "amd64",
        npm: "x64",
        oci: "amd64",
        machine: "x86_64",
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        debian: "arm64",
        npm: "arm64",
        oci: "arm64",
        machine: "aarch64",
    },
];

/// A target with its static executable.
struct Built {
    target: &'static Target,
    executable: PathBuf,
    /// Whether packages are to be small, which takes several times as long: those for users.
    is_small: bool,
}

impl Built {
    /// Whether this machine can run it without an emulator.
    fn is_native(&self) -> bool {
        self.target.machine == ARCH
    }

    /// Compresses a file into one with `.gz` after its name, without its time.
    fn gzip(&self, file: &Path) -> Result<()> {
        let level = if self.is_small { "-n9" } else { "-n1" };
        output(Command::new("gzip").args([level, "--force"]).arg(file))?;
        Ok(())
    }
}

/// Builds and packs, with `--check` also installs; prints the packages. Whether every check passed.
pub(crate) fn run(args: &DistArgs) -> Result<bool> {
    if args.suite
        && let Some(reason) = check::lacks().or_else(|| lacks_standard_library(&args.more))
    {
        println!("{reason}");
        // Read by the suite.
        println!("test result: ok. 0 passed; 0 failed; 1 ignored");
        return Ok(true);
    }
    let dist = step::target_folder().join("dist");
    let tools = tools::Tools::install()?;
    if args.check && !args.suite {
        machine::npm_packages(true)?;
    }
    let targets = chosen(&args.more)?;
    let addons = addon::build(&targets, &args.profile, &tools, args.suite)?;
    fs::create_dir_all(&dist)?;
    if args.addons {
        npm::pack_main(&dist)?;
        return Ok(!args.check || check::addons_only(&addons, &tools, &dist));
    }
    let builds = build::build(targets, &args.profile, &tools)?;
    let native =
        builds.iter().find(|built| built.is_native()).context("the own target is built")?;
    let extras = extras::write(&native.executable, &dist.join("extras"))?;
    let mut packages = Vec::new();
    for built in &builds {
        println!("=== packages for {}", built.target.triple);
        packages.push(archive::pack(built, &extras, &dist)?);
        packages.push(deb::pack(built, &args.profile, &extras, &dist)?);
        packages.push(wheel::pack(built, &extras, &tools, &dist)?);
        packages.push(npm::pack_executable(built, &extras, &dist)?);
    }
    for addon in &addons {
        packages.push(npm::pack_addon(addon, &extras, &dist)?);
    }
    packages.push(npm::pack_main(&dist)?);
    packages.push(image::pack(&builds, &extras, &dist)?);
    write_checksums(&packages, &dist)?;
    if !args.check {
        return Ok(true);
    }
    let goal = check::Goal { connections: args.connections, brief: args.suite };
    check::run(&builds, &addons, goal, &tools, &dist)
}

/// Why packages cannot be built here: Rust's standard library for a target is neither here nor to be had.
fn lacks_standard_library(more: &[String]) -> Option<String> {
    let add = |target: &Target| build::add_standard_library(target.triple).err();
    chosen(more).ok()?.into_iter().find_map(add).map(|error| format!("{error:#}"))
}

/// The own target and those of `--target`, each once.
fn chosen(more: &[String]) -> Result<Vec<&'static Target>> {
    let known = || TARGETS.map(|target| target.triple).join(" or ");
    let mut chosen: Vec<&Target> = TARGETS.iter().filter(|target| target.machine == ARCH).collect();
    ensure!(!chosen.is_empty(), "no packages are made on {ARCH}: use {}", known());
    for triple in more {
        let target = TARGETS.iter().find(|target| target.triple == *triple);
        let target = target.with_context(|| format!("unknown target {triple}: use {}", known()))?;
        if !chosen.iter().any(|one| one.triple == target.triple) {
            chosen.push(target);
        }
    }
    Ok(chosen)
}

/// Writes `SHA256SUMS`, for `sha256sum --check`, and prints it with sizes.
fn write_checksums(packages: &[PathBuf], dist: &Path) -> Result<()> {
    let names = packages.iter().filter_map(|path| path.file_name());
    let sums = output(Command::new("sha256sum").args(names).current_dir(dist))?;
    fs::write(dist.join("SHA256SUMS"), &sums)?;
    println!("\n=== {}", dist.display());
    for (package, line) in packages.iter().zip(sums.lines()) {
        println!("{:>6.1} MB  {line}", fs::metadata(package)?.len() as f64 / 1e6);
    }
    Ok(())
}

/// Copies files of the repository into a folder, which is made.
fn copy_licences(extras: &extras::Extras, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for licence in LICENCES {
        fs::copy(step::root().join(licence), folder.join(licence))?;
    }
    fs::copy(&extras.third_party, folder.join(THIRD_PARTY))?;
    Ok(())
}

/// An empty folder for the files of a package.
fn staging(dist: &Path, name: &str) -> Result<PathBuf> {
    let folder = dist.join("staging").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Adds entries of `folder` to a tar file in the same order, with the same owners, modes and times on every
/// machine.
fn tar(folder: &Path, entries: &[&str], file: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    tar.args(["--format=ustar", "--mode=u+rw,go+r,go-w,a+X", "-cf"]);
    output(tar.arg(file).args(entries).current_dir(folder))?;
    Ok(())
}

/// Returns the standard output of a command that must succeed.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{name}: {}: {} {}", output.status, stderr.trim(), stdout.trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
