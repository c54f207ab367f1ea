//! Runs a scenario, from the file to the exit code: each round is a run of requests by [`Users`].

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::ArgMatches;
use engine::sys::process;
use load::grpc::limits;
use load::requests::{GrpcWeb, Http1, Http2, Http2Grpc, Part, Requests, Web, drive_requests};
use load::scenario::{Clock, Scenario, Tallies, Users};
use load::{Metric, Outcome, Row, RunConfig, Sample, SampleSeries, StartError, Threshold, Verdict};

use super::file::{Experiment, Overrides, Round};
use super::fixtures::{self, Ended};
use super::report::Document;
use crate::commands::load::destinations::warn_unresolved;
use crate::commands::load::flags::Args;
use crate::commands::load::measure::{self, Files};
use crate::commands::load::screen::Screen;
use crate::commands::load::share::Share;
use crate::commands::load::{settings, split};
use crate::output;

/// Runs the command. Exit code 0: all was answered, or the thresholds were met; 1: it fell short.
///
/// # Errors
/// Invalid flags or an invalid file: exit code 2.
pub(in crate::commands::load) fn run(
    args: &Args,
    flags: &ArgMatches,
    mut interrupted: impl FnMut(Duration) -> bool,
) -> Result<ExitCode> {
    let name = args.urls.first().map(String::as_str).unwrap_or_default();
    let overrides = overrides(args, flags);
    let (text, folder) = super::text(name)?;
    if let Some((args, flags)) = super::sockets::read(&text, name, flags)? {
        return crate::commands::load::run(&args, &flags);
    }
    args.agent_share.as_ref().map_or(Ok(()), Share::begin)?;
    let mut experiment = Experiment::parse(&text, name, &folder, &overrides)?;
    let thresholds = experiment.thresholds.clone();
    let thresholds: Vec<&Threshold> = thresholds.iter().chain(&args.threshold).collect();
    check_selectors(&experiment, &thresholds)?;
    let clock = clock();
    // Without a seed in the file each run gets a different one.
    let seed = experiment.seed.unwrap_or(clock.now_ns ^ clock.now_ms << 20);
    let seed = args.agent_share.as_ref().map_or(seed, Share::seed);
    if args.agents.is_some() || args.agent_share.is_some() {
        check_divisible(&experiment, name)?;
    }
    if let ([round], true) = (experiment.rounds.as_slice(), args.agents.is_some()) {
        let about = experiment.about.as_ref();
        let run = RoundRun { args, name, about, round, thresholds: &thresholds, seed, clock };
        let config = run.config(&round.requests);
        let shown = [name.to_owned()];
        let run = split::Run::Requests(&round.requests, experiment.fixtures());
        return split::lead(args, run, &shown, config, &thresholds, seed);
    }
    if let Some(share) = &args.agent_share {
        for round in &mut experiment.rounds {
            share.apply(&mut round.requests)?;
        }
    }
    if let Some(round) = experiment.rounds.first() {
        warn_unresolved(&round.requests.endpoints, "requests");
    }
    // The samples of all rounds in sequence, for the HTML report.
    let mut whole = SampleSeries::new();
    let mut files = Files::open(args)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    let fixed = (seed, clock, args.force);
    let share = args.agent_share.as_ref();
    let made = match share.filter(|_| experiment.fixtures().setup.is_some()) {
        Some(share) => share.set_up(|| setup(&experiment, fixed, &mut interrupted)),
        None => setup(&experiment, fixed, &mut interrupted),
    };
    let captured = match made? {
        Ended::Completed(captured) => captured,
        Ended::Interrupted => {
            output::note("interrupted in [setup]: nothing was measured");
            return Ok(ExitCode::from(Verdict::Interrupted.exit_code()));
        }
        Ended::Failed(what) => {
            anyhow::bail!("{name}: [setup] failed, nothing was measured: {what}")
        }
    };
    for round in &mut experiment.rounds {
        Arc::make_mut(&mut round.scenario).captured = Arc::clone(&captured);
    }
    for round in &experiment.rounds {
        let about = experiment.about.as_ref();
        let run = RoundRun { args, name, about, round, thresholds: &thresholds, seed, clock };
        let result = run.run(&mut files, &mut interrupted);
        if let (Err(_), Some(share)) = (&result, share.filter(|share| share.is_to_tear_down())) {
            // The setup was made, and the run does not begin.
            share.tear_down(|| teardown(&experiment, fixed, &mut interrupted));
        }
        let outcome = result?;
        let before_seconds = whole.samples().last().map_or(0.0, |last| last.elapsed_seconds);
        for sample in outcome.samples.samples() {
            let elapsed_seconds = before_seconds + sample.elapsed_seconds;
            whole.push(&Sample { elapsed_seconds, ..sample.clone() });
        }
        let is_last = outcome.interrupted;
        outcomes.push(outcome);
        if is_last {
            break;
        }
    }
    let mut left = || teardown(&experiment, fixed, &mut interrupted);
    // The results of all generators come before the teardown of one.
    let failed = if share.is_some() { None } else { left()? };
    let document = Document::new(name, &experiment, seed, &outcomes);
    let text = document.text(output::bars(args.json.as_deref()));
    let code = measure::report(args, files, &text, &document, (&outcomes, &whole), Vec::new())?;
    if let Some(share) = share.filter(|_| experiment.fixtures().teardown.is_some()) {
        share.tear_down(left);
    }
    Ok(after_teardown(code, name, failed.as_deref()))
}

