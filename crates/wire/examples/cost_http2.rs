//! Costs of HTTP/2 on this machine, in nanoseconds for a request and its answer, best of several rounds,
//! beside the crate h2: `cargo run --release -p standfast-wire --example cost_http2`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tungstenite::Bytes;
use wire::http2::frame::{FrameHeader, FrameType, encode_settings, flags};
use wire::http2::hpack::{Encoder, HeaderList, Indexing, Shape};
use wire::http2::{Config, Connection, Event, HeadKind, StreamId};

const REQUEST: [(&str, &str); 6] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("user-agent", "standfast/0.1"),
    ("accept", "*/*"),
];

/// As nginx sends it for a file.
const RESPONSE: [(&str, &str); 7] = [
    (":status", "200"),
    ("server", "nginx/1.27.4"),
    ("date", "Fri, 27 Nov 2026 20:38:56 GMT"),
    ("content-type", "text/html"),
    ("content-length", "100"),
    ("last-modified", "Fri, 27 Nov 2026 20:38:56 GMT"),
    ("etag", "\"6744f2a0-64\""),
];

const BODY: [u8; 100] = [b'x'; 100];
/// Requests and answers of a round.
const PAIRS: u32 = 10_000;

fn main() {
    for streams in [1, 100] {
        client(&format!("client, literal answers, {streams} streams"), streams, Indexing::Without);
        client(
            &format!("client, indexed answers, {streams} streams"),
            streams,
            Indexing::Incremental,
        );
        both(&format!("client and server, {streams} streams"), streams);
        h2(&format!("client and server of h2, {streams} streams"), streams);
    }
}

fn shape(fields: &[(&'static str, &'static str)]) -> Shape {
    Shape::new(fields.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes()))))
}

fn config() -> Arc<Config> {
    Arc::new(Config { max_streams: 1000, initial_max_streams: 1000, ..Config::default() })
}

/// Receives all of `bytes` as a client; returns how many answers end there.
fn answers(client: &mut Connection, bytes: &[u8], list: &mut HeaderList, out: &mut Vec<u8>) -> u32 {
    let (mut at, mut ended) = (0, 0);
    while let Some((used, event)) = client.receive(&bytes[at..], list, out).expect("good frames") {
        at += used;
        match event {
            Event::Head { kind: HeadKind::Response(status), .. } => assert_eq!(status, 200),
            Event::Data { data, end_stream, tag, .. } => {
                black_box((data.as_ptr(), tag));
                ended += u32::from(end_stream);
            }
            Event::Settings => {}
            _ => panic!("nothing else was sent"),
        }
    }
    ended
}

/// A client whose answers were encoded before.
fn client(name: &str, streams: u32, indexing: Indexing) {
    let mut encoder = Encoder::new();
    let mut bytes = Vec::new();
    encode_settings(&mut bytes, std::iter::empty());
    let mut ends = Vec::new();
    let mut block = Vec::new();
    for id in (1..).step_by(2).take(PAIRS as usize) {
        block.clear();
        for (name, value) in RESPONSE {
            encoder.field(name.as_bytes(), value.as_bytes(), indexing, &mut block);
        }
        for (kind, flags, payload) in [
            (FrameType::HEADERS, flags::END_HEADERS, block.as_slice()),
            (FrameType::DATA, flags::END_STREAM, &BODY),
        ] {
            let header =
                FrameHeader { payload_bytes: payload.len() as u32, kind, flags, stream: id };
            bytes.extend(header.to_bytes());
            bytes.extend(payload);
        }
        ends.push(bytes.len());
    }
    let (config, mut shape, mut list) = (config(), shape(&REQUEST), HeaderList::new());
    let mut out = Vec::with_capacity(1 << 20);
    let took = best(|| {
        out.clear();
        let mut client = Connection::client(&config, &mut out);
        let mut at = 0;
        for end in ends.iter().skip(streams as usize - 1).step_by(streams as usize) {
            out.clear();
            for tag in 0..streams {
                client.open_shape(&mut shape, [], true, tag, &mut out).expect("it may be opened");
            }
            assert_eq!(answers(&mut client, &bytes[at..*end], &mut list, &mut out), streams);
            at = *end;
        }
        assert_eq!(client.open_streams(), 0);
    });
    print(name, took);
}

