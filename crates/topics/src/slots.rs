//! [`Slots`]: values at stable indices, with the memory of those that are gone returned.

/// Values, each at an index that does not change while it is there.
pub struct Slots<T> {
    all: Vec<Option<T>>,
    /// Free indices below the end, and some that are no longer free.
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { all: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// The value at an index.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.all.get(index as usize)?.as_ref()
    }

    /// The value at an index, mutable.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.all.get_mut(index as usize)?.as_mut()
    }

    /// One more than the highest index in use.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.all.len() as u32
    }

    /// Adds a value and returns its index.
    pub fn insert(&mut self, value: T) -> u32 {
        while let Some(index) = self.free.pop() {
            if let Some(slot @ None) = self.all.get_mut(index as usize) {
                *slot = Some(value);
                return index;
            }
        }
        self.all.push(Some(value));
        (self.all.len() - 1) as u32
    }

    /// Removes the value at an index. Free slots at the end are returned.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.all.get_mut(index as usize)?.take()?;
        self.free.push(index);
        while let Some(None) = self.all.last() {
            self.all.pop();
        }
        if self.all.capacity() > 64 && self.all.len() < self.all.capacity() / 4 {
            self.all.shrink_to(self.all.len() * 2);
        }
        // Indices beyond the end are gone, and one that was freed twice would be listed twice.
        if self.free.len() > 64 + 2 * self.all.len() {
            self.free.retain(|index| matches!(self.all.get(*index as usize), Some(None)));
            self.free.sort_unstable();
            self.free.dedup();
            self.free.shrink_to(2 * self.free.len());
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_reused_and_no_two_values_share_one() {
        let mut slots = Slots::default();
        let mut held: Vec<(u32, u64)> = Vec::new();
        let mut state = 7u64;
        for step in 0..50_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // It grows to thousands and shrinks to none several times.
            let grows = step / 5_000 % 2 == 0;
            if held.is_empty() || (state >> 33) % 8 < if grows { 6 } else { 1 } {
                held.push((slots.insert(step), step));
            } else {
                let at = (state >> 40) as usize % held.len();
                let (index, value) = held.swap_remove(at);
                assert_eq!((slots.remove(index), slots.get(index)), (Some(value), None));
            }
            assert!(slots.free.len() <= 66 + 2 * slots.all.len());
        }
        for (index, value) in &held {
            assert_eq!(slots.get(*index), Some(value));
        }
    }

    #[test]
    fn memory_is_returned() {
        let mut slots = Slots::default();
        let indices: Vec<u32> = (0..10_000).map(|value| slots.insert(value)).collect();
        for index in indices.iter().skip(3) {
            slots.remove(*index);
        }
        assert!(slots.all.capacity() <= 64 && slots.free.capacity() <= 256, "{}", slots.free.len());
        assert_eq!(slots.get(2), Some(&2));
    }
}
