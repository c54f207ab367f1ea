//! [`FirstContact`]: notices that a run does not reach its target, and why. While nothing was answered
//! it tries the target itself, outside of the workers, so that runs that work open no connection more.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use engine::sys::process;

use crate::transport::connect_options::Route;
use crate::transport::endpoint::Schemes;
use crate::{Cause, Config, Endpoint, Snapshot};

/// When a run whose attempts all failed is examined.
const FAILING_AFTER_NS: [u64; 2] = [1_000_000_000, 2_000_000_000];
/// When a run is examined in which no connect has ended yet.
const SILENT_AFTER_NS: u64 = 1_800_000_000;
/// Time to try all targets, which ends a run within 3 s.
const PROBE_TIME: Duration = Duration::from_millis(900);
/// Targets that are tried.
const PROBES: usize = 8;

/// What a run has done so far.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Contact {
    /// A connection opened.
    pub(crate) opened: bool,
    /// An attempt failed, of a connect or of a request.
    pub(crate) failed: bool,
    /// A connection that had opened ended before an answer: the target may expect another protocol.
    pub(crate) ended: bool,
    /// Something was answered by the target, other than 400, which also answers another protocol.
    pub(crate) answered: bool,
    /// With HTTP/2: the target speaks it.
    pub(crate) is_http2: bool,
    /// It does so without WebSockets.
    pub(crate) lacks_websockets: bool,
}

impl Contact {
    /// Of a run of WebSockets.
    pub(crate) fn of_sockets(counts: &Snapshot) -> Contact {
        let opened = counts.opened > 0;
        let failed = counts.failed_total() + counts.retried_total() > 0;
        let lacks = Cause::NoExtendedConnect;
        let lacks_websockets =
            counts.ends.failed.contains_key(&lacks) || counts.ends.retried.contains_key(&lacks);
        let is_http2 = lacks_websockets || counts.http2_opened > 0;
        Contact {
            opened,
            failed,
            answered: opened,
            is_http2,
            lacks_websockets,
            ..Contact::default()
        }
    }
}

/// Watches a run until its first answer.
#[derive(Debug)]
pub(crate) struct FirstContact {
    began_ns: u64,
    /// How often a failing run was examined, and whether a silent one was.
    examined: usize,
    examined_silence: bool,
    /// The run is to wait for its target.
    patient: bool,
    /// The target has answered.
    is_reached: bool,
    is_cable: bool,
}

impl FirstContact {
    /// For a run of requests, without retries.
    pub(crate) fn new(began_ns: u64) -> FirstContact {
        FirstContact {
            began_ns,
            examined: 0,
            examined_silence: false,
            patient: false,
            is_reached: false,
            is_cable: false,
        }
    }

    /// For a run of WebSockets. One that retries waits for its target, unless the retries are those that
    /// clients of Action Cable make in any case.
    pub(crate) fn of_sockets(config: &Config, began_ns: u64) -> FirstContact {
        let is_cable = config.cable.is_some();
        let patient = config.awaits_target || !is_cable && config.retry.attempts > 0;
        FirstContact { patient, is_cable, ..FirstContact::new(began_ns) }
    }

    /// Returns why the target cannot be reached, once that is certain: the run is to end then.
    pub(crate) fn lost(
        &mut self,
        endpoints: &[Endpoint],
        contact: impl FnOnce() -> Contact,
        now_ns: u64,
    ) -> Option<String> {
        if self.patient || self.is_reached {
            return None;
        }
        let contact = contact();
        if contact.answered {
            self.is_reached = true;
            return None;
        }
        let passed_ns = now_ns.saturating_sub(self.began_ns);
        if is_failing(endpoints, contact) {
            let due = FAILING_AFTER_NS.get(self.examined)?;
            if passed_ns < *due {
                return None;
            }
            self.examined += 1;
        } else {
            if contact.opened || self.examined_silence || passed_ns < SILENT_AFTER_NS {
                return None;
            }
            self.examined_silence = true;
        }
        self.explain(endpoints, contact)
    }

