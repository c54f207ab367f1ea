//! [`Messages`]: plain messages between programs, by subjects of NATS. At most once: what is sent or received
//! while the connection is down is gone, so callers repeat important messages.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc as queue;
use tokio::task::LocalSet;

use super::NatsTransport;
use super::connection::Connection;
use super::protocol::{self, Delivery};
use crate::backoff::Backoff;
use crate::limits::PING_INTERVAL;
use crate::transport::Fault;

/// The most messages, and bytes, that wait to be sent; further messages are dropped and counted.
const OUTGOING_MAX: usize = 4_096;
const OUTGOING_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The most bytes that were received and not taken yet; further messages are dropped and counted.
const INCOMING_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Memory of a message that waits, beside its body.
const MESSAGE_BYTES: usize = 2 * size_of::<Event>();

/// Something that happened on the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// It is there, and all subjects are subscribed. The longest payload in bytes.
    Open(usize),
    /// It was lost, or could not be opened; it is tried again.
    Down(String),
    /// A message on the subject of this place in the list.
    Message(usize, Vec<u8>),
}

/// A connection, on a thread of its own. It ends when this is dropped.
pub struct Messages {
    outgoing: Option<queue::Sender<(String, Vec<u8>)>>,
    incoming: mpsc::Receiver<Event>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_open: AtomicBool,
    outgoing_bytes: AtomicUsize,
    incoming_bytes: AtomicUsize,
    dropped: AtomicUsize,
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("dropped", &self.dropped()).finish_non_exhaustive()
    }
}

