//! Opening a WebSocket in the middle of a call of the handler, which goes on with the open connection: instead of
//! [`crate::Answer::Upgrade`], upon which [`Handler::open`] is called.

use wire::websocket::{Deflate, accept_key, encode_upgrade_response_with};

use crate::conn::Mode;
use crate::core::Core;
use crate::deflate::NegotiatedDeflate;
use crate::sys::Sys;
use crate::{Compression, ConnId, Handler, Incoming};

/// What the answer to a handshake takes from its request.
#[derive(Copy, Clone, Debug)]
pub struct Opening {
    accept: [u8; 28],
    deflate: Option<Deflate>,
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// What [`Core::open_request`] needs of the request that is being handled; `None` if it is no handshake. The
    /// class of the connection is set before.
    #[must_use]
    pub fn opening(&self, id: ConnId, incoming: &Incoming<'_, '_>) -> Option<Opening> {
        let upgrade = incoming.upgrade?;
        let deflate = match self.limits.compression {
            Compression::Off => None,
            compression => upgrade.deflate(compression == Compression::Takeover).ok().flatten(),
        };
        let deflate = self.deflate_of(id.slot(), deflate, Some(upgrade));
        Some(Opening { accept: accept_key(upgrade.key), deflate })
    }

    /// Opens the WebSocket of the request that is being handled: [`Handler::request`] returns
    /// [`crate::Answer::Written`] afterwards. Returns `false` if it was answered, or its client has left.
    pub fn open_request(
        &mut self,
        id: ConnId,
        opening: &Opening,
        protocol: Option<&str>,
        headers: &[(Box<str>, Box<str>)],
    ) -> bool {
        let slot = id.slot();
        let here = self.live(id).is_some_and(|conn| conn.mode == Mode::Http);
        if !here || self.corked != Some(slot) {
            return false;
        }
        encode(&mut self.cork, opening, protocol, headers);
        self.becomes_websocket(slot, opening.deflate.as_ref().map(NegotiatedDeflate::as_server))
            .is_some()
    }

    /// Opens the WebSocket of a request that is answered later. Returns `false` if it was answered, is no
    /// handshake, or its client is known to have left. One whose loss is noticed by this write has a WebSocket that
    /// opens, and is reported as closed next.
    pub fn open_late(
        &mut self,
        id: ConnId,
        protocol: Option<&str>,
        headers: &[(Box<str>, Box<str>)],
    ) -> bool {
        let slot = id.slot();
        let Some(conn) = self.live_mut(id).filter(|conn| conn.mode == Mode::Parked) else {
            return false;
        };
        let parked = conn.cold.as_ref().and_then(|cold| cold.parked.as_ref());
        let Some(accept) = parked.and_then(|context| context.accept) else { return false };
        let opening = Opening { accept, deflate: conn.take_parked().deflate };
        let deflate = opening.deflate.as_ref().map(NegotiatedDeflate::as_server);
        self.becomes_websocket(slot, deflate);
        let mut answer = Vec::new();
        encode(&mut answer, &opening, protocol, headers);
        if self.corked == Some(slot) {
            self.cork.extend_from_slice(&answer);
        } else {
            self.write_out(slot, &answer, 0);
        }
        if self.live(id).is_some() {
            // What the client has sent meanwhile is processed in the next turn.
            self.resume_soon(slot);
        }
        true
    }
}

fn encode(
    out: &mut Vec<u8>,
    opening: &Opening,
    protocol: Option<&str>,
    headers: &[(Box<str>, Box<str>)],
) {
    let headers = headers.iter().map(|(name, value)| (&**name, &**value));
    encode_upgrade_response_with(out, &opening.accept, protocol, opening.deflate.as_ref(), headers);
}
