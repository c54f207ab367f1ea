//! Mailboxes: how other threads reach a worker. Bounded in bytes, never dropping silently, never
//! blocking a worker; one wake-up covers everything posted before the worker looks.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::admission::{Admission, Holdings, ShedOrder};
use crate::invariant::broken;
use crate::parked::ParkedListeners;
use crate::sys::process::trim_allocator;
use crate::{Answer, ConnId, Counters, Histograms};

/// Wakes one worker from any thread.
pub trait Wake: Send + Sync {
    /// Makes the worker's next wait return at once.
    fn wake(&self);
}

/// The mailbox was full: nothing was posted. Retry later, or report it to the publisher.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct MailboxFull;

impl std::fmt::Display for MailboxFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a worker's mailbox is full; try again later")
    }
}

impl std::error::Error for MailboxFull {}

/// An item in a worker's mailbox.
pub(crate) enum Envelope<P> {
    /// For the handler.
    Post(P),
    /// The late answer to a request.
    Answer(ConnId, Answer),
    /// Accept from the listener with this index from now on.
    Listen(usize),
    /// Stop accepting, close all connections with 1001 over this time, then stop.
    Drain(Duration),
    /// One round of shedding.
    Shed(ShedOrder),
    /// Return free memory to the system.
    Trim,
}

/// The engine's own envelopes do not wait behind posts that the handler does not accept yet.
struct Queues<P> {
    control: VecDeque<Envelope<P>>,
    posts: VecDeque<(Envelope<P>, usize)>,
    /// The worker has stopped: a listener given to it would not be stopped by anybody.
    refuses_listeners: bool,
    /// The worker is gone: posts would wait forever.
    closed: bool,
}

/// One worker's mailbox, and what other threads know of that worker.
pub(crate) struct Mailbox<P> {
    queues: Mutex<Queues<P>>,
    bytes: AtomicUsize,
    bytes_max: usize,
    /// A wake-up is under way; the thread that sets it first does the waking.
    woken: AtomicBool,
    waker: Box<dyn Wake>,
    /// Connections that the worker has, and its maximum.
    pub(crate) open: AtomicU32,
    pub(crate) capacity: AtomicU32,
    pub(crate) accepting: AtomicBool,
    /// The worker's descriptor table is full, until one of its connections has ended.
    pub(crate) exhausted: AtomicBool,
    /// Connections of the worker may be able to give way to new ones.
    pub(crate) gives_way: AtomicBool,
    pub(crate) counters: Counters,
    pub(crate) histograms: Histograms,
    pub(crate) holdings: Holdings,
}

impl<P> Mailbox<P> {
    /// Reserves room for `bytes`; the envelope must follow.
    fn reserve(&self, bytes: usize) -> Result<(), MailboxFull> {
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        // An envelope larger than the whole mailbox may enter an empty one, or it never could.
        if before > 0 && before + bytes > self.bytes_max {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return Err(MailboxFull);
        }
        Ok(())
    }

    /// Refuses listeners from now on, unless one is queued; returns whether it does.
    pub(crate) fn refuse_listeners(&self) -> bool {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let listen = |envelope: &Envelope<P>| matches!(envelope, Envelope::Listen(_));
        queues.refuses_listeners = !queues.control.iter().any(listen);
        queues.refuses_listeners
    }

    /// The worker is gone: drops what was posted to it, and from now on what still is.
    pub(crate) fn close(&self) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.closed = true;
        let posts = std::mem::take(&mut queues.posts);
        // A post that is dropped may post in turn.
        drop(queues);
        let freed = posts.iter().map(|(_, bytes)| bytes).sum();
        self.bytes.fetch_sub(freed, Ordering::AcqRel);
    }

    fn put(&self, envelope: Envelope<P>, bytes: usize) {
        self.try_put(envelope, bytes);
    }

    /// Returns `false` for a listener that the worker refuses.
    fn try_put(&self, envelope: Envelope<P>, bytes: usize) -> bool {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        match envelope {
            Envelope::Listen(_) if queues.refuses_listeners => return false,
            Envelope::Post(_) if queues.closed => {
                drop(queues);
                self.bytes.fetch_sub(bytes, Ordering::AcqRel);
                return false;
            }
            Envelope::Post(_) => queues.posts.push_back((envelope, bytes)),
            Envelope::Shed(_) => {
                // A worker that is late follows only the last order.
                queues.control.retain(|earlier| !matches!(earlier, Envelope::Shed(_)));
                queues.control.push_back(envelope);
            }
            Envelope::Trim => {
                queues.control.retain(|earlier| !matches!(earlier, Envelope::Trim));
                queues.control.push_back(envelope);
            }
            _ => queues.control.push_back(envelope),
        }
        drop(queues);
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
        true
    }

    /// A wake-up is under way that was not [acknowledged](Self::acknowledge_wake).
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Marks the wake-up as consumed: later posts must wake the worker again. Call before
    /// [`Mailbox::take`].
    pub(crate) fn acknowledge_wake(&self) {
        self.woken.store(false, Ordering::Release);
    }

    /// Moves out the engine's own envelopes, and up to `posts_max` posts; returns whether posts are
    /// left.
    pub(crate) fn take(&self, posts_max: usize, into: &mut VecDeque<Envelope<P>>) -> bool {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        into.append(&mut queues.control);
        let depth = queues.posts.len();
        let mut freed = 0;
        for _ in 0..posts_max {
            let Some((envelope, bytes)) = queues.posts.pop_front() else { break };
            freed += bytes;
            into.push_back(envelope);
        }
        if queues.posts.is_empty() && queues.posts.capacity() > 1024 {
            queues.posts.shrink_to(64);
        }
        let more = !queues.posts.is_empty();
        drop(queues);
        let bytes = self.bytes.fetch_sub(freed, Ordering::AcqRel);
        if depth > 0 {
            self.histograms.mailbox_posts.record(depth as u64);
            self.histograms.mailbox_bytes.record(bytes as u64);
        }
        more
    }
}

