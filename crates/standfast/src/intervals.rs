//! [`Server::every`]: what a server does at intervals; [`Interval`]: when something at an interval is due.

use std::sync::PoisonError;
use std::time::Duration;

use crate::routes::{Routes, nanoseconds};
use crate::{Context, Server};

/// Shortest interval: the resolution of a worker's waits.
const SHORTEST: Duration = Duration::from_millis(1);

/// What a server does at an interval.
pub(crate) struct Every {
    interval: Interval,
    act: Box<dyn FnMut(&mut Context<'_>) + Send>,
}

impl Every {
    fn new(interval: Duration, act: impl FnMut(&mut Context<'_>) + Send + 'static) -> Every {
        Every { interval: Interval::new(interval), act: Box::new(act) }
    }

    /// Acts if that is due. Returns when it is due next.
    pub(crate) fn turn(&mut self, now_ns: u64, context: &mut Context<'_>) -> u64 {
        if self.interval.is_due(now_ns) {
            (self.act)(context);
        }
        self.interval.next_ns
    }
}

/// An interval, which begins when it is first looked at.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    length_ns: u64,
    /// When it is due; 0 at first.
    pub(crate) next_ns: u64,
}

impl Interval {
    pub(crate) fn new(length: Duration) -> Interval {
        Interval { length_ns: nanoseconds(length.max(SHORTEST)), next_ns: 0 }
    }

    /// Whether it is due, once for each time. Times that a busy worker missed are left out.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        if self.next_ns == 0 {
            self.next_ns = now_ns.saturating_add(self.length_ns);
            return false;
        }
        let Some(late_ns) = now_ns.checked_sub(self.next_ns) else { return false };
        let intervals = late_ns / self.length_ns + 1;
        self.next_ns = self.next_ns.saturating_add(intervals.saturating_mul(self.length_ns));
        true
    }
}

impl<R: Routes> Server<R> {
    /// Calls a function at an interval, once for the server and not once for each worker: its first worker
    /// calls it, from one interval after the start until the server has stopped. A time that the worker is
    /// too busy for is left out.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use standfast::Server;
    /// let mut seconds = 0;
    /// Server::bind("127.0.0.1:8080")?
    ///     .every(Duration::from_secs(1), move |context| {
    ///         seconds += 1;
    ///         let _ = context.publish("clock", &format!("{seconds} s"));
    ///     })
    ///     .run()
    /// # ?; Ok::<(), standfast::Error>(())
    /// ```
    ///
    /// The interval is at least 1 ms, and the function is late by a turn of the worker, which it must not block.
    /// For something that needs a handler, or the sockets of each worker, see [`Handler::tick`](crate::Handler::tick),
    /// and for a single socket [`Socket::set_timer`](crate::Socket::set_timer).
    ///
    /// Cost: an allocation at the start and a comparison in each turn of the first worker. Without one, each
    /// turn looks at the length of an empty list.
    ///
    /// # Panics
    /// A panic of the function ends the server, as that of a handler.
    #[must_use]
    pub fn every(
        mut self,
        interval: Duration,
        act: impl FnMut(&mut Context<'_>) + Send + 'static,
    ) -> Self {
        let every = self.every.get_mut().unwrap_or_else(PoisonError::into_inner);
        every.push(Every::new(interval, act));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads can share a server that has not started.
    const _: fn() = || {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<Server>();
    };

    #[test]
    fn an_interval_is_due_once_for_each_time_and_leaves_out_what_was_missed() {
        let mut interval = Interval::new(Duration::from_millis(10));
        let mut due = |ms: u64| {
            let due = interval.is_due(ms * 1_000_000);
            (due, interval.next_ns / 1_000_000)
        };
        assert_eq!(due(5), (false, 15));
        assert_eq!(due(14), (false, 15));
        assert_eq!([due(15), due(15)], [(true, 25), (false, 25)]);
        // Late, but it keeps to its times.
        assert_eq!(due(29), (true, 35));
        assert_eq!([due(75), due(84), due(85)], [(true, 85), (false, 85), (true, 95)]);
        assert_eq!(Interval::new(Duration::ZERO).length_ns, 1_000_000);
        let mut never = Interval::new(Duration::MAX);
        assert!(!never.is_due(1) && !never.is_due(u64::MAX - 1) && never.next_ns == u64::MAX);
    }
}
