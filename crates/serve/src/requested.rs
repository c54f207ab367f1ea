//! [`Requested`]: where the messages begin that are requested by a text, as `?since=` and `Last-Event-ID` have it.

use topics::{Epoch, Position};

/// Where the requested messages begin.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Requested {
    /// After the message with this position, `EPOCH:OFFSET`: the id of an event.
    After(Position),
    /// At this time, in Unix seconds.
    Since(i64),
}

impl Requested {
    /// Parses it; `None` if it is neither.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            Some((epoch, offset)) => {
                let (epoch, offset) = (Epoch::parse(epoch)?, offset.parse().ok()?);
                Some(Requested::After(Position { epoch, offset }))
            }
            None => text.parse().ok().map(Requested::Since),
        }
    }
}
