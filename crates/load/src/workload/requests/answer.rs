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
    /// On a stream: bytes of the body so far.
    pub(crate) body_bytes: u64,
    /// What is kept of it; nothing for most.
    kept: Option<Box<Kept>>,
    /// Bytes of the body that are wanted.
    body_max: u32,
    /// On a stream: the status of the head.
    pub(crate) status: u16,
    flags: u8,
}

const _: () = assert!(size_of::<Awaited>() == 24);

/// What is kept of an answer.
#[derive(Default, Debug)]
struct Kept {
    head: Vec<u8>,
    body: Vec<u8>,
    /// The decoded body, if it has a content coding.
    decoded: Vec<u8>,
}

/// Cleared buffers keep at most this capacity.
const ROOM_KEPT: usize = 64 * 1024;

impl Awaited {
    const WANTS_HEAD: u8 = 1;
    const WANTS_BODY: u8 = 1 << 1;
    /// Heads of redirects are always kept.
    const REDIRECTS: u8 = 1 << 2;
    /// The request was HEAD.
    const BODILESS: u8 = 1 << 3;

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether the answer has no body, as that to HEAD.
    #[must_use]
    pub fn is_bodiless(&self) -> bool {
        self.has(Self::BODILESS)
    }

    /// Whether heads of all answers are kept.
    pub(crate) fn keeps_heads(&self) -> bool {
        self.has(Self::WANTS_HEAD)
    }

    /// Whether the head of an answer with this status is kept.
    #[inline]
    pub(crate) fn keeps_head(&self, status: u16) -> bool {
        self.has(Self::WANTS_HEAD) || self.has(Self::REDIRECTS) && (300..400).contains(&status)
    }

    /// Takes the complete head. After interim answers the last one counts.
    #[inline]
    pub fn head(&mut self, status: u16, head: &[u8]) {
        if self.keeps_head(status) {
            let kept = self.kept.get_or_insert_default();
            kept.head.clear();
            kept.head.extend_from_slice(head);
        }
    }

    /// Appends the fields of another head to the kept one; without one it is the head.
    pub(crate) fn trailers(&mut self, head: &[u8]) {
        let kept = &mut self.kept.get_or_insert_default().head;
        if kept.is_empty() {
            return kept.extend_from_slice(head);
        }
        let fields = head.windows(2).position(|two| two == b"\r\n").map_or(head.len(), |at| at + 2);
        let end = kept.len().saturating_sub(2);
        kept.truncate(end);
        kept.extend_from_slice(head.get(fields..).unwrap_or_default());
    }

    /// Takes further bytes of the body.
    #[inline]
    pub fn body(&mut self, bytes: &[u8]) {
        if self.has(Self::WANTS_BODY) {
            let body = &mut self.kept.get_or_insert_default().body;
            let room = (self.body_max as usize).saturating_sub(body.len());
            body.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    /// Prepares for the next answer.
    #[inline]
    pub(crate) fn begin(&mut self, wants: Wants, redirects: bool, is_bodiless: bool) {
        let wanted = match wants {
            Wants::Nothing => 0,
            Wants::Head => Self::WANTS_HEAD,
            Wants::Body(most) => {
                self.body_max = u32::try_from(most).unwrap_or(u32::MAX);
                Self::WANTS_HEAD | Self::WANTS_BODY
            }
        };
        let redirects = if redirects { Self::REDIRECTS } else { 0 };
        self.flags = wanted | redirects | if is_bodiless { Self::BODILESS } else { 0 };
        (self.body_bytes, self.status) = (0, 0);
        let Some(kept) = &mut self.kept else { return };
        for kept in [&mut kept.head, &mut kept.body, &mut kept.decoded] {
            kept.clear();
            if kept.capacity() > ROOM_KEPT {
                kept.shrink_to(ROOM_KEPT);
            }
        }
    }

    /// The head that was kept, the body, and the decoded body.
    #[inline]
    pub(crate) fn kept(&self) -> (&[u8], &[u8], &[u8]) {
        let Some(kept) = &self.kept else { return (&[], &[], &[]) };
        (&kept.head, &kept.body, &kept.decoded)
    }

    pub(crate) fn kept_head(&self) -> &[u8] {
        self.kept().0
    }

    pub(crate) fn kept_body(&self) -> &[u8] {
        self.kept().1
    }

    /// Decodes the content coding of the kept body (RFC 9110 section 8.4.1). Returns true if there was
    /// one.
    ///
    /// # Errors
    /// The coding is unsupported or malformed, or the body is larger than what is kept.
    #[inline]
    pub(crate) fn decode(&mut self, body_bytes: u64) -> Result<bool, Failure> {
        if !self.has(Self::WANTS_BODY) {
            return Ok(false);
        }
        let most = self.body_max as usize;
        let Some(kept) = self.kept.as_mut().filter(|kept| !kept.body.is_empty()) else {
            return Ok(false);
        };
        let value = header(&kept.head, "content-encoding").unwrap_or_default();
        let Some(coding) = Coding::of(value)? else { return Ok(false) };
        if (kept.body.len() as u64) < body_bytes {
            return Err(Failure::TooLarge);
        }
        coding.decode(&kept.body, &mut kept.decoded, most).map(|()| true)
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
