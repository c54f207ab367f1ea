//! The rate of one machine, and whether a run shows that the machine can serve no more. It rarely does: a
//! closed loop asks for as much as its users can, an open one for as much as it was told. Such a rate
//! is a lower bound of the capacity, and the number of machines that follows from it an upper bound.
//!
//! Not here: reading files, and the calculation.

use capacity::Count;
use serde::Serialize;

/// A second of the run, at most a few: rates between two samples.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Second {
    /// Users that sent requests.
    pub(super) users: f64,
    /// Answers per second.
    pub(super) rate: f64,
    /// CPU of the server, in cores; `None` if it was not watched.
    pub(super) server_cores: Option<f64>,
    /// CPU of the generator.
    pub(super) generator_cores: Option<f64>,
}

/// What a run of requests was asked for, and what it did. `None` is unknown.
#[derive(Clone, Default, Debug)]
pub(super) struct RequestRun {
    /// Successful requests ÷ seconds.
    pub(super) good_rate: f64,
    /// Failed and unsent requests ÷ all that were due.
    pub(super) error_share: f64,
    pub(super) unsent: u64,
    /// Concurrent users.
    pub(super) users: Option<u64>,
    /// Whether requests were due at times of their own, not when the last was answered.
    pub(super) is_open: Option<bool>,
    /// Requests per second that were asked for.
    pub(super) asked_rate: Option<f64>,
    pub(super) interrupted: bool,
    /// Why the generator was saturated.
    pub(super) saturated: Option<Option<String>>,
    /// Cores of the machine that the generator ran on, which is also that of a watched server.
    pub(super) cores: Option<f64>,
    /// The measured seconds.
    pub(super) seconds: Vec<Second>,
}

/// What is known about the capacity.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    /// Given by the user.
    Given,
    /// The run reached it.
    Reached,
    /// The capacity is this rate or more.
    AtLeast,
}

/// The rate of one machine.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    /// Successful requests per second.
    pub(super) rate: f64,
    pub(super) bound: Bound,
    /// From what it is known.
    pub(super) from: String,
}

/// CPU in use from which none is left, as a share of all cores.
const BUSY: f64 = 0.9;
/// Twice the users, or more, with less than this growth of the rate: the server is saturated.
const GROWTH: f64 = 0.1;
/// Fewest seconds that say something about the rate at a number of users.
const SECONDS_MIN: usize = 5;
/// Share of errors from which a rate is not one that is served.
const ERRORS_MAX: f64 = 0.01;

impl Capacity {
    pub(super) fn given(rate: f64) -> Capacity {
        Capacity { rate, bound: Bound::Given, from: "--per-machine".to_owned() }
    }

    /// `None` if nothing succeeded.
    pub(super) fn of(run: &RequestRun) -> Option<Capacity> {
        let rate = run.good_rate;
        if !(rate.is_finite() && rate > 0.0) {
            return None;
        }
        let at_least = |from: String| Some(Capacity { rate, bound: Bound::AtLeast, from });
        if let Some(why) = run.unfit() {
            return at_least(why);
        }
        if let Some((cores, all)) = run.busy_cores(|second| second.server_cores) {
            let from = format!("the server used {cores:.1} of {all} cores");
            return Some(Capacity { rate, bound: Bound::Reached, from });
        }
        let both = |second: &Second| Some(second.server_cores? + second.generator_cores?);
        if let Some((cores, all)) = run.busy_cores(both) {
            let from = "server and generator together used";
            return at_least(format!("{from} {cores:.1} of {all} cores"));
        }
        run.plateau().or_else(|| at_least(run.asked()))
    }
}

impl RequestRun {
    /// Why the run says nothing about a limit of the server.
    fn unfit(&self) -> Option<String> {
        match (&self.saturated, self.interrupted) {
            (Some(Some(why)), _) => Some(format!("the generator was the bottleneck: {why}")),
            (None, _) => Some("it is unknown whether the generator was the bottleneck".to_owned()),
            (_, true) => Some("the run was interrupted".to_owned()),
            _ if self.error_share > ERRORS_MAX && self.unsent == 0 => Some(format!(
                "{:.1} % of the requests failed, so this is not a rate that is served",
                self.error_share * 100.0
            )),
            _ => None,
        }
    }

    /// The most users, and the mean rates with about that many and with half of them or less.
    fn growth(&self) -> Option<(f64, f64, f64)> {
        if self.is_open != Some(false) {
            // Without a free connection requests wait here: the server need not be the limit.
            return None;
        }
        let most = self.seconds.iter().map(|second| second.users).fold(0.0, f64::max);
        let among = |from: f64, to: f64| {
            let range = from * most..=to * most;
            let seconds = self.seconds.iter().filter(|second| range.contains(&second.users));
            mean(seconds.map(|second| second.rate))
        };
        let (half, all) = among(0.25, 0.5).zip(among(0.9, 1.0))?;
        Some((most, all, half))
    }

    /// The capacity if twice the users got hardly more answers than half of them.
    fn plateau(&self) -> Option<Capacity> {
        let (_, all, half) = self.growth().filter(|(_, all, half)| *all < half * (1.0 + GROWTH))?;
        Some(Capacity {
            // Where more users get less, the machine can serve what fewer got.
            rate: half.max(all) * (1.0 - self.error_share),
            bound: Bound::Reached,
            from: self.asked(),
        })
    }

    /// The mean cores used and all cores, if nearly all were used.
    fn busy_cores(&self, of: impl Fn(&Second) -> Option<f64>) -> Option<(f64, f64)> {
        let used: Option<Vec<f64>> = self.seconds.iter().map(of).collect();
        let (used, all) = (mean(used?.into_iter())?, self.cores?);
        (used >= BUSY * all).then_some((used, all))
    }

    /// What the rate came from, as far as the run shows it.
    fn asked(&self) -> String {
        let users = self.users.map_or("its users".to_owned(), |users| match users {
            1 => "1 user".to_owned(),
            users => format!("{} users", Count(users)),
        });
        if let Some((most, all, half)) = self.growth() {
            let [most, all, half] = [most, all, half].map(|value| Count(value.round() as u64));
            return format!(
                "{most} users got {all} answers per second, half of them or less {half}"
            );
        }
        match (self.is_open, self.asked_rate) {
            (Some(true), _) if self.unsent > 0 => {
                format!("{users} were always busy: with more the server may answer more")
            }
            (Some(true), Some(rate)) => {
                format!(
                    "the run asked for {} per second, and all were answered",
                    Count(rate as u64)
                )
            }
            (Some(true), None) => "all requests that were due were answered".to_owned(),
            (Some(false), _) => {
                format!(
                    "{users} waited for each answer before the next request, so no more was asked for"
                )
            }
            (None, _) => "it is unknown how much the run asked for".to_owned(),
        }
    }
}

/// `None` for fewer seconds than [`SECONDS_MIN`].
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (values.len() >= SECONDS_MIN).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
