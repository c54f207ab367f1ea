//! [`Ledger`]: what both sides sent and received of each request and tunnel, and whether it was
//! right. The first contradiction is the run's failure.
//!
//! Each byte follows from its exchange, direction and offset, so it can be checked where it
//! arrives and nothing is stored.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

/// One book for all.
#[derive(Clone)]
pub(crate) struct Ledger(Rc<RefCell<Book>>);

/// The direction of bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From the client.
    Up,
    /// From the upstream.
    Down,
}

/// One direction of one request or tunnel.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Flow {
    /// Bytes said, by whoever said most.
    pub(crate) said: u64,
    /// Bytes heard, in order and right.
    pub(crate) heard: u64,
    /// Whoever speaks has ended after all it had to say.
    pub(crate) ended: bool,
}

/// One request, which may become a tunnel.
#[derive(Clone, Default, Debug)]
pub(crate) struct Story {
    pub(crate) up: Flow,
    pub(crate) down: Flow,
    /// Upstreams that got its whole head.
    pub(crate) asked: u32,
    /// Upstreams whose answer, or the begin of one, has surely arrived.
    pub(crate) answered: u32,
    /// It must not be sent twice.
    pub(crate) once: bool,
    /// It requests a tunnel.
    pub(crate) upgrade: bool,
    /// An upstream has answered its handshake rightly.
    pub(crate) switched: bool,
    /// Its client was told 101.
    pub(crate) told: bool,
    /// One of its ends broke off, or left without waiting for the other.
    pub(crate) broken: bool,
    /// The client is gone.
    pub(crate) left: bool,
    /// The upstream of its tunnel is gone without having ended its side.
    pub(crate) cut: bool,
}

pub(crate) struct Book {
    pub(crate) failure: Option<String>,
    /// No new work is begun, and no fault is drawn.
    pub(crate) calm: bool,
    /// Nothing is lost unless one of its ends resets the connection.
    strict: bool,
    stories: Vec<Story>,
    /// Clients that were told 101.
    pub(crate) opened: u64,
    /// Directions that came whole to a clean end.
    pub(crate) whole: u64,
    /// Clean ends before all had come, though nobody broke off.
    pub(crate) short: u64,
}

impl Ledger {
    pub(crate) fn new(strict: bool) -> Self {
        let (failure, stories) = (None, Vec::new());
        let (opened, whole, short) = (0, 0, 0);
        let book = Book { failure, calm: false, strict, stories, opened, whole, short };
        Ledger(Rc::new(RefCell::new(book)))
    }

    pub(crate) fn book(&self) -> RefMut<'_, Book> {
        self.0.borrow_mut()
    }
}

/// Length of the random bytes that all payloads are taken from. A prime, so no usual length is a
/// multiple of it.
const WORDS: usize = 65_521;

thread_local! {
    static SAYING: Vec<u8> = {
        let mut random = fastrand::Rng::with_seed(20);
        (0..WORDS).map(|_| random.u8(..)).collect()
    };
}

/// Passes the bytes from that offset to `each`, piece by piece; whether it accepted all.
fn pieces(
    story: u32,
    way: Way,
    from: u64,
    count: u64,
    mut each: impl FnMut(&[u8]) -> bool,
) -> bool {
    let own = (u64::from(story) * 2 + u64::from(way == Way::Down)) * 4_099;
    let (mut at, end) = (own + from, own + from + count);
    SAYING.with(|saying| {
        while at < end {
            let start = (at % WORDS as u64) as usize;
            let length = (WORDS - start).min((end - at) as usize);
            if !each(saying.get(start..start + length).unwrap_or_default()) {
                return false;
            }
            at += length as u64;
        }
        true
    })
}

/// So many bytes from there on.
pub(crate) fn bytes(story: u32, way: Way, from: u64, count: u64) -> Vec<u8> {
    let mut all = Vec::with_capacity(count as usize);
    pieces(story, way, from, count, |piece| {
        all.extend_from_slice(piece);
        true
    });
    all
}

