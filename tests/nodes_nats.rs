//! Several nodes over NATS: as over Redis (`nodes.rs`), with names that are no subjects.

use serde_json::json;

use crate::harness::brokers::Broker;
use crate::harness::cable::Cable;
use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};

fn node(nats: &Broker) -> Server {
    let url = nats.url("");
    let fixed = ["--pubsub", "nats", "--nats-servers", &url, "--public-streams", "--public"];
    let server = Server::start(&fixed);
    eventually("the node is ready", || server.admin_get("/ready").status == 200);
    server
}

fn listener(server: &Server, stream: &str) -> Cable {
    let mut cable = Cable::join(server.listen, None).welcomed();
    let wanted = json!({"channel": "$pubsub", "stream_name": stream});
    assert_eq!(cable.subscribe(&wanted), "confirm_subscription");
    cable
}

#[test]
fn what_one_node_accepts_reaches_the_clients_of_all_once_and_in_order() {
    let Some(nats) = Broker::nats(&[]) else { return };
    let nodes = [node(&nats), node(&nats), node(&nats)];
    for stream in ["news", "a b.c.*", ">", "héllo ✓"] {
        let mut clients: Vec<Cable> = nodes.iter().map(|node| listener(node, stream)).collect();
        for number in 0..60 {
            // Published after the confirmation, so nobody misses it.
            let body = json!({"topic": stream, "data": number.to_string()});
            let answer = nodes[number % 3].publish(&body);
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        for client in &mut clients {
            for number in 0..60 {
                assert_eq!(client.hear()["message"], number, "{stream}");
            }
        }
    }
    let cluster = nodes[0].admin_get("/api/cluster").json();
    assert_eq!(cluster["nodes"].as_array().map(Vec::len), Some(2), "{cluster}");
}

#[test]
fn sockets_outlive_nats_and_publishing_is_refused_meanwhile() {
    let Some(mut nats) = Broker::nats(&[]) else { return };
    let nodes = [node(&nats), node(&nats)];
    let mut client = listener(&nodes[0], "news");
    let mut plain = Socket::open(nodes[1].listen, "/topics/news");
    for round in 0..3 {
        nats.kill();
        for node in &nodes {
            eventually("it is not ready", || node.admin_get("/ready").status == 503);
            let answer = node.publish(&json!({"topic": "news", "data": "lost"}));
            assert_eq!(answer.status, 503, "{answer:?}");
        }
        nats.restart();
        for node in &nodes {
            eventually("it is ready again", || node.admin_get("/ready").status == 200);
        }
        let data = round.to_string();
        assert_eq!(nodes[1].publish(&json!({"topic": "news", "data": data})).status, 200);
        assert_eq!(client.hear()["message"], round);
        let frame = plain.frame().expect("the socket stays open");
        assert_eq!((frame.first, frame.payload), (TEXT, data.into_bytes()));
    }
}
