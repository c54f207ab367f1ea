//! Routes, listeners and certificates of an app.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use engine::sys::linux::Linux;
use engine::sys::process::{self, Listen};
use engine::{
    ClassLimits, ClientAuth, Compression, Core, Limits, SlowConsumer, TlsIdentity, TlsServer,
    TlsVersion, Worker,
};
use napi_sys::napi_value;

use crate::app::{ARGUMENTS, App, natives};
use crate::children::{self, Origin};
use crate::handler::{Js, SocketRoute};
use crate::napi::{Env, Thrown};
use crate::router::Router;

type Arguments = [napi_value; ARGUMENTS];
type Result = std::result::Result<napi_value, Thrown>;

natives![
    route,
    socket_route,
    listen,
    listen_unix,
    listener_port,
    close_listener,
    adopt,
    close_all,
    release,
    add_certificate,
    remove_certificate,
    report_names,
    filter,
];

/// An HTTP connection that is idle, or whose head is incomplete, for this long is closed.
pub(crate) const HTTP_IDLE: Duration = Duration::from_secs(10);
const BACKLOG: u32 = 4096;
/// A connection is accepted when its request has arrived, or after this time.
const ACCEPT_DEFER: Duration = Duration::from_secs(1);
/// Routes for WebSockets at most: a class of limits is a byte.
const SOCKET_ROUTES_MAX: usize = 254;
const ROUTES_MAX: usize = 65_536;
/// The longest `maxBackpressure`, which stands for none.
const UNLIMITED_BYTES: usize = 1 << 40;

// ---- routes ----

fn router<'a>(js: &'a mut Js, host: &str) -> Option<&'a mut Router> {
    let at = js.routers.iter().position(|(name, _)| name.eq_ignore_ascii_case(host));
    let at = at.unwrap_or_else(|| {
        js.routers.push((host.into(), Router::default()));
        js.routers.len() - 1
    });
    js.routers.get_mut(at).map(|(_, router)| router)
}

/// `route(host, method or "", pattern) → index`
pub(crate) fn route(app: &App, env: Env, arguments: &Arguments) -> Result {
    let text = |at: usize| env.text(arguments[at]).ok_or("expected a pattern: a string");
    let (host, method, pattern) = (text(0)?, text(1)?, text(2)?);
    let index = app.with(|js, _| {
        if js.routes.len() >= ROUTES_MAX {
            return Err("too many routes: an app has at most 65,536");
        }
        let index = js.routes.len() as u32;
        js.routes.push(None);
        let method = Some(&*method).filter(|method| !method.is_empty());
        if let Some(router) = router(js, &host) {
            router.add(method, &pattern, index, false);
        }
        Ok(index)
    })?;
    Ok(env.int(index as i32))
}

/// `socket_route(host, pattern, options) → index`
pub(crate) fn socket_route(app: &App, env: Env, arguments: &Arguments) -> Result {
    let text = |at: usize| env.text(arguments[at]).ok_or("expected a pattern: a string");
    let (host, pattern, options) = (text(0)?, text(1)?, arguments[2]);
    let number = |name| env.to_f64(env.property(options, name)).unwrap_or(0.0);
    let is = |name| env.to_bool(env.property(options, name));
    let message_bytes = number(c"maxPayloadLength") as usize;
    let idle = number(c"idleTimeout");
    let limit = number(c"maxBackpressure") as usize;
    let closes = is(c"closeOnBackpressureLimit");
    let pings = is(c"sendPingsAutomatically");
    let class = ClassLimits {
        send_queue_bytes: if limit == 0 { UNLIMITED_BYTES } else { limit },
        slow_consumer: if closes { SlowConsumer::Disconnect } else { SlowConsumer::RefuseNew },
        idle_timeout: (idle > 0.0).then(|| Duration::from_secs_f64(idle)),
        message_bytes: u32::try_from(message_bytes).unwrap_or(u32::MAX),
        compression: match number(c"compression") as u32 {
            0 => Compression::Off,
            1 => Compression::Shared,
            _ => Compression::Takeover,
        },
    };
    let own = SocketRoute {
        route: 0,
        message_bytes,
        lifetime_ns: (number(c"maxLifetime") * 60e9) as u64,
        keep: is(c"keepMessages"),
        upgrade: is(c"upgrade"),
        open: is(c"open"),
        message: is(c"message"),
        drain: is(c"drain"),
        dropped: is(c"dropped"),
        ping: is(c"ping"),
        pong: is(c"pong"),
    };
    let index = app.with(|js, core| {
        if js.sockets.len() >= SOCKET_ROUTES_MAX || js.routes.len() >= ROUTES_MAX {
            return Err("too many routes: an app has at most 254 for WebSockets");
        }
        let index = js.routes.len() as u32;
        js.routes.push(Some(js.sockets.len() as u16));
        if own.dropped {
            js.reports_dropped = true;
            core.keep_dropped_frames();
        }
        js.sockets.push(SocketRoute { route: index, ..own });
        js.message_bytes_least = js.message_bytes_least.min(message_bytes);
        if let Some(router) = router(js, &host) {
            router.add(Some("GET"), &pattern, index, true);
        }
        let mut limits = core.limits().clone();
        allow(&mut limits, class, pings);
        core.set_limits(limits);
        core.renew_tick();
        Ok(index)
    })?;
    Ok(env.int(index as i32))
}

