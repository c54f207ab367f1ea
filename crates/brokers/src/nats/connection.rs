//! [`Connection`]: bytes to and from one NATS server, TLS and authentication.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, spawn_local};
use tokio_rustls::TlsConnector;

use super::NatsTransport;
use super::protocol::{self, Decoder, Delivery, PAYLOAD_BYTES_MAX, ServerOp};
use crate::backoff::random;
use crate::limits::ANSWER_TIMEOUT;
use crate::nats_servers::NatsUrl;
use crate::transport::{Fault, FaultKind};

/// The subscription that answers to requests arrive by.
const INBOX_SID: u64 = 0;
/// Bytes read at a time.
const READ_BYTES: usize = 64 * 1024;

/// An open connection, and the task that moves its bytes, which ends with it.
pub(crate) struct Connection {
    shared: Rc<Shared>,
    driver: JoinHandle<()>,
    ended: RefCell<Option<oneshot::Receiver<Fault>>>,
    payload_bytes_max: usize,
    /// What the subjects of answers begin with, and the number of the next one.
    inbox: String,
    number: Cell<u64>,
}

#[derive(Default)]
struct Shared {
    outgoing: RefCell<Vec<u8>>,
    /// There is something to send.
    sends: Notify,
    /// A sender for each ping that is not answered, oldest first.
    waiters: RefCell<VecDeque<oneshot::Sender<Result<(), Fault>>>>,
    /// Requests that are not answered, by the number of the first of a batch.
    batches: RefCell<BTreeMap<u64, Batch>>,
    /// What the server has not permitted since the last ping.
    refused: Cell<Option<String>>,
}

/// Requests that are sent together.
struct Batch {
    answers: Vec<Option<Delivery>>,
    missing: usize,
    done: oneshot::Sender<Result<Vec<Delivery>, Fault>>,
}

/// Requests that are about to be sent, and other bytes between them.
pub(super) struct Requests<'c> {
    connection: &'c Connection,
    first: u64,
    many: usize,
    pub(super) bytes: Vec<u8>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Connection {
    /// Connects to one of the servers and authenticates. Messages go to `arrived`.
    pub(crate) async fn open(
        transport: &NatsTransport,
        arrived: impl Fn(Delivery) + 'static,
    ) -> Result<Connection, Fault> {
        let (urls, mut last) = (&transport.servers.urls, None);
        let first = random() as usize % urls.len().max(1);
        for url in urls.iter().cycle().skip(first).take(urls.len()) {
            match greet(transport, url).await {
                Ok((stream, decoder, payload_bytes_max)) => {
                    return Ok(Self::new(stream, decoder, payload_bytes_max, arrived));
                }
                Err(fault) => last = Some(fault),
            }
        }
        Err(last.unwrap_or_else(|| Fault::new(FaultKind::Unreachable, "no server is named")))
    }

    fn new(
        stream: Box<dyn Stream>,
        decoder: Decoder,
        payload_bytes_max: usize,
        arrived: impl Fn(Delivery) + 'static,
    ) -> Self {
        let (shared, (ends, ended)) = (Rc::<Shared>::default(), oneshot::channel());
        let of_driver = Rc::clone(&shared);
        let driver = spawn_local(async move {
            let fault = drive(&of_driver, stream, decoder, arrived).await;
            // Dropping their senders wakes all that wait.
            of_driver.waiters.borrow_mut().clear();
            of_driver.batches.borrow_mut().clear();
            let _ = ends.send(fault);
        });
        Connection {
            shared,
            driver,
            ended: RefCell::new(Some(ended)),
            payload_bytes_max,
            inbox: format!("_INBOX.{:016x}{:016x}", random(), random()),
            number: Cell::new(1),
        }
    }

    /// Subscribes to the answers of requests.
    pub(super) async fn open_inbox(&self) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        protocol::subscribe(&mut bytes, &format!("{}.*", self.inbox), INBOX_SID);
        self.round_trip(&bytes).await
    }

    /// No requests yet. No other ones are made before these are sent.
    pub(super) fn requests(&self) -> Requests<'_> {
        Requests { connection: self, first: self.number.get(), many: 0, bytes: Vec::new() }
    }

    /// The longest payload that the server takes.
    pub(crate) fn payload_bytes_max(&self) -> usize {
        self.payload_bytes_max
    }

    /// Sends these bytes, and waits until the server has processed them.
    pub(crate) async fn round_trip(&self, bytes: &[u8]) -> Result<(), Fault> {
        let (answers, answered) = oneshot::channel();
        {
            let mut outgoing = self.shared.outgoing.borrow_mut();
            outgoing.extend_from_slice(bytes);
            outgoing.extend_from_slice(b"PING\r\n");
            self.shared.waiters.borrow_mut().push_back(answers);
        }
        self.shared.sends.notify_one();
        match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Fault::new(FaultKind::Closed, "the connection was closed")),
            Err(_) => Err(Fault::new(FaultKind::Silent, "no answer in time")),
        }
    }

    /// Ends when the connection has ended.
    pub(crate) async fn ended(&self) -> Fault {
        let ended = self.ended.borrow_mut().take();
        match ended {
            Some(ended) => ended.await.unwrap_or_else(|_| closed()),
            None => std::future::pending().await,
        }
    }
}

