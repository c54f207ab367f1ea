//! Trusted proxies: which peers are trusted, and the client address they report. From any other
//! peer nothing of this is read: a PROXY header is an invalid request, and X-Forwarded-For a header
//! like any other. Except with [`ProxyProtocol::Accepted`]: then who reads an address judges its peer.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use wire::http::{ForwardedBy, Request};
use wire::{Status, Violation, begins_proxy_header_v2, parse_proxy_header};

use super::Refusal;
use super::gate::Client;
use crate::conn::{Conn, Flags};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::{Closed, ConnId, Handler, Sys};

/// A network: addresses with a common prefix.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Network {
    /// IPv4 as IPv4-mapped IPv6 (RFC 4291 section 2.5.5.2).
    first: u128,
    /// Length of the prefix, of those 128 bits.
    bits: u8,
}

impl Network {
    /// Length of its prefix in bits of an IPv6 address; an IPv4 network has 96 more than its own.
    #[must_use]
    pub fn prefix_bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address is in the network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let other = (wide(address) ^ self.first).leading_zeros();
        other >= u32::from(self.bits)
    }
}

fn wide(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("invalid network \"{text}\": expected 10.0.0.0/8, 2001:db8::/32 or an address")
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(width);
        if bits > width {
            return Err(wrong());
        }
        let network = Network { first: wide(address), bits: 128 - width + bits };
        let rest = u128::MAX.checked_shr(network.bits.into()).unwrap_or(0);
        if network.first & rest != 0 {
            return Err(format!("invalid network \"{text}\": bits are set beyond its prefix"));
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Ipv6Addr::from(self.first).to_ipv4_mapped().filter(|_| self.bits >= 96) {
            Some(v4) => write!(f, "{v4}/{}", self.bits - 96),
            None => write!(f, "{}/{}", Ipv6Addr::from(self.first), self.bits),
        }
    }
}

/// Which peers begin their connections with a PROXY header.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum ProxyProtocol {
    /// None.
    #[default]
    Off,
    /// Every trusted proxy, with any version, before TLS. No other peer may.
    Required,
    /// Any peer may, with version 2, before TLS or as the first bytes inside it. What it says is
    /// reported as the client, and not trusted: limits count the peer's own address.
    Accepted,
}

/// Which proxies are trusted, and how they report the client's address.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// Networks of trusted proxies. If empty, only the peer's own address is known.
    pub trusted: Vec<Network>,
    /// Who begins connections with a PROXY header. With [`ProxyProtocol::Off`] trusted proxies write
    /// `forwarded`.
    pub protocol: ProxyProtocol,
    /// The header that trusted proxies append to.
    pub forwarded: ForwardedBy,
}