    /// Returns why a run that is over never reached its target, if attempts failed and there is a reason.
    pub(crate) fn explain_end(&self, endpoints: &[Endpoint], contact: Contact) -> Option<String> {
        is_failing(endpoints, contact).then(|| self.explain(endpoints, contact)).flatten()
    }

    /// Returns why the target was not reached, if it was not and there is a reason.
    fn explain(&self, endpoints: &[Endpoint], contact: Contact) -> Option<String> {
        if contact.answered {
            return None;
        }
        let failing = is_failing(endpoints, contact);
        let over_ns = process::now_ns() + PROBE_TIME.as_nanos() as u64;
        let mut reasons = endpoints.iter().take(PROBES).map(|endpoint| {
            let left = Duration::from_nanos(over_ns.saturating_sub(process::now_ns()));
            let schemes = self.schemes(endpoint);
            let left = left.max(Duration::from_millis(1));
            probe(endpoint, schemes, left, Contact { failed: failing, ..contact })
        });
        // Before anything opened, users may wait at the first target that fails.
        if !contact.opened {
            return reasons.find_map(|reason| reason);
        }
        let reasons: Option<Vec<String>> = reasons.collect();
        reasons?.into_iter().next()
    }

    /// The plain and the secure scheme to name to users.
    fn schemes(&self, endpoint: &Endpoint) -> (&'static str, &'static str) {
        if self.is_cable {
            return ("cable", "cables");
        }
        let Schemes { plain, secure, .. } = endpoint.schemes;
        (plain, secure.unwrap_or(plain))
    }
}

/// Whether attempts failed in a way that trying the target may explain. Servers that end connections are
/// tried only where they may expect TLS, so that others are sent no connection but those of the run.
fn is_failing(endpoints: &[Endpoint], contact: Contact) -> bool {
    let may_expect_tls = |endpoint: &Endpoint| !endpoint.tls && endpoint.schemes.secure.is_some();
    contact.failed || contact.ended && endpoints.iter().any(may_expect_tls)
}

/// Tries a target and returns why it cannot be reached; `None` if it can, or for no certain reason.
fn probe(
    endpoint: &Endpoint,
    (plain, secure): (&str, &str),
    time: Duration,
    contact: Contact,
) -> Option<String> {
    let (host, address, failed) = (&endpoint.host, endpoint.address, contact.failed);
    if contact.lacks_websockets {
        return Some(format!(
            "{host} speaks HTTP/2 without WebSockets (it does not announce \
             SETTINGS_ENABLE_CONNECT_PROTOCOL of RFC 8441): enable that in the server, or {}",
            endpoint.options.dialect.without_http2()
        ));
    }
    if contact.is_http2 {
        return None;
    }
    match &endpoint.route {
        Route::Unresolved(why) => {
            return Some(format!("cannot resolve {host}: {why}; check the name, or use --resolve"));
        }
        Route::Unix(path) => {
            let error = unix_error(path, time)?;
            let path = path.display();
            return match error.kind() {
                ErrorKind::NotFound => Some(format!("no such socket: {path}")),
                ErrorKind::ConnectionRefused => {
                    Some(format!("connection refused by {path} (is the server running?)"))
                }
                _ => Some(format!("cannot connect to {path}: {error}")),
            };
        }
        Route::Forward(_) | Route::Tunnel(_) => {
            let error = TcpStream::connect_timeout(&address, time).err()?;
            return unreachable(&error, address, "the proxy ", "check --proxy", time);
        }
        Route::Direct => {}
    }
    let mut stream = match TcpStream::connect_timeout(&address, time) {
        Ok(stream) => stream,
        Err(error) => {
            return unreachable(&error, address, "", "is the server running?", time);
        }
    };
    if endpoint.tls {
        // The handshake failed for a reason, or the target just ended the connection.
        return match endpoint.client.as_ref()?.first_error() {
            Some(error) => Some(tls_failure(error, endpoint, address, (plain, secure))),
            None if !failed => None,
            None if plain != secure && speaks_plain_text(&mut stream, endpoint, time) => {
                Some(not_tls(address, (plain, secure)))
            }
            None if endpoint.options.http2 && contact.opened => Some(format!(
                "{address} accepts TLS and answers with something else than HTTP/2: {}",
                instead_of_http2(endpoint, plain)
            )),
            None => None,
        };
    }
    if !failed {
        return None;
    }
    let again = || TcpStream::connect_timeout(&address, time);
    if endpoint.options.http2 && speaks_http(&mut stream, host, time) {
        return Some(match plain {
            GRPC => {
                let what_to_try = instead_of_http2(endpoint, plain);
                format!("{address} speaks HTTP/1.1, gRPC needs HTTP/2: {what_to_try}")
            }
            _ => format!(
                "{address} speaks HTTP/1.1, and HTTP/2 not without TLS: {}, or use {secure}:// instead \
                 of {plain}://",
                instead_of_http2(endpoint, plain)
            ),
        });
    }
    if endpoint.options.http2 {
        stream = again().ok()?;
    }
    if plain != secure && speaks_tls(&mut stream, time) {
        return Some(format!("{address} speaks TLS: use {secure}:// instead of {plain}://"));
    }
    let hint = match plain {
        _ if endpoint.options.http2 => return None,
        "http" => endpoint.options.dialect.with_http2(),
        "grpc-web" | "grpc-web-text" => "call the method with grpc://",
        _ => return None,
    };
    let is_http2 = speaks_http2(&mut again().ok()?, time);
    is_http2.then(|| format!("{address} speaks HTTP/2, and not HTTP/1.1: {hint}"))
}

