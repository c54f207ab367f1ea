//! [`Timings`]: the percentiles of an outcome, one row per latency, and the distribution of the first.

use load::{Latency, Outcome};

use super::histogram::{BINS, Histogram};

/// What was timed.
#[derive(Clone, Default)]
pub(crate) struct Timings {
    pub(super) rows: Vec<(&'static str, Latency)>,
    pub(super) histogram: Option<Histogram>,
}

impl Timings {
    pub(crate) fn of(outcome: &Outcome) -> Timings {
        let all = all(outcome);
        // The first that was timed and whose histogram is known.
        let histogram = all.iter().find_map(|(name, path, latency)| {
            let bins = outcome.histograms.as_ref()?.bins(path, BINS, 0.0);
            Histogram::draw(name, &bins, &(*latency)?)
        });
        let rows =
            all.into_iter().filter_map(|(name, _, latency)| Some((name, latency?))).collect();
        Timings { rows, histogram }
    }
}

/// Each latency with its name and its path in the document, the most important first.
fn all(outcome: &Outcome) -> Vec<(&'static str, &'static str, Option<Latency>)> {
    let mut all = vec![
        ("Latency, from due to answer", "latency", outcome.latency),
        ("Service time, from sent to answer", "service_time", outcome.service_time),
        ("Time to first byte", "time_to_first_byte", outcome.time_to_first_byte),
        ("Send lag, from due to sent", "send_lag", outcome.send_lag),
        ("Scheduling delay", "scheduling_error", outcome.scheduling_error),
    ];
    if let Some(b) = &outcome.broadcast {
        all.extend([
            ("Delivery, from due to receipt", "broadcast.latency", b.latency),
            ("Delivery, from sent to receipt", "broadcast.from_send", b.from_send),
            ("Publish to first receipt", "broadcast.to_first", b.times.to_first),
            ("Publish to last receipt", "broadcast.to_last", b.times.to_last),
            ("First to last receipt", "broadcast.first_to_last", b.times.first_to_last),
        ]);
        if let Some(fanout) = &b.fanout {
            all.extend([
                ("Lateness of publications", "broadcast.publish_lag", fanout.publish_lag),
                ("Publish, from sent to answer", "broadcast.publish", fanout.publish),
            ]);
        }
    }
    if let Some(churn) = &outcome.churn {
        all.push(("Delivery, from due to receipt", "churn.latency", churn.latency));
    }
    if let Some(groups) = &outcome.groups {
        all.push(("Delivery in groups", "groups.latency", groups.latency));
    }
    if let Some(messages) = &outcome.messages {
        all.extend([
            ("Message, from due to answer", "messages.latency", messages.latency),
            ("Message, from sent to answer", "messages.from_send", messages.from_send),
            ("Call to first message", "messages.first", messages.first),
            ("Between two messages", "messages.interval", messages.interval),
        ]);
    }
    if let Some(cable) = &outcome.cable {
        all.extend([
            ("Connect to welcome", "cable.to_welcome", cable.to_welcome),
            ("Subscribe to confirmation", "cable.to_confirm", cable.to_confirm),
            ("Connect to confirmation", "cable.to_subscribed", cable.to_subscribed),
        ]);
    }
    if let Some(heartbeats) = &outcome.heartbeats {
        all.push(("Ping to pong", "heartbeats.latency", heartbeats.latency));
    }
    all
}
