//! Content codings of bodies (RFC 9110 section 8.4.1): gzip and deflate as in [`wire::http`], br and zstd,
//! all with a bound on the decoded size. Several codings of one body are not supported.

use std::io::Read;

use ruzstd::decoding::StreamingDecoder;
use wire::Violation;
use wire::http;

use crate::outcome::failure::Failure;

/// The largest window of a zstd body (RFC 9659).
const ZSTD_WINDOW_BYTES_MAX: u64 = 8 << 20;
/// Bytes that the decoder of br reads at a time.
const STEP: usize = 4096;

/// How a body is coded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Coding {
    Zlib(http::Coding),
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
}

impl Coding {
    /// The coding of a Content-Encoding value. `Ok(None)`: the body is not coded.
    ///
    /// # Errors
    /// An unsupported coding, or several.
    pub(crate) fn of(value: &[u8]) -> Result<Option<Coding>, Failure> {
        let name = value.trim_ascii();
        Ok(match () {
            () if name.eq_ignore_ascii_case(b"br") => Some(Coding::Brotli),
            () if name.eq_ignore_ascii_case(b"zstd") => Some(Coding::Zstd),
            () => {
                let coding = http::Coding::of(name).map_err(|_| Failure::ContentCoding)?;
                coding.map(Coding::Zlib)
            }
        })
    }

    /// Appends the decoded form of a complete body.
    ///
    /// # Errors
    /// `TooLarge` as soon as it exceeds `most` bytes, `ContentCoding` for anything but a complete body
    /// of this coding.
    pub(crate) fn decode(self, body: &[u8], out: &mut Vec<u8>, most: usize) -> Result<(), Failure> {
        match self {
            Coding::Zlib(coding) => coding.decode(body, out, most).map_err(|error| match error {
                Violation::InflatedTooBig => Failure::TooLarge,
                _ => Failure::ContentCoding,
            }),
            // Invalid in br (section 9.1): a window of up to 1 GiB, which the decoder would allocate.
            Coding::Brotli if body.first().is_some_and(|first| first & 0x7f == 0x11) => {
                Err(Failure::ContentCoding)
            }
            Coding::Brotli => {
                let mut rest = body;
                let decoder = brotli_decompressor::Decompressor::new(&mut rest, STEP);
                read(decoder, out, most)
            }
            // A body may have several frames (section 3.1).
            Coding::Zstd => {
                let (mut rest, end) = (body, out.len().saturating_add(most));
                while !rest.is_empty() {
                    let decoder = StreamingDecoder::new_with_max_window_size(
                        &mut rest,
                        ZSTD_WINDOW_BYTES_MAX,
                    );
                    let decoder = decoder.map_err(|_| Failure::ContentCoding)?;
                    read(decoder, out, end.saturating_sub(out.len()))?;
                }
                Ok(())
            }
        }
    }
}

/// Reads a decoder to its end.
fn read(decoder: impl Read, out: &mut Vec<u8>, most: usize) -> Result<(), Failure> {
    let end = out.len().saturating_add(most);
    // One byte more shows that the output exceeds the limit.
    let read = decoder.take((most as u64).saturating_add(1)).read_to_end(out);
    if out.len() > end {
        out.truncate(end);
        return Err(Failure::TooLarge);
    }
    read.map(drop).map_err(|_| Failure::ContentCoding)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outputs of `brotli` 1.0.9 and `zstd` 1.5.4 for this text.
    const TEXT: &[u8] = b"hello hello hello hello hello hello\n";
    const BROTLI: &[u8] = &[
        0x1b, 0x23, 0x00, 0xf8, 0x8d, 0x94, 0x6e, 0xde, 0x44, 0x55, 0x86, 0xd6, 0x0a, 0x20, 0x6c,
        0x6f, 0x4a, 0x11, 0x7a, 0xe2, 0x80, 0x5e, 0x2d, 0x00,
    ];
    const ZSTD: &[u8] = &[
        0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 0x6d, 0x00, 0x00, 0x38, 0x68, 0x65, 0x6c, 0x6c, 0x6f,
        0x20, 0x0a, 0x01, 0x00, 0xb9, 0x4b, 0x11,
    ];

    fn decoded(coding: Coding, body: &[u8], most: usize) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::new();
        coding.decode(body, &mut out, most).map(|()| out)
    }

    #[test]
    fn bodies_of_other_encoders_are_decoded() {
        for (coding, body) in [(Coding::Brotli, BROTLI), (Coding::Zstd, ZSTD)] {
            assert_eq!(decoded(coding, body, TEXT.len()).as_deref(), Ok(TEXT), "{coding:?}");
            let one_less = decoded(coding, body, TEXT.len() - 1);
            assert_eq!(one_less, Err(Failure::TooLarge), "{coding:?}");
            for length in 1..body.len() {
                let partial = decoded(coding, &body[..length], 100);
                assert_eq!(partial, Err(Failure::ContentCoding), "{coding:?} of {length}");
            }
            assert_eq!(decoded(coding, b"<html>", 100), Err(Failure::ContentCoding), "{coding:?}");
        }
        let twice = decoded(Coding::Zstd, &[ZSTD, ZSTD].concat(), 100);
        assert_eq!(twice.unwrap(), [TEXT, TEXT].concat());
    }

    #[test]
    fn windows_are_limited() {
        let huge = [0x11, 0x1e, 0x03];
        assert_eq!(decoded(Coding::Brotli, &huge, 100), Err(Failure::ContentCoding));
        // The head of a frame with a window of 1 GiB (section 3.1.1.1.2), and an empty last block.
        let huge = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa0, 0x01, 0x00, 0x00];
        assert_eq!(decoded(Coding::Zstd, &huge, 100), Err(Failure::ContentCoding));
        let small = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x00, 0x01, 0x00, 0x00];
        assert_eq!(decoded(Coding::Zstd, &small, 100).as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn content_encoding_values_are_read() {
        for (value, coding) in [
            (&b" BR"[..], Ok(Some(Coding::Brotli))),
            (b"zstd", Ok(Some(Coding::Zstd))),
            (b"x-gzip", Ok(Some(Coding::Zlib(http::Coding::Gzip)))),
            (b"identity", Ok(None)),
            (b"br, gzip", Err(Failure::ContentCoding)),
            (b"dcb", Err(Failure::ContentCoding)),
        ] {
            assert_eq!(Coding::of(value), coding, "{}", value.escape_ascii());
        }
    }
}
