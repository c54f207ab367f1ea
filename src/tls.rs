//! The TLS flags of `serve`, `proxy` and `load`, and the files they name.

use std::fs;
use std::path::{Path, PathBuf};

use ::proxy::UpstreamTls;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use engine::{ClientAuth, TlsClient, TlsIdentity, TlsServer, TlsTrust, TlsVersion};
use load::Endpoint;

use crate::routes::TlsFiles;
use crate::running::Admin;

const HEADING: &str = "TLS";

/// Keys of a server's TLS that take effect on SIGHUP.
pub(crate) const RELOADABLE: &[&str] = &[
    "admin_tls_cert",
    "admin_tls_client_ca",
    "admin_tls_key",
    "tls_cert",
    "tls_client_ca",
    "tls_key",
    "tls_min",
];

/// The flags of a server.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerFlags {
    /// Serve TLS on all client listeners, or on those of --listen-tls, with the certificate and chain
    /// in this PEM file. Repeatable: the client's server name (SNI) selects one, the first is the
    /// default
    #[arg(long, value_name = "FILE", value_delimiter = ',', help_heading = HEADING)]
    tls_cert: Vec<PathBuf>,
    /// Private key of the certificate, PEM; one for each certificate, in the same order
    #[arg(long, value_name = "FILE", value_delimiter = ',', help_heading = HEADING)]
    tls_key: Vec<PathBuf>,
    /// Minimum TLS version
    #[arg(long, value_name = "VERSION", default_value = "1.2", help_heading = HEADING)]
    tls_min: Version,
    /// Require client certificates of a CA in this PEM file (mTLS)
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    tls_client_ca: Option<PathBuf>,
    /// Serve TLS on the admin listener, with the certificate and chain in this PEM file
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    admin_tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    admin_tls_key: Option<PathBuf>,
    /// Require client certificates of a CA in this PEM file on the admin listener; they do not replace
    /// the key
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    admin_tls_client_ca: Option<PathBuf>,
}

/// The flags of `load`.
#[derive(clap::Args, Debug)]
pub(crate) struct ClientFlags {
    /// Accept any server certificate; for tests
    #[arg(long, help_heading = HEADING, conflicts_with = "ca")]
    insecure: bool,
    /// Trust server certificates of a CA in this PEM file, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    ca: Option<PathBuf>,
    /// Client certificate, PEM
    #[arg(long, value_name = "FILE", help_heading = HEADING, requires = "key")]
    cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", help_heading = HEADING, requires = "cert")]
    key: Option<PathBuf>,
    /// Server name to send (SNI) and to verify [default: the URL's host]
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    sni: Option<String>,
    /// Resume TLS sessions where the server offers it, which is cheaper for both
    #[arg(long, value_name = "WHEN", default_value = "on", help_heading = HEADING)]
    tls_resume: Resume,
}

