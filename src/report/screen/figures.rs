//! The figures of the live screen as tables: counts, percentiles, what failed, memory and CPU. What does not
//! fit beside the counts becomes a line.

use std::cmp::Reverse;
use std::iter;

use capacity::{Bytes, Count, Milliseconds};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::model::{Latencies, Model, RequestTotals};
use super::table::{Cell, Table, beside, count};
use super::view::{BAD, DIM, GOOD, TITLE, WARN, WIDE};
use load::{Latency, Sample, Usage};

/// Rows of answers by status and failures by cause.
const RESULTS_MAX: usize = 4;
/// Most rows of agents, or half of the screen if that is more; and those that even a small one has.
const AGENTS_MAX: usize = 16;
const AGENTS_MIN: usize = 3;
/// Characters of the name of an agent if its figures have no room beside it.
const AGENT_NAME: usize = 24;
/// Width of the names of lines.
const NAME_WIDTH: usize = 10;
/// Mark of kernel memory that cannot be that of the sockets, as in the verdict.
const IMPLAUSIBLE: &str = "implausible";
/// Mark of an agent that is lost.
const LOST: &str = " LOST";
/// Titles of tables that may become lines.
const RESULTS: &str = "answers";
const ERRORS: &str = "errors";
const PROCESSES: &str = "process";

/// The sections of figures, the most important first, for so many columns and rows.
pub(super) fn sections(model: &Model, (width, height): (usize, usize)) -> Vec<Vec<Line<'static>>> {
    let (results, processes) = (results(model), processes(model));
    let tables = match model.requests {
        Some(_) => vec![counts(model, width), results, processes],
        None => vec![counts(model, width), processes, results],
    };
    let (band, rest) =
        beside(tables.into_iter().filter(|table| !table.is_empty()).collect(), width);
    let mut last = Vec::new();
    let is_left = |title: &str| rest.iter().any(|table| table.is_titled(title));
    if is_left(RESULTS) || is_left(ERRORS) {
        last.extend(results_lines(model, width));
    }
    if is_left(PROCESSES) {
        last.extend(processes_lines(model, width));
    }
    let latency = latency(model).fit(width).lines();
    let room = height.saturating_sub(band.len() + latency.len() + last.len());
    // The head is a row, too.
    let most = room.saturating_sub(1).min(AGENTS_MAX.max(height / 2)).max(AGENTS_MIN);
    [band, latency, last, agents(model, width, most)]
        .into_iter()
        .filter(|section| !section.is_empty())
        .collect()
}

/// The agents of a run that several share, in so many rows: lost ones first, then by name.
fn agents(model: &Model, width: usize, most: usize) -> Vec<Line<'static>> {
    if model.agents.is_empty() {
        return Vec::new();
    }
    let columns =
        [("open", 7, 3), ("sent", 9, 2), ("received", 9, 0), ("errors", 6, 1), ("p99", 8, 4)];
    let mut table = Table::new("agents", &columns);
    let mut agents: Vec<_> = model.agents.iter().collect();
    agents.sort_by_key(|agent| !agent.is_lost);
    let all = agents.len();
    agents.truncate(if all > most { most - 1 } else { most });
    let widest = agents.iter().map(|agent| count(&agent.name)).max().unwrap_or(0);
    let figures: usize = columns.iter().map(|(_, least, _)| least + 2).sum();
    let name_max = if widest + LOST.len() + figures > width { AGENT_NAME } else { widest };
    for agent in &agents {
        let name = abbreviated(&agent.name, name_max);
        let count = |count: Option<u64>| Cell::from(count.map(|count| Count(count).to_string()));
        let p99 = agent.p99_ms.map(|ms| Milliseconds(ms).to_string());
        let errors = count(agent.errors);
        let errors =
            if agent.errors.is_some_and(|count| count > 0) { errors.style(BAD) } else { errors };
        let cells =
            [count(agent.open), count(agent.sent), count(agent.received), errors, p99.into()];
        match agent.is_lost {
            true => table.row_of(Cell::new(name + LOST).style(BAD), cells),
            false => table.row(name, cells),
        }
    }
    let mut lines = table.fit(width).lines();
    if all > agents.len() {
        lines.push(Line::styled(format!("… {} more", all - agents.len()), DIM));
    }
    lines
}

/// A name of at most so many characters. Both ends are kept, as numbers are often at the end.
fn abbreviated(name: &str, most: usize) -> String {
    let all: Vec<char> = name.chars().collect();
    if all.len() <= most || most < 3 {
        return name.to_owned();
    }
    let (before, after) = ((most - 1) / 2, most / 2);
    let (before, after) = (all.iter().take(before), all.iter().skip(all.len() - after));
    before.chain(&['…']).chain(after).collect()
}

