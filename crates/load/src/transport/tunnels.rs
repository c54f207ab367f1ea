//! Connections through a proxy: [`connect_routes`] finds the endpoints that need one, and [`Tunnels`]
//! opens the tunnel (RFC 9110 section 9.3.6) and then passes the connection to the engine for the
//! WebSocket handshake.
//!
//! A run without a proxy has no [`Tunnels`]. After the handshake sockets behave the same either way.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use engine::invariant;
use engine::{Closed, ConnId, Core, Destination, Sys, Target};

use crate::transport::tunnel::{Tunnel, TunnelRequest};
use crate::workload::client::Client;
use crate::{Cause, Config, Route};

/// How connects to one endpoint start.
#[derive(Debug)]
pub(crate) enum ConnectRoute {
    /// Through its engine target alone.
    Direct,
    /// Never: its name does not resolve.
    Unresolved,
    /// Through a tunnel of the proxy at this address.
    Tunnel(SocketAddr, TunnelRequest),
}

/// Routes by endpoint number; `None` if all are [`ConnectRoute::Direct`].
pub(crate) type ConnectRoutes = Option<Arc<[ConnectRoute]>>;

/// Returns the targets of a run and the routes to them.
///
/// # Errors
/// TLS without trusted authorities.
pub(crate) fn connect_routes(config: &Config) -> Result<(Arc<[Target]>, ConnectRoutes), String> {
    let protocols: Vec<&str> = config.protocols.iter().map(String::as_str).collect();
    let headers: Vec<(&str, &str)> =
        config.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let deflate = config.compress_above.is_some();
    let (mut targets, mut routes) = (Vec::new(), Vec::new());
    for endpoint in &config.endpoints {
        let (host, path) = (&endpoint.host, &endpoint.path);
        let mut target =
            Target::websocket(endpoint.address, host, path, &protocols, deflate, &headers);
        if endpoint.tls {
            let missing =
                || format!("wss://{host}: no trusted certificate authorities are configured");
            let client = endpoint.client.clone().ok_or_else(missing)?;
            // With HTTP/2 the connections that carry the sockets have it.
            target.tls = Some(client).filter(|_| config.streams.is_none());
        }
        routes.push(match &endpoint.route {
            Route::Direct => ConnectRoute::Direct,
            Route::Unresolved(_) => ConnectRoute::Unresolved,
            Route::Unix(path) => {
                target.unix_socket = Some(Arc::clone(path));
                ConnectRoute::Direct
            }
            // The connections that carry the sockets open the tunnels.
            Route::Forward(_) | Route::Tunnel(_) if config.streams.is_some() => {
                ConnectRoute::Direct
            }
            Route::Forward(proxy) | Route::Tunnel(proxy) => {
                ConnectRoute::Tunnel(endpoint.address, TunnelRequest::new(proxy, endpoint))
            }
        });
        targets.push(target);
    }
    let plain = routes.iter().all(|route| matches!(route, ConnectRoute::Direct));
    Ok((targets.into(), (!plain).then(|| routes.into())))
}

/// One worker's connections whose tunnel is being opened.
pub(crate) struct Tunnels {
    routes: Arc<[ConnectRoute]>,
    timeout_ns: u64,
    /// By slot, from the connect until the WebSocket opens or fails.
    under_way: HashMap<u32, PendingTunnel>,
    /// Deadlines of the proxy's answers, oldest first.
    due: VecDeque<(u64, ConnId)>,
}

/// A connection whose tunnel is being opened.
struct PendingTunnel {
    id: ConnId,
    destination: u8,
    tunnel: Tunnel,
    /// Why we aborted it.
    failure: Option<Cause>,
}

impl Tunnels {
    pub(crate) fn new(routes: Arc<[ConnectRoute]>, timeout_ns: u64) -> Tunnels {
        Tunnels { routes, timeout_ns, under_way: HashMap::new(), due: VecDeque::new() }
    }

    /// Whether the name of this destination does not resolve.
    pub(crate) fn is_unresolved(&self, destination: u8) -> bool {
        matches!(self.routes.get(usize::from(destination)), Some(ConnectRoute::Unresolved))
    }

