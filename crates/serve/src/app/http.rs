//! [`HttpApp`]: calls by HTTP RPC, a POST with JSON for each.

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};

use super::call::{Call, Reply};
use super::client::{CallError, HttpClient};
use super::config::AppConfig;
use super::target::{Host, Target};

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
    pub(super) fn new(config: &AppConfig) -> Self {
        let (host, path) = match &config.target {
            Target::Http { host, path, .. } => (host.clone(), path.clone()),
            Target::Grpc { hosts, .. } => {
                let host = hosts.first().cloned();
                (host.unwrap_or(Host { name: "localhost".into(), port: 80 }), "".into())
            }
        };
        let authorization = config.key.as_ref().and_then(|key| {
            let mut value = HeaderValue::from_bytes(&[b"Bearer ", key.bytes()].concat()).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        HttpApp {
            client: HttpClient::new(&host, config.tls.clone(), config.reply_bytes),
            path,
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
        let Some(body) = &answer.body else {
            let why = format!("the answer is longer than {} bytes", self.reply_bytes);
            return Err(CallError::Invalid(why));
        };
        match answer.status {
            StatusCode::OK => Reply::from_json(body)
                .map_err(|why| CallError::Invalid(format!("not the JSON of HTTP RPC: {why}"))),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Err(CallError::Busy(format!("status {}", answer.status)))
            }
            _ => Err(CallError::Invalid(answer.shown())),
        }
    }
}
