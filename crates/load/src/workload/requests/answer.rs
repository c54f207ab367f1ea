//! The answer to a request: [`Awaited`] collects the needed parts while it arrives, [`Answer`] is passed
//! to the script.

use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_response};

use crate::outcome::failure::Failure;
use crate::workload::requests::coding::Coding;

/// The parts of an answer that a script needs. All of the answer is read and counted in any case.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Wants {
    /// Status, size and times.
    #[default]
    Nothing,
    /// Also the head.
    Head,
    /// Also the body, of which at most this many bytes are kept.
    Body(usize),
}

/// The answer that a connection awaits, filled by its driver.
#[derive(Default, Debug)]
pub struct Awaited {
    pub(crate) wants: Wants,
    /// Heads of redirects are always kept.
    pub(crate) redirects: bool,
    /// The request was HEAD.
    pub(crate) is_bodiless: bool,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
    /// The decoded body, if it has a content coding.
    pub(crate) decoded: Vec<u8>,
    /// On a stream: bytes of the body so far, and the status of the head.
    pub(crate) body_bytes: u64,
    pub(crate) status: u16,
}

/// Cleared buffers keep at most this capacity.
const ROOM_KEPT: usize = 64 * 1024;

impl Awaited {
    /// Whether the answer has no body, as that to HEAD.
    #[must_use]
    pub fn is_bodiless(&self) -> bool {
        self.is_bodiless
    }

    /// Whether the head of an answer with this status is kept.
    #[inline]
    pub(crate) fn keeps_head(&self, status: u16) -> bool {
        self.wants != Wants::Nothing || self.redirects && (300..400).contains(&status)
    }

    /// Takes the complete head. After interim answers the last one counts.
    #[inline]
    pub fn head(&mut self, status: u16, head: &[u8]) {
        if self.keeps_head(status) {
            self.head.clear();
            self.head.extend_from_slice(head);
        }
    }

    /// Takes further bytes of the body.
    #[inline]
    pub fn body(&mut self, bytes: &[u8]) {
        if let Wants::Body(most) = self.wants {
            let room = most.saturating_sub(self.body.len());
            self.body.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    /// Prepares for the next answer.
    #[inline]
    pub(crate) fn begin(&mut self, wants: Wants, redirects: bool, is_bodiless: bool) {
        (self.wants, self.redirects, self.is_bodiless) = (wants, redirects, is_bodiless);
        (self.body_bytes, self.status) = (0, 0);
        for kept in [&mut self.head, &mut self.body, &mut self.decoded] {
            kept.clear();
            if kept.capacity() > ROOM_KEPT {
                kept.shrink_to(ROOM_KEPT);
            }
        }
    }
}

impl Awaited {
    /// Decodes the content coding of the kept body (RFC 9110 section 8.4.1). Returns true if there was
    /// one.
    ///
    /// # Errors
    /// The coding is unsupported or malformed, or the body is larger than what is kept.
    pub(crate) fn decode(&mut self, body_bytes: u64) -> Result<bool, Failure> {
        let Wants::Body(most) = self.wants else { return Ok(false) };
        if self.body.is_empty() {
            return Ok(false);
        }
        let value = header(&self.head, "content-encoding").unwrap_or_default();
        let Some(coding) = Coding::of(value)? else { return Ok(false) };
        if (self.body.len() as u64) < body_bytes {
            return Err(Failure::TooLarge);
        }
        coding.decode(&self.body, &mut self.decoded, most).map(|()| true)
    }
}

/// The times of one request, in nanoseconds of the monotonic clock.
#[derive(Copy, Clone, Default, Debug)]
pub struct Times {
    /// When it was due.
    pub due_ns: u64,
    /// When a user took it up: it was sent, or a connect was started for it.
    pub begun_ns: u64,
    /// When it was passed to the kernel; 0 if never.
    pub sent_ns: u64,
    /// When the first byte of the answer was received; 0 if none was.
    pub first_ns: u64,
    /// When it ended.
    pub done_ns: u64,
}

/// The result of a request.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The status of a complete answer (0 if the protocol has none), or the failure.
    pub outcome: Result<u16, Failure>,
    /// The head as received; empty unless wanted.
    pub head: &'a [u8],
    /// The body without framing and content coding; empty unless wanted, and no longer than wanted.
    pub body: &'a [u8],
    /// Whether the body was truncated.
    pub is_cut: bool,
    /// Bytes of the complete body as received, kept or not.
    pub body_bytes: u64,
    /// Whether it was due in the warm-up, and so is not counted.
    pub is_warm_up: bool,
    /// Its times.
    pub times: Times,
}

impl Answer<'_> {
    /// The value of the first header of this name, compared without case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        header(self.head, name)
    }
}

/// The value of the first header of this name in the head of a response.
pub(crate) fn header<'h>(head: &'h [u8], name: &str) -> Option<&'h [u8]> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(head, &mut headers).ok()?;
    response.header(name)
}
