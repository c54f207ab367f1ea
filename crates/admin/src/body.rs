//! [`Posted`]: the body of a request, complete within its size and time limits.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use tokio::time::timeout;

use crate::Reply;
use crate::accept::Caller;
use crate::connections::{Cause, Phase};
use crate::routes::Shared;

/// A request body, or why there is none.
pub(crate) struct Posted(Result<Bytes, BodyError>);

enum BodyError {
    TooLarge,
    Late,
    Incomplete(String),
}

impl FromRequest<Shared> for Posted {
    type Rejection = Infallible;

    async fn from_request(request: Request, shared: &Shared) -> Result<Self, Infallible> {
        let caller = request.extensions().get::<Caller>().cloned();
        let enter = |phase| {
            if let Some(Caller(connection)) = &caller {
                connection.enter(phase);
            }
        };
        enter(Phase::Body);
        let read = timeout(shared.open.limits().body, Bytes::from_request(request, shared));
        let body = match read.await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(BodyError::TooLarge)
            }
            Ok(Err(rejection)) => Err(BodyError::Incomplete(rejection.body_text())),
            Err(_) => {
                shared.open.count_closed(Cause::Body);
                Err(BodyError::Late)
            }
        };
        enter(Phase::Answer);
        Ok(Posted(body))
    }
}

impl Posted {
    /// Answers a complete body. `incomplete` is the status for one that cannot be read.
    pub(crate) fn answer(self, incomplete: u16, answer: impl FnOnce(&[u8]) -> Reply) -> Reply {
        match self.read(incomplete) {
            Ok(body) => answer(&body),
            Err(reply) => reply,
        }
    }

    /// The body, or the error response.
    pub(crate) fn read(self, incomplete: u16) -> Result<Bytes, Reply> {
        self.0.map_err(|error| match error {
            BodyError::TooLarge => {
                let message = "the body is longer than the limit; publish in several requests";
                Reply::error(413, "too_large", message)
            }
            BodyError::Late => {
                Reply::error(408, "request_timeout", "the body did not arrive in time")
            }
            BodyError::Incomplete(why) => Reply::error(incomplete, "bad_request", &why),
        })
    }
}
