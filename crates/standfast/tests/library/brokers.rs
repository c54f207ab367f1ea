//! Topics across processes: several servers of this process, each a process for the broker, with Redis and
//! with NATS.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use standfast::{
    Accept, Broker, BrokerState, Context, Error, Handler, Message, Response, Running, Server,
    Socket, UpgradeRequest,
};

use crate::client::{Client, PATIENCE, eventually, next};

/// A redis-server or nats-server on a free port.
struct BrokerServer {
    child: Option<Child>,
    kind: Kind,
    port: u16,
    /// That of a cluster's bus.
    second: u16,
    folder: PathBuf,
    arguments: Vec<String>,
}

#[derive(Copy, Clone, PartialEq, Debug)]
enum Kind {
    Redis,
    Nats,
}

impl BrokerServer {
    fn start(kind: Kind) -> BrokerServer {
        BrokerServer::start_with(kind, |_, _| Vec::new())
    }

    /// With arguments, perhaps of its folder, its port and another one that is free.
    fn start_with(kind: Kind, arguments: impl Fn(&Path, [u16; 2]) -> Vec<String>) -> BrokerServer {
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, other) = (free(), free());
        let ports = [&one, &other].map(|free| free.local_addr().unwrap().port());
        let [port, second] = ports;
        drop((one, other));
        let name = format!("standfast-library-{}-{port}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let arguments = arguments(&folder, ports);
        let mut server = BrokerServer { child: None, kind, port, second, folder, arguments };
        server.again();
        server
    }

