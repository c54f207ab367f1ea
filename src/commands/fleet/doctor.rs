//! `standfast fleet doctor`: what each agent lacks for its share of a run, before anything starts.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use capacity::{Count, Fix, Goal, Machine, Role, Sources};
use engine::sys::process;
use load::requests::Generators;
use serde::Serialize;

use super::leader::Leader;
use super::member::Agent;
use super::message::{Says, ToAgent, printable, version};
use super::query::{self, QueryFlags};
use crate::units;

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
    #[command(flatten)]
    query: QueryFlags,
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
        let lines = shortfall.fixes.iter().filter_map(advice);
        let lines: String = lines.map(|line| format!("\n{line}")).collect();
        format!("{}{lines}", shortfall.text)
    };
    report.shortfalls.iter().map(problem).collect()
}

/// One of the ways to apply a fix, for an agent: it takes neither addresses nor a number of connections.
fn advice(fix: &Fix) -> Option<String> {
    match fix {
        Fix::Sources { sources } => Some(format!(
            "fleet: {sources} agents instead of this one, each with an address of its own"
        )),
        Fix::Fewer { connections, .. } => Some(format!(
            "fleet: more agents or fewer --connections, so that this one has at most {}",
            Count(*connections)
        )),
        fix => {
            let command = fix.commands().into_iter().next()?;
            Some(format!("{}: {}", command.place, command.line))
        }
    }
}

/// Runs the command. Exit code 1: an agent cannot hold its share.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut leader = Leader::new(&args.query.fleet)?;
    let Some(agents) = query::find(&mut leader, &args.agents)? else {
        return Ok(ExitCode::from(130));
    };
    let of = u32::try_from(agents.len()).unwrap_or(u32::MAX);
    let shares: Vec<u64> =
        (0..of).map(|nth| Generators { nth, of }.part_of(args.connections)).collect();
    let answers = share_problems(&mut leader, &agents, &shares, args.destinations);
    if leader.is_interrupted() {
        return Ok(ExitCode::from(130));
    }
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
    args.query.print(&document, &text(&document))?;
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

/// Asks each agent what it lacks for its share.
pub(super) fn share_problems(
    leader: &mut Leader<'_>,
    agents: &[Agent],
    shares: &[u64],
    destinations: Option<u64>,
) -> Vec<Option<Vec<String>>> {
    let id = leader.id().to_owned();
    let question = |at: usize| ToAgent::Check {
        leader: id.clone(),
        connections: shares.get(at).copied().unwrap_or(0),
        destinations,
    };
    query::ask(leader, agents, question, |says| match says {
        Says::Checked { problems } => {
            Some(problems.iter().map(|problem| printable(problem)).collect())
        }
        _ => None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_no_flag_that_an_agent_lacks() {
        let fewer = Fix::Fewer { connections: 7_000, flag: "--connections" };
        for fix in [Fix::Sources { sources: 3 }, fewer, Fix::Nofile { files: 99 }] {
            let line = advice(&fix).unwrap();
            assert!(!line.contains("--source") && !line.contains("--connections 7"), "{line}");
        }
        assert!(advice(&Fix::Sources { sources: 3 }).unwrap().contains("3 agents instead"));
    }
}
