//! Server-sent events (the HTML standard, section 9.2): a publication is an event, with a `data` line
//! for each of its lines. Clients send nothing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::{Core, Handler, Sys};
use topics::{Position, Publication};
use wire::websocket::OpCode;

use super::{Command, ProtocolAdapter, Receivers};

/// `/events`.
pub(crate) struct Events;

impl ProtocolAdapter for Events {
    fn decode(_: OpCode, _: &[u8]) -> Command<'_> {
        Command::Nothing
    }

    /// Binary data is sent in base64.
    fn encode<S: Sys, H: Handler>(
        _: &mut Core<S, H>,
        _: Receivers<'_>,
        publication: &Publication,
        out: &mut Vec<u8>,
    ) {
        if let Some(position) = publication.position() {
            id(position, out);
        }
        if let Some(kind) = publication.kind.as_ref().filter(|kind| !kind.contains(['\r', '\n'])) {
            out.extend_from_slice(b"event: ");
            out.extend_from_slice(kind.as_bytes());
            out.push(b'\n');
        }
        if publication.binary {
            return event(STANDARD.encode(&publication.data).as_bytes(), out);
        }
        event(&publication.data, out);
    }

    /// A comment, which browsers do not pass to the page.
    fn beat(_: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b":\n\n");
    }
}

impl Events {
    /// Appends the event that says that messages are missing and why, with the position to continue from.
    pub(crate) fn reset(why: &str, position: Option<Position>, out: &mut Vec<u8>) {
        if let Some(position) = position {
            id(position, out);
        }
        out.extend_from_slice(b"event: reset\n");
        event(format!(r#"{{"reason":"{why}"}}"#).as_bytes(), out);
    }

    /// Appends a position that clients remember without an event.
    pub(crate) fn position(position: Position, out: &mut Vec<u8>) {
        id(position, out);
        out.push(b'\n');
    }
}

/// Appends the id of an event, which clients send when they reconnect.
fn id(position: Position, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("id: {position}\n").as_bytes());
}

/// Appends one event. A line ends with CR, LF or CRLF, as in the standard.
fn event(data: &[u8], out: &mut Vec<u8>) {
    let mut rest = data;
    loop {
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
        let Some(_) = end else { break };
        rest = after.strip_prefix(b"\r\n").or_else(|| after.get(1..)).unwrap_or_default();
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_line_of_data_for_each_line() {
        for (data, written) in [
            ("hello", "data: hello\n\n"),
            ("", "data: \n\n"),
            ("a\nb\r\nc\rd", "data: a\ndata: b\ndata: c\ndata: d\n\n"),
            ("a\n", "data: a\ndata: \n\n"),
            ("\n\r", "data: \ndata: \ndata: \n\n"),
        ] {
            let mut out = Vec::new();
            event(data.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), written, "{data:?}");
        }
    }
}
