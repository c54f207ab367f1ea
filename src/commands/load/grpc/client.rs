//! [`reflect`]: asks a server by reflection for its services, before a run. One connection, one call per request;
//! errors say what answered instead of a gRPC server.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Turn, Poll};
use std::time::Duration;

use admin::log::error_chain;
use anyhow::{Context, Result, anyhow, bail};
use engine::sys::process;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, TE, USER_AGENT};
use hyper_util::rt::{TokioExecutor, TokioIo};
use load::grpc::{
    self, Code, Encoding, MessageDecoder, REFLECTION_PATHS, Reflection, Schema, limits,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::reach;
use super::target::Target;

/// Time for a connection, with the lookup of the name and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for all of them.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the first bytes are looked for.
const FIRST_EVERY: Duration = Duration::from_millis(2);
/// How often Ctrl-C is looked for.
const INTERRUPT_EVERY: Duration = Duration::from_millis(100);
/// Bytes of the header fields of an answer.
const HEAD_BYTES: u32 = 16 * 1024;
/// First bytes of the server that are kept: they tell another protocol.
const FIRST_BYTES: usize = 8;

type Sender = SendRequest<Full<Bytes>>;

/// What [`reflect`] found.
#[derive(Debug)]
pub(super) enum Reflected {
    Schema(Box<Schema>),
    /// Ctrl-C.
    Interrupted,
}

/// Asks a server what `reflection` wants to know.
///
/// # Errors
/// What went wrong, and what to try.
pub(super) fn reflect(
    target: &Target,
    metadata: &[(String, String)],
    reflection: &Reflection,
) -> Result<Reflected> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(async {
        tokio::select! {
            done = timeout(TOTAL_TIMEOUT, discover(target, metadata, reflection)) => match done {
                Ok(done) => done.map(|schema| Reflected::Schema(Box::new(schema))),
                Err(_) => Err(anyhow!("reflection took longer than {TOTAL_TIMEOUT:?}")),
            },
            () = interrupted() => Ok(Reflected::Interrupted),
        }
    });
    // A lookup that hangs has a thread that nobody waits for.
    runtime.shutdown_background();
    found.with_context(|| target.to_string())
}

/// The result of [`call`].
pub(super) enum Called {
    /// The message of the answer.
    Answer(Vec<u8>),
    /// The status, and its message.
    Failed(Code, String),
    /// Ctrl-C.
    Interrupted,
}

/// Calls a method once.
///
/// # Errors
/// What answered instead of a gRPC server.
pub(super) fn call(
    target: &Target,
    metadata: &[(String, String)],
    path: &str,
    message: &[u8],
) -> Result<Called> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let called = async {
        let mut client = Client::connect(target, metadata).await?;
        match client.call(path, message).await {
            Ok(answer) => Ok(Called::Answer(answer)),
            Err(CallError::Status(code, message)) => Ok(Called::Failed(code, message)),
            Err(CallError::Other(why)) => Err(why),
        }
    };
    let called = runtime.block_on(async {
        tokio::select! {
            called = called => called,
            () = interrupted() => Ok(Called::Interrupted),
        }
    });
    // A lookup that hangs has a thread that nobody waits for.
    runtime.shutdown_background();
    called.with_context(|| target.to_string())
}

/// Signals are blocked in every thread.
async fn interrupted() {
    while !matches!(
        process::wait_signal(Duration::ZERO),
        Some(process::Signal::Interrupt | process::Signal::Terminate)
    ) {
        tokio::time::sleep(INTERRUPT_EVERY).await;
    }
}

/// Tries both versions of the service.
async fn discover(
    target: &Target,
    metadata: &[(String, String)],
    reflection: &Reflection,
) -> Result<Schema> {
    let mut client = Client::connect(target, metadata).await?;
    for path in REFLECTION_PATHS {
        let mut reflection = reflection.clone();
        loop {
            let Some(request) = reflection.next_request() else { return Ok(reflection.schema()?) };
            match client.call(path, &request).await {
                Ok(answer) => reflection.answer(&answer)?,
                Err(CallError::Status(Code::UNIMPLEMENTED, _)) => break,
                Err(CallError::Status(code, message)) => return Err(refused(code, &message)),
                Err(CallError::Other(why)) => return Err(why),
            }
        }
    }
    bail!("no reflection service (UNIMPLEMENTED): give --proto FILE or --protoset FILE")
}

/// Why reflection has no answer.
fn refused(code: Code, message: &str) -> anyhow::Error {
    match code {
        Code::UNAUTHENTICATED | Code::PERMISSION_DENIED => anyhow!(
            "reflection refused ({code}: {message}): add credentials with -H 'authorization: …', or give \
             --proto FILE"
        ),
        _ => anyhow!("reflection failed ({code}: {message})"),
    }
}

