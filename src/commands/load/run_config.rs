//! [`Asked`]: where a run went and at what pace, as its JSON says it: only likes are compared, and only a
//! run as fast as it went says what a machine carries. What it is not: all that was asked for, which
//! the page has.

use load::requests::{Pace, Requests};
use load::stages::Stage;
use load::{Config, Endpoint};
use serde::Serialize;

/// Stands in the JSON of every run of `load`.
#[derive(Clone, Serialize, Debug)]
pub(super) struct Asked {
    /// URLs as they were given, without users, passwords and the values of their queries.
    target: Vec<String>,
    pace: Speed,
    /// Why the first handshake of TLS failed that did; null where none did.
    tls_error: Option<String>,
}

/// When something was sent.
#[derive(Clone, Serialize, Debug)]
struct Speed {
    /// `closed`: when the last was answered; `open`: when it was due.
    model: &'static str,
    /// A second, of the open model.
    rate: Option<f64>,
    /// Seconds, and users or a rate at their end.
    stages: Option<Vec<(f64, u64)>>,
}

impl Asked {
    pub(super) fn of_sockets(urls: &[String], config: &Config) -> Asked {
        let rate = super::asked_rate(config);
        let stages = (!config.stages.is_empty()).then(|| staged(&config.stages));
        Asked::new(urls, &config.endpoints, rate, stages, rate.is_some())
    }

    pub(super) fn of_requests(urls: &[String], config: &Requests) -> Asked {
        let (rate, stages, is_open) = match &config.pace {
            Pace::Closed => (None, None, false),
            Pace::Users(stages) => (None, Some(staged(stages)), false),
            Pace::Rate(rate) => (Some(*rate as f64), None, true),
            Pace::Rates(stages) => (None, Some(staged(stages)), true),
        };
        Asked::new(urls, &config.endpoints, rate, stages, is_open)
    }

    fn new(
        urls: &[String],
        endpoints: &[Endpoint],
        rate: Option<f64>,
        stages: Option<Vec<(f64, u64)>>,
        is_open: bool,
    ) -> Asked {
        let model = if is_open { "open" } else { "closed" };
        let trouble = endpoints.iter().find_map(|endpoint| {
            let of_redirects = endpoint.ways.tls.as_ref();
            [endpoint.client.as_ref(), of_redirects].into_iter().flatten().find_map(|c| c.trouble())
        });
        Asked {
            target: urls.iter().map(|url| without_secrets(url)).collect(),
            pace: Speed { model, rate, stages },
            tls_error: trouble.map(str::to_owned),
        }
    }

    /// A line on what TLS came to, where it came to nothing.
    pub(super) fn text(&self) -> String {
        let said = self.tls_error.as_ref().map(|error| format!("tls           first: {error}\n"));
        said.unwrap_or_default()
    }
}

fn staged(stages: &[Stage]) -> Vec<(f64, u64)> {
    stages.iter().map(|stage| (stage.time.as_secs_f64(), stage.connections)).collect()
}

/// A URL for files that others read.
fn without_secrets(url: &str) -> String {
    let url = url.split('#').next().unwrap_or_default();
    let (place, query) = url.split_once('?').map_or((url, None), |(a, b)| (a, Some(b)));
    let (scheme, rest) = place.split_once("://").unwrap_or(("", place));
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let name = |pair: &str| match pair.split_once('=') {
        Some((name, _)) => format!("{name}=…"),
        None => pair.to_owned(),
    };
    let names = query.map(|query| query.split('&').map(name).collect::<Vec<_>>().join("&"));
    let query = names.map(|names| format!("?{names}")).unwrap_or_default();
    format!("{scheme}://{host}{path}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_loses_its_secrets_and_nothing_else() {
        for (url, shown) in [
            ("http://me:word@a:80/x?token=s&all#top", "http://a:80/x?token=…&all"),
            ("ws://127.0.0.{1..2}:9000", "ws://127.0.0.{1..2}:9000"),
            ("http://a/b@c", "http://a/b@c"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }
}
