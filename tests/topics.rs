//! `/topics/NAME` and `/api/publish`: what clients may do, what is delivered, what is refused.

use serde_json::json;

use crate::harness::server::Server;
use crate::harness::socket::{BINARY, Frame, Socket, TEXT, upgrade};
use crate::harness::{eventually, http};

#[test]
fn a_publication_reaches_only_subscribers_of_its_topic() {
    let server = Server::start(&[]);
    let mut ours = Socket::open(server.listen, "/topics/ours");
    let mut also_ours = Socket::open(server.listen, "/topics/ours");
    let mut other = Socket::open(server.listen, "/topics/other");
    assert_eq!(server.publish(&json!({"topic": "ours", "data": "for two"})).status, 200);
    assert_eq!(server.publish(&json!({"topic": "other", "data": "for one"})).status, 200);
    assert_eq!(ours.frame(), Some(text("for two")));
    assert_eq!(also_ours.frame(), Some(text("for two")));
    assert_eq!(other.frame(), Some(text("for one")), "it receives only its own topic");
}

#[test]
fn an_array_is_delivered_in_its_order() {
    let server = Server::start(&[]);
    let mut socket = Socket::open(server.listen, "/topics/x");
    let publications: Vec<_> =
        (0..100).map(|number| json!({"topic": "x", "data": number.to_string()})).collect();
    assert_eq!(server.publish(&json!(publications)).status, 200);
    for number in 0..100 {
        assert_eq!(socket.frame(), Some(text(&number.to_string())));
    }
}

#[test]
fn base64_is_delivered_as_a_binary_message() {
    let server = Server::start(&[]);
    let mut socket = Socket::open(server.listen, "/topics/x");
    assert_eq!(server.publish(&json!({"topic": "x", "data_base64": "AAH+/w=="})).status, 200);
    assert_eq!(socket.frame(), Some(Frame { first: BINARY, payload: vec![0, 1, 254, 255] }));
}

#[test]
fn a_malformed_publication_is_refused_entirely() {
    let server = Server::start(&[]);
    let mut socket = Socket::open(server.listen, "/topics/x");
    let right = json!({"topic": "x", "data": "right"});
    let bad = [
        "not JSON".to_owned(),
        "{}".to_owned(),
        json!({"topic": "x"}).to_string(),
        json!({"topic": "x", "data": 7}).to_string(),
        json!({"topic": "x", "data_base64": "!"}).to_string(),
        json!({"topic": "x", "data": "a", "data_base64": "YQ=="}).to_string(),
        json!([right, {"topic": "x"}]).to_string(),
    ];
    for body in bad {
        let response = http::post(server.admin, "/api/publish", &body);
        assert_eq!(response.status, 400, "{body}: {response:?}");
        assert!(!response.body.is_empty(), "{body} is refused without a reason");
    }
    assert_eq!(server.publish(&right).status, 200);
    assert_eq!(
        socket.frame(),
        Some(text("right")),
        "no part of a refused publication is delivered"
    );
}

#[test]
fn clients_may_publish_on_loopback() {
    let server = Server::start(&[]);
    let mut one = Socket::open(server.listen, "/topics/x");
    let mut two = Socket::open(server.listen, "/topics/x");
    one.send_frame(TEXT, b"anyone?");
    assert_eq!(two.frame(), Some(text("anyone?")));
    one.send_frame(BINARY, &[0, 255]);
    assert_eq!(two.frame(), Some(Frame { first: BINARY, payload: vec![0, 255] }));
    eventually("open access is logged at start", || server.log().contains("--public"));
}

#[test]
fn other_interfaces_require_public_to_subscribe() {
    let closed = Server::start(&["--listen", "0.0.0.0:0"]);
    let address = (std::net::Ipv4Addr::LOCALHOST, closed.listen.port()).into();
    let mut socket = Socket::connect(address);
    socket.send(upgrade("/topics/x", &[]).as_bytes());
    assert_eq!(socket.response().status, 403);

    let open = Server::start(&["--listen", "0.0.0.0:0", "--public"]);
    let address = (std::net::Ipv4Addr::LOCALHOST, open.listen.port()).into();
    let mut one = Socket::open(address, "/topics/x");
    one.send_frame(TEXT, b"to myself");
    assert_eq!(one.frame(), Some(text("to myself")));
}

#[test]
fn rebound_names_do_not_reach_public_topics_on_a_private_address() {
    let status = |server: &Server, host: &str, path: &str, origin: Option<&str>| {
        let address = (std::net::Ipv4Addr::LOCALHOST, server.listen.port()).into();
        let mut socket = Socket::connect(address);
        let mut headers = vec![("Host", host)];
        headers.extend(origin.map(|origin| ("Origin", origin)));
        socket.send(
            match path {
                "/events?topic=x" => {
                    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
                }
                _ => upgrade(path, &headers).into_bytes(),
            }
            .as_slice(),
        );
        socket.response().status
    };
    let open = ["--listen", "0.0.0.0:0", "--public"];
    let server = Server::start(&open);
    let page = Some("http://rebound.example");
    assert_eq!(status(&server, "rebound.example", "/topics/x", page), 403);
    assert_eq!(status(&server, "rebound.example", "/events?topic=x", None), 421);
    assert_eq!(status(&server, "rebound.example", "/topics/x", None), 101, "not a browser");
    assert_eq!(status(&server, "10.0.0.1", "/topics/x", Some("http://10.0.0.1")), 101);
    assert_eq!(status(&server, "10.0.0.1", "/events?topic=x", None), 200);
    let named =
        Server::start(&[&open[..], &["--allow-host", "live.example,*.live.example"]].concat());
    for (host, switched) in [("live.example", 101), ("a.live.example", 101), ("b.example", 421)] {
        let page = format!("http://{host}");
        assert_eq!(status(&named, host, "/topics/x", Some(&page)), switched, "{host}");
        assert_eq!(status(&named, host, "/topics/x", None), switched, "{host}");
    }
    assert_eq!(named.metrics()["standfast_host_refused_total"], 2.0);
    eventually("the log names the flag", || named.log().contains("--allow-host b.example"));
}

#[test]
fn unknown_paths_are_not_found() {
    let server = Server::start(&[]);
    for path in ["/", "/nope", "/topics", "/topics/", "/echo/more"] {
        let mut socket = Socket::connect(server.listen);
        socket.send(upgrade(path, &[]).as_bytes());
        assert_eq!(socket.response().status, 404, "{path}");
        assert_eq!(http::get(server.listen, path).status, 404, "{path}");
    }
    assert_eq!(http::get(server.admin, "/nope").status, 404);
}

#[test]
fn health_is_public_and_details_are_on_the_admin_listener() {
    let server = Server::start(&[]);
    let _socket = Socket::open(server.listen, "/topics/x");
    let health = http::get(server.listen, "/health");
    assert_eq!((health.status, health.body.trim()), (200, "ok"));
    assert_eq!(http::get(server.admin, "/health").status, 200);
    assert_eq!(http::get(server.listen, "/metrics").status, 404);
    let stats = http::get(server.admin, "/api/stats");
    assert!(stats.status == 200 && stats.json().is_object(), "{stats:?}");
    let connections = http::get(server.admin, "/api/connections");
    assert_eq!(connections.status, 200);
    assert!(connections.body.contains("127.0.0.1:"), "connections are listed: {connections:?}");
}

fn text(payload: &str) -> Frame {
    Frame { first: TEXT, payload: payload.as_bytes().to_vec() }
}
