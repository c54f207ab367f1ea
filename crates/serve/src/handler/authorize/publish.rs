//! Messages of clients of plain topics that the application decides about, one at a time and in order.

use std::sync::Arc;

use engine::{ConnId, Core, Sys, invariant};
use topics::Publication;
use wire::websocket::{CloseCode, OpCode};

use super::ServeHandler;
use crate::app::call::{Env, Question};
use crate::app::decision::{Decision, Verdict};
use crate::app::session::Held;
use crate::app::{Failure, Full};
use crate::auth::Cause;
use crate::protocols::Disconnect;

/// Longest reason of a close frame (RFC 6455 section 5.5).
const CLOSE_REASON_BYTES: usize = 123;

/// A connection whose messages are asked about.
pub(super) struct Publisher {
    pub(super) id: ConnId,
    env: Env,
    topic: Arc<str>,
    /// The message that is asked about, and whether it is binary.
    pub(super) in_flight: Option<(Arc<[u8]>, bool)>,
    /// A message that is allowed waits in the queue of retries.
    retried: bool,
    /// Messages that wait for either, each behind a byte that is 1 if it is binary.
    held: Held,
    /// Until when the application needs not be asked.
    allowed_until_ns: u64,
}

impl Publisher {
    pub(super) fn new(id: ConnId, env: Env, topic: Arc<str>) -> Self {
        let held = Held::default();
        Publisher { id, env, topic, in_flight: None, retried: false, held, allowed_until_ns: 0 }
    }

    /// Whether the next message has to wait.
    fn is_busy(&self) -> bool {
        self.in_flight.is_some() || self.retried
    }

    /// Its memory beyond the entry, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let in_flight = self.in_flight.as_ref().map_or(0, |(data, _)| data.len());
        self.env.bytes() + self.held.bytes + in_flight
    }
}

impl ServeHandler {
    /// Refuses a message of a client that may not publish, and tells the client.
    pub(in crate::handler) fn refuse_publication<S: Sys>(
        &self,
        core: &mut Core<S, Self>,
        id: ConnId,
    ) {
        self.refuse_access(core.worker(), Cause::Publish, "");
        core.close(id, CloseCode::POLICY, "publishing is not allowed");
    }

    /// A message that the application decides about. Messages of one connection stay in order.
    pub(in crate::handler) fn ask_to_publish<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &[u8],
    ) {
        let binary = opcode == OpCode::Binary;
        let publisher = self.authorizer.as_mut().and_then(|own| own.publisher(id));
        let Some(publisher) = publisher else {
            return invariant::broken("a client whose messages are asked about has an entry");
        };
        if publisher.is_busy() || !publisher.held.messages.is_empty() {
            let message = [&[u8::from(binary)], data].concat();
            if publisher.held.push(&message) {
                core.pause(id);
            }
            return;
        }
        self.publish_or_ask(core, id, data, binary);
    }

    /// Publishes a message, or asks whether it may be.
    fn publish_or_ask<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        data: &[u8],
        binary: bool,
    ) {
        let Some(authorizer) = &mut self.authorizer else { return };
        let calls = Arc::clone(&authorizer.calls);
        let Some(publisher) = authorizer.publisher(id) else { return };
        if core.now_ns() < publisher.allowed_until_ns {
            return self.publish_allowed(core, id, data.into(), binary);
        }
        let message = (Arc::from(data), binary);
        publisher.in_flight = Some(message.clone());
        let (env, topic) = (publisher.env.clone(), Arc::clone(&publisher.topic));
        let question = Question {
            protocol: "topic",
            topic,
            identity: self.sessions.identifiers(id).cloned(),
            message: Some(message),
        };
        let call = self.question(id, &env, question);
        if let Err(Full) = calls.submit(core.now_ns(), id, call) {
            self.end_questions(id);
            self.disconnect(core, id, Disconnect::AppUnavailable);
        }
    }

    pub(super) fn publish_decided<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        (data, binary): &(Arc<[u8]>, bool),
        outcome: Result<Arc<Decision>, Failure>,
    ) {
        if !core.is_open(id) {
            return;
        }
        let decision = match outcome {
            Ok(decision) => decision,
            Err(Failure::Late) => return self.disconnect(core, id, Disconnect::AppUnavailable),
            Err(_) => return self.disconnect(core, id, Disconnect::AppFailed),
        };
        let publisher = self.authorizer.as_mut().and_then(|own| own.publisher(id));
        let Some(publisher) = publisher else { return };
        match decision.verdict {
            Verdict::Allowed(_) if decision.covers(&publisher.topic) => {
                let ttl_ns = decision.ttl_s.saturating_mul(1_000_000_000);
                publisher.allowed_until_ns = core.now_ns().saturating_add(ttl_ns);
                self.publish_allowed(core, id, Arc::clone(data), *binary);
            }
            _ => {
                let topic = Arc::clone(&publisher.topic);
                self.refuse_access(core.worker(), Cause::Publish, &topic);
                let reason = match &*decision.reason {
                    "" => "publishing is not allowed",
                    reason => cut(reason, CLOSE_REASON_BYTES),
                };
                core.close(id, CloseCode::POLICY, reason);
            }
        }
    }

    /// Publishes a message. While it is refused for now, the later ones wait.
    fn publish_allowed<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        data: Arc<[u8]>,
        binary: bool,
    ) {
        let publisher = self.authorizer.as_mut().and_then(|own| own.publisher(id));
        let Some(topic) = publisher.map(|own| Arc::clone(&own.topic)) else { return };
        let publication = Publication::new(topic, data, binary).accepted(core.now_ns());
        let retried = self.publish(core, id, Arc::new(publication));
        if let Some(publisher) = self.authorizer.as_mut().and_then(|own| own.publisher(id)) {
            publisher.retried = retried;
        }
    }

    /// A message that was refused for now is published. Returns `false` if the messages of this client are not
    /// asked about.
    pub(in crate::handler) fn resume_asked<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
    ) -> bool {
        let publisher = self.authorizer.as_mut().and_then(|own| own.publisher(id));
        let Some(publisher) = publisher else { return false };
        publisher.retried = false;
        if !publisher.held.paused {
            core.resume(id);
        }
        self.publish_held(core, id);
        true
    }

    /// Messages that waited, up to the next that has to.
    pub(super) fn publish_held<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        while core.is_open(id) {
            let publisher = self.authorizer.as_mut().and_then(|own| own.publisher(id));
            let Some(publisher) = publisher.filter(|own| !own.is_busy()) else { return };
            let Some((message, resume)) = publisher.held.pop() else { return };
            let Some((binary, data)) = message.split_first() else { continue };
            self.publish_or_ask(core, id, data, *binary == 1);
            let publisher = self.authorizer.as_mut().and_then(|own| own.publisher(id));
            if resume && publisher.is_none_or(|own| !own.retried) {
                core.resume(id);
            }
        }
    }
}

/// The beginning of a text, up to this many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let end = text.char_indices().map(|(at, sign)| at + sign.len_utf8());
    let end = end.take_while(|end| *end <= bytes).last().unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(
            (cut("abc", 3), cut("abc", 2), cut("é", 1), cut("aé", 2)),
            ("abc", "ab", "", "a")
        );
    }
}
