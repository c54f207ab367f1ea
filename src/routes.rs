//! Routes and pools from a configuration file: the sections `[[route]]` and `[pool.NAME]` beside
//! `[proxy]`. An invalid or unknown key is an error with its line; for an unknown key the error
//! suggests the nearest known one.
//!
//! Values have the same syntax as on the command line and use the same parsers for units.

#[path = "routes/route.rs"] // The fuzz target includes this file by its path.
mod route;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::proxy::{
    Balance, CheckKind, CookieKey, ErrorEjection, HashBy, MemberConfig, PoolConfig, ProxyVersion,
    RouteConfig, RoutesConfig, Sticky,
};
use anyhow::{Context, Result, anyhow, bail};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::settings::{line_of, nearest};
use crate::units;

const MEMBER_KEYS: [&str; 4] = ["address", "weight", "max", "backup"];
const POOL_KEYS: [&str; 34] = [
    "upstreams",
    "balance",
    "hash",
    "sticky",
    "sticky_max_age",
    "sticky_secure",
    "slow_start",
    "max",
    "queue",
    "queue_timeout",
    "check",
    "check_host",
    "check_headers",
    "check_expect",
    "check_interval",
    "check_timeout",
    "rise",
    "fall",
    "panic_threshold",
    "eject_after",
    "eject_for",
    "eject_5xx",
    "eject_5xx_window",
    "eject_5xx_answers",
    "eject_5xx_for",
    "eject_5xx_for_max",
    "resolve",
    "tls",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_name",
    "tls_insecure",
    "proxy_protocol",
];

/// Maximum number of headers of a health check.
const CHECK_HEADERS_MAX: usize = 32;

/// The TLS and PROXY settings of one pool in a file. What is not set there comes from the flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolTransport {
    /// TLS to upstreams; `Some(None)` is plain TCP.
    pub(crate) tls: Option<Option<TlsFiles>>,
    /// Version of the PROXY header; `Some(None)` sends none.
    pub(crate) proxy_protocol: Option<Option<ProxyVersion>>,
}

/// TLS settings for upstreams, with paths of files that are not read yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) name: Option<String>,
    pub(crate) insecure: bool,
}

/// Routes and pools, and the transport of each pool in the same order.
pub(crate) type FileRoutes = (RoutesConfig, Vec<PoolTransport>);

/// A file being parsed.
struct Source<'t> {
    text: &'t str,
    shown: &'t str,
}

type Value<'t> = Spanned<DeValue<'t>>;

/// Reads the routes and pools of a file; `None` if it has none.
///
/// # Errors
/// The file cannot be read, or an error in it with its line.
pub(crate) fn from_file(path: &Path) -> Result<Option<FileRoutes>> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    parse(&text, &shown)
}

/// Parses the text of a file; `shown` is its name in errors.
///
/// # Errors
/// The first error with its line.
pub(crate) fn parse(text: &str, shown: &str) -> Result<Option<FileRoutes>> {
    let source = Source { text, shown };
    let file = DeTable::parse(text).with_context(|| format!("{shown} is not TOML"))?;
    let (mut routes, mut transports) = (RoutesConfig::default(), Vec::new());
    for (name, value) in file.get_ref() {
        match name.get_ref().as_ref() {
            "route" => routes.routes = source.routes(value)?,
            "pool" => (routes.pools, transports) = source.pools(value)?.into_iter().unzip(),
            _ => {}
        }
    }
    if routes == RoutesConfig::default() {
        return Ok(None);
    }
    if let (true, [only]) = (routes.routes.is_empty(), routes.pools.as_slice()) {
        // One pool and no route: all requests go to that pool.
        let route = RouteConfig::new(proxy::HostPattern::Any, "/", only.name.clone());
        routes.routes.push(route);
    }
    routes.check().map_err(|why| anyhow!("{shown}: {why}"))?;
    Ok(Some((routes, transports)))
}

