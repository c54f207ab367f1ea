//! `standfast load`: flags to a [`Config`], rows and a summary to people, an exit code.

mod cable;
mod config;
mod flags;
mod page;
mod screen;
mod threshold;
mod urls;
mod watch;

use std::io::{self, BufReader, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use engine::sys::process::{self, Signal};
use host::Machine;
use load::{Config, Ended, Row, Summary};
use serde::Serialize;

pub(crate) use self::flags::{Args, connect, connect_as_said};
use self::screen::Screen;
use self::threshold::Outcome;
use self::watch::{Generator, Watched};
use crate::output;
use crate::progress::Series;

/// Runs the command. 0: all held; 1: something fell short; 130: interrupted.
///
/// # Errors
/// What cannot be used or is not allowed here: exit code 2.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = config::config(args)?;
    for file in [&args.json, &args.html].into_iter().flatten() {
        output::check_writable(file)?;
    }
    let interrupted =
        |wait| matches!(process::wait_signal(wait), Some(Signal::Interrupt | Signal::Terminate));
    let ended = if args.control {
        process::end_with_parent();
        let input = BufReader::new(io::stdin());
        load::control::obey(&config, input, io::stdout(), || interrupted(Duration::ZERO))?
    } else {
        return measure(args, &config, interrupted);
    };
    Ok(match ended {
        Ended { interrupted: true, .. } => ExitCode::from(130),
        Ended { summary, .. } => ExitCode::from(u8::from(!summary.held)),
    })
}

/// What a run says of itself beside its summary: `--json`.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    generator: &'a Generator,
    watched: Option<&'a Watched>,
    thresholds: &'a [Outcome],
}

fn measure(
    args: &Args,
    config: &Config,
    interrupted: impl FnMut(Duration) -> bool,
) -> Result<ExitCode> {
    let machine = Machine::read();
    let mut watched = args.watch_pid.map(Watched::begin).transpose().map_err(anyhow::Error::msg)?;
    let mut generator = Generator::new(machine.cores);
    let before = watched.as_mut().and_then(Watched::look);
    let mut screen = Screen::new(config, &args.urls, args.plain, before);
    let mut series = Series::new();
    let row = |row: &Row| {
        let usage = watched.as_mut().and_then(|watched| watched.look_during(row));
        let sample = screen.row(row, usage);
        generator.row(row, sample.client);
        series.push(&sample);
    };
    let mut ended = load::drive(config, row, interrupted)?;
    drop(screen);
    generator.finish(&ended.summary, asked_rate(config), sending_seconds(config));
    if let Some(watched) = &mut watched {
        watched.finish(&ended.summary);
    }
    if generator.missed_the_rate() {
        // What was measured is another rate than the one asked for.
        ended.summary.held = false;
        ended.summary.reasons.push("the rate asked for was not reached in time".to_owned());
    }
    let rate = generator.messages_per_second();
    let outcomes: Vec<Outcome> =
        args.threshold.iter().map(|threshold| threshold.judge(&ended.summary, rate)).collect();
    let (generator, thresholds) = (&generator, &outcomes[..]);
    let document =
        Document { summary: &ended.summary, generator, watched: watched.as_ref(), thresholds };
    report(args.json.as_deref(), &document)?;
    if let Some(file) = &args.html {
        let (asked, came) = ((&args.urls[..], config), (&document, ended.interrupted));
        page::report(asked, came, &series, &machine).write(file)?;
    }
    let missed = outcomes.iter().any(|outcome| !outcome.met);
    let short = match outcomes.as_slice() {
        [] => !ended.summary.held,
        _ => missed || generator.missed_the_rate(),
    };
    Ok(if ended.interrupted { ExitCode::from(130) } else { ExitCode::from(u8::from(short)) })
}

/// Messages per second of an open model.
fn asked_rate(config: &Config) -> Option<f64> {
    let fanout = config.fanout.as_ref().map(|fanout| fanout.rate);
    fanout.or(config.echo.as_ref().and_then(|echo| echo.rate)).map(|rate| rate as f64)
}

/// How long messages are due, where that was said.
fn sending_seconds(config: &Config) -> Option<f64> {
    let echo = config.echo.as_ref()?;
    echo.duration.filter(|_| echo.messages.is_none()).map(|time| time.as_secs_f64())
}

/// The summary: text to standard output, unless JSON is to go there.
fn report(json: Option<&str>, document: &Document<'_>) -> Result<()> {
    let mut text = document.summary.to_string();
    text += &document.generator.to_string();
    text += &document.watched.map(Watched::to_string).unwrap_or_default();
    document.thresholds.iter().for_each(|outcome| text += &outcome.to_string());
    match json {
        Some(output::STDOUT) => {
            let _ = io::stderr().write_all(text.as_bytes());
        }
        _ => output::print(&text)?,
    }
    json.map_or(Ok(()), |file| output::write_json(file, document))
}
