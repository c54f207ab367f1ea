//! `standfast fleet upgrade`: agents execute anew the file that they were started from, if it is of another
//! release. Nothing that can be executed is sent.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use engine::sys::process::now_ns;
use serde::Serialize;

use super::leader::{LOOK_FOR, Leader};
use super::member::{Agent, Purpose};
use super::message::{HOST_CHARS_MAX, Says, TEXT_CHARS_MAX, ToAgent, Upgrade, one_line};
use super::query::{self, QueryFlags};

/// How long agents that execute another file are awaited.
const BACK: Duration = Duration::from_secs(30);

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Agents: their number, `all`, or a label as KEY=VALUE
    #[arg(value_name = "WHO", default_value = "all", value_parser = super::who)]
    who: String,
    #[command(flatten)]
    query: QueryFlags,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document {
    version: u32,
    /// No agent failed; those that are busy follow after their run.
    succeeded: bool,
    agents: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    /// The release that it had.
    from: String,
    /// The release that it has now; null if it is the same.
    to: Option<String>,
    result: Found,
    /// Null if it is upgraded.
    reason: Option<String>,
}

#[derive(Copy, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Found {
    Upgraded,
    Same,
    Later,
    Failed,
}

/// Runs the command. Exit code 1: an agent failed.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let mut leader = Leader::new(&args.query.fleet, Purpose::Any)?;
    let Some(agents) = query::find(&mut leader, &args.who)? else {
        return Ok(ExitCode::from(130));
    };
    let question = ToAgent::Upgrade { leader: leader.id().to_owned() };
    let answers = query::ask(
        &mut leader,
        &agents,
        |_| question.clone(),
        |says| match says {
            Says::Upgrade(answer) => Some(answer),
            _ => None,
        },
    );
    let is_away = |answer: &Option<Upgrade>| matches!(answer, Some(Upgrade::Now { .. }));
    let away = agents.iter().zip(&answers).filter(|(_, answer)| is_away(answer));
    let away: Vec<&Agent> = away.map(|(agent, _)| agent).collect();
    let back = wait(&mut leader, &agents, &away)?;
    if leader.is_interrupted() {
        return Ok(ExitCode::from(130));
    }
    let entries = agents.iter().zip(answers).map(|(agent, answer)| {
        let now = back.iter().find(|one| one.name == agent.name && one.id != agent.id);
        entry(agent, answer, now)
    });
    let agents: Vec<Entry> = entries.collect();
    let succeeded = agents.iter().all(|agent| agent.result != Found::Failed);
    let document = Document { version: 1, succeeded, agents };
    args.query.print(&document, &text(&document))?;
    Ok(ExitCode::from(u8::from(!succeeded)))
}

/// The agents that have come back as another process, once all of these have.
fn wait(leader: &mut Leader<'_>, before: &[Agent], away: &[&Agent]) -> Result<Vec<Agent>> {
    let until_ns = now_ns() + BACK.as_nanos() as u64;
    let mut back = Vec::new();
    let is_back = |back: &[Agent], agent: &Agent| {
        back.iter().any(|one| one.name == agent.name && one.id != agent.id)
    };
    while !away.iter().all(|agent| is_back(&back, agent)) && now_ns() < until_ns {
        if leader.is_interrupted() {
            break;
        }
        back = leader.find("all", LOOK_FOR)?.0;
        // Another agent of that name is not the one that went.
        back.retain(|one| before.iter().all(|known| known.id != one.id));
    }
    Ok(back)
}

fn release(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

fn entry(agent: &Agent, answer: Option<Upgrade>, now: Option<&Agent>) -> Entry {
    let from = release(&agent.version).to_owned();
    let failed = |why: String| (None, Found::Failed, Some(why));
    let (to, result, reason) = match answer {
        Some(Upgrade::Now { to, .. }) => {
            let to = one_line(&to, HOST_CHARS_MAX);
            match now.map(|agent| release(&agent.version)) {
                Some(now) if now == to => (Some(to), Found::Upgraded, None),
                Some(now) => failed(format!("its file is of {to}, but it came back as {now}")),
                None => failed(format!(
                    "it did not come back as {to} within {} s: see its log",
                    BACK.as_secs()
                )),
            }
        }
        Some(Upgrade::Same { release }) => {
            let release = one_line(&release, HOST_CHARS_MAX);
            (None, Found::Same, Some(format!("its file is of {release}")))
        }
        Some(Upgrade::Later) => {
            (None, Found::Later, Some("busy: it looks at its file after the run".to_owned()))
        }
        Some(Upgrade::Failed { why }) => failed(one_line(&why, TEXT_CHARS_MAX)),
        None => failed(
            "no answer within 10 s: restart it, if its release does not know this command"
                .to_owned(),
        ),
    };
    Entry { name: agent.name.clone(), from, to, result, reason }
}

fn text(document: &Document) -> String {
    let agents = &document.agents;
    let widest = agents.iter().map(|agent| agent.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Entry { name, from, to, result, reason } in agents {
        let state = match result {
            Found::Upgraded => "ok",
            Found::Same => "same",
            Found::Later => "later",
            Found::Failed => "FAILED",
        };
        let what = match (to, reason) {
            (Some(to), _) => format!("{from} → {to}"),
            (None, Some(reason)) => format!("{from}: {reason}"),
            (None, None) => from.clone(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{state:<6}  {name:widest$}  {what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(id: &str, version: &str) -> Agent {
        Agent::example(id, "one", version, 0)
    }

    #[test]
    fn only_an_agent_that_came_back_is_upgraded() {
        let (before, after) = (agent("a", "1.0+7.2"), agent("b", "1.1+7.2"));
        let upgrade = |to: &str, now| {
            let answer = Upgrade::Now { from: "1.0".to_owned(), to: to.to_owned() };
            let entry = entry(&before, Some(answer), now);
            (entry.result, text(&Document { version: 1, succeeded: true, agents: vec![entry] }))
        };
        let (result, text) = upgrade("1.1", Some(&after));
        assert!(result == Found::Upgraded && text == "ok      one  1.0 → 1.1\n", "{text}");
        let (result, text) = upgrade("1.2", Some(&after));
        assert!(result == Found::Failed && text.contains("came back as 1.1"), "{text}");
        let (result, text) = upgrade("1.1", None);
        assert!(result == Found::Failed && text.contains("did not come back as 1.1"), "{text}");
        assert!(entry(&before, None, None).result == Found::Failed);
        let forged = Upgrade::Failed { why: "no\nok      two  1.0 → 1.1".to_owned() };
        let failed = entry(&before, Some(forged), None);
        let text = super::text(&Document { version: 1, succeeded: false, agents: vec![failed] });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(entry(&before, Some(Upgrade::Later), None).result == Found::Later);
    }
}
