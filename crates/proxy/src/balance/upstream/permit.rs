//! [`Permit`] and [`Port`]: what is held while an upstream is used, counted until it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Upstream, UpstreamAddress};

/// One of the tunnels that an upstream allows, held from the choice to the end of the tunnel.
/// Dropping it releases it, so that none can leak.
#[derive(Debug)]
pub struct Permit(pub(super) Arc<Upstream>);

// Each open tunnel holds one.
const _: () = assert!(size_of::<Option<Permit>>() == 8);

impl Permit {
    /// Where to connect.
    #[must_use]
    pub fn address(&self) -> &UpstreamAddress {
        &self.0.address
    }

    /// The upstream, to record success or failure.
    #[must_use]
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.0
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection to an upstream, which uses a port of a source address. Dropping it releases the
/// count.
#[derive(Debug)]
pub struct Port(pub(super) Arc<AtomicU32>);

impl Drop for Port {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
