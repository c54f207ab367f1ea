//! What the suite needs on this machine: Rust components, Debian packages, the npm packages of
//! `tests/peers` (in `.peers`, which git ignores) and the Autobahn TestSuite.
//!
//! Installs what is missing with `--install` or `CI` set, else names the command that does. Never
//! upgrades or removes anything.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::step::{self, Outcome};

/// A program that the suite runs, the command that checks for it, and its Debian packages.
struct Need {
    what: &'static str,
    check: &'static [&'static str],
    packages: &'static [&'static str],
}

const NEEDS: &[Need] = &[
    Need { what: "a C compiler", check: &["cc", "--version"], packages: &["gcc", "libc6-dev"] },
    Need { what: "a C++ compiler", check: &["c++", "--version"], packages: &["g++"] },
    Need { what: "Node.js", check: &["node", "--version"], packages: &["nodejs"] },
    Need { what: "npm", check: &["npm", "--version"], packages: &["npm"] },
    Need { what: "Chromium", check: &["test", "-x", "/usr/bin/chromium"], packages: &["chromium"] },
    Need { what: "ip and tc", check: &["ip", "-V"], packages: &["iproute2"] },
    Need { what: "nginx", check: &["test", "-x", "/usr/sbin/nginx"], packages: &["nginx"] },
    Need { what: "HAProxy", check: &["test", "-x", "/usr/sbin/haproxy"], packages: &["haproxy"] },
    Need {
        what: "Python's websockets",
        check: &["/usr/bin/python3", "-c", "import websockets"],
        packages: &["python3", "python3-websockets"],
    },
    Need {
        what: "Rails' Action Cable on Puma",
        check: &["/usr/bin/ruby", "-e", "gem 'actioncable'; gem 'puma'"],
        packages: &["ruby-actioncable", "puma"],
    },
];

/// Checks what the suite needs. With `install` it installs what is missing, else it prints the
/// command that does.
///
/// What cannot be installed is said on the screen. Under `CI` it also fails the step; elsewhere
/// (a laptop without a network) the tests that need it are skipped by themselves.
pub(crate) fn prepare() -> Result<Outcome> {
    println!("=== what the suite needs");
    let started = std::time::Instant::now();
    let mut failed = 0;
    for install in [rust_components, debian_packages, npm_packages] {
        if let Err(error) = install() {
            println!("{error:#}");
            failed += 1;
        }
    }
    if failed > 0 && !step::is_ci() {
        println!("going on without: the tests that need it are skipped (with CI set they fail)");
        failed = 0;
    }
    Ok(Outcome {
        name: "what the suite needs".to_owned(),
        passed: u64::from(failed == 0),
        failed,
        took: started.elapsed(),
    })
}

fn rust_components() -> Result<()> {
    let missing = |tool: &str| !step::succeeds(step::cargo(&[tool, "--version"]));
    if !missing("fmt") && !missing("clippy") {
        return Ok(());
    }
    println!("installing rustfmt and clippy");
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "add", "rustfmt", "clippy"]).current_dir(step::root());
    must(&mut rustup, "install Rust's rustfmt and clippy yourself")
}

fn debian_packages() -> Result<()> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !is_met(need)).collect();
    if missing.is_empty() {
        println!("every program is here");
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|need| need.what).collect();
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    let hint = format!("install {} yourself", packages.join(" "));
    println!("missing: {}; installing {}", names.join(", "), packages.join(" "));
    must(&mut as_root(&["apt-get", "update"]), &hint)?;
    let mut install = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    install.extend(&packages);
    must(&mut as_root(&install), &hint)?;
    match missing.iter().find(|need| !is_met(need)) {
        Some(need) => bail!("{} is installed and still not found", need.what),
        None => Ok(()),
    }
}

/// `npm ci` into `.peers`, unless what lies there came from the same lock file.
pub(crate) fn npm_packages() -> Result<()> {
    let (source, target) = (step::root().join("tests/peers"), step::root().join(".peers"));
    let lock = fs::read(source.join("package-lock.json")).context("tests/peers has no lock")?;
    let done = target.join("node_modules/.installed-from");
    if fs::read(&done).is_ok_and(|installed| installed == lock) {
        println!("the npm packages are here");
        return Ok(());
    }
    println!("installing the npm packages into .peers");
    fs::create_dir_all(&target)?;
    for name in ["package.json", "package-lock.json"] {
        copy(&source, &target, name)?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(&target);
    must(&mut npm, "the Node.js and browser clients need the packages of tests/peers")?;
    Ok(fs::write(done, lock)?)
}

fn is_met(need: &Need) -> bool {
    let mut command = Command::new(need.check[0]);
    command.args(&need.check[1..]);
    step::succeeds(command)
}

/// `command` as root, through sudo where this process is not.
fn as_root(command: &[&str]) -> Command {
    let mut words = vec!["env", "DEBIAN_FRONTEND=noninteractive"];
    words.extend(command);
    if !is_root() {
        words.insert(0, "sudo");
    }
    let mut process = Command::new(words[0]);
    process.args(&words[1..]);
    process
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

fn copy(source: &Path, target: &Path, name: &str) -> Result<()> {
    fs::copy(source.join(name), target.join(name))
        .with_context(|| format!("cannot copy {name} into {}", target.display()))?;
    Ok(())
}

/// Runs `command` with its output shown; a failure names it and says what to do instead.
fn must(command: &mut Command, hint: &str) -> Result<()> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("`{}` failed ({status}): {hint}", shown(command)),
        Err(error) => bail!("`{}` did not start ({error}): {hint}", shown(command)),
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
