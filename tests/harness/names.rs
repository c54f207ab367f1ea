//! A name server inside a network namespace: what it answers, and when, is up to the test.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use super::lowered::Namespace;

/// The resolver's files in a namespace: `ip netns exec` mounts them over those in /etc. The first
/// request waits long, so that a held answer is still awaited when it is given.
const FILES: [(&str, &str); 3] = [
    ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n"),
    ("nsswitch.conf", "hosts: files dns\n"),
    ("hosts", "127.0.0.1 localhost\n"),
];

/// The answer to requests for a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// This address.
    Address(Ipv4Addr),
    /// None yet: requests wait until it changes.
    Held,
}

#[derive(Default)]
struct State {
    names: BTreeMap<String, Lookup>,
    /// Requests without an answer.
    held: Vec<(Vec<u8>, SocketAddr)>,
    asked: usize,
}

/// The name server of a namespace; a name that was not set does not exist.
pub(crate) struct Names {
    state: Arc<Mutex<State>>,
    socket: UdpSocket,
    files: PathBuf,
}

impl Names {
    /// Starts it.
    pub(crate) fn start(namespace: &Namespace) -> Names {
        let files = Path::new("/etc/netns").join(namespace.name());
        fs::create_dir_all(&files).expect("root may write to /etc");
        for (file, text) in FILES {
            fs::write(files.join(file), text).expect("a file can be written");
        }
        let socket = namespace.within(|| UdpSocket::bind("127.0.0.1:53")).expect("port 53 is free");
        let (state, served) = (Arc::<Mutex<State>>::default(), socket.try_clone());
        let (of_server, served) = (Arc::clone(&state), served.expect("a socket can be cloned"));
        thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = served.recv_from(&mut buffer) {
                // An empty datagram ends it.
                let Some(request) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
                    break;
                };
                let mut state = of_server.lock().expect("no thread panics");
                state.asked += 1;
                answer(&mut state, &served, request.to_vec(), from);
            }
        });
        Names { state, socket, files }
    }

    /// Sets the answer for a name, for held requests as well; `None` removes the name.
    pub(crate) fn set(&self, name: &str, lookup: Option<Lookup>) {
        let mut state = self.state.lock().expect("no thread panics");
        match lookup {
            Some(lookup) => state.names.insert(name.to_owned(), lookup),
            None => state.names.remove(name),
        };
        for (request, from) in std::mem::take(&mut state.held) {
            answer(&mut state, &self.socket, request, from);
        }
    }

    /// Requests so far.
    pub(crate) fn asked(&self) -> usize {
        self.state.lock().expect("no thread panics").asked
    }

    /// Requests that wait for an answer.
    pub(crate) fn held(&self) -> usize {
        self.state.lock().expect("no thread panics").held.len()
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = self.socket.local_addr().and_then(|own| self.socket.send_to(&[], own));
        let _ = fs::remove_dir_all(&self.files);
    }
}

/// Answers a request (RFC 1035 section 4.1). There are addresses of version 4 only.
fn answer(state: &mut State, socket: &UdpSocket, request: Vec<u8>, from: SocketAddr) {
    let (mut at, mut labels) = (12, Vec::new());
    while let Some(length) = request.get(at).map(|length| usize::from(*length)).filter(|n| *n > 0) {
        labels.push(String::from_utf8_lossy(&request[at + 1..at + 1 + length]).into_owned());
        at += 1 + length;
    }
    let question = &request[12..at + 5];
    let is_v4 = question.ends_with(&[0, 1, 0, 1]);
    let lookup = state.names.get(&labels.join(".")).copied();
    let address = match lookup {
        Some(Lookup::Held) => return state.held.push((request, from)),
        Some(Lookup::Address(address)) if is_v4 => Some(address),
        _ => None,
    };
    let code = if lookup.is_some() { 0x80 } else { 0x83 };
    let mut reply = request[..2].to_vec();
    reply.extend_from_slice(&[0x81, code, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    reply.extend_from_slice(question);
    if let Some(address) = address {
        reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        reply.extend_from_slice(&address.octets());
    }
    let _ = socket.send_to(&reply, from);
}
