//! The calculation from a target load to a number of machines, as text and as JSON.

use std::fmt::{self, Display, Formatter};

use anyhow::{Context, Result};
use capacity::{Bytes, Count, Decimal};
use serde::Serialize;

use super::Args;
use super::machines::Machines;
use super::measured::Measured;
use super::request_rate::{Bound, Capacity};

const DAY_SECONDS: f64 = 86_400.0;

/// The calculation and its result.
#[derive(Serialize, Debug)]
pub(super) struct Answer {
    views: Option<Views>,
    requests: Option<Requests>,
    memory: Option<Memory>,
    cpu: Option<Cpu>,
    /// Share of each machine to keep free, 0 to 1.
    headroom: f64,
    /// The largest number of the parts.
    #[serde(flatten)]
    machines: Machines,
    notes: Vec<String>,
}

#[derive(Serialize, Debug)]
struct Views {
    per_day: u64,
    peak_views: f64,
    peak_seconds: f64,
    requests_per_view: u64,
}

#[derive(Serialize, Debug)]
struct Requests {
    /// At peak, rounded up.
    per_second: u64,
    #[serde(skip)]
    exact: f64,
    per_machine: f64,
    /// Whether that is all that the machine can serve.
    bound: Bound,
    /// From what that is known.
    from: String,
    #[serde(flatten)]
    machines: Machines,
}

#[derive(Serialize, Debug)]
struct Memory {
    connections: u64,
    bytes_per_connection: f64,
    #[serde(skip)]
    parts: (f64, Option<f64>),
    bytes: u64,
    machine_bytes: Option<u64>,
    #[serde(flatten)]
    machines: Machines,
}

#[derive(Serialize, Debug)]
struct Cpu {
    messages_per_second: u64,
    microseconds_per_message: f64,
    /// Number of fully used cores.
    cores: f64,
    machine_cores: Option<u64>,
    #[serde(flatten)]
    machines: Machines,
}

/// Calculates the answer.
///
/// # Errors
/// The capacity of one machine is not known.
pub(super) fn answer(args: &Args, measured: Option<&Measured>) -> Result<Answer> {
    let views = args.views.map(|per_day| Views {
        per_day,
        peak_views: per_day as f64 * args.peak_views,
        peak_seconds: DAY_SECONDS * args.peak_time,
        requests_per_view: args.requests_per_view,
    });
    let free = 1.0 - args.headroom;
    let wanted = match (&views, args.requests) {
        (Some(views), _) => {
            let requests = views.peak_views * views.requests_per_view as f64;
            Some(requests / views.peak_seconds)
        }
        (None, requests) => requests.map(|requests| requests as f64),
    };
    let given = args.per_machine.map(|rate| Capacity::given(rate as f64));
    let capacity = given.or_else(|| measured.and_then(|measured| measured.capacity.clone()));
    let requests = wanted
        .map(|exact| {
            let Capacity { rate, bound, from } = capacity.context(
                "the rate of one machine is not known: give --per-machine RATE, or --from FILE with the \
                 JSON of `standfast load http://…`",
            )?;
            let per_second = whole(exact);
            let count = whole(per_second as f64 / (rate * free));
            let machines = match bound {
                Bound::AtLeast => Machines::at_most(count),
                Bound::Given | Bound::Reached => Machines::exactly(count),
            };
            anyhow::Ok(Requests { per_second, exact, per_machine: rate, bound, from, machines })
        })
        .transpose()?;
    let memory = measured.and_then(|measured| memory(args, measured, free));
    let cpu = measured.and_then(|measured| cpu(args, measured, free));
    let parts = [
        requests.as_ref().map(|requests| requests.machines),
        memory.as_ref().map(|memory| memory.machines),
        cpu.as_ref().map(|cpu| cpu.machines),
    ];
    let mut notes = measured.map(|measured| measured.notes.clone()).unwrap_or_default();
    if memory.as_ref().is_some_and(|memory| memory.parts.1.is_none()) {
        notes.push(
            "kernel memory was not measured and comes on top: about 4,400 B per socket; prove measures it"
                .to_owned(),
        );
    }
    Ok(Answer {
        views,
        requests,
        memory,
        cpu,
        headroom: args.headroom,
        machines: Machines::largest(parts.into_iter().flatten()),
        notes,
    })
}

fn memory(args: &Args, measured: &Measured, free: f64) -> Option<Memory> {
    let (connections, process) = args.connections.zip(measured.process_bytes)?;
    let kernel = measured.kernel_bytes;
    let each = process + kernel.unwrap_or(0.0);
    let bytes = each * connections as f64;
    let count = |memory: u64| whole(bytes / (memory as f64 * free));
    Some(Memory {
        connections,
        bytes_per_connection: each,
        parts: (process, kernel),
        bytes: bytes as u64,
        machine_bytes: args.memory,
        machines: match (args.memory, kernel) {
            (None, _) => Machines::UNKNOWN,
            (Some(memory), Some(_)) => Machines::exactly(count(memory)),
            // The kernel's share comes on top.
            (Some(memory), None) => Machines::at_least(count(memory)),
        },
    })
}

fn cpu(args: &Args, measured: &Measured, free: f64) -> Option<Cpu> {
    let (messages_per_second, each) = args.messages.zip(measured.message_seconds)?;
    let cores = messages_per_second as f64 * each;
    let count = |own: u64| Machines::exactly(whole(cores / (own as f64 * free)));
    Some(Cpu {
        messages_per_second,
        microseconds_per_message: rounded(each * 1e6),
        cores: rounded(cores),
        machine_cores: args.cores,
        machines: args.cores.map_or(Machines::UNKNOWN, count),
    })
}

