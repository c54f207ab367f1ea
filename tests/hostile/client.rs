//! BI-11: invalid responses to an offer of compression, at the client. Their cost in memory and for a
//! bystander is tested in `crates/engine/tests/refused_answers.rs`, other invalid responses in
//! `crates/engine/tests/client.rs`.

use std::io::Write;
use std::net::TcpListener;
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use crate::harness::executable;
use crate::harness::http::read_more;
use crate::harness::server::Server;
use crate::harness::two_ports_in_a_row;

const MESSAGES: u64 = 200;

/// Each response is refused and counted, and connections to a valid server get all their echoes.
#[test]
fn bi_11_windows_that_do_not_exist() {
    let bits = |name: &str| {
        ["0", "7", "16", "099", "\"\"", "", "x", "4294967305"]
            .map(|value| format!("{name}={value}"))
    };
    let mut answers = bits("server_max_window_bits").to_vec();
    answers.extend(bits("client_max_window_bits"));
    answers.extend(["server_no_context_takeover=1", "unknown"].map(str::to_owned));
    let lies = answers.len();
    let [first, second] = two_ports_in_a_row();
    let _good = Server::start(&["--listen", &format!("127.0.0.1:{first}")]);
    let listener = TcpListener::bind(("127.0.0.1", second)).unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (Ok(mut stream), answer) = (stream, &answers[number % answers.len()]) else {
                break;
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && read_more(&mut stream, &mut head) {}
            let head = String::from_utf8(head).unwrap();
            let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
            let mut sha = Sha1::new();
            sha.update(key.unwrap_or_default());
            sha.update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
            let accept = STANDARD.encode(sha.finalize());
            let _ = stream.write_all(
                format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                     Connection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\
                     Sec-WebSocket-Extensions: permessage-deflate; {answer}\r\n\r\n"
                )
                .as_bytes(),
            );
            // A client that accepts the response would wait for an echo.
        }
    });
    let url = format!("ws://127.0.0.1:{{{first}..{second}}}/echo");
    let (both, messages) = ((2 * lies).to_string(), MESSAGES.to_string());
    let counts = ["--connections", &both, "--messages", &messages, "--timeout", "30s"];
    let how = ["--compression", "shared", "--json", "-"];
    let finished = executable::run(&[&["load", &url][..], &counts, &how].concat());
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let summary = finished.json();
    let errors = summary["connect_errors"].as_object().unwrap();
    let of_extensions = ["bad_extension_answer", "unoffered_extension"];
    assert!(errors.keys().all(|name| of_extensions.contains(&name.as_str())), "{summary}");
    let refused: u64 = errors.values().filter_map(Value::as_u64).sum();
    assert_eq!(refused, lies as u64, "{summary}");
    assert_eq!(summary["connections"]["open"], lies, "{summary}");
    let echo = &summary["echo"];
    assert_eq!(echo["received"], lies as u64 * MESSAGES, "{echo}");
    assert_eq!((&echo["lost"], &echo["corrupted"]), (&json!(0), &json!(0)), "{echo}");
}
