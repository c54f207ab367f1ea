//! The PROXY protocol, versions 1 and 2, both roles: a short header in front of a connection by
//! which a proxy reports the client's address. Source: "The PROXY protocol", HAProxy Technologies,
//! sections 2.1 and 2.2.
//!
//! Not here: which peers are trusted (the caller's), and what else a version 2 header can carry
//! (TLVs are skipped, the checksum among them; none are sent).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

use crate::{Status, Violation};

/// Longest header of version 1, including its line end (section 2.1).
const V1_BYTES_MAX: usize = 107;
/// Longest header of version 2 that is accepted: addresses and some kilobytes of TLVs.
pub const V2_BYTES_MAX: usize = 4096;
const V1_SIGNATURE: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The fixed part of version 2: signature, command, family, length.
const V2_FIXED: usize = 16;

/// A header in front of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ProxyHeader {
    /// Length of the header in bytes; the connection's own data follows.
    pub bytes: usize,
    /// The client's address and port. `None` if the proxy connects for itself (a health check) or
    /// does not know them.
    pub client: Option<SocketAddr>,
}

/// The version of a header to send.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Appends the header of a connection from a client to the address it connected to. With `None` it
/// says only that there is a proxy. If one is IPv4 and the other IPv6, both are written as IPv6
/// (RFC 4291 section 2.5.5.2), as a header has one family. An unknown port is 0.
pub fn encode_proxy_header(
    out: &mut Vec<u8>,
    version: ProxyVersion,
    ends: Option<(SocketAddr, SocketAddr)>,
) {
    let Some((client, server)) = ends else {
        return match version {
            ProxyVersion::V1 => out.extend_from_slice(b"PROXY UNKNOWN\r\n"),
            ProxyVersion::V2 => {
                out.extend_from_slice(V2_SIGNATURE);
                out.extend_from_slice(&[0x20, 0, 0, 0]);
            }
        };
    };
    let ports = [client.port(), server.port()];
    match (version, client.ip().to_canonical(), server.ip().to_canonical()) {
        (ProxyVersion::V1, IpAddr::V4(from), IpAddr::V4(to)) => {
            push_text(out, format_args!("PROXY TCP4 {from} {to} {} {}\r\n", ports[0], ports[1]));
        }
        (ProxyVersion::V1, from, to) => {
            let (from, to) = (wide(from), wide(to));
            push_text(out, format_args!("PROXY TCP6 {from} {to} {} {}\r\n", ports[0], ports[1]));
        }
        (ProxyVersion::V2, IpAddr::V4(from), IpAddr::V4(to)) => {
            push_binary(out, 0x11, [&from.octets(), &to.octets()], ports);
        }
        (ProxyVersion::V2, from, to) => {
            push_binary(out, 0x21, [&wide(from).octets(), &wide(to).octets()], ports);
        }
    }
}

fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn push_text(out: &mut Vec<u8>, text: core::fmt::Arguments<'_>) {
    out.extend_from_slice(alloc::format!("{text}").as_bytes());
}

fn push_binary(out: &mut Vec<u8>, family: u8, addresses: [&[u8]; 2], ports: [u16; 2]) {
    let length = addresses.iter().map(|address| address.len() as u16).sum::<u16>() + 4;
    out.extend_from_slice(V2_SIGNATURE);
    out.extend_from_slice(&[0x21, family]);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&addresses.concat());
    out.extend_from_slice(&ports.map(u16::to_be_bytes).concat());
}

/// Whether `bytes` begin with the signature of version 2, as far as they have arrived: not those of a
/// request or of TLS.
#[must_use]
pub fn begins_proxy_header_v2(bytes: &[u8]) -> bool {
    starts_like(bytes, V2_SIGNATURE)
}

/// Looks for a header at the beginning of `bytes`.
///
/// # Errors
/// Bytes that begin no header, or a malformed one.
pub fn parse_proxy_header(bytes: &[u8]) -> Result<Status<ProxyHeader>, Violation> {
    if starts_like(bytes, V1_SIGNATURE) {
        return version_1(bytes);
    }
    if starts_like(bytes, V2_SIGNATURE) {
        return version_2(bytes);
    }
    Err(Violation::BadProxyHeader)
}

/// Whether `bytes`, as far as they have arrived, match `signature`.
fn starts_like(bytes: &[u8], signature: &[u8]) -> bool {
    bytes.iter().zip(signature).all(|(one, other)| one == other)
}

