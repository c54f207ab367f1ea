//! Certificates and keys from PEM (RFC 7468), each checked when it is read.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Why something cannot be used for TLS: text for people, without the file's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsError(pub(super) String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

pub(super) fn tls_error(what: impl fmt::Display) -> TlsError {
    TlsError(what.to_string())
}

/// The cryptography provider, the same for all.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// A certificate with its chain, and its key.
#[derive(Clone)]
pub struct TlsIdentity {
    pub(super) certified: Arc<CertifiedKey>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity")
    }
}

impl TlsIdentity {
    /// Reads both from PEM; the certificate itself comes first.
    ///
    /// # Errors
    /// No certificate, no key, a key of another certificate, or one that cannot be used.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<TlsIdentity, TlsError> {
        let chain = certificates_of(certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            tls_error(format_args!("invalid private key: expected PEM: {error}"))
        })?;
        let certified = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| {
            use rustls::{Error, InconsistentKeys};
            match error {
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    tls_error("the private key belongs to another certificate")
                }
                error => tls_error(format_args!("unusable certificate and private key: {error}")),
            }
        })?;
        Ok(TlsIdentity { certified: Arc::new(certified) })
    }
}

/// All certificates in a PEM text, at least one.
pub(super) fn certificates_of(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| tls_error(format_args!("invalid PEM: {error}")))?;
    if all.is_empty() {
        return Err(tls_error("no certificate found: expected -----BEGIN CERTIFICATE-----"));
    }
    Ok(all)
}

/// All certificates in a PEM text as authorities.
pub(super) fn authorities(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of(pem)? {
        roots.add(certificate).map_err(|error| {
            tls_error(format_args!("a certificate is not an authority's: {error}"))
        })?;
    }
    Ok(roots)
}
