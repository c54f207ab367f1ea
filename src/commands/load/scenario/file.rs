//! [`Experiment`]: a parsed scenario file of `load`, with what users do and the rounds to run.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use load::Threshold;
use load::requests::{Arrivals, Pace, Requests};
use load::scenario::{Feed, Flow, Names, Order, Scenario};
use load::stages::Stage;
use toml::de::DeTable;

use super::calls::Calls;
use super::groups;
use super::hosts::{self, Hosts};
use super::keys::{CONNECT, FEED, FIXTURE, FLOW, ROUND, TOP};
use super::steps::{Reader, on_failure};
use super::tables::{Doc, Table};
use crate::commands::fleet::fixtures::Fixtures;
use crate::commands::load::threshold;
use crate::{tls, units};

/// The only version.
pub(super) const VERSION: &str = "1";
/// Default time limit for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Default time limit of `[setup]` and of `[teardown]`.
const FIXTURE_LIMIT: Duration = Duration::from_secs(60);
/// Default of `load --compress-above`, in bytes.
const COMPRESS_ABOVE: u64 = 1 << 10;
/// The largest limit of hosts per user, and of connections to one.
const PER_USER_MAX: usize = 64;
/// Size limit of a scenario file, in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;
/// Keys that exist only in scenarios of `prove`.
const PROVE_KEYS: [&str; 6] = ["connections", "hold", "heartbeat", "broadcasts", "link", "serve"];

/// A parsed file.
#[derive(Debug)]
pub(super) struct Experiment {
    pub(super) about: Option<String>,
    pub(super) thresholds: Vec<Threshold>,
    pub(super) seed: Option<u64>,
    pub(super) rounds: Vec<Round>,
    /// Whether the file has `[[rounds]]`.
    pub(super) has_rounds: bool,
    /// How long `[setup]` and `[teardown]` may take.
    pub(super) limits: [Duration; 2],
}

/// One run of the users.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) scenario: Arc<Scenario>,
    pub(super) requests: Requests,
    pub(super) beside: Option<f64>,
}

/// Values of the command line that override the file.
#[derive(Clone, Default, Debug)]
pub(super) struct Overrides {
    pub(super) target: Option<String>,
    pub(super) users: Option<u64>,
    pub(super) duration: Option<Duration>,
    pub(super) warm_up: Option<Duration>,
}

/// Settings that can differ between rounds.
#[derive(Clone, Debug)]
struct Shape {
    users: u64,
    passes: Option<u64>,
    duration: Option<Duration>,
    rate: Option<u64>,
    arrival_rate: Option<u64>,
    keep_alive: bool,
}

impl Experiment {
    /// How long the setup and the teardown may take, if there are any.
    pub(super) fn fixtures(&self) -> Fixtures {
        let [setup, teardown] = self.limits;
        let scenario = self.rounds.first().map(|round| &round.scenario);
        let has = |flow: fn(&Scenario) -> bool| scenario.is_some_and(|scenario| flow(scenario));
        Fixtures {
            setup: has(|scenario| scenario.setup.is_some()).then_some(setup),
            teardown: has(|scenario| scenario.teardown.is_some()).then_some(teardown),
        }
    }

