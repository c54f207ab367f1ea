//! Webhooks: what happens to connections and topics is posted to receivers, in signed batches.
//!
//! Workers add events, one lock each; nothing happens per message. [`batcher::Batcher`] is what waits for
//! one receiver, and each receiver has a thread of its own (`sender.rs`), so one that does not answer
//! delays no other.

mod batcher;
mod config;
mod event;
mod sender;
mod vacancies;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use engine::invariant;
use engine::sys::process::now_ns;

use self::batcher::Batcher;
pub(crate) use self::batcher::BatcherStats;
pub use self::config::{EventKinds, WebhookConfig};
pub(crate) use self::event::{Event, EventKind};
pub(crate) use self::sender::start;
use self::vacancies::Vacancies;
use crate::app::PostUrl;
use crate::shared::UnixClock;

/// The webhooks of a process.
pub(crate) struct Hooks {
    pub(crate) config: WebhookConfig,
    clock: UnixClock,
    /// Precedes the numbers of events and batches, as those of another process are the same.
    epoch: Box<str>,
    inner: Mutex<Inner>,
    /// Notified when a receiver has something to do earlier than it looks by itself.
    changed: Condvar,
}

struct Inner {
    receivers: Vec<Receiver>,
    vacancies: Vacancies,
    /// Events so far.
    events: u64,
    /// The same by kind.
    by_kind: [u64; EventKind::ALL.len()],
}

/// A receiver and what waits for it.
struct Receiver {
    batcher: Batcher,
    /// When its thread looks again by itself; `None` while it runs.
    looks_ns: Option<u64>,
    took: crate::app::Times,
}

/// Figures of a receiver at one time.
pub(crate) struct ReceiverFigures {
    /// Its URL without the path.
    pub(crate) url: String,
    pub(crate) stats: BatcherStats,
    pub(crate) waiting: usize,
    pub(crate) bytes: usize,
    pub(crate) oldest_ns: u64,
    /// Time of requests.
    pub(crate) took: crate::app::Times,
}

impl Hooks {
    pub(crate) fn new(config: &WebhookConfig, clock: UnixClock, epoch: u64) -> Arc<Self> {
        let limits = config.batch_limits();
        let receiver = |_: &PostUrl| Receiver {
            batcher: Batcher::new(limits),
            looks_ns: None,
            took: Default::default(),
        };
        let inner = Inner {
            receivers: config.urls.iter().map(receiver).collect(),
            vacancies: Vacancies::new(config.vacant_delay_ns()),
            events: 0,
            by_kind: Default::default(),
        };
        Arc::new(Hooks {
            config: config.clone(),
            clock,
            epoch: format!("{epoch:016x}").into(),
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether events of this kind are reported.
    pub(crate) fn wants(&self, kind: EventKind) -> bool {
        self.config.events.contains(kind)
    }

    /// Adds an event, unless its kind is not reported.
    pub(crate) fn add(&self, now_ns: u64, event: &Event<'_>) {
        if !self.wants(event.kind) {
            return;
        }
        let fields = event.fields(self.clock.unix_ms(now_ns));
        let mut inner = self.lock();
        self.push(&mut inner, now_ns, event.kind, &fields);
        self.notify(&inner);
    }

    /// A topic has its first subscriber in this process.
    pub(crate) fn occupied(&self, topic: &str) {
        let now_ns = now_ns();
        let mut inner = self.lock();
        if inner.vacancies.occupied(topic) && self.wants(EventKind::Occupied) {
            let event = Event { topic: Some(topic), ..Event::new(EventKind::Occupied) };
            let fields = event.fields(self.clock.unix_ms(now_ns));
            self.push(&mut inner, now_ns, EventKind::Occupied, &fields);
            self.notify(&inner);
        }
    }

    /// A topic has lost its last subscriber in this process.
    pub(crate) fn vacated(&self, topic: &str) {
        let mut inner = self.lock();
        inner.vacancies.vacated(now_ns(), topic);
        self.notify(&inner);
    }

    /// Reports the vacancies that are due.
    fn report_vacancies(&self, inner: &mut Inner, now_ns: u64) {
        while let Some((since_ns, topic)) = inner.vacancies.take_due(now_ns) {
            if self.wants(EventKind::Vacant) {
                let event = Event { topic: Some(&topic), ..Event::new(EventKind::Vacant) };
                let fields = event.fields(self.clock.unix_ms(since_ns));
                self.push(inner, now_ns, EventKind::Vacant, &fields);
            }
        }
    }

    fn push(&self, inner: &mut Inner, now_ns: u64, kind: EventKind, fields: &str) {
        inner.events += 1;
        match inner.by_kind.get_mut(kind as usize) {
            Some(count) => *count += 1,
            None => invariant::broken("each kind of event is counted"),
        }
        let text: Arc<str> =
            format!(r#"{{"id":"{}-{}",{fields}}}"#, self.epoch, inner.events).into();
        for receiver in &mut inner.receivers {
            receiver.batcher.push(now_ns, Arc::clone(&text));
        }
    }

    /// Wakes the receivers, if one of them has something to do before it looks by itself.
    fn notify(&self, inner: &Inner) {
        let vacancy_ns = inner.vacancies.due_ns();
        let is_sooner = |receiver: &Receiver| {
            let due_ns = receiver.batcher.due_ns().into_iter().chain(vacancy_ns).min();
            receiver.looks_ns.zip(due_ns).is_some_and(|(looks_ns, due_ns)| due_ns < looks_ns)
        };
        if inner.receivers.iter().any(is_sooner) {
            self.changed.notify_all();
        }
    }

    /// The server ends: what waits is sent now, as far as receivers accept it in time.
    pub(crate) fn drain(&self) {
        let now_ns = now_ns();
        let mut inner = self.lock();
        inner.vacancies.drain();
        self.report_vacancies(&mut inner, now_ns);
        inner.receivers.iter_mut().for_each(|receiver| receiver.batcher.drain(now_ns));
        self.changed.notify_all();
    }

    /// Events that are not delivered yet, of the receiver that lacks most.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().receivers.iter().map(|receiver| receiver.batcher.len()).max().unwrap_or(0)
    }

    /// Events so far, by kind.
    pub(crate) fn events(&self) -> [u64; EventKind::ALL.len()] {
        self.lock().by_kind
    }

    /// The figures of the receivers.
    pub(crate) fn figures(&self, now_ns: u64) -> Vec<ReceiverFigures> {
        let inner = self.lock();
        let figures = |(url, receiver): (&PostUrl, &Receiver)| ReceiverFigures {
            url: url.to_string(),
            stats: receiver.batcher.stats(),
            waiting: receiver.batcher.len(),
            bytes: receiver.batcher.bytes(),
            oldest_ns: receiver.batcher.oldest_ns(now_ns),
            took: receiver.took.clone(),
        };
        self.config.urls.iter().zip(&inner.receivers).map(figures).collect()
    }
}
