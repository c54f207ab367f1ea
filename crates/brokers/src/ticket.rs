//! [`Ticket`]: the outcome of one publication, for a publisher that waits for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::kept::Position;

/// What became of a publication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The broker has it.
    Published {
        /// To how many connections it passed it, if it tells.
        reached: Option<u64>,
        /// Where it keeps it, if it does.
        position: Option<Position>,
    },
    /// It was not published and will not be.
    Withdrawn,
    /// It was on its way when the time was over: it may have been published, or will be.
    Unknown,
    /// The broker takes none of its length: it was not published and will not be.
    TooLong,
    /// The broker has no room to keep it: it was not published.
    Full,
    /// The broker has refused it, and answered this: it was passed on to nobody.
    Rejected(Arc<str>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Sent,
    Published(Option<u64>, Option<Position>),
    Withdrawn,
    TooLong,
    Full,
    Rejected(Arc<str>),
}

/// A publication that somebody waits for.
#[derive(Debug)]
pub struct Ticket {
    state: Mutex<State>,
    changed: Condvar,
}

impl Ticket {
    /// Of a publication that is not sent yet.
    #[must_use]
    pub fn new() -> Arc<Ticket> {
        Arc::new(Ticket { state: Mutex::new(State::Waiting), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is about to be sent. False if it was withdrawn.
    pub(crate) fn send(&self) -> bool {
        let mut state = self.lock();
        if *state == State::Waiting {
            *state = State::Sent;
        }
        *state != State::Withdrawn
    }

    /// The broker has it.
    pub(crate) fn published(&self, reached: Option<u64>, position: Option<Position>) {
        *self.lock() = State::Published(reached, position);
        self.changed.notify_all();
    }

    /// The broker has no room to keep it.
    pub(crate) fn full(&self) {
        *self.lock() = State::Full;
        self.changed.notify_all();
    }

    /// The broker takes none of its length.
    pub(crate) fn too_long(&self) {
        *self.lock() = State::TooLong;
        self.changed.notify_all();
    }

    /// The broker has refused it, and answered this.
    pub(crate) fn rejected(&self, why: Arc<str>) {
        *self.lock() = State::Rejected(why);
        self.changed.notify_all();
    }

    /// Waits for the outcome. A publication that was not sent within the time is withdrawn.
    #[must_use]
    pub fn wait(&self, longest: Duration) -> Outcome {
        let is_open = |state: &mut State| matches!(state, State::Waiting | State::Sent);
        let waited = self.changed.wait_timeout_while(self.lock(), longest, is_open);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Published(reached, position) => {
                Outcome::Published { reached: *reached, position: *position }
            }
            State::Rejected(why) => Outcome::Rejected(Arc::clone(why)),
            State::Sent => Outcome::Unknown,
            State::TooLong => Outcome::TooLong,
            State::Full => Outcome::Full,
            State::Waiting | State::Withdrawn => {
                *state = State::Withdrawn;
                Outcome::Withdrawn
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sent_in_time_is_withdrawn_and_what_was_sent_is_unknown() {
        let none = Duration::ZERO;
        let ticket = Ticket::new();
        assert_eq!(ticket.wait(none), Outcome::Withdrawn);
        assert!(!ticket.send(), "it must not be sent any more");
        let ticket = Ticket::new();
        assert!(ticket.send());
        assert_eq!(ticket.wait(none), Outcome::Unknown);
        assert!(ticket.send(), "again, after the connection was lost");
        let position = Some(Position { epoch: 1, offset: 7 });
        ticket.published(Some(2), position);
        assert_eq!(ticket.wait(none), Outcome::Published { reached: Some(2), position });
    }

    #[test]
    fn the_waiting_publisher_is_woken() {
        let ticket = Ticket::new();
        let other = Arc::clone(&ticket);
        let waits = std::thread::spawn(move || other.wait(Duration::from_secs(60)));
        assert!(ticket.send());
        ticket.published(None, None);
        assert_eq!(waits.join().unwrap(), Outcome::Published { reached: None, position: None });
    }
}
