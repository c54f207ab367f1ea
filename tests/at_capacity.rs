//! Workers at capacity, and workers that are not needed: no connection in the queue is reset, and
//! the listeners answer while thousands of clients connect at once.

use std::process::Stdio;
use std::thread;

use serde_json::{Value, json};

use crate::harness::executable::{self, Running, standfast};
use crate::harness::server::Server;
use crate::harness::socket::{CLOSE, Frame, Socket, TEXT, upgrade};
use crate::harness::{eventually, http};

#[test]
fn a_storm_fills_every_worker_without_resets() {
    let server = Server::start(&["--workers", "8", "--max-connections", "2k"]);
    require_all_held(&server, 2_000);
    let workers = workers(&server);
    let accepted: Vec<u64> = workers.iter().map(|worker| number(worker, "accepted")).collect();
    assert_eq!(accepted, [250; 8], "all were needed, each at capacity");
    let handed_on = server.metrics()["standfast_listener_handed_on_total"];
    assert!(handed_on > 0.0, "a worker at capacity passes its listener on");
}

/// With a shared table, 400 descriptors would be the limit.
#[test]
fn small_tables_hold_more_together_than_the_limit_of_one() {
    let server = Server::start_limited(400, &["--max-connections", "1k"]);
    require_all_held(&server, 1_000);
    assert!(workers(&server).len() >= 3, "{:?}", workers(&server));
}

#[test]
fn a_client_waits_at_capacity_until_another_disconnects() {
    let server = Server::start(&["--workers", "2", "--max-connections", "4"]);
    let mut inside: Vec<Socket> = (0..4).map(|_| Socket::open(server.listen, "/echo")).collect();
    let mut waiting = Socket::connect(server.listen);
    waiting.send(upgrade("/echo", &[]).as_bytes());
    for socket in &mut inside {
        socket.send_frame(TEXT, b"still open");
        assert_eq!(socket.frame(), Some(Frame { first: TEXT, payload: b"still open".to_vec() }));
    }
    assert_eq!(server.metrics()["standfast_accepted_total"], 4.0);
    assert!(server.metrics()["standfast_accept_full_total"] > 0.0, "it is counted");
    eventually("it is logged", || server.log().contains("connection limit reached"));
    let mut leaving = inside.remove(0);
    leaving.send_frame(CLOSE, &1000_u16.to_be_bytes());
    assert_eq!(leaving.close_code(), 1000);
    drop(leaving);
    assert_eq!(waiting.response().status, 101);
}

#[test]
fn few_sockets_need_one_worker_per_core() {
    let server = Server::start(&["--workers", "64"]);
    let sockets: Vec<Socket> = (0..40).map(|_| Socket::open(server.listen, "/echo")).collect();
    let cores = thread::available_parallelism().unwrap().get();
    let workers = workers(&server);
    assert!(workers.len() <= cores, "{} workers run on {cores} cores", workers.len());
    let open: u64 = workers.iter().map(|worker| number(worker, "websockets")).sum();
    assert_eq!(open, sockets.len() as u64);
}

/// No time is measured here (see `bench`); a missing answer would block the test.
#[test]
fn both_listeners_answer_during_a_storm_and_broadcasts() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/topics/x", server.listen);
    let storm = ["--connections", "3k", "--connect", "storm", "--hold", "2s", "--heartbeat", "1s"];
    let mut load = standfast(&[&["load", &url], &storm[..]].concat());
    load.stdout(Stdio::null()).stderr(Stdio::null());
    let mut load = Running(load.spawn().unwrap());
    let mut asked = 0;
    while load.0.try_wait().unwrap().is_none() {
        let health = http::get(server.listen, "/health");
        assert_eq!((health.status, health.body.trim()), (200, "ok"));
        assert_eq!(http::get(server.admin, "/health").status, 200);
        assert_eq!(server.publish(&json!({"topic": "x", "data": "to all"})).status, 200);
        assert!(server.metrics()["standfast_workers"] >= 1.0);
        asked += 1;
    }
    assert!(asked > 10, "only {asked} requests");
    assert_eq!(load.wait().code(), Some(0), "all connections were held meanwhile");
    let delivered = server.metrics()["standfast_messages_out_total"];
    assert!(delivered >= 3_000.0, "{delivered} deliveries of {asked} publications");
}

/// A storm of `count` sockets: all open at once, all answer a heartbeat, none ends.
fn require_all_held(server: &Server, count: u64) {
    let (url, connections) = (format!("ws://{}/echo", server.listen), count.to_string());
    let storm = ["--connect", "storm", "--hold", "1s", "--heartbeat", "1s", "--json", "-"];
    let args = [&["load", &url, "--connections", &connections], &storm[..]].concat();
    let finished = executable::run(&args);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let summary = finished.json();
    assert_eq!(summary["connections"]["open"], count, "{summary}");
    assert_eq!(summary["connections"]["failed"], 0, "{summary}");
    assert_eq!(summary["heartbeats"]["unanswered_sockets"], 0, "{summary}");
    assert_eq!(summary["closed"], json!({}), "{summary}");
}

/// The entry in `/api/stats` of each worker that was needed.
fn workers(server: &Server) -> Vec<Value> {
    let stats = http::get(server.admin, "/api/stats").json();
    stats["workers"].as_array().unwrap_or_else(|| panic!("no workers in {stats}")).clone()
}

fn number(worker: &Value, key: &str) -> u64 {
    worker[key].as_u64().unwrap_or_else(|| panic!("no {key} in {worker}"))
}