/// What was done, in the last second and so far.
fn counts(model: &Model, width: usize) -> Table {
    let so_far = match &model.requests {
        Some(RequestTotals { is_warm_up: true, .. }) => "warm-up",
        _ => "so far",
    };
    let title = if model.requests.is_some() { "requests" } else { "sockets" };
    let mut table = Table::new(title, &[("last second", 11, 1), (so_far, 11, 0)]);
    let rates = model.rates();
    let rate = |rate: f64| Cell::new(format!("{}/s", Count(rate.round() as u64)));
    let total = |total: u64| Cell::new(Count(total).to_string());
    let bad = |count: u64, cell: Cell| if count > 0 { cell.style(BAD) } else { cell };
    let now = &model.now;
    let open = match width >= usize::from(WIDE) {
        true => format!(", of {}", Count(model.sockets)),
        false => String::new(),
    };
    let mut add = |name: &str, second: Cell, so_far: Cell| table.row(name, [second, so_far]);
    match &model.requests {
        Some(requests) => {
            let failed = requests.failed;
            add("sent", rate(rates.sent), total(requests.sent));
            add("answered", rate(rates.received), total(requests.answered));
            add("failed", bad(failed, rate(rates.failed)), bad(failed, total(failed)));
            add(&format!("connections{open}"), rate(rates.opened), total(now.open));
        }
        None => {
            add(&format!("open{open}"), rate(rates.opened), total(now.open));
            add("sent", rate(rates.sent), total(now.sent));
            add("received", rate(rates.received), total(now.received));
            let [failed, closed] = [now.failed, now.closed];
            add("failed to open", bad(failed, rate(rates.failed)), bad(failed, total(failed)));
            add("closed", bad(closed, rate(rates.closed)), bad(closed, total(closed)));
        }
    }
    table
}

/// Answers by status and failures by cause, with the share of each; of sockets errors by cause.
fn results(model: &Model) -> Table {
    let Some(requests) = &model.requests else {
        let mut table = Table::new(ERRORS, &[("", 7, 0)]);
        for (cause, count) in errors(model) {
            table.row(cause, [Cell::new(Count(count).to_string()).style(BAD)]);
        }
        if table.is_empty() {
            table.row_of(Cell::new("none").style(GOOD), [Cell::default()]);
        }
        return table;
    };
    let mut table = Table::new(RESULTS, &[("", 7, 0), ("", 6, 1)]);
    let all: u64 = requests.statuses.iter().map(|(_, count)| count).sum();
    let all = all + failures(model).iter().map(|(_, count)| count).sum::<u64>();
    let mut rows: Vec<(String, u64, Style)> = requests
        .statuses
        .iter()
        .map(|&(status, count)| (status.to_string(), count, style_of(status)))
        .chain(failures(model).into_iter().map(|(cause, count)| (cause, count, BAD)))
        .collect();
    rows.sort_by_key(|(_, count, _)| Reverse(*count));
    // The rest has a row of its own rather than none.
    if rows.len() > RESULTS_MAX {
        let others = rows.split_off(RESULTS_MAX - 1);
        let count = others.iter().map(|(_, count, _)| count).sum();
        rows.push((format!("{} others", others.len()), count, BAD));
    }
    for (name, count, style) in rows {
        let share = 100.0 * count as f64 / all.max(1) as f64;
        let cells = [Count(count).to_string(), format!("{share:.1}%")];
        table.row(name, cells.map(|text| Cell::new(text).style(style)));
    }
    table
}

fn style_of(status: u16) -> Style {
    match status {
        0..400 => Style::new(),
        400..500 => WARN,
        _ => BAD,
    }
}

/// Failures of requests that are not answers with a status.
fn failures(model: &Model) -> Vec<(String, u64)> {
    errors(model).into_iter().filter(|(cause, _)| cause != "status").collect()
}

fn errors(model: &Model) -> Vec<(String, u64)> {
    let named = model.now.errors.iter();
    named.map(|(cause, count)| (cause.replace('_', " "), *count)).collect()
}

/// The same in as few lines as possible.
fn results_lines(model: &Model, width: usize) -> Vec<Line<'static>> {
    let (name, results): (_, Vec<(String, u64)>) = match &model.requests {
        Some(requests) => {
            let statuses = requests.statuses.iter().map(|(status, n)| (status.to_string(), *n));
            (RESULTS, statuses.chain(failures(model)).collect())
        }
        None => (ERRORS, errors(model)),
    };
    let style = if name == ERRORS { BAD } else { Style::new() };
    let texts: Vec<String> =
        results.iter().map(|(cause, count)| format!("{cause} {}", Count(*count))).collect();
    if texts.is_empty() {
        return Vec::new();
    }
    let lines = packed(&texts, width.saturating_sub(NAME_WIDTH));
    let names = iter::once(named(name)).chain(iter::repeat(named("")));
    names.zip(lines).map(|(name, line)| Line::from(vec![name, Span::styled(line, style)])).collect()
}

