//! The summary of the Action Cable clients of a run.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use capacity::Count;
use serde::{Deserialize, Serialize};

use crate::outcome::histograms::Histograms;
use crate::outcome::latency_text::write_latencies;
use crate::outcome::metrics::Metrics;
use crate::{Latency, Recorder, Series, Snapshot};

/// Action Cable clients.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct CableSummary {
    /// Subscribed at the end.
    pub subscribed: u64,
    /// Open at the end with a subscription that was rejected.
    pub rejected: u64,
    /// Open at the end, and neither subscribed nor rejected.
    pub waiting: u64,
    /// Subscribes sent.
    pub subscribes: u64,
    /// Repeated subscribes, as the last was not confirmed.
    pub repeated: u64,
    /// Repeated confirmations.
    pub confirmed_again: u64,
    /// Pings received.
    pub pings: u64,
    /// Connections given up without pings; also in `closed`.
    pub stale: u64,
    /// Messages that are not Action Cable, or not expected.
    pub unexpected: u64,
    /// Connections that the server ended with a disconnect message, by its reason; also in `closed`.
    pub disconnects: BTreeMap<String, u64>,
    /// From the connect to the welcome.
    pub to_welcome: Option<Latency>,
    /// From the first subscribe to its confirmation.
    pub to_confirm: Option<Latency>,
    /// From the connect to the confirmation.
    pub to_subscribed: Option<Latency>,
}

impl CableSummary {
    pub(crate) fn new<'a>(
        counts: &Snapshot,
        recorder: &Recorder,
        all_metrics: impl IntoIterator<Item = &'a Metrics>,
        histograms: &mut Histograms,
    ) -> CableSummary {
        let mut disconnects = BTreeMap::new();
        for metrics in all_metrics {
            for (reason, count) in metrics.disconnects().iter() {
                *disconnects.entry(reason.clone()).or_default() += count;
            }
        }
        CableSummary {
            subscribed: counts.subscribed,
            rejected: counts.rejected,
            waiting: counts.open.saturating_sub(counts.subscribed + counts.rejected),
            subscribes: counts.subscribes,
            repeated: counts.subscribes_again,
            confirmed_again: counts.confirmed_again,
            pings: counts.cable_pings,
            stale: counts.stale,
            unexpected: counts.unexpected,
            disconnects,
            to_welcome: histograms.latency("cable.to_welcome", recorder, Series::Welcome),
            to_confirm: histograms.latency("cable.to_confirm", recorder, Series::Confirm),
            to_subscribed: histograms.latency("cable.to_subscribed", recorder, Series::Subscribed),
        }
    }

    pub(crate) fn shortfalls(&self) -> [(u64, &'static str); 3] {
        [
            (self.rejected, "subscriptions were rejected"),
            (self.waiting, "connections are open and not subscribed"),
            (self.unexpected, "messages were unexpected or not Action Cable"),
        ]
    }
}

impl Display for CableSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [subscribed, rejected, waiting] =
            [self.subscribed, self.rejected, self.waiting].map(Count);
        let [subscribes, repeated] = [self.subscribes, self.repeated].map(Count);
        write!(
            f,
            "cable         {subscribed} subscribed, {rejected} rejected, {waiting} waiting; "
        )?;
        writeln!(f, "{subscribes} subscribes, {repeated} repeated")?;
        let [pings, stale, unexpected] = [self.pings, self.stale, self.unexpected].map(Count);
        write!(f, "              {pings} pings, {stale} connections stale, ")?;
        writeln!(f, "{unexpected} messages unexpected")?;
        for (reason, count) in &self.disconnects {
            writeln!(f, "  disconnected  {}: {reason}", Count(*count))?;
        }
        write_latencies(
            f,
            &[
                ("to welcome", self.to_welcome.as_ref()),
                ("to confirm", self.to_confirm.as_ref()),
                ("both", self.to_subscribed.as_ref()),
            ],
        )
    }
}
