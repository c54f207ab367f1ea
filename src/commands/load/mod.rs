//! `standfast load`: flags and scenario files in, an [`Outcome`] out. [`measure`] runs and reports every
//! kind of run; what differs is how flags become a run of WebSockets ([`config`]), of requests
//! ([`requests`]) or of a scenario ([`scenario`]).

mod cable;
mod compare;
mod config;
mod convert;
mod destinations;
mod flags;
mod from_curl;
mod grpc;
mod measure;
mod merge;
mod modes;
mod observers;
mod requests;
mod scenario;
mod screen;
mod settings;
pub(crate) mod share;
mod split;
mod threshold;
mod urls;

use std::io::{self, BufReader};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::ArgMatches;
use engine::sys::process::{self, Signal};
use load::control::Lines;
use load::requests::AnswerChecks;
use load::{Config, Outcome, Publish, RunConfig, Threshold, Verdict};

pub(crate) use self::destinations::warn_unresolved;
use self::flags::Command;
pub(crate) use self::flags::{Args, connect, connect_flag, header};
pub(super) use self::grpc::{SchemaFlags, Target, schema};
use self::measure::Files;
pub(super) use self::requests::call_head;
pub(crate) use self::scenario::clock;
use self::screen::Screen;
pub(crate) use self::screen::line as row_line;
use self::share::Share;
use crate::commands::fleet::fixtures::Fixtures;
use crate::output;

/// Runs the command. Exit code 0: all held, or the thresholds were met; 1: something fell short; 130:
/// interrupted.
///
/// # Errors
/// Invalid flags or an unsuitable environment: exit code 2.
pub(crate) fn run(args: &Args, flags: &ArgMatches) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Compare(args)) => return compare::run(args),
        Some(Command::FromCurl(args)) => return from_curl::run(args),
        Some(Command::FromHar(args)) => return convert::from_har::run(args),
        Some(Command::FromK6(args)) => return convert::from_k6::run(args),
        Some(Command::GrpcList(args)) => return grpc::list::run(args),
        Some(Command::Merge(args)) => return merge::run(args),
        Some(Command::Init(args)) => return scenario::init(args),
        None => {}
    }
    if args.agent_share.is_some() {
        Share::check(args)?;
    }
    for file in [&args.json, &args.html, &args.csv].into_iter().flatten() {
        output::check_writable(file)?;
    }
    let interrupted = |wait| match &args.agent_share {
        Some(share) => share.stopped(wait),
        None => matches!(process::wait_signal(wait), Some(Signal::Interrupt | Signal::Terminate)),
    };
    let mode = modes::of(args);
    if mode != modes::SCENARIO {
        destinations::check_first(&args.urls)?;
    }
    modes::check(flags, mode)?;
    if mode == modes::SCENARIO {
        return scenario::run(args, flags, interrupted);
    }
    args.agent_share.as_ref().map_or(Ok(()), Share::begin)?;
    if args.requests.check.is_empty() {
        threshold::check_whole(&args.threshold).map_err(anyhow::Error::msg)?;
    }
    if requests::is_meant(&args.urls) {
        let mut plan = requests::plan(args)?;
        if args.agents.is_some() {
            let config = plan.config(&args.urls);
            let thresholds: Vec<&Threshold> = args.threshold.iter().collect();
            let seed = scenario::clock().now_ms;
            let run = split::Run::Requests(&plan.requests, Fixtures::default());
            return split::lead(args, run, &args.urls, config, &thresholds, seed);
        }
        if let Some(share) = &args.agent_share {
            share.apply(&mut plan.requests)?;
            plan.seed = Some(share.seed());
        }
        warn_unresolved(&plan.requests.endpoints, "requests");
        let screen = |before| Screen::of_requests(&plan.requests, &args.urls, args.plain, before);
        return one(args, screen, plan.checks(), |row| {
            let mut outcome = plan.drive(row, interrupted)?;
            outcome.config = plan.config(&args.urls);
            Ok(outcome)
        });
    }
    let mut config = config::config(args)?;
    let of_sockets = |config: &Config| RunConfig {
        settings: settings::of_sockets(config),
        ..RunConfig::of_sockets(&args.urls, config)
    };
    if args.agents.is_some() {
        let thresholds: Vec<&Threshold> = args.threshold.iter().collect();
        let (run, whole) = (split::Run::Sockets(&config), of_sockets(&config));
        return split::lead(args, run, &args.urls, whole, &thresholds, 0);
    }
    if let Some(share) = &args.agent_share {
        config = share.part(&config)?;
    }
    warn_unresolved(&config.endpoints, "connections");
    if let Some(Publish::Http(http)) = config.fanout.as_ref().map(|fanout| &fanout.publish) {
        warn_unresolved(std::slice::from_ref(&http.endpoint), "publications");
    }
    if args.control {
        return match &args.agent_share {
            Some(share) => share.obey(&config),
            None => controlled(&config, || interrupted(Duration::ZERO)),
        };
    }
    let screen = |before| Screen::of_sockets(&config, &args.urls, args.plain, before);
    one(args, screen, None, |row| {
        let mut outcome = load::drive(&config, row, interrupted)?;
        outcome.config = of_sockets(&config);
        Ok(outcome)
    })
}

/// Measures and reports a single run.
fn one<'a>(
    args: &Args,
    screen: impl FnOnce(Option<load::Usage>) -> Screen<'a>,
    checks: Option<&AnswerChecks>,
    drive: impl FnOnce(&mut dyn FnMut(&load::Row)) -> Result<Outcome>,
) -> Result<ExitCode> {
    let mut files = Files::open(args)?;
    if let Some((metrics, (tallies, steps))) =
        files.metrics.as_ref().zip(checks.and_then(AnswerChecks::steps))
    {
        metrics.round(tallies, steps);
    }
    let thresholds: Vec<&Threshold> = args.threshold.iter().collect();
    let outcome = measure::measure(args, &mut files, screen, &thresholds, drive)?;
    let text = outcome.text(output::bars(args.json.as_deref())).to_string();
    let outcomes = std::slice::from_ref(&outcome);
    measure::report(args, files, &text, &outcome, (outcomes, &outcome.samples), Vec::new())
}

/// Runs under the commands of another process.
fn controlled(config: &Config, interrupted: impl FnMut() -> bool) -> Result<ExitCode> {
    process::end_with_parent();
    let input = BufReader::new(io::stdin());
    let output = Lines(io::stdout());
    let outcome = load::control::run_commands(config, input, output, interrupted)?;
    Ok(ExitCode::from(Verdict::of(&outcome).exit_code()))
}
