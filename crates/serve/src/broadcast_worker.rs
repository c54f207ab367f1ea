//! [`BroadcastQueue`]: bodies posted to `/_broadcast` on the client listeners. Workers verify the key
//! and receive the body; a separate thread parses and publishes it, as the admin listener does, so that
//! large bodies do not delay a worker's clients. With a broker the next ones are published while earlier
//! ones wait for it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use admin::Reply;
use engine::{Answer, ConnId, Remote, Response, invariant};

use crate::control::{self, Control};
use crate::handler::Post;

/// Bodies that may wait to be parsed; beyond that the answer is 503. Each has at most
/// [`BODY_BYTES_MAX`].
const QUEUE_MAX: usize = 16;
/// Bodies whose publications the broker may have yet to take; beyond that the next ones wait to be parsed.
const AWAITED_MAX: usize = 256;
/// Longest body, in bytes: the admin listener's default.
pub(crate) const BODY_BYTES_MAX: u64 = wire::Limits::BODY_BYTES;

/// The workers' end of the queue. The thread ends when the last of these is dropped.
#[derive(Clone)]
pub(crate) struct BroadcastQueue(SyncSender<(ConnId, Vec<u8>)>);

/// The thread's end of the queue.
pub(crate) type BroadcastReceiver = Receiver<(ConnId, Vec<u8>)>;

pub(crate) fn channel() -> (BroadcastQueue, BroadcastReceiver) {
    let (sender, receiver) = sync_channel(QUEUE_MAX);
    (BroadcastQueue(sender), receiver)
}

impl BroadcastQueue {
    /// Queues a body; it is answered later.
    pub(crate) fn submit(&self, id: ConnId, body: Vec<u8>) -> Answer {
        match self.0.try_send((id, body)) {
            Ok(()) => return Answer::Later,
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => {
                invariant::broken("the broadcast thread runs as long as the workers");
            }
        }
        let message = "too many broadcasts are waiting: publish this one again";
        respond(Reply::error(503, "overloaded", message))
    }
}

/// Starts the threads: one parses and publishes, in the order of the queue; the other waits for the broker and
/// answers.
///
/// # Errors
/// One cannot be started.
pub(crate) fn start(
    receiver: BroadcastReceiver,
    control: Arc<Control>,
    remote: Remote<Post>,
) -> io::Result<()> {
    let (waiting, awaited) = sync_channel(AWAITED_MAX);
    let (own, answers) = (Arc::clone(&control), remote.clone());
    let publish = move || {
        for (id, body) in receiver {
            match own.begin_broadcast(&body) {
                control::Answer::Now(reply) => answers.answer(id, respond(reply)),
                later => drop(waiting.send((id, later))),
            }
        }
    };
    let answer = move || {
        for (id, later) in awaited {
            remote.answer(id, respond(later.wait(&control)));
        }
    };
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    thread("broadcasts").spawn(publish)?;
    thread("broadcast replies").spawn(answer).map(drop)
}

/// Converts a response of the admin listener to one of the public listener.
pub(crate) fn respond(reply: Reply) -> Answer {
    let Reply { status, content_type, body } = reply;
    let retry =
        matches!(status, 429 | 503).then(|| ("Retry-After".into(), admin::retry_after().into()));
    let headers = retry.into_iter().collect();
    Answer::Respond(Response { status, headers, content_type, body: body.into(), close: false })
}
