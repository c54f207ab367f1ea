//! The settings of a run as rows of text, including defaults, for its report.

use std::time::Duration;

use capacity::Count;
use load::requests::{MessageCheck, MessagePace, Messages, Pace, Requests};
use load::stages::Stage;
use load::{Config, Echo, Fanout, Publish, Route};

use super::connect_flag;
use crate::report::Rows;
use crate::units::format_duration;

/// Returns the settings of a run of WebSockets.
pub(super) fn of_sockets(config: &Config) -> Rows {
    let mut rows = Vec::new();
    let mut add = |name: &str, value: String| rows.push((name.to_owned(), value));
    match config.streams {
        None => add("connections", Count(config.connections).to_string()),
        Some(streams) => {
            add("sockets", Count(config.connections).to_string());
            add("HTTP/2 sockets per connection", streams.to_string());
        }
    }
    if !config.stages.is_empty() {
        add("stages", staged(&config.stages, ""));
    }
    add("opened", connect_flag(config.connect));
    if let Some(most) = config.in_flight {
        add("connects in flight", format!("at most {}", Count(most)));
    }
    add("connect timeout", format_duration(config.connect_timeout));
    if !config.warm_up.is_zero() {
        add("warm-up", format_duration(config.warm_up));
    }
    if !config.hold.is_zero() {
        add("held for", format_duration(config.hold));
    }
    let heartbeat = config.heartbeat.map(|every| format!("every {}", format_duration(every)));
    add("heartbeats", heartbeat.unwrap_or_else(|| "none".to_owned()));
    if !config.headers.is_empty() {
        // Only the names: values may be secrets. The command line shows them anyway.
        let names: Vec<_> = config.headers.iter().map(|(name, _)| name.as_str()).collect();
        add("headers", names.join(", "));
    }
    if !config.protocols.is_empty() {
        add("subprotocols", config.protocols.join(", "));
    }
    if let Some(cable) = &config.cable {
        let first = cable.identifiers.first().map(String::as_str).unwrap_or_default();
        match cable.identifiers.len() {
            1 => add("channel", first.to_owned()),
            all => add("channels", format!("{}, the first {first}", Count(all as u64))),
        }
    }
    if let Some(echo) = &config.echo {
        echo_settings(echo, &mut add);
    }
    if let Some(fanout) = &config.fanout {
        fanout_settings(fanout, &mut add);
    }
    rows
}

/// Formats stages; `unit` follows each number.
fn staged(stages: &[Stage], unit: &str) -> String {
    let one = |stage: &Stage| {
        format!("{}{unit} in {}", Count(stage.connections), format_duration(stage.time))
    };
    stages.iter().map(one).collect::<Vec<_>>().join(", then ")
}

fn echo_settings(echo: &Echo, mut add: impl FnMut(&str, String)) {
    let size = echo.content.as_ref().map_or(echo.size, |content| content.data.len());
    add("message size in bytes", Count(size as u64).to_string());
    let rate = echo.rate.map(|rate| format!("{} per second", Count(rate)));
    add(
        "messages sent",
        rate.unwrap_or_else(|| "when the last was answered (closed loop)".to_owned()),
    );
    if echo.turnover {
        let each = Count(echo.messages.unwrap_or(0).into());
        add("connections are replaced", format!("after {each} messages"));
        add("duration", end(None, echo.duration, ""));
    } else {
        add("duration", end(echo.messages, echo.duration, "messages each"));
    }
    if let Some((least, most)) = echo.think {
        add("think time", format!("{}..{}", format_duration(least), format_duration(most)));
    }
    add("answer timeout", format_duration(echo.timeout));
}

fn fanout_settings(fanout: &Fanout, mut add: impl FnMut(&str, String)) {
    let way = match &fanout.publish {
        Publish::Http(_) => "over HTTP",
        Publish::Socket => "over WebSocket",
    };
    add("publications", format!("{} per second, {way}", Count(fanout.rate)));
    add("publishing duration", end(fanout.messages, fanout.duration, "messages"));
    add("late after", format_duration(fanout.late_after));
}

