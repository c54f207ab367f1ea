//! Fleets whose agents have other clocks than their leader, and slow ways to it: network namespaces with a relay
//! in front of NATS, and time namespaces. Each agent's clock is shifted, and drifts by what the relay changes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::harness::executable::{self, Finished};
use crate::harness::lowered::Namespace;
use crate::harness::recorder::Recorder;

/// Runs until one is not disturbed by what else the machine does.
const RUNS_MAX: usize = 3;
/// Where the server and the relay listen, in each namespace.
const SERVER: &str = "127.0.0.1:8080";
const RELAY: &str = "127.0.0.1:4222";
const PPM: i128 = 1_000_000;

/// The ways of an agent to its leader, and its clock.
#[derive(Copy, Clone, Debug)]
struct Site {
    /// The shortest and the longest time there and back, in milliseconds.
    there: [u64; 2],
    back: [u64; 2],
    shift_seconds: i64,
    drift_ppm: i64,
    trouble: Option<Trouble>,
}

/// What happens before the start.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Trouble {
    /// The clock jumps by three seconds when it is read for this time.
    Jumps(u32),
    /// The clock jumps back by three seconds when the start has been told.
    JumpsAtStart,
    /// The start is told three seconds later.
    LateStart,
    /// Every message comes twice.
    Doubles,
}

const JUMP_NS: i128 = 3_000_000_000;
const LATE: Duration = Duration::from_secs(3);

/// The first one is the reference.
const SITES: [Site; 5] = [
    site([0, 0], [0, 0], 0, 0),
    site([0, 50], [0, 50], -10, 100),
    site([0, 50], [0, 1], 10, -100),
    site([0, 2], [0, 50], 7, 100),
    site([0, 25], [0, 40], -3, -100),
];

/// Ways that always take the same time, so that nobody can know how much of it is there and how much back.
const FIXED: [Site; 3] = [
    site([0, 0], [0, 0], 0, 0),
    site([50, 50], [0, 0], -10, 100),
    site([0, 0], [50, 50], 10, -100),
];

const fn site(there: [u64; 2], back: [u64; 2], shift_seconds: i64, drift_ppm: i64) -> Site {
    Site { there, back, shift_seconds, drift_ppm, trouble: None }
}

impl Site {
    const fn with(self, trouble: Trouble) -> Site {
        Site { trouble: Some(trouble), ..self }
    }
}

/// What a relay does to the clock of its agent, and what it has seen.
#[derive(Default)]
struct Clock {
    drift_ppm: i128,
    trouble: Option<Trouble>,
    /// How often it was read, and by how much it has jumped.
    reads: u32,
    jumped_ns: i128,
    /// A time at which the agent's clock shows the time of its machine; the first that is seen.
    origin_ns: Option<i128>,
    /// The first time to begin at that it has passed on, by the agent's machine.
    begin_ns: Option<i128>,
}

impl Clock {
    /// What the agent's clock shows at a time of its machine.
    fn shown(&mut self, at_ns: u64) -> u64 {
        let at_ns = i128::from(at_ns);
        let origin_ns = *self.origin_ns.get_or_insert(at_ns);
        self.reads += 1;
        if self.trouble == Some(Trouble::Jumps(self.reads)) {
            self.jumped_ns += JUMP_NS;
        }
        let drifted_ns = (at_ns - origin_ns) * self.drift_ppm / PPM;
        (at_ns + drifted_ns + self.jumped_ns).try_into().unwrap()
    }

    /// The time of its machine at which the agent's clock shows this.
    fn begin(&mut self, shown_ns: u64) -> u64 {
        if self.trouble == Some(Trouble::JumpsAtStart) && self.begin_ns.is_none() {
            self.jumped_ns -= JUMP_NS;
        }
        let (shown_ns, origin_ns) =
            (i128::from(shown_ns) - self.jumped_ns, self.origin_ns.unwrap_or(0));
        let at_ns = origin_ns + (shown_ns - origin_ns) * PPM / (PPM + self.drift_ppm);
        self.begin_ns.get_or_insert(at_ns);
        at_ns.try_into().unwrap()
    }

