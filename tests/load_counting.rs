//! A server that loses, duplicates and reorders messages and counts these faults: `load` must report
//! the same numbers.
//!
//! The server is a few blocking threads with a codec of its own (RFC 6455 §1.3 and §5.2), so a
//! mistake in our `wire` cannot hide itself here.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha1::{Digest, Sha1};

use crate::harness::executable::{self, Finished};

/// The messages of each connection that the server handles wrongly, counted from 1.
struct Faults {
    /// Each message whose number this divides is not answered.
    drop_each: u64,
    /// Each message whose number this divides is answered twice.
    double_each: u64,
    /// This message is answered after the one that follows it.
    swap_at: u64,
}

/// What the server did, over all its connections.
#[derive(Default)]
struct Done {
    received: AtomicU64,
    dropped: AtomicU64,
    doubled: AtomicU64,
    swapped: AtomicU64,
}

const CONNECTIONS: u64 = 10;
const MESSAGES: u64 = 2_500;

#[test]
fn faults_of_the_server_are_counted_exactly() {
    let (address, done) = start(Faults { drop_each: 1_000, double_each: 1_001, swap_at: 500 });
    let echo = echo_of(&load(address));
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    assert_eq!(count(&done.received), CONNECTIONS * MESSAGES);
    assert_eq!(count(&done.dropped), CONNECTIONS * 2, "the server made its faults");
    assert_eq!(count(&done.doubled), CONNECTIONS * 2);
    assert_eq!(count(&done.swapped), CONNECTIONS);
    let said = |name: &str| echo[name].as_u64().unwrap_or_else(|| panic!("no {name}: {echo}"));
    assert_eq!(said("sent"), count(&done.received), "{echo}");
    assert_eq!(said("lost"), count(&done.dropped), "{echo}");
    assert_eq!(said("duplicated"), count(&done.doubled), "{echo}");
    assert_eq!(said("reordered"), count(&done.swapped), "{echo}");
    assert_eq!(said("corrupted"), 0, "{echo}");
    assert_eq!(said("received"), said("sent") - said("lost") + said("duplicated"), "{echo}");
}

#[test]
fn no_faults_are_counted_with_a_correct_server() {
    let never = u64::MAX;
    let (address, done) = start(Faults { drop_each: never, double_each: never, swap_at: never });
    let finished = load(address);
    finished.assert_held_at_any_rate();
    let echo = echo_of(&finished);
    assert_eq!(echo["sent"], done.received.load(Ordering::SeqCst));
    assert_eq!(echo["received"], CONNECTIONS * MESSAGES);
    for name in ["lost", "duplicated", "reordered", "corrupted"] {
        assert_eq!(echo[name], 0, "{name}: {echo}");
    }
}

/// Paced, not closed: a dropped answer must not stop its connection.
fn load(address: SocketAddr) -> Finished {
    let url = format!("ws://{address}/");
    let (connections, messages) = (CONNECTIONS.to_string(), MESSAGES.to_string());
    let numbers = ["--connections", &connections, "--messages", &messages, "--rate", "10k"];
    executable::run(&[&["load", &url], &numbers[..], &["--json", "-"]].concat())
}

fn echo_of(finished: &Finished) -> Value {
    finished.json()["echo"].clone()
}

/// Starts the server; it runs until the test process ends.
fn start(faults: Faults) -> (SocketAddr, Arc<Done>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let done = Arc::new(Done::default());
    let (faults, counters) = (Arc::new(faults), Arc::clone(&done));
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (faults, done) = (Arc::clone(&faults), Arc::clone(&counters));
            // A client that disconnects ends its thread with an error.
            thread::spawn(move || serve(stream, &faults, &done));
        }
    });
    (address, done)
}

fn serve(stream: TcpStream, faults: &Faults, done: &Done) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut output = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    output.write_all(accept(&read_head(&mut input)?).as_bytes())?;
    let mut number = 0;
    let mut held = Vec::new();
    loop {
        let (first, payload) = read_frame(&mut input)?;
        let answer = match first {
            0x88 => return output.write_all(&frame(0x88, &payload)),
            0x89 => frame(0x8A, &payload),
            _ => {
                number += 1;
                mistreat(number, frame(first, &payload), &mut held, faults, done)
            }
        };
        output.write_all(&answer)?;
    }
}

/// Returns what to send for message `number` with the correct answer `answer`.
fn mistreat(
    number: u64,
    answer: Vec<u8>,
    held: &mut Vec<u8>,
    faults: &Faults,
    done: &Done,
) -> Vec<u8> {
    let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::SeqCst);
    count(&done.received);
    if number == faults.swap_at {
        count(&done.swapped);
        *held = answer;
        Vec::new()
    } else if number.is_multiple_of(faults.drop_each) {
        count(&done.dropped);
        Vec::new()
    } else if number.is_multiple_of(faults.double_each) {
        count(&done.doubled);
        answer.repeat(2)
    } else {
        [answer, std::mem::take(held)].concat()
    }
}

fn read_head(input: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn accept(head: &str) -> String {
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.trim())
    });
    let mut hash = Sha1::new();
    hash.update(key.unwrap_or_default());
    hash.update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = STANDARD.encode(hash.finalize());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

fn read_frame(input: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    input.read_exact(&mut head)?;
    let length = match head[1] & 0x7F {
        126 => u64::from(u16::from_be_bytes(read_array(input)?)),
        127 => u64::from_be_bytes(read_array(input)?),
        length => u64::from(length),
    };
    let mask: [u8; 4] = read_array(input)?;
    let mut payload = vec![0; length as usize];
    input.read_exact(&mut payload)?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Ok((head[0], payload))
}

fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// An unmasked frame: what a server sends.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let mut frame = vec![first];
    match length {
        0..126 => frame.push(length as u8),
        126..65_536 => {
            frame.push(126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}
