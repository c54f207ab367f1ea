//! Connections to upstreams: reuse of an idle connection or a new connect, source addresses, and the
//! pool of idle connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use engine::{Closed, ConnId, Core, Hello, Mode, Sys};
use wire::ProxyVersion;

use super::dispatch::{after, is_ours, refusal_of};
use super::{Leg, Relay, forget_spare, port_of};
use crate::balance::{Fault, Port, Upstream, UpstreamAddress};
use crate::config::Outgoing;
use crate::counters::{Refusal, Stage};

/// Maximum number of source addresses tried for one connect.
const SOURCE_TRIES: usize = 8;
/// Connections from one loopback address to one upstream before the next address is used: the kernel
/// finds free ports quickly only in half of its range.
const PER_LOOPBACK_SOURCE: u32 = 12_000;
/// How long ago a connection has served that takes a request which is sent once only. Servers keep idle
/// connections for some seconds at least.
const LATELY_NS: u64 = 2_000_000_000;

impl Relay {
    /// Sends the request on a connection that has served another, if there is one for it. It may be
    /// closing right now: what must not be asked twice, or has a body of which nothing is kept, gets
    /// one that served a moment ago.
    pub(super) fn take_spare<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        upstream: u32,
    ) -> bool {
        let Some(exchange) = self.exchanges.get(index) else { return false };
        if exchange.fresh || exchange.asked.accept.is_some() {
            return false;
        }
        let again = exchange.asked.idempotent && exchange.request.is_done();
        let serves = |spare: ConnId| {
            let of_late = core.silent_ns(spare).is_some_and(|silent| silent <= LATELY_NS);
            core.mode(spare) == Some(Mode::Raw) && (again || of_late)
        };
        // The last to serve is the least likely to be closed.
        let found =
            self.spares.iter().rposition(|&(number, spare)| number == upstream && serves(spare));
        let Some(at) = found else { return false };
        let (_, spare) = self.spares.remove(at);
        let port = port_of(core, spare);
        Self::set(core, spare, Leg::Upstream(index, port));
        exchange.upstream = Some(spare);
        exchange.reused = true;
        exchange.era = self.era;
        self.counters().reused.add(1);
        self.send_head(core, index, spare);
        true
    }

    /// Starts a connect on behalf of a client. A PROXY header is sent before TLS, or without TLS
    /// before the request.
    pub(super) fn connect<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        to: &Upstream,
        outgoing: &Outgoing,
        whose: ConnId,
    ) -> io::Result<(ConnId, Option<Port>)> {
        let client = outgoing.tls.as_ref().map(|tls| tls.of(to.name())).transpose();
        let client = client.map_err(io::Error::other)?;
        let header = outgoing.proxy_header.map(|version| proxy_header(core, whose, version));
        let behind = header.as_deref().unwrap_or_default();
        let tls = client.as_ref().map(|client| Hello { client, behind });
        let address = match to.address() {
            UpstreamAddress::Tcp(address) => *address,
            UpstreamAddress::Unix(path) => {
                let place = engine::Place::Unix(path);
                return core.connect_raw(place, tls, None).map(|id| (id, None));
            }
        };
        let mut tries = SOURCE_TRIES;
        loop {
            let source = self.source(&address, to.tunnels(), tries);
            tries -= 1;
            let place = engine::Place::Tcp(address);
            match core.connect_raw(place, tls, source) {
                Err(error) if tries > 0 && Closed::of_connect(&error) == Closed::NoAddress => {}
                connected => return connected.map(|id| (id, Some(to.port(source)))),
            }
        }
    }

    /// Chooses the source address: the configured ones in turn; on loopback the next of 127.0.0.0/8
    /// as ports run out; otherwise `None`, the system's choice.
    fn source(&mut self, to: &SocketAddr, tunnels: u32, tries: usize) -> Option<IpAddr> {
        let fits = |source: &&IpAddr| source.is_ipv4() == to.is_ipv4();
        let count = self.shared.sources.iter().filter(fits).count();
        if count > 0 {
            self.source = self.source.wrapping_add(1);
            return self.shared.sources.iter().filter(fits).nth(self.source % count).copied();
        }
        let more = (SOURCE_TRIES - tries) as u32;
        let further = tunnels / PER_LOOPBACK_SOURCE + more;
        (to.is_ipv4() && to.ip().is_loopback() && further > 0)
            .then(|| Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST).wrapping_add(further)).into())
    }

    pub(super) fn is_connecting<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        id: ConnId,
        port: Option<Port>,
    ) {
        Self::set(core, id, Leg::Upstream(index, port));
        let now_ns = core.now_ns();
        let deadline_ns = after(now_ns, self.live.patience.connect);
        let era = self.era;
        if let Some(exchange) = self.exchanges.get(index) {
            exchange.upstream = Some(id);
            exchange.reused = false;
            exchange.era = era;
            exchange.connect_ns = now_ns;
            exchange.enter(Stage::Connecting, &self.shared.counters[self.worker]);
            exchange.deadline_ns = deadline_ns;
        }
    }

    /// Records a connect that failed at once; returns the refusal if there is no other upstream.
    pub(super) fn connect_failed(&mut self, index: u32, error: &io::Error, now_ns: u64) -> Refusal {
        let why = Closed::of_connect(error);
        let ours = is_ours(why);
        if let Some(exchange) = self.exchanges.get(index)
            && let Some(picked) = exchange.picked.take()
        {
            exchange.tried.push(picked.upstream().number());
            if !ours {
                picked.upstream().failed(now_ns, Fault::of_connect(error));
            }
        }
        refusal_of(why)
    }

    /// Sends the request head; the upstream is connected.
    pub(super) fn send_head<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32, id: ConnId) {
        let patience = &self.live.patience;
        let (handshake, answer) = (patience.handshake, patience.answer);
        let Some(exchange) = self.exchanges.get(index) else { return core.abort(id) };
        let head = std::mem::take(&mut exchange.head);
        let client = exchange.client;
        let outgoing = exchange.pool.outgoing();
        let version = outgoing.proxy_header.filter(|_| outgoing.tls.is_none());
        exchange.enter(Stage::Asked, &self.shared.counters[self.worker]);
        let upgrade = exchange.asked.accept.is_some();
        exchange.deadline_ns = after(core.now_ns(), if upgrade { handshake } else { answer });
        let waits = !upgrade && !exchange.request.is_done();
        let fresh = !exchange.reused;
        let time_ns = core.now_ns().saturating_sub(exchange.connect_ns);
        if fresh {
            self.shared.took(self.worker, |timed| &timed.connect, time_ns);
        }
        if let Some(version) = version.filter(|_| fresh) {
            let header = proxy_header(core, client, version);
            core.write(id, &header);
        }
        core.write(id, &head);
        if let Some(exchange) = self.exchanges.get(index) {
            // Kept for a retry on another upstream.
            exchange.head = head;
        }
        if waits {
            // Part of its body may have arrived already.
            core.resume(client);
        }
    }

    /// A connection that could serve another request is kept for it, within bounds.
    pub(super) fn spare<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, upstream: u32) {
        let port = port_of(core, id);
        Self::set(core, id, Leg::Spare(port));
        self.spares.push((upstream, id));
        while self.spares.len() > self.live.spares {
            // By RST: else the port of whoever ends first is kept for a minute (TIME_WAIT).
            let (_, oldest) = self.spares.remove(0);
            core.reset(oldest);
        }
        if core.mode(id) != Some(Mode::Raw) {
            forget_spare(&mut self.spares, id);
        }
    }
}

/// Encodes the PROXY header of a client.
fn proxy_header<S: Sys>(core: &Core<S, Relay>, client: ConnId, version: ProxyVersion) -> Vec<u8> {
    let mut header = Vec::new();
    wire::encode_proxy_header(&mut header, version, core.ends(client));
    header
}
