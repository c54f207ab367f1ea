//! [`Histograms`]: what was timed, so that outcomes can be merged. Percentiles cannot: those of several
//! generators are computed from their histograms, added.
//!
//! In JSON a histogram is the V2 format of HdrHistogram, compressed and in base64, as the tools of that
//! project read it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::outcome::bins::{Bin, bins_of};
use crate::outcome::packed::Packed;
use crate::outcome::recorder::{self, Recorder};
use crate::outcome::sections::Quantiles;
use crate::{Latency, Series};

/// The longest base64 text of a histogram, in bytes. One with a random count of up to two million in every
/// bucket up to an hour has 99,570.
const TEXT_BYTES_MAX: usize = 320 << 10;
/// The longest decompressed histogram, in bytes: 23,552 counts of at most 9 bytes, and the header.
const PLAIN_BYTES_MAX: usize = 208 << 10;
/// Bytes before the counts: cookie, length, offset, digits, lowest and highest value, ratio.
const HEADER_BYTES: usize = 40;
/// Bytes before the compressed data: cookie and length.
const FRAME_BYTES: usize = 8;

/// Histograms by the path of their latency in the document, such as `broadcast.from_send`. `None` if
/// something was timed and its histogram is missing, so that percentiles are unknown from then on.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histograms(BTreeMap<String, Option<Timed>>);

/// What was timed under one name.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Timed {
    /// Null if nothing was timed. The field is required nevertheless.
    #[serde(serialize_with = "encode", deserialize_with = "decode")]
    hdr: Option<Hdr>,
    /// Times of answers that were not as expected.
    wrong: u64,
    /// What was due and has no time, as it was never answered.
    never: u64,
}

/// Times in microseconds.
#[derive(Clone, Debug)]
enum Hdr {
    Own(Histogram<u64>),
    /// Of another process.
    Read(Packed),
}

impl Histograms {
    /// Keeps the histogram of a series under a name and returns its percentiles.
    pub(crate) fn latency(
        &mut self,
        name: &str,
        recorder: &Recorder,
        series: Series,
    ) -> Option<Latency> {
        let timed = Timed::of(recorder, series);
        let latency = timed.as_ref().and_then(Timed::latency);
        self.0.insert(name.to_owned(), Some(timed.unwrap_or_default()));
        latency
    }

    /// Notes how many of the times under a name are of wrong answers, and how many more never ended. Returns
    /// the percentiles of all of them.
    pub(crate) fn of_all(&mut self, name: &str, wrong: u64, never: u64) -> Option<Quantiles> {
        let timed = self.0.get_mut(name)?.as_mut()?;
        (timed.wrong, timed.never) = (wrong, never);
        timed.quantiles()
    }

    /// The bars of the histogram of a latency, as [`Recorder::bins`]; none if it is unknown.
    #[must_use]
    pub fn bins(&self, name: &str, most: usize, tail: f64) -> Vec<Bin> {
        let histogram = self.get(name).and_then(Timed::histogram);
        histogram.map(|histogram| bins_of(&histogram, most, tail)).unwrap_or_default()
    }

    /// Takes all histograms of another; their names differ.
    pub(crate) fn extend(&mut self, other: Histograms) {
        self.0.extend(other.0);
    }

    /// What was timed under a name; `None` if that is unknown.
    pub(crate) fn get(&self, name: &str) -> Option<&Timed> {
        self.0.get(name)?.as_ref()
    }

    /// Notes that the histogram of a name is missing.
    pub(crate) fn set_unknown(&mut self, name: &str) {
        self.0.insert(name.to_owned(), None);
    }

    /// Adds all histograms. What is unknown stays unknown.
    pub(crate) fn merge(&mut self, other: &Histograms) {
        for (name, theirs) in &other.0 {
            let Some(mine) = self.0.get_mut(name) else {
                self.0.insert(name.clone(), theirs.clone());
                continue;
            };
            match (mine.as_mut(), theirs) {
                (Some(mine), Some(theirs)) => mine.merge(theirs),
                _ => *mine = None,
            }
        }
    }

    /// The names of histograms that are missing.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, timed)| timed.is_none()).map(|(name, _)| name.as_str())
    }
}

impl Timed {
    /// The times of a series; `None` if there are none.
    pub(crate) fn of(recorder: &Recorder, series: Series) -> Option<Timed> {
        let hdr = recorder.of(series).filter(|histogram| !histogram.is_empty())?;
        Some(Timed { hdr: Some(Hdr::Own(hdr.clone())), ..Timed::default() })
    }