    /// As [`Core::connect`].
    ///
    /// # Errors
    /// The error of the connect call.
    pub(crate) fn connect<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        destination: u8,
        source: Option<IpAddr>,
    ) -> io::Result<ConnId> {
        let Some(ConnectRoute::Tunnel(proxy, _)) = self.routes.get(usize::from(destination)) else {
            return core.connect(destination, source);
        };
        let id = core.connect_raw(Destination::Tcp(*proxy), None, source)?;
        let pending = PendingTunnel { id, destination, tunnel: Tunnel::default(), failure: None };
        self.under_way.insert(id.slot(), pending);
        self.due.push_back((core.now_ns().saturating_add(self.timeout_ns), id));
        Ok(id)
    }

    /// Called when TCP is connected, and again when TLS through the tunnel is set up.
    pub(crate) fn connected<S: Sys>(&mut self, core: &mut Core<S, Client>, id: ConnId) {
        let Some(pending) = self.under_way.get_mut(&id.slot()).filter(|pending| pending.id == id)
        else {
            return core.abort(id);
        };
        if pending.tunnel.is_established {
            return upgrade(core, pending);
        }
        if let Some(ConnectRoute::Tunnel(_, through)) =
            self.routes.get(usize::from(pending.destination))
        {
            core.write(id, &through.connect);
            pending.tunnel.is_requested = true;
        } else {
            invariant::broken("a pending tunnel has a route through a proxy");
        }
    }

    /// Receives bytes from the proxy.
    pub(crate) fn received<S: Sys>(
        &mut self,
        core: &mut Core<S, Client>,
        id: ConnId,
        bytes: &[u8],
    ) {
        let Some(pending) = self.under_way.get_mut(&id.slot()).filter(|pending| pending.id == id)
        else {
            return core.abort(id);
        };
        let route = self.routes.get(usize::from(pending.destination));
        let Some(ConnectRoute::Tunnel(_, through)) = route else {
            return invariant::broken("a pending tunnel has a route through a proxy");
        };
        match pending.tunnel.receive(bytes, false) {
            Ok(None) => {}
            Err(_) => give_up(core, pending, Cause::ProxyRefused),
            Ok(Some(_)) => {
                pending.tunnel.is_established = true;
                match through.tls.as_ref().map(|tls| core.secure(id, tls)) {
                    None => upgrade(core, pending),
                    Some(Ok(())) => {}
                    Some(Err(_)) => give_up(core, pending, Cause::End(Closed::TlsFailed)),
                }
            }
        }
    }

    /// Forgets a connection that became a WebSocket.
    pub(crate) fn opened(&mut self, id: ConnId) {
        self.under_way.remove(&id.slot());
    }

    /// Forgets a failed connection. Returns why it failed, if that was in the tunnel.
    pub(crate) fn failed(&mut self, id: ConnId) -> Option<Cause> {
        self.under_way.remove(&id.slot()).and_then(|pending| pending.failure)
    }

    /// Aborts tunnels without an answer in time. Later steps have a timeout of the engine.
    pub(crate) fn turn<S: Sys>(&mut self, core: &mut Core<S, Client>) -> Option<u64> {
        while let Some(&(due_ns, id)) = self.due.front() {
            let pending = self.under_way.get_mut(&id.slot()).filter(|pending| pending.id == id);
            if let Some(pending) = pending.filter(|pending| !pending.tunnel.is_established) {
                if due_ns > core.now_ns() {
                    return Some(due_ns);
                }
                give_up(core, pending, Cause::End(Closed::HandshakeTimeout));
            }
            self.due.pop_front();
        }
        None
    }
}

/// Passes the connection to the engine for the WebSocket handshake.
fn upgrade<S: Sys>(core: &mut Core<S, Client>, pending: &mut PendingTunnel) {
    if core.upgrade(pending.id, pending.destination).is_err() {
        give_up(core, pending, Cause::End(Closed::ConnectFailed));
    }
}

fn give_up<S: Sys>(core: &mut Core<S, Client>, pending: &mut PendingTunnel, cause: Cause) {
    pending.failure.get_or_insert(cause);
    core.abort(pending.id);
}
