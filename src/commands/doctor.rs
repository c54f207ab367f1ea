//! `standfast doctor`: what this machine allows, what N sockets need, and the commands that raise what is
//! short. `standfast doctor explain` looks up an error message. This file only prints; the checks and the
//! messages are in the crate `capacity`.

use std::fmt::Write;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use capacity::messages::{self, Message};
use capacity::{Bytes, Count, Fix, Goal, Limit, Machine, Need, Report, Role, Sources, about};
use engine::sys::process;
use serde::Serialize;

use crate::{output, units};

/// Programs whose settings are shown for a proxy only.
const PROXIES: [&str; 2] = ["nginx", "HAProxy"];

/// Check what this machine allows, what N sockets need, and how to raise what is short
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    explain: Option<Command>,
    /// Sockets to hold, such as 50k or 1M
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive_count)]
    connections: u64,
    /// What this machine does
    #[arg(long, value_enum, default_value = "prove")]
    role: RoleName,
    /// Addresses of this machine to connect from [default: loopback addresses as needed]
    #[arg(long, value_name = "IP", value_delimiter = ',', value_parser = units::ip)]
    source: Vec<IpAddr>,
    /// Number of addresses and ports to connect to
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::positive_count)]
    destinations: u64,
    /// Workers per process [default: as many as needed]
    #[arg(long, value_name = "N", value_parser = units::positive_count)]
    workers: Option<u64>,
    /// Write the report as JSON to FILE, or to standard output with -
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Explain an error message: its cause and what helps
    Explain {
        /// The message, or a log line that contains it
        #[arg(value_name = "TEXT", required_unless_present = "page")]
        text: Vec<String>,
        /// Print docs/operate/troubleshooting.md
        #[arg(long, hide = true)]
        page: bool,
    },
}

#[derive(clap::ValueEnum, Copy, Clone, Debug)]
enum RoleName {
    /// Server: one socket per connection
    Serve,
    /// Clients: one socket per connection
    Load,
    /// Proxy: two sockets of one process per connection
    Proxy,
    /// Both ends, in a process each, as `standfast prove` runs them
    Prove,
}

/// Runs the command. Exit code 0: the connections fit, or the message is known; 1: otherwise.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(Command::Explain { text, page }) = &args.explain {
        if *page {
            output::print(&messages::page())?;
            return Ok(ExitCode::SUCCESS);
        }
        let (text, machine) = (text.join(" "), Machine::read());
        let found = messages::explain(&text);
        output::print(&explanation(&text, &found, &machine))?;
        return Ok(ExitCode::from(u8::from(found.is_empty())));
    }
    // serve, load and prove raise the soft limit to the hard one. Where that fails the soft one counts.
    let mut machine = Machine::read();
    if capacity::raise_nofile().is_err() {
        machine.files.nofile.hard = machine.files.nofile.soft;
    }
    let goal = Goal {
        private_tables: process::private_tables_work(),
        workers: args.workers,
        sources: match args.source.len() as u64 {
            0 => Sources::Loopback,
            sources => Sources::Addresses(sources),
        },
        destinations: args.destinations,
        ..Goal::new(args.role.role(), args.connections)
    };
    let report = capacity::check(&machine, &goal);
    let text = render(&machine, &report, &Style::of_stdout());
    match &args.json {
        Some(file) => {
            output::write_json(file, &Document::new(&machine, &report))?;
            if file != output::STDOUT {
                output::print(&text)?;
            }
        }
        None => output::print(&text)?,
    }
    Ok(ExitCode::from(u8::from(!report.holds())))
}

impl RoleName {
    const fn role(self) -> Role {
        match self {
            RoleName::Serve => Role::Serve,
            RoleName::Load => Role::Load,
            RoleName::Proxy => Role::Proxy,
            RoleName::Prove => Role::Prove,
        }
    }
}

/// The document of `--json`: docs/protocol/doctor-json.md.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    standfast: &'static str,
    holds: bool,
    machine: &'a Machine,
    #[serde(flatten)]
    report: &'a Report,
    /// The fixes as lines to paste, in the order of the shortfalls and warnings.
    commands: Vec<capacity::Command>,
}

impl<'a> Document<'a> {
    fn new(machine: &'a Machine, report: &'a Report) -> Self {
        let commands = fixes(report).flat_map(Fix::commands).collect();
        let (version, standfast) = (1, env!("CARGO_PKG_VERSION"));
        Document { version, standfast, holds: report.holds(), machine, report, commands }
    }
}

