//! `standfast agent`: runs shares of loads for a leader, one at a time.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use admin::log;
use anyhow::{Context, Result, bail};
use brokers::nats::messages::{Event, Messages};
use capacity::Role;
use engine::sys::process::{self, Signal, now_ns};
use rustix::system::uname;

use super::executable::{Executable, RELEASE};
use super::hosted::Hosted;
use super::job::{Grant, Job};
use super::message::{FromAgent, Says, ToAgent, Upgrade, decode, encode, inbox, of_all, version};
use super::{
    FilesFlag, FleetFlags, LEASE, PIECE_BYTES, REPEAT, doctor, label, listen, unique, word,
};
use crate::commands::load::share::Order;
use crate::output;

/// How often signals are looked at, and the load while there is one.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_AT_LOAD: Duration = Duration::from_millis(5);
/// The folders of agents, in the folder for temporary files.
const FOLDER: &str = "standfast-agent-";
/// The age in seconds from which a folder without an agent is removed.
const ABANDONED: Duration = Duration::from_secs(60);

/// Run shares of `standfast load --agents`, or servers of `prove --servers`, on this machine
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name in results and messages
    #[arg(long, value_name = "NAME", value_parser = word)]
    name: String,
    /// Label that `--agents` selects by. Repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<String>,
    /// Target that loads may connect to, beside loopback: HOST or HOST:PORT as in the URL, an IP address, or
    /// '*' for all. Repeatable
    #[arg(long, value_name = "TARGET", value_parser = target)]
    allow_target: Vec<String>,
    /// Run servers of `standfast prove --servers` on this address, as IP or IP:PORT, and no loads
    ///
    /// Their topics are open to everyone who reaches the address while a proof lasts
    #[arg(long, value_name = "IP", value_parser = listen)]
    serve: Option<SocketAddr>,
    /// End after the first run
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    fleet: FleetFlags,
    #[command(flatten)]
    files: FilesFlag,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let executable = Executable::own()?;
    let id = unique();
    let folder = Folder::new(&id)?;
    let fleet = &args.fleet.fleet;
    let subjects = vec![of_all(fleet), inbox(fleet, &id)];
    let messages = Messages::start(args.fleet.transport()?, subjects)?;
    let grant = Grant { targets: args.allow_target.clone(), files_max: args.files.files_max };
    let mut agent = Agent {
        args,
        id,
        messages,
        job: None,
        hosted: None,
        folder,
        grant,
        executable,
        looks_at_file: false,
        becomes: None,
        payload_max: 0,
        repeated_ns: 0,
        ended: None,
    };
    let mut is_down = false;
    loop {
        if let Some(code) = agent.ended.filter(|_| args.once) {
            return Ok(ExitCode::from(code));
        }
        if let Some(Signal::Interrupt | Signal::Terminate) = process::wait_signal(Duration::ZERO) {
            agent.leave();
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(release) = &agent.becomes {
            let path = agent.executable.path().display();
            agent.note(&format!("upgrade from {RELEASE} to {release}: executing {path}"));
            // What was said is sent, and the folder is removed, before the process is another one.
            let executable = agent.end();
            return Err(executable.execute());
        }
        let look = if agent.is_busy() { LOOK_AT_LOAD } else { LOOK };
        match agent.messages.next(look) {
            Some(Event::Open(payload_max)) => {
                (agent.payload_max, is_down) = (payload_max, false);
                agent.note(&format!("ready for runs of the fleet {fleet}"));
            }
            // It is tried again every second.
            Some(Event::Down(why)) if !is_down => {
                is_down = true;
                agent.note(&format!("NATS: {why}; trying again"));
            }
            Some(Event::Message(_, bytes)) => {
                if let Some((message, body)) = decode(&bytes) {
                    agent.take(message, body);
                }
            }
            Some(Event::Down(_)) | None => {}
        }
        agent.tend();
    }
}