impl Proxies {
    /// Whether a peer is a trusted proxy.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    /// Whether a peer is a trusted proxy that writes `forwarded`.
    #[must_use]
    pub fn trusts_forwarded(&self, address: IpAddr) -> bool {
        self.protocol == ProxyProtocol::Off && self.trusts(address)
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Whether what an accepted connection has sent may be a PROXY header, for all that its first byte
    /// and the settings tell.
    #[inline]
    pub(crate) fn may_be_proxy_header(&self, bytes: &[u8]) -> bool {
        match self.limits.proxies.protocol {
            ProxyProtocol::Accepted => bytes.first() == Some(&b'\r'),
            // One that was required when the connection was accepted.
            ProxyProtocol::Off | ProxyProtocol::Required => !self.clients.is_empty(),
        }
    }

    /// Whether a connection begins with a PROXY header that it need not send: nothing came before.
    fn offers_proxy_header(&self, slot: u32, bytes: &[u8]) -> bool {
        let begun = Flags::ANSWERED | Flags::CLIENT;
        self.limits.proxies.protocol == ProxyProtocol::Accepted
            && self.slab.get(slot).is_some_and(|conn| !conn.flags.has(begun))
            && !self.clients.get(&slot).is_some_and(|client| client.sent_proxy_header)
            && begins_proxy_header_v2(bytes)
    }

    /// Consumes the PROXY header of a connection that must or may send one; returns the bytes used, 0
    /// if there is none.
    #[inline(never)]
    pub(crate) fn take_proxy_header(
        &mut self,
        slot: u32,
        bytes: &[u8],
    ) -> Result<Status<usize>, Violation> {
        let offered = self.offers_proxy_header(slot, bytes);
        let awaited = self.clients.get(&slot).is_some_and(|client| client.awaits_proxy_header);
        if !offered && !awaited {
            return Ok(Status::Complete(0));
        }
        let Status::Complete(header) = parse_proxy_header(bytes)? else {
            return Ok(Status::Partial);
        };
        let record = self.clients.entry(slot).or_default();
        (record.awaits_proxy_header, record.sent_proxy_header) = (false, true);
        match header.client {
            Some(client) if offered => {
                (record.address, record.port) = (Some(client.ip()), client.port());
            }
            Some(client) => self.set_client_address(slot, client),
            None => {}
        }
        Ok(Status::Complete(header.bytes))
    }

    /// A header that need not be sent is incomplete: it has the time of a request head.
    pub(crate) fn offered_header_goes_on(&mut self, slot: u32) {
        let offered = self.limits.proxies.protocol == ProxyProtocol::Accepted;
        let Some(conn) = self.slab.get_mut(slot).filter(|_| offered) else { return };
        if conn.cold().since_ns == 0 {
            self.head_begins(slot);
        }
    }

    /// The client's address as a proxy reported it, with port 0 if that is unknown.
    #[must_use]
    pub fn reported_client(&self, id: ConnId) -> Option<SocketAddr> {
        self.live(id)?;
        let client = self.clients.get(&id.slot())?;
        Some(SocketAddr::new(client.address?, client.port))
    }

    /// Sets the client's address of a request from a proxy's header. If the header is missing or
    /// nothing could be read, the address is unknown, even if an earlier request on the connection
    /// had one.
    pub(crate) fn set_client_from_header(&mut self, slot: u32, request: Option<&Request<'_, '_>>) {
        let proxies = &self.limits.proxies;
        if proxies.protocol != ProxyProtocol::Off
            || !self.clients.get(&slot).is_some_and(|client| client.via_proxy)
        {
            return;
        }
        let reported = request.and_then(|request| {
            request.forwarded_for(proxies.forwarded, |address| proxies.trusts(address))
        });
        match reported {
            Some(address) => self.set_client_address(slot, SocketAddr::new(address, 0)),
            None => self.clear_client_address(slot),
        }
    }

    fn clear_client_address(&mut self, slot: u32) {
        let Some(before) = self.clients.get(&slot).copied() else {
            return broken("a connection via a proxy has a client record");
        };
        if before.address.is_some() {
            self.release_client(before);
            self.clients.insert(slot, Client { key: None, address: None, port: 0, ..before });
        }
    }

    /// Sets the client's address that a proxy reported: from now on the connection counts for that
    /// address, or is refused.
    fn set_client_address(&mut self, slot: u32, reported: SocketAddr) {
        let (address, port) = (reported.ip().to_canonical(), reported.port());
        let Some(before) = self.clients.get(&slot).copied() else {
            return broken("a connection via a proxy has a client record");
        };
        if before.address == Some(address) {
            return;
        }
        self.release_client(before);
        let counted =
            if self.limits.admission.by_address() { self.count_address(address) } else { Ok(None) };
        let key = counted.unwrap_or(None);
        self.clients.insert(slot, Client { key, address: Some(address), port, ..before });
        if let Err(why) = counted {
            self.refuse_request(slot, why);
        }
    }

    /// Whether the TLS of a connection begins after the PROXY header that it has still to send, or
    /// that is being processed.
    pub(crate) fn tls_follows(&self, slot: u32) -> bool {
        let encrypted = self.slab.get(slot).is_some_and(Conn::is_encrypted);
        !encrypted && self.clients.get(&slot).is_some_and(|client| client.tls)
    }

    /// Whether a request came over TLS: to this server, or to a trusted proxy that reports it in its
    /// headers.
    #[must_use]
    pub fn came_over_tls(&self, id: ConnId, request: &Request<'_, '_>) -> bool {
        let proxies = &self.limits.proxies;
        let trusted = self.clients.get(&id.slot()).is_some_and(|client| client.via_proxy);
        self.is_encrypted(id)
            || trusted
                && proxies.protocol == ProxyProtocol::Off
                && request.forwarded_https(proxies.forwarded)
    }

    /// Answers 503 to a connection that was accepted before its client was known.
    fn refuse_request(&mut self, slot: u32, why: Refusal) {
        let tls_follows = self.tls_follows(slot);
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        conn.closed = Closed::Refused;
        let before = conn.set_answered();
        self.handshake_ended(before);
        self.counters().count_refused(why);
        // Before TLS, the client cannot read an unencrypted answer.
        if !tls_follows {
            let jitter = self.sys.random();
            super::gate::encode_unavailable(&mut self.cork, jitter);
        }
        self.finish(slot);
    }
}

#[cfg(test)]
mod protocol_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_addresses_with_their_prefix() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "2001:db9::1", true),
            ("::1", "::1", true),
            ("::1", "127.0.0.1", false),
        ];
        for (network, address, inside) in cases {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), inside, "{network} {address}");
        }
    }

    #[test]
    fn networks_parse_as_they_are_printed_and_others_are_refused() {
        for text in ["10.0.0.0/8", "192.0.2.7/32", "0.0.0.0/0", "2001:db8::/32", "::/0"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        for text in ["", "10.0.0.0/33", "10.0.0.1/8", "::/129", "example.com", "10.0.0.0/", "10/8"]
        {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
