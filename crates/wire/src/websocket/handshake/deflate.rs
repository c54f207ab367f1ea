//! The negotiation of permessage-deflate (RFC 7692 7): offers, the answer to them, and the check of
//! an answer. Not here: compressing, see [`Compressor`](super::super::Compressor).

use alloc::vec::Vec;

use crate::Violation;
use crate::http::is_token;

const NAME: &[u8] = b"permessage-deflate";
/// The largest LZ77 window, as a power of two; also the default without a parameter.
const BITS_MAX: u8 = 15;
/// The smallest window (RFC 7692 7.1.2).
const BITS_MIN: u8 = 8;
/// The smallest window of a compressor here: 8 would need another algorithm.
const BITS_COMPRESSED_MIN: u8 = 9;

/// The negotiated parameters of permessage-deflate.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Deflate {
    /// The server drops its compression context after each message.
    pub server_no_context_takeover: bool,
    /// The client drops its compression context after each message.
    pub client_no_context_takeover: bool,
    /// Window of the server's compressor, as a power of two, 8 to 15; `None` if not given, which
    /// means 15.
    pub server_max_window_bits: Option<u8>,
    /// Window of the client's compressor, likewise.
    pub client_max_window_bits: Option<u8>,
}

impl Deflate {
    /// The client's offer: no context is kept between messages on either side, and the server may
    /// request a smaller window (RFC 7692 7.1.2.2).
    pub const OFFER: &'static str = "permessage-deflate; server_no_context_takeover; \
                                     client_no_context_takeover; client_max_window_bits";

    /// The server's compressor's window.
    #[must_use]
    pub fn server_bits(&self) -> u8 {
        self.server_max_window_bits.unwrap_or(BITS_MAX)
    }

    /// The client's compressor's window.
    #[must_use]
    pub fn client_bits(&self) -> u8 {
        self.client_max_window_bits.unwrap_or(BITS_MAX)
    }

    /// Accepts the first acceptable offer in these lines; returns the answer to it. `takeover`:
    /// both sides may keep their compression contexts, unless the offer excludes that.
    ///
    /// An offer of this extension with a parameter that is unknown, repeated or out of range is
    /// declined and the next one is tried (RFC 7692 7). So is one that limits the server's window
    /// to 256 bytes.
    ///
    /// # Errors
    /// Lines that are not a list of extensions (RFC 6455 9.1).
    pub fn accept<'b>(
        lines: impl IntoIterator<Item = &'b [u8]>,
        takeover: bool,
    ) -> Result<Option<Deflate>, Violation> {
        let mut accepted = None;
        for line in lines {
            let mut list = List::new(line);
            while let Some(offer) = list.extension().ok_or(Violation::UpgradeBadExtension)? {
                if accepted.is_none() && offer.is_deflate {
                    accepted = offer
                        .deflate
                        .filter(|deflate| deflate.server_bits() >= BITS_COMPRESSED_MIN);
                }
            }
        }
        Ok(accepted.map(|offer| Deflate {
            server_no_context_takeover: offer.server_no_context_takeover || !takeover,
            client_no_context_takeover: offer.client_no_context_takeover || !takeover,
            server_max_window_bits: offer.server_max_window_bits,
            // Any window of the client's can be read, so no limit is requested.
            client_max_window_bits: None,
        }))
    }

    /// Checks a server's answer to [`Deflate::OFFER`].
    ///
    /// # Errors
    /// `UnofferedExtension` for another extension or a second one, `BadExtensionAnswer` for
    /// parameters that are wrong or were not offered.
    pub(super) fn check_answer(line: &[u8]) -> Result<Option<Deflate>, Violation> {
        let mut list = List::new(line);
        let mut agreed = None;
        while let Some(answer) = list.extension().ok_or(Violation::BadExtensionAnswer)? {
            if !answer.is_deflate || agreed.is_some() {
                return Err(Violation::UnofferedExtension);
            }
            let deflate = answer
                .deflate
                .filter(|deflate| deflate.server_no_context_takeover && !answer.bits_without_value);
            agreed = Some(deflate.ok_or(Violation::BadExtensionAnswer)?);
        }
        Ok(agreed)
    }

    /// Appends the value of the header line that answers an offer.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(NAME);
        let flags = [
            (self.server_no_context_takeover, b"; server_no_context_takeover"),
            (self.client_no_context_takeover, b"; client_no_context_takeover"),
        ];
        for (_, text) in flags.iter().filter(|(set, _)| *set) {
            out.extend_from_slice(*text);
        }
        if let Some(bits) = self.server_max_window_bits {
            out.extend_from_slice(b"; server_max_window_bits=");
            if bits >= 10 {
                out.push(b'1');
            }
            out.push(b'0' + bits % 10);
        }
    }
}

