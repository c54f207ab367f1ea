//! `standfast prove`: holds as many WebSockets as asked on this machine, by itself, and says what
//! held. It judges the machine, starts `serve` and `load` as processes of their own, connects with
//! stops at round numbers to weigh memory, holds with heartbeats, broadcasts, and gives a verdict.

mod broadcast;
mod children;
mod result;
mod screen;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::sys::process::{self, Signal};
use host::{Count, Goal, KernelMemory, Machine, ProcessMemory, Role};

use self::children::{Load, Serve};
use self::result::{Measured, ProcessFigures, Proof};
use self::screen::Screen;
use crate::units;

/// Stops on the way up, as in the founding document's table.
const MARKS: [u64; 4] = [10_000, 100_000, 200_000, 500_000];
/// Longest wait for a broadcast to reach everybody.
const BROADCAST_WAIT: Duration = Duration::from_secs(30);
/// The topic every socket is subscribed to.
const TOPIC: &str = "prove";

/// Hold WebSockets on this machine and say what held
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Sockets to hold, such as 50k or 1M [default: what this machine holds, at most 1M]
    #[arg(long, value_name = "N", value_parser = units::count)]
    connections: Option<u64>,
    /// How long to hold them
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    hold: Duration,
    /// Each socket sends a ping once in this time and must get its pong
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    heartbeat: Duration,
    /// Messages published to all sockets, one after another
    #[arg(long, value_name = "N", default_value_t = 1)]
    broadcasts: u32,
    /// Write all figures as JSON to a file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Begin even though the machine seems too small
    #[arg(long)]
    force: bool,
}

/// Runs the proof. Exit code 0: held; 1: fell short; 2: could not begin; 130: Ctrl-C.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let json_to_stdout = args.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
    let mut screen = Screen::new(json_to_stdout);
    let (connections, machine) = preflight(args, &mut screen)?;
    let proof = Run::start(connections, &mut screen)?.measure(args, &mut screen)?;
    let proof = Proof::judge(proof, &machine);
    screen.verdict(&proof);
    if let Some(path) = &args.json {
        write_json(path, &proof)?;
    }
    Ok(match (proof.interrupted, proof.held()) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(1),
    })
}

/// Says which limit is too low and what to do, before anything is opened.
fn preflight(args: &Args, screen: &mut Screen) -> Result<(u64, Machine)> {
    host::raise_nofile().context("cannot read or raise this process's descriptor limit")?;
    let machine = Machine::read();
    let private_tables = process::private_tables_work();
    let goal = |connections| Goal { private_tables, ..Goal::new(Role::Prove, connections) };
    let asked = args.connections.unwrap_or(host::limits::CONNECTIONS_DEFAULT_MAX);
    let report = host::check(&machine, &goal(asked));
    let connections = match args.connections {
        Some(connections) => connections,
        None => report.suggested().min(asked),
    };
    if connections == 0 {
        bail!("{report}");
    }
    screen.machine(&machine);
    let report = host::check(&machine, &goal(connections));
    if !report.holds() && !args.force {
        bail!("{report}\nTo begin all the same, add --force.");
    }
    screen.note(&report.to_string());
    Ok((connections, machine))
}

fn write_json(path: &PathBuf, proof: &Proof) -> Result<()> {
    let text = serde_json::to_string_pretty(proof)?;
    if path.as_os_str() == "-" {
        println!("{text}");
        return Ok(());
    }
    std::fs::write(path, text + "\n")
        .with_context(|| format!("cannot write --json {}", path.display()))
}

/// A proof under way.
struct Run {
    serve: Serve,
    load: Load,
    measured: Measured,
    /// Kernel and system memory before anything was started.
    kernel_before: Option<KernelMemory>,
    began_ns: u64,
}

/// Ctrl-C, or a child that ended: the proof goes straight to its summary.
enum Stop {
    Interrupted,
    Broken(String),
}

impl Run {
    fn start(connections: u64, screen: &mut Screen) -> Result<Run> {
        let kernel_before = KernelMemory::read().ok();
        let serve = Serve::start(connections)?;
        let load = Load::start(&serve.url(TOPIC), connections)?;
        screen.note(&format!(
            "serve is process {}, load is process {}; {} sockets to open on {}",
            serve.pid(),
            load.pid(),
            Count(connections),
            serve.url(TOPIC)
        ));
        let mut measured = Measured::new(connections);
        measured.server.start = ProcessMemory::of(serve.pid()).ok();
        measured.client.start = ProcessMemory::of(load.pid()).ok();
        Ok(Run { serve, load, measured, kernel_before, began_ns: process::now_ns() })
    }

    /// All phases in order; whatever stops them, what was measured is kept.
    fn measure(mut self, args: &Args, screen: &mut Screen) -> Result<Measured> {
        let phases = self
            .connect(screen)
            .and_then(|()| self.hold(args, screen))
            .and_then(|()| self.broadcast(args, screen));
        match phases {
            Ok(()) => {}
            Err(Stop::Interrupted) => self.measured.interrupted = true,
            Err(Stop::Broken(why)) => self.measured.broken.push(why),
        }
        self.finish(screen);
        Ok(self.measured)
    }

