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
pub struct TlsUnusable(pub(super) String);

impl fmt::Display for TlsUnusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsUnusable {}

pub(super) fn unusable(what: impl fmt::Display) -> TlsUnusable {
    TlsUnusable(what.to_string())
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
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<TlsIdentity, TlsUnusable> {
        let chain = certificates_of(certificates)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| unusable(format_args!("the key is no private key in PEM: {error}")))?;
        let certified = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| {
            use rustls::{Error, InconsistentKeys};
            match error {
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    unusable("the key belongs to another certificate")
                }
                error => unusable(format_args!("certificate and key cannot be used: {error}")),
            }
        })?;
        Ok(TlsIdentity { certified: Arc::new(certified) })
    }
}

/// Every certificate in some PEM, at least one.
pub(super) fn certificates_of(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsUnusable> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| unusable(format_args!("this is no PEM: {error}")))?;
    if all.is_empty() {
        return Err(unusable("there is no certificate in it (-----BEGIN CERTIFICATE-----)"));
    }
    Ok(all)
}

/// The certificates in some PEM as authorities.
pub(super) fn authorities(pem: &[u8]) -> Result<RootCertStore, TlsUnusable> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of(pem)? {
        roots.add(certificate).map_err(|error| {
            unusable(format_args!("a certificate in it is no authority's: {error}"))
        })?;
    }
    Ok(roots)
}
