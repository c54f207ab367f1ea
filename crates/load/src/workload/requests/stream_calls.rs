//! [`StreamCalls`]: each user repeats a gRPC call that sends several messages, which may have placeholders.

use std::time::Duration;

use crate::grpc::MessageTemplate;
use crate::outcome::failure::Failure;
use crate::workload::requests::answer::Answer;
use crate::workload::requests::request::Request;
use crate::workload::requests::script::{NextMessage, Part, Script, Step};
use crate::workload::scenario::Clock;
use crate::workload::scenario::template::{Values, mixed};

/// The script of one worker.
pub struct StreamCalls {
    /// The head of a call to each target.
    requests: Vec<Request>,
    /// The messages of a call, from the first again after the last.
    messages: Vec<Form>,
    part: Part,
    seed: u64,
    clock: Clock,
    now_ms: u64,
    /// Messages that were begun.
    begun: u64,
    /// Calls by user, and whether a message of the current one did not fit.
    users: Vec<(u64, bool)>,
}

/// A message.
enum Form {
    /// Always the same, with its prefix.
    Constant(Vec<u8>),
    Template(Box<MessageTemplate>),
}

impl StreamCalls {
    /// Users call their targets in turn: each call is begun by the request of its target, which has no body. At
    /// least one request and one message are required; `seed` determines random values.
    #[must_use]
    pub fn new(
        requests: Vec<Request>,
        messages: Vec<MessageTemplate>,
        part: Part,
        seed: u64,
        clock: Clock,
    ) -> StreamCalls {
        assert!(!requests.is_empty() && !messages.is_empty(), "a call has a target and a message");
        let form = |message: MessageTemplate| match message.framed() {
            Some(framed) => Form::Constant(framed),
            None => Form::Template(Box::new(message)),
        };
        StreamCalls {
            requests,
            messages: messages.into_iter().map(form).collect(),
            part,
            seed,
            clock,
            now_ms: clock.now_ms,
            begun: 0,
            users: vec![(0, false); part.users as usize],
        }
    }
}

impl Script for StreamCalls {
    fn next(&mut self, user: u32, _now_ns: u64) -> Step {
        if let Some((calls, failed)) = self.users.get_mut(user as usize) {
            *calls += 1;
            *failed = false;
        }
        Step::Send
    }

    fn request(&mut self, user: u32) -> &Request {
        let at = self.part.number(user) % self.requests.len() as u64;
        &self.requests[at as usize]
    }

    fn message(&mut self, user: u32, next: &NextMessage, out: &mut Vec<u8>) -> bool {
        let at = next.nth as usize % self.messages.len();
        let message = match self.messages.get_mut(at) {
            Some(Form::Constant(framed)) => {
                out.extend_from_slice(framed);
                return true;
            }
            Some(Form::Template(message)) => message,
            None => return false,
        };
        let passed =
            Duration::from_nanos(next.stamp.published_ns.saturating_sub(self.clock.now_ns));
        self.now_ms = self.clock.now_ms + passed.as_millis() as u64;
        let seq = self.part.first + self.begun * self.part.stride;
        self.begun += 1;
        let Some((calls, failed)) = self.users.get_mut(user as usize) else { return false };
        let values = Values {
            seq,
            user: self.part.number(user),
            pass: calls.saturating_sub(1),
            now_ms: self.now_ms,
            random: mixed(self.seed ^ mixed(seq)),
            feeds: &[],
            rows: &[],
            captures: &[],
            item: &[],
            stamp: next.stamp,
            group: (0, 0),
            to: 0,
        };
        *failed |= message.render(&values, out).is_err();
        !*failed
    }

    fn answered(&mut self, user: u32, answer: &Answer<'_>) -> Option<Failure> {
        let failed = self.users.get(user as usize).is_some_and(|(_, failed)| *failed);
        (failed && answer.outcome.is_ok()).then_some(Failure::GrpcRequest)
    }
}