    /// Executes an inline command of Redis; returns the first line of the answer, or an empty one while Redis starts
    /// or is reset by another one.
    fn ask(&self, command: &str) -> String {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "{command}\r\n")?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line)?;
            Ok(line.trim_end().to_owned())
        };
        ask().unwrap_or_default()
    }

    /// Starts it again on its port.
    fn again(&mut self) {
        let port = self.port.to_string();
        let mut command = match self.kind {
            Kind::Redis => {
                let mut command = Command::new("redis-server");
                if self.arguments.iter().all(|argument| argument != "--sentinel") {
                    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port]);
                }
                command
            }
            Kind::Nats => {
                let mut command = Command::new("nats-server");
                command.args(["-a", "127.0.0.1", "-p", &port]);
                command
            }
        };
        command
            .args(&self.arguments)
            .current_dir(&self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        eventually("the broker listens", || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn broker(&self) -> Broker {
        match self.kind {
            Kind::Redis => Broker::redis(&format!("redis://127.0.0.1:{}", self.port)).unwrap(),
            Kind::Nats => Broker::nats(&format!("nats://127.0.0.1:{}", self.port)).unwrap(),
        }
    }
}

impl Drop for BrokerServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Subscribes its sockets to the topics of their path, and publishes what they send to the first of them.
#[derive(Clone)]
struct Node(Sender<String>);

impl Handler for Node {
    type Data = String;

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<String>, Response> {
        Ok(Accept::new(request.param("topic").unwrap_or_default().into_owned()))
    }

    fn open(&mut self, socket: &mut Socket<'_>, topic: &mut String) {
        socket.subscribe(topic);
        socket.send("open");
    }

    fn message(&mut self, socket: &mut Socket<'_>, topic: &mut String, message: Message<'_>) {
        let published = match message {
            Message::Text(text) if text.starts_with("all ") => socket.publish(topic, text),
            message => socket.publish_to_others(topic, message),
        };
        published.unwrap();
    }

    fn missed(&mut self, context: &mut Context<'_>, topic: &str) {
        let _ = self.0.send(format!("missed {topic}"));
        context.publish_here(topic, "missed");
    }
}

fn node(broker: Broker) -> (Running, Receiver<String>) {
    let (notes, noted) = channel();
    let server = Server::bind("127.0.0.1:0").unwrap().workers(2);
    let server = server.route("/{topic}", Node(notes)).broker(broker).start().unwrap();
    (server, noted)
}

fn state(server: &Running) -> BrokerState {
    server.remote().broker().unwrap()
}

fn ready(servers: &[&Running]) {
    eventually("the broker has confirmed all", || {
        servers.iter().all(|server| state(server).is_ready())
    });
}

fn open(server: &Running, topic: &str) -> Client {
    let mut client = Client::open(server.address(), &format!("/{topic}"));
    assert_eq!(client.text(), "open");
    client
}

fn publications_reach_all_processes_once(kind: Kind) {
    let broker = BrokerServer::start(kind);
    let nodes: Vec<Running> = (0..3).map(|_| node(broker.broker()).0).collect();
    let all: Vec<&Running> = nodes.iter().collect();
    let mut clients: Vec<Client> = Vec::new();
    for node in &nodes {
        clients.extend((0..4).map(|_| open(node, "room")));
    }
    let mut other = open(&nodes[2], "another");
    ready(&all);
    for number in 0..200 {
        clients[0].send(&format!("all {number}"));
    }
    clients[0].send("to the others");
    for (number, client) in clients.iter_mut().enumerate() {
        for expected in 0..200 {
            assert_eq!(client.text(), format!("all {expected}"), "client {number}");
        }
        if number > 0 {
            assert_eq!(client.text(), "to the others");
        }
    }
    nodes[1].remote().publish("room", "from a thread").unwrap();
    clients[11].0.send(tungstenite::Message::binary(vec![0, 255])).unwrap();
    for client in &mut clients[..11] {
        let got = [client.0.read().unwrap(), client.0.read().unwrap()];
        assert!(got.contains(&tungstenite::Message::text("from a thread")), "{got:?}");
        assert!(got.contains(&tungstenite::Message::binary(vec![0, 255])), "{got:?}");
    }
    assert_eq!(clients[11].text(), "from a thread");
    nodes[0].remote().publish("another", "apart").unwrap();
    assert_eq!(other.text(), "apart");
    eventually("the broker has taken all", || state(all[0]).waiting == 0);
    let figures = state(all[0]);
    assert_eq!((figures.published, figures.lost, figures.gaps), (202, 0, 0), "{figures:?}");
    assert_eq!((figures.topics, figures.connected), (1, 1));
    eventually("the others are known", || state(all[0]).others.len() == 2);
    // What is published before the end of a process arrives.
    nodes[0].remote().publish("room", "the end").unwrap();
    assert_eq!(clients[0].text(), "the end");
    let mut nodes = nodes.into_iter();
    nodes.next().unwrap().stop(Duration::ZERO).unwrap();
    assert_eq!(clients[0].closed().0, 1001);
    assert_eq!([clients[4].text(), clients[8].text()], ["the end", "the end"]);
    drop((clients, other));
    nodes.for_each(|node| node.stop(Duration::ZERO).unwrap());
}

#[test]
fn publications_reach_all_processes_once_by_redis() {
    publications_reach_all_processes_once(Kind::Redis);
}

#[test]
fn publications_reach_all_processes_once_by_nats() {
    publications_reach_all_processes_once(Kind::Nats);
}

fn an_outage_is_counted_and_told(kind: Kind) {
    let mut broker = BrokerServer::start(kind);
    let (one, _notes) = node(broker.broker());
    let (two, notes) = node(broker.broker().spool_bytes(1 << 20));
    let (mut here, mut elsewhere) = (open(&one, "room"), open(&two, "room"));
    ready(&[&one, &two]);
    broker.kill();
    eventually("the outage is noticed", || {
        state(&one).trouble.is_some() && state(&two).trouble.is_some()
    });
    for _ in 0..5 {
        one.remote().publish("room", "lost elsewhere").unwrap();
        assert_eq!(here.text(), "lost elsewhere");
    }
    two.remote().publish("room", "kept for later").unwrap();
    assert_eq!(elsewhere.text(), "kept for later");
    let (first, second) = (state(&one), state(&two));
    assert_eq!((first.lost, second.lost, second.waiting), (5, 0, 1), "{first:?} {second:?}");
    broker.again();
    ready(&[&one, &two]);
    assert_eq!(next(&notes), "missed room");
    assert_eq!(elsewhere.text(), "missed");
    // It may be sent before the other process has subscribed again; that process then reports a gap.
    eventually("what was kept is sent", || state(&two).waiting == 0);
    one.remote().publish("room", "again").unwrap();
    let mut got = vec![here.text()];
    while got.last().unwrap() != "again" {
        got.push(here.text());
    }
    assert!(got.contains(&"missed".to_owned()), "{got:?}");
    assert_eq!(elsewhere.text(), "again");
    assert_eq!((state(&one).lost, state(&two).lost), (5, 0));
    assert!(state(&two).gaps >= 1 && state(&two).connected == 2);
    drop((here, elsewhere));
    one.stop(Duration::ZERO).unwrap();
    two.stop(Duration::ZERO).unwrap();
}

#[test]
fn an_outage_of_redis_is_counted_and_told() {
    an_outage_is_counted_and_told(Kind::Redis);
}

#[test]
fn an_outage_of_nats_is_counted_and_told() {
    an_outage_is_counted_and_told(Kind::Nats);
}

fn strings<const N: usize>(arguments: [&str; N]) -> Vec<String> {
    arguments.map(str::to_owned).to_vec()
}

#[test]
fn publications_reach_all_processes_by_a_redis_cluster() {
    let masters = [(); 2].map(|()| {
        BrokerServer::start_with(Kind::Redis, |_, [_, bus]| {
            let timeout = ["--cluster-node-timeout", "1500"];
            let mut own = strings(["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()]);
            own.extend(strings(timeout));
            own
        })
    });
    for (at, master) in masters.iter().enumerate() {
        let (first, last) = (at * 8192, at * 8192 + 8191);
        assert_eq!(master.ask(&format!("CLUSTER ADDSLOTSRANGE {first} {last}")), "+OK");
        master.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1));
    }
    let [first, second] = &masters;
    let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", second.port, second.second);
    assert_eq!(first.ask(&meet), "+OK");
    // The slots of the other one as well: SET is answered, or with where the slot is.
    let knows = |master: &BrokerServer| {
        ["a", "b", "c", "d"].iter().all(|key| !master.ask(&format!("SET {key} 1")).contains("DOWN"))
    };
    eventually("the cluster is complete", || masters.iter().all(knows));
    let broker = || Broker::redis_cluster(&format!("redis://127.0.0.1:{}", first.port)).unwrap();
    let (one, _) = node(broker());
    let (two, _) = node(broker());
    let topics: Vec<String> = (0..8).map(|number| format!("room {number}")).collect();
    let mut clients: Vec<Client> =
        topics.iter().map(|topic| open(&two, &topic.replace(' ', "%20"))).collect();
    ready(&[&one, &two]);
    for topic in &topics {
        one.remote().publish(topic, topic.as_str()).unwrap();
    }
    for (client, topic) in clients.iter_mut().zip(&topics) {
        assert_eq!(client.text(), *topic);
    }
    // A connection to each master, each with some of the topics.
    eventually("both have told their figures", || state(&one).published == 8);
    assert_eq!((state(&one).connected, state(&one).lost), (2, 0));
    let channels = |master: &BrokerServer| master.ask("PUBSUB SHARDCHANNELS *room*");
    let of = masters.each_ref().map(channels);
    assert!(of.iter().all(|many| many.starts_with('*') && many != "*0"), "{of:?}");
    drop(clients);
    one.stop(Duration::ZERO).unwrap();
    two.stop(Duration::ZERO).unwrap();
}

#[test]
fn processes_follow_the_master_of_a_sentinel() {
    let mut master = BrokerServer::start(Kind::Redis);
    let of = master.port.to_string();
    let replica =
        BrokerServer::start_with(Kind::Redis, |_, _| strings(["--replicaof", "127.0.0.1", &of]));
    let sentinel = BrokerServer::start_with(Kind::Redis, |folder, [port, _]| {
        let config = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor live 127.0.0.1 {of} 1\n\
             sentinel down-after-milliseconds live 500\nsentinel failover-timeout live 3000\n"
        );
        let path = folder.join("sentinel.conf");
        std::fs::write(&path, config).unwrap();
        strings([path.to_str().unwrap(), "--sentinel"])
    });
    eventually("the sentinel knows the replica", || {
        sentinel.ask("SENTINEL replicas live") == "*1" && replica.ask("ROLE") == "*5"
    });
    let broker = || {
        let sentinels = format!("127.0.0.1:1, 127.0.0.1:{}", sentinel.port);
        Broker::redis("redis://live").unwrap().sentinels(&sentinels).unwrap()
    };
    let (one, _) = node(broker());
    let (two, notes) = node(broker());
    let mut client = open(&two, "room");
    ready(&[&one, &two]);
    one.remote().publish("room", "by the first").unwrap();
    assert_eq!(client.text(), "by the first");
    master.kill();
    eventually("the loss is noticed", || !state(&one).is_ready() && !state(&two).is_ready());
    eventually("the replica is promoted", || replica.ask("ROLE") == "*3");
    ready(&[&one, &two]);
    assert_eq!((next(&notes), client.text()), ("missed room".into(), "missed".into()));
    one.remote().publish("room", "by the second").unwrap();
    assert_eq!(client.text(), "by the second");
    drop(client);
    one.stop(Duration::ZERO).unwrap();
    two.stop(Duration::ZERO).unwrap();
}

