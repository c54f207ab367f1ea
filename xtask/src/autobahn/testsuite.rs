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
        let folder = step::target_folder().join("autobahn");
        fs::create_dir_all(&folder)?;
        let python = Python::ready(&folder.join("python"))?;
        let suite = TestSuite { python, packages: folder.join("packages") };
        let source = format!("{}\n{PACKAGES:?}\n", suite.python.name());
        let done = folder.join("installed-from");
        if fs::read_to_string(&done).is_ok_and(|installed| installed == source) {
            return Ok(suite);
        }
        suite.install()?;
        fs::write(done, source)?;
        Ok(suite)
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
