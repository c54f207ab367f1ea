//! One run: a storm of work and faults, a calm in which everything must settle, an idle
//! second, and a drain after which nothing may be left.

use crate::House as _;
use engine::Totals;
use engine::sys::sim::Fault;

use super::simulation::House;

const SECOND_NS: u64 = 1_000_000_000;
/// A storm that takes longer than this has got stuck.
const STORM_NS_MAX: u64 = 600 * SECOND_NS;
/// Turns in a second of a worker with nothing to do: its timers tick at most 50 times.
const IDLE_TURNS_MAX: u64 = 120;

/// Some houses end in the middle of the storm.
pub(crate) fn phases(ends_in_storm: bool) -> &'static [fn(&mut House)] {
    if ends_in_storm { &[storm, drain] } else { &[storm, calm, idle, drain] }
}

fn storm(house: &mut House) {
    let wanted = house.scenario.events;
    if house.steps(STORM_NS_MAX, |house| house.events() >= wanted) {
        house.ledger.book().fail("the house has come to a standstill");
    }
    let lost = house.kernel.lost();
    house.ledger.book().require(lost == 0, || format!("{lost} queued connections were lost"));
}

/// Faults stop; whatever is pending completes.
fn calm(house: &mut House) {
    house.kernel.calm();
    house.ledger.book().calm = true;
    let now_ns = house.kernel.now_ns();
    house.control.due_ns = now_ns;
    let limits = house.scenario.limits.clone();
    let idle = limits.idle_timeout.unwrap_or_default();
    let time = limits.handshake_timeout + idle * 3 / 2 + limits.close_timeout * 3;
    house.steps(time.as_nanos() as u64 + 2 * SECOND_NS, |_| false);
    let now_ns = house.kernel.now_ns();
    for (client, remote) in house.clients.iter().zip(&house.client_remotes) {
        let client = client.worker.handler();
        client.check_calm(now_ns, limits.handshake_timeout.as_nanos() as u64);
        let totals = Totals::sum(remote.counters());
        let counted = totals.messages_out;
        house.ledger.book().require(client.spoken == counted, || {
            format!("{} messages given to send, {counted} counted", client.spoken)
        });
    }
    house.raws.iter().for_each(|raw| raw.check_calm());
    // A listener may rest for 100 ms after room has come.
    let settled = |house: &House| house.kernel.waiting() == 0 || house.is_full();
    let lost = house.steps(SECOND_NS / 4, settled);
    let dropped = Totals::sum(house.remote.counters()).dropped_slow;
    let mut book = house.ledger.book();
    let missed = book.check_topics();
    book.require(missed <= dropped, || format!("{missed} missed, {dropped} counted as dropped"));
    book.require(!lost, || "connections wait although there is room".into());
    let (posted, taken) = (book.posted, book.taken);
    book.require(posted == taken, || format!("{posted} posts, {taken} taken"));
}

/// Nothing happens, and nobody works.
fn idle(house: &mut House) {
    let turns = |house: &House| -> Vec<u64> {
        let servers = house.servers.iter().map(|member| member.idle_turns);
        servers.chain(house.clients.iter().map(|member| member.idle_turns)).collect()
    };
    let before = turns(house);
    house.steps(SECOND_NS, |_| false);
    let worst = turns(house).iter().zip(&before).map(|(after, before)| after - before).max();
    let worst = worst.unwrap_or(0);
    house.ledger.book().require(worst <= IDLE_TURNS_MAX, || {
        format!("an idle worker took {worst} turns in a second")
    });
}

/// The server ends, then the clients; nothing is left.
fn drain(house: &mut House) {
    let over = house.scenario.drain;
    let bound = (over + house.scenario.limits.close_timeout).as_nanos() as u64 + SECOND_NS;
    // Its time is measured.
    house.kernel.set_rate(Fault::ClockJump, 0);
    house.remote.drain(over);
    let servers = |house: &House| house.servers.iter().all(|member| member.stopped);
    if house.steps(bound, servers) {
        house.ledger.book().fail("the server does not end");
    }
    house.ledger.book().calm = true;
    for remote in &house.client_remotes {
        remote.drain(over);
    }
    let clients = |house: &House| house.clients.iter().all(|member| member.stopped);
    if house.steps(bound, clients) {
        house.ledger.book().fail("a client does not end");
    }
    let server = Totals::sum(house.remote.counters());
    let dropped = server.dropped_slow + server.dropped_gone;
    let mut book = house.ledger.book();
    let (sent, arrived) = (server.messages_out, book.arrived);
    book.require(arrived + dropped <= sent, || {
        format!("{arrived} messages arrived and {dropped} were dropped of {sent}")
    });
    let remotes = house.client_remotes.iter().flat_map(|remote| remote.counters());
    for counters in house.remote.counters().chain(remotes) {
        let totals = Totals::sum([counters]);
        let left = (totals.connections, totals.websockets, totals.queued_bytes);
        book.require(left == (0, 0, 0), || format!("left over: {left:?}"));
    }
    for member in &house.servers {
        let subscriptions = member.worker.handler().subscriptions();
        book.require(subscriptions == 0, || format!("{subscriptions} subscriptions left over"));
    }
}
