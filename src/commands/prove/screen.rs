//! The texts of a proof: notes, progress rows, and the verdict with its table. [`crate::report::screen`] puts
//! them on the terminal.

use capacity::limits::KERNEL_BYTES_PLAUSIBLE;
use capacity::{Bytes, Count, Decimal, Machine, Milliseconds};

use super::churn::ChurnResult;
use super::page;
use super::plan::Plan;
use super::result::{Mark, Measured, Proof, Spread};
use crate::commands::fleet::message::plain;
use crate::output;
use crate::report::Table;
use crate::report::screen::{self, About, AgentRow, Left, Rows, Step};
use load::control::ProgressRow;
use load::{Latency, Sample, Usage};

/// Of broadcasts to agents.
pub(super) const NOT_TIMED: &str = "not timed: agents have other clocks than the publisher";

/// Progress goes to standard error, the verdict to standard output unless JSON goes there.
pub(super) struct Screen {
    screen: screen::Screen,
    json_to_stdout: bool,
    /// What follows the connects: the hold, and broadcasts, which take an unknown time.
    hold_seconds: f64,
    has_broadcasts: bool,
    last_second: Option<Latency>,
    so_far: Option<Latency>,
    /// Empty without agents.
    agents: Vec<AgentRow>,
}

impl Screen {
    /// `plain` prints rows of text on every terminal.
    pub(super) fn new(plain: bool, json_to_stdout: bool) -> Screen {
        let screen = screen::Screen::new(Rows::Replaced, plain);
        let (last_second, so_far) = (None, None);
        Screen {
            screen,
            json_to_stdout,
            hold_seconds: 0.0,
            has_broadcasts: false,
            last_second,
            so_far,
            agents: Vec::new(),
        }
    }

    /// Starts the screen; `before` is the sample before the first socket.
    pub(super) fn begin(&mut self, plan: &Plan, sockets: u64, before: Sample) {
        (self.hold_seconds, self.has_broadcasts) = (plan.hold.as_secs_f64(), plan.broadcasts > 0);
        let scenario = plan.scenario.as_ref().map_or(String::new(), |name| format!(" {name}"));
        let mut phases = vec!["connect", "hold"];
        if plan.broadcasts > 0 {
            phases.push("broadcast");
        }
        let title = format!("standfast prove{scenario}");
        let ends_here = plan.ends_here();
        self.screen.begin(About { title, phases, sockets, ends_here, before });
    }

    pub(super) fn machine(&mut self, machine: &Machine) {
        let known = |bytes: Option<u64>| bytes.map_or("unknown".into(), |b| Bytes(b).to_string());
        self.note(&format!(
            "standfast {}: {} cores, {} memory ({} available), {} descriptors per table, Linux {}",
            env!("CARGO_PKG_VERSION"),
            machine.cores,
            known(machine.memory.total_bytes),
            known(machine.memory.available_bytes),
            Count(machine.files.table()),
            machine.kernel.as_deref().unwrap_or("unknown"),
        ));
    }

    /// Prints a line that stays.
    pub(super) fn note(&mut self, text: &str) {
        self.screen.note(text);
    }

    /// Restores the terminal.
    pub(super) fn end(&mut self) {
        self.screen.end();
    }

    /// Takes the percentiles and the agents that the next rows are shown with.
    pub(super) fn timed(&mut self, row: &ProgressRow, agents: Vec<AgentRow>) {
        (self.last_second, self.so_far) = (row.last_second, row.so_far);
        self.agents = agents;
    }

    fn row(&mut self, sample: &Sample, (done, left): (f64, Option<Left>), text: &str) {
        let row = format!("{:6.1} s  {text}", sample.elapsed_seconds);
        let (last_second, so_far) = (self.last_second, self.so_far);
        let agents = self.agents.as_slice();
        let step = Step { row, done, left, last_second, so_far, agents, ..Step::default() };
        self.screen.show(sample, &step);
    }

