//! Redis as a [`Transport`]: publish and subscribe in RESP3, which needs Redis 6 or Valkey.
//!
//! A link is two connections, so that what arrives does not wait behind what is published. Plain TCP, TLS and UNIX
//! sockets; a user of the access control list or a password. With sentinels the host of the URL is the name of
//! their master, and its address is asked for before each attempt to connect.

mod cluster;
mod kept;
mod pages;
mod sharded;
mod slots;
mod store;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind};
use redis::{RedisConnectionInfo, RedisError, Value};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};
use tokio_rustls::TlsConnector;

pub use self::cluster::{ClusterLink, ClusterTransport};
use self::kept::Keeper;
pub(crate) use self::kept::load_script;
use crate::broker::Settings;
use crate::kept::Position;
use crate::limits::{ANSWER_TIMEOUT, CONNECT_TIMEOUT};
use crate::settings::{RedisUrl, ServerAddress};
use crate::store::{NewValue, StoreAnswer, StoreCommand};
use crate::transport::{
    Channel, Fault, FaultKind, Fetched, Inbox, Incoming, Link, Outgoing, Rejected, Taken, Transport,
};

/// Time for a sentinel to answer; then the next one is asked.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(1);
/// The name of the client in the server's list.
const CLIENT: &str = "standfast";

/// A Redis server, or the master of its sentinels.
#[derive(Clone, Debug)]
pub struct RedisTransport {
    /// The server; with sentinels the host is their name for it.
    pub url: RedisUrl,
    /// Trust and identity for `rediss://`.
    pub tls: Option<Arc<ClientConfig>>,
    /// The sentinels; none to connect to the URL's host.
    pub sentinels: Vec<RedisUrl>,
}

/// The bytes of a connection.
type Stream = Box<dyn Bytes>;

trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// Two connections to one server.
pub struct RedisLink {
    pub(crate) publisher: Connection,
    subscriber: Connection,
    keeper: Option<Keeper>,
    /// The digest of the script that changes members, once it is loaded.
    pub(crate) member_script: RefCell<String>,
}

/// A connection and the task that moves its bytes, which ends with it.
pub(crate) struct Connection {
    pub(crate) commands: MultiplexedConnection,
    driver: JoinHandle<()>,
    ended: RefCell<Option<oneshot::Receiver<()>>>,
    /// The user may ask for the role of the server.
    asks_role: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Transport for RedisTransport {
    type Link = RedisLink;

    fn server(&self) -> String {
        match self.sentinels.first() {
            None => self.url.to_string(),
            Some(_) => match &self.url.address {
                ServerAddress::Tcp(master, _) => format!("sentinel master {master}"),
                ServerAddress::Unix(_) => self.url.to_string(),
            },
        }
    }

    async fn connect(&self, inbox: Inbox, settings: &Settings) -> Result<RedisLink, Fault> {
        let address = self.address().await?;
        let publisher = self.open(&address, None::<fn(PushInfo)>).await?;
        let arrived = move |push| message_of(push).into_iter().for_each(|one| inbox.push(one));
        let subscriber = self.open(&address, Some(arrived)).await?;
        let member_script = RefCell::default();
        let mut link = RedisLink { publisher, subscriber, keeper: None, member_script };
        link.publisher.asks_role = link.publisher.require_master().await?;
        if let Some(history) = settings.history {
            let keeper = Keeper::new(&link.publisher, "PUBLISH", history, settings.random).await?;
            // Whether the user may use its keys.
            let control = (settings.control().into(), None);
            let answers = keeper.fetch(&link.publisher, &[control]).await?;
            kept::permitted(answers)?;
            link.keeper = Some(keeper);
        }
        Ok(link)
    }
}

impl RedisTransport {
    /// Connects for something other than a link. `push` gets what arrives of its own accord, where it is read.
    pub(crate) async fn connection(
        &self,
        push: Option<impl Fn(PushInfo) + Send + Sync + 'static>,
    ) -> Result<Connection, Fault> {
        let connecting = async { self.open(&self.address().await?, push).await };
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(opened) => opened,
            Err(_) => {
                let why = format!("no connection within {CONNECT_TIMEOUT:?}");
                Err(Fault::new(FaultKind::Unreachable, why))
            }
        }
    }

