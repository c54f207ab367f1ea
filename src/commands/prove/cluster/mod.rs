//! `standfast prove cluster`: whether several nodes with a broker between them lose nothing unexplained, while
//! nodes and broker are killed, stopped and cut off after a plan that is drawn from a seed.
//!
//! [`faults`] draws the plan, [`run`] carries it out with [`nodes`], [`broker`], [`relay`] and [`publish`], [`check`]
//! judges the [`evidence`], [`result`] is what is reported, and [`page`] the HTML page.

mod broker;
mod check;
mod evidence;
mod faults;
mod nodes;
mod page;
mod publish;
mod relay;
mod result;
mod run;
mod settings;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use capacity::Machine;
use engine::sys::process::now_ns;

use self::result::ClusterProof;
use self::settings::Settings;
use crate::{output, units};

/// Kill nodes and broker of a cluster under load; explain every loss
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Broker: redis, nats or none [default: redis]
    #[arg(long, value_name = "NAME", value_enum, hide_possible_values = true)]
    broker: Option<broker::Kind>,
    /// Use this Redis server on loopback instead
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Use this NATS server on loopback instead
    #[arg(long, value_name = "URL")]
    nats_servers: Option<String>,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = units::count)]
    nodes: u64,
    /// Number of clients
    #[arg(long, value_name = "N", default_value = "3k", value_parser = units::count)]
    clients: u64,
    /// Topics, shared by the clients
    #[arg(long, value_name = "N", default_value = "30", value_parser = units::count)]
    topics: u64,
    /// Publications per second
    #[arg(long, value_name = "N", default_value = "150", value_parser = units::count)]
    rate: u64,
    /// Time in which faults happen
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = units::positive_duration)]
    duration: Duration,
    /// Seed of the fault plan [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Kinds of faults, such as kill-node [default: all]
    ///
    /// kill-node, stop-node, kill-broker, cut-link, delay-link, half-open and drop-clients
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true
    )]
    faults: Vec<faults::Kind>,
    /// Clients speak Action Cable
    #[arg(long)]
    cable: bool,
    /// Nodes share the broker's history [implies: --cable]
    #[arg(long)]
    history: bool,
    /// Put standfast proxy in front of the nodes
    #[arg(long)]
    proxy: bool,
    /// Further flag of each node, such as --log=debug
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    serve_flag: Vec<String>,
    /// Write the logs of the nodes to this directory
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Write the results to a file, or - for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Write a report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
}

/// Runs the proof. Exit code 0: nothing unexplained; 1: something was; 2: could not start; 130: Ctrl-C.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let settings = Settings::new(args, now_ns() % 1_000_000)?;
    for file in [&args.json, &args.html].into_iter().flatten() {
        output::check_writable(file)?;
    }
    if let Some(folder) = &settings.logs {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    capacity::raise_nofile().context("cannot read or raise this process's descriptor limit")?;
    let machine = Machine::read();
    let plan = faults::draw(&settings.draw());
    output::note(&format!(
        "standfast {}: seed {}, {} faults in {}",
        env!("CARGO_PKG_VERSION"),
        settings.seed,
        plan.len(),
        units::format_duration(settings.duration)
    ));
    let seen = run::run(&settings, &plan)?;
    let proof = ClusterProof::judge(&settings, &plan, seen, machine);
    output::report(args.json.as_deref(), &proof.text(), &proof)?;
    if let Some(file) = &args.html {
        page::report(&proof).write(file)?;
        output::note(&format!("report: {file}"));
    }
    Ok(match proof.verdict {
        result::HELD => ExitCode::SUCCESS,
        result::INTERRUPTED => ExitCode::from(130),
        _ => ExitCode::from(1),
    })
}
