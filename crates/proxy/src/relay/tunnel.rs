//! Tunnels: bytes both ways between two connections of one worker, without frame parsing, and without
//! buffering while both sides read. A half close (FIN) of one side is passed on and leaves the other
//! direction open; a reset of one side closes both.

use std::sync::Arc;

use engine::{Closed, ConnId, Core, Sent, Sys, invariant};

use super::idle_timeouts::IdleTimeout;
use super::{ConnectionKind, Relay, TunnelInfo, TunnelPage, TunnelQuery};
use crate::balance::{Permit, Port};
use crate::counters::{Counters, EndReason, Phase};
use crate::drain::{DrainOrder, Tunnels};

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
    pub(super) idle_timeout: IdleTimeout,
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
    pub(super) fn new(
        peer: ConnId,
        permit: Permit,
        now_ns: u64,
        idle_timeout: IdleTimeout,
    ) -> ClientLeg {
        let since = u32::try_from(now_ns.div_ceil(AGE_STEP_NS)).unwrap_or(u32::MAX);
        ClientLeg { peer, permit, bytes: 0, since, idle_timeout, ending: None }
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
    /// One side has closed its direction (FIN).
    pub(super) fn half_closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let (client, upstream, by) = match core.user(id) {
            Some(ConnectionKind::TunnelClient(leg)) => (id, leg.peer, EndReason::ByClient),
            Some(ConnectionKind::TunnelUpstream(leg)) => (leg.peer, id, EndReason::ByUpstream),
            _ => return invariant::broken("only a leg of a tunnel is half closed"),
        };
        let Some(ConnectionKind::TunnelClient(leg)) = core.user_mut(client) else {
            return invariant::broken("an upstream leg has a client leg");
        };
        if leg.ending.is_none() {
            leg.end(by, self.counters());
        }
        core.finish_writing(if client == id { upstream } else { client });
    }

    /// The client leg is closed.
    pub(super) fn client_leg_closed<S: Sys>(
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
            (None, Closed::Gone | Closed::ByPeer) => EndReason::ByClient,
            (None, Closed::Draining) => EndReason::Draining,
            (None, Closed::NoMemory | Closed::SlowConsumer) => EndReason::Exhausted,
            (None, Closed::Shed) => EndReason::Shed,
            (None, Closed::Aborted) => EndReason::Ordered,
            (None, _) => EndReason::ClientReset,
        };
        let upstream_leg = Self::set(core, client_leg.peer, ConnectionKind::Unused);
        end_leg(core, client_leg.peer, ended);
        let down = match upstream_leg {
            ConnectionKind::TunnelUpstream(leg) => leg.bytes,
            _ => {
                invariant::broken("a client leg has an upstream leg");
                0
            }
        };
        self.finish_tunnel(core, id, client_leg, down, ended);
    }

    /// The upstream leg is closed.
    pub(super) fn upstream_leg_closed<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        upstream_leg: UpstreamLeg,
        why: Closed,
    ) {
        let ConnectionKind::TunnelClient(client_leg) =
            Self::set(core, upstream_leg.peer, ConnectionKind::Unused)
        else {
            return invariant::broken("an upstream leg has a client leg");
        };
        let ended = match (client_leg.ending, why) {
            (None | Some(EndReason::ByClient), Closed::Reset) => EndReason::UpstreamReset,
            (None | Some(EndReason::ByClient), Closed::GivenUp) => EndReason::UpstreamGivenUp,
            (Some(ending), _) => ending,
            (None, Closed::Gone | Closed::ByPeer) => EndReason::ByUpstream,
            (None, Closed::Draining) => EndReason::Draining,
            (None, Closed::NoMemory | Closed::SlowConsumer) => EndReason::Exhausted,
            (None, _) => EndReason::UpstreamReset,
        };
        let client = upstream_leg.peer;
        end_leg(core, client, ended);
        self.finish_tunnel(core, client, client_leg, upstream_leg.bytes, ended);
    }

    /// Counts and logs a closed tunnel and releases its permit.
    fn finish_tunnel<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        client: ConnId,
        client_leg: ClientLeg,
        down: u64,
        ended: EndReason,
    ) {
        self.idle_timeouts.remove(client_leg.idle_timeout);
        let counters = self.counters();
        counters.tunnels.sub(1);
        counters.move_phase(Some(Phase::of(client_leg.ending)), None);
        counters.count_ended(ended);
        counters.bytes_up.add(client_leg.bytes);
        counters.bytes_down.add(down);
        self.shared.observe(self.worker, |timed| &timed.lifetime, client_leg.age_ns(core.now_ns()));
        if let Some(mut log_entry) = self.log_entries.take(client) {
            log_entry.status = 101;
            let upstream = Some(&**client_leg.permit.upstream());
            let bytes = (client_leg.bytes, down);
            self.shared.record(
                *log_entry,
                upstream,
                bytes,
                (ended.side(), ended.name()),
                core.now_ns(),
            );
        }
        self.release(core, Some(client_leg.permit));
    }

    /// Called when the proxy shuts down: returns whether a connection stays open for now. A tunnel is
    /// marked as draining.
    pub(super) fn holds_open<S: Sys>(&self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        match core.user_mut(id) {
            // A response in progress may complete within the drain's time.
            Some(
                ConnectionKind::RequestClient(_)
                | ConnectionKind::FlushingClient(_)
                | ConnectionKind::RequestUpstream(..),
            ) => true,
            Some(ConnectionKind::TunnelClient(client_leg)) if client_leg.ending.is_none() => {
                client_leg.end(EndReason::Draining, self.counters());
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
        upstream: client_leg.permit.upstream().name(),
        address: client_leg.permit.address().to_string(),
        client: client.or(peer),
        seconds: client_leg.age_ns(core.now_ns()) / 1_000_000_000,
        idle_seconds: idle_ns(core, id, client_leg.peer) as f64 / 1e9,
        bytes_in: client_leg.bytes,
        bytes_out: upstream_leg.bytes,
        queued: core.queued(id) + core.queued(client_leg.peer),
    })
}

/// How long no side of a tunnel has sent data, never overestimated: the steps of the idle clock can be
/// longer than the FIN timeout.
pub(super) fn idle_ns<S: Sys>(
    core: &Core<S, Relay>,
    client_leg: ConnId,
    upstream_leg: ConnId,
) -> u64 {
    let of = |id| core.idle_at_least_ns(id).unwrap_or(u64::MAX);
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
