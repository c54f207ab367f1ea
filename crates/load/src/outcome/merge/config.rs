//! What several generators ran: what their runs must have in common, and both together.

use std::collections::BTreeSet;

use super::{known, least, sum, us};
use crate::outcome::run_config::{PaceConfig, RunConfig};

impl RunConfig {
    /// Settings that several generators must have in common. Numbers of connections and rates are shared
    /// out, hosts may have several addresses, and seeds differ.
    pub(super) fn differs_from(&self, other: &RunConfig) -> Option<&'static str> {
        let times = |of: &RunConfig| -> Option<Vec<u64>> {
            let stages = of.pace.stages.as_ref()?;
            Some(stages.iter().map(|(seconds, _)| us(*seconds)).collect())
        };
        let is = |of: &RunConfig| {
            (of.pace.rate.is_some(), of.pace.arrival_rate.is_some(), of.users.is_some())
        };
        let differences = [
            ("target", paths(&self.target) != paths(&other.target)),
            ("scenario", file_name(self) != file_name(other)),
            ("pace", self.pace.model != other.pace.model || is(self) != is(other)),
            ("stages", times(self) != times(other)),
            ("passes", self.passes != other.passes),
            ("keep-alive", self.keep_alive != other.keep_alive),
            ("pipeline", self.pipeline != other.pipeline),
            ("streams", self.streams != other.streams),
            ("method", self.method != other.method),
            ("message size", self.message_bytes != other.message_bytes),
            ("compression", self.compressed != other.compressed),
            ("duration", self.duration_seconds.map(us) != other.duration_seconds.map(us)),
            ("warm-up", self.warm_up_seconds.map(us) != other.warm_up_seconds.map(us)),
            ("settings", common(&self.settings) != common(&other.settings)),
        ];
        differences.into_iter().find_map(|(name, differs)| differs.then_some(name))
    }

    /// What both were, together.
    pub(super) fn merge(self, other: RunConfig) -> RunConfig {
        let (one, of) = (self.pace, other.pace);
        let stages = one.stages.zip(of.stages).map(|(one, of)| {
            let both = one.into_iter().zip(of);
            both.map(|((seconds, one), (_, of))| (seconds, one.saturating_add(of))).collect()
        });
        let same = |one: Option<u64>, of| one.filter(|one| Some(*one) == of);
        let mut target: Vec<String> = self.target.into_iter().chain(other.target).collect();
        target.sort();
        target.dedup();
        RunConfig {
            target,
            pace: PaceConfig {
                model: one.model,
                rate: sum(one.rate, of.rate),
                arrival_rate: sum(one.arrival_rate, of.arrival_rate),
                stages,
            },
            tls_error: least(self.tls_error, other.tls_error),
            message_error: least(self.message_error, other.message_error),
            scenario: least(self.scenario, other.scenario),
            about: least(self.about, other.about),
            seed: same(self.seed, other.seed),
            passes: self.passes,
            beside: None,
            users: known(self.users, other.users),
            keep_alive: self.keep_alive,
            pipeline: self.pipeline,
            streams: self.streams,
            method: self.method,
            message_bytes: self.message_bytes,
            compressed: self.compressed,
            duration_seconds: self.duration_seconds,
            warm_up_seconds: self.warm_up_seconds,
            settings: common(&self.settings),
        }
    }
}

/// Rows of settings that several generators have in common: not those that contain numbers that are shared
/// out.
fn common(settings: &[(String, String)]) -> Vec<(String, String)> {
    const SHARED: [&str; 7] = [
        "connections",
        "connects in flight",
        "messages sent",
        "passes begun",
        "publications",
        "sent",
        "stages",
    ];
    let is_common = |row: &&(String, String)| !SHARED.contains(&row.0.as_str());
    settings.iter().filter(is_common).cloned().collect()
}

/// The schemes and paths of URLs.
fn paths(urls: &[String]) -> BTreeSet<(&str, &str)> {
    let path = |url: &'_ str| -> Option<(usize, usize)> {
        let scheme = url.find("://")?;
        let host = scheme + "://".len();
        let rest = url.get(host..)?;
        Some((scheme, host + rest.find(['/', '?']).unwrap_or(rest.len())))
    };
    let parts = urls.iter().map(|url| {
        let (scheme, at) = path(url).unwrap_or((0, 0));
        (url.get(..scheme).unwrap_or_default(), url.get(at..).unwrap_or_default())
    });
    parts.map(|(scheme, path)| (scheme, if path.is_empty() { "/" } else { path })).collect()
}

fn file_name(config: &RunConfig) -> Option<&str> {
    config.scenario.as_deref().map(|name| name.rsplit('/').next().unwrap_or(name))
}
