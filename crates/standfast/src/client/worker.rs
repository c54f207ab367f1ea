//! [`ClientWorker`]: the engine's handler of clients. It connects, calls the handlers of connections, and opens
//! again what was lost.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::{Answer, Closed, ConnId, Core, Incoming, Response, Sys, invariant};
use wire::websocket::{CloseCode, OpCode};

use super::connect::Checked;
use super::resolver::{Found, Resolver};
use super::{ClientHandler, ClientRemote, ClientSocket, Lost};
use crate::Message;
use crate::remote::{Gone, ReceiptSender};
use crate::routes::{nanoseconds, random};

/// A connection that has lasted for this long is followed by the first pause again.
const STEADY_NS: u64 = 5_000_000_000;
/// When an address is handed again to a worker whose mailbox is full.
const RESOLVED_AGAIN: Duration = Duration::from_millis(10);

/// What other threads post.
pub(super) enum ClientPost {
    /// A `Box<Connection<H>>`.
    Connect(Box<dyn Any + Send>),
    Resolved {
        number: u64,
        found: Found,
    },
    Send {
        number: u64,
        binary: bool,
        data: Box<[u8]>,
        receipt: Option<ReceiptSender>,
    },
    Close {
        number: u64,
        code: CloseCode,
        reason: Box<str>,
    },
}

/// A connection, open or to be opened.
pub(super) struct Connection<H> {
    number: u64,
    checked: Arc<Checked>,
    handler: H,
    remote: ClientRemote,
    /// Addresses of its name, and which of them is next.
    addresses: Vec<SocketAddr>,
    next_address: usize,
    target: Option<u8>,
    /// Failures in a row.
    failures: u32,
    opened_ns: u64,
    protocol: Option<Box<str>>,
    /// This client has closed it.
    leaves: bool,
}

impl<H> Connection<H> {
    pub(super) fn new(checked: Checked, handler: H, remote: ClientRemote) -> Box<Self> {
        Box::new(Connection {
            number: remote.number,
            checked: Arc::new(checked),
            handler,
            remote,
            addresses: Vec::new(),
            next_address: 0,
            target: None,
            failures: 0,
            opened_ns: 0,
            protocol: None,
            leaves: false,
        })
    }
}

/// A target of the engine, and how many connections have it.
struct Used {
    checked: Arc<Checked>,
    at: SocketAddr,
    connections: u32,
}

pub(super) struct ClientWorker<H: ClientHandler> {
    /// The open ones, by number.
    open: BTreeMap<u64, ConnId>,
    /// Those that are not connected, by number.
    waiting: BTreeMap<u64, Box<Connection<H>>>,
    /// When to connect those of them that have an address.
    due: BTreeSet<(u64, u64)>,
    targets: Vec<Used>,
    resolver: Resolver,
    close_frames: Vec<(ConnId, CloseCode, Box<str>)>,
    /// How the last connection that is not opened again has ended.
    ended: Option<Lost>,
    stopping: bool,
}

impl<H: ClientHandler> ClientWorker<H> {
    pub(super) fn new(resolver: Resolver) -> Self {
        ClientWorker {
            open: BTreeMap::new(),
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            targets: Vec::new(),
            resolver,
            close_frames: Vec::new(),
            ended: None,
            stopping: false,
        }
    }

    pub(super) fn take_ended(&mut self) -> Option<Lost> {
        self.ended.take()
    }

    /// Finds the addresses of a connection, by another thread if they have to be looked up.
    pub(super) fn begin(&mut self, now_ns: u64, mut connection: Box<Connection<H>>) {
        let number = connection.number;
        if self.stopping {
            return self.end(now_ns, connection, Lost::new(Closed::Draining, false));
        }
        let address = &connection.checked.address;
        if let Some(ip) = address.literal() {
            connection.addresses = vec![SocketAddr::new(ip, address.port)];
            connection.next_address = 0;
            self.waiting.insert(number, connection);
            self.due.insert((now_ns, number));
            return;
        }
        let workers = connection.remote.workers.clone();
        let done = move |found| {
            let mut post = ClientPost::Resolved { number, found };
            // A worker that has ended takes it and drops it.
            while let Err(again) = workers.post_or_return(0, post, 0) {
                post = again;
                std::thread::sleep(RESOLVED_AGAIN);
            }
        };
        let begun = self.resolver.look_up(number, (&address.host, address.port), done);
        self.waiting.insert(number, connection);
        if let Err(error) = begun {
            self.resolved(now_ns, number, Err(error));
        }
    }

