//! Parser of curl commands, as copied from a browser, from Postman or from a manual. A file of them
//! becomes [`Request`]s, with a warning for everything that is not supported. The meaning of options
//! follows curl's manual (curl.se/docs/manpage.html).
//!
//! It is not a shell: variables and substitutions are kept literally, with a warning.

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

/// Limits of a file: bytes and commands.
const FILE_BYTES_MAX: u64 = 16 << 20;
const COMMANDS_MAX: usize = 1_000;

/// The commands of a file.
#[derive(Debug)]
pub(crate) struct Commands {
    /// At least one, in the order of the file.
    pub(crate) requests: Vec<Request>,
    /// What was ignored, each with its line.
    pub(crate) warnings: Vec<String>,
}

/// Reads a file of curl commands; `-` is standard input.
///
/// # Errors
/// A file that cannot be read or has no command, or an invalid command, by name and line.
pub(crate) fn read(path: &Path) -> Result<Commands> {
    let file = path.display();
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin()).context("cannot read standard input")?
    } else {
        let length = path.metadata().with_context(|| format!("cannot read {file}"))?.len();
        if length > FILE_BYTES_MAX {
            bail!("{file} has {length} bytes: expected at most {FILE_BYTES_MAX}");
        }
        std::fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?
    };
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    parse(&text, &folder).with_context(|| file.to_string())
}

/// Parses commands; files in them are looked up in the current folder, then in `folder`.
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
        // Manuals print commands with the prompt of a shell.
        let (name, rest) = match rest.split_first() {
            Some((second, rest)) if matches!(name.as_str(), "$" | "%" | ">" | "#") => {
                (String::from_utf8_lossy(&second.bytes).into_owned(), rest)
            }
            _ => (name, rest),
        };
        if !is_curl(&name) {
            warnings.push(format!("line {}: {name:?} is not a curl command: ignored", first.line));
            continue;
        }
        for words in rest.split(|word| matches!(word.bytes.as_slice(), b"--next" | b"-:")) {
            let mut draft = Draft::new(first.line, &files);
            options::read(words, &mut draft, &mut warnings)?;
            requests.push(draft.finish(&mut warnings)?);
            if requests.len() > COMMANDS_MAX {
                bail!("more than {COMMANDS_MAX} commands");
            }
        }
    }
    if requests.is_empty() {
        bail!("no curl command found: expected lines such as curl 'http://HOST/'");
    }
    Ok(Commands { requests, warnings })
}

/// Parses the local address of `--interface`.
///
/// # Errors
/// A device name; its addresses are not looked up.
pub(crate) fn source(interface: &str) -> Result<IpAddr, String> {
    let bare = interface.strip_prefix("host!").unwrap_or(interface).trim_matches(['[', ']']);
    let wrong =
        || format!("--interface {interface}: expected a local IP address such as 127.0.0.2");
    bare.parse().map_err(|_| wrong())
}

fn is_curl(word: &str) -> bool {
    let name = word.rsplit(['/', '\\']).next().unwrap_or_default();
    name == "curl" || name == "curl.exe"
}

/// Finds the files that a command names.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
}

impl Files {
    /// Reads a file.
    ///
    /// # Errors
    /// A missing or too large file, by name and line.
    fn read(&self, name: &str, line: usize) -> Result<Vec<u8>> {
        let beside = self.folder.join(name);
        let path = if Path::new(name).exists() { Path::new(name) } else { &beside };
        // Limits the read instead of checking the length, which a device does not have.
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
