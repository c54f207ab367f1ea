//! Signed stream names, in the format of Rails' `MessageVerifier` with SHA256 and JSON: the base64 of a
//! JSON string, `--`, and the HMAC-SHA256 of that base64 in lower-case hexadecimal. Turbo, CableReady
//! and AnyCable's libraries all use it.
//!
//! Rails wraps a message with an expiry or a purpose in an envelope, `{"_rails":{…}}`. The older of its
//! two forms has the JSON in base64 again. A message signed for a purpose is not a stream name.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use super::{Cause, Secret, timestamp};
use crate::path::check_topic;

/// Longest signed name, in bytes: the longest stream name, escaped, twice in base64, with an envelope.
pub(super) const SIGNED_BYTES_MAX: usize = 2048;

const SEPARATOR: &str = "--";
/// Hexadecimal digits of a SHA-256.
const DIGITS: usize = 64;

/// Verifies names signed with one secret.
#[derive(Debug)]
pub(super) struct Verifier(hmac::Key);

impl Verifier {
    pub(super) fn new(secret: &Secret) -> Self {
        Verifier(hmac::Key::new(hmac::HMAC_SHA256, secret.bytes()))
    }

    /// Verifies a signed name and returns the stream.
    pub(super) fn stream(&self, signed: &str, now_unix_s: u64) -> Result<Box<str>, Cause> {
        let encoded = self.encoded(signed)?;
        // Rails accepts both alphabets.
        let bytes = STANDARD.decode(encoded).or_else(|_| URL_SAFE_NO_PAD.decode(encoded));
        let bytes = bytes.map_err(|_| Cause::StreamMalformed)?;
        let signed = serde_json::from_slice(&bytes).map_err(|_| Cause::StreamName)?;
        let name = match signed {
            Signed::Name(name) => name,
            Signed::Envelope { rails } => rails.open(now_unix_s)?,
        };
        stream(&name)
    }

    /// Signs a name, in the form that all versions of Rails read.
    pub(super) fn sign(&self, name: &str, expires_unix_s: Option<u64>) -> String {
        let name = serde_json::Value::from(name).to_string();
        let content = match expires_unix_s {
            None => name,
            Some(at) => {
                let message = STANDARD.encode(name);
                let rails = NewEnvelope { message, exp: timestamp::format(at), pur: None };
                // Text always serializes.
                serde_json::to_string(&New { rails }).unwrap_or_default()
            }
        };
        self.sign_content(&content)
    }

    /// Signs JSON, whatever it is.
    pub(super) fn sign_content(&self, content: &str) -> String {
        let encoded = STANDARD.encode(content);
        let tag = hmac::sign(&self.0, encoded.as_bytes());
        let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{encoded}{SEPARATOR}{digits}")
    }

    /// The signed part, if its signature is correct.
    fn encoded<'s>(&self, signed: &'s str) -> Result<&'s str, Cause> {
        if signed.len() > SIGNED_BYTES_MAX {
            return Err(Cause::StreamMalformed);
        }
        // Split by the signature's length: base64 for URLs may itself contain `--`.
        let at = signed.len().checked_sub(DIGITS).ok_or(Cause::StreamMalformed)?;
        let (rest, digits) = signed.split_at_checked(at).ok_or(Cause::StreamMalformed)?;
        let encoded = rest.strip_suffix(SEPARATOR).ok_or(Cause::StreamMalformed)?;
        let tag = unhex(digits).ok_or(Cause::StreamMalformed)?;
        let right = hmac::verify(&self.0, encoded.as_bytes(), &tag);
        right.map(|()| encoded).map_err(|_| Cause::StreamSignature)
    }
}

/// Checks a stream name.
pub(super) fn stream(name: &str) -> Result<Box<str>, Cause> {
    check_topic(name).map(|()| name.into()).map_err(|_| Cause::StreamName)
}

/// The signed content.
#[derive(Deserialize)]
#[serde(untagged)]
enum Signed {
    Name(String),
    Envelope {
        #[serde(rename = "_rails")]
        rails: Envelope,
    },
}

/// Rails' envelope of a message with an expiry or a purpose.
#[derive(Deserialize)]
struct Envelope {
    data: Option<String>,
    /// The older form: the message's JSON in base64.
    message: Option<String>,
    #[serde(rename = "exp")]
    expiry: Option<String>,
    #[serde(rename = "pur")]
    purpose: Option<String>,
}

