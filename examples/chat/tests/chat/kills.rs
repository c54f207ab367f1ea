//! Seeded runs of three nodes, of which one is killed: each message arrives once or was answered as failed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::brokers::{Broker, Kind};
use crate::client::{Client, Node, PATIENCE, eventually};

const USERS: u64 = 12;
const SENDERS: u64 = 3;
/// Messages of each sender.
const MESSAGES: u64 = 60;

/// Longest time for which a message id is not known to the other nodes, on a busy machine; it is 50 ms otherwise.
const UNTOLD: Duration = Duration::from_secs(1);

/// Numbers that depend on a seed alone (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Answered {
    Sent,
    Duplicate,
    Failed(String),
    /// The node that was asked has ended.
    Nothing,
}

#[derive(Debug)]
struct Message {
    id: String,
    user: u64,
    answered: Answered,
    /// The node that was asked.
    at: usize,
    from: Instant,
    to: Instant,
}

/// When a node thought that another one was gone, which was silent for the TTL: on a machine that is very busy.
/// What it is asked for users of that node is answered as failed then.
#[derive(Debug)]
struct Suspicion {
    by: usize,
    of: usize,
    times: Range<Instant>,
}

/// The names of three nodes that know each other.
fn names(nodes: &[Node]) -> Vec<String> {
    let others: Vec<Vec<String>> = nodes.iter().map(Node::names_of_others).collect();
    let name =
        |own: usize| others[(own + 1) % 3].iter().find(|name| !others[own].contains(name)).unwrap();
    (0..3).map(name).cloned().collect()
}

/// What the nodes have logged about each other, once that has arrived; the killed one has ended.
fn suspicions(nodes: &[Node], names: &[String], victim: Option<usize>) -> Vec<Suspicion> {
    let (now, now_ms) = (now(), unix_ms());
    // Times are logged in milliseconds.
    let at = |ms: u64| now - Duration::from_millis(now_ms.saturating_sub(ms));
    let mut all = Vec::new();
    for (by, node) in nodes.iter().enumerate() {
        eventually("what was logged has arrived", || {
            let log = node.log();
            if Some(by) == victim {
                return log.last().is_some_and(String::is_empty);
            }
            let lost = log.iter().filter(|line| line.contains("node lost")).count();
            lost as u64 == node.counter("nodesLost")
        });
        let mut lost: BTreeMap<String, Instant> = BTreeMap::new();
        for line in node.log() {
            let Some((event, rest)) =
                line.strip_prefix("chat: node ").and_then(|rest| rest.split_once(": "))
            else {
                continue;
            };
            let mut words = rest.split(' ');
            let (name, ms) = (words.next().unwrap(), words.nth(1).unwrap().parse().unwrap());
            let of = names.iter().position(|other| other == name).unwrap();
            match event {
                "lost" => drop(lost.insert(name.to_owned(), at(ms))),
                _ => {
                    let end = at(ms) + Duration::from_millis(1);
                    let times = lost.remove(name).map(|from| from..end);
                    all.extend(times.map(|times| Suspicion { by, of, times }));
                }
            }
        }
        let open = lost.into_iter().map(|(name, from)| {
            let of = names.iter().position(|other| *other == name).unwrap();
            Suspicion { by, of, times: from..now }
        });
        all.extend(open.filter(|suspicion| Some(suspicion.of) != victim));
    }
    all
}

#[expect(clippy::disallowed_methods, reason = "the time of the log")]
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_millis() as u64
}

/// Sends a message by HTTP; the node may end meanwhile.
fn send(address: SocketAddr, user: u64, id: &str) -> Answered {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let form = format!("appID=101&userID=u{user}&msgID={id}&message=m");
        let length = form.len();
        let head = "POST /user/sendMessage HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
        stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{form}").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let Ok(body) = serde_json::from_str::<Value>(body) else { return Answered::Nothing };
    let data = &body["data"];
    match (&data["sendResults"], &data["sendResultsErr"]) {
        (Value::Bool(true), _) => Answered::Sent,
        (Value::Bool(false), why) => Answered::Failed(why.as_str().unwrap_or_default().to_owned()),
        _ => Answered::Duplicate,
    }
}

fn login(node: &Node, user: u64) -> Client {
    Client::login(node, &format!("u{user}"))
}

/// The ids that a client has received, until nothing more comes.
fn ids(client: &mut Client, is_connected: bool) -> Vec<String> {
    let id = |message: &Value| message["seq"].as_str().unwrap_or_default().to_owned();
    if is_connected {
        return client.received().iter().map(id).collect();
    }
    let mut received = Vec::new();
    while let Ok(message) = client.socket.read() {
        let text = message.to_text().unwrap_or_default();
        received.extend(serde_json::from_str::<Value>(text).iter().map(id));
    }
    received
}

#[expect(clippy::disallowed_methods, reason = "orders what threads do")]
fn now() -> Instant {
    Instant::now()
}