/// The exit code of a run and its teardown, which failed for this reason.
pub(in crate::commands::load) fn after_teardown(
    code: ExitCode,
    name: &str,
    failed: Option<&str>,
) -> ExitCode {
    let Some(what) = failed else { return code };
    output::note(&format!("standfast: {name}: [teardown] failed: {what}"));
    let fell_short = Verdict::FellShort.exit_code();
    if code == ExitCode::SUCCESS { ExitCode::from(fell_short) } else { code }
}

/// Makes the steps of `[setup]`.
fn setup(
    experiment: &Experiment,
    fixed: (u64, Clock, bool),
    interrupted: impl FnMut(Duration) -> bool,
) -> Result<Ended> {
    let round = experiment.rounds.first();
    let Some((round, flow)) = round.and_then(|round| Some((round, round.scenario.setup.as_ref()?)))
    else {
        return Ok(Ended::Completed(Arc::default()));
    };
    fixtures::make(flow, round, experiment.limits[0], fixed, interrupted)
}

/// Makes the steps of `[teardown]`, also after Ctrl-C; a second one ends it. Returns what went wrong.
fn teardown(
    experiment: &Experiment,
    fixed: (u64, Clock, bool),
    interrupted: impl FnMut(Duration) -> bool,
) -> Result<Option<String>> {
    let round = experiment.rounds.first();
    let Some((round, flow)) =
        round.and_then(|round| Some((round, round.scenario.teardown.as_ref()?)))
    else {
        return Ok(None);
    };
    Ok(match fixtures::make(flow, round, experiment.limits[1], fixed, interrupted)? {
        Ended::Completed(_) => None,
        Ended::Interrupted => Some("interrupted".to_owned()),
        Ended::Failed(what) => Some(what),
    })
}

/// Refuses scenarios that cannot be shared exactly by several generators.
fn check_divisible(experiment: &Experiment, name: &str) -> Result<()> {
    if experiment.has_rounds {
        anyhow::bail!(
            "{name}: [[rounds]] cannot be shared by several agents: run it without --agents"
        );
    }
    Ok(())
}

/// Refuses thresholds of steps, checks and tags that the scenario does not have.
fn check_selectors(experiment: &Experiment, thresholds: &[&Threshold]) -> Result<()> {
    let Some(round) = experiment.rounds.first() else { return Ok(()) };
    let flows = Tallies::default().summary(&round.scenario);
    for threshold in thresholds {
        let problem = threshold.selector.as_ref().filter(|selector| !selector.labels.is_empty());
        let problem = problem.and_then(|selector| selector.problem(&flows));
        if let Some(problem) = problem {
            anyhow::bail!("threshold {}: {problem}", threshold.text);
        }
        if threshold.metric == Metric::Checks
            && flows.iter().all(|flow| flow.steps.iter().all(|step| step.checks.is_empty()))
        {
            anyhow::bail!("threshold {}: the scenario has no checks", threshold.text);
        }
    }
    Ok(())
}

/// Returns what flags change in the file.
fn overrides(args: &Args, flags: &ArgMatches) -> Overrides {
    let is_given = |id| flags.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    Overrides {
        target: args.target.clone(),
        users: is_given("connections").then_some(args.connections),
        duration: args.duration,
        warm_up: is_given("warm_up").then_some(args.warm_up),
    }
}

