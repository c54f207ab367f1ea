//! What `fleet list`, `fleet doctor` and `fleet upgrade` have in common: they ask agents and print the answers.

use std::time::Duration;

use anyhow::{Result, bail};
use engine::sys::process::now_ns;
use serde::Serialize;

use super::leader::{LOOK_FOR, Leader, Waited};
use super::member::Agent;
use super::message::{Says, ToAgent};
use super::{FleetFlags, REPEAT};
use crate::output;

/// How long the answers of all agents are awaited.
const ANSWERS: Duration = Duration::from_secs(10);

#[derive(clap::Args, Debug)]
pub(super) struct QueryFlags {
    /// Write the answers as JSON to FILE, or to standard output with -
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    #[command(flatten)]
    pub(super) fleet: FleetFlags,
}

impl QueryFlags {
    /// Writes the document, and the text unless the document went to standard output.
    pub(super) fn print(&self, document: &impl Serialize, text: &str) -> Result<()> {
        match self.json.as_deref() {
            Some(output::STDOUT) => output::write_json(output::STDOUT, document),
            file => {
                file.map_or(Ok(()), |file| output::write_json(file, document))?;
                output::print(text)
            }
        }
    }
}

/// The agents of `who`, also busy ones; `None` after Ctrl-C.
///
/// # Errors
/// There are none, or fewer than asked for, or several of one name.
pub(super) fn find(leader: &mut Leader<'_>, who: &str) -> Result<Option<Vec<Agent>>> {
    let (mut agents, waited) = leader.find(who, LOOK_FOR)?;
    if waited == Waited::Interrupted {
        return Ok(None);
    }
    if !leader.namesakes.is_empty() {
        bail!("{}", leader.namesakes.join("\n  "));
    }
    if let Ok(wanted) = who.parse::<usize>() {
        if agents.len() < wanted {
            bail!("{} of {wanted} agents have answered: start others", agents.len());
        }
        agents.truncate(wanted);
    }
    if agents.is_empty() {
        bail!("no agent has answered: start one with standfast agent --name NAME");
    }
    Ok(Some(agents))
}

/// Asks each agent until it has answered, or for ten seconds. Other messages are no answer.
pub(super) fn ask<T>(
    leader: &mut Leader<'_>,
    agents: &[Agent],
    question: impl Fn(usize) -> ToAgent,
    answer_of: impl Fn(Says) -> Option<T>,
) -> Vec<Option<T>> {
    let mut answers: Vec<Option<T>> = agents.iter().map(|_| None).collect();
    let until_ns = now_ns() + ANSWERS.as_nanos() as u64;
    let mut asked_ns = 0;
    while now_ns() < until_ns && answers.iter().any(Option::is_none) && !leader.is_interrupted() {
        if now_ns() > asked_ns + REPEAT.as_nanos() as u64 {
            asked_ns = now_ns();
            for (at, (agent, answer)) in agents.iter().zip(&answers).enumerate() {
                if answer.is_none() {
                    leader.send(agent, &question(at), &[]);
                }
            }
        }
        let Some(message) = leader.next(Duration::from_millis(20)) else { continue };
        let Some(at) = agents.iter().position(|agent| agent.is(&message)) else { continue };
        if let Some(answer) = answers.get_mut(at).filter(|answer| answer.is_none()) {
            *answer = answer_of(message.says);
        }
    }
    answers
}
