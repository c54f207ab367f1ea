//! What the servers between nodes have to do, by the number of nodes: counted in runs without faults.

use std::process::ExitCode;

use engine::sys::sim::Kernel;
use fastrand::Rng;

use super::scenario::Scenario;
use super::server::Counts;
use super::simulation::NodesSim;

const SECOND_NS: u64 = 1_000_000_000;
const NODES: [usize; 5] = [1, 2, 3, 8, 100];
/// Publications of each node in a second, to topics that every node follows.
const PER_SECOND: f64 = 1.0;
const TOPICS: u32 = 4;
/// Time that is counted.
const SECONDS: u64 = 10;

/// Prints the table; whether the traffic is what it should be.
pub(crate) fn main() -> ExitCode {
    println!(
        "{SECONDS} s, {TOPICS} topics, {PER_SECOND} publications a second by each node, 3 servers:"
    );
    println!(
        "{:>5} {:>7} {:>7} {:>8} {:>8} {:>7} {:>10} {:>7} {:>9} {:>9} {:>9}",
        "nodes",
        "sockets",
        "topics",
        "publish",
        "passed",
        "beacons",
        "alive",
        "to one",
        "KB/s in",
        "KB/s out",
        "received"
    );
    let mut right = true;
    for nodes in NODES {
        // Twice, with other numbers of sockets: the servers have the same to do.
        let [few, many] = [4, 16].map(|sockets| row(nodes, sockets));
        right &= few.is_right && many.is_right && few.passed.abs_diff(many.passed) <= nodes as u64;
    }
    if right {
        println!(
            "publications passed = publications × nodes that follow their topic, whatever the sockets"
        );
        return ExitCode::SUCCESS;
    }
    println!("the traffic is not that of the nodes");
    ExitCode::FAILURE
}

struct Row {
    passed: u64,
    is_right: bool,
}

fn row(nodes: usize, sockets: usize) -> Row {
    let scenario = Scenario::calm(nodes, sockets, TOPICS, PER_SECOND);
    let kernel = Kernel::new(1, scenario.buffers);
    let Ok(mut sim) = NodesSim::with(Rng::with_seed(1), scenario, kernel) else {
        return Row { passed: 0, is_right: false };
    };
    // All have connected and subscribed.
    sim.pass(5 * SECOND_NS);
    let (subscribed, before) = (sim.clients_subscribed(), sim.ledger().book().publications());
    sim.take_counts();
    let received = sim.ledger().book().coverage.messages;
    sim.pass(SECONDS * SECOND_NS);
    let received = sim.ledger().book().coverage.messages - received;
    let published = sim.ledger().book().publications() - before;
    let counts = sim.take_counts();
    let subscriptions: usize = counts.iter().map(|(_, subscriptions)| subscriptions).sum();
    let sum = |of: fn(&Counts) -> u64| counts.iter().map(|(counts, _)| of(counts)).sum::<u64>();
    let (publications, passed) = (sum(|one| one.publications), sum(|one| one.passed));
    let (beacons, alive, messages) =
        (sum(|one| one.beacons), sum(|one| one.alive), sum(|one| one.messages));
    let kb = |bytes: u64| bytes as f64 / SECONDS as f64 / 1_000.0;
    let (bytes_in, bytes_out) = (kb(sum(|one| one.bytes_in)), kb(sum(|one| one.bytes_out)));
    println!(
        "{nodes:>5} {subscribed:>7} {subscriptions:>7} {publications:>8} {passed:>8} {beacons:>7} \
         {alive:>10} {:>7.1} {bytes_in:>9.1} {bytes_out:>9.1} {received:>9}",
        messages as f64 / nodes as f64 / SECONDS as f64,
    );
    let failure = sim.ledger().book().failure.clone();
    if let Some(failure) = &failure {
        println!("{failure}");
    }
    let near = published.abs_diff(publications) <= nodes as u64;
    // Each follows all topics and the channel of commands.
    let all = subscriptions == nodes * (TOPICS as usize + 1) && subscribed == nodes * sockets;
    let is_right = failure.is_none() && near && all && passed == publications * nodes as u64;
    Row { passed, is_right }
}
