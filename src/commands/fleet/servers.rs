//! [`Servers`]: servers of a proof on agents that were started with `--serve`. A thread tells the agents that their
//! leader lives, repeats what was not done, and takes what they report.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail};
use brokers::nats::messages::{Event, Messages};
use engine::sys::process::{self, Signal, now_ns};
use load::Usage;

use super::controlled::{Problems, Target, limits_of, shares};
use super::doctor::share_problems;
use super::leader::{Leader, Parts, Waited};
use super::member::{Agent, Purpose, sum};
use super::message::{
    FromAgent, Says, ServerOrder, Serving, ToAgent, decode, encode, inbox, of_all, printable,
    version,
};
use super::{FleetFlags, LEASE, REPEAT, unique};

/// How long servers may take to be ready, and to publish a message.
const READY: Duration = Duration::from_secs(30);
const PUBLISH: Duration = Duration::from_secs(40);
/// How long a look may take.
const LOOK: Duration = Duration::from_secs(5);
/// How long servers are waited for when the proof stops meanwhile.
const HURRY: Duration = Duration::from_secs(1);
/// How often what was not done is repeated.
const REPEAT_TASK: Duration = Duration::from_millis(100);
/// How long messages are waited for at a time.
const LISTEN: Duration = Duration::from_millis(5);

/// A server as its leader knows it.
#[derive(Clone, Debug)]
pub(crate) struct RemoteServer {
    id: String,
    pub(crate) name: String,
    pub(crate) host: String,
    /// That it is to hold.
    pub(crate) connections: u64,
    /// Where its agent runs servers.
    serves: Option<SocketAddr>,
    /// Once it is ready.
    pub(crate) address: Option<SocketAddr>,
    /// Before the first socket, and as the agent said last; `None`: unknown.
    pub(crate) start: Option<Usage>,
    pub(crate) usage: Option<Usage>,
    /// Its connections at the latest look; `None`: unknown.
    pub(crate) open: Option<u64>,
    number: u64,
    looked: u64,
    published: u32,
    heard_ns: u64,
    /// It has ended, or could not do its part.
    failed: Option<String>,
    /// It is not heard.
    lost: Option<String>,
}

/// The agents that will run the servers.
pub(crate) struct Chosen {
    messages: Messages,
    /// The id of the leader.
    leader: String,
    fleet: String,
    servers: Vec<RemoteServer>,
}

/// Servers that run, until this is dropped.
pub(crate) struct Servers {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    servers: Vec<RemoteServer>,
    /// Messages that are to be published, and the number of the latest look.
    publish: u32,
    look: u64,
    /// Until when the others are waited for, once the proof stops; 0 before.
    hurry_ns: u64,
    is_over: bool,
}

impl RemoteServer {
    fn new(agent: &Agent, connections: u64) -> RemoteServer {
        RemoteServer {
            id: agent.id.clone(),
            name: agent.name.clone(),
            host: agent.host.clone(),
            connections,
            serves: agent.serves,
            address: None,
            start: None,
            usage: None,
            open: None,
            number: 0,
            looked: 0,
            published: 0,
            heard_ns: 0,
            failed: None,
            lost: None,
        }
    }

    fn take(&mut self, says: Says) {
        if self.is_over() {
            return;
        }
        match says {
            Says::Serving(Serving { number, address, usage, open, looked, published })
                if number > self.number =>
            {
                (self.number, self.address, self.usage) = (number, Some(address), usage);
                (self.open, self.looked, self.published) = (open, looked, published);
            }
            Says::Failed { why } | Says::Refused { why } => {
                let why = printable(&why).replace('\n', "\n    ");
                self.failed.get_or_insert(format!("server {}: {why}", self.name));
                self.usage = None;
            }
            _ => {}
        }
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || self.lost.is_some()
    }
}

impl Chosen {
    /// Finds the agents that run the servers, and what they lack for their share of so many connections; `None` after
    /// Ctrl-C.
    ///
    /// # Errors
    /// There is no NATS server.
    pub(crate) fn find(
        flags: &FleetFlags,
        (who, within): (&str, Duration),
        connections: u64,
    ) -> Result<Option<(Chosen, Problems)>> {
        let mut leader = Leader::new(flags, Purpose::Servers)?;
        let parts = Parts::connections(connections);
        let Some((fatal, agents)) = leader.choose(who, within, parts)? else { return Ok(None) };
        let shares = shares(&agents, connections);
        let found = share_problems(&mut leader, &agents, &shares, None, &HashMap::new());
        if leader.is_interrupted() {
            return Ok(None);
        }
        let limits = limits_of(&agents, &shares, found);
        let each = agents.iter().zip(&shares);
        let servers = each.map(|(agent, share)| RemoteServer::new(agent, *share)).collect();
        let (messages, id) = leader.into_messages();
        let fleet = flags.fleet.clone();
        let chosen = Chosen { messages, leader: id, fleet, servers };
        Ok(Some((chosen, Problems { fatal, limits })))
    }

