//! Reads small text files below `/`, or below a directory that replaces it in tests.
//!
//! A file that is missing, unreadable or has another format gives `None`: a limit that cannot be read is
//! unknown, not an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The directory that is used as `/`.
pub(crate) struct Root<'a>(pub(crate) &'a Path);

impl Root<'_> {
    /// `path` (absolute, as on a real machine) below this root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    pub(crate) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    /// The names in a directory; none if it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// The file's first word as a number.
    pub(crate) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.split_whitespace().next()?.parse().ok()
    }

    /// The file's first `N` words as numbers.
    pub(crate) fn numbers<T: FromStr, const N: usize>(&self, path: &str) -> Option<[T; N]> {
        let text = self.text(path)?;
        let words: Vec<T> =
            text.split_whitespace().take(N).map_while(|word| word.parse().ok()).collect();
        words.try_into().ok()
    }
}

/// The value after `key` in lines of the form `key value` or `key: value`, units ignored.
pub(crate) fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        let rest = rest.strip_prefix(':').or_else(|| rest.strip_prefix(' '))?;
        rest.split_whitespace().next()?.parse().ok()
    })
}

/// As [`field`], for files that count in kB (1,024 bytes): meminfo, status, smaps.
pub(crate) fn field_kb(text: &str, key: &str) -> Option<u64> {
    field(text, key)?.checked_mul(1024)
}

#[cfg(test)]
pub(crate) mod fake {
    //! A directory of files that stands for `/`, removed when dropped.

    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};

    pub(crate) struct FakeRoot(PathBuf);

    impl FakeRoot {
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("standfast-capacity-{}-{number}", std::process::id());
            let root = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(&root.0).unwrap();
            for (path, text) in files {
                root.write(path, text);
            }
            root
        }

        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for FakeRoot {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