fn version_1(bytes: &[u8]) -> Result<Status<ProxyHeader>, Violation> {
    let longest = bytes.get(..V1_BYTES_MAX).unwrap_or(bytes);
    let Some(end) = longest.windows(2).position(|pair| pair == b"\r\n") else {
        let too_long = longest.len() == V1_BYTES_MAX;
        return if too_long { Err(Violation::BadProxyHeader) } else { Ok(Status::Partial) };
    };
    let line = longest.get(..end).and_then(|line| core::str::from_utf8(line).ok());
    let client = line.and_then(line_of_version_1).ok_or(Violation::BadProxyHeader)?;
    Ok(Status::Complete(ProxyHeader { bytes: end + 2, client }))
}

/// `PROXY TCP4 source destination port port`, separated by single blanks; `None` if malformed.
fn line_of_version_1(line: &str) -> Option<Option<SocketAddr>> {
    let mut words = line.split(' ');
    words.next().filter(|word| *word == "PROXY")?;
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let (source, destination) = (words.next()?, words.next()?);
    let source: IpAddr = match family {
        "TCP4" => parse_both::<Ipv4Addr>(source, destination)?.into(),
        "TCP6" => parse_both::<Ipv6Addr>(source, destination)?.into(),
        _ => return None,
    };
    let (port, _) = (port_of(words.next()?)?, port_of(words.next()?)?);
    words.next().is_none().then_some(Some(SocketAddr::new(source, port)))
}

/// The source, if both are addresses of the family.
fn parse_both<A: FromStr>(source: &str, destination: &str) -> Option<A> {
    let source = source.parse().ok()?;
    destination.parse::<A>().ok().map(|_| source)
}

fn port_of(text: &str) -> Option<u16> {
    let plain = text == "0" || !text.starts_with('0');
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain && digits)
}

fn version_2(bytes: &[u8]) -> Result<Status<ProxyHeader>, Violation> {
    let bad = Err(Violation::BadProxyHeader);
    let Some(fixed) = bytes.first_chunk::<V2_FIXED>() else { return Ok(Status::Partial) };
    let [.., command, family, high, low] = *fixed;
    let length = V2_FIXED + usize::from(u16::from_be_bytes([high, low]));
    if length > V2_BYTES_MAX {
        return bad;
    }
    // Each byte holds two fields of four bits.
    let has_addresses = match command {
        0x20 => false,
        0x21 => true,
        _ => return bad,
    };
    let (family, transport) = (family >> 4, family & 0x0F);
    if family > 3 || transport > 2 {
        return bad;
    }
    let Some(rest) = bytes.get(V2_FIXED..length) else { return Ok(Status::Partial) };
    let carries_client = has_addresses && transport != 0;
    let client = match family {
        1 if carries_client => rest.get(..12).and_then(source_of_version_2::<4>).map(Some),
        2 if carries_client => rest.get(..36).and_then(source_of_version_2::<16>).map(Some),
        3 if carries_client => rest.get(..216).map(|_| None),
        _ => Some(None),
    };
    match client {
        Some(client) => Ok(Status::Complete(ProxyHeader { bytes: length, client })),
        None => bad,
    }
}