fn fixes(report: &Report) -> impl Iterator<Item = &Fix> {
    let short = report.shortfalls.iter().flat_map(|shortfall| &shortfall.fixes);
    short.chain(report.warnings.iter().map(|warning| &warning.fix))
}

/// Colours: empty unless standard output is a terminal.
struct Style {
    good: &'static str,
    bad: &'static str,
    note: &'static str,
    bold: &'static str,
    off: &'static str,
}

impl Style {
    fn of_stdout() -> Style {
        let quiet = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if quiet || !std::io::stdout().is_terminal() {
            return Style { good: "", bad: "", note: "", bold: "", off: "" };
        }
        Style {
            good: "\x1b[32m",
            bad: "\x1b[31m",
            note: "\x1b[33m",
            bold: "\x1b[1m",
            off: "\x1b[0m",
        }
    }
}

fn render(machine: &Machine, report: &Report, style: &Style) -> String {
    let Style { good, bad, note, bold, off } = style;
    let goal = &report.goal;
    let mut text = about_machine(machine, goal);
    let place = match goal.role {
        Role::Serve => "the server's ends",
        Role::Load => "the clients' ends",
        Role::Proxy => "two per connection through a proxy",
        Role::Prove => "both ends on this machine",
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "\n{bold}{} sockets, {place}{off}\n", Count(goal.connections));
    let _ = writeln!(text, "  {:<30} {:>14} {:>14} {:>14}", "limit", "now", "needed", "fits");
    for need in &report.needs {
        let (colour, verdict) = if need.is_short() { (bad, "SHORT") } else { (good, "ok") };
        let _ = writeln!(
            text,
            "  {:<30} {:>14} {:>14} {:>14}  {colour}{verdict}{off}",
            describe(need.limit),
            amount(need.limit, need.now),
            amount(need.limit, need.needed),
            fitting(need)
        );
    }
    for warning in &report.warnings {
        let _ = writeln!(
            text,
            "  {:<30} {:>14} {:>14} {:>14}  {note}note{off}",
            describe(warning.limit),
            amount(warning.limit, warning.now),
            amount(warning.limit, warning.needed),
            ""
        );
    }
    for shortfall in &report.shortfalls {
        let _ = writeln!(text, "\n{bad}{}{off}", shortfall.text);
        write_fixes(&mut text, goal, &shortfall.fixes);
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "\n{note}note:{off} {}", warning.text);
        write_fixes(&mut text, goal, std::slice::from_ref(&warning.fix));
    }
    let _ = writeln!(text, "\n{}", conclusion(report));
    text
}

fn about_machine(machine: &Machine, goal: &Goal) -> String {
    let known = |bytes: Option<u64>| bytes.map_or("unknown".into(), |b| Bytes(b).to_string());
    let nofile = machine.files.nofile;
    let tables = if goal.private_tables {
        "one table per worker"
    } else {
        "one table for all workers: this system refuses private tables"
    };
    let three = |values: Option<[u64; 3]>| {
        values.map_or("unknown".into(), |values| values.map(|v| Count(v).to_string()).join(" · "))
    };
    let group = match (machine.container, machine.memory.cgroup_max_bytes) {
        (true, Some(max)) => format!(", in a container with {}", Bytes(max)),
        (true, None) => ", in a container".to_owned(),
        (false, Some(max)) => format!(", in a control group with {}", Bytes(max)),
        (false, None) => String::new(),
    };
    let ports = match machine.ports.range {
        Some((first, last)) => {
            format!("{first}–{last}, {} of them reserved", Count(machine.ports.reserved))
        }
        None => "unknown".to_owned(),
    };
    format!(
        "this machine   Linux {}, {} cores, {} memory ({} available){group}\n\
         descriptors    soft {}, hard {}; {tables}\n\
         ports          {ports}\n\
         TCP buffers    receive {} bytes, send {} bytes (min · default · max)\n",
        machine.kernel.as_deref().unwrap_or("unknown"),
        machine.cores,
        known(machine.memory.total_bytes),
        known(machine.memory.available_bytes),
        Count(nofile.soft),
        Count(nofile.hard),
        three(machine.tcp.rmem_bytes),
        three(machine.tcp.wmem_bytes),
    ) + &lost_connects(machine, goal)
}

