//! Control plane of a server: admin listener, auth, metrics text.
