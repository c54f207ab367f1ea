//! The keys of a `[[route]]`: what it matches, its pool, and what it does differently from all routes.

use std::str::FromStr;

use ::proxy::{AccessList, Clients, HeaderRule, RouteConfig, RouteSettings};
use anyhow::Result;
use toml::de::DeTable;

use super::{Source, Value};
use crate::units::idle_timeout;
use crate::{bodies, units};

pub(super) const ROUTE_KEYS: [&str; 15] = [
    "host",
    "path",
    "pool",
    "request_headers",
    "response_headers",
    "allow",
    "deny",
    "max_body",
    "body_timeout",
    "body_min_rate",
    "body_buffer",
    "connect_timeout",
    "upstream_timeout",
    "answer_timeout",
    "idle_timeout",
];

impl Source<'_> {
    pub(super) fn routes(&self, value: &Value<'_>) -> Result<Vec<RouteConfig>> {
        let Some(array) = value.get_ref().as_array() else {
            return Err(self.at(value, "write each route as a [[route]] table"));
        };
        array.iter().map(|route| self.route(route)).collect()
    }

    fn route(&self, value: &Value<'_>) -> Result<RouteConfig> {
        let table = self.table(value, "a route")?;
        self.check_keys(table, "[[route]]", &ROUTE_KEYS)?;
        let host = self.value(table, "host", str::parse)?.unwrap_or(proxy::HostPattern::Any);
        let path = self.value(table, "path", path)?.unwrap_or_else(|| "/".into());
        let pool: Option<Box<str>> = self.value(table, "pool", |text| Ok(text.into()))?;
        let pool = pool.ok_or_else(|| self.at(value, "a route needs a pool"))?;
        let settings = self.settings(table, value)?;
        Ok(RouteConfig { host, path, pool, settings })
    }

    fn settings(&self, table: &DeTable<'_>, route: &Value<'_>) -> Result<RouteSettings> {
        let clients = |key| -> Result<Vec<Clients>> {
            self.list(table, key, "networks such as \"10.0.0.0/8\", or \"unix:\"")
        };
        let (allow, deny) = (clients("allow")?, clients("deny")?);
        if allow.is_empty() && table.contains_key("allow") {
            let why = "allow is empty: to refuse all, deny 0.0.0.0/0, ::/0 and unix:";
            return Err(self.at(route, why));
        }
        let access = AccessList::new(&allow, &deny).map_err(|why| self.at(route, why))?;
        let headers = |key| -> Result<Vec<HeaderRule>> { self.list(table, key, "\"Name: value\"") };
        let positive = units::positive_duration;
        let time = |text: &str| idle_timeout(text).map(|timeout| timeout.0);
        Ok(RouteSettings {
            request_headers: headers("request_headers")?,
            response_headers: headers("response_headers")?,
            access,
            body_bytes_max: self.value(table, "max_body", bodies::max_body)?,
            body_timeout: self.value(table, "body_timeout", time)?,
            body_min_rate: self.value(table, "body_min_rate", bodies::body_min_rate)?,
            body_buffer_bytes: self.value(table, "body_buffer", bodies::body_buffer)?,
            connect_timeout: self.value(table, "connect_timeout", positive)?,
            handshake_timeout: self.value(table, "upstream_timeout", positive)?,
            answer_timeout: self.value(table, "answer_timeout", positive)?,
            idle_timeout: self.value(table, "idle_timeout", time)?,
        })
    }

    /// Parses an array of texts; empty if there is none.
    fn list<V: FromStr<Err = String>>(
        &self,
        table: &DeTable<'_>,
        key: &str,
        of: &str,
    ) -> Result<Vec<V>> {
        let Some(value) = table.get(key) else { return Ok(Vec::new()) };
        let Some(array) = value.get_ref().as_array() else {
            return Err(self.at(value, format!("{key} must be an array of {of}")));
        };
        let parsed = |item: &Value<'_>| {
            let Some(text) = item.get_ref().as_str() else {
                return Err(self.at(item, format!("{key} must be an array of {of}")));
            };
            text.parse().map_err(|why| self.at(item, format!("{key}: {why}")))
        };
        array.iter().map(parsed).collect()
    }
}

