//! [`Message`]: what a WebSocket carries, text or bytes.

use wire::websocket::OpCode;

/// A complete message, borrowed: one that was received from the worker's read buffer, one to be sent from
/// the caller. Fragments are joined and compressed messages inflated before a handler sees them.
///
/// Text and bytes convert into it, so that `socket.send("hello")` and `socket.send(&bytes)` work.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// UTF-8 text.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
}

impl<'a> Message<'a> {
    /// The payload.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Message::Text(text) => text.as_bytes(),
            Message::Binary(bytes) => bytes,
        }
    }

    /// The text; `None` for bytes.
    #[must_use]
    pub fn as_text(self) -> Option<&'a str> {
        match self {
            Message::Text(text) => Some(text),
            Message::Binary(_) => None,
        }
    }

    /// Length of the payload in bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.as_bytes().len()
    }

    /// Whether the payload is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.as_bytes().is_empty()
    }

    /// A received message; `None` for text that is not UTF-8, which the decoder has excluded.
    #[inline]
    pub(crate) fn received(opcode: OpCode, data: &'a [u8]) -> Option<Self> {
        if opcode != OpCode::Text {
            return Some(Message::Binary(data));
        }
        let text = std::str::from_utf8(data);
        if text.is_err() {
            engine::invariant::broken("the decoder has checked text");
        }
        text.ok().map(Message::Text)
    }

    pub(crate) fn opcode(self) -> OpCode {
        match self {
            Message::Text(_) => OpCode::Text,
            Message::Binary(_) => OpCode::Binary,
        }
    }
}

impl<'a> From<&'a str> for Message<'a> {
    fn from(text: &'a str) -> Self {
        Message::Text(text)
    }
}

impl<'a> From<&'a String> for Message<'a> {
    fn from(text: &'a String) -> Self {
        Message::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Message::Binary(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Message<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Message::Binary(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Message<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Message::Binary(bytes)
    }
}
