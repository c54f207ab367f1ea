//! [`GoAways`]: how servers left HTTP/2 connections (GOAWAY, RFC 9113 section 6.8): how often with each code, and the
//! first debug data of each code, for people.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use engine::Counter;
use serde::{Deserialize, Serialize};
use wire::http2::ErrorCode;

use crate::outcome::call_errors::shown;

/// Codes 0 to 13 of RFC 9113 section 7, and one for all others.
pub(crate) const CODES: usize = 15;
/// Bytes of debug data that are shown.
const DEBUG_BYTES: usize = 256;

/// GOAWAY frames of one code.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct GoAwaySummary {
    /// How many were received.
    pub count: u64,
    /// The first debug data that was not empty, with unprintable characters escaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug: Option<String>,
}

/// Those of one worker, which the main thread reads. Without a GOAWAY it has no memory.
#[derive(Default)]
pub(crate) struct GoAways(OnceLock<Box<[OfCode; CODES]>>);

#[derive(Default)]
struct OfCode {
    count: Counter,
    debug: OnceLock<Box<str>>,
}

impl GoAways {
    /// Counts a GOAWAY, and keeps its debug data if its code had none.
    pub(crate) fn note(&self, code: ErrorCode, debug: &[u8]) {
        let place = usize::try_from(code.0).unwrap_or(CODES).min(CODES - 1);
        let Some(of) = self.0.get_or_init(Box::default).get(place) else { return };
        of.count.add(1);
        if !debug.is_empty() {
            of.debug.get_or_init(|| shown(&String::from_utf8_lossy(debug), DEBUG_BYTES).into());
        }
    }

    /// Adds the counts by code.
    pub(crate) fn count(&self, sums: &mut [u64; CODES]) {
        for (sum, of) in sums.iter_mut().zip(self.0.get().into_iter().flat_map(|all| all.iter())) {
            *sum += of.count.get();
        }
    }

    /// Adds what was received to what is known by the name of its code.
    pub(crate) fn add_to(&self, all: &mut BTreeMap<String, GoAwaySummary>) {
        let Some(of_codes) = self.0.get() else { return };
        for (name, of) in names().zip(of_codes.iter()).filter(|(_, of)| of.count.get() > 0) {
            let sum = all.entry(name.to_owned()).or_default();
            sum.count += of.count.get();
            let debug = of.debug.get().filter(|_| sum.debug.is_none());
            sum.debug = sum.debug.take().or_else(|| debug.map(|debug| debug.to_string()));
        }
    }
}

/// Adds those of two generators. Of two debug data it keeps the lesser, so that the order of merging makes no difference.
pub(crate) fn merge(
    mut one: BTreeMap<String, GoAwaySummary>,
    other: BTreeMap<String, GoAwaySummary>,
) -> BTreeMap<String, GoAwaySummary> {
    for (code, of) in other {
        let sum = one.entry(code).or_default();
        sum.count = sum.count.saturating_add(of.count);
        sum.debug = [sum.debug.take(), of.debug].into_iter().flatten().min();
    }
    one
}

/// The names of codes in their order.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    (0..CODES as u32).map(|code| ErrorCode(code).name().unwrap_or("OTHER"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_counted_by_name_with_the_first_debug_data() {
        let goaways = [GoAways::default(), GoAways::default(), GoAways::default()];
        goaways[0].note(ErrorCode::NO_ERROR, b"");
        goaways[0].note(ErrorCode::ENHANCE_YOUR_CALM, b"");
        goaways[0].note(ErrorCode::ENHANCE_YOUR_CALM, b"too_many_pings");
        goaways[1].note(ErrorCode::ENHANCE_YOUR_CALM, b"later");
        goaways[1].note(ErrorCode(99), b"\x1b[31m\xff");
        goaways[1].note(ErrorCode(u32::MAX), &[b'x'; 1_000]);
        let (mut all, mut sums) = (BTreeMap::new(), [0; CODES]);
        for of in &goaways {
            of.add_to(&mut all);
            of.count(&mut sums);
        }
        let of = |name: &str| (all[name].count, all[name].debug.as_deref());
        assert_eq!(of("NO_ERROR"), (1, None));
        assert_eq!(of("ENHANCE_YOUR_CALM"), (3, Some("too_many_pings")));
        assert_eq!(of("OTHER"), (2, Some("\\u{1b}[31m\u{fffd}")));
        assert_eq!(all.len(), 3);
        let counts: Vec<(&str, u64)> = names().zip(sums).filter(|(_, sum)| *sum > 0).collect();
        assert_eq!(counts, [("NO_ERROR", 1), ("ENHANCE_YOUR_CALM", 3), ("OTHER", 2)]);
    }

    #[test]
    fn debug_data_is_bounded() {
        let goaways = GoAways::default();
        goaways.note(ErrorCode::NO_ERROR, &[0; 100_000]);
        let mut all = BTreeMap::new();
        goaways.add_to(&mut all);
        let debug = all["NO_ERROR"].debug.as_deref().unwrap();
        assert!(debug.ends_with('…') && debug.len() <= DEBUG_BYTES + '…'.len_utf8(), "{debug}");
    }
}