/// Adds a class to the limits of a worker: what it shares with others is what any of them allows.
fn allow(limits: &mut Limits, class: ClassLimits, pings: bool) {
    let first = limits.classes.is_empty();
    let strength = |compression: Compression| match compression {
        Compression::Off => 0,
        Compression::Shared => 1,
        Compression::Takeover => 2,
    };
    if first || class.message_bytes > limits.wire.message_bytes {
        limits.wire.message_bytes = class.message_bytes;
    }
    if first || strength(class.compression) > strength(limits.compression) {
        limits.compression = class.compression;
    }
    limits.pings = pings || !first && limits.pings;
    limits.classes.push(class);
}

/// `filter()`: connections are counted from now on.
fn filter(app: &App, env: Env, _: &Arguments) -> Result {
    app.with(|js, _| js.filters = true);
    Ok(env.undefined())
}

// ---- listeners ----

/// The listeners of an app. JavaScript may open and close them in the middle of a turn, which the worker is told
/// afterwards.
#[derive(Default)]
pub(crate) struct Listeners {
    list: Vec<Listener>,
    /// The descriptors of the apps that accept instead of this one.
    pub(crate) children: Vec<u32>,
    /// Another thread may give it listeners.
    pub(crate) awaited: bool,
}

struct Listener {
    number: i32,
    port: u16,
    /// Where the worker has it.
    at: Option<usize>,
    open: bool,
    removed: bool,
    /// Whose listener it is, if it is another app's.
    origin: Option<Origin>,
    /// The children that have been given it.
    given: Vec<u32>,
}

impl Listener {
    fn new(number: i32, port: u16, origin: Option<Origin>) -> Listener {
        Listener { number, port, at: None, open: true, removed: false, origin, given: Vec::new() }
    }
}

impl Listeners {
    pub(crate) fn any_open(&self) -> bool {
        self.awaited || self.list.iter().any(|listener| listener.open)
    }

    /// A child has ended, or is none any more.
    pub(crate) fn forget(&mut self, child: u32) {
        self.children.retain(|other| *other != child);
        self.list.iter_mut().for_each(|listener| listener.given.retain(|other| *other != child));
    }

    /// Adds a listener of another app.
    pub(crate) fn add_of(&mut self, origin: Origin, number: i32) {
        // Only a program's own have an index that it knows: the others can take a place that is free.
        let listener = Listener::new(number, 0, Some(origin));
        let free = |one: &&mut Listener| one.removed && one.origin.is_some();
        match self.list.iter_mut().find(free) {
            Some(place) => *place = listener,
            None => self.list.push(listener),
        }
    }

    /// Closes listeners of another app.
    pub(crate) fn leave(&mut self, parent: u32, index: Option<usize>) {
        for listener in &mut self.list {
            let meant = |origin: Origin| {
                origin.parent == parent && index.is_none_or(|index| index == origin.index)
            };
            if listener.origin.is_some_and(meant) {
                listener.open = false;
            }
        }
    }

