//! TLS on the admin listener: its certificate, reload, and clients that do not finish the handshake.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::ClientConfig;

use crate::harness::executable::{self, standfast};
use crate::harness::http::Response;
use crate::harness::server::Server;
use crate::harness::tls::{Authority, Secure, client_hello};
use crate::harness::{Scratch, eventually};

const KEY: &str = "correct-horse";

/// The flags of a certificate in `FILE.pem`.
fn flags(authority: &Authority, file: &str) -> [String; 4] {
    authority.sign(file, &["localhost", "127.0.0.1"]);
    let (certificate, key) =
        (authority.path(&format!("{file}.pem")), authority.path(&format!("{file}.key")));
    ["--admin-tls-cert".to_owned(), certificate, "--admin-tls-key".to_owned(), key]
}

/// A request with the admin key on a new connection with TLS.
fn ask(server: &Server, config: &Arc<ClientConfig>, request: &str, body: &str) -> Response {
    let mut client = Secure::connect(server.admin, config, "localhost", usize::MAX);
    let (key, length) = (format!("Authorization: Bearer {KEY}"), body.len());
    let head = format!("{request} HTTP/1.1\r\nHost: a\r\n{key}\r\nContent-Length: {length}\r\n");
    client.send(format!("{head}Connection: close\r\n\r\n{body}").as_bytes()).unwrap();
    client.response()
}

fn start(command: &[&str], flags: &[String]) -> Server {
    let fixed = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-json"];
    let key = ["--admin-key", KEY];
    let flags = flags.iter().map(String::as_str);
    let all: Vec<&str> = command.iter().copied().chain(fixed).chain(key).chain(flags).collect();
    Server::run(standfast(&all))
}

#[test]
fn the_admin_listener_of_both_servers_answers_over_tls() {
    let authority = Authority::new();
    let (flags, config) = (flags(&authority, "admin"), authority.client(None));
    let upstream = ["proxy", "--upstream", "127.0.0.1:9"];
    for command in [&["serve"][..], &upstream[..]] {
        let server = start(command, &flags);
        let line = format!("admin on {} (TLS)", server.admin);
        eventually("the log says so", || server.log().contains(&line));
        assert_eq!(ask(&server, &config, "GET /api/stats", "").status, 200);
        let metrics = ask(&server, &config, "GET /metrics", "").body;
        assert!(metrics.contains("standfast_admin_connections 1\n"), "{metrics}");
        // More than the buffers of TLS and of one record.
        assert!(metrics.len() > 8 * 1024, "{}", metrics.len());
        let mut plain = TcpStream::connect(server.admin).unwrap();
        plain.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut reply = Vec::new();
        let _ = std::io::Read::read_to_end(&mut plain, &mut reply);
        assert!(!reply.starts_with(b"HTTP/"), "{}", reply.escape_ascii());
        let failed = "standfast_admin_closed_total{cause=\"tls_failed\"} 1\n";
        eventually("it is counted", || {
            ask(&server, &config, "GET /metrics", "").body.contains(failed)
        });
    }
}

#[test]
fn silent_clients_before_the_handshake_do_not_stop_publishing() {
    let authority = Authority::new();
    let flags = flags(&authority, "admin");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_limited(256, &[&["--admin-key", KEY], &flags[..]].concat());
    let config = authority.client(None);
    let hello = client_hello(&config);
    let connect = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.admin).expect("the listener accepts");
        // Those that came before may have been closed already.
        let _ = stream.write_all(bytes);
        stream
    };
    let (half, rest) = hello.split_at(hello.len() / 2);
    assert!(!rest.is_empty());
    let begun = [b"", &half[..1], half, &hello];
    let held: Vec<TcpStream> = begun.iter().cycle().take(300).map(|bytes| connect(bytes)).collect();
    let body = r#"{"topic":"x","data":"x"}"#;
    let published = ask(&server, &config, "POST /api/publish", body);
    assert_eq!(published.status, 200, "{published:?}");
    let metrics = ask(&server, &config, "GET /metrics", "").body;
    let name = "standfast_admin_closed_total{cause=\"full\"} ";
    let full = metrics.lines().find_map(|line| line.strip_prefix(name));
    let full: u64 = full.unwrap().parse().unwrap();
    assert!(full >= 200, "{full}");
    drop(held);
}

#[test]
fn a_reload_replaces_the_certificate_and_keeps_it_if_a_file_is_unusable() {
    let authority = Authority::new();
    let flags = flags(&authority, "admin");
    let server = start(&["serve"], &flags);
    let config = authority.client(None);
    let served = || {
        let mut client = Secure::connect(server.admin, &config, "localhost", usize::MAX);
        client.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(client.response().status, 200);
        client.certificate()
    };
    let first = authority.certificate("admin");
    assert_eq!(served(), first);
    authority.sign("admin", &["localhost"]);
    let second = authority.certificate("admin");
    assert_ne!(first, second);
    server.signal(Signal::HUP);
    eventually("the new certificate is served", || served() == second);
    std::fs::write(authority.path("admin.pem"), "no certificate").unwrap();
    server.signal(Signal::HUP);
    eventually("it is refused", || server.log().contains("reload failed"));
    assert_eq!(served(), second);
}

#[test]
fn a_client_authority_admits_only_its_clients() {
    let authority = Authority::new();
    let mut flags = flags(&authority, "admin").to_vec();
    authority.sign("client", &["operator"]);
    flags.extend(["--admin-tls-client-ca".to_owned(), authority.path("ca.pem")]);
    let server = start(&["serve"], &flags);
    let known = authority.client(Some("client"));
    assert_eq!(ask(&server, &known, "GET /api/stats", "").status, 200);
    let mut stranger =
        Secure::connect(server.admin, &authority.client(None), "localhost", usize::MAX);
    stranger.refusal();
}

#[test]
fn incomplete_settings_are_refused() {
    let authority = Authority::new();
    let [_, certificate, _, key] = flags(&authority, "admin");
    let refused = |flags: &[&str], expected: &str| {
        let finished = executable::run(&[&["serve", "--listen", "127.0.0.1:0"], flags].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(expected), "{finished:?}");
    };
    let together = "--admin-tls-cert and --admin-tls-key are needed together";
    refused(&["--admin", "127.0.0.1:0", "--admin-tls-cert", &certificate], together);
    refused(&["--admin", "127.0.0.1:0", "--admin-tls-key", &key], together);
    let pair = ["--admin-tls-cert", &*certificate, "--admin-tls-key", &*key];
    refused(&[&["--admin", "off"], &pair[..]].concat(), "--admin is off");
    let open = [&["--admin", "0.0.0.0:0"], &pair[..]].concat();
    refused(&open, "needs a key");
    let file = Scratch::new("admin-ca.pem", "");
    let alone = ["--admin", "127.0.0.1:0", "--admin-tls-client-ca", file.path()];
    refused(&alone, "--admin-tls-client-ca needs TLS");
}