/// The flags of `proxy` for its upstreams.
#[derive(clap::Args, Debug)]
pub(crate) struct UpstreamFlags {
    /// Connect to upstreams with TLS
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", help_heading = HEADING,
        default_value = "false", default_missing_value = "true", hide_default_value = true)]
    upstream_tls: bool,
    /// Trust upstream certificates of a CA in this PEM file, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    upstream_ca: Option<PathBuf>,
    /// Accept any upstream certificate; for tests
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL", help_heading = HEADING,
        default_value = "false", default_missing_value = "true", hide_default_value = true)]
    upstream_insecure: bool,
    /// Client certificate for upstreams, PEM
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    upstream_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    upstream_key: Option<PathBuf>,
    /// Server name to send to upstreams (SNI) and to verify [default: each upstream's host]
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    upstream_name: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Version {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Resume {
    On,
    Off,
}

impl ServerFlags {
    /// Reads the files; `None` without a certificate.
    pub(crate) fn server(&self) -> Result<Option<TlsServer>> {
        if self.tls_cert.len() != self.tls_key.len() {
            bail!(
                "{} certificates (--tls-cert) and {} keys (--tls-key): expected one key for each \
                 certificate, in the same order",
                self.tls_cert.len(),
                self.tls_key.len()
            );
        }
        if self.tls_cert.is_empty() {
            if self.tls_client_ca.is_some() {
                bail!("--tls-client-ca needs TLS: add --tls-cert");
            }
            return Ok(None);
        }
        let pairs = self.tls_cert.iter().zip(&self.tls_key);
        let identities: Vec<TlsIdentity> =
            pairs.map(|(certificate, key)| identity(certificate, key)).collect::<Result<_>>()?;
        self.with_identities(&identities, self.tls_client_ca.as_deref()).map(Some)
    }

    /// Reads the files of the admin listener; `None` without a certificate.
    pub(crate) fn admin(&self, admin: &Admin) -> Result<Option<TlsServer>> {
        let (certificate, key) = match (&self.admin_tls_cert, &self.admin_tls_key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if self.admin_tls_client_ca.is_some() => {
                bail!("--admin-tls-client-ca needs TLS: add --admin-tls-cert")
            }
            (None, None) => return Ok(None),
            _ => bail!("--admin-tls-cert and --admin-tls-key are needed together"),
        };
        if admin.0.is_none() {
            bail!("--admin-tls-cert without an admin listener: --admin is off");
        }
        let identities = [identity(certificate, key)?];
        self.with_identities(&identities, self.admin_tls_client_ca.as_deref()).map(Some)
    }

    fn with_identities(&self, identities: &[TlsIdentity], ca: Option<&Path>) -> Result<TlsServer> {
        let oldest = match self.tls_min {
            Version::Tls12 => TlsVersion::Tls12,
            Version::Tls13 => TlsVersion::Tls13,
        };
        let authorities = ca.map(read).transpose()?;
        let server = TlsServer::new(
            identities,
            oldest,
            authorities.as_deref().map_or(ClientAuth::None, ClientAuth::Required),
        );
        server.with_context(|| ca.map_or_else(|| "cannot set up TLS".to_owned(), shown))
    }
}

impl ClientFlags {
    /// The flags that a scenario file has.
    pub(crate) fn of_files(
        insecure: bool,
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> ClientFlags {
        ClientFlags { insecure, ca, cert, key, sni: None, tls_resume: Resume::On }
    }

    /// Sets the TLS client of each endpoint whose URL has TLS.
    pub(crate) fn set<'e>(
        &self,
        endpoints: impl IntoIterator<Item = &'e mut Endpoint>,
    ) -> Result<()> {
        let mut endpoints: Vec<&mut Endpoint> = endpoints.into_iter().collect();
        let tls = |endpoint: &&mut Endpoint| endpoint.tls || endpoint.options.tls.is_some();
        if !endpoints.iter().any(tls) {
            return self.check_unused("https://, wss:// or the like");
        }
        if !endpoints.iter().any(|endpoint| endpoint.tls) {
            return Ok(());
        }
        let client = self.client()?;
        for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.tls) {
            let name = self.sni.as_deref().unwrap_or(endpoint.server_name());
            let named = client.named(name).with_context(|| match &self.sni {
                Some(_) => "--sni".to_owned(),
                None => format!("wss://{}: set the server name with --sni", endpoint.host),
            })?;
            endpoint.client = Some(named);
        }
        Ok(())
    }

    /// The TLS client for hosts that only a redirect leads to; `None` if the system has no CAs and no
    /// flag was given, since a redirect may never happen.
    pub(crate) fn for_redirects(&self) -> Result<Option<TlsClient>> {
        let is_configured = self.insecure || self.ca.is_some() || self.cert.is_some();
        match self.client() {
            Err(_) if !is_configured => Ok(None),
            client => client.map(Some),
        }
    }

    /// The TLS client of a server that is asked before the run; `None` for one without TLS.
    pub(crate) fn for_host(&self, host: &str, tls: bool) -> Result<Option<TlsClient>> {
        if !tls {
            self.check_unused("grpcs://")?;
            return Ok(None);
        }
        let name = self.sni.as_deref().unwrap_or(host);
        Ok(Some(self.client()?.named(name)?))
    }

    /// Refuses TLS flags where there is no TLS.
    fn check_unused(&self, expected: &str) -> Result<()> {
        let files = self.ca.is_some() || self.cert.is_some();
        if self.insecure || files || self.sni.is_some() || self.tls_resume == Resume::Off {
            bail!("TLS flags without a URL with TLS: expected {expected}");
        }
        Ok(())
    }

    /// The flags as they were typed.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.insecure {
            words.push("--insecure".to_owned());
        }
        for (flag, file) in [("--ca", &self.ca), ("--cert", &self.cert), ("--key", &self.key)] {
            words.extend(file.iter().flat_map(|file| [flag.to_owned(), shown(file)]));
        }
        words.extend(self.sni.iter().flat_map(|name| ["--sni".to_owned(), name.clone()]));
        words
    }

    fn client(&self) -> Result<TlsClient> {
        let trust = match &self.ca {
            _ if self.insecure => TlsTrust::Any,
            Some(file) => TlsTrust::Authorities(read(file)?),
            None => TlsTrust::System,
        };
        let pair = self.cert.as_deref().zip(self.key.as_deref());
        let identity = pair.map(|(certificate, key)| identity(certificate, key)).transpose()?;
        let client = TlsClient::new(&trust, identity.as_ref(), self.tls_resume == Resume::On);
        client.with_context(|| match &self.ca {
            Some(file) => shown(file),
            None => "no CA certificates found on this system: use --ca FILE, or --insecure for \
                     tests"
                .to_owned(),
        })
    }
}

