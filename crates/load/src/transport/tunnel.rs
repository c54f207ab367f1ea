//! [`Tunnel`]: a tunnel being opened through a proxy (RFC 9110 section 9.3.6): requested, answered, and
//! then secured if TLS is used.

use engine::TlsClient;
use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, parse_response};
use wire::{Limits, Status};

use crate::outcome::failure::Failure;
use crate::{Endpoint, Proxy};

/// How to open a tunnel.
#[derive(Debug)]
pub(crate) struct TunnelRequest {
    pub(crate) connect: Vec<u8>,
    /// TLS with the host.
    pub(crate) tls: Option<TlsClient>,
}

impl TunnelRequest {
    /// A tunnel of a proxy to an endpoint.
    pub(crate) fn new(proxy: &Proxy, endpoint: &Endpoint) -> TunnelRequest {
        let port = endpoint.port().unwrap_or_default();
        let name = endpoint.server_name();
        let name = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
        let connect = proxy.connect(&format!("{name}:{port}"));
        TunnelRequest { connect, tls: endpoint.client.clone() }
    }
}

/// The state of a tunnel.
#[derive(Default, Debug)]
pub struct Tunnel {
    /// CONNECT was sent.
    pub(crate) is_requested: bool,
    /// The proxy has opened the tunnel.
    pub(crate) is_established: bool,
    head: Vec<u8>,
    scanner: HeadScanner,
}

impl Tunnel {
    /// Receives bytes of the proxy. Once the tunnel is open, returns what the server has sent in it.
    ///
    /// # Errors
    /// The proxy refused, its answer is invalid, or the server sends before the client in another protocol than
    /// HTTP/2 without TLS, where it may (RFC 9113 section 3.4).
    pub fn receive(
        &mut self,
        bytes: &[u8],
        may_send_first: bool,
    ) -> Result<Option<Vec<u8>>, Failure> {
        self.head.extend_from_slice(bytes);
        loop {
            let scanned = self.scanner.scan(&self.head, &Limits::default());
            let Status::Complete(length) = scanned.map_err(Failure::Protocol)? else {
                return Ok(None);
            };
            self.scanner = HeadScanner::default();
            let rest = self.head.split_off(length);
            let mut headers = [EMPTY_HEADER; MAX_HEADERS];
            let answer = parse_response(&self.head, &mut headers).map_err(Failure::Protocol)?;
            match answer.status {
                100..=199 => self.head = rest,
                200..=299 if rest.is_empty() || may_send_first => {
                    self.head = Vec::new();
                    return Ok(Some(rest));
                }
                _ => return Err(Failure::ProxyRefused),
            }
        }
    }

    /// The first line of an answer that has not opened the tunnel.
    #[must_use]
    pub fn refusal(&self) -> &[u8] {
        self.head.split(|byte| *byte == b'\r').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_opens_at_any_split_and_other_answers_fail() {
        let yes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 Connection established\r\n\r\n";
        for piece in 1..=yes.len() {
            let mut tunnel = Tunnel::default();
            let heard: Vec<Option<Vec<u8>>> =
                yes.chunks(piece).map(|bytes| tunnel.receive(bytes, false).unwrap()).collect();
            let firsts = &heard[..heard.len() - 1];
            assert!(firsts.iter().all(Option::is_none), "{piece}");
            assert_eq!(heard.last(), Some(&Some(Vec::new())), "{piece}");
        }
        let of = |bytes: &[u8]| Tunnel::default().receive(bytes, false);
        assert_eq!(of(b"HTTP/1.1 407 No\r\n\r\n"), Err(Failure::ProxyRefused));
        let mut refused = Tunnel::default();
        assert!(refused.receive(b"HTTP/1.1 103 A\r\n\r\nHTTP/1.1 407 No\r\n\r\nx", true).is_err());
        assert_eq!(refused.refusal(), b"HTTP/1.1 407 No");
        assert_eq!(of(b"HTTP/1.1 200 OK\r\n\r\nmore"), Err(Failure::ProxyRefused));
        let first = Tunnel::default().receive(b"HTTP/1.1 200 OK\r\n\r\nmore", true);
        assert_eq!(first, Ok(Some(b"more".to_vec())));
        assert!(matches!(of(b"SSH-2.0\r\n\r\n"), Err(Failure::Protocol(_))));
        assert!(matches!(of(&[b'a'; 100_000]), Err(Failure::Protocol(_))), "never ends");
    }
}
