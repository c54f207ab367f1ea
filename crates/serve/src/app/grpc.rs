//! [`GrpcApp`]: calls by gRPC, each a unary request on HTTP/2 (`anycable.RPC` of AnyCable's
//! `etc/rpc.proto`). Calls are balanced over all addresses of all hosts, with one connection to each.
//!
//! A unary call is a POST whose body is one message after five bytes, and whose status is in the
//! trailers; that needs no gRPC library.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use admin::log::error_chain;
use engine::TlsClient;
use engine::sys::process::now_ns;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, TE, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::call::{Call, Method, What};
use super::client::CallError;
use super::config::AppConfig;
use super::connect::connect;
use super::proto;
use super::reply::Reply;
use super::target::Host;

/// Time after which names are looked up again, in nanoseconds.
const NAMES_NS: u64 = 30_000_000_000;
/// Time for the lookup of a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which an address that was not reached is left out, in nanoseconds.
const DOWN_NS: u64 = 1_000_000_000;

const SID: HeaderName = HeaderName::from_static("sid");
const VERSION: HeaderName = HeaderName::from_static("protov");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

type Sender = SendRequest<Full<Bytes>>;

/// An application that answers gRPC.
pub(super) struct GrpcApp {
    hosts: Vec<Host>,
    tls: Option<TlsClient>,
    timeout_ms: u128,
    reply_bytes: usize,
    addresses: Mutex<Addresses>,
    next: AtomicUsize,
}

/// The addresses of all hosts.
#[derive(Default)]
struct Addresses {
    all: Vec<Arc<Address>>,
    looked_up_ns: Option<u64>,
}

struct Address {
    at: SocketAddr,
    authority: Box<str>,
    /// The name in its certificate.
    name: Box<str>,
    /// The connection, if there is one.
    sender: Mutex<Option<Sender>>,
    down_until_ns: AtomicU64,
}

/// An error of HTTP/2, with what to do if the peer answered in HTTP/1.1: its first bytes, `HTT`, read as the
/// length of a frame that is too long.
fn explained(why: String) -> String {
    match why.contains("frame with invalid size") {
        true => {
            format!("{why}; no gRPC is spoken there: HTTP RPC is --rpc-host http://HOST:PORT/PATH")
        }
        false => why,
    }
}

impl GrpcApp {
    pub(super) fn new(config: &AppConfig, hosts: &[Host]) -> Self {
        GrpcApp {
            hosts: hosts.to_vec(),
            tls: config.tls.as_ref().map(TlsClient::for_http2),
            timeout_ms: config.timeout.as_millis(),
            reply_bytes: config.reply_bytes,
            addresses: Mutex::default(),
            next: AtomicUsize::new(0),
        }
    }

    pub(super) async fn call(&self, call: &Call) -> Result<Reply, CallError> {
        let address = self.address().await?;
        let mut sender = self.sender(&address).await?;
        let request = self.request(call, &address)?;
        if let Err(error) = sender.ready().await {
            self.forget(&address).await;
            return Err(CallError::Unreached(explained(error_chain(&error))));
        }
        match sender.try_send_request(request).await {
            Ok(response) => self.read(call.method(), response).await,
            Err(mut error) => {
                self.forget(&address).await;
                let unsent = error.take_message().is_some();
                let why = explained(error_chain(&error.into_error()));
                Err(if unsent { CallError::Unreached(why) } else { CallError::Lost(why) })
            }
        }
    }

    /// The next address, those that were not reached last.
    async fn address(&self) -> Result<Arc<Address>, CallError> {
        let now_ns = now_ns();
        let mut addresses = self.addresses.lock().await;
        let fresh = addresses.looked_up_ns.is_some_and(|at| now_ns.saturating_sub(at) < NAMES_NS);
        if addresses.all.is_empty() {
            // The other calls wait.
            addresses.all = self.look_up(&[]).await?;
            addresses.looked_up_ns = Some(now_ns);
        } else if !fresh {
            // The others, and this one if it ends meanwhile, leave what is known as it is.
            addresses.looked_up_ns = Some(now_ns);
            let known = addresses.all.clone();
            drop(addresses);
            let found = self.look_up(&known).await;
            addresses = self.addresses.lock().await;
            addresses.all = found.unwrap_or(known);
        }
        let all = &addresses.all;
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let in_turn = || (0..all.len()).filter_map(|step| all.get((first + step) % all.len()));
        let up = |address: &&Arc<Address>| address.down_until_ns.load(Ordering::Relaxed) <= now_ns;
        let found = in_turn().find(up).or_else(|| in_turn().next());
        found.cloned().ok_or_else(|| CallError::Unreached("no address".to_owned()))
    }

