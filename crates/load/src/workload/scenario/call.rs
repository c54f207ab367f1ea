//! [`Call`]: a step that is a gRPC call, rendered as a request of HTTP/1.1 that the driver translates.

use crate::grpc::{self, Code, JsonError, MessageTemplate, Method, MethodKind};
use crate::outcome::failure::Failure;
use crate::transport::grpc::of_code;
use crate::workload::requests::answer::Answer;
use crate::workload::requests::request::{Kind, Request};
use crate::workload::scenario::check::{Check, Rule};
use crate::workload::scenario::render::RenderContext;
use crate::workload::scenario::template::{Template, Values};
use crate::workload::scenario::user::User;
use crate::workload::scenario::{Scenario, Step};

/// A call with one message.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is called: a method with one request.
    pub method: Method,
    /// The request.
    pub message: MessageTemplate,
}

impl Call {
    /// The kind of its request.
    pub(crate) fn kind(&self) -> Kind {
        match self.method.kind() {
            MethodKind::ServerStream | MethodKind::BidiStream => Kind::ServerStream,
            MethodKind::Unary | MethodKind::ClientStream => Kind::Unary,
        }
    }

    /// Whether all values of its message fit their fields.
    pub(crate) fn fits(&self, values: &Values<'_>, scratch: &mut Vec<u8>) -> bool {
        if self.message.constant().is_some() {
            return true;
        }
        let mut out = std::mem::take(scratch);
        out.clear();
        let fits = self.message.render_with(values, scratch, &mut out).is_ok();
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
        out.clear();
        out.extend_from_slice(b"POST ");
        step.target.render(out, values);
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(asked.endpoint.host.as_bytes());
        out.extend_from_slice(b"\r\n");
        for (name, value) in &step.headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            value.render(out, values);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        self.message.render_with(values, scratch, out)
    }

    /// The request if it is always the same.
    pub(crate) fn fixed(&self, scenario: &Scenario, step: &Step) -> Option<Request> {
        self.message.constant()?;
        if !step.headers.iter().map(|(_, value)| value).all(Template::is_constant) {
            return None;
        }
        let user = User::new(scenario, 0);
        let endpoint = scenario.endpoints.get(usize::from(step.endpoint))?;
        let (values, jar, follow) = (user.values(scenario, 0), None, None);
        let asked = RenderContext { scenario, step, endpoint, values, jar, follow };
        let mut request = Request::default();
        let mut rendered = Ok(());
        request.set_message(step.endpoint, self.kind(), |out| {
            rendered = self.render(&asked, &mut Vec::new(), out);
        });
        rendered.ok().map(|()| request.constant())
    }

    /// Appends the body of an answer as JSON.
    ///
    /// # Errors
    /// It is no message, or too large.
    pub(crate) fn answer_json(&self, answer: &Answer<'_>, out: &mut String) -> Result<(), Failure> {
        shown(&self.method, answer, out)
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