    /// Where agents will connect to.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let target = |server: &RemoteServer| {
            let of = Some([server.name.clone(), server.host.clone()]);
            Some(Target { address: server.serves?, of })
        };
        self.servers.iter().filter_map(target).collect()
    }

    /// The connections that each machine of servers is to hold.
    pub(crate) fn of_hosts(&self) -> HashMap<String, u64> {
        let mut of_hosts = HashMap::new();
        for server in &self.servers {
            let sum: &mut u64 = of_hosts.entry(server.host.clone()).or_default();
            *sum = sum.saturating_add(server.connections);
        }
        of_hosts
    }

    /// Starts the servers with these flags besides; `None` after Ctrl-C.
    ///
    /// # Errors
    /// All that is wrong with them; then none is left.
    pub(crate) fn start(self, flags: &[String]) -> Result<Option<Servers>> {
        let Chosen { messages, leader, fleet, mut servers } = self;
        let run = unique();
        let order = |connections| ServerOrder {
            run: run.clone(),
            leader: leader.clone(),
            version: version(),
            connections,
            flags: flags.to_vec(),
        };
        let orders = servers.iter().map(|server| order(server.connections)).collect();
        let now = now_ns();
        servers.iter_mut().for_each(|server| server.heard_ns = now);
        let state = Arc::new(Mutex::new(State { servers, ..State::default() }));
        let of_link = Arc::clone(&state);
        let link =
            Link { messages, fleet, run, orders, state: of_link, beat_ns: 0, repeated_ns: 0 };
        let builder = std::thread::Builder::new().name("servers".to_owned());
        let thread = Some(builder.spawn(move || link.run())?);
        let servers = Servers { state, thread };
        let is_ready = |server: &RemoteServer| server.address.is_some();
        let waited = servers.wait(READY, is_ready, || {
            let signal = process::wait_signal(Duration::ZERO);
            matches!(signal, Some(Signal::Interrupt | Signal::Terminate))
        });
        if waited == Waited::Interrupted {
            return Ok(None);
        }
        let mut problems: Vec<String> = servers.lost();
        problems.extend(servers.failed());
        let state = servers.state();
        let is_late = |server: &&RemoteServer| !server.is_over() && !is_ready(server);
        let late = state.servers.iter().filter(is_late);
        let seconds = READY.as_secs();
        problems.extend(
            late.map(|server| format!("server {}: not ready within {seconds} s", server.name)),
        );
        drop(state);
        if !problems.is_empty() {
            bail!("nothing was started:\n  {}", problems.join("\n  "));
        }
        Ok(Some(servers))
    }
}

impl Servers {
    /// Has all servers publish the next message. Returns how long the slowest took.
    ///
    /// # Errors
    /// Names the servers that have not.
    pub(crate) fn publish(&self, sequence: u32) -> Result<Duration> {
        let began_ns = now_ns();
        let messages = sequence.saturating_add(1);
        {
            let mut state = self.state();
            (state.publish, state.hurry_ns) = (messages, 0);
        }
        let has_published = |server: &RemoteServer| server.published >= messages;
        self.wait(PUBLISH, has_published, || false);
        let took = Duration::from_nanos(now_ns() - began_ns);
        if let Some(why) = self.failed().or_else(|| self.lost().into_iter().next()) {
            bail!("{why}");
        }
        let state = self.state();
        let late: Vec<&str> = (state.servers.iter())
            .filter(|server| !has_published(server))
            .map(|server| server.name.as_str())
            .collect();
        if !late.is_empty() {
            bail!("not published by {} within {} s", late.join(", "), took.as_secs());
        }
        Ok(took)
    }

    /// Has all servers say how they are now. What one does not say in time is unknown.
    pub(crate) fn look(&self) {
        let number = {
            let mut state = self.state();
            (state.look, state.hurry_ns) = (state.look + 1, 0);
            state.look
        };
        self.wait(LOOK, |server| server.looked >= number, || false);
        for server in &mut self.state().servers {
            if server.looked < number {
                (server.usage, server.open) = (None, None);
            }
            // The first look is before the first socket.
            if number == 1 {
                server.start = server.usage;
            }
        }
    }

    /// What is waited for now takes at most this long from now on.
    pub(crate) fn hurry(&self) {
        let mut state = self.state();
        if state.hurry_ns == 0 {
            state.hurry_ns = now_ns() + HURRY.as_nanos() as u64;
        }
    }

