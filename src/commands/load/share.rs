//! [`Share`]: this process is one of several generators that share a run, started by `standfast agent`. It takes
//! lines of JSON on standard input and writes lines of JSON to standard output. It writes no files and connects
//! only to allowed targets.

use std::io::{self, BufRead};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use engine::sys::process::{self, now_ns};
use load::requests::{Gate, Generators, Requests};
use load::{Config, Outcome, Row, SharedRow};
use serde::{Deserialize, Serialize};

use super::flags::Args;
use crate::commands::fleet::LEASE;
use crate::output;

/// The last part of the wait for the start is without sleeping, as a sleep may take longer.
const SPIN_NS: u64 = 200_000;

/// What the agent says when it starts this process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) nth: u32,
    pub(crate) of: u32,
    pub(crate) seed: u64,
    /// Targets of --allow-target.
    pub(crate) allow: Vec<String>,
}

/// A line of standard input.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Begin at this time of the engine's clock.
    Begin(u64),
    Stop,
    /// The leader lives.
    Beat,
}

/// A line of standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    Ready,
    /// It began, so many microseconds late.
    Began(u64),
    Row(Box<SharedRow>),
    Outcome(Box<Outcome>),
}

#[derive(Clone, Debug)]
pub(crate) struct Share {
    spec: Spec,
    state: Arc<State>,
}

#[derive(Default, Debug)]
struct State {
    told: Mutex<(Option<u64>, bool)>,
    changed: Condvar,
    /// When an order came last, in nanoseconds of the engine's clock.
    heard_ns: AtomicU64,
}

impl Share {
    /// Parses the hidden flag.
    pub(super) fn parse(text: &str) -> Result<Share, String> {
        let spec = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(Share { spec, state: Arc::default() })
    }

    /// Refuses what an agent does not do for a leader.
    ///
    /// # Errors
    /// Names the flag.
    pub(super) fn check(args: &Args) -> Result<()> {
        let Args { json, html, csv, .. } = args;
        let is_file = [json, html, csv].into_iter().any(Option::is_some);
        let is_served = args.metrics.is_some() || args.watch_pid.is_some() || args.control;
        if is_file || is_served || args.agents.is_some() {
            bail!("a plan for agents writes no files, listens nowhere and watches no processes");
        }
        Ok(())
    }

    /// Takes orders from now on. The process ends with its parent.
    pub(super) fn begin(&self) -> Result<()> {
        process::end_with_parent();
        load::allow_only(self.spec.allow.clone());
        self.state.heard_ns.store(now_ns(), Ordering::Relaxed);
        let state = Arc::clone(&self.state);
        std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                state.heard_ns.store(now_ns(), Ordering::Relaxed);
                match serde_json::from_str(&line) {
                    Ok(Order::Begin(at_ns)) => state.told().0 = Some(at_ns),
                    Ok(Order::Stop) => state.told().1 = true,
                    Ok(Order::Beat) | Err(_) => {}
                }
                state.changed.notify_all();
            }
            state.told().1 = true;
            state.changed.notify_all();
        })?;
        Ok(())
    }

    pub(super) fn seed(&self) -> u64 {
        self.spec.seed
    }

    /// Whether the run is to end, once for each order, or as its leader was not heard for a while; waits for
    /// this time at most.
    pub(super) fn stopped(&self, wait: Duration) -> bool {
        let heard_ns = self.state.heard_ns.load(Ordering::Relaxed);
        if now_ns() > heard_ns + LEASE.as_nanos() as u64 {
            // Also if the agent is stopped, which could not end this process.
            self.state.told().1 = true;
            self.state.heard_ns.store(u64::MAX / 2, Ordering::Relaxed);
        }
        let told = self.state.told();
        let waited = self.state.changed.wait_timeout_while(told, wait, |told| !told.1);
        std::mem::take(&mut waited.unwrap_or_else(PoisonError::into_inner).0.1)
    }

    /// Makes a run of requests the part of this generator.
    ///
    /// # Errors
    /// Targets that are not allowed.
    pub(super) fn apply(&self, requests: &mut Requests) -> Result<()> {
        if let Some(why) = load::refused() {
            bail!("{why}");
        }
        requests.generators = Generators { nth: self.spec.nth, of: self.spec.of };
        requests.gate = Some(Arc::new(self.clone()));
        Ok(())
    }

    /// The part of this generator of a run of WebSockets.
    ///
    /// # Errors
    /// Targets that are not allowed, and what cannot be shared.
    pub(super) fn part(&self, config: &Config) -> Result<Config> {
        if let Some(why) = load::refused() {
            bail!("{why}");
        }
        let share = Generators { nth: self.spec.nth, of: self.spec.of };
        let part = config.part(share).map_err(anyhow::Error::msg)?;
        Ok(Config { gate: Some(Arc::new(self.clone())), ..part })
    }

    pub(super) fn row(&self, row: &Row) {
        if !row.is_mark {
            say(&Report::Row(Box::new(SharedRow::of(row, super::screen::usage()))));
        }
    }

    pub(super) fn finish(&self, outcome: &Outcome) {
        say(&Report::Outcome(Box::new(outcome.clone())));
    }
}

impl State {
    fn told(&self) -> MutexGuard<'_, (Option<u64>, bool)> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate for Share {
    fn pass(&self) -> Result<u64, String> {
        say(&Report::Ready);
        let told = self.state.told();
        let waited = self.state.changed.wait_while(told, |told| told.0.is_none() && !told.1);
        let (begin, stopped) = *waited.unwrap_or_else(PoisonError::into_inner);
        let Some(begin_ns) = begin.filter(|_| !stopped) else {
            return Err("stopped before the start".to_owned());
        };
        let rest_ns = begin_ns.saturating_sub(now_ns()).saturating_sub(SPIN_NS);
        if self.stopped(Duration::from_nanos(rest_ns)) {
            return Err("stopped before the start".to_owned());
        }
        while now_ns() < begin_ns {
            std::hint::spin_loop();
        }
        say(&Report::Began(now_ns().saturating_sub(begin_ns) / 1_000));
        Ok(begin_ns)
    }
}

/// The agent may be gone: then this process ends, too.
fn say(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        let _ = output::print(&(line + "\n"));
    }
}