/// The plain scheme of gRPC, which needs HTTP/2 without a flag.
const GRPC: &str = Schemes::GRPC.plain;

/// What to try where HTTP/2 is not spoken.
fn instead_of_http2(endpoint: &Endpoint, plain: &str) -> &'static str {
    match plain {
        GRPC => {
            "is this the port of a gRPC server? (a proxy before it must speak HTTP/2, too; gRPC-Web is called by grpc-web://)"
        }
        _ => endpoint.options.dialect.without_http2(),
    }
}

/// Why a UNIX socket cannot be reached. A connect blocks while the queue of the socket is full, and has
/// no time limit: its thread is left alone then, until the socket or the process ends.
fn unix_error(path: &Path, time: Duration) -> Option<io::Error> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    let connect = move || sender.send(UnixStream::connect(path).err());
    thread::Builder::new().name("probe".to_owned()).spawn(connect).ok()?;
    receiver.recv_timeout(time).ok()?
}

fn unreachable(
    error: &io::Error,
    address: SocketAddr,
    what: &str,
    hint: &str,
    time: Duration,
) -> Option<String> {
    match error.kind() {
        ErrorKind::ConnectionRefused => {
            Some(format!("connection refused by {what}{address} ({hint})"))
        }
        ErrorKind::TimedOut if time >= PROBE_TIME / 2 => {
            Some(format!("no answer from {what}{address} to a connect (is a firewall in between?)"))
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            Some(format!("no route to {what}{address} (check the address)"))
        }
        _ => None,
    }
}

/// What to do about a failed handshake, by the text of rustls.
fn tls_failure(
    error: &str,
    endpoint: &Endpoint,
    address: SocketAddr,
    (plain, secure): (&str, &str),
) -> String {
    let name = endpoint.server_name();
    if error.contains("UnknownIssuer") {
        return format!(
            "the certificate of {name} is of an unknown authority: {}",
            endpoint.options.dialect.trust()
        );
    }
    if error.contains("not valid for") {
        return format!("the certificate of {address} is not for {name}: set its name with --sni");
    }
    if error.contains("corrupt message") || error.contains("InvalidContentType") {
        return not_tls(address, (plain, secure));
    }
    if error.contains("NoApplicationProtocol") {
        return format!(
            "{address} does not offer HTTP/2 (h2 by ALPN): {}",
            instead_of_http2(endpoint, plain)
        );
    }
    if error.contains("CaUsedAsEndEntity") {
        return format!(
            "the certificate of {name} is marked as an authority's (CA:TRUE), as openssl req -x509 does: \
             accept any with --insecure, or make one with -addext basicConstraints=CA:FALSE and trust \
             it with --ca FILE"
        );
    }
    format!("TLS with {address} failed: {error}")
}

