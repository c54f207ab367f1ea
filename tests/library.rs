//! The examples of the library, run as their users run them, and its page in the docs.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::harness::brokers::{Broker, NatsClient};
use crate::harness::http::{self, get};
use crate::harness::peer::{self, NODE};
use crate::harness::socket::{BINARY, Frame, Socket, TEXT, upgrade};
use crate::harness::{Deserted, eventually};

/// A running example.
struct Example {
    child: Child,
    address: SocketAddr,
    _stdout: BufReader<ChildStdout>,
}

impl Example {
    fn start(name: &str, args: &[&str]) -> Example {
        Example::start_with(name, args, &[])
    }

    fn start_with(name: &str, args: &[&str], environment: &[(&str, &str)]) -> Example {
        // Built with the tests, beside the executable.
        let executable = PathBuf::from(env!("CARGO_BIN_EXE_standfast"));
        let path = executable.parent().unwrap().join("examples").join(name);
        let mut command = Command::new(&path);
        command.arg("127.0.0.1:0").args(args).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let url = line.split_once("://").map_or("", |(_, rest)| rest);
        let address = url.split('/').next().unwrap().trim().parse();
        let address = address.unwrap_or_else(|error| panic!("{line:?}: {error}"));
        Example { child, address, _stdout: stdout }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(socket: &mut Socket) -> String {
    let Frame { first, payload } = socket.frame().expect("a message");
    assert_eq!(first, TEXT, "{}", payload.escape_ascii());
    String::from_utf8(payload).unwrap()
}

#[test]
fn the_echo_example_sends_back_what_it_gets() {
    let echo = Example::start("echo_server", &[]);
    let mut socket = Socket::open(echo.address, "/echo");
    for (first, payload) in
        [(TEXT, b"hello".to_vec()), (BINARY, vec![0xff; 70_000 - 5_000]), (TEXT, Vec::new())]
    {
        socket.send_frame(first, &payload);
        assert_eq!(socket.frame(), Some(Frame { first, payload }));
    }
    socket.send_frame(TEXT, &[0xff]);
    assert_eq!(socket.close_code(), 1007);
    let mut socket = Socket::open(echo.address, "/echo");
    socket.send_frame(BINARY, &vec![0; 64 * 1024 + 1]);
    assert_eq!(socket.close_code(), 1009);
    assert_eq!((get(echo.address, "/echo").status, get(echo.address, "/").status), (426, 404));
}

#[test]
fn the_topics_example_publishes_what_is_sent_and_what_is_posted() {
    let topics = Example::start("topic_server", &[]);
    let mut readers: Vec<_> =
        (0..10).map(|_| Socket::open(topics.address, "/topics/a%20topic")).collect();
    let mut other = Socket::open(topics.address, "/topics/other");
    readers[0].send_frame(TEXT, b"from a client");
    for reader in &mut readers[1..] {
        assert_eq!(text(reader), "from a client");
    }
    let posted = http::post(topics.address, "/topics/a%20topic", "posted");
    assert_eq!((posted.status, &*posted.body), (202, "published\n"));
    assert_eq!(http::post(topics.address, "/topics/other", "to the other").status, 202);
    for reader in &mut readers {
        assert_eq!(text(reader), "posted");
    }
    assert_eq!(text(&mut other), "to the other");
    let long = "x".repeat(64 * 1024 + 1);
    assert_eq!(http::post(topics.address, "/topics/other", &long).status, 413);
    assert_eq!(get(topics.address, "/topics/other").status, 405);
}

#[test]
fn people_chat_in_the_rooms_of_the_chat_example() {
    let chat = Example::start("chat", &[]);
    let page = get(chat.address, "/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.body.contains("<title>Chat</title>"), "{page:?}");
    let expected = [
        "two_people_chat",
        "rooms_are_apart",
        "hundred_members_get_each_line_once_and_in_order",
        "without_a_name_nobody_is_let_in",
    ];
    peer::works(&NODE, "library_chat.js", &[&format!("ws://{}", chat.address)], &expected);
}

#[test]
fn the_ticker_example_publishes_at_an_interval_and_says_goodbye() {
    let mut ticker = Example::start("ticker_server", &["5"]);
    let mut socket = Socket::open(ticker.address, "/ticks");
    let numbers: Vec<u64> = (0..5).map(|_| text(&mut socket).parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    socket.send_frame(TEXT, b"later");
    eventually("another thread answers", || text(&mut socket) == "an answer from another thread");
    drop(ticker.child.stdin.take());
    eventually("the server says goodbye", || text(&mut socket) == "the server stops");
    assert_eq!(socket.close_code(), 1001);
    drop(socket);
    assert!(ticker.child.wait().unwrap().success());
}

#[test]
fn the_jwt_example_lets_in_who_has_a_token() {
    let secret = "a secret of thirty-two characters";
    let jwt = Example::start_with("jwt", &[], &[("SECRET", secret)]);
    let token = |secret: &str, seconds: i64| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        let claims = json!({ "sub": "Ada", "exp": now + seconds });
        let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
    };
    let right = token(secret, 3_600);
    let mut by_query = Socket::open(jwt.address, &format!("/whoami?token={right}"));
    by_query.send_frame(TEXT, b"who am I?");
    assert_eq!(text(&mut by_query), "Ada");
    let ask = |authorization: &str| {
        let mut socket = Socket::connect(jwt.address);
        socket.send(upgrade("/whoami", &[("Authorization", authorization)]).as_bytes());
        socket.response().status
    };
    assert_eq!(ask(&format!("Bearer {right}")), 101);
    assert_eq!(ask(&format!("Bearer {}", token("another secret of thirty-two chars", 60))), 403);
    assert_eq!(ask(&format!("Bearer {}", token(secret, -3_600))), 403);
    assert_eq!((ask("Bearer nonsense"), ask("")), (403, 401));
}

#[test]
fn the_pieces_example_counts_writes_and_answers_later() {
    let example = Example::start("pieces", &[]);
    let body = "x".repeat(300_000);
    let put = format!(
        "PUT /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 300000\r\n\r\n{body}"
    );
    assert_eq!(http::ask(example.address, &put).body, "{\"bytes\":300000}\n");
    // To a client of HTTP/1.0 the end of the connection is that of the body.
    let mut stream = TcpStream::connect(example.address).unwrap();
    stream.write_all(b"GET /numbers/100000 HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let numbers = answer.split_once("\r\n\r\n").unwrap().1;
    let sum: u64 = numbers.lines().map(|line| line.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 5_000_050_000);
    assert_eq!(get(example.address, "/prime/1000003").body, "true\n");
    assert_eq!(get(example.address, "/prime/x").status, 400);
    // Each thread publishes its counters at the end of its turn, and each question is a request too.
    let mut asked = 4;
    eventually("the requests are counted", || {
        let counted = format!("\nstandfast_requests_total {asked}\n");
        asked += 1;
        get(example.address, "/metrics").body.contains(&counted)
    });
}

#[test]
fn the_bridge_example_connects_topics_with_subjects_of_nats() {
    let port = Deserted::port();
    let name = format!("bridge-{}.conf", std::process::id());
    let configuration = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let listener = format!("host: 127.0.0.1, port: {}, no_tls: true", port.address.port());
    fs::write(&configuration, format!("websocket {{ {listener} }}\n")).unwrap();
    let Some(mut nats) = Broker::nats(&["--config", configuration.to_str().unwrap()]) else {
        return;
    };
    let url = format!("ws://{}", port.address);
    let bridges: Vec<_> = (0..2).map(|_| Example::start("bridge", &[&url])).collect();
    let eventually_all = |status| {
        eventually("the bridges notice NATS", || {
            bridges.iter().all(|bridge| get(bridge.address, "/ready").status == status)
        });
    };
    eventually_all(200);
    let open = |bridge: &Example, name: &str| {
        let mut socket = Socket::open(bridge.address, "/subjects/news.today");
        // The subscription is in effect when a message was processed after it.
        socket.send_frame(TEXT, name.as_bytes());
        socket
    };
    let mut other = NatsClient::connect(&nats, "", "");
    other.subscribe("web.>");
    let named = |name: &str| ("web.news.today".to_owned(), name.to_owned());
    let mut first = open(&bridges[0], "first");
    assert_eq!(other.message(), named("first"));
    let mut second = open(&bridges[1], "second");
    assert_eq!((other.message(), text(&mut first)), (named("second"), "second".to_owned()));
    // From a client to other programs and to clients of all bridges, once each and not back.
    let long = "x".repeat(60_000);
    first.send_frame(TEXT, long.as_bytes());
    assert_eq!(other.message().1, long);
    // The other bridge may have got the first message after the second client was there.
    let received = Some(text(&mut second)).filter(|text| text != "first");
    assert_eq!(received.unwrap_or_else(|| text(&mut second)), long);
    // From other programs to clients of all bridges, in order.
    let mut program = NatsClient::connect(&nats, "", "");
    for number in 0..100 {
        program.publish("web.news.today", &number.to_string());
        program.publish("web.elsewhere", "not for these");
    }
    for socket in [&mut first, &mut second] {
        let numbers: Vec<_> = (0..100).map(|_| text(socket)).collect();
        assert!(numbers.iter().enumerate().all(|(n, text)| *text == n.to_string()), "{numbers:?}");
    }
    // Without NATS the clients of one bridge have each other.
    nats.kill();
    eventually_all(503);
    let mut neighbour = Socket::open(bridges[0].address, "/subjects/news.today");
    neighbour.send_frame(TEXT, b"alone");
    assert_eq!(text(&mut first), "alone");
    assert!(text(&mut neighbour).starts_with("* not sent to NATS"));
    nats.restart();
    eventually_all(200);
    first.send_frame(TEXT, b"together");
    assert_eq!((text(&mut neighbour), text(&mut second)), ("together".into(), "together".into()));
    assert_eq!(get(bridges[0].address, "/subjects/news").status, 426);
    drop(nats);
    let _ = fs::remove_file(configuration);
}

/// The page explains the program that is tested above.
#[test]
fn the_chapter_shows_the_chat_example_as_it_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/library/chat.md")).unwrap();
    let example = root.join("crates/standfast/examples");
    let program = fs::read_to_string(example.join("chat.rs")).unwrap();
    assert!(
        page.contains(&format!("```rust\n{program}```\n")),
        "docs/library/chat.md does not contain crates/standfast/examples/chat.rs as it is"
    );
    assert!(program.lines().count() <= 60, "the chat has {} lines", program.lines().count());
    for file in fs::read_dir(example).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(page.contains(&format!("`{name}`")), "docs/library/chat.md lacks {name}");
    }
}
