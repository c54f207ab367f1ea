//! Packets of RADIUS as bytes (RFC 2865): an Access-Request with a password by PAP, and what answers it.

use md5::{Digest, Md5};

/// Bytes before the attributes (section 3).
pub(super) const HEADER_BYTES: usize = 20;
/// The longest packet, in bytes (section 3).
pub(super) const PACKET_BYTES_MAX: usize = 4_096;
/// The longest value of an attribute, in bytes (section 5).
const VALUE_BYTES_MAX: usize = 253;
/// The longest password, in bytes (section 5.2).
const PASSWORD_BYTES_MAX: usize = 128;
/// Bytes of an authenticator, and of what MD5 returns.
pub(super) const AUTHENTICATOR_BYTES: usize = 16;
/// Bytes of a block of MD5, by which HMAC is defined (RFC 2104 section 2).
const BLOCK_BYTES: usize = 64;

/// Codes of packets (section 4).
pub(super) const ACCESS_REQUEST: u8 = 1;
/// The user may have access.
pub const ACCESS_ACCEPT: u8 = 2;
/// The user may not.
pub const ACCESS_REJECT: u8 = 3;
/// The user is to answer a question first.
pub const ACCESS_CHALLENGE: u8 = 11;

/// Types of attributes (section 5, RFC 3579 section 3.2).
const USER_NAME: u8 = 1;
const USER_PASSWORD: u8 = 2;
const SERVICE_TYPE: u8 = 6;
const NAS_IDENTIFIER: u8 = 32;
const NAS_PORT_TYPE: u8 = 61;
const MESSAGE_AUTHENTICATOR: u8 = 80;

/// `Framed` of Service-Type (section 5.6).
const FRAMED: u32 = 2;
/// `Ethernet` of NAS-Port-Type (section 5.41).
const ETHERNET: u32 = 15;

/// What the Access-Requests of a run have in common.
#[derive(Clone, Debug)]
pub struct AccessRequest {
    user: Box<str>,
    password: Box<[u8]>,
    secret: Box<[u8]>,
    nas: Box<str>,
}

/// An answer whose authenticator is right.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AccessAnswer {
    /// Its code, such as [`ACCESS_ACCEPT`].
    pub code: u8,
    /// Its length in bytes.
    pub length: u16,
}

/// Why a received packet is discarded (section 3).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Discarded {
    /// It is not a packet, or has an attribute whose length is wrong.
    Malformed,
    /// Its authenticator is not made with the secret and the request.
    Unverified,
}

impl AccessRequest {
    /// The request of a user with a password; `nas` is the name of the client (NAS-Identifier).
    ///
    /// # Errors
    /// Names what is too long or empty.
    pub fn new(
        user: &str,
        password: &str,
        secret: &str,
        nas: &str,
    ) -> Result<AccessRequest, String> {
        for (what, value, most) in [
            ("user with its realm", user, VALUE_BYTES_MAX),
            ("password", password, PASSWORD_BYTES_MAX),
            ("NAS-Identifier", nas, VALUE_BYTES_MAX),
        ] {
            let length = value.len();
            if length == 0 || length > most {
                return Err(format!("{what} of {length} bytes: expected 1 to {most}"));
            }
        }
        if secret.is_empty() {
            return Err("empty secret: expected the one that the server has for this client".into());
        }
        let (password, secret) = (password.as_bytes().into(), secret.as_bytes().into());
        Ok(AccessRequest { user: user.into(), password, secret, nas: nas.into() })
    }

    /// Writes the packet, which replaces `out`. Its Message-Authenticator comes first: servers may require it
    /// (RFC 3579 section 3.2).
    pub fn encode(
        &self,
        identifier: u8,
        authenticator: &[u8; AUTHENTICATOR_BYTES],
        out: &mut Vec<u8>,
    ) {
        out.clear();
        out.extend_from_slice(&[ACCESS_REQUEST, identifier, 0, 0]);
        out.extend_from_slice(authenticator);
        attribute(MESSAGE_AUTHENTICATOR, &[0; AUTHENTICATOR_BYTES], out);
        attribute(USER_NAME, self.user.as_bytes(), out);
        hide(&self.password, &self.secret, authenticator, out);
        attribute(NAS_PORT_TYPE, &ETHERNET.to_be_bytes(), out);
        attribute(SERVICE_TYPE, &FRAMED.to_be_bytes(), out);
        attribute(NAS_IDENTIFIER, self.nas.as_bytes(), out);
        let length = (out.len() as u16).to_be_bytes();
        if let Some(place) = out.get_mut(2..4) {
            place.copy_from_slice(&length);
        }
        let code = hmac(&self.secret, [out.as_slice()]);
        let at = HEADER_BYTES + 2;
        if let Some(place) = out.get_mut(at..at + AUTHENTICATOR_BYTES) {
            place.copy_from_slice(&code);
        }
    }