    /// Tells the worker.
    pub(crate) fn apply(&mut self, worker: &mut Worker<Linux, Js>, descriptor: u32) {
        for (index, listener) in self.list.iter_mut().enumerate() {
            if listener.removed {
                continue;
            }
            if !listener.open {
                for child in listener.given.drain(..) {
                    children::take_back(descriptor, child, Some(index));
                }
            } else if listener.origin.is_none() && listener.given.len() < self.children.len() {
                // What a child could not be given is tried again after the next turn.
                let origin = Origin { parent: descriptor, index };
                for child in &self.children {
                    if !listener.given.contains(child)
                        && children::give(*child, origin, listener.number)
                    {
                        listener.given.push(*child);
                    }
                }
            }
            let accepts = listener.given.is_empty();
            match (listener.open, listener.at) {
                (true, None) if !accepts => {}
                (true, Some(at)) if !accepts => {
                    // The worker closes what it has.
                    if let Ok(kept) = process::duplicate(listener.number) {
                        worker.remove_listener(at);
                        (listener.number, listener.at) = (kept.into_raw_fd(), None);
                    }
                }
                (true, None) => {
                    listener.at = worker.add_listener(listener.number);
                    listener.open = listener.at.is_some();
                }
                (false, Some(at)) => {
                    worker.remove_listener(at);
                    listener.removed = true;
                }
                (false, None) => {
                    process::close(listener.number);
                    listener.removed = true;
                }
                (true, Some(_)) => {}
            }
        }
    }

    pub(crate) fn close_all(&mut self, worker: &mut Worker<Linux, Js>, descriptor: u32) {
        self.list.iter_mut().for_each(|listener| listener.open = false);
        self.apply(worker, descriptor);
    }

    fn close(&mut self, index: usize) {
        if let Some(listener) = self.list.get_mut(index).filter(|listener| listener.open) {
            listener.open = false;
            if listener.origin.is_none() {
                // Its port is free from now on, whenever the worker is told.
                process::stop_listening(listener.number);
            }
        }
    }
}

/// The addresses of a host, or of all interfaces without one.
pub(crate) fn addresses(host: &str, port: u16) -> Vec<SocketAddr> {
    if host.is_empty() {
        return vec![([0_u16; 8], port).into(), ([0_u8; 4], port).into()];
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (host, port).to_socket_addrs().map_or_else(|_| Vec::new(), Iterator::collect)
}

/// A listener and its address.
pub(crate) fn bind(address: SocketAddr, shared_port: bool) -> io::Result<(i32, SocketAddr)> {
    let defer = ACCEPT_DEFER;
    process::listen(&Listen { address, backlog: BACKLOG, shared_port, defer, v6_only: false })
}

/// Host, port and whether the port is exclusive, as they are given to `listen`.
pub(crate) fn where_to(
    app: &App,
    env: Env,
    arguments: &Arguments,
) -> std::result::Result<(String, u16, bool), Thrown> {
    let [host, port, exclusive, ..] = *arguments;
    let port = env.to_f64(port).filter(|port| (0.0..65_536.0).contains(port));
    let port = port.ok_or("expected a port: a number from 0 to 65535")? as u16;
    has_certificate(app)?;
    Ok((env.text(host).unwrap_or_default(), port, env.to_bool(exclusive)))
}

fn has_certificate(app: &App) -> std::result::Result<(), Thrown> {
    let lacks = app.with(|js, _| js.tls.is_some() && js.tls_server.is_none());
    if lacks {
        return Err("an SSLApp needs key_file_name and cert_file_name, or addServerName".into());
    }
    Ok(())
}

fn opened(app: &App, env: Env, number: i32, port: u16) -> napi_value {
    let index = {
        let mut listeners = app.listeners.borrow_mut();
        listeners.list.push(Listener::new(number, port, None));
        listeners.list.len() - 1
    };
    app.closed.set(false);
    app.settle();
    app.turn_soon();
    env.int(index as i32)
}

/// `listen(host or "", port, exclusive) → index, or -1`
fn listen(app: &App, env: Env, arguments: &Arguments) -> Result {
    let (host, port, exclusive) = where_to(app, env, arguments)?;
    let bound = addresses(&host, port).into_iter().find_map(|at| bind(at, !exclusive).ok());
    Ok(match bound {
        Some((number, address)) => opened(app, env, number, address.port()),
        None => env.int(-1),
    })
}

/// `listen_unix(path) → index, or -1`
fn listen_unix(app: &App, env: Env, arguments: &Arguments) -> Result {
    let path = env.text(arguments[0]).ok_or("expected a path: a string")?;
    has_certificate(app)?;
    let bound = UnixListener::bind(&path).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener.into_raw_fd())
    });
    Ok(match bound {
        Ok(number) => opened(app, env, number, 0),
        Err(_) => env.int(-1),
    })
}

