//! A scenario with `[[cells]]`: the reference experiment for load balancers (nginx, 2014). Each cell
//! runs through `standfast proxy`, nginx and HAProxy in turn, each freshly started, and the results
//! are shown side by side. The verdict is on `standfast proxy`; the others are for comparison.

mod cell;
mod cell_run;
mod competitor;
mod table;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use capacity::{Goal, Machine, Role};
use engine::sys::process;
use serde::Serialize;

pub(super) use self::cell::{Cell, Table};
use self::cell_run::Figures;
use self::competitor::Installed;
pub(super) use self::competitor::{Competitor, in_path};
use super::Args;
use super::phases::Stop;
use super::plan::Plan;
use super::screen::Screen;
use crate::output;

/// Memory allowed for `standfast proxy`: a base in bytes, and bytes per tunnel.
const RSS_BASE: u64 = 32 << 20;
const RSS_PER_TUNNEL: u64 = 200;

const HELD: &str = "HELD";
const FELL_SHORT: &str = "FELL SHORT";
const INTERRUPTED: &str = "INTERRUPTED";
/// `standfast proxy` was not among the proxies.
const NOT_JUDGED: &str = "NOT JUDGED";

/// Returns the resident memory allowed for `standfast proxy`, in bytes.
fn allowed(cell: &Cell) -> u64 {
    RSS_BASE + RSS_PER_TUNNEL * cell.tunnels
}

/// The JSON result of the experiment.
#[derive(Serialize)]
struct Experiment {
    version: u32,
    standfast: &'static str,
    command: String,
    scenario: Option<String>,
    machine: Machine,
    proxies: Vec<ProxyResult>,
    cells: Vec<CellResult>,
    verdict: &'static str,
    reasons: Vec<String>,
}

/// A proxy that was requested.
#[derive(Serialize)]
struct ProxyResult {
    name: &'static str,
    /// Null if it is not installed.
    version: Option<String>,
    #[serde(skip)]
    competitor: Competitor,
    #[serde(skip)]
    installed: Result<Installed, String>,
}

#[derive(Serialize)]
struct CellResult {
    name: String,
    tunnels: u64,
    size: usize,
    /// Exactly one of these two is set.
    every_seconds: Option<f64>,
    messages_per_connection: Option<u32>,
    hold_seconds: f64,
    passes: Vec<Pass>,
    #[serde(skip)]
    cell: Cell,
}

/// One cell through one proxy.
#[derive(Serialize)]
struct Pass {
    proxy: &'static str,
    /// Null if it could not be measured.
    figures: Option<Figures>,
    /// Why it was not measured.
    #[serde(rename = "left_out")]
    skipped: Option<String>,
    #[serde(skip)]
    competitor: Competitor,
}

/// Runs every cell. Exit code 0 if `standfast proxy` held all, 1 if not, 130 after Ctrl-C.
///
/// # Errors
/// Limits that are too low, and results that cannot be written.
pub(super) fn run(args: &Args, plan: &Plan, mut screen: Screen) -> Result<ExitCode> {
    let machine = preflight(plan, args.force, &mut screen)?;
    let mut experiment = Experiment {
        version: 1,
        standfast: env!("CARGO_PKG_VERSION"),
        command: output::command_line(),
        scenario: plan.scenario.clone(),
        proxies: plan.proxies.iter().map(|&competitor| ProxyResult::look(competitor)).collect(),
        cells: Vec::new(),
        verdict: INTERRUPTED,
        reasons: Vec::new(),
        machine,
    };
    let whole = experiment.measure(plan, &mut screen);
    experiment.judge(whole);
    screen.end();
    let text = table::text(&experiment);
    match args.json.as_deref() == Some(output::STDOUT) {
        true => output::print_to_stderr(&text),
        false => output::print(&text)?,
    }
    if let Some(file) = &args.json {
        output::write_json(file, &experiment)?;
    }
    if let Some(file) = &args.html {
        table::page(&experiment, plan).write(file)?;
        output::note(&format!("report: {file}"));
    }
    Ok(match experiment.verdict {
        HELD | NOT_JUDGED => ExitCode::SUCCESS,
        FELL_SHORT => ExitCode::from(1),
        _ => ExitCode::from(130),
    })
}

/// Checks the machine's limits before anything is opened.
fn preflight(plan: &Plan, force: bool, screen: &mut Screen) -> Result<Machine> {
    capacity::raise_nofile().context("cannot read or raise this process's descriptor limit")?;
    let machine = Machine::read();
    screen.machine(&machine);
    if let Some(about) = &plan.about {
        screen.note(&format!("{}: {about}", plan.scenario.as_deref().unwrap_or("scenario")));
    }
    let tunnels = plan.cells.iter().map(|cell| cell.tunnels).max().unwrap_or(0);
    // Client, both legs, server: the four sockets of two connections.
    let connections = 2 * tunnels;
    let private_tables = process::private_tables_work();
    let goal = Goal { private_tables, ..Goal::new(Role::Prove, connections) };
    let report = capacity::check(&machine, &goal);
    if !report.holds() && !force {
        bail!(
            "{report}\nA tunnel with both ends on this machine is two connections. Select smaller cells with \
             --cells NAME,…; to start anyway, add --force."
        );
    }
    Ok(machine)
}

