//! Reads the environment variables of AnyCable's server as settings of `serve`, so that it can replace
//! that server without a new configuration. Variables without effect are logged once.
//!
//! Other sources of AnyCable's settings (its file, its flags) are not read. The result is a layer of
//! settings below our own environment.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Result, bail};

use crate::settings::Layer;

/// The prefix of its variables.
pub(crate) const PREFIX: &str = "ANYCABLE_";

/// Variables whose value is used unchanged.
const DIRECT: [(&str, &str); 15] = [
    ("BROADCAST_KEY", "broadcast_key"),
    ("CABLE_READY_SECRET", "cable_ready_secret"),
    ("HTTP_BROADCAST_SECRET", "broadcast_key"),
    ("HTTP_RPC_SECRET", "http_rpc_secret"),
    ("JWT_PARAM", "jwt_param"),
    ("JWT_SECRET", "jwt_secret"),
    ("LOG_LEVEL", "log"),
    ("NATS_CHANNEL", "nats_channel"),
    ("REDISX_STREAM", "redisx_stream"),
    ("REDIS_CHANNEL", "redis_channel"),
    ("SECRET", "secret"),
    ("SSL_CERT", "tls_cert"),
    ("SSL_KEY", "tls_key"),
    ("STREAMS_SECRET", "streams_secret"),
    ("TURBO_STREAMS_SECRET", "turbo_secret"),
];
/// Variables that are on or off.
const SWITCHES: [(&str, &str); 6] = [
    ("ENFORCE_JWT", "enforce_jwt"),
    ("POLL", "long_polling"),
    ("PUBLIC", "public"),
    ("PUBLIC_STREAMS", "public_streams"),
    ("RPC_ENABLE_TLS", "rpc_tls"),
    ("STREAMS_WHISPER", "streams_whisper"),
];
/// Whole numbers, with the unit of our setting.
const NUMBERS: [(&str, &str, &str); 16] = [
    ("DISCONNECT_BACKLOG_SIZE", "disconnect_backlog", ""),
    ("DISCONNECT_RATE", "disconnect_rate", ""),
    ("HISTORY_LIMIT", "history_limit", ""),
    ("HISTORY_TTL", "history_ttl", "s"),
    ("MAX_MESSAGE_SIZE", "max_message", "B"),
    ("PING_INTERVAL", "ping_interval", "s"),
    ("POLL_FLUSH_INTERVAL", "long_polling_flush_interval", "ms"),
    ("POLL_INTERVAL", "long_polling_interval", "s"),
    ("POLL_KEEPALIVE_TIMEOUT", "long_polling_keepalive", "s"),
    // Its documentation has this spelling, too.
    ("POLL_MAX_REQEUEST_SIZE", "long_polling_max_body", "B"),
    ("POLL_MAX_REQUEST_SIZE", "long_polling_max_body", "B"),
    ("PRESENCE_TTL", "presence_ttl", "s"),
    ("RPC_MAX_CALL_RECV_SIZE", "rpc_max_reply", "B"),
    ("SESSIONS_TTL", "sessions_ttl", "s"),
    ("SHUTDOWN_TIMEOUT", "drain", "s"),
    ("WS_MAX_PENDING_SIZE", "send_queue", "B"),
];
/// Values that `serve` always satisfies: they are accepted without a warning.
const ALREADY_SO: [(&str, &[&str]); 12] = [
    ("BROKER", &["none"]),
    ("CABLE_READY", &["true", "1"]),
    ("DEBUG", &["false", "0"]),
    ("HEALTH_PATH", &["/health"]),
    ("HTTP_BROADCAST_PATH", &["/_broadcast"]),
    // Without a required token, clients connect without one and subscribe to signed streams.
    ("NOAUTH", &["true", "1"]),
    ("NORPC", &["true", "1"]),
    ("PING_TIMESTAMP_PRECISION", &["s"]),
    ("PUBSUB", &["none"]),
    ("REDIS_TLS_VERIFY", &["true", "1"]),
    ("SSE", &["false", "0"]),
    ("TURBO_STREAMS", &["true", "1"]),
];

