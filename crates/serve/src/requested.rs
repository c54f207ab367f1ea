//! [`Requested`]: where the messages begin that are requested by a text, as `?since=` and `Last-Event-ID` have it.

use topics::Position;

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
        match text.contains(':') {
            true => Position::parse(text).map(Requested::After),
            false => text.parse().ok().map(Requested::Since),
        }
    }
}
