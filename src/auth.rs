//! The flags of authentication and authorization: secrets, key sets and what stays public. A secret is
//! given as a value or as a file, and no message shows it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serve::{Auth, KeySet, Secret};

const HEADING: &str = "Authorization";

/// The flags.
#[derive(clap::Args, Debug)]
pub(crate) struct Flags {
    /// Secret shared with the application, for tokens, signed streams and the keys of publishers.
    /// Process lists show flags: use file:PATH or STANDFAST_SERVE_SECRET. For this and the following
    /// secrets, none turns their purpose off
    #[arg(long, value_name = "SECRET", value_parser = secret_source, help_heading = HEADING)]
    secret: Option<SecretSource>,
    /// Secret for tokens (JWT, HS256 to HS512), or file:PATH [default: --secret]
    #[arg(long, value_name = "SECRET", value_parser = secret_source, help_heading = HEADING)]
    jwt_secret: Option<SecretSource>,
    /// Also check tokens by the public keys in this file (JWKS)
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    jwt_keys: Option<PathBuf>,
    /// Query parameter of the token; the header is x-NAME
    #[arg(long, value_name = "NAME", default_value = "jid", value_parser = param, help_heading = HEADING)]
    jwt_param: String,
    /// Refuse clients without a token
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = HEADING)]
    enforce_jwt: bool,
    /// End sessions when their token expires; otherwise it is checked only when they connect
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = HEADING)]
    end_expired: bool,
    /// Secret for signed stream names, or file:PATH [default: --secret]
    #[arg(long, value_name = "SECRET", value_parser = secret_source, help_heading = HEADING)]
    streams_secret: Option<SecretSource>,
    /// Secret for signed stream names of Turbo, or file:PATH [default: --streams-secret]
    #[arg(long, value_name = "SECRET", value_parser = secret_source, help_heading = HEADING)]
    turbo_secret: Option<SecretSource>,
    /// Secret for signed stream names of CableReady, or file:PATH [default: --streams-secret]
    #[arg(long, value_name = "SECRET", value_parser = secret_source, help_heading = HEADING)]
    cable_ready_secret: Option<SecretSource>,
    /// Let clients subscribe by unsigned stream names, too
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = HEADING)]
    public_streams: bool,
    /// Let subscribers of signed streams whisper to each other; on unsigned streams they can
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = HEADING)]
    streams_whisper: bool,
    /// Key for /_broadcast, sent as a Bearer token, or file:PATH [default: derived from --secret, as
    /// in AnyCable's libraries]
    #[arg(long, value_name = "KEY", value_parser = secret_source, help_heading = HEADING)]
    broadcast_key: Option<SecretSource>,
    /// Serve POST /_broadcast on the client listeners, too; needs --secret or --broadcast-key
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        help_heading = HEADING)]
    listen_broadcast: bool,
}

/// A secret's value, or the file that holds it.
#[derive(Clone, Debug)]
pub(crate) enum SecretSource {
    Value(Secret),
    File(PathBuf),
}

impl SecretSource {
    /// Reads the secret. `flag` is for error messages.
    pub(crate) fn read(&self, flag: &str) -> Result<Secret> {
        match self {
            SecretSource::Value(secret) => Ok(secret.clone()),
            SecretSource::File(file) => from_file(file).with_context(|| format!("--{flag}")),
        }
    }
}

impl Flags {
    pub(crate) fn listen_broadcast(&self) -> bool {
        self.listen_broadcast
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read, or flags that contradict each other.
    pub(crate) fn auth(&self) -> Result<Auth> {
        let read = |source: &Option<SecretSource>, flag| {
            source.as_ref().map(|source| source.read(flag)).transpose()
        };
        let auth = Auth {
            secret: read(&self.secret, "secret")?,
            jwt_secret: read(&self.jwt_secret, "jwt-secret")?,
            jwt_keys: self.jwt_keys.as_deref().map(key_set).transpose()?.map(Arc::new),
            jwt_param: self.jwt_param.as_str().into(),
            enforce_jwt: self.enforce_jwt,
            end_expired: self.end_expired,
            streams_secret: read(&self.streams_secret, "streams-secret")?,
            turbo_secret: read(&self.turbo_secret, "turbo-secret")?,
            cable_ready_secret: read(&self.cable_ready_secret, "cable-ready-secret")?,
            public_streams: self.public_streams,
            streams_whisper: self.streams_whisper,
            broadcast_key: read(&self.broadcast_key, "broadcast-key")?,
        };
        if auth.enforce_jwt && !auth.checks_tokens() {
            bail!(
                "--enforce-jwt needs a key to check tokens by: set --secret, --jwt-secret or \
                 --jwt-keys"
            );
        }
        if self.listen_broadcast && !auth.broadcasts_are_keyed() {
            bail!("--listen-broadcast needs a key: set --secret or --broadcast-key");
        }
        if auth.broadcast_key.as_ref().is_some_and(|key| !key.fits_a_header()) {
            bail!("--broadcast-key: expected visible ASCII without spaces");
        }
        Ok(auth)
    }
}

fn key_set(file: &Path) -> Result<KeySet> {
    let shown = file.display();
    let text =
        fs::read_to_string(file).with_context(|| format!("--jwt-keys: cannot read {shown}"))?;
    KeySet::parse(&text).map_err(|why| anyhow::anyhow!("--jwt-keys: {shown}: {why}"))
}

/// The secret in a file, without the line end.
fn from_file(file: &Path) -> Result<Secret> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        bail!("{shown} is empty");
    }
    Ok(Secret::new(text))
}

/// Parses a flag. Its error messages must not show the secret.
pub(crate) fn secret_source(text: &str) -> Result<SecretSource, String> {
    match text.strip_prefix("file:") {
        Some("") => Err("file: needs a path: file:/run/secrets/standfast".to_owned()),
        Some(path) => Ok(SecretSource::File(path.into())),
        None if text.is_empty() => Err("the secret is empty".to_owned()),
        None => Ok(SecretSource::Value(Secret::new(text))),
    }
}

fn param(text: &str) -> Result<String, String> {
    let named = !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    named.then(|| text.to_owned()).ok_or_else(|| "expected letters, digits, - and _".to_owned())
}
