//! Error codes of RST_STREAM and GOAWAY (RFC 9113 7).

use core::fmt;

/// Why a stream or a connection ended. Codes that RFC 9113 does not define are kept as they are.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct ErrorCode(pub u32);

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl ErrorCode {
            $(#[doc = $text] pub const $name: ErrorCode = ErrorCode($code);)*

            /// The name in RFC 9113; `None` if it defines no such code.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($code => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

codes! {
    NO_ERROR = 0x00, "No error: a shutdown, or the rest of a request is not needed.";
    PROTOCOL_ERROR = 0x01, "A violation of the protocol that no other code describes.";
    INTERNAL_ERROR = 0x02, "The sender failed.";
    FLOW_CONTROL_ERROR = 0x03, "More was sent than a window allowed, or a window overflowed.";
    SETTINGS_TIMEOUT = 0x04, "SETTINGS were not acknowledged in time.";
    STREAM_CLOSED = 0x05, "A frame was sent on a stream that was half-closed or closed.";
    FRAME_SIZE_ERROR = 0x06, "A frame had an invalid length.";
    REFUSED_STREAM = 0x07, "The stream was not processed; the request may be repeated.";
    CANCEL = 0x08, "The stream is no longer needed.";
    COMPRESSION_ERROR = 0x09, "The header compression of the connection cannot be continued.";
    CONNECT_ERROR = 0x0a, "The connection of a CONNECT request was reset or closed.";
    ENHANCE_YOUR_CALM = 0x0b, "The peer causes excessive load.";
    INADEQUATE_SECURITY = 0x0c, "The TLS connection does not meet the requirements.";
    HTTP_1_1_REQUIRED = 0x0d, "HTTP/1.1 must be used instead.";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}
