//! Stress over HTTP: each user sends its requests one after another, each on a new connection or all on
//! one.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use capacity::Count;
use engine::sys::process;
use load::requests::{
    Answer, Failure, Http1, Pace, Part, Request, Requests, Script, Step, Times, Wants,
    drive_requests,
};
use load::stages::Stage;
use load::{Endpoint, Outcome, Row};

use super::flags::{Args, is_true};
use super::live_stats::{LiveStats, NO_ANSWER, WorkerStats};
use super::table::{Table, causes};
use super::verify::Check;
use super::{Document, Wait, code, since, targets, write};
use crate::curl::{self, Commands};
use crate::output;

/// Redirect limit of Go's HTTP client.
const REDIRECTS: u32 = 10;
/// Size limit of a body that is verified or printed, in bytes.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Length of the last stage of a run that ends when its requests are done.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// Default Content-Type, as in go-stress-testing.
const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";

pub(super) fn run(args: &Args, url: &str, commands: Option<Commands>) -> Result<ExitCode> {
    if args.clients > 0 || is_true(&args.issenders) {
        bail!("-clients and -issenders work only over ws:// and wss://, not with {url}");
    }
    let commands = match commands {
        Some(commands) => commands.requests,
        None => vec![plain(args, url)],
    };
    let mut notes = Vec::new();
    let verify = Check::of_responses(args.verify.as_deref(), args.good_code())?;
    let (endpoints, requests) = targets::render(args, &commands, &mut notes)?;
    crate::commands::load::warn_unresolved(&endpoints, "requests");
    let config = config(args, endpoints, &commands)?;
    notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    let stats = LiveStats::default();
    let mut table = Table::new(args.users, stats.clone(), args.quiet());
    let (own, each, debug) = (stats.clone(), args.each, is_true(&args.debug));
    let each = if args.duration().is_some() { u64::MAX } else { each };
    let requests: Arc<[Request]> = requests.into();
    let script = move |part: Part| Users {
        requests: Arc::clone(&requests),
        users: vec![0; part.users as usize],
        each,
        verify,
        debug,
        stats: own.worker(),
    };
    let mut wait = Wait::new(args);
    let began_ns = process::now_ns();
    let row = |row: &Row| {
        if !row.is_mark {
            table.second(row.elapsed);
        }
    };
    let ended = drive_requests(&config, Http1::new, script, row, |time| wait.wait(time))?;
    let seconds = ended.seconds.unwrap_or(0.0);
    let requests = ended.requests.unwrap_or_default();
    let elapsed = Duration::from_secs_f64(seconds).max(Duration::from_micros(1));
    let elapsed = if seconds > 0.0 { elapsed } else { since(began_ns) };
    // The cause first.
    let unreached = ended.unreached.iter().map(|why| format!("fell short: {why}"));
    let mut why: Vec<String> = unreached.collect();
    why.extend(causes("failed by", &failures(&ended)));
    if requests.unfinished > 0 {
        let count = Count(requests.unfinished);
        why.push(format!("not counted: {count} requests without an answer when the run ended"));
    }
    let stress = table.end(elapsed, ended.latency.as_ref(), &why);
    write(args, &Document { stress: &stress, run: &ended })?;
    Ok(code(stress.failed == 0 && stress.ok > 0, ended.interrupted && wait.by_user))
}

/// Returns the failures by cause, without the requests that the end of the run interrupted.
fn failures(summary: &Outcome) -> BTreeMap<String, u64> {
    let mut errors = summary.errors.clone();
    errors.remove(Failure::Unfinished.name());
    errors
}

/// Returns the request described by the flags.
fn plain(args: &Args, url: &str) -> curl::Request {
    let mut command = curl::Request::get(url);
    command.headers = super::headers(args);
    if let Some(data) = &args.data {
        command.method = "POST".to_owned();
        command.body = Some(data.clone().into_bytes());
    }
    let has = |name: &str| command.headers.iter().any(|(one, _)| one.eq_ignore_ascii_case(name));
    if !has("content-type") {
        command.headers.push(("Content-Type".to_owned(), FORM.to_owned()));
    }
    command
}

fn config(args: &Args, endpoints: Vec<Endpoint>, commands: &[curl::Request]) -> Result<Requests> {
    let mut config = Requests::new(endpoints, args.users);
    config.sources = targets::sources(commands)?;
    config.connect_timeout = commands.iter().filter_map(|one| one.connect_timeout).min();
    config.timeout =
        commands.iter().filter_map(|one| one.timeout).min().unwrap_or(args.request_timeout());
    config.new_connections = !args.keep();
    config.redirects = if args.redirect.unwrap_or(true) { REDIRECTS } else { 0 };
    config.duration = args.duration();
    // -timeout limits the whole run, without a grace period for open requests.
    config.stops_at_once = args.run_limit().is_some();
    // Users stop after their requests; this is the maximum.
    config.requests = args.duration().is_none().then(|| args.users.saturating_mul(args.each));
    if let Some(steps) = args.users.checked_div(args.step) {
        let time = Duration::from_secs(args.interval);
        let steps = (1..=steps).flat_map(|step| {
            let connections = step * args.step;
            [Stage { time: Duration::ZERO, connections }, Stage { time, connections }]
        });
        // All users keep running until their requests are done.
        let rest = Stage { time: LONGEST, connections: args.users };
        config.pace = Pace::Users(steps.chain([rest]).collect());
    }
    Ok(config)
}

/// The users of one worker.
struct Users {
    requests: Arc<[Request]>,
    /// Number of requests that each user has made.
    users: Vec<u64>,
    each: u64,
    verify: Check,
    debug: bool,
    stats: WorkerStats,
}

impl Script for Users {
    fn next(&mut self, user: u32, _now_ns: u64) -> Step {
        let made = self.users.get(user as usize).copied().unwrap_or(u64::MAX);
        if made < self.each { Step::Send } else { Step::End }
    }

    fn request(&mut self, user: u32) -> &Request {
        let made = self.users.get(user as usize).copied().unwrap_or(0);
        &self.requests[(made % self.requests.len() as u64) as usize]
    }

    fn wants(&self, _user: u32) -> Wants {
        let whole = self.debug || self.verify.wants_body();
        if whole { Wants::Body(BODY_BYTES_MAX) } else { Wants::Nothing }
    }

    fn answered(&mut self, user: u32, answer: &Answer<'_>) -> Option<Failure> {
        if answer.outcome == Err(Failure::Unfinished) {
            return None;
        }
        // As in go-stress-testing, an answer takes until its head, and a failure until it is known.
        let Times { begun_ns, first_ns, done_ns, .. } = answer.times;
        let is_answer = answer.outcome.is_ok() && first_ns > 0;
        let took_ns = if is_answer { first_ns } else { done_ns }.saturating_sub(begun_ns);
        let Some(made) = self.users.get_mut(user as usize) else {
            engine::invariant::broken("a user that got an answer is in the list");
            return None;
        };
        *made += 1;
        let is_first = *made == 1;
        let (is_ok, code) = match answer.outcome {
            Ok(status) => self.verify.response(status, answer.body),
            Err(_) => (false, NO_ANSWER),
        };
        self.stats.add(is_ok, code, answer.body_bytes, took_ns, is_first);
        if self.debug {
            let what =
                answer.outcome.map_or_else(|why| why.to_string(), |status| status.to_string());
            output::note(&format!("{what} {}", String::from_utf8_lossy(answer.body)));
        }
        match answer.outcome {
            Ok(_) if !is_ok => {
                Some(if self.verify.wants_body() { Failure::Check } else { Failure::Status })
            }
            _ => None,
        }
    }
}
