//! Connections to the application, with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::TlsClient;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A connection to the application.
pub(super) enum AppStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Time for a connect: one that is not answered has not reached the application.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects to the first address that answers.
pub(super) async fn connect(
    address: impl ToSocketAddrs,
    tls: Option<&TlsClient>,
) -> io::Result<AppStream> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = tls else { return Ok(AppStream::Plain(stream)) };
        let (config, name) = tls.parts();
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(AppStream::Tls(Box::new(stream)))
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
    }
}

impl AsyncRead for AppStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            AppStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            AppStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for AppStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            AppStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            AppStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            AppStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            AppStream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            AppStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            AppStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