/// `listener_port(index) → port, or -1`
fn listener_port(app: &App, env: Env, arguments: &Arguments) -> Result {
    let index = env.to_u32(arguments[0]) as usize;
    let listeners = app.listeners.borrow();
    let open = listeners.list.get(index).filter(|listener| listener.open && listener.port != 0);
    Ok(env.int(open.map_or(-1, |listener| listener.port.into())))
}

/// `close_listener(index)`
fn close_listener(app: &App, env: Env, arguments: &Arguments) -> Result {
    app.listeners.borrow_mut().close(env.to_u32(arguments[0]) as usize);
    app.settle();
    Ok(env.undefined())
}

/// A connection of TCP, with the settings of those that are accepted.
fn connection(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let stream = TcpStream::from(descriptor);
    stream.peer_addr()?;
    // Fails for UDP.
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

/// `adopt(descriptor, bytes, whole) → slot, or -1`: serves a connection that somebody else has accepted, by a descriptor of
/// its own, as if `bytes` came first. Its end is reported as to a filter. With `whole` the given descriptor is checked, and
/// closed if it is served.
fn adopt(app: &App, env: Env, arguments: &Arguments) -> Result {
    has_certificate(app)?;
    let (number, whole) = (env.to_u32(arguments[0]) as i32, env.to_bool(arguments[2]));
    let copy = process::duplicate(number);
    let copy = if whole { copy.and_then(connection) } else { copy };
    let copy = copy.map_err(|error| format!("cannot take over a socket: {error}"))?;
    let adopted = app.with_turn(|js, core| {
        let mut scratch = std::mem::take(&mut js.scratch);
        let id = env.bytes(arguments[1], &mut scratch, |bytes| core.adopt(copy, bytes)).flatten();
        js.scratch = scratch;
        if let Some(user) = id.and_then(|id| core.user_mut(id)) {
            user.counted = true;
        }
        id
    });
    if whole && adopted.is_some() {
        process::close(number);
    }
    app.settle();
    Ok(env.int(adopted.map_or(-1, |id| id.slot() as i32)))
}

/// `close_all()`: listeners and connections.
fn close_all(app: &App, env: Env, _: &Arguments) -> Result {
    {
        let mut listeners = app.listeners.borrow_mut();
        (0..listeners.list.len()).for_each(|index| listeners.close(index));
        listeners.awaited = false;
    }
    app.closed.set(true);
    app.with_turn(|_, core: &mut Core<Linux, Js>| {
        for slot in 0..core.slots() {
            if let Some(id) = core.id_at(slot) {
                core.abort(id);
            }
        }
    });
    app.settle();
    Ok(env.undefined())
}

/// `release()`: the program has closed it and lets its connections end.
fn release(app: &App, env: Env, _: &Arguments) -> Result {
    app.closed.set(true);
    app.settle();
    Ok(env.undefined())
}

// ---- certificates ----

/// The certificates of an app with TLS: the first one is for clients that name no other server.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    named: Vec<(String, TlsIdentity)>,
    /// Those that have to have signed clients' certificates, and whether every client must have one.
    authorities: Option<(Vec<u8>, bool)>,
}

