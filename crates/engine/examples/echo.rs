//! An echo server on the bare engine: `cargo run --release -p standfast-engine --example echo`.
//! It prints its address as JSON and ends with its standard input.

use std::time::Duration;

use engine::sys::process;
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Sys, Tables, Workers};
use wire::websocket::OpCode;

struct Echo;

impl Handler for Echo {
    type User = [u64; 2];
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        core.send(id, opcode, data);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

fn main() -> std::io::Result<()> {
    process::tune_allocator();
    let address = ([127, 0, 0, 1], 0).into();
    let defer = Duration::from_secs(1);
    let listen =
        process::Listen { address, backlog: 4096, shared_port: true, defer, v6_only: false };
    let (listener, address) = process::listen(&listen)?;
    let plan = Plan { workers: 1, accepting: 1, capacity: 15_000, tables: Tables::Private };
    let workers = Workers::start(plan, &Limits::default(), &[listener], |_, _| Echo)?;
    println!("{{\"port\":{},\"pid\":{}}}", address.port(), std::process::id());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    workers.drain(Duration::ZERO)
}
