//! [`TlsServer`]: TLS of accepted connections. One for all workers; a change makes a new one.

use std::fmt;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::ServerName;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
    UnbufferedServerConnection, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};

use super::Tls;
use super::pem::{TlsError, TlsIdentity, authorities, provider, tls_error};
use super::session::Connection;

/// The only ALPN protocol (RFC 7301).
pub(super) const ALPN: &[u8] = b"http/1.1";

/// Clients are told the names of the authorities, to choose their certificate by (RFC 8446 section 4.2.4), if these have at most
/// so many bytes; otherwise none. A message of the handshake has room for 64 KiB.
const AUTHORITY_NAMES_BYTES_MAX: usize = 48 * 1024;

/// The oldest accepted version of TLS.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum TlsVersion {
    /// 1.2 and 1.3.
    #[default]
    Tls12,
    /// 1.3 only.
    Tls13,
}

impl TlsVersion {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static FROM_1_2: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        static FROM_1_3: [&SupportedProtocolVersion; 1] = [&TLS13];
        match self {
            TlsVersion::Tls12 => &FROM_1_2,
            TlsVersion::Tls13 => &FROM_1_3,
        }
    }
}

/// Whether clients are asked for a certificate. The authorities, in PEM, are those that have to have signed it. Who is asked
/// gets no ticket (RFC 8446 section 4.6.1): each connection is a full handshake.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum ClientAuth<'a> {
    /// They are not asked.
    #[default]
    None,
    /// They are asked. Who has none is let in; a certificate that no authority signed ends the handshake.
    Optional(&'a [u8]),
    /// Every client must have one.
    Required(&'a [u8]),
}

/// TLS of a server's connections. A clone refers to the same configuration.
#[derive(Clone)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer")
    }
}

impl TlsServer {
    /// Creates a server with these certificates: it chooses the first that contains the requested
    /// name (SNI, RFC 6066 section 3), otherwise the first of all.
    ///
    /// # Errors
    /// No certificate, invalid authorities, or no randomness for the tickets.
    pub fn new(
        identities: &[TlsIdentity],
        oldest: TlsVersion,
        client_auth: ClientAuth<'_>,
    ) -> Result<TlsServer, TlsError> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(oldest.versions())
            .map_err(tls_error)?;
        let builder = match client_auth {
            ClientAuth::None => builder.with_no_client_auth(),
            ClientAuth::Optional(pem) | ClientAuth::Required(pem) => {
                let roots = authorities(pem)?;
                let named: usize =
                    roots.subjects().iter().map(|name| name.as_ref().len() + 2).sum();
                let mut verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                if named > AUTHORITY_NAMES_BYTES_MAX {
                    verifier = verifier.clear_root_hint_subjects();
                }
                if matches!(client_auth, ClientAuth::Optional(_)) {
                    verifier = verifier.allow_unauthenticated();
                }
                builder.with_client_cert_verifier(verifier.build().map_err(tls_error)?)
            }
        };
        let identities: Vec<_> =
            identities.iter().map(|identity| Arc::clone(&identity.certified)).collect();
        if identities.is_empty() {
            return Err(tls_error("a server needs a certificate"));
        }
        let mut config = builder.with_cert_resolver(Arc::new(ByName { identities }));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if client_auth == ClientAuth::None {
            // The client keeps the state that resumes a session, encrypted (RFC 5077, RFC 8446 section
            // 4.6.1). Its key is new with each configuration.
            config.ticketer = Ticketer::new().map_err(tls_error)?;
        } else {
            // Each resumption brings a new ticket, and certificates are not checked again: an expired one
            // would live on.
            config.send_tls13_tickets = 0;
        }
        Ok(TlsServer { config: Arc::new(config) })
    }

    /// The library's configuration, for a server on another runtime.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// The session of a newly accepted connection.
    pub(crate) fn begin(&self) -> Result<Tls, TlsError> {
        let connection = UnbufferedServerConnection::new(Arc::clone(&self.config));
        let connection = connection.map_err(tls_error)?;
        Ok(Tls::new(Box::new(Connection::Server(connection))))
    }
}

/// Chooses among certificates by the requested name.
#[derive(Debug)]
struct ByName {
    identities: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let default = self.identities.first();
        let name = hello.server_name().filter(|_| self.identities.len() > 1);
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let fitting = name.and_then(|name| self.identities.iter().find(|one| holds(one, &name)));
        fitting.or(default).cloned()
    }
}

/// Whether the certificate is valid for that name.
fn holds(identity: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let certificate = identity.end_entity_cert().ok();
    let parsed = certificate.and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
    parsed.is_some_and(|parsed| verify_server_name(&parsed, name).is_ok())
}
