//! [`Exchange`]: a plain request whose body or answer comes in pieces, and [`Http`], what it can do.

use std::net::SocketAddr;

use wire::http::{BodyDecoder, LAST_CHUNK, encode_chunk, encode_response_head, is_bodiless};

use crate::operations::Operations;
use crate::reply::{Reply, Shared};
use crate::{Remote, Response, Sent, SocketId};

/// Bytes of an answer that are collected before they are written.
const OUT_BYTES: usize = 32 * 1024;

/// What a program does with one request whose body is received in pieces, whose answer is sent in pieces, or
/// both. Made by the function of [`Server::exchange`](crate::Server::exchange); each request has its own,
/// which stays in its worker.
///
/// # Cost
/// An allocation for each request, and a search among the exchanges of the worker for each piece. As with
/// [`Handler`](crate::Handler), a call blocks its worker: hand over what takes long, see [`Http::reply`].
pub trait Exchange: 'static {
    /// The request has arrived, perhaps without its body. Begin the answer here, or when the body is there.
    fn begin(&mut self, _http: &mut Http<'_>) {}

    /// Bytes of the body. A client that sends faster than they can be used is slowed down by
    /// [`Http::pause`].
    fn data(&mut self, _http: &mut Http<'_>, _data: &[u8]) {}

    /// The body is complete; called for requests without a body, too, after [`Exchange::begin`].
    fn end(&mut self, _http: &mut Http<'_>) {}

    /// Everything that was written was taken by the kernel: the time to go on writing, after
    /// [`Sent::Queued`] and [`Sent::Dropped`].
    fn drain(&mut self, _http: &mut Http<'_>) {}

    /// The server stops: an answer that would not end by itself should end now. Those that have not ended
    /// after [`Limits::stop_grace`](crate::Limits::stop_grace) are cut off.
    fn stopping(&mut self, _http: &mut Http<'_>) {}

    /// The exchange has ended; called exactly once. `complete` says whether the answer was passed on
    /// completely: otherwise the client has left, was too slow, or the exchange was aborted.
    fn close(self: Box<Self>, _complete: bool) {}
}

/// How far the answer is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Waiting,
    /// With this many bytes to come, if their number was announced.
    Streaming(Option<u64>),
    Finished,
    Aborted,
}

/// What is known of an exchange besides what the program keeps.
pub(crate) struct State {
    /// What is to come of the body; `None` if it was complete with the head.
    pub(crate) decoder: Option<BodyDecoder>,
    /// [`Exchange::end`] was called.
    pub(crate) body_ended: bool,
    pub(crate) begun: bool,
    pub(crate) progress: Progress,
    /// The answer is sent in chunks; otherwise with a length, or until the connection ends.
    chunked: bool,
    /// Its body is not sent: the answer to HEAD, or a status that has none.
    bodiless: bool,
    head_only: bool,
    http_1_0: bool,
    /// Another request may follow.
    pub(crate) keep_alive: bool,
    /// Reading the body is paused by the program.
    pub(crate) paused: bool,
    /// Something was not taken: [`Exchange::drain`] is due, even if nothing is queued.
    pub(crate) refused: bool,
    pub(crate) told_stopping: bool,
    /// Bytes that were written in this call.
    pub(crate) written: usize,
    /// When a byte last moved, and how many were queued then.
    pub(crate) moved_ns: u64,
    pub(crate) queued: usize,
    /// The answer of another thread.
    pub(crate) reply: Option<std::sync::Arc<Shared>>,
    /// When the client is answered 504 at the latest.
    pub(crate) until_ns: Option<u64>,
}

impl State {
    pub(crate) fn new(
        head: &wire::http::Request<'_, '_>,
        decoder: Option<BodyDecoder>,
        now_ns: u64,
    ) -> Self {
        State {
            decoder,
            body_ended: false,
            begun: false,
            progress: Progress::Waiting,
            chunked: false,
            bodiless: false,
            head_only: head.method == "HEAD",
            http_1_0: head.version == 0,
            keep_alive: wire::http::keep_alive(head),
            paused: false,
            refused: false,
            told_stopping: false,
            written: 0,
            moved_ns: now_ns,
            queued: 0,
            reply: None,
            until_ns: None,
        }
    }

    pub(crate) fn body_is_complete(&self) -> bool {
        self.decoder.as_ref().is_none_or(BodyDecoder::is_done)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.progress, Progress::Finished | Progress::Aborted)
    }
}

/// The request that an [`Exchange`] is called for. It lives as long as the call.
pub struct Http<'a> {
    pub(crate) operations: &'a mut dyn Operations,
    pub(crate) id: SocketId,
    pub(crate) state: &'a mut State,
    /// Bytes of the answer that were not written yet.
    pub(crate) out: &'a mut Vec<u8>,
}

impl Http<'_> {
    /// Identifies the connection, which may serve several requests one after the other.
    #[must_use]
    pub fn id(&self) -> SocketId {
        self.id
    }

    /// Answers completely. Returns `false` if an answer has begun already.
    pub fn respond(&mut self, response: Response) -> bool {
        let length = response.0.body.len() as u64;
        if self.state.progress == Progress::Waiting {
            // What is still to come of the body is not read.
            self.state.keep_alive &= self.state.body_is_complete();
        }
        self.begin(response, Some(length)) && self.finish()
    }

    /// Begins an answer whose body follows by [`Http::write`], ended by [`Http::finish`]. A body in the
    /// response is its first piece. With a length, exactly that many bytes have to follow; without one the
    /// body is sent in chunks (HTTP/1.1) or ends with the connection (HTTP/1.0). Returns `false` if an
    /// answer has begun already.
    pub fn begin(&mut self, response: Response, length: Option<u64>) -> bool {
        if self.state.progress != Progress::Waiting {
            return false;
        }
        let response = response.0;
        let without = is_bodiless(response.status);
        self.state.bodiless = self.state.head_only || without;
        self.state.chunked = length.is_none() && !without && !self.state.http_1_0;
        if length.is_none() && self.state.http_1_0 || response.close {
            self.state.keep_alive = false;
        }
        let number = length.filter(|_| !without).map(|length| length.to_string());
        let framing = match &number {
            Some(number) => Some(("Content-Length", number.as_str())),
            None => self.state.chunked.then_some(("Transfer-Encoding", "chunked")),
        };
        let connection = if self.state.keep_alive { "keep-alive" } else { "close" };
        let own = [("Content-Type", response.content_type), ("Connection", connection)];
        let extra = response.headers.iter().map(|(name, value)| (&**name, &**value));
        let headers = own.into_iter().chain(framing).chain(extra);
        encode_response_head(self.out, response.status, headers);
        self.state.progress = Progress::Streaming(length);
        if length.is_none_or(|length| response.body.len() as u64 <= length) {
            self.put(&response.body);
        }
        true
    }

    /// Writes a piece of the body of an answer that was begun.
    ///
    /// [`Sent::Queued`] says how many bytes wait: stop then, and go on in [`Exchange::drain`].
    /// [`Sent::Dropped`]: nothing of this piece was written, because more than
    /// [`Limits::send_queue_bytes`](crate::Limits::send_queue_bytes) would wait, the announced length is
    /// exceeded, or no answer has begun; in the first case write it again in [`Exchange::drain`].
    ///
    /// Cost: a copy, and a system call for each 32 KiB and each call of the exchange.
    pub fn write(&mut self, data: &[u8]) -> Sent {
        let Progress::Streaming(left) = self.state.progress else { return Sent::Dropped };
        if left.is_some_and(|left| left < data.len() as u64) {
            return Sent::Dropped;
        }
        let waiting = self.operations.queued_bytes(self.id) + self.state.written + self.out.len();
        if waiting > 0 && waiting + data.len() > self.operations.queue_limit() {
            self.state.refused = true;
            return Sent::Dropped;
        }
        self.put(data);
        match self.operations.queued_bytes(self.id) {
            0 => Sent::Sent,
            queued => Sent::Queued(queued + self.out.len()),
        }
    }

    fn put(&mut self, data: &[u8]) {
        if let Progress::Streaming(Some(left)) = &mut self.state.progress {
            *left = left.saturating_sub(data.len() as u64);
        }
        if self.state.bodiless {
            return;
        }
        if self.state.chunked {
            encode_chunk(self.out, data);
        } else {
            self.out.extend_from_slice(data);
        }
        if self.out.len() >= OUT_BYTES {
            self.flush();
        }
    }

    pub(crate) fn flush(&mut self) {
        if self.out.is_empty() {
            return;
        }
        self.state.written += self.out.len();
        if self.operations.write(self.id, self.out) == Sent::Dropped {
            // The connection has ended.
            self.state.progress = Progress::Aborted;
        }
        self.out.clear();
        self.out.shrink_to(2 * OUT_BYTES);
    }

    /// Ends the answer. If less than the announced length was written, the connection is cut off instead.
    /// Returns `false` if no answer was begun, or it has ended.
    pub fn finish(&mut self) -> bool {
        match self.state.progress {
            Progress::Streaming(left) => {
                if left.is_some_and(|left| left > 0) && !self.state.bodiless {
                    self.abort();
                    return false;
                }
                if self.state.chunked && !self.state.bodiless {
                    self.out.extend_from_slice(LAST_CHUNK);
                }
                self.state.progress = Progress::Finished;
                true
            }
            Progress::Waiting | Progress::Finished | Progress::Aborted => false,
        }
    }

    /// Ends the connection at once: the client notices that the answer is not complete.
    pub fn abort(&mut self) {
        if self.state.progress != Progress::Finished {
            self.out.clear();
            self.state.progress = Progress::Aborted;
        }
    }

    /// Stops reading the body after this call; at most 64 KiB that were received already wait.
    pub fn pause(&mut self) {
        self.state.paused = true;
    }

    /// Goes on reading the body. Other threads do so by [`Remote::resume`].
    pub fn resume(&mut self) {
        self.state.paused = false;
    }

    /// Whether the body was received completely.
    #[must_use]
    pub fn body_is_complete(&self) -> bool {
        self.state.body_is_complete()
    }

    /// Bytes of the answer that the kernel has not taken. While there are any, [`Exchange::drain`] is due.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.operations.queued_bytes(self.id)
    }

    /// Lets another thread or a future answer: from here on the answer is that of the [`Reply`]. `None` if an
    /// answer has begun, or there is one already.
    pub fn reply(&mut self) -> Option<Reply> {
        if self.state.progress != Progress::Waiting || self.state.reply.is_some() {
            return None;
        }
        let (reply, shared) = Reply::new(self.id, self.operations.remote().clone());
        self.state.reply = Some(shared);
        self.state.until_ns = Some(self.operations.reply_deadline_ns());
        Some(reply)
    }

    /// The peer's address. Cost: a system call.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.operations.peer(self.id)
    }

    /// The handle to this server for other threads.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        self.operations.remote()
    }
}

impl std::fmt::Debug for Http<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Http({}, {:?})", self.id, self.state.progress)
    }
}
