//! A server of topics: who connects to /topics/NAME gets what others send there, and what is posted there.
//! `cargo run --release -p standfast --example topic_server -- 127.0.0.1:8080`, then
//! `curl --data hello http://127.0.0.1:8080/topics/news`.

use standfast::{Accept, Handler, Message, Request, Response, Server, Socket, UpgradeRequest};

/// Longest posted message in bytes.
const POST_BYTES: u64 = 64 * 1024;

#[derive(Clone)]
struct Topics;

impl Handler for Topics {
    /// The name of the topic.
    type Data = Box<str>;

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<Box<str>>, Response> {
        Ok(Accept::new(topic(request)?))
    }

    fn open(&mut self, socket: &mut Socket<'_>, topic: &mut Box<str>) {
        socket.subscribe(topic);
    }

    fn message(&mut self, socket: &mut Socket<'_>, topic: &mut Box<str>, message: Message<'_>) {
        if socket.publish_to_others(topic, message).is_err() {
            socket.send("too much is being published: try again later");
        }
    }
}

fn topic(request: &Request<'_>) -> Result<Box<str>, Response> {
    let name = request.param("name").ok_or_else(|| Response::text(400, "invalid topic\n"))?;
    Ok(name.into())
}

fn publish(request: &Request<'_>) -> Response {
    let topic = match topic(request) {
        Ok(topic) => topic,
        Err(response) => return response,
    };
    let Ok(text) = std::str::from_utf8(request.body()) else {
        return Response::text(400, "expected text\n");
    };
    match request.remote().publish(&topic, text) {
        Ok(()) => Response::text(202, "published\n"),
        Err(refused) => Response::text(503, format!("{refused}\n")).header("Retry-After", "1"),
    }
}

fn main() -> Result<(), standfast::Error> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let server = Server::bind(address)?.route("/topics/{name}", Topics).post(
        "/topics/{name}",
        POST_BYTES,
        publish,
    );
    println!("ws://{}/topics/news", server.address());
    server.run()
}
