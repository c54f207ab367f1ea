//! TLS for tests: a certificate authority with its certificates as files, and a rustls client that shares
//! no code with this project and can send partial records, invalid bytes and disconnect.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::PATIENCE;
use super::http::{self, Response};
use super::socket::{Frame, parse, upgrade};

/// A certificate authority, and a folder with the certificates it signed.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A name different from those it signs, which would otherwise look self-signed.
        params.distinguished_name.push(DnType::CommonName, "a test authority");
        let key = KeyPair::generate().unwrap();
        fs::write(folder.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    /// Writes `FILE.pem` and `FILE.key` for these names; overwrites existing files.
    pub(crate) fn sign(&self, file: &str, names: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let signed = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{file}.pem")), signed.pem()).unwrap();
        fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    /// The same of a certificate that signed itself and is marked as an authority's, as `openssl req
    /// -x509` makes them; `change` has the last word on it.
    pub(crate) fn sign_itself(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let signed = params.self_signed(&key).unwrap();
        fs::write(self.path(&format!("{file}.pem")), signed.pem()).unwrap();
        fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    /// Returns the path of a file in the folder.
    pub(crate) fn path(&self, file: &str) -> String {
        self.folder.join(file).to_str().unwrap().to_owned()
    }

    /// The certificate in `FILE.pem`.
    pub(crate) fn certificate(&self, file: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{file}.pem"))).unwrap()
    }

    /// Returns a client that trusts this authority and sends the certificate in `FILE.pem`, if any.
    pub(crate) fn client(&self, file: Option<&str>) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate("ca")).unwrap();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let Some(file) = file else { return Arc::new(builder.with_no_client_auth()) };
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{file}.key"))).unwrap();
        Arc::new(builder.with_client_auth_cert(vec![self.certificate(file)], key).unwrap())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A stream that sends at most `step` bytes per write.
pub(crate) struct Dribble {
    stream: TcpStream,
    step: usize,
}

impl Read for Dribble {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for Dribble {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes.get(..self.step).unwrap_or(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A WebSocket over TLS.
pub(crate) struct Secure {
    stream: StreamOwned<ClientConnection, Dribble>,
    pending: Vec<u8>,
}

impl Secure {
    /// Opens a connection that sends at most `step` bytes per write.
    pub(crate) fn connect(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        name: &str,
        step: usize,
    ) -> Self {
        Self::connect_behind(b"", address, config, name, step)
    }

    /// As [`Secure::connect`], after a plain-text header of a proxy.
    pub(crate) fn connect_behind(
        header: &[u8],
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        name: &str,
        step: usize,
    ) -> Self {
        let mut stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(header).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
        let stream = StreamOwned::new(connection, Dribble { stream, step });
        Self { stream, pending: Vec::new() }
    }

    /// An open WebSocket at `path`.
    pub(crate) fn open(address: SocketAddr, config: &Arc<ClientConfig>, path: &str) -> Self {
        let mut socket = Self::connect(address, config, "localhost", usize::MAX);
        socket.upgrade(path);
        socket
    }

    /// Upgrades to a WebSocket.
    pub(crate) fn upgrade(&mut self, path: &str) {
        self.send(upgrade(path, &[]).as_bytes()).expect("TLS is agreed on");
        let response = self.response();
        assert_eq!(response.status, 101, "{response:?}");
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The server's answer to a request.
    pub(crate) fn response(&mut self) -> Response {
        http::read_response(&mut self.stream, &mut self.pending)
    }

    /// The next frame; `None` at an announced end.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, size)) = parse(&self.pending) {
                self.pending.drain(..size);
                return Some(frame);
            }
            // An end without close_notify is an error of this read.
            if !http::read_more(&mut self.stream, &mut self.pending) {
                return None;
            }
        }
    }

    /// Returns the error with which the server refuses the handshake.
    pub(crate) fn refusal(&mut self) -> String {
        let told = self.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        let read = told.and_then(|()| self.stream.read(&mut [0; 1]).map(|_| ()));
        read.expect_err("the server refuses").to_string()
    }

    /// Returns the certificate of the server.
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.stream.conn.peer_certificates().unwrap()[0].clone().into_owned()
    }

    /// Returns the protocol selected by ALPN, if any.
    pub(crate) fn agreed(&self) -> Option<Vec<u8>> {
        self.stream.conn.alpn_protocol().map(<[u8]>::to_vec)
    }

    /// Encrypts `bytes` and returns the records without sending them.
    pub(crate) fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.stream.conn.writer().write_all(bytes).unwrap();
        let mut records = Vec::new();
        self.stream.conn.write_tls(&mut records).unwrap();
        records
    }

    /// Sends a KeyUpdate that requests one from the server, too (RFC 8446 section 4.6.3).
    pub(crate) fn update_keys(&mut self) {
        self.stream.conn.refresh_traffic_keys().expect("TLS 1.3");
        let _ = self.stream.flush();
    }

    /// Returns the TCP stream.
    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.stream.sock.stream
    }

    /// Sends close_notify.
    pub(crate) fn say_goodbye(&mut self) {
        self.stream.conn.send_close_notify();
        let _ = self.stream.flush();
    }
}

impl Read for Secure {
    /// Reads decrypted bytes.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.pending.is_empty() {
            return self.stream.read(into);
        }
        let count = into.len().min(self.pending.len());
        into[..count].copy_from_slice(&self.pending[..count]);
        self.pending.drain(..count);
        Ok(count)
    }
}

/// Returns the ClientHello of a client.
pub(crate) fn client_hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}
