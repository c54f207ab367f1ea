//! [`Socket`]: the state of one connection, 24 bytes in the engine's slab.

use crate::delivery::window::Window;

/// Messages and pings of one connection.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Socket {
    /// Which answers, or which publications, have arrived.
    pub(crate) window: Window,
    /// Messages sent: the number of the next.
    pub(crate) sent: u32,
    /// When the last message was sent, or before that the connect, in monotonic nanoseconds (enough for
    /// two years of uptime); the flags are in the upper bits.
    stamp: u64,
}

const TIME_BITS: u32 = 56;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

impl Socket {
    /// Has answered at least one ping.
    pub(crate) const ANSWERED: u8 = 1;
    /// The last ping is not answered yet.
    pub(crate) const PINGED: u8 = 1 << 1;
    /// Takes part in the current echo.
    pub(crate) const ECHOING: u8 = 1 << 2;
    /// The last message is not answered yet (closed loop).
    pub(crate) const AWAITING: u8 = 1 << 3;
    /// Is a receiver of publications.
    pub(crate) const RECEIVING: u8 = 1 << 4;

    /// Is being closed because the target fell.
    pub(crate) const RETIRED: u8 = 1 << 5;
    /// Publishes to the others, and is no receiver itself.
    pub(crate) const SENDING: u8 = 1 << 6;
    /// Has finished its messages and is being closed and replaced.
    pub(crate) const FINISHED: u8 = 1 << 7;

    pub(crate) fn has(&self, flag: u8) -> bool {
        (self.stamp >> TIME_BITS) as u8 & flag != 0
    }

    pub(crate) fn set(&mut self, flag: u8) {
        self.stamp |= u64::from(flag) << TIME_BITS;
    }

    pub(crate) fn clear(&mut self, flag: u8) {
        self.stamp &= !(u64::from(flag) << TIME_BITS);
    }

    pub(crate) fn sent_ns(&self) -> u64 {
        self.stamp & TIME_MASK
    }

    pub(crate) fn set_sent_ns(&mut self, now_ns: u64) {
        self.stamp = self.stamp & !TIME_MASK | now_ns & TIME_MASK;
    }

    /// Marks it as closed and counted. If `attempts` is not 0, it is to be reopened once its connection
    /// has ended, after that many failed attempts in a row.
    pub(crate) fn set_gone(&mut self, attempts: u32) {
        (self.sent, self.stamp) = (attempts, TIME_MASK);
    }

    /// Whether [`Socket::set_gone`] was called. No send time has this value.
    pub(crate) fn is_gone(&self) -> bool {
        self.sent_ns() == TIME_MASK
    }

    /// Resets the message counts; the state of pings stays.
    pub(crate) fn begin_messages(&mut self) {
        if self.is_gone() {
            return;
        }
        self.window = Window::default();
        self.sent = 0;
        self.clear(Self::ECHOING | Self::AWAITING | Self::RECEIVING | Self::SENDING);
    }
}

const _: () = assert!(size_of::<Socket>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_flags_are_independent() {
        let mut socket = Socket::default();
        socket.set(Socket::ANSWERED | Socket::AWAITING);
        socket.set_sent_ns(TIME_MASK);
        socket.clear(Socket::AWAITING);
        socket.set_sent_ns(12_345);
        assert!(socket.has(Socket::ANSWERED) && !socket.has(Socket::AWAITING));
        assert_eq!(socket.sent_ns(), 12_345);
    }

    #[test]
    fn closed_socket_takes_no_part_and_keeps_its_attempts() {
        let mut socket = Socket::default();
        socket.set(Socket::ECHOING | Socket::AWAITING | Socket::PINGED);
        socket.set_sent_ns(12_345);
        assert!(!socket.is_gone());
        socket.set_gone(3);
        socket.begin_messages();
        assert!(socket.is_gone() && !socket.has(u8::MAX));
        assert_eq!(socket.sent, 3);
    }
}
