//! [`Target`]: a destination, with a handshake request that is built once for all connections; or
//! without one, for protocols that the handler implements itself.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use wire::websocket::{encode_key, encode_upgrade_request};

use crate::TlsClient;
use crate::invariant::broken;

/// The target index of a connection without a [`Target`].
pub(crate) const NO_TARGET: u8 = u8::MAX;

/// A destination for a single connect.
#[derive(Copy, Clone, Debug)]
pub enum Destination<'a> {
    /// Address and port.
    Tcp(SocketAddr),
    /// The file of a UNIX socket.
    Unix(&'a Path),
}

/// How an outgoing connection begins TLS.
#[derive(Copy, Clone, Debug)]
pub struct TlsConnect<'a> {
    /// Which servers to trust, and the certificate to present.
    pub client: &'a TlsClient,
    /// Sent before TLS, unencrypted: a PROXY header, or nothing.
    pub prefix: &'a [u8],
}

/// Where a client connects and what it requests.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address and port; ignored if there is a UNIX socket.
    pub address: SocketAddr,
    /// The file of a UNIX socket to connect to instead.
    pub unix_socket: Option<Arc<Path>>,
    /// Subprotocols offered, in order of preference.
    pub protocols: Vec<String>,
    /// Whether to offer permessage-deflate.
    pub deflate: bool,
    /// The TLS configuration, if the connections use TLS.
    pub tls: Option<TlsClient>,
    /// The handshake request; empty if the connections are raw.
    head: Vec<u8>,
    key_at: usize,
}

/// Placeholder for each connection's own key.
const PLACEHOLDER: [u8; 24] = *b"////////////////////////";

impl Target {
    /// A WebSocket endpoint: `host` as in the Host header, `path` with its query, whether to offer
    /// permessage-deflate, and further header lines.
    #[must_use]
    pub fn websocket(
        address: SocketAddr,
        host: &str,
        path: &str,
        protocols: &[&str],
        deflate: bool,
        headers: &[(&str, &str)],
    ) -> Self {
        let mut head = Vec::new();
        let headers = headers.iter().copied();
        encode_upgrade_request(&mut head, host, path, &PLACEHOLDER, protocols, deflate, headers);
        let key_at = head
            .windows(PLACEHOLDER.len())
            .position(|window| window == PLACEHOLDER)
            .unwrap_or(head.len());
        let protocols = protocols.iter().map(ToString::to_string).collect();
        Target { address, unix_socket: None, protocols, deflate, tls: None, head, key_at }
    }

    /// A raw target: bytes in both directions once connected, or once the TLS handshake is
    /// complete, which [`crate::Handler::connected`] reports.
    #[must_use]
    pub fn raw(address: SocketAddr) -> Self {
        let (protocols, head) = (Vec::new(), Vec::new());
        let (unix_socket, tls) = (None, None);
        Target { address, unix_socket, protocols, deflate: false, tls, head, key_at: 0 }
    }

    pub(crate) fn destination(&self) -> Destination<'_> {
        let to_file = self.unix_socket.as_deref().map(Destination::Unix);
        to_file.unwrap_or(Destination::Tcp(self.address))
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.head.is_empty()
    }

    /// Appends the request with this key.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, key: &[u8; 24]) {
        let at = out.len() + self.key_at;
        out.extend_from_slice(&self.head);
        match out.get_mut(at..at + key.len()) {
            Some(placeholder) => placeholder.copy_from_slice(key),
            None => broken("a handshake request has room for its key"),
        }
    }
}

/// The handshake key of one connection, derived from the worker's secret: nothing has to be kept
/// until the answer arrives, and nobody can predict it (RFC 6455 section 4.1, step 7).
pub(crate) fn key_for(secret: u64, slot: u32, generation: u32) -> [u8; 24] {
    let mut state = secret ^ (u64::from(generation) << 32 | u64::from(slot));
    let mut nonce = [0u8; 16];
    for half in nonce.chunks_exact_mut(8) {
        half.copy_from_slice(&mix(&mut state).to_le_bytes());
    }
    encode_key(nonce)
}

/// SplitMix64.
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_sends_its_own_key() {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let target = Target::websocket(address, "localhost", "/echo", &["chat"], false, &[]);
        let (a, b) = (key_for(1, 2, 3), key_for(1, 2, 4));
        assert_ne!(a, b);
        let mut out = b"before".to_vec();
        target.encode(&mut out, &a);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("beforeGET /echo HTTP/1.1\r\n"), "{text}");
        assert!(text.contains(std::str::from_utf8(&a).unwrap()), "{text}");
        assert!(!text.contains("////////"), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "{text}");
    }
}
