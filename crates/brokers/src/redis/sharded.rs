//! [`ShardSubscriber`]: a connection that subscribes to shard channels (`SSUBSCRIBE`), in RESP3.
//!
//! A client of our own: a server that gives a hash slot away ends the subscriptions of its channels with the same push
//! (`sunsubscribe`) that answers a command, and the library takes it for the answer to whatever it has asked. Here
//! pushes answer nothing: a `PING` ends each request, and what comes before its answer are errors.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};
use tokio::task::{JoinHandle, spawn_local};

use super::{Stream, kept};
use crate::limits::{ANSWER_TIMEOUT, MESSAGE_BYTES_MAX};
use crate::settings::RedisUrl;
use crate::transport::{Channel, Fault, FaultKind, Inbox, Incoming};

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;
/// Nested aggregates in an answer.
const DEPTH_MAX: usize = 8;

/// One connection. Its task ends with it.
pub(super) struct ShardSubscriber {
    turn: Mutex<Turn>,
    state: Rc<State>,
    reader: JoinHandle<()>,
    pub(super) ended: RefCell<Option<oneshot::Receiver<()>>>,
}

/// What its task shares with it.
#[derive(Default)]
struct State {
    /// Channels that are being unsubscribed.
    leaving: RefCell<HashSet<Box<str>>>,
    /// Subscriptions, as the server counts them.
    subscribed: Cell<u64>,
}

/// One request at a time.
struct Turn {
    writer: WriteHalf<Stream>,
    answers: UnboundedReceiver<Option<String>>,
}

/// What the server sends.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Frame {
    /// Its strings and numbers; `None` for anything else in it.
    Push(Vec<Option<Vec<u8>>>),
    Error(String),
    Pong,
    Other,
}

impl Drop for ShardSubscriber {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl ShardSubscriber {
    /// Authenticates. What arrives goes to the inbox.
    pub(super) async fn new(url: &RedisUrl, stream: Stream, inbox: Inbox) -> Result<Self, Fault> {
        let (from, writer) = tokio::io::split(stream);
        let (sender, answers) = unbounded_channel();
        let (ends, ended) = oneshot::channel();
        let state = Rc::<State>::default();
        let arriving = Rc::clone(&state);
        let reader = spawn_local(async move {
            read(from, &inbox, &arriving, &sender).await;
            let _ = ends.send(());
        });
        let turn = Mutex::new(Turn { writer, answers });
        let ended = RefCell::new(Some(ended));
        let subscriber = ShardSubscriber { turn, state, reader, ended };
        let mut hello = redis::cmd("HELLO");
        hello.arg(3);
        if let Some(password) = &url.password {
            hello.arg("AUTH").arg(url.user.as_deref().unwrap_or("default")).arg(password);
        }
        let hello = hello.get_packed_command();
        match subscriber.request(hello).await?.first() {
            Some(error) => Err(Fault::new(FaultKind::Refused, error.clone())),
            None => Ok(subscriber),
        }
    }

    /// Sends commands and returns the errors among their answers.
    async fn request(&self, mut commands: Vec<u8>) -> Result<Vec<String>, Fault> {
        let closed = || Fault::new(FaultKind::Closed, "the connection was closed");
        commands.extend(redis::cmd("PING").get_packed_command());
        let mut turn = self.turn.lock().await;
        let answered = async {
            turn.writer.write_all(&commands).await.map_err(|_| closed())?;
            turn.writer.flush().await.map_err(|_| closed())?;
            let mut errors = Vec::new();
            loop {
                match turn.answers.recv().await.ok_or_else(closed)? {
                    Some(error) if is_of_ping(&error) => {
                        return Err(Fault::new(FaultKind::Refused, error));
                    }
                    Some(error) => errors.push(error),
                    None => return Ok(errors),
                }
            }
        };
        let silent =
            || Err(Fault::new(FaultKind::Silent, format!("no answer within {ANSWER_TIMEOUT:?}")));
        tokio::time::timeout(ANSWER_TIMEOUT, answered).await.unwrap_or_else(|_| silent())
    }

    /// Subscribes to channels: those in one list have the same slot. Returns the errors.
    pub(super) async fn subscribe(&self, lists: &[Vec<&Channel>]) -> Result<Vec<String>, Fault> {
        self.request(packed("SSUBSCRIBE", lists)).await
    }

    /// Ends subscriptions, as [`ShardSubscriber::subscribe`].
    pub(super) async fn unsubscribe(&self, lists: &[Vec<&Channel>]) -> Result<Vec<String>, Fault> {
        let channels = lists.iter().flatten().map(|channel| Box::from(&***channel));
        self.state.leaving.borrow_mut().extend(channels);
        let answered = self.request(packed("SUNSUBSCRIBE", lists)).await;
        *self.state.leaving.borrow_mut() = HashSet::new();
        answered
    }

    /// Whether it has subscriptions.
    pub(super) fn is_subscribed(&self) -> bool {
        self.state.subscribed.get() > 0
    }

    pub(super) async fn ping(&self) -> Result<(), Fault> {
        self.request(Vec::new()).await.map(drop)
    }

