//! The table of the reference experiment: text with the proxies of each cell below each other, and an
//! HTML report with the proxies side by side.

use capacity::{Bytes, Count};

use super::cell::{Cell, Traffic};
use super::cell_run::Figures;
use super::competitor::Competitor;
use super::{CellResult, Experiment, Pass, RSS_BASE, RSS_PER_TUNNEL};
use crate::commands::prove::plan::Plan;
use crate::report::{self, Report, Rows, Timings};
use crate::units::format_duration;
use load::SampleSeries;

/// Results of the reference experiment, for comparison.
const REFERENCE: &str = "\
Reference experiment (nginx 1.7, 2014, six workers on another machine): 50,000 tunnels in less than 1 GB and
less than one core; memory per connection did not depend on size and rate; under load it grew by less than
15 % from 1 B to 4,096 B. Its exact figures were published as images only.";

/// Formats the result of one cell through one proxy as a line.
pub(super) fn line(cell: &Cell, pass: &Pass) -> String {
    let name = format!("{}, {}", cell.name(), pass.proxy);
    match &pass.figures {
        Some(figures) => {
            let [resident, each, cores, _, messages, failures] = values(figures);
            format!(
                "{name}: {resident}, {each} per tunnel, {cores} cores, {messages} echoed, {failures} failures"
            )
        }
        None => format!("{name}: {}", pass.skipped.as_deref().unwrap_or_default()),
    }
}

/// Formats memory, memory per tunnel, CPU, connections, messages and failures.
fn values(figures: &Figures) -> [String; 6] {
    [
        Bytes(figures.rss_bytes).to_string(),
        format!("{} B", Count(figures.rss_bytes_per_tunnel.round() as u64)),
        format!("{:.3}", figures.cpu_cores),
        Count(figures.opened).to_string(),
        Count(figures.received).to_string(),
        Count(figures.failures()).to_string(),
    ]
}

/// Formats the verdict and the table.
pub(super) fn text(experiment: &Experiment) -> String {
    let mut text = format!("\n{}: {}\n\n", experiment.verdict, sentence(experiment));
    experiment.reasons.iter().for_each(|reason| text += &format!("  ! {reason}\n"));
    if !experiment.reasons.is_empty() {
        text.push('\n');
    }
    let heads = ["tunnels", "message", "pace", "proxy"];
    let values = ["resident", "per tunnel", "cores", "opened", "echoed", "failures"];
    text += &row(heads.map(str::to_owned), values.map(str::to_owned));
    for cell in &experiment.cells {
        let mut named = named(&cell.cell);
        for pass in &cell.passes {
            let [tunnels, size, pace] = std::mem::take(&mut named);
            text += &match &pass.figures {
                Some(figures) => {
                    row([tunnels, size, pace, pass.proxy.to_owned()], self::values(figures))
                }
                None => {
                    let why = pass.skipped.as_deref().unwrap_or_default();
                    format!("  {tunnels:>8} {size:>8} {pace:>7}  {:<10} {why}\n", pass.proxy)
                }
            };
        }
    }
    let growths = growths(&experiment.cells);
    if !growths.is_empty() {
        text += "\n  resident memory with the largest messages compared to the smallest:\n";
    }
    for growth in growths {
        let each = growth.each.iter().map(|(proxy, percent)| format!("{proxy} {percent}"));
        let each: Vec<String> = each.collect();
        text += &format!("  {}: {}\n", growth.of.join(", "), each.join(", "));
    }
    text += &format!("\n  {}\n", REFERENCE.replace('\n', "\n  "));
    text
}

fn row([tunnels, size, pace, proxy]: [String; 4], values: [String; 6]) -> String {
    let [resident, each, cores, opened, messages, failures] = values;
    format!(
        "  {tunnels:>8} {size:>8} {pace:>7}  {proxy:<10} {resident:>9} {each:>10} {cores:>7} {opened:>8} \
         {messages:>10} {failures:>9}\n"
    )
}

fn sentence(experiment: &Experiment) -> String {
    let cells = experiment.cells.len();
    format!(
        "{cells} cells; standfast proxy must lose nothing and use at most {} MiB + {RSS_PER_TUNNEL} B per tunnel",
        RSS_BASE >> 20
    )
}

fn named(cell: &Cell) -> [String; 3] {
    let pace = match cell.traffic {
        Traffic::Every(time) => format_duration(time),
        Traffic::BackToBack(messages) => format!("{} each", Count(messages.into())),
    };
    [Count(cell.tunnels).to_string(), format!("{} B", Count(cell.size as u64)), pace]
}

