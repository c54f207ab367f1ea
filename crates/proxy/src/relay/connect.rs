//! Connections to upstreams: reuse of an idle connection or a new connect, source addresses, and the
//! pool of idle connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use engine::{Closed, ConnId, Core, Mode, Sent, Sys, TlsConnect, invariant};
use wire::ProxyVersion;

use super::dispatch::{after, is_ours, refusal_of};
use super::{ConnectionKind, Relay, forget_idle_connection, port_of};
use crate::balance::{Fault, Port, Upstream, UpstreamAddress};
use crate::config::Transport;
use crate::counters::{Refusal, Stage};

/// Maximum number of source addresses tried for one connect.
const SOURCE_TRIES: usize = 8;
/// Connections from one loopback address to one upstream before the next address is used: the kernel
/// finds free ports quickly only in half of its range.
const PER_LOOPBACK_SOURCE: u32 = 12_000;
/// Maximum idle time of a connection for a request that must not be sent twice. Servers keep idle
/// connections for at least some seconds.
const RECENT_NS: u64 = 2_000_000_000;

/// An idle connection to an upstream.
pub(super) struct IdleConnection {
    /// The upstream's connection key when it was made.
    key: u64,
    pub(super) id: ConnId,
    /// When its last response was complete. The engine's idle times are too coarse if tunnels may be
    /// idle for days.
    since_ns: u64,
}

