//! Finds and parses heads, and asserts what must be true of every head that is accepted.

use wire::http::{HeadScanner, Header, encode_request_head};
use wire::{Limits, Status, Violation};

/// The length of the head in `bytes`; must not depend on how they are split.
pub fn find(bytes: &[u8], limits: &Limits, sizes: impl Iterator<Item = usize>) -> Found {
    let whole = HeadScanner::default().scan(bytes, limits);
    let mut scanner = HeadScanner::default();
    let mut there = 0;
    for size in sizes {
        there = bytes.len().min(there + size);
        let before = scanner.scanned();
        let torn = scanner.scan(&bytes[..there], limits);
        assert!(scanner.scanned() >= before && scanner.scanned() <= there);
        if torn != Ok(Status::Partial) || there == bytes.len() {
            assert_eq!(torn, whole, "the reads decide what a head is");
            break;
        }
    }
    if let Ok(Status::Complete(length)) = whole {
        assert!(length <= limits.head_bytes && bytes[..length].ends_with(b"\r\n\r\n"));
    }
    whole
}

type Found = Result<Status<usize>, Violation>;

/// Nothing in an accepted header could be read as another line by another parser.
pub fn check_headers(headers: &[Header<'_>]) {
    for header in headers {
        assert!(!header.name.is_empty() && !header.name.contains([':', ' ', '\r', '\n', '\t']));
        assert!(header.value.iter().all(|byte| *byte >= b' ' && *byte != 127 || *byte == b'\t'));
        assert_eq!(header.value.trim_ascii(), header.value);
    }
}

/// The same request written from the parsed one; `None` if a value is not text.
pub fn write_again(method: &str, target: &str, headers: &[Header<'_>]) -> Option<Vec<u8>> {
    let mut pairs = Vec::new();
    for header in headers {
        pairs.push((header.name, std::str::from_utf8(header.value).ok()?));
    }
    // A tab in a value is written as a space.
    if pairs.iter().any(|(_, value)| value.contains('\t')) {
        return None;
    }
    let mut out = Vec::new();
    encode_request_head(&mut out, method, target, pairs);
    Some(out)
}
