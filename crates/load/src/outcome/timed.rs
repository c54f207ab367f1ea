//! What of an [`Outcome`] was timed: each latency with its path in the document, which is the name of its
//! histogram.

use std::time::SystemTime;

use engine::sys::process;

use crate::Latency;
use crate::outcome::Outcome;
use crate::outcome::histograms::{Histograms, Timed};
use crate::outcome::sections::Quantiles;

/// Names whose histogram also says what never ended, so that it is written even if nothing was timed.
const OF_ALL: [&str; 4] =
    ["broadcast.latency", "churn.latency", "groups.latency", "heartbeats.latency"];

/// Unix time of a moment of the engine's clock, in microseconds.
pub(crate) fn unix_us(ns: u64) -> u64 {
    #[allow(clippy::disallowed_methods, reason = "only the system knows the time of day")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let passed_us = process::now_ns().saturating_sub(ns) / 1_000;
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX).saturating_sub(passed_us)
}

/// Whether the histogram of a name is written even if nothing was timed; `has_messages`: of requests or an
/// echo.
fn is_of_all(name: &str, has_messages: bool) -> bool {
    OF_ALL.contains(&name) || name.ends_with("].latency") || name == "latency" && has_messages
}

/// Whether a latency is that of a histogram. JSON may change the last digit of a fraction.
fn is_alike(one: Option<Latency>, other: Option<Latency>) -> bool {
    let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * one.abs();
    match (one, other) {
        (Some(one), Some(other)) => {
            (one.count, one.above_range) == (other.count, other.above_range)
                && near(one.p50_ms, other.p50_ms)
                && near(one.p99_ms, other.p99_ms)
                && near(one.max_ms, other.max_ms)
        }
        (None, None) => true,
        _ => false,
    }
}

impl Outcome {
    /// All latencies by name.
    pub(crate) fn latencies(&mut self) -> Vec<(String, &mut Option<Latency>)> {
        let mut all = vec![
            ("latency", &mut self.latency),
            ("service_time", &mut self.service_time),
            ("time_to_first_byte", &mut self.time_to_first_byte),
            ("send_lag", &mut self.send_lag),
            ("scheduling_error", &mut self.scheduling_error),
        ];
        if let Some(heartbeats) = &mut self.heartbeats {
            all.push(("heartbeats.latency", &mut heartbeats.latency));
        }
        if let Some(broadcast) = &mut self.broadcast {
            all.extend([
                ("broadcast.latency", &mut broadcast.latency),
                ("broadcast.from_send", &mut broadcast.from_send),
                ("broadcast.to_first", &mut broadcast.times.to_first),
                ("broadcast.to_last", &mut broadcast.times.to_last),
                ("broadcast.first_to_last", &mut broadcast.times.first_to_last),
            ]);
            if let Some(fanout) = &mut broadcast.fanout {
                all.extend([
                    ("broadcast.publish_lag", &mut fanout.publish_lag),
                    ("broadcast.publish", &mut fanout.publish),
                ]);
            }
        }
        if let Some(cable) = &mut self.cable {
            all.extend([
                ("cable.to_welcome", &mut cable.to_welcome),
                ("cable.to_confirm", &mut cable.to_confirm),
                ("cable.to_subscribed", &mut cable.to_subscribed),
            ]);
        }
        if let Some(churn) = &mut self.churn {
            all.extend([
                ("churn.latency", &mut churn.latency),
                ("churn.from_send", &mut churn.from_send),
                ("churn.publish_lag", &mut churn.publish_lag),
                ("churn.publish", &mut churn.publish),
            ]);
        }
        if let Some(groups) = &mut self.groups {
            all.extend([
                ("groups.latency", &mut groups.latency),
                ("groups.send_lag", &mut groups.send_lag),
            ]);
        }
        if let Some(messages) = &mut self.messages {
            all.extend([
                ("messages.latency", &mut messages.latency),
                ("messages.from_send", &mut messages.from_send),
                ("messages.first", &mut messages.first),
                ("messages.interval", &mut messages.interval),
                ("messages.send_lag", &mut messages.send_lag),
            ]);
        }
        let named = all.into_iter().map(|(name, latency)| (name.to_owned(), latency));
        let flows = self.flows.iter_mut().enumerate().flat_map(|(flow, of)| {
            of.steps.iter_mut().enumerate().flat_map(move |(step, of)| {
                let name = move |what| format!("flows[{flow}].steps[{step}].{what}");
                [(name("latency"), &mut of.latency), (name("service_time"), &mut of.service_time)]
            })
        });
        named.chain(flows).collect()
    }

