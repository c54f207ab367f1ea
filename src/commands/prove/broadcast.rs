//! Requests to the server's admin listener: publications, which are timed by the receivers' clock, and its number of
//! connections.

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
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;

/// Address of the server's admin listener.
#[derive(Clone, Debug)]
pub(in crate::commands) enum Admin {
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
pub(in crate::commands) fn publish(admin: &Admin, topic: &str, sequence: u32) -> Result<Duration> {
    let stream = open(admin)?;
    let sent_ns = now_ns();
    let publication = Publication::new(PUBLISHER, sequence, sent_ns);
    let data = load::publication::encode(&publication, 0);
    let body = serde_json::json!({ "topic": topic, "data": data }).to_string();
    let length = format!("Content-Length: {}\r\n", body.len());
    ask(stream, "POST /api/publish", &length, &body).context("the publication")?;
    Ok(Duration::from_nanos(now_ns() - sent_ns))
}

/// The connections that the server has.
pub(in crate::commands) fn connections(admin: &Admin) -> Result<u64> {
    let metrics = ask(open(admin)?, "GET /metrics", "", "")?;
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix("standfast_connections "));
    let value = values.next().context("its metrics lack standfast_connections")?;
    value.parse().with_context(|| format!("standfast_connections: {value}"))
}

/// The answer to a request, if its status is 200.
fn ask(mut stream: Box<dyn Stream>, what: &str, headers: &str, body: &str) -> Result<String> {
    let request =
        format!("{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n{body}");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).context("no response")?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if !answer.starts_with("HTTP/1.1 200") {
        bail!("unexpected response: {answer}");
    }
    Ok(answer)
}

fn open(admin: &Admin) -> Result<Box<dyn Stream>> {
    connect(admin).with_context(|| format!("cannot connect to the admin listener {admin}"))
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
