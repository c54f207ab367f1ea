//! Simulations: workers and their peers in one thread over the kernel of [`engine::sys::sim`], in an
//! order that a seed decides.
//!
//! [`engine_sim`], [`history_sim`], [`nodes_sim`] and [`proxy_sim`] are the simulations. What they share is here:
//! [`Simulation`], whose steps a seed orders; workers that get a turn whenever they would not sleep ([`Member`]); time that passes
//! while nobody has anything to do; phases until the first failure; and the command line over seeds
//! ([`main`]). `mutations/` lists mistakes that the simulations must find.
//!
//! Not part of a program: no other crate depends on this one.

pub mod engine_sim;
pub mod history_sim;
mod ledger;
mod member;
pub mod nodes_sim;
pub mod proxy_sim;
mod seeds;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;

use engine::sys::sim::{Fault, Kernel};

pub use self::member::{Crew, Member, Started};
pub use self::seeds::{SeedTotals, main};

const SECOND_NS: u64 = 1_000_000_000;

/// Everything in one run.
pub trait Simulation: Sized + 'static {
    /// What runs count beside events and faults, added up over all seeds.
    type Coverage: Default;

    /// Builds the run that the seed decides.
    ///
    /// # Errors
    /// Why it cannot be built.
    fn build(seed: u64) -> Result<Self, String>;

    /// The kernel under all of it.
    fn kernel(&self) -> &Kernel;

    /// The source of every decision.
    fn random(&mut self) -> &mut Rng;

    /// The first failure.
    fn failure(&self) -> Option<String>;

    /// The phases, in order.
    fn phases(&self) -> &'static [fn(&mut Self)];

    /// Number of actors: workers, peers and others that take steps.
    fn actors(&self) -> usize;

    /// Lets that actor take a step; whether it had anything to do.
    fn act(&mut self, at: usize) -> bool;

    /// Steps taken by actors other than workers.
    fn acts(&self) -> u64;

    /// When the next actor has something to do even if no event arrives.
    fn next_ns(&self) -> Option<u64>;

    /// The clock jumps to that time.
    fn clock_jumps(&mut self, _to_ns: u64) {}

    /// Adds the coverage of this run.
    fn add_coverage(&self, _coverage: &mut Self::Coverage) {}

    /// A few words about the coverage, printed after the events.
    fn summary(_coverage: &Self::Coverage) -> String {
        String::new()
    }

    /// What enough seeds should have covered and have not.
    fn missing(totals: &SeedTotals<Self::Coverage>) -> Option<String>;

    /// Reports and acts so far.
    fn events(&self) -> u64 {
        self.kernel().reports() + self.acts()
    }

    /// Lets one actor that has something to do take a step; if none has, lets time pass until one
    /// has, but not beyond `until_ns`.
    fn step(&mut self, until_ns: u64) {
        let count = self.actors();
        let start = self.random().usize(..count);
        for at in (0..count).map(|offset| (start + offset) % count) {
            if self.act(at) {
                let pass_ns = self.random().u64(1_000..30_000);
                return self.kernel().advance(pass_ns);
            }
        }
        let now_ns = self.kernel().now_ns();
        let others = [self.next_ns(), self.kernel().next_ns()].into_iter().flatten().min();
        let next_ns = others.unwrap_or(u64::MAX).clamp(now_ns + 1, until_ns.max(now_ns + 1));
        let mut pass_ns = next_ns - now_ns;
        if self.kernel().strike(Fault::ClockJump) {
            pass_ns += self.random().u64(..2 * SECOND_NS);
            self.clock_jumps(now_ns + pass_ns);
        }
        self.kernel().advance(pass_ns);
    }

    /// Steps until the time is over, or `done`, or a failure; whether the time ran out.
    fn steps(&mut self, for_ns: u64, done: impl Fn(&Self) -> bool) -> bool {
        let until_ns = self.kernel().now_ns() + for_ns;
        while self.failure().is_none() && !done(self) {
            if self.kernel().now_ns() >= until_ns {
                return true;
            }
            self.step(until_ns);
        }
        false
    }
}

/// Which faults a run has and how often, out of 10,000, when it has at most so many. Each run lacks
/// some, so that none can hide behind another.
pub fn some_faults(most: &[(Fault, u32)], random: &mut Rng) -> Vec<(Fault, u32)> {
    let rate = |&(fault, most): &(Fault, u32)| match random.u8(..3) {
        0 => (fault, 0),
        1 => (fault, most / 5),
        _ => (fault, most),
    };
    most.iter().map(rate).collect()
}

/// The outcome of a run.
struct Outcome {
    failure: Option<String>,
    events: u64,
    faults: [u64; Fault::ALL.len()],
    /// The same for the same seed.
    trace: u64,
}

/// Runs one seed.
fn run<H: Simulation>(seed: u64, coverage: &mut H::Coverage) -> Outcome {
    let mut simulation = match H::build(seed) {
        Ok(simulation) => simulation,
        Err(why) => {
            let failure = Some(format!("no simulation could be built: {why}"));
            return Outcome { failure, events: 0, faults: [0; Fault::ALL.len()], trace: 0 };
        }
    };
    let failure = match catch_unwind(AssertUnwindSafe(|| run_phases(&mut simulation))) {
        Ok(()) => simulation.failure(),
        Err(panic) => Some(format!("a panic: {}", text_of(&*panic))),
    };
    simulation.add_coverage(coverage);
    let at_ms = simulation.kernel().now_ns() / 1_000_000;
    Outcome {
        failure: failure.map(|failure| format!("{failure} (at {at_ms} ms)")),
        events: simulation.events(),
        faults: Fault::ALL.map(|fault| simulation.kernel().counted(fault)),
        trace: simulation.kernel().trace(),
    }
}

/// Runs the phases until the first failure.
fn run_phases<H: Simulation>(simulation: &mut H) {
    for phase in simulation.phases() {
        phase(simulation);
        if simulation.failure().is_some() {
            return;
        }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
