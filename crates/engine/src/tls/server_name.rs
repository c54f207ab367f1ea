//! The name that a client asks for, read before its certificate is chosen, so that the handler may add one.

use std::io::Read;

use rustls::server::Acceptor;

use super::Tls;
use crate::conn::Mode;
use crate::core::Core;
use crate::sys::Sys;
use crate::worker::Worker;
use crate::{Closed, Handler};

impl<S: Sys, H: Handler> Core<S, H> {
    /// Whether [`Handler::server_name`] is called. Default: `false`.
    pub fn set_reports_server_names(&mut self, reports: bool) {
        self.reports_server_names = reports;
    }
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Reports the name in a ClientHello of which `fresh` completes the bytes, and begins TLS with what is
    /// configured then. Returns `false` if the connection has ended.
    #[inline(never)]
    pub(crate) fn report_server_name(&mut self, slot: u32, fresh: &[u8]) -> bool {
        let Some(id) = self.core.id_at(slot) else { return false };
        let conn = self.core.slab.get_mut(slot).filter(|conn| !conn.is_client());
        let Some(tls) = conn.and_then(|conn| conn.tls()) else { return true };
        if tls.named {
            return true;
        }
        let name = match requested(&tls.partial, fresh) {
            Requested::Incomplete => return true,
            Requested::Nothing => {
                tls.named = true;
                return true;
            }
            Requested::Name(name) => name,
        };
        self.handler.server_name(&mut self.core, id, &name);
        let named = self.core.tls_server.as_ref().and_then(|server| server.begin().ok());
        let Some(conn) = self.core.live_mut(id).filter(|conn| conn.mode == Mode::Http) else {
            return false;
        };
        if let Some(named) = named
            && let Some(tls) = conn.tls()
        {
            let partial = std::mem::take(&mut tls.partial);
            *tls = Tls { partial, named: true, begun: true, ..named };
            return true;
        }
        self.core.end(slot, Closed::TlsFailed);
        false
    }
}

enum Requested {
    /// The ClientHello goes on.
    Incomplete,
    /// It has no name, or is none.
    Nothing,
    Name(Box<str>),
}

/// The name in a ClientHello that begins with `front` and goes on with `rest`.
fn requested(front: &[u8], rest: &[u8]) -> Requested {
    let mut acceptor = Acceptor::default();
    let mut bytes = front.chain(rest);
    loop {
        match acceptor.read_tls(&mut bytes) {
            Ok(0) => return Requested::Incomplete,
            Ok(_) => {}
            Err(_) => return Requested::Nothing,
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(Into::into);
                return name.map_or(Requested::Nothing, Requested::Name);
            }
            Err(_) => return Requested::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::tests::CertificateAuthority;

    #[test]
    fn names_in_every_split() {
        let client = CertificateAuthority::new().client("late.test");
        let mut hello = Vec::new();
        client.begin().unwrap().session.receive(&mut [], &mut [], &mut hello);
        for at in 0..hello.len() {
            let (front, rest) = hello.split_at(at);
            assert!(matches!(requested(front, &[]), Requested::Incomplete), "{at}");
            assert!(
                matches!(requested(front, rest), Requested::Name(name) if &*name == "late.test")
            );
        }
        assert!(matches!(requested(b"GET / HTTP/1.1\r\n\r\n", &[]), Requested::Nothing));
    }
}
