//! What a server and its handlers do at intervals.

use std::time::{Duration, Instant};

use standfast::{
    Accept, Context, Error, Handler, Message, Response, RouteOptions, Server, Socket,
    UpgradeRequest,
};

use crate::client::Client;

const SHORT: Duration = Duration::from_millis(5);

/// Its sockets hear of `all`, and of each tick of their worker.
#[derive(Clone)]
struct Listens;

impl Handler for Listens {
    type Data = ();

    fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
        Ok(Accept::default())
    }

    fn open(&mut self, socket: &mut Socket<'_>, _: &mut ()) {
        socket.subscribe("all");
        socket.send(&format!("worker {}", socket.worker()));
    }

    fn message(&mut self, _: &mut Socket<'_>, _: &mut (), _: Message<'_>) {}

    fn tick(&mut self, context: &mut Context<'_>) {
        context.publish_here("all", &format!("tick of {}", context.worker()));
    }
}

fn count(topic: &'static str) -> impl FnMut(&mut Context<'_>) + Send {
    let mut number = 0;
    move |context| {
        number += 1;
        assert_eq!(context.worker(), 0);
        context.publish(topic, &format!("{topic} {number}")).unwrap();
    }
}

/// The number of a text that begins with this.
fn number(text: &str, topic: &str) -> Option<u64> {
    text.strip_prefix(topic)?.trim().parse().ok()
}

#[test]
fn a_server_acts_at_its_intervals_once_for_all_workers() {
    let began = Instant::now();
    let server = Server::bind("127.0.0.1:0").unwrap().every(SHORT, count("all"));
    let server = server.route("/", Listens).workers(3).start().unwrap();
    let mut clients: Vec<_> = (0..9).map(|_| Client::open(server.address(), "/")).collect();
    let mut last = 0;
    for client in &mut clients {
        assert!(client.text().starts_with("worker "));
        let heard: Vec<u64> = (0..5).map(|_| number(&client.text(), "all").unwrap()).collect();
        assert!(heard.windows(2).all(|pair| pair[1] == pair[0] + 1), "{heard:?}");
        last = last.max(heard[4]);
    }
    assert!(began.elapsed() >= SHORT * u32::try_from(last).unwrap(), "{last} already");
    drop(clients);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn handlers_tick_on_each_worker_and_intervals_do_not_disturb_each_other() {
    let options = RouteOptions { tick: Some(SHORT), ..RouteOptions::default() };
    let server = Server::bind("127.0.0.1:0").unwrap().every(3 * SHORT, count("all"));
    let server = server.every(Duration::from_secs(3600), |_| panic!("too early"));
    let server = server.route_with("/", Listens, options).workers(2).start().unwrap();
    let mut client = Client::open(server.address(), "/");
    let own = client.text().replace("worker", "tick of");
    let (mut ticks, mut all) = (0, 0);
    while ticks < 10 || all < 3 {
        let text = client.text();
        ticks += u32::from(text == own);
        all += u32::from(number(&text, "all").is_some());
        // What another worker publishes on itself does not come here.
        assert!(text == own || text.starts_with("all "), "{text}");
    }
    drop(client);
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn what_a_server_does_at_intervals_ends_it_by_a_panic() {
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", Listens).workers(2);
    let server = server.every(SHORT, |_| panic!("as the test wants")).start().unwrap();
    let error = server.wait().unwrap_err();
    assert!(
        matches!(&error, Error::Failed(_)) && error.to_string().contains("panicked"),
        "{error}"
    );
}

#[test]
fn an_embedded_server_is_due_for_what_it_does_at_intervals() {
    let server = Server::bind("127.0.0.1:0").unwrap().every(SHORT, |_| {});
    let server = server.every(4 * SHORT, |context| context.remote().stop(Duration::ZERO));
    let mut server = server.embed().unwrap();
    let mut turns = 0;
    while server.turn().unwrap() {
        let due = server.due().unwrap();
        assert!(due <= SHORT, "{due:?}");
        std::thread::sleep(due);
        turns += 1;
        assert!(turns < 100_000);
    }
}
