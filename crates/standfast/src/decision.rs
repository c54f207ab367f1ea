//! [`Decision`]: an upgrade that is decided later, by another thread.

use std::sync::{Arc, Mutex, PoisonError};

use engine::Answer;

use crate::handler::Opening;
use crate::{InvalidHeader, Remote, Response, SocketId};

/// The client of [`UpgradeRequest::later`](crate::UpgradeRequest::later), which waits for an answer. It can
/// be sent to another thread or kept in a future, if the data of the socket can.
///
/// A decision that is dropped answers 500. One that takes longer than
/// [`Limits::handshake_timeout`](crate::Limits::handshake_timeout) comes too late: the client was
/// answered 504.
pub struct Decision<D> {
    shared: Arc<Shared<D>>,
    id: SocketId,
    remote: Remote,
    decided: bool,
    answer: Opening,
}

/// The worker's side of a [`Decision`].
pub(crate) struct Undecided<D>(Arc<Shared<D>>);

struct Shared<D>(Mutex<Option<Outcome<D>>>);

pub(crate) enum Outcome<D> {
    Accept { data: D, answer: Opening },
    Refuse(Response),
}

pub(crate) fn undecided<D>(id: SocketId, remote: Remote) -> (Decision<D>, Undecided<D>) {
    let shared = Arc::new(Shared(Mutex::new(None)));
    let undecided = Undecided(Arc::clone(&shared));
    (Decision { shared, id, remote, decided: false, answer: Opening::default() }, undecided)
}

impl<D> Undecided<D> {
    pub(crate) fn take(&self) -> Option<Outcome<D>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<D> Decision<D> {
    /// The id that the socket will have.
    #[must_use]
    pub fn id(&self) -> SocketId {
        self.id
    }

    /// Lets the client in, without a subprotocol.
    pub fn accept(mut self, data: D) {
        let answer = std::mem::take(&mut self.answer);
        self.settle(Outcome::Accept { data, answer });
    }

    /// Lets the client in with a subprotocol that it offered.
    pub fn accept_with_protocol(mut self, data: D, protocol: &str) {
        self.answer.protocol = Some(protocol.into());
        self.accept(data);
    }

    /// Adds a header to the answer that opens the socket, as [`Accept::header`](crate::Accept::header).
    ///
    /// # Errors
    /// [`InvalidHeader`]: a line break, or a header that the server sets itself.
    pub fn header(&mut self, name: &str, value: &str) -> Result<(), InvalidHeader> {
        self.answer.add(name, value)
    }

    /// Refuses the client with this answer.
    pub fn refuse(mut self, response: Response) {
        self.settle(Outcome::Refuse(response));
    }

    /// Whether the client has left or was answered 504 meanwhile, so that nobody needs the decision.
    #[must_use]
    pub fn is_pointless(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    fn settle(&mut self, outcome: Outcome<D>) {
        self.decided = true;
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.remote.workers.answer(self.id, Answer::ByHandler);
    }
}

impl<D> Drop for Decision<D> {
    fn drop(&mut self) {
        if !self.decided {
            let response = Response::text(500, "The server did not decide about this client.\n");
            self.settle(Outcome::Refuse(response));
        }
    }
}

impl<D> std::fmt::Debug for Decision<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decision({})", self.id)
    }
}
