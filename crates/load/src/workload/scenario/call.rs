//! [`Call`]: a step that is a gRPC call, or a part of one that stays open. It is rendered as a request of HTTP/1.1
//! that the driver translates, or as a message.

use crate::grpc::{self, Code, JsonError, MessageTemplate, Method, MethodKind, Variant};
use crate::outcome::failure::Failure;
use crate::transport::connect_options::Route;
use crate::transport::grpc::of_code;
use crate::workload::requests::answer::Answer;
use crate::workload::requests::request::{Kind, Request};
use crate::workload::scenario::check::{Check, Rule};
use crate::workload::scenario::render::RenderContext;
use crate::workload::scenario::speak::Action;
use crate::workload::scenario::template::Values;
use crate::workload::scenario::user::User;
use crate::workload::scenario::{Scenario, Step};

/// The most messages that a step sends.
pub const CALL_MESSAGES_MAX: usize = 1_000;

/// A call, whose messages are sent one after another.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is called.
    pub method: Method,
    /// Its form.
    pub variant: Variant,
    /// What the step sends: one message, unless the method takes a stream; at most [`CALL_MESSAGES_MAX`].
    pub messages: Vec<MessageTemplate>,
}

impl Call {
    /// The kind of the request of a step.
    pub(crate) fn kind(&self, action: &Action) -> Kind {
        let kind = self.method.kind();
        let has_one_answer = matches!(kind, MethodKind::Unary | MethodKind::ClientStream);
        match action {
            Action::Request if has_one_answer => Kind::Unary,
            Action::Request => Kind::ServerStream,
            Action::Open => Kind::Call { has_one_answer },
            action => action.kind(),
        }
    }

    /// Whether all values of its message fit their fields.
    pub(crate) fn fits(&self, values: &Values<'_>, scratch: &mut Vec<u8>) -> bool {
        let mut out = std::mem::take(scratch);
        let mut changing = self.messages.iter().filter(|message| message.constant().is_none());
        let fits = changing.all(|message| {
            out.clear();
            message.render_with(values, scratch, &mut out).is_ok()
        });
        *scratch = out;
        fits
    }

    /// Replaces `out` by the request.
    pub(crate) fn render(
        &self,
        asked: &RenderContext<'_>,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), JsonError> {
        let (step, values) = (asked.step, &asked.values);
        let mut messages = self.messages.iter();
        if !matches!(step.action, Action::Request | Action::Open) {
            out.clear();
            return messages.try_for_each(|message| message.render_with(values, scratch, out));
        }
        let by_proxy = match &asked.endpoint.route {
            Route::Forward(proxy) => Some(proxy),
            _ => None,
        };
        out.clear();
        out.extend_from_slice(b"POST ");
        if by_proxy.is_some() {
            out.extend_from_slice(b"http://");
            out.extend_from_slice(asked.endpoint.host.as_bytes());
        }
        step.target.render(out, values);
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(asked.endpoint.host.as_bytes());
        out.extend_from_slice(b"\r\n");
        if let Some(proxy) = by_proxy.filter(|proxy| !proxy.authorization.is_empty()) {
            out.extend_from_slice(b"Proxy-Authorization: ");
            out.extend_from_slice(proxy.authorization.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        if self.variant.is_web() && asked.scenario.close {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        for (name, value) in &step.headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            value.render(out, values);
            out.extend_from_slice(b"\r\n");
        }
        let head_bytes = out.len();
        out.extend_from_slice(b"\r\n");
        let begin = out.len();
        messages.try_for_each(|message| message.render_with(values, scratch, out))?;
        if matches!(step.action, Action::Open) && !self.messages.is_empty() {
            // Our side ends with it.
            let length = format!("Content-Length: {}\r\n", out.len() - begin);
            out.splice(head_bytes..head_bytes, length.into_bytes());
        }
        Ok(())
    }

    /// The request if it is always the same.
    pub(crate) fn fixed(&self, scenario: &Scenario, step: &Step) -> Option<Request> {
        let is_constant = self.messages.iter().all(|message| message.constant().is_some());
        if !is_constant || !step.headers.iter().all(|(_, value)| value.is_constant()) {
            return None;
        }
        let user = User::new(scenario, 0);
        let endpoint = scenario.endpoints.get(usize::from(step.endpoint))?;
        let (values, jar, follow) = (user.values(scenario, 0), None, None);
        let asked = RenderContext { scenario, step, endpoint, values, jar, follow };
        let mut request = Request::default();
        let mut rendered = Ok(());
        request.set_message(step.endpoint, self.kind(&step.action), |out| {
            rendered = self.render(&asked, &mut Vec::new(), out);
        });
        rendered.ok().map(|()| request.constant())
    }

    /// Appends what a step received as JSON: the body of an answer, or a message.
    ///
    /// # Errors
    /// It is no message, or too large.
    pub(crate) fn answer_json(
        &self,
        action: &Action,
        answer: &Answer<'_>,
        out: &mut String,
    ) -> Result<(), Failure> {
        match action {
            Action::Request | Action::Close => shown(&self.method, answer, out),
            _ => self.message_json(answer.body, out),
        }
    }

    /// Appends a message as JSON.
    ///
    /// # Errors
    /// It is no message.
    pub(crate) fn message_json(&self, message: &[u8], out: &mut String) -> Result<(), Failure> {
        grpc::message_json(&self.method, message, out)
    }
}

/// Appends the body of an answer to a call of a method as JSON.
///
/// # Errors
/// It is no message, or too large.
pub(crate) fn shown(method: &Method, answer: &Answer<'_>, out: &mut String) -> Result<(), Failure> {
    let encoding = answer.header("grpc-encoding").unwrap_or_default();
    grpc::answer_json(method, encoding, answer.body, out)
}

/// The failure of an answer with this status, of HTTP or of a call, unless a check is about it.
pub(crate) fn of_status(status: u16, checks: &[Check]) -> Option<Failure> {
    let failure = match grpc::code_of(status) {
        Some(Code::OK) => return None,
        Some(code) => of_code(code),
        None if status < 400 => return None,
        None => Failure::Status,
    };
    let is_judged = checks.iter().any(|check| matches!(check.rule, Rule::Status(_)));
    (!is_judged).then_some(failure)
}