/// Connects that the kernel has dropped here, if any; to which program's listener is not known.
fn lost_connects(machine: &Machine, goal: &Goal) -> String {
    let Some(losses) = machine.tcp.losses.filter(|losses| losses.listen_drops > 0) else {
        return String::new();
    };
    if goal.role == Role::Load {
        return String::new();
    }
    format!(
        "lost connects  {} dropped, {} of them because an accept queue was full, since this network\n\
         {:15}namespace exists: standfast doctor explain ListenOverflows\n",
        Count(losses.listen_drops),
        Count(losses.listen_overflows),
        ""
    )
}

fn describe(limit: Limit) -> &'static str {
    match limit {
        Limit::Memory => "memory",
        Limit::OpenFiles => "descriptors of a process",
        Limit::SystemFiles => "open files of the machine",
        Limit::Ports => "source addresses for ports",
        Limit::Threads => "threads",
        Limit::Conntrack => "tracked connections",
        Limit::EpollWatches => "epoll watches",
        Limit::AddressSpace => "address space of a process",
        Limit::AcceptQueue => "accept queue",
        Limit::TcpMemory => "TCP memory, pages",
        Limit::TcpBuffers => "TCP buffers of all sockets",
        Limit::PortReuse => "reuse of ports in TIME_WAIT",
        Limit::Overcommit => "overcommit",
    }
}

fn amount(limit: Limit, value: u64) -> String {
    match limit {
        _ if value == u64::MAX => "no amount".to_owned(),
        Limit::Memory | Limit::AddressSpace | Limit::TcpBuffers => Bytes(value).to_string(),
        _ => Count(value).to_string(),
    }
}

/// How many connections a limit allows.
fn fitting(need: &Need) -> String {
    if need.fits > 1_000_000_000 { "any number".to_owned() } else { Count(need.fits).to_string() }
}

fn write_fixes(text: &mut String, goal: &Goal, fixes: &[Fix]) {
    let concerns = |place: &str| {
        goal.role == Role::Proxy || !PROXIES.iter().any(|proxy| place.starts_with(proxy))
    };
    for command in fixes.iter().flat_map(Fix::commands).filter(|command| concerns(command.place)) {
        let _ = writeln!(text, "    {:<46} {}", format!("{}:", command.place), command.line);
    }
}

fn conclusion(report: &Report) -> String {
    if report.holds() {
        let workers = Count(report.workers.unwrap_or(0));
        return format!("it fits with {workers} workers in each process");
    }
    let fits = about(report.fits);
    if fits == 0 {
        return "no connection fits until this is fixed".to_owned();
    }
    let next = match report.goal.role {
        Role::Serve => format!(": standfast serve --max-connections {fits}"),
        Role::Load => format!(": standfast load URL --connections {fits}"),
        Role::Prove => format!(": standfast prove --connections {fits}"),
        Role::Proxy => format!(": standfast proxy --max-connections {fits} --upstream …"),
    };
    format!("currently about {} fit{next}", Count(fits))
}

fn explanation(text: &str, found: &[&Message], machine: &Machine) -> String {
    if found.is_empty() {
        return unknown(text);
    }
    let each: Vec<String> =
        found.iter().map(|message| cause_and_remedies(message, machine)).collect();
    each.join("\nor, less likely:\n\n")
}

fn unknown(text: &str) -> String {
    let mut answer = "message not known\n".to_owned();
    let near = messages::nearest(text, 5);
    if !near.is_empty() {
        answer += "\nknown messages that share words with it:\n";
    }
    for message in near {
        let _ = writeln!(answer, "  {} ({})", message.text, message.program);
    }
    answer
        + "\nall known messages: docs/operate/troubleshooting.md; this machine's limits: standfast doctor\n"
}

fn cause_and_remedies(message: &Message, machine: &Machine) -> String {
    let mut text = format!(
        "{}\n  printed by {}: {}\n\n{}\n\n",
        message.trouble.name(),
        message.program,
        message.text,
        wrapped(message.trouble.cause())
    );
    if let Some(here) = message.trouble.on_machine(machine) {
        let _ = writeln!(text, "    {:<27} {here}", "on this machine:");
    }
    for (place, line) in message.trouble.remedies() {
        let _ = writeln!(text, "    {:<27} {line}", format!("{place}:"));
    }
    text
}

/// Wraps a text at 88 characters, indented by two.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { continue };
        if !line.is_empty() && line.len() + 1 + word.len() > 86 {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
