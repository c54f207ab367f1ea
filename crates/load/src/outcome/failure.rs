//! [`Failure`]: why a request failed. Counters, JSON, logs and tests use this list; each failed request
//! has exactly one.

use std::fmt;

use engine::Closed;
use wire::Violation;

macro_rules! failures {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a request failed.
        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Failure {
            $($(#[$doc])* $variant,)*
            /// The answer violates its protocol; it is counted under the name of the rule.
            Protocol(Violation),
        }

        /// All except [`Failure::Protocol`], in order of their index.
        const PLAIN: &[Failure] = &[$(Failure::$variant,)*];

        impl Failure {
            /// The name in JSON, thresholds and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Failure::$variant => $name,)*
                    Failure::Protocol(violation) => violation.name(),
                }
            }
        }
    };
}

failures! {
    /// The name does not resolve.
    Dns = "dns",
    /// Connection refused (`ECONNREFUSED`).
    ConnectRefused = "connect_refused",
    /// The connect timed out.
    ConnectTimeout = "connect_timeout",
    /// No port is left on any source address (`EADDRNOTAVAIL`).
    NoAddress = "no_address",
    /// The process or the machine has no descriptors left.
    NoDescriptors = "no_descriptors",
    /// The kernel has no memory for another socket.
    NoMemory = "no_memory",
    /// The connect failed for another reason.
    ConnectFailed = "connect_failed",
    /// The proxy did not open a tunnel.
    ProxyRefused = "proxy_refused",
    /// The TLS handshake failed: not TLS, or a certificate was rejected.
    Tls = "tls",
    /// The answer was not complete in time.
    Timeout = "timeout",
    /// No answer before the run and its grace period ended.
    Unfinished = "unfinished",
    /// The server reset the connection.
    Reset = "reset",
    /// The server closed the connection before the answer began.
    Closed = "closed",
    /// The server closed the connection within the answer.
    ClosedMidway = "closed_midway",
    /// The server left the connection (GOAWAY, RFC 9113 section 6.8): it denied the request twice, or after it began
    /// to answer, or it closed the connection after the code of an error.
    GoAway = "goaway",
    /// The server speaks HTTP/2 without WebSockets (RFC 8441 section 3).
    NoExtendedConnect = "no_extended_connect",
    /// The server reset the stream with this code of RFC 9113 section 7: `NO_ERROR`.
    StreamNoError = "stream_no_error",
    /// `PROTOCOL_ERROR`.
    StreamProtocolError = "stream_protocol_error",
    /// `INTERNAL_ERROR`.
    StreamInternalError = "stream_internal_error",
    /// `FLOW_CONTROL_ERROR`.
    StreamFlowControlError = "stream_flow_control_error",
    /// `STREAM_CLOSED`.
    StreamClosed = "stream_closed",
    /// `FRAME_SIZE_ERROR`.
    StreamFrameSizeError = "stream_frame_size_error",
    /// `REFUSED_STREAM`: it was not processed.
    StreamRefused = "stream_refused",
    /// `CANCEL`.
    StreamCancelled = "stream_cancelled",
    /// `ENHANCE_YOUR_CALM`: the server considers this too many requests.
    StreamEnhanceYourCalm = "stream_enhance_your_calm",
    /// `INADEQUATE_SECURITY`.
    StreamInadequateSecurity = "stream_inadequate_security",
    /// `HTTP_1_1_REQUIRED`.
    StreamHttp11Required = "stream_http_1_1_required",
    /// Another code.
    StreamReset = "stream_reset",
    /// A gRPC call ended with this status, other than OK.
    GrpcCancelled = "grpc_cancelled",
    /// `UNKNOWN`.
    GrpcUnknown = "grpc_unknown",
    /// `INVALID_ARGUMENT`.
    GrpcInvalidArgument = "grpc_invalid_argument",
    /// `DEADLINE_EXCEEDED`.
    GrpcDeadlineExceeded = "grpc_deadline_exceeded",
    /// `NOT_FOUND`.
    GrpcNotFound = "grpc_not_found",
    /// `ALREADY_EXISTS`.
    GrpcAlreadyExists = "grpc_already_exists",
    /// `PERMISSION_DENIED`.
    GrpcPermissionDenied = "grpc_permission_denied",
    /// `RESOURCE_EXHAUSTED`.
    GrpcResourceExhausted = "grpc_resource_exhausted",
    /// `FAILED_PRECONDITION`.
    GrpcFailedPrecondition = "grpc_failed_precondition",
    /// `ABORTED`.
    GrpcAborted = "grpc_aborted",
    /// `OUT_OF_RANGE`.
    GrpcOutOfRange = "grpc_out_of_range",
    /// `UNIMPLEMENTED`.
    GrpcUnimplemented = "grpc_unimplemented",
    /// `INTERNAL`.
    GrpcInternal = "grpc_internal",
    /// `UNAVAILABLE`.
    GrpcUnavailable = "grpc_unavailable",
    /// `DATA_LOSS`.
    GrpcDataLoss = "grpc_data_loss",
    /// `UNAUTHENTICATED`.
    GrpcUnauthenticated = "grpc_unauthenticated",
    /// A status without a name.
    GrpcOther = "grpc_other_status",
    /// A gRPC call ended with OK before the message that was awaited.
    GrpcEnded = "grpc_ended",
    /// A gRPC call ended without a status.
    GrpcNoStatus = "grpc_no_status",
    /// The answer to a gRPC call has another content type.
    GrpcContentType = "grpc_content_type",
    /// The answer to a gRPC call is no message, a truncated one, or not one.
    GrpcMessage = "grpc_message",
    /// A message of the answer to a gRPC call is not of its type.
    GrpcReplyUndecodable = "grpc_reply_undecodable",
    /// A value does not fit its field in the message of a gRPC call, which was not sent.
    GrpcRequest = "grpc_request",
    /// A message of a gRPC call is compressed in an unknown encoding, or not what the encoding says.
    GrpcEncoding = "grpc_encoding",
    /// The status of the answer is not accepted.
    Status = "status",
    /// The answer is not what was expected.
    Unexpected = "unexpected",
    /// The answer is larger than what is kept of it.
    TooLarge = "too_large",
    /// The content coding of a wanted body is unsupported or malformed.
    ContentCoding = "content_coding",
    /// More redirects than allowed.
    TooManyRedirects = "too_many_redirects",
    /// A redirect to an unusable URL, or to more hosts than are followed.
    RedirectElsewhere = "redirect_elsewhere",
    /// A check of the scenario failed.
    Check = "check",
    /// There was no socket to send on, or it was closed before.
    NotConnected = "not_connected",
    /// The server rejected a subscription.
    Rejected = "rejected",
}

