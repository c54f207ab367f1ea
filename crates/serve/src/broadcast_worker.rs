//! [`BroadcastQueue`]: bodies posted to `/_broadcast` on the client listeners. Workers verify the key
//! and receive the body; a separate thread parses and publishes it, as the admin listener does, so that
//! large bodies do not delay a worker's clients.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use admin::{Program, Reply};
use engine::{Answer, ConnId, Remote, Response};

use crate::control::Control;
use crate::handler::Post;

/// Bodies that may wait to be parsed; beyond that the answer is 503. Each has at most
/// [`BODY_BYTES_MAX`].
const WAITING_MAX: usize = 16;
/// Longest body that is read, in bytes: what the admin listener takes by default.
pub(crate) const BODY_BYTES_MAX: u64 = wire::Limits::BODY_BYTES;

/// The workers' end of the queue. The thread ends when the last of these is dropped.
#[derive(Clone)]
pub(crate) struct Broadcasts(SyncSender<(ConnId, Vec<u8>)>);

/// Where it takes them from.
pub(crate) type Posted = Receiver<(ConnId, Vec<u8>)>;

pub(crate) fn channel() -> (Broadcasts, Posted) {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    (Broadcasts(sender), receiver)
}

impl Broadcasts {
    /// Passes a body on, which is answered later.
    pub(crate) fn pass_on(&self, id: ConnId, body: Vec<u8>) -> Answer {
        match self.0.try_send((id, body)) {
            Ok(()) => Answer::Later,
            Err(_) => {
                let message = "more is posted than is read: publish this again";
                respond(Reply::error(503, "overloaded", message))
            }
        }
    }
}

/// Starts the thread.
///
/// # Errors
/// No thread.
pub(crate) fn start(posted: Posted, control: Arc<Control>, remote: Remote<Post>) -> io::Result<()> {
    let run = move || {
        for (id, body) in posted {
            remote.answer(id, respond(control.broadcast(&body)));
        }
    };
    std::thread::Builder::new().name("broadcasts".to_owned()).spawn(run).map(drop)
}

/// Converts a response of the admin listener to one of the public listener.
pub(crate) fn respond(reply: Reply) -> Answer {
    let Reply { status, content_type, body } = reply;
    let retry = (status == 503).then(|| ("Retry-After".into(), "1".into()));
    let headers = retry.into_iter().collect();
    Answer::Respond(Response { status, headers, content_type, body: body.into(), close: false })
}
