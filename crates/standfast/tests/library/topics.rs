//! Topics, over several workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use standfast::{
    Accept, Context, Handler, Message, Response, RouteOptions, Server, Socket, UpgradeRequest,
};

use crate::client::{Client, Noted, next};

fn command(socket: &mut Socket<'_>, text: &str) {
    let (verb, topic) = text.split_once(' ').unwrap_or((text, ""));
    let done = match verb {
        "subscribe" => socket.subscribe(topic),
        "unsubscribe" => socket.unsubscribe(topic),
        "has" => socket.is_subscribed(topic),
        "publish" => socket.publish(topic, text).is_ok(),
        "others" => socket.publish_to_others(topic, text).is_ok(),
        _ => {
            let mut topics = socket.topics();
            topics.sort();
            socket.send(&topics.join(","));
            return;
        }
    };
    socket.send(if done { "yes" } else { "no" });
}

#[test]
fn a_publication_reaches_the_subscribers_of_all_workers_once() {
    let (handler, notes) = Noted::new(|socket, _, text| command(socket, text));
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).workers(3);
    let server = server.start().unwrap();
    let mut clients: Vec<_> = (0..30).map(|_| Client::open(server.address(), "/")).collect();
    let mut ask = |client: usize, text: &str| {
        clients[client].send(text);
        clients[client].text()
    };
    for client in 0..30 {
        let topic = if client < 20 { "subscribe a" } else { "subscribe b" };
        assert_eq!(ask(client, topic), "yes");
    }
    assert_eq!([ask(0, "subscribe a"), ask(0, "subscribe c")], ["no", "yes"]);
    assert_eq!([ask(0, "topics"), ask(0, "has c"), ask(0, "has b")], ["a,c", "yes", "no"]);
    assert_eq!([ask(0, "unsubscribe c"), ask(0, "unsubscribe c")], ["yes", "no"]);
    assert_eq!(ask(29, "others a"), "yes");
    assert_eq!(clients[0].text(), "others a");
    // The publisher does not get this one.
    clients[0].send("others a");
    assert_eq!(clients[0].text(), "yes");
    server.remote().publish("nobody is there", "x").unwrap();
    server.remote().publish("a", "remote").unwrap();
    assert_eq!(clients[0].text(), "remote");
    for client in &mut clients[1..20] {
        let got = [client.text(), client.text(), client.text()];
        assert_eq!(got, ["others a", "others a", "remote"]);
    }
    let workers: std::collections::BTreeSet<_> =
        (0..30).map(|_| crate::client::id_of(&next(&notes)).worker()).collect();
    assert!(workers.len() > 1, "{workers:?}");
    drop(clients);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn what_is_published_to_oneself_arrives_after_the_answers() {
    let (handler, _notes) = Noted::new(|socket, _, text| command(socket, text));
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", handler).start().unwrap();
    let mut client = Client::open(server.address(), "/");
    client.send("subscribe a");
    client.send("publish a");
    let mut got = [client.text(), client.text(), client.text()];
    assert_eq!(got[0], "yes");
    got.sort();
    assert_eq!(got, ["publish a", "yes", "yes"]);
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[derive(Clone)]
struct Ticking(Arc<AtomicUsize>);

impl Handler for Ticking {
    /// Not `Send`: it stays with its worker.
    type Data = std::rc::Rc<str>;

    fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<Self::Data>, Response> {
        Ok(Accept::new("x".into()))
    }

    fn open(&mut self, socket: &mut Socket<'_>, _: &mut Self::Data) {
        socket.subscribe("ticks");
    }

    fn message(&mut self, _: &mut Socket<'_>, _: &mut Self::Data, _: Message<'_>) {}

    fn tick(&mut self, context: &mut Context<'_>) {
        if context.worker() == 0 {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            let _ = context.publish("ticks", &number.to_string());
        }
    }
}

#[test]
fn ticks_come_at_intervals() {
    let options = RouteOptions { tick: Some(Duration::from_millis(5)), ..RouteOptions::default() };
    let server = Server::bind("127.0.0.1:0").unwrap();
    let server = server.route_with("/", Ticking(Arc::default()), options).workers(2);
    let server = server.start().unwrap();
    let mut client = Client::open(server.address(), "/");
    let numbers: Vec<usize> = (0..5).map(|_| client.text().parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}