    /// Waits until this is true of all servers that are not over.
    fn wait(
        &self,
        within: Duration,
        is_done: impl Fn(&RemoteServer) -> bool,
        mut is_interrupted: impl FnMut() -> bool,
    ) -> Waited {
        let until_ns = now_ns() + within.as_nanos() as u64;
        while now_ns() < until_ns {
            let state = self.state();
            let is_all = state.servers.iter().all(|server| is_done(server) || server.is_over());
            if is_all || state.hurry_ns > 0 && now_ns() > state.hurry_ns {
                return Waited::Done;
            }
            drop(state);
            if is_interrupted() {
                return Waited::Interrupted;
            }
            std::thread::sleep(LISTEN);
        }
        Waited::Done
    }

    /// Where the clients connect to.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.state().servers.iter().filter_map(|server| server.address).collect()
    }

    pub(crate) fn describe(&self) -> String {
        match self.state().servers.len() {
            1 => "the server is of 1 agent".to_owned(),
            count => format!("the servers are of {count} agents"),
        }
    }

    /// Memory and CPU time of all servers together; `None` if one is unknown.
    pub(crate) fn usage(&self) -> Option<Usage> {
        sum(self.state().servers.iter().map(|server| server.usage))
    }

    /// Why servers have ended or could not do their part.
    pub(crate) fn failed(&self) -> Option<String> {
        let state = self.state();
        let failed: Vec<&str> =
            state.servers.iter().filter_map(|server| server.failed.as_deref()).collect();
        (!failed.is_empty()).then(|| failed.join("\n  "))
    }

    /// The servers that are not heard.
    pub(crate) fn lost(&self) -> Vec<String> {
        self.state().servers.iter().filter_map(|server| server.lost.clone()).collect()
    }

    pub(crate) fn all(&self) -> Vec<RemoteServer> {
        let state = self.state();
        let mut servers = state.servers.clone();
        // An earlier look says nothing of now.
        for server in servers.iter_mut().filter(|server| server.looked < state.look) {
            server.open = None;
        }
        servers
    }

    /// Frees the agents, which end their servers.
    pub(crate) fn end(&mut self) {
        self.state().is_over = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.end();
    }
}

/// The side of the thread.
struct Link {
    messages: Messages,
    fleet: String,
    run: String,
    orders: Vec<ServerOrder>,
    state: Arc<Mutex<State>>,
    beat_ns: u64,
    repeated_ns: u64,
}

impl Link {
    fn run(mut self) {
        loop {
            let event = self.messages.next(LISTEN);
            let now = now_ns();
            let state = Arc::clone(&self.state);
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Event::Message(_, bytes)) = event
                && let Some((message, _)) = decode::<FromAgent>(&bytes)
                && message.run == self.run
                && let Some(server) =
                    state.servers.iter_mut().find(|server| server.id == message.agent)
            {
                server.heard_ns = now;
                server.take(message.says);
            }
            if state.is_over {
                for server in &state.servers {
                    self.send(server, &ToAgent::Release { run: self.run.clone() });
                }
                return;
            }
            for server in state.servers.iter_mut().filter(|server| !server.is_over()) {
                if now > server.heard_ns.saturating_add(LEASE.as_nanos() as u64) {
                    let seconds = LEASE.as_secs();
                    let name = &server.name;
                    server.lost = Some(format!("server {name}: not heard for {seconds} s"));
                    server.usage = None;
                }
            }
            self.repeat(&state, now);
        }
    }

    /// Says that the leader lives, and what was not done yet.
    fn repeat(&mut self, state: &State, now: u64) {
        let is_due = |since: u64, every: Duration| now >= since + every.as_nanos() as u64;
        if is_due(self.beat_ns, REPEAT) {
            self.beat_ns = now;
            let beat = ToAgent::Beat { run: self.run.clone(), stop: false };
            self.messages.send(&of_all(&self.fleet), encode(&beat, &[]));
        }
        if !is_due(self.repeated_ns, REPEAT_TASK) {
            return;
        }
        self.repeated_ns = now;
        for (server, order) in state.servers.iter().zip(&self.orders) {
            let run = self.run.clone();
            if server.is_over() {
                continue;
            }
            if server.address.is_none() {
                self.send(server, &ToAgent::Serve(order.clone()));
            } else if server.published < state.publish {
                self.send(server, &ToAgent::Publish { run, sequence: server.published });
            } else if server.looked < state.look {
                self.send(server, &ToAgent::Look { run, number: state.look });
            }
        }
    }

    fn send(&self, server: &RemoteServer, message: &ToAgent) {
        self.messages.send(&inbox(&self.fleet, &server.id), encode(message, &[]));
    }
}