impl Requests<'_> {
    /// The subject of the answer to the next request.
    pub(super) fn reply(&mut self) -> String {
        let number = self.connection.number.replace(self.connection.number.get() + 1);
        self.many += 1;
        format!("{}.{number}", self.connection.inbox)
    }

    /// Sends them, and waits for all answers, which are in the order of the requests.
    pub(super) async fn send(self) -> Result<Vec<Delivery>, Fault> {
        let shared = &self.connection.shared;
        shared.outgoing.borrow_mut().extend_from_slice(&self.bytes);
        shared.sends.notify_one();
        if self.many == 0 {
            return Ok(Vec::new());
        }
        let (done, answered) = oneshot::channel();
        let answers = std::iter::repeat_with(|| None).take(self.many).collect();
        let batch = Batch { answers, missing: self.many, done };
        shared.batches.borrow_mut().insert(self.first, batch);
        match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(closed()),
            Err(_) => {
                shared.batches.borrow_mut().remove(&self.first);
                Err(Fault::new(FaultKind::Silent, "no answer in time"))
            }
        }
    }
}

impl Shared {
    /// An answer to a request.
    fn answer(&self, delivery: Delivery) {
        let mut batches = self.batches.borrow_mut();
        let found = batches.range_mut(..=delivery.number).next_back();
        let Some((first, batch)) = found else { return };
        let (first, at) = (*first, usize::try_from(delivery.number - *first));
        let place = at.ok().and_then(|at| batch.answers.get_mut(at));
        let Some(place @ None) = place else { return };
        *place = Some(delivery);
        batch.missing -= 1;
        if batch.missing == 0
            && let Some(batch) = batches.remove(&first)
        {
            // It may wait no longer.
            let _ = batch.done.send(Ok(batch.answers.into_iter().flatten().collect()));
        }
    }

    /// No answer will come to some request.
    fn refuse(&self, why: &str) {
        for (_, batch) in std::mem::take(&mut *self.batches.borrow_mut()) {
            let _ = batch.done.send(Err(Fault::new(FaultKind::Refused, why)));
        }
    }
}

fn closed() -> Fault {
    Fault::new(FaultKind::Closed, "the connection was closed")
}

fn broken(error: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Closed, error.to_string())
}

/// Moves bytes both ways until the connection ends.
async fn drive(
    shared: &Shared,
    stream: Box<dyn Stream>,
    mut decoder: Decoder,
    arrived: impl Fn(Delivery),
) -> Fault {
    let (mut reader, mut writer) = split(stream);
    let reading = async {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            while let Some(op) = decoder.next().transpose() {
                match op {
                    Err(error) => return Fault::new(FaultKind::Protocol, error.to_string()),
                    Ok(op) => {
                        if let Err(fault) = take(shared, op, &arrived) {
                            return fault;
                        }
                    }
                }
            }
            match reader.read(&mut buffer).await {
                Ok(0) => return closed(),
                Ok(read) => decoder.push(buffer.get(..read).unwrap_or_default()),
                Err(error) => return broken(error),
            }
        }
    };
    let writing = async {
        loop {
            let bytes = std::mem::take(&mut *shared.outgoing.borrow_mut());
            if bytes.is_empty() {
                shared.sends.notified().await;
                continue;
            }
            let sent = async {
                writer.write_all(&bytes).await?;
                writer.flush().await
            };
            if let Err(error) = sent.await {
                return broken(error);
            }
        }
    };
    tokio::select! {
        fault = reading => fault,
        fault = writing => fault,
    }
}

fn take(shared: &Shared, op: ServerOp, arrived: &impl Fn(Delivery)) -> Result<(), Fault> {
    match op {
        ServerOp::Message(delivery) if delivery.sid == INBOX_SID => shared.answer(delivery),
        ServerOp::Message(delivery) => arrived(delivery),
        ServerOp::Ping => {
            shared.outgoing.borrow_mut().extend_from_slice(b"PONG\r\n");
            shared.sends.notify_one();
        }
        ServerOp::Pong => {
            let result = match shared.refused.take() {
                Some(why) => Err(Fault::new(FaultKind::Refused, why)),
                None => Ok(()),
            };
            if let Some(waiter) = shared.waiters.borrow_mut().pop_front() {
                // It may wait no longer.
                let _ = waiter.send(result);
            }
        }
        // The connection stays, and what was asked for before the next answer is not permitted.
        ServerOp::Error(why) if why.to_ascii_lowercase().contains("permissions violation") => {
            shared.refuse(&why);
            shared.refused.set(Some(why));
        }
        ServerOp::Error(why) => return Err(Fault::new(FaultKind::Closed, why)),
        ServerOp::Info(_) | ServerOp::Ok => {}
    }
    Ok(())
}