impl Messages {
    /// Starts the thread, which connects and subscribes to these subjects, again whenever the connection ends.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(transport: NatsTransport, subjects: Vec<String>) -> io::Result<Messages> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (outgoing, queued) = queue::channel(OUTGOING_MAX);
        let (events, incoming) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("messages".to_owned()).spawn(move || {
            let run = run(&transport, &subjects, queued, &events, &of_thread);
            LocalSet::new().block_on(&runtime, run);
        })?;
        Ok(Messages { outgoing: Some(outgoing), incoming, shared, thread: Some(thread) })
    }

    /// Sends a message. Without a connection, or if too many wait, it is dropped.
    pub fn send(&self, subject: &str, body: Vec<u8>) {
        let shared = &self.shared;
        let bytes = body.len();
        let waiting = shared.outgoing_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = shared.is_open.load(Ordering::Relaxed) && waiting + bytes <= OUTGOING_BYTES_MAX;
        let sent = self.outgoing.as_ref().filter(|_| fits);
        if sent.is_none_or(|queue| queue.try_send((subject.to_owned(), body)).is_err()) {
            shared.outgoing_bytes.fetch_sub(bytes, Ordering::Relaxed);
            shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The next event, if there is one within this time.
    #[must_use]
    pub fn next(&self, within: Duration) -> Option<Event> {
        let event = self.incoming.recv_timeout(within).ok()?;
        if let Event::Message(_, body) = &event {
            self.shared.incoming_bytes.fetch_sub(body.len() + MESSAGE_BYTES, Ordering::Relaxed);
        }
        Some(event)
    }

    /// Messages that were not sent or not taken.
    #[must_use]
    pub fn dropped(&self) -> usize {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        // What waits is sent before the thread sees that nothing more comes.
        self.outgoing = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn run(
    transport: &NatsTransport,
    subjects: &[String],
    mut queued: queue::Receiver<(String, Vec<u8>)>,
    events: &mpsc::Sender<Event>,
    shared: &Arc<Shared>,
) {
    let mut backoff = Backoff::default();
    loop {
        let fault = session(transport, subjects, &mut queued, events, shared, &mut backoff).await;
        shared.is_open.store(false, Ordering::Relaxed);
        let Some(fault) = fault else { return };
        // The receiver may be gone.
        let _ = events.send(Event::Down(fault.why));
        tokio::select! {
            () = backoff.pause() => {}
            // Nothing is queued without a connection, or it is of the last one.
            () = discard(&mut queued, shared) => return,
        }
    }
}

/// Drops what is sent while there is no connection, until nobody sends any more.
async fn discard(queued: &mut queue::Receiver<(String, Vec<u8>)>, shared: &Shared) {
    while let Some((_, body)) = queued.recv().await {
        shared.outgoing_bytes.fetch_sub(body.len(), Ordering::Relaxed);
        shared.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Connects, and passes messages on until the connection ends, for this reason. `None` if nobody uses it any more.
async fn session(
    transport: &NatsTransport,
    subjects: &[String],
    queued: &mut queue::Receiver<(String, Vec<u8>)>,
    events: &mpsc::Sender<Event>,
    shared: &Arc<Shared>,
    backoff: &mut Backoff,
) -> Option<Fault> {
    let (listener, counts) = (events.clone(), Arc::clone(shared));
    let arrived = move |delivery: Delivery| {
        let Some(at) = delivery.sid.checked_sub(1).and_then(|at| usize::try_from(at).ok()) else {
            return;
        };
        let bytes = delivery.body.len() + MESSAGE_BYTES;
        if counts.incoming_bytes.load(Ordering::Relaxed) + bytes > INCOMING_BYTES_MAX {
            counts.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        counts.incoming_bytes.fetch_add(bytes, Ordering::Relaxed);
        let _ = listener.send(Event::Message(at, delivery.body));
    };
    let opening = transport.connection(arrived);
    let connection: Connection = tokio::select! {
        opened = opening => match opened {
            Ok(connection) => connection,
            Err(fault) => return Some(fault),
        },
        () = discard(queued, shared) => return None,
    };
    let mut subscriptions = Vec::new();
    for (sid, subject) in (1..).zip(subjects) {
        protocol::subscribe(&mut subscriptions, subject, sid);
    }
    if let Err(fault) = connection.round_trip(&subscriptions).await {
        return Some(fault);
    }
    backoff.connected();
    shared.is_open.store(true, Ordering::Relaxed);
    let _ = events.send(Event::Open(connection.payload_bytes_max()));
    let mut ended = std::pin::pin!(connection.ended());
    let mut pings = tokio::time::interval(PING_INTERVAL);
    loop {
        tokio::select! {
            fault = &mut ended => return Some(fault),
            next = queued.recv() => {
                let Some((subject, body)) = next else {
                    // All that was sent has reached the server when it answers.
                    let _ = connection.round_trip(&[]).await;
                    return None;
                };
                shared.outgoing_bytes.fetch_sub(body.len(), Ordering::Relaxed);
                if body.len() > connection.payload_bytes_max() {
                    // The server would close the connection.
                    shared.dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let mut sent = connection.requests();
                protocol::publish(&mut sent.bytes, &subject, &body);
                if let Err(fault) = sent.send().await {
                    return Some(fault);
                }
            }
            // A connection that swallows everything does not answer.
            _ = pings.tick() => if let Err(fault) = connection.round_trip(&[]).await {
                return Some(fault);
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_servers::Server;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn open(messages: &Messages) {
        while !matches!(messages.next(PATIENCE).expect("it opens"), Event::Open(_)) {}
    }

    #[test]
    fn messages_reach_their_subject_and_again_after_a_restart() {
        let Some(mut server) = Server::nats(&[]) else { return };
        let start = |subjects: &[&str]| {
            let subjects = subjects.iter().map(|subject| (*subject).to_owned()).collect();
            Messages::start(server.nats_transport(), subjects).unwrap()
        };
        let (one, other) = (start(&["t.one", "t.all"]), start(&["t.other", "t.all"]));
        for messages in [&one, &other] {
            open(messages);
        }
        one.send("t.other", b"hello".to_vec());
        one.send("t.all", b"both".to_vec());
        let got = [other.next(PATIENCE), other.next(PATIENCE), one.next(PATIENCE)];
        let message = |at, body: &[u8]| Some(Event::Message(at, body.to_vec()));
        assert_eq!(got, [message(0, b"hello"), message(1, b"both"), message(1, b"both")]);
        server.restart();
        for messages in [&one, &other] {
            open(messages);
        }
        other.send("t.one", b"again".to_vec());
        drop(other);
        assert_eq!(one.next(PATIENCE), message(0, b"again"), "sent before it ended");
        assert_eq!(one.dropped(), 0);
    }

    #[test]
    fn it_ends_without_a_server() {
        let servers = crate::NatsServers {
            urls: vec!["nats://127.0.0.1:1".parse().unwrap()],
            credentials: None,
        };
        let messages =
            Messages::start(NatsTransport { servers, tls: None }, vec!["t".to_owned()]).unwrap();
        assert!(matches!(messages.next(PATIENCE), Some(Event::Down(_))));
        messages.send("t", Vec::new());
        assert_eq!(messages.dropped(), 1);
    }
}