    /// What was due and never answered.
    pub(crate) fn never(&self) -> u64 {
        self.never
    }

    /// The times in microseconds; `None` if nothing was timed.
    pub(crate) fn histogram(&self) -> Option<Cow<'_, Histogram<u64>>> {
        self.hdr.as_ref()?.histogram()
    }

    /// Adds the times to a series.
    pub(crate) fn add_to(&self, recorder: &mut Recorder, series: Series) {
        match &self.hdr {
            Some(Hdr::Own(times)) => recorder.add(series, times),
            Some(Hdr::Read(times)) => {
                if let Some(histogram) = recorder.histogram(series) {
                    times.add_to(histogram);
                }
            }
            None => {}
        }
    }

    pub(crate) fn latency(&self) -> Option<Latency> {
        self.histogram().and_then(|histogram| recorder::latency_of(&histogram))
    }

    /// The percentiles of everything that was due.
    pub(crate) fn quantiles(&self) -> Option<Quantiles> {
        let histogram = self.histogram()?;
        recorder::quantiles_of(&histogram, self.wrong, self.never)
    }

    pub(crate) fn merge(&mut self, other: &Timed) {
        self.wrong = self.wrong.saturating_add(other.wrong);
        self.never = self.never.saturating_add(other.never);
        let Some(theirs) = &other.hdr else { return };
        let mine = match self.hdr.take() {
            Some(Hdr::Own(mine)) => Some(mine),
            Some(Hdr::Read(mine)) => mine.histogram(),
            None => Recorder::empty(),
        };
        self.hdr = mine.map(|mut mine| {
            match theirs {
                // It grows to what it adds.
                Hdr::Own(theirs) => drop(mine.add(theirs)),
                Hdr::Read(theirs) => theirs.add_to(&mut mine),
            }
            Hdr::Own(mine)
        });
    }
}

impl Hdr {
    fn histogram(&self) -> Option<Cow<'_, Histogram<u64>>> {
        Some(match self {
            Hdr::Own(histogram) => Cow::Borrowed(histogram),
            Hdr::Read(packed) => Cow::Owned(packed.histogram()?),
        })
    }
}

impl PartialEq for Hdr {
    fn eq(&self, other: &Hdr) -> bool {
        self.histogram() == other.histogram()
    }
}

fn encode<S: Serializer>(hdr: &Option<Hdr>, to: S) -> Result<S::Ok, S::Error> {
    let Some(histogram) = hdr.as_ref().and_then(Hdr::histogram) else {
        return to.serialize_none();
    };
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(&histogram, &mut bytes).map_err(S::Error::custom)?;
    to.serialize_str(&BASE64_STANDARD.encode(bytes))
}

fn decode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Hdr>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    let read = text.map(|text| times(&text)).transpose().map_err(D::Error::custom)?;
    Ok(read.map(Hdr::Read))
}

