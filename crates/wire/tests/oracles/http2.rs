//! Our HTTP/2 against the crate h2: our client with its server, its client with our server, over a pipe
//! in memory that holds few bytes. Both sides must see what the other one sent.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use http::{HeaderMap, HeaderValue, Request, Response};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tungstenite::Bytes;
use wire::http2::hpack::HeaderList;
use wire::http2::{Config, Connection, ErrorCode, Event, HeadKind, StreamId};

/// One request and its answer.
#[derive(Clone, Debug, PartialEq)]
struct Exchange {
    path: String,
    /// Values of a field, which are also those of one in the answer.
    fields: Vec<String>,
    request: Vec<u8>,
    response: Vec<u8>,
    request_trailers: bool,
    response_trailers: bool,
    /// An interim response comes first.
    interim: bool,
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let body = || prop_oneof![Just(0usize), 1..200usize, 1..100_000usize];
    (
        "/[a-z0-9/]{0,40}",
        proptest::collection::vec("[!-~]([ -~]{0,80}[!-~])?", 0..6),
        (body(), body()),
        any::<[bool; 3]>(),
    )
        .prop_map(|(path, fields, (request, response), flags)| {
            let [request_trailers, response_trailers, interim] = flags;
            let bytes = |length| (0..length).map(|n: usize| (n * 7 % 251) as u8).collect();
            Exchange {
                path,
                fields,
                request: bytes(request),
                response: bytes(response),
                request_trailers,
                response_trailers,
                interim,
            }
        })
}

/// Windows and streams, of our side.
fn limits() -> impl Strategy<Value = Config> {
    (
        prop_oneof![Just(1000u32), Just(65_535), Just(1 << 20)],
        prop_oneof![Just(65_535u32), Just(1 << 20)],
        prop_oneof![Just(16_384u32), Just(1 << 20)],
        prop_oneof![Just(0u32), Just(200), Just(4096), Just(16_384)],
        any::<bool>(),
    )
        .prop_map(|(stream, connection, frame, table, explicit_release)| Config {
            stream_window_bytes: stream,
            connection_window_bytes: connection,
            frame_bytes: frame,
            header_table_bytes: table,
            explicit_release,
            ..Config::default()
        })
}

/// A run that takes longer has come to a stop.
const DEADLOCK: Duration = Duration::from_secs(60);

fn settings() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(48),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(9113),
        ..ProptestConfig::default()
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let future = async { tokio::time::timeout(DEADLOCK, future).await };
    tokio::task::LocalSet::new().block_on(&runtime, future).expect("both sides wait")
}

/// One message as a side received it.
#[derive(Default, Debug)]
struct Message {
    fields: Vec<(String, String)>,
    interim: Vec<u16>,
    data: Vec<u8>,
    trailers: Vec<(String, String)>,
    ended: bool,
    reset: Option<ErrorCode>,
}

impl Message {
    fn values(&self, name: &str) -> Vec<&str> {
        let of_name = self.fields.iter().filter(|field| field.0 == name);
        of_name.map(|field| field.1.as_str()).collect()
    }
}

/// A body that waits for the window.
struct Sending {
    data: Vec<u8>,
    sent: usize,
    trailers: bool,
}

/// Our side of a connection.
struct Ours {
    connection: Connection,
    explicit_release: bool,
    out: Vec<u8>,
    list: HeaderList,
    messages: HashMap<StreamId, Message>,
    sending: HashMap<StreamId, Sending>,
}

const TRAILERS: [(&[u8], &[u8]); 1] = [(b"x-end", b"yes")];

impl Ours {
    fn new(config: &Config, connection: Connection, out: Vec<u8>) -> Ours {
        Ours {
            connection,
            explicit_release: config.explicit_release,
            out,
            list: HeaderList::new(),
            messages: HashMap::new(),
            sending: HashMap::new(),
        }
    }

    /// Sends what the windows allow.
    fn send(&mut self) {
        let Ours { connection, sending, out, .. } = self;
        sending.retain(|id, body| {
            let rest = &body.data[body.sent..];
            match connection.send_data(*id, rest, !body.trailers, out) {
                Ok(taken) => body.sent += taken,
                Err(_) => return false,
            }
            let done = body.sent == body.data.len();
            if done && body.trailers {
                connection.send_trailers(*id, TRAILERS, out).unwrap();
            }
            !done
        });
    }

