//! Messages in a body: five bytes with a compression flag and a length before each ("Length-Prefixed-Message"
//! of gRPC over HTTP/2). [`MessageDecoder`] takes the body in pieces of any size.

use std::fmt;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use wire::Violation;
use wire::http::Coding;

use super::limits::KEPT_BYTES;

/// Bytes before a message: whether it is compressed, and its length.
pub const PREFIX_BYTES: usize = 5;

/// A message as it was received.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ReceivedMessage<'a> {
    /// Whether it has to be decompressed ([`Encoding::decompress`]).
    pub compressed: bool,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Why bytes are not messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// A flag that is neither 0 nor 1.
    Flag(u8),
    /// A message is longer than the limit; both in bytes.
    TooLong {
        /// Its length, or the limit plus one if that is not known.
        bytes: u64,
        /// The limit.
        bytes_max: usize,
    },
    /// The body ended within a message: bytes received, prefix included.
    Truncated(usize),
    /// A message is compressed, and the head names no such encoding.
    Encoding(String),
    /// The compressed bytes are invalid.
    Compressed(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Flag(flag) => {
                write!(f, "compression flag {flag}: expected 0 or 1; is it a gRPC server?")
            }
            FrameError::TooLong { bytes, bytes_max } => {
                write!(f, "message of {bytes} bytes: the limit is {bytes_max}")
            }
            FrameError::Truncated(bytes) => {
                write!(f, "the answer ended after {bytes} bytes of a message")
            }
            FrameError::Encoding(name) => write!(
                f,
                "compressed message with grpc-encoding {name:?}: expected gzip, deflate or identity"
            ),
            FrameError::Compressed(why) => write!(f, "invalid compressed message: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Appends a message with its prefix, not compressed.
///
/// # Errors
/// Longer than a length of 32 bits.
pub fn encode(message: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    append(0, message, out)
}

/// Appends a message with its prefix, compressed by gzip.
///
/// # Errors
/// Longer than a length of 32 bits.
pub fn encode_gzip(message: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(message).and_then(|()| encoder.finish());
    let compressed = written.map_err(|error| FrameError::Compressed(error.to_string()))?;
    append(1, &compressed, out)
}

fn append(flag: u8, message: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let length = u32::try_from(message.len()).map_err(|_| FrameError::TooLong {
        bytes: message.len() as u64,
        bytes_max: u32::MAX as usize,
    })?;
    out.push(flag);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
    Ok(())
}

/// Finds the messages of a body. It keeps the bytes of an incomplete message only, and allocates for those
/// that have arrived, not for the length that is announced.
#[derive(Clone, Debug)]
pub struct MessageDecoder {
    bytes_max: usize,
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: u8,
    /// The beginning of a message whose end has not arrived.
    partial: Vec<u8>,
    /// `partial` was returned by the previous call.
    returned: bool,
}

impl MessageDecoder {
    /// A decoder of messages of at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> MessageDecoder {
        MessageDecoder {
            bytes_max,
            prefix: [0; PREFIX_BYTES],
            prefix_bytes: 0,
            partial: Vec::new(),
            returned: false,
        }
    }

    /// Takes bytes up to the end of the next message, and returns how many. Without a message that is all of
    /// them; with one, the rest is for the next call.
    ///
    /// # Errors
    /// Bytes that are not messages; the decoder is of no use after that.
    pub fn next<'m>(
        &'m mut self,
        input: &'m [u8],
    ) -> Result<(usize, Option<ReceivedMessage<'m>>), FrameError> {
        if std::mem::take(&mut self.returned) {
            self.release();
        }
        let mut used = 0;
        while usize::from(self.prefix_bytes) < PREFIX_BYTES {
            let (Some(place), Some(byte)) =
                (self.prefix.get_mut(usize::from(self.prefix_bytes)), input.get(used))
            else {
                return Ok((used, None));
            };
            *place = *byte;
            self.prefix_bytes += 1;
            used += 1;
            // Checked at once: what is no gRPC shall not wait for four more bytes.
            if self.prefix_bytes == 1 && *byte > 1 {
                return Err(FrameError::Flag(*byte));
            }
        }
        let [flag, length @ ..] = self.prefix;
        let announced = u32::from_be_bytes(length);
        let length = usize::try_from(announced).unwrap_or(usize::MAX);
        if length > self.bytes_max {
            let (bytes, bytes_max) = (u64::from(announced), self.bytes_max);
            return Err(FrameError::TooLong { bytes, bytes_max });
        }
        let missing = length.saturating_sub(self.partial.len());
        let rest = input.get(used..).unwrap_or_default();
        let Some(end) = rest.get(..missing) else {
            self.partial.extend_from_slice(rest);
            return Ok((input.len(), None));
        };
        used += missing;
        self.prefix_bytes = 0;
        let bytes = if self.partial.is_empty() {
            end
        } else {
            self.partial.extend_from_slice(end);
            self.returned = true;
            &self.partial
        };
        Ok((used, Some(ReceivedMessage { compressed: flag == 1, bytes })))
    }

    /// Checks that the body has not ended within a message.
    ///
    /// # Errors
    /// It has.
    pub fn finish(&self) -> Result<(), FrameError> {
        let partial = if self.returned { 0 } else { self.partial.len() };
        match usize::from(self.prefix_bytes) + partial {
            0 => Ok(()),
            bytes => Err(FrameError::Truncated(bytes)),
        }
    }

    fn release(&mut self) {
        self.partial.clear();
        if self.partial.capacity() > KEPT_BYTES {
            self.partial = Vec::new();
        }
    }
}

