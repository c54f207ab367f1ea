//! [`BufferPool`]: the buffers that a worker keeps for reuse.

use crate::limits::{KEPT_BUFFER_BYTES, POOLED_BUFFER_BYTES, POOLED_BUFFERS};

/// Memory that a buffer holds, in bytes. One that may be from a pool counts with its capacity. What a
/// larger one has not used yet was never written, so that the system has given no memory for it.
pub(crate) fn held(buffer: &Vec<u8>) -> usize {
    buffer.len().max(buffer.capacity().min(POOLED_BUFFER_BYTES))
}

/// A worker's spare buffers, all empty.
#[derive(Default)]
pub(crate) struct BufferPool(Vec<Vec<u8>>);

impl BufferPool {
    /// A buffer of any capacity, for use within a turn.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// A buffer that stays with a connection for `bytes` bytes. It is not much larger: a peer that
    /// sends one byte must not hold 64 KiB.
    pub(crate) fn take_to_keep(&mut self, bytes: usize) -> Vec<u8> {
        let capacity_max = bytes.saturating_mul(2).max(KEPT_BUFFER_BYTES);
        let fits = |buffer: &Vec<u8>| buffer.capacity() <= capacity_max;
        if let Some(at) = self.0.iter().rposition(fits) {
            return self.0.swap_remove(at);
        }
        if self.0.len() >= POOLED_BUFFERS {
            // The new one finds room here when it is given back.
            self.0.pop();
        }
        Vec::with_capacity(bytes)
    }

    /// Keeps a buffer, unless it is too large or there are enough.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < POOLED_BUFFERS && buffer.capacity() <= POOLED_BUFFER_BYTES {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> BufferPool {
        let mut pool = BufferPool::default();
        (0..POOLED_BUFFERS).for_each(|_| pool.give(Vec::with_capacity(POOLED_BUFFER_BYTES)));
        pool
    }

    #[test]
    fn the_unused_part_of_a_growing_message_is_not_held() {
        let mut message = Vec::with_capacity(4 << 20);
        message.resize(2 << 20, 7);
        assert_eq!(held(&message), 2 << 20);
        message.truncate(1);
        assert_eq!(held(&message), POOLED_BUFFER_BYTES);
    }

    #[test]
    fn a_buffer_to_keep_is_not_much_larger_than_needed() {
        for bytes in [0, 1, 100, 5_000, 20_000, POOLED_BUFFER_BYTES] {
            let mut pool = full();
            let capacity = pool.take_to_keep(bytes).capacity();
            assert!(capacity <= (2 * bytes).max(KEPT_BUFFER_BYTES), "{bytes}: {capacity}");
        }
        assert_eq!(full().take_to_keep(40_000).capacity(), POOLED_BUFFER_BYTES, "it is reused");
    }

    #[test]
    fn small_buffers_are_reused_though_the_pool_was_full_of_large_ones() {
        let mut pool = full();
        let mut tail = pool.take_to_keep(100);
        tail.extend_from_slice(&[7; 100]);
        let address = tail.as_ptr();
        pool.give(tail);
        let again = pool.take_to_keep(60);
        assert_eq!((again.as_ptr(), again.len()), (address, 0));
    }
}