    /// Handles bytes; returns the streams whose heads arrived.
    fn receive(&mut self, bytes: &[u8]) -> Vec<StreamId> {
        let mut heads = Vec::new();
        let mut at = 0;
        let Ours { connection, list, out, messages, .. } = self;
        while let Some((used, event)) = connection.receive(&bytes[at..], list, out).unwrap() {
            at += used;
            match event {
                Event::Head { stream, kind, end_stream, .. } => {
                    let message = messages.entry(stream).or_default();
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    let fields = list.iter().map(|(name, value)| (text(name), text(value)));
                    match kind {
                        HeadKind::Trailers => message.trailers.extend(fields),
                        HeadKind::Interim(status) => message.interim.push(status),
                        _ => {
                            message.fields.extend(fields);
                            heads.push(stream);
                        }
                    }
                    message.ended |= end_stream;
                }
                Event::Data { stream, data, end_stream, .. } => {
                    let message = messages.get_mut(&stream).unwrap();
                    message.data.extend_from_slice(data);
                    message.ended |= end_stream;
                    let bytes = data.len();
                    if self.explicit_release {
                        connection.release(stream, bytes, out);
                    }
                }
                Event::Reset { stream, code, .. } => {
                    messages.entry(stream).or_default().reset = Some(code);
                }
                Event::StreamFailed { violation, .. } => panic!("{violation}"),
                _ => {}
            }
        }
        heads
    }

    /// Writes, reads and handles once; `None` when the peer has closed.
    async fn turn(&mut self, pipe: &mut DuplexStream) -> Option<Vec<StreamId>> {
        self.send();
        let mut buffer = [0; 1000];
        let out = std::mem::take(&mut self.out);
        let mut rest = &out[..];
        let (mut heads, mut has_read) = (Vec::new(), false);
        let (mut reader, mut writer) = tokio::io::split(pipe);
        // Neither side may wait for the other one to read.
        while !rest.is_empty() {
            tokio::select! {
                written = writer.write(rest) => rest = &rest[written.ok()?..],
                read = reader.read(&mut buffer) => {
                    let bytes = &buffer[..read.ok().filter(|read| *read > 0)?];
                    heads.extend(self.receive(bytes));
                    has_read = true;
                }
            }
        }
        if !has_read {
            let read = reader.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
            heads.extend(self.receive(&buffer[..read]));
        }
        Some(heads)
    }
}

/// Reads a body and its trailers from h2.
async fn read_body(body: &mut RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut data = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        data.extend_from_slice(&piece);
    }
    (data, body.trailers().await.unwrap())
}

fn trailer_map() -> HeaderMap {
    let mut map = HeaderMap::new();
    map.insert("x-end", HeaderValue::from_static("yes"));
    map
}

/// h2's server, which answers each exchange as planned.
async fn their_server(pipe: DuplexStream, plan: Arc<Vec<Exchange>>) -> Result<(), h2::Error> {
    let mut builder = h2::server::Builder::new();
    let mut connection = builder.max_concurrent_streams(5).handshake(pipe).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, mut respond) = accepted?;
        let plan = Arc::clone(&plan);
        tokio::task::spawn_local(async move {
            let (head, mut body) = request.into_parts();
            let index: usize = head.headers["x-index"].to_str().unwrap().parse().unwrap();
            let exchange = &plan[index];
            assert_eq!(head.uri.path(), exchange.path);
            if exchange.interim {
                let early = Response::builder().status(103).body(()).unwrap();
                respond.send_informational(early).unwrap();
            }
            let mut response = Response::builder().status(200);
            for value in head.headers.get_all("x-field") {
                response = response.header("x-field", value);
            }
            let (data, trailers) = read_body(&mut body).await;
            assert!(data == exchange.request);
            assert_eq!(trailers.is_some(), exchange.request_trailers);
            let ends = exchange.response.is_empty() && !exchange.response_trailers;
            let mut sender = respond.send_response(response.body(()).unwrap(), ends).unwrap();
            if !ends {
                let data = Bytes::from(exchange.response.clone());
                sender.send_data(data, !exchange.response_trailers).unwrap();
                if exchange.response_trailers {
                    sender.send_trailers(trailer_map()).unwrap();
                }
            }
        });
    }
    Ok(())
}