/// Connects, and authenticates. Returns the longest payload, too.
async fn greet(
    transport: &NatsTransport,
    url: &NatsUrl,
) -> Result<(Box<dyn Stream>, Decoder, usize), Fault> {
    let unreachable =
        |error: std::io::Error| Fault::new(FaultKind::Unreachable, format!("{url}: {error}"));
    let mut stream = TcpStream::connect((url.host(), url.port())).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let mut decoder = Decoder::default();
    let ServerOp::Info(info) = next(&mut stream, &mut decoder).await? else {
        return Err(Fault::new(FaultKind::Protocol, format!("{url}: no NATS server")));
    };
    let info: Value = serde_json::from_slice(&info)
        .map_err(|error| Fault::new(FaultKind::Protocol, format!("{url}: {error}")))?;
    let mut stream: Box<dyn Stream> = Box::new(stream);
    if url.is_tls() || info["tls_required"] == true {
        let Some(config) = &transport.tls else {
            return Err(Fault::new(FaultKind::Refused, format!("{url} wants TLS: use tls://")));
        };
        let name = ServerName::try_from(url.host().to_owned())
            .map_err(|error| Fault::new(FaultKind::Unreachable, error.to_string()))?;
        let connector = TlsConnector::from(Arc::clone(config));
        stream = Box::new(connector.connect(name, stream).await.map_err(unreachable)?);
        decoder = Decoder::default();
    }
    let hello = format!("CONNECT {}\r\nPING\r\n", credentials(transport, url, &info)?);
    let sent = async {
        stream.write_all(hello.as_bytes()).await?;
        stream.flush().await
    };
    sent.await.map_err(broken)?;
    loop {
        match next(&mut stream, &mut decoder).await? {
            ServerOp::Pong => break,
            ServerOp::Error(why) => {
                let why = format!("{}: wrong user, password or credentials", why.to_lowercase());
                return Err(Fault::new(FaultKind::Refused, why));
            }
            _ => {}
        }
    }
    let most = info["max_payload"].as_u64().and_then(|most| usize::try_from(most).ok());
    Ok((stream, decoder, most.unwrap_or(1024 * 1024).min(PAYLOAD_BYTES_MAX)))
}

/// The next operation while nothing else happens. The caller bounds the time.
async fn next(
    stream: &mut (impl AsyncRead + Unpin),
    decoder: &mut Decoder,
) -> Result<ServerOp, Fault> {
    let mut buffer = [0; 4096];
    loop {
        match decoder.next() {
            Ok(Some(op)) => return Ok(op),
            Ok(None) => {}
            Err(error) => return Err(Fault::new(FaultKind::Protocol, error.to_string())),
        }
        match stream.read(&mut buffer).await {
            Ok(0) => return Err(closed()),
            Ok(read) => decoder.push(buffer.get(..read).unwrap_or_default()),
            Err(error) => return Err(broken(error)),
        }
    }
}

/// What `CONNECT` says.
fn credentials(transport: &NatsTransport, url: &NatsUrl, info: &Value) -> Result<Value, Fault> {
    let mut hello = json!({
        "verbose": false,
        "pedantic": false,
        "echo": true,
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
        "name": "standfast",
        "protocol": 1,
        "headers": info["headers"] == true,
        "no_responders": info["headers"] == true,
        "tls_required": false,
    });
    match url.credentials() {
        Some((user, Some(password))) => {
            (hello["user"], hello["pass"]) = (user.into(), password.into());
        }
        // As in NATS' own clients a user alone is a token.
        Some((token, None)) => hello["auth_token"] = token.into(),
        None => {}
    }
    if let Some(text) = &transport.servers.credentials {
        let refused = |why: &str| Fault::new(FaultKind::Refused, format!("--nats-creds: {why}"));
        let jwt = block(text, "NATS USER JWT").ok_or_else(|| refused("no JWT in it"))?;
        let seed = block(text, "USER NKEY SEED").ok_or_else(|| refused("no seed in it"))?;
        let key = nkeys::KeyPair::from_seed(seed).map_err(|_| refused("invalid seed"))?;
        let nonce = info["nonce"].as_str().unwrap_or_default();
        let signature = key.sign(nonce.as_bytes()).map_err(|_| refused("cannot sign"))?;
        hello["jwt"] = jwt.into();
        hello["sig"] = URL_SAFE_NO_PAD.encode(signature).into();
    }
    Ok(hello)
}

/// What is between `-----BEGIN NAME-----` and the next line of dashes.
fn block<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut lines = text.lines().map(str::trim);
    let begins = |line: &str| line.contains("BEGIN") && line.contains(name);
    lines.find(|line| begins(line))?;
    lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with("---"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_two_blocks() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0.x\n------END NATS USER JWT------\n\n\
            -----BEGIN USER NKEY SEED-----\nSUAB\n------END USER NKEY SEED------\n";
        assert_eq!(block(text, "NATS USER JWT"), Some("eyJ0.x"));
        assert_eq!(block(text, "USER NKEY SEED"), Some("SUAB"));
        assert_eq!(block("-----BEGIN USER NKEY SEED-----\n------END", "USER NKEY SEED"), None);
        assert_eq!(block("", "NATS USER JWT"), None);
    }
}
