//! The fault plan of a proof: drawn from a seed, so that the same seed repeats it. Pure: it neither waits nor
//! carries anything out.

use std::time::Duration;

use serde::Serialize;

/// What a fault does, and to which node (counted from 0) if to one.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum Fault {
    /// SIGKILL of a node; it starts again at the end.
    KillNode { node: usize },
    /// SIGSTOP of a node, SIGCONT at the end.
    StopNode { node: usize },
    /// SIGKILL of the broker; it starts again at the end.
    KillBroker,
    /// Connections between node and broker are closed and new ones refused.
    CutLink { node: usize },
    /// Each byte between node and broker arrives later, in both directions.
    DelayLink { node: usize, delay_ms: u64 },
    /// Connections between node and broker stay open and nothing arrives: half-open.
    SwallowLink { node: usize },
    /// Connections of a share of the clients are reset.
    DropClients { percent: u32 },
}

impl Fault {
    /// The name in texts and results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Fault::KillNode { .. } => "node killed",
            Fault::StopNode { .. } => "node stopped",
            Fault::KillBroker => "broker killed",
            Fault::CutLink { .. } => "link cut",
            Fault::DelayLink { .. } => "link delayed",
            Fault::SwallowLink { .. } => "link half-open",
            Fault::DropClients { .. } => "clients dropped",
        }
    }

    /// The node that it is done to.
    pub(super) fn node(self) -> Option<usize> {
        match self {
            Fault::KillNode { node }
            | Fault::StopNode { node }
            | Fault::CutLink { node }
            | Fault::DelayLink { node, .. }
            | Fault::SwallowLink { node } => Some(node),
            Fault::KillBroker | Fault::DropClients { .. } => None,
        }
    }

    /// The name with its numbers.
    pub(super) fn text(self) -> String {
        match self {
            Fault::DelayLink { node, delay_ms } => {
                format!("node {}: link delayed by {delay_ms} ms", node + 1)
            }
            Fault::DropClients { percent } => format!("{percent} % of the clients dropped"),
            Fault::KillBroker => "broker killed".to_owned(),
            other => match other.node() {
                Some(node) => format!("node {}: {}", node + 1, other.name()),
                None => other.name().to_owned(),
            },
        }
    }

    fn kind(self) -> Kind {
        match self {
            Fault::KillNode { .. } => Kind::KillNode,
            Fault::StopNode { .. } => Kind::StopNode,
            Fault::KillBroker => Kind::KillBroker,
            Fault::CutLink { .. } => Kind::CutLink,
            Fault::DelayLink { .. } => Kind::DelayLink,
            Fault::SwallowLink { .. } => Kind::SwallowLink,
            Fault::DropClients { .. } => Kind::DropClients,
        }
    }
}

/// A kind of fault, as `--faults` names it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(in crate::commands::prove) enum Kind {
    KillNode,
    StopNode,
    KillBroker,
    CutLink,
    DelayLink,
    #[value(name = "half-open")]
    SwallowLink,
    DropClients,
}

impl Kind {
    pub(super) const ALL: [Kind; 7] = [
        Kind::KillNode,
        Kind::StopNode,
        Kind::KillBroker,
        Kind::CutLink,
        Kind::DelayLink,
        Kind::SwallowLink,
        Kind::DropClients,
    ];

    /// Shortest and longest time of the fault.
    fn lasts_ms(self) -> (u64, u64) {
        match self {
            Kind::KillNode => (500, 4_000),
            Kind::StopNode => (1_000, 10_000),
            Kind::KillBroker => (500, 5_000),
            Kind::CutLink => (500, 6_000),
            Kind::DelayLink => (2_000, 8_000),
            Kind::SwallowLink => (2_000, 10_000),
            Kind::DropClients => (0, 0),
        }
    }
}

/// A fault with its time, from the first publication on.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Planned {
    pub(super) from_ms: u64,
    pub(super) until_ms: u64,
    #[serde(flatten)]
    pub(super) fault: Fault,
}

/// What a plan is drawn for.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    pub(super) duration: Duration,
    /// The kinds to draw from.
    pub(super) kinds: Vec<Kind>,
}

/// Time before the first fault, and the least between the ends of one and the next to the same thing.
const REST_MS: u64 = 1_000;
/// Time between the beginnings of two faults.
const GAP_MS: (u64, u64) = (500, 6_000);
/// No fault lasts longer than this share of the duration, so that short proofs have several.
const LONGEST_SHARE: u64 = 5;

