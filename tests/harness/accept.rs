//! [`accept`]: a server on a free port of this machine with a thread per connection.

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Serves each connection by `serve` on a thread of its own, until the test's process ends.
pub(crate) fn accept<T>(serve: impl Fn(TcpStream) -> T + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).unwrap();
            let serve = Arc::clone(&serve);
            thread::spawn(move || {
                serve(stream);
            });
        }
    });
    address
}

/// Ends a connection so that all that was sent arrives.
pub(crate) fn end(stream: &mut TcpStream) -> Option<()> {
    stream.shutdown(Shutdown::Write).ok()?;
    while stream.read(&mut [0; 4096]).ok()? > 0 {}
    None
}
