//! State that the workers' handlers and the control plane share: settings, counters, the directory of
//! topics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;

use admin::Watchdog;
use aws_lc_rs::rand;
use brokers::adapters::{Adapter, Streams};
use engine::sys::process::now_ns;
use engine::{Counter, HttpsRedirect, Limits, Remote, TlsServer, invariant};
use topics::{Directory, Epoch, History, Start, Unavailable};

use crate::adapters::OpenAdapters;
use crate::app::Calls;
use crate::auth::{Access, Refusals};
use crate::broadcast::Disconnect;
use crate::config::{Channels, Config, HistoryConfig, HistoryPlace, Live, LongPolling};
use crate::confirmation::Confirmation;
use crate::handler::Post;
use crate::hooks::Hooks;
use crate::log_events::{LogEvent, LogSender, Part};
use crate::origin::Origins;
use crate::presence::Presence;
use crate::pubsub::Pubsub;
use crate::rails_identity::rails_name;
use crate::requested::Requested;
use crate::resume::{SharedSettings, StoredSessions};
use crate::sid::Sids;

/// The settings that a reload can change, in the form that workers use.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) limits: Limits,
    pub(crate) origins: Origins,
    pub(crate) tls: Option<TlsServer>,
    pub(crate) redirect: Option<HttpsRedirect>,
    pub(crate) access: Access,
    pub(crate) channels: Channels,
    /// Whether credentials are checked at all.
    pub(crate) checks: bool,
}

/// Counters of one worker's handler; only that worker writes.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    /// Subscriptions now (gauge).
    pub(crate) subscriptions: Counter,
    /// Memory counted for them now, in bytes (gauge).
    pub(crate) subscription_bytes: Counter,
    /// What was counted so and is freed.
    pub(crate) subscription_bytes_freed: Counter,
    /// Messages published by sockets.
    pub(crate) published: Counter,
    /// Times a publishing socket was paused because its publication was refused.
    pub(crate) publish_paused: Counter,
    /// Handshakes refused for their origin.
    pub(crate) origin_refused: Counter,
    /// Requests refused for their Host.
    pub(crate) host_refused: Counter,
    /// Handshakes at `/topics` refused because access is not public.
    pub(crate) public_refused: Counter,
    /// Plain requests redirected to https.
    pub(crate) https_redirects: Counter,
    /// Connections and subscriptions refused, by cause.
    pub(crate) auth_refused: Refusals,
    /// Posts to `/_broadcast` without its key.
    pub(crate) broadcast_refused: Counter,
    /// Commands for an application that is not called, whispers where they are off, unknown commands.
    pub(crate) commands_ignored: Counter,
    /// Malformed commands; each ends its session.
    pub(crate) commands_malformed: Counter,
    /// Messages not sent because the client's encoding has no place for them; once for all subscribers
    /// that share them.
    pub(crate) messages_unencodable: Counter,
    /// Sessions ended because pings were not answered.
    pub(crate) no_pong: Counter,
    /// Sessions ended by the application, and connections closed by an operator.
    pub(crate) disconnected: Counter,
    /// Requests for missed messages that were served completely.
    pub(crate) history_confirmed: Counter,
    /// Those that were not, in the order of [`Unavailable::ALL`]; and those without a history.
    pub(crate) history_rejected: [Counter; Unavailable::ALL.len()],
    pub(crate) history_off: Counter,
    /// Missed messages sent.
    pub(crate) history_messages: Counter,
    /// Requests of long polling with a valid head and body.
    pub(crate) long_polling_requests: Counter,
    /// Requests for sessions that do not exist (any more).
    pub(crate) long_polling_stale: Counter,
    /// Requests that were answered because another one for their session came.
    pub(crate) long_polling_replaced: Counter,
    /// Sessions that ended because no request came.
    pub(crate) long_polling_expired: Counter,
    /// Messages returned to their session because its client had left before the answer, and those of
    /// them that could not be.
    pub(crate) long_polling_returned: Counter,
    pub(crate) long_polling_lost: Counter,
}

impl WorkerCounters {
    /// Counts memory of subscriptions that is freed now. Not before it is: the control plane returns
    /// free memory when this falls.
    pub(crate) fn uncount_bytes(&self, bytes: u32) {
        self.subscription_bytes.sub(bytes.into());
        self.subscription_bytes_freed.add(bytes.into());
    }
}

