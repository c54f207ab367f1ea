//! [`Publisher`]: publishes at a rate, from a thread of its own, over HTTP or by a socket of the
//! run. Open model: each publication is due at its time; how much later it left is recorded.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::Remote;
use engine::sys::process::now_ns;
use serde_json::Value;
use wire::http::{BodyDecoder, BodyEvent, HeadScanner, encode_request_head, parse_response};
use wire::{Limits, Status};

use crate::broadcast::{self, Publication};
use crate::client::Order;
use crate::pacer::Pacer;
use crate::{Endpoint, Fanout, Publish, Recorder, Series};

/// Longest wait for a server to take a connection or to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Header lines of an answer.
const HEADERS_MAX: usize = 100;
/// Different failures that are told apart.
const CAUSES_MAX: usize = 32;
/// How long after the end publications that were due before it are still sent.
const OVERDUE_NS: u64 = 250_000_000;
/// Longest sleep at a time, so that an interrupted run ends soon.
const NAP: Duration = Duration::from_millis(50);

/// A publisher at work.
pub(crate) struct Publisher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    done: AtomicBool,
    /// Publications that the server took, or that a socket was told to send.
    published: AtomicU32,
    books: Mutex<Books>,
}

/// How publishing went.
#[derive(Clone, Default)]
pub(crate) struct Books {
    /// Publications refused or unanswered, by cause.
    pub(crate) failed: BTreeMap<String, u64>,
    /// [`Series::PublishLag`], and [`Series::Publish`] where there is an answer.
    pub(crate) recorder: Recorder,
    /// From the beginning to when the last was sent.
    pub(crate) sending_ns: u64,
}

