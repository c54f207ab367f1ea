//! `standfast completions` and `standfast man`: completions of shells and pages of the manual, made
//! from the very flags that the parser reads. For users' shells and for packagers.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args;
use crate::output;

const NAME: &str = "standfast";

/// Print completions for a shell
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Whose completions
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Write the pages of the manual into a folder
#[derive(clap::Args, Debug)]
pub(crate) struct ManArgs {
    /// The folder; it is made when it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Prints the completions.
///
/// # Errors
/// A standard output that takes no more.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Gathered first: the generator panics on an output that is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::Args::command(), NAME, &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `standfast.1` and a page for each subcommand.
///
/// # Errors
/// A folder that cannot be written, by name.
pub(crate) fn write_manual(args: &ManArgs) -> Result<ExitCode> {
    let folder = &args.folder;
    let write = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        clap_mangen::generate_to(args::Args::command(), folder)
    };
    write().with_context(|| format!("cannot write the manual to {}", folder.display()))?;
    let _ = writeln!(io::stderr(), "to read it: man {}/{NAME}.1", folder.display());
    Ok(ExitCode::SUCCESS)
}
