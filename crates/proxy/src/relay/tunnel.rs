//! Tunnels: bytes both ways between two connections of one worker, without frame parsing, and without
//! buffering while both sides read. A half close (FIN) of one side is passed on and leaves the other
//! direction open; a reset of one side closes both.

use std::sync::Arc;

use engine::{Closed, ConnId, Core, Sent, Sys, invariant};

use super::{Leg, List, Listed, Relay, TunnelInfo};
use crate::balance::{Picked, Port};
use crate::counters::{Counters, Ended, Phase};
use crate::drain::{Order, Tunnels};
use crate::planted::{self, Bug};

/// Resolution of a tunnel's age, so that four bytes last for eight years.
const AGE_STEP_NS: u64 = 62_500_000;

/// The client leg of a tunnel, with the state of the whole tunnel.
pub struct ClientLeg {
    pub(super) peer: ConnId,
    pub(super) permit: Permit,
    /// Bytes from the client.
    pub(super) bytes: u64,
    /// When it was opened, in units of [`AGE_STEP_NS`] of the monotonic clock, rounded up.
    since: u32,
    /// Why it is being closed, if it is.
    pub(super) ending: Option<EndReason>,
}

/// The upstream leg of a tunnel.
pub struct UpstreamLeg {
    pub(super) peer: ConnId,
    /// Bytes from the upstream.
    pub(super) bytes: u64,
    /// Counts the source port until it is dropped.
    pub(super) _port: Option<Port>,
}

impl ClientLeg {
    pub(super) fn new(peer: ConnId, permit: Permit, now_ns: u64) -> ClientLeg {
        let since = u32::try_from(now_ns.div_ceil(AGE_STEP_NS)).unwrap_or(u32::MAX);
        ClientLeg { peer, permit, bytes: 0, since, ending: None }
    }

    /// Its age, never overestimated.
    pub(super) fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(u64::from(self.since) * AGE_STEP_NS)
    }

    /// Marks it as closing for this reason.
    fn end(&mut self, why: EndReason, counters: &Counters) {
        let before = Phase::of(self.ending.replace(why));
        counters.move_phase(Some(before), Some(Phase::of(self.ending)));
    }
}

/// Passes bytes on. Stops reading this side while the other side has a backlog.
#[inline]
pub(super) fn pass<S: Sys>(core: &mut Core<S, Relay>, from: ConnId, to: ConnId, data: &[u8]) {
    if let Sent::Queued(_) = core.write(to, data) {
        core.pause(from);
    }
}

impl Relay {
    /// One side has said all.
    pub(super) fn half_ended<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let (near, far, by) = match core.user(id) {
            Some(Leg::Near(near)) => (id, near.peer, Ended::ByClient),
            Some(Leg::Far(far)) => (far.peer, id, Ended::ByUpstream),
            _ => return,
        };
        if let Some(Leg::Near(near)) = core.user_mut(near)
            && near.ending.is_none()
        {
            near.end(by, self.counters());
        }
        if !planted::on(Bug::EndKept) {
            core.finish_writing(if near == id { far } else { near });
        }
    }

    /// The client's connection is gone.
    pub(super) fn near_ended<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        client_leg: ClientLeg,
        why: Closed,
    ) {
        let ended = match (client_leg.ending, why) {
            // The reset came from a side that had not closed its direction.
            (None | Some(EndReason::ByUpstream), Closed::Reset) => EndReason::ClientReset,
            (None | Some(EndReason::ByUpstream), Closed::GivenUp) => EndReason::ClientGivenUp,
            (Some(ending), _) => ending,
            (None, Closed::Gone | Closed::ByPeer) => Ended::ByClient,
            (None, Closed::Draining) => Ended::Draining,
            (None, Closed::NoMemory | Closed::SlowConsumer) => Ended::Exhausted,
            (None, Closed::Shed) => Ended::Shed,
            (None, Closed::Aborted) => Ended::Ordered,
            (None, _) => Ended::ClientReset,
        };
        let far = Self::set(core, near.peer, Leg::Vacant);
        if !planted::on(Bug::OtherSideKept) {
            end_leg(core, near.peer, ended);
        }
        let down = if let Leg::Far(far) = far { far.bytes } else { 0 };
        self.settle(core, id, near, down, ended);
    }

    /// The upstream's connection is gone.
    pub(super) fn far_ended<S: Sys>(&mut self, core: &mut Core<S, Self>, far: Far, why: Closed) {
        let Leg::Near(near) = Self::set(core, far.peer, Leg::Vacant) else { return };
        let ended = match (near.ending, why) {
            (None | Some(Ended::ByClient), Closed::Reset) => Ended::UpstreamReset,
            (None | Some(Ended::ByClient), Closed::GivenUp) => Ended::UpstreamGivenUp,
            (Some(ending), _) => ending,
            (None, Closed::Gone | Closed::ByPeer) => Ended::ByUpstream,
            (None, Closed::Draining) => Ended::Draining,
            (None, Closed::NoMemory | Closed::SlowConsumer) => Ended::Exhausted,
            (None, _) => Ended::UpstreamReset,
        };
        let client = far.peer;
        end_leg(core, client, ended);
        self.settle(core, client, near, far.bytes, ended);
    }

    /// Counts and tells a tunnel that is over, and gives its place back.
    fn settle<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        client: ConnId,
        client_leg: ClientLeg,
        down: u64,
        ended: EndReason,
    ) {
        let counters = self.counters();
        counters.tunnels.sub(1);
        counters.phased(Some(Phase::of(near.ending)), None);
        counters.count_ended(ended);
        let turned = planted::on(Bug::WrongDirection);
        counters.bytes_up.add(if turned { down } else { near.bytes });
        counters.bytes_down.add(if turned { near.bytes } else { down });
        self.shared.took(self.worker, |timed| &timed.lifetime, near.age_ns(core.now_ns()));
        if let Some(mut note) = self.notes.take(client) {
            note.status = 101;
            let upstream = Some(near.picked.address().to_string());
            let bytes = (near.bytes, down);
            self.shared.record(*note, upstream, bytes, (ended.side(), ended.name()), core.now_ns());
        }
        if planted::on(Bug::PlaceKept) {
            return std::mem::forget(near.picked);
        }
        self.give_back(core, Some(near.picked));
    }

    /// This proxy is shutting down: whether a connection is to be left alone, and that its tunnel is
    /// not.
    pub(super) fn goes_on<S: Sys>(&self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        match core.user_mut(id) {
            // An answer that has begun comes to its end; if that comes before the drain's.
            Some(Leg::Client(_) | Leg::Leaving(_) | Leg::Upstream(..)) => true,
            Some(Leg::Near(near)) if near.ending.is_none() => {
                near.end(Ended::Draining, self.counters());
                false
            }
            _ => false,
        }
    }

    pub(super) fn begin_drain<S: Sys>(&mut self, core: &mut Core<S, Self>, order: Arc<DrainOrder>) {
        let counters = &self.shared.counters[self.worker];
        self.drains.take(order, &Slots { core, counters });
    }

    /// Closes the tunnels that are due by drain orders; returns when the next are due.
    pub(super) fn run_drains<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        let counters = &self.shared.counters[self.worker];
        self.drains.turn(now_ns, &mut Slots { core, counters })
    }
}

