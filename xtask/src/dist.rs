//! `cargo xtask dist`: what is handed to users. For each target one archive with the static
//! executable, completions, pages of the manual and the systemd unit, and its SHA-256.
//!
//! Not a release: it signs nothing and uploads nothing. Archives lie in `target/dist`.

use std::env::{self, consts::ARCH};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::elf;
use crate::step;

/// Sockets that the finished executable proves before it is packed.
const PROVED: &str = "2k";
/// Files that go along as they are.
const FILES: [&str; 5] = [
    "README.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "deploy/systemd/standfast.service",
];
/// Shells and what the file is called where they look for it.
const SHELLS: [(&str, &str); 3] =
    [("bash", "standfast.bash"), ("zsh", "_standfast"), ("fish", "standfast.fish")];

#[derive(Args)]
pub(crate) struct DistArgs {
    /// Targets beside this machine's own, such as aarch64-unknown-linux-musl; needs a linker for it.
    #[arg(long = "target", value_name = "TRIPLE")]
    more: Vec<String>,
}

/// Builds, checks and packs; the archives are named on standard output.
pub(crate) fn run(args: &DistArgs) -> Result<bool> {
    let own = format!("{ARCH}-unknown-linux-musl");
    let dist = step::target_folder().join("dist");
    let executable = build(&own)?;
    check(&executable)?;
    let extras = dist.join("extras");
    write_extras(&executable, &extras)?;
    let mut archives = vec![pack(&own, &executable, &extras, &dist)?];
    for target in args.more.iter().filter(|target| **target != own) {
        let executable = build(target)?;
        ensure!(elf::is_static(&executable)?, "{} is not static", executable.display());
        archives.push(pack(target, &executable, &extras, &dist)?);
    }
    println!("\n=== {}", dist.display());
    for archive in archives {
        println!("{archive}");
    }
    Ok(true)
}

fn build(target: &str) -> Result<PathBuf> {
    if !output(Command::new("rustup").args(["target", "list", "--installed"]))
        .is_ok_and(|installed| installed.lines().any(|line| line == target))
    {
        let add = Command::new("rustup").args(["target", "add", target]).status();
        ensure!(
            add.is_ok_and(|status| status.success()),
            "Rust's standard library for {target} is missing: rustup target add {target}"
        );
    }
    // The cryptography of TLS is partly C.
    if let Some(arch) = target.strip_suffix("-unknown-linux-musl") {
        let compiler = format!("{arch}-linux-musl-gcc");
        let named = std::env::var_os(format!("CC_{}", target.replace('-', "_"))).is_some();
        ensure!(
            named || output(Command::new(&compiler).arg("--version")).is_ok(),
            "a C compiler for {target} is missing ({compiler}): apt-get install musl-tools"
        );
    }
    println!("=== {target}");
    let mut cargo = step::cargo(&["build", "--release", "--locked", "--package", "standfast-cli"]);
    cargo.args(["--target", target]);
    cargo.env("RUSTFLAGS", remapped_paths());
    ensure!(cargo.status()?.success(), "the build for {target} failed");
    Ok(step::target_folder().join(target).join("release/standfast"))
}

/// The folders of whoever builds are nobody's business, and without them builds are alike.
fn remapped_paths() -> String {
    let home = env::var_os("HOME").unwrap_or_default();
    let cargo = env::var_os("CARGO_HOME").map_or(Path::new(&home).join(".cargo"), PathBuf::from);
    let remap = |from: &Path, to| format!("--remap-path-prefix={}={to}", from.display());
    [remap(&step::root(), "."), remap(&cargo, "cargo")].join(" ")
}

/// Whether it runs here as it will run elsewhere: by itself.
fn check(executable: &Path) -> Result<()> {
    ensure!(elf::is_static(executable)?, "{} asks for a loader", executable.display());
    let mut prove = Command::new(executable);
    prove.args(["prove", "--connections", PROVED, "--hold", "1s", "--heartbeat", "1s"]);
    prove.env_clear().stdin(Stdio::null());
    ensure!(prove.status()?.success(), "{PROVED} sockets were not held: see above");
    Ok(())
}

/// Completions and pages of the manual, from the executable itself.
fn write_extras(executable: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let completions = folder.join("completions");
    fs::create_dir_all(&completions)?;
    for (shell, file) in SHELLS {
        let script = output(Command::new(executable).args(["completions", shell]))?;
        fs::write(completions.join(file), script)?;
    }
    output(Command::new(executable).arg("man").arg(folder.join("man")))?;
    Ok(())
}

/// One archive and its checksum; the checksum's line, with the size.
fn pack(target: &str, executable: &Path, extras: &Path, dist: &Path) -> Result<String> {
    let name = format!("standfast-{}-{target}", env!("CARGO_PKG_VERSION"));
    let folder = dist.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    fs::copy(executable, folder.join("standfast"))?;
    for file in FILES {
        let from = step::root().join(file);
        let file_name = from.file_name().context("a file has a name")?;
        fs::copy(&from, folder.join(file_name)).with_context(|| file.to_owned())?;
    }
    for part in ["completions", "man"] {
        output(Command::new("cp").arg("-r").arg(extras.join(part)).arg(&folder))?;
    }
    let archive = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    // The same files give the same archive, whoever packs them and when.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    tar.args(["--mode=u+rw,go+r,go-w,a+X", "--use-compress-program=gzip -n9"]);
    output(tar.arg("-cf").arg(&archive).arg(&name).current_dir(dist))?;
    let sum = output(Command::new("sha256sum").arg(&archive).current_dir(dist))?;
    fs::write(dist.join(format!("{archive}.sha256")), &sum)?;
    fs::remove_dir_all(&folder)?;
    let bytes = fs::metadata(dist.join(&archive))?.len();
    Ok(format!("{}  {:.1} MB", sum.trim_end(), bytes as f64 / 1e6))
}

/// Standard output of a command that must succeed.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
