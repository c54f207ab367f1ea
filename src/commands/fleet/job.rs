//! [`Job`]: one run on an agent, from its plan to its result. The load runs in a process of its own, which ends
//! with the agent, is kept within its folder and has no environment.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capacity::Bytes;
use engine::sys::process::now_ns;
use load::control::{Command as Control, Event};
use load::files::{self, is_below};

use super::fixtures::Captures;
use super::message::{Plan, Says};
use super::{FILES_MAX, own_file, sha256};
use crate::commands::load::share::{Order, Report, Spec};

/// The most of what the load writes to standard error that is kept, in bytes.
const ERROR_BYTES: u64 = 8 * 1024;
/// What errors begin with: those of a command, of its flags, and of the parser of flags.
const ERRORS: [&str; 3] = ["standfast: ", "standfast load: ", "error: "];
/// Of a load that does not say why.
const UNEXPECTED: &str = "its load ended unexpectedly";
/// Bytes of a message beside what a setup captured, at most.
const MESSAGE_HEAD: usize = 512;
/// Orders that wait for a load to read them, at most.
const ORDERS_MAX: usize = 64;
/// How long a load that runs may say nothing.
const SILENCE: Duration = Duration::from_secs(30);

/// What agents grant to runs.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// Targets beside loopback.
    pub(super) targets: Vec<String>,
    /// Bytes of files.
    pub(super) files_max: u64,
}

pub(super) struct Job {
    pub(super) plan: Plan,
    folder: PathBuf,
    grant: Grant,
    /// Contents of the files that have arrived.
    files: Vec<Vec<u8>>,
    child: Option<Child>,
    /// To the thread that writes them, as a load that is stopped or hangs reads nothing.
    orders: Option<SyncSender<Vec<u8>>>,
    lines: Option<Receiver<Line>>,
    /// Why the load ended after its result.
    end: Option<String>,
    /// When the load last said something.
    said_ns: u64,
    /// When the leader was last heard.
    pub(super) heard_ns: u64,
    rows: u64,
    /// Of a controlled run: commands that were passed on and taken, reports, and the latest event of each kind.
    passed: u64,
    taken: u64,
    reports: u64,
    events: Vec<(u64, Event)>,
    /// By how much it began late, once it has begun.
    late_us: Option<u64>,
    /// What the agent repeats until the leader goes on.
    pub(super) state: Says,
    pub(super) result: Vec<u8>,
}

enum Line {
    Report(Report),
    /// It has ended; what it wrote to standard error.
    End(String),
}

impl Job {
    pub(super) fn new(plan: Plan, folder: &Path, grant: &Grant) -> Job {
        let heard_ns = now_ns();
        let folder = folder.join(&plan.run);
        let mut job = Job {
            plan,
            folder,
            grant: grant.clone(),
            files: Vec::new(),
            child: None,
            orders: None,
            lines: None,
            end: None,
            said_ns: heard_ns,
            heard_ns,
            rows: 0,
            passed: 0,
            taken: 0,
            reports: 0,
            events: Vec::new(),
            late_us: None,
            state: Says::Want { file: 0, offset: 0 },
            result: Vec::new(),
        };
        if let Err(error) = job.check() {
            job.state = Says::Refused { why: format!("{error:#}") };
        } else {
            job.go_on();
        }
        job
    }

    fn check(&self) -> Result<()> {
        let (mine, theirs) = (super::message::version(), &self.plan.version);
        if *theirs != mine {
            bail!("the leader has version {theirs}, this agent {mine}: install the same release");
        }
        let files = &self.plan.files;
        let total: u64 = files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
        if files.len() > FILES_MAX {
            bail!("{} files: it takes at most {FILES_MAX}", files.len());
        }
        if total > self.grant.files_max {
            let most = Bytes(self.grant.files_max);
            bail!("{} files of {}: it takes {most} (--files-max)", files.len(), Bytes(total));
        }
        for file in files {
            if !is_below(Path::new(&file.path)) {
                bail!("{}: files must be below the folder of the run", file.path);
            }
        }
        Ok(())
    }

    /// Takes a piece of a file. Returns `false` if it is not the next one.
    pub(super) fn piece(&mut self, file: usize, offset: usize, bytes: &[u8]) -> bool {
        let Says::Want { file: wanted, offset: at } = self.state else { return false };
        let Some(entry) = self.plan.files.get(file) else { return false };
        if (file, offset) != (wanted, at) || bytes.is_empty() {
            return false;
        }
        if (at as u64).saturating_add(bytes.len() as u64) > entry.bytes {
            self.state = Says::Refused { why: format!("{}: longer than announced", entry.path) };
            return true;
        }
        if self.files.len() <= file {
            self.files.push(Vec::new());
        }
        if let Some(content) = self.files.last_mut() {
            content.extend_from_slice(bytes);
            self.state = Says::Want { file, offset: content.len() };
        }
        self.go_on();
        true
    }