/// Closes a tunnel from this side.
pub(super) fn end_tunnel<S: Sys>(
    core: &mut Core<S, Relay>,
    counters: &Counters,
    client: ConnId,
    why: EndReason,
) {
    let Some(ConnectionKind::TunnelClient(client_leg)) = core.user_mut(client) else {
        return invariant::broken("a tunnel that is ended here has a client leg");
    };
    client_leg.end(why, counters);
    let upstream = client_leg.peer;
    // Bytes already received are still sent, both ways.
    core.end_after(client, Closed::ByUs);
    core.end_after(upstream, Closed::ByUs);
}

/// Maximum number of slots scanned for one page.
const LIST_LOOKS: u32 = 16 * 1024;

/// Sends a page of tunnels.
pub(super) fn list<S: Sys>(core: &Core<S, Relay>, list: &TunnelQuery) {
    let end = core.slots().min(list.slot.saturating_add(LIST_LOOKS));
    let mut tunnels = Vec::new();
    let mut slot = list.slot;
    while slot < end && tunnels.len() < list.limit {
        tunnels
            .extend(core.id_at(slot).and_then(|id| describe(core, id, list.upstreams.as_deref())));
        slot += 1;
    }
    let next_slot = (slot < core.slots()).then_some(slot);
    // The caller may have timed out.
    let _ = list.reply.try_send(TunnelPage { tunnels, next_slot });
}

fn describe<S: Sys>(
    core: &Core<S, Relay>,
    id: ConnId,
    wanted: Option<&[u32]>,
) -> Option<TunnelInfo> {
    let ConnectionKind::TunnelClient(client_leg) = core.user(id)? else { return None };
    let ConnectionKind::TunnelUpstream(upstream_leg) = core.user(client_leg.peer)? else {
        return None;
    };
    let number = client_leg.permit.upstream().number();
    if wanted.is_some_and(|wanted| !wanted.contains(&number)) {
        return None;
    }
    let (peer, client) = core.addresses(id);
    Some(TunnelInfo {
        id,
        upstream: client_leg.permit.address().to_string(),
        client: client.or(peer),
        seconds: client_leg.age_ns(core.now_ns()) / 1_000_000_000,
        idle_seconds: idle_ns(core, id, client_leg.peer) as f64 / 1e9,
        bytes_in: client_leg.bytes,
        bytes_out: upstream_leg.bytes,
        queued: core.queued(id) + core.queued(client_leg.peer),
    })
}

/// How long no side of a tunnel has sent data.
pub(super) fn idle_ns<S: Sys>(
    core: &Core<S, Relay>,
    client_leg: ConnId,
    upstream_leg: ConnId,
) -> u64 {
    let of = |id| core.idle_ns(id).unwrap_or(u64::MAX);
    of(client_leg).min(of(upstream_leg))
}

/// Closes the remaining leg: at once if the other side was reset, otherwise after its queue is sent.
fn end_leg<S: Sys>(core: &mut Core<S, Relay>, id: ConnId, ended: EndReason) {
    if matches!(ended, EndReason::ClientReset | EndReason::ClientGivenUp) {
        core.reset(id);
    } else {
        core.end_after(id, Closed::ByUs);
    }
}

/// A worker's tunnels, by the client's slot.
struct Slots<'c, S: Sys> {
    core: &'c mut Core<S, Relay>,
    counters: &'c Counters,
}

impl<S: Sys> Tunnels for Slots<'_, S> {
    fn slots(&self) -> u32 {
        self.core.slots()
    }

    fn upstream_at(&self, slot: u32) -> Option<u32> {
        match self.core.user(self.core.id_at(slot)?)? {
            ConnectionKind::TunnelClient(client_leg)
                if client_leg.ending != Some(EndReason::Ordered) =>
            {
                Some(client_leg.permit.upstream().number())
            }
            _ => None,
        }
    }

    fn end(&mut self, slot: u32) {
        match self.core.id_at(slot) {
            Some(id) => end_tunnel(self.core, self.counters, id, EndReason::Ordered),
            None => invariant::broken("a slot that held a tunnel just now holds it"),
        }
    }
}
