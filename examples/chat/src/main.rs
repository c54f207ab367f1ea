//! gowebsocket's chat on the library `standfast`: see README.md.

mod announce;
mod api;
mod chat;
mod codes;
mod handler;
mod inbox;
mod message_ids;
mod nodes;
mod protocol;
mod settings;
mod users;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use standfast::{Broker, Error, Limits, PrivateServer, RouteOptions, Running, Server};

use crate::chat::Chat;
use crate::handler::Acc;
use crate::inbox::Inbox;
use crate::nodes::Nodes;
use crate::settings::Settings;

/// How often announcements that had to wait are sent.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let settings = Settings::parse();
    match run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chat: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: Settings) -> Result<(), Error> {
    // Clients send heartbeats; pings of the server would wake them twice.
    let idle_timeout = Some(Duration::from_secs(settings.idle_seconds.into()));
    let (connections, pings) = (settings.sockets, false);
    let limits = Limits { connections, idle_timeout, pings, ..Limits::default() };
    let ticks = RouteOptions { tick: Some(ANNOUNCE_INTERVAL), ..RouteOptions::default() };
    let addresses = &settings.listen;
    if settings.private_tables {
        let (chat, workers) = (Chat::new(settings.clone(), None), settings.workers);
        let mut server = PrivateServer::bind(&addresses[..1])?;
        for address in &addresses[1..] {
            server = server.and_bind(address)?;
        }
        if let Some(workers) = workers {
            server = server.workers(workers);
        }
        let server = server.limits(limits).route_with("/acc", Acc::new(&chat), ticks);
        return serve(api::private_routes(server, &chat).start()?);
    }
    let mut server = Server::bind(&addresses[..1])?.limits(limits);
    for address in &addresses[1..] {
        server = server.and_bind(address)?;
    }
    if let Some(workers) = settings.workers {
        server = server.workers(workers);
    }
    let broker = match (&settings.redis, &settings.nats) {
        (Some(url), _) => Some(Broker::redis(url)?),
        (None, Some(url)) => Some(Broker::nats(url)?),
        (None, None) => None,
    };
    let Some(broker) = broker else {
        let chat = Chat::new(settings, None);
        let server = server.route_with("/acc", Acc::new(&chat), ticks);
        return serve(api::routes(server, &chat).start()?);
    };
    let broker = broker.prefix(&settings.prefix);
    let (node, secret) = (random(), random());
    let nodes = Nodes::new(&node, settings.node_ttl_ms);
    let chat = Chat::new(settings, Some(nodes));
    let server = server.route(inbox::PATH, Inbox::new(&node, &secret));
    let server = server.route_with("/acc", Acc::new(&chat), ticks).broker(broker);
    let running = api::routes(server, &chat).start()?;
    nodes::join(&chat, &running, &secret).map_err(Error::Failed)?;
    serve(running)
}

/// Says where the page is, and waits for the end.
fn serve(running: Running) -> Result<(), Error> {
    for address in running.addresses() {
        println!("http://{address}/home/index");
    }
    running.wait()
}

/// 128 random bits as text: the keys of hash tables differ each time.
fn random() -> String {
    let number = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", number(), number())
}
