//! `standfast prove`: holds the requested number of WebSockets on this machine and reports whether
//! they held. It checks the machine's limits, starts `serve` and `load` as separate processes, connects
//! with stops at round numbers to measure memory, holds with heartbeats, broadcasts, and judges.

mod agents;
pub(super) mod broadcast;
pub(super) mod child;
mod churn;
pub(crate) mod cluster;
mod generator;
mod link;
mod page;
mod phases;
mod plan;
mod proxies;
mod result;
mod rounds;
mod scenario;
mod screen;
pub(super) mod server;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capacity::{Goal, Machine, Role};
use engine::sys::process;
use load::Connect;

use self::phases::{Fleets, Run};
use self::plan::Plan;
use self::proxies::Competitor;
use self::result::Proof;
use self::screen::Screen;
use crate::commands::fleet::controlled::Problems;
use crate::commands::load as load_command;
use crate::{output, units};

/// Headings of the flags, which are topics of `standfast help prove`.
const TRAFFIC: &str = "Traffic";
const PROXIES: &str = "Proxies";
const OUTPUT: &str = "Output";

/// Hold up to a million WebSockets on this machine and report the result
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Option<Task>,
    /// Scenario file, or a built-in scenario: cable-10k, cable-500k, cable-churn, million, million-hold,
    /// nginx-active, nginx-idle, slow-link, storm; flags override it
    #[arg(value_name = "SCENARIO")]
    scenario: Option<String>,
    /// Number of WebSockets [default: what fits, max 1M]
    #[arg(long, value_name = "N", value_parser = units::count, help_heading = TRAFFIC)]
    connections: Option<u64>,
    /// How to open connections [default: windowed]
    ///
    /// windowed, storm (all at once), paced:RATE or one-by-one
    #[arg(long, value_name = "HOW", value_parser = load_command::connect, help_heading = TRAFFIC)]
    connect: Option<Connect>,
    /// How long to hold them [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = TRAFFIC)]
    hold: Option<Duration>,
    /// Ping interval, 0 to disable [default: 30s]
    ///
    /// Every ping must be answered. Default with --message-every: 0
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = TRAFFIC)]
    heartbeat: Option<Duration>,
    /// Message interval [default: 0, no messages]
    ///
    /// Every message must be echoed
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = TRAFFIC)]
    message_every: Option<Duration>,
    /// Messages published to all WebSockets [default: 1]
    ///
    /// Published one after another. Default with --message-every: 0
    #[arg(long, value_name = "N", help_heading = TRAFFIC)]
    broadcasts: Option<u32>,
    /// Run only these cells, such as 1k-128B-10s
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', help_heading = PROXIES)]
    cells: Vec<String>,
    /// Proxies [default: standfast,nginx,haproxy]
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true, help_heading = PROXIES)]
    proxies: Vec<Competitor>,
    /// Write the results to a file, or - for stdout
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    json: Option<String>,
    /// Write a report as one HTML page
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    html: Option<String>,
    /// Start even if the machine's limits seem too low
    #[arg(long, help_heading = OUTPUT)]
    force: bool,
    /// Print rows of text instead of the live screen
    #[arg(long, help_heading = OUTPUT)]
    plain: bool,
    #[command(flatten)]
    fleet: agents::Flags,
}

/// What else can be proved.
#[derive(clap::Subcommand, Debug)]
enum Task {
    Cluster(Box<cluster::Args>),
}

/// Runs the proof. Exit code 0: held; 1: fell short; 2: could not start; 130: Ctrl-C.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(Task::Cluster(args)) = &args.task {
        return cluster::run(args);
    }
    let json_to_stdout = args.json.as_deref() == Some(output::STDOUT);
    let mut screen = Screen::new(args.plain, json_to_stdout);
    let plan = Plan::new(args)?;
    for file in [&args.json, &args.html].into_iter().flatten() {
        output::check_writable(file)?;
    }
    if !plan.cells.is_empty() {
        return proxies::run(args, &plan, screen);
    }
    let Some((connections, machine, agents)) = preflight(&plan, args, &mut screen)? else {
        screen.note("interrupted: nothing was started");
        return Ok(ExitCode::from(130));
    };
    if !plan.rounds.is_empty() {
        drop(screen);
        return rounds::run(args, &plan, connections, &machine);
    }
    let Some(run) = Run::start(connections, &plan, &mut screen, agents)? else {
        screen.note("interrupted: nothing was started");
        return Ok(ExitCode::from(130));
    };
    let measured = run.measure();
    let proof = Proof::judge(measured, &machine, &plan);
    screen.verdict(&proof);
    if let Some(file) = &args.json {
        output::write_json(file, &proof)?;
    }
    if let Some(file) = &args.html {
        page::report(&proof, &plan).write(file)?;
        screen.note(&format!("report: {file}"));
    }
    Ok(match (proof.interrupted, proof.held()) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(1),
    })
}

/// What is known before the start: the number of connections, this machine, and the agents.
type Known<'a> = (u64, Machine, Fleets<'a>);

/// Checks the limits of this machine and of the agents, and reports all that are too low, before anything is
/// opened. `None` after Ctrl-C.
fn preflight<'a>(plan: &Plan, args: &'a Args, screen: &mut Screen) -> Result<Option<Known<'a>>> {
    capacity::raise_nofile().context("cannot read or raise this process's descriptor limit")?;
    let machine = Machine::read();
    let private_tables = process::private_tables_work();
    // Agents that connect to a loopback address are on this machine, too.
    let role = match plan.listen {
        Some(address) if !address.ip().is_loopback() => Role::Serve,
        _ => Role::Prove,
    };
    let goal = |connections| Goal { private_tables, ..Goal::new(role, connections) };
    let requested = plan.connections.unwrap_or(capacity::limits::CONNECTIONS_DEFAULT_MAX);
    let report = capacity::check(&machine, &goal(requested));
    let connections = match plan.connections {
        Some(connections) => connections,
        None => report.suggested().min(requested),
    };
    if connections == 0 {
        bail!("{report}");
    }
    screen.machine(&machine);
    if let Some(about) = &plan.about {
        screen.note(&format!("{}: {about}", plan.scenario.as_deref().unwrap_or("scenario")));
    }
    let report = capacity::check(&machine, &goal(connections));
    // With --servers nothing is held here.
    let is_short = !report.holds() && !args.force && !plan.has_servers;
    let Some(who) = &args.fleet.agents else {
        if is_short {
            bail!("{report}\nTo start anyway, add --force.");
        }
        screen.note(&report.to_string());
        return Ok(Some((connections, machine, (None, None))));
    };
    let (agents, problems) = match args.fleet.find(who, connections) {
        Ok(None) => return Ok(None),
        Ok(Some(found)) => found,
        Err(error) => {
            let fatal = vec![format!("{error:#}")];
            ((None, None), Problems { fatal, ..Problems::default() })
        }
    };
    let Problems { fatal, limits } = problems;
    let is_refused = is_short || !limits.is_empty() && !args.force;
    if is_refused || !fatal.is_empty() {
        let mut text = "nothing was started:".to_owned();
        fatal.iter().chain(&limits).for_each(|problem| text += &format!("\n  {problem}"));
        if is_short {
            text += &format!("\n  this machine: {}", report.to_string().replace('\n', "\n    "));
        }
        if fatal.is_empty() {
            text += "\nTo start anyway, add --force.";
        }
        bail!("{text}");
    }
    if !plan.has_servers {
        screen.note(&report.to_string());
    }
    limits.iter().for_each(|problem| screen.note(problem));
    Ok(Some((connections, machine, agents)))
}
