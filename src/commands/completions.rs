//! `standfast completions` and `standfast man`: shell completions and manual pages, generated from the
//! parser's flags, for users and packagers.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args;
use crate::output;

const NAME: &str = "standfast";

/// Print shell completions
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Write the manual pages to a directory
#[derive(clap::Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory; created if missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Prints the completions.
///
/// # Errors
/// A write error on standard output.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Buffered: the generator panics on a closed output.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::Args::command(), NAME, &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `standfast.1` and a page for each subcommand.
///
/// # Errors
/// Names a directory that cannot be written.
pub(crate) fn write_manual(args: &ManArgs) -> Result<ExitCode> {
    let folder = &args.folder;
    let write = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        clap_mangen::generate_to(args::Args::command(), folder)
    };
    write().with_context(|| format!("cannot write the manual to {}", folder.display()))?;
    output::note(&format!("written; read with: man {}/{NAME}.1", folder.display()));
    Ok(ExitCode::SUCCESS)
}