    /// Parses a file; paths in it are relative to `folder`.
    ///
    /// # Errors
    /// The first error with its line.
    pub(super) fn parse(
        text: &str,
        shown: &str,
        folder: &Path,
        overrides: &Overrides,
    ) -> Result<Experiment> {
        let doc = Doc { text, shown };
        let values = DeTable::parse(text).map_err(|error| anyhow::anyhow!("{shown}: {error}"))?;
        let values = values.get_ref();
        if !values.contains_key("flows") && PROVE_KEYS.iter().any(|key| values.contains_key(*key)) {
            bail!("{shown} is a scenario of `prove`: run standfast prove {shown}");
        }
        let top = Table::new(doc, &TOP, 0, values)?;
        let version = top.required("version")?;
        if version.text != VERSION {
            let what = format!("unknown version {}: expected 1", version.text);
            return Err(doc.wrong(version.at, what));
        }
        let connect = top.table("connect", &CONNECT)?;
        let tls = match &connect {
            Some(connect) => tls_files(connect, folder)?,
            None => tls::ClientFlags::of_files(false, None, None, None),
        };
        let ways = (connect.as_ref(), &tls);
        let (mut scenario, mut requests) = scenario(&top, ways, folder, overrides)?;
        tls.set(&mut scenario.endpoints)?;
        let needs_http2 = scenario.has_calls() && !scenario.has_web_calls();
        requests.streams = streams(connect.as_ref(), needs_http2)?;
        if requests.streams.is_some() {
            // Requests at the same time are streams of a connection.
            requests.connections_per_host = PER_USER_MAX;
            for endpoint in &mut scenario.endpoints {
                endpoint.client = endpoint.client.take().map(|client| client.for_http2());
            }
        }
        requests.timeout =
            top.parsed("timeout", units::positive_duration)?.unwrap_or(requests.timeout);
        let warm_up = top.parsed("warm_up", units::duration)?;
        requests.warm_up = overrides.warm_up.or(warm_up).unwrap_or_default();
        requests.follows = scenario.redirects > 0;
        if let Some(connect) = &connect {
            requests.sources = connect.all("sources", units::ip)?;
            requests.connect_timeout =
                connect.parsed("connect_timeout", units::positive_duration)?;
            requests.hosts = connect.parsed("hosts_per_user", few)?.unwrap_or(requests.hosts);
            requests.connections_per_host = connect
                .parsed("connections_per_host", few)?
                .unwrap_or(requests.connections_per_host);
        }
        let together = if requests.streams.is_some() { 1 } else { requests.connections_per_host };
        requests.links = scenario.links(requests.hosts, together);
        requests.endpoints.clone_from(&scenario.endpoints);
        let shape = Shape {
            users: top.parsed("users", units::positive_count)?.unwrap_or(1),
            passes: top.parsed("passes", units::positive_count)?,
            duration: top.parsed("duration", units::positive_duration)?,
            rate: top.parsed("rate", units::positive_count)?,
            arrival_rate: top.parsed("arrival_rate", units::positive_count)?,
            keep_alive: top.boolean("keep_alive")?.unwrap_or(true),
        };
        let stages = top.all("stages", crate::commands::load::flags::stage)?;
        let tables = top.tables("rounds", &ROUND)?;
        let round = |table: Option<&Table<'_>>| -> Result<Round> {
            let (shape, beside) = shape.of_round(table, overrides, &top)?;
            let at = table.map_or(top.at, |table| table.at);
            shape.check(&scenario, &stages).map_err(|what| doc.wrong(at, what))?;
            if overrides.users.is_some() && shape.shared(&scenario) == 0 {
                let what = "--connections is the users of the top level, but each flow has its own";
                return Err(doc.wrong(at, what));
            }
            let scenario = shape.scenario(&scenario);
            let requests = shape.requests(&requests, &stages, &scenario);
            if let Some(group) = &scenario.group {
                groups::fit(&top, group, requests.connections)?;
            }
            Ok(Round { scenario: Arc::new(scenario), requests, beside })
        };
        let rounds = match tables.as_slice() {
            [] => vec![round(None)?],
            tables => tables.iter().map(|table| round(Some(table))).collect::<Result<_>>()?,
        };
        Ok(Experiment {
            about: top.text("about")?.map(|located| located.text),
            thresholds: top.all("thresholds", threshold::parse)?,
            seed: top.parsed("seed", units::count)?,
            has_rounds: !tables.is_empty(),
            limits: [fixture_limit(&top, "setup")?, fixture_limit(&top, "teardown")?],
            rounds,
        })
    }
}

impl Shape {
    fn of_round(
        &self,
        table: Option<&Table<'_>>,
        overrides: &Overrides,
        top: &Table<'_>,
    ) -> Result<(Shape, Option<f64>)> {
        let at = table.map_or(top.at, |table| table.at);
        let mut shape = self.clone();
        let mut beside = None;
        if let Some(table) = table {
            shape = Shape {
                users: table.parsed("users", units::positive_count)?.unwrap_or(self.users),
                passes: table.parsed("passes", units::positive_count)?.or(self.passes),
                duration: table.parsed("duration", units::positive_duration)?.or(self.duration),
                rate: table.parsed("rate", units::positive_count)?.or(self.rate),
                arrival_rate: table
                    .parsed("arrival_rate", units::positive_count)?
                    .or(self.arrival_rate),
                keep_alive: table.boolean("keep_alive")?.unwrap_or(self.keep_alive),
            };
            let number = |text: &str| {
                let number = text.replace('_', "").parse().ok().filter(|n: &f64| n.is_finite());
                number.ok_or_else(|| "expected a number".to_owned())
            };
            beside = table.parsed("beside", number)?;
        }
        if shape.rate.is_some() && shape.passes.is_some() {
            return Err(top.doc.wrong(
                at,
                "rate and passes exclude each other: use rate with duration or stages",
            ));
        }
        shape.users = overrides.users.unwrap_or(shape.users);
        shape.duration = overrides.duration.or(shape.duration);
        Ok((shape, beside))
    }

