//! Threads that hold the sockets of an app, with the option `workers`: each is a worker of the engine, with a descriptor
//! table of its own where the kernel has such. What happens to sockets comes to JavaScript's thread in batches, one
//! wake-up for each turn, and what JavaScript does goes back in batches.

mod batch;
mod events;
mod holder;
mod natives;
mod table;
mod transfers;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::sys::process;
use engine::{ConnId, Limits, Plan, Remote, Tables, WORKERS_MAX, Workers};
use topics::Directory;

pub(crate) use self::batch::{Batch, Event, Peer};
pub(crate) use self::natives::NATIVES;

use self::batch::{Command, Piece, Upgrade};
use self::holder::{Gate, Holder};
use self::table::{Mirror, Table};
use crate::handler::Js;
use crate::napi::Thrown;
use crate::replays::Beginning;
use crate::requests::OUT_KEPT_BYTES;
use crate::setup::{addresses, bind};

/// Bytes that JavaScript may have for a thread which does not take them: beyond them `send` drops.
const COMMAND_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes that JavaScript may send to a socket between two passes before it has to wait for them.
const SEND_AHEAD_BYTES: u32 = 64 * 1024;
/// When commands for a thread that is behind are posted again.
const RETRY_NS: u64 = 1_000_000;
/// How often, and at which interval, the end of an app looks whether its threads have ended the connections.
const CLOSE_CHECKS: u32 = 500;
const CLOSE_INTERVAL: Duration = Duration::from_millis(2);

/// The threads of an app, for JavaScript's thread.
pub(crate) struct Threads {
    count: usize,
    running: Option<Running>,
    starts: u32,
    pub(crate) table: Table,
    pub(crate) mirror: Mirror,
    /// Bytes that wait for sockets: in their queues as of the last batch, and those that were sent since.
    pub(crate) buffered: HashMap<u32, u32>,
    /// Pieces of bodies that came after JavaScript had paused them.
    held: HashMap<u32, VecDeque<Piece>>,
    /// Requests of which such pieces can be read now.
    resumed: Vec<u32>,
    /// By number, subscriptions that are sent what they missed: the topic, and the ticket that its thread names.
    sending: HashMap<u32, Vec<(Arc<str>, u32)>>,
    tickets: u32,
    /// By thread.
    out: Vec<Batch<Command>>,
    /// One of them is not empty.
    pending: bool,
    /// How often commands were posted: the last bits.
    pass: u8,
}

struct Running {
    workers: Workers<Box<Batch<Command>>>,
    remote: Remote<Box<Batch<Command>>>,
    gate: Arc<Gate>,
    listeners: Vec<i32>,
    port: u16,
    listening: bool,
}

