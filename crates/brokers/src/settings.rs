//! Where brokers are: URLs of Redis servers, with user, password and database.

use std::fmt;
use std::path::PathBuf;

/// The port of Redis without one in the URL.
const REDIS_PORT: u16 = 6379;
/// The port of a sentinel without one.
const SENTINEL_PORT: u16 = 26379;

/// The address of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerAddress {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// A UNIX socket.
    Unix(PathBuf),
}

/// A Redis server as its URL names it: `redis://`, `rediss://` (TLS), `unix:` or `redis+unix:`.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Where it listens.
    pub address: ServerAddress,
    /// Connect with TLS.
    pub tls: bool,
    /// The user of its access control list; without one the password is that of the default user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The database. Publications are the same in all.
    pub database: i64,
}

/// A URL that names no server.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid URL of a {broker} server {shown:?}: {why}")]
pub struct UrlError {
    /// Which broker's.
    broker: &'static str,
    /// The URL without its password.
    shown: String,
    why: &'static str,
}

impl UrlError {
    pub(crate) fn new(broker: &'static str, url: &str, why: &'static str) -> Self {
        UrlError { broker, shown: without_password(url), why }
    }
}

impl RedisUrl {
    /// A sentinel, `[[USER]:PASSWORD@]HOST[:PORT]`.
    ///
    /// # Errors
    /// What is expected, for people.
    pub fn of_sentinel(text: &str) -> Result<RedisUrl, &'static str> {
        let place = text.rsplit_once('@').map_or(text, |(_, place)| place);
        // Addresses of IPv6 have colons within brackets.
        let after = place.rsplit_once(']').map_or(place, |(_, after)| after);
        let port = if after.contains(':') { String::new() } else { format!(":{SENTINEL_PORT}") };
        let parsed = format!("redis://{text}{port}").parse();
        parsed.map_err(|_| "expected [:PASSWORD@]HOST[:PORT]")
    }
}

/// Without the password: for logs.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            ServerAddress::Tcp(host, port) => {
                let scheme = if self.tls { "rediss" } else { "redis" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}:{port}")
            }
            ServerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

impl std::str::FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let parsed = match text.split_once(':') {
            Some(("redis" | "valkey", rest)) => tcp(rest, false),
            Some(("rediss" | "valkeys", rest)) => tcp(rest, true),
            Some(("unix" | "redis+unix", rest)) => unix(rest),
            _ => Err("expected redis://HOST, rediss://HOST or unix:/PATH"),
        };
        parsed.map_err(|why| UrlError::new("Redis", text, why))
    }
}

/// `//[user[:password]@]host[:port][/database]`
fn tcp(rest: &str, tls: bool) -> Result<RedisUrl, &'static str> {
    let rest = rest.strip_prefix("//").ok_or("// and a host must follow the scheme")?;
    let rest = match rest.split_once('?') {
        Some((rest, "")) => rest,
        Some(_) => return Err("parameters are supported for UNIX sockets only"),
        None => rest,
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (credentials, place) = match authority.rsplit_once('@') {
        Some((credentials, place)) => (credentials, place),
        None => ("", authority),
    };
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (host, port) = host_and_port(place, REDIS_PORT)?;
    let address = ServerAddress::Tcp(host.to_owned(), port);
    let (user, password) = (decoded(user)?, decoded(password)?);
    Ok(RedisUrl { address, tls, user, password, database: database(path)? })
}

pub(crate) fn host_and_port(place: &str, usual: u16) -> Result<(&str, u16), &'static str> {
    let (host, port) = match place.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, port))) => {
            (host, port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        Some(None) => return Err("the bracket of the address is not closed"),
        None => match place.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, Some("")),
        },
    };
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    match port.ok_or("expected :PORT after the address")? {
        "" => Ok((host, usual)),
        port => Ok((host, port.parse().map_err(|_| "the port must be a number up to 65535")?)),
    }
}

/// `/path[?user=…&pass=…&db=…]`
fn unix(rest: &str) -> Result<RedisUrl, &'static str> {
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err("expected the absolute path of a UNIX socket");
    }
    let address = ServerAddress::Unix(PathBuf::from(decoded(path)?.unwrap_or_default()));
    let mut url = RedisUrl { address, tls: false, user: None, password: None, database: 0 };
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("db", number)) => url.database = database(number)?,
            Some(("user", user)) => url.user = decoded(user)?,
            Some(("pass", password)) => url.password = decoded(password)?,
            _ => return Err("unknown parameter: expected db, user or pass"),
        }
    }
    Ok(url)
}

