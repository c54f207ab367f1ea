//! Foreign clients talk to `/echo` and `/topics/NAME` as they would to any server.

use crate::harness::peer::{self, talks};
use crate::harness::server::Server;

#[test]
fn node_ws() {
    let expected = [
        "echo_text",
        "echo_binary",
        "echo_every_length_form",
        "echo_fragments",
        "echo_many_in_order",
        "compressed",
        "topic_from_admin",
        "topic_from_client",
    ];
    talks(&peer::NODE, "ws.js", &Server::start(&[]), &expected);
}

#[test]
fn python_websockets() {
    let expected = [
        "echo_text",
        "echo_binary",
        "echo_fragments",
        "ping",
        "close_code",
        "topic_from_admin",
        "topic_from_client",
    ];
    talks(&peer::PYTHON, "websockets_client.py", &Server::start(&[]), &expected);
}

#[test]
fn a_browser_page() {
    let expected = ["echo_text", "echo_binary", "topic_from_admin", "topic_from_client"];
    talks(&peer::BROWSER, "browser.js", &Server::start(&[]), &expected);
}
