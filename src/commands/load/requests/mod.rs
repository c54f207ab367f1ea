//! `standfast load http://…`: from flags to a run of requests.

mod config;
pub(super) mod flags;

use std::time::Duration;

use anyhow::Result;
use load::requests::{Fixed, Http1, Http2, Part, Tcp, drive_requests};
use load::{Outcome, Row, RunConfig};

use self::config::Plan;
pub(super) use self::config::{is_http, is_meant, plan};
use super::settings;

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
