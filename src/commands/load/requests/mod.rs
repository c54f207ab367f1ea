//! `standfast load http://…`: from flags to a run of requests.

mod checks;
mod config;
pub(super) mod flags;
pub(super) mod grpc;

use std::time::Duration;

use anyhow::{Result, bail};
use load::grpc::ReplyType;
use load::requests::{
    Accepted, AnswerChecks, Calls, Fixed, Grpc, GrpcStream, Http1, Http2, Part, StreamCalls, Tcp,
    drive_requests,
};
use load::{Outcome, Row, RunConfig};

use self::config::Plan;
pub(super) use self::config::{is_grpc, is_grpc_web, is_http, is_meant, plan};
pub(in crate::commands) use self::grpc::head as call_head;
pub(super) use self::grpc::split_messages;
use super::{scenario, settings};

impl Plan {
    /// Runs the plan.
    ///
    /// # Errors
    /// An unsuitable machine, or the error of a worker.
    pub(super) fn drive(
        &self,
        row: impl FnMut(&Row),
        interrupted: impl FnMut(Duration) -> bool,
    ) -> Result<Outcome> {
        let (sent, accepted) = (self.sent.clone(), self.accepted.clone());
        let script = move |part: Part| Fixed::new(sent.clone(), part, accepted.clone());
        let requests = &self.requests;
        if let Some(checks) = &self.checks {
            return self.drive_checked(checks, row, interrupted);
        }
        if let Some(call) = &self.call {
            return self.drive_calls(call, row, interrupted);
        }
        Ok(match self.expect.clone() {
            None if requests.streams.is_some() => {
                drive_requests(requests, Http2::new, script, row, interrupted)?
            }
            None => drive_requests(requests, Http1::new, script, row, interrupted)?,
            Some(expect) => {
                let driver = move || Tcp::new(expect.clone());
                drive_requests(requests, driver, script, row, interrupted)?
            }
        })
    }

    /// The checks of answers, if there are any.
    pub(super) fn checks(&self) -> Option<&AnswerChecks> {
        self.checks.as_deref()
    }

    fn drive_calls(
        &self,
        call: &grpc::Call,
        row: impl FnMut(&Row),
        interrupted: impl FnMut(Duration) -> bool,
    ) -> Result<Outcome> {
        let (unary, most) = (call.has_one_answer(), call.message_bytes_max);
        let (requests, clock) = (&self.requests, scenario::clock());
        let seed = self.seed.unwrap_or(clock.now_ms);
        let Some(message) = call.templates.first() else { bail!("a call has a message") };
        let sends = requests.messages.as_ref().is_some_and(|messages| messages.sends);
        let reply = ReplyType::of(&call.method);
        let of_stream = reply.clone();
        let unary_driver = move || Grpc::new(unary, most).expecting(reply.clone());
        let stream_driver =
            move || GrpcStream::new(sends, unary, most).expecting(of_stream.clone());
        let is_stream = requests.messages.is_some();
        if sends {
            let (heads, messages) = (call.requests(&[]), call.templates.clone());
            let script =
                move |part| StreamCalls::new(heads.clone(), messages.clone(), part, seed, clock);
            return Ok(drive_requests(requests, stream_driver, script, row, interrupted)?);
        }
        if let Some(framed) = message.framed() {
            let sent = call.requests(&framed);
            let script = move |part: Part| Fixed::new(sent.clone(), part, Accepted::default());
            return Ok(match is_stream {
                true => drive_requests(requests, stream_driver, script, row, interrupted)?,
                false => drive_requests(requests, unary_driver, script, row, interrupted)?,
            });
        }
        let (heads, message) = (call.heads.clone(), message.clone());
        let script = move |part| Calls::new(heads.clone(), message.clone(), part, seed, clock);
        Ok(match is_stream {
            true => drive_requests(requests, stream_driver, script, row, interrupted)?,
            false => drive_requests(requests, unary_driver, script, row, interrupted)?,
        })
    }

    /// Returns what is run.
    pub(super) fn config(&self, urls: &[String]) -> RunConfig {
        let templates = self.call.iter().flat_map(|call| &call.templates);
        let misfit = templates.into_iter().find_map(|template| template.misfit());
        RunConfig {
            message_error: misfit.map(|why| {
                format!("{why}; such calls are not sent: change the placeholder of the field in -d")
            }),
            method: self.method.clone(),
            message_bytes: Some(self.body_bytes),
            settings: settings::of_requests(&self.requests),
            ..RunConfig::of_requests(urls, &self.requests)
        }
    }
}