fn not_tls(address: SocketAddr, (plain, secure): (&str, &str)) -> String {
    format!("{address} does not speak TLS: use {plain}:// instead of {secure}://")
}

/// Whether a server of plain text is where TLS was expected. Servers of TLS may answer plain requests in plain text, too.
fn speaks_plain_text(stream: &mut TcpStream, endpoint: &Endpoint, time: Duration) -> bool {
    let again = || TcpStream::connect_timeout(&endpoint.address, time).ok();
    !speaks_tls(stream, time)
        && again().is_some_and(|mut stream| {
            speaks_http(&mut stream, &endpoint.host, time)
                || again().is_some_and(|mut stream| speaks_http2(&mut stream, time))
        })
}

/// Sends a ClientHello and returns whether a TLS record comes back: a handshake, or an alert.
fn speaks_tls(stream: &mut TcpStream, time: Duration) -> bool {
    let head = exchange::<2>(stream, CLIENT_HELLO, time);
    matches!(head, Ok([0x15 | 0x16, 0x03]))
}

/// Sends a request in plain text and returns whether an answer of HTTP/1 comes back.
fn speaks_http(stream: &mut TcpStream, host: &str, time: Duration) -> bool {
    let request = format!("HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange::<5>(stream, request.as_bytes(), time).is_ok_and(|head| &head == b"HTTP/")
}

/// Begins HTTP/2 (RFC 9113 section 3.4) and returns whether SETTINGS come back, the first frame of a server.
fn speaks_http2(stream: &mut TcpStream, time: Duration) -> bool {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let head = exchange::<9>(stream, preface, time);
    matches!(head, Ok([_, _, _, 4, 0, 0, 0, 0, 0]))
}

/// Sends bytes and returns the first `N` that come back.
fn exchange<const N: usize>(
    stream: &mut TcpStream,
    bytes: &[u8],
    time: Duration,
) -> io::Result<[u8; N]> {
    let mut head = [0; N];
    stream.set_write_timeout(Some(time))?;
    stream.set_read_timeout(Some(time))?;
    stream.write_all(bytes)?;
    stream.read_exact(&mut head)?;
    Ok(head)
}

/// A ClientHello of TLS 1.2 (RFC 5246 section 7.4.1.2) with two suites and what they need.
const CLIENT_HELLO: &[u8] = b"\
    \x16\x03\x01\x00\x4b\x01\x00\x00\x47\x03\x03\
    standfast asks who is there: TLS\x00\
    \x00\x04\xc0\x2b\xc0\x2f\x01\x00\x00\x1a\
    \x00\x0a\x00\x06\x00\x04\x00\x1d\x00\x17\
    \x00\x0d\x00\x0c\x00\x0a\x04\x03\x08\x04\x04\x01\x05\x03\x08\x05";

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;
    use crate::{ConnectOptions, Dialect};

    const FAILED: Contact = Contact {
        opened: false,
        failed: true,
        ended: false,
        answered: false,
        is_http2: false,
        lacks_websockets: false,
    };

    fn refused() -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        Endpoint::parse_web(&format!("http://{address}/")).unwrap()
    }

    #[test]
    fn lengths_of_the_hello_are_those_of_its_parts() {
        let length =
            |at: usize| usize::from(CLIENT_HELLO[at]) << 8 | usize::from(CLIENT_HELLO[at + 1]);
        assert_eq!(length(3), CLIENT_HELLO.len() - 5, "record");
        assert_eq!(length(7), CLIENT_HELLO.len() - 9, "handshake");
        assert_eq!(length(52), CLIENT_HELLO.len() - 54, "extensions");
    }

    #[test]
    fn a_refusing_target_is_named_once_all_attempts_failed_for_a_second() {
        let target = [refused()];
        let mut contact = FirstContact::new(0);
        assert_eq!(contact.lost(&target, || FAILED, 900_000_000), None);
        let reason = contact.lost(&target, || FAILED, 1_000_000_000).unwrap();
        let expected = format!("connection refused by {}", target[0].address);
        assert!(reason.starts_with(&expected), "{reason}");
        let answered = Contact { answered: true, ..FAILED };
        assert_eq!(FirstContact::new(0).lost(&target, || answered, 9_000_000_000), None);
        let mut patient = FirstContact { patient: true, ..FirstContact::new(0) };
        assert_eq!(patient.lost(&target, || FAILED, 9_000_000_000), None);
        assert!(
            patient.explain(&target, FAILED).is_some(),
            "a run that waits for its target still says at its end why that failed"
        );
    }

    #[test]
    fn of_several_targets_one_that_answers_is_enough_once_something_opened() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let holder = thread::spawn(move || {
            // Closes each connection, as a server that is not of TLS may.
            listener.incoming().take(4).for_each(drop);
        });
        let targets = [refused(), Endpoint::parse_web(&url).unwrap()];
        let opened = Contact { opened: true, ..FAILED };
        assert_eq!(FirstContact::new(0).explain(&targets, opened), None);
        assert!(FirstContact::new(0).explain(&targets, FAILED).is_some());
        assert_eq!(FirstContact::new(0).explain(&targets[1..], FAILED), None);
        holder.join().unwrap();
    }

    #[test]
    fn servers_that_end_connections_are_tried_only_where_they_may_expect_tls() {
        let ended = Contact { opened: true, ended: true, ..Contact::default() };
        for (url, tried) in [("http://127.0.0.1:1/", true), ("https://127.0.0.1:1/", false)] {
            let endpoint = Endpoint::parse_web(url).unwrap();
            assert_eq!(is_failing(&[endpoint], ended), tried, "{url}");
        }
    }

    #[test]
    fn failures_of_tls_name_the_flag_or_the_scheme() {
        let endpoint = Endpoint::parse_web("https://127.0.0.1:443/").unwrap();
        for (error, hint) in [
            ("invalid peer certificate: UnknownIssuer", "--ca FILE"),
            ("received corrupt message of type InvalidContentType", "use http:// instead of"),
            ("invalid peer certificate: certificate not valid for name \"a\"; …", "--sni"),
            ("invalid peer certificate: Expired", "Expired"),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "--insecure"),
            ("received fatal alert: NoApplicationProtocol", "leave out --http2"),
        ] {
            let text = tls_failure(error, &endpoint, endpoint.address, ("http", "https"));
            assert!(text.contains(hint), "{text}");
        }
    }

    #[test]
    fn advice_for_grpc_names_no_flag_that_it_lacks() {
        let endpoint = Endpoint::parse_web("https://127.0.0.1:443/").unwrap();
        let error = "received fatal alert: NoApplicationProtocol";
        let text = tls_failure(error, &endpoint, endpoint.address, ("grpc", "grpcs"));
        assert!(!text.contains("--http2") && text.contains("port of a gRPC server"), "{text}");
    }

    #[test]
    fn advice_names_flags_as_the_command_has_them() {
        for (dialect, expected) in [
            (Dialect::Load, "leave out --http2"),
            (Dialect::Scenario, "leave out http2 = true"),
            (Dialect::Stress, "leave out -http2"),
        ] {
            let options = ConnectOptions { dialect, ..ConnectOptions::default() };
            let endpoint = Arc::new(options).web("https://127.0.0.1:443/").unwrap();
            let error = "received fatal alert: NoApplicationProtocol";
            let text = tls_failure(error, &endpoint, endpoint.address, ("http", "https"));
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn a_port_that_speaks_only_http2_is_recognised() {
        for (answer, found) in [
            (&b"\0\0\0\x04\0\0\0\0\0"[..], true),
            (b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64", true),
            (b"HTTP/1.1 400 Bad Request\r\n", false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let server = thread::spawn(move || {
                for stream in listener.incoming().take(3) {
                    let mut stream = stream.unwrap();
                    let mut bytes = [0; 9];
                    if stream.read_exact(&mut bytes).is_ok() && bytes.starts_with(b"PRI ") {
                        stream.write_all(answer).unwrap();
                        return;
                    }
                }
            });
            let text = FirstContact::new(0).explain(&[Endpoint::parse_web(&url).unwrap()], FAILED);
            server.join().unwrap();
            assert_eq!(text.is_some_and(|text| text.contains("add --http2")), found, "{answer:?}");
        }
    }
}
