//! [`Memberships`]: a connection's own list of what it is subscribed to, 16 bytes.

/// Something that can be subscribed: the handler's data of a connection.
pub trait Subscriber {
    /// Where its memberships are kept.
    fn memberships(&mut self) -> &mut Memberships;
}

/// Group and place in it, for each subscription. One needs no memory of its own.
#[derive(Default, Debug)]
pub struct Memberships(Set);

#[derive(Default, Debug)]
enum Set {
    #[default]
    None,
    One {
        group: u32,
        place: u32,
    },
    // A thin pointer keeps all of it at 16 bytes.
    #[expect(clippy::box_collection)]
    Many(Box<Vec<(u32, u32)>>),
}

const _: () = assert!(size_of::<Memberships>() == 16);

impl Memberships {
    /// Number of subscriptions.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Set::None => 0,
            Set::One { .. } => 1,
            Set::Many(many) => many.len(),
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
            Set::Many(many) if many.len() == 1 => many.first().map(|(group, _)| *group),
            _ => None,
        }
    }

    /// Adds a group unless it is there; the place is the one it will have.
    pub(crate) fn add(&mut self, group: u32, place: u32) -> bool {
        match &mut self.0 {
            Set::None => self.0 = Set::One { group, place },
            Set::One { group: first, .. } if *first == group => return false,
            Set::One { group: first, place: at } => {
                self.0 = Set::Many(Box::new(vec![(*first, *at), (group, place)]));
            }
            Set::Many(many) => {
                if many.iter().any(|&(other, _)| other == group) {
                    return false;
                }
                many.push((group, place));
            }
        }
        true
    }

    /// Removes a group and tells its place.
    pub(crate) fn remove(&mut self, group: u32) -> Option<u32> {
        match &mut self.0 {
            Set::One { group: only, place } if *only == group => {
                let place = *place;
                self.0 = Set::None;
                Some(place)
            }
            Set::Many(many) => {
                let at = many.iter().position(|&(other, _)| other == group)?;
                let (_, place) = many.swap_remove(at);
                if many.is_empty() {
                    self.0 = Set::None;
                }
                Some(place)
            }
            _ => None,
        }
    }

    /// Removes any one.
    pub(crate) fn pop(&mut self) -> Option<(u32, u32)> {
        let group = match &self.0 {
            Set::None => return None,
            Set::One { group, .. } => *group,
            Set::Many(many) => many.last()?.0,
        };
        self.remove(group).map(|place| (group, place))
    }

    /// The member has another place in the group now.
    pub(crate) fn moved(&mut self, group: u32, to: u32) {
        match &mut self.0 {
            Set::One { group: only, place } if *only == group => *place = to,
            Set::Many(many) => {
                if let Some((_, place)) = many.iter_mut().find(|(other, _)| *other == group) {
                    *place = to;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_shrinks_through_all_forms() {
        let mut set = Memberships::default();
        assert!(set.add(1, 10) && !set.add(1, 11));
        assert!(set.add(2, 20) && set.add(3, 30) && !set.add(3, 31));
        set.moved(2, 21);
        assert_eq!((set.remove(2), set.remove(2), set.len()), (Some(21), None, 2));
        assert_eq!(set.only(), None);
        let mut left = vec![set.pop(), set.pop(), set.pop()];
        left.sort();
        assert_eq!(left, [None, Some((1, 10)), Some((3, 30))]);
        assert!(set.is_empty() && set.add(1, 5));
        assert_eq!(set.only(), Some(1));
        set.moved(1, 6);
        assert_eq!(set.pop(), Some((1, 6)));
    }
}
