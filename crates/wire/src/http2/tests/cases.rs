//! What RFC 9113 demands of a receiver, case by case, in the manner of h2spec: a section, the frames that
//! a peer sends after its SETTINGS, and what is made of them.

use std::format;

use Expected::{Connection as C, Nothing, Stream as S};
use Violation::*;

use super::*;
use crate::Role;
use crate::Role::{Client, Server};
use crate::http2::frame::flags::{ACK, END_HEADERS, END_STREAM, PADDED, PRIORITY};

/// What becomes of the frames.
#[derive(PartialEq, Debug)]
enum Expected {
    /// The connection ends with this violation.
    Connection(Violation),
    /// The stream does, and the connection goes on.
    Stream(Violation),
    /// They are accepted or ignored.
    Nothing,
}

/// GET http://a/ in indexed fields and one literal.
const REQUEST: &[u8] = b"\x82\x86\x84\x41\x01a";
/// As above, with a Content-Length of 3.
const REQUEST_OF_3: &[u8] = b"\x83\x86\x84\x0f\x0d\x013";
/// 200 OK.
const RESPONSE: &[u8] = b"\x88";
const END: u8 = END_HEADERS | END_STREAM;

const DATA: FrameType = FrameType::DATA;
const HEADERS: FrameType = FrameType::HEADERS;
const PRIO: FrameType = FrameType::PRIORITY;
const RST: FrameType = FrameType::RST_STREAM;
const SETTINGS: FrameType = FrameType::SETTINGS;
const PUSH: FrameType = FrameType::PUSH_PROMISE;
const PING: FrameType = FrameType::PING;
const GOAWAY: FrameType = FrameType::GOAWAY;
const WINDOW: FrameType = FrameType::WINDOW_UPDATE;
const CONTINUATION: FrameType = FrameType::CONTINUATION;

