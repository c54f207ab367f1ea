//! [`Operations`]: a worker as handlers see it, whatever its routes are. One call through a table of
//! functions keeps the types of the engine out of the interface.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::{ConnId, Core, Sent, Sys};
use topics::{Publication, Topics};
use wire::websocket::OpCode;

use crate::routes::{RouteList, nanoseconds};
use crate::timers::SocketTimers;
use crate::worker::WorkerHandler;
use crate::{CloseCode, Message, Refused, Remote};

pub(crate) trait Operations {
    fn send(&mut self, id: ConnId, message: Message<'_>, compress: bool) -> Sent;
    fn begin_cork(&mut self, id: ConnId) -> bool;
    fn end_cork(&mut self);
    fn ping(&mut self, id: ConnId, payload: &[u8]) -> Sent;
    fn queued_bytes(&self, id: ConnId) -> usize;
    fn subscribe(&mut self, id: ConnId, topic: &str) -> bool;
    fn unsubscribe(&mut self, id: ConnId, topic: &str) -> bool;
    fn is_subscribed(&self, id: ConnId, topic: &str) -> bool;
    fn topics(&self, id: ConnId) -> Vec<Arc<str>>;
    fn publish(
        &mut self,
        topic: &str,
        message: Message<'_>,
        except: Option<ConnId>,
    ) -> Result<(), Refused>;
    fn write(&mut self, id: ConnId, bytes: &[u8]) -> Sent;
    /// Bytes that may wait for a client of an exchange.
    fn queue_limit(&self) -> usize;
    fn reply_deadline_ns(&self) -> u64;
    fn set_timer(&mut self, id: ConnId, after: Duration);
    fn clear_timer(&mut self, id: ConnId) -> bool;
    fn publish_here(&mut self, topic: &str, message: Message<'_>);
    fn pause(&mut self, id: ConnId);
    fn resume(&mut self, id: ConnId);
    fn close(&mut self, id: ConnId, code: CloseCode, reason: &str);
    fn abort(&mut self, id: ConnId);
    fn is_open(&self, id: ConnId) -> bool;
    fn peer(&self, id: ConnId) -> Option<SocketAddr>;
    fn remote(&self) -> &Remote;
    fn worker(&self) -> usize;
}

/// A worker without its routes, which are being called.
pub(crate) struct WorkerOperations<'a, S: Sys, R: RouteList> {
    pub(crate) core: &'a mut Core<S, WorkerHandler<R>>,
    pub(crate) tools: &'a mut Tools,
}

/// What calls of routes need of a worker besides its connections.
pub(crate) struct Tools {
    pub(crate) topics: Topics,
    pub(crate) remote: Remote,
    pub(crate) timers: SocketTimers,
    pub(crate) reply_timeout: Duration,
}

impl<S: Sys, R: RouteList> Operations for WorkerOperations<'_, S, R> {
    fn send(&mut self, id: ConnId, message: Message<'_>, compress: bool) -> Sent {
        let (opcode, data) = (message.opcode(), message.as_bytes());
        if compress {
            self.core.send(id, opcode, data)
        } else {
            self.core.send_uncompressed(id, opcode, data)
        }
    }

    fn begin_cork(&mut self, id: ConnId) -> bool {
        self.core.begin_cork(id)
    }

    fn end_cork(&mut self) {
        self.core.end_cork();
    }

    fn ping(&mut self, id: ConnId, payload: &[u8]) -> Sent {
        self.core.ping(id, payload)
    }

    fn queued_bytes(&self, id: ConnId) -> usize {
        self.core.queued(id)
    }

    fn subscribe(&mut self, id: ConnId, topic: &str) -> bool {
        if !self.core.is_open(id) {
            return false;
        }
        let encoding = self.core.encoding(id);
        self.tools.topics.subscribe(self.core, id, topic, encoding)
    }

    fn unsubscribe(&mut self, id: ConnId, topic: &str) -> bool {
        let encoding = self.core.encoding(id);
        self.tools.topics.unsubscribe(self.core, id, topic, encoding)
    }

    fn is_subscribed(&self, id: ConnId, topic: &str) -> bool {
        let encoding = self.core.encoding(id);
        let user = self.core.user(id);
        user.is_some_and(|user| self.tools.topics.is_subscribed(&user.0, topic, encoding))
    }

    fn topics(&self, id: ConnId) -> Vec<Arc<str>> {
        let user = self.core.user(id);
        let of = |user| self.tools.topics.topics_of(user).cloned().collect();
        user.map(|user| of(&user.0)).unwrap_or_default()
    }

    fn publish(
        &mut self,
        topic: &str,
        message: Message<'_>,
        except: Option<ConnId>,
    ) -> Result<(), Refused> {
        let publication = publication(topic, message, except);
        let WorkerOperations { core, tools } = self;
        let Tools { topics, remote, .. } = &mut **tools;
        remote.link.publish(&publication, || topics.publish(core, &publication, encode))
    }

    fn write(&mut self, id: ConnId, bytes: &[u8]) -> Sent {
        self.core.write_unlimited(id, bytes)
    }

    fn queue_limit(&self) -> usize {
        // The queue's own memory counts as well.
        self.core.limits().send_queue_bytes / 2
    }

    fn reply_deadline_ns(&self) -> u64 {
        self.core.now_ns().saturating_add(nanoseconds(self.tools.reply_timeout))
    }

    fn set_timer(&mut self, id: ConnId, after: Duration) {
        if self.core.is_open(id) {
            let at_ns = self.core.now_ns().saturating_add(nanoseconds(after));
            self.tools.timers.set(id, at_ns);
        }
    }

    fn clear_timer(&mut self, id: ConnId) -> bool {
        self.tools.timers.clear(id)
    }

    fn publish_here(&mut self, topic: &str, message: Message<'_>) {
        let publication = publication(topic, message, None);
        self.tools.topics.deliver(self.core, &publication, encode);
    }

    fn pause(&mut self, id: ConnId) {
        self.core.pause(id);
    }

    fn resume(&mut self, id: ConnId) {
        self.core.resume(id);
    }

    fn close(&mut self, id: ConnId, code: CloseCode, reason: &str) {
        let code = if code.is_sendable() { code } else { CloseCode::INTERNAL };
        if self.core.is_open(id) {
            self.core.close(id, code, reason);
            self.tools.topics.unsubscribe_all(self.core, id, |_| {});
        }
    }

    fn abort(&mut self, id: ConnId) {
        self.core.abort(id);
    }

    fn is_open(&self, id: ConnId) -> bool {
        self.core.is_open(id)
    }

    fn peer(&self, id: ConnId) -> Option<SocketAddr> {
        self.core.info(id)?.peer
    }

    fn remote(&self) -> &Remote {
        &self.tools.remote
    }

    fn worker(&self) -> usize {
        usize::from(self.core.worker())
    }
}

pub(crate) fn publication(
    topic: &str,
    message: Message<'_>,
    except: Option<ConnId>,
) -> Arc<Publication> {
    let binary = message.opcode() == OpCode::Binary;
    let mut publication = Publication::new(topic.into(), message.as_bytes().into(), binary);
    publication.except = except;
    Arc::new(publication)
}

/// Encodes a publication for the subscribers with one kind of compression.
pub(crate) fn encode<S: Sys, R: RouteList>(
    core: &mut Core<S, WorkerHandler<R>>,
    encoding: u32,
    publication: &Publication,
    out: &mut Vec<u8>,
) {
    let opcode = if publication.binary { OpCode::Binary } else { OpCode::Text };
    core.encode_message(encoding, opcode, &publication.data, out);
}
