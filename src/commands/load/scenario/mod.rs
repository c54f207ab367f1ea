//! `standfast load FILE.toml`: scenarios, which describe users step by step. `file.rs` parses the file,
//! `run.rs` runs it, `fixtures.rs` its setup and teardown, `report.rs` prints the result.

mod bodies;
mod calls;
mod file;
mod fixtures;
mod groups;
mod hosts;
mod keys;
mod open_calls;
mod parallel;
mod report;
mod run;
mod sockets;
mod steps;
mod tables;
mod talk;

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

pub(super) use self::fixtures::Ended;
pub(crate) use self::run::clock;
#[cfg(test)]
pub(super) use self::run::configured;
pub(super) use self::run::{after_teardown, run};
use crate::output;

/// Built-in scenarios by name.
const BUILT_IN: [(&str, &str); 2] = [
    ("go-stress-http", include_str!("../../../../scenarios/go-stress-http.toml")),
    ("thor-echo", include_str!("../../../../scenarios/thor-echo.toml")),
];

/// Flags of `standfast load init`.
#[derive(clap::Args, Debug)]
pub(crate) struct InitArgs {
    /// File to write, or - for stdout
    #[arg(value_name = "FILE", default_value = "scenario.toml")]
    file: PathBuf,

    /// Print every key with its type, default and meaning
    #[arg(long)]
    keys: bool,
}

/// Returns whether the argument is a scenario instead of URLs: one name without a scheme that ends in
/// `.toml`, is a file or is built in.
pub(super) fn is_scenario(urls: &[String]) -> bool {
    let [name] = urls else { return false };
    let built_in = BUILT_IN.iter().any(|(known, _)| known == name);
    !name.contains("://") && (name.ends_with(".toml") || built_in || Path::new(name).is_file())
}

/// Returns the names of the built-in scenarios.
pub(super) fn built_in_names() -> impl Iterator<Item = &'static str> + Clone {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// Writes a commented example scenario; never overwrites a file.
///
/// # Errors
/// The file exists or cannot be written.
pub(super) fn init(args: &InitArgs) -> Result<ExitCode> {
    if args.keys {
        output::print(&keys::reference())?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = include_str!("init.toml");
    if args.file == Path::new(output::STDOUT) {
        output::print(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = args.file.display();
    let file = std::fs::File::create_new(&args.file);
    if matches!(&file, Err(error) if error.kind() == ErrorKind::AlreadyExists) {
        let free = (2..100).map(|number| numbered(&args.file, number)).find(|name| !name.exists());
        let free = free.unwrap_or_else(|| PathBuf::from("NAME.toml"));
        bail!(
            "{shown} exists and stays as it is: standfast load init {} writes another",
            free.display()
        );
    }
    let mut file = file.with_context(|| format!("cannot write {shown}"))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {shown}"))?;
    output::print(&format!(
        "wrote {shown}: start standfast serve, then run standfast load {shown}\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a file name with a number: `scenario-2.toml`.
fn numbered(file: &Path, number: u32) -> PathBuf {
    let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, extension) = (text(file.file_stem()), text(file.extension()));
    let dot = if extension.is_empty() { "" } else { "." };
    file.with_file_name(format!("{stem}-{number}{dot}{extension}"))
}

/// Returns the text of the file or of the built-in scenario, and its folder.
fn text(name: &str) -> Result<(String, PathBuf)> {
    let path = Path::new(name);
    let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
    if let Some((_, text)) = built_in.filter(|_| !path.exists()) {
        return Ok(((*text).to_owned(), PathBuf::from(".")));
    }
    load::files::admit(path).with_context(|| format!("cannot read {name}"))?;
    let size = std::fs::metadata(path).map(|file| file.len()).unwrap_or(0);
    if size > file::FILE_BYTES_MAX {
        bail!("{name} has {size} bytes: expected at most {}", file::FILE_BYTES_MAX);
    }
    let converter = match path.extension().and_then(|extension| extension.to_str()) {
        Some("js" | "mjs" | "ts") => Some(("a k6 script", "from-k6")),
        Some("har") => Some(("a recording", "from-har")),
        _ => None,
    };
    if let Some((what, command)) = converter {
        bail!(
            "{name} is no scenario (TOML)\n  to convert {what}: standfast load {command} {name} > scenario.toml"
        );
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    Ok((text, path.parent().unwrap_or(Path::new(".")).to_owned()))
}
