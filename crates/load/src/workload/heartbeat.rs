//! [`Heartbeat`]: pings each socket once per period and times the pongs. A ping carries its send time in
//! eight bytes, so that timing the pong needs no memory.

use std::time::Duration;

use engine::invariant;
use engine::{ConnId, Core, Sent, Sys};

use crate::Series;
use crate::outcome::metrics::{Metrics, WorkerMetrics};
use crate::workload::client::Client;
use crate::workload::socket::Socket;
use crate::workload::sweep::Sweep;

/// Sockets visited per turn.
const VISITS_PER_TURN: u32 = 256;
/// Pings are sent in the first seven eighths of the period, so that pongs arrive before it ends.
const SPAN_EIGHTHS: u64 = 7;

/// The pings of one worker.
pub(crate) struct Heartbeat {
    period: Duration,
    sweep: Sweep,
}

impl Heartbeat {
    pub(crate) fn new(now_ns: u64, period: Duration) -> Heartbeat {
        Heartbeat { period, sweep: Sweep::new(now_ns, period, SPAN_EIGHTHS) }
    }

    pub(crate) fn period(&self) -> Duration {
        self.period
    }

    pub(crate) fn turn<S: Sys>(&mut self, core: &mut Core<S, Client>, metrics: &Metrics) -> u64 {
        let slots = core.slots();
        let due = self.sweep.due(core.now_ns(), slots, VISITS_PER_TURN);
        let full = due.len() as u32 == VISITS_PER_TURN;
        for slot in due {
            if let Some(id) = core.id_at(slot) {
                ping(core, id, metrics);
            }
        }
        if full { core.now_ns() } else { self.sweep.next_ns(core.now_ns(), slots) }
    }
}

fn ping<S: Sys>(core: &mut Core<S, Client>, id: ConnId, metrics: &Metrics) {
    let stamp = core.clock_ns().to_le_bytes();
    if core.ping(id, &stamp) == Sent::Dropped {
        return;
    }
    metrics.counts.heartbeats_sent.add(1);
    if let Some(socket) = core.user_mut(id)
        && !socket.has(Socket::PINGED)
    {
        socket.set(Socket::PINGED);
        metrics.counts.waiting.add(1);
        metrics.counts.unanswered.add(u64::from(!socket.has(Socket::ANSWERED)));
    }
}

/// Handles a pong.
pub(crate) fn pong<S: Sys>(
    core: &mut Core<S, Client>,
    id: ConnId,
    payload: &[u8],
    metrics: &WorkerMetrics,
) {
    let now_ns = core.clock_ns();
    let Some(socket) = core.user_mut(id) else {
        return invariant::broken("a pong comes on a live connection");
    };
    // An unsolicited pong (RFC 6455 section 5.5.3) answers nothing.
    let stamp = payload.try_into().ok().map(u64::from_le_bytes);
    let Some(sent_ns) = stamp.filter(|&sent_ns| sent_ns <= now_ns && socket.has(Socket::PINGED))
    else {
        return;
    };
    socket.clear(Socket::PINGED);
    let first = !socket.has(Socket::ANSWERED);
    socket.set(Socket::ANSWERED);
    metrics.counts.waiting.sub(1);
    metrics.counts.answered.add(u64::from(first));
    metrics.counts.unanswered.sub(u64::from(first));
    metrics.counts.heartbeats_received.add(1);
    metrics.record(Series::Heartbeat, now_ns - sent_ns);
}

/// Forgets a socket that has ended. If we closed it, the pong of a ping in flight was not awaited.
pub(crate) fn forget(socket: &Socket, is_ours: bool, metrics: &Metrics) {
    let (pinged, answered) = (socket.has(Socket::PINGED), socket.has(Socket::ANSWERED));
    metrics.counts.heartbeats_cut.add(u64::from(pinged && is_ours));
    metrics.counts.waiting.sub(u64::from(pinged));
    metrics.counts.answered.sub(u64::from(answered));
    metrics.counts.unanswered.sub(u64::from(pinged && !answered));
}
