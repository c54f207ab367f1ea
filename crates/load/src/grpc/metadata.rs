//! Metadata: headers that a caller may set. Names are lower case, and values ASCII, or any bytes in Base64 if the
//! name ends in `-bin`.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Encodes without padding, and takes both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Headers of the transport.
const RESERVED: [&str; 9] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Returns name and value as they are sent. A value of a `-bin` name is given in Base64.
///
/// # Errors
/// What is wrong, and what is expected.
pub fn metadata(name: &str, value: &str) -> Result<(String, String), String> {
    let name = name.to_ascii_lowercase();
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.');
    if name.is_empty() || !name.bytes().all(allowed) {
        return Err(format!(
            "metadata name {name:?}: expected letters, digits, _, - and ., as in x-request-id"
        ));
    }
    if is_reserved(&name) {
        return Err(format!("metadata name {name:?} is reserved for gRPC"));
    }
    if name.ends_with("-bin") {
        let bytes = BASE64.decode(value.trim()).map_err(|why| {
            format!("metadata {name}: a name that ends in -bin has a value in Base64: {why}")
        })?;
        return Ok((name, encode_binary(&bytes)));
    }
    let value = value.trim();
    match value.bytes().find(|byte| !matches!(byte, b' '..=b'~')) {
        Some(byte) => Err(format!(
            "metadata {name}: byte {byte:#04x} is not printable ASCII; other bytes need a name that ends in \
             -bin and Base64"
        )),
        None => Ok((name, value.to_owned())),
    }
}

/// Whether a name is one of gRPC or of the transport.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("grpc-") || RESERVED.contains(&name.as_str())
}

/// The value of a `-bin` name.
#[must_use]
pub fn encode_binary(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The bytes of a received value of a `-bin` name; of several that were joined by commas the first. `None` if
/// it is not Base64.
#[must_use]
pub fn decode_binary(value: &[u8]) -> Option<Vec<u8>> {
    let first = value.split(|byte| *byte == b',').next().unwrap_or_default();
    BASE64.decode(first.trim_ascii()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_sent_as_the_specification_has_it() {
        for (name, value, sent) in [
            ("X-Request-Id", " a b ", ("x-request-id", "a b")),
            ("authorization", "Bearer x", ("authorization", "Bearer x")),
            ("trace-bin", "aGk=", ("trace-bin", "aGk")),
            ("Trace-Bin", "aGk", ("trace-bin", "aGk")),
            ("a.b_c-1", "", ("a.b_c-1", "")),
        ] {
            let (expected_name, expected) = sent;
            assert_eq!(metadata(name, value), Ok((expected_name.into(), expected.into())));
        }
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_the_reason() {
        for (name, value, why) in [
            ("", "x", "expected letters"),
            ("a b", "x", "expected letters"),
            (":path", "/", "expected letters"),
            ("grpc-timeout", "1S", "reserved"),
            ("TE", "trailers", "reserved"),
            ("x", "\u{e4}", "-bin"),
            ("x", "a\nb", "0x0a"),
            ("x-bin", "no base64!", "Base64"),
        ] {
            let error = metadata(name, value).unwrap_err();
            assert!(error.contains(why), "{name:?} {value:?}: {error}");
        }
    }

    #[test]
    fn binary_values_are_taken_with_padding_and_without() {
        assert_eq!(decode_binary(b"aGk="), Some(b"hi".to_vec()));
        assert_eq!(decode_binary(b"aGk"), Some(b"hi".to_vec()));
        assert_eq!(decode_binary(b"aGk,eW91"), Some(b"hi".to_vec()));
        assert_eq!(decode_binary(b"%%"), None);
        assert_eq!(
            decode_binary(encode_binary(&[0, 255, 128]).as_bytes()),
            Some(vec![0, 255, 128])
        );
    }
}
