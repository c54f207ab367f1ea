//! Answers whose status is in their last fields.

use engine::invariant;

use crate::transport::driver::Driver;
use crate::workload::requests::requester::Requester;
use crate::workload::requests::script::Script;

impl<D: Driver, S: Script> Requester<D, S> {
    /// Notes the status of an answer, and its last fields if the head is wanted.
    pub(crate) fn stream_trailers(&mut self, user: u32, status: u16, now_ns: u64) {
        let Some(one) = self.users.get_mut(user as usize) else {
            return invariant::broken("each user number is in the table of users");
        };
        if let Some(flight) = one.flights.front_mut().filter(|flight| flight.times.first_ns == 0) {
            flight.times.first_ns = now_ns;
        }
        one.awaited.status = status;
        if one.awaited.keeps_head(status) {
            one.awaited.trailers(self.driver.head());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::workload::requests::answer::{Awaited, header};

    #[test]
    fn last_fields_follow_those_of_the_head() {
        let mut awaited = Awaited::default();
        awaited.trailers(b"HTTP/1.1 200\r\na: 1\r\n\r\n");
        awaited.trailers(b"HTTP/1.1 200\r\nb: 2\r\n\r\n");
        assert_eq!(awaited.kept_head(), b"HTTP/1.1 200\r\na: 1\r\nb: 2\r\n\r\n");
        assert_eq!(header(awaited.kept_head(), "b"), Some(&b"2"[..]));
    }
}
