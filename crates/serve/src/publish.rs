//! Bodies of `/api/publish`. The whole body is checked before any of it is published; errors name the
//! field.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::sys::process::now_ns;
use serde_json::Value;
use topics::Publication;

use crate::path::check_topic;

/// Why a body is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It is malformed.
    Malformed(String),
    /// One of its publications is longer than a message may be.
    TooLarge(String),
}

/// The publications of a body, in order: `{"topic", "data"}` or an array of such objects. Binary
/// messages have `data_base64` instead of `data`.
pub(crate) fn parse(
    body: &[u8],
    message_bytes_max: usize,
) -> Result<Vec<Arc<Publication>>, BodyError> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| BodyError::Malformed(format!("the body is not JSON: {error}")))?;
    match body {
        Value::Array(items) => items
            .into_iter()
            .enumerate()
            .map(|(at, item)| publication(item, &format!("[{at}]"), message_bytes_max))
            .collect(),
        item => publication(item, "", message_bytes_max).map(|publication| vec![publication]),
    }
}

/// One publication; `at` is its position in the body, for error messages.
fn publication(item: Value, at: &str, max: usize) -> Result<Arc<Publication>, BodyError> {
    let malformed = |what: String| BodyError::Malformed(what);
    let within =
        |field: &str| if at.is_empty() { field.to_owned() } else { format!("{at}.{field}") };
    let Value::Object(mut fields) = item else {
        let position = if at.is_empty() { "the body" } else { at };
        return Err(malformed(format!("{position} must be an object with \"topic\" and \"data\"")));
    };
    let mut string = |field: &str| match fields.remove(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(malformed(format!("{} must be a string", within(field)))),
    };
    let (topic, text, base64) = (string("topic")?, string("data")?, string("data_base64")?);
    if let Some(unknown) = fields.keys().next() {
        let known = "expected topic, data or data_base64";
        return Err(malformed(format!("unknown field {}: {known}", within(unknown))));
    }
    let topic = topic.ok_or_else(|| malformed(format!("{} is missing", within("topic"))))?;
    check_topic(&topic).map_err(|why| malformed(format!("{}: {why}", within("topic"))))?;
    let (field, binary, data) = match (text, base64) {
        (Some(text), None) => ("data", false, text.into_bytes()),
        (None, Some(text)) => {
            let bytes = STANDARD.decode(text).map_err(|error| {
                malformed(format!("{} is not base64: {error}", within("data_base64")))
            })?;
            ("data_base64", true, bytes)
        }
        (None, None) => return Err(malformed(format!("{} is missing", within("data")))),
        (Some(_), Some(_)) => {
            let both = format!("{} and data_base64 exclude each other", within("data"));
            return Err(malformed(both));
        }
    };
    if data.len() > max {
        let (field, bytes) = (within(field), data.len());
        let what = format!("{field} has {bytes} bytes; --max-message allows {max}");
        return Err(BodyError::TooLarge(what));
    }
    Ok(Arc::new(Publication::new(topic.into(), data.into(), binary).accepted(now_ns())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_publication_and_arrays_are_parsed_in_order() {
        let parsed = |body: Value| parse(body.to_string().as_bytes(), 10).unwrap();
        let one = parsed(json!({"topic": "a", "data": "é"}));
        assert_eq!((&*one[0].topic, &*one[0].data, one[0].binary), ("a", "é".as_bytes(), false));
        let many = parsed(json!([
            {"topic": "a", "data": ""},
            {"topic": "b", "data_base64": "AP8="},
        ]));
        assert_eq!(many.len(), 2);
        assert_eq!((&*many[1].topic, &*many[1].data, many[1].binary), ("b", &[0, 255][..], true));
        assert!(parsed(json!([])).is_empty());
    }

    #[test]
    fn errors_name_the_field() {
        let cases = [
            (json!(7), "the body"),
            (json!({}), "topic is missing"),
            (json!({"topic": "a"}), "data is missing"),
            (json!({"topic": "", "data": "x"}), "topic: the topic name is empty"),
            (json!({"topic": 1, "data": "x"}), "topic must be a string"),
            (json!({"topic": "a", "data": null}), "data must be a string"),
            (json!({"topic": "a", "data": "x", "dta": 1}), "unknown field dta"),
            (json!({"topic": "a", "data": "x", "data_base64": ""}), "exclude each other"),
            (json!({"topic": "a", "data_base64": "!"}), "data_base64 is not base64"),
            (json!([{"topic": "a", "data": "x"}, {"topic": "a", "data": 1}]), "[1].data must"),
            (json!([[]]), "[0] must be an object"),
        ];
        for (body, named) in cases {
            match parse(body.to_string().as_bytes(), 10) {
                Err(BodyError::Malformed(what)) => assert!(what.contains(named), "{body}: {what}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        assert!(matches!(parse(b"{", 10), Err(BodyError::Malformed(_))));
        let long = json!({"topic": "a", "data": "12345678901"}).to_string();
        let Err(BodyError::TooLarge(what)) = parse(long.as_bytes(), 10) else { panic!("taken") };
        assert!(what.contains("data has 11 bytes"), "{what}");
    }
}