impl Failure {
    /// The number of failures, including each violation.
    pub const COUNT: usize = PLAIN.len() + Violation::ALL.len();

    /// All failures, in order of [`Failure::index`].
    pub fn all() -> impl Iterator<Item = Failure> {
        PLAIN.iter().copied().chain(Violation::ALL.iter().copied().map(Failure::Protocol))
    }

    /// Its index in a table of [`Failure::COUNT`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Failure::Protocol(violation) => PLAIN.len() + violation as usize,
            plain => PLAIN.iter().position(|one| *one == plain).unwrap_or_default(),
        }
    }

    /// The number of the gRPC status that a call ended with, if it has a name and is not OK.
    #[must_use]
    pub fn grpc_status(self) -> Option<u16> {
        Some(match self {
            Failure::GrpcCancelled => 1,
            Failure::GrpcUnknown => 2,
            Failure::GrpcInvalidArgument => 3,
            Failure::GrpcDeadlineExceeded => 4,
            Failure::GrpcNotFound => 5,
            Failure::GrpcAlreadyExists => 6,
            Failure::GrpcPermissionDenied => 7,
            Failure::GrpcResourceExhausted => 8,
            Failure::GrpcFailedPrecondition => 9,
            Failure::GrpcAborted => 10,
            Failure::GrpcOutOfRange => 11,
            Failure::GrpcUnimplemented => 12,
            Failure::GrpcInternal => 13,
            Failure::GrpcUnavailable => 14,
            Failure::GrpcDataLoss => 15,
            Failure::GrpcUnauthenticated => 16,
            _ => return None,
        })
    }

    /// Whether a gRPC call was answered, but not as gRPC defines it.
    #[must_use]
    pub fn is_bad_grpc_answer(self) -> bool {
        use Failure::{
            GrpcContentType, GrpcMessage, GrpcNoStatus, GrpcOther, GrpcReplyUndecodable, TooLarge,
        };
        matches!(
            self,
            GrpcOther
                | GrpcNoStatus
                | GrpcContentType
                | GrpcMessage
                | GrpcReplyUndecodable
                | TooLarge
        )
    }

    /// Whether there was no connection to send the request on.
    #[must_use]
    pub fn is_of_connect(self) -> bool {
        matches!(
            self,
            Failure::Dns
                | Failure::ConnectRefused
                | Failure::ConnectTimeout
                | Failure::NoAddress
                | Failure::NoDescriptors
                | Failure::NoMemory
                | Failure::ConnectFailed
                | Failure::ProxyRefused
                | Failure::NoExtendedConnect
                | Failure::Tls
                | Failure::NotConnected
        )
    }

    /// Whether a gRPC call ended with a status other than OK.
    pub(crate) fn is_of_call(self) -> bool {
        use Failure::{
            GrpcAborted, GrpcAlreadyExists, GrpcCancelled, GrpcDataLoss, GrpcDeadlineExceeded,
            GrpcFailedPrecondition, GrpcInternal, GrpcInvalidArgument, GrpcNotFound, GrpcOther,
            GrpcOutOfRange, GrpcPermissionDenied, GrpcResourceExhausted, GrpcUnauthenticated,
            GrpcUnavailable, GrpcUnimplemented, GrpcUnknown,
        };
        matches!(
            self,
            GrpcAborted
                | GrpcAlreadyExists
                | GrpcCancelled
                | GrpcDataLoss
                | GrpcDeadlineExceeded
                | GrpcFailedPrecondition
                | GrpcInternal
                | GrpcInvalidArgument
                | GrpcNotFound
                | GrpcOther
                | GrpcOutOfRange
                | GrpcPermissionDenied
                | GrpcResourceExhausted
                | GrpcUnauthenticated
                | GrpcUnavailable
                | GrpcUnimplemented
                | GrpcUnknown
        )
    }

    /// The same if TLS was being set up: a server that does not speak it may answer in plain text, close the connection
    /// or reset it.
    pub(crate) fn in_tls(self, why: Closed) -> Failure {
        match (self, why) {
            (Failure::Reset | Failure::ConnectFailed, Closed::Gone | Closed::Reset) => Failure::Tls,
            _ => self,
        }
    }

    /// The failure of a request whose connection ended. `opened`: the connect had succeeded.
    pub(crate) fn of_closed(why: Closed, opened: bool) -> Failure {
        match why {
            Closed::ConnectRefused => Failure::ConnectRefused,
            Closed::ConnectTimeout | Closed::HandshakeTimeout => Failure::ConnectTimeout,
            Closed::NoAddress => Failure::NoAddress,
            Closed::NoDescriptors => Failure::NoDescriptors,
            Closed::NoMemory => Failure::NoMemory,
            Closed::TlsFailed => Failure::Tls,
            Closed::Gone if opened => Failure::Closed,
            Closed::Reset | Closed::GivenUp => Failure::Reset,
            _ if opened => Failure::Closed,
            _ => Failure::ConnectFailed,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_unique_names_and_stand_at_their_index() {
        let mut names = Vec::new();
        for (number, failure) in Failure::all().enumerate() {
            assert_eq!(failure.index(), number, "{failure:?}");
            names.push(failure.name());
        }
        assert_eq!(names.len(), Failure::COUNT);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Failure::COUNT, "no name twice");
    }
}
