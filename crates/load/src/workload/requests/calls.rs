//! [`Calls`]: each user repeats a gRPC call, whose message may have placeholders.

use std::time::Duration;

use crate::delivery::publication::Publication;
use crate::grpc::MessageTemplate;
use crate::outcome::failure::Failure;
use crate::workload::requests::answer::Answer;
use crate::workload::requests::request::Request;
use crate::workload::requests::script::{Part, Script, Step};
use crate::workload::scenario::Clock;
use crate::workload::scenario::template::{Values, mixed};

/// The script of one worker.
pub struct Calls {
    /// The head of a call to each target, as in HTTP/1.1.
    heads: Vec<Vec<u8>>,
    message: MessageTemplate,
    part: Part,
    seed: u64,
    clock: Clock,
    /// Calls that were begun.
    begun: u64,
    /// By user.
    users: Vec<Caller>,
    /// The call that was rendered last, with its number.
    rendered: Option<u64>,
    request: Request,
}

/// The call of a user.
#[derive(Copy, Clone, Default)]
struct Caller {
    seq: u64,
    calls: u64,
    now_ms: u64,
}

impl Calls {
    /// Users call their targets in turn. At least one head is required; `seed` determines random values.
    #[must_use]
    pub fn new(
        heads: Vec<Vec<u8>>,
        message: MessageTemplate,
        part: Part,
        seed: u64,
        clock: Clock,
    ) -> Calls {
        assert!(!heads.is_empty(), "a script needs a target");
        Calls {
            heads,
            message,
            part,
            seed,
            clock,
            begun: 0,
            users: vec![Caller::default(); part.users as usize],
            rendered: None,
            request: Request::default(),
        }
    }

    /// Renders the call of a user; false if a value does not fit its field.
    fn render(&mut self, user: u32) -> bool {
        let Some(caller) = self.users.get(user as usize).copied() else { return false };
        if self.rendered == Some(caller.seq) {
            return true;
        }
        let number = self.part.number(user);
        let endpoint = (number % self.heads.len() as u64) as u8;
        let head = self.heads.get(usize::from(endpoint)).map(Vec::as_slice).unwrap_or_default();
        let values = Values {
            seq: caller.seq,
            user: number,
            pass: caller.calls.saturating_sub(1),
            now_ms: caller.now_ms,
            random: mixed(self.seed ^ mixed(caller.seq)),
            feeds: &[],
            rows: &[],
            captures: &[],
            item: &[],
            stamp: Publication::new(0, 0, 0),
            group: (0, 0),
            to: 0,
        };
        let (message, mut fits) = (&mut self.message, true);
        self.request.set_rendered(endpoint, false, |out| {
            out.extend_from_slice(head);
            fits = message.render(&values, out).is_ok();
        });
        self.rendered = fits.then_some(caller.seq);
        fits
    }
}

impl Script for Calls {
    fn next(&mut self, user: u32, now_ns: u64) -> Step {
        let seq = self.part.first + self.begun * self.part.stride;
        self.begun += 1;
        let passed = Duration::from_nanos(now_ns.saturating_sub(self.clock.now_ns));
        if let Some(caller) = self.users.get_mut(user as usize) {
            let now_ms = self.clock.now_ms + passed.as_millis() as u64;
            *caller = Caller { seq, calls: caller.calls + 1, now_ms };
        }
        if self.render(user) { Step::Send } else { Step::Fail(Failure::GrpcRequest) }
    }

    fn request(&mut self, user: u32) -> &Request {
        self.render(user);
        &self.request
    }

    fn answered(&mut self, _user: u32, _answer: &Answer<'_>) -> Option<Failure> {
        None
    }
}
