//! Code that the fuzz targets share. A target is a few lines in `targets/`: it takes bytes from libFuzzer,
//! sends them as a peer would, and asserts what must hold. `cargo xtask fuzz` builds and runs the
//! targets; `fuzz/seeds` has the initial inputs.
//!
//! Not here: anything that a program of ours uses.

pub mod frames;
pub mod heads;
pub mod http2;
pub mod input;
pub mod machine;
pub mod relay;
pub mod secure;
