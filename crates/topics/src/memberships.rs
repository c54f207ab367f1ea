//! [`Memberships`]: a connection's list of its subscriptions, 16 bytes with a mark of up to 3.

use std::mem::take;

use engine::invariant::broken;

/// A subscriber: the handler's data of a connection.
pub trait Subscriber {
    /// What the handler keeps in the spare bytes of the memberships.
    type Mark: Default;

    /// Where its memberships are kept.
    fn memberships(&mut self) -> &mut Memberships<Self::Mark>;
}

/// Group and position in it, for each subscription, in the order of the groups. A single one needs
/// no allocation. The spare bytes hold the handler's mark, and the memory that it counts for the
/// subscriptions. A mark of more than 3 bytes takes its own size beyond that, and never more.
#[derive(Debug)]
pub struct Memberships<M = u16>(Set<M>);

#[derive(Debug)]
enum Set<M> {
    None {
        mark: M,
    },
    One {
        mark: M,
        bytes: u32,
        group: u32,
        position: u32,
    },
    // A thin pointer keeps the whole at 16 bytes.
    #[expect(clippy::box_collection)]
    Many {
        mark: M,
        bytes: u32,
        list: Box<Vec<(u32, u32)>>,
    },
}

const _: () = assert!(size_of::<Memberships>() == 16);
const _: () = assert!(size_of::<Memberships<[u8; 3]>>() == 16);
const _: () = assert!(size_of::<Memberships<Option<Box<u8>>>>() == 24);
const _: () = assert!(size_of::<Memberships<String>>() == 40);

/// Where a group is in a list, or where it would be.
fn find(list: &[(u32, u32)], group: u32) -> Result<usize, usize> {
    list.binary_search_by_key(&group, |&(other, _)| other)
}

impl<M: Default> Default for Memberships<M> {
    fn default() -> Self {
        Memberships::marked(M::default())
    }
}

impl<M: Copy> Memberships<M> {
    /// The handler's mark.
    #[inline]
    #[must_use]
    pub fn mark(&self) -> M {
        match &self.0 {
            Set::None { mark } | Set::One { mark, .. } | Set::Many { mark, .. } => *mark,
        }
    }
}

impl<M> Memberships<M> {
    /// An empty list with a mark.
    #[must_use]
    pub fn marked(mark: M) -> Self {
        Memberships(Set::None { mark })
    }

    /// The handler's mark, to be changed.
    #[inline]
    #[must_use]
    pub fn mark_mut(&mut self) -> &mut M {
        match &mut self.0 {
            Set::None { mark } | Set::One { mark, .. } | Set::Many { mark, .. } => mark,
        }
    }

    /// Bytes that the handler counts for the subscriptions; 0 without any.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        match &self.0 {
            Set::None { .. } => 0,
            Set::One { bytes, .. } | Set::Many { bytes, .. } => *bytes,
        }
    }

    /// Sets the bytes that the handler counts for the subscriptions, if there are any.
    pub fn set_bytes(&mut self, now: u32) {
        match &mut self.0 {
            Set::None { .. } => {}
            Set::One { bytes, .. } | Set::Many { bytes, .. } => *bytes = now,
        }
    }

    /// Number of subscriptions.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Set::None { .. } => 0,
            Set::One { .. } => 1,
            Set::Many { list, .. } => list.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All groups.
    pub(crate) fn groups(&self) -> impl Iterator<Item = u32> {
        let (only, list) = match &self.0 {
            Set::None { .. } => (None, &[][..]),
            Set::One { group, .. } => (Some(*group), &[][..]),
            Set::Many { list, .. } => (None, &list[..]),
        };
        only.into_iter().chain(list.iter().map(|(group, _)| *group))
    }

    /// A group by its place in the order of the groups, and the position in it.
    pub(crate) fn nth(&self, nth: usize) -> Option<(u32, u32)> {
        match &self.0 {
            Set::One { group, position, .. } if nth == 0 => Some((*group, *position)),
            Set::Many { list, .. } => list.get(nth).copied(),
            _ => None,
        }
    }

    /// The group, if there is exactly one.
    pub(crate) fn only(&self) -> Option<u32> {
        self.groups().next().filter(|_| self.len() == 1)
    }

    /// Whether a group is in the list.
    pub(crate) fn has(&self, group: u32) -> bool {
        match &self.0 {
            Set::None { .. } => false,
            Set::One { group: only, .. } => *only == group,
            Set::Many { list, .. } => find(list, group).is_ok(),
        }
    }
}

