//! [`lead`]: a run that agents share, from the command line to its exit code: planned here, run there, shown
//! and judged here as a whole.

use std::process::ExitCode;

use anyhow::{Result, bail};
use capacity::Machine;
use load::requests::{Generators, Requests};
use load::{Config, RunConfig, SampleSeries, SharedRows, Threshold, Verdict};

use super::flags::Args;
use super::measure::{self, Files};
use super::observers::Observers;
use super::scenario::after_teardown;
use super::screen::Screen;
use crate::commands::fleet::fixtures::{Fixtures, Teardown};
use crate::commands::fleet::leader::{Leader, Parts, Request, Waited};
use crate::commands::fleet::member::{Purpose, agent_row, usage};
use crate::commands::fleet::whole::Whole;
use crate::output;

/// Flags that the leader keeps for itself, with and without a value.
const OWN: [&str; 15] = [
    "--agents",
    "--agents-within",
    "--nats",
    "--nats-creds",
    "--nats-ca",
    "--fleet",
    "--files-max",
    "--json",
    "--json-max",
    "--html",
    "--csv",
    "--metrics",
    "--metrics-key",
    "--threshold",
    "--fail",
];
const OWN_SWITCHES: [&str; 1] = ["--plain"];

/// The run of all agents.
#[derive(Copy, Clone)]
pub(super) enum Run<'a> {
    /// With what is made before and after them.
    Requests(&'a Requests, Fixtures),
    Sockets(&'a Config),
}

impl Run<'_> {
    /// Users or sockets that share a connection are of one agent, and so are those that send to each other.
    fn parts(self) -> Parts {
        match self {
            Run::Requests(requests, _) if requests.group > 1 => {
                let (block, group) = (requests.streams.unwrap_or(1).max(1), requests.group);
                let count = requests.generators_max();
                let (name, one, remedy) = if group % block == 0 {
                    ("groups of users", "group of users", "users")
                } else if block % group == 0 {
                    (
                        "connections, each with its groups of users,",
                        "connection with its groups of users",
                        "users, or lower streams",
                    )
                } else {
                    (
                        "rows of users, each of whole groups and whole connections,",
                        "row of users, of whole groups and whole connections,",
                        "users, or make streams a multiple of the size of a group",
                    )
                };
                Parts { count, name: if count == 1 { one } else { name }, remedy }
            }
            Run::Requests(requests, _) => Parts::connections(requests.generators_max()),
            Run::Sockets(config) => {
                let block = config.streams.unwrap_or(1).max(1);
                Parts::connections(config.connections.div_ceil(block.into()))
            }
        }
    }
}

/// Runs the command.
///
/// # Errors
/// No NATS server, and all that is wrong with the agents; then no load was started.
pub(super) fn lead(
    args: &Args,
    run: Run<'_>,
    shown: &[String],
    config: RunConfig,
    thresholds: &[&Threshold],
    seed: u64,
) -> Result<ExitCode> {
    if args.watch_pid.is_some() {
        bail!("--watch-pid cannot be combined with --agents: the run is not of this machine");
    }
    if let Run::Sockets(config) = run {
        // Whether it can be shared at all.
        config.part(Generators { nth: 0, of: 1 }).map_err(anyhow::Error::msg)?;
    }
    let request = Request {
        who: args.agents.as_deref().unwrap_or_default(),
        flags: &args.fleet,
        within: args.agents_within,
        files_max: args.files.files_max,
        words: words(std::env::args().skip(2)),
        parts: run.parts(),
        seed,
        fixtures: match run {
            Run::Requests(_, fixtures) => fixtures,
            Run::Sockets(_) => Fixtures::default(),
        },
    };
    let mut files = Files::open(args)?;
    let mut leader = Leader::new(request.flags, Purpose::Loads)?;
    let interrupted = ExitCode::from(Verdict::Interrupted.exit_code());
    if leader.prepare(&request)? == Waited::Interrupted {
        output::note(&format!("interrupted: {}", leader.not_started()));
        return Ok(interrupted);
    }
    let screen = |before| match run {
        Run::Requests(requests, _) => Screen::of_requests(requests, shown, args.plain, before),
        Run::Sockets(config) => Screen::of_sockets(config, shown, args.plain, before),
    };
    let mut observers = Observers::begin(args, &Machine::read(), files.outputs(), screen)?;
    let mut rows = SharedRows::default();
    let Some(led) = leader.run(&mut |agents| {
        let row = rows.add(agents.iter().filter_map(|agent| agent.row.as_ref()));
        observers.fleet_row(&row, usage(agents), agents.iter().map(agent_row).collect());
    }) else {
        observers.end();
        output::note(&format!("interrupted: {}", leader.not_started()));
        return Ok(interrupted);
    };
    // The terminal is restored before anything is printed.
    observers.end();
    let whole = Whole::new(&led, &config, thresholds);
    let text = whole.text(output::bars(args.json.as_deref()));
    let outcomes = whole.outcome.as_slice();
    let none = SampleSeries::EMPTY;
    let samples = outcomes.first().map_or(&none, |outcome| &outcome.samples);
    let document = whole.document(args.json_max.unwrap_or(u64::MAX));
    let code =
        measure::report(args, files, &text, &document, (outcomes, samples), vec![whole.table()])?;
    let code = if led.interrupted { interrupted } else { code };
    let failed = led.teardown.as_ref().and_then(Teardown::failure);
    let name = shown.first().map(String::as_str).unwrap_or_default();
    Ok(after_teardown(code, name, failed.as_deref()))
}