/// Counts of a run, and what is unexplained.
#[derive(Default, Debug)]
struct Verdict {
    sent: u64,
    failed: u64,
    duplicates: u64,
    /// Messages that the killed node, or its sockets, may have had.
    with_the_node: u64,
    /// Messages that the killed node had delivered and another one delivered again.
    repeated: u64,
    /// Times that a living node was thought to be gone, and messages that were answered as failed for that.
    suspected: usize,
    failed_by_suspicion: u64,
    unexplained: Vec<String>,
}

fn run(broker: &Broker, seed: u64) -> Verdict {
    let mut random = Random(seed);
    let args = ["--announce-users", "0", "--node-ttl-ms", "500"];
    let mut nodes = broker.nodes(&format!("seed-{seed}"), &args);
    let homes: Vec<u64> = (0..USERS).map(|_| random.below(3)).collect();
    let mut clients: Vec<Client> =
        (0..USERS).map(|user| login(&nodes[homes[user as usize] as usize], user)).collect();
    let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.address).collect();
    let names = names(&nodes);
    let progress = AtomicU64::new(0);
    let (victim, kill_at) = (random.below(3), 20 + random.below(SENDERS * MESSAGES / 2));
    let mut back: BTreeMap<u64, (Client, Instant)> = BTreeMap::new();
    let mut homes_of: Vec<Vec<usize>> = homes.iter().map(|home| vec![*home as usize]).collect();
    let (mut messages, mut killed) = (Vec::new(), now()..now());
    thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (mut random, addresses, progress) =
                    (Random(seed * 1_000 + sender), &addresses, &progress);
                scope.spawn(move || {
                    let mut sent: Vec<Message> = Vec::new();
                    for number in 0..MESSAGES {
                        // One of ten repeats what was sent before, perhaps at another node.
                        let again = number > 0 && random.below(10) == 0;
                        let (user, id) = match sent.last() {
                            Some(last) if again => (last.user, last.id.clone()),
                            _ => (random.below(USERS), format!("{sender}-{number}")),
                        };
                        let (from, at) = (now(), random.below(3) as usize);
                        let answered = send(addresses[at], user, &id);
                        sent.push(Message { id, user, answered, at, from, to: now() });
                        progress.fetch_add(1, Ordering::Relaxed);
                    }
                    sent
                })
            })
            .collect();
        while progress.load(Ordering::Relaxed) < kill_at {
            thread::yield_now();
        }
        let begin = now();
        nodes[victim as usize].child.kill().unwrap();
        nodes[victim as usize].child.wait().unwrap();
        // Until then it may have taken messages.
        killed = begin..now();
        for user in (0..USERS).filter(|user| homes[*user as usize] == victim) {
            let home = ((victim + 1 + random.below(2)) % 3) as usize;
            homes_of[user as usize].push(home);
            let client = login(&nodes[home], user);
            back.insert(user, (client, now()));
        }
        messages = senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect();
    });
    let mut received: BTreeMap<(u64, String), Copies> = BTreeMap::new();
    for user in 0..USERS {
        let home_lives = homes[user as usize] != victim;
        for id in ids(&mut clients[user as usize], home_lives) {
            received.entry((user, id)).or_default().0 += 1;
        }
        if let Some((client, _)) = back.get_mut(&user) {
            for id in ids(client, true) {
                received.entry((user, id)).or_default().1 += 1;
            }
        }
    }
    let suspicions = suspicions(&nodes, &names, Some(victim as usize));
    let is_suspected = |message: &Message| {
        suspicions.iter().any(|suspicion| {
            let Suspicion { by, of, times } = suspicion;
            let of_home = homes_of[message.user as usize].contains(of);
            *by == message.at && of_home && message.to >= times.start && message.from <= times.end
        })
    };
    let back = |user| back.get(&user).map(|(_, since)| *since);
    let verdict = judge(&messages, received, &killed, is_suspected, back);
    Verdict { suspected: suspicions.len(), ..verdict }
}

/// How often a message arrived where its user was first, and where it logged in again.
type Copies = (u64, u64);