    /// Looks up all names; addresses that are known keep their connections. Those of a name that cannot be
    /// looked up may still be right.
    async fn look_up(&self, known: &[Arc<Address>]) -> Result<Vec<Arc<Address>>, CallError> {
        let mut all: Vec<Arc<Address>> = Vec::new();
        let mut error = "no address".to_owned();
        for host in &self.hosts {
            let authority: Box<str> = host.to_string().into();
            let lookup = timeout(LOOKUP_TIMEOUT, lookup_host((&*host.name, host.port))).await;
            let found: Vec<SocketAddr> = match lookup.unwrap_or_else(|late| Err(late.into())) {
                Ok(found) => found.collect(),
                Err(why) => {
                    error = format!("{host}: {why}");
                    let own = known.iter().filter(|address| address.authority == authority);
                    own.map(|address| address.at).collect()
                }
            };
            for at in found {
                if all.iter().any(|address| address.at == at) {
                    continue;
                }
                let address = known.iter().find(|address| address.at == at).cloned();
                all.push(address.unwrap_or_else(|| {
                    Arc::new(Address {
                        at,
                        authority: authority.clone(),
                        name: host.name.clone(),
                        sender: Mutex::new(None),
                        down_until_ns: AtomicU64::new(0),
                    })
                }));
            }
        }
        if all.is_empty() { Err(CallError::Unreached(error)) } else { Ok(all) }
    }

    /// The connection to an address, which is opened if there is none.
    async fn sender(&self, address: &Address) -> Result<Sender, CallError> {
        let mut current = address.sender.lock().await;
        if let Some(sender) = current.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        *current = None;
        let sender = match self.connect(address).await {
            Ok(sender) => sender,
            Err(why) => {
                address.down_until_ns.store(now_ns() + DOWN_NS, Ordering::Relaxed);
                return Err(CallError::Unreached(format!("{}: {why}", address.at)));
            }
        };
        *current = Some(sender.clone());
        Ok(sender)
    }