/// Why a call has no answer.
enum CallError {
    /// Its status, and the message.
    Status(Code, String),
    Other(anyhow::Error),
}

impl From<anyhow::Error> for CallError {
    fn from(why: anyhow::Error) -> Self {
        CallError::Other(why)
    }
}

/// A connection of HTTP/2.
struct Client<'a> {
    target: &'a Target,
    metadata: &'a [(String, String)],
    sender: Sender,
    first: First,
}

impl<'a> Client<'a> {
    async fn connect(target: &'a Target, metadata: &'a [(String, String)]) -> Result<Client<'a>> {
        let first = First::default();
        let connecting = async {
            let stream = reach::connect(target).await?;
            let Some(tls) = &target.tls else {
                return handshake(Watched { stream, first: first.clone() }).await;
            };
            let (config, name) = tls.for_http2().parts();
            let stream = TlsConnector::from(config).connect(name, stream).await;
            let stream = stream.map_err(|error| anyhow!(tls_problem(target, &error)))?;
            handshake(Watched { stream, first: first.clone() }).await
        };
        let connected = async {
            let sender = connecting.await?;
            // A server of HTTP/2 speaks first; a request to another may end the connection before what it
            // says has been read.
            while !first.is_complete() && !sender.is_closed() {
                tokio::time::sleep(FIRST_EVERY).await;
            }
            anyhow::Ok(sender)
        };
        let sender = match timeout(CONNECT_TIMEOUT, connected).await {
            Ok(sender) => sender.map_err(|why| first.problem(target, why))?,
            Err(_) => bail!("no HTTP/2 within {CONNECT_TIMEOUT:?}: is it a gRPC server?"),
        };
        Ok(Client { target, metadata, sender, first })
    }

    /// Sends one message and returns the one that answers it.
    async fn call(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>, CallError> {
        match timeout(ANSWER_TIMEOUT, self.answer(path, message)).await {
            Ok(answer) => answer,
            Err(_) => {
                Err(anyhow!("no answer within {ANSWER_TIMEOUT:?}: is it a gRPC server?").into())
            }
        }
    }

    async fn answer(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>, CallError> {
        let request = self.request(path, message)?;
        let lost = |error: hyper::Error, first: &First| {
            CallError::Other(first.problem(self.target, anyhow!(error_chain(&error))))
        };
        self.sender.ready().await.map_err(|error| lost(error, &self.first))?;
        let response = self.sender.send_request(request).await;
        let response = response.map_err(|error| lost(error, &self.first))?;
        let (head, mut body) = response.into_parts();
        check_kind(head.status, &head.headers)?;
        // An error without a message has its status in the head.
        if head.headers.contains_key(STATUS) {
            check_status(&head.headers)?;
        }
        let encoding = head.headers.get("grpc-encoding").map_or(&b""[..], |value| value.as_bytes());
        let (answer, trailers) = read(&mut body, &Encoding::parse(encoding))
            .await
            .map_err(|why| self.first.problem(self.target, why))?;
        check_status(&trailers)?;
        answer.ok_or_else(|| anyhow!("the answer has no message").into())
    }

    fn request(&self, path: &str, message: &[u8]) -> Result<Request<Full<Bytes>>> {
        let scheme = if self.target.tls.is_some() { "https" } else { "http" };
        let mut body = Vec::with_capacity(grpc::PREFIX_BYTES + message.len());
        grpc::encode(message, &mut body)?;
        let mut request = Request::post(format!("{scheme}://{}{path}", self.target))
            .header(TE, "trailers")
            .header(CONTENT_TYPE, "application/grpc")
            .header(USER_AGENT, concat!("standfast/", env!("CARGO_PKG_VERSION")))
            .header("grpc-accept-encoding", Encoding::ACCEPTED)
            .header("grpc-timeout", grpc::encode_timeout(ANSWER_TIMEOUT));
        for (name, value) in self.metadata {
            request = request.header(name, value);
        }
        Ok(request.body(Full::new(body.into()))?)
    }
}

const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Opens a connection of HTTP/2 over a stream.
async fn handshake<S>(stream: S) -> Result<Sender>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder.max_header_list_size(HEAD_BYTES);
    let (sender, connection) = builder
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| anyhow!(error_chain(&error)))?;
    tokio::spawn(async move {
        // Its error is the calls', too.
        let _ = connection.await;
    });
    Ok(sender)
}

