//! [`HttpApp`]: calls by HTTP RPC, a POST with JSON for each, on connections that are kept open.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use engine::sys::process::now_ns;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::call::{Call, Reply};
use super::config::AppConfig;
use super::runner::CallError;
use super::target::{Host, Target};
use crate::app::connect::connect;

/// Longest time that a connection without a call is kept: applications close theirs after 5 s or more,
/// and a call must not meet that.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// The header with the session id.
const SID: HeaderName = HeaderName::from_static("x-anycable-meta-sid");
/// The header with the version of the contract.
const VERSION: HeaderName = HeaderName::from_static("x-anycable-meta-protov");
/// Bytes of an error page, or of a message about an error, that are logged.
const SHOWN_BYTES: usize = 200;

type Sender = SendRequest<Full<Bytes>>;

/// An application that answers HTTP RPC.
pub(super) struct HttpApp {
    host: Host,
    path: Box<str>,
    authority: HeaderValue,
    authorization: Option<HeaderValue>,
    tls: Option<engine::TlsClient>,
    reply_bytes: usize,
    /// Connections without a call and since when, the last used one at the end: as many as there were
    /// calls at a time.
    idle: Mutex<Vec<(Sender, u64)>>,
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
            authority: HeaderValue::from_str(&host.to_string())
                .unwrap_or(HeaderValue::from_static("localhost")),
            host,
            path,
            authorization,
            tls: config.tls.clone(),
            reply_bytes: config.reply_bytes,
            idle: Mutex::default(),
        }
    }

    pub(super) async fn call(&self, call: &Call) -> Result<Reply, CallError> {
        let mut request = self.request(call)?;
        loop {
            let mut sender = match self.take_idle() {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let reply = self.read(response).await?;
                    self.keep(sender);
                    return reply;
                }
                // It was closed before the request was written.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => {
                        // The others were probably lost with it.
                        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                        return Err(CallError::Lost(chain(&error.into_error())));
                    }
                },
            }
        }
    }

    fn request(&self, call: &Call) -> Result<Request<Full<Bytes>>, CallError> {
        let invalid = |error: &dyn std::error::Error| CallError::Invalid(error.to_string());
        let body = serde_json::to_vec(call).map_err(|error| invalid(&error))?;
        let uri = format!("{}/{}", self.path, call.method().path());
        let mut request = Request::post(uri)
            .header(HOST, self.authority.clone())
            .header(USER_AGENT, concat!("standfast/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
            .header(SID, &*call.sid)
            .header(VERSION, "v1")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| invalid(&error))?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    /// Reads a whole answer. The outer error ends the connection.
    async fn read(
        &self,
        response: Response<Incoming>,
    ) -> Result<Result<Reply, CallError>, CallError> {
        let status = response.status();
        let body = match Limited::new(response.into_body(), self.reply_bytes).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                let why = format!("the answer is longer than {} bytes", self.reply_bytes);
                return Err(CallError::Invalid(why));
            }
            Err(error) => return Err(CallError::Lost(chain(&*error))),
        };
        Ok(match status {
            StatusCode::OK => Reply::from_json(&body)
                .map_err(|why| CallError::Invalid(format!("not the JSON of HTTP RPC: {why}"))),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Err(CallError::Busy(format!("status {status}")))
            }
            _ => Err(CallError::Invalid(format!("status {status}: {}", shown(&body)))),
        })
    }

    async fn connect(&self) -> Result<Sender, CallError> {
        let unreached = |error: &dyn std::error::Error| CallError::Unreached(chain(error));
        let address = (&*self.host.name, self.host.port);
        let stream =
            connect(address, self.tls.as_ref()).await.map_err(|error| unreached(&error))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| unreached(&error))?;
        tokio::spawn(async move {
            // Its error is the call's, too.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((sender, since)) = idle.pop() {
            if u128::from(now_ns().saturating_sub(since)) >= IDLE_MAX.as_nanos() {
                // Those before it are idle for longer.
                idle.clear();
                return None;
            }
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: Sender) {
        if !sender.is_closed() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push((sender, now_ns()));
        }
    }
}

/// The beginning of an application's text, as it is logged.
pub(super) fn shown(text: &[u8]) -> String {
    admin::log::shown(text.get(..SHOWN_BYTES.min(text.len())).unwrap_or_default())
}

/// An error with its sources.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}