    /// The body of a message as it is passed on: a line of JSON, and bytes.
    fn changed(&mut self, body: Vec<u8>) -> Vec<u8> {
        let end = body.iter().position(|byte| *byte == b'\n').unwrap_or(body.len());
        let (line, rest) = body.split_at(end);
        let Ok(mut message) = serde_json::from_slice::<Value>(line) else { return body };
        if let Some(at_ns) = message.pointer_mut("/says/pong/at_ns") {
            *at_ns = json!(self.shown(at_ns.as_u64().unwrap()));
        } else if let Some(at_ns) = message.pointer_mut("/begin/at_ns") {
            *at_ns = json!(self.begin(at_ns.as_u64().unwrap()));
        } else {
            return body;
        }
        [message.to_string().as_bytes(), rest].concat()
    }
}

/// Passes on what comes from one side, in order, each part after another time.
fn pass_on(from: TcpStream, to: TcpStream, clock: Arc<Mutex<Clock>>, least_most_ms: [u64; 2]) {
    let (parts, waiting): (Sender<(Instant, Vec<u8>)>, Receiver<_>) = mpsc::channel();
    thread::spawn(move || {
        let mut to = to;
        for (due, part) in waiting {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&part).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        let [least_us, most_us] = least_most_ms.map(|ms| ms * 1_000);
        let mut random = u64::from(from.local_addr().unwrap().port());
        let (mut from, mut due, mut late) = (BufReader::new(from), Instant::now(), None);
        loop {
            let mut line = String::new();
            if !from.read_line(&mut line).is_ok_and(|count| count > 0) {
                return;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_message = matches!(words.first(), Some(&("PUB" | "MSG")));
            let part = if is_message {
                let mut body = vec![0; words.last().unwrap().parse().unwrap()];
                let mut end = [0; 2];
                if from.read_exact(&mut body).and_then(|()| from.read_exact(&mut end)).is_err() {
                    return;
                }
                let body = clock.lock().unwrap().changed(body);
                let trouble = clock.lock().unwrap().trouble;
                if trouble == Some(Trouble::LateStart) && body.starts_with(b"{\"begin\"") {
                    due = due.max(*late.get_or_insert_with(|| Instant::now() + LATE));
                }
                let before = words[..words.len() - 1].join(" ");
                let head = format!("{before} {}\r\n", body.len());
                let part = [head.as_bytes(), &body, b"\r\n"].concat();
                part.repeat(if trouble == Some(Trouble::Doubles) { 2 } else { 1 })
            } else {
                line.into_bytes()
            };
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let way = least_us + (random >> 33) % (most_us - least_us).max(1);
            due = due.max(Instant::now() + Duration::from_micros(way));
            if parts.send((due, part)).is_err() {
                return;
            }
        }
    });
}

/// Passes on what an agent and NATS send each other.
fn relay(listener: TcpListener, nats: SocketAddr, site: Site, clock: Arc<Mutex<Clock>>) {
    thread::spawn(move || {
        for agent in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(nats).expect("NATS accepts");
            for stream in [&agent, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let both = (agent.try_clone().unwrap(), server.try_clone().unwrap());
            pass_on(both.0, both.1, Arc::clone(&clock), site.back);
            pass_on(server, agent, Arc::clone(&clock), site.there);
        }
    });
}

/// Agents at sites, and a server that logs, at the same address in each namespace.
struct Sites {
    fleet: Fleet,
    sites: Vec<(Site, Arc<Mutex<Clock>>)>,
    server: Recorder,
    _namespaces: Vec<Namespace>,
}

impl Sites {
    fn start(sites: &[Site]) -> Option<Sites> {
        let mut fleet = Fleet::start(0)?;
        let (mut namespaces, mut listeners, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for (number, site) in sites.iter().enumerate() {
            let namespace = Namespace::create()?;
            let bound =
                namespace.within(|| [SERVER, RELAY].map(|at| TcpListener::bind(at).unwrap()));
            let [server, listener] = bound;
            let (drift_ppm, trouble) = (site.drift_ppm.into(), site.trouble);
            let clock = Clock { drift_ppm, trouble, ..Clock::default() };
            let clock = Arc::new(Mutex::new(clock));
            relay(listener, fleet.broker.address, *site, Arc::clone(&clock));
            let shift = format!("--monotonic={}", site.shift_seconds);
            let mut command = executable::standfast(&["agent", "--name", &format!("a{number}")]);
            let program = command.get_program().to_owned();
            let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            command = std::process::Command::new("unshare");
            command.args(["--time", &shift, "--fork", "--kill-child"]).arg(program).args(args);
            fleet.spawn(namespace.inside(&command));
            listeners.push(server);
            all.push((*site, clock));
            namespaces.push(namespace);
        }
        let server = Recorder::on(listeners, 0, |_| (200, Vec::new(), "hello".to_owned()));
        Some(Sites { fleet, sites: all, server, _namespaces: namespaces })
    }

    /// A run of a rate that rises from zero.
    fn lead(&self, seconds: u64, rate: u64) -> Finished {
        for (_, clock) in &self.sites {
            let mut clock = clock.lock().unwrap();
            (clock.origin_ns, clock.begin_ns) = (None, None);
        }
        let (url, rates) = (format!("http://{SERVER}/"), format!("{seconds}s:{rate}"));
        let connections = (8 * self.sites.len()).to_string();
        self.fleet.run(&[
            &url,
            "-c",
            &connections,
            "--rates",
            &rates,
            "--agents-within",
            "30s",
            "--fail",
            "errors<1",
        ])
    }

    /// The same for one that must be complete. Returns its result, and when each agent was told to begin, in
    /// nanoseconds of this machine's clock.
    fn run(&self, seconds: u64, rate: u64) -> (Value, Vec<i128>) {
        let finished = self.lead(seconds, rate);
        let json = finished.json();
        assert_eq!(json["fleet"]["complete"], json!(true), "{finished:?}");
        let begins = self.sites.iter().map(|(site, clock)| {
            let begin_ns = clock.lock().unwrap().begin_ns.expect("it was told to begin");
            begin_ns - i128::from(site.shift_seconds) * 1_000_000_000
        });
        let begins: Vec<i128> = begins.collect();
        self.check_errors(&json, &begins);
        (json, begins)
    }

    /// The stated error of each start contains the true one, which the first agent tells.
    fn check_errors(&self, json: &Value, begins: &[i128]) {
        let agents = json["fleet"]["agents"].as_array().unwrap();
        let error =
            |agent: &Value| (agent["start_error_ms"].as_f64().unwrap() * 1e6).ceil() as u128;
        for ((agent, begin), (site, _)) in agents.iter().zip(begins).zip(&self.sites) {
            let wrong = begin.abs_diff(begins[0]);
            let stated = error(agent) + error(&agents[0]);
            assert!(wrong <= stated, "{site:?}: {wrong} ns, stated {stated} ns");
        }
    }
}

fn now_ns() -> i128 {
    let now = clock_gettime(ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// The instants of this machine's clock at which the loads began, with how late each was.
fn starts(json: &Value, begins: &[i128]) -> Vec<i128> {
    let agents = json["fleet"]["agents"].as_array().unwrap();
    let late = agents.iter().map(|agent| (agent["start_late_ms"].as_f64().unwrap() * 1e6) as i128);
    begins.iter().zip(late).map(|(begin, late)| begin + late).collect()
}

/// By how many percent what the server has logged since the start differs from a rate that rises to this one, at
/// most, at the end of each second.
fn deviation(server: &Recorder, from: usize, begin_ns: i128, seconds: u64, rate: u64) -> f64 {
    let (instant, ns) = (Instant::now(), now_ns());
    let passed =
        |at: Instant| (ns - begin_ns) as f64 / 1e9 - instant.duration_since(at).as_secs_f64();
    let mut times: Vec<f64> =
        server.asked()[from..].iter().map(|request| passed(request.at)).collect();
    times.sort_by(f64::total_cmp);
    let each = (1..=seconds).map(|second| {
        let at = second as f64;
        let plan = rate as f64 * at * at / (2 * seconds) as f64;
        let sum = times.iter().filter(|time| **time <= at).count() as f64;
        100.0 * (sum - plan).abs() / plan
    });
    each.fold(0.0, f64::max)
}

#[test]
fn all_begin_at_one_instant_whatever_their_clocks_and_ways() {
    // More for measurements: a single run says little of a 99th percentile.
    let asked = std::env::var("STANDFAST_FLEET_STARTS").ok().and_then(|text| text.parse().ok());
    let runs: usize = asked.unwrap_or(RUNS_MAX);
    let Some(sites) = Sites::start(&SITES) else { return };
    let (seconds, rate) = (4, 2_000);
    let mut skews = Vec::new();
    for run in 0..runs {
        let before = sites.server.count();
        let (json, begins) = sites.run(seconds, rate);
        assert_eq!(json["requests"]["sent"], json!(sites.server.count() - before));
        let spread = |times: &[i128]| times.iter().max().unwrap() - times.iter().min().unwrap();
        let (planned, started) = (spread(&begins), spread(&starts(&json, &begins)));
        let deviation = deviation(&sites.server, before, begins[0], seconds, rate);
        println!(
            "run {run}: planned within {:.2} ms, started within {:.2} ms, ramp within {deviation:.2} %",
            planned as f64 / 1e6,
            started as f64 / 1e6,
        );
        let connections: BTreeSet<u64> =
            sites.server.asked()[before..].iter().map(|request| request.connection).collect();
        assert!(connections.len() <= 8 * SITES.len());
        skews.push((planned, started, deviation));
        if asked.is_none() && planned <= 5_000_000 {
            return;
        }
    }
    let good = skews.iter().filter(|(planned, ..)| *planned <= 5_000_000).count();
    assert!(good > runs / 2, "{skews:?}");
}

#[test]
fn ways_that_differ_by_a_fixed_time_are_within_the_stated_error() {
    let Some(sites) = Sites::start(&FIXED) else { return };
    let (json, begins) = sites.run(1, 300);
    // The middle is wrong by half of the difference, and the error says so.
    let wrong = begins[1].abs_diff(begins[2]);
    assert!((40_000_000..60_000_000).contains(&wrong), "{wrong}");
    let agents = json["fleet"]["agents"].as_array().unwrap();
    assert!(
        agents[1..].iter().all(|agent| agent["start_error_ms"].as_f64() >= Some(25.0)),
        "{json}"
    );
}

#[test]
fn a_clock_that_jumps_before_the_start_is_measured_again() {
    let sites = [SITES[0], SITES[3].with(Trouble::Jumps(9)), SITES[0].with(Trouble::Jumps(14))];
    let Some(sites) = Sites::start(&sites) else { return };
    let (json, begins) = sites.run(1, 300);
    assert_eq!(json["requests"]["sent"], json!(sites.server.count()));
    // Of the agent with ways that vary less is known; the true difference is within the error, as of all.
    let wrong = begins[0].abs_diff(begins[1]).max(begins[0].abs_diff(begins[2]));
    assert!(wrong < 30_000_000, "{wrong}");
}

#[test]
fn an_agent_that_cannot_begin_with_the_others_makes_the_run_incomplete() {
    for (trouble, whys) in [
        (Trouble::JumpsAtStart, &["its clock jumped before the start"][..]),
        (Trouble::LateStart, &["it did not confirm the start", "the start came too late"]),
    ] {
        let Some(sites) = Sites::start(&[SITES[0], SITES[0].with(trouble)]) else { return };
        let finished = sites.lead(2, 300);
        let json = finished.json();
        assert_eq!((finished.code, &json["held"]), (Some(1), &json!(false)), "{finished:?}");
        let missing = json["fleet"]["missing"][0].as_str().unwrap_or_default();
        assert!(
            whys.iter().any(|why| missing == format!("agent a1: {why}")),
            "{trouble:?}: {finished:?}"
        );
    }
}

#[test]
fn messages_that_come_twice_change_no_count() {
    let sites = [SITES[1], SITES[2], SITES[0]].map(|site| site.with(Trouble::Doubles));
    let Some(sites) = Sites::start(&sites) else { return };
    let (json, _) = sites.run(2, 300);
    assert_eq!(json["requests"]["sent"], json!(sites.server.count()));
}
