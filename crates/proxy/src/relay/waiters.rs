//! [`Waiters`]: the queued requests of a worker. Adding, removing and finding the first of a queue take
//! logarithmic time, because a queue can be long and all of it can time out at once.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use engine::invariant;

/// The position of a queued request: its queue, and its place in it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    queue: usize,
    number: u64,
}

/// Exchanges whose requests are queued, by queue, the oldest of each first.
#[derive(Default)]
pub(super) struct Waiters {
    exchanges: BTreeMap<Position, u32>,
    numbers: u64,
}

impl Waiters {
    /// Appends a request to a queue, which is identified by a number.
    pub(super) fn push(&mut self, queue: usize, exchange: u32) -> Position {
        self.numbers += 1;
        let position = Position { queue, number: self.numbers };
        self.exchanges.insert(position, exchange);
        position
    }

    /// Moves a request to the end of another queue, if this is another one.
    pub(super) fn move_to(&mut self, queue: usize, exchange: u32, from: Position) -> Position {
        if queue == from.queue {
            return from;
        }
        self.remove(from);
        self.push(queue, exchange)
    }

    pub(super) fn remove(&mut self, position: Position) {
        if self.exchanges.remove(&position).is_none() {
            invariant::broken("a request that waits has a position");
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.exchanges.is_empty()
    }

    /// The first request of the first queue.
    pub(super) fn first(&self) -> Option<(Position, u32)> {
        self.exchanges.first_key_value().map(|(position, exchange)| (*position, *exchange))
    }

    /// The request to try after the one that had this position: the next one, or the first of the next queue
    /// if that one still waits.
    pub(super) fn after(&self, position: Position) -> Option<(Position, u32)> {
        let waits = self.exchanges.contains_key(&position);
        let number = if waits { u64::MAX } else { position.number };
        let from = Excluded(Position { number, ..position });
        let next = self.exchanges.range((from, Unbounded)).next();
        next.map(|(position, exchange)| (*position, *exchange))
    }

    /// Whether the request with this position still waits.
    pub(super) fn contains(&self, position: Position) -> bool {
        self.exchanges.contains_key(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_is_tried_in_order_until_one_must_wait() {
        let mut waiters = Waiters::default();
        for exchange in 0..30 {
            waiters.push(exchange as usize % 3, exchange);
        }
        // Two requests of the first queue find a permit, none of the second, all of the third.
        let (mut tried, mut next) = (Vec::new(), waiters.first());
        while let Some((position, exchange)) = next {
            tried.push(exchange);
            if exchange < 6 && exchange % 3 == 0 || exchange % 3 == 2 {
                waiters.remove(position);
            }
            next = waiters.after(position);
        }
        let third = (0..10).map(|nth| nth * 3 + 2);
        assert_eq!(tried, [0, 3, 6, 1].into_iter().chain(third).collect::<Vec<u32>>());
        assert_eq!(waiters.exchanges.len(), 8 + 10);
        let (first, exchange) = waiters.first().unwrap();
        assert_eq!(waiters.move_to(0, exchange, first), first);
        let moved = waiters.move_to(1, exchange, first);
        assert!(!waiters.contains(first) && waiters.contains(moved));
        assert_eq!(waiters.exchanges.last_key_value(), Some((&moved, &exchange)));
    }
}
