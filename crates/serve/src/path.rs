//! Paths of the public listener.

use std::borrow::Cow;

/// Longest topic name, in bytes of UTF-8: names are kept per worker and compared at each publish.
pub const TOPIC_BYTES_MAX: usize = 256;

/// The route of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route<'p> {
    Health,
    Ready,
    Echo,
    /// Action Cable.
    Cable,
    /// The same by long polling.
    LongPolling,
    /// Server-sent events.
    Events,
    /// Publishing in AnyCable's format.
    Broadcast,
    /// A topic, percent-decoded.
    Topic(Cow<'p, str>),
    /// An invalid topic name, and why.
    BadTopic(&'static str),
    Unknown,
}

impl<'p> Route<'p> {
    pub(crate) fn of(path: &'p str, cable: &str, long_polling: Option<&str>) -> Self {
        match path {
            "/health" => Route::Health,
            "/ready" => Route::Ready,
            "/echo" => Route::Echo,
            "/events" => Route::Events,
            "/_broadcast" => Route::Broadcast,
            _ if path == cable => Route::Cable,
            _ if Some(path) == long_polling => Route::LongPolling,
            _ => match path.strip_prefix("/topics/") {
                None | Some("") => Route::Unknown,
                Some(name) => match decode(name).and_then(|name| check_topic(&name).map(|()| name))
                {
                    Ok(name) => Route::Topic(name),
                    Err(why) => Route::BadTopic(why),
                },
            },
        }
    }
}

/// Checks a topic name.
pub(crate) fn check_topic(name: &str) -> Result<(), &'static str> {
    const { assert!(TOPIC_BYTES_MAX == 256, "the message below says so") };
    match name.len() {
        0 => Err("the topic name is empty"),
        1..=TOPIC_BYTES_MAX => Ok(()),
        _ => Err("the topic name is longer than 256 bytes"),
    }
}

/// The decoded value of a query parameter. An empty value counts as absent.
pub(crate) fn parameter<'q>(query: Option<&'q str>, name: &str) -> Option<Cow<'q, str>> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value);
    let value = values.find(|value| !value.is_empty())?;
    // What cannot be decoded is neither a valid name nor a valid token: the caller refuses it.
    Some(decode(value).unwrap_or(Cow::Borrowed(value)))
}

/// All parameters of a query, decoded as those of forms, except the one by this name.
pub(crate) fn parameters_except<'q>(
    query: Option<&'q str>,
    name: &str,
) -> impl Iterator<Item = String> + use<'q> {
    let prefix = format!("{name}=");
    let all = query.unwrap_or_default().split('&');
    let others = all.filter(move |pair| !pair.is_empty() && !pair.starts_with(&prefix));
    others.map(|pair| {
        let text = pair.replace('+', " ");
        decode(&text).map(Cow::into_owned).unwrap_or(text)
    })
}

/// Percent-decodes (RFC 3986 section 2.1).
pub(crate) fn decode(text: &str) -> Result<Cow<'_, str>, &'static str> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => return Err("a % in a topic name must be followed by two hexadecimal digits"),
        }
    }
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| "the topic name is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_their_routes() {
        let topic = |name: &'static str| Route::Topic(Cow::Borrowed(name));
        let long = format!("/topics/{}", "x".repeat(256));
        let too_long = format!("/topics/{}", "x".repeat(257));
        let cases = [
            ("/health", Route::Health),
            ("/ready", Route::Ready),
            ("/echo", Route::Echo),
            ("/cable", Route::Cable),
            ("/lp", Route::LongPolling),
            ("/events", Route::Events),
            ("/echo/more", Route::Unknown),
            ("/", Route::Unknown),
            ("/topics", Route::Unknown),
            ("/topics/", Route::Unknown),
            ("/topics/a", topic("a")),
            ("/topics/a/b", topic("a/b")),
            ("/topics/a%2Fb%20%C3%A9", topic("a/b é")),
            ("/topics/%c3%a9", topic("é")),
            (
                "/topics/%",
                Route::BadTopic("a % in a topic name must be followed by two hexadecimal digits"),
            ),
            ("/topics/%FF", Route::BadTopic("the topic name is not UTF-8")),
            (&long, Route::Topic(Cow::Owned("x".repeat(256)))),
            (&too_long, Route::BadTopic("the topic name is longer than 256 bytes")),
        ];
        for (path, expected) in cases {
            assert_eq!(Route::of(path, "/cable", Some("/lp")), expected, "{path}");
        }
    }
}
