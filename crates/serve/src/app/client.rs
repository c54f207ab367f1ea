//! [`HttpClient`]: POSTs to one server, on connections that are kept open. Calls by HTTP RPC, the calls of
//! `--auth-url` and webhooks use it; what they send and how they read the answer is theirs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admin::log::error_chain;
use engine::TlsClient;
use engine::sys::process::now_ns;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::connect::connect;
use super::target::Host;

/// Longest time that an unused connection is kept: applications close theirs after 5 s or more, and a
/// request must not meet that.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Bytes of an error page, or of a message about an error, that are logged.
const SHOWN_BYTES: usize = 200;

/// Why a request was not answered.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It was not sent.
    Unreached(String),
    /// The application refused it for load.
    Busy(String),
    /// It was sent, and the connection ended before the answer.
    Lost(String),
    /// The answer is none of the contract.
    Invalid(String),
}

impl CallError {
    /// What went wrong, for the log.
    pub(crate) fn why(&self) -> &str {
        let (CallError::Unreached(why)
        | CallError::Busy(why)
        | CallError::Lost(why)
        | CallError::Invalid(why)) = self;
        why
    }
}

type Sender = SendRequest<Full<Bytes>>;

/// A complete answer.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    /// `None` if it was longer than the client's limit.
    pub(crate) body: Option<Bytes>,
}

impl HttpAnswer {
    /// The status and the beginning of the body, for the log.
    pub(crate) fn shown(&self) -> String {
        let body = self.body.as_deref().unwrap_or_default();
        format!("status {}: {}", self.status, shown(body))
    }
}

/// The beginning of an application's text, as it is logged.
pub(crate) fn shown(text: &[u8]) -> String {
    admin::log::shown(text.get(..SHOWN_BYTES.min(text.len())).unwrap_or_default())
}

/// A client of one server.
pub(crate) struct HttpClient {
    host: Host,
    authority: HeaderValue,
    tls: Option<TlsClient>,
    answer_bytes: usize,
    idle: Arc<Mutex<Idle>>,
}

/// Connections that no request uses.
#[derive(Default)]
struct Idle {
    /// With the time since when, the last used one at the end: as many as there were requests at a time.
    connections: Vec<(Sender, u64)>,
    /// A task closes those that stay unused.
    expires: bool,
}

fn is_old(since_ns: u64, now_ns: u64) -> bool {
    u128::from(now_ns.saturating_sub(since_ns)) >= IDLE_MAX.as_nanos()
}

impl HttpClient {
    /// `answer_bytes` is the longest body of an answer.
    pub(crate) fn new(host: &Host, tls: Option<TlsClient>, answer_bytes: usize) -> Self {
        HttpClient {
            authority: HeaderValue::from_str(&host.to_string())
                .unwrap_or(HeaderValue::from_static("localhost")),
            host: host.clone(),
            tls,
            answer_bytes,
            idle: Arc::default(),
        }
    }

    /// A POST of JSON, with the headers that all have.
    pub(crate) fn post(
        &self,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<Request<Full<Bytes>>, CallError> {
        Request::post(path)
            .header(HOST, self.authority.clone())
            .header(USER_AGENT, concat!("standfast/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.into()))
            .map_err(|error| CallError::Invalid(error.to_string()))
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<HttpAnswer, CallError> {
        loop {
            let mut sender = match self.take_idle() {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let answer = self.read(response).await?;
                    if answer.body.is_some() {
                        self.keep(sender);
                    }
                    return Ok(answer);
                }
                // It was closed before the request was written.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => {
                        // The others were probably lost with it.
                        self.idle
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .connections
                            .clear();
                        return Err(CallError::Lost(error_chain(&error.into_error())));
                    }
                },
            }
        }
    }

    async fn read(&self, response: Response<Incoming>) -> Result<HttpAnswer, CallError> {
        let status = response.status();
        let body = match Limited::new(response.into_body(), self.answer_bytes).collect().await {
            Ok(body) => Some(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => None,
            Err(error) => return Err(CallError::Lost(error_chain(&*error))),
        };
        Ok(HttpAnswer { status, body })
    }

    async fn connect(&self) -> Result<Sender, CallError> {
        let unreached = |error: &dyn std::error::Error| CallError::Unreached(error_chain(error));
        let address = (&*self.host.name, self.host.port);
        let stream =
            connect(address, self.tls.as_ref()).await.map_err(|error| unreached(&error))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| unreached(&error))?;
        tokio::spawn(async move {
            // Its error is the request's, too.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((sender, since_ns)) = idle.connections.pop() {
            if is_old(since_ns, now_ns()) {
                // Those before it are idle for longer.
                idle.connections.clear();
                return None;
            }
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.connections.push((sender, now_ns()));
        if !std::mem::replace(&mut idle.expires, true) {
            tokio::spawn(expire(Arc::clone(&self.idle)));
        }
    }
}

/// Closes connections that stay unused, each of which holds buffers of some 20 KB, until there are none.
async fn expire(idle: Arc<Mutex<Idle>>) {
    loop {
        tokio::time::sleep(IDLE_MAX).await;
        let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.connections.retain(|(_, since_ns)| !is_old(*since_ns, now_ns()));
        idle.expires = !idle.connections.is_empty();
        if !idle.expires {
            return;
        }
    }
}