/// Rounds up to a whole number, at least 1.
fn whole(exact: f64) -> u64 {
    // A tiny excess is an error of the arithmetic, not load.
    (exact - 1e-9).ceil().max(1.0) as u64
}

/// Rounds to six decimals, to drop errors of binary arithmetic.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

impl Display for Answer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(views) = &self.views {
            views.fmt(f, self.requests.as_ref())?;
        }
        if let Some(requests) = &self.requests {
            requests.fmt(f, self.headroom)?;
        }
        if let Some(memory) = &self.memory {
            memory.fmt(f, self.headroom)?;
        }
        if let Some(cpu) = &self.cpu {
            cpu.fmt(f, self.headroom)?;
        }
        for note in &self.notes {
            row(f, "note", note)?;
        }
        if self.requests.as_ref().is_some_and(|requests| requests.bound == Bound::AtLeast) {
            row(
                f,
                "measure",
                "a run with more and more users shows the limit: standfast load URL \
                --stages 0:10,20s:10,0:20,20s:20,0:40,20s:40 --json FILE",
            )?;
        }
        row(f, "answer", &self.machines.to_string())?;
        let mut missing = Vec::new();
        if self.memory.as_ref().is_some_and(|memory| memory.machine_bytes.is_none()) {
            missing.push("--memory");
        }
        if self.cpu.as_ref().is_some_and(|cpu| cpu.machine_cores.is_none()) {
            missing.push("--cores");
        }
        match missing.as_slice() {
            [] => Ok(()),
            flags => row(f, "", &format!("give {} of one machine", flags.join(" and "))),
        }
    }
}

impl Views {
    fn fmt(&self, f: &mut Formatter<'_>, requests: Option<&Requests>) -> fmt::Result {
        let (all, peak) = (self.per_day as f64, self.peak_views);
        let share = percent(peak / all);
        row(f, "peak views", &format!("{} × {share} = {}", number(all), number(peak)))?;
        let (share, seconds) = (percent(self.peak_seconds / DAY_SECONDS), self.peak_seconds);
        row(f, "peak lasts", &format!("86,400 s × {share} = {} s", number(seconds)))?;
        let Some(requests) = requests else { return Ok(()) };
        let times = match self.requests_per_view {
            1 => String::new(),
            times => format!(" × {times}"),
        };
        let (exact, whole) = (number(requests.exact), Count(requests.per_second));
        let line =
            format!("{}{times} ÷ {} s = {exact} → {whole} QPS", number(peak), number(seconds));
        row(f, "in the peak", &line)
    }
}

impl Requests {
    fn fmt(&self, f: &mut Formatter<'_>, headroom: f64) -> fmt::Result {
        if self.bound != Bound::Given {
            let rate = number(self.per_machine);
            let bound = if self.bound == Bound::AtLeast { "at least " } else { "" };
            row(f, "one machine", &format!("{bound}{rate} per second: {}", self.from))?;
        }
        let each = with_headroom(&number(self.per_machine), headroom);
        let quotient = self.per_second as f64 / (self.per_machine * (1.0 - headroom));
        let (wanted, machines) = (Count(self.per_second), self.machines.count());
        row(f, "requests", &format!("{wanted} ÷ {each} = {} → {machines}", number(quotient)))
    }
}

impl Memory {
    fn fmt(&self, f: &mut Formatter<'_>, headroom: f64) -> fmt::Result {
        let each = match self.parts {
            (process, Some(kernel)) => {
                format!(
                    "{} B ({} B process + {} B kernel)",
                    number(self.bytes_per_connection),
                    Decimal(process, 0),
                    Decimal(kernel, 0),
                )
            }
            (process, None) => format!("{} B of the process", number(process)),
        };
        let line = format!("{} × {each} = {}", Count(self.connections), Bytes(self.bytes));
        row(f, "memory", &line)?;
        let (Some(own), machines) = (self.machine_bytes, self.machines.count()) else {
            return Ok(());
        };
        let quotient = self.bytes as f64 / (own as f64 * (1.0 - headroom));
        let each = with_headroom(&Bytes(own).to_string(), headroom);
        let line = format!("{} ÷ {each} = {} → {machines}", Bytes(self.bytes), number(quotient));
        row(f, "by memory", &line)
    }
}

impl Cpu {
    fn fmt(&self, f: &mut Formatter<'_>, headroom: f64) -> fmt::Result {
        let Cpu { microseconds_per_message: each, cores, .. } = self;
        let rate = Count(self.messages_per_second);
        row(f, "CPU", &format!("{rate} × {} µs = {} cores", number(*each), number(*cores)))?;
        let (Some(own), machines) = (self.machine_cores, self.machines.count()) else {
            return Ok(());
        };
        let quotient = cores / (own as f64 * (1.0 - headroom));
        let each = with_headroom(&Count(own).to_string(), headroom);
        let line = format!("{} ÷ {each} = {} → {machines}", number(*cores), number(quotient));
        row(f, "by CPU", &line)
    }
}

fn row(f: &mut Formatter<'_>, what: &str, text: &str) -> fmt::Result {
    writeln!(f, "{what:<12}  {text}")
}

fn with_headroom(each: &str, headroom: f64) -> String {
    if headroom == 0.0 {
        return each.to_owned();
    }
    format!("({each} × {})", percent(1.0 - headroom))
}

fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}

/// Formats a number with two decimals, or none if it is whole.
fn number(value: f64) -> String {
    let text = Decimal(value, 2).to_string();
    text.strip_suffix(".00").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_two_decimals_and_thousands_separators() {
        for (value, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1_388.888, "1,388.89"),
            (24e6, "24,000,000"),
            (0.5, "0.50"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!((whole(0.1), whole(20.0), whole(20.13)), (1, 20, 21));
    }
}
