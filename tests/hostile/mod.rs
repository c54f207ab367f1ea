//! Hostile peers. Each input that is known to have broken a server somewhere has a number (BI-nn,
//! for bad input) and a test by that name: what is answered, what is counted, what it costs in
//! memory while it lasts, and that a neighbour on the same worker is served as before.
//!
//! Not here: what each rule of the protocols is answered with, one by one (`bad_input`), and the
//! same inputs at the codecs, torn in every way (`wire`).

mod client;
mod compression;
mod disconnect;
mod frames;
mod handshake;
mod siege;
mod tls;