    /// Opens sockets up to each mark and weighs memory there.
    fn connect(&mut self, screen: &mut Screen) -> Result<(), Stop> {
        let requested = self.measured.requested;
        let marks = MARKS.iter().copied().filter(|&mark| mark < requested);
        for mark in marks.chain([requested]).collect::<Vec<_>>() {
            let began_ns = process::now_ns();
            self.load.target(mark)?;
            loop {
                self.check_signals()?;
                let progress = self.load.progress(Duration::from_millis(250))?;
                screen.connecting(self.elapsed(), requested, progress, &self.weigh_processes());
                if progress.reached(mark) {
                    break;
                }
            }
            self.measured.connect_seconds += (process::now_ns() - began_ns) as f64 / 1e9;
            self.mark(mark, screen);
        }
        let progress = self.load.last_progress();
        self.measured.failed = progress.failed;
        screen.connected(&self.measured, progress);
        Ok(())
    }

    fn mark(&mut self, connections: u64, screen: &mut Screen) {
        let (server, client) = self.weigh_processes();
        let kernel_bytes = self.kernel_growth();
        let mark = result::Mark {
            connections,
            server_rss_bytes: server.map_or(0, |memory| memory.rss_bytes),
            client_rss_bytes: client.map_or(0, |memory| memory.rss_bytes),
            kernel_bytes,
        };
        screen.mark(&mark);
        self.measured.marks.push(mark);
    }

    /// Keeps the sockets open for the time asked, and until each has answered a heartbeat.
    fn hold(&mut self, args: &Args, screen: &mut Screen) -> Result<(), Stop> {
        if !args.heartbeat.is_zero() {
            self.load.heartbeat(args.heartbeat)?;
        }
        let began_ns = process::now_ns();
        let hold = args.hold.as_secs_f64();
        // Every socket gets its turn within one period; a pong may take some seconds more.
        let longest = hold.max(args.heartbeat.as_secs_f64() + 10.0);
        loop {
            self.check_signals()?;
            let progress = self.load.progress(Duration::from_millis(250))?;
            let held = (process::now_ns() - began_ns) as f64 / 1e9;
            screen.holding(self.elapsed(), held, hold, progress, &self.weigh_processes());
            let answered = progress.heartbeats_received > 0 && progress.unanswered == 0;
            let waits = !answered && !args.heartbeat.is_zero();
            if held >= longest || (held >= hold && !waits) {
                break;
            }
        }
        self.measured.hold_seconds = (process::now_ns() - began_ns) as f64 / 1e9;
        let progress = self.load.last_progress();
        self.measured.open = progress.open;
        self.measured.unanswered = progress.unanswered;
        let (server, client) = self.weigh_processes();
        self.measured.server.held = server;
        self.measured.client.held = client;
        self.measured.kernel_growth = self.kernel_growth();
        self.measured.system_growth = self.system_growth();
        screen.held(&self.measured, progress);
        Ok(())
    }

    /// Publishes to all sockets, each message when the one before has arrived everywhere.
    fn broadcast(&mut self, args: &Args, screen: &mut Screen) -> Result<(), Stop> {
        if args.broadcasts == 0 {
            return Ok(());
        }
        // What is timed now is the broadcast alone.
        self.load.heartbeat(Duration::ZERO)?;
        let open = self.load.last_progress().open;
        self.load.expect(broadcast::PUBLISHER, args.broadcasts)?;
        for sequence in 0..args.broadcasts {
            let began_ns = process::now_ns();
            let admin = self.serve.admin();
            let took = broadcast::publish(admin, TOPIC, sequence)
                .map_err(|error| Stop::Broken(format!("publishing failed: {error:#}")))?;
            self.measured.publish_seconds.push(took.as_secs_f64());
            loop {
                self.check_signals()?;
                let progress = self.load.progress(Duration::from_millis(250))?;
                screen.broadcasting(self.elapsed(), sequence, open, progress);
                let everywhere = progress.broadcast_received >= open * u64::from(sequence + 1);
                let waited = process::now_ns() - began_ns;
                if everywhere || u128::from(waited) > BROADCAST_WAIT.as_nanos() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes the last figures and ends both processes.
    fn finish(&mut self, screen: &mut Screen) {
        let (server, client) = self.weigh_processes();
        self.measured.server.end = server;
        self.measured.client.end = client;
        self.measured.seconds = self.elapsed();
        screen.note("closing");
        match self.load.finish() {
            Ok(summary) => self.measured.load = Some(summary),
            Err(why) => self.measured.broken.push(why),
        }
        self.serve.stop();
    }

    fn elapsed(&self) -> f64 {
        (process::now_ns() - self.began_ns) as f64 / 1e9
    }

    fn weigh_processes(&self) -> ProcessFigures {
        (ProcessMemory::of(self.serve.pid()).ok(), ProcessMemory::of(self.load.pid()).ok())
    }

    /// How much more memory the kernel uses for itself than before the proof.
    fn kernel_growth(&self) -> Option<u64> {
        let now = KernelMemory::read().ok()?;
        Some(now.total().saturating_sub(self.kernel_before?.total()))
    }

    /// How much less memory is available to anybody than before the proof.
    fn system_growth(&self) -> Option<u64> {
        let now = KernelMemory::read().ok()?;
        Some(self.kernel_before?.available_bytes.saturating_sub(now.available_bytes))
    }

    fn check_signals(&mut self) -> Result<(), Stop> {
        if matches!(
            process::wait_signal(Duration::ZERO),
            Some(Signal::Interrupt | Signal::Terminate)
        ) {
            return Err(Stop::Interrupted);
        }
        match self.serve.ended() {
            Some(how) => Err(Stop::Broken(format!("serve ended in the middle of it: {how}"))),
            None => Ok(()),
        }
    }
}