impl Source<'_> {
    /// An error about a value, with its line.
    fn at(&self, value: &Spanned<impl Sized>, why: impl std::fmt::Display) -> anyhow::Error {
        anyhow!("{}:{}: {why}", self.shown, line_of(self.text, value.span().start))
    }

    fn table<'v, 't>(&self, value: &'v Value<'t>, what: &str) -> Result<&'v DeTable<'t>> {
        let table = value.get_ref().as_table();
        table.ok_or_else(|| self.at(value, format!("{what} must be a table")))
    }

    /// Rejects unknown keys.
    fn check_keys(&self, table: &DeTable<'_>, of: &str, keys: &[&str]) -> Result<()> {
        for name in table.keys() {
            let key: &str = name.get_ref();
            if keys.contains(&key) {
                continue;
            }
            let near = nearest(key, keys.iter().copied());
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return Err(self.at(name, format!("{of} has no key {key}{near}")));
        }
        Ok(())
    }

    /// Parses the value of a key with `parse`, as on a command line.
    fn value<V>(
        &self,
        table: &DeTable<'_>,
        key: &str,
        parse: impl Fn(&str) -> Result<V, String>,
    ) -> Result<Option<V>> {
        let Some(value) = table.get(key) else { return Ok(None) };
        let text = scalar_text(value.get_ref()).ok_or_else(|| {
            self.at(value, format!("{key} must be a string, an integer, true or false"))
        })?;
        let wrong =
            |why: String| self.at(value, format!("{key}: {}", units::with_value(&text, &why)));
        parse(&text).map(Some).map_err(wrong)
    }

    fn pools(&self, value: &Value<'_>) -> Result<Vec<(PoolConfig, PoolTransport)>> {
        let pools = self.table(value, "[pool.NAME]")?;
        let pool = |(name, value): (&Spanned<_>, &Value<'_>)| {
            let name: &std::borrow::Cow<'_, str> = name.get_ref();
            self.pool(name, value)
        };
        pools.iter().map(pool).collect()
    }

    fn pool(&self, name: &str, value: &Value<'_>) -> Result<(PoolConfig, PoolTransport)> {
        let of = format!("[pool.{name}]");
        let table = self.table(value, &of)?;
        self.check_keys(table, &of, &POOL_KEYS)?;
        let mut pool = PoolConfig::new(name, []);
        pool.members = match table.get("upstreams") {
            Some(upstreams) => self.members(upstreams)?,
            None => return Err(self.at(value, format!("{of} needs upstreams"))),
        };
        pool.balance = self.balance(table, value)?;
        pool.sticky = self.sticky(table, value)?;
        pool.max = self.value(table, "max", number)?;
        let limits = &mut pool.limits;
        set(&mut limits.slow_start, self.value(table, "slow_start", units::duration)?);
        set(&mut limits.queue, self.value(table, "queue", number_or_none)?);
        let positive = units::positive_duration;
        set(&mut limits.queue_timeout, self.value(table, "queue_timeout", positive)?);
        let check = &mut pool.check;
        set(&mut check.kind, self.value(table, "check", str::parse::<CheckKind>)?);
        check.host = self.value(table, "check_host", check_host)?;
        check.headers = self.check_headers(table)?;
        check.expect = self.value(table, "check_expect", str::parse)?;
        set(&mut check.every, self.value(table, "check_interval", at_least_100_ms)?);
        set(&mut check.timeout, self.value(table, "check_timeout", positive)?);
        set(&mut check.rise, self.value(table, "rise", number)?);
        set(&mut check.fall, self.value(table, "fall", number)?);
        set(&mut pool.limits.panic_threshold, self.value(table, "panic_threshold", percent)?);
        set(&mut pool.eject_after, self.value(table, "eject_after", number_or_none)?);
        set(&mut pool.eject_for, self.value(table, "eject_for", positive)?);
        self.error_ejection(table, value, &mut pool.limits.error_ejection)?;
        set(&mut pool.resolve_every, self.value(table, "resolve", at_least_1_s)?);
        let proxy_protocol = self.value(table, "proxy_protocol", proxy_version)?;
        let transport = PoolTransport { tls: self.tls(table, value)?, proxy_protocol };
        Ok((pool, transport))
    }

    fn error_ejection(
        &self,
        table: &DeTable<'_>,
        pool: &Value<'_>,
        ejection: &mut ErrorEjection,
    ) -> Result<()> {
        let positive = units::positive_duration;
        let percent = self.value(table, "eject_5xx", percent)?;
        let window = self.value(table, "eject_5xx_window", at_least_1_s)?;
        let answers = self.value(table, "eject_5xx_answers", number)?;
        let first = self.value(table, "eject_5xx_for", positive)?;
        let longest = self.value(table, "eject_5xx_for_max", positive)?;
        let detailed =
            window.is_some() || answers.is_some() || first.is_some() || longest.is_some();
        if percent.is_none() && detailed {
            bail!(self.at(
                pool,
                "eject_5xx_window, eject_5xx_answers, eject_5xx_for and eject_5xx_for_max need \
                 eject_5xx, a percentage"
            ));
        }
        set(&mut ejection.percent, percent);
        set(&mut ejection.window, window);
        set(&mut ejection.answers, answers);
        set(&mut ejection.first, first);
        // The default may be shorter.
        ejection.longest = longest.unwrap_or_else(|| ejection.longest.max(ejection.first));
        Ok(())
    }

    fn check_headers(&self, table: &DeTable<'_>) -> Result<Vec<(Box<str>, Box<str>)>> {
        let Some(value) = table.get("check_headers") else { return Ok(Vec::new()) };
        let Some(array) = value.get_ref().as_array() else {
            return Err(self.at(value, "check_headers must be an array of \"Name: value\""));
        };
        if array.len() > CHECK_HEADERS_MAX {
            let given = array.len();
            let why = format!("check_headers has {given} entries: at most {CHECK_HEADERS_MAX}");
            return Err(self.at(value, why));
        }
        let header = |item: &Value<'_>| {
            let text = item.get_ref().as_str().unwrap_or_default();
            check_header(text).map_err(|why| self.at(item, format!("check_headers: {why}")))
        };
        array.iter().map(header).collect()
    }

    fn tls(&self, table: &DeTable<'_>, pool: &Value<'_>) -> Result<Option<Option<TlsFiles>>> {
        let file = |key| self.value(table, key, |text| Ok(PathBuf::from(text)));
        let name = self.value(table, "tls_name", |text| Ok(text.to_owned()))?;
        let insecure = self.value(table, "tls_insecure", boolean)?.unwrap_or(false);
        let (ca, cert, key) = (file("tls_ca")?, file("tls_cert")?, file("tls_key")?);
        let files = TlsFiles { ca, cert, key, name, insecure };
        if files.cert.is_some() != files.key.is_some() {
            return Err(self.at(pool, "tls_cert and tls_key must be set together"));
        }
        match self.value(table, "tls", boolean)? {
            Some(true) => Ok(Some(Some(files))),
            _ if files != TlsFiles::default() => Err(self
                .at(pool, "tls_ca, tls_cert, tls_key, tls_name and tls_insecure need tls = true")),
            other => Ok(other.map(|_| None)),
        }
    }

    fn members(&self, value: &Value<'_>) -> Result<Vec<MemberConfig>> {
        let Some(array) = value.get_ref().as_array() else {
            return Err(self.at(value, "upstreams must be an array"));
        };
        array.iter().map(|member| self.member(member)).collect()
    }

    fn member(&self, value: &Value<'_>) -> Result<MemberConfig> {
        if let Some(text) = value.get_ref().as_str() {
            return text.parse().map(MemberConfig::new).map_err(|why| self.at(value, why));
        }
        let Some(table) = value.get_ref().as_table() else {
            return Err(self.at(value, "an upstream must be a string or a table"));
        };
        self.check_keys(table, "an upstream", &MEMBER_KEYS)?;
        let endpoint = self.value(table, "address", str::parse)?;
        let endpoint = endpoint.ok_or_else(|| self.at(value, "an upstream needs an address"))?;
        let mut member = MemberConfig::new(endpoint);
        set(&mut member.weight, self.value(table, "weight", weight)?);
        member.max = self.value(table, "max", number)?;
        set(&mut member.backup, self.value(table, "backup", boolean)?);
        Ok(member)
    }

    fn balance(&self, table: &DeTable<'_>, pool: &Value<'_>) -> Result<Balance> {
        let by = self.value(table, "hash", hash_by)?;
        let named = self.value(table, "balance", |text| Ok(text.to_owned()))?;
        let balance = match (named.as_deref(), by) {
            (None | Some("least_connections"), None) => Balance::LeastConnections,
            (Some("round_robin"), None) => Balance::RoundRobin,
            (Some("random"), None) => Balance::Random,
            (None | Some("hash"), Some(by)) => Balance::Hash(by),
            (Some("hash"), None) => {
                let why =
                    "balance = \"hash\" needs hash: address, path, header:NAME or cookie:NAME";
                return Err(self.at(pool, why));
            }
            (Some(other @ ("least_connections" | "round_robin" | "random")), Some(_)) => {
                return Err(
                    self.at(pool, format!("hash needs balance = \"hash\", not \"{other}\""))
                );
            }
            (Some(other), _) => {
                let why = format!(
                    "invalid balance \"{other}\": expected least_connections, round_robin, random \
                     or hash"
                );
                return Err(self.at(table.get("balance").unwrap_or(pool), why));
            }
        };
        Ok(balance)
    }

    fn sticky(&self, table: &DeTable<'_>, pool: &Value<'_>) -> Result<Option<Sticky>> {
        let max_age = self.value(table, "sticky_max_age", units::positive_duration)?;
        let secure = self.value(table, "sticky_secure", boolean)?;
        let Some(cookie) = self.value(table, "sticky", cookie_name)? else {
            if max_age.is_some() || secure.is_some() {
                bail!(self.at(
                    pool,
                    "sticky_max_age and sticky_secure need sticky, the name of a cookie"
                ));
            }
            return Ok(None);
        };
        // The key is a flag's.
        let (secure, key) = (secure.unwrap_or(false), CookieKey::default());
        Ok(Some(Sticky { cookie, max_age, secure, key }))
    }
}

