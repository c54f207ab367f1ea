//! The ways to Redis: TLS, UNIX sockets, and the master of a sentinel, also after a failover.

use crate::harness::cable::Extended;
use crate::harness::redis::Redis;
use crate::harness::server::Server;
use crate::harness::socket::Socket;
use crate::harness::tls::Authority;
use crate::harness::{Deserted, eventually, http};
use crate::nodes::{node, payload, publish, stream, unready_node, until_ready};
use crate::nodes_cluster::while_publishing;

/// A publication from one of two nodes to a client of the other.
fn exchange(urls: [&str; 2], more: &[&str]) {
    let [a, b] = urls.map(|url| node(url, more));
    let mut plain = Socket::open(a.listen, "/topics/a");
    let answer = publish(&b, "a", "1");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(payload(&mut plain), "1");
}

#[test]
fn nodes_connect_to_redis_with_tls_and_verify_it() {
    let (authority, place) = (Authority::new(), Deserted::port());
    authority.sign("redis", &["localhost"]);
    let port = place.address.port().to_string();
    let (certificate, key) = (authority.path("redis.pem"), authority.path("redis.key"));
    let ca = authority.path("ca.pem");
    let flags = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "no",
        "--requirepass",
        "secret",
    ];
    let Some(_redis) = Redis::start(&flags) else { return };
    let url = format!("rediss://:secret@localhost:{port}");
    exchange([&url, &url], &["--redis-ca", &ca]);
    let stranger = Authority::new();
    let wary = unready_node(&url, &["--redis-ca", &stranger.path("ca.pem")]);
    eventually("its certificate is refused", || wary.admin_get("/ready").body.contains("TLS with"));
    // Its certificate is for another name.
    let elsewhere = unready_node(&format!("rediss://127.0.0.1:{port}"), &["--redis-ca", &ca]);
    eventually("its name is refused", || elsewhere.admin_get("/ready").body.contains("TLS with"));
}

#[test]
fn nodes_connect_to_redis_by_a_unix_socket() {
    let path = format!("{}/redis-{}.sock", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let Some(redis) = Redis::start(&["--unixsocket", &path]) else { return };
    exchange([&format!("unix:{path}?db=1"), &redis.url()], &[]);
}

#[test]
fn nodes_follow_the_master_of_a_sentinel() {
    let Some(mut master) = Redis::start(&[]) else { return };
    let (host, port) = (master.address().ip().to_string(), master.address().port().to_string());
    let Some(replica) = Redis::start(&["--replicaof", &host, &port]) else { return };
    let sentinel = Redis::sentinel_of(&master);
    let absent = Deserted::port();
    let sentinels = format!("{},{}", absent.address, sentinel.address());
    eventually("the sentinel knows the replica", || {
        sentinel.ask("SENTINEL replicas live") == "*1" && replica.ask("ROLE") == "*5"
    });
    let nodes = [(); 2].map(|()| node("redis://live", &["--redis-sentinels", &sentinels]));
    let mut client = Extended::connect(nodes[0].listen, "");
    client.subscribe(&stream("a"));
    assert_eq!(publish(&nodes[1], "a", "1").status, 200);
    assert_eq!(client.hear()["message"], 1);
    master.kill();
    for node in &nodes {
        eventually("the loss is noticed", || node.admin_get("/ready").status == 503);
    }
    eventually("the replica is promoted", || replica.ask("ROLE") == "*3");
    nodes.iter().for_each(until_ready);
    assert_eq!(client.hear()["type"], "reject_history");
    assert_eq!(publish(&nodes[1], "a", "2").status, 200);
    assert_eq!(client.hear()["message"], 2);
    let wrong = unready_node("redis://other", &["--redis-sentinels", &sentinels]);
    eventually("the name is unknown", || {
        wrong.admin_get("/ready").body.contains("knows no master named other")
    });
}

#[test]
fn a_history_goes_on_in_another_epoch_after_a_failover_of_sentinels() {
    let Some(mut master) = Redis::start(&[]) else { return };
    let (host, port) = (master.address().ip().to_string(), master.address().port().to_string());
    let Some(replica) = Redis::start(&["--replicaof", &host, &port]) else { return };
    let sentinel = Redis::sentinel_of(&master);
    eventually("the sentinel knows the replica", || {
        sentinel.ask("SENTINEL replicas live") == "*1" && replica.ask("ROLE") == "*5"
    });
    let at = sentinel.address().to_string();
    let flags = ["--redis-sentinels", &at, "--history", "redis", "--idle-timeout", "off"];
    let nodes = [(); 2].map(|()| node("redis://live", &flags));
    let epoch = |node: &Server| http::get(node.admin, "/api/history/a").json()["epoch"].clone();
    let before = epoch(&nodes[0]);
    let heard = while_publishing(&nodes, "a", |more| {
        master.kill();
        eventually("the replica is promoted", || replica.ask("ROLE") == "*3");
        more(1);
    });
    println!("failover of sentinels: {heard:?}");
    // What is missing lies between the last one of the old epoch and the first one of the new.
    assert_eq!(heard.told, 1, "{heard:?}");
    assert!(heard.missing.windows(2).all(|two| two[1] == two[0] + 1), "{heard:?}");
    assert_ne!(epoch(&nodes[0]), before);
    assert_eq!(epoch(&nodes[0]), epoch(&nodes[1]));
}
