//! [`Reply`]: a response of the admin listener. Everything under `/api/` is JSON, errors included.

use std::hash::{BuildHasher, RandomState};

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Content-Type.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// A JSON response with status 200.
    #[must_use]
    pub fn json(value: &Value) -> Self {
        Reply::json_with(200, value)
    }

    /// A JSON response.
    #[must_use]
    pub fn json_with(status: u16, value: &Value) -> Self {
        let mut body = value.to_string().into_bytes();
        body.push(b'\n');
        Reply { status, content_type: "application/json", body }
    }

    /// An error. `error` is a word for programs; `message` is a sentence for people that says what to
    /// do.
    #[must_use]
    pub fn error(status: u16, error: &str, message: &str) -> Self {
        Reply::json_with(status, &json!({ "error": error, "message": message }))
    }

    /// The response to a change by a client that has not proved that it may make one.
    #[must_use]
    pub fn read_only() -> Self {
        let why = "without a key this listener is read-only over TCP, because every local user can \
                   reach it: set --admin-key, or use --admin unix:/path";
        Reply::error(403, "forbidden", why)
    }

    /// A 404 that lists the paths that exist.
    #[must_use]
    pub fn not_found(paths: &str) -> Self {
        Reply::error(404, "not_found", &format!("no such path; available: {paths}"))
    }

    pub(crate) fn text(status: u16, body: &str) -> Self {
        let content_type = "text/plain; charset=utf-8";
        Reply { status, content_type, body: body.as_bytes().to_vec() }
    }
}

/// The value of a Retry-After header; clients are told different times, so that they do not all return
/// at once.
#[must_use]
pub fn retry_after() -> String {
    // Each of these states has other random keys.
    engine::retry_after(RandomState::new().hash_one(()))
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response<Body> {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let content_type = (header::CONTENT_TYPE, self.content_type);
        match status {
            // When to retry: RFC 6585 section 4, RFC 9110 section 15.6.4.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let again = [(header::RETRY_AFTER, retry_after())];
                (status, [content_type], again, self.body).into_response()
            }
            _ => (status, [content_type], self.body).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn refused_operators_are_told_different_times_to_return() {
        let told = |_| {
            let response = Reply::error(503, "overloaded", "try again").into_response();
            let value = response.headers()[header::RETRY_AFTER].to_str().unwrap().to_owned();
            value.parse::<u64>().unwrap()
        };
        let told: BTreeSet<u64> = (0..1_000).map(told).collect();
        assert_eq!(told, (1..=10).collect());
        let busy = Reply::error(429, "topic_overloaded", "try again").into_response();
        assert!(busy.headers().contains_key(header::RETRY_AFTER));
        let fine = Reply::text(200, "ok").into_response();
        assert!(!fine.headers().contains_key(header::RETRY_AFTER));
    }
}
