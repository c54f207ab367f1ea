//! The subcommands of `standfast`. The flags of each are in the module of the same name.

use clap::{Parser, Subcommand};

use crate::commands::{
    completions, doctor, fleet, help, load, plan, prove, proxy, serve, stress, token,
};

/// Hold a million WebSockets on one machine, and prove it.
#[derive(Parser, Debug)]
#[command(name = "standfast", version, about, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// WebSocket server: /cable, /topics/NAME, /events, /echo, /health
    Serve(Box<serve::Args>),
    /// Load generator for HTTP, WebSockets, gRPC, Action Cable and TCP
    Load(Box<load::Args>),
    /// Reverse proxy and load balancer for WebSockets and HTTP
    Proxy(Box<proxy::Args>),
    /// Hold up to a million WebSockets on this machine and report the result
    Prove(prove::Args),
    /// Load generator with go-stress-testing's command line
    Stress(Box<stress::Args>),
    /// Run shares of `standfast load --agents` on this machine
    Agent(Box<fleet::agent::Args>),
    /// List, check and upgrade the agents of a fleet
    Fleet(Box<fleet::Args>),
    /// Calculate how many machines a target load needs
    Plan(Box<plan::Args>),
    /// Check this machine's limits for N sockets; explain error messages
    Doctor(doctor::Args),
    /// Make and check tokens (JWT) and signed stream names
    Token(token::Args),
    /// Show help for a command or a topic
    Help(help::Args),
    /// Print shell completions for bash, zsh, fish and others
    Completions(completions::Args),
    /// Write the manual pages to a directory
    #[command(hide = true)]
    Man(completions::ManArgs),
}