    /// Wants the next bytes, or starts the load if all files are there.
    fn go_on(&mut self) {
        while let Says::Want { file, offset } = self.state
            && let Some(entry) = self.plan.files.get(file)
            && offset as u64 >= entry.bytes
        {
            let content = self.files.get(file).map(Vec::as_slice).unwrap_or_default();
            if sha256(content) != entry.sha256 {
                self.state = Says::Refused { why: format!("{}: wrong SHA-256", entry.path) };
                return;
            }
            if self.files.len() <= file {
                self.files.push(Vec::new());
            }
            self.state = Says::Want { file: file + 1, offset: 0 };
        }
        if let Says::Want { file, .. } = self.state
            && file >= self.plan.files.len()
            && self.child.is_none()
            && let Err(error) = self.start()
        {
            self.state = Says::Refused { why: format!("{error:#}") };
        }
    }

    fn start(&mut self) -> Result<()> {
        fs::DirBuilder::new().mode(0o700).create(&self.folder).context("the folder of the run")?;
        for (entry, content) in self.plan.files.iter().zip(&self.files) {
            let path = self.folder.join(&entry.path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).context("a folder of files")?;
            }
            fs::write(&path, content).with_context(|| format!("cannot write {}", entry.path))?;
        }
        self.files = Vec::new();
        let spec = Spec {
            nth: self.plan.nth,
            of: self.plan.of,
            seed: self.plan.seed,
            allow: self.grant.targets.clone(),
        };
        let share = format!("--agent-share={}", serde_json::to_string(&spec)?);
        let mut command = Command::new(own_file()?);
        command.arg("load").arg(share).args(&self.plan.words).current_dir(&self.folder);
        command.env_clear().env(files::CONFINED, "1").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("the load")?;
        let (input, output, error) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // The load is killed with the job whatever fails.
        self.child = Some(child);
        let (orders, waiting) = mpsc::sync_channel::<Vec<u8>>(ORDERS_MAX);
        std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
            let Some(mut input) = input else { return };
            // A load that has ended is noticed by its output.
            while let Ok(line) = waiting.recv()
                && input.write_all(&line).is_ok()
            {}
        })?;
        let (lines, receiver) = mpsc::sync_channel(64);
        std::thread::Builder::new().name("load".to_owned()).spawn(move || {
            let of_error = std::thread::spawn(move || last_of(error));
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { break };
                if let Ok(report) = serde_json::from_str(&line)
                    && lines.send(Line::Report(report)).is_err()
                {
                    return;
                }
            }
            let _ = lines.send(Line::End(of_error.join().unwrap_or_default()));
        })?;
        (self.orders, self.lines) = (Some(orders), Some(receiver));
        Ok(())
    }

    /// Takes what the load says. Returns a row to be sent.
    pub(super) fn tend(&mut self) -> Option<Says> {
        let Ok(line) = self.lines.as_ref()?.try_recv() else {
            // It has a row each second. A process that is stopped or hangs does not end by itself.
            let silent = Duration::from_nanos(now_ns().saturating_sub(self.said_ns));
            let is_running = matches!(self.state, Says::Waiting | Says::Controlled { .. });
            if is_running && silent > SILENCE {
                let seconds = SILENCE.as_secs();
                let why = format!("its load hangs: it has reported nothing for {seconds} s");
                self.state = Says::Failed { why };
            }
            return None;
        };
        self.said_ns = now_ns();
        match line {
            Line::Report(Report::Prepared) => self.state = Says::Prepared,
            Line::Report(Report::Ready(captured)) => self.state = Says::Ready { captured },
            Line::Report(Report::TornDown(failed)) => self.state = Says::TornDown { failed },
            Line::Report(Report::Began(late_us)) => self.late_us = Some(late_us),
            Line::Report(Report::Row(row)) => {
                self.rows += 1;
                return Some(Says::Row { number: self.rows, late_us: self.late_us, row });
            }
            Line::Report(Report::Taken(taken)) => {
                self.taken = taken;
                return self.controlled();
            }
            Line::Report(Report::Event(taken, event)) => {
                let kind = std::mem::discriminant(&*event);
                self.events.retain(|(_, one)| std::mem::discriminant(one) != kind);
                self.events.push((taken, *event));
                return self.controlled();
            }
            Line::Report(Report::Outcome(outcome)) => {
                self.result = serde_json::to_vec(&outcome).unwrap_or_default();
                let (bytes, sha256) = (self.result.len(), sha256(&self.result));
                self.state = Says::Done { bytes, sha256, late_us: self.late_us, discarded: None };
            }
            Line::End(why) => {
                self.lines = None;
                let why = why.trim();
                let begin = ERRORS.iter().find_map(|begin| why.strip_prefix(begin));
                let why = match begin.unwrap_or(why) {
                    "" => self.unexpected_end(),
                    why => why.to_owned(),
                };
                match self.state {
                    Says::Done { .. } | Says::TornDown { .. } => self.end = Some(why),
                    _ if self.late_us.is_some() => self.state = Says::Failed { why },
                    _ => self.state = Says::Refused { why },
                }
            }
        }
        None
    }

    /// How a load ended that said nothing.
    fn unexpected_end(&mut self) -> String {
        let status = self.child.as_mut().and_then(|child| child.wait().ok());
        match status.and_then(|status| status.signal()) {
            Some(signal) => format!(
                "its load was killed by signal {signal} (9: by somebody, or the kernel as memory was short)"
            ),
            None => UNEXPECTED.to_owned(),
        }
    }

    /// Makes the load begin at this time of the engine's clock, once.
    pub(super) fn begin(&mut self, at_ns: u64) {
        if matches!(self.state, Says::Ready { .. }) {
            if now_ns() >= at_ns {
                self.state = Says::Failed { why: "the start came too late".to_owned() };
                self.order(&Order::Stop);
                return;
            }
            self.order(&Order::Begin(at_ns));
            // It had nothing to report while others got ready.
            self.said_ns = now_ns();
            self.state = Says::Waiting;
        }
    }

    /// Has the load make the setup, or use what another agent's has captured, once.
    pub(super) fn set_up(&mut self, captured: Option<Captures>) {
        if matches!(self.state, Says::Prepared) {
            self.state = Says::SettingUp;
            self.order(&Order::SetUp(captured));
        }
    }

    /// Refuses the run if what the setup captured does not fit into a message of so many bytes.
    pub(super) fn keep_within(&mut self, payload_max: usize) {
        let Says::Ready { captured: Some(captured) } = &self.state else { return };
        let bytes = serde_json::to_vec(captured).map_or(0, |json| json.len());
        if bytes + MESSAGE_HEAD > payload_max {
            let why = format!(
                "[setup] captured {bytes} bytes, which do not fit into a message of the NATS server of {payload_max} \
                 (max_payload): capture less"
            );
            self.state = Says::Refused { why };
        }
    }

    /// Has the load make the teardown, once: after its result, or instead of beginning. If the load has ended another
    /// agent has to make it.
    pub(super) fn tear_down(&mut self) {
        if matches!(self.state, Says::Waiting) && self.late_us.is_none() {
            self.state = Says::Ready { captured: None };
        }
        // It has begun a moment before: the teardown is made when it has ended.
        if matches!(self.state, Says::Waiting) {
            self.order(&Order::Stop);
        }
        if matches!(self.state, Says::Done { .. } | Says::Ready { .. }) {
            match self.lines {
                Some(_) => self.order(&Order::TearDown),
                None => {
                    let why = self.end.take().unwrap_or_else(|| UNEXPECTED.to_owned());
                    self.state = Says::Failed { why };
                }
            }
        }
    }

    /// What the leader of a controlled run has to know now.
    fn controlled(&mut self) -> Option<Says> {
        if !matches!(self.state, Says::Waiting | Says::Controlled { .. }) {
            return None;
        }
        self.reports += 1;
        let (number, taken, events) = (self.reports, self.taken, self.events.clone());
        self.state = Says::Controlled { number, taken, events };
        Some(self.state.clone())
    }

    /// Passes the next command on to the load; others have been passed on, or come again.
    pub(super) fn command(&mut self, number: u64, command: Control) {
        let is_running = matches!(self.state, Says::Waiting | Says::Controlled { .. });
        if is_running && number == self.passed + 1 {
            self.passed = number;
            self.order(&Order::Command(command));
        }
    }

    /// Passes an order on to the load. It never waits for the load.
    pub(super) fn order(&mut self, order: &Order) {
        let Some(orders) = &self.orders else { return };
        let mut line = serde_json::to_vec(order).unwrap_or_default();
        line.push(b'\n');
        let is_over = matches!(
            self.state,
            Says::Refused { .. } | Says::Failed { .. } | Says::Done { .. } | Says::TornDown { .. }
        );
        if let Err(TrySendError::Full(_)) = orders.try_send(line)
            && !is_over
        {
            let why = format!("its load hangs: {ORDERS_MAX} orders wait for it");
            self.state = Says::Failed { why };
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = (child.kill(), child.wait());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The last bytes of standard error, from the last error on.
fn last_of(error: Option<impl Read>) -> String {
    let mut last = Vec::new();
    for byte in error.into_iter().flat_map(|error| BufReader::new(error).split(b'\n')) {
        let Ok(line) = byte else { break };
        if ERRORS.iter().any(|begin| line.starts_with(begin.as_bytes())) {
            last.clear();
        }
        if ((last.len() + line.len()) as u64) < ERROR_BYTES {
            last.extend_from_slice(&line);
            last.push(b'\n');
        }
    }
    let text = String::from_utf8_lossy(&last).into_owned();
    if ERRORS.iter().any(|begin| text.starts_with(begin)) { text } else { String::new() }
}