/// Our client sends all exchanges to h2's server, as many at a time as that allows.
async fn our_client(mut pipe: DuplexStream, config: Config, plan: &[Exchange]) -> Vec<Message> {
    let mut out = Vec::new();
    let connection = Connection::client(&Arc::new(config.clone()), &mut out);
    let mut ours = Ours::new(&config, connection, out);
    let mut opened: Vec<StreamId> = Vec::new();
    for _ in 0..1_000_000 {
        while ours.connection.has_settings()
            && ours.connection.free_streams() > 0
            && let Some(exchange) = plan.get(opened.len())
        {
            let index = opened.len().to_string();
            let mut fields: Vec<(&[u8], &[u8])> = vec![
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", exchange.path.as_bytes()),
                (b":authority", b"a.example"),
                (b"x-index", index.as_bytes()),
            ];
            fields.extend(exchange.fields.iter().map(|value| (&b"x-field"[..], value.as_bytes())));
            let ends = exchange.request.is_empty() && !exchange.request_trailers;
            let tag = opened.len() as u32;
            let id = ours.connection.open(fields, ends, tag, &mut ours.out).unwrap();
            if !ends {
                let (data, trailers) = (exchange.request.clone(), exchange.request_trailers);
                ours.sending.insert(id, Sending { data, sent: 0, trailers });
            }
            opened.push(id);
        }
        let done = opened.len() == plan.len() && ours.connection.open_streams() == 0;
        if done || ours.turn(&mut pipe).await.is_none() {
            break;
        }
    }
    opened.iter().map(|id| ours.messages.remove(id).unwrap_or_default()).collect()
}

/// Our server, which answers h2's client.
async fn our_server(mut pipe: DuplexStream, config: Config, plan: Arc<Vec<Exchange>>) {
    let mut out = Vec::new();
    let connection = Connection::server(&Arc::new(config.clone()), &mut out);
    let mut ours = Ours::new(&config, connection, out);
    let mut waiting: Vec<StreamId> = Vec::new();
    while let Some(heads) = ours.turn(&mut pipe).await {
        waiting.extend(heads);
        waiting.retain(|id| {
            let message = &ours.messages[id];
            if !message.ended {
                return true;
            }
            let index: usize = message.values("x-index")[0].parse().unwrap();
            let exchange = &plan[index];
            assert_eq!(message.values(":path"), [exchange.path.as_str()]);
            assert_eq!(message.values("x-field"), exchange.fields);
            assert!(message.data == exchange.request);
            assert_eq!(message.trailers.is_empty(), !exchange.request_trailers);
            let Ours { connection, out, .. } = &mut ours;
            if exchange.interim {
                let early: [(&[u8], &[u8]); 1] = [(b":status", b"103")];
                connection.respond_interim(*id, early, out).unwrap();
            }
            let mut fields: Vec<(&[u8], &[u8])> = vec![(b":status", b"200")];
            fields.extend(exchange.fields.iter().map(|value| (&b"x-field"[..], value.as_bytes())));
            let ends = exchange.response.is_empty() && !exchange.response_trailers;
            connection.respond(*id, fields, ends, out).unwrap();
            if !ends {
                let (data, trailers) = (exchange.response.clone(), exchange.response_trailers);
                ours.sending.insert(*id, Sending { data, sent: 0, trailers });
            }
            false
        });
    }
    assert_eq!(ours.connection.open_streams(), 0);
}

