//! Content codings of bodies (RFC 9110 section 8.4): gzip and deflate, with a bound on the decoded
//! size. Not here: br and zstd, which need tables and windows of their own.

use alloc::vec::Vec;

use zlib_rs::{Inflate, InflateFlush, Status};

use crate::Violation;

/// Bytes by which output grows.
const STEP: usize = 16 * 1024;

/// How a body is coded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950; or, as many servers send it, the same without header (RFC 1951).
    Deflate,
}

impl Coding {
    /// The coding of a Content-Encoding value. `Ok(None)`: the body is not coded.
    ///
    /// # Errors
    /// A coding that is none of these, or several codings.
    pub fn of(value: &[u8]) -> Result<Option<Coding>, Violation> {
        let mut named = value
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"));
        let coding = match named.next() {
            None => return Ok(None),
            Some(name) if is_one(name, &[b"gzip", b"x-gzip"]) => Coding::Gzip,
            Some(name) if is_one(name, &[b"deflate"]) => Coding::Deflate,
            Some(_) => return Err(Violation::BadDeflate),
        };
        if named.next().is_some() { Err(Violation::BadDeflate) } else { Ok(Some(coding)) }
    }

    /// Appends the decoded form of a complete body.
    ///
    /// # Errors
    /// `InflatedTooBig` as soon as it exceeds `most` bytes, `BadDeflate` for anything but a
    /// complete body of this coding.
    pub fn decode(self, body: &[u8], out: &mut Vec<u8>, most: usize) -> Result<(), Violation> {
        let most = out.len() + most;
        // A zlib stream begins with its method, in a header that is a multiple of 31.
        let has_header = match body {
            [method, flags, ..] => {
                method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31)
            }
            _ => false,
        };
        let mut rest = body;
        loop {
            let mut zlib = match self {
                Coding::Gzip => Inflate::new(true, 31),
                Coding::Deflate => Inflate::new(has_header, 15),
            };
            let used = inflate(&mut zlib, rest, out, most)?;
            rest = rest.get(used..).unwrap_or_default();
            // A gzip body may have several members (RFC 1952 section 2.2); some are padded with
            // zeros.
            let more = self == Coding::Gzip && rest.starts_with(&[0x1f, 0x8b]);
            if !more {
                let is_filling = rest.iter().all(|byte| *byte == 0);
                return if is_filling { Ok(()) } else { Err(Violation::BadDeflate) };
            }
        }
    }
}

