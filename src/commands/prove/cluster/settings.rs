//! The settings of a proof: flags with their defaults, checked.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use load::subscribers::Subscribers;

use super::Args;
use super::broker::{Kind as BrokerKind, Url};
use super::faults::{Draw, Kind as FaultKind};

/// Nodes of one proof: each is a process on this machine.
const NODES_MAX: u64 = 9;
/// Clients of one proof: their logs are kept in memory.
const CLIENTS_MAX: u64 = 50_000;
/// Publications per second that threads publish one after another.
const RATE_MAX: u64 = 5_000;

/// All settings.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) broker: BrokerKind,
    /// The user's broker.
    pub(super) url: Option<Url>,
    pub(super) nodes: usize,
    pub(super) clients: u32,
    topics: usize,
    pub(super) rate: u64,
    pub(super) duration: Duration,
    pub(super) seed: u64,
    pub(super) kinds: Vec<FaultKind>,
    pub(super) cable: bool,
    /// The broker keeps publications, and clients ask for what they missed.
    pub(super) history: bool,
    pub(super) proxy: bool,
    pub(super) serve: Vec<String>,
    pub(super) logs: Option<PathBuf>,
}

impl Settings {
    /// # Errors
    /// Values that are out of range or contradict each other.
    pub(super) fn new(args: &Args, seed: u64) -> Result<Settings> {
        let (broker, url) = match (&args.redis_url, &args.nats_servers) {
            (Some(_), Some(_)) => bail!("--redis-url and --nats-servers exclude each other"),
            (Some(url), None) => (BrokerKind::Redis, Some(Url::parse(BrokerKind::Redis, url)?)),
            (None, Some(url)) => (BrokerKind::Nats, Some(Url::parse(BrokerKind::Nats, url)?)),
            (None, None) => (args.broker.unwrap_or(BrokerKind::Redis), None),
        };
        if url.is_some() && args.broker.is_some_and(|named| named != broker) {
            bail!("--broker {} does not match the URL", args.broker.map_or("", BrokerKind::name));
        }
        if args.history && broker == BrokerKind::None {
            bail!(
                "--history needs --broker redis or nats: it keeps the publications for all nodes"
            );
        }
        let check = |flag: &str, value: u64, most: u64| match (1..=most).contains(&value) {
            true => Ok(value),
            false => bail!("invalid value {value} for {flag}: expected 1 to {most}"),
        };
        let nodes = check("--nodes", args.nodes, NODES_MAX)? as usize;
        let endpoints = if args.proxy { 1 } else { nodes };
        let most = Subscribers::topics_max(endpoints) as u64;
        let topics = check("--topics", args.topics, most)? as usize;
        if args.duration < Duration::from_secs(5) {
            bail!("--duration is too short for a fault: expected 5s or more");
        }
        let mut settings = Settings {
            broker,
            url,
            nodes,
            clients: check("--clients", args.clients, CLIENTS_MAX)? as u32,
            topics,
            rate: check("--rate", args.rate, RATE_MAX)?,
            duration: args.duration,
            seed: args.seed.unwrap_or(seed),
            kinds: Vec::new(),
            cable: args.cable || args.history,
            history: args.history,
            proxy: args.proxy,
            serve: args.serve_flag.clone(),
            logs: args.logs.clone(),
        };
        settings.kinds = settings.possible(&args.faults)?;
        Ok(settings)
    }

    /// The kinds of faults that this cluster can have, of those requested.
    fn possible(&self, requested: &[FaultKind]) -> Result<Vec<FaultKind>> {
        let has_links = self.broker != BrokerKind::None;
        let is_possible = |kind: FaultKind| match kind {
            FaultKind::KillNode | FaultKind::StopNode | FaultKind::DropClients => true,
            FaultKind::CutLink | FaultKind::DelayLink | FaultKind::SwallowLink => has_links,
            FaultKind::KillBroker => has_links && self.url.is_none(),
        };
        if let Some(kind) = requested.iter().find(|&&kind| !is_possible(kind)) {
            let name = clap::ValueEnum::to_possible_value(kind);
            let name = name.map(|value| value.get_name().to_owned()).unwrap_or_default();
            bail!("--faults {name} needs a broker that the proof starts itself");
        }
        let all = if requested.is_empty() { &FaultKind::ALL[..] } else { requested };
        Ok(all.iter().copied().filter(|&kind| is_possible(kind)).collect())
    }

    pub(super) fn draw(&self) -> Draw {
        let kinds = self.kinds.clone();
        Draw { seed: self.seed, nodes: self.nodes, duration: self.duration, kinds }
    }

    /// The names of the topics.
    pub(super) fn topics(&self) -> Vec<String> {
        (0..self.topics).map(|number| format!("prove-{number}")).collect()
    }

    /// About how many publications each topic has: what a client logs.
    pub(super) fn publications_per_topic(&self) -> usize {
        let all = self.rate as f64 * (self.duration.as_secs_f64() + 120.0);
        (2.0 * all / self.topics as f64) as usize
    }
}