/// h2's client sends all exchanges to our server at once.
async fn their_client(pipe: DuplexStream, plan: &[Exchange], window: u32) {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (sender, connection) = builder.handshake(pipe).await.unwrap();
    let connection = tokio::task::spawn_local(connection);
    let mut tasks = Vec::new();
    for (index, exchange) in plan.iter().enumerate() {
        let mut ready = sender.clone().ready().await.unwrap();
        let uri = format!("http://a.example{}", exchange.path);
        let mut request = Request::builder().method("POST").uri(uri).header("x-index", index);
        for value in &exchange.fields {
            request = request.header("x-field", value);
        }
        let ends = exchange.request.is_empty() && !exchange.request_trailers;
        let request = request.body(()).unwrap();
        let (response, mut body) = ready.send_request(request, ends).unwrap();
        if !ends {
            body.send_data(Bytes::from(exchange.request.clone()), !exchange.request_trailers)
                .unwrap();
            if exchange.request_trailers {
                body.send_trailers(trailer_map()).unwrap();
            }
        }
        let exchange = exchange.clone();
        tasks.push(tokio::task::spawn_local(async move {
            let (head, mut body) = response.await.unwrap().into_parts();
            let fields = head.headers.get_all("x-field").iter();
            let fields: Vec<_> = fields.map(|value| value.to_str().unwrap()).collect();
            assert_eq!(fields, exchange.fields);
            let (data, trailers) = read_body(&mut body).await;
            assert!(data == exchange.response);
            assert_eq!(trailers.is_some(), exchange.response_trailers);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    drop(sender);
    connection.await.unwrap().unwrap();
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn our_client_and_their_server(
        plan in proptest::collection::vec(exchange(), 1..20),
        config in limits(),
        pipe_bytes in 100..5000usize,
    ) {
        let plan = Arc::new(plan);
        let messages = run(async {
            let (near, far) = tokio::io::duplex(pipe_bytes);
            let server = tokio::task::spawn_local(their_server(far, Arc::clone(&plan)));
            let messages = our_client(near, config, &plan).await;
            let _ = server.await.unwrap();
            messages
        });
        prop_assert_eq!(messages.len(), plan.len());
        for (message, exchange) in messages.iter().zip(plan.iter()) {
            prop_assert_eq!(message.values(":status"), ["200"]);
            prop_assert_eq!(message.values("x-field"), exchange.fields.clone());
            prop_assert!(message.data == exchange.response);
            prop_assert!(message.ended);
            prop_assert_eq!(message.reset, None);
            prop_assert_eq!(message.trailers.len(), usize::from(exchange.response_trailers));
            prop_assert_eq!(message.interim.len(), usize::from(exchange.interim));
        }
    }

    #[test]
    fn their_client_and_our_server(
        plan in proptest::collection::vec(exchange(), 1..20),
        config in limits(),
        pipe_bytes in 100..5000usize,
        window in prop_oneof![Just(100u32), Just(65_535), Just(1 << 20)],
    ) {
        let plan = Arc::new(plan);
        run(async {
            let (near, far) = tokio::io::duplex(pipe_bytes);
            let server = our_server(far, config, Arc::clone(&plan));
            let server = tokio::task::spawn_local(server);
            their_client(near, &plan, window).await;
            server.await.unwrap();
        });
    }
}

/// h2 as a judge of what our client sends on its own: nothing that it calls an error.
#[test]
fn resets_and_goaway_of_either_side() -> io::Result<()> {
    run(async {
        let (near, far) = tokio::io::duplex(4096);
        let server = tokio::task::spawn_local(async move {
            let mut connection = h2::server::handshake(far).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            respond.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
            let (request, _respond) = connection.accept().await.unwrap().unwrap();
            let mut body = request.into_body();
            let reset = async { body.data().await.unwrap().unwrap_err().reason() };
            let reason = tokio::select! {
                reason = reset => reason,
                _ = connection.accept() => panic!("there are two requests"),
            };
            assert_eq!(reason, Some(h2::Reason::CANCEL));
            connection.graceful_shutdown();
            assert!(connection.accept().await.is_none());
        });
        let mut pipe = near;
        let config = Config::default();
        let mut out = Vec::new();
        let connection = Connection::client(&Arc::new(config.clone()), &mut out);
        let mut ours = Ours::new(&config, connection, out);
        let fields: [(&[u8], &[u8]); 4] = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/"),
            (b":authority", b"a.example"),
        ];
        let first = ours.connection.open(fields, false, 0, &mut ours.out).unwrap();
        while !ours.messages.contains_key(&first) {
            assert!(ours.turn(&mut pipe).await.is_some());
        }
        let code = ours.messages[&first].reset;
        assert_eq!(code, Some(ErrorCode::ENHANCE_YOUR_CALM));
        let second = ours.connection.open(fields, false, 0, &mut ours.out).unwrap();
        assert!(ours.connection.reset(second, ErrorCode::CANCEL, &mut ours.out));
        while !ours.connection.is_going_away() {
            assert!(ours.turn(&mut pipe).await.is_some());
        }
        while ours.turn(&mut pipe).await.is_some() {}
        server.await.unwrap();
    });
    Ok(())
}
