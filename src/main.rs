//! The executable `standfast`: runs a subcommand and maps its result to the exit code: 0 success, 1 a
//! measurement fell short, 2 usage, configuration or environment, 130 Ctrl-C.

#![deny(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "they panic if the write fails: use output::note and output::print"
)]
#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::bare_urls,
    reason = "the doc comments of flags are the help, where brackets and URLs are plain text"
)]

mod admission;
mod anycable;
mod application;
mod args;
mod auth;
mod bodies;
mod brokers;
mod channels;
mod commands;
mod curl;
mod history;
mod output;
mod presence;
mod pubsub;
mod report;
#[allow(dead_code, reason = "`standfast proxy` uses it")]
mod routes;
mod running;
mod settings;
mod systemd;
mod tls;
mod tls_listeners;
mod units;
mod usage;
mod webhooks;

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

use admin::log;
use anyhow::Result;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use engine::invariant;
use engine::sys::process;

use crate::args::{Args, Command};
use crate::commands::{
    completions, doctor, fleet, help, load, plan, prove, proxy, serve, stress, token,
};

/// Exit code for errors of usage, configuration or environment.
const EXIT_ENVIRONMENT: u8 = 2;

fn main() -> ExitCode {
    // Before any thread starts: threads inherit the mask, and workers must not run signal handlers.
    process::block_signals();
    process::tune_allocator();
    let words = command_line();
    let typed: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    // Help and errors are of all commands.
    let alone = typed.get(1).and_then(|name| args::alone(name));
    let matches = match alone.map(|command| command.try_get_matches_from(&words)) {
        Some(Ok(matches)) => Ok(matches),
        _ => help::one_screen(Args::command()).try_get_matches_from(words),
    };
    let matches = matches.unwrap_or_else(|error| usage::exit(&error, &typed));
    let args = Args::from_arg_matches(&matches);
    let args = args.unwrap_or_else(|error| usage::exit(&error, &typed));
    if let Some(misread) = usage::misread(&typed) {
        log::write_line(&misread);
        return ExitCode::from(EXIT_ENVIRONMENT);
    }
    // A blocked standard error must neither stop a server nor falsify a measurement. Without its
    // thread lines are written directly.
    let _ = log::start();
    let _flush = log::FlushOnDrop;
    let flags = matches.subcommand().map_or(&matches, |(_, flags)| flags);
    let result = run(args, flags);
    warn_of_broken_invariants();
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            log::write_line(&usage::without_drawing(&format!("standfast: {error:#}")));
            ExitCode::from(EXIT_ENVIRONMENT)
        }
    }
}

/// Reports broken invariants on stderr at the end of a run, as its figures may be wrong.
fn warn_of_broken_invariants() {
    let total = invariant::total();
    if total == 0 {
        return;
    }
    let unreported = invariant::take_unreported();
    let first = unreported.first().map(|broken| format!(": {} ({})", broken.what, broken.location));
    let first = first.unwrap_or_default();
    log::write_line(&format!(
        "standfast: invariants broken: {total}; results may be wrong, please report this{first}"
    ));
}

fn run(args: Args, flags: &ArgMatches) -> Result<ExitCode> {
    match args.command {
        Command::Serve(_) => serve::run(flags),
        Command::Load(args) => load::run(&args, flags),
        Command::Proxy(args) => proxy::run(&args, flags),
        Command::Prove(args) => prove::run(&args),
        Command::Stress(args) => stress::run(&args, flags),
        Command::Agent(args) => fleet::agent::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Help(args) => help::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => completions::write_manual(&args),
    }
}

/// Returns the arguments; those of `stress` are converted from the syntax of Go flags.
fn command_line() -> Vec<OsString> {
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_none_or(|command| command != "stress") {
        return words;
    }
    let words = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    stress::to_clap(words).into_iter().map(OsString::from).collect()
}

/// Returns whether the reader of standard output has closed it (`… | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io.into_iter().any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}
