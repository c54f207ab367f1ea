//! [`Reaction`]: how an upstream answers a request, and the parts of its answers.

use fastrand::Rng;

const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// How it answers a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reaction {
    /// What was requested: a tunnel, or an answer.
    Right,
    /// An answer with this status.
    Status(u16),
    /// A 101 that lacks something.
    WrongSwitch(u8),
    Garbage,
    /// A part of a head, and the end.
    Partial,
    /// Less of the body than was announced, and the end.
    Short,
    /// Too many interim answers.
    Interims,
    CloseBefore,
    ResetBefore,
    Silence,
}

impl Reaction {
    pub(crate) fn draw(upgrade: bool, random: &mut Rng) -> Reaction {
        match random.u8(..20) {
            0..10 => Reaction::Right,
            10 | 15 => Reaction::Partial,
            11 => Reaction::Status(random.choice([200, 404, 503, 426]).unwrap_or(404)),
            12 if !upgrade => Reaction::Status(random.choice([204, 304]).unwrap_or(204)),
            12 | 13 => Reaction::WrongSwitch(random.u8(..3)),
            14 => Reaction::Garbage,
            16 => Reaction::CloseBefore,
            17 => Reaction::ResetBefore,
            18 if upgrade => Reaction::Silence,
            18 => Reaction::Short,
            _ if random.bool() => Reaction::Interims,
            _ => Reaction::Silence,
        }
    }
}

/// The head of a right 101 to this exchange.
pub(crate) fn right_switch(exchange: u32) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nConnection: Upgrade\r\n\
         X-Index: {exchange}\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
    )
}

/// A 101 that lacks something.
pub(crate) fn wrong_switch(missing: u8) -> String {
    let accept = if missing == 0 { "AAAAAAAAAAAAAAAAAAAAAAAAAAA=" } else { ACCEPT };
    let upgrade = if missing == 1 { "h2c" } else { "websocket" };
    let connection = if missing == 2 { "close" } else { "Upgrade" };
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: {upgrade}\r\nConnection: {connection}\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Appends a chunked body.
pub(crate) fn push_chunks(out: &mut Vec<u8>, body: &[u8]) {
    for chunk in body.chunks(1 + body.len() / 7) {
        out.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
}

/// The begin of a head that would be right, without its end.
pub(crate) fn partial_head(upgrade: bool, exchange: u32, random: &mut Rng) -> String {
    let mut head = match upgrade {
        true => right_switch(exchange),
        false => format!("HTTP/1.1 200 OK\r\nX-Index: {exchange}\r\nContent-Length: 9\r\n\r\n"),
    };
    head.truncate(random.usize(1..head.len()));
    head
}
