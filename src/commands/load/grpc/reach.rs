//! [`Reach`]: how the connection of reflection and health checks gets to a server: as those of the run do.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use load::{Endpoint, Route, Tunnel};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::target::Target;

/// How a server is reached.
#[derive(Clone, Debug)]
pub(super) enum Reach {
    /// By its name and port.
    Name,
    /// At this address.
    Address(SocketAddr),
    /// At this UNIX socket.
    Unix(Arc<Path>),
    /// By this request to a proxy.
    Tunnel(SocketAddr, Vec<u8>),
    /// Not at all, for this reason.
    Unresolved(Arc<str>),
}

/// A connection, before TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Reach {
    /// As the connections of a run reach an endpoint, whose name and port are `authority`.
    pub(super) fn of(endpoint: &Endpoint, authority: &str) -> Reach {
        match &endpoint.route {
            Route::Direct => Reach::Address(endpoint.address),
            Route::Unix(path) => Reach::Unix(Arc::clone(path)),
            Route::Unresolved(why) => Reach::Unresolved(Arc::clone(why)),
            Route::Forward(proxy) | Route::Tunnel(proxy) => {
                Reach::Tunnel(endpoint.address, proxy.connect(authority))
            }
        }
    }
}

/// Opens a connection.
///
/// # Errors
/// It cannot be opened, or a proxy refuses it.
pub(super) async fn connect(target: &Target) -> Result<Box<dyn Stream>> {
    let unreached = |error: io::Error| unreached(&error);
    let stream = match &target.reach {
        Reach::Name => TcpStream::connect((target.host.as_str(), target.port)).await,
        Reach::Address(address) => TcpStream::connect(address).await,
        Reach::Tunnel(proxy, request) => {
            let stream = TcpStream::connect(proxy).await;
            let stream = stream.with_context(|| format!("cannot connect to the proxy {proxy}"))?;
            return Ok(Box::new(tunnel(stream, request).await?));
        }
        Reach::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            return Ok(Box::new(stream.map_err(unreached)?));
        }
        Reach::Unresolved(why) => bail!("cannot connect: {why}"),
    };
    let stream = stream.map_err(unreached)?;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

/// Opens a tunnel (RFC 9110 section 9.3.6).
async fn tunnel(mut stream: TcpStream, request: &[u8]) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.write_all(request).await?;
    let mut tunnel = Tunnel::default();
    loop {
        // Byte by byte, as what follows the answer belongs to the tunnel.
        let byte = stream.read_u8().await.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                anyhow!("the proxy closed the connection without opening a tunnel")
            }
            _ => anyhow!("the proxy does not answer CONNECT: {error}"),
        })?;
        match tunnel.receive(&[byte], true) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(stream),
            Err(_) => {
                let shown = admin::log::shown(tunnel.refusal());
                bail!(
                    "the proxy refused the tunnel ({shown}): check --proxy, with its user and password"
                )
            }
        }
    }
}

fn unreached(error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            anyhow!("connection refused (is the server running on this port?)")
        }
        _ => anyhow!("cannot connect: {error}"),
    }
}
