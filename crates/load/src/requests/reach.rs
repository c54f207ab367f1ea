//! Routes of a [`Requester`]'s connections: each worker adds an engine target on first use, and opens
//! tunnels through a proxy.

use std::sync::Arc;

use engine::{ConnId, Core, Sent, Sys, Target};

use super::requester::Requester;
use super::tunnel::{Through, Tunnel};
use super::{Driver, Failure, Requests, Script};
use crate::Endpoint;
use crate::ways::Route;

/// The route to a target.
#[derive(Clone)]
pub(super) enum Reach {
    /// A target of the engine.
    To(u8),
    /// A target of the engine that is asked for a tunnel.
    Through(u8, Arc<Through>),
    /// None, for this reason.
    Nowhere(Failure),
}

impl<D: Driver, S: Script> Requester<D, S> {
    /// The way to a place; `None` while it is being looked up.
    pub(super) fn reach<Y: Sys>(&mut self, core: &mut Core<Y, Self>, number: u8) -> Option<Reach> {
        let at = usize::from(number);
        if let Some(Some(reach)) = self.reach.get(at) {
            return Some(reach.clone());
        }
        let endpoint = self.places.reached(number)?;
        let reach = way(core, &endpoint);
        if self.reach.len() <= at {
            self.reach.resize(at + 1, None);
        }
        if let Some(place) = self.reach.get_mut(at) {
            *place = Some(reach.clone());
        }
        Some(reach)
    }

    /// What the latest connect of a user says first, if that is not its request.
    pub(super) fn begin_tunnel(&mut self, user: u32, reach: &Reach) {
        let tunnel = matches!(reach, Reach::Through(..)).then(Box::<Tunnel>::default);
        if let Some(one) = self.users.get_mut(user as usize) {
            one.tunnel = tunnel;
        }
    }

    /// Handles a connected proxy: requests the tunnel, unless that is done. True if the tunnel is
    /// complete.
    pub(super) fn tunnel_connected<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        id: ConnId,
    ) -> bool {
        let through = self.through(user);
        let Some(one) = self.users.get_mut(user as usize) else { return false };
        let (Some(tunnel), Some(through)) = (&mut one.tunnel, through) else { return true };
        if tunnel.is_through {
            one.tunnel = None;
            return true;
        }
        tunnel.is_asked = core.write(id, &through.connect) != Sent::Dropped;
        false
    }

    /// What a proxy says.
    pub(super) fn tunnel_heard<Y: Sys>(
        &mut self,
        core: &mut Core<Y, Self>,
        user: u32,
        id: ConnId,
        bytes: &[u8],
    ) {
        let now_ns = core.clock_ns();
        let through = self.through(user);
        let Some(one) = self.users.get_mut(user as usize) else { return };
        let (Some(tunnel), Some(through)) = (&mut one.tunnel, through) else { return };
        let failure = match tunnel.receive(bytes) {
            Ok(false) => return,
            Err(failure) => failure,
            Ok(true) => {
                tunnel.is_through = true;
                match through.tls.as_ref().map(|tls| core.secure(id, tls)) {
                    None => return self.on_connected(core, id),
                    Some(Ok(())) => return,
                    Some(Err(_)) => Failure::Tls,
                }
            }
        };
        self.ledger.counts.connects_failed.add(1);
        self.break_off(core, user, failure, now_ns);
    }

    fn through(&self, user: u32) -> Option<Arc<Through>> {
        let number = self.users.get(user as usize)?.endpoint;
        match self.reach.get(usize::from(number))? {
            Some(Reach::Through(_, through)) => Some(Arc::clone(through)),
            _ => None,
        }
    }
}

impl Reach {
    /// The target, and what is said there instead of a request.
    pub(super) fn target(&self) -> Result<(u8, Option<&[u8]>), Failure> {
        match self {
            Reach::To(target) => Ok((*target, None)),
            Reach::Through(target, through) => Ok((*target, Some(&through.connect))),
            Reach::Nowhere(failure) => Err(*failure),
        }
    }
}

fn way<Y: Sys, D: Driver, S: Script>(
    core: &mut Core<Y, Requester<D, S>>,
    endpoint: &Endpoint,
) -> Reach {
    let mut target = Target::raw(endpoint.address);
    let mut through = None;
    if endpoint.tls && endpoint.client.is_none() {
        return Reach::Nowhere(Failure::Tls);
    }
    match &endpoint.route {
        Route::Nowhere(_) => return Reach::Nowhere(Failure::Dns),
        Route::Unix(path) => target.unix_socket = Some(Arc::clone(path)),
        Route::Straight | Route::Asked(_) => {}
        Route::Tunnel(proxy) => {
            through = Some(Arc::new(Through::new(proxy, endpoint)));
        }
    }
    if through.is_none() {
        target.tls = endpoint.client.clone().filter(|_| endpoint.tls);
    }
    match (core.add_target(target), through) {
        (Ok(number), None) => Reach::To(number),
        (Ok(number), Some(through)) => Reach::Through(number, through),
        // There is room for all places of a run; what is left out fails every connect there.
        (Err(_), _) => Reach::Nowhere(Failure::ConnectFailed),
    }
}

impl Requests {
    /// Whether redirects may need names to be resolved.
    pub(super) fn may_redirect(&self) -> bool {
        self.redirects > 0 || self.follows
    }
}