/// `add_certificate(name or "", certificates, key, authorities or undefined, whether clients must have one)`, all PEM
pub(crate) fn add_certificate(app: &App, env: Env, arguments: &Arguments) -> Result {
    let [name, certificates, key, authorities, required] = *arguments;
    let text = |value, what: &str| env.text(value).ok_or_else(|| format!("expected {what} in PEM"));
    let name = env.text(name).unwrap_or_default();
    let (certificates, key) = (text(certificates, "a certificate")?, text(key, "a key")?);
    let authorities = env.text(authorities).map(String::into_bytes);
    let identity = TlsIdentity::from_pem(certificates.as_bytes(), key.as_bytes());
    let identity = identity.map_err(|error| error.to_string())?;
    let required = env.to_bool(required);
    change(app, |own| {
        own.authorize(&name, authorities, required)?;
        own.named.retain(|(other, _)| *other != name);
        let at = if name.is_empty() { 0 } else { own.named.len() };
        own.named.insert(at, (name, identity));
        Ok(())
    })?;
    Ok(env.undefined())
}

/// `remove_certificate(name)`
fn remove_certificate(app: &App, env: Env, arguments: &Arguments) -> Result {
    let name = env.text(arguments[0]).unwrap_or_default();
    change(app, |own| {
        own.named.retain(|(other, _)| *other != name);
        Ok(())
    })?;
    Ok(env.undefined())
}

impl Certificates {
    /// Takes authorities that come with a name, and whether clients must have a certificate. Both hold for all names:
    /// another name neither brings other authorities nor lets in who has no certificate.
    fn authorize(
        &mut self,
        name: &str,
        authorities: Option<Vec<u8>>,
        required: bool,
    ) -> std::result::Result<(), Thrown> {
        let is_own = name.is_empty();
        match (authorities, &mut self.authorities) {
            (Some(pem), own) if is_own => *own = Some((pem, false)),
            (Some(pem), Some((own, _))) if pem == *own => {}
            (Some(_), _) => {
                return Err("other authorities than the app's: ca_file_name holds for all names, so give it to SSLApp".into());
            }
            (None, _) => {}
        }
        match &mut self.authorities {
            Some((_, own)) => *own |= required,
            None if required => {
                return Err("the option rejectUnauthorized is for apps with ca_file_name".into());
            }
            None => {}
        }
        Ok(())
    }

    /// Whether a name, or `*` in place of its first label, has a certificate.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        let rest = name.split_once('.').map(|(_, rest)| rest);
        self.named.iter().any(|(own, _)| {
            let wild = own.strip_prefix("*.").zip(rest);
            own.eq_ignore_ascii_case(name)
                || wild.is_some_and(|(own, rest)| own.eq_ignore_ascii_case(rest))
        })
    }
}

/// `report_names()`: names that have no certificate are reported from now on.
fn report_names(app: &App, env: Env, _: &Arguments) -> Result {
    app.with(|_, core| core.set_reports_server_names(true));
    Ok(env.undefined())
}

/// Changes certificates, or nothing if that is an error.
fn change(
    app: &App,
    change: impl FnOnce(&mut Certificates) -> std::result::Result<(), Thrown>,
) -> std::result::Result<(), Thrown> {
    app.with(|js, core| {
        let Some(mut own) = js.tls.clone() else {
            return Err("an App has no certificates: use SSLApp".into());
        };
        change(&mut own)?;
        let identities: Vec<TlsIdentity> =
            own.named.iter().map(|(_, identity)| identity.clone()).collect();
        let server = if identities.is_empty() {
            None
        } else {
            let clients = match &own.authorities {
                None => ClientAuth::None,
                Some((pem, false)) => ClientAuth::Optional(pem),
                Some((pem, true)) => ClientAuth::Required(pem),
            };
            let server = TlsServer::new(&identities, TlsVersion::Tls12, clients);
            Some(server.map_err(|error| error.to_string())?)
        };
        js.tls = Some(own);
        js.tls_server.clone_from(&server);
        if server.is_some() {
            core.set_tls(server);
        }
        Ok(())
    })
}