    /// Where the server is now.
    async fn address(&self) -> Result<ServerAddress, Fault> {
        let ServerAddress::Tcp(master, _) = &self.url.address else {
            return Ok(self.url.address.clone());
        };
        if self.sentinels.is_empty() {
            return Ok(self.url.address.clone());
        }
        let mut last = Fault::new(FaultKind::Unreachable, "no sentinel answers");
        for sentinel in &self.sentinels {
            match ask_sentinel(sentinel, master).await {
                Ok(address) => return Ok(address),
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    async fn open(
        &self,
        address: &ServerAddress,
        push: Option<impl Fn(PushInfo) + Send + Sync + 'static>,
    ) -> Result<Connection, Fault> {
        let info = info(&self.url).set_db(self.url.database);
        Connection::new(&info, self.stream(address).await?, push).await
    }

    /// A stream to a server, with TLS if the URL has it.
    async fn stream(&self, address: &ServerAddress) -> Result<Stream, Fault> {
        let unreachable =
            |error: std::io::Error| Fault::new(FaultKind::Unreachable, error.to_string());
        match address {
            ServerAddress::Unix(path) => {
                Ok(Box::new(UnixStream::connect(path).await.map_err(unreachable)?))
            }
            ServerAddress::Tcp(host, port) => {
                let stream = TcpStream::connect((&**host, *port)).await.map_err(unreachable)?;
                stream.set_nodelay(true).map_err(unreachable)?;
                let Some(config) = self.tls.as_ref().filter(|_| self.url.tls) else {
                    return Ok(Box::new(stream));
                };
                let name = ServerName::try_from(host.clone()).map_err(|_| {
                    Fault::new(FaultKind::Unreachable, format!("invalid server name {host:?}"))
                })?;
                let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
                let stream = stream.map_err(|error| {
                    Fault::new(FaultKind::Unreachable, format!("TLS with {host}: {error}"))
                })?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// The address of a master as a sentinel knows it.
async fn ask_sentinel(sentinel: &RedisUrl, master: &str) -> Result<ServerAddress, Fault> {
    let ServerAddress::Tcp(host, port) = &sentinel.address else {
        return Err(Fault::new(FaultKind::Unreachable, "a sentinel is reached by TCP"));
    };
    let at = format!("sentinel {host}:{port}");
    let asking = async {
        let stream = TcpStream::connect((&**host, *port)).await;
        let stream =
            stream.map_err(|error| Fault::new(FaultKind::Unreachable, format!("{at}: {error}")))?;
        let connection = Connection::new(&info(sentinel), stream, None::<fn(PushInfo)>).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(master);
        connection.send(&command).await
    };
    match tokio::time::timeout(SENTINEL_TIMEOUT, asking).await {
        Err(_) => Err(Fault::new(FaultKind::Silent, format!("{at} does not answer"))),
        Ok(Err(fault)) => Err(fault),
        Ok(Ok(Value::Array(parts))) => master_address(&parts)
            .ok_or_else(|| Fault::new(FaultKind::Protocol, format!("{at}: invalid answer"))),
        Ok(Ok(_)) => {
            let why = format!("{at} knows no master named {master}");
            Err(Fault::new(FaultKind::Unreachable, why))
        }
    }
}

fn info(url: &RedisUrl) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name(CLIENT, env!("CARGO_PKG_VERSION"));
    if let Some(user) = &url.user {
        info = info.set_username(user);
    }
    if let Some(password) = &url.password {
        info = info.set_password(password);
    }
    info
}

fn master_address(parts: &[Value]) -> Option<ServerAddress> {
    let [Value::BulkString(host), Value::BulkString(port)] = parts else { return None };
    let host = String::from_utf8(host.clone()).ok()?;
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(ServerAddress::Tcp(host, port))
}

impl Connection {
    async fn new(
        info: &RedisConnectionInfo,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        push: Option<impl Fn(PushInfo) + Send + Sync + 'static>,
    ) -> Result<Self, Fault> {
        let mut config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_TIMEOUT));
        if let Some(push) = push {
            config = config.set_push_sender(move |arrived: PushInfo| {
                push(arrived);
                Ok::<(), std::convert::Infallible>(())
            });
        }
        let opened = MultiplexedConnection::new_with_config(info, stream, config).await;
        let (commands, driver) = opened.map_err(fault)?;
        let (ends, ended) = oneshot::channel();
        let driver = spawn_local(async move {
            driver.await;
            let _ = ends.send(());
        });
        let ended = RefCell::new(Some(ended));
        Ok(Connection { commands, driver, ended, asks_role: false })
    }

    async fn send(&self, command: &Cmd) -> Result<Value, Fault> {
        let value = self.commands.clone().send_packed_command(command).await.map_err(fault)?;
        value.extract_error().map_err(fault)
    }

    async fn ping(&self) -> Result<(), Fault> {
        self.send(&redis::cmd("PING")).await.map(drop)
    }

    /// Verifies that what is published here reaches replicas and their subscribers, too. Returns whether the user
    /// may ask for that.
    async fn require_master(&self) -> Result<bool, Fault> {
        let role = match self.commands.clone().send_packed_command(&redis::cmd("ROLE")).await {
            Ok(role) => role.extract_error(),
            Err(error) => Err(error),
        };
        match role {
            Err(error) if error.code() == Some("NOPERM") => Ok(false),
            Err(error) => Err(fault(error)),
            Ok(Value::Array(parts)) => match parts.first() {
                Some(Value::BulkString(role)) if role != b"master" => {
                    let role = String::from_utf8_lossy(role);
                    let why = format!("the server is read-only: its role is {role}, not master");
                    Err(Fault::new(FaultKind::ReadOnly, why))
                }
                _ => Ok(true),
            },
            Ok(_) => Ok(true),
        }
    }

    /// Ends when the connection has ended.
    pub(crate) async fn ended(&self) {
        let ended = self.ended.borrow_mut().take();
        match ended {
            Some(ended) => drop(ended.await),
            None => std::future::pending().await,
        }
    }
}

/// A publication among what the server sends of its own accord.
fn message_of(push: PushInfo) -> Option<Incoming> {
    if push.kind != PushKind::Message {
        return None;
    }
    let mut data = push.data.into_iter();
    match (data.next()?, data.next()?) {
        (Value::BulkString(channel), Value::BulkString(body)) => {
            // Other programs may use any bytes as a channel; we subscribe to none of these.
            let channel = String::from_utf8(channel).ok()?.into();
            let (kept, body) = kept::unpack(body);
            Some(Incoming { channel, body, kept })
        }
        _ => None,
    }
}

pub(crate) fn fault(error: RedisError) -> Fault {
    let code = error.code().unwrap_or_default();
    let kind = match (error.kind(), code) {
        (ErrorKind::AuthenticationFailed, _) => FaultKind::Refused,
        (_, "NOAUTH" | "WRONGPASS" | "NOPERM" | "NOPROTO") => FaultKind::Refused,
        (_, "READONLY") => FaultKind::ReadOnly,
        (_, "CLUSTERDOWN") => FaultKind::Unreachable,
        _ if error.is_timeout() => FaultKind::Silent,
        _ if error.is_io_error() || error.is_connection_dropped() => FaultKind::Closed,
        _ => FaultKind::Protocol,
    };
    let why = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    Fault::new(kind, why)
}

/// Codes of errors that are about the server, the user or the connection: the next command would get them, too.
const CONNECTION_CODES: [&str; 12] = [
    "NOAUTH",
    "WRONGPASS",
    "NOPROTO",
    "READONLY",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "NOSCRIPT",
];
/// What is in errors about the content of keys: another type, or values that a script cannot use.
const INVALID_CONTENT: [&str; 4] =
    ["WRONGTYPE", "attempt to ", "equal or smaller than the target", "not an integer"];

/// The error of a command for one topic, named by its channel or key.
///
/// # Errors
/// It is about more than the topic.
pub(crate) fn rejected(name: &str, error: RedisError) -> Result<Rejected, Fault> {
    let code = error.code().unwrap_or_default().to_owned();
    let of_connection = error.is_timeout() || error.is_io_error() || error.is_connection_dropped();
    let fault = fault(error);
    if of_connection || code.is_empty() || CONNECTION_CODES.contains(&&*code) {
        return Err(fault);
    }
    let is_invalid =
        code != "NOPERM" && INVALID_CONTENT.iter().any(|text| fault.why.contains(text));
    Ok(Rejected { why: format!("{name}: {}", fault.why).into(), is_invalid })
}

/// An answer that nodes do not write.
pub(crate) fn unreadable(name: &str) -> Rejected {
    Rejected { why: format!("{name}: its content is not of a node").into(), is_invalid: true }
}

/// The answer to PUBLISH.
fn taken(answer: Value, channel: &str) -> Result<Taken, Fault> {
    match answer.extract_error() {
        Ok(Value::Int(reached)) => Ok(Taken::To(u64::try_from(reached).ok())),
        Ok(_) => Err(Fault::new(FaultKind::Protocol, "invalid answer to PUBLISH")),
        Err(error) => rejected(channel, error).map(Taken::Rejected),
    }
}

impl Link for RedisLink {
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Taken>, Fault> {
        if let Some(keeper) = &self.keeper {
            return keeper.publish(&self.publisher, batch).await;
        }
        let mut pipeline = redis::Pipeline::with_capacity(batch.len());
        for Outgoing { channel, body, .. } in batch {
            pipeline.cmd("PUBLISH").arg(&**channel).arg(&**body);
        }
        let mut commands = self.publisher.commands.clone();
        let sent = commands.send_packed_commands(&pipeline, 0, batch.len()).await;
        let answers = sent.map_err(fault)?.into_iter().zip(batch);
        answers.map(|(answer, one)| taken(answer, &one.channel)).collect()
    }

    async fn subscribe(&self, channels: &[Channel]) -> Result<Vec<(Channel, Rejected)>, Fault> {
        let (mut parts, mut refused) = (vec![channels], Vec::new());
        while let Some(part) = parts.pop() {
            let names: Vec<&str> = part.iter().map(|channel| &**channel).collect();
            let Err(error) = self.subscriber.commands.clone().subscribe(names).await else {
                continue;
            };
            // The server refuses the whole command for one of its channels.
            let first = part.first().map_or("", |channel| &**channel);
            let why = rejected(first, error)?;
            match part {
                [] => {}
                [one] => refused.push((Channel::clone(one), why)),
                several => {
                    let (left, right) = several.split_at(several.len() / 2);
                    parts.extend([right, left]);
                }
            }
        }
        Ok(refused)
    }

    async fn unsubscribe(&self, channels: &[Channel]) -> Result<(), Fault> {
        let names: Vec<&str> = channels.iter().map(|channel| &**channel).collect();
        self.subscriber.commands.clone().unsubscribe(names).await.map_err(fault)
    }

    async fn fetch(
        &self,
        channels: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
        match &self.keeper {
            Some(keeper) => keeper.fetch(&self.publisher, channels).await,
            None => Err(Fault::new(FaultKind::Protocol, "nothing is kept")),
        }
    }

    async fn reset(&self, channels: &[Channel]) -> Result<(), Fault> {
        let mut pipeline = redis::Pipeline::with_capacity(channels.len());
        channels.iter().for_each(|channel| kept::reset_command(&mut pipeline, channel));
        let mut commands = self.publisher.commands.clone();
        let sent = commands.send_packed_commands(&pipeline, 0, channels.len()).await;
        // What the user may not delete is refused again.
        sent.map(drop).map_err(fault)
    }

    async fn store(&self, commands: &[StoreCommand]) -> Result<Vec<StoreAnswer>, Fault> {
        store::perform(&self.publisher.commands, commands).await
    }

    async fn read(&self, keys: &[Arc<str>]) -> Result<Vec<StoreAnswer>, Fault> {
        store::read(&self.publisher.commands, keys).await
    }

    async fn add(&self, values: &[NewValue]) -> Result<Vec<StoreAnswer>, Fault> {
        store::add(&self.publisher.commands, values).await
    }

    async fn check(&self) -> Result<(), Fault> {
        self.subscriber.ping().await?;
        match self.publisher.asks_role {
            true => self.publisher.require_master().await.map(drop),
            false => self.publisher.ping().await,
        }
    }

    async fn ended(&self) -> Fault {
        tokio::select! {
            () = self.publisher.ended() => {}
            () = self.subscriber.ended() => {}
        }
        Fault::new(FaultKind::Closed, "the connection was closed")
    }
}
