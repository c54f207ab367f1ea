//! [`Driver`]: how a connection speaks. Bytes out for a request, bytes in to an answer; sockets,
//! clocks, pacing and counting are the requester's.

use super::{Awaited, Failure, Request};

/// A protocol of requests and answers. There is one per worker, and one [`Driver::State`] per
/// connection, which should be small while nothing is torn.
///
/// Implementations beside [`super::Http1`], [`super::Tcp`] and [`super::Web`]: `examples/private_protocol.rs`.
pub trait Driver: Send + 'static {
    /// What a connection remembers between reads, from its beginning on.
    type State: Default + Send;

    /// Messages come that nobody has asked for: [`Driver::receive`] may say [`Received::Pushed`] and
    /// [`Received::Left`], and what is below it is called. Without it nothing of that costs anything.
    const PUSHES: bool = false;

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

    /// Random bits, once, before anything else.
    fn seed(&mut self, _random: u64) {}

    /// What came last, after [`Received::Pushed`].
    fn message(&self) -> Push<'_> {
        Push::default()
    }

    /// What is to be said back whatever the script says, after each [`Driver::receive`].
    fn reply(&self) -> &[u8] {
        &[]
    }

    /// What is said before a connection is left that nothing is wrong with.
    fn leave<'a>(&'a mut self, _state: &mut Self::State) -> &'a [u8] {
        &[]
    }
}

/// A message that came by itself.
#[derive(Copy, Clone, Default, Debug)]
pub struct Push<'a> {
    /// It.
    pub data: &'a [u8],
    /// It is text, and so UTF-8.
    pub is_text: bool,
    /// The subscription that it came by, with Action Cable.
    pub identifier: Option<&'a str>,
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
    /// A message came by itself; so many bytes of this call were used.
    Pushed(usize),
    /// The server has said that it ends the connection, by this close code.
    Left(u16),
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
