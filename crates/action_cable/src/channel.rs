//! [`channel`]: the channel in an identifier. The caller verifies signed names.

use alloc::borrow::Cow;

use serde::Deserialize;

use crate::Malformed;
use crate::json::{Raw, object, optional_text, text};

/// The channel in an identifier.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Channel<'a> {
    /// A stream, by its signed name.
    PubSubSigned(Cow<'a, str>),
    /// A public stream, by its name.
    PubSubPublic(Cow<'a, str>),
    /// A stream of Turbo, by its signed name.
    Turbo(Cow<'a, str>),
    /// A stream of CableReady, by its signed name.
    CableReady(Cow<'a, str>),
    /// A channel of the application; other keys of the identifier are for the application.
    App {
        /// The class name.
        channel: Cow<'a, str>,
    },
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    channel: Option<Raw<'a>>,
    #[serde(borrow)]
    stream_name: Option<Raw<'a>>,
    #[serde(borrow)]
    signed_stream_name: Option<Raw<'a>>,
    #[serde(borrow)]
    identifier: Option<Raw<'a>>,
}

const SIGNED: &str = "signed_stream_name";

/// Parses an identifier.
///
/// # Errors
/// Why it is malformed.
pub fn channel(identifier: &str) -> Result<Channel<'_>, Malformed> {
    let fields: Fields = object(identifier)?;
    let channel = text(fields.channel, "channel")?;
    Ok(match &*channel {
        "$pubsub" => match optional_text(fields.signed_stream_name, SIGNED)? {
            Some(signed) => Channel::PubSubSigned(signed),
            None => Channel::PubSubPublic(text(fields.stream_name, "stream_name")?),
        },
        "Turbo::StreamsChannel" => Channel::Turbo(text(fields.signed_stream_name, SIGNED)?),
        "CableReady::Stream" => Channel::CableReady(text(fields.identifier, "identifier")?),
        _ => Channel::App { channel },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_parsed() {
        let borrowed = Cow::Borrowed;
        for (identifier, what) in [
            (
                r#"{"channel":"$pubsub","stream_name":"a/1"}"#,
                Channel::PubSubPublic(borrowed("a/1")),
            ),
            (
                r#"{"signed_stream_name":"x--y","channel":"$pubsub"}"#,
                Channel::PubSubSigned(borrowed("x--y")),
            ),
            // A signed name takes precedence.
            (
                r#"{"channel":"$pubsub","stream_name":"a","signed_stream_name":"x--y"}"#,
                Channel::PubSubSigned(borrowed("x--y")),
            ),
            (
                r#"{"channel":"Turbo::StreamsChannel","signed_stream_name":"x--y"}"#,
                Channel::Turbo(borrowed("x--y")),
            ),
            (
                r#"{"channel":"CableReady::Stream","identifier":"x--y"}"#,
                Channel::CableReady(borrowed("x--y")),
            ),
            (
                r#"{"channel":"ChatChannel","id":[{"deep":1e999}]}"#,
                Channel::App { channel: borrowed("ChatChannel") },
            ),
            (r#"{"channel":"Caf\u00e9"}"#, Channel::App { channel: borrowed("Café") }),
        ] {
            assert_eq!(channel(identifier), Ok(what), "{identifier}");
        }
    }

    #[test]
    fn malformed_identifiers_are_errors() {
        for (identifier, why) in [
            ("ChatChannel", Malformed::NotJson { line: 1, column: 1 }),
            ("", Malformed::NotJson { line: 1, column: 0 }),
            (r#"["$pubsub"]"#, Malformed::NotAnObject),
            (r#""ChatChannel""#, Malformed::NotAnObject),
            (r#"{"channel":1}"#, Malformed::Invalid("channel")),
            (r#"{"channel":"\ud800"}"#, Malformed::Invalid("channel")),
            (r#"{"stream_name":"a"}"#, Malformed::Missing("channel")),
            (r#"{"channel":"$pubsub"}"#, Malformed::Missing("stream_name")),
            (r#"{"channel":"$pubsub","stream_name":5}"#, Malformed::Invalid("stream_name")),
            (
                r#"{"channel":"$pubsub","stream_name":"a","signed_stream_name":false}"#,
                Malformed::Invalid(SIGNED),
            ),
            (r#"{"channel":"Turbo::StreamsChannel"}"#, Malformed::Missing(SIGNED)),
            (r#"{"channel":"CableReady::Stream"}"#, Malformed::Missing("identifier")),
            (r#"{"channel":"a","channel":"$pubsub"}"#, Malformed::Repeated),
        ] {
            assert_eq!(channel(identifier), Err(why), "{identifier}");
        }
    }
}
