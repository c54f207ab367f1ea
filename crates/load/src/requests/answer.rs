//! What comes of a request: [`Awaited`] is what is to be kept of its answer while it arrives,
//! [`Answer`] what a script is shown of it.

use wire::Violation;
use wire::http::{Coding, EMPTY_HEADER, MAX_HEADERS, parse_response};

use super::Failure;

/// What a script wants to see of an answer. Whatever it is, all of the answer is read and counted.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Wants {
    /// Status, size and times.
    #[default]
    Nothing,
    /// The head too.
    Head,
    /// Head and body, of which at most so many bytes are kept.
    Body(usize),
}

/// The answer that a connection waits for, as its driver sees it.
#[derive(Default, Debug)]
pub struct Awaited {
    pub(super) wants: Wants,
    /// Heads of redirects are kept whatever is wanted.
    pub(super) redirects: bool,
    /// The request was HEAD.
    pub(super) is_bodiless: bool,
    pub(super) head: Vec<u8>,
    pub(super) body: Vec<u8>,
    /// The body decoded, where it had to be.
    pub(super) decoded: Vec<u8>,
}

/// Emptied buffers larger than this are given back.
const ROOM_KEPT: usize = 64 * 1024;

impl Awaited {
    /// The answer is over with its head, whatever the head says.
    #[must_use]
    pub fn is_bodiless(&self) -> bool {
        self.is_bodiless
    }

    /// The head of the answer, whole. Of interim ones the last counts.
    #[inline]
    pub fn head(&mut self, status: u16, head: &[u8]) {
        let is_redirect = self.redirects && (300..400).contains(&status);
        if self.wants != Wants::Nothing || is_redirect {
            self.head.clear();
            self.head.extend_from_slice(head);
        }
    }

    /// Further bytes of the body.
    #[inline]
    pub fn body(&mut self, bytes: &[u8]) {
        if let Wants::Body(most) = self.wants {
            let room = most.saturating_sub(self.body.len());
            self.body.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    /// From here on another answer is awaited.
    #[inline]
    pub(super) fn begin(&mut self, wants: Wants, redirects: bool, is_bodiless: bool) {
        (self.wants, self.redirects, self.is_bodiless) = (wants, redirects, is_bodiless);
        for kept in [&mut self.head, &mut self.body, &mut self.decoded] {
            kept.clear();
            if kept.capacity() > ROOM_KEPT {
                kept.shrink_to(ROOM_KEPT);
            }
        }
    }
}

impl Awaited {
    /// Decodes the content coding of the body that is kept (RFC 9110 section 8.4.1), if a whole one
    /// is: true where there was one.
    ///
    /// # Errors
    /// It is none that is read here or broken, or it grows beyond what is wanted.
    pub(super) fn decode(&mut self, body_bytes: u64) -> Result<bool, Failure> {
        let Wants::Body(most) = self.wants else { return Ok(false) };
        if self.body.is_empty() {
            return Ok(false);
        }
        let value = header(&self.head, "content-encoding").unwrap_or_default();
        let coding = Coding::of(value).map_err(|_| Failure::ContentCoding)?;
        let Some(coding) = coding else { return Ok(false) };
        if (self.body.len() as u64) < body_bytes {
            return Err(Failure::TooLarge);
        }
        match coding.decode(&self.body, &mut self.decoded, most) {
            Ok(()) => Ok(true),
            Err(Violation::InflatedTooBig) => Err(Failure::TooLarge),
            Err(_) => Err(Failure::ContentCoding),
        }
    }
}

/// When what happened to one request, in nanoseconds of the monotonic clock.
#[derive(Copy, Clone, Default, Debug)]
pub struct Times {
    /// It was to be sent.
    pub due_ns: u64,
    /// A user took it up: it was sent, or a connect was begun for it.
    pub begun_ns: u64,
    /// It was given to the kernel; 0 if that never happened.
    pub sent_ns: u64,
    /// The first byte of the answer came; 0 if none did.
    pub first_ns: u64,
    /// All was over.
    pub done_ns: u64,
}

/// What a request came to.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The status of a whole answer (0 where the protocol has none), or why there is none.
    pub outcome: Result<u16, Failure>,
    /// As received; empty unless it was wanted.
    pub head: &'a [u8],
    /// Without its framing and its content coding; empty unless it was wanted, and no longer than
    /// wanted.
    pub body: &'a [u8],
    /// There is more of the body than was wanted.
    pub is_cut: bool,
    /// Of the whole body as it came, kept or not.
    pub body_bytes: u64,
    /// It was due in the warm-up, and is counted nowhere.
    pub is_warm_up: bool,
    /// When.
    pub times: Times,
}

impl Answer<'_> {
    /// The value of the first header of this name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        header(self.head, name)
    }
}

/// The value of the first header of this name in the head of a response.
pub(super) fn header<'h>(head: &'h [u8], name: &str) -> Option<&'h [u8]> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(head, &mut headers).ok()?;
    response.header(name)
}
