//! Several values in the bytes of one capture: their number, where each ends, and the values.

/// The bytes of a number in a list.
const NUMBER: usize = size_of::<u32>();

/// Returns the list as bytes; `None` if these are more than `most`.
pub(crate) fn encoded<'a>(
    values: impl Iterator<Item = std::borrow::Cow<'a, [u8]>>,
    most: usize,
) -> Option<Vec<u8>> {
    let (mut ends, mut bytes) = (Vec::new(), Vec::new());
    for value in values {
        bytes.extend_from_slice(&value);
        ends.push(bytes.len() as u32);
        if (ends.len() + 1) * NUMBER + bytes.len() > most {
            return None;
        }
    }
    let numbers = std::iter::once(ends.len() as u32).chain(ends.iter().copied());
    let mut list: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
    list.extend_from_slice(&bytes);
    Some(list)
}

/// The number of values.
pub(crate) fn count(list: &[u8]) -> usize {
    number(list, 0).unwrap_or(0)
}

/// The nth value, from 0.
pub(crate) fn nth(list: &[u8], nth: usize) -> Option<&[u8]> {
    let count = count(list);
    if nth >= count {
        return None;
    }
    let begin = if nth == 0 { 0 } else { number(list, nth)? };
    let values = list.get((count + 1) * NUMBER..)?;
    values.get(begin..number(list, nth + 1)?)
}

fn number(list: &[u8], at: usize) -> Option<usize> {
    let bytes = list.get(at * NUMBER..)?.first_chunk::<NUMBER>()?;
    Some(u32::from_le_bytes(*bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_number() {
        let values = [&b"a"[..], b"", b"ccc"];
        let all = |most| encoded(values.iter().map(|value| (*value).into()), most);
        let list = all(1 << 10).unwrap();
        assert_eq!((count(&list), list.len()), (3, 20));
        let found: Vec<Option<&[u8]>> = (0..4).map(|at| nth(&list, at)).collect();
        assert_eq!(found, [Some(values[0]), Some(values[1]), Some(values[2]), None]);
        assert_eq!((all(20).is_some(), all(19)), (true, None));
        assert_eq!((count(b""), nth(b"", 0), nth(&[9, 0, 0, 0], 0)), (0, None, None));
    }
}
