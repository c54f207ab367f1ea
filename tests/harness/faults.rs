//! The faults that [`super::chat::Chat`] makes on purpose: one kind per delivery whose turn it is, each
//! counted when it is made.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::chat::{Book, Member};
use super::recorder::frame;

/// A kind of fault.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A message is not sent.
    Drop,
    /// It is sent twice.
    Double,
    /// It is sent after the next one.
    Swap,
    /// One byte of it is changed.
    Corrupt,
    /// It is sent [`Plan::delay`] later.
    Delay,
    /// A message that nobody expects is sent behind it.
    Foreign,
    /// Instead of it the connection is reset.
    Reset,
    /// Instead of it the connection is closed with code 4007.
    Close,
    /// Instead of it the stream ends.
    Gone,
    /// Instead of it a masked frame is sent.
    Masked,
    /// Instead of it half a frame is sent, and the stream ends.
    Half,
    /// A publication is refused and sent nevertheless; of `?refusable` handshakes one is refused.
    Refuse,
}

impl Fault {
    pub(crate) const ALL: [Fault; 12] = [
        Fault::Drop,
        Fault::Double,
        Fault::Swap,
        Fault::Corrupt,
        Fault::Delay,
        Fault::Foreign,
        Fault::Reset,
        Fault::Close,
        Fault::Gone,
        Fault::Masked,
        Fault::Half,
        Fault::Refuse,
    ];

    /// The cause by which `load` counts a connection that was ended by it.
    pub(crate) fn cause(self) -> Option<&'static str> {
        match self {
            Fault::Reset => Some("reset"),
            Fault::Close => Some("by_peer"),
            Fault::Gone | Fault::Half => Some("gone"),
            Fault::Masked => Some("masked_frame"),
            _ => None,
        }
    }
}

/// Which faults are made, and when.
#[derive(Clone, Default, Debug)]
pub(crate) struct Plan {
    /// In each this many deliveries, or handshakes and publications; 0: no faults.
    pub(crate) every: u64,
    /// The turns from 1 and their faults.
    pub(crate) faults: Vec<(u64, Fault)>,
    /// The most connections that are ended on purpose.
    pub(crate) ends: u64,
    pub(crate) delay: Duration,
}

impl Plan {
    /// The fault of the delivery with this number, from 1.
    fn of_delivery(&self, number: u64, ended: u64) -> Option<Fault> {
        self.of(number).filter(|fault| fault.cause().is_none() || ended < self.ends)
    }

    /// Whether the handshake or publication with this number, from 1, is refused.
    pub(crate) fn refuses(&self, number: u64) -> bool {
        self.of(number) == Some(Fault::Refuse)
    }

    fn of(&self, number: u64) -> Option<Fault> {
        let turn = number.checked_rem(self.every)?;
        self.faults.iter().find(|(at, _)| *at == turn).map(|(_, fault)| *fault)
    }
}

/// What is left to do after a delivery.
#[derive(PartialEq, Eq)]
pub(crate) enum Rest {
    Nothing,
    /// Note that the message was not sent as it is.
    Missing,
    /// Send the message after the delay.
    Later,
    /// The connection was ended: nothing more is due to it.
    Ended,
}

/// Sends a message to a member, with the fault whose turn it is. `foreign` is what nobody expects; it is
/// the same for all messages of one sequence.
pub(crate) fn deliver(
    plan: &Plan,
    book: &mut Book,
    member: &mut Member,
    opcode: u8,
    data: &[u8],
    foreign: &[u8],
) -> Rest {
    book.due += 1;
    let whole = frame(opcode, data);
    match plan.of_delivery(book.due, book.ended) {
        Some(Fault::Drop) => {
            book.dropped += 1;
            return Rest::Missing;
        }
        Some(Fault::Double) => {
            book.doubled += 1;
            let _ = member.stream.write_all(&whole.repeat(2));
        }
        Some(Fault::Swap) if member.held.is_none() => {
            member.held = Some((foreign.to_vec(), whole));
            return Rest::Nothing;
        }
        Some(Fault::Corrupt) => {
            book.corrupted += 1;
            let _ = member.stream.write_all(&frame(opcode, &changed(data)));
            return Rest::Missing;
        }
        Some(Fault::Delay) => return Rest::Later,
        Some(Fault::Foreign) => {
            book.foreign += 1;
            let _ = member.stream.write_all(&[whole, frame(opcode, foreign)].concat());
        }
        Some(fault) if fault.cause().is_some() => {
            book.ended += 1;
            end(&mut member.stream, fault);
            return Rest::Ended;
        }
        _ => drop(member.stream.write_all(&whole)),
    }
    book.sent += 1;
    *member.sent.entry(foreign.to_vec()).or_default() += 1;
    if let Some((_, held)) = member.held.take_if(|(sequence, _)| sequence == foreign) {
        book.swapped += 1;
        book.sent += 1;
        let _ = member.stream.write_all(&held);
    }
    Rest::Nothing
}

/// Ends a connection.
fn end(stream: &mut TcpStream, fault: Fault) {
    match fault {
        Fault::Reset => {
            // A close without lingering is a reset, once the thread that reads has woken up.
            rustix::net::sockopt::set_socket_linger(&*stream, Some(Duration::ZERO)).unwrap();
            let _ = stream.shutdown(Shutdown::Read);
        }
        Fault::Close => drop(stream.write_all(&frame(0x8, &4007_u16.to_be_bytes()))),
        Fault::Masked => drop(stream.write_all(&[0x81, 0x81, 1, 2, 3, 4, 5])),
        _ => {
            if fault == Fault::Half {
                let _ = stream.write_all(&[0x81, 10, b'a', b'b']);
            }
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

/// A message with one byte changed: of the publication in it, or the last.
fn changed(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    let publication = data.windows(4).position(|four| four == b"sf1 ");
    let at = publication.map_or(data.len() - 1, |at| at + 4);
    data[at] ^= 1;
    data
}

/// A publication of a publisher that is not part of any run, as `docs/protocol/load-messages.md`
/// describes it.
pub(crate) fn foreign_publication() -> String {
    let text = "sf1 4000000000 0 9000000000000000000";
    let check = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{text} {check:08x}")
}
