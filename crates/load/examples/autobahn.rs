//! The client side of an Autobahn run (`cargo xtask autobahn client`): runs every case of a fuzzing
//! server, echoes all messages, and requests the report.
//! `cargo run -p standfast-load --example autobahn -- ws://127.0.0.1:9001 AGENT`, or `wss://…` and
//! after the agent the file with the certificate authority of the server.
//!
//! It uses the engine's client as `load` does, with limits for the suite's largest messages. The fuzzing
//! server judges the results.

use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use std::{env, error, fs, io};

use engine::{
    Answer, Closed, Compression, ConnId, Core, Handler, Incoming, Limits, Plan, Response, Sys,
    Tables, Target, TlsClient, TlsTrust, Workers,
};
use load::Endpoint;
use wire::websocket::OpCode;

/// The largest message of the suite is 16 MiB.
const MESSAGE_BYTES: u32 = 32 * 1024 * 1024;
/// The slowest case takes some seconds, on a busy machine minutes; one that lasts longer is stuck.
const PATIENCE: Duration = Duration::from_secs(600);

type Error = Box<dyn error::Error>;

/// One connection: its target, and whether it echoes messages.
struct Visit {
    target: Target,
    echo: bool,
}

/// How a visit ended, and its last message if it does not echo.
struct End {
    opened: bool,
    why: Result<Closed, io::Error>,
    heard: Vec<u8>,
}

struct Visitor {
    echo: bool,
    heard: Vec<u8>,
    ends: Sender<End>,
}

impl Visitor {
    fn report(&mut self, opened: bool, why: Result<Closed, io::Error>) {
        // If the receiver is gone, the main thread has given up.
        let _ = self.ends.send(End { opened, why, heard: std::mem::take(&mut self.heard) });
    }
}

impl Handler for Visitor {
    type User = ();
    type Post = Visit;

    /// Never called: a client does not listen.
    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, "This is a client.\n"))
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        if self.echo {
            core.send(id, opcode, data);
        } else {
            self.heard = data.to_vec();
        }
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, why: Closed, opened: bool) {
        self.report(opened, Ok(why));
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, visit: Visit) {
        self.echo = visit.echo;
        let begun = core.add_target(visit.target).and_then(|target| core.connect(target, None));
        if let Err(error) = begun {
            self.report(false, Err(error));
        }
    }
}

fn main() -> Result<(), Error> {
    let mut arguments = env::args().skip(1);
    let (Some(url), Some(agent)) = (arguments.next(), arguments.next()) else {
        return Err("usage: autobahn ws[s]://HOST:PORT AGENT [CA.pem]".into());
    };
    // One for all visits, so that TLS sessions are resumed.
    let tls = match arguments.next() {
        Some(file) => Some(TlsClient::new(&TlsTrust::Authorities(fs::read(file)?), None, true)?),
        None => None,
    };
    let tls = tls.as_ref();
    let counted = visit(&format!("{url}/getCaseCount"), false, tls)?;
    let cases: u32 = String::from_utf8(counted)?.trim().parse()?;
    for case in 1..=cases {
        visit(&format!("{url}/runCase?case={case}&agent={agent}"), true, tls)?;
    }
    visit(&format!("{url}/updateReports?agent={agent}"), false, tls)?;
    println!("{cases} cases");
    Ok(())
}

/// Connects, waits until the connection ends, and returns the last message if it does not echo. Each
/// visit has its own worker, because a worker keeps all its targets.
fn visit(url: &str, echo: bool, tls: Option<&TlsClient>) -> Result<Vec<u8>, Error> {
    let endpoint = Endpoint::parse(url)?;
    let Endpoint { address, host, path, .. } = &endpoint;
    let mut target = Target::websocket(*address, host, path, &[], true, &[]);
    if endpoint.tls {
        let tls = tls.ok_or("wss:// needs the file with the authority")?;
        target.tls = Some(tls.named(endpoint.server_name())?);
    }
    let mut limits = Limits::default();
    limits.wire.message_bytes = MESSAGE_BYTES;
    limits.compression = Compression::Shared;
    let plan = Plan { workers: 1, accepting: 1, capacity: 4, tables: Tables::Shared };
    let (ends, ended) = mpsc::channel();
    let handler = move |_: u16, _: &_| Visitor { echo, heard: Vec::new(), ends: ends.clone() };
    let workers = Workers::start(plan, &limits, &[], handler)?;
    workers.remote().post(0, Visit { target, echo }, 0).map_err(|_| "a mailbox is full")?;
    let end = ended.recv_timeout(PATIENCE).map_err(|_| format!("{url} did not end"))?;
    workers.drain(Duration::ZERO)?;
    let why = end.why.map_err(|error| format!("{url}: {error}"))?;
    if !end.opened {
        return Err(format!("{url} was not opened: {why:?}").into());
    }
    Ok(end.heard)
}