/// How compressed messages of a stream are encoded (`grpc-encoding`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Encoding {
    /// Not at all.
    #[default]
    Identity,
    /// RFC 1952.
    Gzip,
    /// zlib, RFC 1950.
    Deflate,
    /// Another, which compressed messages must not have.
    Other(String),
}

impl Encoding {
    /// The value of `grpc-accept-encoding`: what [`Encoding::decompress`] knows.
    pub const ACCEPTED: &'static str = "identity,deflate,gzip";

    /// Reads the value of `grpc-encoding`.
    #[must_use]
    pub fn parse(value: &[u8]) -> Encoding {
        match value {
            b"" | b"identity" => Encoding::Identity,
            b"gzip" => Encoding::Gzip,
            b"deflate" => Encoding::Deflate,
            other => Encoding::Other(String::from_utf8_lossy(other).into_owned()),
        }
    }

    /// Replaces `out` by the decompressed message, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// An encoding that is unknown, invalid bytes, or a message longer than the limit.
    pub fn decompress(
        &self,
        bytes: &[u8],
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        out.clear();
        let coding = match self {
            Encoding::Gzip => Coding::Gzip,
            Encoding::Deflate => Coding::Deflate,
            // A compressed message without an encoding is an error of the server.
            Encoding::Identity => return Err(FrameError::Encoding("identity".to_owned())),
            Encoding::Other(name) => return Err(FrameError::Encoding(name.clone())),
        };
        coding.decode(bytes, out, bytes_max).map_err(|error| match error {
            Violation::InflatedTooBig => {
                FrameError::TooLong { bytes: (bytes_max as u64).saturating_add(1), bytes_max }
            }
            other => FrameError::Compressed(other.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Decoded = Result<Vec<(bool, Vec<u8>)>, FrameError>;

    fn decode(pieces: &[&[u8]], bytes_max: usize) -> Decoded {
        let mut decoder = MessageDecoder::new(bytes_max);
        let mut messages = Vec::new();
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (used, message) = decoder.next(rest)?;
                assert!(used > 0, "it gets on");
                assert!(message.is_some() || used == rest.len(), "it takes everything");
                messages.extend(message.map(|message| (message.compressed, message.bytes.into())));
                rest = &rest[used..];
            }
        }
        decoder.finish()?;
        Ok(messages)
    }

    #[test]
    fn messages_do_not_depend_on_how_the_body_is_split() {
        let mut body = Vec::new();
        for message in [&b"one"[..], b"", b"three", &[7; 300], b""] {
            encode(message, &mut body).unwrap();
        }
        body.extend_from_slice(&[1, 0, 0, 0, 2, 8, 9]);
        let whole = decode(&[&body], 300).unwrap();
        assert_eq!(whole.len(), 6);
        assert_eq!(whole[0], (false, b"one".to_vec()));
        assert_eq!(whole[5], (true, vec![8, 9]));
        for at in 0..=body.len() {
            let (one, other) = body.split_at(at);
            assert_eq!(decode(&[one, other], 300).as_ref(), Ok(&whole), "split at {at}");
        }
        for size in 1..20 {
            let pieces: Vec<&[u8]> = body.chunks(size).collect();
            assert_eq!(decode(&pieces, 300).as_ref(), Ok(&whole), "pieces of {size}");
        }
    }

    #[test]
    fn a_body_that_ends_early_is_an_error_at_each_byte() {
        let mut body = Vec::new();
        encode(b"abc", &mut body).unwrap();
        for end in 1..body.len() {
            assert_eq!(decode(&[&body[..end]], 100), Err(FrameError::Truncated(end)));
        }
        assert_eq!(decode(&[], 100), Ok(Vec::new()));
    }

    #[test]
    fn long_messages_and_other_bytes_are_refused_before_they_arrive() {
        let bytes_max = 4;
        let long = decode(&[&[0, 0, 0, 0, 5]], bytes_max);
        assert_eq!(long, Err(FrameError::TooLong { bytes: 5, bytes_max }));
        let huge = decode(&[&[0, 255, 255, 255, 255]], bytes_max);
        assert_eq!(huge, Err(FrameError::TooLong { bytes: u64::from(u32::MAX), bytes_max }));
        assert_eq!(decode(&[b"<"], bytes_max), Err(FrameError::Flag(b'<')));
        assert_eq!(decode(&[&[0, 0, 0, 0, 4, 1, 2, 3, 4]], bytes_max).unwrap().len(), 1);
    }

    #[test]
    fn nothing_is_allocated_for_a_length_that_is_only_announced() {
        let mut decoder = MessageDecoder::new(4 << 20);
        decoder.next(&[0, 0, 63, 255, 255, 1]).unwrap();
        assert!(decoder.partial.capacity() < 1_000, "{}", decoder.partial.capacity());
    }

    #[test]
    fn a_large_message_leaves_no_large_buffer() {
        let mut decoder = MessageDecoder::new(4 << 20);
        let mut body = Vec::new();
        encode(&vec![1; 1 << 20], &mut body).unwrap();
        let (one, other) = body.split_at(1_000);
        assert_eq!(decoder.next(one).unwrap().1, None);
        assert_eq!(decoder.next(other).unwrap().1.unwrap().bytes.len(), 1 << 20);
        decoder.next(&[0]).unwrap();
        assert_eq!(decoder.partial.capacity(), 0);
        assert_eq!(decoder.finish(), Err(FrameError::Truncated(1)));
    }

    #[test]
    fn compressed_messages_are_bounded_by_what_they_become() {
        let mut body = Vec::new();
        encode_gzip(&[b'a'; 10_000], &mut body).unwrap();
        let messages = decode(&[&body], 1_000).unwrap();
        let [(true, bytes)] = &messages[..] else { panic!("{messages:?}") };
        let mut out = Vec::new();
        Encoding::parse(b"gzip").decompress(bytes, 10_000, &mut out).unwrap();
        assert_eq!(out, [b'a'; 10_000]);
        let long = Encoding::Gzip.decompress(bytes, 9_999, &mut out);
        assert_eq!(long, Err(FrameError::TooLong { bytes: 10_000, bytes_max: 9_999 }));
        assert!(out.capacity() < 30_000);
        let cut = Encoding::Gzip.decompress(&bytes[..20], 10_000, &mut out);
        assert!(matches!(cut, Err(FrameError::Compressed(_))), "{cut:?}");
        for encoding in [Encoding::parse(b""), Encoding::parse(b"snappy")] {
            let refused = encoding.decompress(bytes, 10_000, &mut out);
            assert!(matches!(refused, Err(FrameError::Encoding(_))), "{refused:?}");
        }
    }
}
