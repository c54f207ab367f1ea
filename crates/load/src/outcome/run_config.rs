//! [`RunConfig`]: what was run, as far as it decides whether two runs can be compared and what a run
//! says about capacity. It does not contain all settings; the HTML report has those.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::requests::{Arrivals, Pace, Requests};
use crate::stages::Stage;
use crate::{Config, Endpoint, Publish};

/// What was run. Null is unknown, or does not apply to the kind of run.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, Debug)]
#[serde(default)]
pub struct RunConfig {
    /// URLs as given, without user, password and query values.
    pub target: Vec<String>,
    /// When messages were due.
    pub pace: PaceConfig,
    /// Error of the first TLS handshake that failed; null if none failed.
    pub tls_error: Option<String>,
    /// Why the first message that did not fit its type was not sent; absent if all fitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_error: Option<String>,
    /// The file or name of the scenario.
    pub scenario: Option<String>,
    /// Its description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Seed of its random choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Passes of each user through the scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passes: Option<u64>,
    /// The figure of another experiment that the scenario names for comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<f64>,
    /// Users: concurrent connections of requests.
    pub users: Option<u64>,
    /// Requests: whether connections are kept for further requests.
    pub keep_alive: Option<bool>,
    /// Requests in flight per connection.
    pub pipeline: Option<u32>,
    /// With HTTP/2: users, or sockets, that share a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
    /// The method of requests.
    pub method: Option<String>,
    /// Bytes of a request body or of a message.
    pub message_bytes: Option<u64>,
    /// Whether messages are compressed.
    pub compressed: Option<bool>,
    /// Seconds in which messages or requests are due, after the warm-up.
    pub duration_seconds: Option<f64>,
    /// Seconds of the warm-up.
    pub warm_up_seconds: Option<f64>,
    /// All settings as names and texts, including defaults, for people.
    pub settings: Vec<(String, String)>,
}

/// When messages were due.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, Debug)]
#[serde(default)]
pub struct PaceConfig {
    /// `closed`: each message is sent when the last was answered; `open`: when it is due. Empty if
    /// unknown.
    pub model: String,
    /// Messages or requests per second of the open model.
    pub rate: Option<f64>,
    /// Passes per second of a scenario with an arrival rate; with stages the highest.
    pub arrival_rate: Option<f64>,
    /// Seconds, and the users or the rate at the end of the stage.
    pub stages: Option<Vec<(f64, u64)>>,
}

impl PaceConfig {
    /// Whether messages were due whether or not earlier ones were answered.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.model == "open"
    }
}

impl RunConfig {
    /// Of a run of WebSockets.
    #[must_use]
    pub fn of_sockets(urls: &[String], config: &Config) -> RunConfig {
        let fanout = config.fanout.as_ref();
        let echo = config.echo.as_ref();
        let rate = fanout.map(|fanout| fanout.rate).or(echo.and_then(|echo| echo.rate));
        let publish = fanout.and_then(|fanout| match &fanout.publish {
            Publish::Http(http) => Some(&http.endpoint),
            Publish::Socket => None,
        });
        let stages = (!config.stages.is_empty()).then(|| staged(&config.stages));
        let size = echo.map(|echo| echo.content.as_ref().map_or(echo.size, |one| one.data.len()));
        let size = size.or(fanout.map(|fanout| fanout.size));
        let duration = echo.and_then(|echo| echo.duration).or(fanout.and_then(|one| one.duration));
        RunConfig {
            target: urls.iter().map(|url| without_secrets(url)).collect(),
            pace: PaceConfig::new(rate.is_some(), rate, stages),
            tls_error: tls_error(config.endpoints.iter().chain(publish)),
            message_bytes: size.map(|size| size as u64),
            compressed: Some(config.compress_above.is_some()),
            streams: config.streams,
            duration_seconds: duration.map(|duration| duration.as_secs_f64()),
            warm_up_seconds: Some(config.warm_up.as_secs_f64()),
            ..RunConfig::default()
        }
    }

    /// Of a run of requests.
    #[must_use]
    pub fn of_requests(urls: &[String], config: &Requests) -> RunConfig {
        let (rate, stages, is_open) = match &config.pace {
            Pace::Closed => (None, None, false),
            Pace::Users(stages) => (None, Some(staged(stages)), false),
            Pace::Rate(rate) => (Some(*rate), None, true),
            Pace::Rates(stages) => (None, Some(staged(stages)), true),
        };
        let pace = match config.arrivals.as_slice() {
            [] => PaceConfig::new(is_open, rate, stages),
            arrivals => PaceConfig::of_arrivals(arrivals),
        };
        RunConfig {
            target: urls.iter().map(|url| without_secrets(url)).collect(),
            pace,
            tls_error: tls_error(config.endpoints.iter()),
            users: Some(config.connections),
            keep_alive: Some(!config.new_connections),
            pipeline: Some(config.pipeline),
            streams: config.streams,
            duration_seconds: config.over_after().as_ref().map(Duration::as_secs_f64),
            warm_up_seconds: Some(config.warm_up.as_secs_f64()),
            ..RunConfig::default()
        }
    }

    /// Lines with the TLS error and that of a message, if there were any.
    pub(crate) fn text(&self) -> String {
        let tls = self.tls_error.as_ref().map(|error| format!("tls           first: {error}\n"));
        let message =
            self.message_error.as_ref().map(|error| format!("messages      first: {error}\n"));
        tls.unwrap_or_default() + &message.unwrap_or_default()
    }
}

impl PaceConfig {
    fn new(is_open: bool, rate: Option<u64>, stages: Option<Vec<(f64, u64)>>) -> PaceConfig {
        let model = if is_open { "open" } else { "closed" };
        let (model, rate) = (model.to_owned(), rate.map(|rate| rate as f64));
        PaceConfig { model, rate, arrival_rate: None, stages }
    }

    fn of_arrivals(arrivals: &[Arrivals]) -> PaceConfig {
        let highest = |pace: &Pace| match pace {
            Pace::Rate(rate) => *rate,
            Pace::Rates(stages) => {
                stages.iter().map(|stage| stage.connections).max().unwrap_or_default()
            }
            Pace::Closed | Pace::Users(_) => 0,
        };
        let stages = arrivals.iter().find_map(|arrivals| match &arrivals.pace {
            Pace::Rates(stages) => Some(staged(stages)),
            _ => None,
        });
        let rate: u64 = arrivals.iter().map(|arrivals| highest(&arrivals.pace)).sum();
        let arrival_rate = Some(rate as f64);
        PaceConfig { arrival_rate, ..PaceConfig::new(true, None, stages) }
    }
}

fn tls_error<'e>(mut endpoints: impl Iterator<Item = &'e Endpoint>) -> Option<String> {
    let error = endpoints.find_map(|endpoint| {
        let of_redirects = endpoint.options.tls.as_ref();
        let clients = [endpoint.client.as_ref(), of_redirects];
        clients.into_iter().flatten().find_map(|client| client.first_error())
    });
    error.map(str::to_owned)
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
