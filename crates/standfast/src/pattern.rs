//! [`Pattern`]: the path of a route, such as `/chat/{room}`, and percent-decoding (RFC 3986 section 2.1).

use std::borrow::Cow;
use std::cmp::Ordering;

/// A segment of a pattern. Those of text are tried before parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Segment {
    Text(Box<str>),
    /// `{name}`: any segment that is not empty.
    Parameter(Box<str>),
    /// `{*name}`: the rest of the path, at least one character.
    Rest(Box<str>),
}

/// A parsed pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pattern(Vec<Segment>);

impl Pattern {
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn parse(text: &str) -> Result<Pattern, String> {
        let wrong = |what: &str| Err(format!("invalid path \"{text}\": {what}"));
        let Some(path) = text.strip_prefix('/') else {
            return wrong("expected it to begin with /");
        };
        let mut segments = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for segment in path.split('/') {
            if matches!(segments.last(), Some(Segment::Rest(_))) {
                return wrong("expected {*rest} at the end only");
            }
            let Some(inner) = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'))
            else {
                if segment.contains(['{', '}']) {
                    return wrong("expected a parameter to be a whole segment, as in /chat/{room}");
                }
                segments.push(Segment::Text(segment.into()));
                continue;
            };
            let (name, rest) = inner.strip_prefix('*').map_or((inner, false), |name| (name, true));
            if name.is_empty() || name.contains(['{', '}', '*']) || names.contains(&name) {
                return wrong("expected each parameter to have a name of its own");
            }
            names.push(name);
            let named = if rest { Segment::Rest } else { Segment::Parameter };
            segments.push(named(name.into()));
        }
        Ok(Pattern(segments))
    }

    /// Whether a path, without its query, has this form.
    pub(crate) fn matches(&self, path: &str) -> bool {
        self.walk(path, |_, _| {})
    }

    /// The value of a parameter in a path of this form, as sent.
    pub(crate) fn value<'p>(&self, path: &'p str, name: &str) -> Option<&'p str> {
        let mut found = None;
        self.walk(path, |segment, value| {
            if let Segment::Parameter(own) | Segment::Rest(own) = segment
                && **own == *name
            {
                found = Some(value);
            }
        });
        found
    }

    fn walk<'p>(&self, path: &'p str, mut visit: impl FnMut(&Segment, &'p str)) -> bool {
        let Some(mut rest) = path.strip_prefix('/').map(Some) else { return false };
        for segment in &self.0 {
            let Some(left) = rest else { return false };
            let (first, after) = match left.split_once('/') {
                Some((first, after)) => (first, Some(after)),
                None => (left, None),
            };
            match segment {
                Segment::Text(text) if **text == *first => {}
                Segment::Parameter(_) if !first.is_empty() => visit(segment, first),
                Segment::Rest(_) if !left.is_empty() => {
                    visit(segment, left);
                    return true;
                }
                _ => return false,
            }
            rest = after;
        }
        rest.is_none()
    }

    /// Which of two patterns is tried first: the one with text where the other has a parameter.
    pub(crate) fn compare(&self, other: &Pattern) -> Ordering {
        let kind = |segment: &Segment| match segment {
            Segment::Text(_) => 0,
            Segment::Parameter(_) => 1,
            Segment::Rest(_) => 2,
        };
        self.0.iter().map(kind).cmp(other.0.iter().map(kind))
    }

    /// Whether both have the same form, so that one of them would never be used.
    pub(crate) fn is_same(&self, other: &Pattern) -> bool {
        let same = |(one, other): (&Segment, &Segment)| match (one, other) {
            (Segment::Text(one), Segment::Text(other)) => one == other,
            (Segment::Parameter(_), Segment::Parameter(_)) => true,
            (Segment::Rest(_), Segment::Rest(_)) => true,
            _ => false,
        };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}

/// Percent-decodes; `None` if a `%` is not followed by two hexadecimal digits, or the result is not UTF-8.
pub(crate) fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        match byte {
            b'%' => bytes.push((digit()? * 16 + digit()?) as u8),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The decoded value of the first query parameter of this name, with `+` for a space as forms write it.
pub(crate) fn query_value<'q>(query: &'q str, name: &str) -> Option<Cow<'q, str>> {
    let form = |text: &'q str| match text.contains('+') {
        true => decode(&text.replace('+', " ")).map(|text| Cow::Owned(text.into_owned())),
        false => decode(text),
    };
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(key, _)| form(key).is_some_and(|key| key == name))?;
    form(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn paths_match_segment_by_segment() {
        let chat = pattern("/chat/{room}");
        assert!(chat.matches("/chat/a") && chat.matches("/chat/a%2Fb"));
        for path in ["/chat", "/chat/", "/chat/a/", "/chat/a/b", "/other/a", "chat/a", ""] {
            assert!(!chat.matches(path), "{path}");
        }
        assert_eq!(chat.value("/chat/a%20b", "room"), Some("a%20b"));
        assert_eq!(chat.value("/chat/a", "other"), None);
        let two = pattern("/{one}/x/{two}");
        assert_eq!(
            (two.value("/a/x/b", "one"), two.value("/a/x/b", "two")),
            (Some("a"), Some("b"))
        );
        let rest = pattern("/files/{*path}");
        assert_eq!(rest.value("/files/a/b", "path"), Some("a/b"));
        assert!(!rest.matches("/files/") && !rest.matches("/files"));
        let root = pattern("/");
        assert!(root.matches("/") && !root.matches("/a") && !root.matches("//"));
    }

    #[test]
    fn text_is_tried_before_parameters() {
        let mut all = ["/{*rest}", "/{one}", "/a/{two}", "/a/b"].map(pattern);
        all.sort_by(Pattern::compare);
        let found = |path: &str| all.iter().position(|pattern| pattern.matches(path)).unwrap();
        let names = ["/a/b", "/a/{two}", "/{one}", "/{*rest}"].map(pattern);
        for (path, expected) in [("/a/b", 0), ("/a/c", 1), ("/a", 2), ("/x/y", 3)] {
            assert_eq!(all[found(path)], names[expected], "{path}");
        }
        assert!(pattern("/{a}/x").is_same(&pattern("/{b}/x")));
        assert!(!pattern("/{a}/x").is_same(&pattern("/{b}/y")));
    }

    #[test]
    fn invalid_patterns_say_what_is_expected() {
        for (text, expected) in [
            ("chat", "begin with /"),
            ("/a{b}", "whole segment"),
            ("/{}", "a name of its own"),
            ("/{a}/{a}", "a name of its own"),
            ("/{*a}/b", "at the end only"),
        ] {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.contains(expected) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn values_are_decoded_or_absent() {
        assert_eq!(decode("a%2Fb%c3%a9").as_deref(), Some("a/bé"));
        for wrong in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
        let query = "name=J+%C3%A9&empty=&flag&a%20b=1&name=other&bad=%";
        let value = |name| query_value(query, name).map(Cow::into_owned);
        assert_eq!(value("name").as_deref(), Some("J é"));
        assert_eq!((value("empty"), value("flag")), (Some(String::new()), Some(String::new())));
        assert_eq!((value("a b").as_deref(), value("none"), value("bad")), (Some("1"), None, None));
    }
}
