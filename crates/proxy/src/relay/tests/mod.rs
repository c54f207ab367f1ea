//! Tunnels of one worker: how they end, which are drained, and how they are listed. Only with the feature
//! `simulation`, which tests of the whole workspace have.

mod bodies;
mod harness;

use std::time::Duration;

use wire::ProxyVersion;

use self::harness::{BUFFER, End, Proxy, Tunnel, front};
use crate::config::Live;
use crate::counters::EndReason;
use crate::drain::{DrainAmount, DrainTarget};

const NOW: Duration = Duration::ZERO;
const ALL: DrainAmount = DrainAmount::Share(10_000);

#[test]
fn half_close_by_the_client_leaves_the_other_direction_open() {
    let mut proxy = Proxy::new();
    let tunnel = proxy.open();
    proxy.send(tunnel.client, b"question");
    proxy.finish(tunnel.client);
    assert_eq!(proxy.receive(tunnel.upstream), (b"question".to_vec(), End::Fin));
    assert_eq!(proxy.received_end(tunnel.client), End::Open);
    assert_eq!(proxy.phases(), [0, 1, 0]);
    proxy.send(tunnel.upstream, b"a long answer");
    assert_eq!(proxy.receive(tunnel.client), (b"a long answer".to_vec(), End::Open));
    proxy.finish(tunnel.upstream);
    assert_eq!(proxy.received_end(tunnel.client), End::Fin);
    assert_eq!(proxy.ended(), [(EndReason::ByClient, 1)]);
    proxy.check_empty(8, 13);
}

#[test]
fn half_close_by_the_upstream_leaves_the_other_direction_open() {
    let mut proxy = Proxy::new();
    let tunnel = proxy.open();
    proxy.send(tunnel.upstream, b"last word");
    proxy.finish(tunnel.upstream);
    assert_eq!(proxy.receive(tunnel.client), (b"last word".to_vec(), End::Fin));
    assert_eq!(proxy.received_end(tunnel.upstream), End::Open);
    assert_eq!(proxy.phases(), [0, 1, 0]);
    proxy.send(tunnel.client, b"but");
    assert_eq!(proxy.receive(tunnel.upstream), (b"but".to_vec(), End::Open));
    proxy.finish(tunnel.client);
    assert_eq!(proxy.received_end(tunnel.upstream), End::Fin);
    assert_eq!(proxy.ended(), [(EndReason::ByUpstream, 1)]);
    proxy.check_empty(3, 9);
}

#[test]
fn reset_by_the_client_resets_the_upstream() {
    let mut proxy = Proxy::new();
    let tunnel = proxy.open();
    proxy.reset(tunnel.client);
    assert_eq!(proxy.received_end(tunnel.upstream), End::Reset);
    assert_eq!(proxy.ended(), [(EndReason::ClientReset, 1)]);
    proxy.check_empty(0, 0);
}

#[test]
fn reset_by_the_upstream_ends_the_client() {
    let mut proxy = Proxy::new();
    let tunnel = proxy.open();
    proxy.send(tunnel.upstream, b"received");
    proxy.reset(tunnel.upstream);
    assert_eq!(proxy.receive(tunnel.client), (b"received".to_vec(), End::Fin));
    assert_eq!(proxy.ended(), [(EndReason::UpstreamReset, 1)]);
    proxy.check_empty(0, 8);
}

/// The side that had closed its direction is not the one that broke the tunnel.
#[test]
fn reset_after_the_other_side_has_half_closed_is_the_reason() {
    let mut proxy = Proxy::new();
    let (first, second) = (proxy.open(), proxy.open());
    proxy.finish(first.upstream);
    proxy.reset(first.client);
    proxy.finish(second.client);
    proxy.reset(second.upstream);
    assert_eq!(proxy.ended(), [(EndReason::ClientReset, 1), (EndReason::UpstreamReset, 1)]);
    proxy.check_empty(0, 0);
}