impl Relay {
    /// Sends the request on an idle connection, if there is one. The upstream may be closing it right
    /// now, so a request that is not idempotent, or has a body that is not buffered completely, gets only
    /// one that was used a moment ago.
    pub(super) fn take_idle_connection<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
    ) -> bool {
        let Some(exchange) = self.exchanges.get(index) else { return false };
        let key = exchange.connection_key;
        if exchange.new_connection_only || exchange.info.accept.is_some() {
            return false;
        }
        let again = exchange.info.idempotent && exchange.request.is_done();
        let now_ns = core.now_ns();
        let serves = |idle: &IdleConnection| {
            let recent = now_ns.saturating_sub(idle.since_ns) <= RECENT_NS;
            core.mode(idle.id) == Some(Mode::Raw) && (again || recent)
        };
        // The most recently used one is the least likely to be closed.
        let found = self.idle_connections.iter().rposition(|idle| idle.key == key && serves(idle));
        let Some(at) = found else { return false };
        let idle_connection = self.idle_connections.remove(at).id;
        self.send_on(core, index, idle_connection);
        true
    }

    /// Sends a request on a connection that has served another.
    pub(super) fn send_on<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32, id: ConnId) {
        let port = port_of(core, id);
        Self::set(core, id, ConnectionKind::RequestUpstream(index, port));
        let config_generation = self.config_generation;
        let Some(exchange) = self.exchanges.get(index) else { return core.abort(id) };
        exchange.upstream = Some(id);
        exchange.reused = true;
        exchange.config_generation = config_generation;
        self.counters().reused.add(1);
        self.send_head(core, index, id);
    }

    /// Starts a connect on behalf of a client. A PROXY header is sent before TLS, or without TLS
    /// before the request.
    pub(super) fn connect<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        to: &Upstream,
        transport: &Transport,
        identity: ConnId,
    ) -> io::Result<(ConnId, Option<Port>)> {
        let client = transport.tls.as_ref().map(|tls| tls.of(&to.name())).transpose();
        let client = client.map_err(io::Error::other)?;
        let header = transport.proxy_header.map(|version| proxy_header(core, identity, version));
        let behind = header.as_deref().unwrap_or_default();
        let tls = client.as_ref().map(|client| TlsConnect { client, prefix: behind });
        let address = match to.address() {
            UpstreamAddress::Tcp(address) => *address,
            UpstreamAddress::Unix(path) => {
                let target = engine::Destination::Unix(path);
                return core.connect_raw(target, tls, None).map(|id| (id, None));
            }
        };
        let mut tries = SOURCE_TRIES;
        loop {
            let source = self.source(&address, to.tunnels(), tries);
            tries -= 1;
            let target = engine::Destination::Tcp(address);
            match core.connect_raw(target, tls, source) {
                Err(error)
                    if tries > 0 && Closed::from_connect_error(&error) == Closed::NoAddress => {}
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

    pub(super) fn begin_connect<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        id: ConnId,
        port: Option<Port>,
    ) {
        Self::set(core, id, ConnectionKind::RequestUpstream(index, port));
        let now_ns = core.now_ns();
        let config_generation = self.config_generation;
        if let Some(exchange) = self.exchanges.get(index) {
            exchange.upstream = Some(id);
            exchange.reused = false;
            exchange.config_generation = config_generation;
            exchange.connect_ns = now_ns;
            exchange.enter(Stage::Connecting, &self.shared.counters[self.worker]);
            exchange.deadline_ns = after(now_ns, exchange.connect_timeout(&self.live.timeouts));
        }
    }

    /// Records a connect that failed at once; returns the refusal if there is no other upstream.
    pub(super) fn connect_failed(&mut self, index: u32, error: &io::Error, now_ns: u64) -> Refusal {
        let why = Closed::from_connect_error(error);
        let ours = is_ours(why);
        if let Some(exchange) = self.exchanges.get(index)
            && let Some(permit) = exchange.permit.take()
        {
            exchange.tried.push(permit.upstream().number());
            if !ours {
                permit.upstream().failed(now_ns, Fault::of_connect(error));
            }
        }
        refusal_of(why)
    }

    /// Sends the request head; the upstream is connected.
    pub(super) fn send_head<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32, id: ConnId) {
        let Some(exchange) = self.exchanges.get(index) else { return core.abort(id) };
        let timeout = exchange.head_timeout(&self.live.timeouts);
        let head = std::mem::take(&mut exchange.head);
        if head.is_empty() {
            // It was dropped, as the request must not be sent again.
            invariant::broken("a request that is sent has a head");
        }
        let client = exchange.client;
        let transport = exchange.pool.transport();
        let version = transport.proxy_header.filter(|_| transport.tls.is_none());
        exchange.enter(Stage::Sent, &self.shared.counters[self.worker]);
        let upgrade = exchange.info.accept.is_some();
        exchange.deadline_ns = after(core.now_ns(), timeout);
        let waits = !upgrade && !exchange.request.is_done();
        let awaits_continue = exchange.awaits_continue;
        let fresh = !exchange.reused;
        let time_ns = core.now_ns().saturating_sub(exchange.connect_ns);
        if fresh {
            self.shared.observe(self.worker, |timed| &timed.connect, time_ns);
        }
        if let Some(version) = version.filter(|_| fresh) {
            let header = proxy_header(core, client, version);
            core.write(id, &header);
        }
        let sent = core.write(id, &head);
        if let Some(exchange) = self.exchanges.get(index) {
            exchange.unsent_bytes = queued_bytes(sent);
            if exchange.info.idempotent {
                // Kept for a retry on another upstream.
                exchange.head = head;
            }
        }
        if waits {
            if !awaits_continue {
                self.start_body_clock(index, core.now_ns());
            }
            match sent {
                // The rest is read when the buffered part of the body is sent.
                Sent::Queued(_) => core.pause(client),
                // Part of its body may have arrived already.
                _ => core.resume(client),
            }
        }
    }

    /// Keeps a connection for a later request, up to the configured number.
    pub(super) fn keep_idle_connection<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        key: u64,
    ) {
        let port = port_of(core, id);
        Self::set(core, id, ConnectionKind::IdleConnection(port));
        self.idle_connections.push(IdleConnection { key, id, since_ns: core.now_ns() });
        while self.idle_connections.len() > self.live.idle_connections {
            // By RST: a FIN would hold the local port for a minute (TIME_WAIT).
            let oldest = self.idle_connections.remove(0);
            core.reset(oldest.id);
        }
        if core.mode(id) != Some(Mode::Raw) {
            forget_idle_connection(&mut self.idle_connections, id);
        }
    }

    /// Closes the connections that have been idle for too long; returns when the next has.
    pub(super) fn close_idle_connections<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
    ) -> Option<u64> {
        let limit = self.live.timeouts.idle_connection;
        let due_ns = |idle: &IdleConnection| after(idle.since_ns, limit);
        let now_ns = core.now_ns();
        let late = self.idle_connections.iter().take_while(|idle| due_ns(idle) <= now_ns).count();
        for idle in self.idle_connections.drain(..late) {
            core.reset(idle.id);
        }
        self.idle_connections.first().map(due_ns)
    }
}

/// The bytes that wait in a queue after a write.
pub(super) fn queued_bytes(sent: Sent) -> usize {
    match sent {
        Sent::Queued(bytes) => bytes,
        _ => 0,
    }
}

/// Encodes the PROXY header of a client.
fn proxy_header<S: Sys>(core: &Core<S, Relay>, client: ConnId, version: ProxyVersion) -> Vec<u8> {
    let mut header = Vec::new();
    wire::encode_proxy_header(&mut header, version, core.endpoints(client));
    header
}