#[test]
fn without_its_broker_a_server_is_one_process() {
    let (server, _notes) = node(Broker::redis("redis://127.0.0.1:1").unwrap());
    let mut client = open(&server, "room");
    client.send("all by itself");
    assert_eq!(client.text(), "all by itself");
    let state = state(&server);
    assert!(!state.is_ready() && state.lost == 1, "{state:?}");
    drop(client);
    server.stop(Duration::ZERO).unwrap();
    // Without one there is no state.
    let (notes, _noted) = channel();
    let server = Server::bind("127.0.0.1:0").unwrap().route("/{topic}", Node(notes));
    let server = server.start().unwrap();
    assert!(server.remote().broker().is_none());
    server.stop(Duration::ZERO).unwrap();
}

#[test]
fn what_names_no_broker_is_an_error() {
    for (wrong, expected) in [("localhost:6379", "redis://HOST"), ("redis://h:x", "port")] {
        let Err(Error::Broker(what)) = Broker::redis(wrong) else { panic!("{wrong}") };
        assert!(what.contains(expected), "{what}");
    }
    assert!(matches!(Broker::nats("redis://h"), Err(Error::Broker(_))));
    for wrong in ["redis://h/1", "unix:/redis"] {
        let Err(Error::Broker(what)) = Broker::redis_cluster(wrong) else { panic!("{wrong}") };
        assert!(what.contains("expected redis://HOST"), "{what}");
    }
    let sentinels = |broker: Result<Broker, Error>, of| broker.unwrap().sentinels(of);
    let Err(Error::Broker(what)) = sentinels(Broker::redis("redis://live"), "a, b:c") else {
        panic!("taken")
    };
    assert!(what.contains("\"b:c\"") && what.contains("HOST[:PORT]"), "{what}");
    assert!(sentinels(Broker::nats("nats://h"), "a").is_err());
    let broker = Broker::redis("redis://h").unwrap().prefix("two words");
    let (notes, _noted) = channel();
    let server = Server::bind("127.0.0.1:0").unwrap().route("/", Node(notes)).broker(broker);
    let Err(Error::Broker(what)) = server.start() else { panic!("it starts") };
    assert!(what.contains("two words") && what.contains("expected"), "{what}");
}