/// State that all workers of a process share: their mailboxes, and the listeners that wait for
/// room.
pub(crate) struct Shared<P> {
    pub(crate) mailboxes: Vec<Mailbox<P>>,
    pub(crate) parked: ParkedListeners,
    pub(crate) admission: Admission,
}

/// A handle to every worker of the process, from any thread. Cheap to clone.
pub struct Remote<P> {
    pub(crate) shared: Arc<Shared<P>>,
}

impl<P> Clone for Remote<P> {
    fn clone(&self) -> Self {
        Remote { shared: Arc::clone(&self.shared) }
    }
}

/// Bytes that a post counts in a mailbox beyond its payload.
const ENVELOPE_BYTES: usize = 64;

impl<P> Remote<P> {
    /// Creates mailboxes for one worker per waker, each holding at most `bytes_max` bytes.
    #[must_use]
    pub fn new(wakers: Vec<Box<dyn Wake>>, bytes_max: usize) -> Self {
        let mailboxes = wakers
            .into_iter()
            .map(|waker| Mailbox {
                queues: Mutex::new(Queues {
                    control: VecDeque::new(),
                    posts: VecDeque::new(),
                    refuses_listeners: false,
                    closed: false,
                }),
                bytes: AtomicUsize::new(0),
                bytes_max,
                woken: AtomicBool::new(false),
                waker,
                open: AtomicU32::new(0),
                capacity: AtomicU32::new(0),
                accepting: AtomicBool::new(false),
                exhausted: AtomicBool::new(false),
                gives_way: AtomicBool::new(false),
                counters: Counters::default(),
                histograms: Histograms::default(),
                holdings: Holdings::default(),
            })
            .collect();
        Remote {
            shared: Arc::new(Shared {
                mailboxes,
                parked: ParkedListeners::default(),
                admission: Admission::default(),
            }),
        }
    }

