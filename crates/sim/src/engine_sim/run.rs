//! One run: a storm of work and faults, a calm in which everything must settle, an idle
//! second, and a drain after which nothing may be left.

use engine::Totals;
use engine::sys::sim::Fault;

use super::simulation::EngineSim;
use crate::Simulation as _;

const SECOND_NS: u64 = 1_000_000_000;
/// A storm that takes longer than this has got stuck.
const STORM_NS_MAX: u64 = 600 * SECOND_NS;
/// Turns in a second of a worker with nothing to do: its timers tick at most 50 times.
const IDLE_TURNS_MAX: u64 = 120;

/// Some houses end in the middle of the storm.
pub(crate) fn phases(ends_in_storm: bool) -> &'static [fn(&mut EngineSim)] {
    if ends_in_storm { &[storm, drain] } else { &[storm, calm, idle, drain] }
}

fn storm(sim: &mut EngineSim) {
    let wanted = sim.scenario.events;
    if sim.steps(STORM_NS_MAX, |sim| sim.events() >= wanted) {
        sim.ledger.book().fail("the simulation makes no progress");
    }
    let lost = sim.kernel.lost();
    sim.ledger.book().require(lost == 0, || format!("{lost} queued connections were lost"));
}

/// Faults stop; whatever is pending completes.
fn calm(sim: &mut EngineSim) {
    sim.kernel.calm();
    sim.ledger.book().calm = true;
    let now_ns = sim.kernel.now_ns();
    sim.control.due_ns = now_ns;
    let limits = sim.scenario.limits.clone();
    let idle = limits.idle_timeout.unwrap_or_default();
    let time = limits.handshake_timeout + idle * 3 / 2 + limits.close_timeout * 3;
    sim.steps(time.as_nanos() as u64 + 2 * SECOND_NS, |_| false);
    let now_ns = sim.kernel.now_ns();
    for (client, remote) in sim.clients.iter().zip(&sim.client_remotes) {
        let client = client.worker.handler();
        client.check_calm(now_ns, limits.handshake_timeout.as_nanos() as u64);
        let totals = Totals::sum(remote.counters());
        let counted = totals.messages_out;
        sim.ledger.book().require(client.sent_messages == counted, || {
            format!("{} messages given to send, {counted} counted", client.sent_messages)
        });
    }
    sim.raws.iter().for_each(|raw| raw.check_calm());
    // A listener may stay paused for 100 ms after there is room.
    let settled = |sim: &EngineSim| sim.kernel.waiting() == 0 || sim.is_full();
    let lost = sim.steps(SECOND_NS / 4, settled);
    let dropped = Totals::sum(sim.remote.counters()).dropped_slow;
    let mut book = sim.ledger.book();
    let missed = book.check_topics();
    book.require(missed <= dropped, || format!("{missed} missed, {dropped} counted as dropped"));
    book.require(!lost, || "connections wait although there is room".into());
    let (posted, taken) = (book.posted, book.taken);
    book.require(posted == taken, || format!("{posted} posts, {taken} taken"));
}

/// Nothing happens, and no worker is busy.
fn idle(sim: &mut EngineSim) {
    let turns = |sim: &EngineSim| -> Vec<u64> {
        let servers = sim.servers.iter().map(|member| member.idle_turns);
        servers.chain(sim.clients.iter().map(|member| member.idle_turns)).collect()
    };
    let before = turns(sim);
    sim.steps(SECOND_NS, |_| false);
    let worst = turns(sim).iter().zip(&before).map(|(after, before)| after - before).max();
    let worst = worst.unwrap_or(0);
    sim.ledger.book().require(worst <= IDLE_TURNS_MAX, || {
        format!("an idle worker took {worst} turns in a second")
    });
}

/// The server drains and stops, then the clients; nothing is left.
fn drain(sim: &mut EngineSim) {
    let over = sim.scenario.drain;
    let bound = (over + sim.scenario.limits.close_timeout).as_nanos() as u64 + SECOND_NS;
    // Its time is measured.
    sim.kernel.set_rate(Fault::ClockJump, 0);
    sim.remote.drain(over);
    let servers = |sim: &EngineSim| sim.servers.iter().all(|member| member.stopped);
    if sim.steps(bound, servers) {
        sim.ledger.book().fail("the server does not end");
    }
    sim.ledger.book().calm = true;
    for remote in &sim.client_remotes {
        remote.drain(over);
    }
    let clients = |sim: &EngineSim| sim.clients.iter().all(|member| member.stopped);
    if sim.steps(bound, clients) {
        sim.ledger.book().fail("a client does not end");
    }
    let server = Totals::sum(sim.remote.counters());
    let dropped = server.dropped_slow + server.dropped_gone;
    let mut book = sim.ledger.book();
    let (sent, arrived) = (server.messages_out, book.arrived);
    book.require(arrived + dropped <= sent, || {
        format!("{arrived} messages arrived and {dropped} were dropped of {sent}")
    });
    let remotes = sim.client_remotes.iter().flat_map(|remote| remote.counters());
    for counters in sim.remote.counters().chain(remotes) {
        let totals = Totals::sum([counters]);
        let left = (totals.connections, totals.websockets, totals.queued_bytes);
        book.require(left == (0, 0, 0), || format!("left over: {left:?}"));
    }
    for member in &sim.servers {
        let subscriptions = member.worker.handler().subscriptions();
        book.require(subscriptions == 0, || format!("{subscriptions} subscriptions left over"));
    }
}