    /// Checks a datagram that answers `request`, whose identifier it has.
    ///
    /// # Errors
    /// It is to be discarded in silence.
    pub fn verify(&self, request: &[u8], datagram: &[u8]) -> Result<AccessAnswer, Discarded> {
        let request = authenticator(request).ok_or(Discarded::Malformed)?;
        let answer = packet(datagram).ok_or(Discarded::Malformed)?;
        let (head, rest) = answer.split_at_checked(4).ok_or(Discarded::Malformed)?;
        let (said, attributes) =
            rest.split_first_chunk::<AUTHENTICATOR_BYTES>().ok_or(Discarded::Malformed)?;
        let expected = md5([head, request, attributes, &self.secret]);
        if expected != *said {
            return Err(Discarded::Unverified);
        }
        let mut at = 0;
        while let Some((kind, value)) = attribute_at(attributes, at)? {
            if kind == MESSAGE_AUTHENTICATOR {
                let (before, behind) = (at + 2, at + 2 + value.len());
                let parts = [
                    head,
                    request,
                    attributes.get(..before).unwrap_or_default(),
                    &[0; AUTHENTICATOR_BYTES][..],
                    attributes.get(behind..).unwrap_or_default(),
                ];
                if hmac(&self.secret, parts) != *value {
                    return Err(Discarded::Unverified);
                }
            }
            at += 2 + value.len();
        }
        let code = head.first().copied().unwrap_or_default();
        Ok(AccessAnswer { code, length: answer.len() as u16 })
    }
}

/// The identifier of a packet, by which an answer finds its request.
#[must_use]
pub(super) fn identifier(datagram: &[u8]) -> Option<u8> {
    packet(datagram)?.get(1).copied()
}

/// A packet without the padding behind it (section 3, Length).
fn packet(datagram: &[u8]) -> Option<&[u8]> {
    let length = usize::from(u16::from_be_bytes([*datagram.get(2)?, *datagram.get(3)?]));
    (HEADER_BYTES..=PACKET_BYTES_MAX).contains(&length).then(|| datagram.get(..length)).flatten()
}

fn authenticator(packet: &[u8]) -> Option<&[u8]> {
    packet.get(4..HEADER_BYTES)
}

/// The type and value of the attribute at a place; `None` at the end.
fn attribute_at(attributes: &[u8], at: usize) -> Result<Option<(u8, &[u8])>, Discarded> {
    match attributes.get(at..).unwrap_or_default() {
        [] => Ok(None),
        [kind, length, ..] => {
            let value = attributes.get(at + 2..at + usize::from(*length).max(2));
            // A length below 2 is invalid (section 5).
            let value = value.filter(|_| *length >= 2).ok_or(Discarded::Malformed)?;
            Ok(Some((*kind, value)))
        }
        _ => Err(Discarded::Malformed),
    }
}

/// Appends an attribute whose value is not longer than [`VALUE_BYTES_MAX`].
fn attribute(kind: u8, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[kind, value.len() as u8 + 2]);
    out.extend_from_slice(value);
}

/// Appends the User-Password, hidden by the secret (section 5.2).
fn hide(password: &[u8], secret: &[u8], authenticator: &[u8], out: &mut Vec<u8>) {
    let blocks = password.len().div_ceil(AUTHENTICATOR_BYTES).max(1);
    out.extend_from_slice(&[USER_PASSWORD, (blocks * AUTHENTICATOR_BYTES) as u8 + 2]);
    let mut key = md5([secret, authenticator]);
    for number in 0..blocks {
        let at = number * AUTHENTICATOR_BYTES;
        let bytes = password.get(at..).unwrap_or_default().iter().copied();
        let mut hidden = [0; AUTHENTICATOR_BYTES];
        for ((place, byte), key) in hidden.iter_mut().zip(bytes.chain([0; 16])).zip(key) {
            *place = byte ^ key;
        }
        out.extend_from_slice(&hidden);
        key = md5([secret, &hidden]);
    }
}

