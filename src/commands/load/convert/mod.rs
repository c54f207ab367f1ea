//! Recordings and scripts of other tools as scenario files: [`from_har`] and [`from_k6`] fill a
//! [`Draft`], and [`finish`] writes it. What is left out is listed on standard error.

mod draft;
pub(super) mod from_har;
pub(super) mod from_k6;
mod har;
mod js;
mod k6_flow;
mod url;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use self::draft::Draft;
use crate::output;

/// Flags of all converters.
#[derive(clap::Args, Debug)]
pub(super) struct Output {
    /// File to write the scenario to; an existing file is not overwritten [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Reads a text file of at most `most` bytes; `-` is standard input.
fn read(path: &Path, most: u64) -> Result<String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let limit = most + 1;
    let read = match path.as_os_str() == output::STDOUT {
        true => std::io::stdin().take(limit).read_to_end(&mut bytes),
        false => {
            std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
        }
    };
    read.with_context(|| format!("cannot read {shown}"))?;
    if bytes.len() as u64 > most {
        bail!("{shown} is larger than {} MiB", most >> 20);
    }
    // Some tools write a byte order mark.
    let text = String::from_utf8(bytes).map_err(|error| {
        anyhow::anyhow!("{shown}: not UTF-8 at byte {}", error.utf8_error().valid_up_to())
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Writes a scenario, and the notes on it to standard error.
fn finish(draft: &Draft, notes: &[String], to: &Output) -> Result<ExitCode> {
    notes.iter().for_each(|line| output::note(line));
    let text = draft.text();
    match &to.output {
        None => output::print(&text)?,
        Some(file) if file.as_os_str() == output::STDOUT => output::print(&text)?,
        Some(file) => {
            let shown = file.display();
            let made = std::fs::File::create_new(file);
            let mut made = made.with_context(|| format!("cannot write {shown}"))?;
            std::io::Write::write_all(&mut made, text.as_bytes())
                .with_context(|| format!("cannot write {shown}"))?;
            output::note(&format!("wrote {shown}: run standfast load {shown}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
