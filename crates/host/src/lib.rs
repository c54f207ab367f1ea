//! What this machine allows, and what N sockets need.
