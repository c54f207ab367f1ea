//! The admission check: the limits applied to a connection before it has a slot, and the answer to
//! a refused one. A refused connection costs reading its request, one answer and no memory.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use wire::http::encode_response;

use super::addresses::{CountResult, Key};
use super::{Admission, ProxyProtocol, Refusal};
use crate::conn::{Conn, Flags};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::{READ_BUFFER_BYTES, retry_after};
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
    /// The peer is a trusted proxy.
    pub(crate) via_proxy: bool,
    /// That proxy must send a PROXY header first.
    pub(crate) awaits_proxy_header: bool,
    /// The connection began with a PROXY header.
    pub(crate) sent_proxy_header: bool,
    /// Its listener has TLS, which follows that header.
    pub(crate) tls: bool,
}

impl<S: Sys, H: Handler> Core<S, H> {
    pub(crate) fn admission(&self) -> &Admission {
        &self.remote.shared.admission
    }

    /// Whether a limit or the list of trusted proxies needs the addresses of peers.
    pub(crate) fn wants_peers(&self) -> bool {
        self.limits.admission.by_address() || !self.limits.proxies.trusted.is_empty()
    }

    /// Whether a newly accepted connection is admitted, and what to remember of it.
    pub(crate) fn admit(
        &mut self,
        peer: Option<IpAddr>,
        tls: bool,
    ) -> Result<Option<Client>, Refusal> {
        let (limits, proxies) = (&self.limits.admission, &self.limits.proxies);
        if self.is_short_of_memory() {
            return Err(Refusal::MemoryLimit);
        }
        let via_proxy = peer.is_some_and(|peer| proxies.trusts(peer));
        let mut client = Client { via_proxy, tls, ..Client::default() };
        let required = proxies.protocol == ProxyProtocol::Required;
        client.awaits_proxy_header = via_proxy && required;
        if let Some(peer) = peer.filter(|_| limits.by_address() && !via_proxy) {
            client.key = self.count_address(peer)?;
        }
        let (rate, now_ns) = (self.limits.admission.connect_rate, self.now_ns);
        if rate.is_some_and(|rate| !self.admission().arrivals.take(rate, now_ns)) {
            self.release_client(client);
            return Err(Refusal::ConnectRate);
        }
        Ok((via_proxy || client.key.is_some()).then_some(client))
    }

    /// Whether the process exceeds its memory limit.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.admission().short_of_memory.load(Ordering::Relaxed)
    }

    /// Counts a new connection of an address.
    pub(crate) fn count_address(&self, address: IpAddr) -> Result<Option<Key>, Refusal> {
        let limits = &self.limits.admission;
        let key = Key::new(address, limits.prefix);
        match self.admission().addresses.acquire(key, limits, self.now_ns) {
            CountResult::Counted => Ok(Some(key)),
            CountResult::Uncounted => {
                self.counters().addresses_uncounted.add(1);
                Ok(None)
            }
            CountResult::Refused(refusal) => {
                self.admission().note_refused(address.to_canonical());
                Err(refusal)
            }
        }
    }

    /// Uncounts a closed connection of an address.
    pub(crate) fn release_client(&self, client: Client) {
        if let Some(key) = client.key {
            self.admission().addresses.release(key, self.now_ns);
        }
    }

    /// Answers a refused connection and closes it. Its request has usually arrived; left unread, it
    /// would turn the close into an RST, which may overtake the answer.
    pub(crate) fn refuse_connection(&mut self, fd: Fd, why: Refusal, tls: bool) {
        let mut buffer = self.take_read_buffer();
        if let Some(room) = buffer.get_mut(..READ_BUFFER_BYTES)
            && let Ok(got) = self.sys.recv(fd, room)
        {
            self.counters().bytes_in.add(got as u64);
        }
        self.read_buffer = buffer;
        self.send_unavailable(fd, why, tls);
        self.sys.close(fd);
    }

    /// Writes a 503 to a connection without a slot, as far as the kernel takes it. `tls`: its TLS
    /// handshake is still to come.
    fn send_unavailable(&mut self, fd: Fd, why: Refusal, tls: bool) {
        // Counted before the client can observe the refusal.
        self.counters().count_refused(why);
        if tls {
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

    /// Refuses a handshake in flight that has not been answered yet, and ends it.
    pub(super) fn evict(&mut self, slot: u32, why: Refusal) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let fd = conn.fd;
        let tls_open = conn.tls().map(|tls| tls.is_open());
        if tls_open == Some(true) {
            self.counters().count_refused(why);
            let mut answer = self.take_buffer();
            let jitter = self.sys.random();
            encode_unavailable(&mut answer, jitter);
            self.write_out(slot, &answer, 0);
            self.give_buffer(answer);
            self.end_records(slot);
            self.sys.shutdown_write(fd);
        } else {
            let tls = tls_open.is_some() || self.tls_follows(slot);
            self.send_unavailable(fd, why, tls);
        }
        self.end(slot, Closed::Shed);
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

/// The answer when there is no room: retry, after a random delay.
pub(super) fn encode_unavailable(out: &mut Vec<u8>, jitter: u64) {
    let seconds = retry_after(jitter);
    let response = Response::text(503, "The server accepts no more connections right now.\n");
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
    use crate::limits::RETRY_AFTER_SECONDS;

    #[test]
    fn refused_clients_get_different_retry_after_values() {
        let mut values = std::collections::BTreeSet::new();
        for jitter in 0..1_000 {
            let mut answer = Vec::new();
            encode_unavailable(&mut answer, jitter);
            let text = String::from_utf8(answer).unwrap();
            assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{text}");
            let value = text.split("Retry-After: ").nth(1).unwrap().split("\r\n").next().unwrap();
            values.insert(value.parse::<u64>().unwrap());
        }
        let (least, most) = RETRY_AFTER_SECONDS;
        assert_eq!(values, (least..=most).collect());
    }
}
