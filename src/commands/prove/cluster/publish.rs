//! Publishers: threads that publish over HTTP at a node and log what was acknowledged. Each publishes to its
//! topics in turn, the next when the last is answered or given up, so that the publications of a topic at a node have
//! an order. None is repeated: a repetition would be another publication.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use engine::sys::process::now_ns;

use super::evidence::{Answer, Publication, stream};

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Wait before the next connect to a node that is down.
const RECONNECT: Duration = Duration::from_millis(50);
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// What publishers do.
#[derive(Clone)]
pub(super) struct Publishing {
    /// The admin listeners of the nodes.
    pub(super) admins: Vec<SocketAddr>,
    pub(super) topics: Vec<String>,
    /// Publications per second of all publishers together.
    pub(super) rate: u64,
    /// Threads per node.
    pub(super) threads: usize,
}

/// Running publishers.
pub(super) struct Publishers {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    log: Mutex<Vec<Publication>>,
    acknowledged: AtomicU64,
    ended: AtomicU64,
    stops: AtomicBool,
}

impl Publishers {
    /// Starts them.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(super) fn start(settings: &Publishing) -> Result<Publishers> {
        let shared = Arc::new(Shared::default());
        let nodes = settings.admins.len();
        let mut threads = Vec::new();
        for node in 0..nodes {
            for nth in 0..settings.threads {
                let publisher = Publisher::new(settings, node, nth, Arc::clone(&shared));
                let name = format!("publisher-{}-{nth}", node + 1);
                let thread = thread::Builder::new().name(name).spawn(move || publisher.run());
                threads.push(thread.context("cannot start a publisher thread")?);
            }
        }
        Ok(Publishers { threads, shared })
    }

    /// Publications acknowledged and ended so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.shared.acknowledged), of(&self.shared.ended))
    }

    /// Stops them and returns the log, after the last answers.
    pub(super) fn finish(self) -> Vec<Publication> {
        self.shared.stops.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
        std::mem::take(&mut *self.shared.log.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One thread's share.
struct Publisher {
    admin: SocketAddr,
    node: usize,
    /// Number, publisher and name of each topic, and the number of its next publication.
    topics: Vec<(u32, u32, String, u32)>,
    every_ns: u64,
    /// When the first is due, so that threads take turns.
    first_ns: u64,
    connection: Option<TcpStream>,
    shared: Arc<Shared>,
}

impl Publisher {
    fn new(settings: &Publishing, node: usize, nth: usize, shared: Arc<Shared>) -> Publisher {
        let (nodes, threads) = (settings.admins.len(), settings.threads.max(1));
        let numbered = settings.topics.iter().zip(0_u32..);
        let own = numbered.skip(nth).step_by(threads);
        let topics = own.map(|(name, topic)| (topic, stream(topic, node, nodes), name.clone(), 0));
        let all = (nodes * threads) as u64;
        let every_ns = all * 1_000_000_000 / settings.rate.max(1);
        let place = (nth * nodes + node) as u64;
        Publisher {
            admin: settings.admins.get(node).copied().unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
            node,
            topics: topics.collect(),
            every_ns,
            first_ns: now_ns() + every_ns * place / all,
            connection: None,
            shared,
        }
    }

    fn run(mut self) {
        let mut due_ns = self.first_ns;
        let mut turn = 0;
        while !self.shared.stops.load(Ordering::Relaxed) && !self.topics.is_empty() {
            let now = now_ns();
            if now < due_ns {
                thread::sleep(Duration::from_nanos((due_ns - now).min(20_000_000)));
                continue;
            }
            // What was not published while the node was down is not made up for.
            due_ns = (due_ns + self.every_ns).max(now.saturating_sub(self.every_ns));
            if self.connection.is_none() {
                match connect(self.admin) {
                    Ok(connection) => self.connection = Some(connection),
                    Err(_) => {
                        thread::sleep(RECONNECT);
                        continue;
                    }
                }
            }
            let at = turn % self.topics.len();
            turn += 1;
            self.publish(at);
        }
    }

    fn publish(&mut self, at: usize) {
        let Some((topic, publisher, name, next)) = self.topics.get_mut(at) else { return };
        let sequence = *next;
        *next += 1;
        let sent_ns = now_ns();
        let message = load::publication::Publication::new(*publisher, sequence, sent_ns);
        let data = load::publication::encode(&message, 0);
        let body = serde_json::json!({ "topic": name, "data": data }).to_string();
        let request = format!(
            "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (topic, publisher) = (*topic, *publisher);
        let status = self.connection.as_mut().and_then(|connection| {
            connection.write_all(request.as_bytes()).ok()?;
            answer(connection).ok()
        });
        let answer = match status {
            Some((200..300, _)) => Answer::Acknowledged,
            Some((status, _)) => Answer::Refused(status),
            None => Answer::Unknown,
        };
        if !status.is_some_and(|(_, stays)| stays) {
            self.connection = None;
        }
        let node = self.node;
        let ended_ns = now_ns();
        let publication =
            Publication { publisher, sequence, topic, node, sent_ns, ended_ns, answer };
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner).push(publication);
        self.shared.ended.fetch_add(1, Ordering::Relaxed);
        if answer == Answer::Acknowledged {
            self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn connect(admin: SocketAddr) -> io::Result<TcpStream> {
    let connection = TcpStream::connect_timeout(&admin, CONNECT_TIMEOUT)?;
    connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    connection.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

/// Reads an answer with a Content-Length: its status, and whether the connection stays open.
fn answer(connection: &mut TcpStream) -> io::Result<(u16, bool)> {
    let mut read = Vec::new();
    let mut portion = [0; 4096];
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let head = read.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = head {
            let text = String::from_utf8_lossy(read.get(..end).unwrap_or_default()).to_lowercase();
            let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
            let header = |name: &str| {
                let mut fields = text.lines().filter_map(|line| line.split_once(':'));
                fields.find(|field| field.0 == name).map(|field| field.1.trim())
            };
            let length = header("content-length").and_then(|length| length.parse().ok());
            if read.len() >= end + 4 + length.unwrap_or(0_usize) {
                let stays = header("connection") != Some("close") && length.is_some();
                return Ok((status.ok_or_else(invalid)?, stays));
            }
        }
        if read.len() > ANSWER_BYTES_MAX {
            return Err(invalid());
        }
        match connection.read(&mut portion)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => read.extend_from_slice(portion.get(..length).unwrap_or_default()),
        }
    }
}

/// Whether a node answers that it is ready.
pub(super) fn is_ready(admin: SocketAddr) -> bool {
    let asked = connect(admin).and_then(|mut connection| {
        connection.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        answer(&mut connection)
    });
    asked.is_ok_and(|(status, _)| status == 200)
}

/// Reads the metrics of a node.
///
/// # Errors
/// A node that does not answer in time.
pub(super) fn metrics(admin: SocketAddr) -> io::Result<String> {
    let mut connection = connect(admin)?;
    connection.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    connection
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    connection.take(METRICS_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Bytes of metrics that are read.
const METRICS_BYTES_MAX: u64 = 4 * 1024 * 1024;