/// Returns the configuration of the first round as text.
#[cfg(test)]
pub(in crate::commands::load) fn configured(args: &Args, flags: &ArgMatches) -> Result<String> {
    let name = args.urls.first().map(String::as_str).unwrap_or_default();
    let (text, folder) = super::text(name)?;
    let overrides = overrides(args, flags);
    let experiment = Experiment::parse(&text, name, &folder, &overrides)?;
    Ok(format!("{:?} {:?} {}", experiment.rounds, overrides, args.force))
}

/// Reads the clocks, for `{{now_ms}}` and the expiry of cookies.
pub(crate) fn clock() -> Clock {
    // Measurements use the engine's clock; the time of day only appears in requests.
    #[allow(clippy::disallowed_methods, reason = "only the system knows the time of day")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Clock { now_ns: process::now_ns(), now_ms: now.as_millis() as u64 }
}

/// One round and what it needs to run.
struct RoundRun<'a> {
    args: &'a Args,
    name: &'a str,
    about: Option<&'a String>,
    round: &'a Round,
    thresholds: &'a [&'a Threshold],
    seed: u64,
    clock: Clock,
}

/// Runs a scenario by the protocol that it needs.
///
/// # Errors
/// The machine does not suffice, or an error of the system.
pub(super) fn drive(
    config: &Requests,
    scenario: &Scenario,
    script: impl Fn(Part) -> Users + Send + Sync + 'static,
    row: impl FnMut(&Row),
    wait: impl FnMut(Duration) -> bool,
) -> Result<Outcome, StartError> {
    let compress_above = scenario.compress_above;
    let web = move || Web::new().compressing(compress_above);
    if scenario.has_sockets() {
        drive_requests(config, web, script, row, wait)
    } else if scenario.has_web_calls() {
        let driver = || GrpcWeb::beside_requests(limits::MESSAGE_BYTES);
        drive_requests(config, driver, script, row, wait)
    } else if scenario.has_calls() {
        let driver = || Http2Grpc::new(limits::MESSAGE_BYTES);
        drive_requests(config, driver, script, row, wait)
    } else if config.streams.is_some() {
        drive_requests(config, Http2::new, script, row, wait)
    } else {
        drive_requests(config, Http1::new, script, row, wait)
    }
}

/// Why the first message that did not fit its type was not sent.
fn misfit(scenario: &Scenario) -> Option<String> {
    scenario.steps.iter().find_map(|step| {
        let why = step.call.as_ref()?.messages.iter().find_map(|message| message.misfit())?;
        let name = &step.name;
        Some(format!(
            "{name}: {why}; such calls are not sent: capture a value that fits, or leave out the step by when"
        ))
    })
}

impl RoundRun<'_> {
    fn run(&self, files: &mut Files, interrupted: impl FnMut(Duration) -> bool) -> Result<Outcome> {
        let RoundRun { args, round, seed, clock, .. } = *self;
        let shown = [self.name.to_owned()];
        let mut config = round.requests.clone();
        config.force = args.force;
        let screen = |before| Screen::of_requests(&config, &shown, args.plain, before);
        let scenario = Arc::clone(&round.scenario);
        let tallies = Tallies::new(&scenario, &config, files.metrics.is_some());
        // Earlier rounds have used rows of the same feeds.
        scenario.begin(config.generators);
        files.metrics.iter().for_each(|metrics| metrics.round(&tallies, &scenario));
        let own = tallies.clone();
        let script = move |part| Users::new(Arc::clone(&scenario), part, own.clone(), seed, clock);
        measure::measure(args, files, screen, self.thresholds, |row| {
            let mut outcome = drive(&config, &round.scenario, script, row, interrupted)?;
            tallies.add_to(&round.scenario, &mut outcome);
            let selectors = self.thresholds.iter().filter_map(|one| one.selector.as_ref());
            let selectors: Vec<_> = selectors.collect();
            outcome.select(&selectors);
            outcome.config = self.config(&config);
            Ok(outcome)
        })
    }

    /// What is run.
    fn config(&self, requests: &Requests) -> RunConfig {
        let hosts = requests.endpoints.iter().map(|endpoint| endpoint.origin());
        let hosts: Vec<String> = hosts.collect();
        RunConfig {
            scenario: Some(self.name.to_owned()),
            about: self.about.cloned(),
            seed: Some(self.seed),
            passes: self.round.scenario.passes,
            beside: self.round.beside,
            message_error: misfit(&self.round.scenario),
            settings: settings::of_requests(requests),
            ..RunConfig::of_requests(&hosts, requests)
        }
    }
}
