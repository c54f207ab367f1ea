//! Connections through a proxy: [`connect_routes`] finds the endpoints that need one, and [`Tunnels`]
//! opens the tunnel (RFC 9110 section 9.3.6) and then passes the connection to the engine for the
//! WebSocket handshake.
//!
//! A run without a proxy has no [`Tunnels`]. After the handshake sockets behave the same either way.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use engine::{Closed, ConnId, Core, Place, Sys, Target};

use crate::client::Client;
use crate::requests::{Through, Tunnel};
use crate::{Cause, Config, Route};

/// How connects to one endpoint start.
#[derive(Debug)]
pub(crate) enum Lead {
    /// By its target, which says all.
    Target,
    /// Not at all: its name leads to no address.
    Nowhere,
    /// By a proxy there that is asked for a tunnel.
    Tunnel(SocketAddr, Through),
}

/// Of all endpoints by number; `None` where each has [`Lead::Target`].
pub(crate) type Leads = Option<Arc<[Lead]>>;

/// Returns the targets of a run and the routes to them.
///
/// # Errors
/// TLS without anybody to believe.
pub(crate) fn leads(config: &Config) -> Result<(Arc<[Target]>, Leads), String> {
    let protocols: Vec<&str> = config.protocols.iter().map(String::as_str).collect();
    let headers: Vec<(&str, &str)> =
        config.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let deflate = config.compress_above.is_some();
    let (mut targets, mut leads) = (Vec::new(), Vec::new());
    for endpoint in &config.endpoints {
        let (host, path) = (&endpoint.host, &endpoint.path);
        let mut target =
            Target::websocket(endpoint.address, host, path, &protocols, deflate, &headers);
        if endpoint.tls {
            let missing = || format!("wss://{host}: nobody said whom to believe");
            target.tls = Some(endpoint.client.clone().ok_or_else(missing)?);
        }
        leads.push(match &endpoint.route {
            Route::Straight => Lead::Target,
            Route::Nowhere(_) => Lead::Nowhere,
            Route::Unix(path) => {
                target.unix_socket = Some(Arc::clone(path));
                Lead::Target
            }
            Route::Asked(proxy) | Route::Tunnel(proxy) => {
                Lead::Tunnel(endpoint.address, Through::new(proxy, endpoint))
            }
        });
        targets.push(target);
    }
    let plain = leads.iter().all(|lead| matches!(lead, Lead::Target));
    Ok((targets.into(), (!plain).then(|| leads.into())))
}

/// One worker's connections whose tunnel is being opened.
pub(crate) struct Tunnels {
    leads: Arc<[Lead]>,
    timeout_ns: u64,
    /// By slot, from the connect until it is open or has failed.
    under_way: HashMap<u32, Under>,
    /// When the proxy's answer is late; the first is the oldest.
    due: VecDeque<(u64, ConnId)>,
}

/// A connection under way.
struct Under {
    id: ConnId,
    destination: u8,
    tunnel: Tunnel,
    /// Why we aborted it.
    failure: Option<Cause>,
}

impl Tunnels {
    pub(crate) fn new(leads: Arc<[Lead]>, timeout_ns: u64) -> Tunnels {
        Tunnels { leads, timeout_ns, under_way: HashMap::new(), due: VecDeque::new() }
    }

    /// Whether connects there can only fail.
    pub(crate) fn leads_nowhere(&self, destination: u8) -> bool {
        matches!(self.leads.get(usize::from(destination)), Some(Lead::Nowhere))
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
        let Some(Lead::Tunnel(proxy, _)) = self.leads.get(usize::from(destination)) else {
            return core.connect(destination, source);
        };
        let id = core.connect_raw(Place::Tcp(*proxy), None, source)?;
        let under = Under { id, destination, tunnel: Tunnel::default(), failure: None };
        self.under_way.insert(id.slot(), under);
        self.due.push_back((core.now_ns().saturating_add(self.timeout_ns), id));
        Ok(id)
    }

    /// Called when TCP is connected, and again when TLS through the tunnel is set up.
    pub(crate) fn connected<S: Sys>(&mut self, core: &mut Core<S, Client>, id: ConnId) {
        let Some(under) = self.under_way.get_mut(&id.slot()).filter(|under| under.id == id) else {
            return core.abort(id);
        };
        if under.tunnel.is_through {
            return hand_over(core, under);
        }
        if let Some(Lead::Tunnel(_, through)) = self.leads.get(usize::from(under.destination)) {
            core.write(id, &through.connect);
            under.tunnel.is_asked = true;
        }
    }

    /// What the proxy says.
    pub(crate) fn heard<S: Sys>(&mut self, core: &mut Core<S, Client>, id: ConnId, bytes: &[u8]) {
        let Some(under) = self.under_way.get_mut(&id.slot()).filter(|under| under.id == id) else {
            return core.abort(id);
        };
        let lead = self.leads.get(usize::from(under.destination));
        let Some(Lead::Tunnel(_, through)) = lead else { return };
        match under.tunnel.receive(bytes) {
            Ok(false) => {}
            Err(_) => give_up(core, under, Cause::ProxyRefused),
            Ok(true) => {
                under.tunnel.is_through = true;
                match through.tls.as_ref().map(|tls| core.secure(id, tls)) {
                    None => hand_over(core, under),
                    Some(Ok(())) => {}
                    Some(Err(_)) => give_up(core, under, Cause::End(Closed::TlsFailed)),
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
        self.under_way.remove(&id.slot()).and_then(|under| under.failure)
    }

    /// Aborts tunnels without an answer in time. Later steps have a timeout of the engine.
    pub(crate) fn turn<S: Sys>(&mut self, core: &mut Core<S, Client>) -> Option<u64> {
        while let Some(&(due_ns, id)) = self.due.front() {
            let under = self.under_way.get_mut(&id.slot()).filter(|under| under.id == id);
            if let Some(under) = under.filter(|under| !under.tunnel.is_through) {
                if due_ns > core.now_ns() {
                    return Some(due_ns);
                }
                give_up(core, under, Cause::End(Closed::HandshakeTimeout));
            }
            self.due.pop_front();
        }
        None
    }
}

/// The rest is as straight to the endpoint.
fn hand_over<S: Sys>(core: &mut Core<S, Client>, under: &mut Under) {
    if core.upgrade(under.id, under.destination).is_err() {
        give_up(core, under, Cause::End(Closed::ConnectFailed));
    }
}

fn give_up<S: Sys>(core: &mut Core<S, Client>, under: &mut Under, cause: Cause) {
    under.failure.get_or_insert(cause);
    core.abort(under.id);
}