impl Threads {
    /// `shared` is the app's place among those that share its topics, and where it tells which topics it has.
    pub(crate) fn new(count: usize, shared: Option<(u16, Directory)>) -> Threads {
        Threads {
            count: count.clamp(1, WORKERS_MAX),
            running: None,
            starts: 0,
            table: Table::default(),
            mirror: Mirror::new(shared),
            buffered: HashMap::new(),
            held: HashMap::new(),
            resumed: Vec::new(),
            sending: HashMap::new(),
            tickets: 0,
            out: Vec::new(),
            pending: false,
            pass: 0,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether the loop has to go on.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.table.len() > 0 || self.running.as_ref().is_some_and(|running| running.listening)
    }

    /// The id of a socket that is open.
    pub(crate) fn open_id(&self, number: u32) -> Option<ConnId> {
        self.table.get(number).filter(|(_, entry)| entry.is_open()).map(|(id, _)| id)
    }

    /// Subscribes a socket to what was published, too. `false` if its thread is far behind.
    pub(crate) fn subscribe_from(
        &mut self,
        number: u32,
        id: ConnId,
        topic: &Arc<str>,
        beginning: Beginning,
    ) -> bool {
        let ticket = self.tickets.wrapping_add(1);
        let tells = matches!(beginning, Beginning::At { .. });
        let (beginning, length) = (Box::new(beginning), topic.len() as u32);
        let command = Command::SubscribeFrom { id, beginning, ticket, length };
        if !self.command(id, command, topic.as_bytes()) {
            return false;
        }
        self.tickets = ticket;
        self.mirror.add(number, id, topic);
        self.end_sending(number, topic);
        if tells {
            self.sending.entry(number).or_default().push((Arc::clone(topic), ticket));
        }
        true
    }

    /// A socket becomes a member of a topic, for those who publish.
    pub(crate) fn join(&mut self, number: u32, id: ConnId, topic: &str) {
        self.mirror.add(number, id, topic);
    }

    /// A subscription ends, or another one takes its place.
    fn end_sending(&mut self, number: u32, topic: &str) {
        self.end_sending_of(number, |(own, _)| **own == *topic);
    }

    /// Forgets subscriptions that are sent what they missed. Returns whether there was one.
    fn end_sending_of(&mut self, number: u32, ends: impl Fn(&(Arc<str>, u32)) -> bool) -> bool {
        let Some(all) = self.sending.get_mut(&number) else { return false };
        let before = all.len();
        all.retain(|one| !ends(one));
        let ended = all.len() < before;
        if all.is_empty() {
            self.sending.remove(&number);
        }
        ended
    }

    /// Adds a command for the thread of a connection. Those that hold much are refused while it is far behind.
    #[inline]
    fn command(&mut self, id: ConnId, command: Command, bytes: &[u8]) -> bool {
        let Some(batch) = self.out.get_mut(usize::from(id.worker())) else { return false };
        let holds =
            !bytes.is_empty() || matches!(command, Command::Send { .. } | Command::Ping { .. });
        let fits = batch.weight() <= COMMAND_BYTES_MAX && u32::try_from(bytes.len()).is_ok();
        if holds && !fits {
            return false;
        }
        batch.push(command, bytes);
        self.pending = true;
        true
    }

    /// Posts the commands. Returns whether some have to wait.
    pub(crate) fn pass_on(&mut self) -> bool {
        if !std::mem::replace(&mut self.pending, false) {
            return false;
        }
        let Some(running) = &self.running else { return false };
        self.pass = self.pass.wrapping_add(1);
        for (thread, out) in self.out.iter_mut().enumerate().filter(|(_, out)| !out.is_empty()) {
            let batch = Box::new(std::mem::take(out));
            let weight = batch.weight();
            if let Err(back) = running.remote.post_or_return(thread, batch, weight) {
                *out = *back;
                self.pending = true;
            }
        }
        self.pending
    }

    /// Starts the threads, which accept on this address. Returns `false` if it cannot be had.
    ///
    /// # Errors
    /// No threads or descriptors.
    fn listen(
        &mut self,
        host: &str,
        port: u16,
        exclusive: bool,
        limits: &Limits,
        keep: &[i32],
        holder: impl Fn(u16, Arc<Gate>) -> Holder + Send + Sync + 'static,
    ) -> Result<bool, Thrown> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let accepting = self.count.min(cores);
        let Some((listeners, port)) = listeners(host, port, exclusive, accepting) else {
            return Ok(false);
        };
        let private = process::private_tables_work();
        let tables = if private { Tables::Private } else { Tables::Shared };
        let nofile = capacity::nofile().soft;
        let room = Plan::reserved_descriptors(listeners.len() + keep.len()) + self.count as u64;
        let shared_by = if private { 1 } else { self.count as u64 };
        let most = engine::SLOTS_MAX as usize / self.count;
        let capacity = (nofile.saturating_sub(room) / shared_by).clamp(1, most as u64) as u32;
        let plan = Plan { workers: self.count, accepting, capacity, tables };
        self.starts = self.starts.wrapping_add(1);
        let gate = Arc::new(Gate::new(self.starts));
        let own = Arc::clone(&gate);
        let started = Workers::start_within(plan, limits, &listeners, keep, move |thread, _| {
            holder(thread, Arc::clone(&own))
        });
        let workers = started.map_err(|error| {
            listeners.iter().for_each(|number| process::close(*number));
            format!("cannot start the workers of an app: {error}")
        })?;
        let remote = workers.remote().clone();
        self.out = (0..self.count).map(|_| Batch::default()).collect();
        self.running = Some(Running { workers, remote, gate, listeners, port, listening: true });
        Ok(true)
    }

    fn port(&self) -> Option<u16> {
        self.running.as_ref().filter(|running| running.listening).map(|running| running.port)
    }

    fn stop_listening(&mut self) {
        if let Some(running) = &mut self.running {
            running.listening = false;
            running.listeners.iter().for_each(|number| process::stop_listening(*number));
        }
    }