/// Addresses as they are compared.
pub(super) fn target(text: &str) -> Result<String, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address.to_string());
    }
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    let fits = text == "*" || !text.is_empty() && text.bytes().all(is_of_host);
    fits.then(|| text.to_owned()).ok_or_else(|| {
        "expected HOST, HOST:PORT or an IP address, as in shop.example:8080, or '*' for all"
            .to_owned()
    })
}

struct Agent<'a> {
    args: &'a Args,
    id: String,
    messages: Messages,
    job: Option<Job>,
    /// With --serve.
    hosted: Option<Hosted>,
    folder: Folder,
    grant: Grant,
    executable: Executable,
    /// Its file is looked at after the run.
    looks_at_file: bool,
    /// The release that this process is to become.
    becomes: Option<String>,
    /// The longest message of the NATS server in bytes.
    payload_max: usize,
    repeated_ns: u64,
    /// The exit code of the last run.
    ended: Option<u8>,
}

impl Agent<'_> {
    fn take(&mut self, message: ToAgent, body: &[u8]) {
        let of_run = |job: &&mut Job, run: &str| job.plan.run == run;
        match message {
            ToAgent::Call { leader } => {
                let here = Says::Here {
                    name: self.args.name.clone(),
                    host: uname().nodename().to_string_lossy().into_owned(),
                    labels: self.args.label.clone(),
                    version: version(),
                    cores: std::thread::available_parallelism().map_or(1, usize::from),
                    busy: self.is_busy(),
                    targets: self.grant.targets.clone(),
                    serves: self.args.serve,
                };
                self.say(&leader, "", here, &[]);
            }
            ToAgent::Check { leader, connections, beside, destinations } => {
                let role = if self.args.serve.is_some() { Role::Serve } else { Role::Load };
                let problems = doctor::problems(role, [connections, beside], destinations);
                self.say(&leader, "", Says::Checked { problems }, &[]);
            }
            ToAgent::Ping { leader, sent_ns } => {
                self.say(&leader, "", Says::Pong { sent_ns, at_ns: now_ns() }, &[]);
            }
            ToAgent::Plan(plan) => match &self.job {
                Some(job) if job.plan.run == plan.run => {}
                Some(_) => {
                    let why = "it is busy with another run".to_owned();
                    self.say(&plan.leader, &plan.run, Says::Refused { why }, &[]);
                }
                None if self.args.serve.is_some() => {
                    let why =
                        "it runs servers and no loads, as it was started with --serve".to_owned();
                    self.say(&plan.leader, &plan.run, Says::Refused { why }, &[]);
                }
                // It becomes the name of a folder.
                None if word(&plan.run).is_err() => {}
                None => {
                    self.note(&format!("run {} begins", plan.run));
                    self.job = Some(Job::new(plan, &self.folder.path, &self.grant));
                    self.repeated_ns = 0;
                }
            },
            ToAgent::Serve(order) => match &self.hosted {
                Some(hosted) if hosted.order.run == order.run => {}
                Some(_) => {
                    let why = "it is busy with another run".to_owned();
                    self.say(&order.leader, &order.run, Says::Refused { why }, &[]);
                }
                // It becomes part of what is shown.
                None if word(&order.run).is_err() => {}
                None => {
                    self.note(&format!("server of run {} begins", order.run));
                    self.hosted = Some(Hosted::new(order, self.args.serve));
                }
            },
            ToAgent::Look { run, number } => {
                if let Some(hosted) = self.hosted_of(&run) {
                    hosted.look(number);
                }
            }
            ToAgent::Publish { run, sequence } => {
                if let Some(hosted) = self.hosted_of(&run) {
                    hosted.publish(sequence);
                }
            }
            ToAgent::Piece { run, file, offset } => {
                if let Some(job) = self.job.as_mut().filter(|job| of_run(job, &run)) {
                    job.heard_ns = now_ns();
                    // After a duplicate nothing is requested: that would start a second sequence of pieces.
                    if job.piece(file, offset, body) {
                        self.repeated_ns = 0;
                    }
                }
            }
            ToAgent::SetUp { run, captured } => {
                if let Some(job) = self.job.as_mut().filter(|job| of_run(job, &run)) {
                    job.heard_ns = now_ns();
                    job.set_up(captured);
                    self.repeated_ns = 0;
                }
            }
            ToAgent::TearDown { run } => {
                if let Some(job) = self.job.as_mut().filter(|job| of_run(job, &run)) {
                    job.heard_ns = now_ns();
                    job.tear_down();
                }
            }
            ToAgent::Begin { run, at_ns } => {
                if let Some(job) = self.job.as_mut().filter(|job| of_run(job, &run)) {
                    job.begin(at_ns);
                    self.repeated_ns = 0;
                }
            }
            ToAgent::Beat { run, stop } => {
                if let Some(job) = self.job.as_mut().filter(|job| of_run(job, &run)) {
                    job.heard_ns = now_ns();
                    job.order(if stop { &Order::Stop } else { &Order::Beat });
                }
                self.hosted_of(&run);
            }
            ToAgent::Command { run, number, command } => {
                if let Some(job) = self.job.as_mut().filter(|job| of_run(job, &run)) {
                    job.heard_ns = now_ns();
                    job.command(number, command);
                }
            }
            ToAgent::Fetch { run, offset } => {
                if let Some(job) = self.job.as_ref().filter(|job| job.plan.run == run) {
                    let rest = job.result.get(offset..).unwrap_or_default();
                    let most = PIECE_BYTES.min(self.payload_max / 2).min(rest.len());
                    let piece = rest.get(..most).unwrap_or_default();
                    self.say(&job.plan.leader, &run, Says::Piece { offset }, piece);
                }
            }
            ToAgent::Upgrade { leader } => {
                let answer = if self.is_busy() {
                    self.looks_at_file = true;
                    Upgrade::Later
                } else {
                    self.upgrade()
                };
                self.say(&leader, "", Says::Upgrade(answer), &[]);
            }
            ToAgent::Release { run } => {
                if self.job.as_mut().is_some_and(|job| job.plan.run == run) {
                    self.note(&format!("run {run} has ended"));
                    (self.job, self.ended) = (None, Some(0));
                }
                if self.hosted_of(&run).is_some() {
                    self.note(&format!("server of run {run} has ended"));
                    (self.hosted, self.ended) = (None, Some(0));
                }
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.job.is_some() || self.hosted.is_some()
    }

    /// The server of this run, whose leader is heard.
    fn hosted_of(&mut self, run: &str) -> Option<&mut Hosted> {
        let hosted = self.hosted.as_mut().filter(|hosted| hosted.order.run == run)?;
        hosted.heard_ns = now_ns();
        Some(hosted)
    }

    /// Says how the server is, and ends one without a leader.
    fn tend_server(&mut self) {
        let now = now_ns();
        let Some(hosted) = &mut self.hosted else { return };
        let says = hosted.tend(now);
        let (leader, run) = (hosted.order.leader.clone(), hosted.order.run.clone());
        let is_lost = now > hosted.heard_ns + LEASE.as_nanos() as u64;
        if let Some(says) = says {
            self.say(&leader, &run, says, &[]);
        }
        if is_lost {
            let seconds = LEASE.as_secs();
            self.note(&format!(
                "server of run {run} ends: its leader was not heard for {seconds} s"
            ));
            (self.hosted, self.ended) = (None, Some(1));
        }
    }

    /// Passes on what the load reports, repeats what has to be answered, and ends a run without a leader.
    fn tend(&mut self) {
        self.tend_server();
        let now = now_ns();
        let Some(job) = &mut self.job else {
            if self.hosted.is_none()
                && std::mem::take(&mut self.looks_at_file)
                && let Upgrade::Failed { why } = self.upgrade()
            {
                self.note(&format!("no upgrade: {why}"));
            }
            return;
        };
        let before = std::mem::discriminant(&job.state);
        let row = job.tend();
        let is_new = before != std::mem::discriminant(&job.state);
        let (leader, run) = (job.plan.leader.clone(), job.plan.run.clone());
        let is_lost = now > job.heard_ns + LEASE.as_nanos() as u64;
        let state = (is_new || now > self.repeated_ns + REPEAT.as_nanos() as u64).then(|| {
            job.keep_within(self.payload_max);
            let mut state = job.state.clone();
            if let Says::Done { discarded, .. } = &mut state {
                *discarded = Some(self.messages.dropped());
            }
            state
        });
        if let Some(row) = row {
            self.say(&leader, &run, row, &[]);
        }
        if let Some(state) = state {
            self.repeated_ns = now;
            self.say(&leader, &run, state, &[]);
        }
        if is_lost {
            let seconds = LEASE.as_secs();
            self.note(&format!("run {run} stopped: its leader was not heard for {seconds} s"));
            (self.job, self.ended) = (None, Some(1));
        }
    }

    fn end(self) -> Executable {
        log::flush();
        self.executable
    }

    /// Looks at the file that this process was started from.
    fn upgrade(&mut self) -> Upgrade {
        match self.executable.release() {
            Ok(release) if release == RELEASE => Upgrade::Same { release },
            Ok(to) => {
                self.becomes = Some(to.clone());
                Upgrade::Now { from: RELEASE.to_owned(), to }
            }
            Err(error) => Upgrade::Failed { why: format!("{error:#}") },
        }
    }

    /// Ends the run, and tells its leader.
    fn leave(&mut self) {
        if let Some(job) = self.job.take() {
            let failed = Says::Failed { why: "the agent was stopped".to_owned() };
            self.say(&job.plan.leader, &job.plan.run, failed, &[]);
        }
        if let Some(hosted) = self.hosted.take() {
            let failed = Says::Failed { why: "the agent was stopped".to_owned() };
            self.say(&hosted.order.leader, &hosted.order.run, failed, &[]);
        }
    }

    fn say(&self, leader: &str, run: &str, says: Says, body: &[u8]) {
        // It becomes part of a subject.
        if word(leader).is_err() {
            return;
        }
        let message = FromAgent { agent: self.id.clone(), run: run.to_owned(), says };
        let subject = inbox(&self.args.fleet.fleet, leader);
        self.messages.send(&subject, encode(&message, body));
    }

    fn note(&self, what: &str) {
        output::note(&format!("agent {}: {what}", self.args.name));
    }
}

/// The folder of an agent, which only its user can read. It is locked, so that others know whether its agent
/// lives, and removed at the end.
struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    fn new(id: &str) -> Result<Folder> {
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        let path = parent.join(format!("{FOLDER}{id}"));
        let shown = path.display();
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the folder {shown}"))?;
        let lock = File::open(&path).with_context(|| format!("cannot open {shown}"))?;
        if lock.try_lock().is_err() {
            bail!("cannot lock the folder {shown}");
        }
        Ok(Folder { path, _lock: lock })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes folders of agents of this user that were killed.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(FOLDER));
        // Not those behind links, and not one that is being made.
        let is_old = entry.metadata().is_ok_and(|metadata| {
            let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
            metadata.is_dir() && age.is_some_and(|age| age > ABANDONED)
        });
        if !is_ours || !is_old {
            continue;
        }
        // Folders of other users cannot be opened.
        let is_free = File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok());
        if is_free
            && let Err(error) = fs::remove_dir_all(entry.path())
            && error.kind() != ErrorKind::NotFound
        {
            output::note(&format!("cannot remove {}: {error}", entry.path().display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_private_and_removed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new(&unique()).unwrap();
        let path = folder.path.clone();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        remove_abandoned(path.parent().unwrap());
        assert!(path.exists());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn targets_are_hosts_or_addresses() {
        for (text, target_text) in [
            ("*", "*"),
            ("shop.example:8080", "shop.example:8080"),
            ("10.0.0.9", "10.0.0.9"),
            ("FD00:0::9", "fd00::9"),
            ("[FD00:0::9]:80", "[fd00::9]:80"),
        ] {
            assert_eq!(target(text).as_deref(), Ok(target_text));
        }
        for text in ["", "http://10.0.0.9/", "10.0.0.0/8", "*.example", "a b"] {
            assert!(target(text).is_err(), "{text}");
        }
    }
}
