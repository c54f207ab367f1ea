//! A scenario with several rounds: one proof per round, then a table of all, for Action Cable clients
//! beside the figures of the reference experiment.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use capacity::{Count, Machine};
use load::Connect;
use serde::Serialize;

use super::Args;
use super::phases::Run;
use super::plan::{Plan, Round};
use super::result::{Proof, Spread};
use super::screen::Screen;
use crate::commands::load as load_command;
use crate::output;

/// Figures of the reference experiment (2024, on its own machine): the server with its processes and
/// threads; seconds for 10,000 connects one by one; milliseconds from the first receipt of a message
/// to the last.
const REFERENCE: [(&str, f64, f64); 8] = [
    ("Action Cable in the web process, 1 × 5 threads", 35.91, 981.0),
    ("Action Cable in the web process, 1 × 10 threads", 35.30, 1156.0),
    ("Action Cable in the web process, 2 × 5 threads", 39.34, 689.0),
    ("Action Cable standalone, 1 × 5 threads", 5.73, 747.0),
    ("Action Cable standalone, 1 × 10 threads", 6.97, 867.0),
    ("Action Cable standalone, 2 × 5 threads", 7.09, 424.0),
    ("AnyCable, RPC pool of 30", 50.05, 187.0),
    ("AnyCable, RPC pool of 60", 50.23, 153.0),
];

/// The JSON result of all rounds.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    scenario: Option<&'a str>,
    held: bool,
    rounds: Vec<RoundResult<'a>>,
}

#[derive(Serialize)]
struct RoundResult<'a> {
    connect: String,
    workers: u16,
    proof: &'a Proof,
}

/// Runs every round. Exit code 0 if all held.
///
/// # Errors
/// A round that could not start.
pub(super) fn run(
    args: &Args,
    plan: &Plan,
    connections: u64,
    machine: &Machine,
) -> Result<ExitCode> {
    let json_to_stdout = args.json.as_deref() == Some(output::STDOUT);
    let mut proofs: Vec<(Round, Proof)> = Vec::new();
    for (at, &round) in plan.rounds.iter().enumerate() {
        let mut screen = Screen::new(args.plain, json_to_stdout);
        let (number, all) = (at + 1, plan.rounds.len());
        screen.note(&format!("round {number} of {all}: {}", title(round)));
        let plan = plan.round(round);
        let Some(run) = Run::start(connections, &plan, &mut screen, (None, None))? else { break };
        let measured = run.measure();
        let proof = Proof::judge(measured, machine, &plan);
        screen.verdict(&proof);
        let interrupted = proof.interrupted;
        proofs.push((round, proof));
        if interrupted {
            break;
        }
    }
    let text = table(plan, connections, &proofs);
    match json_to_stdout {
        true => output::print_to_stderr(&text),
        false => output::print(&text)?,
    }
    let held = proofs.iter().all(|(_, proof)| proof.held());
    if let Some(file) = &args.json {
        let round = |(round, proof)| {
            let Round { connect, workers } = round;
            RoundResult { connect: load_command::connect_flag(connect), workers, proof }
        };
        let rounds = proofs.iter().map(|(one, proof)| round((*one, proof))).collect();
        let scenario = plan.scenario.as_deref();
        output::write_json(file, &Document { version: 1, scenario, held, rounds })?;
    }
    let interrupted = proofs.iter().any(|(_, proof)| proof.interrupted);
    Ok(if interrupted { ExitCode::from(130) } else { ExitCode::from(u8::from(!held)) })
}

fn title(Round { connect, workers }: Round) -> String {
    let how = match connect {
        Connect::OneByOne => "one by one".to_owned(),
        Connect::Storm => "all at once".to_owned(),
        other => load_command::connect_flag(other),
    };
    let s = if workers == 1 { "" } else { "s" };
    format!("{how}, {workers} worker{s}")
}

fn table(plan: &Plan, connections: u64, proofs: &[(Round, Proof)]) -> String {
    let sockets = Count(connections).to_string();
    let mut text = format!("\n{sockets} clients, and a message to all of them\n\n");
    let mut line = |cells: [&str; 5]| {
        let [name, connected, last, spread, verdict] = cells;
        let row = format!("  {name:<48} {connected:>9} {last:>15} {spread:>14}  {verdict}");
        let _ = writeln!(text, "{}", row.trim_end());
    };
    line(["standfast", "connects", "publish → last", "first → last", ""]);
    let ms = |spread: Option<Spread>| spread.map_or("-".into(), |s| format!("{:.1} ms", s.p50_ms));
    for (round, proof) in proofs {
        let (seconds, b) = (proof.connections.seconds, proof.broadcast.as_ref());
        let connects = format!("{seconds:.2} s");
        let (last, spread) = (ms(b.and_then(|b| b.to_last)), ms(b.and_then(|b| b.first_to_last)));
        line([&title(*round), &connects, &last, &spread, proof.verdict]);
    }
    if plan.cable {
        line(["", "", "", "", ""]);
        line(["reference experiment, one by one", "connects", "", "first → last", ""]);
        for (server, seconds, milliseconds) in REFERENCE {
            let (connects, spread) = (format!("{seconds:.2} s"), format!("{milliseconds:.0} ms"));
            line([server, &connects, "not measured", &spread, ""]);
        }
        text += "\n  The reference figures are for 10,000 clients on another machine, with applications that authorise\n  \
                 subscriptions; here the streams are public. With all at once, AnyCable did not finish connecting.\n";
    }
    let broadcasts = plan.broadcasts;
    if broadcasts > 1 {
        let _ = writeln!(text, "  Times are medians of {broadcasts} messages.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_titles() {
        let round = |connect, workers| title(Round { connect, workers });
        assert_eq!(round(Connect::OneByOne, 1), "one by one, 1 worker");
        assert_eq!(round(Connect::Storm, 2), "all at once, 2 workers");
        assert_eq!(round(Connect::Paced(5), 2), "paced:5, 2 workers");
    }
}