/// The time of day, by its offset from the monotonic clock in nanoseconds. Clones follow it.
#[derive(Clone)]
pub(crate) struct UnixClock(Arc<AtomicU64>);

impl UnixClock {
    pub(crate) fn new() -> Self {
        UnixClock(Arc::new(AtomicU64::new(unix_ns_at_zero())))
    }

    /// Unix time in milliseconds at a time of the monotonic clock.
    pub(crate) fn unix_ms(&self, now_ns: u64) -> u64 {
        now_ns.wrapping_add(self.0.load(Ordering::Relaxed)) / 1_000_000
    }

    /// The time of the monotonic clock at a Unix time in milliseconds; 0 if it was before its zero.
    pub(crate) fn monotonic_ns(&self, unix_ms: u64) -> u64 {
        unix_ms.saturating_mul(1_000_000).saturating_sub(self.0.load(Ordering::Relaxed))
    }
}

/// One value for all threads of a server.
pub(crate) struct Shared {
    /// `/echo` is served.
    pub(crate) echo: bool,
    /// The path of Action Cable.
    pub(crate) cable_path: Box<str>,
    pub(crate) sids: Arc<Sids>,
    /// Settings of long polling, where it is served, and the ids of its sessions; none without random
    /// numbers. An id is for its client only, unlike a session id.
    pub(crate) long_polling: Option<Arc<LongPolling>>,
    pub(crate) poll_ids: Option<Sids>,
    /// Sessions that can be resumed, unless the history is off.
    pub(crate) stored_sessions: Option<Arc<StoredSessions>>,
    /// Who is present, unless presence is off.
    pub(crate) presence: Option<Arc<Presence>>,
    pub(crate) clock: UnixClock,
    /// Anyone may subscribe and publish.
    pub(crate) public: bool,
    local: bool,
    /// All listeners are local, and a browser can reach one.
    check_host: bool,
    /// A page of another site could reach the server by DNS rebinding.
    may_be_rebound: bool,
    /// How many of the workers' listeners have no TLS; they are the first.
    pub(crate) plain_listeners: usize,
    /// The port of the first TCP listener with TLS.
    pub(crate) tls_port: Option<u16>,
    pub(crate) directory: Directory,
    /// Calls of the application, if there is one.
    pub(crate) calls: Option<Arc<Calls>>,
    /// Webhooks, if there is a receiver.
    pub(crate) hooks: Option<Arc<Hooks>>,
    /// What crosses nodes, with `--pubsub`.
    pub(crate) pubsub: Option<Arc<Pubsub>>,
    /// Who confirms topics before clients are subscribed, if anyone does.
    pub(crate) confirmation: Option<Arc<Confirmation>>,
    /// Sessions are found by what Rails names them, too.
    pub(crate) rails_names: bool,
    /// Brokers by which applications publish, if there are any; set at the end of the start.
    pub(crate) adapters: OnceLock<OpenAdapters>,
    pub(crate) log: LogSender,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) counters: Box<[WorkerCounters]>,
    /// Workers that have started; the control plane does not wake the others.
    started: Box<[AtomicBool]>,
    draining: AtomicBool,
    /// Parts that are off and that a client has requested.
    requested_off: [AtomicBool; Part::ALL.len()],
    policy: RwLock<Arc<Policy>>,
}