fn path(text: &str) -> Result<Box<str>, String> {
    RouteConfig::check_path(text).map(|()| text.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parsed(keys: &str) -> Result<RouteConfig> {
        let text = format!("[[route]]\npool = 'a'\n{keys}\n[pool.a]\nupstreams = ['b:1']\n");
        let (routes, _) = super::super::parse(&text, "f")?.unwrap();
        Ok(routes.routes.into_iter().next().unwrap())
    }

    #[test]
    fn every_key_is_parsed() {
        assert_eq!(parsed("").unwrap().settings, RouteSettings::default());
        let keys = "request_headers = ['X-A: $remote_addr', 'Cookie:']\n\
                    response_headers = ['Server:']\n\
                    allow = ['10.0.0.0/8', '::1', 'unix:']\ndeny = ['10.1.0.0/16']\n\
                    max_body = 'off'\nbody_timeout = '5s'\nbody_min_rate = 'off'\n\
                    body_buffer = '64KiB'\nupstream_timeout = '1s'\nanswer_timeout = '2m'\n\
                    connect_timeout = '3s'\nidle_timeout = 'off'";
        let settings = parsed(keys).unwrap().settings;
        let names: Vec<&str> = settings.request_headers.iter().map(HeaderRule::name).collect();
        assert_eq!((names, settings.response_headers.len()), (vec!["X-A", "Cookie"], 1));
        assert_ne!(settings.access, AccessList::default());
        assert_eq!(settings.body_bytes_max, Some(None));
        assert_eq!(settings.body_timeout, Some(Some(Duration::from_secs(5))));
        assert_eq!(settings.body_min_rate, Some(None));
        assert_eq!(settings.body_buffer_bytes, Some(Some(65_536)));
        assert_eq!(settings.handshake_timeout, Some(Duration::from_secs(1)));
        assert_eq!(settings.answer_timeout, Some(Duration::from_secs(120)));
        assert_eq!(settings.connect_timeout, Some(Duration::from_secs(3)));
        assert_eq!(settings.idle_timeout, Some(None));
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        for (keys, complaint) in [
            (
                "request_headers = 'A: b'",
                "f:3: request_headers must be an array of \"Name: value\"",
            ),
            ("request_headers = [1]", "f:3: request_headers must be an array"),
            (
                "request_headers = ['Host: a']",
                "f:3: request_headers: Host belongs to the connection",
            ),
            ("response_headers = ['A: $x']", "f:3: response_headers: unknown variable $x"),
            ("response_headers = [\"A: b\\r\\nC: d\"]", "f:3: response_headers: invalid header"),
            ("request_headers = ['A: b', 'a:']", "host *, path /: request_headers names a twice"),
            ("allow = ['10.0.0.0/33']", "f:3: allow: invalid network \"10.0.0.0/33\""),
            ("allow = ['10.0.0.1/8']", "f:3: allow: invalid network \"10.0.0.1/8\": bits are set"),
            (
                "allow = ['unix:/a']",
                "f:3: allow: invalid value \"unix:/a\": expected unix: without",
            ),
            ("allow = []", "allow is empty"),
            ("allow = ['::1']\ndeny = ['::1']", "f:1: ::1/128 is in allow and in deny"),
            ("max_body = 'many'", "f:3: max_body: invalid value \"many\""),
            ("body_min_rate = '1'", "f:3: body_min_rate: "),
            ("body_buffer = '65MiB'", "f:3: body_buffer: "),
            ("answer_timeout = '0s'", "f:3: answer_timeout: "),
            ("body_timout = '1s'", "did you mean body_timeout?"),
        ] {
            let error = format!("{:#}", parsed(keys).unwrap_err());
            assert!(error.contains(complaint), "{keys}: {error}");
        }
    }

    #[test]
    fn the_operators_page_documents_every_route_key() {
        let page = include_str!("../../docs/operate/proxy.md");
        let (_, section) = page.split_once("\n## Routes\n").unwrap();
        let (section, _) = section.split_once("\n## Pool keys\n").unwrap();
        for key in ROUTE_KEYS {
            assert!(section.contains(&format!("`{key}`")), "docs/operate/proxy.md lacks {key}");
        }
    }
}
