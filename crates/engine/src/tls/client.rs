//! [`TlsClient`]: TLS of outgoing connections, and which servers they trust.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    Resumption, UnbufferedClientConnection, WebPkiServerVerifier, verify_server_name,
};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::Tls;
use super::pem::{TlsError, TlsIdentity, authorities, certificates_of, provider, tls_error};
use super::server::ALPN;
use super::session::Connection;

/// Which servers a client trusts.
#[derive(Clone, Debug, Default)]
pub enum TlsTrust {
    /// Servers whose certificate chains to an authority that this machine trusts.
    #[default]
    System,
    /// Servers whose certificate chains to one of these, or is one of them, in PEM.
    Authorities(Vec<u8>),
    /// Any server, whatever its certificate: for tests only.
    Any,
}

/// TLS of a client's connections to one server. A clone refers to the same configuration.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// The error of the first failed handshake, over all clones and names.
    first_error: Arc<OnceLock<String>>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsClient({:?})", self.name)
    }
}

/// Clones are equal; the contents of files are not compared.
impl PartialEq for TlsClient {
    fn eq(&self, other: &TlsClient) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name
    }
}

impl Eq for TlsClient {}

impl TlsClient {
    /// Creates a client with this trust, which presents `identity` to servers that request a
    /// certificate, and with `resume` resumes sessions. The name is set by [`TlsClient::named`].
    ///
    /// # Errors
    /// Authorities or an identity that cannot be used.
    pub fn new(
        trust: &TlsTrust,
        identity: Option<&TlsIdentity>,
        resume: bool,
    ) -> Result<TlsClient, TlsError> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(tls_error)?;
        let builder = match trust {
            TlsTrust::System => builder.with_root_certificates(system_roots()?),
            TlsTrust::Authorities(pem) => builder.dangerous().with_custom_certificate_verifier(
                Arc::new(CustomVerifier::of_authorities(pem, provider)?),
            ),
            TlsTrust::Any => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(CustomVerifier {
                    trusted: Trusted::Any,
                    provider,
                }))
            }
        };
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let certified = SingleCertAndKey::from(Arc::clone(&identity.certified));
                builder.with_client_cert_resolver(Arc::new(certified))
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        if !resume {
            config.resumption = Resumption::disabled();
        }
        let name = ServerName::try_from("localhost").map_err(tls_error)?;
        Ok(TlsClient { config: Arc::new(config), name, first_error: Arc::default() })
    }

    /// The same client for a server of this name or address, which its certificate must contain. A
    /// name is sent with the handshake (SNI), an address is not.
    ///
    /// # Errors
    /// Neither a name nor an address.
    pub fn named(&self, name: &str) -> Result<TlsClient, TlsError> {
        let server = ServerName::try_from(name.to_owned()).map_err(|_| {
            tls_error(format_args!(
                "invalid server name {name:?}: expected a host name or an address"
            ))
        })?;
        let (config, first_error) = (Arc::clone(&self.config), Arc::clone(&self.first_error));
        Ok(TlsClient { config, name: server, first_error })
    }

    /// The same client for HTTP/2, which it offers alone (ALPN).
    #[must_use]
    pub fn for_http2(&self) -> TlsClient {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let (name, first_error) = (self.name.clone(), Arc::clone(&self.first_error));
        TlsClient { config: Arc::new(config), name, first_error }
    }

    /// The error of the first failed handshake, for any name; text for people.
    #[must_use]
    pub fn first_error(&self) -> Option<&str> {
        self.first_error.get().map(String::as_str)
    }

    /// The configuration in rustls's types, for connections outside of workers.
    #[must_use]
    pub fn parts(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        (Arc::clone(&self.config), self.name.clone())
    }

    /// The session of a new connection.
    pub(crate) fn begin(&self) -> Result<Tls, TlsError> {
        let connection =
            UnbufferedClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let connection = connection.map_err(tls_error)?;
        let first_error = Arc::clone(&self.first_error);
        Ok(Tls::new(Box::new(Connection::Client(connection, first_error))))
    }
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable > 0 {
        return Ok(roots);
    }
    let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    Err(tls_error(format_args!("no CA certificates found on this machine{why}")))
}

/// Verifies certificates where the library's default is not enough. That the server holds the key
/// of its certificate is verified in any case.
#[derive(Debug)]
struct CustomVerifier {
    trusted: Trusted,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Trusted {
    /// Certificates of authorities, and the same certificates as servers' own: a self-signed
    /// certificate is usually marked as an authority's, for which the library would refuse it as a
    /// server's.
    Authorities {
        by_authority: Arc<WebPkiServerVerifier>,
        pinned: Vec<CertificateDer<'static>>,
    },
    Any,
}

impl CustomVerifier {
    fn of_authorities(
        pem: &[u8],
        provider: Arc<CryptoProvider>,
    ) -> Result<CustomVerifier, TlsError> {
        let roots = Arc::new(authorities(pem)?);
        let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let by_authority = builder.build().map_err(tls_error)?;
        let trusted = Trusted::Authorities { by_authority, pinned: certificates_of(pem)? };
        Ok(CustomVerifier { trusted, provider })
    }
}

impl ServerCertVerifier for CustomVerifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Trusted::Authorities { by_authority, pinned } = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        let judged = by_authority.verify_server_cert(shown, others, name, ocsp, now);
        let Err(Error::InvalidCertificate(CertificateError::Other(other))) = &judged else {
            return judged;
        };
        // The library has checked the validity period before it reports this.
        let by_mark = other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity);
        if !by_mark || !pinned.iter().any(|one| one.as_ref() == shown.as_ref()) {
            return judged;
        }
        verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
