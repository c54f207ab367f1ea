//! Shared frames that slow consumers have lost, for a handler that reports them.

use crate::core::Core;
use crate::sys::Sys;
use crate::{ConnId, Handler, SharedFrame};

/// Dropped frames that are kept until the handler takes them; those beyond are only counted, as all are.
const KEPT_MAX: usize = 4096;

impl<S: Sys, H: Handler> Core<S, H> {
    /// From now on, shared frames that are dropped above the limit of a queue are kept for
    /// [`Core::take_dropped`].
    pub fn keep_dropped_frames(&mut self) {
        self.dropped.get_or_insert_default();
    }

    /// The frames that were dropped since the last call, in this order, at most 4096.
    #[must_use]
    pub fn take_dropped(&mut self) -> Vec<(ConnId, SharedFrame)> {
        self.dropped.as_mut().map(std::mem::take).unwrap_or_default()
    }

    #[cold]
    pub(crate) fn keep_dropped(&mut self, id: ConnId, frame: &SharedFrame) {
        if let Some(kept) = self.dropped.as_mut().filter(|kept| kept.len() < KEPT_MAX) {
            kept.push((id, frame.clone()));
        }
    }
}
