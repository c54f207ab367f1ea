//! A running proof: starts broker, nodes, clients and publishers, carries out the fault plan, waits until all
//! has recovered, and returns the evidence.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Child;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use capacity::Count;
use engine::sys::process::{self, Signal, now_ns};
use load::subscribers::{Speech, Subscribers, Subscribing};
use load::{Growth, Retry, Sample, SampleSeries};

use super::broker::{Broker, Kind as BrokerKind};
use super::check::TELL_WITHIN;
use super::evidence::{Answer, Evidence, Publication, Window};
use super::faults::{Fault, Planned};
use super::nodes::{Node, Watch};
use super::publish::{self, Publishers, Publishing};
use super::relay::{Link, Relay};
use super::settings::Settings;
use crate::commands::prove::child;
use crate::output;

/// Time limit for all clients to be subscribed, at first and after the last fault.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long publications go on after all have recovered: they must reach everybody.
const CALM: Duration = Duration::from_secs(3);
/// Nothing more was received for this long: what is under way has arrived.
const QUIET: Duration = Duration::from_secs(2);
/// How often the proof looks at its processes.
const LOOK: Duration = Duration::from_millis(50);
/// A history that has room for all publications of a proof that a client can miss.
const HISTORY: [&str; 3] =
    ["--history-limit=10k", "--history-topic-bytes=16MiB", "--history-bytes=256MiB"];
/// Publisher threads per node.
const PUBLISHERS: usize = 2;
/// The waits of clients before they reconnect.
const RETRY: Retry = Retry {
    attempts: u32::MAX,
    base: Duration::from_millis(200),
    most: Duration::from_secs(3),
    growth: Growth::Doubling,
    reconnect: true,
};
/// How long a client waits for a connection and its subscription.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Events that a client may log beyond what is published.
const EVENTS_RESERVE: usize = 10_000;

/// What a proof has seen.
pub(super) struct Seen {
    pub(super) evidence: Evidence,
    /// When publishing began, and when all had recovered from the last fault.
    pub(super) began_ns: u64,
    pub(super) recovered_ns: Option<u64>,
    pub(super) series: SampleSeries,
    /// Clients that were subscribed at the end.
    pub(super) subscribed: u64,
    pub(super) broker_version: Option<String>,
    /// Failures of the proof itself.
    pub(super) broken: Vec<String>,
    pub(super) interrupted: bool,
}

/// Why a proof ends early.
enum Stop {
    Interrupted,
    Broken(String),
}

/// The parts, in the order in which they are dropped: clients first, the broker last.
struct Run<'a> {
    settings: &'a Settings,
    subscribers: Subscribers,
    publishers: Option<Publishers>,
    watch: Watch,
    proxy: Option<Proxy>,
    nodes: Vec<Node>,
    relays: Vec<Relay>,
    broker: Option<Broker>,
    /// The windows of all faults so far; open ones end at `u64::MAX`.
    windows: Vec<Window>,
    began_ns: u64,
    /// Deliveries until all had recovered.
    received_before: u64,
    series: SampleSeries,
}

/// `standfast proxy` in front of the nodes.
struct Proxy {
    child: Child,
    listen: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address of loopback for each proof, so that its ports are never those of a client's connection and
/// several proofs may run.
fn host() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | (high & 63), middle, low)
}

/// Runs the proof.
///
/// # Errors
/// What could not be started: nothing was measured then.
pub(super) fn run(settings: &Settings, plan: &[Planned]) -> Result<Seen> {
    let mut run = Run::start(settings)?;
    let ended = run.measure(plan);
    let (mut broken, mut interrupted) = (Vec::new(), false);
    let recovered_ns = match ended {
        Ok(recovered_ns) => Some(recovered_ns),
        Err(Stop::Interrupted) => {
            interrupted = true;
            None
        }
        Err(Stop::Broken(why)) => {
            broken.push(why);
            None
        }
    };
    run.finish(broken, interrupted, recovered_ns)
}