    /// Checks what flows with their own users and an arrival rate exclude.
    fn check(&self, scenario: &Scenario, stages: &[Stage]) -> Result<(), String> {
        let own = || scenario.flows.iter().filter(|flow| !flow.users.is_empty());
        let arrives = self.arrival_rate.is_some() || own().any(|flow| flow.arrival_rate.is_some());
        let is_shared = scenario.flows.iter().any(|flow| flow.users.is_empty());
        let wrong = |what: &str| Err(what.to_owned());
        match self {
            _ if arrives && self.rate.is_some() => {
                wrong("rate and arrival_rate exclude each other: of steps, or of passes")
            }
            _ if arrives && self.passes.is_some() => {
                wrong("passes and arrival_rate exclude each other: use duration or stages")
            }
            _ if arrives && scenario.group.is_some() => {
                wrong("[group] and arrival_rate exclude each other: the users of a group meet")
            }
            _ if self.arrival_rate.is_some() && !is_shared => {
                wrong("every flow has users of its own: arrival_rate belongs to the flows")
            }
            _ if own().next().is_none() => Ok(()),
            _ if scenario.group.is_some() => {
                wrong("[group] and users of a flow exclude each other")
            }
            _ if self.rate.is_some() => {
                wrong("rate and users of a flow exclude each other: use arrival_rate")
            }
            _ if !stages.is_empty() && self.arrival_rate.is_none() => {
                wrong("stages and users of a flow exclude each other, except with arrival_rate")
            }
            _ => Ok(()),
        }
    }

    fn requests(&self, common: &Requests, stages: &[Stage], scenario: &Scenario) -> Requests {
        let most = stages.iter().map(|stage| stage.connections).max();
        let shared = self.shared(scenario);
        let arrivals = self.arrivals(stages, scenario);
        let pace = match (self.rate, stages) {
            _ if !arrivals.is_empty() => Pace::Closed,
            (None, []) => Pace::Closed,
            (None, stages) => Pace::Users(stages.to_vec()),
            (Some(rate), []) => Pace::Rate(rate),
            (Some(_), stages) => Pace::Rates(stages.to_vec()),
        };
        let users = if matches!(pace, Pace::Users(_)) { most } else { None };
        let endless = self.passes.is_none() && stages.is_empty();
        let duration_default = endless.then_some(Duration::from_secs(10));
        let staged = (self.arrival_rate.is_some() && !stages.is_empty())
            .then(|| stages.iter().map(|stage| stage.time).sum());
        let duration = [self.duration.or(duration_default), staged].into_iter().flatten().min();
        let of = |flow: &Flow| flow.users.end - flow.users.start;
        let own = scenario.flows.iter().map(of).fold(0, u64::saturating_add);
        Requests {
            sockets: scenario.sockets().max(1),
            connections: users.unwrap_or(shared.saturating_add(own)).max(1),
            pace,
            arrivals,
            duration,
            // The users stop after their passes; no number of requests ends the run.
            requests: self.passes.map(|_| u64::MAX >> 1),
            new_connections: !self.keep_alive,
            redirects: 0,
            ..common.clone()
        }
    }

    /// The users of flows without their own.
    fn shared(&self, scenario: &Scenario) -> u64 {
        let is_shared = scenario.flows.iter().any(|flow| flow.users.is_empty() && flow.weight > 0);
        if is_shared { self.users } else { 0 }
    }

    fn arrivals(&self, stages: &[Stage], scenario: &Scenario) -> Vec<Arrivals> {
        let shared = self.arrival_rate.map(|rate| Arrivals {
            users: 0..self.shared(scenario),
            pace: if stages.is_empty() { Pace::Rate(rate) } else { Pace::Rates(stages.to_vec()) },
            start: Duration::ZERO,
        });
        let own = scenario.flows.iter().filter_map(|flow| {
            let pace = Pace::Rate(flow.arrival_rate?);
            Some(Arrivals { users: flow.users.clone(), pace, start: flow.start })
        });
        shared.into_iter().chain(own).collect()
    }