impl ProxyResult {
    fn look(competitor: Competitor) -> ProxyResult {
        let name = competitor.name();
        let missing = || format!("{name} is not installed (Debian: apt-get install {name})");
        let installed = competitor.find().ok_or_else(missing);
        let version = installed.as_ref().ok().map(|installed| installed.version.clone());
        ProxyResult { name, version, competitor, installed }
    }

    /// Runs one cell. Returns `None` if interrupted.
    fn pass(&self, cell: &Cell, plan: &Plan, machine: &Machine) -> Option<Pass> {
        let measured = self.installed.as_ref().map_err(Clone::clone).and_then(|installed| {
            let workers = self.competitor.workers(cell.tunnels, machine.files.table())?;
            Ok((installed, workers))
        });
        let measured = match measured {
            Ok((installed, workers)) => {
                match cell_run::run(cell, self.competitor, installed, workers, plan, machine) {
                    Ok(figures) => Ok(figures),
                    Err(Stop::Broken(why)) => Err(why),
                    Err(Stop::Interrupted) => return None,
                    Err(Stop::Incomplete) => Err("an agent is lost".to_owned()),
                }
            }
            Err(why) => Err(why),
        };
        let (figures, skipped) = match measured {
            Ok(figures) => (Some(figures), None),
            Err(why) => (None, Some(why)),
        };
        Some(Pass { proxy: self.name, figures, skipped, competitor: self.competitor })
    }
}

impl Experiment {
    /// Runs all cells; returns false if interrupted.
    fn measure(&mut self, plan: &Plan, screen: &mut Screen) -> bool {
        for proxy in &self.proxies {
            screen.note(&match &proxy.installed {
                Ok(installed) => format!("{} {}", proxy.name, installed.version),
                Err(why) => format!("{why}: skipped"),
            });
        }
        for (at, cell) in plan.cells.iter().enumerate() {
            let mut result = CellResult::new(cell);
            for proxy in &self.proxies {
                let Some(pass) = proxy.pass(cell, plan, &self.machine) else {
                    self.cells.push(result);
                    return false;
                };
                let (number, all) = (at + 1, plan.cells.len());
                screen.note(&format!("{number:>3} of {all}  {}", table::line(cell, &pass)));
                result.passes.push(pass);
            }
            self.cells.push(result);
        }
        true
    }

    /// Judges `standfast proxy`: no loss and no more memory than allowed in every cell.
    fn judge(&mut self, whole: bool) {
        let ours = |cell: &CellResult| {
            let mut passes = cell.passes.iter();
            let pass = passes.find(|pass| pass.competitor == Competitor::Standfast)?;
            Some((cell.cell.clone(), pass.shortfalls(&cell.cell)))
        };
        let judged: Vec<_> = self.cells.iter().filter_map(ours).collect();
        let each = |(cell, shortfalls): &(Cell, Vec<String>)| {
            let name = cell.name();
            shortfalls.iter().map(|why| format!("{name}: {why}")).collect::<Vec<_>>()
        };
        self.reasons = judged.iter().flat_map(each).collect();
        self.verdict = match (whole, self.reasons.is_empty()) {
            (false, _) => INTERRUPTED,
            (true, _) if judged.is_empty() => NOT_JUDGED,
            (true, true) => HELD,
            (true, false) => FELL_SHORT,
        };
        if !whole {
            self.reasons.push("interrupted before the end".to_owned());
        }
    }
}

impl CellResult {
    fn new(cell: &Cell) -> CellResult {
        let (every_seconds, messages_per_connection) = match cell.traffic {
            cell::Traffic::Every(every) => (Some(every.as_secs_f64()), None),
            cell::Traffic::BackToBack(messages) => (None, Some(messages)),
        };
        CellResult {
            name: cell.name(),
            tunnels: cell.tunnels,
            size: cell.size,
            every_seconds,
            messages_per_connection,
            hold_seconds: cell.hold.as_secs_f64(),
            passes: Vec::new(),
            cell: cell.clone(),
        }
    }
}

impl Pass {
    /// Returns why the cell fell short.
    fn shortfalls(&self, cell: &Cell) -> Vec<String> {
        let Some(figures) = &self.figures else {
            return self.skipped.iter().cloned().collect();
        };
        let missing = cell.tunnels.saturating_sub(figures.open);
        let counts = [
            (figures.failed, "connections failed to open"),
            (figures.closed.values().sum(), "tunnels were closed early"),
            (missing.saturating_sub(figures.failed), "tunnels are not open at the end"),
            (figures.lost, "messages were not answered"),
            (figures.duplicated, "answers were duplicated"),
            (figures.reordered, "answers arrived out of order"),
            (figures.corrupted, "answers did not match a message that was sent"),
        ];
        let some = counts.into_iter().filter(|(count, _)| *count > 0);
        let mut reasons: Vec<String> =
            some.map(|(count, what)| format!("{} {what}", capacity::Count(count))).collect();
        if figures.received == 0 {
            reasons.push("no message was echoed".to_owned());
        }
        let allowed = allowed(cell);
        if figures.rss_bytes > allowed {
            let (took, allowed) = (capacity::Bytes(figures.rss_bytes), capacity::Bytes(allowed));
            reasons.push(format!("{took} resident, more than {allowed}"));
        }
        reasons
    }
}