    /// Ends the threads with all connections, after what was sent before, and does not wait for that.
    pub(crate) fn stop(&mut self) {
        self.stop_listening();
        for out in &mut self.out {
            out.push(Command::CloseAll, &[]);
            self.pending = true;
        }
        self.pass_on();
        let Some(running) = self.running.take() else { return };
        running.gate.ended.store(true, Ordering::Relaxed);
        running.gate.open();
        let threads = self.count;
        let drain = move || {
            // A drain overtakes commands.
            for _ in 0..CLOSE_CHECKS {
                if running.gate.closed.load(Ordering::Acquire) >= threads {
                    break;
                }
                std::thread::sleep(CLOSE_INTERVAL);
            }
            drop(running.workers.drain(Duration::ZERO));
        };
        // Without a thread for it, they end with the process.
        drop(std::thread::Builder::new().name("ending".into()).stack_size(64 * 1024).spawn(drain));
        self.table = Table::default();
        self.mirror.clear();
        self.buffered.clear();
        self.held.clear();
        self.resumed.clear();
        self.sending.clear();
        self.out.clear();
        self.pending = false;
    }

    /// Whether events are of threads that have not ended since.
    fn expects(&self, start: u32) -> bool {
        self.running.is_some() && self.starts == start
    }

    /// JavaScript has taken events.
    fn taken(&self) {
        if let Some(running) = &self.running {
            running.gate.open();
        }
    }
}

/// Listeners on an address, one for each thread that accepts at first.
fn listeners(host: &str, port: u16, exclusive: bool, many: usize) -> Option<(Vec<i32>, u16)> {
    addresses(host, port).into_iter().find_map(|address| {
        let (first, address) = bind(address, !exclusive).ok()?;
        let mut all = vec![first];
        // Of an exclusive port there is one.
        for _ in 1..if exclusive { 1 } else { many } {
            match bind(address, true) {
                Ok((number, _)) => all.push(number),
                Err(_) => break,
            }
        }
        Some((all, address.port()))
    })
}

impl Js {
    /// Posts what JavaScript has for the threads. Returns when to try again.
    pub(crate) fn pass_on_commands(&mut self, now_ns: u64) -> Option<u64> {
        let waits = self.threads.as_mut()?.pass_on();
        waits.then(|| now_ns.saturating_add(RETRY_NS))
    }

    /// Passes on what there is of the answer to a request of a thread.
    pub(crate) fn answer_by_thread(&mut self, number: u32) {
        let (Some(exchange), Some(threads)) = (self.exchanges.get_mut(&number), &mut self.threads)
        else {
            return;
        };
        let ends = exchange.has_ended();
        let waits = exchange.corked && exchange.out.len() < OUT_KEPT_BYTES;
        if !ends && (waits || exchange.out.is_empty()) {
            return;
        }
        if let Some((id, _)) = threads.table.get(number) {
            let (keep_alive, length) = (exchange.keep_alive, exchange.out.len() as u32);
            let answer = Command::Answer { id, ends, keep_alive, length };
            let fits = exchange.queued <= COMMAND_BYTES_MAX;
            if !fits || !threads.command(id, answer, &exchange.out) {
                // The thread or the client is far behind. It is not left waiting.
                threads.command(id, Command::Reset(id), &[]);
            }
        }
        exchange.told = true;
        exchange.queued += exchange.out.len();
        exchange.out.clear();
        if ends {
            threads.table.remove(number);
            threads.held.remove(&number);
            if let Some(exchange) = self.exchanges.remove(&number) {
                self.keep_out(exchange.out);
            }
        }
    }

    /// The thread opens the WebSocket of a request. `false` if there is no such request.
    fn upgrade_by_thread(&mut self, number: u32, protocol: Option<&str>) -> bool {
        let now = self.now.as_mut().map(|now| &mut now.exchange);
        let now = now.filter(|own| own.id.slot() == number);
        let exchange = match now {
            Some(exchange) => Some(exchange),
            None => self.exchanges.get_mut(&number).map(|own| &mut **own),
        };
        let Some(exchange) = exchange.filter(|own| !own.opened && !own.told) else { return false };
        exchange.opened = true;
        let headers = exchange.take_headers();
        self.exchanges.remove(&number);
        let Some(threads) = &mut self.threads else { return false };
        let Some((id, entry)) = threads.table.get_mut(number) else { return false };
        entry.open();
        let (route, protocol) = (entry.route, protocol.map(Into::into));
        let upgrade = Box::new(Upgrade { id, route, protocol, headers });
        threads.command(id, Command::Upgrade(upgrade), &[]);
        true
    }
}
