//! Metrics of `standfast proxy`: each is documented and changes with its event; and the memory limit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};

use rustix::process::Signal;

use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::Upstream;
use crate::harness::{Scratch, eventually, http};

/// Metrics that do not change here: a limit of the machine, failures of the access log
/// (`log_sinks`), a limit of a thousand connections, and names with more than 256 addresses.
const STILL: [&str; 5] = [
    "access_log_dropped",
    "access_log_errors",
    "bound_refused",
    "descriptors_max",
    "pool_addresses_left_out",
];

/// The labels of an upstream that is configured by its address.
fn labels(pool: &str, address: &impl Display) -> String {
    format!("pool=\"{pool}\",upstream=\"{address}\",address=\"{address}\"")
}

/// The names of all metrics, without prefix and ending.
fn families(server: &Server) -> BTreeSet<String> {
    let text = http::get(server.admin, "/metrics").body;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE standfast_"));
    let names = types.filter_map(|line| line.split(' ').next());
    names.map(|name| name.strip_suffix("_total").unwrap_or(name).to_owned()).collect()
}

/// The proxy's metrics beyond those of every server, as the operators' page lists them.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../docs/operate/proxy.md");
    let section = page.split("\n## Metrics\n").nth(1).expect("the page has metrics");
    let section = section.split("\n## ").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`').step_by(2));
    let bare = names.map(|name| name.split('{').next().unwrap_or_default().to_owned());
    bare.filter(|name| !name.is_empty()).collect()
}

#[test]
fn the_operators_page_lists_every_metric_and_no_other() {
    let (server, upstream) = (Server::start(&[]), Upstream::new());
    let proxy = Server::start_proxy(&["--upstream", &upstream.address().to_string()]);
    let every_server = families(&server);
    let own: BTreeSet<String> = families(&proxy).difference(&every_server).cloned().collect();
    assert_eq!(own, documented());
}

/// A proxy with an upstream in the test, in a pool with a `max` of 1, and pools that fail.
struct Setup {
    proxy: Server,
    upstream: Upstream,
    silent: Upstream,
    other: Upstream,
    dying: Option<TcpListener>,
    /// An address that refuses connections.
    gone: SocketAddr,
    /// All scrapes so far.
    read: Vec<HashMap<String, f64>>,
    _config: Scratch,
}

impl Setup {
    fn new() -> Setup {
        let (upstream, silent, other) = (Upstream::new(), Upstream::new(), Upstream::new());
        let dying = TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let route = |name: &str| format!("[[route]]\nhost = '{name}.test'\npool = '{name}'\n");
        let pool = |name: &str, address: &dyn std::fmt::Display, more: &str| {
            format!("{}[pool.{name}]\nupstreams = ['{address}']\n{more}\n", route(name))
        };
        let config = [
            "[proxy]\nworkers = 1\nconnect_timeout = '60s'\nsource = ['127.0.0.9']\n\
             body_buffer = '1KiB'\nbody_buffer_memory = '2B'\n"
                .to_owned(),
            pool("one", &upstream.address(), "max = 1\nqueue = 1\nqueue_timeout = '60s'"),
            pool("gone", &gone, "eject_after = 1\neject_for = '1ms'"),
            pool("dying", &dying.local_addr().unwrap(), "check = 'tcp'\ncheck_interval = '100ms'"),
            pool("hopeless", &gone, "check = 'tcp'\ncheck_interval = '100ms'\npanic_threshold = 0"),
            pool("both", &format_args!("{gone}', '{}", other.address()), "balance = 'round_robin'"),
            format!(
                "{}[pool.spare]\nupstreams = ['{gone}', {{ address = '{}', backup = true }}]\n",
                route("spare"),
                other.address()
            ),
            pool(
                "errors",
                &format_args!("{gone}', '{}", other.address()),
                "eject_after = 0\neject_5xx = 50\neject_5xx_answers = 1",
            ),
            pool("lonely", &other.address(), "eject_5xx = 50\neject_5xx_answers = 1"),
            pool("silent", &silent.address(), "tls = true\ntls_insecure = true"),
        ];
        // [[route]] tables form an array, so pools may be in between.
        let config = Scratch::new("metrics.toml", &config.concat());
        let proxy = Server::start_proxy(&["--config", config.path()]);
        let read = vec![proxy.metrics()];
        Setup { proxy, upstream, silent, other, dying: Some(dying), gone, read, _config: config }
    }

    /// Waits until a sample has that value, and keeps that scrape.
    fn until(&mut self, sample: &str, value: f64) {
        let sample = format!("standfast_{sample}");
        eventually(&format!("{sample} is {value}"), || {
            let metrics = self.proxy.metrics();
            let there = metrics.get(&sample) == Some(&value);
            self.read.extend(there.then_some(metrics));
            there
        });
    }

    fn ask(&self, head: &str) -> Socket {
        let mut socket = Socket::connect(self.proxy.listen);
        socket.send(head.as_bytes());
        socket
    }

    fn handshake(&self, pool: &str) -> Socket {
        self.ask(&upgrade("/any", &[("Host", &format!("{pool}.test"))]))
    }

    /// Metrics of which some sample has changed.
    fn moved(&self) -> BTreeSet<String> {
        let mut values = BTreeMap::<&str, BTreeSet<String>>::new();
        for (sample, value) in self.read.iter().flatten() {
            values.entry(sample).or_default().insert(value.to_string());
        }
        let first = &self.read[0];
        let changed = values.into_iter().filter(|(sample, values)| {
            values.len() > 1 || !first.contains_key(*sample) && !values.contains("0")
        });
        let families = changed.map(|(sample, _)| {
            let name = sample.split('{').next().unwrap_or_default();
            let name = name.strip_prefix("standfast_").unwrap_or(name);
            let endings = ["_total", "_bucket", "_sum", "_count"];
            endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name).to_owned()
        });
        families.collect()
    }
}

#[test]
fn every_metric_changes_with_its_event() {
    let mut setup = Setup::new();
    let address = setup.upstream.address();
    let port = format!("source_ports{{{},source=\"127.0.0.9\"}}", labels("one", &address));
    // A tunnel, and two requests that find its upstream at its max.
    let mut client = setup.handshake("one");
    let mut leg = setup.upstream.tunnel();
    assert_eq!(client.response().status, 101);
    setup.until("worker_tunnels{worker=\"0\",state=\"open\"}", 1.0);
    setup.until(&port, 1.0);
    client.send(b"up");
    assert_eq!(leg.bytes(2), b"up");
    leg.say("down");
    assert_eq!(client.text_until("down"), "down");
    let waiting = setup.handshake("one");
    setup.until("worker_requests{worker=\"0\",state=\"waiting\"}", 1.0);
    setup.until("pool_waiting{pool=\"one\"}", 1.0);
    assert_eq!(setup.handshake("one").response().status, 503);
    // A half close alone would leave the tunnel half open.
    waiting.reset();
    setup.until("exchanges", 0.0);
    client.finish_sending();
    setup.until("worker_tunnels{worker=\"0\",state=\"half_closed\"}", 1.0);
    drop(leg);
    assert!(client.ends());
    setup.until("tunnels_ended_by_total{side=\"client\"}", 1.0);
    setup.until("worker_tunnels{worker=\"0\",state=\"half_closed\"}", 0.0);
    setup.until(&port, 0.0);
    plain_requests(&mut setup);
    what_fails(&mut setup);
    buffered_bodies(&mut setup);
    // A head in two parts.
    let whole = "GET / HTTP/1.1\r\nHost: nobody.test\r\n\r\n";
    let mut slow = setup.ask(&whole[..20]);
    setup.until("handshakes", 1.0);
    assert_eq!(setup.read[0]["standfast_handshake_seconds_count"], 0.0);
    let before = setup.proxy.metrics()["standfast_handshake_seconds_sum"];
    slow.send(&whole.as_bytes()[20..]);
    assert_eq!(slow.response().status, 404);
    setup.until("requests_refused_total{reason=\"no_route\"}", 1.0);
    let after = setup.proxy.metrics()["standfast_handshake_seconds_sum"];
    assert!(after > before, "{after} {before}");
    let mut all = documented();
    STILL.iter().for_each(|still| assert!(all.remove(*still), "{still}"));
    let moved = setup.moved();
    let still: Vec<&String> = all.difference(&moved).collect();
    assert!(still.is_empty(), "nothing has moved {still:?}");
}

fn plain_requests(setup: &mut Setup) {
    let get = "GET / HTTP/1.1\r\nHost: one.test\r\n\r\n";
    let mut client = setup.ask(get);
    let mut leg = setup.upstream.accept();
    leg.head();
    setup.until("worker_requests{worker=\"0\",state=\"asked\"}", 1.0);
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
    setup.until("worker_requests{worker=\"0\",state=\"answering\"}", 1.0);
    leg.say("k");
    assert_eq!(client.response().body, "ok");
    client.send(get.as_bytes());
    leg.head();
    leg.say("HTTP/1.1 401 No\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response().status, 401);
    setup.until("bound_connections", 1.0);
    client.send(get.as_bytes());
    leg.head();
    setup.until("reused_total", 2.0);
    leg.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
    client.text_until("o");
    drop(leg);
    assert!(client.ends());
    setup.until("truncated_total", 1.0);
    let mut refused = setup.handshake("one");
    let mut leg = setup.upstream.accept();
    leg.head();
    leg.say("HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(refused.response().status, 403);
    setup.until("declined_total", 1.0);
}

fn what_fails(setup: &mut Setup) {
    let gone = setup.gone;
    assert_eq!(setup.handshake("gone").response().status, 502);
    setup.until("requests_refused_total{reason=\"unreachable\"}", 1.0);
    // Round robin meets the dead upstream first; the third one goes to a backup. Of two upstreams one may be
    // ejected because of its answers, and a single one may not.
    for (pool, status) in
        [("both", 204), ("both", 204), ("spare", 204), ("errors", 500), ("lonely", 500)]
    {
        let head = format!("GET / HTTP/1.1\r\nHost: {pool}.test\r\nConnection: close\r\n\r\n");
        let mut asks = setup.ask(&head);
        let mut leg = setup.other.accept();
        leg.head();
        leg.say(format!(
            "HTTP/1.1 {status} None\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ));
        assert_eq!(asks.response().status, status);
    }
    let other = labels("errors", &setup.other.address());
    setup.until(&format!("upstream_ejections_5xx_total{{{other}}}"), 1.0);
    setup.until(&format!("upstream_unchecked{{{other}}}"), 0.0);
    setup.until("pool_ejections_withheld_total{pool=\"lonely\"}", 1.0);
    setup.until("pool_backup_picked_total{pool=\"spare\"}", 1.0);
    let retries = setup.proxy.metrics()["standfast_retries_total"];
    setup.until("retries_total", retries);
    assert!(retries >= 1.0, "{retries}");
    let address = setup.dying.take().unwrap().local_addr().unwrap();
    setup.until(&format!("upstream_up{{{}}}", labels("dying", &address)), 0.0);
    assert_eq!(setup.handshake("dying").response().status, 502);
    setup.until("pool_panicked_total{pool=\"dying\"}", 1.0);
    setup.until(&format!("upstream_up{{{}}}", labels("hopeless", &gone)), 0.0);
    assert_eq!(setup.handshake("hopeless").response().status, 503);
    setup.until("pool_down_total{pool=\"hopeless\"}", 1.0);
    let hanging = setup.handshake("silent");
    let leg = setup.silent.accept();
    setup.until("worker_requests{worker=\"0\",state=\"connecting\"}", 1.0);
    drop((hanging, leg));
    setup.until("exchanges", 0.0);
}

fn buffered_bodies(setup: &mut Setup) {
    let post = "POST / HTTP/1.1\r\nHost: both.test\r\nContent-Length: 3\r\n\r\n";
    let first = setup.ask(&format!("{post}ab"));
    setup.until("buffered_body_bytes", 2.0);
    setup.until("bodies_buffered_total", 1.0);
    let second = setup.ask(post);
    setup.until("bodies_unbuffered_total", 1.0);
    drop((first, second));
    setup.until("exchanges", 0.0);
    setup.until("buffered_body_bytes", 0.0);
}

#[test]
fn over_the_memory_limit_clients_are_refused_and_tunnels_that_hold_nothing_stay() {
    let node = Server::start(&[]);
    // Routes with long paths: memory that closing clients does not free.
    let ballast: String = (0..999)
        .map(|number| {
            format!("[[route]]\npath = '/{number}{}'\npool = 'node'\n", "x".repeat(16 << 10))
        })
        .collect();
    let text = |limit: &str| {
        format!(
            "[proxy]\nmemory_limit = '{limit}'\nworkers = 1\nfin_timeout = '1s'\nidle_timeout = '10m'\n{ballast}\
             [[route]]\npath = '/echo'\npool = 'node'\n[pool.node]\nupstreams = ['{}']\n",
            node.listen
        )
    };
    let config = Scratch::new("memory.toml", &text("4GiB"));
    let proxy = Server::start_proxy(&["--config", config.path()]);
    let mut tunnels: Vec<Socket> = (0..40).map(|_| Socket::open(proxy.listen, "/echo")).collect();
    let mut speaker = Socket::open(proxy.listen, "/echo");
    assert!(proxy.rss_bytes() > 17 << 20, "the routes do not fill the memory");
    let mut talks = || {
        speaker.send_frame(crate::harness::socket::TEXT, b"here");
        speaker.frame().is_some_and(|frame| frame.payload == b"here")
    };
    config.write(&text("16MiB"));
    proxy.signal(Signal::HUP);
    let refused = "standfast_refused_total{limit=\"memory_limit\"}";
    eventually("nobody is let in", || {
        assert!(talks());
        let mut late = Socket::connect(proxy.listen);
        late.send(upgrade("/echo", &[]).as_bytes());
        late.response().status == 503
    });
    assert!(proxy.metrics()[refused] >= 1.0);
    assert!(proxy.log().contains("--memory-limit"), "{}", proxy.log());
    // The routes take the memory, so closing tunnels would free next to nothing.
    eventually("the log tells that", || {
        assert!(talks());
        proxy.log().contains("closing clients would not help")
    });
    let echoes = |socket: &mut Socket| {
        socket.send_frame(crate::harness::socket::TEXT, b"there");
        socket.frame().is_some_and(|frame| frame.payload == b"there")
    };
    assert!(tunnels.iter_mut().all(echoes), "a silent tunnel was closed");
    config.write(&text("4GiB"));
    proxy.signal(Signal::HUP);
    eventually("who comes is let in again", || {
        assert!(talks());
        let mut late = Socket::connect(proxy.listen);
        late.send(upgrade("/echo", &[]).as_bytes());
        late.response().status == 101
    });
    assert_eq!(proxy.metrics()["standfast_shed_total"], 0.0);
}
