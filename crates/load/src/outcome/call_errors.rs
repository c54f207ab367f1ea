//! [`CallErrors`]: what the first failed call of each gRPC status said, for people: its `grpc-message`, and the
//! types of its details.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::grpc::limits::CALL_ERROR_BYTES;
use crate::grpc::{Code, decode_message, detail_types};
use crate::outcome::failure::Failure;
use crate::workload::requests::answer::header;

/// Codes 0 to 16; 0 is that of codes without a name.
const CODES: usize = Code::COUNT;

/// The texts of one worker, which the main thread reads. Without failed calls it has no memory.
#[derive(Default)]
pub(crate) struct CallErrors(OnceLock<Box<[OnceLock<Box<str>>; CODES]>>);

impl CallErrors {
    /// Whether no call of this kind was noted yet.
    pub(crate) fn lacks(&self, failure: Failure) -> bool {
        self.0.get().is_none_or(|of| of.get(place(failure)).is_none_or(|of| of.get().is_none()))
    }

    /// Notes a failed call with this head or trailers, unless it is not the first of its kind.
    pub(crate) fn note(&self, failure: Failure, head: &[u8]) {
        let texts = self.0.get_or_init(Box::default);
        if let Some(text) = texts.get(place(failure)) {
            text.get_or_init(|| text_of(failure, head).into());
        }
    }

    /// Adds the texts by the name of the failure, unless there is one.
    pub(crate) fn add_to(&self, all: &mut BTreeMap<String, String>) {
        let Some(texts) = self.0.get() else { return };
        for failure in Failure::all().filter(|failure| failure.is_of_call()) {
            let text = texts.get(place(failure)).and_then(OnceLock::get);
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                all.entry(failure.name().to_owned()).or_insert_with(|| text.to_string());
            }
        }
    }
}

fn place(failure: Failure) -> usize {
    failure.grpc_status().unwrap_or(0).into()
}

/// What a head or trailers say about this failure; empty if nothing.
fn text_of(failure: Failure, head: &[u8]) -> String {
    let code = header(head, "grpc-status").map(Code::parse);
    let number = code.and_then(|code| u16::try_from(code.0).ok());
    // The status may be translated from that of HTTP.
    if code.is_none() || failure.grpc_status().is_some_and(|of| Some(of) != number) {
        return String::new();
    }
    let mut text = decode_message(header(head, "grpc-message").unwrap_or_default());
    let types = header(head, "grpc-status-details-bin").map(detail_types).unwrap_or_default();
    if !types.is_empty() {
        let separator = if text.is_empty() { "" } else { " " };
        text = format!("{text}{separator}[{}]", types.join(", "));
    }
    shown(&text, CALL_ERROR_BYTES)
}

/// At most so many bytes of the beginning of a text of a server, with what a terminal would not show escaped.
pub(crate) fn shown(text: &str, bytes_max: usize) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        let before = shown.len();
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
        if shown.len() > bytes_max {
            shown.truncate(before);
            shown.push('…');
            break;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(heads: &[(Failure, &str)]) -> BTreeMap<String, String> {
        let (errors, mut all) = (CallErrors::default(), BTreeMap::new());
        for (failure, fields) in heads {
            if errors.lacks(*failure) {
                errors.note(*failure, format!("HTTP/1.1 200\r\n{fields}\r\n\r\n").as_bytes());
            }
        }
        errors.add_to(&mut all);
        all
    }

    #[test]
    fn the_first_text_of_each_status_is_kept() {
        let all = texts(&[
            (Failure::GrpcResourceExhausted, "grpc-status: 8\r\ngrpc-message: too%20much"),
            (Failure::GrpcResourceExhausted, "grpc-status: 8\r\ngrpc-message: other"),
            (Failure::GrpcNotFound, "grpc-status: 5"),
            (Failure::GrpcNotFound, "grpc-status: 5\r\ngrpc-message: later"),
            (Failure::GrpcUnavailable, "grpc-message: of HTTP"),
            (Failure::GrpcOther, "grpc-status: 99\r\ngrpc-message: odd"),
        ]);
        let expected = [("grpc_other_status", "odd"), ("grpc_resource_exhausted", "too much")];
        let expected = expected.map(|(kind, text)| (kind.to_owned(), text.to_owned()));
        assert_eq!(all, BTreeMap::from(expected));
    }

    #[test]
    fn texts_are_bounded_and_show_no_escapes_to_a_terminal() {
        let long = "%1b[31m%0ared".to_owned() + &"\u{e9}".repeat(CALL_ERROR_BYTES);
        let fields = format!("grpc-status: 13\r\ngrpc-message: {long}");
        let all = texts(&[(Failure::GrpcInternal, &fields)]);
        let text = &all["grpc_internal"];
        assert!(text.starts_with("\\u{1b}[31m\\nred\u{e9}") && text.ends_with('…'), "{text}");
        assert!(text.len() <= CALL_ERROR_BYTES + '…'.len_utf8(), "{}", text.len());
    }
}
