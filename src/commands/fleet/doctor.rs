//! `standfast fleet doctor`: what each agent lacks for its share of a run, before anything starts.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use capacity::{Count, Goal, Machine, Role, Sources};
use engine::sys::process::{self, now_ns};
use load::requests::Generators;
use serde::Serialize;

use super::leader::{LOOK_FOR, Leader, Waited};
use super::member::Agent;
use super::message::{Says, ToAgent, printable, version};
use super::{FleetFlags, REPEAT};
use crate::{output, units};

/// How long the answers of all agents are awaited.
const ANSWERS: Duration = Duration::from_secs(10);

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Connections of the whole run, which agents share
    #[arg(short = 'c', long, value_name = "N", default_value = "1M",
        value_parser = units::positive_count)]
    connections: u64,
    /// Agents of the run: their number, `all`, or a label as KEY=VALUE
    #[arg(long, value_name = "WHO", default_value = "all", value_parser = super::who)]
    agents: String,
    /// Number of addresses and ports that they connect to [default: on loopback]
    #[arg(long, value_name = "N", value_parser = units::positive_count)]
    destinations: Option<u64>,
    /// Write the findings as JSON to FILE, or to standard output with -
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    #[command(flatten)]
    fleet: FleetFlags,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    /// Every agent can hold its share.
    holds: bool,
    connections: u64,
    agents: Vec<Finding<'a>>,
}

#[derive(Serialize)]
struct Finding<'a> {
    name: &'a str,
    connections: u64,
    /// Empty: it can hold its share; null: it did not answer.
    problems: Option<Vec<String>>,
}

/// What this machine lacks for so many connections, each with what helps.
pub(super) fn problems(connections: u64, destinations: Option<u64>) -> Vec<String> {
    let mut machine = Machine::read();
    // A load raises the soft limit to the hard one. Where that fails the soft one counts.
    if capacity::raise_nofile().is_err() {
        machine.files.nofile.hard = machine.files.nofile.soft;
    }
    let goal = Goal {
        private_tables: process::private_tables_work(),
        sources: if destinations.is_some() { Sources::Addresses(1) } else { Sources::Loopback },
        destinations: destinations.unwrap_or(1),
        ..Goal::new(Role::Load, connections)
    };
    let report = capacity::check(&machine, &goal);
    let problem = |shortfall: &capacity::Shortfall| {
        // One of the ways to apply each.
        let lines = shortfall.fixes.iter().filter_map(|fix| fix.commands().into_iter().next());
        let lines = lines.map(|command| format!("\n{}: {}", command.place, command.line));
        format!("{}{}", shortfall.text, lines.collect::<String>())
    };
    report.shortfalls.iter().map(problem).collect()
}

/// Runs the command. Exit code 1: an agent cannot hold its share.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut leader = Leader::new(&args.fleet)?;
    let (mut agents, waited) = leader.find(&args.agents, LOOK_FOR)?;
    if waited == Waited::Interrupted {
        return Ok(ExitCode::from(130));
    }
    if let Ok(wanted) = args.agents.parse::<usize>() {
        if agents.len() < wanted {
            bail!("{} of {wanted} agents have answered: start others", agents.len());
        }
        agents.truncate(wanted);
    }
    if agents.is_empty() {
        bail!("no agent has answered: start one with standfast agent --name NAME");
    }
    let of = u32::try_from(agents.len()).unwrap_or(u32::MAX);
    let shares: Vec<u64> =
        (0..of).map(|nth| Generators { nth, of }.part_of(args.connections)).collect();
    let answers = ask(&mut leader, &agents, &shares, args.destinations);
    let each = agents.iter().zip(shares).zip(answers);
    let findings: Vec<Finding<'_>> = each
        .map(|((agent, connections), problems)| Finding {
            name: &agent.name,
            connections,
            problems: problems.map(|problems| with_version(agent, problems)),
        })
        .collect();
    let holds = findings.iter().all(|finding| finding.problems.as_ref().is_some_and(Vec::is_empty));
    let connections = args.connections;
    let document = Document { version: 1, holds, connections, agents: findings };
    match args.json.as_deref() {
        Some(output::STDOUT) => output::write_json(output::STDOUT, &document)?,
        file => {
            file.map_or(Ok(()), |file| output::write_json(file, &document))?;
            output::print(&text(&document))?;
        }
    }
    Ok(ExitCode::from(u8::from(!holds)))
}

fn with_version(agent: &Agent, mut problems: Vec<String>) -> Vec<String> {
    let (mine, theirs) = (version(), &agent.version);
    if *theirs != mine {
        problems
            .insert(0, format!("it has version {theirs}, this program {mine}: install the same"));
    }
    problems
}

/// Asks each agent until it has answered.
fn ask(
    leader: &mut Leader<'_>,
    agents: &[Agent],
    shares: &[u64],
    destinations: Option<u64>,
) -> Vec<Option<Vec<String>>> {
    let mut answers: Vec<Option<Vec<String>>> = vec![None; agents.len()];
    let until_ns = now_ns() + ANSWERS.as_nanos() as u64;
    let mut asked_ns = 0;
    while now_ns() < until_ns && answers.iter().any(Option::is_none) && !leader.is_interrupted() {
        if now_ns() > asked_ns + REPEAT.as_nanos() as u64 {
            asked_ns = now_ns();
            for ((agent, connections), answer) in agents.iter().zip(shares).zip(&answers) {
                if answer.is_none() {
                    let (leader_id, connections) = (leader.id().to_owned(), *connections);
                    let check = ToAgent::Check { leader: leader_id, connections, destinations };
                    leader.send(agent, &check, &[]);
                }
            }
        }
        let Some(message) = leader.next(Duration::from_millis(20)) else { continue };
        let Some(at) = agents.iter().position(|agent| agent.is(&message)) else { continue };
        if let (Says::Checked { problems }, Some(answer)) = (message.says, answers.get_mut(at)) {
            *answer = Some(problems.iter().map(|problem| printable(problem)).collect());
        }
    }
    answers
}

fn text(document: &Document<'_>) -> String {
    let mut text = String::new();
    for Finding { name, connections, problems } in &document.agents {
        let connections = Count(*connections);
        // Writing to a String cannot fail.
        let _ = match problems.as_deref() {
            Some([]) => writeln!(text, "ok     {name}: {connections} connections"),
            Some(_) => writeln!(text, "SHORT  {name}: {connections} connections"),
            None => writeln!(text, "?      {name}: it did not answer"),
        };
        for problem in problems.iter().flatten() {
            let _ = writeln!(text, "       {}", problem.replace('\n', "\n         "));
        }
    }
    let connections = Count(document.connections);
    let verdict = match document.holds {
        true => format!("the fleet can hold {connections} connections"),
        false => format!("not every agent can hold its share of {connections} connections"),
    };
    text + &verdict + "\n"
}
