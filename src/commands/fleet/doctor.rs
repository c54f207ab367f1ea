//! `standfast fleet doctor`: what each agent lacks for its share of a run, before anything starts.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use capacity::{Count, Fix, Goal, Limit, Machine, Role, Shortfall, Sources};
use engine::sys::process;
use load::requests::Generators;
use serde::Serialize;

use super::leader::Leader;
use super::member::{Agent, Purpose};
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

/// Agents of a machine that are named.
const NAMED_MAX: usize = 4;

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
    /// The name of its machine; empty: unknown.
    host: &'a str,
    connections: u64,
    /// Empty: it can hold its share; null: it did not answer.
    problems: Option<Vec<String>>,
}

/// Limits of a machine, which all agents there share. The others are of a process.
const OF_MACHINE: [Limit; 5] =
    [Limit::Memory, Limit::SystemFiles, Limit::Ports, Limit::Conntrack, Limit::EpollWatches];

/// What this machine lacks for so many connections beside those of other agents here, each with what helps.
pub(super) fn problems(
    role: Role,
    [connections, beside]: [u64; 2],
    destinations: Option<[u64; 2]>,
) -> Vec<String> {
    let mut machine = Machine::read();
    // A load raises the soft limit to the hard one. Where that fails the soft one counts.
    if capacity::raise_nofile().is_err() {
        machine.files.nofile.hard = machine.files.nofile.soft;
    }
    let private_tables = process::private_tables_work();
    let check = |connections, destinations: Option<u64>| {
        let goal = Goal {
            private_tables,
            sources: if destinations.is_some() { Sources::Addresses(1) } else { Sources::Loopback },
            destinations: destinations.unwrap_or(1),
            ..Goal::new(role, connections)
        };
        capacity::check(&machine, &goal).shortfalls
    };
    let of_agent = check(connections, destinations.map(|[own, _]| own)).into_iter();
    let of_agent: Vec<Shortfall> = of_agent.filter(|one| !is_shared(one, beside)).collect();
    let all = connections.saturating_add(beside);
    let of_machine =
        if beside == 0 { Vec::new() } else { check(all, destinations.map(|[_, all]| all)) };
    let of_machine = of_machine.iter().filter(|one| is_shared(one, beside)).map(|shortfall| {
        let all = Count(all);
        problem(&format!("{all} connections of all agents on this machine: "), shortfall)
    });
    of_agent.iter().map(|shortfall| problem("", shortfall)).chain(of_machine).collect()
}

/// Whether other agents of the machine count, too.
fn is_shared(shortfall: &Shortfall, beside: u64) -> bool {
    beside > 0 && OF_MACHINE.contains(&shortfall.need.limit)
}

/// What is short, and what helps.
fn problem(whose: &str, shortfall: &Shortfall) -> String {
    let lines = shortfall.fixes.iter().filter_map(|fix| advice(fix, !whose.is_empty()));
    let lines: String = lines.map(|line| format!("\n{line}")).collect();
    format!("{whose}{}{lines}", shortfall.text)
}