fn database(text: &str) -> Result<i64, &'static str> {
    match text.trim_end_matches('/') {
        "" => Ok(0),
        number => match number.parse() {
            Ok(number @ 0..) => Ok(number),
            _ => Err("the database must be a number"),
        },
    }
}

/// Text with its percent escapes decoded; `None` if it is empty.
pub(crate) fn decoded(text: &str) -> Result<Option<String>, &'static str> {
    const MALFORMED: &str = "% must be followed by two hexadecimal digits";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(MALFORMED) };
        bytes.push((high * 16 + low) as u8);
    }
    let text = String::from_utf8(bytes).map_err(|_| "user and password must be UTF-8")?;
    Ok((!text.is_empty()).then_some(text))
}

/// What an error may show of a URL.
fn without_password(text: &str) -> String {
    let (scheme, rest) = text.split_once("//").unwrap_or(("", text));
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let place = place.split('?').next().unwrap_or_default();
    let slashes = if scheme.is_empty() { "" } else { "//" };
    format!("{scheme}{slashes}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_have_a_port_and_perhaps_a_password() {
        let of = |text| RedisUrl::of_sentinel(text);
        assert_eq!(of("a.example").unwrap().to_string(), "redis://a.example:26379");
        let full = of(":secret@10.0.0.1:5000").unwrap();
        assert_eq!(full.to_string(), "redis://10.0.0.1:5000");
        assert_eq!(full.password.as_deref(), Some("secret"));
        assert_eq!(of("[::1]").unwrap().to_string(), "redis://[::1]:26379");
        assert_eq!(of("[::1]:5000").unwrap().to_string(), "redis://[::1]:5000");
        assert!(of("a:b").is_err());
    }

    fn parsed(text: &str) -> RedisUrl {
        text.parse().unwrap()
    }

    fn at(host: &str, port: u16) -> ServerAddress {
        ServerAddress::Tcp(host.to_owned(), port)
    }

    #[test]
    fn urls_of_redis_name_address_tls_credentials_and_database() {
        let plain = parsed("redis://localhost");
        assert_eq!(plain.address, at("localhost", 6379));
        assert_eq!(
            (plain.tls, &plain.user, &plain.password, plain.database),
            (false, &None, &None, 0)
        );
        let full = parsed("rediss://app:p%40ss:1@redis.example:6380/5");
        assert_eq!(full.address, at("redis.example", 6380));
        let (user, password) = (full.user.as_deref(), full.password.as_deref());
        assert_eq!((user, password), (Some("app"), Some("p@ss:1")));
        assert!(full.tls && full.database == 5);
        assert_eq!(full.to_string(), "rediss://redis.example:6380", "no secret is shown");
        assert!(!format!("{full:?}").contains("p@ss"));
        let rails = parsed("redis://:secret@[::1]:6379/1");
        assert_eq!((&rails.address, rails.user.as_deref()), (&at("::1", 6379), None));
        assert_eq!(rails.password.as_deref(), Some("secret"));
        assert_eq!(rails.to_string(), "redis://[::1]:6379");
        let unix = parsed("unix:///run/redis%20a.sock?db=2&user=u&pass=p");
        assert_eq!(unix.address, ServerAddress::Unix("/run/redis a.sock".into()));
        assert_eq!(
            (unix.database, unix.user.as_deref(), unix.password.as_deref()),
            (2, Some("u"), Some("p"))
        );
        assert_eq!(parsed("unix:/run/redis.sock").to_string(), "unix:/run/redis.sock");
    }

    #[test]
    fn errors_say_what_is_expected_and_hide_the_password() {
        for (text, expected) in [
            ("localhost:6379", "expected redis://HOST"),
            ("http://localhost", "expected redis://HOST"),
            ("redis:localhost", "// and a host"),
            ("redis://localhost:x", "the port must be"),
            ("redis://localhost:70000", "the port must be"),
            ("redis://[::1", "bracket"),
            ("redis://user:secret@host/x", "the database must be"),
            ("redis://user:secret@host/-1", "the database must be"),
            ("redis://user:secr%zzet@host", "hexadecimal"),
            ("redis://user:secret@host?protocol=3", "parameters"),
            ("unix:redis.sock", "absolute path"),
            ("unix:/redis.sock?secret=1", "unknown parameter"),
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
