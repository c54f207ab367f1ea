//! What the suite needs on this machine: Rust components, Debian packages, the npm packages of
//! `tests/peers` (in `.peers`, which git ignores), Kubernetes' schemas and the Autobahn TestSuite.
//!
//! Installs what is missing with `--install` or `CI` set, else names the command that does. Never
//! upgrades or removes anything.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::autobahn;
use crate::step;
use crate::venv;

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
    Need { what: "curl", check: &["curl", "--version"], packages: &["curl"] },
    Need { what: "ip and tc", check: &["ip", "-V"], packages: &["iproute2"] },
    Need { what: "nginx", check: &["test", "-x", "/usr/sbin/nginx"], packages: &["nginx"] },
    Need {
        what: "nghttpd and h2load",
        check: &["sh", "-c", "nghttpd --version && h2load --version"],
        packages: &["nghttp2-server", "nghttp2-client"],
    },
    Need { what: "HAProxy", check: &["test", "-x", "/usr/sbin/haproxy"], packages: &["haproxy"] },
    Need {
        what: "FreeRADIUS",
        check: &["test", "-x", "/usr/sbin/freeradius"],
        packages: &["freeradius"],
    },
    Need {
        what: "Redis",
        check: &["test", "-x", "/usr/bin/redis-server"],
        packages: &["redis-server"],
    },
    Need {
        what: "Python's websockets",
        check: &["/usr/bin/python3", "-c", "import websockets"],
        packages: &["python3", "python3-websockets"],
    },
    Need {
        what: "Python's venv",
        check: &["python3", "-c", "import venv, ensurepip"],
        packages: &["python3", "python3-venv"],
    },
    Need { what: "xz", check: &["xz", "--version"], packages: &["xz-utils"] },
    Need { what: "mmdebstrap", check: &["mmdebstrap", "--version"], packages: &["mmdebstrap"] },
    Need { what: "umoci", check: &["umoci", "--version"], packages: &["umoci"] },
    Need {
        what: "qemu's emulation of arm64",
        check: &["qemu-aarch64-static", "--version"],
        packages: &["qemu-user-static"],
    },
    Need {
        what: "NATS",
        check: &["test", "-x", "/usr/sbin/nats-server"],
        packages: &["nats-server"],
    },
    Need {
        what: "Rails and its Action Cable on Puma",
        check: &[
            "/usr/bin/ruby",
            "-e",
            "gem 'actioncable'; gem 'railties'; gem 'puma'; gem 'redis'",
        ],
        packages: &["ruby-actioncable", "ruby-railties", "puma", "ruby-redis"],
    },
];

/// Whether what is missing is installed.
#[derive(clap::Args)]
pub(crate) struct RequirementsArgs {
    /// Install what is missing
    #[arg(long)]
    install: bool,
}

/// Checks what the suite needs. With `--install` it installs what is missing, else it prints the
/// command that does. Whether the suite may go on.
///
/// Without `CI` the suite goes on where something is still missing, and the tests that need it count
/// as skipped. With `CI` that fails the step.
pub(crate) fn run(args: &RequirementsArgs) -> Result<bool> {
    let mut missing = 0;
    let all =
        [rust_components, debian_packages, npm_packages, kubernetes_schemas, autobahn_testsuite];
    for requirement in all {
        if let Err(error) = requirement(args.install) {
            println!("{error:#}");
            missing += 1;
        }
    }
    if missing == 0 || step::is_ci() {
        return Ok(missing == 0);
    }
    println!("the tests that need it are skipped (with CI set they fail)");
    if !args.install {
        println!("to install everything: cargo xtask test --install");
    }
    // Read by the suite.
    println!("test result: ok. 0 passed; 0 failed; 1 ignored");
    Ok(true)
}

/// Whether everything is here that builds and lints need.
pub(crate) fn can_build() -> bool {
    has_rust_components() && has_compiler("cc")
}

/// Whether a C++ compiler is here, which the fuzz targets need.
pub(crate) fn has_cpp_compiler() -> bool {
    has_compiler("c++")
}

pub(crate) fn has_node() -> bool {
    has_compiler("node")
}

fn has_compiler(name: &str) -> bool {
    let mut command = Command::new(name);
    command.arg("--version");
    step::succeeds(command)
}

fn has_rust_components() -> bool {
    ["fmt", "clippy"].into_iter().all(|tool| step::succeeds(step::cargo(&[tool, "--version"])))
}

fn rust_components(install: bool) -> Result<()> {
    if has_rust_components() {
        return Ok(());
    }
    let hint = "missing: rustfmt, clippy. To install: rustup component add rustfmt clippy";
    ensure!(install, hint);
    println!("installing rustfmt and clippy");
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "add", "rustfmt", "clippy"]).current_dir(step::root());
    must(&mut rustup, hint)
}

