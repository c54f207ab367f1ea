//! [`Source`]: where captures and checks find a value in an answer. [`AnswerView`] is an answer whose
//! body is parsed as JSON at most once.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

use regex::bytes::Regex;
use serde_json::Value;
use serde_json_path::JsonPath;

use crate::grpc::decode_message;
use crate::workload::requests::answer::{Answer, Wants};

/// The most bytes of a body that are kept for captures and checks.
pub const BODY_KEPT_MAX: usize = 1 << 20;
/// The most bytes of a captured value.
pub const CAPTURE_BYTES_MAX: usize = 64 << 10;

/// Where a value is.
#[derive(Clone)]
pub enum Source {
    /// The first header line of this name.
    Header(String),
    /// The first node that a JSONPath finds (RFC 9535).
    Json(JsonPath),
    /// The first match in the body: its first group, or all of it without groups.
    Regex(Regex),
}

/// Which of several matches a capture takes.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Take {
    /// The first.
    #[default]
    First,
    /// One at random.
    Random,
    /// All of them, as a list.
    All,
}

/// An answer for captures and checks.
pub struct AnswerView<'a> {
    /// Its status.
    pub status: u16,
    /// From the due time to the complete answer.
    pub latency_ns: u64,
    answer: &'a Answer<'a>,
    json: OnceCell<Option<Value>>,
}

impl Source {
    /// Parses a JSONPath.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn json(text: &str) -> Result<Source, String> {
        let path = JsonPath::parse(text);
        path.map(Source::Json).map_err(|error| format!("invalid JSONPath {text:?}: {error}"))
    }

    /// Parses a regular expression.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn regex(text: &str) -> Result<Source, String> {
        pattern(text).map(Source::Regex)
    }

    /// The parts of an answer that it needs.
    #[must_use]
    pub fn wants(&self) -> Wants {
        match self {
            Source::Header(_) => Wants::Head,
            Source::Json(_) | Source::Regex(_) => Wants::Body(BODY_KEPT_MAX),
        }
    }

    /// Returns the value, if there is one. A JSON null is none; other values than strings are returned
    /// as JSON text.
    pub fn find<'s>(&self, seen: &'s AnswerView<'_>) -> Option<Cow<'s, [u8]>> {
        match self {
            Source::Header(name) => seen.answer.header(name).map(|value| readable(name, value)),
            Source::Json(path) => match path.query(seen.json()?).first()? {
                Value::Null => None,
                found => Some(as_bytes(found)),
            },
            Source::Regex(pattern) => {
                let found = pattern.captures(seen.answer.body)?;
                let group = found.get(1).or_else(|| found.get(0))?;
                Some(Cow::Borrowed(group.as_bytes()))
            }
        }
    }

    /// Returns all values in their order, without nulls; of headers only the first line.
    pub(crate) fn find_all<'s>(&self, seen: &'s AnswerView<'_>) -> Vec<Cow<'s, [u8]>> {
        match self {
            Source::Header(_) => self.find(seen).into_iter().collect(),
            Source::Json(path) => {
                let nodes = seen.json().map(|json| path.query(json).all()).unwrap_or_default();
                nodes.into_iter().filter(|node| !node.is_null()).map(as_bytes).collect()
            }
            Source::Regex(pattern) => {
                let found = pattern.captures_iter(seen.answer.body);
                let groups = found.filter_map(|found| found.get(1).or_else(|| found.get(0)));
                groups.map(|group| Cow::Borrowed(group.as_bytes())).collect()
            }
        }
    }
}

/// The value of a header; the message of a status without its percent-encoding.
fn readable<'v>(name: &str, value: &'v [u8]) -> Cow<'v, [u8]> {
    match name.eq_ignore_ascii_case("grpc-message") && value.contains(&b'%') {
        true => Cow::Owned(decode_message(value).into_bytes()),
        false => Cow::Borrowed(value),
    }
}

fn as_bytes(value: &Value) -> Cow<'_, [u8]> {
    match value {
        Value::String(text) => Cow::Borrowed(text.as_bytes()),
        other => Cow::Owned(other.to_string().into_bytes()),
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Header(name) => write!(f, "header {name}"),
            Source::Json(path) => write!(f, "json {path}"),
            Source::Regex(pattern) => write!(f, "regex {pattern}"),
        }
    }
}