/// Whether that is what stands there.
fn stands_there(story: u32, way: Way, from: u64, data: &[u8]) -> bool {
    let mut rest = data;
    pieces(story, way, from, data.len() as u64, |piece| {
        let (here, more) = rest.split_at(piece.len().min(rest.len()));
        rest = more;
        here == piece
    })
}

impl Book {
    /// Records a failure, unless there is one.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failure.get_or_insert(what.into());
    }

    pub(crate) fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(what());
        }
    }

    pub(crate) fn begin(&mut self, upgrade: bool, once: bool) -> u32 {
        self.stories.push(Story { upgrade, once, ..Story::default() });
        self.stories.len() as u32 - 1
    }

    pub(crate) fn stories(&self) -> &[Story] {
        &self.stories
    }

    pub(crate) fn story(&mut self, story: u32) -> &mut Story {
        let at = story as usize;
        if at >= self.stories.len() {
            self.fail(format!("an upstream was asked for {story}, which nobody asked for"));
            self.stories.resize_with(at.min(1 << 20) + 1, Story::default);
        }
        // There is one now.
        let last = self.stories.len() - 1;
        &mut self.stories[at.min(last)]
    }

    /// An upstream got a whole head.
    pub(crate) fn asked(&mut self, story: u32, upgrade: bool) {
        let strict = self.strict;
        let known = self.story(story);
        known.asked += 1;
        let known = known.clone();
        self.require(known.upgrade == upgrade, || format!("{story} is asked for as another kind"));
        self.require(!known.once || known.asked == 1, || format!("{story} was asked twice"));
        // A break right behind an answer may have taken it along, so that nobody heard it.
        self.require(!strict || known.answered == 0 || known.cut, || {
            format!("{story} was asked again after it was answered")
        });
        if known.down.heard == 0 {
            // What whoever was asked before may have said was heard by nobody, and is said anew.
            *self.flow(story, Way::Down) = Flow::default();
        }
    }

    /// Bytes of one direction have arrived.
    pub(crate) fn heard(&mut self, story: u32, way: Way, from: u64, data: &[u8]) {
        let said = self.flow(story, way).said;
        let right = stands_there(story, way, from, data);
        let end = from + data.len() as u64;
        self.require(right, || format!("{story}: wrong bytes {way:?} at {from}..{end} of {said}"));
        self.require(end <= said, || format!("{story}: {end} bytes {way:?}, {said} were said"));
        let flow = self.flow(story, way);
        flow.heard = flow.heard.max(end);
    }

    /// A client's tunnel broke.
    pub(crate) fn heard_break(&mut self, story: u32) {
        let expected = self.story(story).broken || !self.strict;
        self.require(expected, || format!("{story} was broken off by neither side"));
    }

    /// In a calm: whether the client of a tunnel should have heard an end by now.
    pub(crate) fn end_is_due(&mut self, story: u32) -> bool {
        let strict = self.strict;
        let story = self.story(story);
        story.down.ended || strict && story.cut
    }

    /// Whoever listens has heard the end, in order.
    pub(crate) fn heard_end(&mut self, story: u32, way: Way, heard: u64) {
        let flow = *self.flow(story, way);
        let broken = self.story(story).broken;
        if flow.ended && heard == flow.said {
            self.whole += 1;
            return;
        }
        if broken {
            return;
        }
        self.short += 1;
        let strict = self.strict;
        self.require(!strict, || format!("{story}: ended {way:?} after {heard} bytes: {flow:?}"));
    }

    pub(crate) fn flow(&mut self, story: u32, way: Way) -> &mut Flow {
        let story = self.story(story);
        match way {
            Way::Up => &mut story.up,
            Way::Down => &mut story.down,
        }
    }

    /// Whoever speaks has said so many bytes.
    pub(crate) fn said(&mut self, story: u32, way: Way, bytes: u64) {
        let flow = self.flow(story, way);
        flow.said = flow.said.max(bytes);
    }
}
