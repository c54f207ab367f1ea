//! HAProxy as a child process, in front of a server of ours: it takes WebSockets over HTTP/2 (RFC 8441).

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use super::executable::Running;
use super::tls::Authority;
use super::{Deserted, Scratch, eventually, skip};

/// Where Debian puts it.
const PROGRAM: &str = "/usr/sbin/haproxy";

/// A running HAProxy.
pub(crate) struct Haproxy {
    pub(crate) listen: SocketAddr,
    _running: Running,
    _config: Scratch,
    _port: Deserted,
}

impl Haproxy {
    /// Two of them in front of `upstream`: one speaks HTTP/2 in plain text, the other over TLS with a certificate of
    /// `authority`; `None` if it is not installed.
    pub(crate) fn both(authority: &Authority, upstream: SocketAddr) -> Option<(Haproxy, Haproxy)> {
        authority.sign("server", &["localhost", "127.0.0.1"]);
        let read = |file| fs::read_to_string(authority.path(file)).unwrap();
        let pem = authority.path("both.pem");
        fs::write(&pem, read("server.pem") + &read("server.key")).unwrap();
        let plain = Haproxy::start("proto h2", "", upstream)?;
        let tls = Haproxy::start(&format!("ssl crt {pem} alpn h2"), "", upstream)?;
        Some((plain, tls))
    }

    /// Starts HAProxy in front of `upstream` with these options of its `bind`; `None` if it is not installed.
    pub(crate) fn start(options: &str, global: &str, upstream: SocketAddr) -> Option<Haproxy> {
        if !Path::new(PROGRAM).is_file() {
            skip::missing("haproxy is not installed: try cargo xtask test --install");
            return None;
        }
        let port = Deserted::port();
        let listen = port.address;
        let text = format!(
            "global\n maxconn 2000\n nbthread 1\n{global}\ndefaults\n mode http\n \
             timeout connect 10s\n timeout client 1m\n timeout server 1m\n timeout tunnel 1m\n\
             frontend clients\n bind {listen} {options}\n default_backend sockets\n\
             backend sockets\n server one {upstream}\n"
        );
        let config = Scratch::new(&format!("haproxy-{}.cfg", listen.port()), &text);
        let mut command = Command::new(PROGRAM);
        command.args(["-db", "-f", config.path()]).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        let mut running = Running(command.spawn().expect("haproxy starts"));
        eventually("haproxy accepts", || {
            assert_eq!(running.0.try_wait().expect("the child is ours"), None, "haproxy has ended");
            TcpStream::connect(listen).is_ok()
        });
        Some(Haproxy { listen, _running: running, _config: config, _port: port })
    }
}
