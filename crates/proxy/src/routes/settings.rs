//! [`RouteSettings`]: what one route does differently: headers, clients, limits of bodies and timeouts.

use std::time::Duration;

use super::access::AccessList;
use super::header_rules::{self, HeaderRule};
use crate::config::{BodyLimits, MinRate};

/// The settings of a route. What is `None` is as for all routes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RouteSettings {
    /// Headers that requests to upstreams get or lose.
    pub request_headers: Vec<HeaderRule>,
    /// Headers that responses to clients get or lose.
    pub response_headers: Vec<HeaderRule>,
    /// The clients that are allowed.
    pub access: AccessList,
    /// Maximum size of a request body; `Some(None)` allows any.
    pub body_bytes_max: Option<Option<u64>>,
    /// For the complete body; `Some(None)` disables it.
    pub body_timeout: Option<Option<Duration>>,
    /// The minimum rate of a body; `Some(None)` disables it.
    pub body_min_rate: Option<Option<MinRate>>,
    /// Bytes of each body to receive before an upstream is chosen; `Some(None)` chooses one at once.
    pub body_buffer_bytes: Option<Option<usize>>,
    /// For a connect to an upstream, with TLS.
    pub connect_timeout: Option<Duration>,
    /// For an upstream's response to a WebSocket handshake.
    pub handshake_timeout: Option<Duration>,
    /// For an upstream's response to any other request, and for each pause within it.
    pub answer_timeout: Option<Duration>,
    /// For a tunnel without data in either direction; `Some(None)` disables it.
    pub idle_timeout: Option<Option<Duration>>,
}

impl RouteSettings {
    /// Validates the settings.
    pub(crate) fn check(&self) -> Result<(), String> {
        header_rules::check(&self.request_headers, "request_headers")?;
        header_rules::check(&self.response_headers, "response_headers")
    }

    /// Whether a header needs a request id.
    pub(crate) fn uses_request_id(&self) -> bool {
        let mut rules = self.request_headers.iter().chain(&self.response_headers);
        rules.any(HeaderRule::uses_request_id)
    }

    /// The limits of bodies on this route.
    pub(crate) fn bodies(&self, all: &BodyLimits) -> BodyLimits {
        BodyLimits {
            bytes_max: self.body_bytes_max.unwrap_or(all.bytes_max),
            timeout: self.body_timeout.unwrap_or(all.timeout),
            min_rate: self.body_min_rate.unwrap_or(all.min_rate),
            buffer_bytes: self.body_buffer_bytes.unwrap_or(all.buffer_bytes),
            buffers_bytes: all.buffers_bytes,
        }
    }
}
