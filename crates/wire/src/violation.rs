//! Every protocol violation of a peer, in one table: what it did, which section forbids it, how it
//! is counted and how it is answered. Not here: timeouts and refusals by policy (origin, rate,
//! capacity), which are the caller's.

use core::fmt;

use crate::http2::ErrorCode;
use crate::websocket::CloseCode;

macro_rules! violations {
    ($($variant:ident = $name:literal, $section:literal, $status:literal, $close:ident, $text:literal $(, $http2:ident)?;)*) => {
        /// What a peer did wrong.
        #[repr(u8)]
        #[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
        pub enum Violation {
            $(#[doc = concat!("The peer ", $text, " (", $section, ").")] $variant,)*
        }

        impl Violation {
            /// Every violation, in order of its discriminant: a table of counters has this length.
            pub const ALL: &'static [Violation] = &[$(Violation::$variant,)*];

            /// The label it is counted under, in snake case.
            pub const fn name(self) -> &'static str {
                match self { $(Violation::$variant => $name,)* }
            }

            /// The document and section that forbids it.
            pub const fn section(self) -> &'static str {
                match self { $(Violation::$variant => $section,)* }
            }

            /// The code of the close frame that answers it on a WebSocket.
            pub const fn close_code(self) -> CloseCode {
                match self { $(Violation::$variant => CloseCode::$close,)* }
            }

            /// The status that answers it while the connection still uses HTTP.
            pub const fn http_status(self) -> u16 {
                match self { $(Violation::$variant => $status,)* }
            }

            /// The code of RST_STREAM or GOAWAY that answers it on HTTP/2: `PROTOCOL_ERROR` unless
            /// the table names another.
            pub const fn http2_code(self) -> ErrorCode {
                match self {
                    $($(Violation::$variant => ErrorCode::$http2,)?)*
                    _ => ErrorCode::PROTOCOL_ERROR,
                }
            }

            const fn text(self) -> &'static str {
                match self { $(Violation::$variant => $text,)* }
            }
        }
    };
}

