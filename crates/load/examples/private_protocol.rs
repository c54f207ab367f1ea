//! Adds a private protocol by implementing `Driver`. Users, pacing, percentiles and failures by kind
//! are provided. `cargo run --example private_protocol` runs it
//! against a server of the same protocol, in this process.
//!
//! The protocol: a frame is its length and a number, 4 bytes each in big-endian order, and a
//! text. The answer to a frame carries its number and the text in capitals.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use load::Endpoint;
use load::requests::{
    Accepted, Awaited, CompleteAnswer, Driver, Failure, Fixed, Received, Request, Requests,
    drive_requests,
};

const HEADER_BYTES: usize = 8;

/// One worker's side of the protocol.
#[derive(Default)]
struct Frames {
    /// The reused buffer of the frame to send.
    frame: Vec<u8>,
}

/// The state of a connection.
#[derive(Default)]
struct Numbers {
    /// Frames sent, and answered.
    sent: u32,
    answered: u32,
    /// A partial answer.
    partial: Vec<u8>,
}

impl Driver for Frames {
    type State = Numbers;

    fn encode<'a>(&'a mut self, state: &mut Numbers, request: &'a Request) -> &'a [u8] {
        self.frame.clear();
        self.frame.extend_from_slice(&(request.bytes().len() as u32).to_be_bytes());
        self.frame.extend_from_slice(&state.sent.to_be_bytes());
        self.frame.extend_from_slice(request.bytes());
        state.sent += 1;
        &self.frame
    }

    fn receive(&mut self, state: &mut Numbers, bytes: &[u8], awaited: &mut Awaited) -> Received {
        let before = state.partial.len();
        state.partial.extend_from_slice(bytes);
        let Some((length, rest)) = state.partial.split_first_chunk() else { return Received::More };
        let Some((number, text)) = rest.split_first_chunk() else { return Received::More };
        let length = u32::from_be_bytes(*length) as usize;
        let Some(text) = text.get(..length) else { return Received::More };
        if u32::from_be_bytes(*number) != state.answered {
            return Received::Failed(Failure::Unexpected);
        }
        awaited.body(text);
        state.partial.clear();
        state.answered += 1;
        let used = HEADER_BYTES + length - before;
        Received::Complete(CompleteAnswer {
            used,
            status: 0,
            keep: true,
            body_bytes: length as u64,
        })
    }

    fn ended(&mut self, state: &mut Numbers) -> Received {
        let begun = !state.partial.is_empty();
        Received::Failed(if begun { Failure::ClosedMidway } else { Failure::Closed })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("tcp://{}", listener.local_addr()?);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    let config = Requests {
        duration: Some(Duration::from_secs(2)),
        ..Requests::new(vec![Endpoint::parse_tcp(&url)?], 10)
    };
    let hello = Request::raw(0, b"hello".to_vec());
    let script = move |part| Fixed::new(vec![hello.clone()], part, Accepted::default());
    let wait = |time| {
        thread::sleep(time);
        false
    };
    let ended = drive_requests(&config, Frames::default, script, |_| {}, wait)?;
    print!("{}", ended);
    if ended.held { Ok(()) } else { Err("not all was answered".into()) }
}

/// Answers the frames of one connection until it ends.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut header = [0; HEADER_BYTES];
    loop {
        stream.read_exact(&mut header)?;
        let [a, b, c, d, ..] = header;
        let mut frame = header.to_vec();
        frame.resize(HEADER_BYTES + u32::from_be_bytes([a, b, c, d]) as usize, 0);
        let text = frame.get_mut(HEADER_BYTES..).unwrap_or_default();
        stream.read_exact(text)?;
        text.make_ascii_uppercase();
        stream.write_all(&frame)?;
    }
}