/// A new envelope, in the older form: keys in this order.
#[derive(Serialize)]
struct New {
    #[serde(rename = "_rails")]
    rails: NewEnvelope,
}

#[derive(Serialize)]
struct NewEnvelope {
    message: String,
    exp: String,
    pur: Option<String>,
}

impl Envelope {
    fn open(self, now_unix_s: u64) -> Result<String, Cause> {
        if self.purpose.is_some_and(|purpose| !purpose.is_empty()) {
            return Err(Cause::StreamPurpose);
        }
        if let Some(expiry) = self.expiry {
            let expiry = timestamp::parse(&expiry).ok_or(Cause::StreamMalformed)?;
            if now_unix_s >= expiry {
                return Err(Cause::StreamExpired);
            }
        }
        let older = |text: String| serde_json::from_slice(&STANDARD.decode(text).ok()?).ok();
        self.data.or_else(|| older(self.message?)).ok_or(Cause::StreamName)
    }
}

fn unhex(digits: &str) -> Option<[u8; DIGITS / 2]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; DIGITS / 2];
    let (pairs, _) = digits.as_bytes().as_chunks::<2>();
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_900_000_000;

    /// Computed by Python's `hmac` with the secret `s3Krit`. The first is also what turbo-rails makes
    /// of `Turbo::StreamsChannel.signed_stream_name([:chat, "2021"])` with this key.
    const TURBO: &str = "ImNoYXQ6MjAyMSI=--\
        f9ee45dbccb1da04d8ceb99cc820207804370ba0d06b46fc3b8b373af1315628";
    /// `{"_rails":{"data":"chat:2021","exp":"2033-05-18T03:33:20.000Z"}}`
    const EXPIRES: &str = "eyJfcmFpbHMiOnsiZGF0YSI6ImNoYXQ6MjAyMSIsImV4cCI6IjIwMzMtMDUtMThUMDM6MzM6MjAuMDAwWiJ9fQ==--\
        fe354daee9f76ee395001f0d46d3f1bed5f4eb300c54b93113b9cede19e3e222";
    /// `{"_rails":{"message":"ImNoYXQ6MjAyMSI=","exp":null,"pur":null}}`
    const OLDER: &str = "eyJfcmFpbHMiOnsibWVzc2FnZSI6IkltTm9ZWFE2TWpBeU1TST0iLCJleHAiOm51bGwsInB1ciI6bnVsbH19--\
        360855a95ae48877cde4d0546a6152616314f186370901b6517619112cf41386";
    /// `{"_rails":{"data":"chat:2021","pur":"login"}}`
    const PURPOSE: &str = "eyJfcmFpbHMiOnsiZGF0YSI6ImNoYXQ6MjAyMSIsInB1ciI6ImxvZ2luIn19--\
        927bfb95badc74d645425b1a5b3252a7e3213dfdd46cd4c12de27c6218d4dd1e";
    /// `["chat/2023",1685024017]`
    const ARRAY: &str = "WyJjaGF0LzIwMjMiLDE2ODUwMjQwMTdd--\
        5b6661024d4c463c4936cd1542bc9a7672dd8039ac407d0b6c901697190e8aeb";
    /// Made by Rails 6.1 with the same secret: `Z2lkOi8vY2hhdC9Sb29tLzc:messages é/💬`.
    const RAILS_LONG: &str = "\
        IloybGtPaTh2WTJoaGRDOVNiMjl0THpjOm1lc3NhZ2VzIMOpL/Cfkqwi--\
        f76cbd5cd3dc2cd9c7b1e2df291f0698dc6cb28b678c6ce2e61ece9315cade8f";
    /// `chat:2021` with `expires_at: Time.at(2000000000)` …
    const RAILS_EXPIRES: &str = "\
        eyJfcmFpbHMiOnsibWVzc2FnZSI6IkltTm9ZWFE2TWpBeU1TST0iLCJleHAiOiIyMDMzLTA1LTE4VDAzOjMz\
        OjIwLjAwMFoiLCJwdXIiOm51bGx9fQ==--\
        39acf241fbefdcfc9f77ebde963c9b606e273bbbab96a051ef0d34e7263bff45";
    /// … and with `purpose: "login"`.
    const RAILS_PURPOSE: &str = "\
        eyJfcmFpbHMiOnsibWVzc2FnZSI6IkltTm9ZWFE2TWpBeU1TST0iLCJleHAiOm51bGwsInB1ciI6ImxvZ2lu\
        In19--\
        7410d15d7afc70daca4fcbf8d8da5dcd44a2f7f1e869745d12de231910394a4e";

    fn verifier(secret: &str) -> Verifier {
        Verifier::new(&Secret::new(secret))
    }

    /// Signs what no library would sign.
    fn sign(encoded: &str) -> String {
        let tag = hmac::sign(&verifier("s3Krit").0, encoded.as_bytes());
        let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{encoded}--{digits}")
    }

    #[test]
    fn names_signed_by_rails_are_verified() {
        let verifier = verifier("s3Krit");
        for signed in [TURBO, EXPIRES, OLDER, RAILS_EXPIRES] {
            assert_eq!(verifier.stream(signed, NOW), Ok("chat:2021".into()), "{signed}");
        }
        let long = "Z2lkOi8vY2hhdC9Sb29tLzc:messages é/💬";
        assert_eq!(verifier.stream(RAILS_LONG, NOW), Ok(long.into()));
        assert_eq!(sign("ImNoYXQ6MjAyMSI="), TURBO, "the test signs as Rails does");
        assert_eq!(verifier.sign("chat:2021", None), TURBO);
        assert_eq!(verifier.sign(long, None), RAILS_LONG);
        assert_eq!(verifier.sign("chat:2021", Some(2_000_000_000)), RAILS_EXPIRES);
        // A name with a `--` within, in the alphabet for URLs.
        let name = "~~>>??/é";
        let encoded = URL_SAFE_NO_PAD.encode(serde_json::to_string(name).unwrap());
        assert!(encoded.contains(['-', '_']), "{encoded}");
        assert_eq!(verifier.stream(&sign(&encoded), NOW), Ok(name.into()));
    }

    #[test]
    fn invalid_names_are_refused_with_their_cause() {
        let verifier = verifier("s3Krit");
        let last = TURBO.strip_suffix('8').unwrap();
        let upper = TURBO.replace("--f9ee", "--F9EE");
        let long = sign(&STANDARD.encode(format!("\"{}\"", "x".repeat(257))));
        let huge = sign(&"A".repeat(SIGNED_BYTES_MAX));
        let empty = sign(&STANDARD.encode("\"\""));
        let junk = sign("!!!!");
        let number = sign(&STANDARD.encode("7"));
        let cases = [
            ("", Cause::StreamMalformed),
            ("--", Cause::StreamMalformed),
            ("ImNoYXQ6MjAyMSI=", Cause::StreamMalformed),
            (last, Cause::StreamMalformed),
            (&upper, Cause::StreamMalformed),
            (&format!("{last}9"), Cause::StreamSignature),
            (&TURBO.replace("MSI=", "MiI="), Cause::StreamSignature),
            (&"é".repeat(60), Cause::StreamMalformed),
            (&huge, Cause::StreamMalformed),
            (&junk, Cause::StreamMalformed),
            (ARRAY, Cause::StreamName),
            (&number, Cause::StreamName),
            (&empty, Cause::StreamName),
            (&long, Cause::StreamName),
            (PURPOSE, Cause::StreamPurpose),
            (RAILS_PURPOSE, Cause::StreamPurpose),
        ];
        for (signed, cause) in cases {
            assert_eq!(verifier.stream(signed, NOW), Err(cause), "{signed}");
        }
        assert_eq!(self::verifier("other").stream(TURBO, NOW), Err(Cause::StreamSignature));
    }

    #[test]
    fn a_signed_name_with_any_character_changed_is_refused() {
        let verifier = verifier("s3Krit");
        for at in 0..TURBO.len() {
            for letter in ["A", "0", "-", "=", "", "\u{e9}", "--"] {
                let (before, after) = (&TURBO[..at], &TURBO[at + 1..]);
                let changed = format!("{before}{letter}{after}");
                let taken = changed != TURBO && verifier.stream(&changed, NOW).is_ok();
                assert!(!taken, "{changed}");
            }
        }
    }

    #[test]
    fn expiry_is_checked_to_the_second() {
        let verifier = verifier("s3Krit");
        for expires in [EXPIRES, RAILS_EXPIRES] {
            assert!(verifier.stream(expires, 1_999_999_999).is_ok());
            assert_eq!(verifier.stream(expires, 2_000_000_000), Err(Cause::StreamExpired));
        }
    }
}