    /// Verifies that the server knows shard channels.
    pub(super) async fn require_shard_channels(&self) -> Result<(), Fault> {
        let none = redis::cmd("SUNSUBSCRIBE").get_packed_command();
        match self.request(none).await?.first() {
            None => Ok(()),
            Some(error) if error.starts_with("ERR unknown command") => {
                let why = "--redis-cluster needs Redis 7 or newer, or Valkey: this server has no SSUBSCRIBE";
                Err(Fault::new(FaultKind::Refused, why))
            }
            Some(error) => Err(Fault::new(FaultKind::Refused, error.clone())),
        }
    }
}

/// Whether an error answers the `PING` that ends a request.
fn is_of_ping(error: &str) -> bool {
    error.starts_with("NOAUTH") || error.starts_with("NOPERM") && error.contains("'ping'")
}

fn packed(command: &str, lists: &[Vec<&Channel>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for list in lists {
        let mut one = redis::cmd(command);
        for channel in list {
            one.arg(&***channel);
        }
        bytes.extend(one.get_packed_command());
    }
    bytes
}

/// Reads until the connection ends, or the server sends what it should not.
async fn read(
    mut from: ReadHalf<Stream>,
    inbox: &Inbox,
    state: &State,
    answers: &UnboundedSender<Option<String>>,
) {
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        bytes.reserve(READ_BYTES);
        match from.read_buf(&mut bytes).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            match frame(rest) {
                Ok(Some((frame, length))) => {
                    taken += length;
                    match frame {
                        Frame::Push(parts) => pushed(parts, inbox, state),
                        Frame::Error(error) => drop(answers.send(Some(error))),
                        Frame::Pong => drop(answers.send(None)),
                        Frame::Other => {}
                    }
                }
                Ok(None) => break,
                Err(Malformed) => return,
            }
        }
        bytes.drain(..taken);
        if bytes.len() > MESSAGE_BYTES_MAX {
            return;
        }
        if bytes.is_empty() && bytes.capacity() > 16 * READ_BYTES {
            bytes = Vec::new();
        }
    }
}

fn pushed(parts: Vec<Option<Vec<u8>>>, inbox: &Inbox, state: &State) {
    let mut parts = parts.into_iter();
    let (Some(Some(kind)), Some(channel), rest) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    let rest = rest.flatten();
    let count = |rest: Option<Vec<u8>>| std::str::from_utf8(&rest?).ok()?.parse().ok();
    // Other programs may use any bytes as a channel; we subscribe to none of these.
    let channel = channel.and_then(|channel| String::from_utf8(channel).ok());
    match (&*kind, channel, rest) {
        (b"smessage", Some(channel), Some(body)) => {
            let (kept, body) = kept::unpack(body);
            inbox.push(Incoming { channel: channel.into(), body, kept });
        }
        (b"ssubscribe", _, rest) => state.subscribed.set(count(rest).unwrap_or(1)),
        (b"sunsubscribe", channel, rest) => {
            state.subscribed.set(count(rest).unwrap_or(1));
            let channel = channel.map(String::into_boxed_str);
            if let Some(channel) = channel.filter(|one| !state.leaving.borrow().contains(one)) {
                inbox.ended(channel);
            }
        }
        _ => {}
    }
}

/// What is not RESP3, or nested too deeply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Malformed;