    pub(super) fn connecting(&mut self, sample: &Sample, requested: u64) {
        let elapsed = sample.elapsed_seconds;
        let done = share(sample.open + sample.failed, requested);
        let left = Left::estimate(done, elapsed, self.hold_seconds);
        let left = left.map(|left| Left { at_least: self.has_broadcasts, ..left });
        let rate = if elapsed > 0.0 { sample.open as f64 / elapsed } else { 0.0 };
        self.row(
            sample,
            (done, left),
            &format!(
                "connecting  {:>9} of {} open  {:>6}/s  {}{}",
                Count(sample.open).to_string(),
                Count(requested),
                Count(rate as u64).to_string(),
                memory(sample),
                problems(sample),
            ),
        );
    }

    pub(super) fn mark(&mut self, mark: &Mark) {
        let kernel = kernel_at(mark);
        self.note(&format!(
            "   {:>9} sockets: server {}, client {}, kernel {kernel}",
            Count(mark.connections).to_string(),
            known(mark.server_rss_bytes),
            known(mark.client_rss_bytes),
        ));
    }

    pub(super) fn connected(&mut self, measured: &Measured, row: &ProgressRow) {
        self.note(&format!(
            "connected: {} open, {} failed, {:.1} s",
            Count(row.open),
            Count(row.failed),
            measured.connect_seconds
        ));
    }

    pub(super) fn holding(&mut self, sample: &Sample, held: f64, hold: f64) {
        self.keeping(sample, held, hold, "heartbeats");
    }

    pub(super) fn exchanging(&mut self, sample: &Sample, held: f64, hold: f64) {
        self.keeping(sample, held, hold, "messages");
    }

    pub(super) fn churning(&mut self, sample: &Sample, held: f64, hold: f64) {
        self.keeping(sample, held, hold, "publications and heartbeats");
    }

    fn keeping(&mut self, sample: &Sample, held: f64, hold: f64, what: &str) {
        let seconds = (hold - held).max(0.0);
        let left = Left { seconds, at_least: self.has_broadcasts };
        let p99 =
            sample.latency.map_or(String::new(), |l| format!("  p99 {}", Milliseconds(l.p99_ms)));
        self.row(
            sample,
            (held / hold, Some(left)),
            &format!(
                "holding {held:.0} of {hold:.0} s  {} open  {what} {} of {}{p99}  {}{}",
                Count(sample.open),
                Count(sample.received),
                Count(sample.sent),
                memory(sample),
                problems(sample),
            ),
        );
    }

    pub(super) fn held(&mut self, measured: &Measured, row: &ProgressRow) {
        let [open, lost] = [row.open, row.closed].map(Count);
        let all = [(row.heartbeats_received, "heartbeats"), (row.messages_received, "messages")];
        let answered = all.into_iter().filter(|(received, _)| *received > 0);
        let mut answered =
            answered.map(|(received, what)| format!("{} {what} answered", Count(received)));
        let first = answered.next().map(|first| format!(", {first}")).unwrap_or_default();
        let held = measured.hold_seconds;
        self.note(&format!("held for {held:.0} s: {open} open, {lost} lost{first}"));
        // All on one line is more than 80 columns.
        answered.for_each(|more| self.note(&format!("   {more}")));
    }

    pub(super) fn broadcasting(
        &mut self,
        sample: &Sample,
        sequence: u32,
        open: u64,
        row: &ProgressRow,
    ) {
        let received = row.publications.saturating_sub(open * u64::from(sequence));
        self.row(
            sample,
            (share(received, open), None),
            &format!("broadcast {}: {} of {} received", sequence + 1, Count(received), Count(open)),
        );
    }

    /// Shows that the sockets are being closed, which takes seconds with many; `sample` is of before.
    pub(super) fn closing(&mut self, sample: &mut Sample) {
        sample.phase = screen::CLOSE.into();
        let text = format!("closing {} sockets", Count(sample.open));
        self.row(sample, (0.0, None), &text);
    }