impl Shared {
    pub(crate) fn new(
        config: &Config,
        watchdog: Arc<Watchdog>,
        workers: usize,
        log: LogSender,
    ) -> Self {
        let local = config.is_local();
        // Without random numbers an id could be guessed, so no session is kept.
        let secret = config.history.as_ref().and_then(|history| Some((history, Sids::secret()?)));
        let calls = config.app.as_ref().map(Calls::new);
        let at_broker = config.history.as_ref().filter(|one| one.place == HistoryPlace::Broker);
        let members = config.presence.as_ref().filter(|one| one.shared).map(|one| one.ttl);
        let pubsub = config.pubsub.as_ref();
        let pubsub = pubsub.map(|config| Pubsub::new(config, at_broker, members, random));
        let clock = UnixClock::new();
        let streams: Vec<_> =
            config.adapters.iter().filter_map(Adapter::streams).cloned().collect();
        let (sids, stored_sessions) = match secret {
            Some((history, sids)) => {
                let app = calls.clone().filter(|calls| calls.config.target.is_some());
                let sids = Arc::new(sids);
                let stored = StoredSessions::new(
                    u64::try_from(history.sessions_age.as_nanos()).unwrap_or(u64::MAX),
                    history.sessions_bytes,
                    app,
                );
                let stored = match pubsub.as_ref().filter(|pubsub| pubsub.stores()) {
                    Some(pubsub) => stored.with_store(SharedSettings {
                        broker: Arc::clone(&pubsub.broker),
                        sids: Arc::clone(&sids),
                        timeout: pubsub.timeout,
                        clock: clock.clone(),
                        secret: config.live.auth.nodes_key(),
                        rails_names: !streams.is_empty(),
                    }),
                    None => stored,
                };
                (sids, Some(Arc::new(stored)))
            }
            None => (Arc::default(), None),
        };
        let hooks = config.webhooks.as_ref();
        let hooks = hooks.map(|config| Hooks::new(config, clock.clone(), random()));
        let mut directory = Directory::with_history(config.history.as_ref().map(history));
        observe(&mut directory, hooks.as_ref(), pubsub.as_ref(), streams.clone());
        let presence = config.presence.as_ref().map(|config| {
            let pubsub = pubsub.as_ref().filter(|_| config.shared);
            let broker = pubsub.map(|pubsub| Arc::clone(&pubsub.broker));
            Arc::new(Presence::new(config, broker))
        });
        let confirmation = Confirmation::new(pubsub.clone(), streams.clone());
        Shared {
            echo: config.echo,
            cable_path: config.cable_path.clone(),
            sids,
            long_polling: config.long_polling.clone().map(Arc::new),
            poll_ids: config.long_polling.as_ref().and_then(|_| Sids::secret()),
            stored_sessions,
            presence,
            clock,
            public: config.is_public(),
            local,
            check_host: config.checks_host(),
            may_be_rebound: config.may_be_rebound(),
            plain_listeners: 0,
            tls_port: None,
            directory,
            hooks,
            pubsub,
            rails_names: !streams.is_empty(),
            confirmation,
            adapters: OnceLock::new(),
            calls,
            log,
            watchdog,
            counters: (0..workers).map(|_| WorkerCounters::default()).collect(),
            started: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            draining: AtomicBool::new(false),
            requested_off: Default::default(),
            policy: RwLock::new(Arc::new(policy(
                &config.live,
                local,
                config.checks_host(),
                config.may_be_rebound(),
                config.is_public(),
            ))),
        }
    }

    /// Logs, once per process, that a client requests a part that is off.
    pub(crate) fn log_off(&self, part: Part) {
        let Some(requested) = self.requested_off.get(part as usize) else { return };
        if !requested.load(Ordering::Relaxed) && !requested.swap(true, Ordering::Relaxed) {
            self.log.post(LogEvent::RequestedOff(part));
        }
    }