/// Draws the plan. Every kind is drawn before any comes again; one node at least has none of its own but a slow
/// link at any time, so that not everything is lost with everything.
pub(super) fn draw(draw: &Draw) -> Vec<Planned> {
    let mut random = Random(draw.seed);
    let duration_ms = draw.duration.as_millis() as u64;
    let mut plan: Vec<Planned> = Vec::new();
    let mut bag = Vec::new();
    let mut at_ms = REST_MS;
    while at_ms < duration_ms && !draw.kinds.is_empty() {
        if bag.is_empty() {
            bag = random.shuffled(&draw.kinds);
        }
        let Some(kind) = bag.pop() else { break };
        let (least, most) = kind.lasts_ms();
        let most = most.min(duration_ms / LONGEST_SHARE).max(least.min(duration_ms));
        let until_ms = at_ms + random.between(least.min(most), most);
        let node = random.below(draw.nodes.max(1) as u64) as usize;
        let fault = match kind {
            Kind::KillNode => Fault::KillNode { node },
            Kind::StopNode => Fault::StopNode { node },
            Kind::KillBroker => Fault::KillBroker,
            Kind::CutLink => Fault::CutLink { node },
            Kind::DelayLink => Fault::DelayLink { node, delay_ms: random.between(20, 800) },
            Kind::SwallowLink => Fault::SwallowLink { node },
            Kind::DropClients => Fault::DropClients { percent: random.between(5, 40) as u32 },
        };
        let planned = Planned { from_ms: at_ms, until_ms, fault };
        if until_ms <= duration_ms && fits(&plan, &planned, draw.nodes) {
            plan.push(planned);
        } else {
            // Before another bag.
            bag.insert(0, kind);
        }
        let (least, most) = GAP_MS;
        let most = most.min(duration_ms / LONGEST_SHARE).max(least);
        at_ms += random.between(least, most);
    }
    plan
}

/// Whether a fault can be added: nothing else happens to the same thing meanwhile, and a node is left. A link may be
/// slow while something else happens to it or to its node.
fn fits(plan: &[Planned], next: &Planned, nodes: usize) -> bool {
    let is_delay = |fault: Fault| fault.kind() == Kind::DelayLink;
    let near = |one: &&Planned| one.until_ms + REST_MS > next.from_ms;
    let now: Vec<&Planned> = plan.iter().filter(near).collect();
    let same = |one: &&&Planned| match next.fault.node() {
        Some(node) => one.fault.node() == Some(node) && is_delay(one.fault) == is_delay(next.fault),
        None => one.fault.kind() == next.fault.kind(),
    };
    let takes_node = |fault: Fault| fault.node().is_some() && !is_delay(fault);
    let busy = now.iter().filter(|one| takes_node(one.fault)).count();
    let is_left = nodes == 1 || busy + usize::from(takes_node(next.fault)) < nodes;
    !now.iter().any(|one| same(&one)) && is_left
}

/// SplitMix64: the plan of a seed must stay the same, whatever a library does.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Both ends included.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    fn shuffled<T: Copy>(&mut self, all: &[T]) -> Vec<T> {
        let mut all = all.to_vec();
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64, seconds: u64) -> Vec<Planned> {
        let duration = Duration::from_secs(seconds);
        draw(&Draw { seed, nodes: 3, duration, kinds: Kind::ALL.to_vec() })
    }

    #[test]
    fn a_seed_repeats_its_plan_and_another_has_another() {
        assert_eq!(plan(7, 120), plan(7, 120));
        assert_ne!(plan(7, 120), plan(8, 120));
    }

    #[test]
    fn every_kind_comes_in_two_minutes_and_all_end_in_time() {
        for seed in 0..200 {
            let plan = plan(seed, 120);
            for kind in Kind::ALL {
                assert!(plan.iter().any(|one| one.fault.kind() == kind), "{seed}: no {kind:?}");
            }
            assert!(plan.iter().all(|one| one.from_ms >= REST_MS && one.until_ms <= 120_000));
            assert!(plan.is_sorted_by_key(|one| one.from_ms));
        }
    }

    #[test]
    fn a_node_is_always_left_and_nothing_overlaps_at_one_node() {
        for seed in 0..200 {
            let plan = plan(seed, 120);
            for one in &plan {
                let together =
                    |other: &&Planned| other.from_ms <= one.from_ms && other.until_ms > one.from_ms;
                let breaks = |one: &&Planned| one.fault.kind() != Kind::DelayLink;
                let both = plan.iter().filter(together).filter(breaks);
                let nodes: Vec<_> = both.filter_map(|one| one.fault.node()).collect();
                let mut distinct = nodes.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert!(nodes.len() < 3 && distinct.len() == nodes.len(), "{seed}: {nodes:?}");
            }
        }
    }

    #[test]
    fn a_short_proof_has_faults_too() {
        for seed in 0..50 {
            assert!(plan(seed, 10).len() >= 2, "seed {seed}: {:?}", plan(seed, 10));
        }
        let one = draw(&Draw {
            seed: 1,
            nodes: 1,
            duration: Duration::from_secs(30),
            kinds: vec![Kind::KillNode],
        });
        assert!(one.len() >= 2 && one.iter().all(|one| one.fault == Fault::KillNode { node: 0 }));
    }
}