    async fn connect(&self, address: &Address) -> Result<Sender, String> {
        let tls = match &self.tls {
            Some(tls) => Some(tls.named(&address.name).map_err(|error| error.to_string())?),
            None => None,
        };
        let stream =
            connect(address.at, tls.as_ref()).await.map_err(|error| error_chain(&error))?;
        let mut builder = Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_header_list_size(16 * 1024);
        // A peer that is gone is noticed, also while no call is made.
        builder.keep_alive_interval(Duration::from_secs(10));
        let (sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(|error| error_chain(&error))?;
        tokio::spawn(async move {
            // Its error is the calls', too.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn forget(&self, address: &Address) {
        let mut current = address.sender.lock().await;
        if current.as_ref().is_some_and(Sender::is_closed) {
            *current = None;
        }
    }

    fn request(&self, call: &Call, address: &Address) -> Result<Request<Full<Bytes>>, CallError> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let method = match call.method() {
            Method::Connect => "Connect",
            Method::Command => "Command",
            Method::Disconnect => "Disconnect",
            Method::Authorize => return Err(CallError::Invalid("no method of gRPC".to_owned())),
        };
        let request =
            Request::post(format!("{scheme}://{}/anycable.RPC/{method}", address.authority))
                .header(TE, "trailers")
                .header(CONTENT_TYPE, "application/grpc")
                .header(USER_AGENT, concat!("standfast/", env!("CARGO_PKG_VERSION")))
                .header(TIMEOUT, format!("{}m", self.timeout_ms.min(99_999_999)))
                .header(SID, &*call.sid)
                .header(VERSION, "v1")
                .body(Full::new(framed(&encode(call))));
        request.map_err(|error| CallError::Invalid(error.to_string()))
    }

    async fn read(&self, method: Method, response: Response<Incoming>) -> Result<Reply, CallError> {
        let (head, mut body) = response.into_parts();
        if head.status != StatusCode::OK {
            let busy = matches!(
                head.status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
            );
            let why = format!("status {}", head.status);
            return Err(if busy { CallError::Busy(why) } else { CallError::Invalid(why) });
        }
        // An error without a message has its status in the head.
        status(&head.headers, true)?;
        let (mut message, mut trailers) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| CallError::Lost(error_chain(&error)))?;
            match frame.into_data() {
                Ok(data) => {
                    if message.len() + data.len() > self.reply_bytes {
                        let why = format!("the answer is longer than {} bytes", self.reply_bytes);
                        return Err(CallError::Invalid(why));
                    }
                    message.extend_from_slice(&data);
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let Some(trailers) = trailers else {
            return Err(CallError::Lost("the answer has no trailers".to_owned()));
        };
        status(&trailers, false)?;
        proto::decode(method, &message).map_err(CallError::Invalid)
    }
}

/// Checks the status of a call, which trailers must have; the head has one only without a message.
fn status(headers: &HeaderMap, is_head: bool) -> Result<(), CallError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let message = || admin::log::shown(text("grpc-message").unwrap_or_default().as_bytes());
    match text("grpc-status") {
        Some("0") => Ok(()),
        None if is_head => Ok(()),
        None => Err(CallError::Invalid("the trailers have no grpc-status".to_owned())),
        // RESOURCE_EXHAUSTED and UNAVAILABLE: the application says that it has not performed the call.
        Some(code @ ("8" | "14")) => {
            Err(CallError::Busy(format!("grpc-status {code}: {}", message())))
        }
        Some(code) => {
            let code = admin::log::shown(code.as_bytes());
            Err(CallError::Invalid(format!("grpc-status {code}: {}", message())))
        }
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(proto::PREFIX_BYTES + message.len());
    bytes.push(0);
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes.into()
}

fn encode(call: &Call) -> Vec<u8> {
    let pairs = |fields: &[(Box<str>, Box<str>)]| -> BTreeMap<String, String> {
        fields.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    };
    let headers = call.env.headers();
    let mut env = proto::Env {
        url: call.env.url().to_owned(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        cstate: pairs(call.cstate.fields()),
        istate: BTreeMap::new(),
    };
    match &call.what {
        What::Connect => proto::ConnectionRequest { env: Some(env) }.encode_to_vec(),
        What::Command { name, identifier, identifiers, data, istate } => {
            env.istate = pairs(istate.fields());
            proto::CommandMessage {
                command: name.name().to_owned(),
                identifier: identifier.to_string(),
                connection_identifiers: identifiers.to_string(),
                data: data.to_string(),
                env: Some(env),
            }
            .encode_to_vec()
        }
        What::Disconnect { identifiers, subscriptions } => {
            let states = Call::disconnect_states(subscriptions).into_iter();
            env.istate = states.map(|(text, state)| (text.to_owned(), state)).collect();
            proto::DisconnectRequest {
                identifiers: identifiers.to_string(),
                subscriptions: subscriptions.iter().map(|(text, _)| text.to_string()).collect(),
                env: Some(env),
            }
            .encode_to_vec()
        }
        // It is a call by HTTP.
        What::Authorize(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::proto::{decode, unframed};
    use super::super::reply::Status;
    use super::*;

    /// A call ends when its time is over, also while names are looked up again.
    #[test]
    fn addresses_outlive_a_call_that_looks_up_names() {
        use std::task::{Context, Waker};

        let host = Host { name: "localhost".into(), port: 1 };
        let app = GrpcApp::new(&AppConfig::new(), &[host]);
        // One thread that looks up names, and something else for it to do.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(1).build().unwrap();
        let (release, wait) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let before = app.address().await.unwrap();
            app.addresses.lock().await.looked_up_ns = Some(0);
            let busy = tokio::task::spawn_blocking(move || wait.recv());
            let mut call = Box::pin(app.address());
            assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            drop(call);
            release.send(()).unwrap();
            busy.await.unwrap().unwrap();
            let known = app.addresses.lock().await.all.clone();
            assert!(known.iter().any(|address| Arc::ptr_eq(address, &before)));
        });
    }

    #[test]
    fn a_body_is_exactly_one_message() {
        assert_eq!(unframed(&framed(b"ab")), Ok(&b"ab"[..]));
        assert_eq!(unframed(&framed(b"")), Ok(&b""[..]));
        let two = [framed(b"a"), framed(b"b")].concat();
        for wrong in
            [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x02a", &two, b"\0\xff\xff\xff\xffa"]
        {
            assert!(unframed(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for method in Method::ALL {
                let _ = (decode(method, &bytes), decode(method, &framed(&bytes)));
            }
            let _ = Reply::from_json(&bytes);
            let _ = Reply::from_json(String::from_utf8_lossy(&bytes).as_bytes());
        }

        /// What is read within its bound takes memory of about that bound.
        #[test]
        fn an_answer_is_not_larger_than_its_bytes(pieces in proptest::collection::vec(
            prop_oneof![Just(&b"\x22\0"[..]), Just(&b"\x2a\x01a"[..]), Just(&b"\x3a\x02\x0a\0"[..])], 0..200)
        ) {
            let body = framed(&pieces.concat());
            let reply = decode(Method::Command, &body).expect("known fields");
            prop_assert!(reply.bytes() <= size_of::<Reply>() + 32 * body.len());
        }
    }

    /// The bytes were written by hand from the numbers in the contract.
    #[test]
    fn answers_are_read_by_their_field_numbers() {
        let command = b"\x08\x01\x10\x01\x18\x01\x22\x01s\x2a\x02{}\x32\x01e\x3a\x08\x12\x06\x0a\x01k\x12\x01v\x42\x01t\x4a\x09\x0a\x04join\x12\x017";
        let reply = decode(Method::Command, &framed(command)).unwrap();
        assert_eq!(
            (reply.status, reply.disconnect, reply.stop_streams),
            (Status::Success, true, true)
        );
        assert_eq!(
            (&*reply.streams, &*reply.stopped_streams),
            (&["s".to_owned()][..], &["t".to_owned()][..])
        );
        assert_eq!((&*reply.transmissions[0], &*reply.error_msg), ("{}", "e"));
        assert_eq!(reply.env.istate["k"], "v");
        let presence = reply.presence.unwrap();
        assert_eq!((&*presence.kind, &*presence.id), ("join", "7"));
        let connect = b"\x08\x02\x12\x02me\x1a\x02{}\x22\x01e\x2a\x08\x0a\x06\x0a\x01k\x12\x01v";
        let reply = decode(Method::Connect, &framed(connect)).unwrap();
        assert_eq!((reply.status, &*reply.identifiers), (Status::Failure, "me"));
        assert_eq!(reply.env.cstate["k"], "v");
        assert!(decode(Method::Disconnect, &framed(b"\x08\x01")).is_ok());
        assert!(decode(Method::Disconnect, &framed(b"\x08\x09")).is_err());
        assert!(decode(Method::Command, &framed(b"\xff")).is_err());
    }

    #[test]
    fn calls_are_written_by_their_field_numbers() {
        use super::super::call::{CommandName, Env, State};
        let env = Env::new("u", [("h", "v")].into_iter());
        let call =
            |what| Call { sid: "s".into(), env: env.clone(), cstate: State::default(), what };
        let in_env = b"\x0a\x01u\x12\x06\x0a\x01h\x12\x01v";
        assert_eq!(encode(&call(What::Connect)), [b"\x1a\x0b", &in_env[..]].concat());
        let what = What::Command {
            name: CommandName::Message,
            identifier: "i".into(),
            identifiers: "c".into(),
            data: "d".into(),
            istate: State::default(),
        };
        let expected =
            [b"\x0a\x07message\x12\x01i\x1a\x01c\x22\x01d\x2a\x0b", &in_env[..]].concat();
        assert_eq!(encode(&call(what)), expected);
        let what = What::Disconnect {
            identifiers: "c".into(),
            subscriptions: vec![("i".into(), State::default())],
        };
        let expected = [b"\x0a\x01c\x12\x01i\x2a\x0b", &in_env[..]].concat();
        assert_eq!(encode(&call(what)), expected);
    }
}