/// Where Redis is, which has no effect unless something uses it.
const REDIS: [&str; 2] = ["REDIS_SENTINELS", "REDIS_URL"];

/// The settings in the environment.
#[derive(Debug, Default)]
pub(crate) struct AnycableEnv {
    /// As settings of `serve`.
    pub(crate) layer: Layer,
    /// Variables that have no effect here, in order.
    pub(crate) ignored: Vec<String>,
}

impl AnycableEnv {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// A variable with a value that it cannot have, by name.
    pub(crate) fn from_environment() -> Result<Self> {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::read(std::env::vars_os().filter_map(text))
    }

    fn read(variables: impl Iterator<Item = (String, String)>) -> Result<Self> {
        // Sorted; an empty variable counts as absent.
        let variables: BTreeMap<String, String> = variables
            .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?.to_owned(), value)))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let mut this = AnycableEnv::default();
        let is_redis = |name| variables.get(name).is_some_and(|value| value == "redis");
        let uses_redis = this.takes_from_redis(&variables, is_redis("BROKER"))
            || is_redis("PUBSUB")
            || is_redis("BROKER");
        for (name, value) in &variables {
            let unused = REDIS.contains(&&**name) && !uses_redis;
            if unused || !this.take(name, value)? {
                this.ignored.push(format!("{PREFIX}{name}"));
            }
        }
        this.take_addresses(&variables)?;
        this.take_application(&variables)?;
        this.take_presence(&variables)?;
        // A broker of all nodes is that of their publications, too.
        let broker = variables.get("BROKER").filter(|value| ["redis", "nats"].contains(&&***value));
        if let Some(broker) = broker.filter(|_| !variables.contains_key("PUBSUB")) {
            this.set("pubsub", broker);
        }
        Ok(this)
    }

    /// Whether publishers are taken by Redis. Where a server is named and no adapter, AnyCable does; a broker has to
    /// get each message once, so it is the stream then.
    fn takes_from_redis(&mut self, variables: &BTreeMap<String, String>, has_broker: bool) -> bool {
        let adapter = if has_broker { "redisx" } else { "redis" };
        match variables.get("BROADCAST_ADAPTER") {
            Some(names) => names.split(',').any(|name| ["redis", "redisx"].contains(&name.trim())),
            None => variables.contains_key("REDIS_URL") && self.set("broadcast_adapter", adapter),
        }
    }

    fn set(&mut self, key: &str, value: impl Into<String>) -> bool {
        self.layer.insert(key.to_owned(), vec![value.into()]);
        true
    }

    fn set_list(&mut self, key: &str, values: &str) -> bool {
        let values = values.split(',').map(str::trim).filter(|value| !value.is_empty());
        self.layer.insert(key.to_owned(), values.map(str::to_owned).collect());
        true
    }

    /// Applies one variable; false if it has no effect.
    fn take(&mut self, name: &str, value: &str) -> Result<bool> {
        if let Some((_, key)) = DIRECT.iter().find(|(theirs, _)| *theirs == name) {
            return Ok(self.set(key, value));
        }
        if let Some((_, key)) = SWITCHES.iter().find(|(theirs, _)| *theirs == name) {
            return Ok(self.set(key, truth(name, value)?.to_string()));
        }
        if let Some((_, key, unit)) = NUMBERS.iter().find(|(theirs, ..)| *theirs == name) {
            return Ok(self.set(key, format!("{}{unit}", number(name, value)?)));
        }
        if let Some((_, agreed)) = ALREADY_SO.iter().find(|(theirs, _)| *theirs == name)
            && agreed.contains(&value)
        {
            return Ok(true);
        }
        match name {
            // `take_addresses` handles these once all variables are known.
            "HOST" | "PORT" | "HTTP_BROADCAST_PORT" => Ok(true),
            // `take_application` handles these.
            "RPC_HOST"
            | "RPC_IMPL"
            | "RPC_COMMAND_TIMEOUT"
            | "RPC_REQUEST_TIMEOUT"
            | "HTTP_RPC_TIMEOUT" => Ok(true),
            "RPC_CONCURRENCY" => match number(name, value)? {
                0 => Ok(self.set("rpc_concurrency", "auto")),
                most => Ok(self.set("rpc_concurrency", most.to_string())),
            },
            "RPC_TLS_VERIFY" => match truth(name, value)? {
                true => Ok(true),
                false => Ok(self.set("rpc_tls_insecure", "true")),
            },
            // A path; the text of a certificate is not supported.
            "RPC_TLS_ROOT_CA" if !value.contains("-----BEGIN") => Ok(self.set("rpc_tls_ca", value)),
            "BROADCAST_ADAPTER" => Ok(self.set_list("broadcast_adapter", value)),
            "NATS_SERVERS" => Ok(self.set_list("nats_servers", value)),
            "HEADERS" => Ok(self.set_list("proxy_headers", value)),
            "PROXY_COOKIES" => Ok(self.set_list("proxy_cookies", value)),
            "DISCONNECT_MODE" if ["auto", "always", "never"].contains(&value) => {
                Ok(self.set("disconnect_mode", value))
            }
            "ALLOWED_ORIGINS" => {
                self.layer.insert("allow_origin".to_owned(), origins(value));
                Ok(true)
            }
            // `take_presence` adds presence.
            "BROKER" if ["memory", "redis", "nats"].contains(&value) => {
                Ok(self.set("history", value))
            }
            "PUBSUB" if ["redis", "nats"].contains(&value) => Ok(self.set("pubsub", value)),
            "REDIS_URL" => Ok(self.set_list("redis_url", value)),
            "REDIS_SENTINELS" => Ok(self.set_list("redis_sentinels", value)),
            "STREAMS_PRESENCE" => truth(name, value).map(|_| true),
            "MAX_CONN" => match number(name, value)? {
                0 => Ok(true),
                most => Ok(self.set("max_connections", most.to_string())),
            },
            "ENABLE_WS_COMPRESSION" => {
                let how = if truth(name, value)? { "shared" } else { "off" };
                Ok(self.set("compression", how))
            }
            // One path; lists and patterns of paths are not supported.
            "PATH" if !value.contains([',', '*', '{']) => {
                Ok(self.set("cable_path", format!("/{}", value.trim_start_matches('/'))))
            }
            "POLL_PATH" => {
                Ok(self.set("long_polling_path", format!("/{}", value.trim_start_matches('/'))))
            }
            "PONG_TIMEOUT" => match number(name, value)? {
                0 => Ok(true),
                seconds => Ok(self.set("pong_timeout", format!("{seconds}s"))),
            },
            "DEBUG" => {
                truth(name, value)?;
                Ok(self.set("log", "debug"))
            }
            _ => Ok(false),
        }
    }

    /// Sets presence: AnyCable's broker in memory has it, unless streams are to be without.
    fn take_presence(&mut self, variables: &BTreeMap<String, String>) -> Result<()> {
        let get = |name: &str| variables.get(name).map(String::as_str);
        let wanted = get("STREAMS_PRESENCE").map(|value| truth("STREAMS_PRESENCE", value));
        if get("BROKER") == Some("memory") && wanted.transpose()?.unwrap_or(true) {
            self.set("presence", "memory");
        }
        Ok(())
    }

    /// Sets the application that is called, and the time for a call. AnyCable calls one by default; here it
    /// is set.
    fn take_application(&mut self, variables: &BTreeMap<String, String>) -> Result<()> {
        let get = |name: &str| variables.get(name).map(String::as_str);
        let off = get("NORPC").map(|value| truth("NORPC", value)).transpose()?.unwrap_or(false);
        let implementation = get("RPC_IMPL");
        match get("RPC_HOST") {
            None | Some("none") => {}
            Some(_) if off || implementation == Some("none") => {}
            Some(host) => {
                self.set("rpc_host", host);
                let is_http = host.starts_with("http://") || host.starts_with("https://");
                let agrees = match implementation {
                    None => true,
                    Some("http") => is_http,
                    Some("grpc") => !is_http,
                    Some(_) => false,
                };
                if !agrees {
                    self.ignored.push(format!("{PREFIX}RPC_IMPL"));
                }
                // Without a token clients are the application's to decide about.
                let open = get("NOAUTH").map(|value| truth("NOAUTH", value)).transpose()?;
                if open == Some(true) {
                    self.ignored.push(format!("{PREFIX}NOAUTH"));
                }
            }
        }
        let times = ["RPC_COMMAND_TIMEOUT", "RPC_REQUEST_TIMEOUT", "HTTP_RPC_TIMEOUT"];
        let mut least = None;
        for name in times {
            let Some(value) = get(name) else { continue };
            let time = Some(number(name, value)?).filter(|time| *time > 0);
            least = least.into_iter().chain(time).min();
        }
        if let Some(least) = least {
            self.set("rpc_timeout", format!("{least}ms"));
        }
        Ok(())
    }

    /// Sets the listeners for clients and publishers.
    fn take_addresses(&mut self, variables: &BTreeMap<String, String>) -> Result<()> {
        let port = |name: &str| variables.get(name).map(|value| number(name, value)).transpose();
        let main = port("PORT")?;
        if main.is_some() || variables.contains_key("HOST") {
            let host = variables.get("HOST").map_or("localhost", String::as_str);
            let main = main.unwrap_or(8080);
            self.set("listen", address(host, main)?);
        }
        // With a key, AnyCable accepts broadcasts on the client port unless another port is set.
        let keys = ["BROADCAST_KEY", "HTTP_BROADCAST_SECRET", "SECRET"];
        let key = keys.iter().find_map(|name| variables.get(*name));
        let keyed = key.is_some_and(|key| key != "none");
        match port("HTTP_BROADCAST_PORT")? {
            None | Some(0) => {}
            Some(port) if port != main.unwrap_or(8080) => {
                self.set("admin", address("localhost", port)?);
                return Ok(());
            }
            // The client port, where publishing needs a key.
            Some(_) if !keyed => self.ignored.push(format!("{PREFIX}HTTP_BROADCAST_PORT")),
            Some(_) => {}
        }
        if keyed {
            self.set("listen_broadcast", "true");
        }
        Ok(())
    }
}