#[test]
fn queued_bytes_arrive_before_the_end() {
    let mut proxy = Proxy::new();
    let tunnel = proxy.open();
    let bytes: Vec<u8> = (0..BUFFER + 5_000).map(|n| (n % 251) as u8).collect();
    proxy.send(tunnel.upstream, &bytes);
    proxy.finish(tunnel.upstream);
    proxy.finish(tunnel.client);
    assert_eq!(proxy.all()[0].queued, 5_000);
    assert_eq!(proxy.receive(tunnel.client), (bytes.clone(), End::Fin));
    assert_eq!(proxy.ended(), [(EndReason::ByClient, 1)]);
    proxy.check_empty(0, bytes.len() as u64);
}

#[test]
fn drained_tunnel_still_sends_its_queued_bytes_both_ways() {
    let mut proxy = Proxy::new();
    let tunnel = proxy.open();
    let bytes: Vec<u8> = (0..BUFFER + 777).map(|n| (n % 251) as u8).collect();
    proxy.send(tunnel.upstream, &bytes);
    proxy.send(tunnel.client, &bytes[..BUFFER + 333]);
    proxy.order(DrainTarget::All, ALL, NOW);
    assert_eq!(proxy.phases(), [0, 0, 1]);
    assert_eq!(proxy.receive(tunnel.client), (bytes.clone(), End::Fin));
    assert_eq!(proxy.receive(tunnel.upstream), (bytes[..BUFFER + 333].to_vec(), End::Fin));
    proxy.finish(tunnel.client);
    assert_eq!(proxy.ended(), [(EndReason::Ordered, 1)]);
    proxy.check_empty(BUFFER as u64 + 333, BUFFER as u64 + 777);
}

#[test]
fn drain_closes_the_tunnels_of_an_upstream() {
    let mut proxy = Proxy::new();
    let tunnels: Vec<Tunnel> = (0..6).map(|_| proxy.open()).collect();
    let number = proxy.numbers()[1];
    proxy.order(DrainTarget::Upstreams([number].into()), ALL, NOW);
    for (at, tunnel) in tunnels.iter().enumerate() {
        let expected = if at % 2 == 1 { End::Fin } else { End::Open };
        assert_eq!(proxy.received_end(tunnel.client), expected, "{at}");
    }
    assert_eq!(proxy.phases(), [3, 0, 3]);
    tunnels.iter().for_each(|tunnel| proxy.finish(tunnel.client));
    assert_eq!((proxy.ended(), proxy.phases()), (vec![(EndReason::Ordered, 3)], [0, 3, 0]));
}

/// A tunnel that is being closed by an order is no longer part of the next one.
#[test]
fn drains_by_number_close_different_tunnels() {
    let mut proxy = Proxy::new();
    let tunnels = [proxy.open(), proxy.open(), proxy.open()];
    for open in [2, 1] {
        proxy.order(DrainTarget::All, DrainAmount::Count(1), NOW);
        assert_eq!(proxy.phases(), [open, 0, 3 - open]);
    }
    let ends = tunnels.map(|tunnel| proxy.received_end(tunnel.client));
    assert_eq!(ends, [End::Fin, End::Fin, End::Open]);
}

#[test]
fn drain_by_share_is_spread_over_its_time() {
    let mut proxy = Proxy::new();
    let tunnels: Vec<Tunnel> = (0..10).map(|_| proxy.open()).collect();
    proxy.order(DrainTarget::All, DrainAmount::Share(4_000), Duration::from_secs(4));
    for ended in 0..=4 {
        assert_eq!(proxy.phases(), [10 - ended, 0, ended]);
        proxy.pass(Duration::from_secs(1));
    }
    assert_eq!(proxy.phases(), [6, 0, 4]);
    // The peers do not close their side: after a time they are closed.
    proxy.pass(Live::default().limits.close_timeout);
    assert_eq!(proxy.ended(), [(EndReason::Ordered, 4)]);
    assert_eq!((proxy.counters().tunnels.get(), tunnels.len()), (6, 10));
}

