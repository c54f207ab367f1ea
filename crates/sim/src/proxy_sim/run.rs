//! One run: a storm of work and faults, a calm in which every peer must end and nothing may be left,
//! and a drain.

use engine::Totals;
use engine::sys::sim::Fault;

use super::ledger::Exchange;
use super::simulation::ProxySim;
use crate::Simulation as _;

const SECOND_NS: u64 = 1_000_000_000;
/// A storm that takes longer than this has got stuck.
const STORM_NS_MAX: u64 = 600 * SECOND_NS;
/// In a calm all bytes have arrived after the first time, and all peers have ended after the second.
const TOLD_NS: u64 = 3 * SECOND_NS;
const CALM_NS_MAX: u64 = 30 * SECOND_NS;

/// Some houses end in the middle of the storm.
pub(crate) fn phases(ends_in_storm: bool) -> &'static [fn(&mut ProxySim)] {
    if ends_in_storm { &[storm, drain] } else { &[storm, calm, drain] }
}

fn storm(sim: &mut ProxySim) {
    let wanted = sim.scenario.events;
    if sim.steps(STORM_NS_MAX, |sim| sim.kernel.reports() >= wanted) {
        sim.ledger.book().fail("the simulation makes no progress");
    }
}

/// Faults stop and no client connects; all bytes arrive, then all peers end.
fn calm(sim: &mut ProxySim) {
    sim.kernel.calm();
    sim.ledger.book().calm = true;
    sim.steps(TOLD_NS, ProxySim::is_at_rest);
    sim.clients.iter().for_each(|client| client.check_ends());
    sim.upstreams.iter().for_each(|upstream| upstream.check_ends());
    sim.clients.iter_mut().for_each(|client| client.end_stays());
    sim.upstreams.iter_mut().for_each(|upstream| upstream.end_stays());
    if sim.steps(CALM_NS_MAX, ProxySim::is_at_rest) {
        let clients = sim.clients.iter().filter(|client| !client.is_over()).count();
        let legs: usize = sim.upstreams.iter().map(|upstream| upstream.legs()).sum();
        let left = format!("{clients} clients and {legs} connections to upstreams do not end");
        sim.ledger.book().fail(left);
    }
    sim.steps(SECOND_NS, |_| false);
    check_tally(sim);
}

/// The relays' counters agree with what both sides observed, and nothing is in progress.
fn check_tally(sim: &ProxySim) {
    let tally = sim.relays.tally();
    let mut book = sim.ledger.book();
    let left = (tally.tunnels, tally.exchanges, tally.places);
    book.require(left == (0, 0, 0), || format!("tunnels, requests and places left: {left:?}"));
    let ended: u64 = tally.ended.iter().sum();
    let (opened, client_switched) = (tally.opened, book.opened);
    book.require(ended == opened, || format!("{opened} tunnels opened, {ended} ended"));
    let upgrades: Vec<Exchange> = book.exchanges().iter().filter(|s| s.upgrade).cloned().collect();
    let switched = || upgrades.iter().filter(|exchange| exchange.switched);
    let answered = switched().count() as u64;
    book.require(client_switched <= opened && opened <= answered, || {
        format!("{answered} switched, {opened} counted as opened, {client_switched} clients received 101")
    });
    // If the upstream switched too late, the client received another answer.
    let received = |of: fn(&Exchange) -> u64| {
        upgrades.iter().filter(|s| s.client_switched).map(of).sum::<u64>()
    };
    let sent = |of: fn(&Exchange) -> u64| switched().map(of).sum::<u64>();
    let (least, most) = (received(|s| s.up.received), sent(|s| s.up.sent));
    book.require((least..=most).contains(&tally.bytes_up), || {
        format!("{} bytes up counted, {least} received of {most}", tally.bytes_up)
    });
    let (least, most) = (received(|s| s.down_received), sent(Exchange::most_sent));
    book.require((least..=most).contains(&tally.bytes_down), || {
        format!("{} bytes down counted, {least} received of {most}", tally.bytes_down)
    });
    // A tunnel that ended before all bytes had arrived was ended by the proxy, which has counted it.
    let aborted = ended.saturating_sub(by_its_ends(&tally.ended));
    let truncated = book.truncated;
    let hasty = sim.scenario.hasty;
    let strict = sim.scenario.is_strict();
    book.require(!strict || truncated == 0 && aborted == 0, || {
        format!(
            "{truncated} ends came too early and the proxy ended {aborted} tunnels, short timeouts: {hasty}"
        )
    });
}

/// Tunnels that one of their two ends has ended.
fn by_its_ends(ended: &[u64]) -> u64 {
    use proxy::EndReason;
    let own = [
        EndReason::ByClient,
        EndReason::ByUpstream,
        EndReason::ClientReset,
        EndReason::UpstreamReset,
    ];
    own.into_iter().filter_map(|why| ended.get(why as usize)).sum()
}

/// The proxy drains and stops; nothing is left.
fn drain(sim: &mut ProxySim) {
    let live = &sim.scenario.live;
    let longest = live.timeouts.answer.max(live.timeouts.handshake) * 2;
    let time = sim.scenario.drain + live.limits.close_timeout * 3 + longest;
    let bound = time.as_nanos() as u64 + 90 * SECOND_NS;
    sim.kernel.set_rate(Fault::ClockJump, 0);
    sim.remote.drain(sim.scenario.drain);
    if sim.steps(bound, |sim| sim.members.iter().all(|member| member.stopped)) {
        sim.ledger.book().fail("the proxy does not end");
    }
    let totals = Totals::sum(sim.remote.counters());
    let tally = sim.relays.tally();
    let left = [totals.connections, totals.queued_bytes, tally.tunnels, tally.exchanges];
    let places = tally.places;
    let mut book = sim.ledger.book();
    book.require(left == [0; 4] && places == 0, || format!("left over: {left:?}, {places}"));
}