fn set<V>(slot: &mut V, value: Option<V>) {
    if let Some(value) = value {
        *slot = value;
    }
}

fn scalar_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Boolean(boolean) => Some(boolean.to_string()),
        _ => None,
    }
}

fn hash_by(text: &str) -> Result<HashBy, String> {
    match text.split_once(':') {
        None if text == "address" => Ok(HashBy::Address),
        None if text == "path" => Ok(HashBy::Path),
        Some(("header", name)) if is_token(name) => {
            Ok(HashBy::Header(name.to_ascii_lowercase().into()))
        }
        Some(("cookie", name)) if is_token(name) => Ok(HashBy::Cookie(name.into())),
        _ => Err(format!(
            "invalid key \"{text}\": expected address, path, header:NAME or cookie:NAME"
        )),
    }
}

fn proxy_version(text: &str) -> Result<Option<ProxyVersion>, String> {
    match text {
        "off" => Ok(None),
        "v1" => Ok(Some(ProxyVersion::V1)),
        "v2" => Ok(Some(ProxyVersion::V2)),
        _ => Err(format!("invalid version \"{text}\": expected v1, v2 or off")),
    }
}

fn cookie_name(text: &str) -> Result<Box<str>, String> {
    if is_token(text) { Ok(text.into()) } else { Err(format!("invalid cookie name \"{text}\"")) }
}

