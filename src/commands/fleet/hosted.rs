//! [`Hosted`]: the server of a proof on an agent, from the order to its release. It runs in a process of its own,
//! which ends with the agent and has no environment.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::sys::process::now_ns;
use load::Usage;

use super::message::{Says, ServerOrder, Serving, not_for_servers, version};
use crate::commands::prove::broadcast::{Admin, connections, publish};
use crate::commands::prove::child::{READY_TIMEOUT, usage_of};
use crate::commands::prove::server::{Serve, Starting, TOPIC};

/// How often the leader hears how the server is.
const REPORT: Duration = Duration::from_millis(250);
/// Lines of its standard error that are kept for the leader, and those that wait to be kept.
const LINES_MAX: usize = 8;
const WAITING_MAX: usize = 64;

pub(super) struct Hosted {
    pub(super) order: ServerOrder,
    /// When the leader was last heard.
    pub(super) heard_ns: u64,
    state: State,
    lines: Receiver<String>,
    /// The last lines of its standard error.
    last_lines: VecDeque<String>,
    task: Option<Receiver<Done>>,
    usage: Option<Usage>,
    open: Option<u64>,
    looked: u64,
    published: u32,
    reports: u64,
    reported_ns: u64,
}

enum State {
    Starting {
        starting: Starting,
        until_ns: u64,
    },
    Serving(Serve),
    /// What the agent repeats until the leader releases it.
    Ended(Says),
}

/// What a request to the server has led to.
enum Done {
    Looked { number: u64, open: Option<u64>, usage: Option<Usage> },
    Published(Result<()>),
}

impl Hosted {
    /// Starts the server on this address; `None`: this agent runs none.
    pub(super) fn new(order: ServerOrder, listen: Option<SocketAddr>) -> Hosted {
        let (sender, lines) = mpsc::sync_channel(WAITING_MAX);
        let state = match start(&order, listen, sender) {
            Ok(starting) => {
                let until_ns = now_ns() + READY_TIMEOUT.as_nanos() as u64;
                State::Starting { starting, until_ns }
            }
            Err(error) => State::Ended(Says::Refused { why: format!("{error:#}") }),
        };
        Hosted {
            order,
            heard_ns: now_ns(),
            state,
            lines,
            last_lines: VecDeque::new(),
            task: None,
            usage: None,
            open: None,
            looked: 0,
            published: 0,
            reports: 0,
            reported_ns: 0,
        }
    }

    /// Asks the server for its connections. While it is asked for something else the leader repeats that.
    pub(super) fn look(&mut self, number: u64) {
        if number > self.looked {
            self.begin(move |admin, pid| Done::Looked {
                number,
                open: connections(admin).ok(),
                usage: usage_of(pid),
            });
        }
    }

    /// Publishes the next message.
    pub(super) fn publish(&mut self, sequence: u32) {
        if sequence == self.published {
            self.begin(move |admin, _| Done::Published(publish(admin, TOPIC, sequence).map(drop)));
        }
    }

    /// Does something that takes a while, if nothing else is being done.
    fn begin(&mut self, work: impl FnOnce(&Admin, u32) -> Done + Send + 'static) {
        let State::Serving(serve) = &self.state else { return };
        if self.task.is_some() {
            return;
        }
        let (admin, pid) = (serve.admin().clone(), serve.pid());
        let (sender, done) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
            // The run may have ended meanwhile.
            let _ = sender.send(work(&admin, pid));
        });
        // Without a thread the leader repeats it.
        self.task = thread.ok().map(|_| done);
    }

    /// What the leader has to be told now.
    pub(super) fn tend(&mut self, now: u64) -> Option<Says> {
        for line in self.lines.try_iter().take(WAITING_MAX) {
            if self.last_lines.len() == LINES_MAX {
                self.last_lines.pop_front();
            }
            self.last_lines.push_back(line);
        }
        let is_new = self.go_on(now) | self.take_done();
        if !is_new && now < self.reported_ns.saturating_add(REPORT.as_nanos() as u64) {
            return None;
        }
        let says = match &self.state {
            State::Starting { .. } => return None,
            State::Ended(says) => says.clone(),
            State::Serving(serve) => {
                // What a look has read is what it was then.
                if !is_new {
                    self.usage = usage_of(serve.pid());
                }
                self.reports += 1;
                Says::Serving(Serving {
                    number: self.reports,
                    address: serve.listen(),
                    usage: self.usage,
                    open: self.open,
                    looked: self.looked,
                    published: self.published,
                })
            }
        };
        self.reported_ns = now;
        Some(says)
    }

    /// Goes on when the server is ready, or has ended. Returns whether that is new.
    fn go_on(&mut self, now: u64) -> bool {
        let ended = match &mut self.state {
            State::Ended(_) => return false,
            State::Serving(serve) => match serve.ended() {
                Some(how) => format!("its server ended: {how}"),
                None => return false,
            },
            State::Starting { starting, until_ns } => match starting.poll() {
                None if now < *until_ns => return false,
                None => format!("its server was not ready within {} s", READY_TIMEOUT.as_secs()),
                Some(Err(error)) => format!("{error:#}"),
                Some(Ok(ready)) => {
                    let nothing = State::Ended(Says::Failed { why: String::new() });
                    let State::Starting { starting, .. } =
                        std::mem::replace(&mut self.state, nothing)
                    else {
                        return false;
                    };
                    match starting.ready(&ready) {
                        Ok(serve) => {
                            self.usage = usage_of(serve.pid());
                            self.state = State::Serving(serve);
                            return true;
                        }
                        Err(error) => format!("{error:#}"),
                    }
                }
            },
        };
        let lines = std::mem::take(&mut self.last_lines);
        let why = lines.iter().fold(ended, |why, line| format!("{why}\n{line}"));
        let before = std::mem::replace(&mut self.state, State::Ended(Says::Failed { why }));
        if let State::Starting { starting, .. } = before {
            starting.kill();
        }
        true
    }

    /// Takes what the server has answered. Returns whether it has.
    fn take_done(&mut self) -> bool {
        let Some(task) = &self.task else { return false };
        let done = match task.try_recv() {
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => {
                self.task = None;
                return false;
            }
            Ok(done) => done,
        };
        self.task = None;
        match done {
            Done::Looked { number, open, usage } => {
                (self.looked, self.open, self.usage) = (number, open, usage);
            }
            Done::Published(Ok(())) => self.published += 1,
            Done::Published(Err(_)) if !matches!(self.state, State::Serving(_)) => {}
            Done::Published(Err(error)) => {
                let why = format!("publishing failed: {error:#}");
                self.state = State::Ended(Says::Failed { why });
            }
        }
        true
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        let nothing = State::Ended(Says::Failed { why: String::new() });
        if let State::Starting { starting, .. } = std::mem::replace(&mut self.state, nothing) {
            starting.kill();
        }
    }
}

fn start(
    order: &ServerOrder,
    listen: Option<SocketAddr>,
    lines: SyncSender<String>,
) -> Result<Starting> {
    let (mine, theirs) = (version(), &order.version);
    if *theirs != mine {
        bail!("the leader has version {theirs}, this agent {mine}: install the same release");
    }
    let listen = listen.context("it runs no servers: start it with --serve IP")?;
    if let Some(flag) = not_for_servers(&order.flags) {
        bail!("{flag}: agents do not start servers with this flag");
    }
    // Of many lines those that do not fit are left out.
    let pass_on = move |line| drop(lines.try_send(line));
    Starting::hosted(order.connections, listen, &order.flags, pass_on)
}