#[test]
fn shutdown_ends_tunnels_and_lets_a_response_complete() {
    let mut proxy = Proxy::new();
    let (open, half) = (proxy.open(), proxy.open());
    proxy.finish(half.client);
    let plain = proxy.request(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(proxy.phases(), [1, 1, 0]);
    proxy.remote.drain(NOW);
    proxy.settle();
    assert_eq!(proxy.received_end(open.client), End::Fin);
    assert_eq!(proxy.received_end(open.upstream), End::Fin);
    assert_eq!(proxy.phases(), [0, 0, 1], "what was half closed has ended");
    proxy.send(plain.upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone");
    let (response, _) = proxy.receive(plain.client);
    assert!(response.ends_with(b"\r\n\r\ndone"), "{response:?}");
    proxy.finish(open.client);
    proxy.finish(open.upstream);
    assert_eq!(proxy.ended(), [(EndReason::ByClient, 1), (EndReason::Draining, 1)]);
    proxy.check_empty(0, 0);
}

#[test]
fn list_shows_addresses_bytes_and_times() {
    let mut proxy = Proxy::new();
    proxy.pass(Duration::from_secs(10));
    let first = proxy.open();
    proxy.pass(Duration::from_millis(2_500));
    proxy.open();
    proxy.send(first.upstream, &[b'd'; BUFFER + 1_000]);
    proxy.pass(Duration::from_secs(1));
    proxy.send(first.client, &[b'u'; BUFFER + 3_000]);
    proxy.pass(Duration::from_secs(2));
    let tunnels = proxy.all();
    let figures: Vec<_> = tunnels
        .iter()
        .map(|tunnel| {
            let tenths = (tunnel.idle_seconds * 10.0).round() as u32;
            let bytes = (tunnel.bytes_in, tunnel.bytes_out, tunnel.queued);
            (&*tunnel.upstream, tunnel.seconds, tenths, bytes)
        })
        .collect();
    let buffer = BUFFER as u64;
    let expected = [
        ("127.0.0.1:9001", 5, 19, (buffer + 3_000, buffer + 1_000, 4_000)),
        ("127.0.0.1:9002", 3, 29, (0, 0, 0)),
    ];
    assert_eq!(figures, expected);
    assert!(tunnels.iter().all(|tunnel| tunnel.client == Some(front().ip())));
    assert_eq!(tunnels.iter().map(|tunnel| tunnel.id.slot()).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn list_can_be_limited_to_upstreams() {
    let mut proxy = Proxy::new();
    (0..5).for_each(|_| _ = proxy.open());
    let numbers = proxy.numbers();
    let (first, second) = ("127.0.0.1:9001", "127.0.0.1:9002");
    for (upstreams, expected) in [
        (&numbers[..1], &[first; 3][..]),
        (&numbers[1..], &[second; 2]),
        (&numbers[..], &[first, second, first, second, first]),
        (&[], &[]),
    ] {
        let tunnels = proxy.list(0, 100, Some(upstreams.into())).tunnels;
        let listed: Vec<&str> = tunnels.iter().map(|tunnel| &*tunnel.upstream).collect();
        assert_eq!(listed, expected, "{upstreams:?}");
    }
}

#[test]
fn list_comes_in_pages() {
    let mut proxy = Proxy::new();
    (0..3).for_each(|_| _ = proxy.open());
    let mut slot = Some(0);
    let expected = [(vec![0], Some(1)), (vec![2], Some(3)), (vec![4], Some(5)), (vec![], None)];
    for expected in expected {
        let page = proxy.list(slot.unwrap(), 1, None);
        let slots: Vec<u32> = page.tunnels.iter().map(|tunnel| tunnel.id.slot()).collect();
        assert_eq!((slots, page.next_slot), expected);
        slot = page.next_slot;
    }
    let page = proxy.list(0, 3, None);
    assert_eq!((page.tunnels.len(), page.next_slot), (3, Some(5)));
    assert_eq!(proxy.list(600, 3, None).next_slot, None, "beyond the end");
}

#[test]
fn one_page_holds_many_tunnels() {
    let mut proxy = Proxy::new();
    (0..600).for_each(|_| _ = proxy.open());
    assert_eq!(proxy.all().len(), 600);
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A proxy whose tunnels may be idle for so long that idle times are measured in minutes.
fn with_long_idle_timeout() -> Proxy {
    let mut live = Live::default();
    live.timeouts.idle = Some(Duration::from_secs(30 * 86_400));
    Proxy::with(live)
}

#[test]
fn idle_connection_that_is_not_recent_serves_no_post_whatever_the_idle_timeout() {
    let mut proxy = with_long_idle_timeout();
    let first = proxy.request(GET);
    let second = proxy.request(GET);
    for tunnel in [first, second] {
        proxy.send(tunnel.upstream, OK);
        assert!(proxy.receive(tunnel.client).0.ends_with(b"ok"));
    }
    proxy.pass(Duration::from_millis(1_500));
    proxy.send(first.client, POST);
    assert!(proxy.accept(0).is_none(), "it is recent");
    proxy.send(first.upstream, OK);
    proxy.pass(Duration::from_millis(2_500));
    proxy.send(second.client, POST);
    assert!(proxy.accept(1).is_some(), "the upstream may be closing the other one");
}

#[test]
fn idle_connection_to_an_upstream_serves_no_other_name() {
    let mut proxy = with_long_idle_timeout();
    let serve = |proxy: &mut Proxy| {
        let pair = proxy.request(GET);
        proxy.receive(pair.upstream);
        proxy.send(pair.upstream, OK);
        pair.upstream
    };
    let (first, second) = (serve(&mut proxy), serve(&mut proxy));
    proxy.rename(0, "other.test:9001");
    // The first upstream was renamed: it gets a new connection, although no reload was posted yet.
    serve(&mut proxy);
    assert_eq!(proxy.counters().reused.get(), 0);
    assert_eq!(proxy.receive(first), (Vec::new(), End::Open));
    let client = proxy.connect(GET);
    assert_eq!(proxy.counters().reused.get(), 1, "the second one was not");
    assert!(proxy.receive(second).0.starts_with(b"GET "));
    proxy.reset(client);
}

#[test]
fn idle_connection_serves_no_request_of_another_transport() {
    let mut proxy = Proxy::new();
    let pairs = [proxy.request(GET), proxy.request(GET)];
    for pair in pairs {
        proxy.send(pair.upstream, OK);
    }
    proxy.publish(|_| {});
    proxy.connect(GET);
    assert_eq!(proxy.counters().reused.get(), 1, "nothing has changed");
    // The workers get the new settings only after the new table.
    proxy.publish(|routes| routes.pools[0].transport.proxy_header = Some(ProxyVersion::V1));
    proxy.connect(GET);
    let upstream = proxy.accept(1).expect("a new connection");
    assert!(proxy.receive(upstream).0.starts_with(b"PROXY TCP4 "));
}

#[test]
fn idle_connection_is_closed_in_time_whatever_the_idle_timeout() {
    let mut proxy = with_long_idle_timeout();
    let tunnel = proxy.request(GET);
    proxy.send(tunnel.upstream, OK);
    proxy.pass(Duration::from_millis(29_900));
    assert_eq!(proxy.received_end(tunnel.upstream), End::Open);
    proxy.pass(Duration::from_millis(200));
    assert_eq!(proxy.received_end(tunnel.upstream), End::Reset);
}

#[test]
fn half_closed_tunnel_with_data_stays_open_whatever_the_idle_timeout() {
    let mut proxy = with_long_idle_timeout();
    let tunnel = proxy.open();
    proxy.finish(tunnel.client);
    for _ in 0..400 {
        proxy.pass(Duration::from_millis(300));
        proxy.send(tunnel.upstream, b"d");
    }
    assert_eq!(proxy.ended(), []);
    assert_eq!(proxy.receive(tunnel.client), (vec![b'd'; 400], End::Open));
    // Two steps of the idle clock, of 43.2 s each, and the close timeout.
    proxy.pass(Duration::from_secs(2 * 44) + Live::default().limits.close_timeout);
    assert_eq!(proxy.ended(), [(EndReason::Fin, 1)]);
}

#[test]
fn response_is_kept_for_a_slow_reader_whatever_the_idle_timeout() {
    let mut live = Live::default();
    live.timeouts.idle = Some(Duration::from_secs(30 * 86_400));
    live.timeouts.answer = Duration::from_secs(10);
    let mut proxy = Proxy::with(live);
    let body = [b'd'; BUFFER + 1_000];
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len());
    // At some time a step of the idle clock ends while the client does not read.
    for _ in 0..8 {
        let tunnel = proxy.request(GET);
        proxy.send(tunnel.upstream, format!("{head}Connection: close\r\n\r\n").as_bytes());
        proxy.send(tunnel.upstream, &body);
        proxy.pass(Duration::from_secs(9));
        let (response, end) = proxy.receive(tunnel.client);
        assert!(response.ends_with(&body), "{} bytes", response.len());
        assert_eq!(end, End::Open);
        proxy.pass(Duration::from_secs(4));
    }
}

const WITH_CREDENTIALS: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Negotiate x\r\n\r\n";
const CHALLENGE: &[u8] =
    b"HTTP/1.1 401 No\r\nWWW-Authenticate: Negotiate\r\nContent-Length: 0\r\n\r\n";

#[test]
fn credentials_without_a_challenge_only_prevent_sharing() {
    let mut proxy = Proxy::new();
    let first = proxy.request(WITH_CREDENTIALS);
    proxy.send(first.upstream, OK);
    assert!(proxy.receive(first.client).0.ends_with(b"ok"));
    assert_eq!(proxy.counters().bound.get(), 0);
    assert_ne!(proxy.received_end(first.upstream), End::Open);
    // A challenge binds the connection, whose later responses keep it bound.
    let second = proxy.request(WITH_CREDENTIALS);
    for response in [CHALLENGE, OK, OK] {
        proxy.send(second.upstream, response);
        assert_eq!(proxy.counters().bound.get(), 1);
        proxy.send(second.client, WITH_CREDENTIALS);
        assert!(proxy.receive(second.upstream).0.starts_with(b"GET "));
    }
}

#[test]
fn bound_connections_are_limited() {
    let mut proxy = Proxy::new();
    let max = super::bound::BOUND_MAX;
    for _ in 0..max {
        let pair = proxy.request(GET);
        proxy.send(pair.upstream, CHALLENGE);
    }
    let bound = |proxy: &Proxy| (proxy.counters().bound.get(), proxy.counters().unbound.get());
    assert_eq!(bound(&proxy), (max as u64, 0));
    let beyond = proxy.request(GET);
    proxy.send(beyond.upstream, CHALLENGE);
    assert_eq!(bound(&proxy), (max as u64, 1));
    assert_ne!(proxy.received_end(beyond.upstream), End::Open);
    assert!(proxy.receive(beyond.client).0.starts_with(b"HTTP/1.1 401 "), "it gets its response");
}

#[test]
fn request_head_is_freed_when_its_response_begins() {
    let mut proxy = Proxy::new();
    let tunnel = proxy.request(GET);
    assert!(proxy.head_bytes() > 0, "it is kept for a retry");
    proxy.send(tunnel.upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfirst");
    assert_eq!(proxy.head_bytes(), 0);
}
