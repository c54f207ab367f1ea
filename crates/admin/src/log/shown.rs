//! Text of clients in the log, cut and escaped, and errors with their sources.

use std::error::Error;

/// Maximum number of characters of a client's Host or Origin in a log.
pub const SHOWN_CHARS_MAX: usize = 200;

/// Longest encoding of a character, in bytes.
const CHAR_BYTES_MAX: usize = 4;

/// Returns at most the first `chars` characters, and whether there are more. Invalid UTF-8 is replaced.
#[must_use]
pub fn cut(text: &[u8], chars: usize) -> (String, bool) {
    // One more than needed, so that the cut of the bytes is not in a character that is returned.
    let start = text.get(..(chars + 1) * CHAR_BYTES_MAX).unwrap_or(text);
    let start = String::from_utf8_lossy(start);
    match start.char_indices().nth(chars) {
        Some((end, _)) => (start.get(..end).unwrap_or_default().to_owned(), true),
        None => (start.into_owned(), false),
    }
}

/// Returns text of a client for a log line: at most [`SHOWN_CHARS_MAX`] characters, with `…` if there were
/// more. Backslashes and what a terminal would not show as it is are escaped.
#[must_use]
pub fn shown(text: &[u8]) -> String {
    let (text, is_cut) = cut(text, SHOWN_CHARS_MAX);
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    if is_cut {
        shown.push('…');
    }
    shown
}

/// Returns an error with its sources, each once: libraries often repeat a source in their own text.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug)]
    struct Outer(&'static str, io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn an_error_is_followed_by_sources_that_it_does_not_repeat() {
        let source = || io::Error::other("no route");
        assert_eq!(error_chain(&source()), "no route");
        assert_eq!(error_chain(&Outer("cannot connect", source())), "cannot connect: no route");
        assert_eq!(error_chain(&Outer("connect: no route", source())), "connect: no route");
    }

    #[test]
    fn text_is_cut_by_characters() {
        assert_eq!(shown(&b"a".repeat(200)), "a".repeat(200));
        assert_eq!(shown(&b"a".repeat(16_384)), "a".repeat(200) + "…");
        assert_eq!(shown("\u{1f980}".repeat(200).as_bytes()), "\u{1f980}".repeat(200));
        assert_eq!(shown("ä".repeat(201).as_bytes()), "ä".repeat(200) + "…");
        assert_eq!(cut("äöü".as_bytes(), 2), ("äö".to_owned(), true));
        assert_eq!(cut(&[b'a', 0xff, b'b'], 9), ("a\u{fffd}b".to_owned(), false));
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        let text = "a\u{1b}[31m\u{9b}2J\r\n\u{202e}\\\u{7f}\"'";
        assert_eq!(shown(text.as_bytes()), "a\\u{1b}[31m\\u{9b}2J\\r\\n\\u{202e}\\\\\\u{7f}\"'");
    }
}
