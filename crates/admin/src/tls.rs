//! TLS of the admin listener: the configuration, which a reload replaces, and what a connection is
//! under TLS.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use engine::TlsServer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsAcceptor;

use crate::connections::Connection;

/// The TLS configuration of new connections, if they use TLS.
#[derive(Clone, Default)]
pub(crate) struct AdminTls(Arc<RwLock<Option<TlsAcceptor>>>);

impl AdminTls {
    pub(crate) fn new(server: Option<&TlsServer>) -> Self {
        let this = AdminTls::default();
        this.set(server);
        this
    }

    pub(crate) fn set(&self, server: Option<&TlsServer>) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *current = server.map(|server| TlsAcceptor::from(server.config()));
    }

    pub(crate) fn acceptor(&self) -> Option<TlsAcceptor> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A socket under TLS. It reports each record that the client takes, because the layer above keeps
/// some of a response in its own buffer and reports nothing until that is empty.
pub(crate) struct Ciphertext<S> {
    pub(crate) stream: S,
    pub(crate) connection: Arc<Connection>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Ciphertext<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ciphertext<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(poll, Poll::Ready(Ok(1..))) {
            self.connection.sent();
        }
        poll
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        if matches!(poll, Poll::Ready(Ok(1..))) {
            self.connection.sent();
        }
        poll
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
