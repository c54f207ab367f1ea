//! What users say on their sockets, as data ([`Action`], [`Receive`]) and as the bytes of a request.

use std::borrow::Cow;

use action_cable::Command;

use super::extract::Seen;
use super::render::{Asked, Renderer};
use super::template::Values;
use super::{Expected, Source, Template};
use crate::requests::{Answer, Failure, Kind, Request, Times};

/// What a step does.
#[derive(Clone, Default, Debug)]
pub enum Action {
    /// A request of HTTP.
    #[default]
    Request,
    /// Opens a WebSocket; the step's headers are those of the handshake.
    Connect,
    /// Opens one to Action Cable, and is welcomed.
    ConnectCable,
    /// Sends the step's body as a message.
    Send {
        /// Bytes, not text.
        binary: bool,
    },
    /// Waits for the step's message.
    Receive,
    /// Sends the step's body as a ping and waits for the pong.
    Ping,
    /// Ends the socket, and waits for the server's close frame.
    Close,
    /// Subscribes to the channel of this identifier and waits until that is confirmed.
    Subscribe(Template),
    /// Ends that.
    Unsubscribe(Template),
    /// Sends the step's body, JSON, to that channel.
    Perform(Template),
    /// Sends it to the others there, past the application.
    Whisper(Template),
    /// Waits until all of the user's group are there; then it receives.
    Meet,
    /// Sends no more, and receives until nobody in its group sends any more. The user is done then.
    Stay,
}

/// A message that is awaited: all of these hold.
#[derive(Clone, Default, Debug)]
pub struct Receive {
    /// What must hold.
    pub matches: Vec<Match>,
}

/// What a message must be.
#[derive(Clone, Debug)]
pub enum Match {
    /// These bytes.
    Is(Template),
    /// These are somewhere in it.
    Has(Template),
    /// A value is in it, and is as expected.
    Value(Source, Expected),
}

impl Action {
    /// What it is to the connection; nothing is sent for the last two.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Action::Request | Action::Meet | Action::Stay => Kind::Plain,
            Action::Connect => Kind::Connect,
            Action::ConnectCable => Kind::ConnectCable,
            Action::Send { binary: true } => Kind::Binary,
            Action::Send { .. }
            | Action::Unsubscribe(_)
            | Action::Perform(_)
            | Action::Whisper(_) => Kind::Text,
            Action::Receive => Kind::Await,
            Action::Ping => Kind::Ping,
            Action::Close => Kind::Close,
            Action::Subscribe(_) => Kind::Subscribe,
        }
    }

    /// It makes the socket what it is: done again when that is lost.
    pub(super) fn is_of_the_socket(&self) -> bool {
        matches!(self, Action::Connect | Action::ConnectCable | Action::Subscribe(_))
    }

    /// It sends a message, which a rate is of.
    pub(super) fn is_message(&self) -> bool {
        matches!(self, Action::Send { .. } | Action::Perform(_) | Action::Whisper(_))
    }
}

impl Receive {
    /// Whether a message is it. `scratch` is used for texts.
    pub(super) fn is(&self, data: &[u8], values: &Values<'_>, scratch: &mut Vec<u8>) -> bool {
        let body_bytes = data.len() as u64;
        let (outcome, times) = (Ok(0), Times::default());
        let (is_cut, is_warm_up, head) = (false, false, &[]);
        let answer = Answer { outcome, head, body: data, is_cut, body_bytes, is_warm_up, times };
        let seen = Seen::new(0, &answer);
        self.matches.iter().all(|rule| match rule {
            Match::Is(template) | Match::Has(template) => {
                scratch.clear();
                template.render(scratch, values);
                match rule {
                    Match::Is(_) => data == scratch.as_slice(),
                    _ => contains(data, scratch),
                }
            }
            Match::Value(source, expected) => expected.holds(source.find(&seen).as_deref()),
        })
    }
}

fn contains(data: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || data.windows(wanted.len()).any(|window| window == wanted)
}

/// Why an answer on a socket is none that lets the flow go on.
pub(super) fn refused(action: &Action, status: u16, answer: &Answer<'_>) -> Option<Failure> {
    match action {
        Action::Connect | Action::ConnectCable if status != 101 => Some(Failure::Status),
        Action::Subscribe(_) => {
            let text = std::str::from_utf8(answer.body).ok()?;
            let message = action_cable::Message::decode(text).ok()?;
            matches!(message, action_cable::Message::Reject { .. }).then_some(Failure::Rejected)
        }
        _ => None,
    }
}

/// Makes what a step says into `request`.
pub(super) fn render(asked: &Asked<'_>, renderer: &mut Renderer, request: &mut Request) {
    let step = asked.step;
    let kind = step.action.kind();
    let mut body = Vec::new();
    step.body.iter().for_each(|template| template.render(&mut body, &asked.values));
    let command = match &step.action {
        Action::Connect | Action::ConnectCable => {
            return request.set_message(step.endpoint, kind, |out| renderer.render(asked, out));
        }
        Action::Subscribe(identifier)
        | Action::Unsubscribe(identifier)
        | Action::Perform(identifier)
        | Action::Whisper(identifier) => {
            let mut text = Vec::new();
            identifier.render(&mut text, &asked.values);
            Some(String::from_utf8_lossy(&text).into_owned())
        }
        _ => None,
    };
    request.set_message(step.endpoint, kind, |out| match command {
        None => out.extend_from_slice(&body),
        Some(identifier) => encode(&step.action, identifier, &body, out),
    });
}

/// A command of Action Cable.
fn encode(action: &Action, identifier: String, body: &[u8], out: &mut Vec<u8>) {
    let identifier = Cow::Owned(identifier);
    let data = String::from_utf8_lossy(body);
    match action {
        Action::Unsubscribe(_) => Command::Unsubscribe { identifier }.encode(out),
        Action::Perform(_) => Command::Message { identifier, data }.encode(out),
        Action::Whisper(_) => Command::Whisper { identifier, data: &data }.encode(out),
        _ => Command::Subscribe { identifier, history: None, presence: None }.encode(out),
    }
}
