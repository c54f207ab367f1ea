//! TLS on the public listener and in `load`: which clients and servers are accepted, and which
//! certificates are sent. Hostile peers are in `hostile`.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::harness::executable::{self, Finished};
use crate::harness::server::Server;
use crate::harness::socket::{BINARY, CLOSE, TEXT, masked};
use crate::harness::tls::{Authority, Secure, client_hello};
use crate::harness::{PATIENCE, eventually, http, peer};

/// A server with the certificate in `server.pem` for this machine's names.
fn start(authority: &Authority, more: &[&str]) -> Server {
    authority.sign("server", &["localhost", "127.0.0.1"]);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let flags = ["--tls-cert", &certificate, "--tls-key", &key];
    Server::start(&[&flags[..], more].concat())
}

fn load(address: SocketAddr, more: &[&str]) -> Finished {
    let url = format!("wss://{address}/echo");
    let flags = ["load", &url, "--plain", "--connections", "20", "--messages", "20", "--json", "-"];
    executable::run(&[&flags[..], more].concat())
}

fn summary(finished: &Finished) -> Value {
    let line = finished.stdout.lines().last().unwrap_or_default();
    let text = finished.stdout.find('{').map_or(line, |at| &finished.stdout[at..]);
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

fn echoes(socket: &mut Secure, message: &[u8]) {
    socket.send(&masked(BINARY, message)).unwrap();
    let frame = socket.frame().expect("an echo");
    assert_eq!((frame.first, frame.payload == message), (BINARY, true));
}

#[test]
fn load_echoes_over_wss_and_resumes_sessions_unless_turned_off() {
    let authority = Authority::new();
    let server = start(&authority, &[]);
    let ca = authority.path("ca.pem");
    let finished = load(server.listen, &["--ca", &ca]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let metric = |name: &str| server.metrics()[&format!("standfast_{name}_total")];
    assert_eq!(metric("tls_handshakes"), 20.0);
    assert_eq!(metric("messages_in"), 400.0);
    // One connection after the other: each but the first has a ticket.
    let finished = load(server.listen, &["--ca", &ca, "--connect", "one-by-one"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let resumed = metric("tls_resumed");
    assert!(resumed > 0.0, "sessions are resumed");
    let finished =
        load(server.listen, &["--ca", &ca, "--connect", "one-by-one", "--tls-resume", "off"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((metric("tls_handshakes"), metric("tls_resumed")), (60.0, resumed));
}

#[test]
fn load_trusts_only_the_configured_ca() {
    let authority = Authority::new();
    let server = start(&authority, &[]);
    let other = Authority::new().path("ca.pem");
    let refused = |more: &[&str]| {
        let finished = load(server.listen, more);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_eq!(summary(&finished)["connect_errors"], json!({"tls_failed": 20}), "{finished:?}");
    };
    let other_authority = Authority::new();
    refused(&["--ca", &other_authority.path("ca.pem")]);
    refused(&["--ca", &authority.path("ca.pem"), "--sni", "elsewhere.test"]);
    let finished = load(server.listen, &["--insecure", "--sni", "elsewhere.test"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    // The folder was removed with its authority.
    let missing = load(server.listen, &["--ca", &other]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains(&other), "{missing:?}");
}

#[test]
fn load_trusts_a_self_signed_certificate_given_as_ca() {
    let authority = Authority::new();
    let serve = |file: &str| {
        let (certificate, key) =
            (authority.path(&format!("{file}.pem")), authority.path(&format!("{file}.key")));
        Server::start(&["--tls-cert", &certificate, "--tls-key", &key])
    };
    authority.sign_itself("own", &["127.0.0.1"], |_| {});
    authority.sign_itself("other", &["127.0.0.1"], |_| {});
    authority.sign_itself("old", &["127.0.0.1"], |params| {
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    });
    let (own, old) = (serve("own"), serve("old"));
    let get = |server: &Server, ca: &str, more: &[&str]| {
        let (url, ca) = (format!("https://{}/health", server.listen), authority.path(ca));
        let flags = ["load", &url, "--requests", "4", "--json", "-", "--ca", &ca];
        executable::run(&[&flags[..], more].concat())
    };
    let finished = get(&own, "own.pem", &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    // Another server's certificate, a name that is not in it, and an expired one.
    for (server, ca, more, why) in [
        (&own, "other.pem", &[][..], "invalid peer certificate"),
        (&own, "own.pem", &["--sni", "elsewhere.test"], "not valid for name"),
        (&old, "old.pem", &[], "expired"),
    ] {
        let finished = get(server, ca, more);
        assert_eq!(finished.code, Some(1), "{ca}: {finished:?}");
        let report = summary(&finished);
        assert!(report["tls_error"].as_str().unwrap().contains(why), "{report}");
        let line = finished.stderr.lines().find(|line| line.starts_with("tls "));
        assert!(line.is_some_and(|line| line.contains(why)), "{finished:?}");
    }
}

#[test]
fn node_ws_talks_over_wss() {
    let authority = Authority::new();
    let server = start(&authority, &[]);
    let (public, admin) = (format!("wss://{}", server.listen), format!("http://{}", server.admin));
    let expected = [
        "echo_text",
        "echo_binary",
        "echo_every_length_form",
        "echo_fragments",
        "echo_many_in_order",
        "compressed",
        "topic_from_admin",
        "topic_from_client",
    ];
    peer::works(&peer::NODE, "ws.js", &[&public, &admin, &authority.path("ca.pem")], &expected);
}

#[test]
fn tls_works_with_any_segmentation_of_the_stream() {
    let authority = Authority::new();
    let server = start(&authority, &[]);
    let mut config = (*authority.client(None)).clone();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let config = Arc::new(config);
    for step in [1, 7, usize::MAX] {
        let mut socket = Secure::connect(server.listen, &config, "localhost", step);
        socket.upgrade("/echo");
        assert_eq!(socket.agreed().as_deref(), Some(&b"http/1.1"[..]));
        echoes(&mut socket, b"split");
        echoes(&mut socket, &[b'x'; 3_000]);
        socket.send(&masked(CLOSE, &1000u16.to_be_bytes())).unwrap();
        assert_eq!(socket.frame().map(|frame| frame.first), Some(CLOSE));
        assert_eq!(socket.frame(), None, "the server sends close_notify");
    }
    server.until_closed("by_peer", 3);
}

#[test]
fn tls_1_2_is_accepted_unless_tls_min_is_1_3() {
    let authority = Authority::new();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.certificate("ca")).unwrap();
    let old = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let old = Arc::new(old);
    let server = start(&authority, &[]);
    echoes(&mut Secure::open(server.listen, &old, "/echo"), b"old");
    let strict = start(&authority, &["--tls-min", "1.3"]);
    let refusal =
        Secure::connect(strict.listen, &old, "localhost", usize::MAX).refusal().to_lowercase();
    assert!(refusal.contains("version"), "{refusal}");
    let new = authority.client(None);
    echoes(&mut Secure::open(strict.listen, &new, "/echo"), b"new");
    strict.until_closed("tls_failed", 1);
}

#[test]
fn the_server_name_selects_the_certificate() {
    let authority = Authority::new();
    authority.sign("other", &["other.test", "*.many.test"]);
    let (certificate, key) = (authority.path("other.pem"), authority.path("other.key"));
    let server = start(&authority, &["--tls-cert", &certificate, "--tls-key", &key]);
    let config = authority.client(None);
    for (name, file) in [("localhost", "server"), ("other.test", "other"), ("a.many.test", "other")]
    {
        let mut socket = Secure::connect(server.listen, &config, name, usize::MAX);
        socket.upgrade("/echo");
        assert_eq!(socket.certificate(), authority.certificate(file), "{name}");
    }
}

#[test]
fn with_a_client_ca_only_its_clients_are_accepted() {
    let authority = Authority::new();
    authority.sign("client", &["client"]);
    let ca = authority.path("ca.pem");
    let server = start(&authority, &["--tls-client-ca", &ca]);
    let known = authority.client(Some("client"));
    echoes(&mut Secure::open(server.listen, &known, "/echo"), b"known");
    let nobody = authority.client(None);
    let refusal = Secure::connect(server.listen, &nobody, "localhost", usize::MAX).refusal();
    assert!(refusal.to_lowercase().contains("certificate"), "{refusal}");
    server.until_closed("tls_failed", 1);
    let (certificate, key) = (authority.path("client.pem"), authority.path("client.key"));
    let finished = load(server.listen, &["--ca", &ca, "--cert", &certificate, "--key", &key]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let finished = load(server.listen, &["--ca", &ca]);
    assert_eq!(summary(&finished)["connect_errors"], json!({"tls_failed": 20}), "{finished:?}");
}

#[test]
fn sighup_loads_a_new_certificate_and_keeps_connections() {
    let authority = Authority::new();
    let server = start(&authority, &[]);
    let config = authority.client(None);
    let mut before = Secure::open(server.listen, &config, "/echo");
    let first = authority.certificate("server");
    let certificate = || {
        let mut socket = Secure::connect(server.listen, &config, "localhost", usize::MAX);
        socket.upgrade("/echo");
        socket.certificate()
    };
    assert_eq!(certificate(), first);

    authority.sign("server", &["localhost"]);
    let second = authority.certificate("server");
    server.signal(Signal::HUP);
    eventually("the new certificate is sent", || certificate() == second);
    echoes(&mut before, b"still here");

    fs::write(authority.path("server.pem"), "-----BEGIN CERTIFICATE-----\nbroken").unwrap();
    server.signal(Signal::HUP);
    eventually("the broken file is in the log", || {
        let log = server.log();
        log.contains("configuration unchanged") && log.contains("server.pem")
    });
    assert_eq!(certificate(), second);
    echoes(&mut before, b"and still");
}

#[test]
fn queued_data_reaches_a_slow_reader_complete_and_in_order() {
    let authority = Authority::new();
    let server = start(&authority, &["--send-queue", "64MiB"]);
    let mut slow = Secure::open(server.listen, &authority.client(None), "/topics/news");
    let text = "x".repeat(16_000);
    let queued = || server.metrics()["standfast_queued_bytes"];
    let mut sent = 0;
    eventually("the kernel takes no more", || {
        for _ in 0..20 {
            let body = json!({"topic": "news", "data": format!("{sent} {text}")});
            assert_eq!(server.publish(&body).status, 200);
            sent += 1;
        }
        queued() > 500_000.0
    });
    for number in 0..sent {
        let frame = slow.frame().expect("a message");
        let expected = format!("{number} {text}");
        assert_eq!((frame.first, frame.payload == expected.as_bytes()), (TEXT, true), "{number}");
    }
    eventually("the queue is empty", || queued() == 0.0);
}

#[test]
fn a_proxy_header_is_accepted_before_tls() {
    let authority = Authority::new();
    let server = start(&authority, &["--trusted-proxy", "127.0.0.1", "--proxy-protocol"]);
    let config = authority.client(None);
    let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\r\n";
    let mut sockets = Vec::new();
    for step in [usize::MAX, 1] {
        let mut socket = Secure::connect_behind(header, server.listen, &config, "localhost", step);
        socket.upgrade("/echo");
        echoes(&mut socket, b"by a proxy");
        sockets.push(socket);
    }
    let listed = http::get(server.admin, "/api/connections").json().to_string();
    assert_eq!(listed.matches("192.0.2.7").count(), 2, "{listed}");
    // Header and hello in one packet.
    let mut stream = TcpStream::connect(server.listen).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[&header[..], &client_hello(&config)].concat()).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 22, "a handshake record");
}

#[test]
fn errors_name_the_tls_file_and_the_mistake() {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    authority.sign("other", &["localhost"]);
    let path = |file: &str| authority.path(file);
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let (other, missing) = (path("other.key"), path("missing.pem"));
    let address = PathBuf::from(&missing);
    assert!(!address.exists());
    let cases: &[(&[&str], &str)] = &[
        (&["--tls-cert", &certificate], "1 certificates (--tls-cert) and 0 keys"),
        (&["--tls-cert", &missing, "--tls-key", &key], "missing.pem"),
        (&["--tls-cert", &key, "--tls-key", &key], "no certificate"),
        (&["--tls-cert", &certificate, "--tls-key", &certificate], "invalid private key"),
        (&["--tls-cert", &certificate, "--tls-key", &other], "another certificate"),
        (&["--tls-client-ca", &certificate], "add --tls-cert"),
        (
            &["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &key],
            "no certificate",
        ),
        (&["--tls-cert", &certificate, "--tls-key", &key, "--tls-min", "1.1"], "1.1"),
    ];
    for (flags, expected) in cases {
        let listen = ["serve", "--listen", "127.0.0.1:0", "--admin", "off"];
        let finished = executable::run(&[&listen[..], flags].concat());
        assert_eq!(finished.code, Some(2), "{flags:?}: {finished:?}");
        assert!(finished.stderr.contains(expected), "{flags:?}: {finished:?}");
    }
    let finished = executable::run(&["load", "ws://127.0.0.1:1/", "--insecure"]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("wss://"), "{finished:?}");
}
