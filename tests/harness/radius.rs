//! RADIUS: FreeRADIUS as a child process, and a small server that logs what it receives and misbehaves in
//! one way. It shares no code with this project.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use md5::{Digest, Md5};

use super::executable::Running;
use super::{eventually, skip};

/// Where Debian puts it.
const PROGRAM: &str = "/usr/sbin/freeradius";

/// FreeRADIUS with one client, the secret "cisco" and the password "12345678" for everyone.
pub(crate) struct FreeRadius {
    pub(crate) address: SocketAddr,
    folder: PathBuf,
    _running: Running,
}

impl FreeRadius {
    /// Starts it; `None` if it is not installed. It requires a Message-Authenticator.
    pub(crate) fn start() -> Option<FreeRadius> {
        if !Path::new(PROGRAM).is_file() {
            skip::missing("FreeRADIUS is not installed: try cargo xtask test --install");
            return None;
        }
        let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let name = format!("radius-{}-{}", std::process::id(), address.port());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        let here = folder.to_str().unwrap();
        let places: String = ["confdir", "modconfdir", "certdir", "cadir", "raddbdir", "logdir"]
            .iter()
            .chain(&["run_dir", "radacctdir", "localstatedir"])
            .map(|place| format!("{place} = {here}\n"))
            .collect();
        let text = format!(
            "name = radiusd\nprefix = /usr\n{places}libdir = /usr/lib/freeradius\n\
             log {{\n destination = files\n file = {here}/radius.log\n auth = yes\n}}\n\
             security {{\n reject_delay = 0\n status_server = no\n}}\n\
             thread pool {{\n start_servers = 2\n max_servers = 2\n max_requests_per_server = 0\n}}\n\
             modules {{\n pap {{\n }}\n}}\n\
             client load {{\n ipaddr = 127.0.0.1\n secret = cisco\n require_message_authenticator = yes\n}}\n\
             server default {{\n\
             listen {{\n type = auth\n ipaddr = 127.0.0.1\n port = {}\n}}\n\
             authorize {{\n update control {{\n Cleartext-Password := \"12345678\"\n }}\n pap\n}}\n\
             authenticate {{\n Auth-Type PAP {{\n pap\n }}\n}}\n}}\n",
            address.port()
        );
        fs::write(folder.join("radiusd.conf"), text).unwrap();
        fs::write(folder.join("dictionary"), "").unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["-f", "-n", "radiusd", "-d"]).arg(&folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = Running(command.spawn().unwrap());
        let log = folder.join("radius.log");
        eventually("FreeRADIUS is ready", || {
            assert_eq!(running.0.try_wait().unwrap(), None, "FreeRADIUS has ended: {here}");
            fs::read_to_string(&log).is_ok_and(|text| text.contains("Ready to process requests"))
        });
        Some(FreeRadius { address, folder, _running: running })
    }

    /// The lines of its log that have these words.
    pub(crate) fn logged(&self, words: &str) -> usize {
        let log = fs::read_to_string(self.folder.join("radius.log")).unwrap_or_default();
        log.lines().filter(|line| line.contains(words)).count()
    }
}

impl Drop for FreeRadius {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// How a server answers each nth request, counted from 1.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Conduct {
    /// By Access-Accept.
    Accepts,
    /// Each tenth by this code.
    Says(u8),
    /// Each tenth by an answer made with another secret.
    OtherSecret,
    /// Each tenth by bytes that are no packet, and then rightly.
    Garbage,
    /// Each twice.
    Twice,
    /// Not to the first datagram of each tenth.
    Loses,
    /// Not at all.
    Silent,
}

/// What a server received.
#[derive(Default, Debug)]
pub(crate) struct RadiusLog {
    pub(crate) datagrams: u64,
    /// Datagrams that differ.
    pub(crate) requests: u64,
    pub(crate) users: Vec<String>,
    pub(crate) passwords: Vec<String>,
    /// The ports that they came from.
    pub(crate) ports: std::collections::BTreeSet<u16>,
    seen: std::collections::HashMap<Vec<u8>, u64>,
}

/// A server with the secret "cisco". It ends with its test's process.
pub(crate) struct RadiusServer {
    pub(crate) address: SocketAddr,
    pub(crate) log: Arc<Mutex<RadiusLog>>,
}

impl RadiusServer {
    pub(crate) fn start(conduct: Conduct) -> RadiusServer {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (address, log) = (socket.local_addr().unwrap(), Arc::default());
        let server = RadiusServer { address, log };
        let log = Arc::clone(&server.log);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let request = &buffer[..length];
                let (number, is_first) = note(&mut log.lock().unwrap(), request, from);
                for answer in answers(conduct, number, is_first, request) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        server
    }
}

/// The number of a request, and whether this is its first datagram.
fn note(log: &mut RadiusLog, request: &[u8], from: SocketAddr) -> (u64, bool) {
    log.datagrams += 1;
    log.ports.insert(from.port());
    let next = log.requests + 1;
    let number = *log.seen.entry(request.to_vec()).or_insert(next);
    if number < next {
        return (number, false);
    }
    log.requests = next;
    log.users.push(String::from_utf8_lossy(&value(request, 1)).into_owned());
    let hidden = value(request, 2);
    let mut key = md5(&[b"cisco", &request[4..20]]);
    let mut plain = Vec::new();
    for block in hidden.chunks(16) {
        plain.extend(block.iter().zip(key).map(|(byte, key)| byte ^ key));
        key = md5(&[b"cisco", block]);
    }
    let length = plain.iter().position(|byte| *byte == 0).unwrap_or(plain.len());
    log.passwords.push(String::from_utf8_lossy(&plain[..length]).into_owned());
    (number, true)
}

/// The value of the attribute of a type.
fn value(packet: &[u8], kind: u8) -> Vec<u8> {
    let mut rest = &packet[20..];
    while let [this, length, ..] = rest {
        let (one, next) = rest.split_at(usize::from(*length));
        if *this == kind {
            return one[2..].to_vec();
        }
        rest = next;
    }
    Vec::new()
}

fn answers(conduct: Conduct, number: u64, is_first: bool, request: &[u8]) -> Vec<Vec<u8>> {
    let right = answer(2, request, b"cisco");
    let is_tenth = number.is_multiple_of(10);
    match conduct {
        Conduct::Says(code) if is_tenth => vec![answer(code, request, b"cisco")],
        Conduct::OtherSecret if is_tenth => vec![answer(2, request, b"ocsic")],
        Conduct::Garbage if is_tenth => vec![vec![2, request[1], 0, 99], b"x".to_vec(), right],
        Conduct::Twice => vec![right.clone(), right],
        Conduct::Loses if is_tenth && is_first => Vec::new(),
        Conduct::Silent => Vec::new(),
        _ => vec![right],
    }
}

fn answer(code: u8, request: &[u8], secret: &[u8]) -> Vec<u8> {
    // Reply-Message.
    let attributes = [18, 4, b'o', b'k'];
    let head = [code, request[1], 0, 20 + attributes.len() as u8];
    let said = md5(&[&head, &request[4..20], &attributes, secret]);
    [&head[..], &said, &attributes].concat()
}

fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut digest = Md5::new();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize().into()
}
