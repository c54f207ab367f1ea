//! Accepts connections of the admin listener and serves HTTP on them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

use crate::connections::{Connection, Connections, Membership, Phase};
use crate::live::Streaming;
use crate::tls::{AdminTls, Ciphertext};

/// Longest request head, and bytes of a body that are read at once.
const BUFFER_BYTES: usize = 32 * 1024;
/// Pause after an error of accept(2) that closing a connection does not help against.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// The listening socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection's socket, or the TLS stream over it.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Which connection a request came on.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) Arc<Connection>);

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Tcp(listener) => Box::new(listener.accept().await?.0),
            Listener::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Serves the listener for as long as the process lives.
pub(crate) async fn serve(
    listener: Listener,
    tls: AdminTls,
    app: Router,
    connections: Arc<Connections>,
) {
    let watched = Arc::clone(&connections);
    tokio::spawn(async move { watched.watch().await });
    loop {
        match listener.accept().await {
            Ok(stream) => {
                connections.make_room().await;
                let (app, acceptor) = (app.clone(), tls.acceptor());
                connections.add(|member| {
                    tokio::spawn(serve_connection(stream, acceptor, app, member)).abort_handle()
                });
            }
            Err(error) => {
                let code = Errno::from_io_error(&error);
                let full = matches!(code, Some(Errno::MFILE | Errno::NFILE));
                if full && connections.close_any() {
                    // The task of the closed connection gives its descriptor back.
                    tokio::task::yield_now().await;
                } else if code != Some(Errno::CONNABORTED) {
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
            }
        }
    }
}

async fn serve_connection(
    stream: Box<dyn Stream>,
    acceptor: Option<TlsAcceptor>,
    app: Router,
    member: Membership,
) {
    let connection = Arc::clone(&member.connection);
    let stream = match acceptor {
        None => stream,
        Some(acceptor) => match handshake(stream, &acceptor, &member).await {
            Some(stream) => stream,
            None => return,
        },
    };
    let stream = Watched { stream, connection: Arc::clone(&connection) };
    let app = TowerToHyperService::new(app);
    let service = service_fn(|mut request: Request<Incoming>| {
        connection.enter(Phase::Answer);
        request.extensions_mut().insert(Caller(Arc::clone(&connection)));
        let response = app.call(request);
        let member = &member;
        async move {
            let response = response.await;
            let is_stream =
                |response: &Response<_>| response.extensions().get::<Streaming>().is_some();
            let phase = match response.as_ref().is_ok_and(is_stream) {
                true => Phase::Stream,
                false => Phase::Response,
            };
            member.connection.enter(phase);
            member.answered();
            response
        }
    });
    let http = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // Clients that violate HTTP or go away are no concern of the program.
    let _ = http.await;
}

/// The TLS handshake. Until its end the connection has sent no byte of a request, so it is limited
/// like a silent one: the time for the first head runs since the connect.
async fn handshake(
    stream: Box<dyn Stream>,
    acceptor: &TlsAcceptor,
    member: &Membership,
) -> Option<Box<dyn Stream>> {
    let stream = Ciphertext { stream, connection: Arc::clone(&member.connection) };
    match acceptor.accept(stream).await {
        Ok(stream) => Some(Box::new(stream)),
        Err(error) => {
            // Clients that go away are no concern of the program.
            if error.kind() == io::ErrorKind::InvalidData {
                member.handshake_failed();
            }
            None
        }
    }
}

/// A socket that tells its [`Connection`] what passes.
struct Watched {
    stream: Box<dyn Stream>,
    connection: Arc<Connection>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.connection.received();
        }
        poll
    }
}

impl AsyncWrite for Watched {
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
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(poll, Poll::Ready(Ok(()))) {
            self.connection.flushed();
        }
        poll
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
