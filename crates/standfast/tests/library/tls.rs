//! The same over TLS: rustls as client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use standfast::{
    ClientAuth, Exchange, Http, Limits, Response, Running, Server, TlsIdentity, TlsServer,
    TlsVersion,
};
use tungstenite::{Message, WebSocket};

use crate::client::{Noted, PATIENCE, next};

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

struct Secret {
    server: Running,
    notes: std::sync::mpsc::Receiver<String>,
    client: Arc<ClientConfig>,
}

/// Sends the body back, in whatever pieces it comes.
struct Mirror;

impl Exchange for Mirror {
    fn begin(&mut self, http: &mut Http<'_>) {
        http.begin(Response::new(200), None);
    }

    fn data(&mut self, http: &mut Http<'_>, data: &[u8]) {
        http.write(data);
        if http.queued_bytes() > 0 {
            http.pause();
        }
    }

    fn drain(&mut self, http: &mut Http<'_>) {
        http.resume();
    }

    fn end(&mut self, http: &mut Http<'_>) {
        http.finish();
    }
}

fn start() -> Secret {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let identity = TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    let (handler, notes) = Noted::new(|socket, _, text| match text {
        "close" => socket.close(standfast::CloseCode(3003), "over"),
        _ => drop(socket.send(text)),
    });
    let server = Server::bind("127.0.0.1:0")
        .unwrap()
        .tls(TlsServer::new(&[identity], TlsVersion::Tls12, ClientAuth::None).unwrap())
        .limits(Limits { message_bytes: 4 << 20, ..Limits::default() })
        .route("/echo", handler)
        .get("/", |request| Response::text(200, format!("{}\n", request.path())))
        .exchange("POST", "/mirror", 1 << 30, |_| Ok(Box::new(Mirror)))
        .start()
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Secret { server, notes, client: Arc::new(client) }
}

impl Secret {
    fn connect(&self) -> TlsStream {
        let address: SocketAddr = self.server.address();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.client), name).unwrap();
        StreamOwned::new(session, stream)
    }

    fn open(&self) -> WebSocket<TlsStream> {
        let opened = tungstenite::client("ws://localhost/echo", self.connect());
        opened.unwrap_or_else(|error| panic!("{error}")).0
    }
}

#[test]
fn messages_and_codes_pass_over_tls() {
    let secret = start();
    let mut client = secret.open();
    assert!(next(&secret.notes).starts_with("open "));
    for length in [1, 1_000, 20_000, 3_000_000] {
        let text = "x".repeat(length);
        client.send(Message::text(text.clone())).unwrap();
        let answer = client.read().unwrap();
        assert!(answer.to_text().unwrap() == text, "{length}");
    }
    client.send(Message::text("close")).unwrap();
    loop {
        match client.read().unwrap() {
            Message::Close(Some(frame)) => break assert_eq!(u16::from(frame.code), 3003),
            // The server sends it from `drain`, when the long message has left.
            Message::Text(text) => assert_eq!(text.as_str(), "done"),
            other => panic!("{other:?}"),
        }
    }
    let _ = client.flush();
    drop(client);
    while next(&secret.notes) != "close by_us 0 \"\" after 5" {}
    // A client without TLS gets no answer.
    let mut plain = TcpStream::connect(secret.server.address()).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", answer.escape_ascii());
    assert_eq!(secret.server.totals().tls_handshakes, 1);
    drop(plain);
    secret.server.stop(Duration::ZERO).unwrap();
}

#[test]
fn plain_requests_and_exchanges_pass_over_tls() {
    let secret = start();
    let mut stream = secret.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n/\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    // The same connection: a body that is sent back in chunks.
    let body = vec![b'y'; 200_000];
    let head =
        "POST /mirror HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.ends_with(b"\r\n0\r\n\r\n"), "{}", answer.len());
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
    assert_eq!(answer[head..].iter().filter(|byte| **byte == b'y').count(), 200_000);
    drop(stream);
    secret.server.stop(Duration::ZERO).unwrap();
}

#[test]
fn handlers_learn_the_certificate_that_a_client_has_proved_to_own() {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let signed = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap(), key)
    };
    let (own, key) = signed("localhost");
    let identity =
        TlsIdentity::from_pem(own.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let pem = ca.pem();
    let (client, key) = signed("client");
    let shown = client.der().to_vec();
    let known = move |request: &standfast::Request<'_>| match request.client_certificate() {
        None => "none",
        Some(der) if der == shown => "its own",
        Some(_) => "another",
    };
    let server = Server::bind("127.0.0.1:0")
        .unwrap()
        .tls(
            TlsServer::new(&[identity], TlsVersion::Tls12, ClientAuth::Optional(pem.as_bytes()))
                .unwrap(),
        )
        .get("/", move |request| Response::text(200, known(request)))
        .start()
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let builder = || ClientConfig::builder().with_root_certificates(roots.clone());
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let with = builder().with_client_auth_cert(vec![client.der().clone()], key).unwrap();
    for (config, expected) in
        [(builder().with_no_client_auth(), "\r\n\r\nnone"), (with, "\r\n\r\nits own")]
    {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(session, stream);
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.ends_with(expected), "{answer}");
    }
    server.stop(Duration::ZERO).unwrap();
}