    fn resolved(&mut self, now_ns: u64, number: u64, found: Found) {
        let Some(mut connection) = self.waiting.remove(&number) else { return };
        match found {
            Ok(addresses) if !addresses.is_empty() => {
                (connection.addresses, connection.next_address) = (addresses, 0);
                self.waiting.insert(number, connection);
                self.due.insert((now_ns, number));
            }
            found => {
                let why = found.err().map_or("it has no address".to_owned(), |why| why.to_string());
                let host = &connection.checked.address.host;
                let mut lost = Lost::new(Closed::ConnectFailed, false);
                lost.detail = Some(format!("the name {host:?} was not resolved: {why}").into());
                self.end(now_ns, connection, lost);
            }
        }
    }

    /// Connects to the next address.
    fn dial<S: Sys>(&mut self, core: &mut Core<S, Self>, mut connection: Box<Connection<H>>) {
        let Some(&at) = connection.addresses.get(connection.next_address) else {
            return invariant::broken("a connection that is due has another address");
        };
        connection.next_address += 1;
        let Some(target) = self.target(core, &connection.checked, at) else {
            let mut lost = Lost::new(Closed::ConnectFailed, false);
            lost.detail = Some("one worker connects to at most 255 different targets".into());
            return self.end(core.now_ns(), connection, lost);
        };
        connection.target = Some(target);
        match core.connect(target, None) {
            Ok(id) => {
                self.open.insert(connection.number, id);
                if let Some(user) = core.user_mut(id) {
                    *user = Some(connection);
                }
            }
            Err(error) => {
                let lost = Lost::new(Closed::from_connect_error(&error), false);
                self.lost(core, connection, lost);
            }
        }
    }

    /// The target of the engine for a place, which has one more connection now.
    fn target<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        checked: &Arc<Checked>,
        at: SocketAddr,
    ) -> Option<u8> {
        let same = |used: &Used| {
            used.at == at && (Arc::ptr_eq(&used.checked, checked) || used.checked.is_same(checked))
        };
        let index = match self.targets.iter().position(same) {
            Some(index) => index,
            None => {
                let (checked, target) = (Arc::clone(checked), checked.target(at));
                let used = Used { checked, at, connections: 0 };
                match self.targets.iter().position(|used| used.connections == 0) {
                    Some(index) => {
                        core.replace_target(u8::try_from(index).ok()?, target).ok()?;
                        *self.targets.get_mut(index)? = used;
                        index
                    }
                    None => {
                        let index = core.add_target(target).ok()?;
                        self.targets.push(used);
                        usize::from(index)
                    }
                }
            }
        };
        self.targets.get_mut(index)?.connections += 1;
        u8::try_from(index).ok()
    }

    /// A connection has ended, or was not opened.
    fn lost<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        mut connection: Box<Connection<H>>,
        lost: Lost,
    ) {
        self.open.remove(&connection.number);
        let target = connection.target.take();
        if let Some(used) = target.and_then(|target| self.targets.get_mut(usize::from(target))) {
            used.connections = used.connections.saturating_sub(1);
        }
        // Another address of the same name may be reachable.
        let has_more = connection.next_address < connection.addresses.len();
        if !lost.opened && lost.status.is_none() && has_more && !connection.leaves && !self.stopping
        {
            let number = connection.number;
            self.waiting.insert(number, connection);
            self.due.insert((core.now_ns(), number));
            return;
        }
        self.end(core.now_ns(), connection, lost);
    }

    /// Reports the end of a connection, and opens it again after a pause if that is wanted.
    fn end(&mut self, now_ns: u64, mut connection: Box<Connection<H>>, mut lost: Lost) {
        if lost.opened && now_ns.saturating_sub(connection.opened_ns) >= STEADY_NS {
            connection.failures = 0;
        }
        connection.failures += 1;
        let wanted = !connection.leaves && !self.stopping;
        let reconnect = connection.checked.reconnect.as_ref().filter(|_| wanted);
        let random = random();
        lost.again_in =
            reconnect.and_then(|reconnect| reconnect.pause(connection.failures, random));
        connection.handler.close(&lost);
        match lost.again_in {
            Some(pause) => {
                connection.addresses.clear();
                self.due.insert((now_ns.saturating_add(nanoseconds(pause)), connection.number));
                self.waiting.insert(connection.number, connection);
            }
            None => self.ended = Some(lost),
        }
    }

    /// Calls the handler of a connection.
    #[inline]
    fn call<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        call: impl FnOnce(&mut H, &mut ClientSocket<'_>),
    ) {
        let Some(mut connection) = core.user_mut(id).and_then(Option::take) else { return };
        let Connection { handler, remote, .. } = &mut *connection;
        let mut socket = ClientSocket { operations: &mut *core, id, remote, leaves: false };
        call(handler, &mut socket);
        connection.leaves |= socket.leaves;
        // One that has ended meanwhile is there until the end of the turn.
        if let Some(user) = core.user_mut(id) {
            *user = Some(connection);
        }
    }

    /// Closes a connection, which is not opened again.
    pub(super) fn close<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        number: u64,
        code: CloseCode,
        reason: &str,
    ) {
        if let Some(mut connection) = self.waiting.remove(&number) {
            self.resolver.forget(number);
            connection.leaves = true;
            return self.end(core.now_ns(), connection, Lost::new(Closed::ByUs, false));
        }
        let Some(&id) = self.open.get(&number) else { return };
        if core.is_open(id) {
            return self.call(core, id, |_, socket| socket.close(code, reason));
        }
        if let Some(connection) = core.user_mut(id).and_then(Option::as_mut) {
            connection.leaves = true;
        }
        core.abort(id);
    }

    fn connect_due<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        // Those that fail at once are due again: they have the next turn.
        let now_ns = core.now_ns();
        let later = self.due.split_off(&(now_ns.saturating_add(1), 0));
        for (_, number) in std::mem::replace(&mut self.due, later) {
            let Some(connection) = self.waiting.remove(&number) else { continue };
            match connection.addresses.is_empty() {
                true => self.begin(now_ns, connection),
                false => self.dial(core, connection),
            }
        }
        self.due.first().map(|(due_ns, _)| *due_ns)
    }
}