    /// Workers of the process, started or not.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.shared.mailboxes.len()
    }

    /// The counters of each worker.
    pub fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.shared.mailboxes.iter().map(|mailbox| &mailbox.counters)
    }

    /// The histograms of each worker.
    pub fn histograms(&self) -> impl Iterator<Item = &Histograms> {
        self.shared.mailboxes.iter().map(|mailbox| &mailbox.histograms)
    }

    /// Connections of each worker, with its maximum.
    pub fn open(&self) -> impl Iterator<Item = (u32, u32)> {
        self.shared.mailboxes.iter().map(|mailbox| {
            (mailbox.open.load(Ordering::Relaxed), mailbox.capacity.load(Ordering::Relaxed))
        })
    }

    /// Posts to one worker; `bytes` is the memory that the post holds.
    ///
    /// # Errors
    /// [`MailboxFull`] if the mailbox is at its limit; the caller keeps its own copy of the post.
    pub fn post(&self, worker: usize, post: P, bytes: usize) -> Result<(), MailboxFull> {
        self.post_or_return(worker, post, bytes).map_err(|_| MailboxFull)
    }

    /// Whether a worker is gone, so that what is posted to it is dropped.
    #[must_use]
    pub fn is_closed(&self, worker: usize) -> bool {
        self.shared.mailboxes.get(worker).is_none_or(|mailbox| {
            mailbox.queues.lock().unwrap_or_else(PoisonError::into_inner).closed
        })
    }

    /// As [`Remote::post`].
    ///
    /// # Errors
    /// The post, if the mailbox is at its limit.
    pub fn post_or_return(&self, worker: usize, post: P, bytes: usize) -> Result<(), P> {
        let bytes = bytes + ENVELOPE_BYTES;
        match self.shared.mailboxes.get(worker) {
            Some(mailbox) if mailbox.reserve(bytes).is_ok() => {
                mailbox.put(Envelope::Post(post), bytes);
                Ok(())
            }
            _ => Err(post),
        }
    }

    /// Posts to all of `workers` or to none of them.
    ///
    /// # Errors
    /// [`MailboxFull`] if one of the mailboxes is at its limit; then nothing was posted.
    pub fn post_all(
        &self,
        workers: impl Iterator<Item = usize> + Clone,
        bytes: usize,
        post: impl FnMut() -> P,
    ) -> Result<(), MailboxFull> {
        let boxes = workers.filter_map(|worker| self.shared.mailboxes.get(worker));
        post_to_all(boxes, bytes, post)
    }

    /// As [`Remote::post_all`], to the first worker of each of these: embedded workers have a [`Remote`] each.
    ///
    /// # Errors
    /// As [`Remote::post_all`].
    pub fn post_to_each<'a>(
        remotes: impl Iterator<Item = &'a Remote<P>> + Clone,
        bytes: usize,
        post: impl FnMut() -> P,
    ) -> Result<(), MailboxFull>
    where
        P: 'a,
    {
        post_to_all(remotes.filter_map(|remote| remote.shared.mailboxes.first()), bytes, post)
    }

    /// Makes a worker turn once, for example to see whether it still does.
    pub fn wake(&self, worker: usize) {
        if let Some(mailbox) = self.shared.mailboxes.get(worker)
            && !mailbox.woken.swap(true, Ordering::AcqRel)
        {
            mailbox.waker.wake();
        }
    }

    /// Answers a request that got [`Answer::Later`]. An answer to a closed connection is dropped.
    pub fn answer(&self, id: ConnId, answer: Answer) {
        if let Some(mailbox) = self.shared.mailboxes.get(usize::from(id.worker())) {
            mailbox.put(Envelope::Answer(id, answer), 0);
        }
    }

    /// Tells every worker to stop accepting, close its connections over `over`, and stop.
    pub fn drain(&self, over: Duration) {
        for mailbox in &self.shared.mailboxes {
            mailbox.put(Envelope::Drain(over), 0);
        }
    }

    /// Sets whether the process exceeds its memory limit: while it does, new connections are
    /// refused.
    pub fn set_short_of_memory(&self, short: bool) {
        if self.shared.admission.short_of_memory.swap(short, Ordering::Relaxed) && !short {
            self.shared.mailboxes.iter().for_each(|mailbox| mailbox.holdings.forget());
        }
    }

    /// Makes the workers close the clients that hold most memory, until the `over_bytes` beyond the
    /// limit are freed: one round, to be repeated while memory is short. In the first one they only
    /// measure. Returns whether closing clients can help, as far as is known.
    pub fn shed(&self, over_bytes: u64, limit_bytes: u64) -> bool {
        let order = self.shed_order(over_bytes, limit_bytes);
        self.shared.admission.set_shed_bytes(over_bytes);
        self.busy_workers().for_each(|mailbox| mailbox.put(Envelope::Shed(order), 0));
        order != ShedOrder::Futile
    }

    /// Whether [`Remote::shed`] can help, by what the workers have measured. It costs them nothing.
    #[must_use]
    pub fn can_shed(&self, over_bytes: u64, limit_bytes: u64) -> bool {
        self.shed_order(over_bytes, limit_bytes) != ShedOrder::Futile
    }

    fn shed_order(&self, over_bytes: u64, limit_bytes: u64) -> ShedOrder {
        let holdings = self.busy_workers().map(|mailbox| &mailbox.holdings);
        ShedOrder::choose(holdings, over_bytes, limit_bytes)
    }

    /// Workers with connections.
    fn busy_workers(&self) -> impl Iterator<Item = &Mailbox<P>> {
        self.shared.mailboxes.iter().filter(|mailbox| mailbox.open.load(Ordering::Relaxed) > 0)
    }

    /// Returns freed memory to the system: the caller what the allocator's lists hold, each worker what
    /// lies free at the end of its arena.
    pub fn trim_memory(&self) {
        trim_allocator();
        // One that was never needed has no arena, and would start for this.
        let begun = |mailbox: &&Mailbox<P>| mailbox.counters.turns.get() > 0;
        let begun = self.shared.mailboxes.iter().filter(begun);
        begun.for_each(|mailbox| mailbox.put(Envelope::Trim, 0));
    }

    /// Handshakes in flight now.
    #[must_use]
    pub fn handshakes(&self) -> u32 {
        self.shared.admission.handshakes.load(Ordering::Relaxed)
    }

    /// Addresses tracked for the limits per address.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.shared.admission.addresses()
    }

    /// The last refused address since the previous call.
    #[must_use]
    pub fn take_refused(&self) -> Option<IpAddr> {
        self.shared.admission.take_refused()
    }

    /// Gives a listener, by its index among those of [`crate::Worker::new`], to a worker, which
    /// accepts from it from its next turn on. Each listener belongs to one worker at a time.
    pub fn give_listener(&self, worker: usize, listener: usize) {
        self.try_give_listener(worker, listener);
    }

    /// As [`Remote::give_listener`]; returns `false` if the worker has stopped.
    pub(crate) fn try_give_listener(&self, worker: usize, listener: usize) -> bool {
        let Some(mailbox) = self.shared.mailboxes.get(worker) else {
            broken("a listener is given to a worker of this process");
            return false;
        };
        mailbox.try_put(Envelope::Listen(listener), 0)
    }

    /// The next worker after `from` whose connections may give way to new ones.
    pub(crate) fn worker_that_makes_room(&self, from: usize) -> Option<usize> {
        let n = self.workers();
        (1..n).map(|step| (from + step) % n).find(|w| {
            let mailbox = self.shared.mailboxes.get(*w);
            mailbox.is_some_and(|mailbox| mailbox.gives_way.load(Ordering::Relaxed))
        })
    }

    /// The next worker after `from` that has room and does not accept yet; otherwise one with room.
    pub(crate) fn worker_with_room(&self, from: usize) -> Option<usize> {
        let n = self.workers();
        let room = |w: &usize| {
            self.shared.mailboxes.get(*w).is_some_and(|mailbox| {
                !mailbox.exhausted.load(Ordering::Relaxed)
                    && mailbox.open.load(Ordering::Relaxed)
                        < mailbox.capacity.load(Ordering::Relaxed)
            })
        };
        let idle = |w: &usize| {
            let mailbox = self.shared.mailboxes.get(*w);
            mailbox.is_some_and(|mailbox| !mailbox.accepting.load(Ordering::Relaxed))
        };
        let others = || (1..n).map(move |step| (from + step) % n);
        others().filter(room).find(idle).or_else(|| others().find(room))
    }
}