impl<M: Default> Memberships<M> {
    /// Adds a group unless it is in the list; `position` is the one it will have.
    pub(crate) fn add(&mut self, group: u32, position: u32) -> bool {
        match &mut self.0 {
            Set::None { mark } => {
                self.0 = Set::One { mark: take(mark), bytes: 0, group, position };
            }
            Set::One { group: only, .. } if *only == group => return false,
            Set::One { mark, bytes, group: first, position: at } => {
                let mut list = Box::new(vec![(*first, *at), (group, position)]);
                list.sort_unstable();
                self.0 = Set::Many { mark: take(mark), bytes: *bytes, list };
            }
            Set::Many { list, .. } => match find(list, group) {
                Ok(_) => return false,
                Err(at) => list.insert(at, (group, position)),
            },
        }
        true
    }

    /// Removes a group and returns the position.
    pub(crate) fn remove(&mut self, group: u32) -> Option<u32> {
        match &mut self.0 {
            Set::One { mark, group: only, position, .. } if *only == group => {
                let position = *position;
                self.0 = Set::None { mark: take(mark) };
                Some(position)
            }
            Set::Many { list, .. } => {
                let at = find(list, group).ok()?;
                let (_, position) = list.remove(at);
                self.shrink();
                Some(position)
            }
            _ => None,
        }
    }

    /// Removes any group.
    pub(crate) fn pop(&mut self) -> Option<(u32, u32)> {
        match &mut self.0 {
            Set::None { .. } => None,
            Set::One { mark, group, position, .. } => {
                let last = (*group, *position);
                self.0 = Set::None { mark: take(mark) };
                Some(last)
            }
            Set::Many { list, .. } => {
                let last = list.pop();
                self.shrink();
                last
            }
        }
    }

    /// Frees what a list that has become short does not need.
    fn shrink(&mut self) {
        let Set::Many { mark, list, .. } = &mut self.0 else { return };
        if list.is_empty() {
            self.0 = Set::None { mark: take(mark) };
        } else if list.capacity() > 16 && list.len() < list.capacity() / 4 {
            list.shrink_to(list.len() * 2);
        }
    }

    /// Updates the position of a member that moved within its group.
    pub(crate) fn moved(&mut self, group: u32, to: u32) {
        match &mut self.0 {
            Set::One { group: only, position, .. } if *only == group => *position = to,
            Set::Many { list, .. } => {
                match find(list, group).ok().and_then(|at| list.get_mut(at)) {
                    Some((_, position)) => *position = to,
                    None => broken("a member that moved has a membership"),
                }
            }
            _ => broken("a member that moved has a membership"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_keep_their_mark_through_all_forms() {
        let mut set = Memberships::marked(7);
        assert!(set.add(1, 10) && !set.add(1, 11));
        assert!(set.add(2, 20) && set.add(3, 30) && !set.add(3, 31));
        assert!(set.has(2) && set.mark() == 7);
        set.moved(2, 21);
        assert_eq!((set.remove(2), set.remove(2), set.len()), (Some(21), None, 2));
        assert_eq!(set.only(), None);
        let mut left = vec![set.pop(), set.pop(), set.pop()];
        left.sort();
        assert_eq!(left, [None, Some((1, 10)), Some((3, 30))]);
        assert!(set.is_empty() && set.add(1, 5) && set.mark() == 7);
        assert_eq!(set.only(), Some(1));
        set.moved(1, 6);
        assert_eq!((set.pop(), set.mark()), (Some((1, 6)), 7));
    }

    #[test]
    fn bytes_are_kept_through_all_forms_and_gone_with_the_last_subscription() {
        let mut set = Memberships::marked(7);
        set.set_bytes(9);
        assert_eq!(set.bytes(), 0, "nothing to count for");
        set.add(5, 50);
        set.set_bytes(100);
        for group in [9, 1, 7, 3] {
            assert!(set.add(group, group * 10));
        }
        assert_eq!((set.bytes(), set.groups().collect()), (100, vec![1, 3, 5, 7, 9]));
        set.set_bytes(500);
        assert_eq!((set.remove(5), set.bytes()), (Some(50), 500));
        while set.pop().is_some() {}
        assert_eq!((set.bytes(), set.mark()), (0, 7));
    }
}
