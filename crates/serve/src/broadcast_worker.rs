//! [`BroadcastQueue`]: bodies posted to `/_broadcast` on the client listeners. Workers verify the key
//! and receive the body; a separate thread parses and publishes it, as the admin listener does, so that
//! large bodies do not delay a worker's clients.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use admin::{Program, Reply};
use engine::{Answer, ConnId, Remote, Response, invariant};

use crate::control::Control;
use crate::handler::Post;

/// Bodies that may wait to be parsed; beyond that the answer is 503. Each has at most
/// [`BODY_BYTES_MAX`].
const QUEUE_MAX: usize = 16;
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

/// Starts the thread.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start(
    receiver: BroadcastReceiver,
    control: Arc<Control>,
    remote: Remote<Post>,
) -> io::Result<()> {
    let run = move || {
        for (id, body) in receiver {
            remote.answer(id, respond(control.broadcast(&body)));
        }
    };
    std::thread::Builder::new().name("broadcasts".to_owned()).spawn(run).map(drop)
}

/// Converts a response of the admin listener to one of the public listener.
pub(crate) fn respond(reply: Reply) -> Answer {
    let Reply { status, content_type, body } = reply;
    let retry =
        matches!(status, 429 | 503).then(|| ("Retry-After".into(), admin::retry_after().into()));
    let headers = retry.into_iter().collect();
    Answer::Respond(Response { status, headers, content_type, body: body.into(), close: false })
}