/// A client and a server.
fn both(name: &str, streams: u32) {
    let config = config();
    let (mut request, mut response) = (shape(&REQUEST), shape(&RESPONSE));
    let (mut list, mut ids) = (HeaderList::new(), Vec::<StreamId>::new());
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let took = best(|| {
        to_server.clear();
        to_client.clear();
        let mut client = Connection::client(&config, &mut to_server);
        let mut server = Connection::server(&config, &mut to_client);
        for _ in 0..PAIRS / streams {
            for tag in 0..streams {
                client.open_shape(&mut request, [], true, tag, &mut to_server).expect("it may be");
            }
            let mut at = 0;
            while let Some((used, event)) =
                server.receive(&to_server[at..], &mut list, &mut to_client).expect("good frames")
            {
                at += used;
                if let Event::Head { stream, .. } = event {
                    ids.push(stream);
                }
            }
            to_server.clear();
            for id in ids.drain(..) {
                server.respond_shape(id, &mut response, [], false, &mut to_client).expect("open");
                let sent = server.send_data(id, &BODY, true, &mut to_client);
                assert_eq!(sent, Ok(BODY.len()));
            }
            assert_eq!(answers(&mut client, &to_client, &mut list, &mut to_server), streams);
            to_client.clear();
        }
    });
    print(name, took);
}

/// The same between the client and the server of the crate h2, over a pipe in memory on one thread.
fn h2(name: &str, streams: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let took = best(|| {
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let (near, far) = tokio::io::duplex(1 << 20);
            let server = tokio::task::spawn_local(h2_server(far));
            let (sender, connection) = h2::client::handshake(near).await.expect("a handshake");
            let connection = tokio::task::spawn_local(connection);
            let mut sender: h2::client::SendRequest<Bytes> = sender.ready().await.expect("open");
            let mut waiting = Vec::new();
            for _ in 0..PAIRS / streams {
                for _ in 0..streams {
                    sender = sender.ready().await.expect("open");
                    let request = http::Request::get("https://www.example.com/index.html")
                        .header("user-agent", "standfast/0.1")
                        .header("accept", "*/*")
                        .body(())
                        .expect("a request");
                    waiting.push(sender.send_request(request, true).expect("it may be sent").0);
                }
                for response in waiting.drain(..) {
                    let response = response.await.expect("an answer");
                    assert_eq!(response.status(), 200);
                    let mut body = response.into_body();
                    while let Some(data) = body.data().await {
                        let data = data.expect("data");
                        body.flow_control().release_capacity(data.len()).expect("as received");
                        black_box(data.as_ptr());
                    }
                }
            }
            drop(sender);
            connection.await.expect("no panic").expect("no error");
            server.await.expect("no panic");
        });
    });
    print(name, took);
}

async fn h2_server(pipe: tokio::io::DuplexStream) {
    let mut builder = h2::server::Builder::new();
    let mut connection =
        builder.max_concurrent_streams(1000).handshake(pipe).await.expect("a handshake");
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let mut response = http::Response::builder().status(200);
        for (name, value) in &RESPONSE[1..] {
            response = response.header(*name, *value);
        }
        let response = response.body(()).expect("a response");
        let mut body = respond.send_response(response, false).expect("an open stream");
        body.send_data(Bytes::from_static(&BODY), true).expect("an open stream");
    }
}

fn print(name: &str, took: Duration) {
    println!("{name:<45}{:>8.0} ns", took.as_nanos() as f64 / f64::from(PAIRS));
}

#[expect(clippy::disallowed_methods, reason = "this measures and is no part of a program")]
fn best(mut work: impl FnMut()) -> Duration {
    let mut round = || {
        let start = std::time::Instant::now();
        work();
        start.elapsed()
    };
    (0..20).map(|_| round()).min().unwrap_or_default()
}