fn named(name: &str) -> Span<'static> {
    Span::styled(format!("{name:NAME_WIDTH$}"), TITLE)
}

/// Memory and CPU of each process, with the memory per socket of runs that hold sockets.
fn processes(model: &Model) -> Table {
    let columns = [("memory", 6, 0), ("a socket", 6, 2), ("CPU", 4, 1)];
    let holds = model.requests.is_none();
    let mut table = match holds {
        true => Table::new(PROCESSES, &columns),
        false => Table::new(PROCESSES, &[columns[0], columns[2]]),
    };
    let rates = model.rates();
    let rss = |usage: Option<Usage>| usage.map(|usage| usage.rss_bytes);
    let each = |of: fn(&Sample) -> Option<u64>| model.bytes_per_socket(of);
    let server = each(|sample| sample.server.map(|usage| usage.rss_bytes));
    let client = each(|sample| sample.client.map(|usage| usage.rss_bytes));
    let kernel = model.kernel_bytes_per_socket();
    for (name, memory, each, cpu) in [
        ("server", rss(model.now.server), server, rates.server_cpu),
        ("client", rss(model.now.client), client, rates.client_cpu),
        ("kernel", kernel_bytes(model), kernel, None),
    ] {
        let Some(memory) = memory else { continue };
        let memory = Cell::new(Bytes(memory).to_string());
        let each = match name == "kernel" && model.is_kernel_implausible() {
            true => Cell::new(IMPLAUSIBLE).style(WARN),
            false => Cell::from(each.map(|bytes| Bytes(bytes).to_string())),
        };
        let cpu = cpu.map_or(Cell::default(), |cores| Cell::new(percent(cores)));
        if holds { table.row(name, [memory, each, cpu]) } else { table.row(name, [memory, cpu]) }
    }
    table
}

/// Growth of kernel memory, of runs that hold sockets. None is no measurement: other programs freed more.
fn kernel_bytes(model: &Model) -> Option<u64> {
    model.now.kernel_bytes.filter(|&bytes| bytes > 0 && model.requests.is_none())
}

fn percent(cores: f64) -> String {
    format!("{:.0}%", cores * 100.0)
}

/// The same in as few lines as possible.
fn processes_lines(model: &Model, width: usize) -> Vec<Line<'static>> {
    let rates = model.rates();
    let of = |name, usage: Option<Usage>, cpu: Option<f64>| {
        let memory = Bytes(usage?.rss_bytes);
        Some(match cpu {
            Some(cpu) => format!("{name} {memory}, {} CPU", percent(cpu)),
            None => format!("{name} {memory}"),
        })
    };
    let kernel = kernel_bytes(model);
    let texts: Vec<String> = [
        of("server", model.now.server, rates.server_cpu),
        of("client", model.now.client, rates.client_cpu),
        kernel.map(|bytes| match model.is_kernel_implausible() {
            true => format!("kernel {}, {IMPLAUSIBLE}", Bytes(bytes)),
            false => format!("kernel {}", Bytes(bytes)),
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    let names = iter::once(named(PROCESSES)).chain(iter::repeat(named("")));
    let lines = packed(&texts, width.saturating_sub(NAME_WIDTH));
    names.zip(lines).map(|(name, line)| Line::from(vec![name, Span::raw(line)])).collect()
}

/// The percentiles of the last second and so far.
fn latency(model: &Model) -> Table {
    type Pick = fn(&Latency) -> f64;
    const ALL: [((&str, usize, u8), Pick); 6] = [
        (("p50", 8, 1), |latency| latency.p50_ms),
        (("p90", 8, 5), |latency| latency.p90_ms),
        (("p95", 8, 4), |latency| latency.p95_ms),
        (("p99", 8, 0), |latency| latency.p99_ms),
        (("p99.9", 8, 3), |latency| latency.p999_ms),
        (("max", 8, 2), |latency| latency.max_ms),
    ];
    let Latencies { name, last_second, so_far, is_complete, .. } = &model.latency;
    let ms = |latency: &Option<Latency>, pick: Pick| {
        Cell::from(latency.as_ref().map(|latency| Milliseconds(pick(latency)).to_string()))
    };
    if !is_complete {
        let [p50, p99, max] = [ALL[0], ALL[3], ALL[5]];
        let mut table = Table::new(*name, &[p50.0, p99.0, max.0]);
        table.row("last second", [p50.1, p99.1, max.1].map(|pick| ms(last_second, pick)));
        return table;
    }
    let mut table = Table::new(*name, &ALL.map(|(column, _)| column));
    table.row("last second", ALL.map(|(_, pick)| ms(last_second, pick)));
    table.row("so far", ALL.map(|(_, pick)| ms(so_far, pick)));
    table
}

/// Wraps words into lines of at most `width`, unless one word is longer.
fn packed(words: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if count(line) + count(word) + 3 <= width => {
                *line += " · ";
                *line += word;
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}
