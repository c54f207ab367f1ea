//! Publications that slow sockets have lost, taken from their frames.

use engine::{ConnId, Core, Handler, Sys};
use wire::websocket::Inflater;

use crate::handler::{Event, Js};

/// A publication that was inflated is reported up to this length.
const INFLATED_BYTES_MAX: usize = 64 * 1024 * 1024;

impl Js {
    /// Tells JavaScript what sockets have lost since the last turn.
    pub(crate) fn tell_dropped<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        each(core, |core, id, binary, data| {
            if !core.is_open(id) || !self.for_socket(core.user(id), |own| own.dropped) {
                return false;
            }
            let slot = id.slot() << 1 | u32::from(binary);
            self.emit(core, Event::Dropped, |env| [env.int(slot as i32), env.array_buffer(data)]);
            true
        });
    }
}

/// Calls `report` with what sockets have lost since the last turn: the socket, whether a message is binary, and its
/// data. What else a frame of a socket has is skipped when it returns `false`.
pub(crate) fn each<S: Sys, H: Handler>(
    core: &mut Core<S, H>,
    mut report: impl FnMut(&mut Core<S, H>, ConnId, bool, &[u8]) -> bool,
) {
    for (id, frame) in core.take_dropped() {
        let mut rest = frame.bytes();
        while let Some((message, after)) = split(rest) {
            rest = after;
            let mut inflated = Vec::new();
            let data = if message.compressed {
                let done =
                    Inflater::default().inflate(message.data, &mut inflated, INFLATED_BYTES_MAX);
                if done.is_err() {
                    continue;
                }
                &inflated
            } else {
                message.data
            };
            if !report(core, id, message.binary, data) {
                break;
            }
        }
    }
}

struct Message<'a> {
    data: &'a [u8],
    binary: bool,
    compressed: bool,
}

/// The first message of unmasked frames that hold one each (RFC 6455 section 5.2), and the bytes after it.
fn split(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let (&[first, second], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match second {
        126 => {
            rest.split_first_chunk().map(|(long, rest)| (u16::from_be_bytes(*long).into(), rest))?
        }
        127 => rest.split_first_chunk().map(|(long, rest)| (u64::from_be_bytes(*long), rest))?,
        short => (u64::from(short), rest),
    };
    let (data, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((Message { data, binary: first & 0x0F == 2, compressed: first & 0x40 != 0 }, rest))
}
