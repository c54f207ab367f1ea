//! The command line: one subcommand per program, its flags in the module of that name.

use clap::{Parser, Subcommand};

use crate::{completions, doctor, help, load, plan, prove, proxy, serve, stress};

/// Hold a million WebSockets on one machine, and prove it.
#[derive(Parser, Debug)]
#[command(name = "standfast", version, about, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Serve WebSockets: /cable, /topics/NAME, /events, /echo, /health
    Serve(Box<serve::Args>),
    /// Send requests, or open WebSockets and hold them, and check every answer
    Load(Box<load::Args>),
    /// Stand before other servers: WebSockets and plain HTTP, balanced over upstreams
    Proxy(Box<proxy::Args>),
    /// Hold a million WebSockets on this machine and say what held
    Prove(prove::Args),
    /// Measure with go-stress-testing's command line
    Stress(Box<stress::Args>),
    /// Say how many machines a goal needs
    Plan(Box<plan::Args>),
    /// Say what this machine allows, what N sockets need, and what to do; explain error messages
    Doctor(doctor::Args),
    /// Tell more of a command: its flags by topic, or all of them
    Help(help::Args),
    /// Print completions for bash, zsh, fish and others
    Completions(completions::Args),
    /// Write the pages of the manual into a folder
    #[command(hide = true)]
    Man(completions::ManArgs),
}
