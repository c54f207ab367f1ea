//! Signatures of what is posted to applications: a header by which the receiver knows that a body is ours
//! and fresh. `t=UNIX,v1=HEX`, where HEX is HMAC-SHA256 (RFC 2104) of `UNIX.BODY` with the secret.

use std::fmt::Write;

use aws_lc_rs::hmac;
use hyper::header::{HeaderName, HeaderValue};

use crate::auth::Secret;

/// The header.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-standfast-signature");

/// Signs with one secret.
pub(crate) struct Signer(hmac::Key);

impl Signer {
    pub(crate) fn new(secret: &Secret) -> Self {
        Signer(hmac::Key::new(hmac::HMAC_SHA256, secret.bytes()))
    }

    /// The value of the header for a body that is sent at this time.
    pub(crate) fn header(&self, unix_s: u64, body: &[u8]) -> Option<HeaderValue> {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(unix_s.to_string().as_bytes());
        context.update(b".");
        context.update(body);
        let mut text = format!("t={unix_s},v1=");
        for byte in context.sign().as_ref() {
            let _ = write!(text, "{byte:02x}");
        }
        HeaderValue::from_str(&text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_signed_with_its_time() {
        let signer = Signer::new(&Secret::new("s3Krit"));
        // Computed by Python's hmac.
        let expected = "afad70dbbb89de21fd7c78c249806373599f9ab031c7acac6ffd472104d74191";
        let header = signer.header(1_900_000_000, br#"{"a":1}"#).unwrap();
        assert_eq!(header.to_str().unwrap(), format!("t=1900000000,v1={expected}"));
    }
}