violations! {
    // HTTP heads.
    NotHttp = "not_http", "RFC 9112 3", 400, PROTOCOL_ERROR, "sent bytes that do not begin an HTTP message";
    HeadTooLarge = "head_too_large", "RFC 6585 5", 431, PROTOCOL_ERROR, "sent a head longer than allowed";
    TooManyHeaders = "too_many_headers", "RFC 6585 5", 431, PROTOCOL_ERROR, "sent more header lines than allowed";
    BadRequestLine = "bad_request_line", "RFC 9112 3", 400, PROTOCOL_ERROR, "sent a malformed request line";
    BadTarget = "bad_target", "RFC 9112 3.2", 400, PROTOCOL_ERROR, "sent a malformed request target";
    BadStatusLine = "bad_status_line", "RFC 9112 4", 400, PROTOCOL_ERROR, "sent a malformed status line";
    UnsupportedVersion = "unsupported_version", "RFC 9112 2.3", 505, PROTOCOL_ERROR, "used an HTTP version other than 1.0 or 1.1";
    ControlCharacter = "control_character", "RFC 9110 5.5", 400, PROTOCOL_ERROR, "put a control character into a head";
    BareCarriageReturn = "bare_carriage_return", "RFC 9112 2.2", 400, PROTOCOL_ERROR, "sent a carriage return without a line feed";
    BareLineFeed = "bare_line_feed", "RFC 9112 2.2", 400, PROTOCOL_ERROR, "ended a line without a carriage return";
    FoldedHeader = "folded_header", "RFC 9112 5.2", 400, PROTOCOL_ERROR, "folded a header over several lines";
    SpaceBeforeColon = "space_before_colon", "RFC 9112 5.1", 400, PROTOCOL_ERROR, "put a space between a header's name and its colon";
    BadHeaderName = "bad_header_name", "RFC 9110 5.1", 400, PROTOCOL_ERROR, "sent a malformed header name";
    MissingHost = "missing_host", "RFC 9112 3.2", 400, PROTOCOL_ERROR, "sent an HTTP/1.1 request without Host";
    DuplicateHost = "duplicate_host", "RFC 9112 3.2", 400, PROTOCOL_ERROR, "sent Host more than once";
    BadHost = "bad_host", "RFC 9112 3.2", 400, PROTOCOL_ERROR, "sent a malformed Host";
    BadContentLength = "bad_content_length", "RFC 9112 6.3", 400, PROTOCOL_ERROR, "sent a Content-Length that is not a number";
    ConflictingContentLength = "conflicting_content_length", "RFC 9112 6.3", 400, PROTOCOL_ERROR, "sent two different Content-Lengths";
    LengthAndTransferEncoding = "length_and_transfer_encoding", "RFC 9112 6.3", 400, PROTOCOL_ERROR, "sent both Content-Length and Transfer-Encoding";
    TransferEncodingInHttp10 = "transfer_encoding_in_http10", "RFC 9112 6.1", 400, PROTOCOL_ERROR, "sent Transfer-Encoding in an HTTP/1.0 message";
    UnsupportedTransferEncoding = "unsupported_transfer_encoding", "RFC 9112 6.1", 501, PROTOCOL_ERROR, "used a Transfer-Encoding other than chunked";
    // In front of a connection, from a proxy.
    BadProxyHeader = "bad_proxy_header", "PROXY protocol 2", 400, PROTOCOL_ERROR, "did not begin with a valid PROXY header";
    // HTTP bodies.
    BodyTooLarge = "body_too_large", "RFC 9110 15.5.14", 413, TOO_BIG, "sent a body longer than allowed";
    BodyTruncated = "body_truncated", "RFC 9112 8", 400, PROTOCOL_ERROR, "closed before the end of the body";
    BadChunk = "bad_chunk", "RFC 9112 7.1", 400, PROTOCOL_ERROR, "sent a malformed chunk";
    ChunkLineTooLong = "chunk_line_too_long", "RFC 9112 7.1.1", 413, PROTOCOL_ERROR, "sent a chunk-size line longer than allowed";
    BadTrailer = "bad_trailer", "RFC 9112 7.1.2", 400, PROTOCOL_ERROR, "sent a malformed trailer";
    TrailersTooLarge = "trailers_too_large", "RFC 9112 7.1.2", 431, PROTOCOL_ERROR, "sent trailers longer than allowed";
    // Header blocks of HTTP/2. The first is an error of the stream only.
    HeaderListTooLarge = "header_list_too_large", "RFC 9113 10.5.1", 431, PROTOCOL_ERROR, "sent a header list larger than allowed", ENHANCE_YOUR_CALM;
    HeaderListBomb = "header_list_bomb", "RFC 9113 10.5.1", 431, PROTOCOL_ERROR, "sent a header block that decodes to far more than allowed", ENHANCE_YOUR_CALM;
    HpackTruncated = "hpack_truncated", "RFC 7541 6", 400, PROTOCOL_ERROR, "ended a header block within a field", COMPRESSION_ERROR;
    HpackIntegerTooLarge = "hpack_integer_too_large", "RFC 7541 5.1", 400, PROTOCOL_ERROR, "sent an integer larger than any valid one in a header block", COMPRESSION_ERROR;
    HpackBadIndex = "hpack_bad_index", "RFC 7541 2.3.3", 400, PROTOCOL_ERROR, "referred to a header field that is in no table", COMPRESSION_ERROR;
    HpackBadHuffman = "hpack_bad_huffman", "RFC 7541 5.2", 400, PROTOCOL_ERROR, "sent a Huffman-coded string that ends wrongly", COMPRESSION_ERROR;
    HpackMisplacedSizeUpdate = "hpack_misplaced_size_update", "RFC 7541 4.2", 400, PROTOCOL_ERROR, "changed the size of the header table within a header block", COMPRESSION_ERROR;
    HpackSizeUpdateTooLarge = "hpack_size_update_too_large", "RFC 7541 6.3", 400, PROTOCOL_ERROR, "chose a header table larger than allowed", COMPRESSION_ERROR;
    HpackMissingSizeUpdate = "hpack_missing_size_update", "RFC 9113 4.3.1", 400, PROTOCOL_ERROR, "did not reduce its header table to the size that it had acknowledged", COMPRESSION_ERROR;
    // The opening handshake, as received by a server.
    UpgradeMethod = "upgrade_method", "RFC 6455 4.2.1", 405, PROTOCOL_ERROR, "requested a WebSocket with a method other than GET";
    UpgradeHttp10 = "upgrade_http10", "RFC 6455 4.2.1", 400, PROTOCOL_ERROR, "requested a WebSocket over HTTP/1.0";
    UpgradeConnection = "upgrade_connection", "RFC 6455 4.2.1", 400, PROTOCOL_ERROR, "requested a WebSocket without \"Connection: Upgrade\"";
    UpgradeVersion = "upgrade_version", "RFC 6455 4.2.2", 426, PROTOCOL_ERROR, "requested a WebSocket version other than 13";
    UpgradeMissingKey = "upgrade_missing_key", "RFC 6455 4.2.1", 400, PROTOCOL_ERROR, "requested a WebSocket without Sec-WebSocket-Key";
    UpgradeDuplicateKey = "upgrade_duplicate_key", "RFC 6455 11.3.1", 400, PROTOCOL_ERROR, "sent Sec-WebSocket-Key more than once";
    UpgradeBadKey = "upgrade_bad_key", "RFC 6455 4.2.1", 400, PROTOCOL_ERROR, "sent a Sec-WebSocket-Key that is not 16 bytes in base64";
    UpgradeBadProtocol = "upgrade_bad_protocol", "RFC 6455 11.3.4", 400, PROTOCOL_ERROR, "sent a malformed Sec-WebSocket-Protocol";
    UpgradeBadExtension = "upgrade_bad_extension", "RFC 6455 9.1", 400, PROTOCOL_ERROR, "sent a malformed Sec-WebSocket-Extensions";
    UpgradeBody = "upgrade_body", "RFC 9110 7.8", 400, PROTOCOL_ERROR, "requested a WebSocket in a request with a body";
    // The opening handshake, as received by a client.
    NotSwitched = "not_switched", "RFC 6455 4.1", 502, PROTOCOL_ERROR, "answered the WebSocket handshake with a status other than 101";
    SwitchedWithoutUpgrade = "switched_without_upgrade", "RFC 6455 4.1", 502, PROTOCOL_ERROR, "answered 101 without \"Upgrade: websocket\"";
    SwitchedWithoutConnection = "switched_without_connection", "RFC 6455 4.1", 502, PROTOCOL_ERROR, "answered 101 without \"Connection: Upgrade\"";
    WrongAccept = "wrong_accept", "RFC 6455 4.1", 502, PROTOCOL_ERROR, "answered 101 with a wrong Sec-WebSocket-Accept";
    UnofferedProtocol = "unoffered_protocol", "RFC 6455 4.1", 502, PROTOCOL_ERROR, "chose a subprotocol that was not offered";
    UnofferedExtension = "unoffered_extension", "RFC 6455 4.1", 502, PROTOCOL_ERROR, "chose an extension that was not offered";
    BadExtensionAnswer = "bad_extension_answer", "RFC 7692 7.1", 502, PROTOCOL_ERROR, "answered permessage-deflate with parameters that are wrong or were not offered";
    // WebSocket frames.
    UnmaskedFrame = "unmasked_frame", "RFC 6455 5.1", 400, PROTOCOL_ERROR, "sent a frame without a mask to a server";
    MaskedFrame = "masked_frame", "RFC 6455 5.1", 400, PROTOCOL_ERROR, "sent a masked frame to a client";
    ReservedBits = "reserved_bits", "RFC 6455 5.2", 400, PROTOCOL_ERROR, "set a reserved bit that no extension defines";
    ReservedOpCode = "reserved_opcode", "RFC 6455 5.2", 400, PROTOCOL_ERROR, "used a reserved opcode";
    FragmentedControl = "fragmented_control", "RFC 6455 5.5", 400, PROTOCOL_ERROR, "fragmented a control frame";
    ControlTooLong = "control_too_long", "RFC 6455 5.5", 400, PROTOCOL_ERROR, "sent a control frame of more than 125 bytes";
    UnexpectedContinuation = "unexpected_continuation", "RFC 6455 5.4", 400, PROTOCOL_ERROR, "continued a message that had not begun";
    InterruptedMessage = "interrupted_message", "RFC 6455 5.4", 400, PROTOCOL_ERROR, "began a message inside another";
    LengthNotMinimal = "length_not_minimal", "RFC 6455 5.2", 400, PROTOCOL_ERROR, "wrote a length in more bytes than it needs";
    LengthTopBit = "length_top_bit", "RFC 6455 5.2", 400, PROTOCOL_ERROR, "set the top bit of a 64-bit length";
    MessageTooBig = "message_too_big", "RFC 6455 7.4.1", 413, TOO_BIG, "announced a message longer than allowed";
    BadDeflate = "bad_deflate", "RFC 7692 7.2.2", 400, INVALID_PAYLOAD, "sent a compressed message that cannot be inflated";
    InflatedTooBig = "inflated_too_big", "RFC 6455 7.4.1", 413, TOO_BIG, "sent a message that inflates to more than allowed";
    InvalidUtf8 = "invalid_utf8", "RFC 6455 8.1", 400, INVALID_PAYLOAD, "sent a text message that is not UTF-8";
    CloseTooShort = "close_too_short", "RFC 6455 5.5.1", 400, PROTOCOL_ERROR, "sent a close frame of one byte";
    CloseCodeInvalid = "close_code_invalid", "RFC 6455 7.4", 400, PROTOCOL_ERROR, "sent a close code that may not be sent";
    CloseReasonUtf8 = "close_reason_utf8", "RFC 6455 5.5.1", 400, INVALID_PAYLOAD, "sent a close reason that is not UTF-8";
    // HTTP/2 frames.
    Http2BadPreface = "http2_bad_preface", "RFC 9113 3.4", 400, PROTOCOL_ERROR, "began an HTTP/2 connection with other bytes than its preface";
    Http2NoSettings = "http2_no_settings", "RFC 9113 3.4", 400, PROTOCOL_ERROR, "began an HTTP/2 connection without SETTINGS";
    Http2FrameTooLarge = "http2_frame_too_large", "RFC 9113 4.2", 413, TOO_BIG, "sent a frame longer than allowed", FRAME_SIZE_ERROR;
    Http2BadFrameLength = "http2_bad_frame_length", "RFC 9113 4.2", 400, PROTOCOL_ERROR, "sent a frame of a length that its type does not allow", FRAME_SIZE_ERROR;
    Http2WrongStream = "http2_wrong_stream", "RFC 9113 6", 400, PROTOCOL_ERROR, "sent a frame of the connection on a stream, or of a stream on the connection";
    Http2BadPadding = "http2_bad_padding", "RFC 9113 6.1", 400, PROTOCOL_ERROR, "padded a frame by more than its length";
    Http2IdleStream = "http2_idle_stream", "RFC 9113 5.1", 400, PROTOCOL_ERROR, "sent a frame on a stream that is not open yet";
    Http2ClosedStream = "http2_closed_stream", "RFC 9113 5.1", 400, PROTOCOL_ERROR, "sent a frame on a stream that it had ended", STREAM_CLOSED;
    Http2BadStreamId = "http2_bad_stream_id", "RFC 9113 5.1.1", 400, PROTOCOL_ERROR, "opened a stream with an identifier that is not allowed";
    Http2TooManyStreams = "http2_too_many_streams", "RFC 9113 5.1.2", 503, PROTOCOL_ERROR, "opened more streams than allowed", REFUSED_STREAM;
    Http2BadSetting = "http2_bad_setting", "RFC 9113 6.5.2", 400, PROTOCOL_ERROR, "sent a setting with a value that is not allowed";
    Http2BadWindowSetting = "http2_bad_window_setting", "RFC 9113 6.5.2", 400, PROTOCOL_ERROR, "set initial windows that are too large", FLOW_CONTROL_ERROR;
    Http2Push = "http2_push", "RFC 9113 6.6", 400, PROTOCOL_ERROR, "pushed a response, which was not enabled";
    Http2ZeroIncrement = "http2_zero_increment", "RFC 9113 6.9", 400, PROTOCOL_ERROR, "opened a window by nothing";
    Http2WindowOverflow = "http2_window_overflow", "RFC 9113 6.9.1", 400, PROTOCOL_ERROR, "opened a window beyond its largest size", FLOW_CONTROL_ERROR;
    Http2WindowExceeded = "http2_window_exceeded", "RFC 9113 6.9.1", 400, PROTOCOL_ERROR, "sent more data than a window allowed", FLOW_CONTROL_ERROR;
    Http2InterruptedBlock = "http2_interrupted_block", "RFC 9113 6.10", 400, PROTOCOL_ERROR, "sent another frame inside a header block";
    Http2UnexpectedContinuation = "http2_unexpected_continuation", "RFC 9113 6.10", 400, PROTOCOL_ERROR, "continued a header block that had not begun";
    Http2HeaderBlockTooLarge = "http2_header_block_too_large", "RFC 9113 10.5.1", 431, PROTOCOL_ERROR, "sent a header block longer than allowed", ENHANCE_YOUR_CALM;
    Http2TooManyContinuations = "http2_too_many_continuations", "RFC 9113 10.5.1", 431, PROTOCOL_ERROR, "sent a header block in more frames than allowed", ENHANCE_YOUR_CALM;
    Http2TooManyResets = "http2_too_many_resets", "RFC 9113 10.5", 429, PROTOCOL_ERROR, "opened and reset more streams than allowed", ENHANCE_YOUR_CALM;
    Http2TooManyControlFrames = "http2_too_many_control_frames", "RFC 9113 10.5", 429, PROTOCOL_ERROR, "sent more frames without requests or data than allowed", ENHANCE_YOUR_CALM;
    Http2TooManyEmptyFrames = "http2_too_many_empty_frames", "RFC 9113 10.5", 429, PROTOCOL_ERROR, "sent more empty frames than allowed", ENHANCE_YOUR_CALM;
    // HTTP/2 heads and bodies.
    Http2BadFieldName = "http2_bad_field_name", "RFC 9113 8.2.1", 400, PROTOCOL_ERROR, "sent a field whose name is malformed or not in lower case";
    Http2BadFieldValue = "http2_bad_field_value", "RFC 9113 8.2.1", 400, PROTOCOL_ERROR, "sent a field whose value has a control character or a blank at its ends";
    Http2ConnectionField = "http2_connection_field", "RFC 9113 8.2.2", 400, PROTOCOL_ERROR, "sent a field that is specific to HTTP/1.1 connections";
    Http2BadPseudoField = "http2_bad_pseudo_field", "RFC 9113 8.3", 400, PROTOCOL_ERROR, "sent a pseudo-field that is unknown, repeated or out of place";
    Http2MissingPseudoField = "http2_missing_pseudo_field", "RFC 9113 8.3", 400, PROTOCOL_ERROR, "sent a head without a required pseudo-field";
    Http2BadPseudoValue = "http2_bad_pseudo_value", "RFC 9113 8.3", 400, PROTOCOL_ERROR, "sent a pseudo-field with a malformed value";
    Http2BadAuthority = "http2_bad_authority", "RFC 9113 8.3.1", 400, PROTOCOL_ERROR, "sent Host and :authority that differ, or a malformed one";
    Http2BadConnect = "http2_bad_connect", "RFC 8441 4", 400, PROTOCOL_ERROR, "sent :protocol where extended CONNECT is not enabled";
    Http2UnfinishedTrailers = "http2_unfinished_trailers", "RFC 9113 8.1", 400, PROTOCOL_ERROR, "sent trailers that did not end the stream";
    Http2InterimEnd = "http2_interim_end", "RFC 9113 8.1", 502, PROTOCOL_ERROR, "ended a stream with an interim response";
    Http2DataBeforeHead = "http2_data_before_head", "RFC 9113 8.1", 502, PROTOCOL_ERROR, "sent data before the head of the response";
    Http2WrongContentLength = "http2_wrong_content_length", "RFC 9113 8.1.1", 400, PROTOCOL_ERROR, "sent another amount of data than its Content-Length";
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the peer {} ({})", self.text(), self.section())
    }
}

impl core::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::string::ToString;

    use super::*;

    #[test]
    fn the_table_is_consistent() {
        let mut names = HashSet::new();
        let mut texts = HashSet::new();
        for (index, &violation) in Violation::ALL.iter().enumerate() {
            assert_eq!(violation as usize, index, "{violation:?} is out of order");
            assert!(names.insert(violation.name()), "{} twice", violation.name());
            assert!(texts.insert(violation.to_string()), "{violation} twice");
            assert!(
                violation.name().bytes().all(|b| b"abcdefghijklmnopqrstuvwxyz01289_".contains(&b))
            );
            let section = violation.section();
            assert!(section.starts_with("RFC ") || section.starts_with("PROXY protocol "));
            assert!((400..=599).contains(&violation.http_status()));
            assert!(violation.close_code().is_sendable());
        }
    }
}