fn address(host: &str, port: u64) -> Result<String> {
    match host {
        "localhost" => Ok(format!("127.0.0.1:{port}")),
        _ => match host.parse() {
            Ok(IpAddr::V4(address)) => Ok(format!("{address}:{port}")),
            Ok(IpAddr::V6(address)) => Ok(format!("[{address}]:{port}")),
            Err(_) => bail!("invalid {PREFIX}HOST \"{host}\": expected localhost or an IP address"),
        },
    }
}

fn number(name: &str, value: &str) -> Result<u64> {
    match value.parse() {
        Ok(number) => Ok(number),
        Err(_) => bail!("invalid {PREFIX}{name} \"{value}\": expected a whole number"),
    }
}

fn truth(name: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" => Ok(true),
        "0" | "f" | "false" => Ok(false),
        _ => bail!("invalid {PREFIX}{name} \"{value}\": expected true or false"),
    }
}

/// Converts hosts to origins of both schemes. In AnyCable a host with a leading `*` matches every host
/// with that ending; here it matches the host itself and its subdomains only.
fn origins(hosts: &str) -> Vec<String> {
    let hosts = hosts.split(',').map(str::trim).filter(|host| !host.is_empty());
    let mut origins = Vec::new();
    for host in hosts {
        let names = match host.strip_prefix('*') {
            None => vec![host.to_owned()],
            Some("") => {
                origins.push("*".to_owned());
                continue;
            }
            Some(below) => match below.strip_prefix('.') {
                Some(below) => vec![format!("*.{below}")],
                None => vec![below.to_owned(), format!("*.{below}")],
            },
        };
        let schemes = |name: String| [format!("https://{name}"), format!("http://{name}")];
        origins.extend(names.into_iter().flat_map(schemes));
    }
    origins
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<AnycableEnv> {
        AnycableEnv::read(
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    fn layer(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        let layer = read(variables).unwrap().layer;
        layer.into_iter().map(|(key, values)| (key, values.join(","))).collect()
    }

    fn one(name: &str, value: &str) -> (String, String) {
        let layer = layer(&[(name, value)]);
        assert_eq!(layer.len(), 1, "{name}: {layer:?}");
        layer.into_iter().next().unwrap()
    }

    #[test]
    fn variables_become_settings() {
        let cases = [
            ("ANYCABLE_TURBO_STREAMS_SECRET", "t", "turbo_secret", "t"),
            ("ANYCABLE_ENFORCE_JWT", "1", "enforce_jwt", "true"),
            ("ANYCABLE_PUBLIC", "false", "public", "false"),
            ("ANYCABLE_SHUTDOWN_TIMEOUT", "30", "drain", "30s"),
            ("ANYCABLE_MAX_MESSAGE_SIZE", "65536", "max_message", "65536B"),
            ("ANYCABLE_MAX_CONN", "5000", "max_connections", "5000"),
            ("ANYCABLE_PORT", "9000", "listen", "127.0.0.1:9000"),
            ("ANYCABLE_HOST", "0.0.0.0", "listen", "0.0.0.0:8080"),
            ("ANYCABLE_HOST", "::", "listen", "[::]:8080"),
            ("ANYCABLE_HTTP_BROADCAST_PORT", "9090", "admin", "127.0.0.1:9090"),
            ("ANYCABLE_ENABLE_WS_COMPRESSION", "false", "compression", "off"),
            ("ANYCABLE_DEBUG", "true", "log", "debug"),
            ("ANYCABLE_RPC_HOST", "app:50051", "rpc_host", "app:50051"),
            ("ANYCABLE_RPC_CONCURRENCY", "0", "rpc_concurrency", "auto"),
            ("ANYCABLE_RPC_CONCURRENCY", "28", "rpc_concurrency", "28"),
            ("ANYCABLE_RPC_COMMAND_TIMEOUT", "5000", "rpc_timeout", "5000ms"),
            ("ANYCABLE_RPC_ENABLE_TLS", "true", "rpc_tls", "true"),
            ("ANYCABLE_RPC_TLS_VERIFY", "false", "rpc_tls_insecure", "true"),
            ("ANYCABLE_RPC_TLS_ROOT_CA", "/ca.pem", "rpc_tls_ca", "/ca.pem"),
            ("ANYCABLE_RPC_MAX_CALL_RECV_SIZE", "4096", "rpc_max_reply", "4096B"),
            ("ANYCABLE_HTTP_RPC_SECRET", "k", "http_rpc_secret", "k"),
            ("ANYCABLE_HEADERS", "cookie, x-api", "proxy_headers", "cookie,x-api"),
            ("ANYCABLE_PROXY_COOKIES", "a,b", "proxy_cookies", "a,b"),
            ("ANYCABLE_DISCONNECT_MODE", "never", "disconnect_mode", "never"),
            ("ANYCABLE_DISCONNECT_RATE", "50", "disconnect_rate", "50"),
            ("ANYCABLE_DISCONNECT_BACKLOG_SIZE", "10", "disconnect_backlog", "10"),
            ("ANYCABLE_HISTORY_LIMIT", "50", "history_limit", "50"),
            ("ANYCABLE_HISTORY_TTL", "60", "history_ttl", "60s"),
            ("ANYCABLE_SESSIONS_TTL", "30", "sessions_ttl", "30s"),
            ("ANYCABLE_PRESENCE_TTL", "5", "presence_ttl", "5s"),
            ("ANYCABLE_BROADCAST_ADAPTER", "http, redisx", "broadcast_adapter", "http,redisx"),
            ("ANYCABLE_REDIS_CHANNEL", "c", "redis_channel", "c"),
            ("ANYCABLE_REDISX_STREAM", "s", "redisx_stream", "s"),
            ("ANYCABLE_NATS_SERVERS", "nats://a,nats://b", "nats_servers", "nats://a,nats://b"),
            ("ANYCABLE_NATS_CHANNEL", "n", "nats_channel", "n"),
            ("ANYCABLE_POLL", "true", "long_polling", "true"),
            ("ANYCABLE_POLL_PATH", "poll", "long_polling_path", "/poll"),
            ("ANYCABLE_POLL_INTERVAL", "20", "long_polling_interval", "20s"),
            ("ANYCABLE_POLL_FLUSH_INTERVAL", "100", "long_polling_flush_interval", "100ms"),
            ("ANYCABLE_POLL_KEEPALIVE_TIMEOUT", "9", "long_polling_keepalive", "9s"),
            ("ANYCABLE_POLL_MAX_REQUEST_SIZE", "4096", "long_polling_max_body", "4096B"),
            ("ANYCABLE_POLL_MAX_REQEUEST_SIZE", "4096", "long_polling_max_body", "4096B"),
        ];
        for (name, value, key, setting) in cases {
            assert_eq!(one(name, value), (key.to_owned(), setting.to_owned()), "{name}");
        }
    }

    /// As in AnyCable: on the client port, if there is a key and no other port.
    #[test]
    fn broadcasts_are_accepted_on_the_client_port_with_a_key() {
        let key = ("ANYCABLE_SECRET", "s");
        let both = |more| layer(&[key, more]).contains(&("listen_broadcast".into(), "true".into()));
        assert!(both(("ANYCABLE_PORT", "9000")) && both(("ANYCABLE_HTTP_BROADCAST_PORT", "8080")));
        assert!(!both(("ANYCABLE_HTTP_BROADCAST_PORT", "8090")));
        assert!(!both(("ANYCABLE_BROADCAST_KEY", "none")));
        assert_eq!(one("ANYCABLE_STREAMS_SECRET", "s").0, "streams_secret");
    }

    #[test]
    fn an_application_is_called_unless_that_is_off() {
        let host = ("ANYCABLE_RPC_HOST", "http://app/_anycable");
        for off in [("ANYCABLE_NORPC", "true"), ("ANYCABLE_RPC_IMPL", "none")] {
            assert_eq!(layer(&[host, off]), [], "{off:?}");
        }
        assert_eq!(layer(&[("ANYCABLE_RPC_HOST", "none")]), []);
        let both = read(&[host, ("ANYCABLE_RPC_IMPL", "grpc"), ("ANYCABLE_NOAUTH", "1")]).unwrap();
        assert_eq!(both.ignored, ["ANYCABLE_RPC_IMPL", "ANYCABLE_NOAUTH"]);
        let times = [
            ("ANYCABLE_RPC_COMMAND_TIMEOUT", "3000"),
            ("ANYCABLE_RPC_REQUEST_TIMEOUT", "0"),
            ("ANYCABLE_HTTP_RPC_TIMEOUT", "1000"),
        ];
        assert_eq!(layer(&times), [("rpc_timeout".into(), "1000ms".into())]);
    }

    #[test]
    fn the_broker_in_memory_has_a_history_and_presence() {
        let broker = ("ANYCABLE_BROKER", "memory");
        let memory = |key: &str| (key.to_owned(), "memory".to_owned());
        assert_eq!(layer(&[broker]), [memory("history"), memory("presence")]);
        let without = ("ANYCABLE_STREAMS_PRESENCE", "false");
        assert_eq!(layer(&[broker, without]), [memory("history")]);
        assert_eq!(layer(&[without]), []);
        assert!(read(&[("ANYCABLE_STREAMS_PRESENCE", "perhaps")]).is_err());
    }

    #[test]
    fn a_broker_of_all_nodes_is_for_their_publications_too() {
        let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let nats = [set("history", "nats"), set("pubsub", "nats")];
        assert_eq!(layer(&[("ANYCABLE_BROKER", "nats")]), nats);
        let redis = [("ANYCABLE_BROKER", "redis"), ("ANYCABLE_REDIS_URL", "redis://a")];
        let expected = [
            set("broadcast_adapter", "redisx"),
            set("history", "redis"),
            set("pubsub", "redis"),
            set("redis_url", "redis://a"),
        ];
        assert_eq!(layer(&redis), expected);
        // Others are refused with the reason when the settings are read.
        let differ = layer(&[("ANYCABLE_BROKER", "nats"), ("ANYCABLE_PUBSUB", "redis")]);
        assert_eq!(differ, [set("history", "nats"), set("pubsub", "redis")]);
    }

    #[test]
    fn redis_is_used_for_publications_between_nodes() {
        let url = ("ANYCABLE_REDIS_URL", "redis://a,redis://b");
        let set = layer(&[url, ("ANYCABLE_PUBSUB", "redis"), ("ANYCABLE_REDIS_SENTINELS", "c")]);
        let expected = [
            ("broadcast_adapter", "redis"),
            ("pubsub", "redis"),
            ("redis_sentinels", "c"),
            ("redis_url", "redis://a,redis://b"),
        ];
        assert_eq!(set, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_redis_server_without_an_adapter_opens_that_of_its_channel() {
        let url = ("ANYCABLE_REDIS_URL", "redis://a");
        let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let redis = [set("broadcast_adapter", "redis"), set("redis_url", "redis://a")];
        assert_eq!(layer(&[url]), redis);
        let http = [url, ("ANYCABLE_BROADCAST_ADAPTER", "http")];
        assert_eq!(layer(&http), [set("broadcast_adapter", "http")]);
        assert_eq!(read(&http).unwrap().ignored, ["ANYCABLE_REDIS_URL"]);
    }

    #[test]
    fn hosts_become_origins() {
        let (key, origins) = one("ANYCABLE_ALLOWED_ORIGINS", "a.example, *b.example,*.c.example");
        assert_eq!(key, "allow_origin");
        let expected = [
            "https://a.example",
            "http://a.example",
            "https://b.example",
            "http://b.example",
            "https://*.b.example",
            "http://*.b.example",
            "https://*.c.example",
            "http://*.c.example",
        ];
        assert_eq!(origins, expected.join(","));
        assert_eq!(one("ANYCABLE_ALLOWED_ORIGINS", "*").1, "*");
    }

    #[test]
    fn satisfied_values_are_silent_and_other_variables_are_reported() {
        let variables = [
            ("ANYCABLE_MAX_CONN", "0"),
            ("ANYCABLE_TURBO_STREAMS", "true"),
            ("ANYCABLE_RPC_HOST", ""),
            ("ANYCABLE", "x"),
            ("OTHER", "x"),
        ];
        let silent = read(&variables).unwrap();
        assert!(silent.ignored.is_empty() && silent.layer.is_empty(), "{silent:?}");
        let variables = [
            ("ANYCABLE_REDIS_SENTINELS", "a:26379"),
            ("ANYCABLE_PATH", "/ws,/cable"),
            ("ANYCABLE_BROKER", "other"),
            ("ANYCABLE_HTTP_BROADCAST_PORT", "8080"),
        ];
        let loud = read(&variables).unwrap();
        let expected = ["BROKER", "PATH", "REDIS_SENTINELS", "HTTP_BROADCAST_PORT"];
        assert_eq!(loud.ignored, expected.map(|name| format!("ANYCABLE_{name}")));
        assert!(loud.layer.is_empty(), "{loud:?}");
    }

    #[test]
    fn an_invalid_value_is_an_error_with_the_variable() {
        let cases = [
            ("ANYCABLE_PORT", "http"),
            ("ANYCABLE_PUBLIC", "maybe"),
            ("ANYCABLE_HOST", "example.com"),
            ("ANYCABLE_SHUTDOWN_TIMEOUT", "30s"),
        ];
        for (name, value) in cases {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