    /// The histograms of all latencies; those that are missing are unknown.
    ///
    /// # Errors
    /// Names a histogram that is not that of its latency.
    pub(crate) fn checked_histograms(&mut self) -> Result<Histograms, String> {
        let mut histograms = self.histograms.take().unwrap_or_default();
        let (mut wrong, has_messages) = (None, self.requests.is_some() || self.echo.is_some());
        for (name, latency) in self.latencies() {
            match histograms.get(&name) {
                Some(timed) if !is_alike(timed.latency(), *latency) => {
                    wrong = Some(name);
                    break;
                }
                Some(_) => {}
                None if latency.is_some() || is_of_all(&name, has_messages) => {
                    histograms.set_unknown(&name)
                }
                None => {}
            }
        }
        match wrong {
            None => Ok(histograms),
            Some(name) => {
                self.histograms = Some(histograms);
                Err(format!("the histogram {name} has not the percentiles of {name}"))
            }
        }
    }

    /// Computes all percentiles from histograms; those of missing ones are unknown.
    pub(crate) fn set_percentiles(&mut self, histograms: Histograms) {
        for (name, latency) in self.latencies() {
            *latency = histograms.get(&name).and_then(Timed::latency);
        }
        let of_all = |name| histograms.get(name).and_then(Timed::quantiles);
        if let Some(broadcast) = &mut self.broadcast {
            broadcast.latency_of_all = of_all("broadcast.latency");
            broadcast.p50_ms = broadcast.latency.map(|latency| latency.p50_ms);
            broadcast.p99_ms = broadcast.latency.map(|latency| latency.p99_ms);
            broadcast.last_ms = broadcast.latency.map(|latency| latency.max_ms);
        }
        if let Some(churn) = &mut self.churn {
            churn.latency_of_all = of_all("churn.latency");
        }
        if let Some(groups) = &mut self.groups {
            groups.latency_of_all = of_all("groups.latency");
        }
        if let Some(messages) = &mut self.messages {
            messages.latency_of_all = of_all("messages.latency");
        }
        self.histograms = Some(histograms);
        self.set_latency_of_all();
    }

    /// Makes the times of receipts unknown, as the publisher had another clock.
    pub fn forget_receipt_times(&mut self) {
        if self.broadcast.is_none() {
            return;
        }
        let mut histograms = self.histograms.take().unwrap_or_default();
        for (name, _) in self.latencies() {
            if name.starts_with("broadcast.") {
                histograms.set_unknown(&name);
            }
        }
        self.set_percentiles(histograms);
    }

    /// Sets the percentiles of everything that was due: of requests or messages of an echo; without them of
    /// receipts; without those of pings.
    pub(crate) fn set_latency_of_all(&mut self) {
        let of_all = |name| -> Option<Quantiles> {
            self.histograms.as_ref().and_then(|all| all.get(name)).and_then(Timed::quantiles)
        };
        self.latency_of_all = if self.requests.is_some() {
            of_all("latency")
        } else if let Some(churn) = &self.churn {
            churn.latency_of_all
        } else if self.echo.is_some() {
            of_all("latency")
        } else {
            let receipts = self.broadcast.as_ref().and_then(|broadcast| broadcast.latency_of_all);
            receipts.or_else(|| of_all("heartbeats.latency"))
        };
    }
}