/// One of the ways to apply a fix, for an agent or all agents of its machine: they take neither addresses nor a
/// number of connections.
fn advice(fix: &Fix, is_of_all: bool) -> Option<String> {
    match fix {
        Fix::Sources { sources } => Some(format!(
            "fleet: {sources} agents instead of {}, each with an address of its own",
            if is_of_all { "these" } else { "this one" }
        )),
        Fix::Fewer { connections, .. } => Some(format!(
            "fleet: more {} or fewer --connections, so that {} at most {}",
            if is_of_all { "machines" } else { "agents" },
            if is_of_all { "all agents of this machine have" } else { "this one has" },
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
    let mut leader = Leader::new(&args.query.fleet, Purpose::Loads)?;
    let Some(agents) = query::find(&mut leader, &args.agents)? else {
        return Ok(ExitCode::from(130));
    };
    let of = u32::try_from(agents.len()).unwrap_or(u32::MAX);
    let shares: Vec<u64> =
        (0..of).map(|nth| Generators { nth, of }.part_of(args.connections)).collect();
    let destinations = args.destinations.map(|count| [count; 2]);
    let answers = share_problems(&mut leader, &agents, &shares, destinations, &HashMap::new());
    if leader.is_interrupted() {
        return Ok(ExitCode::from(130));
    }
    let each = agents.iter().zip(shares).zip(answers);
    let findings: Vec<Finding<'_>> = each
        .map(|((agent, connections), problems)| Finding {
            name: &agent.name,
            host: &agent.host,
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

/// Asks each agent what it lacks for its share, and the first of each machine, by its name, what that lacks for all of
/// them and for `others`. Each connects to so many addresses and ports, and all of a machine to so many.
pub(super) fn share_problems(
    leader: &mut Leader<'_>,
    agents: &[Agent],
    shares: &[u64],
    destinations: Option<[u64; 2]>,
    others: &HashMap<String, u64>,
) -> Vec<Option<Vec<String>>> {
    let id = leader.id().to_owned();
    let mut of_hosts: HashMap<&str, (usize, u64)> = HashMap::new();
    let each = agents.iter().zip(shares).enumerate();
    for (at, (agent, share)) in each.filter(|(_, (agent, _))| !agent.host.is_empty()) {
        let beside = others.get(&agent.host).copied().unwrap_or(0);
        let (_, sum) = of_hosts.entry(&agent.host).or_insert((at, beside));
        *sum = sum.saturating_add(*share);
    }
    let question = |at: usize| {
        let connections = shares.get(at).copied().unwrap_or(0);
        let all = agents.get(at).and_then(|agent| of_hosts.get(agent.host.as_str()));
        let first = all.filter(|(first, _)| *first == at);
        let beside = first.map_or(0, |(_, all)| all.saturating_sub(connections));
        ToAgent::Check { leader: id.clone(), connections, beside, destinations }
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
    for Finding { name, connections, problems, .. } in &document.agents {
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
    let mut of_hosts: BTreeMap<&str, Vec<&Finding<'_>>> = BTreeMap::new();
    for finding in document.agents.iter().filter(|finding| !finding.host.is_empty()) {
        of_hosts.entry(finding.host).or_default().push(finding);
    }
    for (host, agents) in of_hosts.iter().filter(|(_, agents)| agents.len() > 1) {
        let all = Count(agents.iter().map(|agent| agent.connections).sum());
        let (first, more) = agents.split_at(agents.len().min(NAMED_MAX));
        let names = first.iter().map(|agent| agent.name).collect::<Vec<_>>().join(", ");
        let more =
            if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let _ =
            writeln!(text, "note   {names}{more}: one machine, {host}: {all} connections together");
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
            for is_of_all in [false, true] {
                let line = advice(&fix, is_of_all).unwrap();
                assert!(!line.contains("--source") && !line.contains("--connections 7"), "{line}");
            }
        }
        assert!(advice(&Fix::Sources { sources: 3 }, false).unwrap().contains("3 agents instead"));
    }

    #[test]
    fn what_other_agents_of_a_machine_need_counts_for_its_limits_and_not_for_those_of_a_process() {
        assert_eq!(problems(Role::Load, [10, 10], None), Vec::<String>::new());
        // More than any machine holds.
        let (alone, beside) =
            (problems(Role::Load, [10, 0], None), problems(Role::Load, [10, 900_000_000], None));
        assert!(alone.is_empty() && !beside.is_empty(), "{alone:?}");
        let of_all = "900,000,010 connections of all agents on this machine: ";
        assert!(beside.iter().all(|problem| problem.starts_with(of_all)), "{beside:?}");
        assert!(beside.iter().any(|problem| problem.contains("memory")), "{beside:?}");
        assert!(beside.iter().all(|problem| !problem.contains("descriptors:")), "{beside:?}");
    }

    #[test]
    fn agents_of_one_machine_are_named() {
        let of = |name, host| Finding { name, host, connections: 5, problems: Some(Vec::new()) };
        let agents =
            vec![of("one", "a"), of("two", "b"), of("six", "a"), of("new", ""), of("old", "")];
        let text = text(&Document { version: 1, holds: true, connections: 25, agents });
        let note = "note   one, six: one machine, a: 10 connections together\n";
        assert!(text.contains(note), "{text}");
        assert_eq!(text.matches("note").count(), 1, "{text}");
    }
}