impl<'a> AnswerView<'a> {
    pub(crate) fn new(status: u16, answer: &'a Answer<'a>) -> AnswerView<'a> {
        let latency_ns = answer.times.done_ns.saturating_sub(answer.times.due_ns);
        AnswerView { status, latency_ns, answer, json: OnceCell::new() }
    }

    /// Bytes of the complete body.
    pub(crate) fn size(&self) -> u64 {
        self.answer.body_bytes
    }

    fn json(&self) -> Option<&Value> {
        self.json.get_or_init(|| serde_json::from_slice(self.answer.body).ok()).as_ref()
    }
}

/// A regular expression over bytes with a bounded compiled size.
pub(crate) fn pattern(text: &str) -> Result<Regex, String> {
    let built = regex::bytes::RegexBuilder::new(text).size_limit(1 << 20).build();
    built.map_err(|error| format!("invalid regular expression {text:?}: {error}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::workload::requests::answer::Times;

    pub(crate) fn answer<'a>(head: &'a [u8], body: &'a [u8]) -> Answer<'a> {
        let times = Times { due_ns: 1_000_000, done_ns: 6_000_000, ..Times::default() };
        let (outcome, is_cut, is_warm_up) = (Ok(200), false, false);
        Answer { outcome, head, body, is_cut, body_bytes: body.len() as u64, is_warm_up, times }
    }

    #[test]
    fn values_are_found_in_heads_json_and_text() {
        let head = b"HTTP/1.1 200 OK\r\nX-Id: 7\r\nx-id: 8\r\ngrpc-message: no%20x\r\nx-message: a%20b\r\n\r\n";
        let body = br#"{"token":"a\"b","n":[1,{"id":2.50}],"none":null,"ok":true}"#;
        let answer = answer(head, body);
        let seen = AnswerView::new(200, &answer);
        let find = |source: &Source| {
            source.find(&seen).map(|value| String::from_utf8(value.into_owned()).unwrap())
        };
        assert_eq!(find(&Source::Header("x-ID".to_owned())).as_deref(), Some("7"));
        assert_eq!(find(&Source::Header("x".to_owned())), None);
        assert_eq!(find(&Source::Header("Grpc-Message".to_owned())).as_deref(), Some("no x"));
        assert_eq!(find(&Source::Header("x-message".to_owned())).as_deref(), Some("a%20b"));
        for (path, value) in [
            ("$.token", Some("a\"b")),
            ("$['n'][1].id", Some("2.5")),
            ("$..id", Some("2.5")),
            ("$.n[-2]", Some("1")),
            ("$.ok", Some("true")),
            ("$.none", None),
            ("$.absent", None),
        ] {
            assert_eq!(find(&Source::json(path).unwrap()).as_deref(), value, "{path}");
        }
        assert_eq!(find(&Source::regex(r#""n":\[(\d)"#).unwrap()).as_deref(), Some("1"));
        assert_eq!(find(&Source::regex("t[a-z]+n").unwrap()).as_deref(), Some("token"));
        assert_eq!(find(&Source::regex("x{9}").unwrap()), None);
        let all = |source: Source| {
            let all = source.find_all(&seen).into_iter();
            all.map(|value| String::from_utf8(value.into_owned()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(all(Source::json("$.*").unwrap()).len(), 3, "without null");
        assert_eq!(all(Source::json("$.n[*]").unwrap()), ["1", r#"{"id":2.5}"#]);
        assert_eq!(all(Source::regex(r#""([a-z])"|k.n"#).unwrap()), ["ken", "b", "n"]);
        assert_eq!(all(Source::regex("x{9}").unwrap()), <[String; 0]>::default());
        assert_eq!(all(Source::Header("x-ID".to_owned())), ["7"]);
    }

    #[test]
    fn errors_name_the_kind_of_expression() {
        assert!(Source::json("token").unwrap_err().contains("JSONPath"));
        assert!(Source::regex("(").unwrap_err().contains("regular expression"));
        assert!(Source::regex("(a{1000}){1000}").is_err(), "too large to compile");
        let answer = answer(b"", b"{");
        assert!(Source::json("$").unwrap().find(&AnswerView::new(200, &answer)).is_none());
    }
}
