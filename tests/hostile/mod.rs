//! Hostile peers. Each input that is known to have broken a server has a number (BI-nn, for bad
//! input) and a test of that name: how it is answered and counted, what it costs in memory while it
//! lasts, and that a well-behaved client on the same worker is served as before.
//!
//! Not here: the answer to each violation, one by one (`bad_input`), and the same inputs to the
//! codecs, split in every way (`wire`).

mod client;
mod compression;
mod disconnect;
mod frames;
mod handshake;
mod siege;
mod tls;