fn md5<const N: usize>(parts: [&[u8]; N]) -> [u8; AUTHENTICATOR_BYTES] {
    let mut digest = Md5::new();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize().into()
}

/// HMAC-MD5 (RFC 2104 section 2).
fn hmac<const N: usize>(key: &[u8], parts: [&[u8]; N]) -> [u8; AUTHENTICATOR_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let hashed = md5([key]);
    let key = if key.len() > BLOCK_BYTES { &hashed[..] } else { key };
    block.iter_mut().zip(key).for_each(|(place, byte)| *place = *byte);
    let mut inner = Md5::new();
    inner.update(block.map(|byte| byte ^ 0x36));
    parts.iter().for_each(|part| inner.update(part));
    let inner: [u8; AUTHENTICATOR_BYTES] = inner.finalize().into();
    md5([&block.map(|byte| byte ^ 0x5c), &inner])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 2865 section 7.1: nemo with the password "arctangent" and the secret "xyzzy5461".
    const REQUEST: &[u8] = &[
        0x01, 0x00, 0x00, 0x38, 0x0f, 0x40, 0x3f, 0x94, 0x73, 0x97, 0x80, 0x57, 0xbd, 0x83, 0xd5,
        0xcb, 0x98, 0xf4, 0x22, 0x7a, 0x01, 0x06, 0x6e, 0x65, 0x6d, 0x6f, 0x02, 0x12, 0x0d, 0xbe,
        0x70, 0x8d, 0x93, 0xd4, 0x13, 0xce, 0x31, 0x96, 0xe4, 0x3f, 0x78, 0x2a, 0x0a, 0xee, 0x04,
        0x06, 0xc0, 0xa8, 0x01, 0x10, 0x05, 0x06, 0x00, 0x00, 0x00, 0x03,
    ];
    const ACCEPT: &[u8] = &[
        0x02, 0x00, 0x00, 0x26, 0x86, 0xfe, 0x22, 0x0e, 0x76, 0x24, 0xba, 0x2a, 0x10, 0x05, 0xf6,
        0xbf, 0x9b, 0x55, 0xe0, 0xb2, 0x06, 0x06, 0x00, 0x00, 0x00, 0x01, 0x0f, 0x06, 0x00, 0x00,
        0x00, 0x00, 0x0e, 0x06, 0xc0, 0xa8, 0x01, 0x03,
    ];

    fn nemo() -> AccessRequest {
        AccessRequest::new("nemo", "arctangent", "xyzzy5461", "nas").unwrap()
    }

    fn packet_of(code: u8, attributes: &[u8], request: &[u8], secret: &[u8]) -> Vec<u8> {
        let length = ((HEADER_BYTES + attributes.len()) as u16).to_be_bytes();
        let head = [code, request[1], length[0], length[1]];
        let said = md5([&head, &request[4..HEADER_BYTES], attributes, secret]);
        [&head[..], &said, attributes].concat()
    }

    #[test]
    fn the_password_of_the_rfc_is_hidden_and_its_answer_verified() {
        let mut hidden = Vec::new();
        hide(b"arctangent", b"xyzzy5461", &REQUEST[4..HEADER_BYTES], &mut hidden);
        assert_eq!(hidden, REQUEST[26..44]);
        let right = AccessAnswer { code: ACCESS_ACCEPT, length: 38 };
        assert_eq!(nemo().verify(REQUEST, ACCEPT), Ok(right));
        assert_eq!(nemo().verify(REQUEST, &[ACCEPT, b"padding"].concat()), Ok(right));
        let other = AccessRequest::new("nemo", "arctangent", "xyzzy5462", "nas").unwrap();
        assert_eq!(other.verify(REQUEST, ACCEPT), Err(Discarded::Unverified));
    }

    #[test]
    fn hmac_is_that_of_rfc_2104() {
        // Its appendix.
        let code = hmac(b"Jefe", [b"what do ya want ".as_slice(), b"for nothing?"]);
        assert_eq!(u128::from_be_bytes(code), 0x750c_783e_6ab0_b503_eaa8_6e31_0a5d_b738);
        // RFC 2202 section 2, test 6: a key that is longer than a block.
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First".as_slice();
        let code = hmac(&[0xaa; 80], [text]);
        assert_eq!(u128::from_be_bytes(code), 0x6b1a_b7fe_4bd7_bf8f_0b62_e6ce_61b9_d0cd);
    }

    #[test]
    fn a_request_has_the_attributes_of_go_stress_testing() {
        let request =
            AccessRequest::new("tim@realm", &"p".repeat(20), "cisco", "benchmark").unwrap();
        let (mut out, authenticator) = (Vec::new(), [7; AUTHENTICATOR_BYTES]);
        request.encode(200, &authenticator, &mut out);
        assert_eq!((out[0], identifier(&out), packet(&out)), (1, Some(200), Some(out.as_slice())));
        let attributes = &out[HEADER_BYTES..];
        let (mut at, mut all) = (0, Vec::new());
        while let Some((kind, value)) = attribute_at(attributes, at).unwrap() {
            all.push((kind, value));
            at += 2 + value.len();
        }
        let kinds: Vec<u8> = all.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [80, 1, 2, 61, 6, 32]);
        assert_eq!((all[1].1, all[2].1.len()), (&b"tim@realm"[..], 32));
        assert_eq!((all[3].1, all[4].1), (&[0, 0, 0, 15][..], &[0, 0, 0, 2][..]));
        assert_eq!(all[5].1, b"benchmark");
        let mut plain = out.clone();
        plain[22..38].fill(0);
        assert_eq!(hmac(b"cisco", [plain.as_slice()]), all[0].1);
    }

    #[test]
    fn a_message_authenticator_of_an_answer_is_verified_too() {
        let attributes = [[80, 18].as_slice(), &[0; 16], &[18, 4, b'o', b'k']].concat();
        let length = ((HEADER_BYTES + attributes.len()) as u16).to_be_bytes();
        let head = [ACCESS_REJECT, 0, length[0], length[1]];
        let code = hmac(b"xyzzy5461", [&head, &REQUEST[4..20], &attributes]);
        let right = [[80, 18].as_slice(), &code, &[18, 4, b'o', b'k']].concat();
        let answer = packet_of(ACCESS_REJECT, &right, REQUEST, b"xyzzy5461");
        assert_eq!(nemo().verify(REQUEST, &answer).map(|answer| answer.code), Ok(ACCESS_REJECT));
        let wrong = packet_of(ACCESS_REJECT, &attributes, REQUEST, b"xyzzy5461");
        assert_eq!(nemo().verify(REQUEST, &wrong), Err(Discarded::Unverified));
    }

    /// No prefix, no changed byte and no wrong length of an attribute is an answer, and none panics.
    #[test]
    fn what_is_cut_or_changed_is_discarded() {
        for cut in 0..ACCEPT.len() {
            assert_eq!(nemo().verify(REQUEST, &ACCEPT[..cut]), Err(Discarded::Malformed), "{cut}");
            assert_eq!(identifier(&ACCEPT[..cut]), None);
        }
        for at in 0..ACCEPT.len() {
            for bit in 0..8 {
                let mut changed = ACCEPT.to_vec();
                changed[at] ^= 1 << bit;
                assert!(nemo().verify(REQUEST, &changed).is_err(), "byte {at} bit {bit}");
            }
        }
        for attributes in [&[1][..], &[1, 0], &[1, 1], &[1, 3], &[1, 2, 9], &[18, 255, 1], &[80, 2]]
        {
            let answer = packet_of(ACCESS_ACCEPT, attributes, REQUEST, b"xyzzy5461");
            assert!(nemo().verify(REQUEST, &answer).is_err(), "{attributes:?}");
        }
        let many = packet_of(ACCESS_ACCEPT, &[1; 5_000], REQUEST, b"xyzzy5461");
        assert_eq!(nemo().verify(REQUEST, &many), Err(Discarded::Malformed));
    }

    #[test]
    fn what_does_not_fit_an_attribute_is_refused() {
        for (user, password, secret, nas, part) in [
            ("", "p", "s", "n", "user"),
            (&"u".repeat(254)[..], "p", "s", "n", "1 to 253"),
            ("u", &"p".repeat(129), "s", "n", "1 to 128"),
            ("u", "p", "", "n", "secret"),
            ("u", "p", "s", "", "NAS-Identifier"),
        ] {
            let error = AccessRequest::new(user, password, secret, nas).unwrap_err();
            assert!(error.contains(part), "{part}: {error}");
        }
        let mut out = Vec::new();
        let longest = [&"u".repeat(253), &"p".repeat(128), "s", &"n".repeat(253)];
        let [user, password, secret, nas] = longest;
        AccessRequest::new(user, password, secret, nas).unwrap().encode(0, &[0; 16], &mut out);
        assert_eq!(packet(&out), Some(out.as_slice()));
    }
}