/// Formats the end of sending: a number, a time, or whichever comes first.
fn end(messages: Option<u32>, duration: Option<Duration>, unit: &str) -> String {
    let number = messages.map(|messages| format!("{} {unit}", Count(messages.into())));
    let parts: Vec<String> = number.into_iter().chain(duration.map(format_duration)).collect();
    parts.join(" or ")
}

fn message_settings(of: &Messages, mut add: impl FnMut(&str, String)) {
    let number = of.per_call.map(|number| Count(number.into()).to_string());
    let ends: Vec<String> = number.into_iter().chain(of.hold.map(format_duration)).collect();
    if of.sends || !ends.is_empty() {
        let whole = || "until the run ends".to_owned();
        add("messages per call", if ends.is_empty() { whole() } else { ends.join(" or ") });
    }
    if !of.sends {
        return;
    }
    let pace = match of.pace {
        MessagePace::Flow => "as soon as flow control allows".to_owned(),
        MessagePace::Answered => "when the last was answered (closed loop)".to_owned(),
        MessagePace::Every(interval) => format!("every {}", format_duration(interval)),
    };
    add("messages sent", pace);
    if of.check != MessageCheck::None {
        add("late after", format_duration(of.late_after));
    }
}

/// Returns the settings of a run of requests.
pub(super) fn of_requests(config: &Requests) -> Rows {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    let groups = config.connections.div_ceil(u64::from(config.streams.unwrap_or(1)));
    row("connections", Count(groups).to_string());
    row(
        "sent",
        match &config.pace {
            Pace::Closed => "when the last was answered (closed loop)".to_owned(),
            Pace::Users(stages) => {
                format!("when the last was answered (closed loop), {}", staged(stages, ""))
            }
            Pace::Rate(rate) => format!("{} per second", Count(*rate)),
            Pace::Rates(stages) => staged(stages, " per second"),
        },
    );
    if let Some(messages) = &config.messages {
        message_settings(messages, &mut row);
    }
    for arrivals in &config.arrivals {
        let users = Count(arrivals.users.end - arrivals.users.start);
        let rate = match &arrivals.pace {
            Pace::Rate(rate) => format!("{} per second", Count(*rate)),
            Pace::Rates(stages) => staged(stages, " per second"),
            Pace::Closed | Pace::Users(_) => String::new(),
        };
        row("passes begun", format!("{rate}, by at most {users} users"));
    }
    let number = config.requests.filter(|requests| *requests < u64::MAX >> 1);
    let number = number.map(|requests| format!("{} requests", Count(requests)));
    let ends: Vec<String> =
        number.into_iter().chain(config.duration.map(format_duration)).collect();
    if !ends.is_empty() {
        row("duration", ends.join(" or "));
    }
    if !config.warm_up.is_zero() {
        row("warm-up", format_duration(config.warm_up));
    }
    if let Some(timeout) = config.connect_timeout {
        row("connect timeout", format_duration(timeout));
    }
    row("answer timeout", format_duration(config.timeout));
    let each = if config.new_connections { "new for each request" } else { "kept" };
    row("connections", each.to_owned());
    match config.endpoints.first().map(|endpoint| &endpoint.route) {
        Some(Route::Forward(proxy) | Route::Tunnel(proxy)) => row("proxy", proxy.host.clone()),
        Some(Route::Unix(path)) => row("UNIX socket", path.display().to_string()),
        _ => {}
    }
    if let Some(streams) = config.streams {
        row("HTTP/2 streams per connection", streams.to_string());
    }
    if config.pipeline > 1 {
        row("requests in flight per connection", config.pipeline.to_string());
    }
    if config.redirects > 0 {
        row("redirects followed", config.redirects.to_string());
    }
    rows
}
