//! [`Target`]: a gRPC server as it is typed, `HOST:PORT`, `grpc://HOST:PORT` or `grpcs://HOST:PORT`.

use std::fmt;
use std::sync::Arc;

use anyhow::{Result, bail};
use engine::TlsClient;
use load::{ConnectOptions, Endpoint};

use super::reach::Reach;
use crate::tls::ClientFlags;

/// A server.
#[derive(Debug)]
pub(in crate::commands) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    /// With TLS, by the scheme.
    pub(super) tls: Option<TlsClient>,
    pub(super) reach: Reach,
}

impl Target {
    /// Parses the server's address and reads the files of TLS.
    ///
    /// # Errors
    /// No such address, or files that cannot be used.
    pub(in crate::commands) fn new(text: &str, flags: &ClientFlags) -> Result<Target> {
        let (tls, host, port) = parse(text)?;
        let tls = flags.for_host(&host, tls)?;
        Ok(Target { host, port, tls, reach: Reach::Name })
    }

    /// The server as [`Target::new`], reached by these options.
    ///
    /// # Errors
    /// As [`Target::new`].
    pub(super) fn by(
        text: &str,
        flags: &ClientFlags,
        options: &Arc<ConnectOptions>,
    ) -> Result<Target> {
        let target = Target::new(text, flags)?;
        if options.unix_socket.is_none() && options.resolve.is_empty() {
            return Ok(target);
        }
        let url = format!("{}://{}", target.scheme(), target.authority());
        let endpoint = options.grpc(&url).map_err(anyhow::Error::msg)?;
        Ok(Target { reach: Reach::of(&endpoint, &target.authority()), ..target })
    }

    /// The server of an endpoint, reached as the endpoint is.
    ///
    /// # Errors
    /// As [`Target::new`].
    pub(in crate::commands) fn of(endpoint: &Endpoint, flags: &ClientFlags) -> Result<Target> {
        let scheme = if endpoint.tls { "grpcs" } else { "grpc" };
        let name = endpoint.server_name();
        let name = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
        let port = endpoint.port().unwrap_or_default();
        let target = Target::new(&format!("{scheme}://{name}:{port}"), flags)?;
        let reach = Reach::of(endpoint, &target.authority());
        Ok(Target { reach, ..target })
    }

    /// Host and port, as in a URL.
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "grpcs" } else { "grpc" }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority())
    }
}

fn parse(text: &str) -> Result<(bool, String, u16)> {
    let (tls, rest) = match text.split_once("://") {
        None => (false, text),
        Some((scheme, rest)) => match scheme.to_ascii_lowercase().as_str() {
            "grpc" | "http" => (false, rest),
            "grpcs" | "https" => (true, rest),
            _ => bail!("unsupported scheme in {text:?}: expected grpc:// or, with TLS, grpcs://"),
        },
    };
    let expected =
        || anyhow::anyhow!("invalid server {text:?}: expected HOST:PORT, such as 127.0.0.1:50051");
    let address = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = address.rsplit_once(':').unwrap_or(("", address));
    let port: u16 = port.parse().map_err(|_| expected())?;
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let valid = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.bytes().all(is_host),
    };
    if !valid || port == 0 {
        return Err(expected());
    }
    let host = inner.unwrap_or(host);
    Ok((tls, if host.is_empty() { "127.0.0.1" } else { host }.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_typed_with_a_scheme_or_without() {
        for (text, tls, host, port) in [
            ("127.0.0.1:50051", false, "127.0.0.1", 50_051),
            ("grpc://a.b:1/", false, "a.b", 1),
            ("GRPCS://localhost:443", true, "localhost", 443),
            ("https://a:8443", true, "a", 8_443),
            ("[::1]:50051", false, "::1", 50_051),
            (":50051", false, "127.0.0.1", 50_051),
            ("50051", false, "127.0.0.1", 50_051),
        ] {
            assert_eq!(parse(text).unwrap(), (tls, host.to_owned(), port), "{text}");
        }
        let target = Target { host: "::1".to_owned(), port: 1, tls: None, reach: Reach::Name };
        assert_eq!((target.to_string().as_str(), target.scheme()), ("[::1]:1", "grpc"));
    }

    #[test]
    fn other_words_are_refused_with_what_is_expected() {
        for text in ["", "a", "a:", "a:b", "a:0", "a:99999", "a b:1", "a:1/path", "::1:5", "[x]:1"]
        {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("expected HOST:PORT"), "{text}: {error}");
        }
        let error = parse("ws://a:1").unwrap_err().to_string();
        assert!(error.contains("grpcs://"), "{error}");
    }
}
