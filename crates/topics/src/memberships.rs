//! [`Memberships`]: a connection's list of its subscriptions, 16 bytes.

use engine::invariant::broken;

/// A subscriber: the handler's data of a connection.
pub trait Subscriber {
    /// Where its memberships are kept.
    fn memberships(&mut self) -> &mut Memberships;
}

/// Group and position in it, for each subscription. A single one needs no allocation. Two spare
/// bytes hold the handler's mark.
#[derive(Debug)]
pub struct Memberships(Set);

#[derive(Debug)]
enum Set {
    None {
        mark: u16,
    },
    One {
        mark: u16,
        group: u32,
        position: u32,
    },
    // A thin pointer keeps the whole at 16 bytes.
    #[expect(clippy::box_collection)]
    Many {
        mark: u16,
        list: Box<Vec<(u32, u32)>>,
    },
}

const _: () = assert!(size_of::<Memberships>() == 16);

impl Default for Memberships {
    fn default() -> Self {
        Memberships::marked(0)
    }
}

impl Memberships {
    /// An empty list with a mark.
    #[must_use]
    pub fn marked(mark: u16) -> Self {
        Memberships(Set::None { mark })
    }

    /// The handler's mark; 0 at first.
    #[inline]
    #[must_use]
    pub fn mark(&self) -> u16 {
        match &self.0 {
            Set::None { mark } | Set::One { mark, .. } | Set::Many { mark, .. } => *mark,
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

    /// The group, if there is exactly one.
    pub(crate) fn only(&self) -> Option<u32> {
        match &self.0 {
            Set::One { group, .. } => Some(*group),
            Set::Many { list, .. } if list.len() == 1 => list.first().map(|(group, _)| *group),
            _ => None,
        }
    }

    /// Whether a group is in the list.
    pub(crate) fn has(&self, group: u32) -> bool {
        match &self.0 {
            Set::None { .. } => false,
            Set::One { group: only, .. } => *only == group,
            Set::Many { list, .. } => list.iter().any(|&(other, _)| other == group),
        }
    }

    /// Adds a group unless it is in the list; `position` is the one it will have.
    pub(crate) fn add(&mut self, group: u32, position: u32) -> bool {
        if self.has(group) {
            return false;
        }
        match &mut self.0 {
            Set::None { mark } => self.0 = Set::One { mark: *mark, group, position },
            Set::One { mark, group: first, position: at } => {
                let list = Box::new(vec![(*first, *at), (group, position)]);
                self.0 = Set::Many { mark: *mark, list };
            }
            Set::Many { list, .. } => list.push((group, position)),
        }
        true
    }

    /// Removes a group and returns the position.
    pub(crate) fn remove(&mut self, group: u32) -> Option<u32> {
        match &mut self.0 {
            Set::One { mark, group: only, position } if *only == group => {
                let position = *position;
                self.0 = Set::None { mark: *mark };
                Some(position)
            }
            Set::Many { mark, list } => {
                let at = list.iter().position(|&(other, _)| other == group)?;
                let (_, position) = list.swap_remove(at);
                if list.is_empty() {
                    self.0 = Set::None { mark: *mark };
                }
                Some(position)
            }
            _ => None,
        }
    }

    /// Removes any group.
    pub(crate) fn pop(&mut self) -> Option<(u32, u32)> {
        match &mut self.0 {
            Set::None { .. } => None,
            Set::One { mark, group, position } => {
                let last = (*group, *position);
                self.0 = Set::None { mark: *mark };
                Some(last)
            }
            Set::Many { mark, list } => {
                let last = list.pop();
                if list.is_empty() {
                    self.0 = Set::None { mark: *mark };
                }
                last
            }
        }
    }

    /// Updates the position of a member that moved within its group.
    pub(crate) fn moved(&mut self, group: u32, to: u32) {
        match &mut self.0 {
            Set::One { group: only, position, .. } if *only == group => *position = to,
            Set::Many { list, .. } => match list.iter_mut().find(|(other, _)| *other == group) {
                Some((_, position)) => *position = to,
                None => broken("a member that moved has a membership"),
            },
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
}