    /// Sets the policy for workers that start later, and returns it to be posted to the others.
    pub(crate) fn set_policy(&self, live: &Live) -> Arc<Policy> {
        let policy =
            Arc::new(policy(live, self.local, self.check_host, self.may_be_rebound, self.public));
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&policy);
        policy
    }

    /// Unix time in seconds at a time of the monotonic clock.
    pub(crate) fn unix_s(&self, now_ns: u64) -> u64 {
        self.clock.unix_ms(now_ns) / 1000
    }

    /// The time of the monotonic clock at a Unix time in seconds; 0 if it was before its zero.
    pub(crate) fn monotonic_ns(&self, unix_s: i64) -> u64 {
        self.clock.monotonic_ns(u64::try_from(unix_s).unwrap_or(0).saturating_mul(1000))
    }

    /// Where messages begin that are requested by this text: Unix seconds, or a position as in the ids of
    /// events. `None` if it is neither.
    pub(crate) fn start_of(&self, text: &str) -> Option<Start> {
        Some(match Requested::parse(text)? {
            Requested::After(position) => Start::After(position),
            Requested::Since(unix_s) => Start::Since(self.monotonic_ns(unix_s)),
        })
    }

    /// The history of topics, unless it is off.
    pub(crate) fn history(&self) -> Option<&Arc<History>> {
        self.directory.history()
    }

    /// Follows changes of the system's time of day. To be called periodically.
    pub(crate) fn follow_clock(&self) {
        self.clock.0.store(unix_ns_at_zero(), Ordering::Relaxed);
    }

    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.policy().limits.admission.memory_bytes
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Marks a worker as started. It must read [`Shared::policy`] after this, so that it misses none.
    pub(crate) fn worker_started(&self, worker: u16) {
        match self.started.get(usize::from(worker)) {
            Some(started) => started.store(true, Ordering::SeqCst),
            None => invariant::broken("a worker that starts was planned"),
        }
    }

    /// The workers that have started.
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> {
        let running = |(worker, started): (usize, &AtomicBool)| {
            started.load(Ordering::SeqCst).then_some(worker)
        };
        self.started.iter().enumerate().filter_map(running)
    }

    /// Status and body of `/ready`. Why a broker is not connected is told on the admin listener only.
    pub(crate) fn readiness(&self, remote: &Remote<Post>) -> (u16, String) {
        let ready = self.watchdog.readiness(remote, self.is_draining());
        let trouble = self.pubsub.as_ref().and_then(|pubsub| pubsub.trouble());
        let adapter = || self.adapters.get().and_then(|open| open.adapters.trouble());
        match (ready.0, trouble) {
            (200, Some((what, _))) => (503, format!("{what}\n")),
            (200, None) if adapter().is_some() => (503, "a broadcast adapter is down\n".to_owned()),
            _ => ready,
        }
    }

    /// Ends sessions without a connection that Rails names so.
    pub(crate) fn end_named(&self, request: &Disconnect) {
        let Some(stored) = self.stored_sessions.as_ref().filter(|_| request.rails_name) else {
            return;
        };
        let is_named = |identity: &str| rails_name(identity).as_ref() == Some(&request.identifiers);
        for identity in stored.identities(is_named) {
            stored.end_identity(&identity, now_ns());
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
        if let Some(pubsub) = &self.pubsub {
            pubsub.broker.leave();
        }
    }
}

/// Reports the first and the last subscribers of topics to those who want to know.
fn observe(
    directory: &mut Directory,
    hooks: Option<&Arc<Hooks>>,
    pubsub: Option<&Arc<Pubsub>>,
    streams: Vec<Arc<Streams>>,
) {
    let hooks = hooks.filter(|hooks| hooks.config.events.has_occupancy()).cloned();
    let broker = pubsub.map(|pubsub| Arc::clone(&pubsub.broker));
    if hooks.is_none() && broker.is_none() && streams.is_empty() {
        return;
    }
    directory.observe(move |topic, occupied| {
        match (&hooks, occupied) {
            (Some(hooks), true) => hooks.occupied(topic),
            (Some(hooks), false) => hooks.vacated(topic),
            (None, _) => {}
        }
        match (&broker, occupied) {
            (Some(broker), true) => broker.want(topic),
            (Some(broker), false) => broker.release(topic),
            (None, _) => {}
        }
        for streams in &streams {
            match occupied {
                true => streams.want(topic),
                false => streams.release(topic),
            }
        }
    });
}

/// An empty history: with a new epoch, or of what the broker keeps.
fn history(config: &HistoryConfig) -> Arc<History> {
    let (limits, now_ns) = (config.limits(), now_ns());
    Arc::new(match config.place {
        HistoryPlace::Memory => History::new(Epoch::new(random() as u32), limits, now_ns),
        HistoryPlace::Broker => History::replica(limits, now_ns),
    })
}

/// A number that differs from that of other processes.
fn random() -> u64 {
    let mut random = [0; 8];
    if rand::fill(&mut random).is_err() {
        // The system has no random numbers: the time of the start differs as well.
        return now_ns();
    }
    u64::from_ne_bytes(random)
}

/// Unix time at zero of the monotonic clock, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "the time of day, once for all workers")]
fn unix_ns_at_zero() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (unix.as_nanos() as u64).wrapping_sub(now_ns())
}

fn policy(
    live: &Live,
    loopback: bool,
    check_host: bool,
    may_be_rebound: bool,
    public: bool,
) -> Policy {
    let origins = Origins {
        loopback,
        check_host,
        may_be_rebound,
        allowed: live.allow_origin.clone(),
        hosts: live.allow_host.clone(),
    };
    Policy {
        limits: live.limits.clone(),
        origins,
        tls: live.tls.clone(),
        redirect: live.redirect.clone(),
        access: Access::new(&live.auth, public),
        channels: live.channels.clone(),
        checks: live.auth.is_set(),
    }
}