impl Publisher {
    /// Begins to publish; `remote` reaches the workers, of which `worker` has the publishing
    /// socket.
    pub(crate) fn start(
        fanout: &Fanout,
        remote: Remote<Order>,
        worker: usize,
    ) -> io::Result<Publisher> {
        let shared = Arc::new(Shared::default());
        let (fanout, inside) = (fanout.clone(), Arc::clone(&shared));
        let run = move || {
            let door: Box<dyn Door> = match fanout.publish.clone() {
                Publish::Http(http) => Box::new(Http { http, connection: None }),
                Publish::Socket => Box::new(Socket { remote, worker }),
            };
            publish(&fanout, door, &inside);
            inside.done.store(true, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("publisher".to_owned()).spawn(run)?;
        Ok(Publisher { shared, thread: Some(thread) })
    }

    /// Whether all that was to be published has been, or has failed.
    pub(crate) fn is_done(&self) -> bool {
        self.shared.done.load(Ordering::Acquire)
    }

    /// Publications so far.
    pub(crate) fn published(&self) -> u32 {
        self.shared.published.load(Ordering::Acquire)
    }

    pub(crate) fn books(&self) -> Books {
        self.shared.books().clone()
    }

    /// Ends it and waits for that.
    pub(crate) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn publish(fanout: &Fanout, mut door: Box<dyn Door>, shared: &Shared) {
    let begin_ns = now_ns();
    let pacer = Pacer::new(begin_ns, fanout.rate, 1, 1);
    let until_ns = fanout.duration.map_or(u64::MAX, |time| begin_ns + time.as_nanos() as u64);
    let mut sequence = 0;
    for number in 0..u64::from(fanout.messages.unwrap_or(u32::MAX)) {
        let due_ns = pacer.due_ns(number);
        if due_ns >= until_ns || !wait_until(due_ns, shared) {
            return;
        }
        let sent_ns = now_ns();
        if sent_ns > until_ns.saturating_add(OVERDUE_NS) {
            return;
        }
        let (publisher, published_ns) = (Fanout::PUBLISHER, sent_ns);
        let data =
            broadcast::encode(&Publication { publisher, sequence, published_ns }, fanout.size);
        let result = door.publish(&data);
        let mut books = shared.books();
        books.sending_ns = sent_ns - begin_ns;
        books.recorder.record(Series::PublishLag, sent_ns.saturating_sub(due_ns));
        books.recorder.record(Series::Publish, now_ns().saturating_sub(sent_ns));
        match result {
            Ok(()) => {
                sequence += 1;
                shared.published.fetch_add(1, Ordering::Release);
            }
            Err(Failure { cause, certain }) => {
                // A number that may have been published is not used again.
                sequence += u32::from(!certain);
                let known = books.failed.len() < CAUSES_MAX || books.failed.contains_key(&cause);
                let cause = if known { cause } else { "other".to_owned() };
                *books.failed.entry(cause).or_default() += 1;
            }
        }
    }
}

/// False when the run is over before.
fn wait_until(due_ns: u64, shared: &Shared) -> bool {
    loop {
        if shared.stop.load(Ordering::Acquire) {
            return false;
        }
        let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// Where publications enter.
trait Door {
    fn publish(&mut self, data: &str) -> Result<(), Failure>;
}

/// Why a publication was not taken.
struct Failure {
    /// In a few words.
    cause: String,
    /// Whether it is certain that it was not.
    certain: bool,
}

/// A socket of the run sends it.
struct Socket {
    remote: Remote<Order>,
    worker: usize,
}

impl Door for Socket {
    fn publish(&mut self, data: &str) -> Result<(), Failure> {
        let order = Order::Publish(data.as_bytes().into());
        let posted = self.remote.post(self.worker, order, data.len());
        posted
            .map_err(|_| Failure { cause: "the generator is overloaded".to_owned(), certain: true })
    }
}

/// One HTTP request each, over a connection that is kept (RFC 9112).
struct Http {
    http: HttpPublish,
    connection: Option<TcpStream>,
}

/// How to publish over HTTP.
#[derive(Clone, Debug)]
pub struct HttpPublish {
    /// Where.
    pub endpoint: Endpoint,
    /// Further header lines.
    pub headers: Vec<(String, String)>,
    /// The body, in which `$DATA` is replaced by the message as a JSON string without its quotes.
    pub body: String,
}

impl HttpPublish {
    /// The body that `standfast serve` takes, for a topic.
    #[must_use]
    pub fn body_for(topic: &str) -> String {
        format!("{{\"topic\":{},\"data\":\"$DATA\"}}", Value::from(topic))
    }
}

impl Door for Http {
    fn publish(&mut self, data: &str) -> Result<(), Failure> {
        let failure = |error: &io::Error, certain| {
            let cause = match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
                kind => kind.to_string(),
            };
            Failure { cause, certain }
        };
        let request = self.request(data);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().map_err(|error| failure(&error, true))?,
        };
        let sent = connection.write_all(&request);
        let answered = sent.and_then(|()| answer(&mut connection));
        let (status, keep) = answered.map_err(|error| failure(&error, false))?;
        self.connection = keep.then_some(connection);
        if (200..300).contains(&status) {
            return Ok(());
        }
        Err(Failure { cause: format!("HTTP {status}"), certain: true })
    }
}

impl Http {
    fn connect(&self) -> io::Result<TcpStream> {
        let connection = TcpStream::connect_timeout(&self.http.endpoint.address, TIMEOUT)?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    fn request(&self, data: &str) -> Vec<u8> {
        let HttpPublish { endpoint, headers, body } = &self.http;
        // Nothing in it needs escaping: words of letters, digits and blanks.
        let body = body.replace("$DATA", data);
        let length = body.len().to_string();
        let own = [
            ("Host", endpoint.host.as_str()),
            ("Content-Type", "application/json"),
            ("Content-Length", &length),
        ];
        let more = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut request = Vec::with_capacity(256 + body.len());
        encode_request_head(&mut request, "POST", &endpoint.path, own.into_iter().chain(more));
        request.extend_from_slice(body.as_bytes());
        request
    }
}

/// Reads one answer whole: its status, and whether the connection can be used again.
fn answer(connection: &mut TcpStream) -> io::Result<(u16, bool)> {
    let limits = Limits::default();
    let wrong = |violation: wire::Violation| io::Error::new(ErrorKind::InvalidData, violation);
    let (mut scanner, mut bytes) = (HeadScanner::default(), Vec::new());
    let end = loop {
        if let Status::Complete(end) = scanner.scan(&bytes, &limits).map_err(wrong)? {
            break end;
        }
        read_more(connection, &mut bytes)?;
    };
    let rest = bytes.split_off(end);
    let mut headers = [wire::http::EMPTY_HEADER; HEADERS_MAX];
    let response = parse_response(&bytes, &mut headers).map_err(wrong)?;
    let keep = wire::http::keep_alive(&response);
    let mut body = BodyDecoder::for_response(&response, "POST", &limits).map_err(wrong)?;
    let until_close = body.is_until_close();
    let (status, mut bytes) = (response.status, rest);
    while !body.is_done() {
        match body.decode(&bytes).map_err(wrong)? {
            Status::Complete((used, BodyEvent::End)) => {
                bytes.drain(..used);
                break;
            }
            Status::Complete((used, BodyEvent::Data(_))) => drop(bytes.drain(..used)),
            Status::Partial => match read_more(connection, &mut bytes) {
                Err(error) if until_close && error.kind() == ErrorKind::UnexpectedEof => break,
                read => read?,
            },
        }
    }
    Ok((status, keep && !until_close))
}

fn read_more(connection: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut some = [0; 4_096];
    let read = connection.read(&mut some)?;
    if read == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    bytes.extend_from_slice(some.get(..read).unwrap_or_default());
    Ok(())
}
