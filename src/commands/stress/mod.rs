//! `standfast stress`: go-stress-testing's command line, table and verifiers on the engine of `load`.
//! HTTP, gRPC and group chats run on [`load::requests::drive_requests`], other WebSockets on [`load::drive`],
//! and RADIUS on [`load::radius`].

mod calls;
mod chats;
mod flags;
mod kinds;
mod live_stats;
mod radius;
mod requests;
mod sockets;
mod table;
mod targets;
mod verify;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ArgMatches;
use engine::sys::process::{self, Signal};
use load::Endpoint;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

pub(crate) use self::flags::{Args, to_clap};
use self::live_stats::LiveStats;
use self::table::{Stress, Table, causes};
use crate::commands::load::row_line;
use crate::{curl, output, tls};

/// Note for TLS without certificate checks.
const UNCHECKED: &str = "certificates are not checked, as in go-stress-testing";

/// Runs the command. Exit code 0: every request succeeded; 1: some failed; 130: Ctrl-C.
///
/// # Errors
/// Invalid flags or an unsuitable environment: exit code 2.
pub(crate) fn run(args: &Args, flags: &ArgMatches) -> Result<ExitCode> {
    args.check()?;
    args.json.as_deref().map_or(Ok(()), output::check_writable)?;
    let commands = args.curl.as_deref().map(curl::read).transpose()?;
    for warning in commands.iter().flat_map(|commands| &commands.warnings) {
        output::note(&format!("standfast stress: {warning}"));
    }
    let of_file = || commands.as_ref()?.requests.first().map(|request| request.url.clone());
    let url = args.url.clone().or_else(of_file).context("missing URL: give -u URL or -p FILE")?;
    let url = if url.contains("://") { url } else { format!("http://{url}") };
    let scheme = url.split("://").next().unwrap_or_default().to_ascii_lowercase();
    use_cores(args.cores())?;
    let kind = match scheme.as_str() {
        "http" | "https" => kinds::HTTP,
        "ws" | "wss" => kinds::of_sockets(args, chats::is_group_chat(args)?),
        "grpc" | "grpcs" | "rpc" => kinds::CALLS,
        "radius" => kinds::RADIUS,
        scheme => {
            bail!("unknown scheme {scheme}://: expected http, https, ws, wss, grpc or radius")
        }
    };
    let notes = kinds::check(flags, kind)?;
    notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    match kind {
        kinds::HTTP => requests::run(args, &url, commands),
        kinds::CHATS => chats::run(args, &url),
        kinds::CALLS => calls::run(args, &url),
        kinds::RADIUS => radius::run(args, &url),
        _ => sockets(args, &url),
    }
}

fn sockets(args: &Args, url: &str) -> Result<ExitCode> {
    let stats = LiveStats::default();
    let plan = sockets::plan(args, url, &stats)?;
    plan.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    let mut table = Table::new(args.users, stats.clone(), args.quiet());
    let mut wait = Wait::new(args);
    let (to_all, began_ns) = (plan.to_all, process::now_ns());
    let rows = |row: &load::Row| {
        if row.is_mark {
            return;
        }
        if to_all {
            table.print(&format!("{}\n", row_line(row)));
        } else {
            table.second(row.elapsed);
        }
    };
    let ended = sockets::drive(&plan, &stats, rows, |time| wait.wait(time))?;
    let summary = &ended;
    let held = if to_all {
        table.print(&summary.text(output::bars(args.json.as_deref())).to_string());
        write(args, &summary)?;
        summary.held
    } else {
        let stress = table.end(since(began_ns), summary.latency.as_ref(), &why(summary));
        write(args, &Document { stress: &stress, run: summary })?;
        stress.failed == 0 && stress.ok > 0
    };
    Ok(code(held, ended.interrupted && wait.by_user))
}

/// Returns lines on why messages were not sent or not answered.
fn why(summary: &load::Outcome) -> Vec<String> {
    let failed = causes("connects failed by", &summary.connect_errors);
    let closed = causes("connections ended by", &summary.closed);
    let short = (!summary.reasons.is_empty())
        .then(|| format!("fell short: {}", summary.reasons.join("; ")));
    [failed, closed, short].into_iter().flatten().collect()
}

/// The document of `--json`: go-stress-testing's figures and those of the run.
#[derive(Serialize)]
struct Document<'a, T> {
    stress: &'a Stress,
    #[serde(flatten)]
    run: &'a T,
}

fn write(args: &Args, document: &impl Serialize) -> Result<()> {
    args.json.as_deref().map_or(Ok(()), |file| output::write_json(file, document))
}

fn code(held: bool, interrupted: bool) -> ExitCode {
    if interrupted { ExitCode::from(130) } else { ExitCode::from(u8::from(!held)) }
}

/// Waits for a timeout, Ctrl-C or the time limit of the run.
struct Wait {
    deadline_ns: Option<u64>,
    by_user: bool,
}

impl Wait {
    fn new(args: &Args) -> Wait {
        let after = |limit: Duration| process::now_ns() + limit.as_nanos() as u64;
        Wait { deadline_ns: args.run_limit().map(after), by_user: false }
    }

    fn wait(&mut self, time: Duration) -> bool {
        let signal = process::wait_signal(time);
        self.by_user |= matches!(signal, Some(Signal::Interrupt | Signal::Terminate));
        self.by_user || self.deadline_ns.is_some_and(|deadline_ns| process::now_ns() >= deadline_ns)
    }
}

/// Returns the time since `then_ns`.
fn since(then_ns: u64) -> Duration {
    Duration::from_nanos(process::now_ns().saturating_sub(then_ns))
}

/// Restricts this process and its future threads to the first `cores` of its allowed cores.
fn use_cores(cores: usize) -> Result<()> {
    let may = sched_getaffinity(None).context("-cpuNumber")?;
    let mut chosen = CpuSet::new();
    let allowed = (0..CpuSet::MAX_CPU).filter(|&core| may.is_set(core));
    allowed.take(cores).for_each(|core| chosen.set(core));
    sched_setaffinity(None, &chosen).context("-cpuNumber")
}

/// Returns the headers of -H. Values of the same name are joined with `; `, as in go-stress-testing.
fn headers(args: &Args) -> Vec<(String, String)> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for (name, value) in &args.header {
        match headers.iter_mut().find(|(other, _)| other.eq_ignore_ascii_case(name)) {
            Some((_, joined)) => *joined = format!("{joined}; {value}"),
            None => headers.push((name.clone(), value.clone())),
        }
    }
    headers
}

/// Sets up TLS without certificate checks, as in go-stress-testing.
fn skip_certificate_checks(endpoints: &mut [Endpoint], notes: &mut Vec<String>) -> Result<()> {
    if !endpoints.iter().any(|endpoint| endpoint.tls) {
        return Ok(());
    }
    notes.push(UNCHECKED.to_owned());
    tls::ClientFlags::of_files(true, None, None, None).set(endpoints)
}