/// Whether a text is a token (RFC 9110 section 5.6.2).
fn is_token(text: &str) -> bool {
    let right = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(right)
}

/// A Host header: a name or an address, with or without a port.
fn check_host(text: &str) -> Result<Box<str>, String> {
    let right = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    if !text.is_empty() && text.len() <= 260 && text.bytes().all(right) {
        return Ok(text.into());
    }
    Err(format!("invalid host \"{text}\": expected example.com or example.com:8080"))
}

/// One header as `Name: value`. Headers of the protocol belong to the check.
fn check_header(text: &str) -> Result<(Box<str>, Box<str>), String> {
    let wrong = || format!("invalid header \"{text}\": expected \"Name: value\"");
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let value = value.trim();
    let visible = value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte));
    if !is_token(name) || !visible || text.len() > 4096 {
        return Err(wrong());
    }
    let lower = name.to_ascii_lowercase();
    if lower == "host" {
        return Err("Host is set by check_host".to_owned());
    }
    let fixed = ["connection", "content-length", "transfer-encoding", "upgrade"];
    if fixed.contains(&lower.as_str()) || lower.starts_with("sec-websocket-") {
        return Err(format!("{name} is set by the check itself"));
    }
    Ok((name.into(), value.into()))
}

fn percent(text: &str) -> Result<u8, String> {
    let percent = text.parse().ok().filter(|percent| *percent <= 100);
    percent.ok_or_else(|| format!("invalid percentage \"{text}\": expected 0 to 100"))
}

fn number(text: &str) -> Result<u32, String> {
    let number = units::positive_count(text)?;
    u32::try_from(number).map_err(|_| format!("{number} is too large"))
}

fn number_or_none(text: &str) -> Result<u32, String> {
    let number = units::count(text)?;
    u32::try_from(number).map_err(|_| format!("{number} is too large"))
}

fn weight(text: &str) -> Result<u16, String> {
    let weight = text.parse().ok().filter(|weight| (1..=256).contains(weight));
    weight.ok_or_else(|| format!("invalid weight \"{text}\": expected 1 to 256"))
}

fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("invalid value \"{text}\": expected true or false"))
}

fn at_least(text: &str, least: Duration) -> Result<Duration, String> {
    let time = units::duration(text)?;
    if time < least {
        Err(format!("must be at least {}", units::format_duration(least)))
    } else {
        Ok(time)
    }
}

fn at_least_100_ms(text: &str) -> Result<Duration, String> {
    at_least(text, Duration::from_millis(100))
}

fn at_least_1_s(text: &str) -> Result<Duration, String> {
    at_least(text, Duration::from_secs(1))
}

#[cfg(test)]
mod tests;