    /// Prints the result: verdict, reasons and figures.
    pub(super) fn verdict(&mut self, proof: &Proof) {
        self.screen.end();
        let text = plain(&render(proof));
        if self.json_to_stdout {
            output::print_to_stderr(&text);
        } else {
            let _ = output::print(&text);
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

fn memory(sample: &Sample) -> String {
    let of = |usage: Option<Usage>| usage.map_or("?".into(), |u| Bytes(u.rss_bytes).to_string());
    format!("server {}  client {}", of(sample.server), of(sample.client))
}

fn problems(sample: &Sample) -> String {
    let mut text = String::new();
    if sample.failed > 0 {
        text += &format!("  {} failed", Count(sample.failed));
    }
    if sample.closed > 0 {
        text += &format!("  {} lost", Count(sample.closed));
    }
    text
}

fn render(proof: &Proof) -> String {
    let c = &proof.connections;
    let mut text = format!(
        "\n{}: {} of {} WebSockets open after {:.0} s\n\n",
        proof.verdict,
        Count(c.open),
        Count(c.requested),
        proof.hold_seconds
    );
    for reason in &proof.reasons {
        text += &format!("  ! {reason}\n");
    }
    if !proof.reasons.is_empty() {
        text.push('\n');
    }
    let mut line = |name: &str, value: String| text += &format!("  {name:<12} {value}\n");
    line(
        "connects",
        format!("{:.1} s, {}/s, {} failed", c.seconds, Count(c.per_second as u64), Count(c.failed)),
    );
    for (name, process) in [("server", &proof.server), ("client", &proof.client)] {
        line(
            name,
            format!(
                "{} resident, {} bytes a socket, {} CPU seconds",
                known(process.rss_bytes),
                process
                    .rss_bytes_per_connection
                    .map_or_else(|| "?".to_owned(), |bytes| Decimal(bytes, 0).to_string()),
                process
                    .cpu_seconds
                    .map_or_else(|| "?".to_owned(), |seconds| Decimal(seconds, 1).to_string()),
            ),
        );
    }
    line("kernel", kernel(proof));
    if let Some(bytes) = proof.system_bytes {
        line("machine", machine(proof, bytes));
    }
    if let Some(h) = proof.heartbeats.as_ref().filter(|h| h.not_due_sockets.is_some()) {
        let [sent, received] = [h.sent, h.received].map(Count);
        let counts = (h.sent > 0).then(|| format!("{sent} sent, {received} answered"));
        let not_due = h.not_due_sockets.filter(|sockets| *sockets > 0);
        let not_due = not_due.map(|sockets| format!("not yet due on {} sockets", Count(sockets)));
        let texts: Vec<String> = counts.into_iter().chain(not_due).collect();
        line("heartbeats", if texts.is_empty() { "none".to_owned() } else { texts.join("; ") });
    }
    let ms = |v: Option<f64>| v.map_or("-".into(), |v| Milliseconds(v).to_string());
    if let Some(m) = &proof.messages {
        let [sent, received, lost] = [m.sent, m.received, m.lost].map(Count);
        let [p50, p95, p99, max] = [m.p50_ms, m.p95_ms, m.p99_ms, m.max_ms].map(ms);
        line("messages", format!("{sent} sent, {received} echoed, {lost} lost"));
        line("", format!("p50 {p50}, p95 {p95}, p99 {p99}, max {max}"));
    }
    if let Some(b) = proof.broadcast.as_ref().filter(|b| b.expected > 0) {
        let counts = [b.received, b.expected, b.lost, b.duplicated].map(Count);
        let [received, expected, lost, duplicated] = counts;
        let [p50, p95, p99, last] = [b.p50_ms, b.p95_ms, b.p99_ms, b.last_ms].map(ms);
        line(
            "broadcast",
            format!("{received} of {expected} delivered, {lost} lost, {duplicated} duplicated"),
        );
        let times = format!("p50 {p50}, p95 {p95}, p99 {p99}, last {last}");
        line("", if proof.fleet.is_some() { NOT_TIMED.to_owned() } else { times });
    }
    for (name, value) in proof.churn.iter().flat_map(ChurnResult::lines) {
        line(name, value);
    }
    let broadcast = proof.broadcast.as_ref();
    if let Some((last, spread)) = broadcast.and_then(|b| b.to_last.zip(b.first_to_last)) {
        let both = |s: Spread| {
            format!("median {}, max {}", Milliseconds(s.p50_ms), Milliseconds(s.max_ms))
        };
        line("to the last", both(last));
        line("first → last", both(spread));
    }
    if let Some(l) = &proof.link {
        for (end, traffic) in [("to server", l.to_server), ("to clients", l.to_clients)] {
            line(
                end,
                format!(
                    "{} in {} packets sent over the link, {} packets dropped",
                    Bytes(traffic.bytes),
                    Count(traffic.packets),
                    Count(traffic.dropped)
                ),
            );
        }
    }
    text += &format!("\n  {:>12} {:>12} {:>12} {:>12}\n", "sockets", "server", "client", "kernel");
    for mark in &proof.marks {
        text += &format!(
            "  {:>12} {:>12} {:>12} {:>12}\n",
            Count(mark.connections).to_string(),
            known(mark.server_rss_bytes),
            known(mark.client_rss_bytes),
            kernel_at(mark)
        );
    }
    if let Some(fleet) = &proof.fleet {
        text += &page::servers(proof).map(|servers| table(&servers)).unwrap_or_default();
        text += &table(&fleet.table());
    }
    text
}

/// A table of names and figures.
fn table(Table { heads, rows, .. }: &Table) -> String {
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    let all: Vec<&Vec<String>> = [&heads].into_iter().chain(rows).collect();
    let width = |at: usize, least: usize| {
        let widths = all.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        widths.max().unwrap_or(0).max(least)
    };
    let mut text = "\n".to_owned();
    for row in &all {
        let cells = row.iter().enumerate().map(|(at, cell)| match at {
            0 => format!("  {cell:0$}", width(at, 12)),
            at => format!(" {cell:>0$}", width(at, 10)),
        });
        text += &(cells.collect::<String>() + "\n");
    }
    text
}

fn known(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| Bytes(bytes).to_string())
}

/// The kernel's memory for the sockets, or why it is not known.
fn kernel(proof: &Proof) -> String {
    if let Some(each) = proof.kernel_bytes_per_socket {
        let sockets = 2 * proof.marks.last().map_or(0, |mark| mark.connections);
        let all = Bytes((each * sockets as f64) as u64);
        return format!("{all} for both ends of each socket, {} an end", Bytes(each as u64));
    }
    let why = proof.kernel_bytes_unknown.unwrap_or_default();
    match proof.kernel_bytes_implausible {
        Some(bytes) => {
            let sign = if bytes < 0.0 { "−" } else { "" };
            let bytes = Bytes(bytes.abs() as u64);
            format!("implausible, {sign}{bytes} an end: {why}")
        }
        None => format!("unknown: {why}"),
    }
}

/// The growth of the memory in use on this machine, by all programs.
fn machine(proof: &Proof, bytes: u64) -> String {
    let each = proof.kernel_bytes_per_socket.unwrap_or(0.0);
    let own = [&proof.server, &proof.client].into_iter().filter_map(|process| process.rss_bytes);
    let own: u64 = own.sum();
    let own = own.saturating_add((2.0 * each * proof.connections.open as f64) as u64);
    // More than both processes and their sockets have.
    let others = if bytes > own.saturating_mul(2) { ", mostly by other programs" } else { "" };
    format!("{} more in use than before the start{others}", Bytes(bytes))
}

/// The growth of the kernel's memory at a mark, if it can be that of the sockets.
fn kernel_at(mark: &Mark) -> String {
    let sockets = (2 * mark.connections) as f64;
    let is_plausible = |bytes: &u64| KERNEL_BYTES_PLAUSIBLE.contains(&(*bytes as f64 / sockets));
    match mark.kernel_bytes {
        Some(bytes) if is_plausible(&bytes) => Bytes(bytes).to_string(),
        _ => "unknown".to_owned(),
    }
}