fn debian_packages(install: bool) -> Result<()> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !is_met(need)).collect();
    if missing.is_empty() {
        println!("every system package is installed");
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|need| need.what).collect();
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    let mut words = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    words.extend(&packages);
    let sudo = if is_root() { "" } else { "sudo " };
    let by_hand = format!("{sudo}apt-get update && {sudo}{}", words.join(" "));
    let hint = format!("missing: {}. To install: {by_hand}", names.join(", "));
    ensure!(install, hint);
    println!("missing: {}; installing {}", names.join(", "), packages.join(" "));
    must(&mut as_root(&["apt-get", "update"]), &hint)?;
    must(&mut as_root(&words), &hint)?;
    match missing.iter().find(|need| !is_met(need)) {
        Some(need) => bail!("{} is installed and still not found", need.what),
        None => Ok(()),
    }
}

/// `npm ci` into `.peers`, unless its packages came from the same lock file.
pub(crate) fn npm_packages(install: bool) -> Result<()> {
    let (source, target) = (step::root().join("tests/peers"), step::root().join(".peers"));
    if has_packages_of(&source, &target)? {
        println!("the npm packages are installed");
        return Ok(());
    }
    ensure!(install, "missing: npm packages of the foreign clients. To install: {NPM_BY_HAND}");
    println!("installing the npm packages into .peers");
    fs::create_dir_all(&target)?;
    for name in ["package.json", "package-lock.json"] {
        fs::write(target.join(name), fs::read(source.join(name))?)
            .with_context(|| format!("cannot copy {name} into {}", target.display()))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(&target);
    must(&mut npm, &format!("the foreign clients need the packages of tests/peers: {NPM_BY_HAND}"))
}

const NPM_BY_HAND: &str =
    "mkdir -p .peers && cp tests/peers/package*.json .peers && npm ci --prefix .peers";

/// Whether npm has installed into `target` from the lock file that `source` has now. npm writes
/// `node_modules/.package-lock.json` last; the lock file was copied before.
fn has_packages_of(source: &Path, target: &Path) -> Result<bool> {
    let lock = fs::read(source.join("package-lock.json")).context("tests/peers has no lock")?;
    let copy = target.join("package-lock.json");
    let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    let installed = modified(&target.join("node_modules/.package-lock.json"));
    let same = fs::read(&copy).is_ok_and(|copy| copy == lock);
    Ok(same && installed.is_ok_and(|at| modified(&copy).is_ok_and(|copied| copied <= at)))
}

/// The schemas of Kubernetes' API, by which the manifests in `deploy/` are checked.
const KUBERNETES_SCHEMAS: [&str; 1] = ["kubernetes-validate==1.37.0"];

fn kubernetes_schemas(install: bool) -> Result<()> {
    if venv::is_installed("kubernetes", &KUBERNETES_SCHEMAS) {
        println!("Kubernetes' schemas are installed");
        return Ok(());
    }
    let hint = "missing: Kubernetes' schemas. To install: cargo xtask requirements --install";
    ensure!(install, hint);
    venv::install("kubernetes", &KUBERNETES_SCHEMAS).map(drop)
}

fn autobahn_testsuite(install: bool) -> Result<()> {
    if autobahn::is_installed() {
        println!("the Autobahn TestSuite is installed");
        return Ok(());
    }
    // The suite installs it beside the tests, as it takes half a minute.
    ensure!(install, "missing: the Autobahn TestSuite. To install: cargo xtask autobahn install");
    Ok(())
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

/// Runs `command` and shows its output; the error names the command and the remedy.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npm_packages_are_installed_only_with_the_same_lock_file() {
        let folder = step::target_folder().join(format!("npm-{}", std::process::id()));
        let (source, target) = (folder.join("source"), folder.join("target"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(target.join("node_modules")).unwrap();
        fs::write(source.join("package-lock.json"), "1").unwrap();
        assert!(!has_packages_of(&source, &target).unwrap());
        fs::write(target.join("package-lock.json"), "1").unwrap();
        assert!(!has_packages_of(&source, &target).unwrap(), "npm did not finish");
        fs::write(target.join("node_modules/.package-lock.json"), "").unwrap();
        assert!(has_packages_of(&source, &target).unwrap());
        fs::write(source.join("package-lock.json"), "2").unwrap();
        assert!(!has_packages_of(&source, &target).unwrap(), "an older lock file");
        fs::remove_dir_all(&folder).unwrap();
    }
}
