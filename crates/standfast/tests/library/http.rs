//! Plain requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use standfast::{Error, Response, Server};

use crate::client::{Noted, PATIENCE};

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn request(line: &str, headers: &str, body: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n{body}")
}

#[test]
fn plain_requests_are_answered_by_path_and_method() {
    let (handler, _) = Noted::new(|_, _, _| {});
    let server = Server::bind("127.0.0.1:0")
        .unwrap()
        .route("/socket", handler)
        .get("/users/{name}", |request| {
            let name = request.param("name").unwrap_or_default();
            let cookie = request.cookie("session").unwrap_or("none");
            Response::text(200, format!("{name} {cookie} {:?}", request.query("q")))
        })
        .post("/upload", 10, |request| {
            let kind = request.header("content-type").unwrap_or_default();
            let from = request.client_address().unwrap();
            Response::json(format!("\"{} of {kind} from {from}\"", request.body().len()))
                .header("X-One", "1")
        })
        .http("DELETE", "/upload", None, |_| Response::new(204))
        .get("/cached", |_| Response::text(304, "not sent").header("ETag", "\"1\""))
        .start()
        .unwrap();
    let ask = |line: &str, headers: &str, body: &str| {
        ask(server.address(), &request(line, headers, body))
    };
    let answer = ask("GET /users/J%20%C3%A9?q=a+b", "Cookie: a=1; session=xyz\r\n", "");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nJ é xyz Some(\"a b\")"), "{answer}");
    let answer = ask("HEAD /users/me", "", "");
    assert!(answer.contains("Content-Length: 12") && answer.ends_with("\r\n\r\n"), "{answer}");
    let posted = "Content-Length: 3\r\nContent-Type: text/x\r\n";
    let answer = ask("POST /upload", posted, "abc");
    assert!(answer.contains("X-One: 1") && answer.contains("application/json"), "{answer}");
    assert!(answer.ends_with("\"3 of text/x from 127.0.0.1\""), "{answer}");
    for (line, headers, status) in [
        ("POST /upload", "Content-Length: 11\r\n", "413"),
        ("DELETE /upload", "", "204"),
        ("GET /upload", "", "405"),
        ("GET /nothing", "", "404"),
        ("GET /socket", "", "426"),
    ] {
        let answer = ask(line, headers, "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {answer}");
    }
    assert!(ask("GET /upload", "", "").contains("Allow: POST, DELETE"));
    // Neither has a body, nor a length (RFC 9110 8.6).
    for line in ["DELETE /upload", "OPTIONS /upload", "GET /cached"] {
        let answer = ask(line, "", "");
        assert!(!answer.contains("Length") && answer.ends_with("\r\n\r\n"), "{line}: {answer}");
    }
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn mistakes_are_told_when_the_server_starts() {
    let bind = || Server::bind("127.0.0.1:0").unwrap();
    let answer = |_: &standfast::Request<'_>| Response::new(200);
    for (server, expected) in [
        (bind().get("x", answer), "expected it to begin with /"),
        (bind().get("/a/{x}", answer).get("/a/{y}", answer), "two routes for \"/a/{y}\""),
    ] {
        match server.start() {
            Err(error @ Error::Route(_)) => {
                assert!(error.to_string().contains(expected), "{error}")
            }
            other => panic!("{other:?}"),
        }
    }
    let taken = bind();
    let error = Server::bind(taken.address()).unwrap_err();
    assert!(matches!(error, Error::Listen(address, _) if address == taken.address()), "{error}");
    assert!(matches!(Server::bind("nonsense"), Err(Error::Address(_))));
}
