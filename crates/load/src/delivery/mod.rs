//! Which messages were delivered: every message is checked at the receiving socket, and is received,
//! lost, duplicated, reordered, corrupted, late or foreign.

pub(crate) mod checker;
pub(crate) mod group;
pub(crate) mod message;
pub mod publication;
pub(crate) mod receivers;
pub(crate) mod spread;
pub(crate) mod subscription;
pub(crate) mod verdicts;
pub(crate) mod window;
