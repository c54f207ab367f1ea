//! Reports the state of a server to systemd, for units with `Type=notify` (sd_notify(3)): one datagram
//! per state to the socket that `NOTIFY_SOCKET` names. Without it nothing happens, and a report that
//! cannot be sent is lost: serving does not depend on it.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use engine::sys::process::now_ns;
use tracing::debug;

/// A state of the server.
#[derive(Copy, Clone, Debug)]
pub(crate) enum State<'s> {
    /// Its listeners are open.
    Ready,
    /// SIGHUP has arrived; `Reloaded` or `NotReloaded` follows.
    Reloading,
    Reloaded,
    /// The reload failed, for this reason; the old configuration stays in force.
    NotReloaded(&'s str),
    /// It drains.
    Stopping,
}

impl State<'_> {
    fn text(self) -> String {
        match self {
            State::Ready => "READY=1\nSTATUS=serving".to_owned(),
            // Needed by Type=notify-reload.
            State::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={}", now_ns() / 1_000),
            State::Reloaded => "READY=1\nSTATUS=serving, configuration reloaded".to_owned(),
            State::NotReloaded(why) => {
                // A line feed would begin another field.
                let why = why.replace(char::is_control, " ");
                format!("READY=1\nSTATUS=serving, reload failed: {why}")
            }
            State::Stopping => "STOPPING=1\nSTATUS=draining".to_owned(),
        }
    }
}

/// Reports a state, if the process runs in such a unit.
pub(crate) fn report(state: State<'_>) {
    let Some(socket) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&socket, &state.text()) {
        debug!("cannot report to systemd: {error}");
    }
}

fn send(socket: &OsString, text: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // A full queue must not delay a signal.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(text.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_sent_to_sockets_with_a_path_and_abstract_ones() {
        let name = format!("standfast-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let receiver = UnixDatagram::bind_addr(&address).unwrap();
        send(&format!("@{name}").into(), &State::Ready.text()).unwrap();
        let mut buffer = [0; 256];
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1\nSTATUS=serving");
        assert!(send(&"/nonexistent/socket".into(), "READY=1").is_err());
    }

    #[test]
    fn a_reason_stays_on_its_line() {
        let text = State::NotReloaded("a\nREADY=0").text();
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
