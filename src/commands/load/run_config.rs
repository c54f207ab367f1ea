//! [`RunConfig`]: the target and the pace of a run in its JSON, so that `load compare` and `plan` use only
//! runs that fit. It does not contain all settings; the HTML report has those.

use load::requests::{Pace, Requests};
use load::stages::Stage;
use load::{Config, Endpoint};
use serde::Serialize;

/// Part of the JSON of every run of `load`.
#[derive(Clone, Serialize, Debug)]
pub(super) struct RunConfig {
    /// URLs as given, without user, password and query values.
    target: Vec<String>,
    pace: Speed,
    /// Error of the first TLS handshake that failed; null if none failed.
    tls_error: Option<String>,
}

/// Pacing of the run.
#[derive(Clone, Serialize, Debug)]
struct Speed {
    /// `closed`: each message is sent when the last was answered; `open`: when it is due.
    model: &'static str,
    /// Messages or requests per second of the open model.
    rate: Option<f64>,
    /// Seconds, and the users or the rate at the end of the stage.
    stages: Option<Vec<(f64, u64)>>,
}

impl RunConfig {
    pub(super) fn of_sockets(urls: &[String], config: &Config) -> RunConfig {
        let rate = super::requested_rate(config);
        let stages = (!config.stages.is_empty()).then(|| staged(&config.stages));
        RunConfig::new(urls, &config.endpoints, rate, stages, rate.is_some())
    }

    pub(super) fn of_requests(urls: &[String], config: &Requests) -> RunConfig {
        let (rate, stages, is_open) = match &config.pace {
            Pace::Closed => (None, None, false),
            Pace::Users(stages) => (None, Some(staged(stages)), false),
            Pace::Rate(rate) => (Some(*rate as f64), None, true),
            Pace::Rates(stages) => (None, Some(staged(stages)), true),
        };
        RunConfig::new(urls, &config.endpoints, rate, stages, is_open)
    }

    fn new(
        urls: &[String],
        endpoints: &[Endpoint],
        rate: Option<f64>,
        stages: Option<Vec<(f64, u64)>>,
        is_open: bool,
    ) -> RunConfig {
        let model = if is_open { "open" } else { "closed" };
        let tls_error = endpoints.iter().find_map(|endpoint| {
            let of_redirects = endpoint.options.tls.as_ref();
            [endpoint.client.as_ref(), of_redirects]
                .into_iter()
                .flatten()
                .find_map(|c| c.first_error())
        });
        RunConfig {
            target: urls.iter().map(|url| without_secrets(url)).collect(),
            pace: Speed { model, rate, stages },
            tls_error: tls_error.map(str::to_owned),
        }
    }

    /// Returns a line with the TLS error, if there was one.
    pub(super) fn text(&self) -> String {
        let line = self.tls_error.as_ref().map(|error| format!("tls           first: {error}\n"));
        line.unwrap_or_default()
    }
}

fn staged(stages: &[Stage]) -> Vec<(f64, u64)> {
    stages.iter().map(|stage| (stage.time.as_secs_f64(), stage.connections)).collect()
}

/// Removes secrets from a URL that goes to a file.
fn without_secrets(url: &str) -> String {
    let url = url.split('#').next().unwrap_or_default();
    let (target, query) = url.split_once('?').map_or((url, None), |(a, b)| (a, Some(b)));
    let (scheme, rest) = target.split_once("://").unwrap_or(("", target));
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
    fn secrets_are_removed_from_urls() {
        for (url, shown) in [
            ("http://me:word@a:80/x?token=s&all#top", "http://a:80/x?token=…&all"),
            ("ws://127.0.0.{1..2}:9000", "ws://127.0.0.{1..2}:9000"),
            ("http://a/b@c", "http://a/b@c"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }
}
