//! Routes of a [`Requester`]'s connections: each worker adds an engine target on first use, and opens
//! tunnels through a proxy.

use std::sync::Arc;

use engine::invariant;
use engine::{ConnId, Core, Sent, Sys, Target};

use crate::Endpoint;
use crate::outcome::failure::Failure;
use crate::transport::connect_options::Route;
use crate::transport::driver::Driver;
use crate::transport::tunnel::{Tunnel, TunnelRequest};
use crate::workload::requests::config::Requests;
use crate::workload::requests::requester::Requester;
use crate::workload::requests::script::Script;

/// The route to a target.
#[derive(Clone)]
pub(crate) enum ConnectRoute {
    /// An engine target.
    Direct(u8),
    /// An engine target that is a proxy, and the request for a tunnel.
    Tunnel(u8, Arc<TunnelRequest>),
    /// No route, for this reason.
    Failed(Failure),
}

impl<D: Driver, S: Script> Requester<D, S> {
    /// The route to a target; `None` while its name is being resolved.
    pub(crate) fn route<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        number: u8,
    ) -> Option<ConnectRoute> {
        let at = usize::from(number);
        if let Some(Some(route)) = self.routes.get(at) {
            return Some(route.clone());
        }
        let endpoint = self.targets.resolved(number)?;
        let over_streams = D::PUSHES && self.config.streams.is_some();
        // Connections that carry streams lead to the targets of the run only.
        let route = match over_streams && at >= self.config.endpoints.len() {
            true => ConnectRoute::Failed(Failure::RedirectElsewhere),
            false => connect_route(core, &endpoint, over_streams),
        };
        if self.routes.len() <= at {
            self.routes.resize(at + 1, None);
        }
        if let Some(place) = self.routes.get_mut(at) {
            *place = Some(route.clone());
        }
        Some(route)
    }

    /// Prepares the tunnel of the latest connect of a user, if its route has one.
    pub(crate) fn begin_tunnel(&mut self, user: u32, route: &ConnectRoute) {
        let tunnel = matches!(route, ConnectRoute::Tunnel(..)).then(Box::<Tunnel>::default);
        if let Some(one) = self.users.get_mut(user as usize) {
            one.rare.set_tunnel(tunnel);
        }
    }

    /// Handles a connected proxy: requests the tunnel, unless that is done. True if the tunnel is
    /// complete.
    pub(crate) fn tunnel_connected<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        id: ConnId,
    ) -> bool {
        let through = self.through(user);
        let Some(one) = self.users.get_mut(user as usize) else {
            invariant::broken("each user number is in the table of users");
            return false;
        };
        let (Some(tunnel), Some(through)) = (one.rare.tunnel(), through) else {
            invariant::broken("a tunnel has a route through a proxy");
            return true;
        };
        if tunnel.is_established {
            one.rare.set_tunnel(None);
            return true;
        }
        tunnel.is_requested = core.write(id, &through.connect) != Sent::Dropped;
        false
    }

    /// Receives bytes from a proxy.
    pub(crate) fn tunnel_received<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        id: ConnId,
        bytes: &[u8],
    ) {
        let now_ns = core.clock_ns();
        let through = self.through(user);
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        let (Some(tunnel), Some(through)) = (one.rare.tunnel(), through) else {
            return invariant::broken("a tunnel has a route through a proxy");
        };
        let may_send_first = D::STREAMS && through.tls.is_none();
        let failure = match tunnel.receive(bytes, may_send_first) {
            Ok(None) => return,
            Err(failure) => failure,
            Ok(Some(first)) => {
                tunnel.is_established = true;
                match through.tls.as_ref().map(|tls| core.secure(id, tls)) {
                    None if D::STREAMS => {
                        self.on_stream_connected(core, id);
                        return self.on_stream_data(core, id, &first);
                    }
                    None => return self.on_connected(core, id),
                    Some(Ok(())) => return,
                    Some(Err(_)) => Failure::Tls,
                }
            }
        };
        self.metrics.counts.connects_failed.add(1);
        if D::STREAMS {
            return self.fail_tunnel(core, id, failure, now_ns);
        }
        self.fail_connection(core, user, failure, now_ns);
    }

    fn through(&self, user: u32) -> Option<Arc<TunnelRequest>> {
        let number = self.users.get(user as usize)?.link.endpoint;
        match self.routes.get(usize::from(number))? {
            Some(ConnectRoute::Tunnel(_, through)) => Some(Arc::clone(through)),
            _ => None,
        }
    }
}

impl ConnectRoute {
    /// The engine target, and the first bytes to send there instead of a request.
    pub(crate) fn target(&self) -> Result<(u8, Option<&[u8]>), Failure> {
        match self {
            ConnectRoute::Direct(target) => Ok((*target, None)),
            ConnectRoute::Tunnel(target, through) => Ok((*target, Some(&through.connect))),
            ConnectRoute::Failed(failure) => Err(*failure),
        }
    }
}

fn connect_route<Y: Sys, D: Driver, S: Script>(
    core: &mut Core<Y, Requester<D, S>>,
    endpoint: &Endpoint,
    over_streams: bool,
) -> ConnectRoute {
    let mut target = Target::raw(endpoint.address);
    let mut through = None;
    if endpoint.tls && endpoint.client.is_none() {
        return ConnectRoute::Failed(Failure::Tls);
    }
    match &endpoint.route {
        Route::Unresolved(_) => return ConnectRoute::Failed(Failure::Dns),
        Route::Unix(path) => target.unix_socket = Some(Arc::clone(path)),
        Route::Direct | Route::Forward(_) => {}
        // Connections that carry streams open their tunnels and TLS themselves.
        Route::Tunnel(_) if over_streams => {}
        Route::Tunnel(proxy) => {
            through = Some(Arc::new(TunnelRequest::new(proxy, endpoint)));
        }
    }
    if through.is_none() && !over_streams {
        target.tls = endpoint.client.clone().filter(|_| endpoint.tls);
    }
    match (core.add_target(target), through) {
        (Ok(number), None) => ConnectRoute::Direct(number),
        (Ok(number), Some(through)) => ConnectRoute::Tunnel(number, through),
        // There is room for all targets of a run. Without its target every connect would fail.
        (Err(_), _) => ConnectRoute::Failed(Failure::ConnectFailed),
    }
}

impl Requests {
    /// Whether redirects may need names to be resolved.
    pub(crate) fn may_redirect(&self) -> bool {
        self.redirects > 0 || self.follows
    }
}
