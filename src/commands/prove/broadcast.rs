//! One publication through the server's admin listener, timed by the receivers' clock.

use std::fmt::{self, Display};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::sys::process::now_ns;
use load::publication::Publication;

/// The publisher id of a proof.
pub(super) const PUBLISHER: u32 = 1;
/// Time limit for the server to accept a publication.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Address of the server's admin listener.
#[derive(Clone, Debug)]
pub(super) enum Admin {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Display for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admin::Tcp(address) => address.fmt(f),
            Admin::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Publishes message `sequence` to `topic` and returns the server's response time. The message
/// carries its sequence and send time, so each receiver can check it.
pub(super) fn publish(admin: &Admin, topic: &str, sequence: u32) -> Result<Duration> {
    let mut stream =
        connect(admin).with_context(|| format!("cannot connect to the admin listener {admin}"))?;
    let sent_ns = now_ns();
    let publication = Publication::new(PUBLISHER, sequence, sent_ns);
    let data = load::publication::encode(&publication, 0);
    let body = serde_json::json!({ "topic": topic, "data": data }).to_string();
    let request = format!(
        "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(64 * 1024).read_to_end(&mut answer).context("no response to the publication")?;
    let took = Duration::from_nanos(now_ns() - sent_ns);
    if !answer.starts_with(b"HTTP/1.1 200") {
        bail!("unexpected response to the publication: {}", String::from_utf8_lossy(&answer));
    }
    Ok(took)
}

trait Stream: Read + Write {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

fn connect(admin: &Admin) -> io::Result<Box<dyn Stream>> {
    match admin {
        Admin::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        Admin::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            Ok(Box::new(stream))
        }
    }
}
