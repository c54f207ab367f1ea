//! `cargo xtask cert`: a test CA, a certificate for a server on this machine and one for a client.
//! For testing only: the private keys are not protected.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Names and addresses of a server on this machine.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The folder and the names.
#[derive(clap::Args)]
pub(crate) struct CertArgs {
    /// Folder for ca.pem, server.pem, server.key, client.pem and client.key
    #[arg(default_value = "target/cert")]
    folder: PathBuf,
    /// Additional name or address of the server (repeatable)
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
}

/// Writes the files and prints commands that use them.
pub(crate) fn run(args: &CertArgs) -> Result<bool> {
    write_all(&args.folder, &args.name)?;
    let shown = args.folder.display();
    println!(
        "standfast serve --echo --tls-cert {shown}/server.pem --tls-key {shown}/server.key\n\
         standfast load wss://localhost:8080/echo --echo --ca {shown}/ca.pem"
    );
    Ok(true)
}

/// Writes the files, with additional names of the server; existing files are replaced.
pub(crate) fn write_all(folder: &Path, further: &[String]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name.push(DnType::CommonName, "standfast test authority");
    let key = KeyPair::generate()?;
    write(folder, "ca.pem", &ca.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(ca, key);

    let names = LOCAL.into_iter().map(str::to_owned).chain(further.iter().cloned()).collect();
    let server = leaf(names, "standfast test server", ExtendedKeyUsagePurpose::ServerAuth)?;
    sign(folder, "server", &server, &issuer)?;
    let client = leaf(Vec::new(), "standfast test client", ExtendedKeyUsagePurpose::ClientAuth)?;
    sign(folder, "client", &client, &issuer)
}

fn leaf(
    names: Vec<String>,
    called: &str,
    usage: ExtendedKeyUsagePurpose,
) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, called);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    Ok(params)
}

fn sign(
    folder: &Path,
    name: &str,
    params: &CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<()> {
    let key = KeyPair::generate()?;
    write(folder, &format!("{name}.pem"), &params.signed_by(&key, issuer)?.pem())?;
    write(folder, &format!("{name}.key"), &key.serialize_pem())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let file = folder.join(name);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}
