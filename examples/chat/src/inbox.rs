//! The inbox of a node: a WebSocket of the process to itself, which is subscribed to the topics of the
//! nodes. Topics reach sockets only, and by the broker the sockets of all processes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use standfast::{Accept, Handler, Message, Response, Socket, UpgradeRequest};

/// The path of inboxes.
pub(crate) const PATH: &str = "/node";
/// The topic of all inboxes.
pub(crate) const ALL: &str = "nodes";
/// Longest message that is read, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Longest answer to the handshake, in bytes.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// The topic of one node's inbox.
pub(crate) fn topic(node: &str) -> String {
    format!("node/{node}")
}

/// The handler of the inbox, which lets in nobody but its own process.
#[derive(Clone)]
pub(crate) struct Inbox {
    node: Arc<str>,
    /// What only this process knows.
    secret: Arc<str>,
}

impl Inbox {
    pub(crate) fn new(node: &str, secret: &str) -> Self {
        Inbox { node: node.into(), secret: secret.into() }
    }
}

impl Handler for Inbox {
    type Data = ();

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
        let given = request.query("secret").unwrap_or_default();
        if !crate::chat::same_secret(&self.secret, &given) {
            return Err(Response::text(404, "not found\n"));
        }
        Ok(Accept::default())
    }

    fn open(&mut self, socket: &mut Socket<'_>, (): &mut ()) {
        socket.subscribe(ALL);
        socket.subscribe(&topic(&self.node));
    }

    fn message(&mut self, _: &mut Socket<'_>, (): &mut (), _: Message<'_>) {}
}

/// The client's end of an inbox.
pub(crate) struct InboxReader(TcpStream);

/// Keeps an inbox from being idle.
pub(crate) struct InboxKeeper(TcpStream);

impl InboxReader {
    /// Opens the inbox of a server that listens at this address.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open(address: SocketAddr, secret: &str) -> io::Result<InboxReader> {
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let mut stream = TcpStream::connect((ip, address.port()))?;
        stream.set_nodelay(true)?;
        let request = format!(
            "GET {PATH}?secret={secret} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: c3RhbmRmYXN0IG5vZGVzIQ==\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        match head.starts_with(b"HTTP/1.1 101 ") {
            true => Ok(InboxReader(stream)),
            false => Err(io::Error::other("the inbox was refused")),
        }
    }

    pub(crate) fn keeper(&self) -> io::Result<InboxKeeper> {
        self.0.try_clone().map(InboxKeeper)
    }

    /// Waits for the next text; `None` for what is no text.
    ///
    /// # Errors
    /// The inbox has ended.
    pub(crate) fn next(&mut self) -> io::Result<Option<String>> {
        let mut head = [0; 2];
        self.0.read_exact(&mut head)?;
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length)?;
                u64::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                self.0.read_exact(&mut length)?;
                u64::from_be_bytes(length)
            }
            length => u64::from(length),
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
        }
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload)?;
        match head[0] {
            0x81 => Ok(String::from_utf8(payload).ok()),
            0x88 => Err(ErrorKind::ConnectionReset.into()),
            _ => Ok(None),
        }
    }
}

impl InboxKeeper {
    /// Sends a ping, with a mask of zeros.
    ///
    /// # Errors
    /// The inbox has ended.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        self.0.write_all(&[0x89, 0x80, 0, 0, 0, 0])
    }
}
