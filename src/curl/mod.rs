//! curl commands as people paste them, from a browser's "copy as cURL", from Postman, from a
//! manual: a file of them becomes [`Request`]s, with a warning for whatever is not understood.
//! What each option means is curl's manual's to say (curl.se/docs/manpage.html).
//!
//! What it is not: a shell. Variables and substitutions stay as they are, and are warned of.

mod body;
mod cookies;
mod options;
mod request;
mod words;

use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::request::Draft;
pub(crate) use self::request::Request;

/// A file of commands is no larger, and has no more of them.
const FILE_BYTES_MAX: u64 = 16 << 20;
const COMMANDS_MAX: usize = 1_000;

/// What a file holds.
#[derive(Debug)]
pub(crate) struct Commands {
    /// At least one, in their order.
    pub(crate) requests: Vec<Request>,
    /// What was not understood or has no effect here, each with its line.
    pub(crate) warnings: Vec<String>,
}

/// Reads a file of curl commands; `-` is standard input.
///
/// # Errors
/// A file that cannot be read or holds no command, a command without a URL: by name and line.
pub(crate) fn read(path: &Path) -> Result<Commands> {
    let file = path.display();
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin()).context("cannot read standard input")?
    } else {
        let length = path.metadata().with_context(|| format!("cannot read {file}"))?.len();
        if length > FILE_BYTES_MAX {
            bail!("{file} has {length} bytes: that is no file of curl commands");
        }
        std::fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?
    };
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    parse(&text, &folder).with_context(|| file.to_string())
}

/// Reads commands from text; files that they name are looked for here and in `folder`.
///
/// # Errors
/// As [`read`], by line.
pub(crate) fn parse(text: &str, folder: &Path) -> Result<Commands> {
    let mut warnings = Vec::new();
    let split = words::split(text, &mut warnings).map_err(anyhow::Error::msg)?;
    let files = Files { folder: folder.to_path_buf() };
    let mut requests = Vec::new();
    for command in split {
        let Some((first, rest)) = command.split_first() else { continue };
        let name = String::from_utf8_lossy(&first.bytes).into_owned();
        // With the prompt of a shell in front, as manuals print it.
        let (name, rest) = match rest.split_first() {
            Some((second, rest)) if matches!(name.as_str(), "$" | "%" | ">" | "#") => {
                (String::from_utf8_lossy(&second.bytes).into_owned(), rest)
            }
            _ => (name, rest),
        };
        if !is_curl(&name) {
            warnings
                .push(format!("line {}: {name:?} is no curl command; it is left out", first.line));
            continue;
        }
        for words in rest.split(|word| matches!(word.bytes.as_slice(), b"--next" | b"-:")) {
            let mut draft = Draft::new(first.line, &files);
            options::read(words, &mut draft, &mut warnings)?;
            requests.push(draft.finish(&mut warnings)?);
            if requests.len() > COMMANDS_MAX {
                bail!("there are more than {COMMANDS_MAX} commands");
            }
        }
    }
    if requests.is_empty() {
        bail!("there is no curl command in it: it begins with curl, as in curl 'http://HOST/'");
    }
    Ok(Commands { requests, warnings })
}

/// The address of this machine that `--interface` names.
///
/// # Errors
/// It names a device, whose addresses are not looked up.
pub(crate) fn source(interface: &str) -> Result<IpAddr, String> {
    let bare = interface.strip_prefix("host!").unwrap_or(interface).trim_matches(['[', ']']);
    let wrong = || {
        format!(
            "--interface {interface}: give the address of this machine to connect from, 127.0.0.2"
        )
    };
    bare.parse().map_err(|_| wrong())
}

fn is_curl(word: &str) -> bool {
    let name = word.rsplit(['/', '\\']).next().unwrap_or_default();
    name == "curl" || name == "curl.exe"
}

/// Where files that a command names are looked for.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
}

impl Files {
    /// # Errors
    /// A file that is not there, by name and line.
    fn read(&self, name: &str, line: usize) -> Result<Vec<u8>> {
        let beside = self.folder.join(name);
        let path = if Path::new(name).exists() { Path::new(name) } else { &beside };
        // Read, not asked for its length: a device has none.
        let mut read = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut read))
            .with_context(|| format!("line {line}: cannot read {name}"))?;
        if read.len() as u64 > FILE_BYTES_MAX {
            bail!("line {line}: {name} is larger than {FILE_BYTES_MAX} bytes");
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
