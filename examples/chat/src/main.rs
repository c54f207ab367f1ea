//! gowebsocket's chat on the library `standfast`: see README.md.

mod announce;
mod api;
mod chat;
mod codes;
mod handler;
mod message_ids;
mod protocol;
mod settings;
mod users;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use standfast::{Error, Limits, RouteOptions, Server};

use crate::chat::Chat;
use crate::handler::Acc;
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
    let mut addresses = settings.listen.clone().into_iter();
    let first = addresses.next().unwrap_or_else(|| ([127, 0, 0, 1], 8089).into());
    let mut server = Server::bind(first)?;
    for address in addresses {
        server = server.and_bind(address)?;
    }
    if let Some(workers) = settings.workers {
        server = server.workers(workers);
    }
    // Clients send heartbeats; pings of the server would wake them twice.
    let idle_timeout = Some(Duration::from_secs(settings.idle_seconds.into()));
    let (connections, pings) = (settings.sockets, false);
    let limits = Limits { connections, idle_timeout, pings, ..Limits::default() };
    let chat = Chat::new(settings);
    let ticks = RouteOptions { tick: Some(ANNOUNCE_INTERVAL), ..RouteOptions::default() };
    let server = server.limits(limits).route_with("/acc", Acc::new(&chat), ticks);
    let running = api::routes(server, &chat).start()?;
    for address in running.addresses() {
        println!("http://{address}/home/index");
    }
    running.wait()
}
