//! Stress over HTTP: each user sends its requests one after another, each on a new connection or all on
//! one. [`drive`] does the same for calls of gRPC.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use capacity::Count;
use engine::sys::process;
use load::requests::{
    Answer, Driver, Failure, Http1, Http2, Pace, Part, Request, Requests, Script, Step, Times,
    Wants, drive_requests,
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
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
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
    let http2 = speaks_http2(args, &commands, &mut notes)?;
    let args = &Args { http2: Some(http2), ..args.clone() };
    let (endpoints, requests) = targets::render(args, &commands, &mut notes)?;
    crate::commands::load::warn_unresolved(&endpoints, "requests");
    let mut config = config(args, endpoints, &commands)?;
    config.streams = http2.then_some(1);
    notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    match http2 {
        true => drive(args, &config, requests, Http2::new, verify),
        false => drive(args, &config, requests, Http1::new, verify),
    }
}

/// Whether -http2 has an effect: go-stress-testing negotiates it in TLS only.
///
/// # Errors
/// URLs with and without TLS.
fn speaks_http2(args: &Args, commands: &[curl::Request], notes: &mut Vec<String>) -> Result<bool> {
    if !args.http2() {
        return Ok(false);
    }
    let urls = || commands.iter().map(|one| args.url.as_deref().unwrap_or(&one.url));
    let is_secure = |url: &str| url.get(..8).is_some_and(|s| s.eq_ignore_ascii_case("https://"));
    let secure = urls().filter(|url| is_secure(url)).count();
    if secure > 0 && secure < urls().count() {
        bail!("-http2: expected all URLs of -p with https://, found some with http://");
    }
    notes.push(match secure {
        0 => "-http2 has no effect over http://, as in go-stress-testing: HTTP/2 is negotiated in TLS; \
              standfast load --http2 speaks it without"
            .to_owned(),
        _ => "-http2: certificates are checked, as in go-stress-testing; SSL_CERT_FILE names authorities of \
              your own"
            .to_owned(),
    });
    Ok(secure > 0)
}

/// Runs requests of HTTP or calls of gRPC, whose answers `judge` decides about.
///
/// # Errors
/// The run cannot start.
pub(super) fn drive<D: Driver, J: Judge>(
    args: &Args,
    config: &Requests,
    requests: Vec<Request>,
    driver: impl Fn() -> D + Send + Sync + 'static,
    judge: J,
) -> Result<ExitCode> {
    let stats = LiveStats::default();
    let mut table = Table::new(args.users, stats.clone(), args.quiet());
    let (own, each, debug) = (stats.clone(), args.each, is_true(&args.debug));
    let each = if args.duration().is_some() { u64::MAX } else { each };
    let requests: Arc<[Request]> = requests.into();
    let script = move |part: Part| Users {
        requests: Arc::clone(&requests),
        users: vec![0; part.users as usize],
        each,
        judge: judge.clone(),
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
    let ended = drive_requests(config, driver, script, row, |time| wait.wait(time))?;
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

/// What decides about the answers of a run.
pub(super) trait Judge: Clone + Send + Sync + 'static {
    /// Whether it reads bodies.
    fn wants_body(&self) -> bool;

    /// Whether the result of a request is a success, and its code in the table.
    fn result(&self, answer: &Answer<'_>) -> (bool, u16);

    /// The time of a request: in go-stress-testing that of an answer is to its head, that of a failure until
    /// it is known.
    fn took_ns(&self, answer: &Answer<'_>) -> u64 {
        let Times { begun_ns, first_ns, done_ns, .. } = answer.times;
        let is_answer = answer.outcome.is_ok() && first_ns > 0;
        if is_answer { first_ns } else { done_ns }.saturating_sub(begun_ns)
    }

    /// The text of an answer for -d.
    fn text(&self, answer: &Answer<'_>) -> String {
        String::from_utf8_lossy(answer.body).into_owned()
    }
}

impl Judge for Check {
    fn wants_body(&self) -> bool {
        Check::wants_body(*self)
    }

    fn result(&self, answer: &Answer<'_>) -> (bool, u16) {
        answer.outcome.map_or((false, NO_ANSWER), |status| self.response(status, answer.body))
    }
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

pub(super) fn config(
    args: &Args,
    endpoints: Vec<Endpoint>,
    commands: &[curl::Request],
) -> Result<Requests> {
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
struct Users<J> {
    requests: Arc<[Request]>,
    /// Number of requests that each user has made.
    users: Vec<u64>,
    each: u64,
    judge: J,
    debug: bool,
    stats: WorkerStats,
}

impl<J: Judge> Script for Users<J> {
    fn next(&mut self, user: u32, _now_ns: u64) -> Step {
        let made = self.users.get(user as usize).copied().unwrap_or(u64::MAX);
        if made < self.each { Step::Send } else { Step::End }
    }

    fn request(&mut self, user: u32) -> &Request {
        let made = self.users.get(user as usize).copied().unwrap_or(0);
        &self.requests[(made % self.requests.len() as u64) as usize]
    }

    fn wants(&self, _user: u32) -> Wants {
        let whole = self.debug || self.judge.wants_body();
        if whole { Wants::Body(BODY_BYTES_MAX) } else { Wants::Nothing }
    }

    fn answered(&mut self, user: u32, answer: &Answer<'_>) -> Option<Failure> {
        if answer.outcome == Err(Failure::Unfinished) {
            return None;
        }
        let Some(made) = self.users.get_mut(user as usize) else {
            engine::invariant::broken("a user that got an answer is in the list");
            return None;
        };
        *made += 1;
        let is_first = *made == 1;
        let (is_ok, code) = self.judge.result(answer);
        self.stats.add(is_ok, code, answer.body_bytes, self.judge.took_ns(answer), is_first);
        if self.debug {
            let what = answer.outcome.map_or_else(|why| why.to_string(), |_| code.to_string());
            output::note(&format!("{what} {}", self.judge.text(answer)));
        }
        match answer.outcome {
            Ok(_) if !is_ok => {
                Some(if self.judge.wants_body() { Failure::Check } else { Failure::Status })
            }
            _ => None,
        }
    }
}
