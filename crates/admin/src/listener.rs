//! The admin listener: it is open when [`start`] returns, and one thread serves it.
//!
//! Start it after the workers, so that its descriptors are in no worker's descriptor table.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use engine::TlsServer;
use engine::sys::process;
use rustix::fs::Mode;
use rustix::process::umask;
use tracing::info;

use crate::auth::Key;
use crate::bootstrap::hint;
use crate::connections::Connections;
use crate::live::Live;
use crate::routes::{Guard, router};
use crate::tls::AdminTls;
use crate::{Address, ConnectionLimits, Program, accept};

/// Threads that wait for answers of workers. Further requests queue.
const BLOCKING_THREADS: usize = 2;
/// The same where publishing waits for others, too.
const BLOCKING_THREADS_MORE: usize = 32;
/// Stack of each of these threads and of the listener's thread, in bytes.
const STACK_BYTES: usize = 512 * 1024;

/// Connections that may wait to be accepted; the kernel limits it to `net.core.somaxconn`. Beyond it each
/// connect of a burst of publishers would be delayed by a second.
const ACCEPT_QUEUE: i32 = 4096;

/// The scheduler's slice for the listener's thread, the shortest possible: it uses little CPU, and
/// must answer while workers keep every core busy.
const SLICE: Duration = Duration::from_micros(100);

/// Configuration of the admin listener.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address to listen on.
    pub address: Address,
    /// The bearer key that requests must carry. Required unless the address is local.
    pub key: Option<String>,
    /// TLS, if the listener has TLS.
    pub tls: Option<TlsServer>,
    /// Longest request body, in bytes.
    pub body_bytes_max: usize,
    /// Number and times of connections. The number is lowered to a quarter of the descriptor limit.
    pub connections: ConnectionLimits,
}

/// Why the admin listener did not start. The operating system's error is the source.
#[derive(Debug)]
pub enum StartError {
    /// Other machines could reach it and it has no key.
    NeedsKey(Address),
    /// The address cannot be opened.
    Listen(Address, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NeedsKey(address) => write!(
                f,
                "the admin listener on {address} is reachable from other machines and needs a key: \
                 set --admin-key KEY, or listen on loopback or unix:/path"
            ),
            StartError::Listen(address, error) => {
                write!(f, "cannot open the admin listener on {address}{}", hint(address, error))
            }
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::NeedsKey(_) => None,
            StartError::Listen(_, error) => Some(error),
        }
    }
}

/// The admin listener of a running program. It lives as long as the process; dropping this removes
/// the file of a UNIX socket.
pub struct AdminListener {
    address: Address,
    key: Key,
    tls: AdminTls,
    socket_file: Option<PathBuf>,
}

impl AdminListener {
    /// The address, with the port that the system chose.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Logs where browsers find the admin page.
    pub fn log_page(&self) {
        if let Address::Tcp(address) = &self.address {
            let scheme = if self.tls.acceptor().is_some() { "https" } else { "http" };
            info!("admin page: {scheme}://{address}/");
        }
    }

    /// Replaces the key. Returns false and changes nothing if the address needs one and `key` is `None`.
    #[must_use]
    pub fn set_key(&self, key: Option<&str>) -> bool {
        let allowed = key.is_some() || self.address.is_local();
        if allowed {
            self.key.set(key);
        }
        allowed
    }

    /// Replaces the TLS configuration of connections accepted from now on.
    pub fn set_tls(&self, tls: Option<&TlsServer>) {
        self.tls.set(tls);
    }
}

impl fmt::Display for AdminListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls.acceptor().is_some() { " (TLS)" } else { "" };
        write!(f, "{}{tls}", self.address)
    }
}

impl Drop for AdminListener {
    fn drop(&mut self) {
        if let Some(file) = &self.socket_file {
            let _ = fs::remove_file(file);
        }
    }
}

enum Bound {
    Tcp(std::net::TcpListener),
    Unix(UnixListener),
}

/// Opens the listener and serves it from its own thread.
///
/// # Errors
/// An address that cannot be opened, or one that needs a key and has none.
pub fn start(config: &Config, program: Arc<dyn Program>) -> Result<AdminListener, StartError> {
    let address = &config.address;
    if !address.is_local() && config.key.is_none() {
        return Err(StartError::NeedsKey(address.clone()));
    }
    let failed = |error| StartError::Listen(address.clone(), error);
    let (bound, actual) = bind(address).map_err(failed)?;
    let socket_file = match address {
        Address::Tcp(_) => None,
        Address::Unix(path) => Some(path.clone()),
    };
    let key = Key::new(config.key.as_deref());
    let connections = Arc::new(Connections::new(within_descriptors(config.connections)));
    let guard = Guard { key, browsers: socket_file.is_none(), foreign: Arc::default() };
    let tls = AdminTls::new(config.tls.as_ref());
    let of_guard = guard.key.clone();
    let running = AdminListener { address: actual, key: of_guard, tls: tls.clone(), socket_file };
    let live = Arc::new(Live::new(Arc::clone(&program)));
    let (open, streams) = (Arc::clone(&connections), Arc::clone(&live));
    let waits = program.waits_for_others();
    let threads = if waits { BLOCKING_THREADS_MORE } else { BLOCKING_THREADS };
    let app = router(program, guard, open, streams, config.body_bytes_max);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(threads)
        .thread_stack_size(STACK_BYTES)
        .thread_name("admin-wait")
        .build()
        .map_err(failed)?;
    let serve = move || {
        process::run_in_slices(SLICE);
        runtime.block_on(async move {
            let listener = match bound {
                Bound::Tcp(listener) => {
                    accept::Listener::Tcp(tokio::net::TcpListener::from_std(listener)?)
                }
                Bound::Unix(listener) => {
                    accept::Listener::Unix(tokio::net::UnixListener::from_std(listener)?)
                }
            };
            tokio::spawn(live.run());
            accept::serve(listener, tls, app, connections).await;
            io::Result::Ok(())
        })
    };
    Builder::new().name("admin".to_owned()).stack_size(STACK_BYTES).spawn(serve).map_err(failed)?;
    Ok(running)
}

/// Leaves half of the descriptor table to the rest of the process.
fn within_descriptors(limits: ConnectionLimits) -> ConnectionLimits {
    let quarter = usize::try_from(capacity::nofile().soft / 4).unwrap_or(usize::MAX);
    ConnectionLimits { connections: limits.connections.min(quarter).max(1), ..limits }
}

fn bind(address: &Address) -> io::Result<(Bound, Address)> {
    match address {
        Address::Tcp(address) => {
            let listener = std::net::TcpListener::bind(address)?;
            // The standard library's is 128 long.
            rustix::net::listen(&listener, ACCEPT_QUEUE)?;
            listener.set_nonblocking(true)?;
            let actual = listener.local_addr()?;
            Ok((Bound::Tcp(listener), Address::Tcp(actual)))
        }
        Address::Unix(path) => Ok((Bound::Unix(listen_unix(path)?), Address::Unix(path.clone()))),
    }
}

/// Listens on a UNIX socket that only its owner can open (mode 0600), replacing one that an ended
/// process left behind. The socket is non-blocking.
///
/// # Errors
/// A file that is not a socket, a socket in use, and errors of bind(2).
pub fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    // Mode 0600 from the start: between bind and a later chmod anyone could connect.
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let listener = UnixListener::bind(path);
    umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes a socket that an ended process left behind, and nothing else.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file exists and is not a socket",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}
