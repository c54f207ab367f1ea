//! The static table (RFC 7541 2.3.1 and Appendix A).

use super::is_same;

/// Number of entries: the first entry of the dynamic table has the index after them (2.3.3).
pub(super) const LEN: u32 = 61;

/// Names and values, the first of which has the index 1 (Appendix A).
#[rustfmt::skip]
pub(super) const ENTRIES: [(&[u8], &[u8]); LEN as usize] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// The entry of an index from 1 to [`LEN`].
#[inline]
pub(super) fn entry(index: u32) -> Option<(&'static [u8], &'static [u8])> {
    ENTRIES.get(index.wrapping_sub(1) as usize).copied()
}

/// Different names, and one more than the longest.
const NAMES: usize = 52;
const NAME_BYTES_END: usize = 28;

/// The first index of each name, ordered by the name's length, and where each length begins.
struct ByLength {
    indices: [u8; NAMES],
    begin: [u8; NAME_BYTES_END + 1],
}

static BY_LENGTH: ByLength = by_length();

#[expect(clippy::indexing_slicing, reason = "computed at compile time: an error does not compile")]
const fn by_length() -> ByLength {
    // Entries of one name are consecutive; these follow another of their name.
    const REPEATED: [usize; 9] = [3, 5, 7, 9, 10, 11, 12, 13, 14];
    let mut table = ByLength { indices: [0; NAMES], begin: [0; NAME_BYTES_END + 1] };
    let (mut length, mut count) = (0, 0);
    while length <= NAME_BYTES_END {
        table.begin[length] = count as u8;
        let mut index = 1;
        while index <= LEN as usize {
            let mut repeated = false;
            let mut nth = 0;
            while nth < REPEATED.len() {
                repeated |= REPEATED[nth] == index;
                nth += 1;
            }
            if !repeated && ENTRIES[index - 1].0.len() == length {
                table.indices[count] = index as u8;
                count += 1;
            }
            index += 1;
        }
        length += 1;
    }
    assert!(count == NAMES);
    table
}

/// Where a field is in the static table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// The index of its name and value.
    Field(u32),
    /// The first index of its name.
    Name(u32),
    /// No entry has its name.
    No,
}

/// Finds a field.
#[inline]
pub(super) fn find(name: &[u8], value: &[u8]) -> Found {
    let begin = BY_LENGTH.begin.get(name.len()..).unwrap_or_default();
    let [begin, end, ..] = begin else { return Found::No };
    let indices = BY_LENGTH.indices.get(usize::from(*begin)..usize::from(*end));
    for &first in indices.unwrap_or_default() {
        let first = u32::from(first);
        // Most names of one length differ in their last byte.
        if entry(first).is_some_and(|entry| entry.0.last() == name.last() && entry.0 == name) {
            let mut index = first;
            while let Some(entry) = entry(index)
                && entry.0 == name
            {
                if is_same(entry.1, value) {
                    return Found::Field(index);
                }
                index += 1;
            }
            return Found::Name(first);
        }
    }
    Found::No
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_is_found_by_name_and_value() {
        for (place, &(name, value)) in ENTRIES.iter().enumerate() {
            let index = place as u32 + 1;
            assert_eq!(entry(index), Some((name, value)));
            assert_eq!(find(name, value), Found::Field(index));
            let first = ENTRIES.iter().position(|entry| entry.0 == name).unwrap() as u32 + 1;
            assert_eq!(find(name, b"another"), Found::Name(first));
            assert_eq!(find(&name[1..], value), Found::No);
            assert_eq!(find(&name.to_ascii_uppercase(), value), Found::No);
        }
        assert_eq!((entry(0), entry(62)), (None, None));
        assert_eq!(find(b"", b""), Found::No);
        assert_eq!(find(&[b'x'; 100], b""), Found::No);
    }
}
