//! What the crate's own clients put on the wire: TLS, compression, pings.

use std::net::TcpListener;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use standfast::{
    ClientAuth, ClientError, ClientHandler, ClientSocket, Clients, Closed, Compression, Connect,
    Limits, Lost, Message, Running, Server, TlsClient, TlsIdentity, TlsServer, TlsTrust,
    TlsVersion,
};

use crate::client::next;
use crate::clients::Echo;

/// Sends a text once, notes the answer and how the connection ended.
struct Once {
    text: String,
    notes: Sender<String>,
}

impl ClientHandler for Once {
    fn open(&mut self, socket: &mut ClientSocket<'_>, _: Option<&str>) {
        socket.send(&self.text);
    }

    fn message(&mut self, _: &mut ClientSocket<'_>, message: Message<'_>) {
        self.notes.send(message.as_text().unwrap().to_owned()).unwrap();
    }

    fn close(&mut self, lost: &Lost) {
        let _ = self.notes.send(lost.cause.to_string());
    }
}

fn echo(limits: Limits, tls: Option<TlsServer>) -> Running {
    let mut server = Server::bind("127.0.0.1:0").unwrap().limits(limits).workers(1);
    if let Some(tls) = tls {
        server = server.tls(tls);
    }
    server.route("/echo", Echo).start().unwrap()
}

#[test]
fn clients_trust_the_servers_that_they_are_told_to_trust() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let identity = TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    let tls = TlsServer::new(&[identity], TlsVersion::Tls12, ClientAuth::None).unwrap();
    let limits = Limits { message_bytes: 1 << 20, ..Limits::default() };
    let server = echo(limits.clone(), Some(tls));
    let port = server.address().port();
    let trust = |trust| TlsClient::new(&trust, None, true).unwrap();
    let ours = trust(TlsTrust::Authorities(certificate.into_bytes()));
    let connect = |host: &str| Connect::to(&format!("wss://{host}:{port}/echo"));
    let long = "é".repeat(300_000);
    let texts = ["hello", &*long, ""];
    for client in [ours.clone(), trust(TlsTrust::Any)] {
        let connect = connect("localhost").tls(client).limits(limits.clone());
        let mut client = connect.open().unwrap();
        for text in texts {
            client.send(text).unwrap();
        }
        for text in texts {
            assert_eq!(client.receive().unwrap(), Message::Text(text));
        }
    }
    // Another name than the certificate's, another authority, and no TLS at all.
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    let other = trust(TlsTrust::Authorities(other.into_bytes()));
    for (host, client) in [("127.0.0.1", ours.clone()), ("localhost", other)] {
        match connect(host).tls(client).open() {
            Err(ClientError::Lost(lost)) => assert_eq!(lost.cause, Closed::TlsFailed, "{lost}"),
            other => panic!("{host}: {other:?}"),
        }
    }
    let plain = Connect::to(&format!("ws://localhost:{port}/echo")).open();
    assert!(matches!(plain, Err(ClientError::Lost(_))), "{plain:?}");
    // Many by handlers.
    let (notes, noted) = channel();
    let clients = Clients::start(Limits::default()).unwrap();
    let connect = connect("localhost").tls(ours);
    for number in 0..20 {
        let once = Once { text: number.to_string(), notes: notes.clone() };
        clients.connect(&connect, once).unwrap();
    }
    let mut got: Vec<u32> = (0..20).map(|_| next(&noted).parse().unwrap()).collect();
    got.sort_unstable();
    assert_eq!(got, (0..20).collect::<Vec<_>>());
    clients.stop(Duration::ZERO).unwrap();
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn compressed_messages_are_short_on_the_wire_in_both_directions() {
    let text = "the same words again and again, ".repeat(500);
    for compression in [Compression::Off, Compression::Shared, Compression::Takeover] {
        let limits = Limits { compression, ..Limits::default() };
        let server = echo(limits.clone(), None);
        let (notes, noted) = channel();
        let clients = Clients::start(limits.clone()).unwrap();
        let url = format!("ws://{}/echo", server.address());
        let connect = Connect::to(&url).limits(limits);
        clients.connect(&connect, Once { text: text.clone(), notes }).unwrap();
        assert_eq!(next(&noted), text);
        clients.stop(Duration::ZERO).unwrap();
        // Of both handshakes and both closes, too.
        let totals = server.totals();
        let bytes = [totals.bytes_in, totals.bytes_out];
        match compression {
            Compression::Off => assert!(bytes.iter().all(|&b| b > 16_000), "{bytes:?}"),
            _ => assert!(bytes.iter().all(|&b| b < 1_000), "{compression:?}: {bytes:?}"),
        }
        server.stop(Duration::ZERO).unwrap();
    }
}

#[test]
fn clients_ping_servers_and_notice_those_that_are_silent() {
    // Long enough that a busy machine delays no pong for it.
    let idle_timeout = Some(Duration::from_millis(1500));
    let limits = Limits { idle_timeout, ..Limits::default() };
    let server = echo(Limits { pings: false, idle_timeout: None, ..Limits::default() }, None);
    let (notes, noted) = channel();
    let clients = Clients::start(limits).unwrap();
    let once = |text: &str| Once { text: text.to_owned(), notes: notes.clone() };
    let alive = format!("ws://{}/echo", server.address());
    clients.connect(&Connect::to(&alive), once("hello")).unwrap();
    assert_eq!(next(&noted), "hello");
    // Accepts the WebSocket and then never reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("ws://{}/", listener.local_addr().unwrap());
    let accepted = std::thread::spawn(move || {
        tungstenite::accept(listener.accept().unwrap().0).expect("a handshake")
    });
    clients.connect(&Connect::to(&silent), once("are you there?")).unwrap();
    let accepted = accepted.join().unwrap();
    assert_eq!(next(&noted), Closed::IdleTimeout.to_string());
    drop(accepted);
    // The other one is open as long as its server answers.
    while clients.totals().pongs_in < 4 {
        assert!(noted.try_recv().is_err(), "the connection has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(server.totals().pings_in >= 4 && clients.totals().pings_out >= 4);
    assert!(noted.try_recv().is_err(), "the connection has ended");
    clients.stop(Duration::ZERO).unwrap();
    server.stop(Duration::ZERO).unwrap();
}
