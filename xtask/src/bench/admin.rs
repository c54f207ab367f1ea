//! Requests to the admin listener of a server, or to another HTTP server, over one connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::server::Server;

/// A connection to the admin listener.
pub(super) struct Admin(BufReader<TcpStream>);

impl Admin {
    /// Connects.
    pub(super) fn connect(server: &Server) -> Result<Admin> {
        Admin::connect_to(server.admin().context("the ready line names no admin")?)
    }

    /// Connects to a port of this machine.
    pub(super) fn connect_to(port: u16) -> Result<Admin> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Admin(BufReader::new(stream)))
    }

    /// The body of an answer, which must be 200.
    pub(super) fn request(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        let (status, body) = self.ask(method, path, body)?;
        ensure!(status == 200, "{path}: {status} {body}");
        Ok(body)
    }

    /// The status and the body of an answer.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        );
        self.0.get_mut().write_all((head + body).as_bytes())?;
        let (mut line, mut length) = (String::new(), 0);
        self.0.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("{path}: {line}"))?;
        while line != "\r\n" {
            line.clear();
            ensure!(self.0.read_line(&mut line)? > 0, "{path}: the connection ended");
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((status, String::from_utf8(body)?))
    }

    /// The metrics whose names begin with `prefix`, without it.
    pub(super) fn metrics(&mut self, prefix: &str) -> Result<Vec<(String, usize)>> {
        let text = self.request("GET", "/metrics", "")?;
        let value = |line: &str| {
            let (name, value) = line.strip_prefix(prefix)?.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter_map(value).collect())
    }
}
