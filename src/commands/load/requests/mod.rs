//! `standfast load http://…`: from flags to a run of requests.

mod checks;
mod config;
pub(super) mod flags;
mod grpc;

use std::time::Duration;

use anyhow::Result;
use load::requests::{Accepted, Calls, Fixed, Grpc, Http1, Http2, Part, Tcp, drive_requests};
use load::{Outcome, Row, RunConfig};

use self::config::Plan;
pub(super) use self::config::{is_grpc, is_grpc_web, is_http, is_meant, plan};
pub(in crate::commands) use self::grpc::head as call_head;
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

    fn drive_calls(
        &self,
        call: &grpc::Call,
        row: impl FnMut(&Row),
        interrupted: impl FnMut(Duration) -> bool,
    ) -> Result<Outcome> {
        let (unary, most) = (call.unary, call.message_bytes_max);
        let driver = move || Grpc::new(unary, most);
        if call.message.constant().is_some() {
            let sent = call.constant();
            let script = move |part: Part| Fixed::new(sent.clone(), part, Accepted::default());
            return Ok(drive_requests(&self.requests, driver, script, row, interrupted)?);
        }
        let (call, clock) = (call.clone(), scenario::clock());
        let seed = clock.now_ms;
        let script =
            move |part| Calls::new(call.heads.clone(), call.message.clone(), part, seed, clock);
        Ok(drive_requests(&self.requests, driver, script, row, interrupted)?)
    }

    /// Returns what is run.
    pub(super) fn config(&self, urls: &[String]) -> RunConfig {
        RunConfig {
            method: self.method.clone(),
            message_bytes: Some(self.body_bytes),
            settings: settings::of_requests(&self.requests),
            ..RunConfig::of_requests(urls, &self.requests)
        }
    }
}
