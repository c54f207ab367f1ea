//! [`Driver`]: how a connection speaks. Bytes out for a request, bytes in to an answer; sockets,
//! clocks, pacing and counting are the requester's.

use super::{Awaited, Failure, Request};

/// A protocol of requests and answers. There is one per worker, and one [`Driver::State`] per
/// connection, which should be small while nothing is torn.
///
/// Implementations beside [`super::Http1`] and [`super::Tcp`]: `examples/private_protocol.rs`.
pub trait Driver: Send + 'static {
    /// What a connection remembers between reads, from its beginning on.
    type State: Default + Send;

    /// The bytes that ask for it. Called once for each request of a connection, in order.
    #[inline]
    fn ask<'a>(&'a mut self, _state: &mut Self::State, request: &'a Request) -> &'a [u8] {
        request.bytes()
    }

    /// Takes what arrived, at least a byte. It is called again with what it did not use, if that
    /// may belong to the next answer.
    fn receive(&mut self, state: &mut Self::State, bytes: &[u8], awaited: &mut Awaited)
    -> Received;

    /// The server has ended the stream while an answer was awaited.
    fn ended(&mut self, state: &mut Self::State) -> Received;
}

/// What bytes brought.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// All were used, and the answer is not whole yet.
    More,
    /// The answer is whole.
    Whole(Whole),
    /// It can no longer be whole; the connection is of no more use.
    Broken(Failure),
}

/// A whole answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Whole {
    /// Of the bytes of this call.
    pub used: usize,
    /// 0 where the protocol has none.
    pub status: u16,
    /// Further requests may follow on this connection.
    pub keep: bool,
    /// Of the whole body, without framing.
    pub body_bytes: u64,
}
