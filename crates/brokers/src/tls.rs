//! TLS to brokers: whose certificates are trusted.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Trusts servers whose certificate is of a CA in this PEM text, or of one that the system trusts.
///
/// # Errors
/// A text without a certificate, or a system that trusts none.
pub fn client_config(ca: Option<&[u8]>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(text) => {
            for certificate in CertificateDer::pem_slice_iter(text) {
                let certificate = certificate.map_err(|error| error.to_string())?;
                roots.add(certificate).map_err(|error| error.to_string())?;
            }
            if roots.is_empty() {
                return Err("no certificate in PEM".to_owned());
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("this system trusts no CA: name one".to_owned());
            }
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config))
}