/// Decodes a histogram with the range and precision of ours. Nothing is allocated by a length that the
/// text announces.
fn times(text: &str) -> Result<Packed, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("the histogram has {} bytes: expected {TEXT_BYTES_MAX}", text.len()));
    }
    let bytes = BASE64_STANDARD.decode(text).map_err(|error| format!("histogram: {error}"))?;
    let invalid = || {
        "invalid histogram: expected the compressed V2 format of HdrHistogram, with 3 digits and \
         values up to an hour"
            .to_owned()
    };
    let compressed = bytes.get(FRAME_BYTES..).ok_or_else(invalid)?;
    let mut plain = Vec::new();
    let most = PLAIN_BYTES_MAX as u64 + 1;
    ZlibDecoder::new(compressed).take(most).read_to_end(&mut plain).map_err(|_| invalid())?;
    let number = |at: usize, bytes: usize| {
        let field = plain.get(at..at + bytes)?;
        Some(field.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let length = plain.len().checked_sub(HEADER_BYTES).map(|length| length as u64);
    let digits = u64::from(recorder::DIGITS);
    let is_ours = plain.len() <= PLAIN_BYTES_MAX
        && length.is_some()
        && number(4, 4) == length
        && number(12, 4) == Some(digits)
        && number(16, 8) == Some(1)
        && number(24, 8).is_some_and(|highest| (2..=recorder::ABOVE_US).contains(&highest));
    if !is_ours {
        return Err(invalid());
    }
    plain.get(HEADER_BYTES..).and_then(Packed::read).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn count(timed: &Timed) -> u64 {
        timed.histogram().map_or(0, |histogram| histogram.len())
    }

    fn timed(times_us: impl IntoIterator<Item = u64>) -> Timed {
        let (mut recorder, mut histograms) = (Recorder::default(), Histograms::default());
        times_us.into_iter().for_each(|us| recorder.record(Series::Latency, us * 1_000));
        histograms.latency("latency", &recorder, Series::Latency);
        histograms.get("latency").unwrap().clone()
    }

    #[test]
    fn histograms_are_read_as_they_were_written() {
        for times in [vec![], vec![1], (1..5_000).collect(), vec![9, 3_600_000_000, u64::MAX >> 12]]
        {
            let written = Timed { wrong: 3, never: 5, ..timed(times) };
            let json = serde_json::to_value(&written).unwrap();
            let mut read: Timed = serde_json::from_value(json).unwrap();
            assert_eq!(read, written);
            assert_eq!(
                (read.latency(), read.quantiles()),
                (written.latency(), written.quantiles())
            );
            // It grows to what it adds.
            read.merge(&timed([3_000_000_000]));
            assert_eq!(count(&read), count(&written) + 1);
        }
    }

    #[test]
    fn size_is_bounded() {
        let mut state = 7_u64;
        let mut histogram = Recorder::empty().unwrap();
        // Every bucket, with random counts of up to two million.
        let mut us = 1;
        while us < 3_600_000_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            histogram.record_n(us, state >> 43).unwrap();
            us += (us / 2_048).max(1);
        }
        let all = Timed { hdr: Some(Hdr::Own(histogram)), ..Timed::default() };
        let text = serde_json::to_string(&all).unwrap();
        println!("every bucket: {} bytes for {} times", text.len(), count(&all));
        assert!(text.len() < TEXT_BYTES_MAX / 2, "{}", text.len());
        assert_eq!(serde_json::from_str::<Timed>(&text).unwrap(), all);
    }

    #[test]
    fn texts_that_are_no_histogram_of_ours_are_refused() {
        let good = serde_json::to_value(timed(1..100)).unwrap();
        let read = |hdr: Value| {
            let mut timed = good.clone();
            timed["hdr"] = hdr;
            serde_json::from_value::<Timed>(timed).map_err(|error| error.to_string())
        };
        let bytes = BASE64_STANDARD.decode(good["hdr"].as_str().unwrap()).unwrap();
        read(json!(BASE64_STANDARD.encode(&bytes))).unwrap();
        for cut in [0, 7, 8, bytes.len() / 2] {
            let error = read(json!(BASE64_STANDARD.encode(&bytes[..cut]))).unwrap_err();
            assert!(error.contains("invalid histogram"), "{cut}: {error}");
        }
        assert!(read(json!("§")).is_err() && read(json!(7)).is_err());
        assert!(read(json!("A".repeat(TEXT_BYTES_MAX + 4))).unwrap_err().contains("bytes"));
        // Another precision; and a range for which gigabytes would be allocated.
        let foreign = [Histogram::<u64>::new(2), Histogram::<u64>::new_with_bounds(1, u64::MAX, 3)];
        for foreign in foreign {
            let mut foreign = foreign.unwrap();
            foreign.record(9).unwrap();
            let mut bytes = Vec::new();
            V2DeflateSerializer::new().serialize(&foreign, &mut bytes).unwrap();
            let error = read(json!(BASE64_STANDARD.encode(bytes))).unwrap_err();
            assert!(error.contains("invalid histogram"), "{error}");
        }
        // A megabyte of zeros in a kilobyte.
        let mut bomb = bytes[..FRAME_BYTES].to_vec();
        let zeros = vec![0; 1 << 20];
        let mut encoder = flate2::read::ZlibEncoder::new(&zeros[..], flate2::Compression::best());
        encoder.read_to_end(&mut bomb).unwrap();
        assert!(read(json!(BASE64_STANDARD.encode(bomb))).unwrap_err().contains("invalid"));
    }

    #[test]
    fn what_is_unknown_stays_unknown() {
        let mut one = Histograms::default();
        one.0.insert("latency".to_owned(), Some(timed([5])));
        let mut other = Histograms::default();
        other.set_unknown("latency");
        for (mut one, other) in [(one.clone(), other.clone()), (other, one)] {
            one.merge(&other);
            assert!(one.get("latency").is_none());
            assert_eq!(one.unknown().collect::<Vec<_>>(), ["latency"]);
        }
    }
}