/// Posts to all of these mailboxes or to none of them.
fn post_to_all<'a, P: 'a>(
    boxes: impl Iterator<Item = &'a Mailbox<P>> + Clone,
    bytes: usize,
    mut post: impl FnMut() -> P,
) -> Result<(), MailboxFull> {
    let bytes = bytes + ENVELOPE_BYTES;
    for (reserved, mailbox) in boxes.clone().enumerate() {
        if mailbox.reserve(bytes).is_err() {
            for mailbox in boxes.take(reserved) {
                mailbox.bytes.fetch_sub(bytes, Ordering::AcqRel);
            }
            return Err(MailboxFull);
        }
    }
    for mailbox in boxes {
        mailbox.put(Envelope::Post(post()), bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the times that a worker is woken.
    struct Woken(Arc<AtomicUsize>);

    impl Wake for Woken {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn returning_memory_wakes_only_workers_that_have_begun() {
        let woken: [Arc<AtomicUsize>; 3] = std::array::from_fn(|_| Arc::default());
        let wakers = woken.iter().map(|woken| Box::new(Woken(Arc::clone(woken))) as Box<dyn Wake>);
        let remote = Remote::<()>::new(wakers.collect(), 1 << 20);
        if let Some(counters) = remote.counters().nth(1) {
            counters.turns.add(1);
        }
        remote.trim_memory();
        assert_eq!(woken.map(|woken| woken.load(Ordering::Relaxed)), [0, 1, 0]);
    }

    #[test]
    fn workers_with_remotes_of_their_own_get_a_post_all_or_none() {
        let new = |bytes| Remote::<u8>::new(vec![Box::new(Woken(Arc::default()))], bytes);
        let (roomy, tight) = (new(1 << 20), new(ENVELOPE_BYTES));
        let both = [&roomy, &tight].into_iter();
        assert_eq!(Remote::post_to_each(both.clone(), 0, || 1), Ok(()));
        assert_eq!(Remote::post_to_each(both, 0, || 2), Err(MailboxFull));
        for remote in [roomy, tight] {
            let mut taken = VecDeque::new();
            assert!(!remote.shared.mailboxes[0].take(9, &mut taken));
            assert!(matches!(taken.make_contiguous(), [Envelope::Post(1)]));
            assert_eq!(remote.shared.mailboxes[0].bytes.load(Ordering::Relaxed), 0);
        }
    }
}