type Frame = (FrameType, u8, u32, &'static [u8]);
/// Section, what happens, our role, the frames, what becomes of them.
type Case = (&'static str, &'static str, Role, &'static [Frame], Expected);

const BIG: &[u8] = &[0; 16_385];
const DEP_ON_SELF: &[u8] = b"\0\0\0\x01\x10";

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("4.1", "an unknown type", Server, &[(FrameType(0x16), 0xff, 0, b"xyz")], Nothing),
    ("4.1", "an unknown type on a stream", Server, &[(FrameType(0x17), 0xff, 5, b"")], Nothing),
    ("4.1", "undefined flags", Server, &[(PING, 0xfe, 0, b"12345678")], Nothing),
    ("4.1", "the reserved bit of a stream identifier", Server, &[(PING, 0, 0x8000_0000, b"12345678")], Nothing),
    ("4.1", "the reserved bit on a stream", Server, &[(HEADERS, END_HEADERS, 0x8000_0001, REQUEST), (DATA, END_STREAM, 1, b"x")], Nothing),
    ("4.1", "undefined flags of HEADERS", Server, &[(HEADERS, END | 0xd2, 1, REQUEST)], Nothing),
    ("4.2", "the longest frame", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, 0, 1, &[0; 16_384])], Nothing),
    ("4.2", "DATA too long", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, 0, 1, BIG)], C(Http2FrameTooLarge)),
    ("4.2", "HEADERS too long", Server, &[(HEADERS, END, 1, BIG)], C(Http2FrameTooLarge)),
    ("4.2", "unknown frame too long", Server, &[(FrameType(0x16), 0, 0, BIG)], C(Http2FrameTooLarge)),
    ("4.2", "SETTINGS too long", Server, &[(SETTINGS, 0, 0, BIG)], C(Http2FrameTooLarge)),
    ("4.2", "PING too long", Server, &[(PING, 0, 0, BIG)], C(Http2FrameTooLarge)),
    ("4.3", "a block that cannot be decoded", Server, &[(HEADERS, END, 1, b"\xff\xff\xff\xff\xff\xff")], C(HpackIntegerTooLarge)),
    ("4.3", "a block that refers to nothing", Server, &[(HEADERS, END, 1, b"\xbe")], C(HpackBadIndex)),
    ("4.3", "PRIORITY inside a block", Server, &[(HEADERS, 0, 1, REQUEST), (PRIO, 0, 1, b"\0\0\0\0\0")], C(Http2InterruptedBlock)),
    ("4.3", "HEADERS of another stream inside a block", Server, &[(HEADERS, 0, 1, REQUEST), (HEADERS, END, 3, REQUEST)], C(Http2InterruptedBlock)),
    ("4.3", "an unknown type inside a block", Server, &[(HEADERS, 0, 1, REQUEST), (FrameType(0x16), 0, 1, b"")], C(Http2InterruptedBlock)),
    ("4.3", "PING inside a block", Server, &[(HEADERS, 0, 1, REQUEST), (PING, 0, 0, b"12345678")], C(Http2InterruptedBlock)),
    ("4.3", "DATA inside a block", Server, &[(HEADERS, 0, 1, REQUEST), (DATA, 0, 1, b"x")], C(Http2InterruptedBlock)),
    ("4.3", "a block of a stream that was reset is decoded", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x08"), (HEADERS, END, 3, b"\x82\x86\x84\xbe")], Nothing),
    ("4.3", "an empty block", Server, &[(HEADERS, END, 1, b"")], S(Http2MissingPseudoField)),
    ("5.1", "DATA on an idle stream", Server, &[(DATA, 0, 1, b"x")], C(Http2IdleStream)),
    ("5.1", "RST_STREAM on an idle stream", Server, &[(RST, 0, 1, b"\0\0\0\x08")], C(Http2IdleStream)),
    ("5.1", "WINDOW_UPDATE on an idle stream", Server, &[(WINDOW, 0, 1, b"\0\0\0\x08")], C(Http2IdleStream)),
    ("5.1", "CONTINUATION on an idle stream", Server, &[(CONTINUATION, END_HEADERS, 1, REQUEST)], C(Http2UnexpectedContinuation)),
    ("5.1", "PRIORITY on an idle stream", Server, &[(PRIO, 0, 9, b"\0\0\0\0\x10")], Nothing),
    ("5.1", "DATA after END_STREAM", Server, &[(HEADERS, END, 1, REQUEST), (DATA, END_STREAM, 1, b"x")], S(Http2ClosedStream)),
    ("5.1", "HEADERS after END_STREAM", Server, &[(HEADERS, END, 1, REQUEST), (HEADERS, END, 1, REQUEST)], S(Http2ClosedStream)),
    ("5.1", "CONTINUATION after the end of the block", Server, &[(HEADERS, END, 1, REQUEST), (CONTINUATION, END_HEADERS, 1, REQUEST)], C(Http2UnexpectedContinuation)),
    ("5.1", "DATA after RST_STREAM", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x08"), (DATA, 0, 1, b"x")], C(Http2ClosedStream)),
    ("5.1", "HEADERS after RST_STREAM", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x08"), (HEADERS, END, 1, REQUEST)], C(Http2ClosedStream)),
    ("5.1", "WINDOW_UPDATE, RST_STREAM and PRIORITY after RST_STREAM", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x08"), (WINDOW, 0, 1, b"\0\0\0\x08"), (RST, 0, 1, b"\0\0\0\x08"), (PRIO, 0, 1, b"\0\0\0\0\0")], Nothing),
    ("5.1", "CONTINUATION after RST_STREAM", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x08"), (CONTINUATION, END_HEADERS, 1, REQUEST)], C(Http2UnexpectedContinuation)),
    ("5.1", "RST_STREAM after END_STREAM", Server, &[(HEADERS, END, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x08")], Nothing),
    ("5.1", "WINDOW_UPDATE after END_STREAM", Server, &[(HEADERS, END, 1, REQUEST), (WINDOW, 0, 1, b"\0\0\0\x01")], Nothing),
    ("5.1", "PRIORITY after END_STREAM", Server, &[(HEADERS, END, 1, REQUEST), (PRIO, 0, 1, b"\0\0\0\0\x10")], Nothing),
    ("5.1", "DATA on a stream that no client opened", Client, &[(DATA, 0, 5, b"x")], C(Http2IdleStream)),
    ("5.1", "HEADERS on a stream that no client opened", Client, &[(HEADERS, END, 5, RESPONSE)], C(Http2IdleStream)),
    ("5.1", "DATA after the response", Client, &[(HEADERS, END, 1, RESPONSE), (DATA, END_STREAM, 1, b"x")], C(Http2ClosedStream)),
    ("5.1", "HEADERS after the response", Client, &[(HEADERS, END, 1, RESPONSE), (HEADERS, END, 1, RESPONSE)], C(Http2ClosedStream)),
    ("5.1", "DATA after the response to an open request", Client, &[(HEADERS, END, 3, RESPONSE), (DATA, END_STREAM, 3, b"x")], S(Http2ClosedStream)),
    ("5.1.1", "an even identifier", Server, &[(HEADERS, END, 2, REQUEST)], C(Http2BadStreamId)),
    ("5.1.1", "an even identifier below the last", Server, &[(HEADERS, END, 5, REQUEST), (HEADERS, END, 2, REQUEST)], C(Http2BadStreamId)),
    ("5.1.1", "an identifier below the last", Server, &[(HEADERS, END, 5, REQUEST), (HEADERS, END, 3, REQUEST)], C(Http2BadStreamId)),
    ("5.1.1", "the largest identifier", Server, &[(HEADERS, END, 0x7fff_ffff, REQUEST)], Nothing),
    ("5.1.1", "identifiers that are left out stay unused", Server, &[(HEADERS, END, 5, REQUEST), (DATA, 0, 3, b"x")], C(Http2ClosedStream)),
    ("5.1.1", "the identifier of a stream that has ended", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x08"), (HEADERS, END, 1, REQUEST)], C(Http2ClosedStream)),
    ("5.1.1", "HEADERS on stream 0", Server, &[(HEADERS, END, 0, REQUEST)], C(Http2WrongStream)),
    ("5.1.1", "an even identifier from a server", Client, &[(HEADERS, END, 2, RESPONSE)], C(Http2IdleStream)),
    ("5.1.2", "more streams than allowed", Server, &[(HEADERS, END, 1, REQUEST), (HEADERS, END, 3, REQUEST), (HEADERS, END, 5, REQUEST), (HEADERS, END, 7, REQUEST)], S(Http2TooManyStreams)),
    ("5.1.2", "as many streams as allowed, one after another", Server, &[(HEADERS, END, 1, REQUEST), (HEADERS, END, 3, REQUEST), (HEADERS, END, 5, REQUEST), (RST, 0, 1, b"\0\0\0\x08"), (HEADERS, END, 7, REQUEST)], Nothing),
    ("5.2.1", "DATA on a stream that ended counts for the connection alone", Client, &[(HEADERS, END_HEADERS, 3, RESPONSE), (DATA, END_STREAM, 3, b"x")], Nothing),
    ("5.3.1", "a stream that depends on itself", Server, &[(PRIO, 0, 1, DEP_ON_SELF), (HEADERS, END | PRIORITY, 1, b"\0\0\0\x01\x10\x82\x86\x84")], Nothing),
    ("5.3.2", "priorities of any weight and on streams that do not exist", Server, &[(PRIO, 0, 1, b"\x80\0\0\x09\xff"), (PRIO, 0, 3, b"\0\0\0\x01\0"), (HEADERS, END | PRIORITY, 5, b"\0\0\0\x03\xff\x82\x86\x84")], Nothing),
    ("5.4.1", "an error of a frame on a stream ends the connection", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, PADDED, 1, b"\x09a")], C(Http2BadPadding)),
    ("5.4.2", "an error of one stream leaves the others", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (HEADERS, END, 3, b"\x82"), (DATA, END_STREAM, 1, b"x")], S(Http2MissingPseudoField)),
    ("5.4.2", "RST_STREAM is not answered by one", Server, &[(HEADERS, END, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x01"), (RST, 0, 1, b"\0\0\0\x01")], Nothing),
    ("5.5", "an extension frame on a stream between DATA", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, 0, 1, b"x"), (FrameType(0xfa), 0xff, 1, b"abc"), (DATA, END_STREAM, 1, b"y")], Nothing),
    ("5.5", "an extension setting", Server, &[(SETTINGS, 0, 0, b"\xf0\0\0\0\0\x01")], Nothing),
    ("6.1", "DATA on stream 0", Server, &[(DATA, 0, 0, b"x")], C(Http2WrongStream)),
    ("6.1", "all of DATA is padding", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, PADDED | END_STREAM, 1, b"\x02\0\0")], Nothing),
    ("6.1", "more padding than DATA", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, PADDED, 1, b"\x03\0\0")], C(Http2BadPadding)),
    ("6.1", "padded DATA without a length", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, PADDED, 1, b"")], C(Http2BadFrameLength)),
    ("6.1", "as much padding as DATA", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, PADDED | END_STREAM, 1, b"\x01x\0")], Nothing),
    ("6.1", "empty DATA that ends the stream", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, END_STREAM, 1, b"")], Nothing),
    ("6.2", "all of HEADERS is padding", Server, &[(HEADERS, END | PADDED, 1, b"\x02\0\0")], S(Http2MissingPseudoField)),
    ("6.2", "more padding than HEADERS", Server, &[(HEADERS, END | PADDED, 1, b"\x03\0\0")], C(Http2BadPadding)),
    ("6.2", "padding within the priority", Server, &[(HEADERS, END | PADDED | PRIORITY, 1, b"\x02\0\0\0\0\x10\0")], C(Http2BadPadding)),
    ("6.2", "HEADERS too short for a priority", Server, &[(HEADERS, END | PRIORITY, 1, b"\0\0\0\0")], C(Http2BadFrameLength)),
    ("6.2", "HEADERS too short for padding", Server, &[(HEADERS, END | PADDED, 1, b"")], C(Http2BadFrameLength)),
    ("6.3", "PRIORITY on stream 0", Server, &[(PRIO, 0, 0, b"\0\0\0\0\x10")], C(Http2WrongStream)),
    ("6.3", "PRIORITY of four bytes", Server, &[(PRIO, 0, 1, b"\0\0\0\0")], C(Http2BadFrameLength)),
    ("6.3", "PRIORITY of six bytes", Server, &[(PRIO, 0, 1, b"\0\0\0\0\x10\0")], C(Http2BadFrameLength)),
    ("6.4", "RST_STREAM on stream 0", Server, &[(RST, 0, 0, b"\0\0\0\x08")], C(Http2WrongStream)),
    ("6.4", "RST_STREAM of three bytes", Server, &[(HEADERS, END, 1, REQUEST), (RST, 0, 1, b"\0\0\0")], C(Http2BadFrameLength)),
    ("6.4", "RST_STREAM of five bytes", Server, &[(HEADERS, END, 1, REQUEST), (RST, 0, 1, b"\0\0\0\x08\0")], C(Http2BadFrameLength)),
    ("6.4", "RST_STREAM from a server", Client, &[(RST, 0, 1, b"\0\0\0\x07")], Nothing),
    ("6.4", "RST_STREAM on an idle stream of a client", Client, &[(RST, 0, 5, b"\0\0\0\x07")], C(Http2IdleStream)),
    ("6.5", "an acknowledgement with a payload", Server, &[(SETTINGS, ACK, 0, b"\0\x01\0\0\0\0")], C(Http2BadFrameLength)),
    ("6.5", "SETTINGS on a stream", Server, &[(SETTINGS, 0, 1, b"")], C(Http2WrongStream)),
    ("6.5", "SETTINGS of five bytes", Server, &[(SETTINGS, 0, 0, b"\0\x01\0\0\0")], C(Http2BadFrameLength)),
    ("6.5", "SETTINGS without a setting", Server, &[(SETTINGS, 0, 0, b"")], Nothing),
    ("6.5.2", "ENABLE_PUSH of 2", Server, &[(SETTINGS, 0, 0, b"\0\x02\0\0\0\x02")], C(Http2BadSetting)),
    ("6.5.2", "ENABLE_PUSH of 1 from a client", Server, &[(SETTINGS, 0, 0, b"\0\x02\0\0\0\x01")], Nothing),
    ("6.5.2", "ENABLE_PUSH of 1 from a server", Client, &[(SETTINGS, 0, 0, b"\0\x02\0\0\0\x01")], C(Http2BadSetting)),
    ("6.5.2", "ENABLE_PUSH of 0 from a server", Client, &[(SETTINGS, 0, 0, b"\0\x02\0\0\0\0")], Nothing),
    ("6.5.2", "INITIAL_WINDOW_SIZE of 2^31", Server, &[(SETTINGS, 0, 0, b"\0\x04\x80\0\0\0")], C(Http2BadWindowSetting)),
    ("6.5.2", "INITIAL_WINDOW_SIZE of 2^31 - 1", Server, &[(HEADERS, END, 1, REQUEST), (SETTINGS, 0, 0, b"\0\x04\x7f\xff\xff\xff")], Nothing),
    ("6.5.2", "MAX_FRAME_SIZE below 2^14", Server, &[(SETTINGS, 0, 0, b"\0\x05\0\0\x3f\xff")], C(Http2BadSetting)),
    ("6.5.2", "MAX_FRAME_SIZE of 2^24", Server, &[(SETTINGS, 0, 0, b"\0\x05\x01\0\0\0")], C(Http2BadSetting)),
    ("6.5.2", "MAX_FRAME_SIZE of 2^24 - 1", Server, &[(SETTINGS, 0, 0, b"\0\x05\0\xff\xff\xff")], Nothing),
    ("6.5.2", "HEADER_TABLE_SIZE of 0 and of 2^32 - 1", Server, &[(SETTINGS, 0, 0, b"\0\x01\0\0\0\0\0\x01\xff\xff\xff\xff")], Nothing),
    ("6.5.2", "MAX_CONCURRENT_STREAMS of 0", Client, &[(SETTINGS, 0, 0, b"\0\x03\0\0\0\0")], Nothing),
    ("6.5.2", "MAX_HEADER_LIST_SIZE of 0", Client, &[(SETTINGS, 0, 0, b"\0\x06\0\0\0\0")], Nothing),
    ("6.5.2", "an unknown setting", Server, &[(SETTINGS, 0, 0, b"\0\xff\xff\xff\xff\xff")], Nothing),
    ("6.5.3", "a setting twice: the last one counts", Server, &[(SETTINGS, 0, 0, b"\0\x05\0\0\x40\0\0\x05\0\0\x80\0")], Nothing),
    ("6.5.3", "an acknowledgement too many", Server, &[(SETTINGS, ACK, 0, b""), (SETTINGS, ACK, 0, b"")], Nothing),
    ("6.6", "PUSH_PROMISE from a server", Client, &[(PUSH, END_HEADERS, 1, b"\0\0\0\x02\x82\x86\x84")], C(Http2Push)),
    ("6.6", "PUSH_PROMISE from a client", Server, &[(PUSH, END_HEADERS, 1, b"\0\0\0\x02\x82\x86\x84")], C(Http2Push)),
    ("6.7", "PING on a stream", Server, &[(PING, 0, 1, b"12345678")], C(Http2WrongStream)),
    ("6.7", "PING of seven bytes", Server, &[(PING, 0, 0, b"1234567")], C(Http2BadFrameLength)),
    ("6.7", "PING of nine bytes", Server, &[(PING, 0, 0, b"123456789")], C(Http2BadFrameLength)),
    ("6.7", "an answer to no PING", Server, &[(PING, ACK, 0, b"12345678")], Nothing),
    ("6.8", "GOAWAY on a stream", Server, &[(GOAWAY, 0, 1, b"\0\0\0\0\0\0\0\0")], C(Http2WrongStream)),
    ("6.8", "GOAWAY of seven bytes", Server, &[(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0")], C(Http2BadFrameLength)),
    ("6.8", "GOAWAY with debug data", Server, &[(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0why")], Nothing),
    ("6.8", "requests after the GOAWAY of their client", Server, &[(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0"), (HEADERS, END, 1, REQUEST)], Nothing),
    ("6.8", "GOAWAY twice", Client, &[(GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0"), (GOAWAY, 0, 0, b"\0\0\0\x03\0\0\0\0x")], Nothing),
    ("6.9", "WINDOW_UPDATE of the connection by 0", Server, &[(WINDOW, 0, 0, b"\0\0\0\0")], C(Http2ZeroIncrement)),
    ("6.9", "WINDOW_UPDATE of a stream by 0", Server, &[(HEADERS, END, 1, REQUEST), (WINDOW, 0, 1, b"\0\0\0\0")], S(Http2ZeroIncrement)),
    ("6.9", "WINDOW_UPDATE of three bytes", Server, &[(WINDOW, 0, 0, b"\0\0\x01")], C(Http2BadFrameLength)),
    ("6.9", "WINDOW_UPDATE of five bytes", Server, &[(WINDOW, 0, 0, b"\0\0\0\x01\0")], C(Http2BadFrameLength)),
    ("6.9.1", "a window of the connection above 2^31 - 1", Server, &[(WINDOW, 0, 0, b"\x7f\xff\xff\xff")], C(Http2WindowOverflow)),
    ("6.9.1", "a window of a stream above 2^31 - 1", Server, &[(HEADERS, END, 1, REQUEST), (WINDOW, 0, 1, b"\x7f\xff\xff\xff")], S(Http2WindowOverflow)),
    ("6.9.1", "the reserved bit of an increment", Server, &[(WINDOW, 0, 0, b"\x80\0\0\x01")], Nothing),
    ("6.9.2", "a setting raises a window above 2^31 - 1", Server, &[(HEADERS, END, 1, REQUEST), (WINDOW, 0, 1, b"\x7f\xff\0\0"), (SETTINGS, 0, 0, b"\0\x04\0\x01\0\0")], C(Http2BadWindowSetting)),
    ("6.9.2", "as above, when the stream has ended", Server, &[(HEADERS, END, 1, REQUEST), (WINDOW, 0, 1, b"\x7f\xff\0\0"), (RST, 0, 1, b"\0\0\0\x08"), (SETTINGS, 0, 0, b"\0\x04\0\x01\0\0")], Nothing),
    ("6.10", "CONTINUATION after CONTINUATION", Server, &[(HEADERS, END_STREAM, 1, b"\x82"), (CONTINUATION, 0, 1, b"\x86\x84"), (CONTINUATION, END_HEADERS, 1, b"\x41\x01a")], Nothing),
    ("6.10", "CONTINUATION on stream 0", Server, &[(HEADERS, END_STREAM, 1, b"\x82"), (CONTINUATION, END_HEADERS, 0, b"\x86\x84")], C(Http2InterruptedBlock)),
    ("6.10", "CONTINUATION after DATA", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, 0, 1, b"x"), (CONTINUATION, END_HEADERS, 1, b"\x84")], C(Http2UnexpectedContinuation)),
    ("6.10", "CONTINUATION after the last CONTINUATION", Server, &[(HEADERS, END_STREAM, 1, b"\x82"), (CONTINUATION, END_HEADERS, 1, b"\x86\x84"), (CONTINUATION, END_HEADERS, 1, b"\x84")], C(Http2UnexpectedContinuation)),
    ("6.10", "PRIORITY after CONTINUATION", Server, &[(HEADERS, END_STREAM, 1, b"\x82"), (CONTINUATION, 0, 1, b"\x86\x84"), (PRIO, 0, 1, b"\0\0\0\0\x10")], C(Http2InterruptedBlock)),
    ("6.10", "CONTINUATION of another stream", Server, &[(HEADERS, END_STREAM, 1, b"\x82"), (CONTINUATION, END_HEADERS, 3, b"\x86\x84")], C(Http2InterruptedBlock)),
    ("6.10", "a field across two frames", Server, &[(HEADERS, END_STREAM, 1, b"\x82\x86\x84\x41"), (CONTINUATION, END_HEADERS, 1, b"\x01a")], Nothing),
    ("7", "an unknown code of RST_STREAM", Server, &[(HEADERS, END, 1, REQUEST), (RST, 0, 1, b"\0\0\0\xff")], Nothing),
    ("7", "an unknown code of GOAWAY", Server, &[(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\xff")], Nothing),
    ("8.1", "trailers that do not end the stream", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (HEADERS, END_HEADERS, 1, b"\x40\x01a\x01b")], S(Http2UnfinishedTrailers)),
    ("8.1", "trailers with a pseudo-field", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (HEADERS, END, 1, b"\x82")], S(Http2BadPseudoField)),
    ("8.1", "a second head", Client, &[(HEADERS, END_HEADERS, 1, RESPONSE), (HEADERS, END, 1, RESPONSE)], S(Http2BadPseudoField)),
    ("8.1", "DATA before the head", Client, &[(DATA, 0, 1, b"x")], S(Http2DataBeforeHead)),
    ("8.1", "DATA after an interim head", Client, &[(HEADERS, END_HEADERS, 1, b"\x48\x03103"), (DATA, 0, 1, b"x")], S(Http2DataBeforeHead)),
    ("8.1", "an interim head that ends the stream", Client, &[(HEADERS, END, 1, b"\x48\x03103")], S(Http2InterimEnd)),
    ("8.1", "two interim heads and a response", Client, &[(HEADERS, END_HEADERS, 1, b"\x48\x03103"), (HEADERS, END_HEADERS, 1, b"\x48\x03100"), (HEADERS, END, 1, RESPONSE)], Nothing),
    ("8.1", "trailers", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (DATA, 0, 1, b"x"), (HEADERS, END, 1, b"\x40\x01a\x01b")], Nothing),
    ("8.1.1", "less DATA than Content-Length", Server, &[(HEADERS, END_HEADERS, 1, REQUEST_OF_3), (DATA, END_STREAM, 1, b"12")], S(Http2WrongContentLength)),
    ("8.1.1", "more DATA than Content-Length", Server, &[(HEADERS, END_HEADERS, 1, REQUEST_OF_3), (DATA, 0, 1, b"12"), (DATA, 0, 1, b"34")], S(Http2WrongContentLength)),
    ("8.1.1", "DATA as Content-Length", Server, &[(HEADERS, END_HEADERS, 1, REQUEST_OF_3), (DATA, 0, 1, b"12"), (DATA, END_STREAM, 1, b"3")], Nothing),
    ("8.1.1", "no DATA despite Content-Length", Server, &[(HEADERS, END, 1, REQUEST_OF_3)], S(Http2WrongContentLength)),
    ("8.1.1", "trailers before Content-Length", Server, &[(HEADERS, END_HEADERS, 1, REQUEST_OF_3), (HEADERS, END, 1, b"\x40\x01a\x01b")], S(Http2WrongContentLength)),
    ("8.1.1", "a Content-Length that is no number", Client, &[(HEADERS, END_HEADERS, 1, b"\x88\x0f\x0d\x02-1")], S(BadContentLength)),
    ("8.1.1", "two Content-Lengths", Client, &[(HEADERS, END_HEADERS, 1, b"\x88\x0f\x0d\x011\x0f\x0d\x012")], S(ConflictingContentLength)),
    ("8.1.1", "the same Content-Length twice", Client, &[(HEADERS, END_HEADERS, 1, b"\x88\x0f\x0d\x011\x0f\x0d\x011"), (DATA, END_STREAM, 1, b"x")], Nothing),
    ("8.1.1", "a response of another length", Client, &[(HEADERS, END_HEADERS, 1, b"\x88\x0f\x0d\x013"), (DATA, END_STREAM, 1, b"12")], S(Http2WrongContentLength)),
    ("8.2.1", "a name in upper case", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x01A\x01b")], S(Http2BadFieldName)),
    ("8.2.1", "an empty name", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x00\x01b")], S(Http2BadFieldName)),
    ("8.2.1", "a name with a colon", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x03a:b\x01b")], S(Http2BadFieldName)),
    ("8.2.1", "a value with a line feed", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x01a\x03b\nc")], S(Http2BadFieldValue)),
    ("8.2.1", "a value with a null byte", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x01a\x03b\0c")], S(Http2BadFieldValue)),
    ("8.2.1", "a value that begins with a blank", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x01a\x02 b")], S(Http2BadFieldValue)),
    ("8.2.1", "a value that ends with a tab", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x01a\x02b\t")], S(Http2BadFieldValue)),
    ("8.2.1", "an empty value", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x01a\x00")], Nothing),
    ("8.2.2", "Connection", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x0aconnection\x05close")], S(Http2ConnectionField)),
    ("8.2.2", "Transfer-Encoding", Client, &[(HEADERS, END, 1, b"\x88\x40\x11transfer-encoding\x07chunked")], S(Http2ConnectionField)),
    ("8.2.2", "TE other than trailers", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x02te\x0etrailers, gzip")], S(Http2ConnectionField)),
    ("8.2.2", "TE: trailers", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x02te\x08trailers")], Nothing),
    ("8.2.2", "Upgrade", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x07upgrade\x03h2c")], S(Http2ConnectionField)),
    ("8.2.2", "Keep-Alive", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x0akeep-alive\x015")], S(Http2ConnectionField)),
    ("8.2.2", "Proxy-Connection", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x10proxy-connection\x05close")], S(Http2ConnectionField)),
    ("8.2.2", "Transfer-Encoding in trailers", Server, &[(HEADERS, END_HEADERS, 1, REQUEST), (HEADERS, END, 1, b"\x40\x11transfer-encoding\x07chunked")], S(Http2ConnectionField)),
    ("8.2.3", "Cookie in several fields", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x60\x03a=b\x60\x03c=d")], Nothing),
    ("8.3", "an unknown pseudo-field", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x02:x\x01b")], S(Http2BadPseudoField)),
    ("8.3", "a pseudo-field of responses", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x88")], S(Http2BadPseudoField)),
    ("8.3", "a pseudo-field of requests", Client, &[(HEADERS, END, 1, b"\x88\x82")], S(Http2BadPseudoField)),
    ("8.3", "a pseudo-field behind another field", Server, &[(HEADERS, END, 1, b"\x82\x86\x40\x01a\x01b\x84")], S(Http2BadPseudoField)),
    ("8.3.1", "a pseudo-field twice", Server, &[(HEADERS, END, 1, b"\x82\x82\x86\x84")], S(Http2BadPseudoField)),
    ("8.3.1", ":scheme twice", Server, &[(HEADERS, END, 1, b"\x82\x86\x87\x84")], S(Http2BadPseudoField)),
    ("8.3.1", ":path twice", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x85")], S(Http2BadPseudoField)),
    ("8.3.1", ":authority twice", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x41\x01a\x41\x01a")], S(Http2BadPseudoField)),
    ("8.3.1", "neither :authority nor Host", Server, &[(HEADERS, END, 1, b"\x82\x86\x84")], Nothing),
    ("8.3.1", "no :method", Server, &[(HEADERS, END, 1, b"\x86\x84")], S(Http2MissingPseudoField)),
    ("8.3.1", "no :scheme", Server, &[(HEADERS, END, 1, b"\x82\x84")], S(Http2MissingPseudoField)),
    ("8.3.1", "no :path", Server, &[(HEADERS, END, 1, b"\x82\x86")], S(Http2MissingPseudoField)),
    ("8.3.1", "an empty :path", Server, &[(HEADERS, END, 1, b"\x82\x86\x44\x00")], S(Http2BadPseudoValue)),
    ("8.3.1", "a :path without a slash", Server, &[(HEADERS, END, 1, b"\x82\x86\x44\x01a")], S(Http2BadPseudoValue)),
    ("8.3.1", "OPTIONS *", Server, &[(HEADERS, END, 1, b"\x42\x07OPTIONS\x86\x44\x01*")], Nothing),
    ("8.3.1", "GET *", Server, &[(HEADERS, END, 1, b"\x82\x86\x44\x01*")], S(Http2BadPseudoValue)),
    ("8.3.1", "a :method with a blank", Server, &[(HEADERS, END, 1, b"\x42\x03G T\x86\x84")], S(Http2BadPseudoValue)),
    ("8.3.1", "Host as :authority", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x41\x01a\x66\x01A")], Nothing),
    ("8.3.1", "Host other than :authority", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x41\x01a\x66\x01b")], S(Http2BadAuthority)),
    ("8.3.1", ":authority with user information", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x41\x03u@a")], S(Http2BadAuthority)),
    ("8.3.2", "no :status", Client, &[(HEADERS, END, 1, b"\x40\x01a\x01b")], S(Http2MissingPseudoField)),
    ("8.3.2", "a :status of two digits", Client, &[(HEADERS, END, 1, b"\x48\x0220")], S(Http2BadPseudoValue)),
    ("8.3.2", ":status twice", Client, &[(HEADERS, END, 1, b"\x88\x88")], S(Http2BadPseudoField)),
    ("8.3.2", "a :status that is no number", Client, &[(HEADERS, END, 1, b"\x48\x032x0")], S(Http2BadPseudoValue)),
    ("8.5", "CONNECT", Server, &[(HEADERS, END_HEADERS, 1, b"\x42\x07CONNECT\x41\x03a:1")], Nothing),
    ("8.5", "CONNECT with :path", Server, &[(HEADERS, END_HEADERS, 1, b"\x42\x07CONNECT\x41\x03a:1\x84")], S(Http2BadPseudoField)),
    ("8.5", "CONNECT without :authority", Server, &[(HEADERS, END_HEADERS, 1, b"\x42\x07CONNECT")], S(Http2MissingPseudoField)),
    ("8.6", "status 101", Client, &[(HEADERS, END_HEADERS, 1, b"\x48\x03101")], S(Http2BadPseudoValue)),
    ("8441 3", "ENABLE_CONNECT_PROTOCOL of 2", Client, &[(SETTINGS, 0, 0, b"\0\x08\0\0\0\x02")], C(Http2BadSetting)),
    ("8441 3", "ENABLE_CONNECT_PROTOCOL taken back", Client, &[(SETTINGS, 0, 0, b"\0\x08\0\0\0\x01"), (SETTINGS, 0, 0, b"\0\x08\0\0\0\0")], C(Http2BadSetting)),
    ("8441 4", ":protocol when it is not enabled", Server, &[(HEADERS, END_HEADERS, 1, b"\x42\x07CONNECT\x86\x84\x41\x01a\x40\x09:protocol\x01w")], S(Http2BadConnect)),
    ("7541 2.3.3", "an index beyond both tables", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\xff\x80\x01")], C(HpackBadIndex)),
    ("7541 2.3.3", "a name of an entry that was not added", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x7e\x01a")], C(HpackBadIndex)),
    ("7541 4.2", "a change of the table between fields", Server, &[(HEADERS, END, 1, b"\x82\x86\x20\x84")], C(HpackMisplacedSizeUpdate)),
    ("7541 4.2", "a change of the table at the end of a block", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x20")], C(HpackMisplacedSizeUpdate)),
    ("7541 4.2", "two changes of the table before the fields", Server, &[(HEADERS, END, 1, b"\x20\x3f\xe1\x1f\x82\x86\x84")], Nothing),
    ("7541 4.4", "an entry larger than the table empties it", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x01a\x01b"), (HEADERS, END, 3, b"\x21\x82\x86\x84\x40\x01c\x01d\xbe")], C(HpackBadIndex)),
    ("7541 5.1", "an integer without an end", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\xff\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80")], C(HpackIntegerTooLarge)),
    ("7541 5.1", "an integer that is cut", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\xff")], C(HpackTruncated)),
    ("7541 5.2", "a string longer than its block", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x41\x05a")], C(HpackTruncated)),
    ("7541 5.2", "Huffman padding of zeros", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x41\x81\x18")], C(HpackBadHuffman)),
    ("7541 5.2", "Huffman padding of eight bits", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x41\x82\x1f\xff")], C(HpackBadHuffman)),
    ("7541 5.2", "the end of a string in Huffman code", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x41\x84\xff\xff\xff\xff")], C(HpackBadHuffman)),
    ("7541 6.1", "index 0", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x80")], C(HpackBadIndex)),
    ("7541 6.2", "literals of all three kinds", Server, &[(HEADERS, END, 1, b"\x82\x86\x84\x40\x01a\x01b\x00\x01a\x01b\x10\x01a\x01b\xbe")], Nothing),
    ("7541 6.3", "a table larger than allowed", Server, &[(HEADERS, END, 1, b"\x3f\xe2\x1f\x82\x86\x84")], C(HpackSizeUpdateTooLarge)),
];

/// A server that allows three streams, or a client with an ended request and one that has not ended.
fn side(role: Role) -> Side {
    let config = Config { max_streams: 3, ..Config::default() };
    let mut side = match role {
        Server => Side::server(&config),
        Client => Side::client(&config),
    };
    let start = if role == Server { PREFACE.as_slice() } else { &[] };
    side.receive(&[start, &frame(SETTINGS, 0, 0, b"")].concat()).unwrap();
    if role == Client {
        side.connection.open(GET, true, 1, &mut side.out).unwrap();
        side.connection.open(POST, false, 3, &mut side.out).unwrap();
    }
    side.sent();
    side.news();
    side
}

#[test]
fn each_case_ends_as_the_rfc_demands() {
    let mut sections = std::collections::BTreeSet::new();
    for (section, what, role, sent, expected) in CASES {
        sections.insert(*section);
        let bytes: Vec<u8> = sent
            .iter()
            .flat_map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload))
            .collect();
        for size in [bytes.len(), 1, 7] {
            let mut side = side(*role);
            let result = bytes.chunks(size).try_for_each(|piece| side.receive(piece));
            let failed = side.seen.iter().find_map(|seen| match seen {
                Seen::StreamFailed { violation, .. } => Some(*violation),
                _ => None,
            });
            let ended = match (result, failed) {
                (Err(violation), _) => C(violation),
                (Ok(()), Some(violation)) => S(violation),
                (Ok(()), None) => Nothing,
            };
            assert_eq!(&ended, expected, "{section} {what}, {role:?}, pieces of {size}");
            check_answer(&mut side, &ended, &format!("{section} {what}"));
        }
    }
    // Windows (5.2, 6.9) and floods (10.5) have more in files of their own, and so has 3.4 below.
    for covered in [
        "4.1",
        "4.2",
        "4.3",
        "5.1",
        "5.1.1",
        "5.1.2",
        "5.2.1",
        "5.3.1",
        "5.3.2",
        "5.4.1",
        "5.4.2",
        "5.5",
        "6.1",
        "6.2",
        "6.3",
        "6.4",
        "6.5",
        "6.5.2",
        "6.5.3",
        "6.6",
        "6.7",
        "6.8",
        "6.9",
        "6.9.1",
        "6.9.2",
        "6.10",
        "7",
        "8.1",
        "8.1.1",
        "8.2.1",
        "8.2.2",
        "8.2.3",
        "8.3",
        "8.3.1",
        "8.3.2",
        "8.5",
        "8.6",
        "8441 3",
        "8441 4",
        "7541 2.3.3",
        "7541 4.2",
        "7541 4.4",
        "7541 5.1",
        "7541 5.2",
        "7541 6.1",
        "7541 6.2",
        "7541 6.3",
    ] {
        assert!(sections.remove(covered), "{covered} has no case");
    }
    assert!(sections.is_empty(), "{sections:?}");
    let mut names: Vec<_> = CASES.iter().map(|(section, what, ..)| (section, what)).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "each case has a name of its own");
}

/// RFC 9113 6.5.3, 6.7, 6.8: frames that are answered at once, and what the answer is.
#[test]
fn frames_that_are_answered() {
    let mut side = side(Server);
    side.receive(&frame(SETTINGS, 0, 0, b"\0\x03\0\0\0\x01")).unwrap();
    let [(header, payload)] = &frames(&side.sent())[..] else { panic!("one acknowledgement") };
    assert_eq!((header.kind, header.flags, payload.len()), (SETTINGS, ACK, 0));
    side.receive(&frame(PING, 0, 0, b"12345678")).unwrap();
    let [(header, payload)] = &frames(&side.sent())[..] else { panic!("one answer") };
    assert_eq!((header.kind, header.flags, &payload[..]), (PING, ACK, &b"12345678"[..]));
    for quiet in [
        frame(SETTINGS, ACK, 0, b""),
        frame(PING, ACK, 0, b"12345678"),
        frame(GOAWAY, 0, 0, &[0; 8]),
    ] {
        side.receive(&quiet).unwrap();
        assert_eq!(frames(&side.sent()), [], "{quiet:?}");
    }
}

/// A failed stream is reset, and nothing else is; after a failed stream the connection goes on.
fn check_answer(side: &mut Side, ended: &Expected, what: &str) {
    let answers = frames(&side.sent());
    let resets: Vec<u32> = answers
        .iter()
        .filter(|(header, _)| header.kind == RST)
        .map(|(_, payload)| u32::from_be_bytes(payload[..].try_into().unwrap()))
        .collect();
    match ended {
        S(violation) => assert_eq!(resets, [violation.http2_code().0], "{what}"),
        C(violation) => {
            side.connection.go_away_for(*violation, &mut side.out);
            let [(header, payload)] = &frames(&side.sent())[..] else { panic!("{what}") };
            assert_eq!(header.kind, GOAWAY);
            assert_eq!(payload[4..], violation.http2_code().0.to_be_bytes());
            return;
        }
        Nothing => assert_eq!(resets, [], "{what}"),
    }
    side.receive(&frame(PING, 0, 0, b"still on")).unwrap();
    assert_eq!(frames(&side.sent())[0].1, b"still on", "{what}");
}

#[test]
fn what_comes_before_settings() {
    let request = frame(HEADERS, END, 1, REQUEST);
    let settings = frame(SETTINGS, 0, 0, b"");
    let acknowledgement = frame(SETTINGS, ACK, 0, b"");
    let starts: [(&[u8], &[u8], _); 7] = [
        (b"GET / HTTP/1.1\r\n\r\n", b"", Err(Http2BadPreface)),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"", Err(Http2BadPreface)),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", b"", Ok(())),
        (PREFACE, &request, Err(Http2NoSettings)),
        (PREFACE, &acknowledgement, Err(Http2NoSettings)),
        (PREFACE, &settings, Ok(())),
        (b"", &settings, Err(Http2BadPreface)),
    ];
    for (start, then, expected) in starts {
        let bytes = [start, then].concat();
        for size in [bytes.len(), 1] {
            let mut side = Side::server(&Config::default());
            let result = bytes.chunks(size).try_for_each(|piece| side.receive(piece));
            assert_eq!(result, expected, "{}", bytes.escape_ascii());
        }
    }
    let mut side = Side::client(&Config::default());
    assert_eq!(side.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Err(Http2NoSettings));
    let mut side = Side::client(&Config::default());
    assert_eq!(side.receive(&frame(PING, 0, 0, b"12345678")), Err(Http2NoSettings));
}
