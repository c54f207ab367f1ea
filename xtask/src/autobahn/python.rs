//! CPython 2.7, which the suite needs and distributions no longer have: an installed one (pyenv, /usr,
//! /usr/local, or the one PYTHON27 names), or Debian 11's, downloaded from the mirror that this machine
//! uses for its own release and unpacked into the target folder. Nothing is installed system-wide.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

use crate::step;

/// The last release of Debian with a CPython 2.7.
const RELEASE: &str = "bullseye";
/// The interpreter, the libraries of its `ssl` and `ctypes`, headers for extensions, and pip.
const PACKAGES: [&str; 8] = [
    "python2.7-minimal",
    "libpython2.7-minimal",
    "libpython2.7-stdlib",
    "libpython2.7",
    "libpython2.7-dev",
    "libssl1.1",
    "libffi7",
    "python-pip-whl",
];

/// An interpreter and its environment.
pub(super) struct Python {
    program: PathBuf,
    /// The folder of its shared libraries, unless the system finds them.
    libraries: Option<PathBuf>,
    /// The wheels with its pip, if it has none of its own.
    wheels: Option<OsString>,
}

impl Python {
    /// Finds an interpreter or unpacks one into `folder`.
    pub(super) fn ready(folder: &Path) -> Result<Python> {
        if let Some(python) = Python::installed(folder) {
            return Ok(python);
        }
        println!("no CPython 2.7 with pip found: downloading Debian 11's");
        fetch(folder).context("no CPython 2.7: install one with pyenv, or name one in PYTHON27")?;
        unpacked(folder).context("Debian 11's CPython 2.7 was unpacked and does not run")
    }

    /// An installed interpreter, or the one unpacked into `folder` earlier.
    pub(super) fn installed(folder: &Path) -> Option<Python> {
        local().or_else(|| unpacked(folder))
    }

    /// The command for the interpreter, with its additional packages in `packages`.
    pub(super) fn command(&self, packages: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
        command.env("PYTHONUSERBASE", packages).env("PYTHONWARNINGS", "ignore");
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }

    /// The same with the pip it came with.
    pub(super) fn first_pip(&self, packages: &Path) -> Command {
        let mut command = self.command(packages);
        if let Some(wheels) = &self.wheels {
            command.env("PYTHONPATH", wheels);
        }
        command
    }

    /// Its path: for people, and to detect that it changed.
    pub(super) fn name(&self) -> String {
        self.program.display().to_string()
    }

    fn works(self) -> Option<Python> {
        let mut check = self.first_pip(Path::new("/nonexistent"));
        check.args([
            "-c",
            "import ssl, zlib, ctypes, pip, sys; assert sys.version_info[:2] == (2, 7)",
        ]);
        step::succeeds(check).then_some(self)
    }
}

fn local() -> Option<Python> {
    let mut programs: Vec<PathBuf> =
        env::var_os("PYTHON27").map(PathBuf::from).into_iter().collect();
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv"));
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from).or(home);
    let versions = pyenv.and_then(|root| fs::read_dir(root.join("versions")).ok());
    for version in versions.into_iter().flatten().filter_map(Result::ok) {
        programs.push(version.path().join("bin/python2.7"));
    }
    programs.extend(["/usr/bin/python2.7", "/usr/local/bin/python2.7"].map(PathBuf::from));
    let mut found = programs.into_iter().filter(|program| program.is_file());
    found.find_map(|program| Python { program, libraries: None, wheels: None }.works())
}

/// Debian's, if it is in `folder` already.
fn unpacked(folder: &Path) -> Option<Python> {
    let usr = folder.join("usr");
    let ssl = fs::read_dir(usr.join("lib")).ok()?.filter_map(Result::ok);
    let libraries =
        ssl.map(|entry| entry.path()).find(|path| path.join("libssl.so.1.1").exists())?;
    let wheels = fs::read_dir(usr.join("share/python-wheels")).ok()?.filter_map(Result::ok);
    let wheels = env::join_paths(wheels.map(|wheel| wheel.path())).ok()?;
    let program = usr.join("bin/python2.7");
    Python { program, libraries: Some(libraries), wheels: Some(wheels) }.works()
}

/// Downloads Debian's packages with separate package lists, so that the machine's stay unchanged.
fn fetch(folder: &Path) -> Result<()> {
    let mirror = mirror()?;
    let apt = folder.join("apt");
    for name in ["sources", "lists/partial", "cache/archives/partial", "packages"] {
        fs::create_dir_all(apt.join(name))?;
    }
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let signed =
        if Path::new(keys).exists() { format!("[signed-by={keys}] ") } else { String::new() };
    fs::write(apt.join("sources/older.list"), format!("deb {signed}{mirror} {RELEASE} main\n"))?;
    let apt_get = || {
        let mut command = Command::new("apt-get");
        for (option, value) in [
            ("Dir::Etc::sourcelist", Path::new("/dev/null").to_path_buf()),
            ("Dir::Etc::sourceparts", apt.join("sources")),
            ("Dir::State::lists", apt.join("lists")),
            ("Dir::Cache", apt.join("cache")),
            ("APT::Sandbox::User", PathBuf::from("root")),
        ] {
            command.arg("-o").arg(format!("{option}={}", value.display()));
        }
        command.arg("--quiet=2").current_dir(apt.join("packages"));
        command
    };
    must(apt_get().arg("update"))?;
    must(apt_get().arg("download").args(PACKAGES))?;
    for package in fs::read_dir(apt.join("packages"))?.filter_map(Result::ok) {
        must(Command::new("dpkg-deb").arg("-x").arg(package.path()).arg(folder))?;
    }
    fs::remove_dir_all(&apt)?;
    Ok(())
}

/// The mirror that this machine uses.
fn mirror() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("not a Debian system")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.context("/etc/os-release names no release")?;
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let targets = Command::new("apt-get").args(["indextargets", "--format", format]).output();
    let targets = targets.context("apt-get is not installed")?;
    let wanted = format!(" {codename} main");
    let lines = String::from_utf8_lossy(&targets.stdout).into_owned();
    match lines.lines().find_map(|line| line.strip_suffix(&wanted)) {
        Some(mirror) => Ok(mirror.to_owned()),
        None => bail!("apt has no source for {codename}"),
    }
}

/// Runs `command` without showing its output; the error has what it wrote to standard error.
pub(super) fn must(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed ({}): {}", output.status, errors.trim());
    Ok(())
}