/// Both addresses, then both ports.
fn source_of_version_2<const BYTES: usize>(rest: &[u8]) -> Option<SocketAddr>
where
    IpAddr: From<[u8; BYTES]>,
{
    let address = rest.first_chunk::<BYTES>()?;
    let port = rest.get(2 * BYTES..)?.first_chunk::<2>()?;
    Some(SocketAddr::new((*address).into(), u16::from_be_bytes(*port)))
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut header = V2_SIGNATURE.to_vec();
        header.extend([command, family]);
        header.extend((body.len() as u16).to_be_bytes());
        header.extend(body);
        header
    }

    type Parsed = Result<Status<ProxyHeader>, Violation>;

    fn with_client(bytes: usize, client: &str) -> Parsed {
        let client = Some(client.parse().unwrap());
        Ok(Status::Complete(ProxyHeader { bytes, client }))
    }

    fn without_client(bytes: usize) -> Parsed {
        Ok(Status::Complete(ProxyHeader { bytes, client: None }))
    }

    fn good() -> Vec<(Vec<u8>, Parsed)> {
        let v4 = [192, 0, 2, 7, 192, 0, 2, 9, 0, 80, 1, 0];
        let mut v6 = [0; 36];
        v6[0..4].copy_from_slice(&[0x20, 1, 0x0d, 0xb8]);
        v6[15] = 5;
        v6[32..34].copy_from_slice(&4711_u16.to_be_bytes());
        let mut with_tlv = v4.to_vec();
        with_tlv.extend([0x04, 0, 2, 0, 0]);
        let line = |text: &str| text.as_bytes().to_vec();
        vec![
            (
                line("PROXY TCP4 192.0.2.7 192.0.2.9 56324 443\r\n"),
                with_client(42, "192.0.2.7:56324"),
            ),
            (line("PROXY TCP6 2001:db8::5 ::1 0 65535\r\n"), with_client(36, "[2001:db8::5]:0")),
            (line("PROXY UNKNOWN\r\n"), without_client(15)),
            (line("PROXY UNKNOWN ff 1 2 whatever\r\n"), without_client(31)),
            (v2(0x21, 0x11, &v4), with_client(28, "192.0.2.7:80")),
            (v2(0x21, 0x11, &with_tlv), with_client(33, "192.0.2.7:80")),
            (v2(0x21, 0x21, &v6), with_client(52, "[2001:db8::5]:4711")),
            (v2(0x21, 0x31, &[b'/'; 216]), without_client(232)),
            (v2(0x20, 0x11, &v4), without_client(28)),
            (v2(0x20, 0x00, &[]), without_client(16)),
            (v2(0x21, 0x00, &[1, 2, 3]), without_client(19)),
            // An unknown transport or family: accepted without the addresses.
            (v2(0x21, 0x10, &v4), without_client(28)),
            (v2(0x21, 0x02, &v4), without_client(28)),
            // A health check's addresses are skipped, whatever they are (LOCAL, section 2.2).
            (v2(0x20, 0x21, &v6), without_client(52)),
            (v2(0x20, 0x21, &[1, 2, 3]), without_client(19)),
            (v2(0x20, 0x31, &[1, 2, 3]), without_client(19)),
            (v2(0x21, 0x12, &v4), with_client(28, "192.0.2.7:80")),
            (v2(0x21, 0x32, &[b'/'; 216]), without_client(232)),
            (v2(0x20, 0x00, &[0; V2_BYTES_MAX - 16]), without_client(V2_BYTES_MAX)),
        ]
    }

    #[test]
    fn a_header_is_parsed_at_every_split_and_what_follows_is_left() {
        for (header, expected) in good() {
            for end in 0..header.len() {
                assert_eq!(parse_proxy_header(&header[..end]), Ok(Status::Partial), "{end}");
            }
            let mut more = header.clone();
            more.extend(b"GET / HTTP/1.1\r\n");
            assert_eq!(parse_proxy_header(&more), expected, "{}", header.escape_ascii());
        }
    }

    #[test]
    fn a_header_of_version_2_is_told_from_what_follows_one() {
        for (header, _) in good() {
            let is_v2 = header.first() == Some(&b'\r');
            (1..=header.len())
                .for_each(|end| assert_eq!(begins_proxy_header_v2(&header[..end]), is_v2));
        }
        for other in ["GET / HTTP/1.1", "\r\nGET", "\r\n\r\n\r", "\x16\x03\x01"] {
            assert!(!begins_proxy_header_v2(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn malformed_headers_are_refused() {
        let v4 = [192, 0, 2, 7, 192, 0, 2, 9, 0, 80, 1, 0];
        let mut bad: Vec<Vec<u8>> = [
            "GET / HTTP/1.1\r\n",
            "PROXI ",
            "proxy TCP4",
            "\r\n\r\n\r",
            "PROXY\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.9 56324\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.9 56324 443 \r\n",
            "PROXY TCP4  192.0.2.7 192.0.2.9 56324 443\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.9 56324 0443\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.9 56324 65536\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.9 +1 443\r\n",
            "PROXY TCP4 192.0.2.007 192.0.2.9 1 443\r\n",
            "PROXY TCP4 ::1 ::1 1 443\r\n",
            "PROXY TCP6 192.0.2.7 ::1 1 443\r\n",
            "PROXY TCP5 192.0.2.7 192.0.2.9 1 443\r\n",
            "PROXY UDP4 192.0.2.7 192.0.2.9 1 443\r\n",
        ]
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .collect();
        bad.push([b"PROXY UNKNOWN ".as_slice(), &[b'x'; 120]].concat());
        bad.push(v2(0x11, 0x11, &v4));
        bad.push(v2(0x22, 0x11, &v4));
        bad.push(v2(0x21, 0x41, &v4));
        bad.push(v2(0x21, 0x13, &v4));
        bad.push(v2(0x21, 0x11, &v4[..11]));
        bad.push(v2(0x21, 0x21, &v4));
        bad.push(v2(0x21, 0x31, &[b'/'; 215]));
        bad.push(v2(0x20, 0x00, &[0; V2_BYTES_MAX - 15]));
        // Refused from its fixed part alone.
        bad.push(v2(0x20, 0x00, &[0; V2_BYTES_MAX - 15])[..16].to_vec());
        bad.push(v2(0x21, 0x11, &[0; V2_BYTES_MAX]));
        for bytes in bad {
            let parsed = parse_proxy_header(&bytes);
            assert_eq!(parsed, Err(Violation::BadProxyHeader), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn another_implementation_parses_our_headers() {
        let config =
            proxy_header::ParseConfig { include_tlvs: false, allow_v1: true, allow_v2: true };
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            for (client, server, expected_ends) in [
                ("192.0.2.7:1", "192.0.2.9:443", ["192.0.2.7:1", "192.0.2.9:443"]),
                ("[2001:db8::5]:2", "[2001:db8::1]:80", ["[2001:db8::5]:2", "[2001:db8::1]:80"]),
                ("[::ffff:192.0.2.7]:3", "192.0.2.9:443", ["192.0.2.7:3", "192.0.2.9:443"]),
                ("192.0.2.7:4", "[::ffff:192.0.2.9]:80", ["192.0.2.7:4", "192.0.2.9:80"]),
                // Of two families: written as one.
                ("192.0.2.7:5", "[::1]:80", ["[::ffff:192.0.2.7]:5", "[::1]:80"]),
                ("[2001:db8::5]:6", "10.0.0.1:80", ["[2001:db8::5]:6", "[::ffff:10.0.0.1]:80"]),
            ] {
                let ends = (client.parse().unwrap(), server.parse().unwrap());
                let mut out = Vec::new();
                encode_proxy_header(&mut out, version, Some(ends));
                let length = out.len();
                out.extend_from_slice(b"GET /");
                let expected_ends: [SocketAddr; 2] = expected_ends.map(|end| end.parse().unwrap());
                let expected = ProxyHeader { bytes: length, client: Some(expected_ends[0]) };
                assert_eq!(parse_proxy_header(&out), Ok(Status::Complete(expected)));
                let (theirs, bytes) = proxy_header::ProxyHeader::parse(&out, config).unwrap();
                let theirs = theirs.proxied_address().unwrap();
                assert_eq!(([theirs.source, theirs.destination], bytes), (expected_ends, length));
            }
            let mut out = Vec::new();
            encode_proxy_header(&mut out, version, None);
            let expected = ProxyHeader { bytes: out.len(), client: None };
            assert_eq!(parse_proxy_header(&out), Ok(Status::Complete(expected)));
        }
    }

    proptest! {
        /// Our parser agrees with another implementation on any line or header.
        #[test]
        fn our_parser_agrees_with_another(
            source in any::<[u8; 4]>(), source_port in any::<u16>(), port in any::<u16>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..64), wreck in 0..60_usize, v2_too in any::<bool>(),
        ) {
            let from = Ipv4Addr::from(source);
            let mut header = std::format!("PROXY TCP4 {from} 192.0.2.1 {source_port} {port}\r\n").into_bytes();
            if v2_too {
                let mut body = source.to_vec();
                body.extend([192, 0, 2, 1]);
                body.extend(source_port.to_be_bytes());
                body.extend(port.to_be_bytes());
                header = v2(0x21, 0x11, &body);
            }
            if let (Some(byte), Some(&with)) = (header.get_mut(wreck), bytes.first()) {
                *byte = with;
            }
            header.extend(&bytes);
            let config = proxy_header::ParseConfig { include_tlvs: false, allow_v1: true, allow_v2: true };
            match (parse_proxy_header(&header), proxy_header::ProxyHeader::parse(&header, config)) {
                (Ok(Status::Complete(ours)), Ok((theirs, length))) => {
                    prop_assert_eq!(ours.bytes, length);
                    prop_assert_eq!(ours.client, theirs.proxied_address().map(|address| address.source));
                }
                // We are stricter about numbers that are not canonical and headers that are too
                // long.
                (Err(_), _) => {}
                (Ok(Status::Partial), Err(_)) => {}
                // Section 2.2 lets a receiver accept or refuse a transport or a family that is
                // unspecified; it refuses those of which only one is.
                (Ok(Status::Complete(ProxyHeader { client: None, .. })), Err(_))
                    if v2_too && (header[13] & 0x0F == 0 || header[13] >> 4 == 0) => {}
                (ours, theirs) => prop_assert!(false, "{ours:?} {theirs:?}"),
            }
        }
    }
}