fn is_one(name: &[u8], names: &[&[u8]]) -> bool {
    names.iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// Inflates one stream to its end; returns the bytes it used.
fn inflate(
    zlib: &mut Inflate,
    data: &[u8],
    out: &mut Vec<u8>,
    most: usize,
) -> Result<usize, Violation> {
    loop {
        let (read, written) = (zlib.total_in() as usize, out.len());
        // One byte more shows that the output exceeds the limit.
        let room = (most + 1).saturating_sub(written).min(STEP);
        out.resize(written + room, 0);
        let before = zlib.total_out();
        let input = data.get(read..).unwrap_or_default();
        let output = out.get_mut(written..).unwrap_or_default();
        let status = zlib.decompress(input, output, InflateFlush::NoFlush);
        let got = (zlib.total_out() - before) as usize;
        out.truncate(written + got);
        if out.len() > most {
            out.truncate(most);
            return Err(Violation::InflatedTooBig);
        }
        match status.map_err(|_| Violation::BadDeflate)? {
            Status::StreamEnd => return Ok(zlib.total_in() as usize),
            // The stream is truncated.
            _ if got < room => return Err(Violation::BadDeflate),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    /// The output of zlib 1.2.13 for this text in each coding.
    const TEXT: &[u8] = b"hello hello hello\n";
    const GZIP: &[u8] = &[
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xcb, 0x48, 0xcd, 0xc9, 0xc9,
        0x57, 0xc8, 0x40, 0x90, 0x5c, 0x00, 0x3b, 0x7c, 0x8a, 0xdf, 0x12, 0x00, 0x00, 0x00,
    ];
    const ZLIB: &[u8] = &[
        0x78, 0x9c, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0x57, 0xc8, 0x40, 0x90, 0x5c, 0x00, 0x40, 0xb5,
        0x06, 0x87,
    ];
    const RAW: &[u8] = &[0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0x57, 0xc8, 0x40, 0x90, 0x5c, 0x00];

    fn decoded(coding: Coding, body: &[u8], most: usize) -> Result<Vec<u8>, Violation> {
        let mut out = vec![];
        coding.decode(body, &mut out, most).map(|()| out)
    }

    #[test]
    fn bodies_of_other_encoders_are_decoded() {
        for (coding, body) in
            [(Coding::Gzip, GZIP), (Coding::Deflate, ZLIB), (Coding::Deflate, RAW)]
        {
            assert_eq!(decoded(coding, body, TEXT.len()).as_deref(), Ok(TEXT), "{coding:?}");
            let one_less = decoded(coding, body, TEXT.len() - 1);
            assert_eq!(one_less, Err(Violation::InflatedTooBig), "{coding:?}");
            for length in 0..body.len() {
                let partial = decoded(coding, &body[..length], 100);
                assert_eq!(partial, Err(Violation::BadDeflate), "{coding:?} of {length}");
            }
            let more = decoded(coding, &[body, b"x"].concat(), 100);
            assert_eq!(more, Err(Violation::BadDeflate), "{coding:?}");
        }
        let twice = decoded(Coding::Gzip, &[GZIP, GZIP, &[0; 5]].concat(), 100);
        assert_eq!(twice.unwrap(), [TEXT, TEXT].concat());
        assert_eq!(decoded(Coding::Gzip, ZLIB, 100), Err(Violation::BadDeflate));
    }

    #[test]
    fn a_long_body_is_decoded_in_several_steps() {
        let text: Vec<u8> = (0..40_000).map(|index| (index % 251) as u8).collect();
        let mut body = vec![];
        crate::websocket::Compressor::new(15).compress(&text, &mut body);
        // The end of the last block, which a WebSocket leaves out, and an empty block that ends
        // the stream.
        body.extend_from_slice(&[0, 0, 0xff, 0xff, 0x03, 0x00]);
        assert_eq!(decoded(Coding::Deflate, &body, text.len()), Ok(text.clone()));
        let refused = decoded(Coding::Deflate, &body, text.len() - 1);
        assert_eq!(refused, Err(Violation::InflatedTooBig));
        // Appended to what is there, which does not count.
        let mut out = b"before".to_vec();
        Coding::Deflate.decode(&body, &mut out, text.len()).unwrap();
        assert_eq!(out, [b"before", &text[..]].concat());
    }

    /// Streams without a zlib header (RFC 1951) whose first two bytes resemble one by half.
    #[test]
    fn a_raw_stream_is_recognized_by_both_halves_of_the_header() {
        // The method's bits, which are padding here, but no multiple of 31.
        let method = [0x08, 2, 0, 0xfd, 0xff, b'h', b'i', 0x03, 0x00];
        assert_eq!(decoded(Coding::Deflate, &method, 100).as_deref(), Ok(&b"hi"[..]));
        // A multiple of 31 without the method's bits.
        let multiple = [&[0x01, 23, 0, 0xe8, 0xff][..], &[b'x'; 23]].concat();
        assert_eq!(decoded(Coding::Deflate, &multiple, 100).as_deref(), Ok(&[b'x'; 23][..]));
    }

    #[test]
    fn a_decompression_bomb_stops_at_the_limit() {
        // Compressed by our own compressor, which does not end its stream: exceeding the limit is
        // reported before the missing end.
        let mut bomb = vec![];
        crate::websocket::Compressor::new(15).compress(&vec![0; 1 << 20], &mut bomb);
        assert!(bomb.len() < 10_000, "{}", bomb.len());
        let mut out = vec![];
        let error = Coding::Deflate.decode(&bomb, &mut out, 100_000);
        assert_eq!((error, out.len()), (Err(Violation::InflatedTooBig), 100_000));
    }

    #[test]
    fn content_encoding_values_are_read() {
        for (value, coding) in [
            (&b"gzip"[..], Ok(Some(Coding::Gzip))),
            (b" X-GZIP ", Ok(Some(Coding::Gzip))),
            (b"identity, deflate", Ok(Some(Coding::Deflate))),
            (b"identity", Ok(None)),
            (b"", Ok(None)),
            (b"br", Err(Violation::BadDeflate)),
            (b"gzip, gzip", Err(Violation::BadDeflate)),
        ] {
            assert_eq!(Coding::of(value), coding, "{}", value.escape_ascii());
        }
    }
}
