//! [`Target`]: where the application is.

use std::fmt;
use std::str::FromStr;

/// The default port of gRPC applications, as in AnyCable.
const GRPC_PORT: u16 = 50_051;

/// Where the application is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// HTTP RPC below this URL.
    Http {
        /// With https.
        tls: bool,
        /// Host and port.
        host: Host,
        /// The path before `/connect`, without a slash at its end.
        path: Box<str>,
    },
    /// gRPC, balanced over all addresses of these hosts.
    Grpc {
        /// With TLS, by the scheme `grpcs`.
        tls: bool,
        /// Hosts and ports.
        hosts: Vec<Host>,
    },
}

/// A URL to which something is posted: `http://HOST/PATH` or `https://HOST/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostUrl {
    /// With https.
    pub tls: bool,
    /// Host and port.
    pub host: Host,
    /// The path with its query; at least `/`.
    pub path: Box<str>,
}

/// Why a text is no [`PostUrl`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PostUrlError;

impl fmt::Display for PostUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected http://HOST/PATH or https://HOST/PATH, without user, password and fragment",
        )
    }
}

impl std::error::Error for PostUrlError {}

/// Without the path, which may contain a key.
impl fmt::Display for PostUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http{}://{}", if self.tls { "s" } else { "" }, self.host)
    }
}

impl PostUrl {
    /// With the path, and without the query, which may contain a key.
    pub(crate) fn with_path(&self) -> String {
        format!("{self}{}", self.path.split('?').next().unwrap_or_default())
    }
}

impl FromStr for PostUrl {
    type Err = PostUrlError;

    fn from_str(text: &str) -> Result<Self, PostUrlError> {
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(PostUrlError),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err(PostUrlError);
        }
        let host = host(authority, if tls { 443 } else { 80 }).map_err(|_| PostUrlError)?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(PostUrl { tls, host, path: format!("{slash}{path}").into() })
    }
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name, or an address without brackets.
    pub name: Box<str>,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Http { tls, host, path } => {
                write!(f, "http{}://{host}{path}", if *tls { "s" } else { "" })
            }
            Target::Grpc { tls, hosts } => {
                write!(f, "grpc{}://", if *tls { "s" } else { "" })?;
                for (at, host) in hosts.iter().enumerate() {
                    write!(f, "{}{host}", if at > 0 { "," } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

/// Why a text names no application.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TargetError;

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected http://HOST/PATH, https://HOST/PATH, HOST:PORT, grpc://HOST:PORT, \
             grpcs://HOST:PORT, dns:///HOST:PORT or grpc-list://HOST:PORT,HOST:PORT",
        )
    }
}

impl std::error::Error for TargetError {}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("grpc", text));
        let one = |text: &str| Ok(vec![host(text, GRPC_PORT)?]);
        let (tls, hosts) = match scheme {
            "http" | "https" => return http(scheme == "https", rest),
            "grpc" => (false, one(rest)?),
            "grpcs" => (true, one(rest)?),
            // An authority would be a name server.
            "dns" => (false, one(rest.strip_prefix('/').ok_or(TargetError)?)?),
            "grpc-list" => {
                let hosts: Result<Vec<Host>, TargetError> =
                    rest.split([',', '/']).map(|text| host(text, GRPC_PORT)).collect();
                (false, hosts?)
            }
            _ => return Err(TargetError),
        };
        Ok(Target::Grpc { tls, hosts })
    }
}

fn http(tls: bool, rest: &str) -> Result<Target, TargetError> {
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let path = path.trim_end_matches('/');
    if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#') {
        return Err(TargetError);
    }
    let host = host(authority, if tls { 443 } else { 80 })?;
    Ok(Target::Http { tls, host, path: path.into() })
}

fn host(text: &str, default_port: u16) -> Result<Host, TargetError> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']').ok_or(TargetError)?;
            (name, rest.strip_prefix(':').or(rest.is_empty().then_some("")))
        }
        None => match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, Some("")),
        },
    };
    let port = match port.ok_or(TargetError)? {
        "" if !text.ends_with(':') => default_port,
        port => port.parse().ok().filter(|port| *port > 0).ok_or(TargetError)?,
    };
    let address = text.starts_with('[');
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let valid = match address {
        true => name.parse::<std::net::Ipv6Addr>().is_ok(),
        // A number alone is a port whose host was forgotten.
        false => name.bytes().all(named) && !name.bytes().all(|byte| byte.is_ascii_digit()),
    };
    if !valid {
        return Err(TargetError);
    }
    Ok(Host { name: name.into(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_to_post_to_are_parsed() {
        for (text, shown, path) in [
            ("http://127.0.0.1:3000/hooks", "http://127.0.0.1:3000", "/hooks"),
            ("https://app.example", "https://app.example:443", "/"),
            ("https://app?key=1", "https://app:443", "/?key=1"),
            ("http://[::1]:8/a/b/?c=d", "http://[::1]:8", "/a/b/?c=d"),
        ] {
            let url: PostUrl = text.parse().unwrap();
            assert_eq!((url.to_string().as_str(), &*url.path), (shown, path));
        }
        let url: PostUrl = "http://app/ask/it?key=1".parse().unwrap();
        assert_eq!(url.with_path(), "http://app:80/ask/it");
        for wrong in [
            "",
            "app",
            "app:80",
            "grpc://a",
            "http://",
            "http://3000/",
            "http:///a",
            "http://a:0/",
            "http://u:p@a/",
            "http://a b/",
            "http://a/ b",
            "http://a/#b",
            "ftp://a/",
            "http://a/\n",
        ] {
            assert_eq!(wrong.parse::<PostUrl>(), Err(PostUrlError), "{wrong}");
        }
    }

    #[test]
    fn targets_are_parsed_and_shown() {
        for (text, shown) in [
            ("localhost:50051", "grpc://localhost:50051"),
            ("app", "grpc://app:50051"),
            ("grpcs://app:1", "grpcs://app:1"),
            ("dns:///app.internal:50051", "grpc://app.internal:50051"),
            ("grpc-list://a:1,[::1]:2", "grpc://a:1,[::1]:2"),
            ("grpc-list://a:1/b:2", "grpc://a:1,b:2"),
            ("http://127.0.0.1:3000/_anycable", "http://127.0.0.1:3000/_anycable"),
            ("http://app/", "http://app:80"),
            ("https://app/api/rpc/", "https://app:443/api/rpc"),
        ] {
            assert_eq!(text.parse::<Target>().map(|target| target.to_string()), Ok(shown.into()));
        }
        for wrong in [
            "",
            "http://",
            "ftp://a",
            "a:b",
            "a:0",
            "a:70000",
            "a:",
            "http://a b",
            "http://a/?x",
            "dns://8.8.8.8/a:1",
            "3000",
            "grpc://3000",
            "grpc-list://",
            "grpc-list://a:1,",
            "user@a:1",
            "::1:50051",
        ] {
            assert_eq!(wrong.parse::<Target>(), Err(TargetError), "{wrong}");
        }
    }
}
