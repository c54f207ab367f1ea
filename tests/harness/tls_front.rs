//! [`Front`]: a TLS proxy in front of a plain server, with a self-signed certificate. Two threads per
//! connection; no code of this project.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rcgen::generate_simple_self_signed;
use rustix::net::sockopt::{set_socket_linger, socket_linger};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection};

/// Ends with its test's process.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
}

impl Front {
    /// Starts a front of the server `inner`.
    pub(crate) fn of(inner: SocketAddr) -> Self {
        let own = generate_simple_self_signed(["nobody.example".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key.into())
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let config = Arc::clone(&config);
                thread::spawn(move || carry(&client, inner, config));
            }
        });
        Self { address }
    }
}

/// Copies in both directions until the client disconnects.
fn carry(client: &TcpStream, inner: SocketAddr, config: Arc<ServerConfig>) {
    let inner = TcpStream::connect(inner).expect("the plain server accepts");
    let session = Arc::new(Mutex::new(ServerConnection::new(config).unwrap()));
    let back = (client.try_clone().unwrap(), inner.try_clone().unwrap(), Arc::clone(&session));
    thread::spawn(move || answer(back.0, back.1, &back.2));
    let mut buffer = [0; 4096];
    // Errors and the end of the stream both mean that the client has disconnected.
    while let Ok(Some(bytes)) = some(&mut &*client, &mut buffer) {
        let Some(plain) = opened(client, &session, bytes) else { break };
        if (&inner).write_all(&plain).is_err() {
            reset(client);
            return;
        }
    }
    let _ = inner.shutdown(Shutdown::Both);
}

/// Decrypts records of the client.
fn opened(
    client: &TcpStream,
    session: &Mutex<ServerConnection>,
    mut bytes: &[u8],
) -> Option<Vec<u8>> {
    let mut session = session.lock().unwrap();
    let mut plain = Vec::new();
    while !bytes.is_empty() {
        session.read_tls(&mut bytes).ok()?;
        let state = session.process_new_packets();
        let pending = state.map_or(0, |state| state.plaintext_bytes_to_read());
        let begun = plain.len();
        plain.resize(begun + pending, 0);
        session.reader().read_exact(&mut plain[begun..]).ok()?;
    }
    flush(client, &mut session)?;
    Some(plain)
}

/// Copies from the plain server to the client.
fn answer(client: TcpStream, mut inner: TcpStream, session: &Mutex<ServerConnection>) {
    let mut buffer = [0; 4096];
    loop {
        let bytes = match some(&mut inner, &mut buffer) {
            Ok(Some(bytes)) => bytes,
            // The other thread may have seen the reset.
            Ok(None) if matches!(socket_linger(&client), Ok(Some(Duration::ZERO))) => return,
            Ok(None) => break,
            Err(_) => {
                reset(&client);
                return;
            }
        };
        let mut session = session.lock().unwrap();
        session.writer().write_all(bytes).unwrap();
        if flush(&client, &mut session).is_none() {
            return;
        }
    }
    let mut session = session.lock().unwrap();
    session.send_close_notify();
    let _ = flush(&client, &mut session);
    let _ = client.shutdown(Shutdown::Write);
}

/// Passes a reset on: it is a close without lingering, once both threads have ended.
fn reset(client: &TcpStream) {
    let _ = set_socket_linger(client, Some(Duration::ZERO));
    let _ = client.shutdown(Shutdown::Read);
}

fn flush(mut client: &TcpStream, session: &mut ServerConnection) -> Option<()> {
    while session.wants_write() {
        session.write_tls(&mut client).ok()?;
    }
    Some(())
}

/// Reads some bytes; `None` at the end of the stream.
fn some<'a>(from: &mut impl Read, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    let count = from.read(buffer)?;
    Ok(buffer.get(..count).filter(|bytes| !bytes.is_empty()))
}
