//! Bodies of gRPC-Web (`doc/PROTOCOL-WEB.md` of gRPC): messages as in gRPC, and after them a frame with the trailers,
//! whose flag is 0x80. [`WebDecoder`] takes a body in pieces of any size.

use super::frame::PREFIX_BYTES;
use super::limits::TRAILER_BYTES;
use crate::outcome::failure::Failure;

/// The flag of the frame with the trailers.
pub(crate) const TRAILERS: u8 = 0x80;

/// Finds messages and trailers of a body. It keeps bytes of trailers only.
#[derive(Debug)]
pub(crate) struct WebDecoder {
    bytes_max: usize,
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: u8,
    /// Bytes of the current frame that are missing.
    left: u32,
    /// Complete messages, and the bytes of messages with their prefixes.
    pub(crate) messages: u32,
    pub(crate) message_bytes: u64,
    trailers: Vec<u8>,
    is_over: bool,
}

impl WebDecoder {
    /// A decoder of messages of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> WebDecoder {
        WebDecoder {
            bytes_max,
            prefix: [0; PREFIX_BYTES],
            prefix_bytes: 0,
            left: 0,
            messages: 0,
            message_bytes: 0,
            trailers: Vec::new(),
            is_over: false,
        }
    }

    /// Prepares for another body.
    pub(crate) fn restart(&mut self) {
        (self.prefix_bytes, self.left, self.messages) = (0, 0, 0);
        (self.message_bytes, self.is_over) = (0, false);
        self.trailers.clear();
    }

    /// Takes bytes of the body; `keep` gets those of messages with their prefixes.
    ///
    /// # Errors
    /// Bytes that are no frames, follow the trailers or are too many.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        mut keep: impl FnMut(&[u8]),
    ) -> Result<(), Failure> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.is_over {
                return Err(Failure::GrpcMessage);
            }
            if usize::from(self.prefix_bytes) < PREFIX_BYTES {
                let room = PREFIX_BYTES - usize::from(self.prefix_bytes);
                let (taken, after) = rest.split_at(room.min(rest.len()));
                let begin = usize::from(self.prefix_bytes);
                if let Some(place) = self.prefix.get_mut(begin..begin + taken.len()) {
                    place.copy_from_slice(taken);
                }
                self.prefix_bytes += taken.len() as u8;
                rest = after;
                self.begin_frame(&mut keep)?;
            } else {
                let (taken, after) = rest.split_at(rest.len().min(self.left as usize));
                if self.is_in_trailers() {
                    self.trailers.extend_from_slice(taken);
                } else {
                    self.message_bytes += taken.len() as u64;
                    keep(taken);
                }
                self.left -= taken.len() as u32;
                rest = after;
            }
            if usize::from(self.prefix_bytes) == PREFIX_BYTES && self.left == 0 {
                self.is_over = self.is_in_trailers();
                self.messages = self.messages.saturating_add(u32::from(!self.is_over));
                self.prefix_bytes = 0;
            }
        }
        Ok(())
    }

    fn is_in_trailers(&self) -> bool {
        self.prefix[0] == TRAILERS
    }

    /// Checks what has arrived of a prefix; its first byte at once.
    fn begin_frame(&mut self, keep: &mut impl FnMut(&[u8])) -> Result<(), Failure> {
        let [flag, length @ ..] = self.prefix;
        // Compressed trailers would need an encoding that was not offered.
        if flag > 1 && flag != TRAILERS {
            return Err(Failure::GrpcMessage);
        }
        if usize::from(self.prefix_bytes) < PREFIX_BYTES {
            return Ok(());
        }
        self.left = u32::from_be_bytes(length);
        let most = if self.is_in_trailers() { TRAILER_BYTES } else { self.bytes_max };
        if self.left as usize > most {
            return Err(Failure::TooLarge);
        }
        if !self.is_in_trailers() {
            self.message_bytes += PREFIX_BYTES as u64;
            keep(&self.prefix);
        }
        Ok(())
    }

    /// Whether the body may end here: after the trailers or, if they were in the head, after a message.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.prefix_bytes == 0
    }

    /// The trailers as lines, once they have arrived.
    pub(crate) fn trailers(&self) -> Option<&[u8]> {
        self.is_over.then_some(&self.trailers)
    }
}

/// The value of the first line of this name, in lower case, of trailers.
pub(crate) fn trailer<'t>(lines: &'t [u8], name: &str) -> Option<&'t [u8]> {
    lines.split(|byte| *byte == b'\n').find_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (key, value) = line.split_at(colon);
        key.trim_ascii()
            .eq_ignore_ascii_case(name.as_bytes())
            .then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages, their bytes, and the trailers.
    type Decoded = (u32, Vec<u8>, Option<Vec<u8>>);

    fn decode(pieces: &[&[u8]]) -> Result<Decoded, Failure> {
        let mut decoder = WebDecoder::new(10);
        let mut kept = Vec::new();
        for piece in pieces {
            decoder.push(piece, |bytes| kept.extend_from_slice(bytes))?;
        }
        assert_eq!(decoder.message_bytes, kept.len() as u64);
        Ok((decoder.messages, kept, decoder.trailers().map(<[u8]>::to_vec)))
    }

    const BODY: &[u8] =
        b"\x00\x00\x00\x00\x02ab\x01\x00\x00\x00\x00\x80\x00\x00\x00\x0fgrpc-status:0\r\n";

    #[test]
    fn bodies_do_not_depend_on_how_they_are_split() {
        let messages = BODY.get(..12).unwrap().to_vec();
        let whole = Ok((2, messages, Some(b"grpc-status:0\r\n".to_vec())));
        for at in 0..=BODY.len() {
            let (one, other) = BODY.split_at(at);
            assert_eq!(decode(&[one, other]), whole, "split at {at}");
        }
        let bytes: Vec<&[u8]> = BODY.chunks(1).collect();
        assert_eq!(decode(&bytes), whole);
    }

    #[test]
    fn other_bytes_are_refused_as_soon_as_they_arrive() {
        for (body, failure) in [
            (&b"<"[..], Failure::GrpcMessage),
            (b"\x81", Failure::GrpcMessage),
            (b"\x00\x00\x00\x00\x0b", Failure::TooLarge),
            (b"\x80\x00\x01\x00\x00", Failure::TooLarge),
        ] {
            assert_eq!(decode(&[body]), Err(failure), "{body:?}");
        }
        assert_eq!(decode(&[BODY, b"\x00"]), Err(Failure::GrpcMessage));
        let (messages, _, trailers) = decode(&[&BODY[..9]]).unwrap();
        assert_eq!((messages, trailers), (1, None));
    }

    #[test]
    fn trailers_have_names_in_any_case() {
        let lines = b"Grpc-Status: 5\r\ngrpc-message:no%20note\r\n";
        assert_eq!(trailer(lines, "grpc-status"), Some(&b"5"[..]));
        assert_eq!(trailer(lines, "grpc-message"), Some(&b"no%20note"[..]));
        assert_eq!(trailer(lines, "grpc"), None);
    }
}