/// Reads the message and the trailers of an answer.
async fn read(body: &mut Incoming, encoding: &Encoding) -> Result<(Option<Vec<u8>>, HeaderMap)> {
    let mut decoder = MessageDecoder::new(limits::REFLECTED_BYTES);
    let (mut answer, mut trailers) = (None, HeaderMap::new());
    while let Some(frame) = body.frame().await {
        let frame = match frame.map_err(|error| anyhow!(error_chain(&error)))?.into_data() {
            Ok(data) => data,
            Err(other) => {
                trailers = other.into_trailers().unwrap_or_default();
                continue;
            }
        };
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let (used, message) = decoder.next(rest)?;
            if let Some(message) = message.filter(|_| answer.is_none()) {
                let mut bytes = message.bytes.to_vec();
                if message.compressed {
                    encoding.decompress(message.bytes, limits::REFLECTED_BYTES, &mut bytes)?;
                }
                answer = Some(bytes);
            }
            rest = rest.get(used..).unwrap_or_default();
        }
    }
    decoder.finish()?;
    Ok((answer, trailers))
}

/// Checks that an answer is one of gRPC.
fn check_kind(status: hyper::StatusCode, headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    if kind.starts_with(b"application/grpc") {
        return Ok(());
    }
    let kind = admin::log::shown(kind);
    let kind = if kind.is_empty() { "no content-type".to_owned() } else { kind };
    bail!(
        "answers HTTP/2, but not gRPC (status {status}, {kind}): is this the port of a gRPC server?"
    )
}

fn check_status(headers: &HeaderMap) -> Result<(), CallError> {
    let Some(code) = headers.get(STATUS).map(|value| Code::parse(value.as_bytes())) else {
        return Err(anyhow!("the answer has no grpc-status").into());
    };
    let message = headers.get("grpc-message").map_or(&b""[..], |value| value.as_bytes());
    let message = admin::log::shown(grpc::decode_message(message).as_bytes());
    match code {
        Code::OK => Ok(()),
        code => Err(CallError::Status(code, message)),
    }
}

fn tls_problem(target: &Target, error: &io::Error) -> String {
    let text = error_chain(error);
    let hint = match () {
        () if text.contains("InvalidContentType") => {
            format!("no TLS is spoken there: try grpc://{target}")
        }
        () if text.contains("NoApplicationProtocol") => {
            "it refuses HTTP/2 (ALPN h2): is this the port of a gRPC server?".to_owned()
        }
        () if text.contains("invalid peer certificate") => {
            "its CA is --ca FILE, another name --sni NAME; --insecure is for tests".to_owned()
        }
        () if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("it closed the connection: if it has no TLS, try grpc://{target}")
        }
        () => return format!("TLS failed: {text}"),
    };
    format!("TLS failed: {text}; {hint}")
}

/// The first bytes that the server has sent.
#[derive(Clone, Default)]
struct First(Arc<Mutex<Vec<u8>>>);

impl First {
    fn keep(&self, bytes: &[u8]) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = FIRST_BYTES.saturating_sub(first.len());
        first.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
    }

    /// Whether they tell the protocol.
    fn is_complete(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() >= FIRST_BYTES
    }

    /// The error of a connection, or what the first bytes say about the server.
    fn problem(&self, target: &Target, why: anyhow::Error) -> anyhow::Error {
        let first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match first.as_slice() {
            // The frame that begins every connection of HTTP/2: its type is the fourth byte.
            [_, _, _, 4, ..] => why,
            // An alert of TLS.
            [0x15, 3, ..] if target.tls.is_none() => {
                anyhow!("expects TLS: try grpcs://{target}")
            }
            bytes if bytes.starts_with(b"HTTP/1") => {
                anyhow!("answers HTTP/1.1: gRPC needs HTTP/2; is this the port of a gRPC server?")
            }
            [] if target.tls.is_none() && !is_late(&why) => anyhow!(
                "closed the connection without an answer ({why}): if it expects TLS, try grpcs://{target}"
            ),
            [] => why,
            bytes => {
                let shown = admin::log::shown(bytes);
                anyhow!(
                    "answers {shown:?}, which is not HTTP/2: is this the port of a gRPC server?"
                )
            }
        }
    }
}

/// Errors before the first byte was awaited.
fn is_late(why: &anyhow::Error) -> bool {
    let text = why.to_string();
    text.contains("refused")
        || text.contains("proxy")
        || text.contains("cannot connect")
        || text.contains("TLS failed")
}

/// A stream whose first received bytes are kept.
struct Watched<S> {
    stream: S,
    first: First,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        turn: &mut Turn<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(turn, buffer);
        this.first.keep(buffer.filled().get(before..).unwrap_or_default());
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        turn: &mut Turn<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(turn, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, turn: &mut Turn<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(turn)
    }

    fn poll_shutdown(self: Pin<&mut Self>, turn: &mut Turn<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(turn)
    }
}
