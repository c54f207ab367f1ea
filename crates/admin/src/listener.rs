//! The admin listener: opened before it is announced, served by one thread.
//!
//! Start it after the workers: what it opens then is in no worker's descriptor table.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use engine::sys::process;
use rustix::fs::Mode;
use rustix::process::umask;

use crate::auth::Key;
use crate::routes::{Guard, router};
use crate::{Address, Program};

/// Threads that wait for workers' answers at a time; further requests queue.
const BLOCKING_THREADS: usize = 2;
/// Bytes of stack for those and for the listener's own thread.
const STACK_BYTES: usize = 512 * 1024;

/// The scheduler's slice for the listener's thread, the shortest there is: it works little, and
/// must be heard while every core is busy with workers.
const SLICE: Duration = Duration::from_micros(100);

/// How the admin listener is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where.
    pub address: Address,
    /// The bearer key that requests must carry. Required unless the address is local.
    pub key: Option<String>,
    /// Longest body of `/api/publish`, in bytes.
    pub body_bytes_max: usize,
}

/// Why the admin listener did not start; the system's own word for it is the source.
#[derive(Debug)]
pub enum StartError {
    /// It would be reachable from elsewhere and has no key.
    NeedsKey(Address),
    /// The address cannot be had.
    Listen(Address, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NeedsKey(address) => write!(
                f,
                "the admin listener on {address} can be reached from elsewhere: give it \
                 --admin-key KEY, or leave it on loopback or on unix:/path"
            ),
            StartError::Listen(address, _) => {
                write!(f, "cannot open the admin listener on {address}")
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

/// The admin listener of a running program; it lives as long as the process. A UNIX socket's
/// file goes when this is dropped.
pub struct Running {
    address: Address,
    key: Key,
    socket_file: Option<PathBuf>,
}

impl Running {
    /// Where it is, with the port the system chose.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Replaces the key. Refused, with false, when the address must have one.
    #[must_use]
    pub fn set_key(&self, key: Option<&str>) -> bool {
        let allowed = key.is_some() || self.address.is_local();
        if allowed {
            self.key.set(key);
        }
        allowed
    }
}

impl Drop for Running {
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

/// Opens the listener and serves it from a thread of its own.
///
/// # Errors
/// An address that cannot be had, or one that needs a key and has none.
pub fn start(config: &Config, program: Arc<dyn Program>) -> Result<Running, StartError> {
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
    let guard = Guard { key, browsers: socket_file.is_none(), foreign: Arc::default() };
    let running = Running { address: actual, key: guard.key.clone(), socket_file };
    let app = router(program, guard, config.body_bytes_max);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        // axum waits a second after EMFILE.
        .enable_time()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(STACK_BYTES)
        .thread_name("admin-wait")
        .build()
        .map_err(failed)?;
    let serve = move || {
        process::run_in_slices(SLICE);
        runtime.block_on(async move {
            match bound {
                Bound::Tcp(listener) => {
                    axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await
                }
                Bound::Unix(listener) => {
                    axum::serve(tokio::net::UnixListener::from_std(listener)?, app).await
                }
            }
        })
    };
    Builder::new().name("admin".to_owned()).stack_size(STACK_BYTES).spawn(serve).map_err(failed)?;
    Ok(running)
}

fn bind(address: &Address) -> io::Result<(Bound, Address)> {
    match address {
        Address::Tcp(address) => {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let actual = listener.local_addr()?;
            Ok((Bound::Tcp(listener), Address::Tcp(actual)))
        }
        Address::Unix(path) => Ok((Bound::Unix(listen_unix(path)?), Address::Unix(path.clone()))),
    }
}

/// Listens on a UNIX socket that only its owner may open, in place of one that an ended process
/// left behind. It does not block.
///
/// # Errors
/// A file that is no socket or that somebody listens on, and what bind(2) answers.
pub fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    // Mode 0600 from the start: between bind and a later chmod anyone could come in.
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let listener = UnixListener::bind(path);
    umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Removes the socket that an ended process left behind, and nothing else.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file is there, not a socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}
