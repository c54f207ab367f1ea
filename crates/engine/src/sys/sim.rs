//! The simulated kernel.
