//! Runs a scenario, from the file to the exit code: each round is a run of requests by [`Users`].

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use capacity::Machine;
use clap::ArgMatches;
use engine::sys::process;
use load::Row;
use load::requests::{Http1, Pace, Web, drive_requests};
use load::scenario::{Clock, GroupSummary, Tallies, Users};

use super::file::{Experiment, Overrides, Round};
use super::page;
use super::report::{self, Document, RoundResult};
use crate::commands::load::csv::Csv;
use crate::commands::load::destinations::warn_unresolved;
use crate::commands::load::flags::Args;
use crate::commands::load::metrics::Metrics;
use crate::commands::load::observers::{Observed, Observers};
use crate::commands::load::requests;
use crate::commands::load::run_config;
use crate::commands::load::screen::Screen;
use crate::commands::load::threshold::Threshold;
use crate::output;
use crate::progress::{Sample, Series};

/// Runs the command. Exit code 0: all was answered, or the thresholds were met; 1: it fell short.
///
/// # Errors
/// Invalid flags or an invalid file: exit code 2.
pub(in crate::commands::load) fn run(
    args: &Args,
    flags: &ArgMatches,
    mut interrupted: impl FnMut(Duration) -> bool,
) -> Result<ExitCode> {
    super::check(flags)?;
    let name = args.urls.first().map(String::as_str).unwrap_or_default();
    let is_given = |id| flags.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    let overrides = Overrides {
        target: args.target.clone(),
        users: is_given("connections").then_some(args.connections),
        duration: args.duration,
        warm_up: is_given("warm_up").then_some(args.requests.warm_up),
    };
    let (text, folder) = super::text(name)?;
    if let Some((args, flags)) = super::sockets::read(&text, name, flags)? {
        return crate::commands::load::run(&args, &flags);
    }
    let experiment = Experiment::parse(&text, name, &folder, &overrides)?;
    let thresholds: Vec<&Threshold> = experiment.thresholds.iter().chain(&args.threshold).collect();
    let clock = clock();
    // Without a seed in the file each run gets a different one.
    let seed = experiment.seed.unwrap_or(clock.now_ns ^ clock.now_ms << 20);
    if let Some(round) = experiment.rounds.first() {
        warn_unresolved(&round.requests.endpoints, "requests");
    }
    let machine = Machine::read();
    // The samples of all rounds in sequence, for the HTML report.
    let mut whole = Series::new();
    let mut csv = args.csv.as_deref().map(Csv::create).transpose()?;
    let metrics = Metrics::start(args)?;
    let metrics = metrics.as_ref();
    let mut document = Document::new(name, &experiment, seed);
    for round in &experiment.rounds {
        let run = RoundRun { args, name, round, thresholds: &thresholds, seed, clock, metrics };
        let result = run.run(&mut csv, &mut whole, &mut interrupted)?;
        let is_last = result.interrupted;
        document.rounds.push(result);
        if is_last {
            break;
        }
    }
    csv.map_or(Ok(()), Csv::finish)?;
    output::report(args.json.as_deref(), &document.to_string(), &document)?;
    if let Some(file) = &args.html {
        page::report(&experiment, &document, &whole, &machine).write(file)?;
    }
    let interrupted = document.rounds.iter().any(|result| result.interrupted);
    let short = document.rounds.iter().any(RoundResult::fell_short);
    Ok(if interrupted { ExitCode::from(130) } else { ExitCode::from(u8::from(short)) })
}

/// Reads the clocks, for `{{now_ms}}` and the expiry of cookies.
fn clock() -> Clock {
    // Measurements use the engine's clock; the time of day only appears in requests.
    #[allow(clippy::disallowed_methods, reason = "only the system knows the time of day")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Clock { now_ns: process::now_ns(), now_ms: now.as_millis() as u64 }
}

/// One round and what it needs to run.
struct RoundRun<'a> {
    args: &'a Args,
    name: &'a str,
    round: &'a Round,
    thresholds: &'a [&'a Threshold],
    seed: u64,
    clock: Clock,
    metrics: Option<&'a Metrics>,
}

impl RoundRun<'_> {
    fn run(
        &self,
        csv: &mut Option<Csv>,
        whole: &mut Series,
        interrupted: impl FnMut(Duration) -> bool,
    ) -> Result<RoundResult> {
        let RoundRun { args, round, seed, clock, metrics, .. } = *self;
        let machine = Machine::read();
        let shown = [self.name.to_owned()];
        let mut config = round.requests.clone();
        config.force = args.force;
        let screen = |before| Screen::of_requests(&config, &shown, args.plain, before);
        let files = (csv.as_mut(), metrics);
        let mut observers = Observers::begin(args, &machine, files, screen)?;
        let before_seconds = whole.samples().last().map_or(0.0, |last| last.elapsed_seconds);
        let row = |row: &Row| {
            let sample = observers.row(row);
            let elapsed_seconds = before_seconds + sample.elapsed_seconds;
            whole.push(&Sample { elapsed_seconds, ..sample });
        };
        let scenario = Arc::clone(&round.scenario);
        let tallies = Tallies::new(&scenario, config.connections, metrics.is_some());
        // Earlier rounds have used rows of the same feeds.
        scenario.begin();
        metrics.iter().for_each(|metrics| metrics.round(&tallies, &scenario));
        let own = tallies.clone();
        let script = move |part| Users::new(Arc::clone(&scenario), part, own.clone(), seed, clock);
        let has_sockets = round.scenario.has_sockets();
        let compress_above = round.scenario.compress_above;
        let web = move || Web::new().compressing(compress_above);
        let ended = match has_sockets {
            true => drive_requests(&config, web, script, row, interrupted)?,
            false => drive_requests(&config, Http1::new, script, row, interrupted)?,
        };
        let Observed { mut generator, mut watched, samples } = observers.end();
        let summary = ended.summary;
        let rate = match config.pace {
            Pace::Rate(rate) => Some(rate as f64),
            _ => None,
        };
        generator.finish_requests(&summary, requests::is_open(&config));
        if let Some(watched) = &mut watched {
            watched.finish(samples.most_open(), summary.requests.answered);
        }
        let groups = tallies.groups();
        let figure = |metric| {
            let of_groups = groups.as_ref().and_then(|groups| report::of_groups(metric, groups));
            of_groups.unwrap_or_else(|| requests::figure(metric, &summary))
        };
        let outcomes: Vec<_> = self.thresholds.iter().map(|t| t.judge(figure)).collect();
        let mut reasons = summary.reasons();
        reasons.extend(groups.iter().flat_map(GroupSummary::reasons));
        if generator.missed_the_rate() {
            reasons.push("the requested rate was not reached on time".to_owned());
        }
        let hosts = config.endpoints.iter().map(|endpoint| endpoint.origin());
        let hosts: Vec<String> = hosts.collect();
        Ok(RoundResult {
            users: config.connections,
            rate,
            passes: round.scenario.passes,
            config: run_config::RunConfig::of_requests(&hosts, &config),
            keep_alive: !config.new_connections,
            beside: round.beside,
            held: reasons.is_empty(),
            reasons,
            flows: tallies.summary(&round.scenario),
            sockets: has_sockets.then(|| tallies.sockets()),
            groups,
            thresholds: outcomes,
            generator,
            watched,
            summary,
            interrupted: ended.interrupted,
            samples,
        })
    }
}
