//! Bodies of `application/grpc-web-text` (`doc/PROTOCOL-WEB.md` of gRPC): those of gRPC-Web in Base64. A server may encode
//! each piece by itself, so padding may be anywhere between two groups of four characters.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::outcome::failure::Failure;

/// Decodes a body in pieces of any size.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct TextDecoder {
    /// The bits of the group that has begun.
    bits: u32,
    /// Its characters, with padding, and the padding alone.
    characters: u8,
    padding: u8,
}

impl TextDecoder {
    /// Appends what the characters stand for.
    ///
    /// # Errors
    /// Other characters than those of Base64, or padding within a group.
    pub(crate) fn push(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        for &character in text {
            let value = match character {
                b'A'..=b'Z' => character - b'A',
                b'a'..=b'z' => character - b'a' + 26,
                b'0'..=b'9' => character - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' if self.characters >= 2 => {
                    self.padding += 1;
                    0
                }
                _ => return Err(Failure::GrpcMessage),
            };
            if self.padding > 0 && character != b'=' {
                return Err(Failure::GrpcMessage);
            }
            self.bits = self.bits << 6 | u32::from(value);
            self.characters += 1;
            if self.characters == 4 {
                let [_, bytes @ ..] = self.bits.to_be_bytes();
                let whole = bytes.len() - usize::from(self.padding);
                out.extend_from_slice(bytes.get(..whole).unwrap_or_default());
                *self = TextDecoder::default();
            }
        }
        Ok(())
    }

    /// Whether the body may end here.
    pub(crate) fn is_between_groups(self) -> bool {
        self.characters == 0
    }
}

/// Appends bytes in Base64.
pub(crate) fn encode_text(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), Failure> {
        let (mut decoder, mut out) = (TextDecoder::default(), Vec::new());
        for piece in pieces {
            decoder.push(piece, &mut out)?;
        }
        Ok((out, decoder.is_between_groups()))
    }

    #[test]
    fn text_does_not_depend_on_how_it_is_split() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..=bytes.len() {
            let bytes = &bytes[..length];
            let mut text = Vec::new();
            encode_text(bytes, &mut text);
            for at in 0..=text.len() {
                let (one, other) = text.split_at(at);
                assert_eq!(decode(&[one, other]), Ok((bytes.to_vec(), true)), "{length} {at}");
            }
            let each: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(decode(&each), Ok((bytes.to_vec(), true)));
        }
    }

    #[test]
    fn pieces_may_be_encoded_by_themselves() {
        let mut text = Vec::new();
        for piece in [&b"a"[..], b"bc", b"def", b""] {
            encode_text(piece, &mut text);
        }
        assert_eq!(text, b"YQ==YmM=ZGVm");
        let each: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(decode(&each), Ok((b"abcdef".to_vec(), true)));
    }

    #[test]
    fn other_characters_are_refused() {
        for text in [&b"Y=="[..], b"=", b"YQ=a", b"YQ-_", b"YQ==\n", b"Y Q=", b"\0"] {
            assert_eq!(decode(&[text]), Err(Failure::GrpcMessage), "{text:?}");
        }
        for text in [&b"Y"[..], b"YQ", b"YQ=", b"YmM"] {
            assert_eq!(decode(&[text]), Ok((Vec::new(), false)), "{text:?}");
        }
    }
}
