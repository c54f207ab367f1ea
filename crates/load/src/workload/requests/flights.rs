//! [`Flights`]: the requests in flight of a user. Without pipelining there is one, which is kept inline.

use std::collections::VecDeque;

use crate::workload::requests::answer::Times;
use crate::workload::requests::link::StreamId;
use crate::workload::requests::request::Kind;

/// A request in flight.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Flight {
    pub(crate) times: FlightTimes,
    /// Its place on the connection, once it is sent.
    pub(crate) stream: StreamId,
    /// It is HEAD, whose answer has no body.
    pub(crate) is_head: bool,
    pub(crate) kind: Kind,
    /// A pushed message answers it.
    pub(crate) awaits: bool,
    /// It was sent before to a connection that did not process it.
    pub(crate) is_repeated: bool,
}

/// [`Times`] of a request that has not ended.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct FlightTimes {
    pub(crate) due_ns: u64,
    pub(crate) begun_ns: u64,
    pub(crate) sent_ns: u64,
    pub(crate) first_ns: u64,
}

impl FlightTimes {
    /// The times of the request, which ended at `done_ns`.
    #[inline]
    pub(crate) fn until(self, done_ns: u64) -> Times {
        let FlightTimes { due_ns, begun_ns, sent_ns, first_ns } = self;
        Times { due_ns, begun_ns, sent_ns, first_ns, done_ns }
    }
}

/// Requests in flight, oldest first.
#[derive(Default, Debug)]
pub(crate) struct Flights {
    first: Option<Flight>,
    /// Those after it: with pipelining.
    #[expect(clippy::box_collection, reason = "8 bytes of each user, not 32")]
    more: Option<Box<VecDeque<Flight>>>,
}

const _: () = assert!(size_of::<Flights>() <= 48);

impl Flights {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        let more = self.more.as_ref().map_or(0, |more| more.len());
        usize::from(self.first.is_some()) + more
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&Flight> {
        self.first.as_ref()
    }

    #[inline]
    pub(crate) fn front_mut(&mut self) -> Option<&mut Flight> {
        self.first.as_mut()
    }

    pub(crate) fn back_mut(&mut self) -> Option<&mut Flight> {
        match self.more.as_mut().filter(|more| !more.is_empty()) {
            Some(more) => more.back_mut(),
            None => self.first.as_mut(),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, nth: usize) -> Option<&mut Flight> {
        match nth.checked_sub(1) {
            None => self.first.as_mut(),
            Some(nth) => self.more.as_mut()?.get_mut(nth),
        }
    }

    #[inline]
    pub(crate) fn push_back(&mut self, flight: Flight) {
        match self.first {
            None => self.first = Some(flight),
            Some(_) => self.more.get_or_insert_default().push_back(flight),
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<Flight> {
        let next = self.more.as_mut().and_then(|more| more.pop_front());
        std::mem::replace(&mut self.first, next)
    }

    pub(crate) fn remove(&mut self, nth: usize) -> Option<Flight> {
        match nth.checked_sub(1) {
            None => self.pop_front(),
            Some(nth) => self.more.as_mut()?.remove(nth),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Flight> {
        self.first.iter().chain(self.more.iter().flat_map(|more| more.iter()))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flight> {
        self.first.iter_mut().chain(self.more.iter_mut().flat_map(|more| more.iter_mut()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(number: u32) -> Flight {
        Flight { stream: StreamId::of(number), ..Flight::default() }
    }

    /// Every operation in a pseudo-random order does what it does to a queue.
    #[test]
    fn they_are_a_queue() {
        let (mut flights, mut queue) = (Flights::default(), VecDeque::new());
        let mut random = 1_u64;
        for number in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let nth = (random >> 40) as usize % 4;
            let removed = match random >> 60 {
                0..7 if queue.len() < 6 => {
                    flights.push_back(flight(number));
                    queue.push_back(number);
                    None
                }
                7..12 => Some((flights.pop_front(), queue.pop_front())),
                12 => Some((flights.remove(nth), queue.remove(nth))),
                13 => {
                    let last = flights.back_mut().map(|one| one.stream.number());
                    assert_eq!(last, queue.back().copied());
                    None
                }
                _ => {
                    let one = flights.get_mut(nth).map(|one| one.stream.number());
                    assert_eq!(one, queue.get(nth).copied());
                    None
                }
            };
            if let Some((one, other)) = removed {
                assert_eq!(one.map(|one| one.stream.number()), other);
            }
            let all: Vec<u32> = flights.iter().map(|one| one.stream.number()).collect();
            assert_eq!(all, queue.iter().copied().collect::<Vec<_>>());
            assert_eq!((flights.len(), flights.is_empty()), (queue.len(), queue.is_empty()));
            let front = flights.front().map(|one| one.stream.number());
            assert_eq!(front, queue.front().copied());
            assert_eq!(flights.iter_mut().count(), queue.len());
        }
    }
}
