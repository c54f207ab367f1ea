//! [`files`]: the files that a run has read, as they travel with its plan.

use std::io::Read;

use anyhow::{Context, Result, bail};
use capacity::Bytes;

use super::message::FileEntry;
use super::{FILES_MAX, sha256};

/// A file, and what agents are told of it.
pub(super) struct Travelling {
    pub(super) entry: FileEntry,
    content: Vec<u8>,
}

impl Travelling {
    /// The bytes from an offset on, at most this many.
    pub(super) fn piece(&self, offset: usize, most: usize) -> &[u8] {
        let rest = self.content.get(offset..).unwrap_or_default();
        rest.get(..most.min(rest.len())).unwrap_or_default()
    }
}

/// Reads again what was read while the plan was made.
///
/// # Errors
/// Files that cannot travel, and variables of the environment, which agents do not have.
pub(super) fn files(bytes_max: u64) -> Result<Vec<Travelling>> {
    let variables = load::files::variables();
    if let Some(name) = variables.first() {
        bail!(
            "{{{{env {name}}}}} cannot be used with --agents: agents do not have the environment of this \
             machine; write the value into the file"
        );
    }
    let (mut files, mut total) = (Vec::new(), 0_u64);
    for path in load::files::read() {
        let shown = path.display().to_string();
        if !load::files::is_below(&path) {
            bail!(
                "{shown} cannot travel to the agents: name files below the current folder, by relative paths"
            );
        }
        // No more than is allowed is read, also of a file that has no length, or grows.
        let mut content = Vec::new();
        let file = std::fs::File::open(&path);
        file.and_then(|file| {
            file.take((bytes_max - total).saturating_add(1)).read_to_end(&mut content)
        })
        .with_context(|| format!("cannot read {shown}"))?;
        let bytes = content.len() as u64;
        total += bytes;
        if total > bytes_max {
            let most = Bytes(bytes_max);
            bail!(
                "the files of the run have more than {most}: raise --files-max, here and at the agents"
            );
        }
        files.push(Travelling {
            entry: FileEntry { path: shown, bytes, sha256: sha256(&content) },
            content,
        });
    }
    if files.len() > FILES_MAX {
        bail!("the run has {} files: agents take at most {FILES_MAX}", files.len());
    }
    Ok(files)
}
