//! The memory of `standfast load grpc://…` for server streams that are held open.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::harness::accept::accept;
use crate::harness::executable::{Running, standfast};
use crate::harness::http2::{frame, frame_bytes};
use crate::harness::{Scratch, eventually};

const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; }\n\
                     service B { rpc Hold(Text) returns (stream Text); }\n";
const PREFACE_BYTES: usize = 24;
const DATA: u8 = 0;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const CONNECTIONS: u64 = 10;
const STREAM_BYTES_MAX: u64 = 256;

/// A server that takes requests and answers none, and how many it has taken.
fn silent_server() -> (SocketAddr, Arc<AtomicU64>) {
    let taken = Arc::<AtomicU64>::default();
    let count = Arc::clone(&taken);
    (accept(move |stream| take(stream, &count)), taken)
}

/// Counts requests until the client leaves.
fn take(mut stream: TcpStream, count: &AtomicU64) -> Option<()> {
    stream.read_exact(&mut [0; PREFACE_BYTES]).ok()?;
    stream.write_all(&frame_bytes(SETTINGS, 0, 0, &[])?).ok()?;
    loop {
        let (kind, flags, _, _) = frame(&mut stream)?;
        if kind == DATA && flags & END_STREAM > 0 {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The memory of a run that holds so many streams of each connection, in bytes, without its executable.
fn held(streams: u64) -> u64 {
    let (address, taken) = silent_server();
    let file = Scratch::new(&format!("held-{}.proto", address.port()), PROTO);
    let url = format!("grpc://{address}/a.B/Hold");
    let (connections, streams) = (CONNECTIONS.to_string(), streams.to_string());
    let flags = [
        ["load", &url, "--plain"],
        ["--proto", file.path(), "--hold=10m"],
        ["--connections", &connections, "--duration=10m"],
        ["--streams", &streams, "--timeout=20m"],
    ];
    let running = Running(standfast(flags.as_flattened()).spawn().unwrap());
    let wanted = CONNECTIONS * streams.parse::<u64>().unwrap();
    eventually("the server has all requests", || taken.load(Ordering::Relaxed) == wanted);
    let status = fs::read_to_string(format!("/proc/{}/status", running.0.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_held_stream_of_answers_costs_little_memory() {
    let (few, many) = (held(1_000), held(5_000));
    let each = (many - few) / (CONNECTIONS * 4_000);
    assert!(each <= STREAM_BYTES_MAX, "{each} bytes for a stream: {few} and {many}");
}