/// `back` is when a user of the killed node had logged in again.
fn judge(
    messages: &[Message],
    mut received: BTreeMap<(u64, String), Copies>,
    killed: &Range<Instant>,
    is_suspected: impl Fn(&Message) -> bool,
    back: impl Fn(u64) -> Option<Instant>,
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut by_id: BTreeMap<&str, Vec<&Message>> = BTreeMap::new();
    for message in messages {
        by_id.entry(&message.id).or_default().push(message);
    }
    for (id, sends) in by_id {
        let user = sends[0].user;
        let copies = received.remove(&(user, id.to_owned())).unwrap_or_default();
        let arrived = copies.0 + copies.1;
        let answered = |is: fn(&Answered) -> bool| sends.iter().any(|send| is(&send.answered));
        let sent = answered(|answered| *answered == Answered::Sent);
        // Its user was on the killed node, or the node that was asked was.
        let of_the_node = back(user).is_some();
        let unanswered = answered(|answered| *answered == Answered::Nothing);
        let late =
            answered(|answered| matches!(answered, Answered::Failed(why) if why.contains("may")));
        let during = |send: &&Message| {
            back(send.user).is_some_and(|back| send.to >= killed.start && send.from <= back)
        };
        let explained = match (arrived, sent) {
            (1, true) => {
                verdict.sent += 1;
                true
            }
            (0, true) => {
                // The kernel had it for a socket that ended with the node.
                verdict.with_the_node += 1;
                of_the_node && sends[0].from <= killed.end
            }
            (0, false) => {
                verdict.failed += 1;
                let suspected = sends.iter().any(|send| is_suspected(send));
                let otherwise = unanswered || late || sends.iter().any(&during);
                verdict.failed_by_suspicion += u64::from(suspected && !otherwise);
                otherwise || suspected
            }
            (1, false) => {
                verdict.with_the_node += 1;
                unanswered || late
            }
            (2, true) => {
                // The node delivered it and was killed before it had told the others the id, so that another one
                // delivered its repetition to where the user was then.
                verdict.repeated += 1;
                let delivered = sends[0].to..killed.end;
                let untold = delivered.start + UNTOLD >= killed.start && !delivered.is_empty();
                let again = sends[1..].iter().any(|send| send.to >= killed.start);
                copies == (1, 1) && of_the_node && untold && again
            }
            _ => false,
        };
        verdict.duplicates +=
            sends.iter().filter(|send| send.answered == Answered::Duplicate).count() as u64;
        if !explained {
            verdict.unexplained.push(format!("{arrived} times: {sends:?}"));
        }
    }
    verdict.unexplained.extend(received.iter().map(|other| format!("foreign: {other:?}")));
    verdict
}

/// `CHAT_SEEDS=FROM-TO` runs others.
#[test]
fn each_message_arrives_once_or_is_answered_as_failed() {
    let seeds = std::env::var("CHAT_SEEDS").unwrap_or("1-20".into());
    let (from, to) = seeds.split_once('-').unwrap_or((&seeds, &seeds));
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    let brokers = [Broker::start(Kind::Redis), Broker::start(Kind::Nats)];
    let (mut seeds, mut suspicious, mut repeated) = (0_u64, 0_u64, 0_u64);
    for seed in from..=to {
        let verdict = run(&brokers[(seed % 2) as usize], seed);
        println!("seed {seed}: {verdict:?}");
        assert_eq!(verdict.unexplained, [""; 0], "seed {seed}");
        assert!(verdict.sent > SENDERS * MESSAGES / 4, "seed {seed}: {verdict:?}");
        seeds += 1;
        suspicious += u64::from(verdict.suspected > 0);
        repeated += verdict.repeated;
    }
    // Exceptions stay exceptions.
    assert!(
        suspicious <= seeds.div_ceil(2),
        "living nodes were lost in {suspicious} of {seeds} runs"
    );
    assert!(repeated <= seeds.div_ceil(4), "{repeated} messages arrived twice in {seeds} runs");
}

/// A node that is stopped for longer than the TTL, and goes on.
#[test]
fn a_silent_node_is_lost_for_as_long_as_it_is_silent() {
    let broker = Broker::start(Kind::Nats);
    // Long enough that a busy machine silences no node for it.
    let nodes = broker.nodes("silent", &["--announce-users", "0", "--node-ttl-ms", "2000"]);
    let names = names(&nodes);
    let mut client = login(&nodes[2], 1);
    let signal = |signal: &str| {
        let process = nodes[2].child.id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    };
    assert_eq!(send(nodes[0].address, 1, "before"), Answered::Sent);
    signal("-STOP");
    let hears = |node: &Node, other: usize| node.names_of_others().contains(&names[other]);
    eventually("the silent node is lost", || !hears(&nodes[0], 2) && !hears(&nodes[1], 2));
    // No other node is.
    assert_eq!(
        [nodes[0].names_of_others(), nodes[1].names_of_others()],
        [&names[1..2], &names[..1]]
    );
    let (from, at) = (now(), 0);
    let answered = send(nodes[at].address, 1, "meanwhile");
    let to = now();
    assert_eq!(answered, Answered::Failed("用户不在线".into()));
    signal("-CONT");
    eventually("the node is heard again", || hears(&nodes[0], 2) && hears(&nodes[1], 2));
    assert_eq!(send(nodes[0].address, 1, "after"), Answered::Sent);
    let received = ids(&mut client, true);
    assert_eq!(received, ["before", "after"]);
    // The failure is explained by what is logged, and by nothing else.
    let all = suspicions(&nodes, &names, None);
    let explains = |one: &&Suspicion| {
        one.by == at && one.of == 2 && one.times.start <= to && from <= one.times.end
    };
    assert_eq!(all.iter().filter(explains).count(), 1, "{all:?}");
    let lost: Vec<_> = all.iter().map(|one| (one.by, one.of)).collect();
    assert!(lost.iter().all(|lost| [(0, 2), (1, 2), (2, 0), (2, 1)].contains(lost)), "{lost:?}");
}