/// Nobody waits for names any more, also after a handler has panicked.
impl<H: ClientHandler> Drop for ClientWorker<H> {
    fn drop(&mut self) {
        self.resolver.forget_all();
    }
}

impl<H: ClientHandler> engine::Handler for ClientWorker<H> {
    type User = Option<Box<Connection<H>>>;
    type Post = ClientPost;

    fn request<S: Sys>(
        &mut self,
        _core: &mut Core<S, Self>,
        _id: ConnId,
        _request: &Incoming<'_, '_>,
    ) -> Answer {
        invariant::broken("a worker of clients accepts nobody");
        Answer::Respond(Response::text(500, "There is no server here.\n"))
    }

    fn accepted<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, protocol: Option<&str>) {
        if let Some(connection) = core.user_mut(id).and_then(Option::as_mut) {
            connection.protocol = protocol.map(Into::into);
        }
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let now_ns = core.now_ns();
        let mut protocol = None;
        if let Some(connection) = core.user_mut(id).and_then(Option::as_mut) {
            connection.opened_ns = now_ns;
            protocol = connection.protocol.take();
        }
        self.call(core, id, |handler, socket| handler.open(socket, protocol.as_deref()));
    }

    #[inline]
    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        let Some(message) = Message::received(opcode, data) else { return };
        self.call(core, id, |handler, socket| handler.message(socket, message));
    }

    fn pong<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        // Those to the keep-alive's own pings are empty.
        if !data.is_empty() {
            self.call(core, id, |handler, socket| handler.pong(socket, data));
        }
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if core.is_open(id) {
            self.call(core, id, |handler, socket| handler.drain(socket));
        }
    }

    fn close_frame<S: Sys>(
        &mut self,
        _core: &mut Core<S, Self>,
        id: ConnId,
        code: Option<CloseCode>,
        reason: &str,
    ) {
        if let Some(code) = code {
            self.close_frames.push((id, code, reason.into()));
        }
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        let fault = core.server_fault(id);
        let mut lost = Lost::new(why, opened).with_fault(fault);
        if let Some(at) = self.close_frames.iter().position(|(of, ..)| *of == id) {
            let (_, code, reason) = self.close_frames.swap_remove(at);
            (lost.code, lost.reason) = (Some(code), reason);
        }
        let Some(connection) = core.user_mut(id).and_then(Option::take) else { return };
        if why == Closed::TlsFailed {
            let error = connection.checked.tls.as_ref().and_then(|tls| tls.first_error());
            lost.detail = error.map(Into::into);
        }
        self.lost(core, connection, lost);
    }

    fn draining<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        self.stopping = true;
        self.due.clear();
        self.resolver.forget_all();
        for (_, connection) in std::mem::take(&mut self.waiting) {
            self.end(core.now_ns(), connection, Lost::new(Closed::Draining, false));
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: ClientPost) {
        match post {
            ClientPost::Connect(connection) => {
                if let Ok(connection) = connection.downcast::<Connection<H>>() {
                    self.begin(core.now_ns(), connection);
                }
            }
            ClientPost::Resolved { number, found } => self.resolved(core.now_ns(), number, found),
            ClientPost::Send { number, binary, data, receipt } => {
                let id = self.open.get(&number).filter(|id| core.is_open(**id));
                let opcode = if binary { OpCode::Binary } else { OpCode::Text };
                let sent = id.map(|id| core.send(*id, opcode, &data)).ok_or(Gone);
                if let Some(receipt) = receipt {
                    receipt.tell(sent);
                }
            }
            ClientPost::Close { number, code, reason } => self.close(core, number, code, &reason),
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        if self.due.is_empty() { None } else { self.connect_due(core) }
    }
}

const _: () = assert!(size_of::<Option<Box<Connection<()>>>>() == 8);
