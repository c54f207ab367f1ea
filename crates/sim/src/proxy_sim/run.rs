//! One run: a storm of work and faults, a calm in which every peer must end and nothing may be left,
//! and a drain.

use crate::House as _;
use engine::Totals;
use engine::sys::sim::Fault;

use super::ledger::Story;
use super::simulation::House;

const SECOND_NS: u64 = 1_000_000_000;
/// A storm that takes longer than this has got stuck.
const STORM_NS_MAX: u64 = 600 * SECOND_NS;
/// In a calm all bytes have arrived after the first time, and all peers have ended after the second.
const TOLD_NS: u64 = 3 * SECOND_NS;
const CALM_NS_MAX: u64 = 30 * SECOND_NS;

/// Some houses end in the middle of the storm.
pub(crate) fn phases(ends_in_storm: bool) -> &'static [fn(&mut House)] {
    if ends_in_storm { &[storm, drain] } else { &[storm, calm, drain] }
}

fn storm(house: &mut House) {
    let wanted = house.scenario.events;
    if house.steps(STORM_NS_MAX, |house| house.kernel.reports() >= wanted) {
        house.ledger.book().fail("the house has come to a standstill");
    }
}

/// Faults stop and nobody new comes; all is told, then all end.
fn calm(house: &mut House) {
    house.kernel.calm();
    house.ledger.book().calm = true;
    house.steps(TOLD_NS, House::is_at_rest);
    house.clients.iter().for_each(|client| client.check_told());
    house.upstreams.iter().for_each(|upstream| upstream.check_told());
    house.clients.iter_mut().for_each(|client| client.stay_no_longer());
    house.upstreams.iter_mut().for_each(|upstream| upstream.stay_no_longer());
    if house.steps(CALM_NS_MAX, House::is_at_rest) {
        let clients = house.clients.iter().filter(|client| !client.is_over()).count();
        let legs: usize = house.upstreams.iter().map(|upstream| upstream.legs()).sum();
        let left = format!("{clients} clients and {legs} connections to upstreams do not end");
        house.ledger.book().fail(left);
    }
    house.steps(SECOND_NS, |_| false);
    check_tally(house);
}

/// What the relays have counted agrees with what both sides saw, and nothing is under way.
fn check_tally(house: &House) {
    let tally = house.relays.tally();
    let mut book = house.ledger.book();
    let left = (tally.tunnels, tally.exchanges, tally.places);
    book.require(left == (0, 0, 0), || format!("tunnels, requests and places left: {left:?}"));
    let ended: u64 = tally.ended.iter().sum();
    let (opened, told) = (tally.opened, book.opened);
    book.require(ended == opened, || format!("{opened} tunnels opened, {ended} ended"));
    let upgrades: Vec<Story> = book.stories().iter().filter(|s| s.upgrade).cloned().collect();
    let switched = || upgrades.iter().filter(|story| story.switched);
    let answered = switched().count() as u64;
    book.require(told <= opened && opened <= answered, || {
        format!("{answered} switched, {opened} counted as opened, {told} clients told")
    });
    // Of one that was switched too late its client heard another answer.
    let heard = |of: fn(&Story) -> u64| upgrades.iter().filter(|s| s.told).map(of).sum::<u64>();
    let said = |of: fn(&Story) -> u64| switched().map(of).sum::<u64>();
    let (least, most) = (heard(|s| s.up.heard), said(|s| s.up.said));
    book.require((least..=most).contains(&tally.bytes_up), || {
        format!("{} bytes up counted, {least} heard of {most}", tally.bytes_up)
    });
    let (least, most) = (heard(|s| s.down.heard), said(|s| s.down.said));
    book.require((least..=most).contains(&tally.bytes_down), || {
        format!("{} bytes down counted, {least} heard of {most}", tally.bytes_down)
    });
    // Whoever ended a tunnel before all was there is the proxy, and has counted it.
    let cut = ended.saturating_sub(by_its_ends(&tally.ended));
    let short = book.short;
    let hasty = house.scenario.hasty;
    let strict = house.scenario.is_strict();
    book.require(!strict || short == 0 && cut == 0, || {
        format!("{short} ends came too early and {cut} tunnels were ended here, hasty: {hasty}")
    });
}

/// Tunnels that one of their two ends has ended.
fn by_its_ends(ended: &[u64]) -> u64 {
    use proxy::Ended;
    let own = [Ended::ByClient, Ended::ByUpstream, Ended::ClientReset, Ended::UpstreamReset];
    own.into_iter().filter_map(|why| ended.get(why as usize)).sum()
}

/// The proxy ends; nothing is left.
fn drain(house: &mut House) {
    let live = &house.scenario.live;
    let longest = live.patience.answer.max(live.patience.handshake) * 2;
    let time = house.scenario.drain + live.limits.close_timeout * 3 + longest;
    let bound = time.as_nanos() as u64 + 90 * SECOND_NS;
    house.kernel.set_rate(Fault::ClockJump, 0);
    house.remote.drain(house.scenario.drain);
    if house.steps(bound, |house| house.members.iter().all(|member| member.stopped)) {
        house.ledger.book().fail("the proxy does not end");
    }
    let totals = Totals::sum(house.remote.counters());
    let tally = house.relays.tally();
    let left = [totals.connections, totals.queued_bytes, tally.tunnels, tally.exchanges];
    let places = tally.places;
    let mut book = house.ledger.book();
    book.require(left == [0; 4] && places == 0, || format!("left over: {left:?}, {places}"));
}
