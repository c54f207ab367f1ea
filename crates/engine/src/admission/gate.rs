//! The admission check: the limits applied to a connection before it has a slot, and the answer to
//! a refused one. A refused connection costs reading its request, one answer and no memory.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use wire::http::encode_response;

use super::addresses::{Counted, Key};
use super::{Admission, Refusal};
use crate::conn::{Conn, Flags};
use crate::core::Core;
use crate::limits::{READ_BUFFER_BYTES, RETRY_AFTER};
use crate::sys::{Fd, Sys};
use crate::{Closed, Handler, Response};

/// What is known of a client besides its connection. Only the few connections that need it have
/// one.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Client {
    /// The address that the connection is counted for.
    pub(crate) key: Option<Key>,
    /// The client's address as a proxy reported it.
    pub(crate) address: Option<IpAddr>,
    /// The client's port as a proxy reported it; 0 if unknown.
    pub(crate) port: u16,
    /// It came by a proxy that is believed.
    pub(crate) by_proxy: bool,
    /// That proxy must send a PROXY header first.
    pub(crate) owes_header: bool,
}

impl<S: Sys, H: Handler> Core<S, H> {
    pub(crate) fn admission(&self) -> &Admission {
        &self.remote.shared.admission
    }

    /// Whether a limit or the list of trusted proxies needs the addresses of peers.
    pub(crate) fn wants_peers(&self) -> bool {
        self.limits.admission.by_address() || !self.limits.proxies.trusted.is_empty()
    }

    /// Whether a connection that was just accepted may come in, and what to remember of it.
    pub(crate) fn may_enter(&mut self, peer: Option<IpAddr>) -> Result<Option<Client>, Refusal> {
        let (limits, proxies) = (&self.limits.admission, &self.limits.proxies);
        if self.admission().short_of_memory.load(Ordering::Relaxed) {
            return Err(Refusal::MemoryLimit);
        }
        let by_proxy = peer.is_some_and(|peer| proxies.trusts(peer));
        let mut client = Client { by_proxy, ..Client::default() };
        client.owes_header = by_proxy && proxies.protocol;
        if let Some(peer) = peer.filter(|_| limits.by_address() && !by_proxy) {
            client.key = self.count_address(peer)?;
        }
        let (rate, now_ns) = (self.limits.admission.connect_rate, self.now_ns);
        if rate.is_some_and(|rate| !self.admission().arrivals.take(rate, now_ns)) {
            self.forget_client(client);
            return Err(Refusal::ConnectRate);
        }
        Ok((by_proxy || client.key.is_some()).then_some(client))
    }

    /// Counts a new connection of an address.
    pub(super) fn count_address(&self, address: IpAddr) -> Result<Option<Key>, Refusal> {
        let limits = &self.limits.admission;
        let key = Key::new(address, limits.prefix);
        match self.admission().addresses.enter(key, limits, self.now_ns) {
            Counted::In => Ok(Some(key)),
            Counted::Uncounted => {
                self.counters().addresses_uncounted.add(1);
                Ok(None)
            }
            Counted::Refused(refusal) => {
                self.admission().note_refused(address.to_canonical());
                Err(refusal)
            }
        }
    }

    /// The connection is gone: its address has one less.
    pub(crate) fn forget_client(&self, client: Client) {
        if let Some(key) = client.key {
            self.admission().addresses.leave(key, self.now_ns);
        }
    }

    /// Answers a connection that may not come in, and closes it. Its request is here mostly; unread
    /// it would make the close an RST, which may overtake the answer.
    pub(crate) fn turn_away(&mut self, fd: Fd, why: Refusal) {
        let mut buffer = self.take_read_buffer();
        if let Some(room) = buffer.get_mut(..READ_BUFFER_BYTES)
            && let Ok(got) = self.sys.recv(fd, room)
        {
            self.counters().bytes_in.add(got as u64);
        }
        self.read_buffer = buffer;
        self.say_unavailable(fd, why);
        self.sys.close(fd);
    }