/// Growth of each proxy's memory from the smallest messages to the largest.
struct Growth {
    /// Tunnels, sizes, pace.
    of: [String; 3],
    /// Proxy and percentage.
    each: Vec<(&'static str, String)>,
}

/// Returns the growth for each group of cells that differ in message size only.
fn growths(cells: &[CellResult]) -> Vec<Growth> {
    let mut groups: Vec<Vec<&CellResult>> = Vec::new();
    for result in cells {
        let like = |one: &&CellResult| {
            one.tunnels == result.tunnels && one.cell.traffic == result.cell.traffic
        };
        match groups.iter_mut().find(|group| group.iter().any(like)) {
            Some(group) => group.push(result),
            None => groups.push(vec![result]),
        }
    }
    groups.iter().filter_map(|group| growth(group)).collect()
}

fn growth(group: &[&CellResult]) -> Option<Growth> {
    let least = group.iter().min_by_key(|result| result.size)?;
    let most = group.iter().max_by_key(|result| result.size)?;
    let rss = |pass: &Pass| pass.figures.as_ref().map(|figures| figures.rss_bytes as f64);
    let one = |pass: &Pass| {
        let larger = most.passes.iter().find(|other| other.competitor == pass.competitor)?;
        let grown = rss(larger)? / rss(pass)? - 1.0;
        Some((pass.proxy, format!("{:+.1} %", 100.0 * grown)))
    };
    let each: Vec<_> = least.passes.iter().filter_map(one).collect();
    let [tunnels, from, pace] = named(&least.cell);
    let [_, to, _] = named(&most.cell);
    let of = [format!("{tunnels} tunnels"), format!("{from} to {to}"), pace];
    (least.size < most.size && !each.is_empty()).then_some(Growth { of, each })
}

/// Returns the HTML report.
pub(super) fn page<'a>(experiment: &'a Experiment, plan: &Plan) -> Report<'a> {
    Report {
        title: format!("Scenario {}", experiment.scenario.as_deref().unwrap_or_default()),
        verdict: (experiment.verdict, experiment.verdict == super::HELD),
        result: sentence(experiment),
        reasons: &experiment.reasons,
        scope: None,
        tiles: Vec::new(),
        timings: Timings::default(),
        figures: figures(experiment),
        tables: tables(experiment),
        bars: Vec::new(),
        timeline: None,
        configuration: configuration(experiment, plan),
        series: &NO_SERIES,
        machine: &experiment.machine,
        command: experiment.command.clone(),
    }
}

/// The report has no charts over time.
static NO_SERIES: SampleSeries = SampleSeries::EMPTY;

fn side_by_side(
    experiment: &Experiment,
    title: &'static str,
    value: fn(&Figures) -> String,
) -> report::Table {
    let mut heads = vec!["tunnels", "message", "pace"];
    heads.extend(experiment.proxies.iter().map(|proxy| proxy.name));
    let row = |cell: &CellResult| {
        let of = |pass: &Pass| pass.figures.as_ref().map_or("skipped".to_owned(), value);
        named(&cell.cell).into_iter().chain(cell.passes.iter().map(of)).collect()
    };
    let rows = experiment.cells.iter().map(row).collect();
    report::Table { title, heads, rows, texts: &[1, 2] }
}

