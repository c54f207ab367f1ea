//! What the fuzz targets share. A target is a few lines in `targets/`: it takes the bytes that
//! libFuzzer invents, plays them as a peer would, and asserts what must stay true; `cargo xtask fuzz`
//! builds and runs them, `fuzz/seeds` is where they begin.
//!
//! Not here: anything that a program of ours uses.

pub mod frames;
pub mod heads;
pub mod input;
pub mod machine;
pub mod relay;
pub mod secure;