impl<'a> Run<'a> {
    fn start(settings: &'a Settings) -> Result<Run<'a>> {
        let host = host();
        let broker = match (settings.broker, &settings.url) {
            (BrokerKind::None, _) => None,
            (kind, Some(url)) => Some(Broker::of_user(kind, url.clone())?),
            (kind, None) => Some(Broker::start(kind, host, 7_200, settings.history)?),
        };
        let mut relays = Vec::new();
        let mut nodes = Vec::new();
        for number in 0..settings.nodes {
            let mut flags = settings.serve.clone();
            if let Some(broker) = &broker {
                let relay = Relay::start(broker.url().address).context("cannot start a relay")?;
                flags.push(format!("--pubsub={}", broker.kind().name()));
                flags.push(broker.url().flag_through(relay.listen()));
                flags.push(format!("--node-id=node-{}", number + 1));
                if settings.url.is_some() {
                    // Other nodes may use the user's broker.
                    flags.push(format!("--pubsub-prefix=prove-{}", settings.seed));
                }
                if settings.history {
                    flags.push(format!("--history={}", broker.kind().name()));
                    flags.extend(HISTORY.map(str::to_owned));
                }
                relays.push(relay);
            }
            nodes.push(Node::start(number, host, flags, settings.logs.as_deref())?);
        }
        let listens: Vec<SocketAddr> = nodes.iter().map(|node| node.listen).collect();
        let proxy = settings.proxy.then(|| Proxy::start(host, &listens)).transpose()?;
        let endpoints = proxy.as_ref().map_or(listens, |proxy| vec![proxy.listen]);
        let watch = Watch::start(&nodes)?;
        let subscribers = Subscribers::start(Subscribing {
            endpoints,
            topics: settings.topics(),
            clients: settings.clients,
            speech: match (settings.history, settings.cable) {
                (true, _) => Speech::CableHistory,
                (false, true) => Speech::Cable,
                (false, false) => Speech::Topics,
            },
            retry: RETRY,
            connect_timeout: CONNECT_TIMEOUT,
            events_max: EVENTS_RESERVE + settings.publications_per_topic(),
        });
        let subscribers = subscribers.context("cannot start the clients")?;
        let (windows, series) = (Vec::new(), SampleSeries::new());
        let (publishers, began_ns) = (None, now_ns());
        Ok(Run {
            settings,
            subscribers,
            publishers,
            watch,
            proxy,
            nodes,
            relays,
            broker,
            windows,
            began_ns,
            received_before: 0,
            series,
        })
    }

    /// All of the proof. Returns when everything had recovered.
    fn measure(&mut self, plan: &[Planned]) -> Result<u64, Stop> {
        self.wait_subscribed("clients are not subscribed")?;
        output::note(&format!(
            "{} clients subscribed in {:.1} s",
            Count(self.settings.clients.into()),
            self.seconds()
        ));
        let publishing = Publishing {
            admins: self.nodes.iter().map(|node| node.admin).collect(),
            topics: self.settings.topics(),
            rate: self.settings.rate,
            threads: PUBLISHERS,
        };
        if self.settings.history {
            self.begin_recovery()?;
        }
        self.began_ns = now_ns();
        let publishers = Publishers::start(&publishing);
        self.publishers = Some(publishers.map_err(|error| Stop::Broken(format!("{error:#}")))?);
        self.carry_out(plan)?;
        self.wait_ready()?;
        self.wait_subscribed("clients are not subscribed again after the last fault")?;
        let recovered_ns = now_ns();
        self.received_before = self.subscribers.counts().received();
        output::note(&format!("{:6.1} s  all clients subscribed again", self.seconds()));
        self.wait_until(recovered_ns + nanoseconds(CALM))?;
        Ok(recovered_ns)
    }

    /// Lets clients that have received nothing yet ask for all from now on: from a full second on, as they ask in
    /// seconds, at which the broker knows all topics already.
    fn begin_recovery(&mut self) -> Result<(), Stop> {
        #[expect(clippy::disallowed_methods, reason = "clients ask by the calendar")]
        let now = SystemTime::now();
        let unix = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since = unix.as_secs() + 2;
        self.wait_until(now_ns() + nanoseconds(Duration::from_secs(since).saturating_sub(unix)))?;
        self.subscribers.recover_since(since);
        Ok(())
    }

    /// Begins and ends the faults when they are due.
    fn carry_out(&mut self, plan: &[Planned]) -> Result<(), Stop> {
        // Time, whether it ends, and the fault with its place in the plan.
        let begins = plan.iter().enumerate().map(|(at, one)| (one.from_ms, false, at));
        let ends = plan.iter().enumerate().map(|(at, one)| (one.until_ms, true, at));
        let mut steps: Vec<(u64, bool, usize)> = begins.chain(ends).collect();
        steps.sort_unstable();
        for (due_ms, is_end, at) in steps {
            self.wait_until(self.began_ns + due_ms * 1_000_000)?;
            let Some(planned) = plan.get(at) else { continue };
            match is_end {
                false => self.begin(planned.fault),
                true => self.end(planned.fault).map_err(|error| {
                    Stop::Broken(format!("{}: {error:#}", planned.fault.text()))
                })?,
            }
        }
        self.wait_until(self.began_ns + nanoseconds(self.settings.duration))
    }

    fn begin(&mut self, fault: Fault) {
        output::note(&format!("{:6.1} s  {}", self.seconds(), fault.text()));
        self.windows.push(Window { fault, from_ns: now_ns(), until_ns: u64::MAX });
        let node = fault.node().unwrap_or_default();
        match fault {
            Fault::KillNode { .. } => self.nodes.get_mut(node).into_iter().for_each(Node::kill),
            Fault::StopNode { .. } => {
                self.nodes.get(node).into_iter().for_each(|node| node.set_stopped(true));
            }
            Fault::KillBroker => self.broker.iter_mut().for_each(Broker::kill),
            Fault::CutLink { .. } => self.set_link(node, Link::Cut),
            Fault::DelayLink { delay_ms, .. } => {
                self.set_delay(node, Duration::from_millis(delay_ms));
            }
            Fault::SwallowLink { .. } => self.set_link(node, Link::Swallow),
            Fault::DropClients { percent } => {
                self.subscribers.drop_some(percent, self.settings.seed ^ now_ns());
            }
        }
    }

    fn end(&mut self, fault: Fault) -> Result<()> {
        let node = fault.node().unwrap_or_default();
        match fault {
            Fault::KillNode { .. } => {
                self.nodes.get_mut(node).context("no such node")?.restart()?;
            }
            Fault::StopNode { .. } => {
                self.nodes.get(node).into_iter().for_each(|node| node.set_stopped(false));
            }
            Fault::KillBroker => self.broker.as_mut().context("no broker")?.restart()?,
            Fault::CutLink { .. } | Fault::SwallowLink { .. } => self.set_link(node, Link::Pass),
            Fault::DelayLink { .. } => self.set_delay(node, Duration::ZERO),
            Fault::DropClients { .. } => {}
        }
        let open = |window: &&mut Window| window.until_ns == u64::MAX && window.fault == fault;
        if let Some(window) = self.windows.iter_mut().find(open) {
            window.until_ns = now_ns();
        }
        Ok(())
    }

    fn set_link(&self, node: usize, link: Link) {
        self.relays.get(node).into_iter().for_each(|relay| relay.set(link));
    }

    fn set_delay(&self, node: usize, delay: Duration) {
        self.relays.get(node).into_iter().for_each(|relay| relay.set_delay(delay));
    }

    fn seconds(&self) -> f64 {
        now_ns().saturating_sub(self.began_ns) as f64 / 1e9
    }

    fn wait_until(&mut self, until_ns: u64) -> Result<(), Stop> {
        loop {
            let now = now_ns();
            if now >= until_ns {
                return Ok(());
            }
            self.look(Duration::from_nanos(until_ns - now).min(LOOK))?;
        }
    }

    /// Waits for all clients.
    fn wait_subscribed(&mut self, what: &str) -> Result<(), Stop> {
        let deadline_ns = now_ns() + nanoseconds(SUBSCRIBE_TIMEOUT);
        let all = u64::from(self.settings.clients);
        while self.subscribers.counts().subscribed() < all {
            if now_ns() > deadline_ns {
                let missing = all - self.subscribers.counts().subscribed();
                return Err(Stop::Broken(format!(
                    "{} of {} {what} within {} s",
                    Count(missing),
                    Count(all),
                    SUBSCRIBE_TIMEOUT.as_secs()
                )));
            }
            self.look(LOOK)?;
        }
        Ok(())
    }

    /// Waits until every node says that it exchanges publications again.
    fn wait_ready(&mut self) -> Result<(), Stop> {
        let deadline_ns = now_ns() + nanoseconds(SUBSCRIBE_TIMEOUT);
        while let Some(node) = self.nodes.iter().find(|node| !publish::is_ready(node.admin)) {
            if now_ns() > deadline_ns {
                let (number, seconds) = (node.number + 1, SUBSCRIBE_TIMEOUT.as_secs());
                return Err(Stop::Broken(format!(
                    "node {number} is not ready within {seconds} s after the last fault"
                )));
            }
            self.look(LOOK)?;
        }
        Ok(())
    }

    /// Waits and looks for signals and for processes that have ended by themselves.
    fn look(&mut self, wait: Duration) -> Result<(), Stop> {
        if let Some(Signal::Interrupt | Signal::Terminate) = process::wait_signal(wait) {
            return Err(Stop::Interrupted);
        }
        if let Some(how) = self.nodes.iter_mut().find_map(Node::ended) {
            return Err(Stop::Broken(how));
        }
        if let Some(how) = self.broker.as_mut().and_then(Broker::ended) {
            return Err(Stop::Broken(format!("the broker ended by itself: {how}")));
        }
        let counts = self.subscribers.counts();
        let (acknowledged, _) = self.publishers.as_ref().map_or((0, 0), Publishers::counts);
        let sample = Sample {
            elapsed_seconds: self.seconds(),
            phase: "faults".into(),
            open: counts.subscribed(),
            closed: counts.ended(),
            sent: acknowledged,
            received: counts.received(),
            ..Sample::default()
        };
        if self.publishers.is_some() {
            self.series.push(&sample);
        }
        Ok(())
    }

    /// Stops publishing, waits for what is under way, and takes all logs.
    fn finish(
        mut self,
        broken: Vec<String>,
        interrupted: bool,
        recovered_ns: Option<u64>,
    ) -> Result<Seen> {
        let publications = self.publishers.take().map(Publishers::finish).unwrap_or_default();
        if let Some(recovered_ns) = recovered_ns {
            self.wait_delivered(&publications, recovered_ns);
        }
        let subscribed = self.subscribers.counts().subscribed();
        let tells = self.watch.finish();
        let logs = self.subscribers.finish();
        let subscribers = logs.map_err(|error| anyhow!("the clients failed: {error}"))?;
        let mut windows = self.windows;
        for window in &mut windows {
            window.until_ns = window.until_ns.min(now_ns());
        }
        let endpoints_are_nodes = self.proxy.is_none();
        Ok(Seen {
            evidence: Evidence {
                publications,
                subscribers,
                windows,
                tells,
                endpoints_are_nodes,
                clients_recover: self.settings.history,
                clients_are_told: self.settings.cable,
                broker_keeps_data: self.broker.as_ref().is_some_and(Broker::keeps_data),
                calm_from_ns: recovered_ns.unwrap_or(u64::MAX),
                ended_early: recovered_ns.is_none(),
            },
            began_ns: self.began_ns,
            recovered_ns,
            series: self.series,
            subscribed,
            broker_version: self.broker.as_ref().and_then(|broker| broker.version.clone()),
            broken,
            interrupted,
        })
    }

    /// Waits until as much has arrived as was published since all had recovered, and then nothing more; at most as
    /// long as a gap may stay untold. A delivery that is late on a machine without CPU left is not lost.
    fn wait_delivered(&self, publications: &[Publication], recovered_ns: u64) {
        let (clients, topics) = (self.settings.clients, self.settings.topics().len() as u32);
        let subscribers = |topic: u32| clients / topics + u32::from(topic < clients % topics);
        let is_owed =
            |one: &&Publication| one.sent_ns >= recovered_ns && one.answer == Answer::Acknowledged;
        let owed = publications.iter().filter(is_owed).map(|one| u64::from(subscribers(one.topic)));
        let owed = self.received_before + owed.sum::<u64>();
        let deadline_ns = now_ns() + nanoseconds(TELL_WITHIN);
        let mut last = (self.subscribers.counts().received(), now_ns());
        while now_ns() < deadline_ns && (last.0 < owed || now_ns() < last.1 + nanoseconds(QUIET)) {
            std::thread::sleep(LOOK);
            let received = self.subscribers.counts().received();
            if received != last.0 {
                last = (received, now_ns());
            }
        }
    }
}

impl Proxy {
    fn start(host: Ipv4Addr, nodes: &[SocketAddr]) -> Result<Proxy> {
        let upstreams: Vec<String> = nodes.iter().map(SocketAddr::to_string).collect();
        let listen = SocketAddr::new(host.into(), 7_300);
        let arguments = [
            "proxy".to_owned(),
            format!("--listen={listen}"),
            format!("--upstream={}", upstreams.join(",")),
            "--admin=off".to_owned(),
            "--ready-json".to_owned(),
            "--end-with-parent".to_owned(),
            "--drain=0s".to_owned(),
            "--log=error".to_owned(),
        ];
        let (child, _) = child::start_and_wait(&arguments)?;
        Ok(Proxy { child, listen })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
