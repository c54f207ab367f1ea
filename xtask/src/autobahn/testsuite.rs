//! The suite itself: `wstest` of PyPI's autobahntestsuite with the versions of its dependencies that
//! still run on CPython 2.7, in `target/autobahn`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::python::{Python, must};
use crate::step;

/// The version that the expected results are from.
pub(super) const VERSION: &str = "autobahntestsuite 25.10.1";

/// What is installed, in this order: each line needs the ones above.
const PACKAGES: [&[&str]; 4] = [
    &["pip==20.3.4"],
    &["setuptools==44.0.0", "wheel==0.36.2"],
    &["incremental==16.10.1", "zope.interface==4.6.0", "cryptography==3.3.2", "pyOpenSSL==19.1.0"],
    &["--no-build-isolation", "Twisted==19.10.0", "autobahntestsuite==25.10.1"],
];

/// The suite, ready to run.
pub(super) struct TestSuite {
    python: Python,
    packages: PathBuf,
}

impl TestSuite {
    /// Finds the suite of an earlier run or installs it, which takes half a minute.
    ///
    /// # Errors
    /// Names what is missing: an interpreter, access to PyPI, a compiler.
    pub(super) fn ready() -> Result<TestSuite> {
        fs::create_dir_all(folder())?;
        let suite = TestSuite::with(Python::ready(&folder().join("python"))?);
        if !suite.is_installed() {
            suite.install()?;
            fs::write(folder().join("installed-from"), suite.source())?;
        }
        Ok(suite)
    }

    /// Returns the suite of an earlier run.
    pub(super) fn installed() -> Option<TestSuite> {
        let suite = TestSuite::with(Python::installed(&folder().join("python"))?);
        suite.is_installed().then_some(suite)
    }

    fn with(python: Python) -> TestSuite {
        TestSuite { python, packages: folder().join("packages") }
    }

    fn is_installed(&self) -> bool {
        let installed = fs::read_to_string(folder().join("installed-from"));
        installed.is_ok_and(|installed| installed == self.source())
    }

    /// The interpreter and the versions that it is installed from.
    fn source(&self) -> String {
        format!("{}\n{PACKAGES:?}\n", self.python.name())
    }

    fn install(&self) -> Result<()> {
        println!("installing {VERSION} for {}", self.python.name());
        if self.packages.exists() {
            fs::remove_dir_all(&self.packages)?;
        }
        for (index, packages) in PACKAGES.iter().enumerate() {
            let mut pip = match index {
                0 => self.python.first_pip(&self.packages),
                _ => self.python.command(&self.packages),
            };
            pip.args(["-m", "pip", "install", "--user", "--quiet", "--no-warn-script-location"]);
            pip.args(*packages).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
            must(&mut pip).context("pip could not install the suite")?;
        }
        let mut version = self.wstest();
        must(version.arg("--autobahnversion")).context("the suite is installed and does not run")
    }

    /// The command for `wstest`.
    pub(super) fn wstest(&self) -> Command {
        let mut command = self.python.command(&self.packages);
        command.arg(self.packages.join("bin/wstest")).stdin(Stdio::null());
        command
    }
}

/// Where it is installed.
fn folder() -> PathBuf {
    step::target_folder().join("autobahn")
}