/// One extension of a list.
#[derive(Default)]
struct Extension {
    is_deflate: bool,
    /// Its parameters, if all are known and in range.
    deflate: Option<Deflate>,
    /// `client_max_window_bits` was given without a value, which only an offer may do.
    bits_without_value: bool,
}

/// The extensions of a header line, one after another.
struct List<'b> {
    rest: &'b [u8],
}

impl<'b> List<'b> {
    fn new(line: &'b [u8]) -> List<'b> {
        List { rest: line }
    }

    /// The next one: `Some(None)` at the end, `None` if this is not a list.
    fn extension(&mut self) -> Option<Option<Extension>> {
        // Empty items of a list are ignored (RFC 9110 5.6.1).
        while self.take(b',') {}
        self.skip_blanks();
        if self.rest.is_empty() {
            return Some(None);
        }
        let name = self.token()?;
        let is_deflate = name.eq_ignore_ascii_case(NAME);
        let mut parameters = Parameters::default();
        while self.take(b';') {
            let name = self.token()?;
            let value = if self.take(b'=') { Some(self.value()?) } else { None };
            parameters.add(name, value);
        }
        self.skip_blanks();
        if !(self.rest.is_empty() || self.rest.first() == Some(&b',')) {
            return None;
        }
        let (deflate, bits_without_value) = (parameters.deflate(), parameters.bits_without_value);
        Some(Some(Extension { is_deflate, deflate, bits_without_value }))
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        match self.rest.split_first() {
            Some((first, rest)) if *first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn token(&mut self) -> Option<&'b [u8]> {
        self.skip_blanks();
        let ends = |byte: &u8| matches!(byte, b',' | b';' | b'=' | b' ' | b'\t' | b'"');
        let length = self.rest.iter().position(ends).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        is_token(token).then_some(token)
    }

    /// A token, plain or in quotes; a quoted one must also be a token (RFC 6455 9.1).
    fn value(&mut self) -> Option<&'b [u8]> {
        if !self.take(b'"') {
            return self.token();
        }
        let end = self.rest.iter().position(|byte| *byte == b'"')?;
        let (quoted, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest.get(1..)?;
        is_token(quoted).then_some(quoted)
    }
}

/// The parameters of one extension.
#[derive(Default)]
struct Parameters {
    broken: bool,
    server_forgets: bool,
    client_forgets: bool,
    server_bits: Option<u8>,
    client_bits: Option<u8>,
    client_bits_seen: bool,
    bits_without_value: bool,
}

impl Parameters {
    fn add(&mut self, name: &[u8], value: Option<&[u8]>) {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        if is(b"server_no_context_takeover") {
            self.broken |= self.server_forgets || value.is_some();
            self.server_forgets = true;
        } else if is(b"client_no_context_takeover") {
            self.broken |= self.client_forgets || value.is_some();
            self.client_forgets = true;
        } else if is(b"server_max_window_bits") {
            self.broken |= self.server_bits.is_some();
            self.server_bits = value.and_then(window_bits);
            self.broken |= self.server_bits.is_none();
        } else if is(b"client_max_window_bits") {
            self.broken |= self.client_bits_seen;
            self.client_bits_seen = true;
            self.bits_without_value = value.is_none();
            self.client_bits = value.and_then(window_bits);
            self.broken |= value.is_some() && self.client_bits.is_none();
        } else {
            self.broken = true;
        }
    }

    fn deflate(&self) -> Option<Deflate> {
        (!self.broken).then_some(Deflate {
            server_no_context_takeover: self.server_forgets,
            client_no_context_takeover: self.client_forgets,
            server_max_window_bits: self.server_bits,
            client_max_window_bits: self.client_bits,
        })
    }
}

/// 8 to 15, in decimal without leading zeros (RFC 7692 7.1.2).
fn window_bits(value: &[u8]) -> Option<u8> {
    let bits = match *value {
        [digit @ b'1'..=b'9'] => digit - b'0',
        [b'1', digit @ b'0'..=b'9'] => 10 + digit - b'0',
        _ => return None,
    };
    (BITS_MIN..=BITS_MAX).contains(&bits).then_some(bits)
}

#[cfg(test)]
mod tests {
    use std::string::String;
    use std::vec;

    use super::*;

    fn answer(lines: &[&str], takeover: bool) -> Result<Option<String>, Violation> {
        let accepted = Deflate::accept(lines.iter().map(|line| line.as_bytes()), takeover)?;
        Ok(accepted.map(|deflate| {
            let mut out = vec![];
            deflate.encode(&mut out);
            String::from_utf8(out).unwrap()
        }))
    }

    #[test]
    fn a_server_accepts_the_first_acceptable_offer() {
        const SHARED: &str =
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        for (offers, expected) in [
            ("permessage-deflate", Some(SHARED.into())),
            ("permessage-deflate; client_max_window_bits", Some(SHARED.into())),
            ("PerMessage-Deflate ;client_max_window_bits=\"10\"", Some(SHARED.into())),
            ("permessage-deflate; server_max_window_bits=9", Some(with_bits(SHARED, 9))),
            ("permessage-deflate; server_max_window_bits=15", Some(with_bits(SHARED, 15))),
            ("permessage-deflate; server_max_window_bits=8", None),
            (
                "permessage-deflate; server_max_window_bits=8, permessage-deflate",
                Some(SHARED.into()),
            ),
            ("permessage-deflate; server_max_window_bits=16", None),
            ("permessage-deflate; server_max_window_bits=09", None),
            ("permessage-deflate; server_max_window_bits", None),
            ("permessage-deflate; client_max_window_bits=7", None),
            ("permessage-deflate; server_no_context_takeover=1", None),
            ("permessage-deflate; a; a", None),
            ("permessage-deflate; a; server_no_context_takeover", None),
            ("permessage-deflate; server_no_context_takeover; server_no_context_takeover", None),
            ("permessage-deflate; client_no_context_takeover=1", None),
            ("permessage-deflate; client_no_context_takeover; client_no_context_takeover", None),
            ("permessage-deflate; server_max_window_bits=9; server_max_window_bits=9", None),
            (
                "permessage-deflate; server_max_window_bits=10, \
                 permessage-deflate; server_max_window_bits=12",
                Some(with_bits(SHARED, 10)),
            ),
            ("permessage-deflate; client_max_window_bits; client_max_window_bits=9", None),
            ("x-webkit-deflate-frame, bbf-usp-protocol; x=\"y\"", None),
            ("constructor, __proto__, permessage-deflate", Some(SHARED.into())),
            ("", None),
            (" , ,", None),
        ] {
            assert_eq!(answer(&[offers], false), Ok(expected), "{offers}");
        }
        let lines = ["foo", "permessage-deflate; server_max_window_bits=12"];
        assert_eq!(answer(&lines, false), Ok(Some(with_bits(SHARED, 12))), "over several lines");
    }

    fn with_bits(text: &str, bits: u8) -> String {
        std::format!("{text}; server_max_window_bits={bits}")
    }

    #[test]
    fn contexts_are_kept_only_if_the_offer_allows_it() {
        let plain = answer(&["permessage-deflate"], true).unwrap().unwrap();
        assert_eq!(plain, "permessage-deflate");
        let minds = "permessage-deflate; client_no_context_takeover";
        assert_eq!(answer(&[minds], true).unwrap().unwrap(), minds);
        let minds = "permessage-deflate; server_no_context_takeover";
        assert_eq!(answer(&[minds], true).unwrap().unwrap(), minds);
    }

    /// BI-15: unclosed quotes, escapes, ten thousand offers.
    #[test]
    fn bi_15_malformed_lists_are_refused_and_long_ones_read_once() {
        for broken in [
            "permessage-deflate; a=\"x",
            "permessage-deflate; a=\"\\\"\\\"",
            "permessage-deflate; =1",
            "permessage-deflate;",
            "permessage-deflate x",
            "permessage-deflate; a=\"x y\"",
            "\u{7f}",
        ] {
            let refused = Err(Violation::UpgradeBadExtension);
            assert_eq!(answer(&[broken], false), refused, "{broken}");
        }
        let many = "permessage-deflate; x, ".repeat(10_000) + "permessage-deflate";
        assert!(answer(&[&many], false).unwrap().is_some());
    }

    /// BI-11: answers that crash other clients.
    #[test]
    fn bi_11_a_client_accepts_only_what_it_offered() {
        let good = "permessage-deflate; server_no_context_takeover";
        let agreed = Deflate::check_answer(good.as_bytes()).unwrap().unwrap();
        assert_eq!((agreed.server_bits(), agreed.client_bits()), (15, 15));
        let small = std::format!("{good}; client_max_window_bits=9; server_max_window_bits=8");
        let agreed = Deflate::check_answer(small.as_bytes()).unwrap().unwrap();
        assert_eq!((agreed.server_bits(), agreed.client_bits()), (8, 9));
        for bits in ["0", "7", "16", "099", "\"\"", "", "-1", "4294967304"] {
            let line = std::format!("{good}; server_max_window_bits={bits}");
            let refused = Err(Violation::BadExtensionAnswer);
            assert_eq!(Deflate::check_answer(line.as_bytes()), refused, "{bits}");
        }
        for line in ["permessage-deflate", &std::format!("{good}; client_max_window_bits")] {
            let refused = Err(Violation::BadExtensionAnswer);
            assert_eq!(Deflate::check_answer(line.as_bytes()), refused, "{line}");
        }
        for line in ["foo", &std::format!("{good}, {good}")] {
            let refused = Err(Violation::UnofferedExtension);
            assert_eq!(Deflate::check_answer(line.as_bytes()), refused, "{line}");
        }
    }
}