/// The words for agents.
fn words(mut all: impl Iterator<Item = String>) -> Vec<String> {
    let mut words = Vec::new();
    while let Some(word) = all.next() {
        let (flag, value) = word.split_once('=').map_or((&*word, None), |(a, b)| (a, Some(b)));
        if OWN.contains(&flag) {
            if value.is_none() {
                all.next();
            }
        } else if !OWN_SWITCHES.contains(&&*word) {
            words.push(word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Args as _;

    use super::*;

    /// Results and the fleet are the leader's business; agents refuse these flags. Processes to watch are of one
    /// machine, so the leader refuses them, too.
    #[test]
    fn the_flags_of_the_leader_are_those_of_results_and_fleets() {
        let command = Args::augment_args(clap::Command::new("load"));
        let (mut with_value, mut switches) = (BTreeSet::new(), BTreeSet::new());
        for flag in command.get_arguments() {
            let heading = flag.get_help_heading();
            let is_of_leader = heading == Some(crate::commands::load::flags::RESULTS)
                || heading == Some(crate::commands::fleet::HEADING);
            if !is_of_leader || flag.get_id() == "watch_pid" {
                continue;
            }
            let aliases = flag.get_all_aliases().into_iter().flatten();
            for name in flag.get_long().into_iter().chain(aliases) {
                let takes_value = flag.get_action().takes_values();
                let set = if takes_value { &mut with_value } else { &mut switches };
                set.insert(format!("--{name}"));
            }
        }
        let own = |flags: &[&str]| flags.iter().map(|flag| (*flag).to_owned()).collect();
        assert_eq!((own(&OWN), own(&OWN_SWITCHES)), (with_value, switches));
    }

    #[test]
    fn parts_are_what_agents_cannot_split() {
        for (users, streams, group, count, name, remedy) in [
            (20, None, 5, 4, "groups of users", "users"),
            (5, None, 5, 1, "group of users", "users"),
            (12, Some(2), 4, 3, "groups of users", "users"),
            (12, Some(8), 4, 2, "connections, each ", "users, or lower streams"),
            (24, Some(6), 4, 2, "rows of users, each ", "multiple of the size"),
            (12, Some(6), 4, 1, "row of users, ", "multiple of the size"),
            (12, Some(6), 1, 2, "connections", "--connections"),
        ] {
            let requests = Requests { streams, group, ..Requests::new(Vec::new(), users) };
            let parts = Run::Requests(&requests, Fixtures::default()).parts();
            assert_eq!(parts.count, count, "{users} {streams:?} {group}");
            assert!(parts.name.starts_with(name), "{}", parts.name);
            assert!(parts.remedy.contains(remedy));
        }
        assert_eq!(Parts::connections(1).name, "connection");
    }

    #[test]
    fn agents_get_what_is_not_of_the_leader() {
        let line = "http://a/ --agents 2 -c 5 --json=x --nats nats://b --plain -d --fail=p99<1s";
        let words = super::words(line.split(' ').map(str::to_owned));
        assert_eq!(words, ["http://a/", "-c", "5", "-d"]);
    }
}