/// The first frame and its length; `None` if it is not complete.
fn frame(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    let Some(head) = reader.head()? else { return Ok(None) };
    let frame = match head {
        Head::Error(text) => Frame::Error(text),
        Head::Line(b"PONG") => Frame::Pong,
        Head::Push(many) => {
            let mut parts = Vec::new();
            for _ in 0..many {
                match reader.part()? {
                    Some(part) => parts.push(part),
                    None => return Ok(None),
                }
            }
            Frame::Push(parts)
        }
        other => match reader.skip(&other, 0)? {
            true => Frame::Other,
            false => return Ok(None),
        },
    };
    Ok(Some((frame, reader.at)))
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// The first line of a value, with its text if it has any.
enum Head<'b> {
    Line(&'b [u8]),
    Nothing,
    Error(String),
    Text(&'b [u8]),
    Push(usize),
    /// So many values follow.
    Values(usize),
}

impl<'b> Reader<'b> {
    fn line(&mut self) -> Option<&'b [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let length = rest.windows(2).position(|two| two == b"\r\n")?;
        self.at += length + 2;
        rest.get(..length)
    }

    fn head(&mut self) -> Result<Option<Head<'b>>, Malformed> {
        let Some(line) = self.line() else { return Ok(None) };
        let (kind, line) = line.split_first().ok_or(Malformed)?;
        let count = || -> Result<usize, Malformed> {
            let number: i64 =
                std::str::from_utf8(line).ok().and_then(|one| one.parse().ok()).ok_or(Malformed)?;
            // -1 is nothing.
            usize::try_from(number.max(0)).map_err(|_| Malformed)
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Some(match kind {
            b'+' | b':' | b'#' | b',' | b'(' => Head::Line(line),
            b'-' => Head::Error(text(line)),
            b'_' => Head::Nothing,
            b'$' if line == b"-1" => Head::Nothing,
            b'$' | b'=' | b'!' => {
                let length = count()?;
                if length > MESSAGE_BYTES_MAX {
                    return Err(Malformed);
                }
                let end = self.at.saturating_add(length);
                let Some(body) = self.bytes.get(self.at..end) else { return Ok(None) };
                if self.bytes.len() < end + 2 {
                    return Ok(None);
                }
                self.at = end + 2;
                if *kind == b'!' { Head::Error(text(body)) } else { Head::Text(body) }
            }
            b'*' | b'~' => Head::Values(count()?),
            b'%' | b'|' => Head::Values(count()?.saturating_mul(2)),
            b'>' => Head::Push(count()?),
            _ => return Err(Malformed),
        }))
    }

    /// A part of a push: its text, if it is a string or a number.
    fn part(&mut self) -> Result<Option<Option<Vec<u8>>>, Malformed> {
        Ok(match self.head()? {
            None => None,
            Some(Head::Text(text) | Head::Line(text)) => Some(Some(text.to_vec())),
            Some(Head::Nothing) => Some(None),
            Some(other) => self.skip(&other, 0)?.then_some(None),
        })
    }

    /// Reads what follows a head. Returns whether it is complete.
    fn skip(&mut self, head: &Head<'_>, depth: usize) -> Result<bool, Malformed> {
        let (Head::Values(many) | Head::Push(many)) = *head else { return Ok(true) };
        if depth == DEPTH_MAX {
            return Err(Malformed);
        }
        for _ in 0..many {
            match self.head()? {
                None => return Ok(false),
                Some(head) if !self.skip(&head, depth + 1)? => return Ok(false),
                Some(_) => {}
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::Arrived;

    const MESSAGE: &[u8] = b">3\r\n$8\r\nsmessage\r\n$3\r\n{a}\r\n$4\r\n\r\n\x02x\r\n";
    const MOVED: &[u8] = b">3\r\n$12\r\nsunsubscribe\r\n$3\r\n{a}\r\n:1\r\n";

    fn text(text: &[u8]) -> Option<Vec<u8>> {
        Some(text.to_vec())
    }

    #[test]
    fn frames_are_read_whole_however_they_are_cut() {
        let hello = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n+modules\r\n*1\r\n%1\r\n:1\r\n_\r\n";
        for (bytes, expected) in [
            (MESSAGE, Frame::Push(vec![text(b"smessage"), text(b"{a}"), text(b"\r\n\x02x")])),
            (MOVED, Frame::Push(vec![text(b"sunsubscribe"), text(b"{a}"), text(b"1")])),
            (
                b">3\r\n$12\r\nsunsubscribe\r\n_\r\n:0\r\n",
                Frame::Push(vec![text(b"sunsubscribe"), None, text(b"0")]),
            ),
            (b">2\r\n$1\r\na\r\n$-1\r\n", Frame::Push(vec![text(b"a"), None])),
            (b"-MOVED 1 h:2\r\n", Frame::Error("MOVED 1 h:2".to_owned())),
            (b"!3\r\nERR\r\n", Frame::Error("ERR".to_owned())),
            (b"+PONG\r\n", Frame::Pong),
            (&hello[..], Frame::Other),
        ] {
            for length in 0..bytes.len() {
                assert_eq!(frame(&bytes[..length]), Ok(None), "{length} of {expected:?}");
            }
            let more = [bytes, b"+PONG\r\n"].concat();
            assert_eq!(frame(&more), Ok(Some((expected, bytes.len()))));
        }
        let nested = b"*1\r\n".repeat(DEPTH_MAX + 1);
        for wrong in [&b"x\r\n"[..], b"\r\n", b"$x\r\n", b"$99999999999999\r\n", &nested] {
            assert_eq!(frame(wrong), Err(Malformed));
        }
    }

    #[test]
    fn a_subscription_that_the_server_ends_is_told_and_one_that_is_left_is_not() {
        let (inbox, mut receiver) = Inbox::new(1024, Default::default());
        let state = State::default();
        let push = |bytes| match frame(bytes) {
            Ok(Some((Frame::Push(parts), _))) => pushed(parts, &inbox, &state),
            other => panic!("{other:?}"),
        };
        push(MESSAGE);
        push(b">3\r\n$10\r\nssubscribe\r\n$3\r\n{a}\r\n:2\r\n");
        assert_eq!(state.subscribed.get(), 2);
        push(MOVED);
        state.leaving.borrow_mut().insert("{a}".into());
        push(MOVED);
        assert_eq!(state.subscribed.get(), 1);
        push(b">3\r\n$12\r\nsunsubscribe\r\n_\r\n:0\r\n");
        assert_eq!(state.subscribed.get(), 0);
        let body = b"\r\n\x02x".to_vec();
        let message = Incoming { channel: "{a}".into(), body, kept: None };
        assert_eq!(receiver.try_next(), Some(Arrived::Message(message)));
        assert_eq!(receiver.try_next(), Some(Arrived::Ended("{a}".into())));
        assert_eq!(receiver.try_next(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_malformed(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, length))) = frame(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
