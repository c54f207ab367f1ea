//! [`HttpApp`]: calls by HTTP RPC, a POST with JSON for each; and [`HttpAuth`], those of `--auth-url`.

use engine::sys::process::now_ns;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};

use super::call::Call;
use super::client::{CallError, HttpAnswer, HttpClient};
use super::config::{AppConfig, AuthUrl};
use super::decision::Decision;
use super::reply::Reply;
use super::target::Host;
use crate::shared::UnixClock;
use crate::signature::{self, Signer};

/// The header with the session id.
const SID: HeaderName = HeaderName::from_static("x-anycable-meta-sid");
/// The header with the version of the contract.
const VERSION: HeaderName = HeaderName::from_static("x-anycable-meta-protov");

/// An application that answers HTTP RPC.
pub(super) struct HttpApp {
    client: HttpClient,
    path: Box<str>,
    authorization: Option<HeaderValue>,
    reply_bytes: usize,
}

impl HttpApp {
    pub(super) fn new(config: &AppConfig, host: &Host, path: &str) -> Self {
        let authorization = config.key.as_ref().and_then(|key| {
            let mut value = HeaderValue::from_bytes(&[b"Bearer ", key.bytes()].concat()).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        HttpApp {
            client: HttpClient::new(host, config.tls.clone(), config.reply_bytes),
            path: path.into(),
            authorization,
            reply_bytes: config.reply_bytes,
        }
    }

    pub(super) async fn call(&self, call: &Call) -> Result<Reply, CallError> {
        let invalid = |error: &dyn std::error::Error| CallError::Invalid(error.to_string());
        let body = serde_json::to_vec(call).map_err(|error| invalid(&error))?;
        let path = format!("{}/{}", self.path, call.method().path());
        let mut request = self.client.post(&path, body)?;
        let headers = request.headers_mut();
        headers.insert(SID, HeaderValue::from_str(&call.sid).map_err(|error| invalid(&error))?);
        headers.insert(VERSION, HeaderValue::from_static("v1"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let answer = self.client.send(request).await?;
        let body = complete(&answer, self.reply_bytes)?;
        match answer.status {
            StatusCode::OK => Reply::from_json(body)
                .map_err(|why| CallError::Invalid(format!("not the JSON of HTTP RPC: {why}"))),
            _ => Err(refused(&answer)),
        }
    }
}

/// An application that is asked about clients of plain topics.
pub(super) struct HttpAuth {
    client: HttpClient,
    path: Box<str>,
    signer: Option<Signer>,
    clock: UnixClock,
    reply_bytes: usize,
}

impl HttpAuth {
    pub(super) fn new(auth: &AuthUrl, clock: UnixClock, reply_bytes: usize) -> Self {
        HttpAuth {
            client: HttpClient::new(&auth.url.host, auth.tls.clone(), reply_bytes),
            path: auth.url.path.clone(),
            signer: auth.secret.as_ref().map(Signer::new),
            clock,
            reply_bytes,
        }
    }

    pub(super) async fn call(&self, call: &Call) -> Result<Reply, CallError> {
        let body =
            serde_json::to_vec(call).map_err(|error| CallError::Invalid(error.to_string()))?;
        let unix_s = self.clock.unix_ms(now_ns()) / 1000;
        let signed = self.signer.as_ref().and_then(|signer| signer.header(unix_s, &body));
        let mut request = self.client.post(&self.path, body)?;
        request.headers_mut().extend(signed.map(|signed| (signature::HEADER, signed)));
        let answer = self.client.send(request).await?;
        let decision = match answer.status {
            StatusCode::OK => Decision::from_json(complete(&answer, self.reply_bytes)?)
                .map_err(|why| CallError::Invalid(format!("not an answer of --auth-url: {why}")))?,
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                Decision::denied(status.as_u16())
            }
            _ => return Err(refused(&answer)),
        };
        Ok(decision.into())
    }
}

/// The body of an answer, unless it was too long.
fn complete(answer: &HttpAnswer, reply_bytes: usize) -> Result<&[u8], CallError> {
    let why = || format!("the answer is longer than {reply_bytes} bytes");
    answer.body.as_deref().ok_or_else(|| CallError::Invalid(why()))
}

/// What an answer with another status means.
fn refused(answer: &HttpAnswer) -> CallError {
    match answer.status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            CallError::Busy(format!("status {}", answer.status))
        }
        _ => CallError::Invalid(answer.shown()),
    }
}
