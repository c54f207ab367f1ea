//! The subcommands of `standfast`. The flags of each are in the module of the same name.

use clap::{Args as _, Parser, Subcommand};

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

/// The command line with one command only: the flags of all others take half of the instructions of a start, and
/// memory that the process keeps. `None` for commands that only print something.
pub(crate) fn alone(name: &str) -> Option<clap::Command> {
    let alone = match name {
        "serve" => serve::Args::augment_args(clap::Command::new("serve")),
        "load" => load::Args::augment_args(clap::Command::new("load")),
        "proxy" => proxy::Args::augment_args(clap::Command::new("proxy")),
        "prove" => prove::Args::augment_args(clap::Command::new("prove")),
        "stress" => stress::Args::augment_args(clap::Command::new("stress")),
        "agent" => fleet::agent::Args::augment_args(clap::Command::new("agent")),
        _ => return None,
    };
    Some(clap::Command::new("standfast").disable_help_subcommand(true).subcommand(alone))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::commands::help::one_screen;

    #[test]
    fn one_command_is_parsed_as_among_all() {
        let lines = [
            "standfast serve --echo --listen 127.0.0.1:1 --drain 5s",
            "standfast load http://127.0.0.1:1/ -c 5 --json=x -H a:b",
            "standfast load merge a.json b.json",
            "standfast proxy --upstream 127.0.0.1:1,127.0.0.1:2",
            "standfast proxy check proxy.toml",
            "standfast prove --connections 10k --hold 5m",
            "standfast prove cluster --duration 2m",
            "standfast stress -c 1 -n 2 -u http://127.0.0.1:1/",
            "standfast agent --name one --nats nats://127.0.0.1:4222",
        ];
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let alone = alone(words[1]).unwrap();
            let found =
                alone.try_get_matches_from(&words).unwrap_or_else(|error| panic!("{error}"));
            let expected = one_screen(Args::command()).try_get_matches_from(&words).unwrap();
            assert_eq!(found.subcommand(), expected.subcommand(), "{line}");
        }
        assert!(alone("doctor").is_none());
    }
}
