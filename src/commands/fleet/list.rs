//! `standfast fleet list`: the agents of a fleet.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::leader::{LOOK_FOR, Leader, Waited};
use super::member::{Agent, Purpose};
use super::message::version;
use super::query::QueryFlags;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    query: QueryFlags,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    fleet: &'a str,
    agents: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    /// The name of its machine; empty: unknown.
    host: &'a str,
    labels: &'a [String],
    cores: usize,
    busy: bool,
    /// Whether it is of this release, so that it can run what this program plans.
    usable: bool,
    release: &'a str,
    allowed_targets: &'a [String],
    /// Where it runs servers of proofs; null: it runs loads.
    serves: Option<IpAddr>,
}

/// Runs the command. Exit code 1: there are none.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut leader = Leader::new(&args.query.fleet, Purpose::Any)?;
    let (agents, waited) = leader.find("all", LOOK_FOR)?;
    if waited == Waited::Interrupted {
        return Ok(ExitCode::from(130));
    }
    let fleet = &args.query.fleet.fleet;
    let document = Document { version: 1, fleet, agents: agents.iter().map(entry).collect() };
    let namesakes: String = leader.namesakes.iter().map(|text| format!("{text}\n")).collect();
    args.query.print(&document, &(text(fleet, &document.agents) + &namesakes))?;
    Ok(ExitCode::from(u8::from(agents.is_empty())))
}

fn entry(agent: &Agent) -> Entry<'_> {
    Entry {
        name: &agent.name,
        host: &agent.host,
        labels: &agent.labels,
        cores: agent.cores,
        busy: agent.busy,
        usable: agent.version == version(),
        release: &agent.version,
        allowed_targets: &agent.targets,
        serves: agent.serves.map(|address| address.ip()),
    }
}

fn text(fleet: &str, agents: &[Entry<'_>]) -> String {
    if agents.is_empty() {
        return format!(
            "no agent of the fleet {fleet} has answered: start one with standfast agent --name NAME\n"
        );
    }
    let widest = agents.iter().map(|agent| agent.name.len()).max().unwrap_or(0).max(5);
    let hosts = agents.iter().map(|agent| agent.host.chars().count());
    let host_widest = hosts.max().unwrap_or(0).clamp(4, 24);
    let mut text = format!(
        "{:widest$}  {:host_widest$}  cores  state    labels, targets beside loopback\n",
        "agent", "host"
    );
    for agent in agents {
        let state = match (agent.usable, agent.busy) {
            (false, _) => "other",
            (true, true) => "busy",
            (true, false) => "free",
        };
        let list = |texts: &[String]| match texts {
            [] => "-".to_owned(),
            texts => texts.join(" "),
        };
        let (name, host, cores) = (agent.name, agent.host, agent.cores);
        let labels = list(agent.labels);
        let targets = match agent.serves {
            Some(ip) => format!("serves on {ip}"),
            None => list(agent.allowed_targets),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{name:widest$}  {host:host_widest$.24}  {cores:>5}  {state:<7}  {labels}, {targets}"
        );
    }
    let others: Vec<String> = agents
        .iter()
        .filter(|agent| !agent.usable)
        .map(|agent| format!("{} has {}", agent.name, agent.release))
        .collect();
    if !others.is_empty() {
        let _ = writeln!(
            text,
            "other release than this one, {}: {}: install the same on all machines, then run standfast fleet upgrade",
            version(),
            others.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_other_releases_are_named() {
        let labels = ["zone=a".to_owned()];
        let entry = |name, usable, release| Entry {
            name,
            host: "h",
            labels: &labels,
            cores: 2,
            busy: false,
            usable,
            release,
            allowed_targets: &[],
            serves: None,
        };
        let text = text("f", &[entry("one", true, "1"), entry("second", false, "0")]);
        assert!(text.contains("one     h         2  free     zone=a, -\n"), "{text}");
        assert!(text.contains("second has 0"), "{text}");
        assert!(super::text("f", &[]).contains("standfast agent --name"));
    }
}
