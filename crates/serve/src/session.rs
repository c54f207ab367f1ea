//! [`Session`]: the handler's data of a connection: its protocol and subscriptions. 16 bytes, no
//! allocation with one subscription.

use topics::{Memberships, Subscriber};

/// The protocol of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// HTTP: it is nothing else yet.
    Http,
    /// `/echo`.
    Echo,
    /// `/topics/NAME`.
    Topic,
    /// Server-sent events.
    Events,
    /// Action Cable.
    Cable,
    /// Action Cable in AnyCable's extended form.
    CableExt,
}

impl Speaks {
    const ALL: [Speaks; 6] = [
        Speaks::Http,
        Speaks::Echo,
        Speaks::Topic,
        Speaks::Events,
        Speaks::Cable,
        Speaks::CableExt,
    ];

    /// Whether its clients expect to be told now and then that we are there.
    pub(crate) fn beats(self) -> bool {
        matches!(self, Speaks::Events | Speaks::Cable | Speaks::CableExt)
    }
}

/// The protocol and the subscriptions of a connection.
#[derive(Default)]
pub(crate) struct Session(Memberships);

const _: () = assert!(size_of::<Session>() == 16);

impl Session {
    pub(crate) fn new(speaks: Speaks) -> Self {
        Session(Memberships::marked(speaks as u16))
    }

    #[inline]
    pub(crate) fn speaks(&self) -> Speaks {
        Speaks::ALL.get(usize::from(self.0.mark())).copied().unwrap_or(Speaks::Http)
    }

    pub(crate) fn subscriptions(&self) -> &Memberships {
        &self.0
    }
}

impl Subscriber for Session {
    fn memberships(&mut self) -> &mut Memberships {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_speaks_is_remembered() {
        assert_eq!(Session::default().speaks(), Speaks::Http);
        for (at, speaks) in Speaks::ALL.into_iter().enumerate() {
            assert_eq!((speaks as usize, Session::new(speaks).speaks()), (at, speaks));
        }
    }
}