    fn scenario(&self, common: &Scenario) -> Scenario {
        let mut flows = common.flows.clone();
        // The users of flows follow those of the top level.
        let mut next = self.shared(common);
        for flow in flows.iter_mut().filter(|flow| !flow.users.is_empty()) {
            let users = flow.users.end - flow.users.start;
            flow.users = next..next.saturating_add(users);
            next = flow.users.end;
        }
        let (passes, close) = (self.passes, !self.keep_alive);
        Scenario { flows, passes, close, arrives: self.arrival_rate.is_some(), ..common.clone() }
    }
}

/// Reads everything that is the same in all rounds.
fn scenario(
    top: &Table<'_>,
    (connect, tls): (Option<&Table<'_>>, &tls::ClientFlags),
    folder: &Path,
    overrides: &Overrides,
) -> Result<(Scenario, Requests)> {
    let doc = top.doc;
    let redirects = top.parsed("redirects", |text| {
        let count = u8::try_from(units::count(text)?).ok().filter(|count| *count <= 100);
        count.ok_or_else(|| "expected at most 100".to_owned())
    })?;
    let redirects = redirects.unwrap_or(10);
    let redirect_tls = if redirects > 0 { tls.for_redirects()? } else { None };
    let mut target = top.text("target")?;
    if let (Some(text), located) = (&overrides.target, &mut target) {
        let at = located.as_ref().map_or(0, |located| located.at);
        *located = Some(super::tables::Located { text: text.clone(), at });
    }
    let calls = Calls::new(top, (connect, target.as_ref()), folder, tls)?;
    let mut hosts = Hosts::new(connect, folder, redirect_tls, calls.need_http2())?;
    let target = match &target {
        None => None,
        Some(located) => {
            let wrong = || {
                doc.wrong(
                    located.at,
                    format!(
                        "invalid target {:?}: expected an http:// or https:// URL, or grpc:// and grpcs://",
                        located.text
                    ),
                )
            };
            let url = hosts::as_http(&located.text);
            let (origin, prefix) = hosts::split(&url).ok_or_else(wrong)?;
            let prefix = prefix.trim_end_matches('/').to_owned();
            Some((hosts.number(top, located, origin)?, prefix))
        }
    };
    let feeds = feeds(top, folder)?;
    let variables =
        top.pairs("variables")?.into_iter().map(|(name, value)| (name.text, value.text));
    let variables: BTreeMap<String, String> = variables.collect();
    let mut reader = Reader {
        folder,
        hosts,
        target,
        headers: top.pairs("headers")?,
        think: top.parsed("think", units::duration_range)?,
        continues: on_failure(top)?.unwrap_or(false),
        names: Names {
            variables,
            feeds: feeds.clone(),
            captures: Vec::new(),
            lists: BTreeSet::new(),
        },
        steps: Vec::new(),
        captures: Vec::new(),
        least: RefCell::default(),
        calls,
        sockets: Vec::new(),
        socket_names: Vec::new(),
        timeout: top.parsed("timeout", units::positive_duration)?.unwrap_or(TIMEOUT),
    };
    let setup = top.table("setup", &FIXTURE)?;
    let setup = setup.map(|table| reader.fixture("setup", &table)).transpose()?;
    let teardown = top.table("teardown", &FIXTURE)?;
    let teardown = teardown.map(|table| reader.fixture("teardown", &table)).transpose()?;
    let tables = top.tables("flows", &FLOW)?;
    let flows = tables.iter().enumerate().map(|(number, table)| reader.flow(number, table));
    let flows: Vec<Flow> = flows.collect::<Result<_>>()?;
    reader.set_least();
    if flows.iter().all(|flow| flow.weight == 0) {
        return Err(doc.wrong(0, "no flows: expected at least one [[flows]] with [[flows.steps]]"));
    }
    let group = groups::read(top, &reader.steps)?;
    groups::check(top, group.as_ref(), &flows, &reader.steps)?;
    let scenario = Scenario {
        endpoints: reader.hosts.endpoints,
        flows,
        steps: reader.steps,
        feeds,
        captures: reader.captures.len(),
        cookies: top.boolean("cookies")?.unwrap_or(true),
        redirects,
        compress_above: connect.map(compress_above).transpose()?.flatten(),
        group,
        setup,
        teardown,
        ..Scenario::default()
    };
    let group = scenario.group.map_or(1, |group| group.size);
    let requests = Requests { group, ..Requests::new(scenario.endpoints.clone(), 1) };
    Ok((scenario, requests))
}

/// Users that share a connection, with HTTP/2, which calls need.
fn streams(connect: Option<&Table<'_>>, has_calls: bool) -> Result<Option<u32>> {
    let Some(connect) = connect else { return Ok(has_calls.then_some(1)) };
    let is_http2 = connect.boolean("http2")?.unwrap_or(false) || has_calls;
    let streams = connect.parsed("streams", |text| {
        let count = u32::try_from(units::positive_count(text)?).ok();
        let count = count.filter(|count| *count <= Requests::STREAMS_MAX);
        count.ok_or_else(|| format!("expected at most {}", Requests::STREAMS_MAX))
    })?;
    match streams {
        Some(_) if !is_http2 => {
            Err(connect.doc.wrong(connect.at, "streams are of HTTP/2: add http2 = true"))
        }
        streams => Ok(is_http2.then_some(streams.unwrap_or(1))),
    }
}

/// Parses a limit per user.
fn few(text: &str) -> Result<usize, String> {
    let count = units::positive_count(text)?;
    let count = usize::try_from(count).ok().filter(|count| *count <= PER_USER_MAX);
    count.ok_or_else(|| format!("expected at most {PER_USER_MAX}"))
}

fn feeds(top: &Table<'_>, folder: &Path) -> Result<Vec<Arc<Feed>>> {
    let mut feeds: Vec<Arc<Feed>> = Vec::new();
    for table in top.tables("feeds", &FEED)? {
        let name = table.required("name")?;
        let file = table.required("file")?;
        if feeds.iter().any(|feed| feed.name() == name.text) {
            return Err(top.doc.wrong(name.at, format!("two feeds are named {:?}", name.text)));
        }
        let feed = Feed::read(&name.text, &folder.join(&file.text));
        let mut feed = feed.map_err(|error| top.doc.wrong(file.at, error))?;
        let order = table.parsed("order", |text| match text {
            "sequential" => Ok(Order::Sequential),
            "random" => Ok(Order::Random),
            "per-user" => Ok(Order::PerUser),
            _ => Err("expected sequential, random or per-user".to_owned()),
        })?;
        let once = table.parsed("at_end", |text| match text {
            "again" => Ok(false),
            "stop" => Ok(true),
            _ => Err("expected again or stop".to_owned()),
        })?;
        (feed.order, feed.once) = (order.unwrap_or_default(), once.unwrap_or(false));
        feeds.push(Arc::new(feed));
    }
    Ok(feeds)
}

/// Returns how long `[setup]` or `[teardown]` may take.
fn fixture_limit(top: &Table<'_>, name: &'static str) -> Result<Duration> {
    let table = top.table(name, &FIXTURE)?;
    let limit = table.map(|table| table.parsed("timeout", units::positive_duration)).transpose()?;
    Ok(limit.flatten().unwrap_or(FIXTURE_LIMIT))
}

/// Returns the size in bytes from which socket messages are compressed; `None` without compression.
fn compress_above(connect: &Table<'_>) -> Result<Option<usize>> {
    let shared = connect.parsed("compression", |text| match text {
        "shared" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected off or shared".to_owned()),
    })?;
    let above = connect.parsed("compress_above", units::size)?;
    if above.is_some() && shared != Some(true) {
        let what = "compress_above needs compression = \"shared\"";
        return Err(connect.doc.wrong(connect.at, what));
    }
    let above = usize::try_from(above.unwrap_or(COMPRESS_ABOVE)).unwrap_or(usize::MAX);
    Ok(shared.unwrap_or(false).then_some(above))
}

fn tls_files(connect: &Table<'_>, folder: &Path) -> Result<tls::ClientFlags> {
    let file =
        |key| -> Result<_> { Ok(connect.text(key)?.map(|located| folder.join(located.text))) };
    let (cert, key) = (file("cert")?, file("key")?);
    if cert.is_some() != key.is_some() {
        return Err(connect.doc.wrong(connect.at, "cert and key must be set together"));
    }
    let insecure = connect.boolean("insecure")?.unwrap_or(false);
    Ok(tls::ClientFlags::of_files(insecure, file("ca")?, cert, key))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
