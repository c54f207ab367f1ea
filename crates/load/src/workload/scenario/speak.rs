//! What users do on WebSockets and on calls that stay open ([`Action`], [`Receive`]), and how it is rendered as a
//! request.

use std::borrow::Cow;

use action_cable::Command;

use crate::outcome::failure::Failure;
use crate::workload::requests::answer::{Answer, Times};
use crate::workload::requests::request::{Kind, Request};
use crate::workload::scenario::call::Call;
use crate::workload::scenario::check::Expected;
use crate::workload::scenario::extract::AnswerView;
use crate::workload::scenario::extract::Source;
use crate::workload::scenario::render::{RenderContext, Renderer};
use crate::workload::scenario::template::Template;
use crate::workload::scenario::template::Values;

/// The action of a step.
#[derive(Clone, Default, Debug)]
pub enum Action {
    /// An HTTP request.
    #[default]
    Request,
    /// Opens a WebSocket, with the step's headers in the handshake.
    Connect,
    /// Opens an Action Cable connection and waits for the welcome.
    ConnectCable,
    /// Opens a gRPC call that stays open.
    Open,
    /// Sends the step's body as a message.
    Send {
        /// Binary, not text.
        binary: bool,
    },
    /// Waits for a message.
    Receive,
    /// Sends the step's body as a ping and waits for the pong.
    Ping,
    /// Closes the WebSocket and waits for the server's close frame; or ends our side of a call and waits for its
    /// status.
    Close,
    /// Subscribes to the channel of this identifier and waits for the confirmation.
    Subscribe(Template),
    /// Unsubscribes from it.
    Unsubscribe(Template),
    /// Sends the step's body, JSON, to the channel.
    Perform(Template),
    /// Sends it to the other subscribers, bypassing the application.
    Whisper(Template),
    /// Waits until all of the user's group have arrived; then the user receives.
    Meet,
    /// Stops sending and receives until all senders of the group are done. Then the user is done.
    Stay,
}

/// An awaited message, which matches all of these.
#[derive(Clone, Default, Debug)]
pub struct Receive {
    /// The conditions.
    pub matches: Vec<Match>,
}

/// A condition on a message.
#[derive(Clone, Debug)]
pub enum Match {
    /// Equal to these bytes.
    Is(Template),
    /// Contains these bytes.
    Has(Template),
    /// Contains a value that is as expected.
    Value(Source, Expected),
}

impl Action {
    /// The kind of request; nothing is sent for `Meet` and `Stay`.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            // Of a call the request says more.
            Action::Request | Action::Meet | Action::Stay => Kind::Plain,
            Action::Open => Kind::Call { has_one_answer: false },
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

    /// Whether it sets up the WebSocket or call, and so is repeated when that is lost.
    pub(crate) fn is_of_the_socket(&self) -> bool {
        matches!(self, Action::Connect | Action::ConnectCable | Action::Subscribe(_) | Action::Open)
    }

    /// Whether it sends a message, to which a rate applies.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self, Action::Send { .. } | Action::Perform(_) | Action::Whisper(_))
    }
}

impl Receive {
    /// Whether a message matches, which is one of a call or of a WebSocket.
    pub(crate) fn is_of(
        &self,
        call: Option<&Call>,
        data: &[u8],
        values: &Values<'_>,
        scratch: &mut Vec<u8>,
    ) -> bool {
        let Some(call) = call.filter(|_| !self.matches.is_empty()) else {
            return self.is(data, values, scratch);
        };
        let mut json = String::new();
        // What is no message of the type is taken, too, and fails the step.
        call.message_json(data, &mut json).is_err() || self.is(json.as_bytes(), values, scratch)
    }

    /// Whether a message matches. `scratch` is a reused buffer.
    fn is(&self, data: &[u8], values: &Values<'_>, scratch: &mut Vec<u8>) -> bool {
        let body_bytes = data.len() as u64;
        let (outcome, times) = (Ok(0), Times::default());
        let (is_cut, is_warm_up, head) = (false, false, &[]);
        let answer = Answer { outcome, head, body: data, is_cut, body_bytes, is_warm_up, times };
        let seen = AnswerView::new(0, &answer);
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

/// The failure of an answer that ends the pass.
pub(crate) fn refused(action: &Action, status: u16, answer: &Answer<'_>) -> Option<Failure> {
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

/// Renders a step into `request`.
pub(crate) fn render(asked: &RenderContext<'_>, renderer: &mut Renderer, request: &mut Request) {
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

/// Encodes an Action Cable command.
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