    /// Writes a 503 to a connection that has no slot, as far as it goes.
    fn say_unavailable(&mut self, fd: Fd, why: Refusal) {
        // Counted before anybody can know of it.
        self.counters().count_refused(why);
        if self.tls_server.is_some() {
            // The client could not read an answer before its TLS handshake, which is what it is
            // refused.
            return self.sys.shutdown_write(fd);
        }
        let mut answer = self.take_buffer();
        let jitter = self.sys.random();
        encode_unavailable(&mut answer, jitter);
        if let Ok(sent) = self.sys.send(fd, &answer) {
            self.counters().bytes_out.add(sent as u64);
        }
        self.give_buffer(answer);
        self.sys.shutdown_write(fd);
    }

    /// The same to a handshake in flight, to which nothing was said yet; it is over with that.
    pub(super) fn send_away(&mut self, slot: u32, why: Refusal) {
        let Some(conn) = self.slab.get_mut(slot) else { return };
        let fd = conn.fd;
        if conn.tls().is_some_and(|tls| tls.is_open()) {
            self.counters().count_refused(why);
            let mut answer = self.take_buffer();
            let jitter = self.sys.random();
            encode_unavailable(&mut answer, jitter);
            self.write_out(slot, &answer, 0);
            self.give_buffer(answer);
            self.end_records(slot);
            self.sys.shutdown_write(fd);
        } else {
            self.say_unavailable(fd, why);
        }
        self.end(slot, Closed::Shed);
    }

    // ---- handshakes in flight ----

    /// Whether a connection counts as a handshake in flight.
    pub(crate) fn is_in_flight(flags: Flags) -> bool {
        flags.has(Flags::DEADLINE) && !flags.has(Flags::CLIENT | Flags::OPENED | Flags::ANSWERED)
    }

    /// The handshake of a connection with these flags, as they were until now, is over.
    pub(crate) fn handshake_over(&self, before: Flags) {
        if Self::is_in_flight(before) {
            self.admission().handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One more handshake in flight; beyond the limit the oldest gives way.
    pub(crate) fn handshake_begins(&mut self) {
        let before = self.admission().handshakes.fetch_add(1, Ordering::Relaxed);
        if before >= self.limits.admission.handshakes {
            self.evict_oldest_handshake(Refusal::Handshakes);
        }
    }
}

impl<U> Conn<U> {
    /// Marks the connection as answered at least once; returns its flags before that.
    pub(crate) fn set_answered(&mut self) -> Flags {
        let before = self.flags;
        self.flags.set(Flags::ANSWERED);
        before
    }
}

/// The answer when there is no room: retry, after a random delay so that clients do not all return
/// at once (RFC 9110 section 10.2.3).
pub(super) fn encode_unavailable(out: &mut Vec<u8>, jitter: u64) {
    let (least, most) = (RETRY_AFTER.0.as_secs(), RETRY_AFTER.1.as_secs());
    let seconds = (least + jitter % (most - least + 1)).to_string();
    let response = Response::text(503, "This server takes no more connections now.\n");
    let headers = [
        ("Content-Type", response.content_type),
        ("Connection", "close"),
        ("Retry-After", &*seconds),
    ];
    encode_response(out, response.status, headers, &response.body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_turned_away_is_told_when_to_come_again_and_not_all_the_same() {
        let mut seen = std::collections::BTreeSet::new();
        for jitter in 0..1_000 {
            let mut answer = Vec::new();
            encode_unavailable(&mut answer, jitter);
            let text = String::from_utf8(answer).unwrap();
            assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{text}");
            let value = text.split("Retry-After: ").nth(1).unwrap().split("\r\n").next().unwrap();
            seen.insert(value.parse::<u64>().unwrap());
        }
        let (least, most) = (RETRY_AFTER.0.as_secs(), RETRY_AFTER.1.as_secs());
        assert_eq!(seen, (least..=most).collect());
    }
}