impl UpstreamFlags {
    /// Reads the files; `None` where upstreams have no TLS.
    pub(crate) fn client(&self) -> Result<Option<UpstreamTls>> {
        if !self.upstream_tls {
            if self.upstream_ca.is_some()
                || self.upstream_insecure
                || self.upstream_cert.is_some()
                || self.upstream_key.is_some()
                || self.upstream_name.is_some()
            {
                bail!("flags of upstream TLS without TLS: add --upstream-tls");
            }
            return Ok(None);
        }
        if self.upstream_cert.is_some() != self.upstream_key.is_some() {
            bail!("--upstream-cert and --upstream-key are needed together");
        }
        let files = TlsFiles {
            ca: self.upstream_ca.clone(),
            cert: self.upstream_cert.clone(),
            key: self.upstream_key.clone(),
            name: self.upstream_name.clone(),
            insecure: self.upstream_insecure,
        };
        upstream_tls(&files).context("--upstream-tls").map(Some)
    }
}

/// Reads the files of TLS with upstreams.
pub(crate) fn upstream_tls(files: &TlsFiles) -> Result<UpstreamTls> {
    let trust = match &files.ca {
        _ if files.insecure => TlsTrust::Any,
        Some(file) => TlsTrust::Authorities(read(file)?),
        None => TlsTrust::System,
    };
    let pair = files.cert.as_deref().zip(files.key.as_deref());
    let identity = pair.map(|(certificate, key)| identity(certificate, key)).transpose()?;
    let client = TlsClient::new(&trust, identity.as_ref(), true);
    let ca = files.ca.as_deref().map(shown);
    let client = client
        .with_context(|| ca.unwrap_or_else(|| "the CA certificates of this system".to_owned()))?;
    if let Some(name) = &files.name {
        client.named(name)?;
    }
    Ok(UpstreamTls { client, name: files.name.clone() })
}

fn identity(certificate: &Path, key: &Path) -> Result<TlsIdentity> {
    let identity = TlsIdentity::from_pem(&read(certificate)?, &read(key)?);
    identity.with_context(|| format!("{} with {}", certificate.display(), key.display()))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let read = load::files::admit(file).and_then(|()| fs::read(file));
    read.with_context(|| format!("cannot read {}", file.display()))
}

fn shown(file: &Path) -> String {
    file.display().to_string()
}