/// Returns the maximum memory of `standfast proxy` and the reference figures.
fn figures(experiment: &Experiment) -> Rows {
    let ours = |cell: &CellResult| {
        let mut passes = cell.passes.iter();
        let pass = passes.find(|pass| pass.competitor == Competitor::Standfast)?;
        Some((pass.figures.as_ref()?.rss_bytes, super::allowed(&cell.cell)))
    };
    let most = experiment.cells.iter().filter_map(ours).max();
    let most = most.map(|(rss, allowed)| {
        let memory = format!("{} of {} allowed", Bytes(rss), Bytes(allowed));
        ("standfast, maximum resident", memory)
    });
    let reference = [
        ("nginx 1.7, 2014: 50,000 idle", "< 1 GB, < 1 core".to_owned()),
        ("nginx 1.7, 2014: 1 B to 4,096 B", "< 15 % more memory".to_owned()),
    ];
    let rows = most.into_iter().chain(reference);
    rows.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn tables(experiment: &Experiment) -> Vec<report::Table> {
    let figure = |title, value: fn(&Figures) -> String| side_by_side(experiment, title, value);
    let mut tables = vec![
        figure("Resident memory", |figures| Bytes(figures.rss_bytes).to_string()),
        figure("Memory per tunnel", |figures| values(figures)[1].clone()),
        figure("CPU in cores while messages are sent", |figures| values(figures)[2].clone()),
        figure("CPU per round trip", |figures| {
            figures.cpu_us_per_message.map_or("–".to_owned(), |us| format!("{us:.1} µs"))
        }),
        figure("Messages echoed", |figures| values(figures)[4].clone()),
        figure("Failures", |figures| values(figures)[5].clone()),
        figure("Round trip, p99", |figures| {
            figures.p99_ms.map_or("not measured".to_owned(), |ms| format!("{ms:.1} ms"))
        }),
    ];
    let growths = growths(&experiment.cells).into_iter().flat_map(|growth| {
        let Growth { of: [tunnels, sizes, pace], each } = growth;
        each.into_iter().map(move |(proxy, percent)| {
            vec![tunnels.clone(), sizes.clone(), pace.clone(), proxy.to_owned(), percent]
        })
    });
    tables.push(report::Table {
        title: "Growth of resident memory from the smallest messages to the largest",
        heads: vec!["tunnels", "messages", "pace", "proxy", "growth"],
        rows: growths.collect(),
        texts: &[1, 2, 3],
    });
    let skipped = experiment.cells.iter().flat_map(|cell| {
        cell.passes.iter().filter_map(|pass| {
            Some(vec![cell.name.clone(), pass.proxy.to_owned(), pass.skipped.clone()?])
        })
    });
    tables.push(report::Table {
        title: "Left out",
        heads: vec!["cell", "proxy", "why"],
        rows: skipped.collect(),
        texts: &[1, 2],
    });
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn configuration(experiment: &Experiment, plan: &Plan) -> Rows {
    let seen = experiment.proxies.iter().map(|seen| {
        let version = seen.version.clone().unwrap_or("not installed".to_owned());
        (seen.name.to_owned(), version)
    });
    let mut rows: Rows = seen.collect();
    if !plan.serve.is_empty() {
        rows.push(("further flags of serve".to_owned(), plan.serve.join(" ")));
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn result(size: usize, rss: [Option<u64>; 2]) -> CellResult {
        let traffic = Traffic::Every(Duration::from_secs(1));
        let cell = Cell { tunnels: 100, size, traffic, hold: Duration::from_secs(5) };
        let pass = |(competitor, rss): (Competitor, Option<u64>)| Pass {
            proxy: competitor.name(),
            figures: rss.map(|rss_bytes| Figures { rss_bytes, received: 9, ..Figures::default() }),
            skipped: rss.is_none().then(|| "cannot hold it".to_owned()),
            competitor,
        };
        let mut result = CellResult::new(&cell);
        result.passes =
            [Competitor::Standfast, Competitor::Nginx].into_iter().zip(rss).map(pass).collect();
        result
    }

    #[test]
    fn growth_compares_cells_that_differ_in_size_only() {
        let cells = [result(10, [Some(100), Some(200)]), result(4_096, [Some(101), Some(300)])];
        let growths_found = growths(&cells);
        assert_eq!(growths_found.len(), 1);
        assert_eq!(growths_found[0].of, ["100 tunnels", "10 B to 4,096 B", "1s"]);
        let each = |growth: &Growth| {
            growth
                .each
                .iter()
                .map(|(proxy, percent)| format!("{proxy} {percent}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(each(&growths_found[0]), ["standfast +1.0 %", "nginx +50.0 %"]);
        assert!(growths(&cells[..1]).is_empty());
        let missing = [result(10, [Some(100), None]), result(20, [Some(100), Some(7)])];
        assert_eq!(each(&growths(&missing)[0]), ["standfast +0.0 %"]);
    }

    #[test]
    fn a_skipped_proxy_has_its_reason() {
        let cell = result(10, [Some(100), None]);
        assert!(line(&cell.cell, &cell.passes[0]).contains("9 echoed, 0 failures"));
        assert!(line(&cell.cell, &cell.passes[1]).ends_with("nginx: cannot hold it"));
    }

    #[test]
    fn shortfalls_are_named() {
        let cell = result(10, [Some(RSS_BASE + 100 * RSS_PER_TUNNEL), None]);
        let mut pass = cell.passes.into_iter().next().unwrap();
        pass.figures.as_mut().unwrap().open = 100;
        assert!(pass.shortfalls(&cell.cell).is_empty());
        pass.figures.as_mut().unwrap().rss_bytes += 1;
        pass.figures.as_mut().unwrap().lost = 2;
        let reasons = pass.shortfalls(&cell.cell).join("; ");
        assert!(
            reasons.contains("2 messages") && reasons.contains("resident, more than"),
            "{reasons}"
        );
    }
}
