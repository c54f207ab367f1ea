//! [`Scratch`]: a temporary file that is removed after its test.

use std::fs;
use std::path::PathBuf;

/// A temporary file in cargo's folder for integration tests.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let file = Self(folder.join(format!("{}-{name}", std::process::id())));
        file.write(text);
        file
    }

    pub(crate) fn write(&self, text: &str) {
        fs::write(&self.0, text).unwrap();
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
