//! How tunnels of `standfast proxy` close with a slow, half-closed or silent peer: no bytes sent before
//! a close are lost, and a vanished peer is dropped.

use std::io::Write;

use crate::harness::lowered::Namespace;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::{Leg, Upstream};
use crate::harness::{Scratch, eventually};

fn tunnel(mut socket: Socket, path: &str, upstream: &Upstream) -> (Socket, Leg) {
    socket.send(upgrade(path, &[]).as_bytes());
    let leg = upstream.tunnel();
    assert_eq!(socket.response().status, 101);
    (socket, leg)
}

fn metric(proxy: &Server, name: &str) -> f64 {
    proxy.metrics().get(&format!("standfast_{name}")).copied().unwrap_or_default()
}

#[test]
fn bytes_sent_before_both_sides_closed_reach_a_late_reader() {
    let upstream = Upstream::new();
    let address = upstream.address().to_string();
    let proxy = Server::start_proxy(&["--upstream", &address, "--workers", "1"]);
    let (mut socket, mut leg) = tunnel(Socket::connect(proxy.listen), "/slow", &upstream);
    socket.finish_sending();
    assert!(leg.ends());
    leg.stream.set_nonblocking(true).unwrap();
    let mut said = 0;
    eventually("the proxy keeps something back for the client", || {
        said += leg.stream.write(&[b'd'; 64 * 1024]).unwrap_or(0);
        metric(&proxy, "queued_bytes") > 0.0
    });
    // These bytes stay in the kernel, as the upstream is paused; then the second side closes.
    said += leg.stream.write(&[b'd'; 16 * 1024]).unwrap_or(0);
    leg.finish();
    // The only worker has processed it once another tunnel's bytes have passed.
    let (mut other, mut far) = tunnel(Socket::connect(proxy.listen), "/other", &upstream);
    other.send(b"there?");
    assert_eq!(far.bytes(6), b"there?");
    let mut got = Vec::new();
    while socket.take(&mut got) {}
    assert_eq!(got.len(), said, "all that was said before the end");
    assert!(got.iter().all(|byte| *byte == b'd'));
    drop((socket, leg));
    eventually("it ended as the client began it", || {
        metric(&proxy, "tunnels_ended_total{reason=\"client\"}") == 1.0
    });
}

#[test]
fn a_live_peer_that_never_reads_is_dropped_with_its_own_reason() {
    let upstream = Upstream::new();
    let address = upstream.address().to_string();
    let log = Scratch::new("given-up.log", "");
    let flags = ["--upstream", &address, "--workers", "1", "--peer-timeout", "2s"];
    let proxy = Server::start_proxy(&[&flags[..], &["--access-log", log.path()]].concat());
    // Each side in turn sends more than the proxy buffers for the other, which is alive but never reads.
    for (path, reason) in [("/down", "client_given_up"), ("/up", "upstream_given_up")] {
        let (mut socket, mut leg) = tunnel(Socket::connect(proxy.listen), path, &upstream);
        leg.stream.set_nonblocking(true).unwrap();
        let name = format!("tunnels_ended_total{{reason=\"{reason}\"}}");
        eventually("it is given up", || {
            if path == "/down" {
                let _ = leg.stream.write(&[b'd'; 64 * 1024]);
            } else {
                socket.pour(&[b'u'; 64 * 1024]);
            }
            metric(&proxy, &name) == 1.0
        });
        eventually("its line is written", || {
            let text = std::fs::read_to_string(log.path()).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            let mut told = lines.filter(|line: &serde_json::Value| line["target"] == path);
            told.next().is_some_and(|line| line["why"] == reason && line["closed_by"] == "proxy")
        });
    }
    assert_eq!(metric(&proxy, "closed_total{cause=\"given_up\"}"), 2.0);
    let broken = ["client_reset", "upstream_reset"];
    let broken =
        broken.map(|of| metric(&proxy, &format!("tunnels_ended_total{{reason=\"{of}\"}}")));
    assert_eq!(broken, [0.0, 0.0], "nobody broke off");
}

/// Unanswered keepalive probes of each connection over this link; only the proxy sends any.
fn unanswered(here: &Namespace) -> Vec<u32> {
    let sockets = here.output("ss", &["-tnoH", "state", "established"]);
    let asked = |line: &str| {
        let timer = line.split("timer:(").nth(1)?.split(')').next()?;
        timer.rsplit(',').next()?.parse().ok()
    };
    let over = sockets.lines().filter(|line| line.contains("198.18.0.2:"));
    over.map(|line| asked(line).unwrap_or(0)).collect()
}

#[test]
fn bi_28_a_silent_peer_is_dropped_and_the_other_side_closed() {
    let Some((here, away)) = Namespace::create().zip(Namespace::create()) else { return };
    here.join(&away);
    let near = here.within(Upstream::new);
    let far = away.within(|| Upstream::at("198.18.0.2"));
    let routes = format!(
        "[[route]]\npath = '/far'\npool = 'far'\n[[route]]\npool = 'near'\n\
         [pool.near]\nupstreams = ['{}']\n[pool.far]\nupstreams = ['{}']\n",
        near.address(),
        far.address()
    );
    let routes = Scratch::new("silent.toml", &routes);
    let flags = ["--config", routes.path(), "--workers", "1", "--peer-timeout", "12s"];
    let proxy = Server::start_proxy_in(&here, &flags);
    let port = proxy.listen.port();
    let metric = |name: &str| here.within(|| metric(&proxy, name));
    let local = || here.within(|| Socket::connect(([127, 0, 0, 1], port).into()));
    let (mut neighbour, mut its_leg) = tunnel(local(), "/", &near);
    let client_away = away.within(|| Socket::connect(([198, 18, 0, 1], port).into()));
    let (mut client_away, mut leg) = tunnel(client_away, "/", &near);
    let (mut client, mut leg_away) = tunnel(local(), "/far", &far);

    // A short outage closes nothing, although some probes are lost.
    away.plug(false);
    eventually("two were asked in vain of both", || {
        let asked = unanswered(&here);
        asked.len() == 2 && asked.iter().all(|count| *count >= 2)
    });
    away.plug(true);
    eventually("both have answered", || unanswered(&here) == [0, 0]);
    leg.say("here");
    assert_eq!(client_away.text_until("here"), "here");
    client.send(b"there");
    assert_eq!(leg_away.bytes(5), b"there");
    assert_eq!(metric("tunnels"), 3.0);

    // Data is sent to one of the two; the other is only probed.
    away.plug(false);
    leg.say("anybody?");
    assert!(leg.ends(), "the upstream is told that its client is gone");
    assert!(client.ends(), "and the client that its upstream is");
    eventually("each is counted", || {
        let ended = |reason| metric(&format!("tunnels_ended_total{{reason=\"{reason}\"}}"));
        ended("client_given_up") == 1.0 && ended("upstream_given_up") == 1.0
    });
    eventually("nothing of them is left", || metric("tunnels") == 1.0);
    neighbour.send(b"as before");
    assert_eq!(its_leg.bytes(9), b"as before");
}
